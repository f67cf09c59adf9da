"""One bound on the memory of FlowFiles over all queues together.

Owns the estimates of all queues and the choice of who swaps out. Does not own the swapping.

Invariant: its mutex is held around a few lines on numbers, and never while a queue swaps; mail will
not do, as whoever put too much shall wait until there is room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from penstock.flow.flowfile import FlowFile

# A struct, its claim, a dict and their entries in lists, as measured; texts are added.
FLOWFILE_BYTES: Final = 1_000


def heap_bytes_of(count: int, characters: int) -> int:
    """Return about how much memory FlowFiles take, whose attributes have so many characters."""
    return FLOWFILE_BYTES * count + characters


def heap_bytes(flowfiles: Sequence[FlowFile]) -> int:
    """Return about how much memory FlowFiles take."""
    texts = chain.from_iterable([one.attributes.values() for one in flowfiles])
    return heap_bytes_of(len(flowfiles), sum(map(len, texts)))


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
        """Learn how much a queue holds; return whether all together hold too much."""
        with self._mutex:
            if queue in self._used:
                self._total += used_bytes - self._used[queue]
                self._used[queue] = used_bytes
            return self._total > self.limit_bytes

    def relieve(self) -> None:
        """Have the fattest queues swap out until the limit holds, or none can any more."""
        spent: set[str] = set()
        while True:
            with self._mutex:
                candidates = self._used.keys() - spent
                if self._total <= self.limit_bytes or not candidates:
                    return
                fattest = max(candidates, key=self._used.__getitem__)
                shed = self._sheds[fattest]
            if not shed():
                spent.add(fattest)
