"""The queue under exceptions that nobody expects: each kind at each call of each of its ports.

And a MemoryError at each call of its own functions, which finds what lies between calls of ports.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from penstock.flow.prioritizers import FirstInFirstOut, NewestFlowFileFirst
from penstock.flow.queue import swap_cursors
from penstock.flow.queue.queue import FilterVerdict, PollResult
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.swap import swap_pages
from tests.flow.flow_queue_kit import FlowQueueWorld, flowfile, ids
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

COUNT, MORE, PENALIZED = 24, 6, 90
OPTIONS = QueueOptions(swap_threshold=8, swap_batch=4, expiration_ms=50_000)
# A sample of the calls of functions; `make soak` has all.
EVERY = 53
# Two of the six kinds of errors come at each call of a port; `make soak` has all.
KIND_EVERY = 3
Jobs = list[Callable[[], None]]
Operation = Callable[[FlowQueueWorld, Jobs], PollResult | None]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)


def small(patch: pytest.MonkeyPatch) -> None:
    """Let pages and windows be so small that a few FlowFiles need several."""
    patch.setattr(swap_pages, "PAGE_ROWS", 3)
    patch.setattr(swap_cursors, "WINDOW_ROWS_MIN", 1)
    patch.setattr(swap_cursors, "WINDOW_ROWS_MAX", 4)


def poll(world: FlowQueueWorld, _jobs: Jobs) -> PollResult:
    return world.queue.poll_many(30)


def poll_where(world: FlowQueueWorld, _jobs: Jobs) -> PollResult:
    return world.queue.poll_where(
        lambda one: FilterVerdict.ACCEPT if one.id % 2 else FilterVerdict.REJECT
    )


def put(world: FlowQueueWorld, _jobs: Jobs) -> None:
    world.queue.put_many([world.home.journal[number] for number in range(COUNT, COUNT + MORE)])


def expire(world: FlowQueueWorld, _jobs: Jobs) -> PollResult:
    return world.queue.expire()


def drop(world: FlowQueueWorld, jobs: Jobs) -> None:
    world.queue.drop(lambda attributes: attributes["kind"] == "k1")
    run_jobs(world, jobs)


def drop_all(world: FlowQueueWorld, jobs: Jobs) -> None:
    world.queue.drop()
    run_jobs(world, jobs)


def run_jobs(_world: FlowQueueWorld, jobs: Jobs) -> None:
    while jobs:
        jobs.pop(0)()


def reorder(world: FlowQueueWorld, _jobs: Jobs) -> None:
    world.order([NewestFlowFileFirst()])


def look(world: FlowQueueWorld, _jobs: Jobs) -> None:
    world.queue.listing.first(30)
    world.queue.listing.count_by("kind")


def ask(world: FlowQueueWorld, _jobs: Jobs) -> None:
    world.queue.availability(world.clock.now_ms())
    world.queue.next_due_ms()


def acknowledge(world: FlowQueueWorld, _jobs: Jobs) -> None:
    """Count FlowFiles as gone, as a session does after its commit; the full queue gets space."""
    taken = world.queue.size
    world.queue.set_options(replace(OPTIONS, backpressure_count=taken.count))
    world.queue.acknowledge(taken.unacknowledged_count, taken.unacknowledged_bytes)


def set_options(world: FlowQueueWorld, _jobs: Jobs) -> None:
    world.queue.set_options(replace(OPTIONS, swap_threshold=1, swap_batch=2))


OPERATIONS: list[Operation] = [
    *(poll, poll_where, put, expire, drop, drop_all, run_jobs, reorder, look, ask),
    *(acknowledge, set_options),
]


def filled() -> tuple[FlowQueueWorld, Jobs, set[int]]:
    """Return a queue with FlowFiles in memory and in files, some of which are penalized or old."""
    jobs: Jobs = []
    world = FlowQueueWorld(OPTIONS, [FirstInFirstOut()], background=jobs.append)
    world.clock.advance(ms=100_000)
    now = world.clock.now_ms()
    for start in range(0, COUNT, 12):
        world.put(
            *(
                flowfile(
                    number,
                    entry_ms=now - (60_000 if number % 7 == 3 else 10),
                    queued_ms=now,
                    penalty_until_ms=now + 500 if number % 5 == 2 else 0,
                )
                for number in range(start, start + 12)
            )
        )
    more = [flowfile(n, entry_ms=now, queued_ms=now) for n in range(COUNT, COUNT + MORE)]
    world.home.commit(more)
    world.clock.advance(ms=600)
    gone: set[int] = set()
    for _ in range(COUNT):
        if jobs:  # a window is open, and the next one is asked for
            break
        polled = world.queue.poll_many(1)
        gone |= {*ids(polled.flowfiles), *ids(polled.expired)}
    now = world.clock.now_ms()
    world.put(flowfile(PENALIZED, entry_ms=now, queued_ms=now, penalty_until_ms=now + 1_500))
    return world, jobs, gone


Arm = Callable[[FlowQueueWorld], AbstractContextManager[object]]


def check(operation: Operation, arm: Arm) -> FlowQueueWorld:
    """Call it under faults; all FlowFiles come once afterwards, and nothing waits for ever."""
    world, jobs, gone = filled()
    home, queue = world.home, world.queue
    polled = None
    with arm(world):
        polled = operation(world, jobs)
    where = world.faults.raised
    is_put = operation is put and not where.endswith(".put_many")  # which has not begun then
    inside = {PENALIZED, *range(COUNT + MORE * is_put)}
    if polled is not None:
        gone |= {*ids(polled.flowfiles), *ids(polled.expired)}
    world.clock.advance(ms=2_000)
    run_jobs(world, jobs)
    found: list[int] = []
    while (left := queue.poll_many(1_000)).flowfiles or left.expired:
        found += [*ids(left.flowfiles), *ids(left.expired)]
    assert len(found) == len(set(found)), where
    assert not gone & set(found), where
    everything = gone | set(found) | set(home.swept) | set(home.removed)
    assert everything == inside, where
    size = queue.size
    assert size.count == size.unacknowledged_count, where
    assert size.size_bytes == size.unacknowledged_bytes, where
    assert not home.damages, where
    return world


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("error", FAULTS)
def test_no_exception_at_any_call_of_a_port_loses_a_flowfile(
    operation: Operation, error: type[BaseException]
) -> None:
    at, raised = FAULTS.index(error) % KIND_EVERY, "a port"
    while raised:
        raised = check(operation, lambda world: world.faults.armed(error, at)).faults.raised  # noqa: B023
        at += KIND_EVERY
    assert at > 1


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_no_memory_error_at_any_call_of_its_functions_loses_a_flowfile(
    operation: Operation,
) -> None:
    at, raised = 0, "a function"
    while raised:
        raised = check(
            operation,
            lambda world: world.faults.armed_inside(["penstock.flow.queue"], MemoryError, at),  # noqa: B023
        ).faults.raised
        at += EVERY
    assert at > 1


def check_case(name: str, plan: FaultPlan) -> Faults:
    if name == RESTORE:
        return check_restore(plan)
    operation = next(one for one in OPERATIONS if one.__name__ == name)
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        return check(operation, lambda world: plan.armed(world.faults)).faults


def check_restore(plan: FaultPlan) -> Faults:
    """Check that a queue into which nothing could be restored can be made and filled again."""
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        before, *_ = filled()
        removed = {*before.home.swept, *before.home.removed}
        home = before.home.restarted(before.home.fs)
        world = FlowQueueWorld(OPTIONS, [FirstInFirstOut()], home=home, clock=before.clock)
        restored = home.recovered()
        with plan.armed(world.faults):
            world.queue.restore(*restored)
        where = world.faults.raised
        if where:  # a process whose start fails begins anew
            again = home.restarted(home.fs)
            world.queue = FlowQueueWorld(OPTIONS, home=again, clock=before.clock).queue
            world.queue.restore(*again.recovered())
        world.clock.advance(ms=2_000)
        found: list[int] = []
        while (left := world.queue.poll_many(1_000)).flowfiles or left.expired:
            found += [*ids(left.flowfiles), *ids(left.expired)]
        assert sorted(found) == sorted({PENALIZED, *range(COUNT + MORE)} - removed), where
        return world.faults


RESTORE = "restore"
INSIDE = ("penstock.flow.queue",)
# A home that took the FlowFiles and raises has not kept its word, so no fault comes after a call.
PAIRS = FaultCases(
    [*(one.__name__ for one in OPERATIONS), RESTORE],
    check_case,
    calls=150,
    after=[False],
    inside=INSIDE,
    inside_calls=4_000,
)


def test_no_pair_of_exceptions_loses_a_flowfile() -> None:
    failures = PAIRS.sample(20)
    assert not failures, failures[0]


@pytest.mark.parametrize("error", FAULTS)
def test_a_queue_whose_restoring_raised_is_restored_again(error: type[BaseException]) -> None:
    assert count_single(lambda at: check_restore(FaultPlan(error, at)).raised)


def test_after_a_memory_error_at_swap_in_every_flowfile_comes() -> None:
    options = QueueOptions(swap_threshold=200, swap_batch=200)
    for error in (MemoryError, RuntimeError):
        world = FlowQueueWorld(options)
        world.put(*(flowfile(number) for number in range(1_000)))
        found: list[int] = []
        for at in range(80):
            with world.faults.armed(error, at % 7):
                found += world.poll(20)
        world.clock.advance(ms=2_000)
        found += world.drain()
        assert sorted(found) == list(range(1_000))
