"""One bound on the memory of FlowFiles over all queues together.

Owns the estimates of all queues and the choice of who swaps out. Does not own the swapping.

Invariant: its mutex is held around a few lines on numbers, and never while a queue swaps; mail will
not do, as whoever put too much shall wait until there is room.
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

# A struct, its claim, a dict and their entries in lists, as measured; texts are added.
FLOWFILE_BYTES: Final = 1_000
# Looking at the texts of all would be a tenth of the work on FlowFiles in batches.
_MANY: Final = 256
_STEP: Final = 8

_PATIENCE: Final = 64  # such a part of the limit more, before all are asked in vain again


def heap_bytes_of(count: int, characters: int) -> int:
    """Return about how much memory FlowFiles take, whose attributes have so many characters."""
    return FLOWFILE_BYTES * count + characters


def heap_bytes(flowfiles: Sequence[FlowFile]) -> int:
    """Return about how much memory FlowFiles take: of many, what every eighth of them says."""
    looked_at = flowfiles if len(flowfiles) < _MANY else flowfiles[::_STEP]
    texts = chain.from_iterable([one.attributes.values() for one in looked_at])
    characters = sum(map(len, texts))
    if looked_at is not flowfiles:
        characters = characters * len(flowfiles) // len(looked_at)
    return heap_bytes_of(len(flowfiles), characters)


def _has_shed(queue: str, shed: Callable[[], bool]) -> bool:
    """Have a queue swap out. Its failure must not fail the put of another queue."""
    try:
        return shed()
    except Exception:  # noqa: BLE001 - logged; the queue has put back what it took
        _log.exception("queue %s cannot swap out to make room for others", queue)
        return False


class HeapBudget:
    """Bytes of FlowFiles in memory, over all queues; who passes the limit makes the fattest swap.

    Args:
        limit_bytes: An estimate, not a measure: a constant for each FlowFile and its attributes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._mutex = threading.Lock()
        self._used: dict[str, int] = {}
        self._sheds: dict[str, Callable[[], bool]] = {}
        self._total = 0
        self._bearable = limit_bytes

    @property
    def used_bytes(self) -> int:
        """Return the estimate over all queues."""
        return self._total

    def join(self, queue: str, shed: Callable[[], bool]) -> None:
        """Count a queue.

        Args:
            queue: Its id.
            shed: Has it swap out some of what it holds; False when it cannot, or is at its floor.
        """
        with self._mutex:
            self._sheds[queue] = shed
            self._used.setdefault(queue, 0)

    def leave(self, queue: str) -> None:
        """Forget a queue."""
        with self._mutex:
            self._total -= self._used.pop(queue, 0)
            self._sheds.pop(queue, None)

    def hold(self, queue: str, used_bytes: int) -> bool:
        """Learn how much a queue holds; return whether it is time to `relieve`."""
        with self._mutex:
            if queue in self._used:
                self._total += used_bytes - self._used[queue]
                self._used[queue] = used_bytes
            if self._total <= self.limit_bytes:
                self._bearable = self.limit_bytes
            return self._total > self._bearable

    def relieve(self) -> None:
        """Have the fattest queues swap out until the limit holds, or none can any more.

        Where none can, they are not asked again at every put, but when all hold a little more.
        """
        with self._mutex:
            fattest = [(-used_bytes, queue) for queue, used_bytes in self._used.items()]
        heapq.heapify(fattest)
        while fattest:
            _, queue = heapq.heappop(fattest)
            with self._mutex:
                if self._total <= self.limit_bytes:
                    return
                shed = self._sheds.get(queue)
            if shed is not None and _has_shed(queue, shed):
                with self._mutex:
                    heapq.heappush(fattest, (-self._used.get(queue, 0), queue))
        with self._mutex:
            self._bearable = self._total + self.limit_bytes // _PATIENCE
