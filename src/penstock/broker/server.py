"""The broker process: one event loop that owns the topics and the servers for them.

Owns the lifecycle of a broker: bind, open the topics, serve, delete old log files, stop.
The order matters: the port is bound first, so that a second broker fails before it changes the
folder; connections are accepted last, so that a partly started broker answers no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import uvloop

from penstock.broker.broker import Broker
from penstock.broker.channel.channel_store import ChannelStore
from penstock.broker.channel.feed import FeedOptions
from penstock.broker.channel.persistence import JournalSyncs
from penstock.broker.file_limits import raise_descriptor_limit
from penstock.broker.http.app import BrokerHttpApp
from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.http_server.host_policy import HostPolicy
from penstock.broker.http_server.server import ServedHttp
from penstock.broker.lookupd.announcer import LookupdAnnouncer
from penstock.broker.lookupd.topic_directory import ChannelInheritance, TopicDirectory
from penstock.broker.maintenance import SizeBounds, retention_rounds, sync_leftovers
from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.broker.publish_admission import ByteBudget
from penstock.broker.publisher import DeadLetterTopics, MessagePublisher
from penstock.broker.redrive.redriver import Redriver
from penstock.broker.security.auth_servers import AuthServers
from penstock.broker.security.tls import ServerTls
from penstock.broker.statistics.lookup_documents import identity
from penstock.broker.tcp.listeners import (
    bind_listener,
    bind_unix_listener,
    remove_unix_listener,
)
from penstock.broker.tcp.server import TcpServer
from penstock.broker.topics.channel_changes import ChannelChanges
from penstock.broker.topics.topic_changes import TopicChanges
from penstock.broker.topics.topic_registry import Topics
from penstock.core.access.access_control import AccessControl
from penstock.core.async_http_client import AsyncHttpClient
from penstock.core.clock import SystemClock
from penstock.core.disk_space import DiskSpace
from penstock.core.errors import Closed, InvalidRequest
from penstock.core.garbage_collection import freeze_new_objects
from penstock.core.host_memory import keep_freed_memory
from penstock.core.loop_stalls import LoopTicker
from penstock.core.loop_tasks import keep_running, watch_loop
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueueOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.options import BrokerOptions
    from penstock.broker.security.auth_servers import AuthOptions
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

_SECOND_MS = 1000


class BrokerServer:
    """One broker: the topics of one folder and their HTTP API.

    Args:
        options: Options of the broker.
        queue_options: For every stream partition; the retention of `options` applies.
        fs: The file system.
        clock: The clock, except for network timeouts, which use the event loop's.
        access: Decides who may do what; None: this user on this host, or the token of the options.
        free_bytes: Returns the free disk space; of the folder's disk by default.
        listeners: Bound sockets instead of the options' addresses, for HTTP and then for NSQ's TCP
            protocol; closed at the stop.
        tls: TLS of this process, whose files the caller checks; None: the broker has its own.
    """

    def __init__(
        self,
        options: BrokerOptions,
        queue_options: DiskQueueOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        access: AccessControl | None = None,
        free_bytes: Callable[[], int] | None = None,
        listeners: Sequence[socket.socket] = (),
        tls: ServerTls | None = None,
    ) -> None:
        self.options = options
        self._queue_options = replace(
            queue_options or DiskQueueOptions(),
            retention_ms=options.retention_ms,
            retention_bytes=options.retention_bytes,
        )
        self._fs = fs or OsFileSystem()
        self._clock = clock or SystemClock()
        self._access = access or AccessControl(
            None, self._clock, shared_token=(options.token or "").encode()
        )
        self._free_bytes = free_bytes or (lambda: shutil.disk_usage(options.folder).free)
        self._listener, self._tcp_listener = (*listeners, None, None)[:2]
        self._broker: Broker | None = None
        self._tls = tls
        self._servers: _Servers | None = None
        self._retention: asyncio.Task[None] | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._bounds: SizeBounds | None = None
        self._ticker: LoopTicker | None = None

    @property
    def broker(self) -> Broker:
        """The parts of the broker; available after ``start``.

        Raises:
            Closed: The broker was not started, or it was stopped.
        """
        if self._broker is None:
            raise Closed("the broker is not running: start it")
        return self._broker

    @property
    def http_port(self) -> int:
        """The bound port, even if 0 was configured; known after ``start``."""
        return self.broker.http_port

    async def start(self) -> None:
        """Open the topics and serve.

        Raises:
            Conflict: Another broker uses the folder.
            InvalidRequest: The address cannot be bound, or the folder cannot be used.
            Unavailable: The port is taken.
        """
        self._servers = servers = _Servers(
            self.options, self._clock, self._listener, self._tcp_listener, self._tls
        )
        try:
            self._broker = broker = self._compose()
            await servers.start(broker)
            self._begin_rounds(broker)
        except BaseException:
            if self._broker is None:
                await servers.stop()
            else:
                await self.stop()
            raise
        host = self.options.host
        _logger.info("broker serves http://%s:%d", host, self.http_port)
        if self._broker.tcp_port > 0:
            _logger.info("broker serves NSQ's TCP protocol at %s:%d", host, self._broker.tcp_port)
        if self._broker.https_port:
            _logger.info("broker serves https://%s:%d", host, self._broker.https_port)

    def _begin_rounds(self, broker: Broker) -> None:
        self._ticker = LoopTicker(broker.loop_stalls, asyncio.get_running_loop())
        self._ticker.start()
        self._syncing = keep_running(
            "leftover sync",
            lambda: sync_leftovers(broker.topics, lambda: not broker.closing, self._clock),
            on_death=OnDeath.RESTART,
            may_return=True,
        )
        self._retention = keep_running(
            "retention",
            lambda: retention_rounds(
                broker.topics, self.options.retention_interval_ms, self._clock
            ),
            on_death=OnDeath.RESTART,
        )

    async def stop(self) -> None:
        """Stop accepting, answer running requests, sync and close the topics. Idempotent.

        Each step runs even if an earlier one raised; the exception is raised at the end.
        """
        broker, self._broker = self._broker, None
        if broker is None:
            return
        broker.closing = True
        async with contextlib.AsyncExitStack() as steps:  # callbacks run in reverse order
            steps.callback(broker.topics.close)
            steps.callback(broker.changes.close)
            if self._bounds is not None:
                steps.push_async_callback(self._bounds.stop)
            steps.push_async_callback(_shut_channels, broker.topics)
            if self._servers is not None:
                steps.push_async_callback(self._servers.stop)
            if self._retention is not None:
                self._retention.cancel()
                steps.push_async_callback(asyncio.wait, [self._retention])
            if self._syncing is not None:
                self._syncing.cancel()
                steps.push_async_callback(asyncio.wait, [self._syncing])
            steps.callback(_end_polls, broker.topics)
            if self._ticker is not None:
                steps.callback(self._ticker.stop)
        _logger.info("broker stopped")

    def _compose(self) -> Broker:
        options = self.options
        dead_letters = DeadLetterTopics()
        inflight_bytes = max(options.max_inflight_bytes, options.max_body_bytes)
        # At least half of `mem_bytes`: consumers need memory even if bodies may be large.
        memory = MemoryBudget(max(options.mem_bytes - inflight_bytes, options.mem_bytes // 2))
        channel_options = replace(options.channels, max_backlog=options.mem_queue_size)
        kept = FeedOptions(
            options.mem_queue_size, budget=memory, failure_log=RateLimitedLog(_logger, self._clock)
        )
        syncs = JournalSyncs(self._queue_options.sync_interval_ms, self._clock)
        topics = Topics.open(
            options.folder,
            queue_options=self._queue_options,
            max_partitions=options.max_partitions,
            channels=ChannelStore(
                self._fs, self._clock, channel_options, dead_letters, kept, syncs
            ),
            defaults=options.topics,
            fs=self._fs,
            clock=self._clock,
        )
        with contextlib.ExitStack() as opened:
            opened.callback(topics.close)
            changes = TopicChanges(topics)
            opened.callback(changes.close)
            broker = self._compose_around(topics, changes, memory, dead_letters, inflight_bytes)
            opened.pop_all()
        return broker

    def _compose_around(
        self,
        topics: Topics,
        changes: TopicChanges,
        memory: MemoryBudget,
        dead_letters: DeadLetterTopics,
        inflight_bytes: int,
    ) -> Broker:
        options = self.options
        disk_space = DiskSpace(
            options.folder,
            self._free_bytes,
            options.min_free_bytes,
            self._clock,
            "delete topics or files there, or have consumed messages deleted sooner with"
            " --topic-retention or --topic-retention-size",
        )
        bounds = self._bounds = SizeBounds(self._clock)
        publisher = MessagePublisher(
            topics, changes, disk_space, bounds, options.default_partitions
        )
        dead_letters.publisher = publisher
        redriver = Redriver(topics, changes, publisher, options.channels, self._fs, self._clock)
        redriver.recover()
        return Broker(
            options=options,
            topics=topics,
            changes=changes,
            channel_changes=ChannelChanges(topics, changes),
            publisher=publisher,
            redriver=redriver,
            budget=ByteBudget(inflight_bytes, options.admission_timeout_ms / _SECOND_MS),
            memory=memory,
            clock=self._clock,
            access=self._access,
            started_ms=self._clock.now_ms(),
            guard=HttpGuard(_host_policy(options), self._clock),
        )


def _end_polls(topics: Topics) -> None:
    for topic in topics:
        topic.append_listeners.notify()


async def _shut_channels(topics: Topics) -> None:
    for topic in topics:
        for channel in tuple(topic.channels.values()):
            try:
                await channel.shut()
            except Exception:  # the other channels must be written, too
                _logger.exception("topic %s: channel %s cannot be shut", topic.name, channel.name)


def _host_policy(options: BrokerOptions) -> HostPolicy:
    broadcast = options.lookup.broadcast_address
    named = [options.host] if broadcast is None else [options.host, broadcast]
    return HostPolicy.of_addresses(named, options.allowed_hosts)


class _Servers:
    """Servers of one broker: their sockets, and the clients for auth and lookup servers.

    Args:
        options: Options of the broker.
        clock: Its clock.
        listener: A bound socket for HTTP instead of the options' address.
        tcp_listener: A bound socket for NSQ's TCP protocol.
        tls: TLS of the process; None: by the options.
    """

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        listener: socket.socket | None,
        tcp_listener: socket.socket | None,
        tls: ServerTls | None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._random = random.SystemRandom()
        self._served: list[ServedHttp | TcpServer] = []
        self._asker = _asker(options.auth)
        self._announcer: LookupdAnnouncer | None = None
        self._inheritance: ChannelInheritance | None = None
        with contextlib.ExitStack() as sockets:
            enter = sockets.enter_context
            self._http = enter(listener or bind_listener(options.host, options.http_port))
            self._tcp: list[socket.socket] = [] if tcp_listener is None else [enter(tcp_listener)]
            self._own_tls = ServerTls.of(options.tls, clock) if tls is None else None
            self._tls = tls or self._own_tls
            if not self._tcp and options.tcp_port is not None:
                self._tcp.append(enter(bind_listener(options.host, options.tcp_port)))
            self._https: socket.socket | None = None
            if options.https_port is not None:
                if self._tls is None:
                    raise InvalidRequest(
                        "HTTP under TLS needs a certificate: specify its file", place="tls-cert"
                    )
                self._https = enter(bind_listener(options.host, options.https_port))
            if options.tcp_socket is not None:
                mode = options.tcp_socket_mode
                self._tcp.append(enter(bind_unix_listener(options.tcp_socket, mode)))
            self._sockets = sockets.pop_all()

    async def start(self, broker: Broker) -> None:
        """Start all servers."""
        timeout_ms = self._options.stop_timeout_ms
        if self._own_tls is not None:
            self._own_tls.start()
        broker.http_port = self._http.getsockname()[1]
        if self._https is not None:
            broker.https_port = self._https.getsockname()[1]
            app = BrokerHttpApp(broker)
            https = ServedHttp(app, self._https, timeout_ms, broker.guard, self._tls)
            await self._start(https)
        served = (BrokerHttpApp(broker), self._http, timeout_ms, broker.guard, self._tls)
        await self._start(ServedHttp(*served, accepts_plain=True))
        if self._tcp:
            if self._tcp[0].family != socket.AF_UNIX:
                broker.tcp_port = self._tcp[0].getsockname()[1]
            tcp_server = TcpServer(broker, self._tcp, self._authority(), self._tls)
            broker.clients = tcp_server
            await self._start(tcp_server)
        self._announce(broker)

    async def stop(self) -> None:
        """Stop serving; close connections once their requests are answered."""
        try:
            if self._announcer is not None:
                await self._announcer.stop()
            if self._inheritance is not None:
                await self._inheritance.stop()
            while self._served:
                await self._served.pop().stop()
        finally:
            if self._own_tls is not None:
                self._own_tls.stop()
            self._sockets.close()
            if self._options.tcp_socket is not None:
                remove_unix_listener(self._options.tcp_socket)

    async def _start(self, server: ServedHttp | TcpServer) -> None:
        await server.start()
        self._served.append(server)

    def _announce(self, broker: Broker) -> None:
        """Register the broker at the nsqlookupd servers, now that it serves."""
        options = self._options.lookup
        directory = TopicDirectory(broker.topics)
        self._announcer = LookupdAnnouncer(
            identity(broker), directory, options, self._random.random
        )
        broker.announcer = self._announcer
        inheritance = ChannelInheritance(self._announcer, broker.channel_changes, self._asker)
        self._inheritance = inheritance
        broker.changes.watchers.append(inheritance)
        self._announcer.start()

    def _authority(self) -> AuthServers | None:
        options = self._options.auth
        if not options.addresses:
            return None
        return AuthServers(options, self._asker, self._clock, self._random.randrange)


def _asker(options: AuthOptions) -> AsyncHttpClient:
    return AsyncHttpClient(
        options.connect_timeout_ms / _SECOND_MS,
        options.request_timeout_ms / _SECOND_MS,
        options.max_answer_bytes,
    )


def run_broker(
    options: BrokerOptions,
    queue_options: DiskQueueOptions | None = None,
    *,
    access: AccessControl | None = None,
    on_ready: Callable[[BrokerServer], None] | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT; blocks. For the main thread.

    Args:
        options: Options of the broker.
        queue_options: For every stream partition.
        access: Decides who may do what; None: this user on this host, or the token of the options.
        on_ready: Called once the broker serves.
        listener: A bound socket for HTTP instead of the options' address.

    Raises:
        Conflict: Another broker uses the folder.
        InvalidRequest: The address cannot be bound, or the folder cannot be used.
        Unavailable: The port is taken.
    """
    listeners = () if listener is None else (listener,)
    server = BrokerServer(options, queue_options, access=access, listeners=listeners)
    raise_descriptor_limit()
    keep_freed_memory()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        watch_loop(loop)
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        with freeze_new_objects():
            await server.start()
        try:
            if on_ready is not None:
                on_ready(server)
            await stopping.wait()
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
