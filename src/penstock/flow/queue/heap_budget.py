"""Memory limit for the FlowFiles of all queues together.

Owns the estimates of all queues and the choice of the queue that swaps out. Does not own the
swapping.

Invariant: the mutex is held for a few lines on numbers, and never while a queue swaps. Mail is not
suitable, because a thread that puts too much must wait until there is room.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from penstock.flow.flowfile import FlowFile

_log = logging.getLogger(__name__)

# Measured size of a struct, its claim, a dict and their list entries; text is added.
FLOWFILE_BYTES: Final = 1_000
# Measuring the texts of all FlowFiles would take a tenth of the time of batches.
_MANY: Final = 256
_STEP: Final = 8

# Part of the limit by which queues must grow before they are tried again.
_RETRY_DIVISOR: Final = 64


def heap_bytes_of(count: int, characters: int) -> int:
    """Return the approximate memory of FlowFiles, given the total length of their attributes."""
    return FLOWFILE_BYTES * count + characters


def heap_bytes(flowfiles: Sequence[FlowFile]) -> int:
    """Return the approximate memory of FlowFiles; for many, every eighth is a sample."""
    sample = flowfiles if len(flowfiles) < _MANY else flowfiles[::_STEP]
    texts = chain.from_iterable([one.attributes.values() for one in sample])
    characters = sum(map(len, texts))
    if sample is not flowfiles:
        characters = characters * len(flowfiles) // len(sample)
    return heap_bytes_of(len(flowfiles), characters)


def _has_swapped_out(queue: str, swap_out: Callable[[], bool]) -> bool:
    """Make a queue swap out. A failure must not fail the put of another queue."""
    try:
        return swap_out()
    except Exception:  # noqa: BLE001 - logged; the queue has put its FlowFiles back
        _log.exception("queue %s could not swap out to make room for other queues", queue)
        return False


class HeapBudget:
    """Memory of FlowFiles over all queues; above the limit, the largest queue swaps out.

    Args:
        limit_bytes: Limit of an estimate: a constant for each FlowFile and its attributes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._used: dict[str, int] = {}
        self._swap_outs: dict[str, Callable[[], bool]] = {}
        self._total = 0
        self._next_relief_bytes = limit_bytes

    @property
    def used_bytes(self) -> int:
        """Return the estimate over all queues."""
        return self._total

    def join(self, queue: str, swap_out: Callable[[], bool]) -> None:
        """Add a queue.

        Args:
            queue: Id of the queue.
            swap_out: Makes the queue swap out some FlowFiles; returns False if it cannot, or is at
                its minimum.
        """
        with self._mutex:
            self._swap_outs[queue] = swap_out
            self._used.setdefault(queue, 0)

    def leave(self, queue: str) -> None:
        """Remove a queue."""
        with self._mutex:
            self._total -= self._used.pop(queue, 0)
            self._swap_outs.pop(queue, None)

    def hold(self, queue: str, used_bytes: int) -> bool:
        """Record the memory of a queue; return whether `relieve` should be called."""
        with self._mutex:
            if queue in self._used:
                self._total += used_bytes - self._used[queue]
                self._used[queue] = used_bytes
            if self._total <= self.limit_bytes:
                self._next_relief_bytes = self.limit_bytes
            return self._total > self._next_relief_bytes

    def relieve(self) -> None:
        """Make the largest queues swap out until the total is below the limit or none can.

        If none can, they are tried again only after their total has grown by a part of the
        limit.
        """
        with self._mutex:
            largest = [(-used_bytes, queue) for queue, used_bytes in self._used.items()]
        heapq.heapify(largest)
        while largest:
            _, queue = heapq.heappop(largest)
            with self._mutex:
                if self._total <= self.limit_bytes:
                    return
                swap_out = self._swap_outs.get(queue)
            if swap_out is not None and _has_swapped_out(queue, swap_out):
                with self._mutex:
                    heapq.heappush(largest, (-self._used.get(queue, 0), queue))
        with self._mutex:
            self._next_relief_bytes = self._total + self.limit_bytes // _RETRY_DIVISOR
