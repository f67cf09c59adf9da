"""Swapping out: when a queue swaps, and how often it retries if the disk refuses.

Owns the decision, and the write without the mutex. Does not own the file (`home`) nor the memory of
other queues (`budget`).

Invariants: a queue writes one file at a time. The thread that puts FlowFiles writes it, so that a
slow disk slows the source. FlowFiles that could not be written stay in memory. The write is retried
when another batch has arrived or `RETRY_S` have passed, not at every put. The write ends whatever
is raised, so that no thread waits for it forever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, counted
from penstock.flow.queue.swapped.windows import let_windows_go

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.budget import HeapBudget
    from penstock.flow.queue.queue_state import Contents
    from penstock.flow.queue.store import Store
    from penstock.flow.queue.swap_store import SwapFile

RETRY_S: Final = 10.0
# Minimum that a queue keeps when the budget asks: the lower of the two.
FLOOR_COUNT: Final = 200
FLOOR_BYTES: Final = 2 << 20

_logger = logging.getLogger(__name__)


class Swapping:
    """Swaps out FlowFiles over the threshold, or at the request of the budget.

    Args:
        contents: State of the queue.
        budget: Memory budget of all queues, or None.
    """

    def __init__(self, contents: Contents, budget: HeapBudget | None) -> None:
        self._contents = contents
        self._budget = budget
        self._try_from_count = 0
        self._try_from_s = 0.0
        self.written_files = 0
        self.failures = 0
        self.last_failure = ""
        if budget is not None:
            budget.join(contents.queue_id, self.shed)

    def after_put(self) -> None:
        """Swap out FlowFiles over the threshold, batch by batch. The mutex is not held."""
        while self._contents.in_memory_count() >= self._limit() and self._swap_out(
            self._over_threshold
        ):
            pass
        self.report_use(relieve=True)

    def report_use(self, *, relieve: bool = False) -> None:
        """Report memory to the budget, and optionally let it relieve. The mutex is not held."""
        if self._budget is not None:
            with self._contents.mutex:
                used_bytes = self._contents.used_bytes()
            if self._budget.hold(self._contents.queue_id, used_bytes) and relieve:
                self._budget.relieve()

    def shed(self) -> bool:
        """Swap out the later half, for the budget; return False if nothing can be swapped out."""
        contents = self._contents
        with contents.mutex:
            freed = sum(let_windows_go(store.runs) for store in contents.stores)
        is_written = not freed and self._swap_out(self._later_half)
        self.report_use()
        return bool(freed) or is_written

    def _batch(self) -> int:
        options = self._contents.options
        return min(options.swap_batch, options.swap_threshold)

    def _limit(self) -> int:
        return self._contents.options.swap_threshold + self._batch()

    def _later_half(self) -> tuple[Store, int] | None:
        contents = self._contents
        store = max(contents.stores, key=lambda one: one.memory.movable_count)
        there, floor = store.memory.movable_count, _floor(store)
        count = min(there - floor, max(there // 2, floor), contents.options.swap_batch)
        # A file with few FlowFiles would cost more than it frees.
        is_worth_it = 2 * count >= floor
        can_write = is_worth_it and not contents.is_writing and self._may_try()
        return (store, count) if can_write else None

    def _over_threshold(self) -> tuple[Store, int] | None:
        contents, batch = self._contents, self._batch()
        while contents.is_writing:
            if contents.in_memory_count() < self._limit() + batch:
                return None
            contents.mutex.wait()
        if contents.in_memory_count() < self._limit() or not self._may_try():
            return None
        is_many = contents.penalized.memory.movable_count >= batch
        store = contents.penalized if is_many else contents.main
        return store, min(batch, store.memory.movable_count)

    def _may_try(self) -> bool:
        contents = self._contents
        return (
            contents.in_memory_count() >= self._try_from_count
            or contents.clock.monotonic_s() >= self._try_from_s
        )

    def _swap_out(self, choose: Callable[[], tuple[Store, int] | None]) -> bool:
        """Write chosen FlowFiles to a swap file; return whether any were written.

        Args:
            choose: Returns the store and the number of its FlowFiles; the mutex is held.
        """
        contents = self._contents
        store: Store | None = None
        file: SwapFile | None = None
        flowfiles: list[FlowFile] = []
        failure = "an exception ended the write"
        try:
            with contents.mutex:
                chosen = choose()
                if chosen is None:
                    return False
                contents.settle()
                flowfiles = chosen[0].memory.cut(chosen[1])
                store = chosen[0]
                contents.is_writing = True
            file = contents.home.swap_out(contents.queue_id, flowfiles, store.order)
            failure = ""
        except PenstockError as error:
            failure = str(error)
        finally:
            if store is not None:
                with contents.mutex:
                    store.written = file
                    contents.is_unsettled = True
                    contents.is_writing = False
                    contents.mutex.notify_all()  # they wait for the mutex
                    self._ended(failure)
        if failure:
            _logger.error(
                "queue %s: a swap file of %s could not be written, so they stay in memory: %s",
                contents.queue_id, counted(len(flowfiles), "FlowFile"), failure,
            )  # fmt: skip
        return file is not None

    def _ended(self, failure: str) -> None:
        contents = self._contents
        self.last_failure = failure
        if failure:
            self.failures += 1
        else:
            self.written_files += 1
            self._try_from_count = 0
        contents.settle()
        if failure:
            self._try_from_count = contents.in_memory_count() + self._batch()
            self._try_from_s = contents.clock.monotonic_s() + RETRY_S


def _floor(store: Store) -> int:
    """Return the number of FlowFiles to keep in memory: lower if attributes are large."""
    memory = store.memory
    mean_bytes = max(1, memory.used_bytes // max(1, len(memory)))
    return max(1, min(FLOOR_COUNT, FLOOR_BYTES // mean_bytes))
