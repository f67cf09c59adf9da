"""When a queue swaps out, and how often it tries again where the disk refuses.

Owns the decision and the write without the mutex. Does not own the file (`home`) nor the memory of
other queues (`budget`).

Invariants: one file of a queue is written at a time; whoever puts writes it, so that a slow disk
slows the source; what could not be written stays in memory, and is tried again when another batch
has come or `RETRY_S` have passed, not at every put. Whatever is raised, the write ends, so that
nobody waits for it.
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
    from penstock.flow.queue.contents import Contents
    from penstock.flow.queue.home import SwapFile
    from penstock.flow.queue.store import Store

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
        self._try_from_count = 0
        self._try_from_s = 0.0
        self.written_files = 0
        self.failures = 0
        self.last_failure = ""
        if budget is not None:
            budget.join(contents.queue_id, self.shed)

    def after_put(self) -> None:
        """Swap out what is over the threshold, batch by batch. The mutex is not held."""
        while self._contents.in_memory_count() >= self._limit() and self._swap_out(
            self._over_threshold
        ):
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
        # A file of a few would cost more than it frees.
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
        """Write what is chosen to a swap file; say whether something was written.

        Args:
            choose: Returns the store and how many FlowFiles of it; the mutex is held.
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
                    contents.mutex.notify_all()  # they wait for the mutex, held until the end
                    self._ended(failure)
        if failure:
            _logger.error(
                "queue %s: a swap file of %s cannot be written, they stay in memory: %s",
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
    """Return how many FlowFiles stay in memory: fewer where each has large attributes."""
    memory = store.memory
    mean_bytes = max(1, memory.used_bytes // max(1, len(memory)))
    return max(1, min(FLOOR_COUNT, FLOOR_BYTES // mean_bytes))
