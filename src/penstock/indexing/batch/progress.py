"""Progress of a batch task: updated by its thread and the engine's, read by any thread.

Each fact is one attribute that is replaced as a whole, so that no reader sees part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import counted
from penstock.indexing.batch.retries import wait_fields
from penstock.indexing.engine import RowCounts
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from penstock.core.intervals import Interval
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.engine import ParseError

_PHASE = "buildSegments"
_EMPTIED_SHOWN_MAX = 100


class TaskProgress:
    """The progress of a task. Any thread."""

    def __init__(self) -> None:
        self._state = IngestionState.NOT_STARTED
        self._counts = RowCounts()
        self._samples: tuple[ParseError, ...] = ()
        self._parts = (0, 0)
        self._rows = 0
        self._segments = 0
        self._emptied: tuple[Interval, ...] = ()
        self._error = ""

    def __call__(self, done: int, total: int) -> None:
        """Record how many parts of its work the engine has finished."""
        self._parts = (done, total)

    def state(self, state: IngestionState) -> None:
        """Set the phase of the task."""
        self._state = state

    def wrote(self, counts: RowCounts, samples: Sequence[ParseError], rows: int = 0) -> None:
        """Add the counts of a successful call of the engine, and the rows of its files."""
        self._counts = self._counts.plus(counts)
        self._rows += rows
        self._samples = (*self._samples, *samples)

    def published(self, segments: int, emptied: Sequence[Interval]) -> str:
        """Record the end of the task, and return a summary.

        Args:
            segments: Number of published segments, including tombstones.
            emptied: Intervals whose segments were replaced by nothing, in order and disjoint.
        """
        self._segments = segments
        self._emptied = tuple(emptied)
        self._state = IngestionState.COMPLETED
        text = f"{counted(self._rows, 'row')} written"
        if not emptied:
            return text
        shown = ", ".join(str(one) for one in emptied[:_EMPTIED_SHOWN_MAX])
        more = len(emptied) - _EMPTIED_SHOWN_MAX
        rest = f" and {counted(more, 'interval')} more" if more > 0 else ""
        return f"{text}; the segments of {shown}{rest} are replaced by nothing"

    def failed(self, reason: str) -> None:
        """Record why the task failed; its state is the phase in which it failed."""
        self._error = reason

    def report(self, wait: DependencyWait | None = None) -> IngestionReport:
        """Return everything in the form of every task's report, with a wait if there is one."""
        counts = self._counts
        samples: list[JsonValue] = [
            {"place": one.place, "input": one.row, "details": [one.reason]} for one in self._samples
        ]
        done, total = self._parts
        more: dict[str, JsonValue] = {
            "partsDone": done,
            "partsTotal": total,
            "rowsWritten": self._rows,
            "segmentsPublished": self._segments,
        }
        if self._emptied:
            more["intervalsEmptied"] = [str(one) for one in self._emptied[:_EMPTIED_SHOWN_MAX]]
            more["intervalsEmptiedCount"] = len(self._emptied)
        if wait is not None:
            more |= wait_fields(wait)
        return IngestionReport(
            self._state,
            row_stats={
                _PHASE: {
                    "processed": counts.processed,
                    "processedWithError": 0,
                    "unparseable": counts.unparseable,
                    "thrownAway": counts.thrown_away_early
                    + counts.thrown_away_late
                    + counts.thrown_away_filtered,
                }
            },
            unparseable={_PHASE: samples},
            error=self._error,
            more=more,
        )
