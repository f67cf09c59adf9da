"""Actions under locks: places, publishes and the rest, of streams and of batch tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures._base import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked, Unavailable
from penstock.core.intervals import Interval
from penstock.indexing.actions import (
    AllocatedSegment,
    LockList,
    LockRelease,
    LockTryAcquire,
    MarkSegmentsAsUnused,
    SegmentAllocate,
    SegmentListUnused,
    SegmentListUsed,
    SegmentNuke,
)
from penstock.indexing.lockbox.task_locks import LockOutcome, LockRequest
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.delta.table_registry import DeltaEntry, DeltaRegistry, TableGoal
from penstock.storage.metadata import PublishRequest
from penstock.storage.metadata.rows.pending_segments import AllocateRequest, PendingRow
from tests.indexing.action_kit import DAY, NEXT_DAY, Desk, allocate, batch, publish, rows, stream

Answer = TypeVar("Answer")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.metadata.close()


def test_a_stream_locks_a_time_chunk_when_it_asks_for_a_place_there(desk: Desk) -> None:
    desk.add(stream("s"))
    places = allocate(desk, "s", DAY, DAY, NEXT_DAY)
    assert [p.partition_number for p in places] == [0, 1, 0]
    assert allocate(desk, "s", DAY, DAY, NEXT_DAY) == places
    locks = desk.do("s", LockList())
    assert [(lock.interval, lock.type, lock.priority) for lock in locks] == [
        (DAY, "EXCLUSIVE", 75),
        (NEXT_DAY, "EXCLUSIVE", 75),
    ]
    assert {p.version for p in places} == {lock.version for lock in locks}


def test_a_stream_waits_for_who_locks_its_time_and_says_for_whom(desk: Desk) -> None:
    desk.add(batch("compaction", priority=99))
    assert desk.do("compaction", LockTryAcquire((DAY,))).granted
    desk.add(stream("s"))
    with pytest.raises(Unavailable, match=r"held by compaction \(group compaction, priority 99\)"):
        allocate(desk, "s")
    ((name, reason),) = desk.notices.reasons
    assert name == "s"
    assert "compaction" in reason
    desk.end("compaction")
    assert allocate(desk, "s")


def test_a_wait_for_a_place_ends_and_names_who_was_in_the_way(desk: Desk) -> None:
    desk.add(batch("compaction", priority=99))
    assert desk.do("compaction", LockTryAcquire((DAY,))).granted
    desk.add(stream("s", taskLockTimeout=20_000))
    for _ in range(5):
        with pytest.raises(Unavailable, match="held by compaction"):
            allocate(desk, "s")
        desk.clock.advance(4)
    with pytest.raises(LockRevoked, match=r"within taskLockTimeout \(20000 ms\).*compaction"):
        allocate(desk, "s")
    # Who asks all the same begins to wait anew, and so does one that was away for long.
    for _ in range(8):
        with pytest.raises(Unavailable):
            allocate(desk, "s")
        desk.clock.advance(61)


def test_two_that_want_a_larger_chunk_around_each_others_locks_do_not_wait_for_ever(
    desk: Desk,
) -> None:
    """Each appends an hour, and then somebody made a day of it all: both want the day."""
    one, other = (Interval.parse(f"2024-01-01T0{h}/2024-01-01T0{h + 1}") for h in (1, 2))
    for name, hour in (("a", one), ("b", other)):
        desk.add(batch(name, taskLockTimeout=10_000))
        assert desk.do(name, LockTryAcquire((hour,), appends=True)).granted
    made = rows([AllocatedSegment(DAY, "2024-02-01T00:00:00.000Z", 0, 0)])
    desk.metadata.publish(PublishRequest("compaction", "flights", made))
    ends: dict[str, Interval | str] = {}
    told: dict[str, str] = {}
    for _ in range(20):
        for name, hour in (("a", one), ("b", other)):
            if name not in ends:
                try:
                    ends[name] = allocate(desk, name, hour, sequence=name)[0].interval
                except Unavailable as error:
                    told[name] = str(error)
                except LockRevoked as error:
                    ends[name] = str(error)
                    desk.end(name)
        desk.clock.advance(1)
    assert "held by b" in told["a"]
    assert "within taskLockTimeout (10000 ms)" in str(ends["a"])
    assert ends["b"] == DAY


def test_a_stream_takes_locks_of_a_lower_priority_and_their_owner_cannot_publish(
    desk: Desk,
) -> None:
    task = desk.add(batch("low"))
    (lock,) = desk.do("low", LockTryAcquire((DAY,))).locks
    places = allocate(desk, "low", sequence="low")
    desk.add(stream("s"))
    allocate(desk, "s")
    answer = desk.do("low", LockTryAcquire((DAY,)))
    assert [found.revoked for found in answer.locks] == [True]
    with pytest.raises(LockRevoked, match="abandon"):
        publish(desk, "low", places, sequence="low")
    assert desk.metadata.segments.used("flights") == []
    assert lock.version == places[0].version
    assert task.id == "low"


def test_streams_with_concurrent_locks_append_beside_a_replace(desk: Desk) -> None:
    desk.metadata.begin_offsets("flights", {0: 0})
    desk.add(batch("replace", priority=25, useConcurrentLocks=True))
    assert desk.do("replace", LockTryAcquire((DAY,))).granted
    desk.add(stream("s", useConcurrentLocks=True))
    places = allocate(desk, "s")
    (lock,) = desk.do("s", LockList())
    assert lock.type == "APPEND"
    assert places[0].version == "1970-01-01T00:00:00.000Z"
    assert publish(desk, "s", places, start={0: 0}, end={0: 5}).ok
    replacing = allocate(desk, "replace", sequence="replace")
    outcome = publish(desk, "replace", replacing, sequence="replace", kind="replace")
    assert outcome.ok
    # What was appended meanwhile is there under the new version too.
    version = replacing[0].version
    found = [row for row in desk.metadata.segments.used("flights") if row.version == version]
    assert sorted(row.partition_number for row in found) == [0, 1]


def test_what_is_appended_has_the_version_of_its_time_chunk_not_of_the_lock(desk: Desk) -> None:
    """The last two of the worked sequences of locks: with a time chunk that is there, without."""
    desk.add(batch("b"))
    (first,) = allocate(desk, "b", sequence="b")
    assert publish(desk, "b", [first], sequence="b").ok
    desk.end("b")
    desk.add(stream("s", useConcurrentLocks=True))
    (beside,) = allocate(desk, "s")
    (lock,) = desk.do("s", LockList())
    assert (lock.type, lock.version) == ("APPEND", "1970-01-01T00:00:00.000Z")
    assert (beside.version, beside.partition_number) == (first.version, 1)
    (alone,) = allocate(desk, "s", NEXT_DAY)
    assert (alone.version, alone.partition_number) == (lock.version, 0)


def test_a_publish_needs_a_lock_that_covers_it(desk: Desk) -> None:
    desk.add(batch("b"))
    (place,) = allocate(desk, "b", sequence="b")
    desk.do("b", LockRelease(DAY))
    with pytest.raises(Conflict, match="no lock of task 'b' covers"):
        publish(desk, "b", [place], sequence="b")


def test_a_publish_whose_answer_was_lost_and_then_its_lock_is_known_as_published(
    desk: Desk,
) -> None:
    desk.add(batch("b"))
    places = allocate(desk, "b", sequence="b")
    assert publish(desk, "b", places, sequence="b").ok
    desk.do("b", LockRelease(DAY))
    again = publish(desk, "b", places, sequence="b")
    assert (again.ok, again.already_published) == (False, True)


def test_a_publish_that_is_too_early_says_what_it_waits_for(desk: Desk) -> None:
    desk.metadata.begin_offsets("flights", {0: 0})
    desk.add(stream("first"))
    desk.add(stream("second", start=5))
    outcome = publish(desk, "second", allocate(desk, "second"), start={0: 5}, end={0: 9})
    assert outcome.retryable
    assert "0: 0 to 5" in outcome.reason
    assert "task first reads them and must publish first" in outcome.reason
    assert desk.notices.reasons[-1] == ("second", outcome.reason)
    del desk.tasks["first"]
    outcome = publish(desk, "second", allocate(desk, "second"), start={0: 5}, end={0: 9})
    assert "no active task reads them: the supervisor starts one" in outcome.reason


@pytest.mark.parametrize("sequence", ["other_0", "base-x_0"])
def test_a_sequence_of_another_task_is_refused(desk: Desk, sequence: str) -> None:
    desk.add(stream("s"))
    with pytest.raises(InvalidRequest, match="does not belong to the task"):
        allocate(desk, "s", sequence=sequence)


def test_a_task_that_ended_is_told_to_give_up(desk: Desk) -> None:
    desk.add(stream("s"))
    desk.end("s")
    for action in (LockTryAcquire((DAY,)), SegmentAllocate("base-s_0", (DAY,)), LockList()):
        with pytest.raises(LockRevoked, match="not active"):
            desk.do("s", action)
    assert desk.metadata.locks.every() == {}


def test_a_task_that_is_not_heard_of_by_the_lockbox_gets_nothing(desk: Desk) -> None:
    """The overlord still counts it as active, its locks are gone: no ghost lock comes of it."""
    task = desk.add(stream("s"))
    desk.lockboxes.remove(lock_task(task)).result()
    with pytest.raises(LockRevoked):
        allocate(desk, "s")
    assert desk.metadata.locks.every() == {}


def test_unused_segments_are_listed_and_deleted_under_a_lock(desk: Desk) -> None:
    desk.add(batch("b"))
    assert publish(desk, "b", allocate(desk, "b", sequence="b"), sequence="b").ok
    (used,) = desk.do("b", SegmentListUsed("flights", (DAY,)))
    assert desk.do("b", MarkSegmentsAsUnused(DAY)) == 1
    (unused,) = desk.do("b", SegmentListUnused(DAY))
    assert unused.id == used.id
    desk.do("b", LockRelease(DAY))
    with pytest.raises(Conflict, match="no lock"):
        desk.do("b", SegmentNuke((used.id,)))
    desk.do("b", LockTryAcquire((DAY,)))
    registry = DeltaRegistry(desk.metadata)
    registry.change("flights", lambda _: DeltaEntry("t", TableGoal.KEEP))
    assert desk.do("b", SegmentListUnused(DAY)) == (), "the Delta table needs it"
    assert desk.do("b", SegmentNuke((used.id,))) == ()
    registry.change("flights", lambda _: None)
    assert [row.id for row in desk.do("b", SegmentNuke((used.id,)))] == [used.id]
    assert desk.do("b", SegmentListUnused(DAY)) == ()


def test_a_place_is_found_though_a_user_hid_what_the_lock_wrote(desk: Desk) -> None:
    desk.metadata.begin_offsets("flights", {0: 0})
    desk.add(stream("s"))
    assert publish(desk, "s", allocate(desk, "s"), start={0: 0}, end={0: 5}).ok
    desk.add(stream("other", start=9))  # of the same group: the lock stays as it is
    assert allocate(desk, "other")
    desk.metadata.segments.delete_pending("flights")
    desk.metadata.segments.mark_unused_within("flights")
    (place,) = allocate(desk, "s", sequence="base-s_1")
    assert publish(desk, "s", [place], start={0: 5}, end={0: 9}, sequence="base-s_1").ok


def test_requests_that_wait_are_given_places_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = ThreadLanes("test locks")
    desk = Desk(tmp_path, lanes)
    names = [f"s{n}" for n in range(8)]
    for name in names:
        desk.add(stream(name, useConcurrentLocks=True))
    calls = []
    allocate_segments = desk.metadata.allocate_segments

    def counted(requests: Sequence[AllocateRequest]) -> list[PendingRow | None]:
        calls.append(len(requests))
        return allocate_segments(requests)

    monkeypatch.setattr(desk.metadata, "allocate_segments", counted)
    gate = threading.Event()
    lanes.submit("datasource flights", gate.wait)
    threads = [threading.Thread(target=allocate, args=(desk, name)) for name in names]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(120)
    assert sum(calls) == 8
    places = [allocate(desk, name)[0].partition_number for name in names]
    assert sorted(places) == list(range(8))
    lanes.close()
    desk.metadata.close()


def test_who_waits_for_a_place_when_the_overlord_ends_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, waits, gate = threading.Event(), threading.Event(), threading.Event()

    class TellingLanes(ThreadLanes):
        def submit(self, lane: str, work: Callable[[], Answer]) -> Future[Answer]:
            future = super().submit(lane, work)
            if locked.is_set():
                waits.set()
            return future

    lanes = TellingLanes("test locks")
    desk = Desk(tmp_path, lanes)
    desk.add(stream("s", useConcurrentLocks=True))
    acquire = desk.lockboxes.acquire

    def acquire_and_be_busy(*args: Sequence[LockRequest], **more: Any) -> Future[list[LockOutcome]]:
        answer = acquire(*args, **more)
        answer.result()
        lanes.submit("datasource flights", gate.wait)
        locked.set()
        return answer

    monkeypatch.setattr(desk.lockboxes, "acquire", acquire_and_be_busy)
    told = []

    def ask() -> None:
        with pytest.raises(Unavailable, match="repeat the request at the next leader") as caught:
            allocate(desk, "s")
        told.append(caught.value)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert waits.wait(120)
    lanes.close()
    gate.set()
    thread.join(120)
    assert told
    desk.metadata.close()
