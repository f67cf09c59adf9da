"""The broker as a process: one event loop that owns the topics and the fronts that serve them.

Owns the life of a broker: bind, open the topics, serve, look for old log files now and then, stop.
The order matters: the port is taken first, so that a second broker fails before it touches a
folder, and connections are accepted last, so that nobody is answered by half a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import shutil
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from penstock.broker.admission import ByteBudget
from penstock.broker.broker import Broker
from penstock.broker.changes import TopicChanges
from penstock.broker.channel.store import ChannelStore
from penstock.broker.headroom import Headroom
from penstock.broker.http.connection import BoundedHeadProtocol
from penstock.broker.http.front import HttpFront
from penstock.broker.process.collecting import lasting_objects
from penstock.broker.process.limits import raise_descriptor_limit
from penstock.broker.process.retention import retain_now_and_then
from penstock.broker.publish import DeadLetterTopics, Publisher
from penstock.broker.tcp.front import TcpFront
from penstock.broker.topics import Topics
from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, InvalidRequest, Unavailable
from penstock.storage.diskqueue import DiskQueueOptions
from penstock.storage.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.options import BrokerOptions
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

_SECOND_MS = 1000
_KEEP_ALIVE_S = 75
_BACKLOG = 1024


class BrokerServer:
    """One broker: the topics of one folder and their HTTP front.

    Args:
        options: What the broker was told.
        queue_options: For every stream partition; its retention is that of `options`.
        fs: The file system.
        clock: The clock of everything but network timeouts, which are the event loop's.
        free_bytes: Says how much space is free; that of the folder's disk by default.
        listener: A bound socket for HTTP instead of the options' address; closed at the stop.
        tcp_listener: The same for NSQ's TCP protocol.
    """

    def __init__(
        self,
        options: BrokerOptions,
        queue_options: DiskQueueOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        free_bytes: Callable[[], int] | None = None,
        listener: socket.socket | None = None,
        tcp_listener: socket.socket | None = None,
    ) -> None:
        self.options = options
        self._queue_options = replace(
            queue_options or DiskQueueOptions(),
            retention_ms=options.retention_ms,
            retention_bytes=options.retention_bytes,
        )
        self._fs = fs or OsFileSystem()
        self._clock = clock or SystemClock()
        self._free_bytes = free_bytes or (lambda: shutil.disk_usage(options.folder).free)
        self._listener = listener
        self._broker: Broker | None = None
        self._front: _Front | None = None
        self._tcp_listener = tcp_listener
        self._tcp_front: TcpFront | None = None
        self._retention: asyncio.Task[None] | None = None

    @property
    def broker(self) -> Broker:
        """The parts; known after ``start``.

        Raises:
            Closed: It was not started, or it was stopped.
        """
        if self._broker is None:
            raise Closed("the broker is not running: start it")
        return self._broker

    @property
    def http_port(self) -> int:
        """The bound port, also when 0 was asked for; known after ``start``."""
        return self.broker.http_port

    async def start(self) -> None:
        """Open the topics and serve.

        Raises:
            Conflict: Another broker uses the folder.
            InvalidRequest: The address cannot be bound, or the folder cannot be used.
            Unavailable: The port is taken.
        """
        listener = self._listener or bind_listener(self.options.host, self.options.http_port)
        tcp_listener = self._tcp_listener
        try:
            if tcp_listener is None and self.options.tcp_port is not None:
                tcp_listener = bind_listener(self.options.host, self.options.tcp_port)
            self._broker = self._compose()
            self._broker.http_port = listener.getsockname()[1]
            self._front = _Front(HttpFront(self._broker), listener, self.options.stop_timeout_ms)
            await self._front.start()
            if tcp_listener is not None:
                self._broker.tcp_port = tcp_listener.getsockname()[1]
                self._tcp_front = TcpFront(self._broker, tcp_listener)
                await self._tcp_front.start()
        except BaseException:
            listener.close()
            if tcp_listener is not None:
                tcp_listener.close()
            if self._broker is not None:
                self._broker.changes.close()
                self._broker.topics.close()
                self._broker = None
            raise
        self._retention = asyncio.create_task(
            retain_now_and_then(
                self._broker.topics, self.options.retention_interval_ms, self._clock
            )
        )
        _logger.info("broker serves http://%s:%d", self.options.host, self.http_port)

    async def stop(self) -> None:
        """Stop accepting, answer what runs, sync and close the topics. Stopping twice is fine."""
        broker, self._broker = self._broker, None
        if broker is None:
            return
        broker.closing = True
        for topic in broker.topics:
            topic.notify()
        if self._retention is not None:
            self._retention.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retention
        try:
            if self._tcp_front is not None:
                await self._tcp_front.stop()
            if self._front is not None:
                await self._front.stop()
            for topic in broker.topics:
                for channel in tuple(topic.channels.values()):
                    await channel.shut()
        finally:
            broker.changes.close()
            broker.topics.close()
        _logger.info("broker stopped")

    def _compose(self) -> Broker:
        options = self.options
        dead_letters = DeadLetterTopics()
        topics = Topics.open(
            options.folder,
            queue_options=self._queue_options,
            max_partitions=options.max_partitions,
            channels=ChannelStore(self._fs, self._clock, options.channels, dead_letters),
            fs=self._fs,
            clock=self._clock,
        )
        headroom = Headroom(options.folder, self._free_bytes, options.min_free_bytes, self._clock)
        changes = TopicChanges(topics)
        publisher = Publisher(topics, changes, headroom, options.default_partitions)
        dead_letters.publisher = publisher
        inflight_bytes = max(options.max_inflight_bytes, options.max_body_bytes)
        return Broker(
            options=options,
            topics=topics,
            changes=changes,
            publisher=publisher,
            budget=ByteBudget(inflight_bytes, options.admission_timeout_ms / _SECOND_MS),
            clock=self._clock,
            started_ms=self._clock.now_ms(),
        )


class _Front:
    """Uvicorn serving one application on one socket, without its own signals and logging.

    Args:
        application: What is served.
        listener: A bound socket; closed by `stop`.
        stop_timeout_ms: How long running requests may take after a stop.
    """

    def __init__(
        self, application: HttpFront, listener: socket.socket, stop_timeout_ms: int
    ) -> None:
        config = uvicorn.Config(
            application,
            http=BoundedHeadProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=-(-stop_timeout_ms // _SECOND_MS),
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._listener = listener
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        await self._server.startup(sockets=[self._listener])
        self._ticking = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        """Stop listening, let running requests end, close the connections."""
        self._server.should_exit = True
        if self._ticking is not None:
            await self._ticking
        await self._server.shutdown(sockets=[self._listener])


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; connections wait until somebody accepts them.

    Raises:
        InvalidRequest: The address is not one of this machine, or not allowed.
        Unavailable: The port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"address {host}: {error}: name an address of this machine") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} of {host} is taken: stop the program that uses it, or choose another "
                "port (0 picks a free one)"
            ) from error
        raise InvalidRequest(
            f"port {port} of {host} cannot be bound: {error.strerror}: choose another address"
        ) from error
    return listener


def run_broker(
    options: BrokerOptions,
    queue_options: DiskQueueOptions | None = None,
    *,
    on_ready: Callable[[BrokerServer], None] | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT; blocks. For the main thread.

    Args:
        options: What the broker was told.
        queue_options: For every stream partition.
        on_ready: Called once it serves.
        listener: A bound socket to serve on instead of the options' address.

    Raises:
        Conflict: Another broker uses the folder.
        InvalidRequest: The address cannot be bound, or the folder cannot be used.
        Unavailable: The port is taken.
    """

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        server = BrokerServer(options, queue_options, listener=listener)
        raise_descriptor_limit()
        with lasting_objects():
            await server.start()
        try:
            if on_ready is not None:
                on_ready(server)
            await stopping.wait()
        finally:
            await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
