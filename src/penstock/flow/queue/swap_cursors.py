"""Cursors over the swap files of a queue, read in key order through bounded windows.

`SwapCursor` reads one swap file as a sorted sequence and owns which rows are left and their
order. `SwapCursors` ranks the cursors by their next key and retries files that could not be
read. `SwapWindow` is an immutable list of the next FlowFiles of a cursor, read ahead into
memory, with their keys and positions. `SwapWindows` owns how many rows are read at once, which
windows are dropped when their total exceeds the bound, sorting a file into another order, and
the loss of rows that cannot be read. Does not own the sort order (`ordered_store`) or the files
(`swap_store`).

Invariants:

- All calls are made under the queue's mutex, except the reading of a file.
- The key of a cursor is never greater than the key of its next FlowFile. A cursor needs no
  window until its key is the least of all.
- Rows before the window were taken; rows that left in another way are recorded separately.
  Dropping a window therefore loses and writes nothing.
- All windows together stay within their bound, except for a few rows of each open cursor.
- A missing or damaged file loses only the damaged rows. A file that is temporarily unreadable
  keeps its rows, is retried after a pause, and blocks nothing.
- A change of a cursor is complete or not made, even if it raises. A cursor with rows left is always
  ranked, unread or waiting for a retry.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import PriorityKey
from penstock.flow.queue.heap_budget import heap_bytes
from penstock.flow.queue.swap_store import SwapFileInfo, SwapStore
from penstock.flow.swap.swap_file import Rows
from penstock.flow.swap.swap_pages import PAGE_ROWS

if TYPE_CHECKING:
    from penstock.flow.swap.swap_file import SwapReader


Entry = tuple["PriorityKey", "FlowFile"]


class FromWindow(NamedTuple):
    """First FlowFiles of a window.

    Attributes:
        flowfiles: The FlowFiles, in order.
        positions: Their positions in the cursor's order.
        key: Key of the first one after them; if there is none, of the last of them.
        rest: The window without them.
    """

    flowfiles: list[FlowFile]
    positions: list[int]
    key: PriorityKey
    rest: SwapWindow


class SwapWindow:
    """Immutable window of FlowFiles in order; its length is the number of remaining FlowFiles.

    Args:
        keys: The keys.
        flowfiles: The FlowFiles.
        positions: Their positions in the cursor's order.

    Attributes:
        used_bytes: Approximate memory that it takes.
    """

    __slots__ = ("_at", "_flowfiles", "_keys", "_positions", "used_bytes")

    def __init__(
        self,
        keys: Sequence[PriorityKey] = (),
        flowfiles: Sequence[FlowFile] = (),
        positions: Sequence[int] = (),
    ) -> None:
        self._keys = keys
        self._flowfiles = flowfiles
        self._positions = positions
        self._at = 0  # earlier ones were taken
        self.used_bytes = heap_bytes(flowfiles) if flowfiles else 0

    def __len__(self) -> int:
        return len(self._keys) - self._at

    @property
    def key(self) -> PriorityKey:
        """Return the key of the first FlowFile; one must exist."""
        return self._keys[self._at]

    @property
    def position(self) -> int:
        """Return the position of the first FlowFile; one must exist."""
        return self._positions[self._at]

    @property
    def positions(self) -> Sequence[int]:
        """Return the positions of all."""
        return self._positions[self._at :]

    def entries(self) -> list[Entry]:
        """Return all with their keys."""
        return list(zip(self._keys[self._at :], self._flowfiles[self._at :], strict=True))

    def with_more(
        self, keys: Iterable[PriorityKey], flowfiles: Iterable[FlowFile], positions: Iterable[int]
    ) -> SwapWindow:
        """Return a window of these and of FlowFiles that follow them."""
        at = self._at
        return SwapWindow(
            [*self._keys[at:], *keys],
            [*self._flowfiles[at:], *flowfiles],
            [*self._positions[at:], *positions],
        )

    def first(self, limit: int, before: PriorityKey | None) -> FromWindow:
        """Return up to `limit` FlowFiles from the front, with keys below `before`."""
        keys, start = self._keys, self._at
        end = len(keys) if before is None else bisect_left(keys, before, start)
        end = min(end, start + limit)
        key = keys[min(end, len(keys) - 1)]
        rest = SwapWindow()
        if end < len(keys):
            rest._keys, rest._flowfiles, rest._positions = keys, self._flowfiles, self._positions
            rest._at, rest.used_bytes = end, self.used_bytes
        taken = list(self._flowfiles[start:end])
        return FromWindow(taken, list(self._positions[start:end]), key, rest)

    def only(self, kept: Sequence[bool]) -> SwapWindow:
        """Return a window of selected FlowFiles: for each, whether it stays."""
        at = self._at
        return SwapWindow(
            list(compress(self._keys[at:], kept)),
            list(compress(self._flowfiles[at:], kept)),
            list(compress(self._positions[at:], kept)),
        )


KeyMaker = Callable[[Sequence["FlowFile"]], list["PriorityKey"]]
RowNumbers = npt.NDArray[np.int64]
# Rank of a cursor.
Rank = tuple["PriorityKey", bool, int]


@dataclass(slots=True)
class SwapTally:
    """Counts that change together."""

    count: int = 0
    size_bytes: int = 0

    def add(self, count: int, size_bytes: int) -> None:
        """Add to the counts, or subtract."""
        self.count += count
        self.size_bytes += size_bytes


@dataclass(slots=True)
class CursorsTally(SwapTally):
    """Remaining rows of a store's cursors, and approximate memory of their windows."""

    window_bytes: int = 0


class SwapPlan(NamedTuple):
    """Rows of a cursor to read: their positions in its order, and their numbers in the file."""

    positions: RowNumbers
    rows: RowNumbers
    end: int
    generation: int


class RowRemoval(NamedTuple):
    """Rows that will leave a cursor other than by `take`; see `SwapCursor.removal`."""

    gone: npt.NDArray[np.bool_]
    rows: int
    size_bytes: int
    window: SwapWindow
    key: PriorityKey | None


class ReorderedCursor(NamedTuple):
    """Cursor in another order; see `SwapCursor.reordered`."""

    is_sorted: bool
    gone: npt.NDArray[np.bool_] | None
    window: SwapWindow


class SwapCursor:
    """Swap file, read in order. The queue's mutex is held during every call except `read`.

    Args:
        file: The swap file.
        number: Distinguishes cursors with equal keys.
        tally: Counts remaining rows, and rows read ahead, of all cursors of a store.
    """

    def __init__(self, file: SwapFileInfo, number: int, tally: CursorsTally) -> None:
        self.file = file
        self.number = number
        self.tally = tally
        self.key: PriorityKey | None = None
        self.is_sorted = True
        self.left = file.summary.count
        self.left_bytes = file.summary.size_bytes
        self.min_entry_ms = file.summary.min_entry_ms
        self.last_due_ms: int | None = None
        self.is_busy = False
        self.is_read_ahead = False
        self.retry_at_s = 0.0
        self.generation = 0
        self.window = SwapWindow()
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

    def open(self, swap_store: SwapStore) -> SwapReader:
        """Return the reader; open the file if it is not open. Raises as `SwapStore.open`."""
        if self._reader is None:
            self._reader = swap_store.open(self.file)
        return self._reader

    def close(self) -> None:
        """Close the file; it is opened again on demand."""
        if self._reader is not None and not self.is_read_ahead:
            reader, self._reader = self._reader, None
            reader.close()

    def plan(self, count: int, start: int | None = None) -> SwapPlan:
        """Return about `count` rows after the window, or from a position in the cursor's order."""
        start = self._position if start is None else start
        end = start + count
        if self._order is None and count >= PAGE_ROWS:
            end -= end % PAGE_ROWS  # a partly read page is unpacked twice
        end = min(end, self.file.summary.count)
        positions = np.arange(start, end)
        rows = positions if self._order is None else self._order[start:end].astype(np.int64)
        if self._gone is not None:
            kept = ~self._gone[rows]
            positions, rows = positions[kept], rows[kept]
        return SwapPlan(positions, rows, end, self.generation)

    def attach(self, plan: SwapPlan, found: Rows, keys: Sequence[PriorityKey]) -> None:
        """Add rows that were read after the window; lost rows were passed to `lose` before."""
        positions = plan.positions
        if len(found.lost):
            positions = positions[~np.isin(plan.rows, found.lost)]
        window = self.window.with_more(keys, found.flowfiles, positions.tolist())
        key = window.key if window else self.key
        self.generation += 1
        self._position, self.key = plan.end, key
        self.tally.window_bytes += window.used_bytes - self.window.used_bytes
        self.window = window

    def take(
        self,
        found: list[FlowFile],
        limit: int,
        before: PriorityKey | None,
        loaded: Callable[[list[FlowFile], list[int]], None],
    ) -> int:
        """Take the FlowFiles of the window whose keys are below a key; return their number.

        Args:
            found: Receives them.
            limit: Maximum number.
            before: The key; None: no bound.
            loaded: Called with the FlowFiles and their rows; if it raises, nothing was taken.
        """
        taken, positions, key, rest = self.window.first(limit, before)
        count = len(taken)
        # The last FlowFile corrects the earlier estimates.
        last = count == self.left
        size_bytes = self.left_bytes if last else sum([one.size for one in taken])
        there = len(found)
        if taken:
            found += taken
            try:
                loaded(taken, positions if self._order is None else self._order[positions].tolist())
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
            key, position = self.window.key, self.window.position
        nothing = SwapWindow()
        self.key, self._position = key, position
        self.tally.window_bytes -= self.window.used_bytes
        self.window = nothing
        self.generation += 1
        self.close()

    def remaining(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the file's rows that remain in this cursor."""
        left = np.ones(self.file.summary.count, np.bool_)
        taken = self.window.position if self.window else self._position
        left[slice(taken) if self._order is None else self._order[:taken]] = False
        if self._gone is not None:
            left &= ~self._gone
        return left

    def removal(self, rows: RowNumbers, size_bytes: int) -> RowRemoval:
        """Return the changes that `leave` makes for rows to remove, without making them yet.

        The cursor must be busy in between, so that the swap store can record the removal.
        """
        count = self.file.summary.count
        gone = np.zeros(count, np.bool_) if self._gone is None else self._gone.copy()
        gone[rows] = True
        window, key = self.window, self.key
        if window:
            positions = np.array(window.positions, np.int64)
            ahead = positions if self._order is None else self._order[positions].astype(np.int64)
            window = window.only((~np.isin(ahead, rows)).tolist())
            key = window.key if window else key
        if len(rows) == self.left:
            size_bytes, window = self.left_bytes, SwapWindow()
        return RowRemoval(gone, len(rows), size_bytes, window, key)

    def leave(self, removal: RowRemoval) -> None:
        """Count rows as removed: expired, dropped, or done before a restart; never raises."""
        self.generation += 1
        self._gone, self.key = removal.gone, removal.key
        self.left -= removal.rows
        self.left_bytes -= removal.size_bytes
        tally, window = self.tally, removal.window
        tally.count -= removal.rows
        tally.size_bytes -= removal.size_bytes
        tally.window_bytes += window.used_bytes - self.window.used_bytes
        self.window = window

    def lose(self, rows: RowNumbers) -> None:
        """Count unreadable rows as removed; their content bytes are unknown."""
        share = self.left_bytes * len(rows) // self.left if self.left else 0
        self.leave(self.removal(rows, share))

    def resort(self, rows: RowNumbers, keys: Sequence[PriorityKey]) -> None:
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
        nothing = SwapWindow()
        self._gone, self._order = gone, order
        self._position = len(order) - len(rows)
        self.tally.window_bytes -= self.window.used_bytes
        self.window = nothing
        self.generation += 1
        self.is_sorted = True
        self.key = keys[ranked[0]] if ranked else None

    def reordered(self, order: str) -> ReorderedCursor:
        """Return the changes that `reorder` makes for another order, without making them yet."""
        left = self.remaining()
        gone = None if left.all() else ~left
        return ReorderedCursor(self.file.summary.order == order, gone, SwapWindow())

    def reorder(self, reordered: ReorderedCursor) -> None:
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


def rank(cursor: SwapCursor) -> Rank:
    """Return the rank of a cursor with a key, for comparison with others.

    If two have the same key, the one without a window comes first: its key is that of the last
    FlowFile taken. If that one was given back and swapped out again, it is now the first of the
    other cursor.
    """
    assert cursor.key is not None
    return cursor.key, bool(cursor.window), cursor.number


def entries_of(cursor: SwapCursor, reader: SwapReader, keys: KeyMaker) -> Iterator[Entry]:
    """Yield the remaining entries of a sorted cursor, without changes; reads pages on demand."""
    yield from cursor.window.entries()
    position = cursor.plan(0).end
    while position < cursor.file.summary.count:
        plan = cursor.plan(PAGE_ROWS, position)
        found = reader.take(plan.rows)
        yield from zip(keys(found.flowfiles), found.flowfiles, strict=True)
        position = plan.end


WINDOW_ROWS_MIN: Final = 32
WINDOW_ROWS_MAX: Final = 2_048


@dataclass(frozen=True, slots=True)
class SwapDamage:
    """Unreadable rows of a swap file, to be reported to the swap store without the mutex."""

    file: SwapFileInfo
    rows: RowNumbers
    reason: str


class SwapWindows:
    """Reads rows of cursors. The queue's mutex is held during every call.

    Methods for one cursor also receive the other open ones, because they share the bound.

    Args:
        keys: Computes the keys of FlowFiles.
        swap_store: Swap store.

    Attributes:
        keys: Keys of the current order.
        rows: Maximum number of rows in memory, for all windows together.
        damages: Damage found since the last report.
    """

    def __init__(self, keys: KeyMaker, swap_store: SwapStore) -> None:
        self.keys = keys
        self.rows = 0
        self.damages: list[SwapDamage] = []
        self._swap_store = swap_store

    def read(self, cursor: SwapCursor, others: Sequence[SwapCursor]) -> None:
        """Read a window of a cursor, in order; if nothing can be read, no rows remain.

        Raises:
            Unavailable: It cannot be read now; all rows remain.
        """
        try:
            if not cursor.is_sorted:
                self._sort(cursor)
            self._make_room(cursor, others)
            while cursor.left and not cursor.window:
                plan = cursor.plan(self._size(others))
                found = cursor.open(self._swap_store).take(plan.rows)
                self._add(cursor, plan, found, self.keys(found.flowfiles))
        except (NotFound, CorruptData) as error:
            self._lose_rest(cursor, str(error))
        except BaseException:
            cursor.let_go()
            raise

    def take(
        self, cursor: SwapCursor, found: list[FlowFile], limit: int, before: PriorityKey | None
    ) -> int:
        """Take the FlowFiles of a window whose keys are below a key; return their number."""

        def loaded(taken: list[FlowFile], rows: list[int]) -> None:
            self._swap_store.loaded(cursor.file, rows, [one.id for one in taken])

        return cursor.take(found, limit, before, loaded)

    def next_plan(self, cursor: SwapCursor, ranked: Sequence[SwapCursor]) -> SwapPlan | None:
        """Return the rows to read after a window, if it is time to read ahead."""
        rows = self._size(ranked)
        if cursor.is_busy or cursor.is_read_ahead or cursor.is_read_out:
            return None
        if not 0 < len(cursor.window) <= rows // 2:
            return None
        return cursor.plan(rows)

    def attach(
        self, cursor: SwapCursor, plan: SwapPlan, found: Rows, keys: Sequence[PriorityKey]
    ) -> bool:
        """Add rows that were read without the mutex; return False if the cursor changed."""
        if plan.generation != cursor.generation:
            return False
        self._add(cursor, plan, found, keys)
        return True

    def entries(self, cursor: SwapCursor) -> Iterator[Entry]:
        """Yield the remaining entries of a sorted cursor in order, as far as it can be read."""
        with suppress(PenstockError):  # a listing ignores damage; the next poll handles it
            yield from entries_of(cursor, cursor.open(self._swap_store), self.keys)

    def _sort(self, cursor: SwapCursor) -> None:
        """Read all remaining rows of a cursor to sort it in this order."""
        rows = cursor.remaining().nonzero()[0]
        found = cursor.open(self._swap_store).take(rows)
        self._lose(cursor, found.lost)
        cursor.resort(found.numbers, self.keys(found.flowfiles))

    def _add(
        self, cursor: SwapCursor, plan: SwapPlan, found: Rows, keys: Sequence[PriorityKey]
    ) -> None:
        self._lose(cursor, found.lost)
        cursor.attach(plan, found, keys)
        if not cursor.window and cursor.is_read_out and cursor.left:
            self._lose_rest(cursor, "it holds fewer rows than its summary says")

    def _lose(self, cursor: SwapCursor, rows: RowNumbers) -> None:
        if len(rows):
            self._lose_for(cursor, rows, "pages have wrong checksums")

    def _lose_rest(self, cursor: SwapCursor, reason: str) -> None:
        self._lose_for(cursor, cursor.remaining().nonzero()[0], reason)
        cursor.let_go()

    def _lose_for(self, cursor: SwapCursor, rows: RowNumbers, reason: str) -> None:
        self.damages.append(SwapDamage(cursor.file, rows, reason))
        try:
            cursor.lose(rows)
        except BaseException:
            self.damages.pop()
            raise

    def _size(self, others: Iterable[SwapCursor]) -> int:
        """Return the number of rows to read at once, to keep all windows within their bound."""
        begun = sum(1 for cursor in others if cursor.is_begun) + 1
        return max(WINDOW_ROWS_MIN, min(WINDOW_ROWS_MAX, self.rows // begun))

    def _make_room(self, wanted: SwapCursor, others: Sequence[SwapCursor]) -> None:
        """Discard the windows that are needed last, if all together are too large."""
        rest = self.rows - self._size(others)
        total = sum(len(cursor.window) for cursor in others)
        if total <= rest:
            return
        for cursor in sorted(others, key=rank, reverse=True):
            if cursor is not wanted and _may_go(cursor):
                total -= len(cursor.window)
                cursor.let_go()
                if total + self._size(others) <= self.rows:
                    return


def let_windows_go(cursors: Iterable[SwapCursor]) -> int:
    """Discard all windows; return their number of rows."""
    total = 0
    for cursor in cursors:
        if _may_go(cursor):
            total += len(cursor.window)
            cursor.let_go()
    return total


def _may_go(cursor: SwapCursor) -> bool:
    return bool(cursor.window) and not (cursor.is_busy or cursor.is_read_ahead)


RETRY_S: Final = 1.0

_Ranked = tuple[Rank, SwapCursor]


def _ranked(cursor: SwapCursor) -> _Ranked:
    return rank(cursor), cursor


class SwapCursors:
    """Swap files in one order. The queue's mutex is held during every call.

    Args:
        order: Name of the order in swap files.
        windows: Reads them.
        clock: For the retry of a file that could not be read.

    Attributes:
        swapped: Remaining rows of all cursors.
    """

    def __init__(self, order: str, windows: SwapWindows, clock: Clock) -> None:
        self.swapped = CursorsTally()
        self._order = order
        self._windows = windows
        self._clock = clock
        self._ranked: list[_Ranked] = []
        self._unread: list[SwapCursor] = []
        self._resting: list[SwapCursor] = []
        self._number = 0

    def __iter__(self) -> Iterator[SwapCursor]:
        return iter([*self.ranked(), *self._unread, *self._resting])

    def __len__(self) -> int:
        return len(self._ranked) + len(self._unread) + len(self._resting)

    @property
    def is_unread(self) -> bool:
        """Return whether a cursor's head is unknown (it is being swept, or was just added)."""
        return bool(self._unread)

    @property
    def is_at_rest(self) -> bool:
        """Return whether no cursor can be read now, or there is none."""
        return not (self._ranked or self._unread)

    @property
    def retry_at_s(self) -> float | None:
        """Return when an unreadable cursor is retried, monotonic; None if there is none."""
        return min((cursor.retry_at_s for cursor in self._resting), default=None)

    # -- adding, changing and removing cursors

    def add(self, file: SwapFileInfo) -> SwapCursor:
        """Add a swap file whose first key is unknown."""
        cursor = self._new(file)
        cursor.is_sorted = file.summary.order == self._order
        self._unread.append(cursor)
        self.swapped.count += cursor.left
        self.swapped.size_bytes += cursor.left_bytes
        return cursor

    def add_written(self, file: SwapFileInfo, key: PriorityKey, last_due_ms: int) -> None:
        """Add a swap file that was just written; its first key is known."""
        cursor = self._new(file)
        cursor.key = key
        cursor.last_due_ms = last_due_ms
        self._rank(cursor)
        self.swapped.count += cursor.left
        self.swapped.size_bytes += cursor.left_bytes

    def adopt(self, cursor: SwapCursor, other: SwapCursors) -> None:
        """Move a ranked cursor here from another store with another order."""
        reordered = cursor.reordered(self._order)
        rest = other._ranked_but(cursor)
        self._unread.append(cursor)
        other._ranked = rest
        left, tally = cursor.left, other.swapped
        tally.count -= left
        tally.size_bytes -= cursor.left_bytes
        tally.window_bytes -= cursor.window.used_bytes
        cursor.tally = tally = self.swapped
        tally.count += left
        tally.size_bytes += cursor.left_bytes
        tally.window_bytes += cursor.window.used_bytes
        self._number += 1
        cursor.number = self._number
        cursor.reorder(reordered)

    def changed(self, cursor: SwapCursor) -> None:
        """Rank a cursor again after rows of it were removed; remove it if no rows are left."""
        if cursor in self._unread or cursor in self._resting:
            if not cursor.left:
                for cursors in (self._unread, self._resting):
                    with suppress(ValueError):
                        cursors.remove(cursor)
        else:
            ranked = self._ranked_but(cursor)
            if cursor.left:
                heapq.heappush(ranked, _ranked(cursor))
            self._ranked = ranked
        if not cursor.left:
            cursor.close()

    def reorder(self, order: str) -> None:
        """Change the order; cursors are sorted when they are read next."""
        unread = [*self._unread, *self.ranked()]
        reordered = [(cursor, cursor.reordered(order)) for cursor in (*unread, *self._resting)]
        self._order, self._unread, self._ranked = order, unread, []
        for cursor, how in reordered:
            cursor.reorder(how)

    def _new(self, file: SwapFileInfo) -> SwapCursor:
        self._number += 1
        return SwapCursor(file, self._number, self.swapped)

    def _rank(self, cursor: SwapCursor) -> None:
        """Rank an unranked cursor; if a comparison raises, it stays unranked."""
        entry = _ranked(cursor)
        try:
            heapq.heappush(self._ranked, entry)
        except BaseException:
            self._ranked = [one for one in self._ranked if one is not entry]
            heapq.heapify(self._ranked)
            raise

    def _ranked_but(self, cursor: SwapCursor) -> list[_Ranked]:
        """Return a heap of the cursors whose head is known, except one."""
        ranked = [one for one in self._ranked if one[-1] is not cursor]
        heapq.heapify(ranked)
        return ranked

    # -- taking

    def head(self) -> PriorityKey | None:
        """Return the lowest key known: that of the next FlowFile, or lower; None: no cursor."""
        return self._ranked[0][0][0] if self._ranked else None

    def ranked(self) -> list[SwapCursor]:
        """Return the cursors whose head is known; the first one in order comes first."""
        return [cursor for _, cursor in self._ranked]

    def first(self) -> SwapCursor:
        """Return the first cursor; one must exist."""
        return self._ranked[0][-1]

    def take(self, found: list[FlowFile], limit: int, before: PriorityKey | None) -> int:
        """Take from the first cursor's window the FlowFiles before a key and before other cursors.

        Args:
            found: Receives them, even if closing a file raises afterwards.
            limit: Maximum number.
            before: The key; None: no bound.

        Returns:
            Number of FlowFiles taken.
        """
        cursor = self.first()
        stops = [ranked[0][0] for ranked in self._ranked[1:3]]
        stops += [] if before is None else [before]
        count = self._windows.take(cursor, found, limit, min(stops, default=None))
        # If this raises, its old rank is too early, so that it is read and ranked again.
        if cursor.left:
            heapq.heapreplace(self._ranked, _ranked(cursor))
        else:
            heapq.heappop(self._ranked)
            cursor.close()
        return count

    # -- reading

    def resolve_one(self) -> bool:
        """Read the head of one cursor with an unknown head; return False if none can be read."""
        if self._resting:
            now_s = self._clock.monotonic_s()
            resting = [cursor for cursor in self._resting if cursor.retry_at_s > now_s]
            self._unread += [cursor for cursor in self._resting if cursor.retry_at_s <= now_s]
            self._resting = resting
        for cursor in self._unread:
            if not cursor.is_busy:
                self._read(cursor)
                if cursor.left and self._unread:
                    cursor.let_go()  # its head is known; most cursors are not needed soon
                return True
        return False

    def resolve_first(self) -> bool:
        """Read a window of the first cursor unless it has one; return whether one was read."""
        cursor = self.first()
        if cursor.window or cursor.is_busy or cursor.is_read_ahead:
            return False
        self._unread.append(cursor)
        heapq.heappop(self._ranked)
        self._read(cursor)
        return True

    def _read(self, cursor: SwapCursor) -> None:
        """Read a window of an unread cursor and rank it; it may also end, or wait for a retry.

        Any other exception is passed on, and the cursor stays unread.
        """
        try:
            self._windows.read(cursor, self.ranked())
        except PenstockError:
            cursor.retry_at_s = self._clock.monotonic_s() + RETRY_S
            self._resting.append(cursor)
        else:
            if cursor.left:
                self._rank(cursor)
        self._unread.remove(cursor)
        if not cursor.left:
            cursor.close()
