"""A consumer: one channel of a topic, on all servers that have it.

Owns the messages that came, until they are worked on, and stopping. Messages go to a handler, or
are taken one by one or in batches. Does not own the connections (`fleet`) nor what a handler's end
means (`handling`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.client.addresses import Address
from penstock.client.fleet import Fleet, Inbound
from penstock.client.handling import Handler, Handling
from penstock.client.inbox import Inbox
from penstock.client.lookup import lookup_url
from penstock.client.options import ConsumerOptions, Environment
from penstock.client.v2 import wire
from penstock.core.errors import InvalidRequest, counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penstock.client.message import Message

__all__ = ["Consumer", "ConsumerStatistics", "Handler"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a consumer did until now.

    Attributes:
        connections: That are subscribed now.
        in_flight: Messages that came and were not answered.
        waiting: Those of them that nobody works on yet.
        received: Messages that came.
        too_late: Answers that came after a message's time was over.
        succeeded: Handlers that returned.
        failed: Handlers that raised.
        given_up: Messages that were finished for having failed too often.
    """

    connections: int
    in_flight: int
    waiting: int
    received: int
    too_late: int
    succeeded: int
    failed: int
    given_up: int


class Consumer:
    """Consumes a channel. For one event loop; a context manager starts and stops it.

    Args:
        topic: The topic; made when there is none.
        channel: The channel; made when there is none.
        handler: Is called with each message: when it returns, the message is finished, unless it
            answered the message itself; when it raises, the message is requeued. Without one,
            messages are taken with ``async for`` or `take`.
        addresses: Servers, such as ``127.0.0.1:4150``.
        lookup: HTTP addresses of services that know the servers.
        max_in_flight: Messages that may have come and not be answered, over all connections.
        options: Everything else.
        environment: Chance and waiting.

    Raises:
        InvalidRequest: A name or an address is not one, or there is none.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        addresses: Sequence[str] = (),
        lookup: Sequence[str] = (),
        max_in_flight: int = 100,
        options: ConsumerOptions | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.topic = wire.require_name(topic, "topic")
        self.channel = wire.require_name(channel, "channel")
        if not addresses and not lookup:
            raise InvalidRequest("a consumer needs `addresses` of servers, or of `lookup` services")
        if max_in_flight < 1:
            raise InvalidRequest(f"max_in_flight must be 1 or more, not {max_in_flight}")
        self._options = options or ConsumerOptions()
        self._environment = environment or Environment()
        self._addresses = {str(Address.parse(address)) for address in addresses}
        self._services = list(lookup)
        for service in self._services:
            lookup_url(service, topic)
        self._inbox = Inbox()
        inbound = Inbound(self._put, self._inbox.forget, self._refuse)
        self._fleet = Fleet(
            topic, channel, max_in_flight, self._options, self._environment, inbound
        )
        self._handling: Handling | None = None
        if handler is not None:
            concurrency = self._options.concurrency or max_in_flight
            self._handling = Handling(
                handler, self._inbox, self._options, concurrency, self._fleet.note_outcome
            )
        self._failure: InvalidRequest | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        # Without a handler, whoever took messages has left them.
        await self.stop(drain=self._handling is not None)

    def start(self) -> None:
        """Begin to connect; connections come and go on their own."""
        self._fleet.start(self._addresses, self._services)

    async def wait_stopped(self) -> None:
        """Wait until the consumer was stopped.

        Raises:
            InvalidRequest: It stopped because no server ever accepted it, and one refused for good.
        """
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self, *, drain: bool = True) -> None:
        """Take no more messages, wait for the answers to those in flight, and disconnect.

        What nobody works on goes back at once when there is no handler; otherwise it is handled.

        Args:
            drain: Wait for what is in flight, `ConsumerOptions.drain_s` at most; otherwise it comes
                again.
        """
        if self._stopping is None:
            loop = asyncio.get_running_loop()
            self._stopping = loop.create_task(self._stop(drain=drain))
        await asyncio.shield(self._stopping)

    # -- taking messages

    def set_max_in_flight(self, count: int) -> None:
        """Let so many messages be in flight from now on; 0: none come for now.

        The servers hear of it before the answers that are given later, so whoever wants a certain
        number of messages and no more lowers it by as many as are answered next.

        Raises:
            InvalidRequest: It is less than 0.
        """
        if count < 0:
            raise InvalidRequest(f"max_in_flight must be 0 or more, not {count}")
        self._fleet.resize(count)

    async def take(self, max_messages: int = 100) -> list[Message]:
        """Wait for messages; return those that are there, none when the consumer was stopped.

        Raises:
            InvalidRequest: As `wait_stopped`.
        """
        return await self._inbox.take(max_messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Give the messages one by one until the consumer is stopped. Answer each."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        while messages := await self._inbox.take(1):
            yield messages[0]

    def statistics(self) -> ConsumerStatistics:
        """Return what it did until now."""
        fleet, handling = self._fleet, self._handling
        return ConsumerStatistics(
            connections=fleet.connection_count,
            in_flight=fleet.in_flight,
            waiting=len(self._inbox),
            received=fleet.received,
            too_late=fleet.too_late,
            succeeded=handling.succeeded if handling else 0,
            failed=handling.failed if handling else 0,
            given_up=handling.given_up if handling else 0,
        )

    # -- stopping

    async def _stop(self, *, drain: bool) -> None:
        try:
            await self._fleet.start_close()
            if self._handling is None:
                self._give_back()
            self._inbox.end(self._failure)
            if drain:
                await self._drain()
            if self._handling is not None:
                await self._handling.cancel()
            self._give_back()
        finally:
            try:
                await self._fleet.close()
            finally:
                self._stopped.set()

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        settled = loop.create_task(self._fleet.wait_settled())
        patience = loop.create_task(self._wait_patiently())
        await asyncio.wait([settled, patience], return_when="FIRST_COMPLETED")
        if not settled.done():
            _logger.warning("left %s in flight", counted(self._fleet.in_flight, "message"))
        for task in (settled, patience):
            task.cancel()
        await asyncio.wait([settled, patience])

    async def _wait_patiently(self) -> None:
        await self._environment.sleep(self._options.drain_s)

    def _give_back(self) -> None:
        for message in self._inbox.take_all():
            message.requeue()

    # -- what the connections bring

    def _put(self, messages: list[Message]) -> None:
        if self._stopping is not None and self._handling is None:
            for message in messages:
                message.requeue()
            return
        self._inbox.put(messages)
        if self._handling is not None:
            self._handling.wake()

    def _refuse(self, error: InvalidRequest) -> None:
        self._failure = error
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(drain=False))
