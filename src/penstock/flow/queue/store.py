"""A store: FlowFiles in one order, a heap in memory and sorted runs on disk.

Owns the merge: the next FlowFile of all is the least of the heads of the heap, of the runs, and of
the overflow, which is what came when the heap was full: in no order, but its least key is known.
Does not own sizes, penalties, nor when to swap out (`queue`, `swapping`).

Invariants:

- Of the rows of runs, only windows are in memory; a run without one needs none until its key is
  the least of all.
- A FlowFile that leaves a run is told to the home under the queue's mutex, so that nobody can
  remove it before the home knows where it is.
- What is being written, or swept, stops the merge at its head: it is next, and not to be had yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, NotFound, PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Key
from penstock.flow.queue.budget import heap_bytes, heap_bytes_of
from penstock.flow.queue.home import SwapFile, SwapHome
from penstock.flow.queue.run import Entry, Plan, RowNumbers, Run, Tally, entries_of
from penstock.flow.swap.swapfile import Rows

WINDOW_ROWS_MIN: Final = 32
WINDOW_ROWS_MAX: Final = 2_048
RETRY_S: Final = 1.0

KeyMaker = Callable[[Sequence[FlowFile]], list[Key]]


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows of a swap file that cannot be read, to be told to the home without the mutex."""

    file: SwapFile
    rows: RowNumbers
    reason: str


class Store:
    """FlowFiles in one order. The queue's mutex is held around every call.

    Args:
        keys: Makes the keys of FlowFiles.
        order: What the order is called in swap files.
        home: Where swap files are.
        clock: Says when a run that could not be read is tried again.
        threshold: FlowFiles that may be in memory; windows get what the heap leaves of it.
    """

    def __init__(
        self, keys: KeyMaker, order: str, home: SwapHome, clock: Clock, threshold: int
    ) -> None:
        self.keys = keys
        self.order = order
        self.home = home
        self.threshold = threshold
        self._clock = clock
        self.heap: list[Entry] = []
        self.heap_size_bytes = 0
        self.heap_used_bytes = 0
        self.swapped = Tally()
        self.damages: list[Damage] = []
        self.is_blocked = False
        self._overflow: list[Entry] = []
        self._overflow_head: Key | None = None
        self._writing: list[Entry] = []
        self._ranked: list[tuple[Key, int, Run]] = []
        self._unread: list[Run] = []
        self._resting: list[Run] = []
        self._number = 0

    # -- what is in it

    @property
    def active_count(self) -> int:
        """Return the FlowFiles in memory that are no copies of rows."""
        return self.memory_count + len(self._writing)

    @property
    def memory_count(self) -> int:
        """Return the FlowFiles that could be swapped out."""
        return len(self.heap) + len(self._overflow)

    @property
    def is_empty(self) -> bool:
        """Say whether nothing can be taken, now or when a disk answers again."""
        return not (self.has_some or self._resting)

    @property
    def has_some(self) -> bool:
        """Say whether something can be taken, as far as is known."""
        return bool(self.heap or self._ranked or self._unread or self._overflow or self._writing)

    def runs(self) -> list[Run]:
        """Return all runs, those that cannot be read now, too."""
        return [*(run for _, _, run in self._ranked), *self._unread, *self._resting]

    def in_memory(self) -> list[FlowFile]:
        """Return the FlowFiles whose place is in memory, in no order."""
        return [one for _, one in chain(self.heap, self._overflow, self._writing)]

    def used_bytes(self) -> int:
        """Return about how much memory all of it takes."""
        return self.heap_used_bytes + sum([run.window_bytes for _, _, run in self._ranked])

    def head(self) -> Key | None:
        """Return the least key known: of the next FlowFile, or a little less."""
        ranked = self._ranked[0][0] if self._ranked else None
        return _least(self._memory_head(), ranked)

    def _memory_head(self) -> Key | None:
        heads = [entries[0][0] for entries in (self.heap, self._writing) if entries]
        return _least(min(heads, default=None), self._overflow_head)

    # -- in

    def put(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles: to the heap, or to the overflow when there is much already."""
        if not flowfiles:
            return
        keys = self.keys(flowfiles)
        entries = zip(keys, flowfiles, strict=True)
        is_much = self._overflow or self._ranked or len(self.heap) >= self.threshold
        if is_much and len(flowfiles) > 1:
            self._overflow += entries
            self._overflow_head = _least(self._overflow_head, min(keys))
        else:
            heap = self.heap
            push = heapq.heappush
            for entry in entries:
                push(heap, entry)
        self.heap_size_bytes += sum([one.size for one in flowfiles])
        self.heap_used_bytes += heap_bytes(flowfiles)

    def add_run(self, file: SwapFile, *, is_sorted: bool) -> Run:
        """Add a swap file whose first key is not known."""
        self._number += 1
        run = Run(file, self._number, self.swapped)
        run.is_sorted = is_sorted
        self._unread.append(run)
        return run

    def adopt(self, run: Run) -> None:
        """Take a run over from another store, whose order was another."""
        self._number += 1
        run.number = self._number
        run.tally.add(-run.left, -run.left_bytes)
        run.tally = self.swapped
        run.tally.add(run.left, run.left_bytes)
        if run.file.summary.order == self.order:
            run.restore_file_order()
        else:
            run.unsort()
        self._unread.append(run)

    # -- swapping out, in two steps: the write between them happens without the mutex

    def cut(self, count: int) -> list[FlowFile]:
        """Set the last ones of the heap apart, to be written; they stay here until `written`."""
        entries = self._overflow
        if len(entries) < count:
            self._take_overflow_in()
            entries = self.heap
        entries.sort()  # a sorted list is a heap
        self._writing = entries[-count:]
        del entries[-count:]
        if not self._overflow:
            self._overflow_head = None
        return [flowfile for _, flowfile in self._writing]

    def written(self, file: SwapFile) -> None:
        """What was set apart is a run now."""
        summary = file.summary
        self.heap_size_bytes -= summary.size_bytes
        self.heap_used_bytes -= heap_bytes_of(summary.count, summary.attribute_characters)
        self._number += 1
        run = Run(file, self._number, self.swapped)
        run.key = self._writing[0][0]
        run.last_due_ms = self._writing[-1][1].penalty_until_ms
        heapq.heappush(self._ranked, (run.key, run.number, run))
        self._writing = []

    def not_written(self) -> None:
        """What was set apart stays in memory."""
        self.heap += self._writing
        heapq.heapify(self.heap)
        self._writing = []

    def _take_overflow_in(self) -> None:
        """Put the overflow into the heap, which may be more than its share then."""
        heap = self.heap
        if len(self._overflow) < len(heap) // 8:
            for entry in self._overflow:
                heapq.heappush(heap, entry)
        else:
            heap += self._overflow
            heapq.heapify(heap)
        self._overflow = []
        self._overflow_head = None

    # -- out

    def take(self, limit: int, before: Key | None = None) -> list[FlowFile]:
        """Take the first ones, all with keys less than one given.

        `is_blocked` says afterwards whether it stopped at what is being written or swept.
        """
        found: list[FlowFile] = []
        self.is_blocked = False
        while len(found) < limit and self.settle():
            run = self._first_run()
            if run is None:
                stop = self._writing[0][0] if self._writing else None
                if self._overflow_head is not None and self._overflow_head == self._memory_head():
                    self._take_overflow_in()
                if not self._take_from_heap(found, limit, _least(before, stop)):
                    self.is_blocked = stop is not None and stop == self.head()
                    break
            elif run.is_busy or not run.window:
                self.is_blocked = True  # swept, or its next window is just being read
                break
            elif not self._take_from_run(run, found, limit, before):
                break
        return found

    def _take_from_heap(self, found: list[FlowFile], limit: int, before: Key | None) -> int:
        heap, pop = self.heap, heapq.heappop
        before = _least(before, self._ranked[0][0] if self._ranked else None)
        before = _least(before, self._overflow_head)
        start = len(found)
        if before is None:
            while heap and len(found) < limit:
                found.append(pop(heap)[1])
        else:
            while heap and len(found) < limit and heap[0][0] < before:
                found.append(pop(heap)[1])
        taken = found[start:] if start else found
        self.heap_size_bytes -= sum([one.size for one in taken])
        self.heap_used_bytes -= heap_bytes(taken)
        return len(taken)

    def _take_from_run(
        self, run: Run, found: list[FlowFile], limit: int, before: Key | None
    ) -> int:
        stops = [ranked[0] for ranked in self._ranked[1:3]]
        stop = _least(min(stops, default=None), self._memory_head())
        taken, rows = run.take(limit - len(found), _least(before, stop))
        if taken:
            self.home.loaded(run.file, rows, [one.id for one in taken])
            found += taken
        self._rank_again(run)
        return len(taken)

    def _first_run(self) -> Run | None:
        """Return the run whose head comes first of all, if it is a run's."""
        if not self._ranked:
            return None
        key, _, run = self._ranked[0]
        memory = self._memory_head()
        return run if memory is None or key < memory else None

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
                if self._try_to_read(run):
                    self._rank(run)
                return True
        return False

    @property
    def is_unread(self) -> bool:
        """Say whether the head of some run is not known (it is being swept, or was just added)."""
        return bool(self._unread)

    @property
    def is_writing(self) -> bool:
        """Say whether some of it is being written."""
        return bool(self._writing)

    @property
    def retry_at_s(self) -> float | None:
        """Return when a run that cannot be read is tried again, monotonic; None: there is none."""
        return min((run.retry_at_s for run in self._resting), default=None)

    def next_window(self) -> Run | None:
        """Return the first run if it is time to read ahead in it."""
        if not self._ranked:
            return None
        run = self._ranked[0][2]
        if run.is_busy or run.is_read_ahead or run.is_read_out or not run.window:
            return None
        return run if run.window <= self.window_size() // 2 else None

    def attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        """Take what was read without the mutex, unless the run changed meanwhile."""
        if plan.generation == run.generation:
            self._attach(run, plan, found, keys)
            self.changed(run)

    def _attach(self, run: Run, plan: Plan, found: Rows, keys: Sequence[Key]) -> None:
        if len(found.lost):
            self.damages.append(Damage(run.file, found.lost, "pages do not verify"))
        run.attach(plan, found, keys)
        if not run.window and run.is_read_out and run.left:
            self.lose_rest(run, "it holds fewer rows than its summary says")

    def window_size(self) -> int:
        """Return how many rows to read at once, so that all windows keep within their bound."""
        open_runs = sum(1 for _, _, run in self._ranked if run.window) + len(self._unread) + 1
        return max(WINDOW_ROWS_MIN, min(WINDOW_ROWS_MAX, self._window_rows() // open_runs))

    def _window_rows(self) -> int:
        return max(self.threshold - self.memory_count, self.threshold // 4)

    def settle(self) -> bool:
        """Read until the head is known exactly, or cannot be had; False when nothing is left."""
        while self._ranked:
            run = self._first_run()
            if run is None or run.window or run.is_busy or run.is_read_ahead:
                return True
            heapq.heappop(self._ranked)
            if self._try_to_read(run):
                self._rank(run)
        return bool(self.heap or self._overflow or self._writing)

    def _try_to_read(self, run: Run) -> bool:
        """Read a window; False: the run is at its end, or rests for it cannot be read."""
        try:
            if not run.is_sorted:
                self._sort(run)
            self._make_room(run)
            while run.left and not run.window:
                self._read_window(run)
        except (NotFound, CorruptData) as error:
            self.lose_rest(run, str(error))
        except PenstockError:
            run.let_go()
            run.retry_at_s = self._clock.monotonic_s() + RETRY_S
            self._resting.append(run)
            return False
        if not run.left:
            run.close()
        return bool(run.left)

    def _read_window(self, run: Run) -> None:
        reader = run.open(self.home)
        plan = run.plan(self.window_size())
        found = reader.take(plan.rows)
        self._attach(run, plan, found, self.keys(found.flowfiles))

    def _sort(self, run: Run) -> None:
        """Read all that is left of a run to bring it into this store's order."""
        reader = run.open(self.home)
        rows = run.remaining().nonzero()[0]
        found = reader.take(rows)
        if len(found.lost):
            self.damages.append(Damage(run.file, found.lost, "pages do not verify"))
            run.lose(found.lost)
        run.resort(found.numbers, self.keys(found.flowfiles))

    def lose_rest(self, run: Run, reason: str) -> None:
        """Count all that is left of a run as lost."""
        rows = run.remaining().nonzero()[0]
        self.damages.append(Damage(run.file, rows, reason))
        run.let_go()
        run.lose(rows)

    def _make_room(self, wanted: Run) -> None:
        """Let go the windows that are needed last, when all together are too many."""
        total = sum(run.window for _, _, run in self._ranked)
        if total + self.window_size() <= self._window_rows():
            return
        for _, _, run in sorted(self._ranked, reverse=True):
            if run is not wanted and run.window and not (run.is_busy or run.is_read_ahead):
                total -= run.window
                run.let_go()
                if total + self.window_size() <= self._window_rows():
                    return

    def let_windows_go(self) -> int:
        """Forget all windows; return how many rows these were."""
        total = 0
        for run in self.runs():
            if run.window and not (run.is_busy or run.is_read_ahead):
                total += run.window
                run.let_go()
        return total

    # -- changes from outside

    def remove(self, ids: set[int]) -> list[FlowFile]:
        """Take FlowFiles of these ids out of memory."""
        self._take_overflow_in()
        gone = [flowfile for _, flowfile in self.heap if flowfile.id in ids]
        if gone:
            self.heap = [entry for entry in self.heap if entry[1].id not in ids]
            heapq.heapify(self.heap)
            self.heap_size_bytes -= sum([one.size for one in gone])
            self.heap_used_bytes -= heap_bytes(gone)
        return gone

    def changed(self, run: Run) -> None:
        """Rank a run anew after rows of it went, or forget it when none are left."""
        if run in self._unread or run in self._resting:
            if not run.left:
                for runs in (self._unread, self._resting):
                    with suppress(ValueError):
                        runs.remove(run)
                run.close()
            return
        self._ranked = [ranked for ranked in self._ranked if ranked[2] is not run]
        heapq.heapify(self._ranked)
        if run.left:
            self._rank(run)
        else:
            run.close()

    def release(self, run: Run) -> None:
        """Forget a run that goes to another store."""
        self._ranked = [ranked for ranked in self._ranked if ranked[2] is not run]
        heapq.heapify(self._ranked)

    def reorder(self, keys: KeyMaker, order: str) -> None:
        """Order everything anew; runs are sorted when they are read next."""
        self.keys, self.order = keys, order
        self._take_overflow_in()
        flowfiles = [flowfile for _, flowfile in self.heap]
        self.heap = list(zip(keys(flowfiles), flowfiles, strict=True))
        heapq.heapify(self.heap)
        self._unread += [run for _, _, run in self._ranked]
        self._ranked = []
        for run in (*self._unread, *self._resting):
            if run.file.summary.order == order:
                run.restore_file_order()
                run.is_sorted = True
            else:
                run.unsort()

    def walk(self) -> Iterator[FlowFile]:
        """Yield all in order, changing nothing; all heads must be known (`resolve_one`)."""
        memory = sorted(chain(self.heap, self._overflow))
        parts: list[Iterator[Entry]] = [iter(memory), iter(self._writing)]
        parts += [self._walk_run(run) for _, _, run in self._ranked]
        for _, flowfile in heapq.merge(*parts):
            yield flowfile

    def _walk_run(self, run: Run) -> Iterator[Entry]:
        with suppress(PenstockError):  # a look does not judge; the next poll does
            yield from entries_of(run, run.open(self.home), self.keys)

    def _rank(self, run: Run) -> None:
        assert run.key is not None
        heapq.heappush(self._ranked, (run.key, run.number, run))

    def _rank_again(self, run: Run) -> None:
        """Put the first run where its new key belongs."""
        assert run.key is not None
        if run.left:
            heapq.heapreplace(self._ranked, (run.key, run.number, run))
        else:
            heapq.heappop(self._ranked)
            run.close()


def _least(one: Key | None, other: Key | None) -> Key | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
