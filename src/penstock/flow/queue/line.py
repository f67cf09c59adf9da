"""A line of FlowFiles by key: nearly free where they come in order, and never worse than a heap.

Owns the order. Does not own what the entries cost, nor which of them may be taken (`memory`).

Invariants:

- What came with a key above all others stands in a list that is sorted; what came late stands in a
  heap beside it, which never stays larger than the list when something is taken. So an entry is
  sorted in as often as a doubling list is copied, and one that came in order never is.
- An entry is in the line until the caller's list has it. `put` and `remove` change all or nothing,
  whatever they raise.
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
_LATE_SHARE: Final = 8  # late ones are sorted in at once if they are more than such a part


class Line:
    """Entries by key, no two of which are equal. The queue's mutex is held around every call."""

    __slots__ = ("_late", "_sorted")

    def __init__(self) -> None:
        self._sorted: deque[Entry] = deque()
        self._late: list[Entry] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._late)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all, in no order."""
        return chain(self._sorted, self._late)

    def head(self) -> Key | None:
        """Return the least key; None: nothing is here."""
        if not self._late:
            return self._sorted[0][0] if self._sorted else None
        if not self._sorted:
            return self._late[0][0]
        return min(self._sorted[0][0], self._late[0][0])

    def put(self, entries: list[Entry]) -> None:
        """Add entries, at least one; the list is sorted in place."""
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
        """Take the first ones, all with keys less than one given.

        Args:
            found: Gets what is taken, and holds it whatever is raised.
            limit: How many it may hold in the end.
            before: The key; None: any.
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
        """Return the last ones, in order; `drop_last` takes them."""
        self._sort_in(())
        last = list(islice(reversed(self._sorted), count))
        last.reverse()
        return last

    def drop_last(self, count: int) -> None:
        """Take the last ones, which `last` returned just before; raises nothing."""
        drop = self._sorted.pop
        for _ in range(count):
            drop()

    def remove(self, ids: set[int], gone: list[FlowFile]) -> None:
        """Take FlowFiles of these ids out.

        Args:
            ids: Theirs.
            gone: Gets what is taken.
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
            # The runs that are sorted already are found by the sort.
            self._sorted = deque(sorted(chain(self._sorted, self._late, entries), key=_KEY))
            self._late = []
