"""Queue of waiting events, with the only drop policy: without room, the oldest are dropped.

Owns a queue bounded by count. `put` takes a mutex for a few lines without input, output or large
allocations, so callers wait only for these lines.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.core.errors import InvalidRequest
from penstock.core.metrics import Counter

if TYPE_CHECKING:
    from penstock.core.clock import Clock

T = TypeVar("T")


class DropOldest(Generic[T]):
    """A queue between many producers and one consumer.

    Args:
        capacity: Maximum number of items.
        clock: Time.

    Raises:
        InvalidRequest: The capacity is less than 1.
    """

    def __init__(self, capacity: int, clock: Clock) -> None:
        if capacity < 1:
            raise InvalidRequest(f"invalid queue capacity {capacity}: use 1 or more")
        self._capacity = capacity
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._accepted = 0
        self._done = 0
        self._closed = False
        self.dropped = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T) -> bool:
        """Add an item; return False if one was dropped: the oldest, or this one after `close`."""
        with self._changed:
            if self._closed:
                self.dropped.add()
                return False
            self._accepted += 1
            self._waiting.append(item)
            if len(self._waiting) <= self._capacity:
                # A waiting consumer is woken for the first item; it takes all items that exist by
                # then.
                if len(self._waiting) == 1:
                    self._changed.notify_all()
                return True
            self._waiting.popleft()
            self._done += 1
            self.dropped.add()
            return False

    def take(self, count: int, timeout_s: float | None = None) -> list[T]:
        """Return up to `count` items, oldest first; wait for one; none when the time is over."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._clock.wait(self._changed, timeout_s)
            return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def done(self, count: int) -> None:
        """Report that this many taken items need no waiting any longer."""
        with self._changed:
            self._done += count
            self._changed.notify_all()

    def wait_done(self, timeout_s: float) -> bool:
        """Wait until all earlier items are done or dropped; return False after the time limit."""
        until_s = self._clock.monotonic_s() + timeout_s
        with self._changed:
            wanted = self._accepted
            while self._done < wanted:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return False
                self._clock.wait(self._changed, left_s)
        return True

    def close(self) -> None:
        """Accept no further items; waiting items can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Return whether the queue accepts no further items."""
        return self._closed
