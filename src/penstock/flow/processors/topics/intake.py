"""Messages of a channel on their way to triggers: a consumer on the thread of a loop.

Owns the messages that came until they are taken, and gives them back when nobody takes them for
long, so that they do not run into the broker's timeout here. Does not own FlowFiles (`consuming`).

Invariant: a message that was given to `take` is finished or given back by whoever took it; all
others are given back here.
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
    """Messages that came together; one of a kind, so that it can be found in the line."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages


class Intake:
    """Keeps a consumer's messages for triggers. Methods without `async` are for any thread.

    Args:
        loop: Where the consumer lives.
        consumer: Makes it; called on the loop.
        max_in_flight: Of the consumer.
        batch: Messages that come together, at most.
        arrived: Called when there is something to take.
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
        # Both ends of a deque may be used by several threads; who popped messages has them.
        self._waiting: deque[_Arrived] = deque()
        self._stopping: asyncio.Task[None] | None = None
        self._paused = False
        self.failure: InvalidRequest | None = None

    async def start(self) -> None:
        """Begin to consume.

        Raises:
            InvalidRequest: A name or an address is none.
        """
        consumer = self._consumer = self._make()
        consumer.start()
        self._pump = keep_running("consumer", lambda: self._take_all(consumer), may_return=True)

    def begin_stop(self) -> None:
        """Give back what nobody took, and disconnect when the rest is answered."""
        self._loop.post(self._begin_stop)

    async def stop(self) -> None:
        """Do so, and wait for it."""
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
        """Take messages that came together; none: there are none."""
        if self._paused:
            self._paused = False
            self._loop.post(lambda: self._ask_for(self._max_in_flight))
        try:
            return self._waiting.popleft().messages
        except IndexError:
            return ()

    def finish(self, messages: Sequence[Message]) -> None:
        """Tell the broker that messages are done with."""
        self._loop.post(lambda: finish_all(messages))

    def give_back(self, messages: Sequence[Message]) -> None:
        """Have messages come again."""
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
            return  # somebody took them
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
