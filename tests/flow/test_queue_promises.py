"""What a queue promises, one worked example for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import FirstInFirstOut, PriorityAttribute
from penstock.flow.queue import swap_cursors, swap_policy
from penstock.flow.queue.drop_requests import DropState
from penstock.flow.queue.heap_budget import HeapBudget, heap_bytes
from penstock.flow.queue.queue import AttributeIs, FilterVerdict, FlowFileQueue
from penstock.flow.queue.queue_size import Availability, QueueOptions
from penstock.flow.swap import swap_pages
from penstock.storage.content.claims import ResourceClaim
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.flow.flow_queue_kit import SMALL, ByNumber, FakeHome, FlowQueueWorld, flowfile, ids


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_pages, "PAGE_ROWS", 2)
    monkeypatch.setattr(swap_cursors, "WINDOW_ROWS_MIN", 2)
    monkeypatch.setattr(swap_cursors, "WINDOW_ROWS_MAX", 2)


def swapped(world: FlowQueueWorld, count: int = 20, **fields: object) -> list[FlowFile]:
    """Put so many that most are in swap files; they come in the order of their numbers."""
    made = [flowfile(number, **fields) for number in range(count)]
    for start in range(0, count, 4):
        world.put(*made[start : start + 4])
    return made


# -- thresholds, order, sizes


def test_what_is_over_the_threshold_goes_to_swap_files_of_a_batch() -> None:
    world = FlowQueueWorld()
    swapped(world, 11)
    assert (world.queue.size.active_count, world.queue.size.swap_files) == (11, 0)
    world.put(flowfile(11))
    size = world.queue.size
    assert (size.active_count, size.swapped_count, size.swap_files) == (8, 4, 1)
    assert (size.count, size.size_bytes) == (12, sum(10 + n % 7 for n in range(12)))


def test_the_first_of_all_comes_first_from_any_depth() -> None:
    world = FlowQueueWorld(prioritizers=[PriorityAttribute()])
    for number in range(40):
        world.put(flowfile(number, priority=(number * 7) % 40))
    assert world.queue.size.swap_files >= 3
    order = sorted(range(40), key=lambda number: (number * 7) % 40)
    assert world.poll(5) == order[:5]
    world.put(flowfile(100, priority=-1))
    assert world.poll() == [100]
    assert world.drain() == order[5:]


def test_a_new_order_holds_for_what_is_swapped_and_writes_nothing() -> None:
    world = FlowQueueWorld(prioritizers=[FirstInFirstOut()])
    swapped(world, 30)
    assert world.poll(3) == [0, 1, 2]
    files = world.home.attempts
    world.queue.set_prioritizers([ByNumber(5)])
    assert world.home.attempts == files
    order = sorted(range(3, 30), key=lambda number: (number % 5, number))
    assert world.poll(4) == order[:4]
    world.queue.set_prioritizers([FirstInFirstOut()])
    assert world.drain() == sorted(order[4:])


def test_after_a_restart_the_order_is_the_queue_s_whatever_the_files_are_sorted_by() -> None:
    world = FlowQueueWorld(prioritizers=[FirstInFirstOut()])
    swapped(world, 30)
    taken = world.poll(6)
    again = FlowQueueWorld(home=world.home.restarted(world.home.fs.crash(1)))
    again.queue.set_prioritizers([ByNumber(4)])
    again.queue.restore(*again.home.recovered())
    assert again.queue.size.count == 30
    assert again.drain() == sorted(range(30), key=lambda number: (number % 4, number))
    assert taken == [0, 1, 2, 3, 4, 5]


def test_a_restart_reads_no_rows() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    home = world.home.restarted(world.home.fs)
    again = FlowQueueWorld(home=home)
    again.queue.restore(*home.recovered())
    assert (home.opened, again.queue.size.count) == (0, 30)


def test_rows_done_with_are_not_there_after_a_restart() -> None:
    world = FlowQueueWorld()
    made = swapped(world, 30)
    gone = world.queue.poll_many(25).flowfiles
    for one in gone[8:]:
        world.home._leave(one.id)
    home = world.home.restarted(world.home.fs)
    again = FlowQueueWorld(home=home)
    again.queue.restore(*home.recovered())
    kept = [*made[:8], *made[25:]]
    assert again.queue.size.size_bytes == sum(one.size for one in kept)
    assert again.drain() == ids(kept)


def test_reading_costs_no_write_and_letting_go_neither() -> None:
    world = FlowQueueWorld()
    swapped(world, 40)
    steps = world.home.fs.steps
    world.queue.listing.first(40)
    world.queue.set_prioritizers([ByNumber(2)])
    world.queue.set_prioritizers([])
    assert world.poll(30) == [*range(30)]
    assert world.home.fs.steps == steps


def test_memory_is_bounded_however_much_is_queued() -> None:
    world = FlowQueueWorld(QueueOptions(50, 50), [PriorityAttribute()])
    for number in range(3_000):
        world.put(flowfile(number, priority=number * 7 % 1000))
        assert world.queue.size.active_count < 100
        if number % 3 == 0:
            world.poll()
        if number % 100 == 0:
            swapped_runs = world.queue._queue_state.main.cursors
            assert sum(len(run.window) for run in swapped_runs) <= 50 + 2 * len(swapped_runs)


# -- penalties


def test_a_penalty_holds_in_swap_files_and_through_a_restart() -> None:
    world = FlowQueueWorld()
    now = world.clock.now_ms()
    swapped(world, 30, penalty_until_ms=now + 1_000)
    world.put(flowfile(99, penalty_until_ms=now + 500))
    assert world.queue.size.swap_files > 0
    home = world.home.restarted(world.home.fs)
    again = FlowQueueWorld(home=home)
    again.queue.restore(*home.recovered())
    assert again.poll() == []
    assert again.queue.availability(now) is Availability.PENALIZED
    assert again.queue.next_due_ms() == now + 500
    again.clock.advance(ms=500)
    assert again.queue.availability(again.clock.now_ms()) is Availability.AVAILABLE
    assert again.poll(5) == [99]
    assert again.queue.next_due_ms() == now + 1_000
    again.clock.advance(ms=500)
    assert again.drain() == [*range(30)]


def set_back(world: FlowQueueWorld, ms: int) -> None:
    """Let somebody set the machine's clock back; what is monotonic goes on."""
    world.clock._start_ms -= ms


HOUR_MS = 3_600_000


@pytest.mark.parametrize("count", [3, 30], ids=["in memory", "in swap files"])
def test_no_penalty_waits_longer_because_the_clock_was_set_back(count: int) -> None:
    world = FlowQueueWorld()
    now = world.clock.now_ms()
    swapped(world, count, penalty_until_ms=now + 30_000, queued_ms=now)
    assert bool(world.queue.size.swap_files) is (count == 30)
    assert not world.poll()
    set_back(world, HOUR_MS)
    world.clock.advance(30)
    now = world.clock.now_ms()
    assert world.queue.availability(now) is Availability.AVAILABLE
    due_ms = world.queue.next_due_ms()
    assert due_ms is not None
    assert due_ms <= now
    assert sorted(world.drain()) == list(range(count))
    assert world.queue.next_due_ms() is None

    world.put(flowfile(99, penalty_until_ms=now + 600_000, queued_ms=now))
    assert not world.poll(), "what is penalized from then on goes by the new time"
    world.clock.advance(601)
    assert world.poll() == [99]


def test_what_a_session_gives_back_after_the_clock_was_set_back_does_not_wait() -> None:
    world = FlowQueueWorld()
    now = world.clock.now_ms()
    world.put(flowfile(1, penalty_until_ms=now - 5, queued_ms=now - 10))
    taken = world.queue.poll_many(5).flowfiles
    set_back(world, HOUR_MS)
    world.queue.put_many(taken)
    world.queue.acknowledge(1, taken[0].size)
    assert world.poll() == [1]
    again = msgspec.structs.replace(
        taken[0], penalty_until_ms=world.clock.now_ms() + 20_000
    )  # and what it penalizes, does
    world.queue.put_many([again])
    assert not world.poll()
    world.clock.advance(21)
    assert world.poll() == [1]


def test_a_clock_that_is_adjusted_a_little_frees_nothing() -> None:
    world = FlowQueueWorld()
    now = world.clock.now_ms()
    world.put(flowfile(1, penalty_until_ms=now + 5_000, queued_ms=now))
    set_back(world, 500)
    assert not world.poll()
    world.clock.advance(5.5)
    assert world.poll() == [1]


def test_penalized_ones_do_not_stand_in_the_way() -> None:
    world = FlowQueueWorld()
    now = world.clock.now_ms()
    world.put(flowfile(1, penalty_until_ms=now + 10), flowfile(2), flowfile(3))
    assert world.poll(5) == [2, 3]
    world.clock.advance(ms=10)
    assert world.poll(5) == [1]
    assert world.queue.availability(now) is Availability.EMPTY


# -- expiration


def test_expired_ones_are_reported_and_not_handed_out() -> None:
    world = FlowQueueWorld(QueueOptions(8, 4, expiration_ms=100))
    now = world.clock.now_ms()
    world.put(flowfile(1, entry_ms=now - 101), flowfile(2, entry_ms=now - 100))
    polled = world.queue.poll_many(5)
    assert (ids(polled.flowfiles), ids(polled.expired)) == ([2], [1])
    assert world.queue.size.unacknowledged_count == world.queue.size.count == 1


def test_swapped_ones_expire_without_being_loaded() -> None:
    world = FlowQueueWorld(QueueOptions(8, 4, expiration_ms=1_000))
    made = swapped(world, 30, entry_ms=world.clock.now_ms())
    on_disk = world.queue.size.swapped_count
    world.clock.advance(ms=1_001)
    world.put(flowfile(50, entry_ms=world.clock.now_ms()))
    polled = world.queue.poll_many(100)
    assert ids(polled.flowfiles) == [50]
    assert sum(one.count for one in polled.expired_rows) == on_disk
    assert len(polled.expired) + on_disk == 30
    claims: dict[ResourceClaim, int] = {}
    for rows in polled.expired_rows:
        for claim, count in rows.claims.items():
            claims[claim] = claims.get(claim, 0) + count
    for one in polled.expired:
        claims[one.claim.resource] = claims.get(one.claim.resource, 0) + 1
    assert claims == {ResourceClaim(f"r{n:09d}"): 5 for n in range(6)}
    swept = sum(one.size_bytes for one in polled.expired_rows)
    assert swept + sum(one.size for one in polled.expired) == sum(one.size for one in made)
    assert (world.queue.size.count, world.queue.size.swap_files) == (1, 0)


def test_a_queue_that_nobody_polls_expires_penalized_ones_too() -> None:
    world = FlowQueueWorld(QueueOptions(8, 4, expiration_ms=100))
    now = world.clock.now_ms()
    swapped(world, 30, entry_ms=now, penalty_until_ms=now + 10_000)
    world.clock.advance(ms=101)
    assert world.queue.expire().flowfiles == []
    assert world.queue.size.is_empty


# -- what a disk does


def test_a_failed_swap_out_keeps_all_and_is_not_tried_at_every_put() -> None:
    world = FlowQueueWorld()
    world.home.is_full = True
    for number in range(40):
        world.put(flowfile(number))
    assert (world.queue.size.active_count, world.queue.size.swapped_count) == (40, 0)
    # 12, and then with each further batch of four: not forty times.
    assert world.home.attempts == 8
    statistics = world.queue.statistics()
    assert statistics.swap_failures == 8
    assert "full" in statistics.last_swap_failure
    world.home.is_full = False
    world.clock.advance(60)
    world.put(flowfile(40))
    assert world.queue.size.active_count <= 12
    assert world.queue.statistics().last_swap_failure == ""
    assert world.drain() == [*range(41)]


def test_a_missing_file_costs_its_rows_and_blocks_nothing() -> None:
    world = FlowQueueWorld(home=FakeHome())
    swapped(world, 20)
    first = world.home.files["1.swap"]
    world.home.fs.unlink("/swap/1.swap")
    assert world.drain() == [n for n in range(20) if n not in first.ids]
    assert world.home.damages == [("1.swap", [0, 1, 2, 3])]
    assert world.queue.statistics().lost_count == 4
    taken = world.queue.size
    assert (taken.count, taken.size_bytes) == (16, sum(10 + n % 7 for n in range(20)) - sum(
        10 + n % 7 for n in first.ids
    ))  # fmt: skip


def test_a_damaged_page_costs_its_rows() -> None:
    world = FlowQueueWorld(home=FakeHome())
    swapped(world, 20)
    file = world.home.files["2.swap"]
    content = world.home.fs.read_bytes("/swap/2.swap")
    world.home.fs.damage(
        "/swap/2.swap", lambda raw: raw.__setitem__(len(content) - 1, 255 ^ raw[-1])
    )
    assert world.drain() == [n for n in range(20) if n not in file.ids[2:]]
    assert world.home.damages == [("2.swap", [2, 3])]
    assert world.queue.size.unacknowledged_bytes == world.queue.size.size_bytes


def test_a_file_that_cannot_be_read_now_is_tried_again() -> None:
    class Tired(FakeHome):
        is_tired = False

        def open(self, file):  # type: ignore[no-untyped-def]
            if self.is_tired:
                raise Unavailable("too many open files")
            return super().open(file)

    home = Tired()
    world = FlowQueueWorld(home=home)
    swapped(world, 20)
    home.is_tired = True
    first = world.drain()
    assert 0 < len(first) < 20
    now = world.clock.now_ms()
    assert world.queue.availability(now) is Availability.PENALIZED
    assert world.queue.next_due_ms() == now + 1_000
    home.is_tired = False
    world.clock.advance(1)
    assert sorted(first + world.drain()) == [*range(20)]
    assert home.damages == []


# -- reading ahead


def test_the_next_window_is_read_before_the_present_one_is_used_up() -> None:
    jobs: list[Callable[[], None]] = []
    world = FlowQueueWorld(background=jobs.append)
    swapped(world, 40)
    found = world.poll(9)
    assert world.queue._read_ahead.windows_read == 0
    for _ in range(31):
        while jobs:
            jobs.pop()()
        found += world.poll()
    assert found == [*range(40)]
    assert world.queue._read_ahead.windows_read > 5
    late = FlowQueueWorld(background=jobs.append)
    swapped(late, 40)
    assert late.drain() == [*range(40)]
    while jobs:  # a job that comes too late changes nothing
        jobs.pop()()
    assert late.queue.size.unacknowledged_count == 40


# -- filters


def test_a_filter_reaches_into_swap_files_and_rejects_keep_their_place() -> None:
    world = FlowQueueWorld()
    swapped(world, 20)
    polled = world.queue.poll_where(
        lambda one: FilterVerdict.ACCEPT if one.id in {1, 9, 10} else FilterVerdict.REJECT
    )
    assert set(ids(polled.flowfiles)) <= {1, 9, 10}
    assert polled.flowfiles
    rest = sorted({*range(20)} - set(ids(polled.flowfiles)))
    assert world.drain() == rest


def test_a_filter_that_stops_is_shown_no_more() -> None:
    world = FlowQueueWorld()
    swapped(world, 20)
    seen: list[int] = []

    def accept(one: FlowFile) -> FilterVerdict:
        seen.append(one.id)
        return FilterVerdict.ACCEPT_AND_STOP if one.id == 3 else FilterVerdict.REJECT

    assert ids(world.queue.poll_where(accept).flowfiles) == [3]
    assert seen == [0, 1, 2, 3]
    assert world.poll(3) == [0, 1, 2]


def test_a_filter_must_not_poll_its_queue() -> None:
    world = FlowQueueWorld()
    swapped(world, 5)

    def accept(one: FlowFile) -> FilterVerdict:
        world.queue.poll()
        return FilterVerdict.ACCEPT

    with pytest.raises(Conflict, match="filter"):
        world.queue.poll_where(accept)
    assert world.drain() == [*range(5)]


# -- looking and dropping


def test_looks_reach_into_swap_files() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    world.poll(2)
    assert ids(world.queue.listing.first(25)) == [*range(2, 27)]
    assert ids(world.queue.listing.search(AttributeIs("uuid", "u29"))) == [29]
    assert not world.queue.listing.search(AttributeIs("uuid", "u1"))
    assert world.queue.listing.count_by("kind") == {"k0": 9, "k1": 9, "k2": 10}
    assert world.queue.listing.count_by("never") == {None: 28}
    liked = world.queue.listing.search(lambda attributes: attributes["uuid"].endswith("7"))
    assert sorted(ids(liked)) == [7, 17, 27]
    assert len(world.queue.listing.search(AttributeIs("kind", "k1"), 4)) == 4


def test_a_search_by_one_attribute_makes_no_flowfiles_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    made: list[int] = []
    whole = swap_pages.SwapPage.flowfiles

    def counted(page: swap_pages.SwapPage, rows=None):  # type: ignore[no-untyped-def]
        made.append(page.count if rows is None else len(rows))
        return whole(page, rows)

    monkeypatch.setattr(swap_pages.SwapPage, "flowfiles", counted)
    world.queue.listing.count_by("kind")
    assert world.queue.listing.search(AttributeIs("uuid", "u12"), 1)
    assert sum(made) == 1


def test_a_drop_goes_through_memory_and_files_and_leaves_sessions_alone() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    taken = world.poll(2)
    request = world.queue.drop()
    progress = request.progress
    assert (progress.state, progress.dropped_count) == (DropState.COMPLETE, 28)
    assert progress.original.count == 30
    assert request.wait(0)
    assert world.queue.size.count == world.queue.size.unacknowledged_count == len(taken)
    assert world.poll() == []
    assert sorted(world.home.swept + world.home.removed) == [*range(2, 30)]


def test_a_selective_drop_keeps_order() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    world.poll(3)
    request = world.queue.drop(AttributeIs("kind", "k1"))
    assert request.progress.dropped_count == 9
    assert world.drain() == [n for n in range(3, 30) if n % 3 != 1]


def test_a_drop_can_be_cancelled_and_told_why_it_failed() -> None:
    jobs: list[Callable[[], None]] = []
    world = FlowQueueWorld(background=jobs.append)
    swapped(world, 30)
    request = world.queue.drop()
    assert request.progress.state is DropState.WAITING
    assert request.cancel()
    jobs.pop()()
    assert request.progress.state is DropState.CANCELLED
    assert not request.cancel()
    world.home.is_full = True
    failed = world.queue.drop()
    jobs.pop()()
    assert failed.progress.state is DropState.FAILED
    assert "full" in failed.progress.failure
    world.home.is_full = False
    assert world.drain() == [*range(30)]


def test_a_drop_is_cancelled_between_files() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    asked: list[int] = []

    def predicate(attributes: object) -> bool:
        asked.append(1)
        if len(asked) == 15:
            world_request[0].cancel()
        return True

    jobs: list[Callable[[], None]] = []
    world.queue._background = jobs.append
    world_request = [world.queue.drop(predicate)]
    jobs.pop()()
    progress = world_request[0].progress
    assert progress.state is DropState.CANCELLED
    assert 8 <= progress.dropped_count < 30
    assert world.queue.size.count == 30 - progress.dropped_count


# -- back-pressure, listeners, counts


def test_back_pressure_counts_what_sessions_hold() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_work(self, queue: str) -> None:
            self.heard.append(f"work {queue}")

        def on_space(self, queue: str) -> None:
            self.heard.append(f"space {queue}")

    world = FlowQueueWorld(QueueOptions(backpressure_count=3, backpressure_bytes=0))
    listener = world.queue.listener = Listener()
    world.put(flowfile(1), flowfile(2))
    assert not world.queue.is_full
    world.put(flowfile(3))
    assert world.queue.is_full
    taken = world.queue.poll_many(1).flowfiles
    assert world.queue.is_full
    assert listener.heard == ["work q", "work q"]
    world.queue.acknowledge(1, taken[0].size)
    assert not world.queue.is_full
    assert listener.heard[2:] == ["space q"]
    world.queue.set_options(QueueOptions(backpressure_count=0, backpressure_bytes=15))
    assert world.queue.is_full
    world.queue.set_options(QueueOptions(backpressure_count=0, backpressure_bytes=0))
    assert listener.heard[2:] == ["space q", "space q"]


def test_what_was_not_polled_is_not_acknowledged() -> None:
    world = FlowQueueWorld()
    world.put(flowfile(1))
    world.poll()
    for count, size_bytes in ((2, 0), (-1, 0), (1, 999)):
        with pytest.raises(InvalidRequest, match="acknowledge"):
            world.queue.acknowledge(count, size_bytes)
    assert world.queue.size.unacknowledged_count == 1


def test_what_is_given_back_from_a_file_keeps_its_home_until_it_is_swapped_again() -> None:
    world = FlowQueueWorld()
    swapped(world, 30)
    taken = world.queue.poll_many(30).flowfiles
    world.queue.put_many(taken)
    world.queue.acknowledge(30, sum(one.size for one in taken))
    assert world.queue.size.count == 30
    home = world.home.restarted(world.home.fs)
    again = FlowQueueWorld(home=home)
    again.queue.restore(*home.recovered())
    assert again.drain() == world.drain() == [*range(30)]


def test_the_last_one_of_a_window_given_back_comes_again() -> None:
    for taken in range(1, 20):
        world = FlowQueueWorld()
        swapped(world, 20)
        polled = world.queue.poll_many(taken).flowfiles
        last = polled[-1]
        world.queue.put(last)
        world.queue.acknowledge(1, last.size)
        assert world.poll(30) == [*range(len(polled) - 1, 20)], taken


def test_the_last_one_of_a_window_given_back_and_swapped_again_comes_again() -> None:
    for taken in range(1, 20):
        world = FlowQueueWorld()
        swapped(world, 20)
        last = world.queue.poll_many(taken).flowfiles[-1]
        world.put(last, *(flowfile(n) for n in range(20, 32)))
        assert world.poll(40) == [*range(last.id, 32)], taken


# -- the budget


def test_the_fattest_queue_swaps_out_when_all_together_hold_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swap_policy, "FLOOR_COUNT", 2)
    home = FakeHome()
    each = heap_bytes([flowfile(1)])
    budget = HeapBudget(20 * each)
    world = FlowQueueWorld(QueueOptions(1_000, 1_000), home=home, budget=budget)
    other = FlowFileQueue("other", home, world.clock, QueueOptions(1_000, 1_000), budget=budget)
    world.put(*(flowfile(n) for n in range(16)))
    assert world.queue.size.swap_files == 0
    small = [flowfile(n) for n in range(100, 106)]
    home.commit(small)
    other.put_many(small)
    assert budget.used_bytes <= 20 * each
    assert (other.size.swapped_count, world.queue.size.swapped_count) == (0, 8)
    assert world.drain() == [*range(16)]
    assert ids(other.poll_many(6).flowfiles) == [*range(100, 106)]
    assert budget.used_bytes == 0


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError])
def test_a_queue_that_cannot_swap_out_fails_no_put_of_another(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    each = heap_bytes([flowfile(1)])
    budget = HeapBudget(20 * each)

    def fail() -> bool:
        raise error

    budget.join("broken", fail)
    budget.hold("broken", 15 * each)
    world = FlowQueueWorld(QueueOptions(1_000, 1_000), budget=budget)
    world.put(*(flowfile(n) for n in range(16)))
    assert "broken could not swap out" in caplog.text
    assert world.drain() == [*range(16)]
    assert budget.used_bytes == 15 * each


def test_large_attributes_count_by_their_length() -> None:
    budget = HeapBudget(1_000_000)
    world = FlowQueueWorld(QueueOptions(1_000, 1_000), budget=budget)
    made = [FlowFile(n, {"large": "x" * 10_000}) for n in range(300)]
    world.put(*made)
    assert budget.used_bytes < 3_300_000
    assert world.queue.size.swapped_count > 0
    assert world.queue.size.active_count <= 200
    assert len(world.drain()) == 300


def test_what_was_read_ahead_of_a_swap_file_does_not_count_when_it_is_dropped() -> None:
    budget = HeapBudget(1 << 30)
    world = FlowQueueWorld(QueueOptions(10, 10), budget=budget)
    world.put(*(flowfile(n) for n in range(50)))
    assert world.poll(25) == [*range(25)]
    used = budget.used_bytes
    assert used > 0
    assert world.queue.drop().wait(0)
    assert world.queue.size.swap_files == 0
    assert budget.used_bytes == 0


def test_few_flowfiles_with_huge_attributes_swap_out_too() -> None:
    budget = HeapBudget(10 << 20)
    world = FlowQueueWorld(QueueOptions(1_000, 1_000), budget=budget)
    world.put(*(FlowFile(n, {"huge": "x" * (2 << 20)}) for n in range(12)))
    assert budget.used_bytes <= 10 << 20
    assert world.queue.size.swapped_count >= 7
    assert world.drain() == [*range(12)]


def test_queues_that_cannot_swap_out_are_not_asked_at_every_put() -> None:
    budget = HeapBudget(6_400)
    asked: list[str] = []

    def refuse(name: str) -> bool:
        asked.append(name)
        return False

    for number in range(10):
        budget.join(f"q{number}", partial(refuse, f"q{number}"))
        budget.hold(f"q{number}", 700 + number)
    assert budget.hold("q0", 800)
    budget.relieve()
    assert asked == ["q0", *(f"q{number}" for number in range(9, 0, -1))], "the fattest first"
    assert not budget.hold("q0", 850), "a little more"
    assert budget.hold("q0", 950), "more than that"
    budget.hold("q0", 0)
    budget.hold("q1", 0)
    assert not budget.hold("q2", 0)
    assert budget.hold("q2", 1_500), "it was within the limit meanwhile"


def test_a_crash_while_swapping_out_loses_nothing() -> None:
    for step in range(1, 9):
        world = FlowQueueWorld()
        for number in range(0, 8, 4):
            world.put(*(flowfile(n) for n in range(number, number + 4)))
        fs: CrashableFileSystem = world.home.fs
        fs.kill_at(fs.steps + step)
        with contextlib.suppress(PowerLoss):
            world.put(*(flowfile(n) for n in range(8, 12)))
        home = world.home.restarted(fs.crash(step))
        again = FlowQueueWorld(home=home)
        again.queue.restore(*home.recovered())
        assert again.drain() == [*range(12)], step


def test_options_and_penalties_are_values() -> None:
    with pytest.raises(InvalidRequest, match="swap_batch"):
        QueueOptions(swap_batch=0)
    with pytest.raises(InvalidRequest, match="expiration_ms"):
        QueueOptions(expiration_ms=-1)
    assert msgspec.structs.replace(flowfile(1), penalty_until_ms=5).is_penalized(4)
    assert SMALL.swap_threshold == 8
