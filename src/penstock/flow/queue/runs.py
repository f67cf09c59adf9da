"""The part of a store that is in swap files: sorted runs, ranked by their heads.

Owns which run comes first, reading windows, sorting runs that are of another order, and what
becomes of runs that cannot be read. Does not own the rows of one run (`run`).

Invariants:

- A ranked run's key is never greater than that of its next FlowFile; it needs no window until that
  key is the least of all.
- All windows together keep within their bound, but for a few rows of each run that is open.
- A file that is missing or damaged costs what is damaged; one that cannot be read now rests for a
  while, and nothing waits for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.home import SwapFile, SwapHome
from penstock.flow.queue.memory import KeyMaker
from penstock.flow.queue.run import Entry, Plan, RowNumbers, Run, RunsTally, entries_of
from penstock.flow.swap.swapfile import Rows

WINDOW_ROWS_MIN: Final = 32
WINDOW_ROWS_MAX: Final = 2_048
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows of a swap file that cannot be read, to be told to the home without the mutex."""

    file: SwapFile
    rows: RowNumbers
    reason: str


# Of two with the same key the one without a window comes first: its key is that of the last one
# taken, which is the first of the other by now if it was given back and swapped out again.
_Ranked = tuple[Key, bool, int, Run]


def _ranked(run: Run) -> _Ranked:
    assert run.key is not None
    return run.key, run.window > 0, run.number, run


class Runs:
    """Swap files in one order. The queue's mutex is held around every call.

    Args:
        keys: Makes the keys of FlowFiles.
        order: What the order is called in swap files.
        home: Where swap files are.
        clock: Says when a run that could not be read is tried again.

    Attributes:
        window_rows: Rows that may be in memory, all windows together.
        swapped: What is left in all runs.
        damages: What was found since somebody took them.
    """

    def __init__(self, keys: KeyMaker, order: str, home: SwapHome, clock: Clock) -> None:
        self.window_rows = 0
        self.swapped = RunsTally()
        self.damages: list[Damage] = []
        self._keys = keys
        self._order = order
        self._home = home
        self._clock = clock
        self._ranked: list[_Ranked] = []
        self._unread: list[Run] = []
        self._resting: list[Run] = []
        self._number = 0

    def __iter__(self) -> Iterator[Run]:
        return iter([*(run for *_, run in self._ranked), *self._unread, *self._resting])

    def __len__(self) -> int:
        return len(self._ranked) + len(self._unread) + len(self._resting)

    @property
    def is_unread(self) -> bool:
        """Say whether the head of some run is not known (it is being swept, or was just added)."""
        return bool(self._unread)

    @property
    def is_at_rest(self) -> bool:
        """Say whether no run can be read now, or there is none."""
        return not (self._ranked or self._unread)

    @property
    def retry_at_s(self) -> float | None:
        """Return when a run that cannot be read is tried again, monotonic; None: there is none."""
        return min((run.retry_at_s for run in self._resting), default=None)

    def used_bytes(self) -> int:
        """Return about how much memory the windows take."""
        return self.swapped.window_bytes

    # -- runs come, change and go

    def add(self, file: SwapFile) -> Run:
        """Add a swap file whose first key is not known."""
        run = self._new(file)
        run.is_sorted = file.summary.order == self._order
        self._unread.append(run)
        return run

    def add_written(self, file: SwapFile, key: Key, last_due_ms: int) -> None:
        """Add a swap file that was just written; its first key is known."""
        run = self._new(file)
        run.key = key
        run.last_due_ms = last_due_ms
        self._rank(run)

    def adopt(self, run: Run) -> None:
        """Take a run over from another store, whose order was another."""
        self._number += 1
        run.number = self._number
        run.tally.add(-run.left, -run.left_bytes)
        run.tally = self.swapped
        run.tally.add(run.left, run.left_bytes)
        self._order_anew(run)
        self._unread.append(run)

    def release(self, run: Run) -> None:
        """Forget a run that goes to another store."""
        self._ranked = [ranked for ranked in self._ranked if ranked[-1] is not run]
        heapq.heapify(self._ranked)

    def changed(self, run: Run) -> None:
        """Rank a run anew after rows of it went, or forget it when none are left."""
        if not run.left:
            for runs in (self._unread, self._resting):
                with suppress(ValueError):
                    runs.remove(run)
            run.close()
        if run not in self._unread and run not in self._resting:
            self.release(run)
            if run.left:
                self._rank(run)

    def reorder(self, keys: KeyMaker, order: str) -> None:
        """Order everything anew; runs are sorted when they are read next."""
        self._keys, self._order = keys, order
        self._unread += [run for *_, run in self._ranked]
        self._ranked = []
        for run in (*self._unread, *self._resting):
            self._order_anew(run)

    def _order_anew(self, run: Run) -> None:
        if run.file.summary.order == self._order:
            run.restore_file_order()
            run.is_sorted = True
        else:
            run.unsort()

    def _new(self, file: SwapFile) -> Run:
        self._number += 1
        return Run(file, self._number, self.swapped)

    def _rank(self, run: Run) -> None:
        heapq.heappush(self._ranked, _ranked(run))

    # -- out

    def head(self) -> Key | None:
        """Return the least key known: of the next FlowFile, or a little less; None: no run."""
        return self._ranked[0][0] if self._ranked else None

    def first(self) -> Run:
        """Return the run that comes first; there is one."""
        return self._ranked[0][-1]

    def take(self, limit: int, before: Key | None) -> list[FlowFile]:
        """Take from the window of the first run what comes before a key and before other runs."""
        run = self.first()
        stops = [ranked[0] for ranked in self._ranked[1:3]]
        stops += [] if before is None else [before]
        taken, rows = run.take(limit, min(stops, default=None))
        if taken:
            self._home.loaded(run.file, rows, [one.id for one in taken])
        if run.left:
            heapq.heapreplace(self._ranked, _ranked(run))
        else:
            heapq.heappop(self._ranked)
            run.close()
        return taken

    def in_order(self) -> list[Iterator[Entry]]:
        """Return what is left of each run, in order; all heads must be known (`resolve_one`)."""
        return [self._entries(run) for *_, run in self._ranked]

    def _entries(self, run: Run) -> Iterator[Entry]:
        with suppress(PenstockError):  # a look does not judge; the next poll does
            yield from entries_of(run, run.open(self._home), self._keys)

    # -- reading

    def resolve_one(self) -> bool:
        """Read the head of one run that is not known; False when all are that can be."""
        if self._resting:
            now_s = self._clock.monotonic_s()
            self._unread += [run for run in self._resting if run.retry_at_s <= now_s]
            self._resting = [run for run in self._resting if run.retry_at_s > now_s]
        for run in self._unread:
            if not run.is_busy:
                self._unread.remove(run)
                self._read(run)
                if run.left and self._unread:
                    run.let_go()  # its head is known now; most of many are not wanted soon
                return True
        return False

    def settle_first(self) -> bool:
        """Read a window of the first run if it has none; False when there was nothing to do."""
        run = self.first()
        if run.window or run.is_busy or run.is_read_ahead:
            return False
        heapq.heappop(self._ranked)
        self._read(run)
        return True

    def next_window(self) -> tuple[Run, Plan] | None:
        """Return the first run and what to read of it, if it is time to read ahead."""
        if not self._ranked:
            return None
        run, rows = self.first(), self._window_size()
        if run.is_busy or run.is_read_ahead or run.is_read_out or not 0 < run.window <= rows // 2:
            return None
        return run, run.plan(rows)

    def attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> bool:
        """Take what was read without the mutex; False: the run changed meanwhile."""
        if plan.generation != run.generation:
            return False
        self._attach(run, plan, found, keys)
        self.changed(run)
        return True

    def let_windows_go(self) -> int:
        """Forget all windows; return how many rows these were."""
        total = 0
        for run in self:
            if run.window and not (run.is_busy or run.is_read_ahead):
                total += run.window
                run.let_go()
        return total

    def keys_of(self, flowfiles: Sequence[FlowFile]) -> list[Key]:
        """Return keys in the order of this store."""
        return self._keys(flowfiles)

    def _read(self, run: Run) -> None:
        """Read a window and rank the run; or it ends, or rests if it cannot be read."""
        try:
            if not run.is_sorted:
                self._sort(run)
            self._make_room(run)
            while run.left and not run.window:
                plan = run.plan(self._window_size())
                found = run.open(self._home).take(plan.rows)
                self._attach(run, plan, found, self._keys(found.flowfiles))
        except (NotFound, CorruptData) as error:
            self._lose_rest(run, str(error))
        except PenstockError:
            run.let_go()
            run.retry_at_s = self._clock.monotonic_s() + RETRY_S
            self._resting.append(run)
            return
        if run.left:
            self._rank(run)
        else:
            run.close()

    def _sort(self, run: Run) -> None:
        """Read all that is left of a run to bring it into this order."""
        rows = run.remaining().nonzero()[0]
        found = run.open(self._home).take(rows)
        self._lose(run, found.lost)
        run.resort(found.numbers, self._keys(found.flowfiles))

    def _attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        self._lose(run, found.lost)
        run.attach(plan, found, keys)
        if not run.window and run.is_read_out and run.left:
            self._lose_rest(run, "it holds fewer rows than its summary says")

    def _lose(self, run: Run, rows: RowNumbers) -> None:
        if len(rows):
            self.damages.append(Damage(run.file, rows, "pages do not verify"))
            run.lose(rows)

    def _lose_rest(self, run: Run, reason: str) -> None:
        rows = run.remaining().nonzero()[0]
        self.damages.append(Damage(run.file, rows, reason))
        run.let_go()
        run.lose(rows)

    def _window_size(self) -> int:
        """Return how many rows to read at once, so that all windows keep within their bound."""
        begun = sum(1 for *_, run in self._ranked if run.is_begun) + 1
        return max(WINDOW_ROWS_MIN, min(WINDOW_ROWS_MAX, self.window_rows // begun))

    def _make_room(self, wanted: Run) -> None:
        """Let go the windows that are needed last, when all together are too many."""
        total = sum(run.window for *_, run in self._ranked)
        if total + self._window_size() <= self.window_rows:
            return
        for *_, run in sorted(self._ranked, reverse=True):
            if run is not wanted and run.window and not (run.is_busy or run.is_read_ahead):
                total -= run.window
                run.let_go()
                if total + self._window_size() <= self.window_rows:
                    return
