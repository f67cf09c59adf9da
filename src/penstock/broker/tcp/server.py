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
from penstock.broker.security.tls import ClientCertificates
from penstock.broker.tcp.authorizer import Authorizer
from penstock.broker.tcp.command_handler import CommandHandler
from penstock.broker.tcp.heartbeats import Heartbeats
from penstock.broker.tcp.listeners import BACKLOG
from penstock.broker.tcp.tcp_connection import TcpConnection
from penstock.broker.time_slices import TimeSlices
from penstock.core.errors import NotFound, PenstockError
from penstock.core.loop_tasks import call_each, keep_running, start_job
from penstock.core.threads import OnDeath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.broker import Broker
    from penstock.broker.security.auth_servers import AuthServers
    from penstock.broker.security.tls import ServerTls
    from penstock.broker.tcp.connection_consumer import ConnectionConsumer


_NSQ_STATES: Final = {
    ClientState.SUBSCRIBED: 3,
    ClientState.CLOSING: 4,
    ClientState.CLOSED: 4,
}
_NSQ_NEW: Final = 0
_ACCESS_ROUND_S: Final = 1.0
_CHECKS_PER_TURN: Final = 100


def client_statistics(connection: TcpConnection) -> ClientStatistics:
    """Return the statistics of a connection."""
    session, consumer = connection.session, connection.consumer
    negotiated = session.negotiated
    identity, identity_url = session.identity
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
        authorized=session.authorized,
        identity=identity,
        identity_url=identity_url,
    )


_logger = logging.getLogger(__name__)


class TcpServer:
    """TCP server of one broker for NSQ's protocol.

    Args:
        broker: The broker.
        listeners: Bound TCP or unix sockets; closed by `stop`.
        authority: Authorization servers, or None.
        tls: TLS of the broker, or None if it has no certificate.
    """

    def __init__(
        self,
        broker: Broker,
        listeners: Sequence[socket.socket],
        authority: AuthServers | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        options = broker.options
        self.broker = broker
        self.limits = ProtocolLimits(
            max_message_bytes=options.max_message_bytes,
            max_body_bytes=options.max_body_bytes,
            max_ready_count=options.clients.max_ready_count,
            max_requeue_ms=options.max_requeue_ms,
        )
        asks = options.tls.client_certificates is not ClientCertificates.NONE
        authorizer = Authorizer(broker.access, authority, broker.clock, asks_certificates=asks)
        offered = replace(options.clients, tls=tls is not None, auth_required=False)
        self.handler = CommandHandler(broker, offered, authorizer)
        self._authorizer = authorizer
        self.tls = tls
        self.heartbeats = Heartbeats()
        self.connections: dict[int, TcpConnection] = {}
        self._listeners = tuple(listeners)
        self._numbers = itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._checked_generation = broker.access.generation

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
        self._watching = keep_running("access of consumers", self._watch, on_death=OnDeath.RESTART)

    async def stop(self) -> None:
        """Stop listening and close the connections."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
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

    def knows(self, connection: TcpConnection) -> bool:
        """Return whether the client of a connection has a principal or permissions."""
        return self._authorizer.knows(connection.session)

    def disconnected(self, connection: TcpConnection) -> None:
        """Remove a connection, and its ephemeral channel if it was the last consumer."""
        self.connections.pop(connection.number, None)
        self._authorizer.left(connection.session)
        connection.rights.close()
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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_ACCESS_ROUND_S)
            await self.end_refused_consumers()

    async def end_refused_consumers(self) -> None:
        """Close the connections of consumers whose right was removed or whose credential expired.

        Other connections are checked at their next command.
        """
        generation = self.broker.access.generation
        has_changed = generation != self._checked_generation
        turns = TimeSlices(_CHECKS_PER_TURN)
        for connection in list(self.connections.values()):
            if has_changed or connection.session.principal.expires_ms is not None:
                if not (connection.session.closed or self._authorizer.may_stay(connection)):
                    connection.fail("E_UNAUTHORIZED", "AUTH is no longer valid")
                await turns.step()
        self._checked_generation = generation

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
