"""The TCP front: listens, and knows the connections.

Owns the listener and the table of connections. Does not own what they do (`connection`, `handler`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.protocol.limits import ProtocolLimits
from penstock.broker.tcp.connection import Connection
from penstock.broker.tcp.describing import describe
from penstock.broker.tcp.gate import Gate
from penstock.broker.tcp.handler import CommandHandler
from penstock.broker.tcp.heartbeats import Heartbeats
from penstock.broker.tcp.listeners import BACKLOG
from penstock.core.errors import NotFound, PenstockError
from penstock.core.looptasks import call_each, start_job

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from penstock.broker.broker import Broker
    from penstock.broker.clients import ClientStatistics
    from penstock.broker.security.authority import Authority
    from penstock.broker.tcp.consumer import Consumer

_logger = logging.getLogger(__name__)


class TcpFront:
    """NSQ's TCP protocol for one broker.

    Args:
        broker: The broker.
        listeners: Bound sockets, TCP's or unix's; closed by `stop`.
        authority: The authorization servers, if there are any.
        tls: The server's certificate, if it has one.
    """

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[socket.socket],
        authority: Authority | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        options = broker.options
        self.broker = broker
        self.limits = ProtocolLimits(
            max_message_bytes=options.max_message_bytes,
            max_body_bytes=options.max_body_bytes,
            max_ready_count=options.clients.max_ready_count,
            max_requeue_ms=options.max_requeue_ms,
        )
        gate = Gate(options.token, authority, broker.clock)
        offered = replace(options.clients, tls=tls is not None, auth_required=gate.closed)
        self.handler = CommandHandler(broker, offered, gate, tls)
        self.heartbeats = Heartbeats()
        self.connections: dict[int, Connection] = {}
        self._listeners = tuple(listeners)
        self._numbers = itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            is_unix = listener.family == socket.AF_UNIX
            create = loop.create_unix_server if is_unix else loop.create_server
            server = await create(
                lambda: Connection(self, next(self._numbers)),
                sock=listener,
                backlog=BACKLOG,  # it listens anew, and would wait for few
            )
            self._servers.append(server)

    async def stop(self) -> None:
        """Stop listening and close the connections."""
        call_each([server.close for server in self._servers])
        call_each([connection.close for connection in self.connections.values()])
        if not await self._are_gone(self.broker.options.stop_timeout_ms / 1000):
            call_each([connection.output.abort for connection in self.connections.values()])
            await self._are_gone(1.0)
        for task in tuple(self._leaving):
            await asyncio.wait([task])

    def client(self, number: int) -> ClientStatistics | None:
        """Return how the client with a number stands; None: it is gone."""
        connection = self.connections.get(number)
        return None if connection is None else describe(connection)

    def producers(self) -> list[int]:
        """Return the numbers of those that have published something."""
        return [
            number
            for number, connection in self.connections.items()
            if connection.session.published
        ]

    def connected(self, connection: Connection) -> None:
        """Take note of a connection."""
        self.connections[connection.number] = connection
        self._none_left.clear()

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection; an ephemeral channel goes with its last consumer."""
        self.connections.pop(connection.number, None)
        if not self.connections:
            self._none_left.set()
        consumer = connection.consumer
        if consumer is None:
            return
        try:
            consumer.leave()
        finally:
            channel = consumer.channel
            if channel.ephemeral and not channel.subscribers and not self.broker.closing:
                task = start_job("ephemeral channel", self._drop_channel(consumer))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _are_gone(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()
        except TimeoutError:
            return False
        return True

    async def _drop_channel(self, consumer: Consumer) -> None:
        channel = consumer.channel
        if channel.subscribers or consumer.topic.channels.get(channel.name) is not channel:
            return
        try:
            await self.broker.changes.delete_channel(consumer.topic, channel.name)
        except NotFound:
            pass
        except PenstockError as error:
            _logger.warning("channel %s cannot be deleted: %s", channel.name, error)
        except Exception:
            # The top of a task.
            _logger.exception("channel %s cannot be deleted", channel.name)
