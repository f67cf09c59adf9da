"""Memory for a large body that a client sends, from its first bytes to its last.

Owns the wait for memory, and the time limit of a body. Does not own the budget (`admission`) nor
the body (`intake`).

Invariant: memory and time limit belong to one body: each of several consecutive bodies has its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import PenstockError
from penstock.core.looptasks import start_job

if TYPE_CHECKING:
    from penstock.broker.publish_admission import ByteBudget

_logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 1 << 16  # smaller ones are bounded by the number of connections


class BodyReader(Protocol):
    """Reader of a body: a connection."""

    def read_body(self) -> None:
        """Begin or continue to read the body: its memory is reserved."""
        ...

    def fail(self, code: str, text: str) -> None:
        """Refuse the body with NSQ's texts: no memory, or the time limit was exceeded."""
        ...


class BodyRoom:
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
        if self._holding is None and wanted_bytes > _LARGE_BYTES:
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
            # The outermost handler of a task: its connection must not wait without end.
            _logger.exception("cannot reserve memory for a large body")
            reader.fail("E_PUB_FAILED", "PUB failed internal error")
