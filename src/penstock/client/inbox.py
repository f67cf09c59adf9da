"""The messages that came and that nobody works on yet, in the order in which they came."""

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
    """A queue with an end. What bounds it is the consumer's `max_in_flight`."""

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
        """Return all messages."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    def forget(self, answers: Answers) -> None:
        """Leave out messages whose answers would go where nothing goes any more."""
        self._messages = deque(m for m in self._messages if not m.came_on(answers))

    async def take(self, limit: int) -> list[Message]:
        """Wait for messages; return `limit` at most, none when the end is reached.

        Raises:
            PenstockError: What the inbox was ended with.
        """
        while not self._messages and not self._ended:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake()  # this one was chosen: let another be
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
        """Let everybody know that nothing more comes."""
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
