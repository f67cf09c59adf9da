"""Places for segments: the lock of each time chunk first, then a partition number in it.

Owns the gathering of requests: those of one datasource that wait at the same moment are done in one
transaction, on the datasource's lane. Those of different datasources never wait for each other.
Which places are given is decided by `penstock.storage.metadata`. Invariant: who asks again for the
same gets the same.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import (
    Conflict,
    Fenced,
    InvalidRequest,
    LockRevoked,
    PenstockError,
    Unavailable,
)
from penstock.indexing.actions import SegmentPlace
from penstock.indexing.lockbox.lockboxes import lane_of
from penstock.indexing.lockbox.model import Granted, Refused, Revoked
from penstock.indexing.overlord.locking import lock_task, requests_for
from penstock.storage.metadata import AllocateRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.actions import SegmentAllocate
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import Outcome
    from penstock.indexing.ports import Lanes
    from penstock.indexing.taskspec import TaskSpec
    from penstock.storage.metadata import MetadataStore, PendingRow

_ASKS_PER_TRANSACTION: Final = 500


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
    """

    def __init__(self, metadata: MetadataStore, lockboxes: Lockboxes, lanes: Lanes) -> None:
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._lanes = lanes
        self._mutex = threading.Lock()
        self._inboxes: dict[str, list[_Ask]] = {}

    def allocate(self, task: TaskSpec, action: SegmentAllocate) -> list[SegmentPlace]:
        """Return a place for each interval of the action.

        Raises:
            InvalidRequest: A time chunk cannot take a segment of this granularity.
            LockRevoked: A lock of the task was revoked, or it is not active.
            Unavailable: Somebody else holds a lock in the way, or the store does not answer: ask
                again.
        """
        try:
            rows = self._allocate(task, action, self._lock(task, action.intervals))
        except Fenced:
            raise
        except Conflict:
            # A user took away segments of the lock's very version, whose ids are not given twice.
            for interval in dict.fromkeys(action.intervals):
                self._lockboxes.release(lock_task(task), interval).result()
            rows = self._renewed(task, action)
        return [
            _place(task, row, interval)
            for row, interval in zip(rows, action.intervals, strict=True)
        ]

    def _renewed(self, task: TaskSpec, action: SegmentAllocate) -> list[PendingRow | None]:
        try:
            return self._allocate(task, action, self._lock(task, action.intervals))
        except Conflict as error:
            raise Unavailable(
                f"task {task.id} waits until no task of the group {task.group_name} holds a lock"
                f" of an older version: {error}"
            ) from error

    def _lock(self, task: TaskSpec, intervals: Sequence[Interval]) -> dict[Interval, str]:
        """Lock time chunks; return the version of each lock."""
        wanted = list(dict.fromkeys(intervals))
        requests = requests_for(task, wanted, appends=True)
        outcomes = self._lockboxes.acquire(requests).result()
        return {
            interval: _version(task, outcome)
            for interval, outcome in zip(wanted, outcomes, strict=True)
        }

    def _allocate(
        self, task: TaskSpec, action: SegmentAllocate, versions: dict[Interval, str]
    ) -> list[PendingRow | None]:
        allocator = lock_task(task).allocator_id
        ask = _Ask(
            [
                AllocateRequest(
                    datasource=task.datasource,
                    interval=interval,
                    sequence_name=name,
                    version=versions[interval],
                    allocator_id=allocator,
                )
                for interval, name in zip(action.intervals, part_names(action), strict=True)
            ]
        )
        with self._mutex:
            inbox = self._inboxes.setdefault(task.datasource, [])
            inbox.append(ask)
            is_first = len(inbox) == 1
        if is_first:
            self._lanes.submit(lane_of(task.datasource), partial(self._serve, task.datasource))
        return ask.rows.result()

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
        except BaseException as error:
            for ask in asks:
                ask.rows.set_exception(error)
            raise
        begin = 0
        for ask in asks:
            end = begin + len(ask.requests)
            ask.rows.set_result(rows[begin:end])
            begin = end


def part_names(action: SegmentAllocate) -> list[str]:
    """Name the places of one sequence: the first of a chunk by its name, then with a number."""
    seen: Counter[Interval] = Counter()
    names = []
    for interval in action.intervals:
        part = seen[interval]
        seen[interval] += 1
        names.append(f"{action.sequence_name}#{part}" if part else action.sequence_name)
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
            raise Unavailable(f"task {task.id}: {outcome.text()}")


def _place(task: TaskSpec, row: PendingRow | None, interval: Interval) -> SegmentPlace:
    if row is None:
        raise InvalidRequest(
            f"datasource {task.datasource}: the time chunk {interval} cannot take a segment"
            " beside those of another granularity: set the segmentGranularity that they"
            " have, or mark them unused"
        )
    return SegmentPlace(row.interval, row.version, row.partition_number, row.core_partitions)
