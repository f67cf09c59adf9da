"""A broker whose ports raise: disk, clock, event loop and the transports of its clients.

One broker of `BrokerServer`, without sockets: clients are `TcpConnection`s over transports of the
test. A case fills the broker, carries out one operation while a fault is armed, and then checks
that nothing is lost, doubled, stuck or leaked, that the broker goes on, and that a restart finds
what memory had.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer
from penstock.broker.tcp.server import TcpServer
from penstock.broker.tcp.tcp_connection import TcpConnection
from penstock.core.access.access_control import AccessControl
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_files import OffsetsDeleted
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.stepped_loop_kit import SteppedLoop, change_inline
from tests.harness.call_faults_kit import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.channel.channel import Channel

QUEUE: Final = DiskQueueOptions(max_bytes_per_file=900, sync_in_background=False)
FILES: Final = ("create", "open_append", "open_read")
LATER_S: Final = 300.0
LIMIT: Final = 1 << 40


class FaultyLoop(SteppedLoop):
    """Raises where Penstock's code asks it for a callback, a timer, a task or a thread.

    What asyncio asks of itself, to wake a task, never raises: nothing could be done about it.
    """

    def __init__(self, clock: VirtualClock, faults: Faults) -> None:
        self._faults = faults
        self.unhandled: list[dict[str, object]] = []
        super().__init__(clock)
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def disarm(self) -> None:
        """Raise nothing any more: the process has ended."""
        self._faults._error = self._faults._then = None

    def call_soon(self, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        def reach() -> asyncio.Handle:
            return super(FaultyLoop, self).call_soon(callback, *args, context=context)

        return self._faults.call("call_soon", reach) if _is_ours(callback) else reach()

    def call_at(self, when, callback, *args, context=None):  # type: ignore[no-untyped-def, override]
        def reach() -> asyncio.TimerHandle:
            return super(FaultyLoop, self).call_at(when, callback, *args, context=context)

        return self._faults.call("call_at", reach) if _is_ours(callback) else reach()

    def create_task(self, coro, **named):  # type: ignore[no-untyped-def]
        def reach() -> asyncio.Task[object]:
            return super(FaultyLoop, self).create_task(coro, **named)

        code = getattr(coro, "cr_code", None)
        if code is None or "/penstock/broker/" not in code.co_filename:
            return reach()
        try:
            return self._faults.call("create_task", reach)
        except BaseException:
            coro.close()  # or Python warns that it was never awaited
            raise

    def run_in_executor(self, executor, func, *args):  # type: ignore[no-untyped-def, override]
        def reach() -> asyncio.Future[object]:
            return super(FaultyLoop, self).run_in_executor(executor, func, *args)

        return self._faults.call("run_in_executor", reach)


def _is_ours(callback: object) -> bool:
    owner = getattr(callback, "__self__", None)
    return owner is not None and type(owner).__module__.startswith("penstock.broker")


class Wire:
    """A transport: what the broker sends, until it closes it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reading = True
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        if not self.closed:
            self._client.take(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._client.lost)

    abort = close


class Client:
    """A client of the protocol: its commands are carried out when the loop turns."""

    def __init__(self, world: BrokerWorld, channel: str = "") -> None:
        self.world = world
        self.channel = channel
        self.held: dict[bytes, bytes] = {}  # id -> body
        self.answers: deque[bytes] = deque()
        self.errors: list[bytes] = []
        self.gone = False
        self.is_packed = False  # what comes is not looked at
        self._buffer = b""
        self._parts = b""
        self.wire = Wire(self)
        self.connection: TcpConnection = TcpConnection(world.tcp_server, next(world.numbers))
        port = cast("asyncio.Transport", world.faults.port(self.wire))
        self._call(lambda: self.connection.connection_made(port))
        self.send(b"  V2")
        if channel:
            self.send(f"SUB t {channel}\nRDY 2\n".encode())

    def send(self, data: bytes) -> None:
        if not (self.gone or self.wire.closed):
            self._call(lambda: self.connection.data_received(data))

    def _call(self, callback: Callable[[], None]) -> None:
        """Call as a transport does: what is raised ends the connection."""
        try:
            callback()
        except BaseException as error:
            self.wire.abort()
            if not isinstance(error, Exception):
                raise

    def lost(self) -> None:
        if not self.gone:
            self.gone = True
            self.connection.connection_lost(None)

    def take(self, data: bytes) -> None:
        if self.is_packed:
            return
        self._buffer += data
        while len(self._buffer) >= 8:
            size, kind = struct.unpack(">ii", self._buffer[:8])
            if len(self._buffer) < size + 4:
                return
            body, self._buffer = self._buffer[8 : size + 4], self._buffer[size + 4 :]
            if kind == 0 and body == b"_heartbeat_":
                asyncio.get_running_loop().call_soon(self.send, b"NOP\n")
            elif kind == 0:
                self.answers.append(body)
            elif kind == 1:
                self.errors.append(body)
            else:
                self.held[body[10:26]] = body[26:]
                self.world.delivered(self.channel, body[26:])


@dataclass
class BrokerWorld:
    """The broker, its clients, and what must hold.

    Attributes:
        sure: Bodies whose publish was answered.
        maybe: Bodies whose publish was not.
        finished: Bodies that a channel was told of as finished, and took.
        maybe_finished: Bodies of which that is not known.
    """

    faults: Faults = field(default_factory=Faults)
    clock: VirtualClock = field(default_factory=VirtualClock)
    disk: CrashableFileSystem = field(default_factory=CrashableFileSystem)
    sure: set[bytes] = field(default_factory=set)
    maybe: set[bytes] = field(default_factory=set)
    finished: dict[str, set[bytes]] = field(default_factory=dict)
    maybe_finished: dict[str, set[bytes]] = field(default_factory=dict)
    seen: dict[str, Counter[bytes]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # channels that need not have everything
    problems: list[str] = field(default_factory=list)
    number: int = 0

    def open(self) -> None:
        options = BrokerOptions(
            "/data", min_free_bytes=0, channels=ChannelOptions(), mem_queue_size=4
        )
        self.server = BrokerServer(
            options,
            QUEUE,
            fs=self.faults.port(self.disk, results=FILES),
            clock=self.faults.port(self.clock),
            access=AccessControl.open(),  # its clients have no sockets, and so no user
            free_bytes=lambda: LIMIT,
        )
        self.server._broker = self.broker = self.server._compose()
        change_inline(self.broker.changes)
        self.tcp_server = TcpServer(self.broker, [])
        self.broker.clients = self.tcp_server
        self.numbers = iter(range(1, 1_000))

    # -- what clients see

    def delivered(self, channel: str, body: bytes) -> None:
        self.seen.setdefault(channel, Counter())[body] += 1
        if body not in self.sure | self.maybe:
            self.problems.append(f"{channel}: {body!r} was invented")
        if body in self.finished.get(channel, ()):
            self.problems.append(f"{channel}: {body!r} came after it was finished")

    def body(self) -> bytes:
        self.number += 1
        made = b"%d-" % self.number * 10
        self.maybe.add(made)
        return made

    async def publish(self, command: str, *bodies: bytes) -> None:
        """Publish over a connection of its own, and take note of the answer."""
        client = Client(self)
        if command == "MPUB":
            batch = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
            client.send(b"MPUB t\n" + sized(batch))
        else:
            client.send(f"{command}\n".encode() + b"".join(map(sized, bodies)))
        await turns()
        if client.answers and client.answers[0] == b"OK":
            self.sure.update(bodies)
        client.wire.close()
        await turns()

    async def finish(self, client: Client, *ids: bytes) -> None:
        bodies = [client.held.pop(number) for number in ids]
        self.maybe_finished.setdefault(client.channel, set()).update(bodies)
        client.send(b"".join(b"FIN %s\n" % number for number in ids))
        await turns()
        if not (client.gone or client.wire.closed or client.errors or self.faults.raised):
            self.finished.setdefault(client.channel, set()).update(bodies)

    # -- the state

    def channel(self, name: str) -> Channel:
        return self.broker.topics.get("t").channel(name)

    async def fill(self) -> None:
        """Two channels; messages in memory, on disk only, in flight, deferred and requeued."""
        topic = await self.broker.changes.create("t", 1)
        for name in ("a", "b"):
            await self.broker.channel_changes.find_or_create(topic, name)
        await self.publish("MPUB", *(self.body() for _ in range(5)))
        for _ in range(2):
            await self.publish("PUB t", self.body())
        await self.publish("DPUB t 20000", self.body())
        self.clients = [Client(self, "a"), Client(self, "b")]
        await turns()
        first = self.clients[0]
        number = next(iter(first.held))
        del first.held[number]
        first.send(b"REQ %s 30000\n" % number)
        await turns()
        if first.held:
            await self.finish(first, next(iter(first.held)))
        await turns()

    async def drain(self) -> None:
        """Take all there is, on new connections, until nothing comes any more."""
        topic = self.broker.topics.find("t")
        if topic is None:
            return
        for client in tuple(self.clients):
            client.wire.close()
        await turns()
        for name in tuple(topic.channels):
            if topic.channels[name].paused:
                await self.broker.channel_changes.set_paused(topic, name, paused=False)
        if topic.paused:
            await self.broker.changes.set_paused("t", paused=False)
        takers = [Client(self, name) for name in tuple(topic.channels)]
        await turns()
        for _ in range(60):
            for taker in takers:
                if taker.gone:
                    self.problems.append(f"{taker.channel}: a new consumer was disconnected")
                if taker.held:
                    await self.finish(taker, *taker.held)
            await asyncio.sleep(LATER_S / 60)
        for taker in takers:
            taker.wire.close()
        await turns()
        await asyncio.sleep(3)

    def check_whole(self, where: str) -> None:
        """Check that each message has one state, and that counts are those of what they count."""
        for topic in self.broker.topics:
            for name, channel in topic.channels.items():
                state = channel.state
                if not state.is_whole:
                    self.problems.append(f"{name}: not whole {where}")
                    continue
                flying = Counter(state.in_flight.all().ids.tolist())
                waiting = set(state.retries.ids())
                progress = state.progress[0]
                for offset in range(progress.done.floor, progress.next):
                    count = flying[offset] + (offset in waiting) + (offset in progress.done)
                    if count != 1:
                        self.problems.append(f"{name}: {offset} is in {count} states {where}")
                if sum(flying.values()) != len(state.in_flight):
                    self.problems.append(f"{name}: count of in flight {where}")
                numbers = {one.number for one in channel.subscribers.values()}
                if not numbers <= set(self.tcp_server.connections):
                    self.problems.append(f"{name}: a consumer without a connection {where}")

    def check_all_came(self, where: str) -> None:
        topic = self.broker.topics.find("t")
        if topic is None:
            if "topic" not in self.gone:
                self.problems.append(f"the topic is gone {where}")
            return
        queue = topic.queues[0]
        try:
            blocks = queue.read(queue.earliest, 1 << 30)
        except OffsetsDeleted as error:  # a deletion that raised had deleted files
            blocks = queue.read(error.earliest, 1 << 30)
        stored = Counter(message for block in blocks for message in block.messages.to_pylist())
        for body, count in stored.items():
            if count > 1:
                self.problems.append(f"{body!r} is there {count} times {where}")
        for name, channel in topic.channels.items():
            counts = channel.counts()
            if counts.depth or counts.deferred or counts.in_flight:
                self.problems.append(f"{name}: {counts} {where}")
            if name in self.gone:
                continue
            lost = self.sure - set(self.seen.get(name, ()))
            if lost:
                self.problems.append(f"{name}: lost {sorted(lost)} {where}")

    def check_nothing_leaked(self, where: str) -> None:
        broker = self.broker
        if self.tcp_server.connections:
            self.problems.append(f"{len(self.tcp_server.connections)} connections are left {where}")
        if broker.budget.held_bytes or broker.budget.waiting:
            self.problems.append(f"the budget holds {broker.budget.held_bytes} {where}")
        channels = [one for topic in broker.topics for one in topic.channels.values()]
        kept = sum(channel.state.memory_bytes for channel in channels)
        if broker.memory.held_bytes != kept:
            self.problems.append(
                f"the memory budget holds {broker.memory.held_bytes}, not {kept} {where}"
            )

    def sync_asked(self) -> None:
        """Run the passes that queues have asked for: this world has no threads for them."""
        for topic in self.broker.topics:
            for queue in topic.queues:
                assert isinstance(queue, DiskQueue)
                if queue._syncer._wait_s() == 0:
                    queue._syncer._serve()

    def summary(self) -> dict[str, object]:
        """Return what a restart must find: pauses, channels, and what is not done."""
        found: dict[str, object] = {}
        for topic in self.broker.topics:
            channels = {}
            for name, channel in topic.channels.items():
                counts = channel.counts()
                left = counts.fresh + counts.ready + counts.deferred + counts.in_flight
                channels[name] = (channel.paused, left)
            found[topic.name] = (topic.paused, topic.depth, channels)
        return found


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def turns() -> None:
    for _ in range(12):
        await asyncio.sleep(0)
