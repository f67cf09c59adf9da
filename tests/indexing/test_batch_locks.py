"""What a batch task locks, in which order: time chunks or segments, told by the questions it asks.

The overlord is a list of locks that grants whatever the test does not forbid; what is visible is a
list of segments. So each invariant of `claiming` is met by itself, whoever runs beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.actions import (
    LockAnswer,
    LockedSegment,
    LockList,
    LockRelease,
    LockTryAcquire,
    TaskLockView,
)
from penstock.indexing.batch.batch_locks import BatchTaskLocks
from penstock.indexing.batch.batch_ports import BatchPorts
from penstock.indexing.batch.input_segments import SegmentListing, VisibleSegment
from penstock.indexing.batch.retrying_caller import RetryingCaller
from penstock.indexing.ports import TaskAction
from penstock.indexing.specs.task_context import IngestionMode, TaskContext
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from tests.harness.engine_kit import FakeBatchEngine
from tests.indexing.batch_kit import SkippingClock, day

R = TypeVar("R")
DAY = Interval.parse(day(1))
NEXT = Interval.parse(day(2))
BOTH = Interval.parse(day(1, 2))
OVERWRITE, APPEND = IngestionMode.REPLACE_LEGACY, IngestionMode.APPEND


@dataclass(frozen=True)
class Spec:
    """What a task says of its locks."""

    mode: IngestionMode = OVERWRITE
    locks_segments: bool = True
    locks_max: int | None = None
    segment_granularity: Granularity | None = None
    settings: TaskContext = field(default_factory=lambda: TaskContext(50, lock_timeout_ms=5_000))
    id: str = "task"
    datasource: str = "flights"


class Overlord:
    """The locks of one task, what it asks for, and what happens before each answer."""

    def __init__(self) -> None:
        self.held: list[TaskLockView] = []
        self.refused: tuple[str, ...] = ()
        self.asked: list[str] = []
        self.at: Callable[[str], None] = lambda _kind: None

    def perform(self, action: TaskAction[R]) -> R:
        kind = str(action.to_json()["type"])
        self.asked.append(kind)
        self.at(kind)
        asked: object = action
        match asked:
            case LockList():
                return cast("R", self.held)
            case LockRelease(interval):
                self.held = [lock for lock in self.held if lock.interval != interval]
                return cast("R", None)
            case LockTryAcquire():
                return cast("R", self._acquire(asked))
        raise AssertionError(f"{kind} is no question about locks")

    def _acquire(self, action: LockTryAcquire) -> LockAnswer:
        if self.refused:
            return LockAnswer((), self.refused)
        wanted = [time_lock(one) for one in action.intervals]
        wanted += [segment_lock(one) for one in action.segments]
        for lock in wanted:
            mine = [one for one in self.held if one.interval.overlaps(lock.interval)]
            known = [(one.interval, one.partition_number) for one in mine]
            if (lock.interval, lock.partition_number) in known:
                continue
            kinds = {one.partition_number is None for one in (*mine, lock)}
            assert len(kinds) == 1, f"its own {mine} would be in the way of {lock}"
            self.held.append(lock)
        places = [(lock.interval, lock.partition_number) for lock in wanted]
        return LockAnswer(
            tuple(one for one in self.held if (one.interval, one.partition_number) in places)
        )

    @property
    def numbers(self) -> list[tuple[Interval, int | None]]:
        """What is locked."""
        return sorted((one.interval, one.partition_number) for one in self.held)


def time_lock(interval: Interval, *, revoked: bool = False) -> TaskLockView:
    return TaskLockView(interval, "EXCLUSIVE", "v9", 50, revoked)


def segment_lock(one: LockedSegment) -> TaskLockView:
    return TaskLockView(
        one.interval,
        "EXCLUSIVE",
        one.version,
        50,
        revoked=False,
        partition_number=one.partition_number,
    )


class Listing(SegmentListing):
    """Lists the segments of a world."""

    def __init__(self, world: BatchLocksWorld, retries: RetryingCaller) -> None:
        super().__init__(retries)
        self._world = world

    def visible(self, datasource: str, intervals: Iterable[Interval]) -> list[VisibleSegment]:
        del datasource
        return self._world.visible(intervals)


class BatchLocksWorld:
    """A task's locks, in a world where segments come and go."""

    def __init__(self, spec: Spec | None = None, *segments: Segment) -> None:
        self.spec = spec or Spec()
        self.overlord = Overlord()
        self.segments = list(segments)
        self.locks = self.next_peon()

    def next_peon(self) -> BatchTaskLocks:
        """Return the locks as the task's next peon has them: it knows nothing."""
        clock = SkippingClock()
        store = DeepStore("/nowhere")
        ports = BatchPorts(FakeBatchEngine(), self.overlord, store, clock, lambda: "token")
        retries = RetryingCaller(self.overlord, clock)
        self.locks = BatchTaskLocks(self.spec, ports, retries, Listing(self, retries))
        return self.locks

    def visible(self, intervals: Iterable[Interval]) -> list[VisibleSegment]:
        asked = list(intervals)
        return [
            VisibleSegment(segment, Interval(*cut))
            for segment in self.segments
            for one in asked
            if one.overlaps(segment.interval)
            for cut in [
                (
                    max(one.start_ms, segment.interval.start_ms),
                    min(one.end_ms, segment.interval.end_ms),
                )
            ]
        ]

    def at_lock(self, *steps: Callable[[], object]) -> None:
        """Have something happen before each answer to a request for locks, the last for ever."""
        left = list(steps)

        def step(kind: str) -> None:
            if kind == "lockTryAcquire" and left:
                (left.pop(0) if len(left) > 1 else left[0])()

        self.overlord.at = step

    def claim(self, interval: Interval = DAY, *, named: Iterable[str] = ()) -> list[int] | None:
        """Claim a time; return the numbers of the segments that the task reads of it."""
        found = self.locks.claim([interval], read=[interval], named=frozenset(named))
        return None if found is None else [one.segment.shard_spec.partition_number for one in found]


def segment(number: int, interval: Interval = DAY, version: str = "v1") -> Segment:
    return Segment("d", interval, version, {}, ShardSpec(number, 0))


def nothing() -> None: ...


def test_what_is_visible_is_locked_and_read() -> None:
    world = BatchLocksWorld(None, segment(0), segment(1), segment(0, NEXT))
    assert world.claim(BOTH) == [0, 1, 0]
    assert world.overlord.numbers == [(DAY, 0), (DAY, 1), (NEXT, 0)]
    assert world.locks.by_segment
    assert {i: (r.start, r.end) for i, r in world.locks.rewrites.items()} == {
        DAY: (0, 2),
        NEXT: (0, 1),
    }


def test_a_task_that_may_not_locks_the_time_and_lists_for_itself() -> None:
    world = BatchLocksWorld(Spec(locks_segments=False), segment(0))
    assert world.claim() is None
    assert world.overlord.numbers == [(DAY, None)]
    assert (world.locks.by_segment, world.locks.claimed) == (False, None)


def test_who_had_the_locks_before_may_have_replaced_what_they_are_on() -> None:
    world = BatchLocksWorld(None, segment(0), segment(1))
    world.at_lock(
        lambda: world.segments.__setitem__(slice(None), [segment(0, version="v2")]), nothing
    )
    assert world.claim() == [0]
    assert world.overlord.numbers == [(DAY, 0)]
    assert world.locks.rewrites[DAY].version == "v2"
    assert world.overlord.asked.count("lockRelease") == 1


def test_what_is_added_before_the_locks_are_had_is_taken_too() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.at_lock(lambda: world.segments.append(segment(1)), nothing)
    assert world.claim() == [0, 1]
    assert world.overlord.numbers == [(DAY, 0), (DAY, 1)]


def test_others_that_add_without_end_are_not_waited_for() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.at_lock(lambda: world.segments.append(segment(len(world.segments))))
    read = world.claim()
    assert read is not None
    assert len(read) < len(world.segments)
    assert [number for _, number in world.overlord.numbers] == read


@pytest.mark.parametrize(
    "segments",
    [
        [segment(0), segment(2)],
        [segment(0), segment(1, version="v2")],
        [segment(0), segment(0, Interval(NEXT.start_ms, NEXT.start_ms + 3_600_000))],
        [segment(0, BOTH)],
    ],
)
def test_what_does_not_allow_it_is_locked_by_time(segments: list[Segment]) -> None:
    world = BatchLocksWorld(Spec(segment_granularity=Granularity.parse("day")), *segments)
    assert world.claim(BOTH) is None
    assert world.overlord.numbers == [(BOTH, None)]
    assert not world.locks.by_segment
    assert not world.locks.rewrites


def test_locks_of_segments_go_before_the_time_is_locked() -> None:
    """The overlord of this test refuses a lock that its task's own other one is in the way of."""
    world = BatchLocksWorld(None, segment(0))
    world.at_lock(lambda: world.segments.append(segment(2)), nothing)
    assert world.claim() is None
    assert world.overlord.numbers == [(DAY, None)]


def test_there_is_no_way_back_from_what_was_read() -> None:
    world = BatchLocksWorld(None, segment(0), segment(0, NEXT), segment(2, NEXT))
    assert world.claim(DAY) == [0]
    with pytest.raises(Conflict, match=r"one by one, but .*set forceTimeChunkLock to true"):
        world.claim(NEXT)
    assert world.overlord.numbers == [(DAY, 0)]


def test_what_comes_after_a_time_was_locked_so_stays_beside() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.locks.cover([DAY])
    world.segments.append(segment(1))
    assert world.claim() == [0]
    first = world.locks.claimed
    assert world.claim() == [0]
    assert world.locks.claimed != first, "it read twice, so a next try must, too"
    assert world.overlord.numbers == [(DAY, 0)]
    assert world.locks.rewrites[DAY].end == 1


def test_the_next_peon_reads_the_same_under_the_same_locks() -> None:
    world = BatchLocksWorld(None, segment(0), segment(1))
    world.claim()
    claimed = world.locks.claimed
    world.next_peon()
    assert world.claim() == [0, 1]
    assert world.locks.claimed == claimed
    world.segments.append(segment(2))
    world.next_peon()
    assert world.claim() == [0, 1, 2]
    assert world.locks.claimed != claimed, "what was written of less must be written again"


def test_the_next_peon_keeps_to_locks_of_time() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.overlord.held = [time_lock(DAY)]
    assert world.claim() is None
    assert world.overlord.numbers == [(DAY, None)]


def test_the_next_peon_locks_no_time_across_those_it_has() -> None:
    world = BatchLocksWorld(Spec(locks_segments=False))
    world.overlord.held = [time_lock(NEXT)]
    locks = world.locks.lock([BOTH])
    assert world.overlord.numbers == [(DAY, None), (NEXT, None)]
    assert locks.version_of(NEXT) == "v9"


def test_named_segments_are_locked_alone() -> None:
    world = BatchLocksWorld(None, segment(0), segment(1), segment(2))
    assert world.claim(named=[str(one.id) for one in world.segments[1:]]) == [1, 2]
    assert world.overlord.numbers == [(DAY, 1), (DAY, 2)]


def test_an_append_locks_what_it_adds_and_nothing_before() -> None:
    world = BatchLocksWorld(Spec(mode=APPEND), segment(0))
    world.locks.cover([DAY])
    assert world.overlord.asked == []
    by_time = BatchLocksWorld(Spec(mode=APPEND, locks_segments=False), segment(0))
    by_time.locks.cover([DAY])
    assert by_time.overlord.numbers == [(DAY, None)]


def test_time_chunks_that_only_the_rows_told_are_covered_once() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.locks.cover_written([DAY])
    world.segments.append(segment(0, NEXT))
    world.locks.cover_written([DAY, NEXT])
    assert world.overlord.numbers == [(DAY, 0)]


@pytest.mark.parametrize("by_segment", [True, False])
def test_more_locks_than_the_spec_allows_are_not_asked_for(by_segment: bool) -> None:
    world = BatchLocksWorld(
        Spec(locks_segments=by_segment, locks_max=1), segment(0), segment(0, Interval.parse(day(5)))
    )
    with pytest.raises(InvalidRequest, match=r"need 2 locks, more than maxAllowedLockCount 1"):
        world.locks.cover([DAY, Interval.parse(day(5))])
    assert "lockTryAcquire" not in world.overlord.asked


@pytest.mark.parametrize("way", ["claim", "lock"])
def test_locks_on_segments_count_with_those_that_come_later(way: str) -> None:
    world = BatchLocksWorld(Spec(locks_max=2), segment(0), segment(1), segment(0, NEXT))
    assert world.claim(DAY) == [0, 1]
    with pytest.raises(InvalidRequest, match=r"need 3 locks, more than maxAllowedLockCount 2"):
        world.claim(NEXT) if way == "claim" else world.locks.lock([NEXT])
    assert world.overlord.numbers == [(DAY, 0), (DAY, 1)]


def test_who_is_in_the_way_is_waited_for_and_named_in_the_end() -> None:
    world = BatchLocksWorld(None, segment(0))
    world.overlord.refused = ("task-7 holds it",)
    with pytest.raises(Conflict, match=r"taskLockTimeout \(5000 ms\): task-7 holds it"):
        world.claim()
    assert world.overlord.asked.count("lockTryAcquire") > 1


def test_a_lock_that_was_taken_ends_the_task() -> None:
    world = BatchLocksWorld(Spec(locks_segments=False))
    world.overlord.held = [time_lock(DAY, revoked=True)]
    with pytest.raises(LockRevoked, match="submit the task again"):
        world.locks.lock([DAY])
