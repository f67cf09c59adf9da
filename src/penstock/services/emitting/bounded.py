"""The one place where events wait, and the one drop policy: the oldest go when there is no room.

Owns a queue bounded by count. Putting takes a mutex around a few lines, in which nothing is
written, sent or allocated at length; so nobody who puts waits longer than for these lines.
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
    """A queue between many who put and one that takes.

    Args:
        capacity: How many may wait.
        clock: Time.

    Raises:
        InvalidRequest: The capacity is below 1.
    """

    def __init__(self, capacity: int, clock: Clock) -> None:
        if capacity < 1:
            raise InvalidRequest(f"a queue of {capacity} holds nothing: let 1 wait at least")
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
        """Add an item; false if one had to go for it: the oldest, or this one after the close."""
        with self._changed:
            if self._closed:
                self.dropped.add()
                return False
            self._accepted += 1
            self._waiting.append(item)
            if len(self._waiting) <= self._capacity:
                # One who waits is told of the first; it takes all that there is by then.
                if len(self._waiting) == 1:
                    self._changed.notify_all()
                return True
            self._waiting.popleft()
            self._done += 1
            self.dropped.add()
            return False

    def take(self, count: int, timeout_s: float | None = None) -> list[T]:
        """Return up to so many items, the oldest first; wait for one; none when time is over."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._clock.wait(self._changed, timeout_s)
            return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def done(self, count: int) -> None:
        """Tell that so many taken items need no waiting for any more."""
        with self._changed:
            self._done += count
            self._changed.notify_all()

    def wait_done(self, timeout_s: float) -> bool:
        """Wait until everything that was put before is done or dropped; false if it was not."""
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
        """Take nothing in any more; what waits can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes in any more."""
        return self._closed
