"""Memory budget of publish bodies for the whole broker, in bytes.

`ByteBudget` owns the count of bytes and the queue of waiting publishers. Memory is reserved before
a body is read, so a body without it stays in the kernel's socket buffers and slows its sender down.
`BodyMemory` owns the wait of one connection for the memory of a large body, and the time limit for
receiving it; each body has its own.

Invariants: the reserved bytes never exceed the limit; waiters are served in order of arrival; a
waiter that is cancelled or times out leaves no trace. Used on one event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import PenstockError, Unavailable
from penstock.core.loop_tasks import start_job

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_logger = logging.getLogger(__name__)

LARGE_BODY_BYTES: Final = 1 << 16
"""Size above which a body needs memory of the budget; the connections bound smaller ones."""


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


class BodyReader(Protocol):
    """Reader of a body: a connection."""

    def read_body(self) -> None:
        """Begin or continue to read the body: its memory is reserved."""
        ...

    def fail(self, code: str, text: str) -> None:
        """Refuse the body with NSQ's texts: no memory, or the time limit was exceeded."""
        ...


class BodyMemory:
    """Memory for the large bodies of one connection.

    Args:
        budget: Budget from which memory is reserved.
        timeout_ms: Time limit of a body once its memory is reserved.

    Attributes:
        is_awaited: A body waits for memory, and is not read.
    """

    __slots__ = ("_budget", "_holding", "_timeout_ms", "is_awaited")

    def __init__(self, budget: ByteBudget, timeout_ms: int) -> None:
        self.is_awaited = False
        self._budget = budget
        self._timeout_ms = timeout_ms
        self._holding: asyncio.Task[None] | None = None

    def watch(self, reader: BodyReader, wanted_bytes: int, *, is_another: bool) -> bool:
        """Reserve memory for a large body that is being received, until it has ended.

        Args:
            reader: Its reader; not kept after the body.
            wanted_bytes: Missing bytes of the current body; 0: there is none.
            is_another: It is a different body than at the last call.

        Returns:
            Whether `is_awaited` may have changed.
        """
        changed = False
        if self._holding is not None and (is_another or not wanted_bytes):
            self.close()
            changed = True
        if self._holding is None and wanted_bytes > LARGE_BODY_BYTES:
            # The task begins in a later iteration of the loop.
            self._holding = start_job("body room", self._hold(reader, wanted_bytes))
            self.is_awaited = changed = True
        return changed

    def close(self) -> None:
        """Release the memory."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        self.is_awaited = False

    async def _hold(self, reader: BodyReader, size_bytes: int) -> None:
        try:
            async with self._budget.reserve(size_bytes):
                self.is_awaited = False
                reader.read_body()
                await asyncio.sleep(self._timeout_ms / 1000)
            reader.fail("E_BAD_BODY", f"body did not arrive within {self._timeout_ms} ms")
        except PenstockError as error:
            reader.fail("E_PUB_FAILED", f"PUB failed {error}")
        except Exception:
            # The outermost handler of a task: its connection must not wait forever.
            _logger.exception("cannot reserve memory for a large body")
            reader.fail("E_PUB_FAILED", "PUB failed internal error")
