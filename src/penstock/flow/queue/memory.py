"""The part of a store that is in memory: a line, an overflow, and what is being written.

Owns FlowFiles whose place is in memory, and the estimate of what they take. Does not own the order
(`line`), nor rows of swap files that are read ahead (`swapped`).

Invariants:

- The overflow is what came when the line was full: in no order, but its least key is known. It
  costs no sorting until it is written, or until its least key is the least of all.
- What is set apart to be written is still here, in order, and nobody takes it: either it becomes a
  run, or it comes back.
- A FlowFile leaves when the caller's list has it. What only adds, or only sets apart, does so
  wholly or not at all, whatever it raises.
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
from penstock.flow.swap.swapfile import SwapSummary

_KEY: Final = itemgetter(0)


class Memory:
    """FlowFiles in memory, in one order. The queue's mutex is held around every call.

    Attributes:
        line: Those that are in order.
        size_bytes: Their content.
        used_bytes: About what they take of the memory.
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
        """Return how many are not being written already."""
        return len(self.line) + len(self._overflow)

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
        head = least(self.line.head(), self._overflow_head)
        return least(head, self._writing[0][0]) if self._writing else head

    def flowfiles(self) -> list[FlowFile]:
        """Return all, in no order."""
        return [one for _, one in chain(self.line, self._overflow, self._writing)]

    def in_order(self) -> list[Entry]:
        """Return all with their keys, sorted."""
        return sorted(chain(self.line, self._overflow, self._writing))

    def put(self, keys: list[Key], flowfiles: Sequence[FlowFile], *, is_much: bool) -> None:
        """Add FlowFiles.

        Args:
            keys: Theirs.
            flowfiles: At least one.
            is_much: There is so much already that these will likely be written before they are
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
        """Take the first ones with keys less than one given, until `found` has so many.

        Args:
            found: Gets what is taken, and holds it whatever is raised.
            limit: How many it may hold in the end.
            before: The key; None: any.

        Returns:
            How many were taken.
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
        """Take FlowFiles of these ids out, but for those that are being written.

        Args:
            ids: Theirs.
            gone: Gets what is taken, and holds it whatever is raised.
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
        """Return a line of all in another order; nothing is being written."""
        self._take_overflow_in()
        flowfiles = [one for _, one in self.line]
        line = Line()
        if flowfiles:
            line.put(list(zip(keys(flowfiles), flowfiles, strict=True)))
        return line

    # -- swapping out: `cut`, then the write without the mutex, then one of the other two

    def cut(self, count: int) -> list[FlowFile]:
        """Set FlowFiles apart to be written, the last ones of the overflow or of all."""
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
        """Return the first and the last of what was set apart."""
        return self._writing[0], self._writing[-1]

    def written(self, summary: SwapSummary) -> None:
        """Forget what was set apart, which is in a file now."""
        used_bytes = self.used_bytes - self.used_bytes * summary.count // len(self)
        self._writing, self.size_bytes = [], self.size_bytes - summary.size_bytes
        self.used_bytes = used_bytes

    def not_written(self) -> None:
        """Take back what was set apart."""
        nothing: list[Entry] = []
        if self._writing:
            self.line.put(self._writing)
        self._writing = nothing

    def _forget(self, flowfiles: list[FlowFile]) -> None:
        """Count FlowFiles as gone; they took as much memory as one does on average."""
        if count := len(flowfiles):
            size_bytes = self.size_bytes - sum([one.size for one in flowfiles])
            self.used_bytes -= self.used_bytes * count // (len(self) + count)
            self.size_bytes = size_bytes

    def _recount(self) -> None:
        """Count all that is here, after an exception between a change and its count."""
        flowfiles = self.flowfiles()
        size_bytes = sum([one.size for one in flowfiles])
        self.size_bytes, self.used_bytes = size_bytes, heap_bytes(flowfiles)

    def _take_overflow_in(self) -> None:
        """Put the overflow into the line, which may be more than its share then."""
        if self._overflow:
            nothing: list[Entry] = []
            self.line.put(self._overflow)
            self._overflow = nothing
        self._overflow_head = None


def least(one: Key | None, other: Key | None) -> Key | None:
    """Return the lesser key, where None stands for none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
