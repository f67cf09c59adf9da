"""Received messages that are not being processed yet, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.client.message import Answers, Message
    from penstock.core.errors import PenstockError


class Inbox:
    """A queue with an end. The consumer's `max_in_flight` limits its length."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._failure: PenstockError | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        """Add messages."""
        self._messages.extend(messages)
        self._wake()

    def pop(self) -> Message | None:
        """Return the next message, if there is one."""
        return self._messages.popleft() if self._messages else None

    def take_all(self) -> list[Message]:
        """Remove and return all messages."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def forget(self, answers: Answers) -> None:
        """Drop messages of a closed connection, which can no longer be answered."""
        self._messages = deque(m for m in self._messages if not m.is_from(answers))

    async def take(self, limit: int) -> list[Message]:
        """Wait for messages; return at most `limit`, or none at the end.

        Raises:
            PenstockError: The error with which the inbox was ended.
        """
        while not self._messages and not self._ended:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake()  # this waiter was woken: wake another one instead
                raise
        if not self._messages and self._failure is not None:
            raise self._failure
        taken = list(islice(self._messages, limit))
        for _ in taken:
            self._messages.popleft()
        if self._messages:
            self._wake()
        return taken

    def end(self, failure: PenstockError | None = None) -> None:
        """End the queue, and wake all waiters."""
        self._ended = True
        self._failure = self._failure or failure
        while self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
