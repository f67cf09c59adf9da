"""A consumer of one channel of a topic, on all servers that have it.

Owns received messages until they are processed, and stopping. Messages are passed to a handler, or
taken one by one or in batches. Does not own the connections (`connections`) nor how the outcome of
a handler is answered (`handler_pool`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.client.addresses import Address
from penstock.client.connections import ConnectFailure, ConsumerConnections, Inbound
from penstock.client.handler_pool import Handler, HandlerPool
from penstock.client.inbox import Inbox
from penstock.client.lookup import lookup_url
from penstock.client.options import ConsumerOptions, Environment
from penstock.client.v2 import v2_protocol
from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.core.loop_tasks import start_awaited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penstock.client.message import Message

__all__ = ["Consumer", "ConsumerStatistics", "Handler"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """Counters of a consumer since its start.

    Attributes:
        connections: Connections that are subscribed now.
        in_flight: Messages that were received and not answered.
        waiting: Messages in flight that are not being processed yet.
        received: Messages that were received.
        too_late: Answers that came after a message's time-out.
        succeeded: Handlers that returned.
        failed: Handlers that raised.
        given_up: Messages that were finished because they failed too often.
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
    """Consumes a channel, in one event loop. As a context manager, it starts and stops itself.

    Args:
        topic: The topic; created if it does not exist.
        channel: The channel; created if it does not exist.
        handler: Called with each message: when it returns, the message is finished, unless the
            handler answered it itself; when it raises, the message is requeued. Without a handler,
            messages are taken with ``async for`` or `take`.
        addresses: Servers, such as ``127.0.0.1:4150``.
        lookup: HTTP addresses of lookup services that know the servers.
        max_in_flight: Maximum number of received and unanswered messages over all connections.
        options: Further options.
        environment: Sources of randomness and delays.

    Raises:
        InvalidRequest: A name or an address is invalid, or no address is given.
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
        self.topic = v2_protocol.require_name(topic, "topic")
        self.channel = v2_protocol.require_name(channel, "channel")
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
        inbound = Inbound(self._put, self._inbox.forget, self._fail)
        self._connections = ConsumerConnections(
            topic, channel, max_in_flight, self._options, self._environment, inbound
        )
        self._handling: HandlerPool | None = None
        if handler is not None:
            concurrency = self._options.concurrency or max_in_flight
            self._handling = HandlerPool(
                handler, self._inbox, self._options, concurrency, self._connections
            )
        self._failure: PenstockError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        # Without a handler, no code takes messages now: the block has ended.
        await self.stop(drain=self._handling is not None)

    def start(self) -> None:
        """Start connecting in the background."""
        self._connections.start(self._addresses, self._services)

    async def wait_stopped(self) -> None:
        """Wait until the consumer was stopped.

        Raises:
            InvalidRequest: It stopped because no server ever accepted it and one refused it
                permanently.
            Closed: It stopped because of an unexpected exception in one of its tasks, which is
                the cause; messages in flight are redelivered.
        """
        await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self, *, drain: bool = True) -> None:
        """Stop receiving, wait for the answers to messages in flight, and disconnect.

        If it raises an exception, for example because memory ran out, call it again to disconnect.

        Without a handler, messages that were not taken are requeued at once; otherwise the handler
        processes them.

        Args:
            drain: Wait for the messages in flight, at most `ConsumerOptions.drain_s`; otherwise
                they are redelivered.
        """
        stopping = self._stopping
        has_failed = (
            stopping is not None
            and stopping.done()
            and not stopping.cancelled()
            and stopping.exception() is not None
        )
        if self._stopping is None or has_failed:
            self._stopping = start_awaited(self._stop(drain=drain))
        await asyncio.shield(self._stopping)

    # -- taking messages

    def set_max_in_flight(self, count: int) -> None:
        """Set the maximum number of messages in flight; 0 pauses deliveries.

        The servers receive the new value before later answers. So, to receive an exact number of
        messages, reduce the value before you answer messages, by the number of messages that you
        answer next.

        Raises:
            InvalidRequest: The number is negative.
        """
        if count < 0:
            raise InvalidRequest(f"max_in_flight must be 0 or more, not {count}")
        self._connections.resize(count)

    async def take(self, max_messages: int = 100) -> list[Message]:
        """Wait for messages and return them; return none if the consumer was stopped.

        Raises:
            InvalidRequest: As `wait_stopped`.
            Closed: As `wait_stopped`.
        """
        return await self._inbox.take(max_messages)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield the messages one by one until the consumer is stopped. Answer each."""
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Message]:
        while messages := await self._inbox.take(1):
            yield messages[0]

    @property
    def connect_failure(self) -> ConnectFailure | None:
        """Failed tries to connect while no connection is subscribed. May be read by any thread."""
        return self._connections.failure

    def statistics(self) -> ConsumerStatistics:
        """Return the counters since the start."""
        connections, handling = self._connections, self._handling
        return ConsumerStatistics(
            connections=connections.connection_count,
            in_flight=connections.in_flight,
            waiting=len(self._inbox),
            received=connections.received,
            too_late=connections.too_late,
            succeeded=handling.succeeded if handling else 0,
            failed=handling.failed if handling else 0,
            given_up=handling.given_up if handling else 0,
        )

    # -- stopping

    async def _stop(self, *, drain: bool) -> None:
        try:
            try:
                await self._connections.start_close()
                if self._handling is None:
                    self._give_back()
            finally:
                self._inbox.end(self._failure)
            if drain:
                await self._drain()
            if self._handling is not None:
                await self._handling.cancel()
            self._give_back()
        finally:
            try:
                await self._connections.close()
            finally:
                self._stopped.set()

    async def _drain(self) -> None:
        drained = start_awaited(self._connections.wait_drained())
        timeout = start_awaited(self._wait_timeout())
        await asyncio.wait([drained, timeout], return_when="FIRST_COMPLETED")
        if not drained.done():
            _logger.warning("left %s in flight", counted(self._connections.in_flight, "message"))
        for task in (drained, timeout):
            task.cancel()
        await asyncio.wait([drained, timeout])

    async def _wait_timeout(self) -> None:
        await self._environment.sleep(self._options.drain_s)

    def _give_back(self) -> None:
        for message in self._inbox.take_all():
            message.requeue()

    # -- callbacks of the connections

    def _put(self, messages: list[Message]) -> None:
        if self._stopping is not None and self._handling is None:
            for message in messages:
                message.requeue()
            return
        self._inbox.put(messages)
        if self._handling is not None:
            self._handling.wake()

    def _fail(self, error: PenstockError) -> None:
        if self._stopping is not None:
            _logger.warning("while the consumer stopped: %s", error)
            return
        self._failure = error
        try:
            self._inbox.end(error)
            self._stopping = start_awaited(self._stop(drain=False))
        except BaseException:
            self._stopped.set()  # `stop` can be called again
            raise
        finally:
            # Log it, because a program that only has a handler awaits nothing that would raise it.
            _logger.error("%s", error, exc_info=error.__cause__)
