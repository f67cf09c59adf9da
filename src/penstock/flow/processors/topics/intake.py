"""Intake of messages for triggers: a consumer on the thread of a loop.

Owns the messages that have arrived until they are taken. It requeues messages that wait here too
long, so that they do not time out at the broker. Does not own FlowFiles (`consuming`).

Invariant: the caller of `take` finishes or requeues the messages that it got; all others are
requeued here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.client import Consumer, Message, finish_all
from penstock.core.errors import InvalidRequest
from penstock.core.looptasks import keep_running, start_awaited

if TYPE_CHECKING:
    from penstock.core.looptasks import LoopThread

HOLD_S: Final = 15.0


class _Arrived:
    """Messages that arrived together; compared by identity, to find them in the queue."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages


class Intake:
    """Keeps a consumer's messages for triggers. Methods without `async` are thread-safe.

    Args:
        loop: Event loop of the consumer.
        consumer: Creates the consumer; called on the loop.
        max_in_flight: Maximum number of messages in flight.
        batch: Maximum number of messages that are returned together.
        arrived: Called when messages can be taken.
    """

    def __init__(
        self,
        loop: LoopThread,
        consumer: Callable[[], Consumer],
        max_in_flight: int,
        batch: int,
        arrived: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._make = consumer
        self._max_in_flight = max_in_flight
        self._batch = batch
        self._arrived = arrived
        self._consumer: Consumer | None = None
        self._pump: asyncio.Task[None] | None = None
        # Both ends of a deque may be used by several threads; the thread that popped messages owns
        # them.
        self._waiting: deque[_Arrived] = deque()
        self._stopping: asyncio.Task[None] | None = None
        self._paused = False
        self.failure: InvalidRequest | None = None

    async def start(self) -> None:
        """Start to consume.

        Raises:
            InvalidRequest: A name or an address is invalid.
        """
        consumer = self._consumer = self._make()
        consumer.start()
        self._pump = keep_running("consumer", lambda: self._take_all(consumer), may_return=True)

    def begin_stop(self) -> None:
        """Requeue messages that were not taken, and disconnect when the others are answered."""
        self._loop.post(self._begin_stop)

    async def stop(self) -> None:
        """Stop, and wait until that is done."""
        await asyncio.shield(self._begin_stop())

    def _begin_stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = start_awaited(self._stop())
        return self._stopping

    async def _stop(self) -> None:
        while self._waiting:
            self._requeue(self._waiting.popleft().messages)
        if self._consumer is not None:
            await self._consumer.stop()
        if self._pump is not None:
            await asyncio.wait([self._pump])

    def take(self) -> Sequence[Message]:
        """Take messages that arrived together; empty if there are none."""
        if self._paused:
            self._paused = False
            self._loop.post(lambda: self._ask_for(self._max_in_flight))
        try:
            return self._waiting.popleft().messages
        except IndexError:
            return ()

    def finish(self, messages: Sequence[Message]) -> None:
        """Finish messages at the broker."""
        self._loop.post(lambda: finish_all(messages))

    def give_back(self, messages: Sequence[Message]) -> None:
        """Requeue messages at the broker."""
        self._loop.post(lambda: self._requeue(messages))

    async def _take_all(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        try:
            while messages := await consumer.take(self._batch):
                if self._stopping is not None:
                    self._requeue(messages)
                    continue
                arrived = _Arrived(messages)
                self._waiting.append(arrived)
                self._arrived()
                loop.call_later(HOLD_S, self._held_too_long, arrived)
        except InvalidRequest as error:
            self.failure = error
            self._arrived()

    def _held_too_long(self, arrived: _Arrived) -> None:
        try:
            self._waiting.remove(arrived)
        except ValueError:
            return  # they were taken
        self._paused = True
        self._ask_for(0)
        self._requeue(arrived.messages)

    def _ask_for(self, count: int) -> None:
        if self._consumer is not None:
            self._consumer.set_max_in_flight(count)

    @staticmethod
    def _requeue(messages: Sequence[Message]) -> None:
        for message in messages:
            message.requeue()
