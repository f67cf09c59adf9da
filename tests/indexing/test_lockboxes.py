"""The lockboxes of a term: lanes, transactions, the start of a term, who hears of what."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock.core.errors import (
    Closed,
    Conflict,
    Fenced,
    InvalidRequest,
    LockRevoked,
    Unavailable,
)
from penstock.core.intervals import Interval, format_time
from penstock.indexing.lockbox.coverage import SectionLocks
from penstock.indexing.lockbox.lock_lane import LocksChanged, lane_of
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.lockbox.task_locks import (
    APPEND_VERSION,
    HeldLock,
    LockChanges,
    LockGranted,
    LockGranularity,
    LockOutcome,
    LockPolicy,
    LockRequest,
    LockTask,
    LockType,
    TaskRemoval,
)
from penstock.mailbox.lanes import ThreadLanes
from penstock.storage.metadata import (
    AllocateRequest,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    segment_id,
)
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import StepLanes
from tests.harness.metadata_kit import open_metadata
from tests.indexing.lockbox_kit import (
    DAY,
    NOW_MS,
    BrokenStore,
    by_text,
    hours,
    killer,
    stored_lock,
    task,
    word,
)

EXCLUSIVE, SHARED, REPLACE, APPEND, KILL = LockType


@dataclass(frozen=True)
class Segment:
    """A segment as far as locks go."""

    id: str
    interval: Interval
    version: str
    partition_number: int = 0


def on_segment(owner: LockTask, interval: Interval, partition: int) -> LockRequest:
    return owner.request(
        interval,
        granularity=LockGranularity.SEGMENT,
        version="v",
        partition_number=partition,
    )


class Term:
    """Lockboxes on lanes that run when told to."""

    def __init__(self, *, synced: bool = True, store: BrokenStore | None = None) -> None:
        self.store = store or BrokenStore()
        self.lanes = StepLanes()
        self.released: list[tuple[str, set[str]]] = []
        self.clock = VirtualClock(NOW_MS)
        self.boxes = Lockboxes(
            self.store,
            self.lanes,
            clock=self.clock,
            changes=self,
        )
        if synced:
            assert self.boxes.sync([]) == []

    def put(self, change: LocksChanged) -> None:
        self.released.append((change.datasource, {*change.released}))

    def fail(self, error: BaseException) -> None:
        raise error

    def run(self) -> None:
        while self.lanes.waiting():
            self.lanes.run_one(self.lanes.waiting()[0])

    def add(self, *tasks: LockTask) -> None:
        for one in tasks:
            self.boxes.add(one)
        self.run()

    def ask(self, *requests: LockRequest) -> list[str]:
        future = self.boxes.acquire(requests)
        self.run()
        return [word(outcome) for outcome in future.result(0)]


@pytest.fixture
def term() -> Term:
    return Term()


def test_nothing_is_answered_before_the_sync() -> None:
    term = Term(synced=False)
    with pytest.raises(Unavailable, match="earlier term"):
        term.boxes.add(task("t1"))
    with pytest.raises(Unavailable):
        term.boxes.acquire([task("t1").request(DAY)])
    term.boxes.sync([])
    with pytest.raises(Conflict, match="already"):
        term.boxes.sync([])
    term.boxes.close()
    with pytest.raises(Closed):
        term.boxes.add(task("t1"))


def test_what_waits_together_is_one_transaction_answered_after_it(term: Term) -> None:
    tasks = [task(f"t{n}") for n in range(50)]
    asked: list[Future[list[LockOutcome]]] = []
    for number, one in enumerate(tasks):
        term.boxes.add(one)
        asked.append(term.boxes.acquire([one.request(hours(number, number + 1))]))
    assert not any(future.done() for future in asked)
    term.run()
    assert term.store.transactions == 1
    assert {word(future.result(0)[0]) for future in asked} == {"new"}
    assert term.boxes.active_locks == len(term.store.every()) == 50
    assert term.ask(*(tasks[3].request(hours(3, 4)) for _ in range(3))) == ["same"] * 3
    assert term.store.transactions == 1, "what is held needs no transaction"


def test_a_transaction_that_fails_changes_nothing(term: Term) -> None:
    one, two = task("t1", priority=1), task("t2", priority=2)
    term.add(one, two)
    assert term.ask(one.request(DAY)) == ["new"]
    term.store.fails = "before"
    taken = term.boxes.acquire([two.request(DAY)])
    released = term.boxes.release(one, DAY)
    term.run()
    for future in (taken, released):
        with pytest.raises(Unavailable, match="wiki could not be stored"):
            future.result(0)
    held = term.boxes.locks_of(one)
    term.run()
    assert [lock.lock.revoked for lock in held.result(0)] == [False]
    assert term.released == []
    term.store.fails = ""
    assert term.ask(two.request(DAY)) == ["new"]
    assert term.released == [("wiki", {"t1"})]


def test_who_waits_for_a_task_whose_end_could_not_be_stored_need_only_ask_again(
    term: Term,
) -> None:
    one, two = task("t1"), task("t2")
    term.add(one, two)
    assert term.ask(one.request(DAY)) == ["new"]
    assert term.ask(two.request(DAY)) == ["refused"]
    term.store.fails = "before"
    removed = term.boxes.remove(one)
    term.run()
    with pytest.raises(Unavailable):
        removed.result(0)
    assert term.released == [("wiki", {"t1"})]
    term.store.fails = ""
    assert term.ask(two.request(DAY)) == ["new"]


def test_a_leader_that_was_deposed_hears_so() -> None:
    class FencedStore(BrokenStore):
        def apply(self, changes: LockChanges) -> None:
            raise Fenced("term 3 has begun")

    boxes = Lockboxes(FencedStore(), lanes := StepLanes(), clock=VirtualClock(NOW_MS))
    boxes.sync([task("t1")])
    asked = boxes.acquire([task("t1").request(DAY)])
    lanes.run_one(lane_of("wiki"))
    with pytest.raises(Fenced):
        asked.result(0)


def test_who_gave_up_waiting_gets_no_lock(term: Term) -> None:
    one = task("t1")
    term.add(one)
    asked = term.boxes.acquire([one.request(DAY)])
    assert asked.cancel()
    term.run()
    assert term.boxes.active_locks == 0


def test_a_box_is_forgotten_when_it_is_empty_but_not_its_versions(term: Term) -> None:
    versions = []
    for name in ("t1", "t2"):
        one = task(name)
        term.add(one)
        asked = term.boxes.acquire([one.request(DAY)])
        removed = term.boxes.remove(one)
        term.run()
        (outcome,) = asked.result(0)
        assert isinstance(outcome, LockGranted)
        versions.append(outcome.lock.version)
        assert removed.result(0) == TaskRemoval(name)
        assert term.store.every() == []
    assert versions[0] < versions[1]


def test_an_action_after_the_end_of_its_task_is_refused(term: Term) -> None:
    one = task("t1")
    term.add(one)
    removed = term.boxes.remove(one)
    asked = term.boxes.acquire([one.request(DAY)])
    term.run()
    assert removed.result(0) == TaskRemoval("t1")
    with pytest.raises(LockRevoked, match="not active"):
        asked.result(0)


def test_each_who_lets_go_of_a_shared_lock_is_named(term: Term) -> None:
    one, two = task("t1", "g"), task("t2", "g")
    term.add(one, two)
    assert term.ask(one.request(DAY)) == ["new"]
    term.ask(two.request(DAY))
    term.boxes.remove(one)
    term.run()
    term.boxes.remove(two)
    term.run()
    assert term.released == [("wiki", {"t1"}), ("wiki", {"t2"})]


def test_what_a_task_waits_for_is_known_until_it_has_it(term: Term) -> None:
    one, two = task("t1"), task("t2")
    term.add(one, two)
    term.ask(one.request(DAY))
    assert term.ask(two.request(hours(0, 1)), two.request(hours(30, 31))) == ["refused", "new"]
    (refused,) = term.boxes.why("t2")
    assert refused.refusals[0].task_ids == ("t1",)
    term.boxes.remove(one)
    term.run()
    assert term.released == [("wiki", {"t1"})]
    assert term.ask(two.request(hours(0, 1))) == ["new"]
    assert term.boxes.why("t2") == ()
    assert term.boxes.why("nobody") == ()


def test_datasources_do_not_wait_for_each_other(term: Term) -> None:
    here, there = task("t1"), replace(task("t2"), datasource="other")
    term.add(here, there)
    first = term.boxes.acquire([here.request(DAY)])
    second = term.boxes.acquire([there.request(DAY)])
    assert term.lanes.waiting() == [lane_of("other"), lane_of("wiki")]
    term.lanes.run_one(lane_of("other"))
    assert second.done()
    assert not first.done()
    with pytest.raises(InvalidRequest, match="one datasource"):
        term.boxes.acquire([here.request(DAY), there.request(DAY)])
    assert term.boxes.acquire([]).result(0) == []


# --- critical sections


def publish(
    term: Term, owner: LockTask, *segments: Segment, intervals: Sequence[Interval] = ()
) -> str:
    future = term.boxes.critical(
        owner,
        lambda locks: ", ".join(lock.version for lock in locks.own),
        segments=segments,
        intervals=intervals,
    )
    term.run()
    return future.result(0)


def test_a_publish_must_be_covered(term: Term) -> None:
    one = task("t1")
    term.add(one)
    term.ask(one.request(DAY, version="v5"))
    assert publish(term, one, Segment("s", hours(0, 1), "v5"), Segment("o", DAY, "v4")) == "v5"
    with pytest.raises(Conflict, match="segment new of task 't1' is newer than the EXCLUSIVE"):
        publish(term, one, Segment("new", DAY, "v6"))
    with pytest.raises(Conflict, match="no lock of task 't1' covers segment far"):
        publish(term, one, Segment("far", hours(20, 30), "v5"))
    with pytest.raises(Conflict, match="no lock of task 't1' covers interval"):
        publish(term, one, intervals=[hours(20, 30)])
    with pytest.raises(LockRevoked, match="not active"):
        publish(term, task("t9"))


def test_a_publish_under_a_lock_that_was_taken_is_refused(term: Term) -> None:
    one, two = task("t1", priority=1), task("t2", priority=2)
    term.add(one, two)
    term.ask(one.request(DAY, version="v5"))
    term.ask(two.request(hours(3, 4)))
    with pytest.raises(LockRevoked, match=r"segment s of task 't1' .* EXCLUSIVE lock on wiki"):
        publish(term, one, Segment("s", hours(0, 1), "v5"))
    with pytest.raises(LockRevoked, match="interval"):
        publish(term, one, intervals=[hours(0, 1)])


def test_an_append_covers_any_version(term: Term) -> None:
    one = task("t1")
    term.add(one)
    term.ask(one.request(DAY, APPEND))
    assert publish(term, one, Segment("s", hours(0, 1), "2024")) == APPEND_VERSION


def test_a_segment_lock_covers_its_segment_alone(term: Term) -> None:
    one = task("t1")
    term.add(one)
    asked = LockRequest(
        "t1",
        "t1",
        "wiki",
        DAY,
        EXCLUSIVE,
        stored_lock(one, partition=3).lock.granularity,
        50,
        "v",
        3,
    )
    assert term.ask(asked) == ["new"]
    assert publish(term, one, Segment("s", DAY, "v", 3)) == "v"
    with pytest.raises(Conflict, match="no lock"):
        publish(term, one, Segment("s", DAY, "v", 4))


def test_an_append_learns_who_replaces_around_it(term: Term) -> None:
    appending, replacing = task("t1", "g1", 75), task("t2", "g2", 25)
    term.add(appending, replacing)
    term.ask(replacing.request(hours(0, 12), REPLACE, version="v7"))
    term.ask(appending.request(hours(0, 1), APPEND), appending.request(hours(20, 21), APPEND))
    inside, outside = Segment("a", hours(0, 1), "v1"), Segment("b", hours(20, 21), "v1")

    def action(locks: SectionLocks) -> list[HeldLock | None]:
        locks.require(APPEND)
        return locks.replace_lock_holders([inside, outside, inside])

    future = term.boxes.critical(appending, action, segments=[inside, outside])
    term.run()
    first, none, again = future.result(0)
    assert first is not None
    assert (first.task_id, first.lock.version, none, again) == ("t2", "v7", None, first)


def test_an_append_under_another_lock_is_refused(term: Term) -> None:
    one = task("t1")
    term.add(one)
    term.ask(one.request(DAY), one.request(hours(30, 31), APPEND))
    future = term.boxes.critical(one, lambda locks: locks.require(APPEND))
    term.run()
    with pytest.raises(Conflict, match="locks of one type"):
        future.result(0)


def test_nothing_comes_between_a_critical_section_and_its_locks() -> None:
    store, lanes = BrokenStore(), ThreadLanes("test")
    boxes = Lockboxes(store, lanes, clock=VirtualClock(NOW_MS))
    one, two = task("t1", priority=1), task("t2", priority=2)
    boxes.sync([one, two])
    assert word(boxes.acquire([one.request(DAY)]).result(120)[0]) == "new"
    inside, leave = threading.Event(), threading.Event()

    def action(locks: SectionLocks) -> bool:
        inside.set()
        leave.wait(120)
        return locks.own[0].revoked

    publishing = boxes.critical(one, action, intervals=[DAY])
    assert inside.wait(120)
    taking = boxes.acquire([two.request(DAY)])
    assert not taking.done()
    leave.set()
    assert publishing.result(120) is False
    assert word(taking.result(120)[0]) == "new"
    with pytest.raises(LockRevoked):
        boxes.critical(one, action, intervals=[DAY]).result(120)
    lanes.close()


def test_many_threads_leave_memory_and_store_the_same() -> None:
    store, lanes = BrokenStore(), ThreadLanes("test")
    boxes = Lockboxes(store, lanes, clock=VirtualClock(NOW_MS))
    boxes.sync([])

    def work(number: int) -> None:
        source = "wiki" if number % 2 else "other"
        for turn in range(30):
            one = replace(task(f"t{number}-{turn}", priority=number), datasource=source)
            boxes.add(one)
            asked = [one.request(hours(turn % 4, turn % 4 + 2)), one.request(hours(9, 10), APPEND)]
            boxes.acquire(asked, together=turn % 3 == 0)
            boxes.release(one, hours(9, 10))
            if turn < 28:
                boxes.remove(one)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    held = [*boxes.locks("wiki").result(120), *boxes.locks("other").result(120)]
    assert by_text(held) == by_text(store.every())
    assert boxes.active_locks == len({str(row.lock) for row in held if not row.lock.revoked})
    lanes.close()


# --- questions


def test_which_times_are_locked_depends_on_who_asks(term: Term) -> None:
    low, append = task("low", priority=10), task("append", priority=75)
    kill, lost, other = killer(), task("lost", priority=5), replace(task("o"), datasource="other")
    term.add(low, append, kill, lost, other)
    term.ask(lost.request(hours(2, 3)))
    term.ask(low.request(hours(0, 2)), low.request(hours(2, 4)))
    term.ask(append.request(hours(6, 7), APPEND))
    term.ask(kill.request(hours(9, 10), KILL))
    term.ask(other.request(DAY))

    def locked(*policies: LockPolicy) -> dict[str, list[Interval]]:
        future = term.boxes.locked_intervals(policies)
        term.run()
        return dict(future.result(0))

    everything = [hours(0, 4), hours(6, 7)]
    assert locked(LockPolicy("wiki"), LockPolicy("other")) == {"wiki": everything, "other": [DAY]}
    assert locked(LockPolicy("wiki", priority=10)) == {"wiki": everything}
    assert locked(LockPolicy("wiki", priority=11)) == {"wiki": [hours(6, 7)]}
    assert locked(LockPolicy("wiki", concurrent=True)) == {"wiki": [hours(0, 4)]}
    assert locked(LockPolicy("unknown")) == {"unknown": []}
    assert locked() == {}


# --- the start of a term


def restart(term: Term, *active: LockTask) -> tuple[Term, list[str]]:
    after = Term(synced=False, store=term.store)
    return after, after.boxes.sync(active)


def test_a_new_term_has_the_locks_of_the_earlier_one(term: Term) -> None:
    low, high, ended = task("low", priority=1), task("high", "g", 9), task("ended")
    replica = replace(high, id="replica")
    term.add(low, high, replica, ended)
    term.ask(low.request(DAY))
    term.ask(high.request(hours(3, 4)))
    term.ask(replica.request(hours(3, 4)))
    term.ask(ended.request(hours(50, 51)))
    after, failed = restart(term, low, high, replica)
    assert failed == []
    assert {row.task_id for row in term.store.every()} == {"low", "high", "replica"}
    assert after.boxes.active_locks == 1
    assert after.ask(low.request(hours(5, 6))) == ["revoked"]
    assert after.ask(replica.request(hours(3, 4))) == ["same"]
    assert after.ask(high.request(hours(3, 4))) == ["same"]


def test_versions_of_a_new_term_are_greater_than_all_before() -> None:
    owner, other = task("t1"), task("t2", priority=90)
    term = Term(synced=False)
    later = "2030-01-01T00:00:00.000Z"
    term.boxes.sync([owner, other], [stored_lock(owner, version=later)])
    asked = term.boxes.acquire([other.request(hours(0, 1))])
    term.run()
    (outcome,) = asked.result(0)
    assert isinstance(outcome, LockGranted)
    assert outcome.lock.version == "2030-01-01T00:00:00.001Z"


@pytest.mark.parametrize(
    "bad",
    [
        stored_lock(task("bad", "g", 51)),
        stored_lock(task("bad", "other", 50)),
        stored_lock(replace(task("bad", "g", 50), datasource="other")),
        stored_lock(task("bad", "g", 50), interval=hours(3, 4), version="w"),
    ],
    ids=["priority", "group", "datasource", "another's"],
)
def test_a_group_that_lost_a_lock_fails_as_a_whole(bad: HeldLock) -> None:
    term = Term()
    holder, loser, friend = task("holder"), task("bad", "g", allocator="g"), task("friend", "g")
    rows = (stored_lock(holder), bad, stored_lock(friend, REPLACE, hours(40, 41)))
    term.store.apply(LockChanges(added=rows))
    after, failed = restart(term, holder, loser, friend)
    assert failed == ["bad", "friend"]
    assert by_text(term.store.every()) == by_text([rows[0]])
    removed = [after.boxes.remove(one) for one in (loser, friend)]
    after.run()
    assert removed[0].result(0) == TaskRemoval("bad", last_of_allocator="g")
    assert removed[1].result(0) == TaskRemoval("friend", had_replace_lock=True)
    asked = after.boxes.acquire([friend.request(DAY)])
    after.run()
    with pytest.raises(LockRevoked):
        asked.result(0)


def test_stored_locks_that_belong_to_nobody_are_forgotten(term: Term) -> None:
    owner = task("t1")
    empty = replace(stored_lock(owner).lock, interval=Interval(5, 5))
    term.store.apply(LockChanges(added=(stored_lock(task("gone")), HeldLock("t1", empty))))
    _after, failed = restart(term, owner)
    assert failed == []
    assert term.store.every() == []


def test_a_sync_that_cannot_be_stored_may_be_tried_again(term: Term) -> None:
    term.store.apply(LockChanges(added=(stored_lock(task("gone")),)))
    term.store.fails = "before"
    after = Term(synced=False)
    boxes = Lockboxes(term.store, after.lanes, clock=after.clock)
    with pytest.raises(Unavailable):
        boxes.sync([])
    term.store.fails = ""
    assert boxes.sync([]) == []
    assert term.store.every() == []


def test_locks_survive_in_the_metadata_store(tmp_path: Path) -> None:
    lanes, clock = StepLanes(), VirtualClock(NOW_MS)
    low, high, part = task("low", priority=1), task("high", priority=2), task("part")
    with open_metadata(tmp_path, clock) as store:
        rows = MetadataLockStore(store.locks)
        boxes = Lockboxes(rows, lanes, clock=clock)
        boxes.sync([low, high, part])
        boxes.acquire([low.request(DAY)])
        lanes.run_one(lane_of("wiki"))
        boxes.acquire([high.request(hours(1, 2), APPEND)])
        lock = stored_lock(part, interval=hours(40, 41), partition=3).lock
        boxes.acquire(
            [
                part.request(
                    hours(40, 41), granularity=lock.granularity, version="v", partition_number=3
                )
            ]
        )
        lanes.run_one(lane_of("wiki"))
        held = boxes.locks("wiki")
        lanes.run_one(lane_of("wiki"))
        assert by_text(rows.every()) == by_text(held.result(0))
        assert [row.lock.revoked for row in rows.every() if row.task_id == "low"] == [True]
        again = Lockboxes(rows, lanes, clock=clock)
        assert again.sync([low, high, part]) == []
        assert again.active_locks == 2


# A clock that is behind the last leader's


def publish_under(store: MetadataStore, version: str, datasource: str = "wiki") -> None:
    name = segment_id(datasource, DAY, version, 0)
    row = SegmentRow(name, datasource, DAY, version, 0, 0, {})
    assert store.publish(PublishRequest("earlier", datasource, (row,))).ok


@pytest.mark.parametrize("kind", ["a segment", "an unused segment", "a place", "a lock"])
@pytest.mark.parametrize("has_task", [True, False])
def test_a_version_is_never_older_than_what_an_earlier_leader_gave(
    tmp_path: Path, kind: str, has_task: bool
) -> None:
    """Its clock was an hour ahead: under an older version, what is new would be hidden."""
    later = format_time(NOW_MS + 3_600_000)
    mine = task("mine")
    with open_metadata(tmp_path) as store:
        match kind:
            case "a place":
                store.allocate_segments([AllocateRequest("wiki", DAY, "s", later)])
            case "a lock":
                held = stored_lock(task("gone"), version=later)
                MetadataLockStore(store.locks).apply(LockChanges(added=(held,)))
            case _:
                publish_under(store, later)
                publish_under(store, format_time(NOW_MS - 1))
                publish_under(store, "somebody's own")
                publish_under(store, format_time(NOW_MS + 9 * 3_600_000), "other")
                if kind == "an unused segment":
                    store.segments.mark_unused_within("wiki")
        lanes = StepLanes()
        boxes = Lockboxes(MetadataLockStore(store.locks), lanes, clock=VirtualClock(NOW_MS))
        boxes.sync([mine] if has_task else [])
        if not has_task:
            boxes.add(mine)
        given = []
        for _ in range(2):
            # Also when the box was forgotten in between.
            asked = boxes.acquire([mine.request(DAY)])
            boxes.remove(mine)
            boxes.add(mine)
            while lanes.waiting():
                lanes.run_one(lanes.waiting()[0])
            [outcome] = asked.result(0)
            assert isinstance(outcome, LockGranted)
            given.append(outcome.lock.version)
        assert later < given[0] < given[1] < format_time(NOW_MS + 3_600_010)


def test_versions_that_say_nothing_of_time_set_no_floor(tmp_path: Path) -> None:
    with open_metadata(tmp_path) as store:
        for version in ("v9", "9999-99-99T99:99:99.999Z", "9999-12-31T23:59:59.999Z"):
            publish_under(store, version)
        lanes = StepLanes()
        boxes = Lockboxes(MetadataLockStore(store.locks), lanes, clock=VirtualClock(NOW_MS))
        boxes.sync([task("mine")])
        asked = boxes.acquire([task("mine").request(DAY)])
        while lanes.waiting():
            lanes.run_one(lanes.waiting()[0])
        [outcome] = asked.result(0)
        assert isinstance(outcome, LockGranted)
        assert outcome.lock.version == format_time(NOW_MS)


def test_a_task_stays_active_when_what_it_shares_a_transaction_with_cannot_be_stored(
    term: Term,
) -> None:
    one = task("t1")
    term.store.fails = "before"
    term.boxes.add(one)
    asked = term.boxes.acquire([one.request(DAY)])
    term.run()
    with pytest.raises(Unavailable):
        asked.result(0)
    term.store.fails = ""
    assert term.ask(one.request(DAY)) == ["new"]
