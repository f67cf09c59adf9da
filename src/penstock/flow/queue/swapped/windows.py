"""What is read of runs: windows of rows, all together within a bound.

Owns how much of a run is read at once, which windows go when all are too many, bringing a run into
an order, and what is lost with rows that cannot be read. Does not own which run comes first
(`runs`), nor the rows of one run (`run`).

Invariants:

- All windows together keep within their bound, but for a few rows of each run that is open.
- A file that is missing or damaged costs what is damaged; one that cannot be read now keeps all it
  has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.home import SwapFile, SwapHome
from penstock.flow.queue.swapped.run import KeyMaker, Plan, RowNumbers, Run, entries_of, rank
from penstock.flow.queue.swapped.window import Entry
from penstock.flow.swap.swapfile import Rows

WINDOW_ROWS_MIN: Final = 32
WINDOW_ROWS_MAX: Final = 2_048


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows of a swap file that cannot be read, to be told to the home without the mutex."""

    file: SwapFile
    rows: RowNumbers
    reason: str


class Windows:
    """Reads rows of runs. The queue's mutex is held around every call.

    What is asked of one run is told of the others, too, that are open: they share the bound.

    Args:
        keys: Makes the keys of FlowFiles.
        home: Where swap files are.

    Attributes:
        keys: The one of the order that is wanted now.
        rows: Rows that may be in memory, all windows together.
        damages: What was found since somebody took them.
    """

    def __init__(self, keys: KeyMaker, home: SwapHome) -> None:
        self.keys = keys
        self.rows = 0
        self.damages: list[Damage] = []
        self._home = home

    def read(self, run: Run, others: Sequence[Run]) -> None:
        """Read a window of a run, in order; nothing is left of it if nothing can be read.

        Raises:
            Unavailable: It cannot be read now; all that is left of it is left.
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
        """Take from the window of a run what comes before a key; return how many."""

        def loaded(taken: list[FlowFile], rows: list[int]) -> None:
            self._home.loaded(run.file, rows, [one.id for one in taken])

        return run.take(found, limit, before, loaded)

    def next_plan(self, run: Run, ranked: Sequence[Run]) -> Plan | None:
        """Return what to read of a run behind its window, if it is time to read ahead."""
        rows = self._size(ranked)
        if run.is_busy or run.is_read_ahead or run.is_read_out:
            return None
        if not 0 < len(run.window) <= rows // 2:
            return None
        return run.plan(rows)

    def attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> bool:
        """Take what was read without the mutex; False: the run changed meanwhile."""
        if plan.generation != run.generation:
            return False
        self._add(run, plan, found, keys)
        return True

    def entries(self, run: Run) -> Iterator[Entry]:
        """Yield what is left of a sorted run in order, as far as it can be read."""
        with suppress(PenstockError):  # a look does not judge; the next poll does
            yield from entries_of(run, run.open(self._home), self.keys)

    def _sort(self, run: Run) -> None:
        """Read all that is left of a run to bring it into this order."""
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
            self._lose_for(run, rows, "pages do not verify")

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
        """Return how many rows to read at once, so that all windows keep within their bound."""
        begun = sum(1 for run in others if run.is_begun) + 1
        return max(WINDOW_ROWS_MIN, min(WINDOW_ROWS_MAX, self.rows // begun))

    def _make_room(self, wanted: Run, others: Sequence[Run]) -> None:
        """Let go the windows that are needed last, when all together are too many."""
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
    """Forget all windows; return how many rows these were."""
    total = 0
    for run in runs:
        if _may_go(run):
            total += len(run.window)
            run.let_go()
    return total


def _may_go(run: Run) -> bool:
    return bool(run.window) and not (run.is_busy or run.is_read_ahead)
