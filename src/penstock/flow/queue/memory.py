"""Part of a store in memory: a sorted buffer, an overflow, and FlowFiles being written.

Owns FlowFiles in memory, and the estimate of their size. Does not own the order (`line`), nor rows
of swap files that are read ahead (`swapped`).

Invariants:

- The overflow holds FlowFiles that arrived when the buffer was full. It is unsorted, but its lowest
  key is known. It is sorted only when it is written, or when its lowest key is the lowest of all.
- FlowFiles that are set apart for a write are still here, in order, and cannot be taken. Either
  they move to a swap file, or they are put back.
- A FlowFile leaves when the caller's list has it. Methods that only add or set apart do so
  completely or not at all, whatever they raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.budget import heap_bytes
from penstock.flow.queue.line import Line
from penstock.flow.queue.swapped.run import KeyMaker
from penstock.flow.queue.swapped.window import Entry
from penstock.flow.swap.swap_file import SwapSummary

_KEY: Final = itemgetter(0)


class Memory:
    """FlowFiles in memory, in one order. The queue's mutex is held during every call.

    Attributes:
        line: Sorted FlowFiles.
        size_bytes: Their content.
        used_bytes: Approximate memory that they take.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self.used_bytes = 0
        self.line = Line()
        self._overflow: list[Entry] = []
        self._overflow_head: Key | None = None
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

    def head(self) -> Key | None:
        """Return the lowest key; None if there is none."""
        head = least(self.line.head(), self._overflow_head)
        return least(head, self._writing[0][0]) if self._writing else head

    def flowfiles(self) -> list[FlowFile]:
        """Return all FlowFiles, in no order."""
        return [one for _, one in chain(self.line, self._overflow, self._writing)]

    def in_order(self) -> list[Entry]:
        """Return all entries, sorted."""
        return sorted(chain(self.line, self._overflow, self._writing))

    def put(self, keys: list[Key], flowfiles: Sequence[FlowFile], *, is_much: bool) -> None:
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

    def take(self, found: list[FlowFile], limit: int, before: Key | None) -> int:
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

    def in_other_order(self, keys: KeyMaker) -> Line:
        """Return a buffer of all FlowFiles in another order; nothing may be in a write."""
        self._take_overflow_in()
        flowfiles = [one for _, one in self.line]
        line = Line()
        if flowfiles:
            line.put(list(zip(keys(flowfiles), flowfiles, strict=True)))
        return line

    # -- swapping out: `cut`, then the write without the mutex, then `written` or `not_written`

    def cut(self, count: int) -> list[FlowFile]:
        """Set FlowFiles apart for a write: the last ones of the overflow, or of all."""
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


def least(one: Key | None, other: Key | None) -> Key | None:
    """Return the lower key; None stands for no key."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
