"""Store: FlowFiles in one order, in memory and in swap files.

Owns the merge: the next FlowFile is the lowest of the heads of memory and of the swap files. Does
not own either part (`memory`, `runs`), nor sizes, penalties, and when to swap out.

Invariants:

- When a FlowFile leaves a swap file, `SwapHome.loaded` is called under the queue's mutex, so that
  no thread can remove the FlowFile before the swap store knows where it is.
- FlowFiles that are being written or swept block the merge when they are at its head: they are
  next, and cannot be taken yet.
- `put` and `reorder` change all or nothing, whatever they raise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.memory import Memory, least
from penstock.flow.queue.swap_store import SwapFile, SwapHome
from penstock.flow.queue.swapped.run import KeyMaker
from penstock.flow.queue.swapped.runs import Runs
from penstock.flow.queue.swapped.windows import Windows


class Store:
    """FlowFiles in one order. The queue's mutex is held during every call.

    Args:
        keys: Computes the keys of FlowFiles.
        order: Name of the order in swap files.
        home: Swap store.
        clock: For the retry of an unreadable swap file.
        threshold: Maximum number of FlowFiles in memory; windows use the remainder.

    Attributes:
        memory: FlowFiles in memory.
        runs: FlowFiles in swap files.
        windows: Rows that are read from those.
        is_blocked: Whether the last `take` stopped at FlowFiles being written or swept.
        written: Swap file with the FlowFiles that were set apart in memory, until `end_writing`.
    """

    def __init__(
        self, keys: KeyMaker, order: str, home: SwapHome, clock: Clock, threshold: int
    ) -> None:
        self.order = order
        self.threshold = threshold
        self.memory = Memory()
        self.windows = Windows(keys, home)
        self.runs = Runs(order, self.windows, clock)
        self.is_blocked = False
        self.written: SwapFile | None = None
        self._keys = keys
        self._unranked: tuple[SwapFile, Key, int] | None = None
        self._bound_windows()

    @property
    def is_empty(self) -> bool:
        """Return whether the store is empty."""
        return not (len(self.memory) or len(self.runs))

    @property
    def has_some(self) -> bool:
        """Return whether a FlowFile can be taken, as far as is known."""
        return bool(len(self.memory)) or not self.runs.is_at_rest

    def used_bytes(self) -> int:
        """Return the approximate memory of the store."""
        return self.memory.used_bytes + self.runs.swapped.window_bytes

    def head(self) -> Key | None:
        """Return the lowest key known: that of the next FlowFile, or a lower one."""
        return least(self.memory.head(), self.runs.head())

    def keys_of(self, flowfiles: Sequence[FlowFile]) -> list[Key]:
        """Return the keys of FlowFiles in this order."""
        return self._keys(flowfiles) if flowfiles else []

    def put(self, keys: list[Key], flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles with the keys that `keys_of` computed."""
        if flowfiles:
            is_much = bool(len(self.runs)) or len(self.memory) >= self.threshold
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
            self.runs.add_written(*self._unranked)
            self._unranked = None
        self._bound_windows()

    def take(self, found: list[FlowFile], limit: int, before: Key | None = None) -> None:
        """Take the first FlowFiles whose keys are below a key.

        Afterwards `is_blocked` is True if this stopped at a FlowFile that cannot be taken yet.

        Args:
            found: Receives them, and keeps them even if this raises.
            limit: Maximum length of `found` at the end.
            before: The key; None: no bound.
        """
        self.is_blocked = False
        while len(found) < limit:
            self.settle()
            if not self._is_run_first():
                if not self.memory.take(found, limit, least(before, self.runs.head())):
                    self.is_blocked = self.memory.is_stopped
                    break
                continue
            run = self.runs.first()
            if run.is_busy or not run.window:
                self.is_blocked = True  # swept, or its next window is being read
                break
            if not self.runs.take(found, limit - len(found), least(before, self.memory.head())):
                break
        self._bound_windows()

    def settle(self) -> None:
        """Read until the head is known exactly, or cannot be taken yet."""
        while self._is_run_first() and self.runs.settle_first():
            pass

    def reorder(self, keys: KeyMaker, order: str) -> None:
        """Change the order; swap files are sorted when they are read next."""
        line = self.memory.in_other_order(keys)
        self.runs.reorder(order)
        self._keys, self.order, self.windows.keys = keys, order, keys
        self.memory.line = line

    def in_order(self) -> Iterator[FlowFile]:
        """Yield all in order, without changes; all heads must be known (`Runs.resolve_one`)."""
        runs = [self.windows.entries(run) for run in self.runs.ranked()]
        for _, flowfile in heapq.merge(self.memory.in_order(), *runs):
            yield flowfile

    def _is_run_first(self) -> bool:
        # An unread cursor counts by the last FlowFile taken from it. That one may have been given
        # back and be the first here: then the cursor is read, and has its own key again.
        run, memory = self.runs.head(), self.memory.head()
        return run is not None and (memory is None or not memory < run)

    def _bound_windows(self) -> None:
        self.windows.rows = self._rows_of_windows(0)

    def _rows_of_windows(self, more: int) -> int:
        """Return the number of rows that windows may hold, given additional FlowFiles in memory."""
        rest = self.threshold - self.memory.movable_count - more
        return max(rest, self.threshold // 4)
