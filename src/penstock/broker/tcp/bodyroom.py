"""Room in memory for a large body that a client sends, from its first bytes to its last.

Owns the wait for room, and the time that a body may take. Does not own the room (`admission`) nor
the body (`intake`).

Invariant: room and time are of one body: of those that come without a pause each has its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import PenstockError
from penstock.core.looptasks import start_job

if TYPE_CHECKING:
    from penstock.broker.admission import ByteBudget

_logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 1 << 16  # smaller ones are bounded by the number of connections


class BodyReader(Protocol):
    """Who reads a body: a connection."""

    def read_body(self) -> None:
        """Read it now, or go on: it has its room."""
        ...

    def fail(self, code: str, text: str) -> None:
        """Refuse it, in NSQ's words: there was no room, or its time is over."""
        ...


class BodyRoom:
    """The room of one connection.

    Args:
        budget: Gives it.
        timeout_ms: How long a body may take, once it has room.

    Attributes:
        is_awaited: A body waits for room, and is not read.
    """

    __slots__ = ("_budget", "_holding", "_timeout_ms", "is_awaited")

    def __init__(self, budget: ByteBudget, timeout_ms: int) -> None:
        self.is_awaited = False
        self._budget = budget
        self._timeout_ms = timeout_ms
        self._holding: asyncio.Task[None] | None = None

    def watch(self, reader: BodyReader, wanted_bytes: int, *, is_another: bool) -> bool:
        """Let a large body that is under way have its room, and no longer than it is under way.

        Args:
            reader: Who reads it; kept no longer than there is a body.
            wanted_bytes: What the body under way lacks; 0: there is none.
            is_another: It is not the one of the last call.

        Returns:
            Whether `is_awaited` may have changed.
        """
        changed = False
        if self._holding is not None and (is_another or not wanted_bytes):
            self.close()
            changed = True
        if self._holding is None and wanted_bytes > _LARGE_BYTES:
            # The task begins in a later turn of the loop.
            self._holding = start_job("body room", self._hold(reader, wanted_bytes))
            self.is_awaited = changed = True
        return changed

    def close(self) -> None:
        """Give the room back."""
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
            # The top of a task: its connection must not wait for room that nobody asks for.
            _logger.exception("a large body cannot have its room")
            reader.fail("E_PUB_FAILED", "PUB failed internal error")
