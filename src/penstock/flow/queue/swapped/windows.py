"""Windows of rows that are read from swap files, all together within a bound.

Owns how much of a swap file is read at once, which windows are discarded when there are too many
rows, sorting, and the damage of rows that cannot be read. Does not own the order of cursors
(`runs`), nor the rows of one cursor (`run`).

Invariants:

- All windows together stay within their bound, except for a few rows of each open cursor.
- Of a missing or damaged file only the damaged rows are lost. A file that cannot be read now loses
  nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.swap_store import SwapFile, SwapHome
from penstock.flow.queue.swapped.run import KeyMaker, Plan, RowNumbers, Run, entries_of, rank
from penstock.flow.queue.swapped.window import Entry
from penstock.flow.swap.swap_file import Rows

WINDOW_ROWS_MIN: Final = 32
WINDOW_ROWS_MAX: Final = 2_048


@dataclass(frozen=True, slots=True)
class Damage:
    """Unreadable rows of a swap file, to be reported to the swap store without the mutex."""

    file: SwapFile
    rows: RowNumbers
    reason: str


class Windows:
    """Reads rows of cursors. The queue's mutex is held during every call.

    Methods for one cursor also receive the other open ones, because they share the bound.

    Args:
        keys: Computes the keys of FlowFiles.
        home: Swap store.

    Attributes:
        keys: Keys of the current order.
        rows: Maximum number of rows in memory, for all windows together.
        damages: Damage found since the last report.
    """

    def __init__(self, keys: KeyMaker, home: SwapHome) -> None:
        self.keys = keys
        self.rows = 0
        self.damages: list[Damage] = []
        self._home = home

    def read(self, run: Run, others: Sequence[Run]) -> None:
        """Read a window of a cursor, in order; if nothing can be read, no rows remain.

        Raises:
            Unavailable: It cannot be read now; all rows remain.
        """
        try:
            if not run.is_sorted:
                self._sort(run)
            self._make_room(run, others)
            while run.left and not run.window:
                plan = run.plan(self._size(others))
                found = run.open(self._home).take(plan.rows)
                self._add(run, plan, found, self.keys(found.flowfiles))
        except (NotFound, CorruptData) as error:
            self._lose_rest(run, str(error))
        except BaseException:
            run.let_go()
            raise

    def take(self, run: Run, found: list[FlowFile], limit: int, before: Key | None) -> int:
        """Take the FlowFiles of a window whose keys are below a key; return their number."""

        def loaded(taken: list[FlowFile], rows: list[int]) -> None:
            self._home.loaded(run.file, rows, [one.id for one in taken])

        return run.take(found, limit, before, loaded)

    def next_plan(self, run: Run, ranked: Sequence[Run]) -> Plan | None:
        """Return the rows to read after a window, if it is time to read ahead."""
        rows = self._size(ranked)
        if run.is_busy or run.is_read_ahead or run.is_read_out:
            return None
        if not 0 < len(run.window) <= rows // 2:
            return None
        return run.plan(rows)

    def attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> bool:
        """Add rows that were read without the mutex; return False if the cursor changed."""
        if plan.generation != run.generation:
            return False
        self._add(run, plan, found, keys)
        return True

    def entries(self, run: Run) -> Iterator[Entry]:
        """Yield the remaining entries of a sorted cursor in order, as far as it can be read."""
        with suppress(PenstockError):  # a listing ignores damage; the next poll handles it
            yield from entries_of(run, run.open(self._home), self.keys)

    def _sort(self, run: Run) -> None:
        """Read all remaining rows of a cursor to sort it in this order."""
        rows = run.remaining().nonzero()[0]
        found = run.open(self._home).take(rows)
        self._lose(run, found.lost)
        run.resort(found.numbers, self.keys(found.flowfiles))

    def _add(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        self._lose(run, found.lost)
        run.attach(plan, found, keys)
        if not run.window and run.is_read_out and run.left:
            self._lose_rest(run, "it holds fewer rows than its summary says")

    def _lose(self, run: Run, rows: RowNumbers) -> None:
        if len(rows):
            self._lose_for(run, rows, "pages have wrong checksums")

    def _lose_rest(self, run: Run, reason: str) -> None:
        self._lose_for(run, run.remaining().nonzero()[0], reason)
        run.let_go()

    def _lose_for(self, run: Run, rows: RowNumbers, reason: str) -> None:
        self.damages.append(Damage(run.file, rows, reason))
        try:
            run.lose(rows)
        except BaseException:
            self.damages.pop()
            raise

    def _size(self, others: Iterable[Run]) -> int:
        """Return the number of rows to read at once, to keep all windows within their bound."""
        begun = sum(1 for run in others if run.is_begun) + 1
        return max(WINDOW_ROWS_MIN, min(WINDOW_ROWS_MAX, self.rows // begun))

    def _make_room(self, wanted: Run, others: Sequence[Run]) -> None:
        """Discard the windows that are needed last, if all together are too large."""
        rest = self.rows - self._size(others)
        total = sum(len(run.window) for run in others)
        if total <= rest:
            return
        for run in sorted(others, key=rank, reverse=True):
            if run is not wanted and _may_go(run):
                total -= len(run.window)
                run.let_go()
                if total + self._size(others) <= self.rows:
                    return


def let_windows_go(runs: Iterable[Run]) -> int:
    """Discard all windows; return their number of rows."""
    total = 0
    for run in runs:
        if _may_go(run):
            total += len(run.window)
            run.let_go()
    return total


def _may_go(run: Run) -> bool:
    return bool(run.window) and not (run.is_busy or run.is_read_ahead)
