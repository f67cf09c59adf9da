"""Places for segments: the lock of each time chunk first, then a partition number in it.

A task that locks single segments has the number first, and then a lock on that alone; so others may
lock other segments of the time chunk.

Segments are added in the time chunks that are visible, whatever granularity the task has: a file of
an hour is a segment of the day that a compaction made. Which chunks those are is decided by
`lockbox.allocation`, which places are given by `penstock.storage.metadata`.

Owns the gathering of requests: those of one datasource that wait at the same moment are done in one
transaction, on the datasource's lane. Those of different datasources never wait for each other.
Invariants: who asks again for the same gets the same, while nobody publishes there; who asks again
and again for what others hold is told to give up after the `taskLockTimeout` of its context.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict, LockRevoked, PenstockError, Unavailable
from penstock.indexing.actions import SegmentPlace
from penstock.indexing.lockbox.allocation import chunk_parts
from penstock.indexing.lockbox.lockboxes import lane_of
from penstock.indexing.lockbox.model import Granted, Refused, Revoked
from penstock.indexing.overlord.locking import (
    lock_task,
    new_segment_requests,
    requests_for,
    segment_requests,
)
from penstock.indexing.overlord.waiting.patience import Patience
from penstock.indexing.spec.context import read_context
from penstock.indexing.taskspec import StreamTaskSpec
from penstock.storage.metadata import AllocateRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.actions import SegmentAllocate
    from penstock.indexing.lockbox.allocation import ChunkPart
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import Outcome
    from penstock.indexing.ports import Lanes
    from penstock.indexing.taskspec import TaskSpec
    from penstock.storage.metadata import MetadataStore, PendingRow

_ASKS_PER_TRANSACTION: Final = 500
_LOOKS_MAX: Final = 5
_HOLDERS_NAMED_MAX: Final = 8


class PlaceWithheld(Unavailable):
    """Others hold what does not go with a place that was asked for: ask again."""


class PlaceRefused(LockRevoked):
    """They held it for as long as the task may wait: abandon the work. The text names them."""


@dataclass(slots=True)
class _Ask:
    """What one task asks for, with the locks that it has for it."""

    requests: list[AllocateRequest]
    rows: Future[list[PendingRow | None]] = field(default_factory=Future)


class Allocating:
    """Gives places. Any thread may ask; it waits for the answer.

    The mutex guards the inboxes, which asking threads fill and the lanes empty; it is held around a
    few lines.

    Args:
        metadata: Where places are kept.
        lockboxes: Which locks their time chunks.
        lanes: The lanes of the lockboxes.
        clock: Measures how long a task has been refused.
    """

    def __init__(
        self, metadata: MetadataStore, lockboxes: Lockboxes, lanes: Lanes, clock: Clock
    ) -> None:
        self._patience = Patience(clock)
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._lanes = lanes
        self._mutex = threading.Lock()
        self._inboxes: dict[str, list[_Ask]] = {}

    def divide(self, task: TaskSpec, intervals: Sequence[Interval]) -> list[list[Interval]]:
        """Return of each interval the times whose rows must not share a segment, in order.

        Raises:
            Unavailable: The store does not answer.
        """
        return [[part.times for part in parts] for parts in self._parts(task, intervals)]

    def allocate(self, task: TaskSpec, action: SegmentAllocate) -> list[SegmentPlace]:
        """Return a place for each interval of the action, in the time chunk that is visible there.

        Raises:
            Conflict: The rows of an interval have to be divided first.
            LockRevoked: A lock of the task was revoked, or it is not active.
            PlaceRefused: Somebody else was in the way for as long as the task may wait.
            PlaceWithheld: Somebody else is in the way: ask again.
            Unavailable: The store does not answer: ask again.
        """
        try:
            places = self._places(task, action)
        except PlaceWithheld as error:  # narrow: counts refusals
            limit_ms = read_context(task.context, priority=task.priority).lock_timeout_ms
            if self._patience.refused(task.id) < limit_ms:
                raise
            self._patience.served(task.id)
            raise PlaceRefused(
                f"it could not have its places within taskLockTimeout ({limit_ms} ms): {error}"
            ) from error
        self._patience.served(task.id)
        return places

    def _places(self, task: TaskSpec, action: SegmentAllocate) -> list[SegmentPlace]:
        for _ in range(_LOOKS_MAX):
            chunks = self._chunks(task, action.intervals)
            if action.by_segment:
                rows = self._lock_segments(task, action, chunks)
            else:
                rows = self._allocate(task, action, chunks, self._lock(task, chunks))
            places = [_place(row) for row in rows if row is not None]
            if len(places) == len(rows):
                return places
            # Somebody published there after the look and before the lock.
        full = next(chunk for chunk, row in zip(chunks, rows, strict=True) if row is None)
        raise PlaceWithheld(
            f"task {task.id}: the time chunk {full} takes no segment now, as others have places"
            f" there of another granularity ({self._holders(task, full)}), or its core partitions"
            " are unknown: it is asked for again; if that does not end, compact the chunk"
        )

    def _holders(self, task: TaskSpec, chunk: Interval) -> str:
        """Name the other tasks that have locks, and so may have places, in a time chunk."""
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
        """Return the time chunk that each interval's rows go into."""
        chunks = []
        for interval, parts in zip(intervals, self._parts(task, intervals), strict=True):
            if len(parts) > 1:
                raise Conflict(
                    f"datasource {task.datasource}: the time chunk {interval} has segments of"
                    f" {len(parts)} other chunks, the first at {parts[0].chunk}, and none can hold"
                    " all of its rows: take a segmentGranularity that is no coarser than theirs"
                    " (with type arbitrary intervals, each within one of theirs), or"
                    f" compact {interval} to one chunk first"
                )
            chunks.append(parts[0].chunk)
        return chunks

    def _lock(self, task: TaskSpec, chunks: Iterable[Interval]) -> dict[Interval, str]:
        """Lock time chunks; return the version of each lock."""
        # The larger ones first: those inside are locked with them.
        wanted = sorted(set(chunks), key=lambda chunk: (-chunk.length_ms, chunk.start_ms))
        requests = requests_for(task, wanted, appends=True)
        outcomes = self._lockboxes.acquire(requests).result()
        refused = [one.request.interval for one in outcomes if isinstance(one, Refused)]
        if refused and self._makes_room(task, refused):
            outcomes = self._lockboxes.acquire(requests).result()
        return {
            interval: _version(task, outcome)
            for interval, outcome in zip(wanted, outcomes, strict=True)
        }

    def _lock_segments(
        self, task: TaskSpec, action: SegmentAllocate, chunks: Sequence[Interval]
    ) -> list[PendingRow | None]:
        """Return places, each locked by itself; None where somebody published meanwhile."""
        if not chunks:
            return []
        wanted = sorted(set(chunks))
        # Looked at before places are given: one that is not locked would be in a replace's way.
        found = self._lockboxes.room_for(new_segment_requests(task, wanted)).result()
        versions = {}
        for chunk, room in zip(wanted, found, strict=True):
            if isinstance(room, Refused):
                raise PlaceWithheld(f"task {task.id}: {room.text()}")
            versions[chunk] = room
        rows = self._allocate(task, action, chunks, versions)
        given = [row for row in rows if row is not None]
        requests = segment_requests(
            task, ((row.interval, row.version, row.partition_number) for row in given)
        )
        for outcome in self._lockboxes.acquire(requests, together=True).result():
            _version(task, outcome)
        # With the locks nobody replaces the time chunks any more: these places are the last ones.
        again = self._allocate(task, action, chunks, versions)
        stale: set[Interval] = set()
        if not action.rewrites:
            # A lock is for a version; of the next one it is of no use.
            stale = {b.interval for a, b in zip(again, rows, strict=True) if b and a != b}
            for future in [self._lockboxes.release(lock_task(task), chunk) for chunk in stale]:
                future.result()
        return [
            row if row == before and row is not None and row.interval not in stale else None
            for row, before in zip(again, rows, strict=True)
        ]

    def _makes_room(self, task: TaskSpec, refused: Sequence[Interval]) -> bool:
        """Release the task's own locks that are in the way, if nobody else's are.

        A larger lock covers what was to be published under those inside of it, too. A batch task
        asks for all its places at once, so it has none yet under a lock across the end of a chunk.
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
        ask = _Ask(
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
        with self._mutex:
            inbox = self._inboxes.setdefault(task.datasource, [])
            inbox.append(ask)
            is_first = len(inbox) == 1
        if is_first:
            self._post(task.datasource)
        return ask.rows.result()

    def _post(self, datasource: str) -> None:
        """Have the lane do a round; if it cannot, refuse what waits for the round."""
        try:
            round_ = self._lanes.submit(lane_of(datasource), partial(self._serve, datasource))
        except BaseException as error:
            self._refuse(datasource, error)
            raise
        round_.add_done_callback(partial(self._begun, datasource))

    def _begun(self, datasource: str, round_: Future[None]) -> None:
        error = Closed("the overlord ends") if round_.cancelled() else round_.exception()
        if error is not None:  # A round that has begun raises nothing.
            self._refuse(datasource, error)

    def _refuse(self, datasource: str, error: BaseException) -> None:
        """Tell those who wait that nobody will serve them."""
        if not isinstance(error, PenstockError):
            text = f"places of {datasource} could not be asked for: try again ({error!r})"
            error = Unavailable(text)
        with self._mutex:
            asks = self._inboxes.pop(datasource, [])
        for ask in asks:
            ask.rows.set_exception(error)

    def _serve(self, datasource: str) -> None:
        with self._mutex:
            asks = self._inboxes.pop(datasource, [])
        for begin in range(0, len(asks), _ASKS_PER_TRANSACTION):
            self._serve_batch(asks[begin : begin + _ASKS_PER_TRANSACTION])

    def _serve_batch(self, asks: Sequence[_Ask]) -> None:
        try:
            rows = self._metadata.allocate_segments([r for ask in asks for r in ask.requests])
        except Unavailable as error:
            for ask in asks:
                ask.rows.set_exception(error)
            return
        except PenstockError as error:
            # One that is at fault must not cost the others their places.
            if len(asks) == 1:
                asks[0].rows.set_exception(error)
                return
            for ask in asks:
                self._serve_batch([ask])
            return
        except BaseException as error:  # noqa: BLE001 - those who wait must hear of bugs, too
            for ask in asks:
                ask.rows.set_exception(error)
            return
        begin = 0
        for ask in asks:
            end = begin + len(ask.requests)
            ask.rows.set_result(rows[begin:end])
            begin = end


def part_names(sequence_name: str, chunks: Iterable[Interval]) -> list[str]:
    """Name the places of one sequence: the first of a chunk by its name, then with a number."""
    seen: Counter[Interval] = Counter()
    names = []
    for chunk in chunks:
        part = seen[chunk]
        seen[chunk] += 1
        names.append(f"{sequence_name}#{part}" if part else sequence_name)
    return names


def _version(task: TaskSpec, outcome: Outcome) -> str:
    match outcome:
        case Granted():
            return outcome.lock.version
        case Revoked():
            raise LockRevoked(
                f"the {outcome.lock} of task {task.id} was taken by a task of higher priority:"
                " abandon the task; what it has not published is read again by the next"
            )
        case Refused():
            raise PlaceWithheld(f"task {task.id}: {outcome.text()}")


def _place(row: PendingRow) -> SegmentPlace:
    return SegmentPlace(
        row.interval, row.version, row.partition_number, row.core_partitions, row.minor_version
    )
