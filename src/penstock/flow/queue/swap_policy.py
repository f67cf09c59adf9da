"""Policy that decides when a queue swaps FlowFiles out and reads them ahead.

`SwapPolicy` owns the decision to swap out (over the threshold, or requested by the memory
budget), the write without the mutex, and the retry after a failed write. `ReadAhead` starts
reading the next window of the first swap cursor before the current one is used up. Does not own
the files (`swap_store`), the windows (`swap_cursors`) or the memory of other queues
(`heap_budget`).

Invariants: a queue writes one swap file at a time, on the thread that puts FlowFiles, so a slow
disk slows down the source of the FlowFiles. FlowFiles that could not be written stay in memory; the
write is retried when another batch has arrived or after `RETRY_S`. A write always ends, even if it
raises, so no thread waits for it forever. One read-ahead job runs for each queue; if it is late or
fails, the poll reads the window itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, counted
from penstock.flow.queue.queue_state import QueueState
from penstock.flow.queue.swap_cursors import SwapCursor, SwapPlan, let_windows_go

if TYPE_CHECKING:
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.heap_budget import HeapBudget
    from penstock.flow.queue.ordered_store import OrderedStore
    from penstock.flow.queue.swap_store import SwapFileInfo


RETRY_S: Final = 10.0
# Minimum that a queue keeps when the budget asks: the lower of the two.
FLOOR_COUNT: Final = 200
FLOOR_BYTES: Final = 2 << 20

_logger = logging.getLogger(__name__)


class SwapPolicy:
    """Swaps out FlowFiles over the threshold, or at the request of the budget.

    Args:
        queue_state: State of the queue.
        budget: Memory budget of all queues, or None.
    """

    def __init__(self, queue_state: QueueState, budget: HeapBudget | None) -> None:
        self._queue_state = queue_state
        self._budget = budget
        self._try_from_count = 0
        self._try_from_s = 0.0
        self.written_files = 0
        self.failures = 0
        self.last_failure = ""
        if budget is not None:
            budget.join(queue_state.queue_id, self.swap_out_some)

    def after_put(self) -> None:
        """Swap out FlowFiles over the threshold, batch by batch. The mutex is not held."""
        while self._queue_state.in_memory_count() >= self._limit() and self._swap_out(
            self._over_threshold
        ):
            pass
        self.report_use(relieve=True)

    def report_use(self, *, relieve: bool = False) -> None:
        """Report memory to the budget, and optionally let it relieve. The mutex is not held."""
        if self._budget is not None:
            with self._queue_state.mutex:
                used_bytes = self._queue_state.used_bytes()
            if self._budget.hold(self._queue_state.queue_id, used_bytes) and relieve:
                self._budget.relieve()

    def swap_out_some(self) -> bool:
        """Swap out the later half, for the budget; return False if nothing can be swapped out."""
        queue_state = self._queue_state
        with queue_state.mutex:
            freed = sum(let_windows_go(store.cursors) for store in queue_state.stores)
        is_written = not freed and self._swap_out(self._later_half)
        self.report_use()
        return bool(freed) or is_written

    def _batch(self) -> int:
        options = self._queue_state.options
        return min(options.swap_batch, options.swap_threshold)

    def _limit(self) -> int:
        return self._queue_state.options.swap_threshold + self._batch()

    def _later_half(self) -> tuple[OrderedStore, int] | None:
        queue_state = self._queue_state
        store = max(queue_state.stores, key=lambda one: one.memory.movable_count)
        there, floor = store.memory.movable_count, _floor(store)
        count = min(there - floor, max(there // 2, floor), queue_state.options.swap_batch)
        # A file with few FlowFiles would cost more than it frees.
        is_worth_it = 2 * count >= floor
        can_write = is_worth_it and not queue_state.is_writing and self._may_try()
        return (store, count) if can_write else None

    def _over_threshold(self) -> tuple[OrderedStore, int] | None:
        queue_state, batch = self._queue_state, self._batch()
        while queue_state.is_writing:
            if queue_state.in_memory_count() < self._limit() + batch:
                return None
            queue_state.mutex.wait()
        if queue_state.in_memory_count() < self._limit() or not self._may_try():
            return None
        is_many = queue_state.penalized.memory.movable_count >= batch
        store = queue_state.penalized if is_many else queue_state.main
        return store, min(batch, store.memory.movable_count)

    def _may_try(self) -> bool:
        queue_state = self._queue_state
        return (
            queue_state.in_memory_count() >= self._try_from_count
            or queue_state.clock.monotonic_s() >= self._try_from_s
        )

    def _swap_out(self, choose: Callable[[], tuple[OrderedStore, int] | None]) -> bool:
        """Write chosen FlowFiles to a swap file; return whether any were written.

        Args:
            choose: Returns the store and the number of its FlowFiles; the mutex is held.
        """
        queue_state = self._queue_state
        store: OrderedStore | None = None
        file: SwapFileInfo | None = None
        flowfiles: list[FlowFile] = []
        failure = "an exception ended the write"
        try:
            with queue_state.mutex:
                chosen = choose()
                if chosen is None:
                    return False
                queue_state.finish_write()
                flowfiles = chosen[0].memory.cut(chosen[1])
                store = chosen[0]
                queue_state.is_writing = True
            file = queue_state.swap_store.swap_out(queue_state.queue_id, flowfiles, store.order)
            failure = ""
        except PenstockError as error:
            failure = str(error)
        finally:
            if store is not None:
                with queue_state.mutex:
                    store.written = file
                    queue_state.has_unfinished_write = True
                    queue_state.is_writing = False
                    queue_state.mutex.notify_all()  # they wait for the mutex
                    self._ended(failure)
        if failure:
            _logger.error(
                "queue %s: a swap file of %s could not be written, so they stay in memory: %s",
                queue_state.queue_id, counted(len(flowfiles), "FlowFile"), failure,
            )  # fmt: skip
        return file is not None

    def _ended(self, failure: str) -> None:
        queue_state = self._queue_state
        self.last_failure = failure
        if failure:
            self.failures += 1
        else:
            self.written_files += 1
            self._try_from_count = 0
        queue_state.finish_write()
        if failure:
            self._try_from_count = queue_state.in_memory_count() + self._batch()
            self._try_from_s = queue_state.clock.monotonic_s() + RETRY_S


def _floor(store: OrderedStore) -> int:
    """Return the number of FlowFiles to keep in memory: lower if attributes are large."""
    memory = store.memory
    mean_bytes = max(1, memory.used_bytes // max(1, len(memory)))
    return max(1, min(FLOOR_COUNT, FLOOR_BYTES // mean_bytes))


Background = Callable[[Callable[[], None]], object]


class ReadAhead:
    """Reads ahead in the first swap file; one job per queue at a time.

    Args:
        queue_state: State of the queue.
        background: Runs a job soon, on another thread; None: nothing is read ahead.
    """

    def __init__(self, queue_state: QueueState, background: Background | None) -> None:
        self._queue_state = queue_state
        self._background = background
        self._is_requested = False
        self.windows_read = 0

    def after_taking(self) -> None:
        """Request the next window if it is time. The mutex is not held."""
        if self._background is None or self._is_requested:
            return
        with self._queue_state.mutex:
            self._is_requested = self._next() is not None
            if not self._is_requested:
                return
        try:
            self._background(self._read)
        except BaseException:
            self._is_requested = False
            raise

    def _read(self) -> None:
        queue_state, main = self._queue_state, self._queue_state.main
        with queue_state.mutex:
            self._is_requested = False
            wanted = self._next()
            if wanted is None:
                return
            cursor, plan = wanted
            try:
                reader = cursor.open(queue_state.swap_store)
            except PenstockError:
                return  # the poll that needs the file reports it
            cursor.is_read_ahead = True
        read = None
        try:
            found = reader.take(plan.rows)
            read = found, main.windows.keys(found.flowfiles)
        except PenstockError:
            pass  # the poll that needs the rows reports it
        finally:
            with queue_state.mutex:
                cursor.is_read_ahead = False
                queue_state.mutex.notify_all()  # they wait for the mutex
                if read is not None and main.windows.attach(cursor, plan, *read):
                    self.windows_read += 1
                    main.cursors.changed(cursor)
                self._close_if_gone(cursor)

    def _next(self) -> tuple[SwapCursor, SwapPlan] | None:
        """Return the first cursor and the rows to read of it; None if there is nothing to read."""
        main = self._queue_state.main
        ranked = main.cursors.ranked()
        plan = main.windows.next_plan(ranked[0], ranked) if ranked else None
        return None if plan is None else (ranked[0], plan)

    @staticmethod
    def _close_if_gone(cursor: SwapCursor) -> None:
        if not cursor.left:
            cursor.close()
