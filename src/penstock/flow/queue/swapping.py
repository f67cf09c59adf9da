"""When a queue swaps out, and how often it tries again where the disk refuses.

Owns the decision and the write without the mutex. Does not own the file (`home`) nor the memory of
other queues (`budget`).

Invariants: one file of a queue is written at a time; whoever puts writes it, so that a slow disk
slows the source; what could not be written stays in memory, and is tried again when another batch
has come or `RETRY_S` have passed, not at every put.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.core.errors import PenstockError, counted
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.budget import HeapBudget
from penstock.flow.queue.contents import Contents
from penstock.flow.queue.store import Store
from penstock.flow.queue.swapped.windows import let_windows_go

RETRY_S: Final = 10.0
# What a queue keeps when the budget asks, whichever is less.
FLOOR_COUNT: Final = 200
FLOOR_BYTES: Final = 2 << 20

_logger = logging.getLogger(__name__)


class Swapping:
    """Swaps out what is over the threshold, or what the budget asks for.

    Args:
        contents: The queue's.
        budget: Shared by all queues, or None.
    """

    def __init__(self, contents: Contents, budget: HeapBudget | None) -> None:
        self._contents = contents
        self._budget = budget
        self._is_writing = False
        self._try_from_count = 0
        self._try_from_s = 0.0
        self.written_files = 0
        self.failures = 0
        self.last_failure = ""
        if budget is not None:
            budget.join(contents.queue_id, self.shed)

    def after_put(self) -> None:
        """Swap out what is over the threshold, batch by batch. The mutex is not held."""
        while self._contents.in_memory_count() >= self._limit() and self._swap_over_threshold():
            pass
        self.report_use(relieve=True)

    def report_use(self, *, relieve: bool = False) -> None:
        """Tell the budget; if asked, have it relieve. The mutex is not held."""
        if self._budget is not None:
            with self._contents.mutex:
                used_bytes = self._contents.used_bytes()
            if self._budget.hold(self._contents.queue_id, used_bytes) and relieve:
                self._budget.relieve()

    def shed(self) -> bool:
        """Swap out the later half, for the budget; False: nothing more to be had here."""
        contents = self._contents
        with contents.mutex:
            freed = sum(let_windows_go(store.runs) for store in contents.stores)
            store = max(contents.stores, key=lambda one: one.memory.movable_count)
            there, floor = store.memory.movable_count, _floor(store)
            count = min(there - floor, max(there // 2, floor), contents.options.swap_batch)
            # A file of a few would cost more than it frees.
            is_worth_it = 2 * count >= floor
            can_write = is_worth_it and not self._is_writing and self._may_try()
            if can_write and not freed:
                flowfiles = self._cut(store, count)
        if can_write and not freed:
            self._write(store, flowfiles)
        self.report_use()
        return bool(freed) or (can_write and not self.last_failure)

    def _batch(self) -> int:
        options = self._contents.options
        return min(options.swap_batch, options.swap_threshold)

    def _limit(self) -> int:
        return self._contents.options.swap_threshold + self._batch()

    def _swap_over_threshold(self) -> bool:
        contents, batch = self._contents, self._batch()
        with contents.mutex:
            while self._is_writing:
                if contents.in_memory_count() < self._limit() + batch:
                    return False
                contents.mutex.wait()
            if contents.in_memory_count() < self._limit() or not self._may_try():
                return False
            is_many = contents.penalized.memory.movable_count >= batch
            store = contents.penalized if is_many else contents.main
            flowfiles = self._cut(store, min(batch, store.memory.movable_count))
        return self._write(store, flowfiles)

    def _may_try(self) -> bool:
        contents = self._contents
        return (
            contents.in_memory_count() >= self._try_from_count
            or contents.clock.monotonic_s() >= self._try_from_s
        )

    def _cut(self, store: Store, count: int) -> list[FlowFile]:
        flowfiles = store.memory.cut(count)
        self._is_writing = True
        return flowfiles

    def _write(self, store: Store, flowfiles: list[FlowFile]) -> bool:
        contents = self._contents
        file = None
        failure = "it was broken off"
        try:
            file = contents.home.swap_out(contents.queue_id, flowfiles, store.order)
            failure = ""
        except PenstockError as error:
            failure = str(error)
        finally:
            with contents.mutex:
                self._is_writing = False
                contents.mutex.notify_all()  # they wait for the mutex, which is held until the end
                self.last_failure = failure
                if file is None:
                    store.memory.not_written()
                    self.failures += 1
                    self._try_from_count = contents.in_memory_count() + self._batch()
                    self._try_from_s = contents.clock.monotonic_s() + RETRY_S
                else:
                    store.written(file)
                    self.written_files += 1
                    self._try_from_count = 0
        if failure:
            _logger.error(
                "queue %s: a swap file of %s cannot be written, they stay in memory: %s",
                contents.queue_id, counted(len(flowfiles), "FlowFile"), failure,
            )  # fmt: skip
        return file is not None


def _floor(store: Store) -> int:
    """Return how many FlowFiles stay in memory: fewer where each has large attributes."""
    memory = store.memory
    mean_bytes = max(1, memory.used_bytes // max(1, len(memory)))
    return max(1, min(FLOOR_COUNT, FLOOR_BYTES // mean_bytes))
