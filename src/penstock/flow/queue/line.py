"""Sorted buffer of FlowFiles: nearly free if they arrive in order, and at worst like a heap.

Owns the order. Does not own the memory of entries, nor which of them may be taken (`memory`).

Invariants:

- An entry whose key is above all others is appended to a sorted list. A late entry goes to a heap,
  which is never larger than the list when something is taken. So a late entry is merged as often as
  the elements of a doubling list are copied, and an entry that came in order is never moved.
- An entry stays in the buffer until the caller's list has it. `put` and `remove` change all or
  nothing, whatever they raise.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.swapped.window import Entry

_KEY: Final = itemgetter(0)
_LATE_SHARE: Final = 8  # late entries are merged at once if they exceed this part


class Line:
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

    def head(self) -> Key | None:
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

    def take(self, found: list[FlowFile], limit: int, before: Key | None) -> None:
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

    def _take_sorted(self, found: list[FlowFile], limit: int, before: Key | None) -> None:
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
