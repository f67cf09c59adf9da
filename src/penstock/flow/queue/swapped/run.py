"""Cursor of a swap file: a sorted sequence of FlowFiles, read in windows.

Owns the remaining rows and their order. Does not own the rule of the order (the store computes
keys), rows read ahead (`window`), nor the file (`home`).

Invariants:

- `key` is never above the key of the next FlowFile: it is that key, or the one of the last FlowFile
  taken; None: unknown.
- Rows before the first one of the window, in the cursor's order, were taken; `gone` marks those
  that left in another way. Therefore discarding the window loses nothing and writes nothing.
- `tally` changes with the remaining rows, and with the window, once a store has the cursor.
- A method that changes a cursor changes all of it or nothing, whatever it raises: steps that may
  raise come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.flow.queue.swapped.window import Entry, Window
from penstock.flow.swap.columns import PAGE_ROWS

if TYPE_CHECKING:
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.prioritizers import Key
    from penstock.flow.queue.swap_store import SwapFile, SwapHome
    from penstock.flow.swap.swap_file import Rows, SwapReader

KeyMaker = Callable[[Sequence["FlowFile"]], list["Key"]]
RowNumbers = npt.NDArray[np.int64]
# Rank of a cursor.
Rank = tuple["Key", bool, int]


@dataclass(slots=True)
class Tally:
    """Counts that change together."""

    count: int = 0
    size_bytes: int = 0

    def add(self, count: int, size_bytes: int) -> None:
        """Add to the counts, or subtract."""
        self.count += count
        self.size_bytes += size_bytes


@dataclass(slots=True)
class RunsTally(Tally):
    """Remaining rows of a store's cursors, and approximate memory of their windows."""

    window_bytes: int = 0


class Plan(NamedTuple):
    """Rows of a cursor to read: their positions in its order, and their numbers in the file."""

    places: RowNumbers
    rows: RowNumbers
    end: int
    generation: int


class Leaving(NamedTuple):
    """Rows that will leave a cursor other than by `take`; see `Run.leaving`."""

    gone: npt.NDArray[np.bool_]
    rows: int
    size_bytes: int
    window: Window
    key: Key | None


class Reordered(NamedTuple):
    """Cursor in another order; see `Run.reordered`."""

    is_sorted: bool
    gone: npt.NDArray[np.bool_] | None
    window: Window


class Run:
    """Swap file, read in order. The queue's mutex is held during every call except `read`.

    Args:
        file: The swap file.
        number: Distinguishes cursors with equal keys.
        tally: Counts remaining rows, and rows read ahead, of all cursors of a store.
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

    @property
    def is_begun(self) -> bool:
        """Return whether part of it is read or taken, so that more is needed soon."""
        return bool(self.window) or self.left < self.file.summary.count

    @property
    def is_read_out(self) -> bool:
        """Return whether no rows follow the window."""
        return self._position >= self.file.summary.count

    def open(self, home: SwapHome) -> SwapReader:
        """Return the reader; open the file if it is not open. Raises as `SwapHome.open`."""
        if self._reader is None:
            self._reader = home.open(self.file)
        return self._reader

    def close(self) -> None:
        """Close the file; it is opened again on demand."""
        if self._reader is not None and not self.is_read_ahead:
            reader, self._reader = self._reader, None
            reader.close()

    def plan(self, count: int, start: int | None = None) -> Plan:
        """Return about `count` rows after the window, or from a position in the cursor's order."""
        start = self._position if start is None else start
        end = start + count
        if self._order is None and count >= PAGE_ROWS:
            end -= end % PAGE_ROWS  # a partly read page is unpacked twice
        end = min(end, self.file.summary.count)
        places = np.arange(start, end)
        rows = places if self._order is None else self._order[start:end].astype(np.int64)
        if self._gone is not None:
            kept = ~self._gone[rows]
            places, rows = places[kept], rows[kept]
        return Plan(places, rows, end, self.generation)

    def attach(self, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        """Add rows that were read after the window; lost rows were passed to `lose` before."""
        places = plan.places
        if len(found.lost):
            places = places[~np.isin(plan.rows, found.lost)]
        window = self.window.with_more(keys, found.flowfiles, places.tolist())
        key = window.key if window else self.key
        self.generation += 1
        self._position, self.key = plan.end, key
        self.tally.window_bytes += window.used_bytes - self.window.used_bytes
        self.window = window

    def take(
        self,
        found: list[FlowFile],
        limit: int,
        before: Key | None,
        loaded: Callable[[list[FlowFile], list[int]], None],
    ) -> int:
        """Take the FlowFiles of the window whose keys are below a key; return their number.

        Args:
            found: Receives them.
            limit: Maximum number.
            before: The key; None: no bound.
            loaded: Called with the FlowFiles and their rows; if it raises, nothing was taken.
        """
        taken, places, key, rest = self.window.first(limit, before)
        count = len(taken)
        # The last FlowFile corrects the earlier estimates.
        last = count == self.left
        size_bytes = self.left_bytes if last else sum([one.size for one in taken])
        there = len(found)
        if taken:
            found += taken
            try:
                loaded(taken, places if self._order is None else self._order[places].tolist())
            except BaseException:
                del found[there:]
                raise
        self.tally.window_bytes += rest.used_bytes - self.window.used_bytes
        self.window, self.key = rest, key
        self.left -= count
        self.left_bytes -= size_bytes
        self.tally.count -= count
        self.tally.size_bytes -= size_bytes
        return count

    def let_go(self) -> None:
        """Discard the window; it will be read again."""
        key, position = self.key, self._position
        if self.window:
            key, position = self.window.key, self.window.place
        nothing = Window()
        self.key, self._position = key, position
        self.tally.window_bytes -= self.window.used_bytes
        self.window = nothing
        self.generation += 1
        self.close()

    def remaining(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the file's rows that remain in this cursor."""
        left = np.ones(self.file.summary.count, np.bool_)
        taken = self.window.place if self.window else self._position
        left[slice(taken) if self._order is None else self._order[:taken]] = False
        if self._gone is not None:
            left &= ~self._gone
        return left

    def leaving(self, rows: RowNumbers, size_bytes: int) -> Leaving:
        """Return the changes that `leave` makes for rows to remove, without making them yet.

        The cursor must be busy in between, so that the swap store can record the removal.
        """
        count = self.file.summary.count
        gone = np.zeros(count, np.bool_) if self._gone is None else self._gone.copy()
        gone[rows] = True
        window, key = self.window, self.key
        if window:
            places = np.array(window.places, np.int64)
            ahead = places if self._order is None else self._order[places].astype(np.int64)
            window = window.only((~np.isin(ahead, rows)).tolist())
            key = window.key if window else key
        if len(rows) == self.left:
            size_bytes, window = self.left_bytes, Window()
        return Leaving(gone, len(rows), size_bytes, window, key)

    def leave(self, leaving: Leaving) -> None:
        """Count rows as removed: expired, dropped, or done before a restart; never raises."""
        self.generation += 1
        self._gone, self.key = leaving.gone, leaving.key
        self.left -= leaving.rows
        self.left_bytes -= leaving.size_bytes
        tally, window = self.tally, leaving.window
        tally.count -= leaving.rows
        tally.size_bytes -= leaving.size_bytes
        tally.window_bytes += window.used_bytes - self.window.used_bytes
        self.window = window

    def lose(self, rows: RowNumbers) -> None:
        """Count unreadable rows as removed; their content bytes are unknown."""
        share = self.left_bytes * len(rows) // self.left if self.left else 0
        self.leave(self.leaving(rows, share))

    def resort(self, rows: RowNumbers, keys: Sequence[Key]) -> None:
        """Read in another order from now on.

        Args:
            rows: All remaining rows, as they were read.
            keys: Their keys.
        """
        ranked = sorted(range(len(keys)), key=keys.__getitem__)
        left = np.zeros(self.file.summary.count, np.bool_)
        left[rows] = True
        gone = ~left
        # Removed rows go to the front, as if they were taken.
        order = np.concatenate((np.flatnonzero(gone), rows[ranked])).astype(np.int32)
        nothing = Window()
        self._gone, self._order = gone, order
        self._position = len(order) - len(rows)
        self.tally.window_bytes -= self.window.used_bytes
        self.window = nothing
        self.generation += 1
        self.is_sorted = True
        self.key = keys[ranked[0]] if ranked else None

    def reordered(self, order: str) -> Reordered:
        """Return the changes that `reorder` makes for another order, without making them yet."""
        left = self.remaining()
        gone = None if left.all() else ~left
        return Reordered(self.file.summary.order == order, gone, Window())

    def reorder(self, reordered: Reordered) -> None:
        """Read in another order: that of the file, or one that `resort` provides.

        Taken rows are remembered individually. Never raises.
        """
        self.is_sorted, self._gone, nothing = reordered
        self._order = None
        self._position = 0
        self.tally.window_bytes -= self.window.used_bytes
        self.window = nothing
        self.generation += 1
        self.key = None


def rank(run: Run) -> Rank:
    """Return the rank of a cursor with a key, for comparison with others.

    Of two with the same key, the one without a window comes first: its key is that of the last
    FlowFile taken. If that one was given back and swapped out again, it is now the first of the
    other cursor.
    """
    assert run.key is not None
    return run.key, bool(run.window), run.number


def entries_of(run: Run, reader: SwapReader, keys: KeyMaker) -> Iterator[Entry]:
    """Yield the remaining entries of a sorted cursor, without changes; reads pages on demand."""
    yield from run.window.entries()
    position = run.plan(0).end
    while position < run.file.summary.count:
        plan = run.plan(PAGE_ROWS, position)
        found = reader.take(plan.rows)
        yield from zip(keys(found.flowfiles), found.flowfiles, strict=True)
        position = plan.end
