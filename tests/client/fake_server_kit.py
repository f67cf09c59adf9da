"""A server of NSQ's V2 that does what a test says, and a world whose time the test moves."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import uvloop

from penstock.client import Environment
from penstock.core.compression import Deflate, Snappy

Command = tuple[Any, ...]
GUARD_S = 120.0  # only a test that fails waits for it

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
_loop = asyncio.new_event_loop


def use_loop(name: str) -> None:
    """Run the stories to come on this kind of loop."""
    global _loop  # noqa: PLW0603  # a fixture sets it for each test
    _loop = LOOPS[name]


def run(story: Coroutine[Any, Any, None]) -> None:
    async def guarded() -> None:
        async with asyncio.timeout(GUARD_S):
            await story

    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(guarded())


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it holds."""
    while not condition():  # noqa: ASYNC110  # what it waits for is on both sides of a socket
        await asyncio.sleep(0)


def address_of(server: asyncio.Server) -> str:
    return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class ClientWorld:
    """Chance that is always 0, and sleepers that wake when the test says so."""

    def __init__(self) -> None:
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.environment = Environment(random=lambda: 0.0, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        if seconds == 0:
            return
        turn = asyncio.get_running_loop().create_future()
        self.sleepers.append((seconds, turn))
        await turn

    def asleep(self, seconds: float) -> bool:
        return any(s == seconds and not turn.done() for s, turn in self.sleepers)

    async def pass_over(self, seconds: float) -> None:
        """Wait until somebody sleeps for exactly so long, and wake them all."""
        await until(lambda: self.asleep(seconds))
        for s, turn in self.sleepers:
            if s == seconds and not turn.done():
                turn.set_result(None)
        await asyncio.sleep(0)


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", len(data) + 4, kind) + data


def message_frame(
    message_id: int | bytes, body: bytes, attempts: int = 1, time_ns: int = 1_700_000_000 * 10**9
) -> bytes:
    name = b"%016x" % message_id if isinstance(message_id, int) else message_id
    return frame(2, struct.pack(">qH16s", time_ns, attempts, name) + body)


@dataclass
class Manners:
    """How a server behaves."""

    features: dict[str, object] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    plain_ok: bool = False  # answers IDENTIFY as before feature negotiation
    answers_publishes: bool = True
    answers_sub: bytes = frame(0, b"OK")
    answers_cls: bool = True
    on_ready: Callable[[Peer, int], None] | None = None


class Peer:
    """One connection, from the server's side."""

    def __init__(
        self, manners: Manners, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.manners = manners
        self.commands: list[Command] = []
        self.ended = False
        self._reader = reader
        self.writer = writer
        self._codec: Deflate | Snappy | None = None
        self._buffer = bytearray()

    # -- what a test does

    def send(self, data: bytes) -> None:
        self.writer.write(data if self._codec is None else self._codec.compress(data))

    def ok(self, count: int = 1) -> None:
        self.send(frame(0, b"OK") * count)

    def error(self, text: bytes) -> None:
        self.send(frame(1, text))

    def drop(self) -> None:
        self.writer.transport.abort()

    def of(self, name: str) -> list[Command]:
        return [command for command in self.commands if command[0] == name]

    async def wait_for(self, name: str, count: int = 1) -> list[Command]:
        await until(lambda: len(self.of(name)) >= count)
        return self.of(name)

    # -- what it does on its own

    async def serve(self) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                assert await self._exactly(4) == b"  V2"
                while True:
                    await self._command()
        finally:
            self.ended = True
            self.writer.transport.abort()

    async def _fill(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise asyncio.IncompleteReadError(b"", None)
        self._buffer += data if self._codec is None else self._codec.decompress(data, 1 << 24)

    async def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            await self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _line(self) -> list[str]:
        while b"\n" not in self._buffer:
            await self._fill()
        return (await self._exactly(self._buffer.index(b"\n") + 1)).decode().split()

    async def _sized(self) -> bytes:
        (size,) = struct.unpack(">i", await self._exactly(4))
        return await self._exactly(size)

    async def _command(self) -> None:
        name, *parts = await self._line()
        steps: dict[str, Callable[..., Awaitable[None]]] = {
            "IDENTIFY": self._identify,
            "AUTH": self._auth,
            "PUB": self._publish,
            "MPUB": self._publish,
            "DPUB": self._publish,
        }
        if name in steps:
            await steps[name](name, *parts)
            return
        given: list[str | int] = [*parts]
        numbers = {"RDY": 0, "REQ": 1}
        if name in numbers:
            given[numbers[name]] = int(parts[numbers[name]])
        self.commands.append((name, *given))
        if name == "SUB":
            self.send(self.manners.answers_sub)
        elif name == "CLS" and self.manners.answers_cls:
            self.send(frame(0, b"CLOSE_WAIT"))
        elif name == "RDY" and self.manners.on_ready is not None:
            self.manners.on_ready(self, int(parts[0]))

    async def _identify(self, name: str) -> None:
        wanted = json.loads(await self._sized())
        self.commands.append((name, wanted))
        if self.manners.plain_ok:
            self.ok()
            return
        answer: dict[str, object] = {
            "max_rdy_count": 2500,
            "version": "1.3.0",
            "msg_timeout": 60_000,
            "tls_v1": self.manners.tls is not None and wanted["tls_v1"],
            "deflate": wanted["deflate"],
            "snappy": wanted["snappy"],
            "deflate_level": 6,
            "auth_required": False,
        }
        answer |= self.manners.features
        data = frame(0, json.dumps(answer).encode())
        codec: Deflate | Snappy | None = None
        if answer["deflate"]:
            codec = Deflate(6)
        elif answer["snappy"]:
            codec = Snappy()
        if answer["tls_v1"]:
            self.writer.write(data)
            assert self.manners.tls is not None
            await self.writer.start_tls(self.manners.tls)
            data = frame(0, b"OK")
        if codec is not None:
            # In one write, as a server may: what is behind the answer is compressed.
            data += codec.compress(frame(0, b"OK"))
        self._codec = codec
        self.writer.write(data)

    async def _auth(self, name: str) -> None:
        self.commands.append((name, (await self._sized()).decode()))
        self.send(frame(0, b'{"identity":"x","permission_count":1}'))

    async def _publish(self, name: str, topic: str, *rest: str) -> None:
        body = await self._sized()
        if name == "MPUB":
            messages, position = [], 4
            for _ in range(struct.unpack_from(">i", body)[0]):
                (size,) = struct.unpack_from(">i", body, position)
                messages.append(body[position + 4 : position + 4 + size])
                position += 4 + size
            assert position == len(body)
            self.commands.append((name, topic, messages))
        else:
            self.commands.append((name, topic, body, *map(int, rest)))
        if self.manners.answers_publishes:
            self.ok()


class FakeServer:
    """Listens on a port of its own."""

    def __init__(self, manners: Manners | None = None) -> None:
        self.manners = manners or Manners()
        self.peers: list[Peer] = []
        self.address = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.listen(0)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop_listening()
        for peer in self.peers:
            peer.drop()
        await asyncio.gather(*self._tasks)

    async def listen(self, port: int | None = None) -> None:
        port = int(self.address.rpartition(":")[2]) if port is None else port
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.address = address_of(self._server)

    async def stop_listening(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self.manners, reader, writer)
        self.peers.append(peer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        await peer.serve()

    async def peer(self, number: int = 0) -> Peer:
        await until(lambda: len(self.peers) > number)
        return self.peers[number]
