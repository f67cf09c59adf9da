"""Allocation of segment ids for tasks: time chunk, lock and partition number.

`SegmentAllocator` acquires the lock of the time chunk and then takes a partition number in it.
A task that locks single segments takes the number first and then a lock on that segment only,
so that other tasks may lock other segments of the chunk. `chunk_parts` chooses the time chunks;
it is pure. New segments go into the visible time chunks for every granularity of the task: rows of
an hour are appended to the day that a compaction created. The rows of pending segments belong to
`penstock.storage.metadata`.

Requests for one datasource that wait at the same time share one transaction on the datasource's
lane; requests for different datasources never wait for each other. Any thread may call; it
blocks until the result.

Invariants: a repeated request returns the same segment id, unless a publish changed the chunk
in between. A task that repeatedly requests time that others have locked gets `PlaceWithheld`
(retry), and after the `taskLockTimeout` of its context `PlaceRefused` (abandon).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict, LockRevoked, PenstockError, Unavailable
from penstock.core.intervals import NAMED_GRANULARITIES, Interval, condensed
from penstock.indexing.actions import AllocatedSegment
from penstock.indexing.lockbox.lock_lane import lane_of
from penstock.indexing.lockbox.task_locks import LockGranted, LockRefused, Revoked
from penstock.indexing.overlord.lock_requests import (
    lock_task,
    new_segment_requests,
    requests_for,
    segment_requests,
)
from penstock.indexing.overlord.wait_reasons import RefusalTracker
from penstock.indexing.specs.task_context import read_context
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.storage.metadata import AllocateRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.actions import SegmentAllocate
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.task_locks import LockOutcome
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.metadata import MetadataStore, PendingRow


# Weeks are left out: a week crosses the ends of months and years, so it would block the next
# month's time chunk.
_FINER: Final = tuple(one for one in NAMED_GRANULARITIES if one.name != "WEEK")


@dataclass(frozen=True, slots=True, order=True)
class ChunkPart:
    """Rows of `times` go into a segment of the time chunk `chunk`, which may be larger."""

    times: Interval
    chunk: Interval


def chunk_parts(
    wanted: Interval, visible: Iterable[Interval], pending: Iterable[Interval] = ()
) -> list[ChunkPart]:
    """Return how the rows of a time chunk are divided into time chunks, in order of time.

    Where segments exist, a new one gets their time chunk: a segment of another time chunk would
    hide them if its version is newer, and be hidden if it is older. Where none is visible, pending
    segments of other tasks count in the same way, because they will become visible. The rest gets
    the requested chunk itself or, if only a part of it is free, the largest chunks that fit there.

    Args:
        wanted: The time chunk for which the rows were written.
        visible: Time chunks of segments that overlap it, newest version first.
        pending: Time chunks of pending segments that overlap it, newest version first.
    """
    free = _Free(wanted)
    shown = list(visible)
    for chunk in shown:
        free.take(chunk)
    there = condensed(shown)
    for chunk in pending:
        if not any(chunk.overlaps(one) for one in there):
            free.take(chunk)
    if not free.parts:
        return [ChunkPart(wanted, wanted)]
    left = (ChunkPart(chunk, chunk) for gap in free.gaps for chunk in _fitting(gap))
    return sorted([*free.parts, *left])


class _Free:
    """The free parts of an interval: disjoint gaps, in order."""

    def __init__(self, interval: Interval) -> None:
        self.gaps = [interval]
        self.parts: list[ChunkPart] = []

    def take(self, chunk: Interval) -> None:
        """Assign the parts of the gaps that lie in a chunk to the chunk."""
        first = bisect_right(self.gaps, chunk.start_ms, key=lambda gap: gap.end_ms)
        last = bisect_left(self.gaps, chunk.end_ms, key=lambda gap: gap.start_ms)
        left = []
        for gap in self.gaps[first:last]:
            start_ms, end_ms = max(gap.start_ms, chunk.start_ms), min(gap.end_ms, chunk.end_ms)
            self.parts.append(ChunkPart(Interval(start_ms, end_ms), chunk))
            left += [Interval(gap.start_ms, start_ms), Interval(end_ms, gap.end_ms)]
        self.gaps[first:last] = [gap for gap in left if not gap.is_empty]


def _fitting(gap: Interval) -> Iterator[Interval]:
    """Yield the largest chunks that fill a gap, in order; remainders below a second unchanged."""
    at = gap.start_ms
    while at < gap.end_ms:
        buckets = (granularity.bucket(at) for granularity in _FINER)
        whole = (one for one in buckets if one.start_ms == at and one.end_ms <= gap.end_ms)
        chunk = next(whole, Interval(at, gap.end_ms))
        yield chunk
        at = chunk.end_ms


_ALLOCATIONS_PER_TRANSACTION: Final = 500
_TRIES_MAX: Final = 5
_HOLDERS_NAMED_MAX: Final = 8


class PlaceWithheld(Unavailable):
    """A conflicting lock or segment id prevents the allocation for now: retry."""


class PlaceRefused(LockRevoked):
    """The conflict lasted for `taskLockTimeout`: abandon the work. The message names holders."""


@dataclass(slots=True)
class _WaitingAllocation:
    """Allocation requests of one task, which holds the locks for them."""

    requests: list[AllocateRequest]
    rows: Future[list[PendingRow | None]] = field(default_factory=Future)


class SegmentAllocator:
    """Allocates segment ids. Any thread; a call waits for the answer.

    The mutex guards the inboxes, which calling threads fill and the lanes empty. It is held for a
    few statements only.

    Args:
        metadata: The store of the allocated ids.
        lockboxes: The locks of the time chunks.
        lanes: The lanes of the lockboxes.
        clock: Measures for how long a task has been refused.
    """

    def __init__(
        self, metadata: MetadataStore, lockboxes: Lockboxes, lanes: Lanes, clock: Clock
    ) -> None:
        self._refusals = RefusalTracker(clock)
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._lanes = lanes
        self._mutex = threading.Lock()
        self._inboxes: dict[str, list[_WaitingAllocation]] = {}

    def divide(self, task: TaskSpec, intervals: Sequence[Interval]) -> list[list[Interval]]:
        """Return, for each interval, its parts in order; rows of two parts never share a segment.

        Raises:
            Unavailable: The store does not answer.
        """
        return [[part.times for part in parts] for parts in self._parts(task, intervals)]

    def allocate(self, task: TaskSpec, action: SegmentAllocate) -> list[AllocatedSegment]:
        """Return a segment id for each interval of the action, in the time chunk visible there.

        Raises:
            Conflict: The rows of an interval must be divided first.
            LockRevoked: A lock of the task was revoked, or the task is not active.
            PlaceRefused: Another task blocked the allocation for the task's `taskLockTimeout`.
            PlaceWithheld: Another task blocks the allocation: retry.
            Unavailable: The store does not answer: retry.
        """
        try:
            places = self._places(task, action)
        except PlaceWithheld as error:  # narrow: counts refusals
            limit_ms = read_context(task.context, priority=task.priority).lock_timeout_ms
            if self._refusals.refused(task.id) < limit_ms:
                raise
            self._refusals.served(task.id)
            raise PlaceRefused(
                f"no segment id could be allocated within taskLockTimeout ({limit_ms} ms): {error}"
            ) from error
        self._refusals.served(task.id)
        return places

    def _places(self, task: TaskSpec, action: SegmentAllocate) -> list[AllocatedSegment]:
        for _ in range(_TRIES_MAX):
            chunks = self._chunks(task, action.intervals)
            if action.by_segment:
                rows = self._lock_segments(task, action, chunks)
            else:
                rows = self._allocate(task, action, chunks, self._lock(task, chunks))
            places = [_place(row) for row in rows if row is not None]
            if len(places) == len(rows):
                return places
            # Another task published there after the chunks were read and before they were locked.
        full = next(chunk for chunk, row in zip(chunks, rows, strict=True) if row is None)
        raise PlaceWithheld(
            f"task {task.id}: no segment can be added to time chunk {full} now: other tasks have"
            f" allocated segments of another granularity there ({self._holders(task, full)}), or"
            " its core partitions are unknown. The task retries; if this continues, compact the"
            " time chunk"
        )

    def _holders(self, task: TaskSpec, chunk: Interval) -> str:
        """Name the other tasks that hold locks, and so may have segment ids, in a time chunk."""
        held = self._lockboxes.locks(task.datasource).result()
        names = sorted(
            {
                one.task_id
                for one in held
                if one.task_id != task.id and one.lock.interval.overlaps(chunk)
            }
        )
        more = f" and {len(names) - _HOLDERS_NAMED_MAX} more" if names[_HOLDERS_NAMED_MAX:] else ""
        named = ", ".join(names[:_HOLDERS_NAMED_MAX])
        return f"held by {named}{more}" if names else "of tasks that have ended"

    def _parts(self, task: TaskSpec, intervals: Sequence[Interval]) -> list[list[ChunkPart]]:
        wanted = list(dict.fromkeys(intervals))
        occupied = self._metadata.segments.occupied(task.datasource, wanted)
        known = {
            interval: chunk_parts(interval, found.visible, found.pending)
            for interval, found in zip(wanted, occupied, strict=True)
        }
        return [known[interval] for interval in intervals]

    def _chunks(self, task: TaskSpec, intervals: Sequence[Interval]) -> list[Interval]:
        """Return the time chunk for the rows of each interval."""
        chunks = []
        for interval, parts in zip(intervals, self._parts(task, intervals), strict=True):
            if len(parts) > 1:
                raise Conflict(
                    f"datasource {task.datasource}: time chunk {interval} has segments of"
                    f" {len(parts)} other time chunks, the first at {parts[0].chunk}, and none of"
                    " them can hold all rows of the task: set a segmentGranularity that is not"
                    " coarser than theirs (with type arbitrary intervals, each within one of"
                    f" theirs), or compact {interval} to one time chunk first"
                )
            chunks.append(parts[0].chunk)
        return chunks

    def _lock(self, task: TaskSpec, chunks: Iterable[Interval]) -> dict[Interval, str]:
        """Lock time chunks; return the version of each lock."""
        # Larger chunks first: their locks cover the chunks inside them.
        wanted = sorted(set(chunks), key=lambda chunk: (-chunk.length_ms, chunk.start_ms))
        requests = requests_for(task, wanted, appends=True)
        outcomes = self._lockboxes.acquire(requests).result()
        refused = [one.request.interval for one in outcomes if isinstance(one, LockRefused)]
        if refused and self._makes_room(task, refused):
            outcomes = self._lockboxes.acquire(requests).result()
        return {
            interval: _version(task, outcome)
            for interval, outcome in zip(wanted, outcomes, strict=True)
        }

    def _lock_segments(
        self, task: TaskSpec, action: SegmentAllocate, chunks: Sequence[Interval]
    ) -> list[PendingRow | None]:
        """Return rows, each with its own lock; None where another task published meanwhile."""
        if not chunks:
            return []
        wanted = sorted(set(chunks))
        # Checked before ids are allocated, because an id without a lock would block a replace.
        found = self._lockboxes.room_for(new_segment_requests(task, wanted)).result()
        versions = {}
        for chunk, room in zip(wanted, found, strict=True):
            if isinstance(room, LockRefused):
                raise PlaceWithheld(f"task {task.id}: {room.text()}")
            versions[chunk] = room
        rows = self._allocate(task, action, chunks, versions)
        given = [row for row in rows if row is not None]
        requests = segment_requests(
            task, [(row.interval, row.version, row.partition_number) for row in given]
        )
        for outcome in self._lockboxes.acquire(requests, together=True).result():
            _version(task, outcome)
        # These locks prevent any replacement of the time chunks, so these ids are final.
        again = self._allocate(task, action, chunks, versions)
        stale: set[Interval] = set()
        if not action.rewrites:
            # A lock holds for one version only; release it if the chunk has a newer one.
            stale = {b.interval for a, b in zip(again, rows, strict=True) if b and a != b}
            for future in [self._lockboxes.release(lock_task(task), chunk) for chunk in stale]:
                future.result()
        return [
            row if row == before and row is not None and row.interval not in stale else None
            for row, before in zip(again, rows, strict=True)
        ]

    def _makes_room(self, task: TaskSpec, refused: Sequence[Interval]) -> bool:
        """Release the task's own conflicting locks if no other task has one; return whether it did.

        A larger lock also covers segments to be published under the locks inside it. A batch task
        requests all its ids at once, so it has no id yet under a lock that crosses a chunk's end.
        """
        locks = self._lockboxes.locks(task.datasource).result()
        held = [
            one
            for one in locks
            if not one.lock.revoked and any(one.lock.interval.overlaps(i) for i in refused)
        ]
        may_cross = not isinstance(task, StreamTaskSpec)
        if any(
            one.task_id != task.id
            or not (may_cross or any(i.covers(one.lock.interval) for i in refused))
            for one in held
        ):
            return False
        mine = lock_task(task)
        released = [self._lockboxes.release(mine, one.lock.interval) for one in held]
        for future in released:
            future.result()
        return bool(held)

    def _allocate(
        self,
        task: TaskSpec,
        action: SegmentAllocate,
        chunks: Sequence[Interval],
        versions: dict[Interval, str],
    ) -> list[PendingRow | None]:
        allocator = lock_task(task).allocator_id
        allocation = _WaitingAllocation(
            [
                AllocateRequest(
                    datasource=task.datasource,
                    interval=chunk,
                    sequence_name=name,
                    version=versions[chunk],
                    allocator_id=allocator,
                    space="overwrite" if action.rewrites else "root",
                )
                for chunk, name in zip(
                    chunks, part_names(action.sequence_name, chunks), strict=True
                )
            ]
        )
        self._enqueue(task.datasource, allocation)
        return allocation.rows.result()

    def _enqueue(self, datasource: str, allocation: _WaitingAllocation) -> None:
        """Add requests to the inbox; the first ones submit the round that serves all of them."""
        is_first = False
        try:
            with self._mutex:
                inbox = self._inboxes.setdefault(datasource, [])
                is_first = not inbox
                inbox.append(allocation)
            if is_first:
                self._post(datasource)
        except BaseException as error:
            if is_first:  # Otherwise all later requests would wait for a round that never begins.
                self._refuse_waiting(datasource, error)
            raise

    def _post(self, datasource: str) -> None:
        round_ = self._lanes.submit(lane_of(datasource), partial(self._serve, datasource))
        round_.add_done_callback(partial(self._round_ended, datasource))

    def _round_ended(self, datasource: str, round_: Future[None]) -> None:
        error = Closed("the overlord is stopping") if round_.cancelled() else round_.exception()
        if error is not None:  # The round could not begin, or could not take the inbox.
            self._refuse_waiting(datasource, error)

    def _refuse_waiting(self, datasource: str, error: BaseException) -> None:
        """Fail the requests of a datasource that no round has taken."""
        with self._mutex:
            allocations = self._inboxes.pop(datasource, [])
        if not isinstance(error, PenstockError):
            text = f"segment ids of {datasource} could not be allocated ({error!r}): try again"
            error = Unavailable(text)
        _fail_unanswered(allocations, error)

    def _serve(self, datasource: str) -> None:
        """Answer all waiting requests of a datasource: a round on its lane."""
        with self._mutex:
            allocations = self._inboxes.pop(datasource, [])
        # From here on nothing is raised: requests that came later have a round of their own.
        try:
            for begin in range(0, len(allocations), _ALLOCATIONS_PER_TRANSACTION):
                batch = allocations[begin : begin + _ALLOCATIONS_PER_TRANSACTION]
                try:
                    self._serve_batch(batch)
                except BaseException as error:  # noqa: BLE001 - callers must receive every error
                    _fail_unanswered(batch, error)
        except BaseException as error:  # noqa: BLE001 - the same
            _fail_unanswered(allocations, error)

    def _serve_batch(self, allocations: Sequence[_WaitingAllocation]) -> None:
        """Answer requests in one transaction; if it raises, some may have no answer."""
        try:
            rows = self._metadata.allocate_segments(
                [r for allocation in allocations for r in allocation.requests]
            )
        except Unavailable as error:
            for allocation in allocations:
                allocation.rows.set_exception(error)
            return
        except PenstockError as error:
            # One invalid request must not fail the others.
            if len(allocations) == 1:
                allocations[0].rows.set_exception(error)
                return
            for allocation in allocations:
                self._serve_batch([allocation])
            return
        begin = 0
        for allocation in allocations:
            end = begin + len(allocation.requests)
            allocation.rows.set_result(rows[begin:end])
            begin = end


def _fail_unanswered(allocations: Iterable[_WaitingAllocation], error: BaseException) -> None:
    """Fail all requests that have no answer, even if failing one of them raises."""
    waiting = iter(allocations)
    for allocation in waiting:
        try:
            if not allocation.rows.done():
                allocation.rows.set_exception(error)
        except BaseException:
            # A request that could not be failed must not leave itself or others without an answer.
            if not allocation.rows.done():
                allocation.rows.set_exception(error)
            _fail_unanswered(waiting, error)
            raise


def part_names(sequence_name: str, chunks: Iterable[Interval]) -> list[str]:
    """Name the ids of one sequence: the first of a chunk as the sequence, the next numbered."""
    seen: Counter[Interval] = Counter()
    names = []
    for chunk in chunks:
        part = seen[chunk]
        seen[chunk] += 1
        names.append(f"{sequence_name}#{part}" if part else sequence_name)
    return names


def _version(task: TaskSpec, outcome: LockOutcome) -> str:
    match outcome:
        case LockGranted():
            return outcome.lock.version
        case Revoked():
            raise LockRevoked(
                f"a task of higher priority revoked the {outcome.lock} of task {task.id}: abandon"
                " the task; the next one reads its unpublished rows again"
            )
        case LockRefused():
            raise PlaceWithheld(f"task {task.id}: {outcome.text()}")


def _place(row: PendingRow) -> AllocatedSegment:
    return AllocatedSegment(
        row.interval, row.version, row.partition_number, row.core_partitions, row.minor_version
    )
