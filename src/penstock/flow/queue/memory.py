"""The part of a store that is in memory: a heap, an overflow, and what is being written.

Owns FlowFiles whose place is in memory, their order, and the estimate of what they take. Does not
own rows of swap files that are read ahead (`runs`).

Invariants:

- The overflow is what came when the heap was full: in no order, but its least key is known. It
  costs no sorting until it is written, or until its least key is the least of all.
- What is set apart to be written is still here, in order, and nobody takes it: either it becomes a
  run, or it comes back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.budget import heap_bytes, heap_bytes_of
from penstock.flow.queue.run import Entry
from penstock.flow.swap.swapfile import SwapSummary

_KEY: Final = itemgetter(0)

KeyMaker = Callable[[Sequence[FlowFile]], list[Key]]


class Memory:
    """FlowFiles in memory, in one order. The queue's mutex is held around every call.

    Attributes:
        size_bytes: Their content.
        used_bytes: About what they take of the memory.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.used_bytes = 0
        self._heap: list[Entry] = []
        self._overflow: list[Entry] = []
        self._overflow_head: Key | None = None
        self._writing: list[Entry] = []

    def __len__(self) -> int:
        return len(self._heap) + len(self._overflow) + len(self._writing)

    @property
    def movable_count(self) -> int:
        """Return how many are not being written already."""
        return len(self._heap) + len(self._overflow)

    @property
    def is_writing(self) -> bool:
        """Say whether some of it is being written."""
        return bool(self._writing)

    @property
    def is_stopped(self) -> bool:
        """Say whether what comes first here is being written."""
        return bool(self._writing) and self._writing[0][0] == self.head()

    def head(self) -> Key | None:
        """Return the least key; None: nothing is here."""
        heads = [entries[0][0] for entries in (self._heap, self._writing) if entries]
        return least(min(heads, default=None), self._overflow_head)

    def flowfiles(self) -> list[FlowFile]:
        """Return all, in no order."""
        return [one for _, one in chain(self._heap, self._overflow, self._writing)]

    def in_order(self) -> list[Entry]:
        """Return all with their keys, sorted."""
        return sorted(chain(self._heap, self._overflow, self._writing))

    def put(self, keys: list[Key], flowfiles: Sequence[FlowFile], *, is_much: bool) -> None:
        """Add FlowFiles.

        Args:
            keys: Theirs.
            flowfiles: At least one.
            is_much: There is so much already that these will likely be written before they are
                taken.
        """
        entries = zip(keys, flowfiles, strict=True)
        if len(keys) > 1 and (is_much or self._overflow):
            self._overflow += entries
            self._overflow_head = least(self._overflow_head, min(keys))
        else:
            heap, push = self._heap, heapq.heappush
            for entry in entries:
                push(heap, entry)
        self.size_bytes += sum([one.size for one in flowfiles])
        self.used_bytes += heap_bytes(flowfiles)

    def take(self, found: list[FlowFile], limit: int, before: Key | None) -> int:
        """Take the first ones with keys less than one given, until `found` has so many.

        Returns:
            How many were taken.
        """
        if self._overflow_head is not None and self._overflow_head == self.head():
            self._take_overflow_in()
        before = least(before, self._overflow_head)
        before = least(before, self._writing[0][0] if self._writing else None)
        heap, pop = self._heap, heapq.heappop
        start = len(found)
        if before is None:
            while heap and len(found) < limit:
                found.append(pop(heap)[1])
        else:
            while heap and len(found) < limit and heap[0][0] < before:
                found.append(pop(heap)[1])
        self._forget(found[start:] if start else found)
        return len(found) - start

    def remove(self, ids: set[int]) -> list[FlowFile]:
        """Take FlowFiles of these ids out, but for those that are being written."""
        self._take_overflow_in()
        gone = [one for _, one in self._heap if one.id in ids]
        if gone:
            self._heap = [entry for entry in self._heap if entry[1].id not in ids]
            heapq.heapify(self._heap)
            self._forget(gone)
        return gone

    def reorder(self, keys: KeyMaker) -> None:
        """Order everything anew; nothing is being written."""
        self._take_overflow_in()
        flowfiles = [one for _, one in self._heap]
        self._heap = list(zip(keys(flowfiles), flowfiles, strict=True))
        heapq.heapify(self._heap)

    # -- swapping out: `cut`, then the write without the mutex, then one of the other two

    def cut(self, count: int) -> list[FlowFile]:
        """Set FlowFiles apart to be written, the last ones of the overflow or of all."""
        entries = self._overflow
        if len(entries) < count:
            self._take_overflow_in()
            entries = self._heap
        entries.sort(key=_KEY)  # a sorted list is a heap
        self._writing = entries[-count:]
        del entries[-count:]
        if not self._overflow:
            self._overflow_head = None
        return [one for _, one in self._writing]

    def written(self, summary: SwapSummary) -> tuple[Entry, Entry]:
        """Forget what was set apart, it is in a file; return the first and the last of it."""
        self.size_bytes -= summary.size_bytes
        self.used_bytes -= heap_bytes_of(summary.count, summary.attribute_characters)
        ends = self._writing[0], self._writing[-1]
        self._writing = []
        return ends

    def not_written(self) -> None:
        """Take back what was set apart."""
        self._heap += self._writing
        heapq.heapify(self._heap)
        self._writing = []

    def _forget(self, flowfiles: list[FlowFile]) -> None:
        self.size_bytes -= sum([one.size for one in flowfiles])
        self.used_bytes -= heap_bytes(flowfiles)

    def _take_overflow_in(self) -> None:
        """Put the overflow into the heap, which may be more than its share then."""
        heap = self._heap
        if len(self._overflow) < len(heap) // 8:
            for entry in self._overflow:
                heapq.heappush(heap, entry)
        else:
            heap += self._overflow
            heapq.heapify(heap)
        self._overflow = []
        self._overflow_head = None


def least(one: Key | None, other: Key | None) -> Key | None:
    """Return the lesser key, where None stands for none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
