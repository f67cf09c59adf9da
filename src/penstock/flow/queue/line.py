"""A line of FlowFiles by key: nearly free where they come in order, and never worse than a heap.

Owns the order. Does not own what the entries cost, nor which of them may be taken (`memory`).

Invariant: what came with a key above all others stands in a list that is sorted; what came late
stands in a heap beside it, which never stays larger than the list when something is taken. So an
entry is sorted in as often as a doubling list is copied, and one that came in order never is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import chain
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
        if not self._sorted or self._sorted[-1][0] < entries[0][0]:
            self._sorted += entries
        elif len(entries) > 1 and _LATE_SHARE * len(entries) > len(self._sorted):
            self._sort_in(entries)
        else:
            for entry in entries:
                heapq.heappush(self._late, entry)

    def take(self, limit: int, before: Key | None) -> list[FlowFile]:
        """Take up to so many of the first ones, all with keys less than one given."""
        if len(self._late) > len(self._sorted):
            self._sort_in(())
        if not self._late:
            return self._take_sorted(limit, before)
        found: list[FlowFile] = []
        line, late = self._sorted, self._late
        while late and len(found) < limit:
            is_late = not line or late[0][0] < line[0][0]
            first = late[0] if is_late else line[0]
            if before is not None and not first[0] < before:
                return found
            if is_late:
                heapq.heappop(late)
            else:
                line.popleft()
            found.append(first[1])
        return found + self._take_sorted(limit - len(found), before)

    def take_last(self, count: int) -> list[Entry]:
        """Take the last ones, in order."""
        self._sort_in(())
        last = [self._sorted.pop() for _ in range(min(count, len(self._sorted)))]
        last.reverse()
        return last

    def remove(self, ids: set[int]) -> list[FlowFile]:
        """Take FlowFiles of these ids out."""
        gone = [one for _, one in self if one.id in ids]
        if gone:
            self._sorted = deque([entry for entry in self._sorted if entry[1].id not in ids])
            self._late = [entry for entry in self._late if entry[1].id not in ids]
            heapq.heapify(self._late)
        return gone

    def _take_sorted(self, limit: int, before: Key | None) -> list[FlowFile]:
        line = self._sorted
        take = line.popleft
        if before is None or (line and line[-1][0] < before):
            return [take()[1] for _ in range(min(limit, len(line)))]
        found: list[FlowFile] = []
        while len(found) < limit and line and line[0][0] < before:
            found.append(take()[1])
        return found

    def _sort_in(self, entries: list[Entry] | tuple[()]) -> None:
        if self._late or entries:
            # The runs that are sorted already are found by the sort.
            self._sorted = deque(sorted(chain(self._sorted, self._late, entries), key=_KEY))
            self._late = []
