"""A run: one swap file as a sorted sequence of FlowFiles, read by windows.

Owns which rows are left, and in which order they come. Does not own the order (keys are made by the
store it is in), those read ahead (`window`), nor the file (`home`).

Invariants:

- `key` is never greater than the key of the next FlowFile: it is that key, or that of the last one
  taken; None: nothing is known yet.
- Rows before the first of the window, in the run's order, were taken; `gone` has those that left in
  another way. Letting the window go therefore loses nothing and writes nothing.
- `tally` moves with what is left, and with the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.flow.queue.swapped.window import Entry, Window
from penstock.flow.swap.columnar import PAGE_ROWS

if TYPE_CHECKING:
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.prioritizers import Key
    from penstock.flow.queue.home import SwapFile, SwapHome
    from penstock.flow.swap.swapfile import Rows, SwapReader

KeyMaker = Callable[[Sequence["FlowFile"]], list["Key"]]
RowNumbers = npt.NDArray[np.int64]
# What runs are ranked by.
Rank = tuple["Key", bool, int]


@dataclass(slots=True)
class Tally:
    """Counts that move together."""

    count: int = 0
    size_bytes: int = 0

    def add(self, count: int, size_bytes: int) -> None:
        """Count more, or less."""
        self.count += count
        self.size_bytes += size_bytes


@dataclass(slots=True)
class RunsTally(Tally):
    """What is left in the runs of a store, and about what their windows take of the memory."""

    window_bytes: int = 0


class Plan(NamedTuple):
    """Rows of a run to be read: their places in its order, their numbers in the file."""

    places: RowNumbers
    rows: RowNumbers
    end: int
    generation: int


class Run:
    """One swap file, read in order. The queue's mutex is held around every call but `read`.

    Args:
        file: The swap file.
        number: Tells runs apart that compare alike.
        tally: Counts what is left, and read ahead, in all runs of a store.
    """

    def __init__(self, file: SwapFile, number: int, tally: RunsTally) -> None:
        self.file = file
        self.number = number
        self.tally = tally
        self.key: Key | None = None
        self.is_sorted = True
        self.left = file.summary.count
        self.left_bytes = file.summary.size_bytes
        self.min_entry_ms = file.summary.min_entry_ms
        self.last_due_ms: int | None = None
        self.is_busy = False
        self.is_read_ahead = False
        self.retry_at_s = 0.0
        self.generation = 0
        self.window = Window()
        self._order: npt.NDArray[np.int32] | None = None
        self._gone: npt.NDArray[np.bool_] | None = None
        self._position = 0
        self._reader: SwapReader | None = None
        tally.add(self.left, self.left_bytes)

    @property
    def is_begun(self) -> bool:
        """Say whether some of it is read or taken, so that more of it is wanted soon."""
        return bool(self.window) or self.left < self.file.summary.count

    @property
    def is_read_out(self) -> bool:
        """Say whether nothing is left behind the window."""
        return self._position >= self.file.summary.count

    def open(self, home: SwapHome) -> SwapReader:
        """Return the reader, opening the file if it is not open. Raises as `SwapHome.open`."""
        if self._reader is None:
            self._reader = home.open(self.file)
        return self._reader

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._reader is not None and not self.is_read_ahead:
            reader, self._reader = self._reader, None
            reader.close()

    def plan(self, count: int, start: int | None = None) -> Plan:
        """Return about so many rows behind the window, or from a place on in the run's order."""
        start = self._position if start is None else start
        end = start + count
        if self._order is None and count >= PAGE_ROWS:
            end -= end % PAGE_ROWS  # a page that is read in part is unpacked twice
        end = min(end, self.file.summary.count)
        places = np.arange(start, end)
        rows = places if self._order is None else self._order[start:end].astype(np.int64)
        if self._gone is not None:
            kept = ~self._gone[rows]
            places, rows = places[kept], rows[kept]
        return Plan(places, rows, end, self.generation)

    def attach(self, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        """Add what was read behind the window; what was lost is told to `lose` before."""
        self.generation += 1
        places = plan.places
        if len(found.lost):
            places = places[~np.isin(plan.rows, found.lost)]
        self.window.add(keys, found.flowfiles, places.tolist())
        self._position = plan.end
        self.tally.window_bytes += self.window.weigh()
        if self.window:
            self.key = self.window.key

    def take(
        self, limit: int, before: Key | None, loaded: Callable[[list[FlowFile], list[int]], None]
    ) -> list[FlowFile]:
        """Take from the window what comes before a key.

        Args:
            limit: How many at most.
            before: The key; None: any.
            loaded: Told of the FlowFiles and their rows; if it raises, nothing was taken.
        """
        taken, places, key = self.window.first(limit, before)
        if taken:
            loaded(taken, places if self._order is None else self._order[places].tolist())
        self.window.drop_first(len(taken))
        self.key = key
        if not self.window:
            self._clear_window()
        self._leave(len(taken), sum([one.size for one in taken]))
        return taken

    def let_go(self) -> None:
        """Forget the window; it will be read again."""
        if self.window:
            self.key, self._position = self.window.key, self.window.place
        self._clear_window()
        self.generation += 1
        self.close()

    def remaining(self) -> npt.NDArray[np.bool_]:
        """Return for each row of the file whether it is left in this run."""
        left = np.ones(self.file.summary.count, np.bool_)
        taken = self.window.place if self.window else self._position
        left[slice(taken) if self._order is None else self._order[:taken]] = False
        if self._gone is not None:
            left &= ~self._gone
        return left

    def leave(self, rows: RowNumbers, size_bytes: int) -> None:
        """Count rows as gone that are left: expired, dropped, or done with before a restart."""
        self.generation += 1
        self._mark(rows)
        self._leave(len(rows), size_bytes)
        if self.window:
            places = np.array(self.window.places, np.int64)
            ahead = places if self._order is None else self._order[places].astype(np.int64)
            self.window.keep((~np.isin(ahead, rows)).tolist())
            self.tally.window_bytes += self.window.weigh()
            if self.window:
                self.key = self.window.key

    def lose(self, rows: RowNumbers) -> None:
        """Count rows as gone that cannot be read; what they held of the bytes is not known."""
        self._mark(rows)
        share = self.left_bytes * len(rows) // self.left if self.left else 0
        self._leave(len(rows), share)

    def resort(self, rows: RowNumbers, keys: Sequence[Key]) -> None:
        """Read in another order from now on.

        Args:
            rows: All that are left, as they were read.
            keys: Their keys.
        """
        ranked = sorted(range(len(keys)), key=keys.__getitem__)
        left = np.zeros(self.file.summary.count, np.bool_)
        left[rows] = True
        self._gone = ~left
        # What is gone goes to the front, as if it were taken.
        order = np.concatenate((np.flatnonzero(self._gone), rows[ranked]))
        self._order = order.astype(np.int32)
        self._position = len(order) - len(rows)
        self._clear_window()
        self.generation += 1
        self.is_sorted = True
        self.key = keys[ranked[0]] if ranked else None

    def order_anew(self, order: str) -> None:
        """Read in another order: as the file is sorted, or in one that `resort` brings.

        What was taken is remembered row by row.
        """
        self.is_sorted = self.file.summary.order == order
        left = self.remaining()
        self._gone = None if left.all() else ~left
        self._order = None
        self._position = 0
        self._clear_window()
        self.generation += 1
        self.key = None

    def _mark(self, rows: RowNumbers) -> None:
        if self._gone is None:
            self._gone = np.zeros(self.file.summary.count, np.bool_)
        self._gone[rows] = True

    def _leave(self, count: int, size_bytes: int) -> None:
        if count == self.left:
            size_bytes = self.left_bytes  # whatever was estimated on the way is made good here
        self.left -= count
        self.left_bytes -= size_bytes
        self.tally.add(-count, -size_bytes)
        if not self.left:
            self._clear_window()

    def _clear_window(self) -> None:
        self.window.clear()
        self.tally.window_bytes += self.window.weigh()


def rank(run: Run) -> Rank:
    """Return what says which of two runs with a key comes first.

    Of two with the same key it is the one without a window: its key is that of the last one taken,
    which is the first of the other by now if it was given back and swapped out again.
    """
    assert run.key is not None
    return run.key, bool(run.window), run.number


def entries_of(run: Run, reader: SwapReader, keys: KeyMaker) -> Iterator[Entry]:
    """Yield what is left of a sorted run in order, changing nothing; pages are read as needed."""
    yield from run.window.entries()
    position = run.plan(0).end
    while position < run.file.summary.count:
        plan = run.plan(PAGE_ROWS, position)
        found = reader.take(plan.rows)
        yield from zip(keys(found.flowfiles), found.flowfiles, strict=True)
        position = plan.end
