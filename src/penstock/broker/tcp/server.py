"""TCP listener of the broker and the table of its client connections.

Owns the listener, the connection table, and the description of a connection that ``/stats``
returns (`client_statistics`). Does not own the behaviour of a connection (`tcp_connection`,
`command_handler`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker.client_registry import ClientStatistics
from penstock.broker.protocol.connection_state import ClientState
from penstock.broker.protocol.limits import ProtocolLimits
from penstock.broker.tcp.authorizer import Authorizer
from penstock.broker.tcp.command_handler import CommandHandler
from penstock.broker.tcp.heartbeats import Heartbeats
from penstock.broker.tcp.listeners import BACKLOG
from penstock.broker.tcp.tcp_connection import TcpConnection
from penstock.core.errors import NotFound, PenstockError
from penstock.core.loop_tasks import call_each, start_job

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from penstock.broker.broker import Broker
    from penstock.broker.security.auth_servers import AuthServers
    from penstock.broker.tcp.connection_consumer import ConnectionConsumer


_NSQ_STATES: Final = {
    ClientState.SUBSCRIBED: 3,
    ClientState.CLOSING: 4,
    ClientState.CLOSED: 4,
}
_NSQ_NEW: Final = 0


def client_statistics(connection: TcpConnection) -> ClientStatistics:
    """Return the statistics of a connection."""
    session, consumer = connection.session, connection.consumer
    negotiated = session.negotiated
    permissions = session.permissions
    client_id, hostname = negotiated.client_id, negotiated.hostname
    return ClientStatistics(
        client_id=session.host if client_id is None else client_id,
        hostname=session.host if hostname is None else hostname,
        address=session.address,
        user_agent=negotiated.user_agent,
        connected_ms=session.connected_ms,
        state=_NSQ_STATES.get(session.state, _NSQ_NEW),
        ready=0 if consumer is None else consumer.ready,
        in_flight=0 if consumer is None else consumer.in_flight,
        messages=0 if consumer is None else consumer.message_count,
        finished=0 if consumer is None else consumer.finish_count,
        requeued=0 if consumer is None else consumer.requeue_count,
        sample_rate=negotiated.sample_rate,
        deflate=negotiated.deflate,
        snappy=negotiated.snappy,
        topology_zone=negotiated.topology_zone,
        topology_region=negotiated.topology_region,
        published=session.published.copy(),
        tls=session.encryption,
        authorized=permissions is not None,
        identity="" if permissions is None else permissions.identity,
        identity_url="" if permissions is None else permissions.identity_url,
    )


_logger = logging.getLogger(__name__)


class TcpServer:
    """TCP server of one broker for NSQ's protocol.

    Args:
        broker: The broker.
        listeners: Bound TCP or unix sockets; closed by `stop`.
        authority: Authorization servers, or None.
        tls: TLS context, or None if the broker has no certificate.
    """

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[socket.socket],
        authority: AuthServers | None = None,
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
        authorizer = Authorizer(options.token, authority, broker.clock)
        offered = replace(options.clients, tls=tls is not None, auth_required=authorizer.closed)
        self.handler = CommandHandler(broker, offered, authorizer)
        self.tls = tls
        self.heartbeats = Heartbeats()
        self.connections: dict[int, TcpConnection] = {}
        self._listeners = tuple(listeners)
        self._numbers = itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start listening."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            is_unix = listener.family == socket.AF_UNIX
            create = loop.create_unix_server if is_unix else loop.create_server
            server = await create(
                lambda: TcpConnection(self, next(self._numbers)),
                sock=listener,
                backlog=BACKLOG,  # asyncio calls `listen` again, by default with a small backlog
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
        """Return the statistics of a client by its connection number; None if disconnected."""
        connection = self.connections.get(number)
        return None if connection is None else client_statistics(connection)

    def producers(self) -> list[int]:
        """Return the connection numbers of clients that have published."""
        return [
            number
            for number, connection in self.connections.items()
            if connection.session.published
        ]

    def connected(self, connection: TcpConnection) -> None:
        """Register a connection."""
        self.connections[connection.number] = connection
        self._none_left.clear()

    def disconnected(self, connection: TcpConnection) -> None:
        """Remove a connection, and its ephemeral channel if it was the last consumer."""
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

    async def _drop_channel(self, consumer: ConnectionConsumer) -> None:
        channel = consumer.channel
        if channel.subscribers or consumer.topic.channels.get(channel.name) is not channel:
            return
        try:
            await self.broker.channel_changes.delete(consumer.topic, channel.name)
        except NotFound:
            pass
        except PenstockError as error:
            _logger.warning("cannot delete channel %s: %s", channel.name, error)
        except Exception:
            # The outermost handler of a task.
            _logger.exception("cannot delete channel %s", channel.name)
