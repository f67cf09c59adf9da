"""A store: FlowFiles in one order, in memory and in swap files.

Owns the merge: the next FlowFile of all is the least of the heads of memory and of the runs. Does
not own either side (`memory`, `runs`), nor sizes, penalties, and when to swap out.

Invariants:

- A FlowFile that leaves a run is told to the home under the queue's mutex, so that nobody can
  remove it before the home knows where it is.
- What is being written, or swept, stops the merge at its head: it is next, and not to be had yet.
- `put` and `reorder` change all or nothing, whatever they raise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.home import SwapFile, SwapHome
from penstock.flow.queue.memory import Memory, least
from penstock.flow.queue.swapped.run import KeyMaker
from penstock.flow.queue.swapped.runs import Runs
from penstock.flow.queue.swapped.windows import Windows


class Store:
    """FlowFiles in one order. The queue's mutex is held around every call.

    Args:
        keys: Makes the keys of FlowFiles.
        order: What the order is called in swap files.
        home: Where swap files are.
        clock: Says when a swap file that could not be read is tried again.
        threshold: FlowFiles that may be in memory; windows get what the others leave of it.

    Attributes:
        memory: Those in memory.
        runs: Those in swap files.
        windows: What is read of these.
        is_blocked: The last `take` stopped at what is being written or swept.
        written: The swap file that has what was set apart in memory, until `end_writing`.
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
        """Say whether nothing is here at all."""
        return not (len(self.memory) or len(self.runs))

    @property
    def has_some(self) -> bool:
        """Say whether something can be taken, as far as is known."""
        return bool(len(self.memory)) or not self.runs.is_at_rest

    def used_bytes(self) -> int:
        """Return about how much memory all of it takes."""
        return self.memory.used_bytes + self.runs.swapped.window_bytes

    def head(self) -> Key | None:
        """Return the least key known: of the next FlowFile, or a little less."""
        return least(self.memory.head(), self.runs.head())

    def keys_of(self, flowfiles: Sequence[FlowFile]) -> list[Key]:
        """Return the keys of FlowFiles in this order."""
        return self._keys(flowfiles) if flowfiles else []

    def put(self, keys: list[Key], flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles with the keys that `keys_of` made."""
        if flowfiles:
            is_much = bool(len(self.runs)) or len(self.memory) >= self.threshold
            rows = self._rows_of_windows(len(flowfiles))
            self.memory.put(keys, flowfiles, is_much=is_much)
            self.windows.rows = rows

    def end_writing(self) -> None:
        """Make a run of what was written, or take it back; call it again if it raises."""
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
        """Take the first ones, all with keys less than one given.

        `is_blocked` says afterwards whether it stopped at what cannot be had yet.

        Args:
            found: Gets what is taken, and holds it whatever is raised.
            limit: How many it may hold in the end.
            before: The key; None: any.
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
                self.is_blocked = True  # swept, or its next window is just being read
                break
            if not self.runs.take(found, limit - len(found), least(before, self.memory.head())):
                break
        self._bound_windows()

    def settle(self) -> None:
        """Read until the head is known exactly, or cannot be had yet."""
        while self._is_run_first() and self.runs.settle_first():
            pass

    def reorder(self, keys: KeyMaker, order: str) -> None:
        """Order everything anew; runs are sorted when they are read next."""
        line = self.memory.in_other_order(keys)
        self.runs.reorder(order)
        self._keys, self.order, self.windows.keys = keys, order, keys
        self.memory.line = line

    def in_order(self) -> Iterator[FlowFile]:
        """Yield all in order, changing nothing; all heads must be known (`Runs.resolve_one`)."""
        runs = [self.windows.entries(run) for run in self.runs.ranked()]
        for _, flowfile in heapq.merge(self.memory.in_order(), *runs):
            yield flowfile

    def _is_run_first(self) -> bool:
        # A run that must be read counts by the last one taken of it. That one may have been given
        # back and be the first here: then the run is read, and its key is its own again.
        run, memory = self.runs.head(), self.memory.head()
        return run is not None and (memory is None or not memory < run)

    def _bound_windows(self) -> None:
        self.windows.rows = self._rows_of_windows(0)

    def _rows_of_windows(self, more: int) -> int:
        """Return how many rows windows may hold, with so many FlowFiles more in memory."""
        rest = self.threshold - self.memory.movable_count - more
        return max(rest, self.threshold // 4)
