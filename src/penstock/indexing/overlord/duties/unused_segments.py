"""Deletion of segments that were unused for a long time: rows and files, without a task or slot.

Selects the due segments and deletes them in portions, each under KILL locks on its intervals, which
conflict only with other deletions. Rows are deleted before files, in a transaction that checks
again that they are still due; the rows of one datasource in a portion share a transaction.
Invariants: a segment is kept if it was used within the buffer period or after the oldest active
task started, because that task may still read, list or publish it, or while a version of a Delta
table needs it. An overlord that no longer leads
deletes no row, and so no file; its locks end with its term.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import apart, condensed
from penstock.indexing.file_deletion import delete_files
from penstock.indexing.lockbox.task_locks import LockGranted, LockTask, LockType
from penstock.indexing.overlord.duties.duty import answered, before_all_tasks
from penstock.indexing.overlord.duties.janitor import CLOCKS_APART_MS
from penstock.segments.delta.table_registry import KillBounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.file_deletion import FileDeleter
    from penstock.indexing.overlord.duties.duty import DutyTools
    from penstock.storage.metadata import SegmentRow

_log = logging.getLogger(__name__)

PRIORITY: Final = 25

# A term that is over deletes at most the files of one portion.
_PORTION_SEGMENTS: Final = 200
_PORTIONS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class KillReport:
    """Counts of the segments that one round deleted."""

    segments: int = 0
    files: int = 0

    def plus(self, other: KillReport) -> KillReport:
        """Return the sum of two reports."""
        return KillReport(self.segments + other.segments, self.files + other.files)


class UnusedSegmentsDuty:
    """Deletes unused segments. On its lane.

    Args:
        tools: Its dependencies.
        deep_store: Deep storage.
        buffer_ms: Time for which a segment must have been unused. Until then it can be marked used
            again. Longer than queries take that started before it was marked unused.
        interval_ms: Period of the duty.
        clocks_apart_ms: Upper bound of the difference between the clocks of two overlords.
    """

    name = "killer"

    def __init__(
        self,
        tools: DutyTools,
        deep_store: FileDeleter,
        buffer_ms: int,
        *,
        interval_ms: int = 60_000,
        clocks_apart_ms: int = CLOCKS_APART_MS,
    ) -> None:
        self._tools = tools
        self._metadata = tools.metadata
        self._deep_store = deep_store
        self._buffer_ms = buffer_ms
        self._clocks_apart_ms = clocks_apart_ms
        self.interval_ms = interval_ms
        # Lock holders whose locks may not be released yet.
        self._holders: dict[str, LockTask] = {}
        # Start of the next portion, so that segments that cannot be locked do not block others.
        self._after: SegmentRow | None = None

    def run(self) -> None:
        """Run one round; the next round retries failed work. Raises as `kill`."""
        report = self.kill()
        if report != KillReport():
            _log.info("deleted segments that were unused for a long time: %s", report)

    def kill(self) -> KillReport:
        """Run one round and return its counts.

        Raises:
            Unavailable: The metadata store does not answer.
            Closed: This overlord no longer leads.
            Fenced: Another overlord leads now.
        """
        for holder in list(self._holders.values()):
            self._release(holder)
        # Read first: a task that starts later neither reads nor lists segments unused before.
        due_ms = self._tools.clock.now_ms() - self._buffer_ms
        before_ms = before_all_tasks(self._metadata, due_ms, self._clocks_apart_ms)
        done = KillReport()
        for _ in range(_PORTIONS_MAX):
            rows = self._metadata.segments.unused(
                changed_before_ms=before_ms, after=self._after, limit=_PORTION_SEGMENTS
            )
            self._after = rows[-1] if len(rows) == _PORTION_SEGMENTS else None
            for datasource, found in _by_datasource(rows).items():
                done = done.plus(self._kill_of(datasource, found, before_ms))
            if self._after is None:
                break  # The next round retries segments that could not be locked now.
        return done

    def _kill_of(self, datasource: str, found: Sequence[SegmentRow], before_ms: int) -> KillReport:
        """Delete segments of a datasource, except where another task deletes."""
        name = f"killer_{datasource}_{self._tools.new_token()}"
        holder = LockTask(name, name, datasource, PRIORITY, embedded_killer=True)
        self._holders[name] = holder
        try:
            answered(self._tools.lockboxes.add(holder))
            had = self._lock(holder, [row.interval for row in found])
            if not had:
                return KillReport()
            ids = [row.id for row in found if any(map(row.interval.overlaps, had))]
            until = KillBounds.read(self._metadata).of
            killed = self._metadata.segments.kill(
                ids, changed_before_ms=before_ms, changed_until=until
            )
            files = sum(1 for _ in delete_files(self._deep_store, killed.files_free))
        finally:
            self._release(holder)
        events, rows = self._tools.events, len(killed.rows)
        events.measured("segment/killed/metadataStore/count", rows, dataSource=datasource)
        events.measured("segment/killed/deepStorage/count", files, dataSource=datasource)
        return KillReport(rows, files)

    def _lock(self, holder: LockTask, intervals: Sequence[Interval]) -> list[Interval]:
        """Acquire the available locks: on whole intervals, or on chunks where others delete."""
        condensed_intervals = condensed(intervals)
        had = self._acquire(holder, condensed_intervals)
        refused = [one for one in condensed_intervals if one not in had]
        chunks = apart(one for one in intervals if any(map(one.overlaps, refused)))
        return had + self._acquire(holder, chunks)

    def _acquire(self, holder: LockTask, times: Sequence[Interval]) -> list[Interval]:
        if not times:
            return []
        requests = [holder.request(time, LockType.KILL) for time in times]
        outcomes = answered(self._tools.lockboxes.acquire(requests))
        return [one.lock.interval for one in outcomes if isinstance(one, LockGranted)]

    def _release(self, holder: LockTask) -> None:
        answered(self._tools.lockboxes.remove(holder))
        del self._holders[holder.id]


def _by_datasource(rows: Iterable[SegmentRow]) -> dict[str, list[SegmentRow]]:
    found: dict[str, list[SegmentRow]] = {}
    for row in rows:
        found.setdefault(row.datasource, []).append(row)
    return found
