"""Ordered store of a queue's FlowFiles, in memory and in swap files.

`OrderedStore` merges: the next FlowFile is the smaller one of the head of the memory part and
the head of the swap files (`swap_cursors`). `SortedBuffer` is the memory part: `SortedEntries`, an
unsorted overflow, and FlowFiles that are being written to a swap file; it also estimates their
memory. `SortedEntries` orders entries by key: entries that arrive in order are appended to a
sorted list, late ones go into a heap that is never larger than the list when an entry is taken.
Does not own sizes, penalties or when to swap out (`swap_policy`).

Invariants:

- All calls are made under the queue's mutex.
- A FlowFile that leaves a swap file is reported to the `SwapStore` under that mutex, so it
  cannot be removed before the store has its new location.
- If the next FlowFile is being written or swept, the merge stops: no later one is returned
  first.
- The least key of the overflow is known. The overflow is sorted when it is written, or when that
  key is the least of all.
- A FlowFile leaves a buffer only when it is in the caller's list. `put`, `remove` and `reorder`
  change everything or nothing, even if they raise.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import PriorityKey
from penstock.flow.queue.heap_budget import heap_bytes
from penstock.flow.queue.swap_cursors import Entry, KeyMaker, SwapCursors, SwapWindows
from penstock.flow.queue.swap_store import SwapFileInfo, SwapStore
from penstock.flow.swap.swap_file import SwapSummary

_KEY: Final = itemgetter(0)
_LATE_SHARE: Final = 8  # late entries are merged at once if they exceed this part


class SortedEntries:
    """Entries with distinct keys. The queue's mutex is held during every call."""

    __slots__ = ("_late", "_sorted")

    def __init__(self) -> None:
        self._sorted: deque[Entry] = deque()
        self._late: list[Entry] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries, in no order."""
        return chain(self._sorted, self._late)

    def head(self) -> PriorityKey | None:
        """Return the lowest key; None if the buffer is empty."""
        if not self._late:
            return self._sorted[0][0] if self._sorted else None
        if not self._sorted:
            return self._late[0][0]
        return min(self._sorted[0][0], self._late[0][0])

    def put(self, entries: list[Entry]) -> None:
        """Add at least one entry; the given list is sorted in place."""
        entries.sort(key=_KEY)
        line, late = self._sorted, self._late
        if not line or line[-1][0] < entries[0][0]:
            count = len(line)
            try:
                line += entries
            except BaseException:
                while len(line) > count:
                    line.pop()
                raise
        elif len(entries) > 1 and _LATE_SHARE * len(entries) > len(line):
            self._sort_in(entries)
        else:
            try:
                for entry in entries:
                    heapq.heappush(late, entry)
            except BaseException:
                added = set(map(id, entries))
                self._late = [entry for entry in late if id(entry) not in added]
                heapq.heapify(self._late)
                raise

    def take(self, found: list[FlowFile], limit: int, before: PriorityKey | None) -> None:
        """Take the first FlowFiles whose keys are below a key.

        Args:
            found: Receives them, and keeps them even if this raises.
            limit: Maximum length of `found` at the end.
            before: The key; None: no bound.
        """
        if len(self._late) > len(self._sorted):
            self._sort_in(())
        line, late = self._sorted, self._late
        while late and len(found) < limit:
            is_late = not line or late[0][0] < line[0][0]
            first = late[0] if is_late else line[0]
            if before is not None and not first[0] < before:
                return
            found.append(first[1])
            if is_late:
                heapq.heappop(late)
            else:
                line.popleft()
        self._take_sorted(found, limit, before)

    def last(self, count: int) -> list[Entry]:
        """Return the last entries, in order; `drop_last` removes them."""
        self._sort_in(())
        last = list(islice(reversed(self._sorted), count))
        last.reverse()
        return last

    def drop_last(self, count: int) -> None:
        """Remove the last entries, which `last` has just returned; never raises."""
        drop = self._sorted.pop
        for _ in range(count):
            drop()

    def remove(self, ids: set[int], gone: list[FlowFile]) -> None:
        """Remove FlowFiles by their ids.

        Args:
            ids: The ids.
            gone: Receives the removed FlowFiles.
        """
        taken = [one for _, one in self if one.id in ids]
        if taken:
            rest = deque([entry for entry in self._sorted if entry[1].id not in ids])
            late = [entry for entry in self._late if entry[1].id not in ids]
            heapq.heapify(late)
            gone += taken
            self._sorted, self._late = rest, late

    def _take_sorted(self, found: list[FlowFile], limit: int, before: PriorityKey | None) -> None:
        line = self._sorted
        drop = line.popleft
        if before is None or (line and line[-1][0] < before):
            count = len(found)
            if line and limit - count == 1:
                found.append(line[0][1])
                drop()
                return
            found += [one for _, one in islice(line, max(0, limit - count))]
            for _ in range(len(found) - count):
                drop()
            return
        while len(found) < limit and line and line[0][0] < before:
            found.append(line[0][1])
            drop()

    def _sort_in(self, entries: list[Entry] | tuple[()]) -> None:
        if self._late or entries:
            # The sort detects sorted parts of its input.
            self._sorted = deque(sorted(chain(self._sorted, self._late, entries), key=_KEY))
            self._late = []


class SortedBuffer:
    """FlowFiles in memory, in one order. The queue's mutex is held during every call.

    Attributes:
        line: Sorted FlowFiles.
        size_bytes: Their content.
        used_bytes: Approximate memory that they take.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.used_bytes = 0
        self.line = SortedEntries()
        self._overflow: list[Entry] = []
        self._overflow_head: PriorityKey | None = None
        self._writing: list[Entry] = []

    def __len__(self) -> int:
        return len(self.line) + len(self._overflow) + len(self._writing)

    @property
    def movable_count(self) -> int:
        """Return the number of FlowFiles that are not being written."""
        return len(self.line) + len(self._overflow)

    @property
    def is_writing(self) -> bool:
        """Return whether some FlowFiles are being written."""
        return bool(self._writing)

    @property
    def is_stopped(self) -> bool:
        """Return whether the first FlowFile is being written."""
        return bool(self._writing) and self._writing[0][0] == self.head()

    def head(self) -> PriorityKey | None:
        """Return the lowest key; None if there is none."""
        head = least(self.line.head(), self._overflow_head)
        return least(head, self._writing[0][0]) if self._writing else head

    def flowfiles(self) -> list[FlowFile]:
        """Return all FlowFiles, in no order."""
        return [one for _, one in chain(self.line, self._overflow, self._writing)]

    def in_order(self) -> list[Entry]:
        """Return all entries, sorted."""
        return sorted(chain(self.line, self._overflow, self._writing))

    def put(self, keys: list[PriorityKey], flowfiles: Sequence[FlowFile], *, is_much: bool) -> None:
        """Add FlowFiles.

        Args:
            keys: Their keys.
            flowfiles: At least one FlowFile.
            is_much: There are already so many that these will probably be written before they are
                taken.
        """
        entries = list(zip(keys, flowfiles, strict=True))
        size_bytes = self.size_bytes + sum([one.size for one in flowfiles])
        used_bytes = self.used_bytes + heap_bytes(flowfiles)
        if len(keys) > 1 and (is_much or self._overflow):
            head = least(self._overflow_head, min(keys))
            self._overflow += entries
            self._overflow_head = head
        else:
            self.line.put(entries)
        self.size_bytes, self.used_bytes = size_bytes, used_bytes

    def take(self, found: list[FlowFile], limit: int, before: PriorityKey | None) -> int:
        """Take the first FlowFiles whose keys are below a key, until `found` is full.

        Args:
            found: Receives them, and keeps them even if this raises.
            limit: Maximum length of `found` at the end.
            before: The key; None: no bound.

        Returns:
            Number of FlowFiles taken.
        """
        if self._overflow_head is not None and self._overflow_head == self.head():
            self._take_overflow_in()
        before = least(before, self._overflow_head)
        before = least(before, self._writing[0][0] if self._writing else None)
        there = len(found)
        try:
            self.line.take(found, limit, before)
            self._forget(found[there:])
        except BaseException:
            self._recount()
            raise
        return len(found) - there

    def remove(self, ids: set[int], gone: list[FlowFile]) -> None:
        """Remove FlowFiles by their ids, except those being written.

        Args:
            ids: The ids.
            gone: Receives them, and keeps them even if this raises.
        """
        self._take_overflow_in()
        there = len(gone)
        try:
            self.line.remove(ids, gone)
            self._forget(gone[there:])
        except BaseException:
            self._recount()
            raise

    def in_other_order(self, keys: KeyMaker) -> SortedEntries:
        """Return a buffer of all FlowFiles in another order; nothing may be in a write."""
        self._take_overflow_in()
        flowfiles = [one for _, one in self.line]
        line = SortedEntries()
        if flowfiles:
            line.put(list(zip(keys(flowfiles), flowfiles, strict=True)))
        return line

    # -- swapping out: `cut`, then the write without the mutex, then `written` or `not_written`

    def cut(self, count: int) -> list[FlowFile]:
        """Set FlowFiles apart for a write: the last ones of the overflow, or of the buffer."""
        overflow = self._overflow
        if len(overflow) < count:
            self._take_overflow_in()
            entries = self.line.last(count)
            flowfiles = [one for _, one in entries]
            self.line.drop_last(len(entries))
        else:
            overflow.sort(key=_KEY)
            entries = overflow[-count:]
            flowfiles = [one for _, one in entries]
            self._overflow = overflow[:-count]
            if not self._overflow:
                self._overflow_head = None
        self._writing = entries
        return flowfiles

    def ends(self) -> tuple[Entry, Entry]:
        """Return the first and the last entry that was set apart."""
        return self._writing[0], self._writing[-1]

    def written(self, summary: SwapSummary) -> None:
        """Remove the FlowFiles that were set apart: they are in a file now."""
        used_bytes = self.used_bytes - self.used_bytes * summary.count // len(self)
        self._writing, self.size_bytes = [], self.size_bytes - summary.size_bytes
        self.used_bytes = used_bytes

    def not_written(self) -> None:
        """Put the FlowFiles that were set apart back."""
        nothing: list[Entry] = []
        if self._writing:
            self.line.put(self._writing)
        self._writing = nothing

    def _forget(self, flowfiles: list[FlowFile]) -> None:
        """Subtract FlowFiles from the counts, with the average memory per FlowFile."""
        if count := len(flowfiles):
            size_bytes = self.size_bytes - sum([one.size for one in flowfiles])
            self.used_bytes -= self.used_bytes * count // (len(self) + count)
            self.size_bytes = size_bytes

    def _recount(self) -> None:
        """Recount everything, after an exception between a change and its count."""
        flowfiles = self.flowfiles()
        size_bytes = sum([one.size for one in flowfiles])
        self.size_bytes, self.used_bytes = size_bytes, heap_bytes(flowfiles)

    def _take_overflow_in(self) -> None:
        """Move the overflow into the buffer, which may then exceed its share."""
        if self._overflow:
            nothing: list[Entry] = []
            self.line.put(self._overflow)
            self._overflow = nothing
        self._overflow_head = None


def least(one: PriorityKey | None, other: PriorityKey | None) -> PriorityKey | None:
    """Return the lower key; None stands for no key."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


class OrderedStore:
    """FlowFiles in one order. The queue's mutex is held during every call.

    Args:
        keys: Computes the keys of FlowFiles.
        order: Name of the order in swap files.
        swap_store: Swap store.
        clock: For the retry of an unreadable swap file.
        threshold: Maximum number of FlowFiles in memory; windows use the remainder.

    Attributes:
        memory: FlowFiles in memory.
        cursors: FlowFiles in swap files.
        windows: Rows that are read from those.
        is_blocked: Whether the last `take` stopped at FlowFiles being written or swept.
        written: Swap file with the FlowFiles that were set apart in memory, until `end_writing`.
    """

    def __init__(
        self, keys: KeyMaker, order: str, swap_store: SwapStore, clock: Clock, threshold: int
    ) -> None:
        self.order = order
        self.threshold = threshold
        self.memory = SortedBuffer()
        self.windows = SwapWindows(keys, swap_store)
        self.cursors = SwapCursors(order, self.windows, clock)
        self.is_blocked = False
        self.written: SwapFileInfo | None = None
        self._keys = keys
        self._unranked: tuple[SwapFileInfo, PriorityKey, int] | None = None
        self._bound_windows()

    @property
    def is_empty(self) -> bool:
        """Return whether the store is empty."""
        return not (len(self.memory) or len(self.cursors))

    @property
    def has_some(self) -> bool:
        """Return whether a FlowFile can probably be taken."""
        return bool(len(self.memory)) or not self.cursors.is_at_rest

    def used_bytes(self) -> int:
        """Return the approximate memory of the store."""
        return self.memory.used_bytes + self.cursors.swapped.window_bytes

    def head(self) -> PriorityKey | None:
        """Return the lowest key known: that of the next FlowFile, or a lower one."""
        return least(self.memory.head(), self.cursors.head())

    def keys_of(self, flowfiles: Sequence[FlowFile]) -> list[PriorityKey]:
        """Return the keys of FlowFiles in this order."""
        return self._keys(flowfiles) if flowfiles else []

    def put(self, keys: list[PriorityKey], flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles with the keys that `keys_of` computed."""
        if flowfiles:
            is_much = bool(len(self.cursors)) or len(self.memory) >= self.threshold
            rows = self._rows_of_windows(len(flowfiles))
            self.memory.put(keys, flowfiles, is_much=is_much)
            self.windows.rows = rows

    def end_writing(self) -> None:
        """Complete or undo a write; call it again if it raises."""
        if self.memory.is_writing:
            if self.written is None:
                self.memory.not_written()
            else:
                first, last = self.memory.ends()
                self._unranked = self.written, first[0], last[1].penalty_until_ms
                self.memory.written(self.written.summary)
        self.written = None
        if self._unranked is not None:
            self.cursors.add_written(*self._unranked)
            self._unranked = None
        self._bound_windows()

    def take(self, found: list[FlowFile], limit: int, before: PriorityKey | None = None) -> None:
        """Take the first FlowFiles whose keys are below a key.

        Afterwards `is_blocked` is True if this stopped at a FlowFile that cannot be taken yet.

        Args:
            found: Receives them, and keeps them even if this raises.
            limit: Maximum length of `found` at the end.
            before: The key; None: no bound.
        """
        self.is_blocked = False
        while len(found) < limit:
            self.resolve_head()
            if not self._is_cursor_first():
                if not self.memory.take(found, limit, least(before, self.cursors.head())):
                    self.is_blocked = self.memory.is_stopped
                    break
                continue
            cursor = self.cursors.first()
            if cursor.is_busy or not cursor.window:
                self.is_blocked = True  # swept, or its next window is being read
                break
            if not self.cursors.take(found, limit - len(found), least(before, self.memory.head())):
                break
        self._bound_windows()

    def resolve_head(self) -> None:
        """Read until the head is known exactly, or cannot be taken yet."""
        while self._is_cursor_first() and self.cursors.resolve_first():
            pass

    def reorder(self, keys: KeyMaker, order: str) -> None:
        """Change the order; swap files are sorted when they are read next."""
        line = self.memory.in_other_order(keys)
        self.cursors.reorder(order)
        self._keys, self.order, self.windows.keys = keys, order, keys
        self.memory.line = line

    def in_order(self) -> Iterator[FlowFile]:
        """Yield all in order, unchanged. All heads must be known: `SwapCursors.resolve_one`."""
        cursors = [self.windows.entries(cursor) for cursor in self.cursors.ranked()]
        for _, flowfile in heapq.merge(self.memory.in_order(), *cursors):
            yield flowfile

    def _is_cursor_first(self) -> bool:
        # An unread cursor counts by the last FlowFile taken from it. That one may have been given
        # back and be the first here: then the cursor is read, and has its own key again.
        cursor, memory = self.cursors.head(), self.memory.head()
        return cursor is not None and (memory is None or not memory < cursor)

    def _bound_windows(self) -> None:
        self.windows.rows = self._rows_of_windows(0)

    def _rows_of_windows(self, more: int) -> int:
        """Return the number of rows that windows may hold, given additional FlowFiles in memory."""
        rest = self.threshold - self.memory.movable_count - more
        return max(rest, self.threshold // 4)
