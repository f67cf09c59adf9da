"""State of a queue, and its mutex: shared by the modules that put, take, sweep and list.

Owns the two stores (FlowFiles that can be taken, and penalized ones), the counts, and the rule of
the mutex. Does not own when FlowFiles are put, taken or swapped.

Invariants:

- All state is read and changed with `mutex` held, except by methods whose docstrings specify
  otherwise.
- `is_full` is updated with every change of a count, so that it can be read without the mutex.
- A thread that waits on `mutex` waits for a write or a sweep of one swap file, which always ends.
- No FlowFile is lost if a call raises, for example because the swap store fails or memory runs out.
  FlowFiles whose keys could not be computed are in `returned`. They are counted like the others,
  and added to their store by the next call. That call also ends a write to a swap file that an
  exception left unfinished.

The state has a mutex instead of mail, because sessions on many threads put and poll, for a few
microseconds each.
"""

from __future__ import annotations

import logging
import threading
from math import ceil

import numpy as np

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, counted
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import SortOrder, penalty_keys
from penstock.flow.queue.ordered_store import OrderedStore
from penstock.flow.queue.queue_size import Availability, QueueOptions, QueueSize
from penstock.flow.queue.swap_cursors import SwapCursor, SwapDamage, SwapTally, SwapWindows
from penstock.flow.queue.swap_store import RestoredSwapFile, SwapStore

PENALTY_ORDER = "penalty"
_CLOCK_STEP_MS = 1_000  # smaller steps are adjustments of the clock
_LONG_PENALTY_MS = 30_000

_logger = logging.getLogger(__name__)


class QueueState:
    """Stores and counts of one queue.

    Args:
        queue_id: Id of the queue.
        swap_store: Swap store of the queue.
        clock: For penalties.
        options: Thresholds and limits.
    """

    def __init__(
        self, queue_id: str, swap_store: SwapStore, clock: Clock, options: QueueOptions
    ) -> None:
        self.queue_id = queue_id
        self.swap_store = swap_store
        self.clock = clock
        self.options = options
        self.mutex = threading.Condition(threading.Lock())
        order = SortOrder()
        self.main = OrderedStore(order.keys, order.text, swap_store, clock, options.swap_threshold)
        self.penalized = OrderedStore(
            penalty_keys, PENALTY_ORDER, swap_store, clock, options.swap_threshold // 4
        )
        self.unacknowledged = SwapTally()
        self.shown = SwapTally()
        self.returned: list[FlowFile] = []
        self.lost_count = 0
        self.is_writing = False
        self.has_unfinished_write = False
        self.is_full = False
        self._last_ms, self._last_s = clock.now_ms(), clock.monotonic_s()
        self._longest_ms = _LONG_PENALTY_MS  # longest penalty seen
        self._frees_all = False  # penalized FlowFiles are moved to the others, due or not

    @property
    def stores(self) -> tuple[OrderedStore, OrderedStore]:
        """Return both stores."""
        return (self.main, self.penalized)

    def size(self) -> QueueSize:
        """Return the counts and bytes."""
        main, penalized = self.main, self.penalized
        apart, apart_bytes = self._apart()
        return QueueSize(
            len(main.memory) + len(penalized.memory) + apart,
            main.memory.size_bytes + penalized.memory.size_bytes + apart_bytes,
            main.cursors.swapped.count + penalized.cursors.swapped.count,
            main.cursors.swapped.size_bytes + penalized.cursors.swapped.size_bytes,
            self.unacknowledged.count,
            self.unacknowledged.size_bytes,
            len(main.cursors) + len(penalized.cursors),
            len(penalized.memory) + penalized.cursors.swapped.count,
        )

    def check_full(self) -> None:
        """Record whether the queue is full, to notify the listener when it has space again."""
        if not self.is_full:
            self.is_full = self._is_full_now()

    def has_got_space(self) -> bool:
        """Return, once, whether it was full and has space again."""
        if self.is_full and not self._is_full_now():
            self.is_full = False
            return True
        return False

    def _is_full_now(self) -> bool:
        options, stores = self.options, self.stores
        apart, apart_bytes = self._apart()
        count = apart + self.unacknowledged.count
        size_bytes = apart_bytes + self.unacknowledged.size_bytes
        for store in stores:
            count += len(store.memory) + store.cursors.swapped.count
            size_bytes += store.memory.size_bytes + store.cursors.swapped.size_bytes
        return options.is_full_with(count, size_bytes)

    def _apart(self) -> tuple[int, int]:
        """Return count and bytes of FlowFiles that are in no store."""
        count, size_bytes = self.shown.count, self.shown.size_bytes
        if self.returned:
            count += len(self.returned)
            size_bytes += sum([one.size for one in self.returned])
        return count, size_bytes

    def wait_until_written(self) -> None:
        """Wait until nothing is being written: then everything is in memory or in a cursor."""
        while self.is_writing:
            self.mutex.wait()
        self.finish_write()

    def finish_write(self) -> None:
        """Complete or undo a write; if this raises, the next call repeats it."""
        if self.has_unfinished_write:
            for store in self.stores:
                store.end_writing()
            self.has_unfinished_write = False

    def in_memory_count(self) -> int:
        """Return the number of FlowFiles in both stores that could be swapped out."""
        return self.main.memory.movable_count + self.penalized.memory.movable_count

    def used_bytes(self) -> int:
        """Return the approximate memory of both stores, including rows read ahead."""
        return self.main.used_bytes() + self.penalized.used_bytes()

    def sort_put(self) -> None:
        """Add FlowFiles that were put, as `sort_returned` does, and check for a full queue."""
        try:
            self.sort_returned()
        finally:
            if not self.is_full:
                self.is_full = self._is_full_now()

    def sort_returned(self) -> None:
        """Add each returned FlowFile to its store; if this raises, they stay in `returned`."""
        if self.has_unfinished_write:
            self.finish_write()
        flowfiles = self.returned
        if not flowfiles:
            return
        nothing: list[FlowFile] = []
        now_ms = self._now_ms()
        penalized = [one for one in flowfiles if one.penalty_until_ms > now_ms]
        if penalized:
            penalized = self._without_outdated(penalized, now_ms)
            waiting = {one.id for one in penalized}
            flowfiles = [one for one in flowfiles if one.id not in waiting]
        penalized_keys = self.penalized.keys_of(penalized)
        keys = self.main.keys_of(flowfiles)
        self.penalized.put(penalized_keys, penalized)
        self.returned = flowfiles
        self.main.put(keys, flowfiles)
        self.returned = nothing

    def admit_due(self) -> None:
        """Move FlowFiles whose penalty is over to the main store."""
        self.sort_returned()
        penalized = self.penalized
        if penalized.is_empty:
            self._frees_all = False
            return
        now_ms = self._now_ms()
        while penalized.cursors.resolve_one():
            pass
        for cursor in penalized.cursors:
            cannot_be_read = cursor.retry_at_s > self._last_s
            if cursor.is_busy or cursor.is_read_ahead or cannot_be_read:
                continue
            if self._frees_all or self._is_all_due(cursor, now_ms):
                cursor.let_go()
                self.main.cursors.adopt(cursor, penalized.cursors)
        before = None if self._frees_all else (now_ms + 1,)
        is_more = True
        while is_more:
            due: list[FlowFile] = []
            try:
                penalized.take(due, self.options.swap_batch, before)
                self.main.put(self.main.keys_of(due), due)
            except BaseException:
                self.returned += due
                raise
            is_more = bool(due)
        self._frees_all &= not penalized.is_empty  # some are being written or read

    def availability(self, now_ms: int) -> Availability:
        """Return whether a poll at this time would return a FlowFile, without iterating."""
        self.sort_returned()
        if self.main.has_some:
            return Availability.AVAILABLE
        due_ms = self.due_ms()
        if due_ms is None:
            return Availability.EMPTY
        return Availability.AVAILABLE if due_ms <= now_ms else Availability.PENALIZED

    def due_ms(self) -> int | None:
        """Return when the first penalty or the wait for an unreadable file ends; epoch ms."""
        self.sort_returned()
        times = [self._retry_ms(), self._penalized_due_ms()]
        return min([one for one in times if one is not None], default=None)

    def _penalized_due_ms(self) -> int | None:
        penalized = self.penalized
        if penalized.is_empty:
            return None
        now_ms = self._now_ms()
        if self._frees_all and penalized.has_some:
            return now_ms
        while penalized.cursors.resolve_one():
            pass
        penalized.resolve_head()
        head = penalized.head()
        if head is None:
            return None
        assert isinstance(head, tuple)
        return int(head[0])

    def _retry_ms(self) -> int | None:
        times = [one for store in self.stores if (one := store.cursors.retry_at_s) is not None]
        if not times:
            return None
        return self.clock.now_ms() + max(0, ceil((min(times) - self.clock.monotonic_s()) * 1_000))

    def _now_ms(self) -> int:
        """Return the wall time, and detect a clock that was set back.

        Then FlowFiles that are penalized at this moment would wait longer by that time. They are
        released at once instead, because early is less harmful than hours late. Later penalties use
        the new time.
        """
        now_ms, now_s = self.clock.now_ms(), self.clock.monotonic_s()
        step_ms = now_ms - self._last_ms - round((now_s - self._last_s) * 1_000)
        self._last_ms, self._last_s = now_ms, now_s
        if step_ms <= -_CLOCK_STEP_MS and not self.penalized.is_empty:
            self._frees_all = True
        return now_ms

    def _without_outdated(self, penalized: list[FlowFile], now_ms: int) -> list[FlowFile]:
        """Remove FlowFiles whose penalty was computed before the clock was set back.

        They appear to be queued in the future and would wait longer than any penalty. A session
        that had taken them returned them, or recovery restored them.
        """
        known = [one for one in penalized if one.queued_ms < now_ms + _CLOCK_STEP_MS]
        longest_ms = max([one.penalty_until_ms for one in known], default=now_ms) - now_ms
        self._longest_ms = max(self._longest_ms, longest_ms)
        if len(known) == len(penalized):
            return penalized
        end_ms = now_ms + self._longest_ms
        return [one for one in penalized if one.penalty_until_ms <= end_ms]

    def _is_all_due(self, cursor: SwapCursor, now_ms: int) -> bool:
        if cursor.key is None or not cursor.key < (now_ms + 1,):
            return False
        if cursor.last_due_ms is None:
            try:
                last = cursor.open(self.swap_store).take(np.array([cursor.file.summary.count - 1]))
            except PenstockError:
                return False
            if not last.flowfiles:
                return False
            cursor.last_due_ms = last.flowfiles[0].penalty_until_ms
        return cursor.last_due_ms <= now_ms

    def restore_cursor(self, restored: RestoredSwapFile) -> None:
        """Add a swap file that recovery found."""
        file = restored.file
        store = self.penalized if file.summary.order == PENALTY_ORDER else self.main
        cursor = store.cursors.add(file)
        if len(restored.done):
            rows = np.asarray(restored.done, np.int64)
            size_bytes = _size_of(self.swap_store, cursor, rows)
            if size_bytes is None:
                cursor.lose(rows)
            else:
                cursor.leave(cursor.removal(rows, size_bytes))
            store.cursors.changed(cursor)

    def report_damages(self) -> None:
        """Report unreadable rows to the swap store. Acquires the mutex itself."""
        if not (self.main.windows.damages or self.penalized.windows.damages):
            return
        for windows in (self.main.windows, self.penalized.windows):
            while damage := self._next_damage(windows):
                try:
                    self._report(damage)
                except BaseException:
                    with self.mutex:
                        windows.damages.insert(0, damage)
                    raise
                with self.mutex:
                    self.lost_count += len(damage.rows)

    def _next_damage(self, windows: SwapWindows) -> SwapDamage | None:
        with self.mutex:
            return windows.damages.pop(0) if windows.damages else None

    def _report(self, damage: SwapDamage) -> None:
        self.swap_store.damaged(damage.file, damage.rows.tolist(), damage.reason)
        _logger.error(
            "queue %s: lost %s of swap file %s: %s", self.queue_id,
            counted(len(damage.rows), "FlowFile"), damage.file.name, damage.reason,
        )  # fmt: skip


def _size_of(swap_store: SwapStore, cursor: SwapCursor, rows: np.ndarray) -> int | None:
    """Return the content bytes of rows; None if the file cannot be read."""
    wanted = np.zeros(cursor.file.summary.count, np.bool_)
    wanted[rows] = True
    try:
        return sum(
            int(page.integers("size")[0][wanted[page.start : page.start + page.count]].sum())
            for page in cursor.open(swap_store).pages()
        )
    except PenstockError:
        return None
    finally:
        cursor.close()
