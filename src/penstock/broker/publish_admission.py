"""Memory budget of publish bodies for the whole broker, in bytes.

Owns the count of bytes and the queue of waiting publishers. Memory is reserved before a body is
read, so a body without it stays in the kernel's socket buffers and slows its sender down.

Invariants: the reserved bytes never exceed the limit; waiters are served in order of arrival; a
waiter that is cancelled or times out leaves no trace. Used on one event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class ByteBudget:
    """Budget of bytes that may be reserved at once.

    Args:
        limit_bytes: The limit; a larger request counts as the whole limit.
        timeout_s: How long a request waits before it is refused.
    """

    def __init__(self, limit_bytes: int, timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.refused = 0

    @property
    def held_bytes(self) -> int:
        """Number of reserved bytes."""
        return self._held_bytes

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncGenerator[None]:
        """Reserve bytes of the budget during a ``with`` block.

        Raises:
            Unavailable: The time limit of the wait was exceeded.
        """
        size = min(size_bytes, self._limit_bytes)
        if self._waiting or self._held_bytes + size > self._limit_bytes:
            await self._wait(size)
        else:
            self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size
            self._admit()

    async def _wait(self, size: int) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, admitted)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._timeout_s):
                await admitted
        except BaseException as error:
            if admitted.done() and not admitted.cancelled():
                # The bytes were reserved in the moment of the time-out: release them.
                self._held_bytes -= size
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
            self._admit()
            if isinstance(error, TimeoutError):
                self.refused += 1
                raise Unavailable(
                    f"publishes hold {self._held_bytes} bytes of memory and the limit is "
                    f"{self._limit_bytes}: publish again later, or raise max_inflight_bytes"
                ) from None
            raise

    def _admit(self) -> None:
        while self._waiting:
            size, admitted = self._waiting[0]
            if admitted.cancelled():
                self._waiting.popleft()
                continue
            if self._held_bytes + size > self._limit_bytes:
                return
            self._waiting.popleft()
            self._held_bytes += size
            admitted.set_result(None)
