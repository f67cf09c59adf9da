"""Part of a store in swap files: sorted cursors, ranked by their heads.

Owns the order of cursors, and the retry of those that could not be read. Does not own reading
(`windows`), nor the rows of one cursor (`run`).

Invariants:

- The key of a ranked cursor is never above that of its next FlowFile; it needs no window until that
  key is the lowest of all.
- A file that cannot be read now is retried later, and no thread waits for it.
- A cursor with rows is ranked, unread or waiting for a retry, whatever a call of a port raised.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.swap_store import SwapFile
from penstock.flow.queue.swapped.run import Rank, Run, RunsTally, rank
from penstock.flow.queue.swapped.windows import Windows

RETRY_S: Final = 1.0

_Ranked = tuple[Rank, Run]


def _ranked(run: Run) -> _Ranked:
    return rank(run), run


class Runs:
    """Swap files in one order. The queue's mutex is held during every call.

    Args:
        order: Name of the order in swap files.
        windows: Reads them.
        clock: For the retry of a file that could not be read.

    Attributes:
        swapped: Remaining rows of all cursors.
    """

    def __init__(self, order: str, windows: Windows, clock: Clock) -> None:
        self.swapped = RunsTally()
        self._order = order
        self._windows = windows
        self._clock = clock
        self._ranked: list[_Ranked] = []
        self._unread: list[Run] = []
        self._resting: list[Run] = []
        self._number = 0

    def __iter__(self) -> Iterator[Run]:
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
        return min((run.retry_at_s for run in self._resting), default=None)

    # -- adding, changing and removing cursors

    def add(self, file: SwapFile) -> Run:
        """Add a swap file whose first key is unknown."""
        run = self._new(file)
        run.is_sorted = file.summary.order == self._order
        self._unread.append(run)
        self.swapped.count += run.left
        self.swapped.size_bytes += run.left_bytes
        return run

    def add_written(self, file: SwapFile, key: Key, last_due_ms: int) -> None:
        """Add a swap file that was just written; its first key is known."""
        run = self._new(file)
        run.key = key
        run.last_due_ms = last_due_ms
        self._rank(run)
        self.swapped.count += run.left
        self.swapped.size_bytes += run.left_bytes

    def adopt(self, run: Run, other: Runs) -> None:
        """Move a ranked cursor here from another store with another order."""
        reordered = run.reordered(self._order)
        rest = other._ranked_but(run)
        self._unread.append(run)
        other._ranked = rest
        left, tally = run.left, other.swapped
        tally.count -= left
        tally.size_bytes -= run.left_bytes
        tally.window_bytes -= run.window.used_bytes
        run.tally = tally = self.swapped
        tally.count += left
        tally.size_bytes += run.left_bytes
        tally.window_bytes += run.window.used_bytes
        self._number += 1
        run.number = self._number
        run.reorder(reordered)

    def changed(self, run: Run) -> None:
        """Rank a cursor again after rows of it were removed; remove it if it has none."""
        if run in self._unread or run in self._resting:
            if not run.left:
                for runs in (self._unread, self._resting):
                    with suppress(ValueError):
                        runs.remove(run)
        else:
            ranked = self._ranked_but(run)
            if run.left:
                heapq.heappush(ranked, _ranked(run))
            self._ranked = ranked
        if not run.left:
            run.close()

    def reorder(self, order: str) -> None:
        """Change the order; cursors are sorted when they are read next."""
        unread = [*self._unread, *self.ranked()]
        reordered = [(run, run.reordered(order)) for run in (*unread, *self._resting)]
        self._order, self._unread, self._ranked = order, unread, []
        for run, how in reordered:
            run.reorder(how)

    def _new(self, file: SwapFile) -> Run:
        self._number += 1
        return Run(file, self._number, self.swapped)

    def _rank(self, run: Run) -> None:
        """Rank an unranked cursor; if a comparison raises, it stays unranked."""
        entry = _ranked(run)
        try:
            heapq.heappush(self._ranked, entry)
        except BaseException:
            self._ranked = [one for one in self._ranked if one is not entry]
            heapq.heapify(self._ranked)
            raise

    def _ranked_but(self, run: Run) -> list[_Ranked]:
        """Return a heap of the cursors whose head is known, except one."""
        ranked = [one for one in self._ranked if one[-1] is not run]
        heapq.heapify(ranked)
        return ranked

    # -- taking

    def head(self) -> Key | None:
        """Return the lowest key known: that of the next FlowFile, or lower; None: no cursor."""
        return self._ranked[0][0][0] if self._ranked else None

    def ranked(self) -> list[Run]:
        """Return the cursors whose head is known; the first one in order comes first."""
        return [run for _, run in self._ranked]

    def first(self) -> Run:
        """Return the first cursor; one must exist."""
        return self._ranked[0][-1]

    def take(self, found: list[FlowFile], limit: int, before: Key | None) -> int:
        """Take from the first cursor's window the FlowFiles before a key and before other cursors.

        Args:
            found: Receives them, even if closing a file raises afterwards.
            limit: Maximum number.
            before: The key; None: no bound.

        Returns:
            Number of FlowFiles taken.
        """
        run = self.first()
        stops = [ranked[0][0] for ranked in self._ranked[1:3]]
        stops += [] if before is None else [before]
        count = self._windows.take(run, found, limit, min(stops, default=None))
        # If this raises, its old rank is too early, so that it is read and ranked again.
        if run.left:
            heapq.heapreplace(self._ranked, _ranked(run))
        else:
            heapq.heappop(self._ranked)
            run.close()
        return count

    # -- reading

    def resolve_one(self) -> bool:
        """Read the head of one cursor with an unknown head; return False if none can be read."""
        if self._resting:
            now_s = self._clock.monotonic_s()
            resting = [run for run in self._resting if run.retry_at_s > now_s]
            self._unread += [run for run in self._resting if run.retry_at_s <= now_s]
            self._resting = resting
        for run in self._unread:
            if not run.is_busy:
                self._read(run)
                if run.left and self._unread:
                    run.let_go()  # its head is known now; of many cursors, most are not needed soon
                return True
        return False

    def settle_first(self) -> bool:
        """Read a window of the first cursor if it has none; return False if it has one."""
        run = self.first()
        if run.window or run.is_busy or run.is_read_ahead:
            return False
        self._unread.append(run)
        heapq.heappop(self._ranked)
        self._read(run)
        return True

    def _read(self, run: Run) -> None:
        """Read a window of an unread cursor and rank it; it may also end, or wait for a retry.

        Any other exception is passed on, and the cursor stays unread.
        """
        try:
            self._windows.read(run, self.ranked())
        except PenstockError:
            run.retry_at_s = self._clock.monotonic_s() + RETRY_S
            self._resting.append(run)
        else:
            if run.left:
                self._rank(run)
        self._unread.remove(run)
        if not run.left:
            run.close()
