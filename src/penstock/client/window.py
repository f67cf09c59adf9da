"""Limit on concurrent work by count and by bytes; first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """Window of concurrent work. A single item larger than the window is admitted alone.

    Args:
        max_count: Maximum number of items.
        max_bytes: Maximum total size of the items.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._count = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def count(self) -> int:
        """Number of admitted items."""
        return self._count

    def try_enter(self, size: int) -> bool:
        """Enter if the item fits and no other one waits."""
        if self._waiting or not self._fits(size):
            return False
        self._take(size)
        return True

    async def enter(self, size: int) -> None:
        """Wait until the item fits, and enter."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            else:
                self._admit()  # later waiters may fit
            raise

    def leave(self, size: int) -> None:
        """Leave, and admit waiting items."""
        self._count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()

    def _fits(self, size: int) -> bool:
        return not self._count or (
            self._count < self._max_count and self._bytes + size <= self._max_bytes
        )

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size

    def _admit(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._take(size)
                turn.set_result(None)
            self._waiting.popleft()
