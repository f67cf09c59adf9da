"""Redis Streams and NATS JetStream from the system's packages, as peers of the broker.

Each is a real server in a process of its own, with its data in a temporary folder, kept as the
broker keeps its own: written at once, fsynced within seconds (or at each answer, where a row says
durable). The clients prepare their bytes beforehand and look at whole reads at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized
    from pathlib import Path
    from typing import Self

FETCH = 2_500
_INBOX = b"_INBOX.0000000"


@dataclass(frozen=True)
class Load:
    """What a publisher sends again and again, and how its answers are told.

    Attributes:
        hello: Sent once; it has no answer that holds the marker.
        sent: The prepared publishes.
        marker: Stands once in each answer.
        answers: How many answers there are to `sent`.
        under_way: How often it is sent before the first answers are awaited.
    """

    hello: bytes
    sent: bytes
    marker: bytes
    answers: int
    under_way: int

    def of_this_process(self) -> Load:
        """Return it with an inbox that is nobody else's, for servers that answer into one."""
        return replace(self, hello=_own(self.hello), sent=_own(self.sent))


class Peer(Protocol):
    """A running server.

    Attributes:
        name: What it is called in the table.
        port: Where it listens.
    """

    name: str
    port: int

    def load(self, body: bytes, batch: int, under_way: int) -> Load:
        """Return publishes of a batch."""
        ...

    def fill(self, body: bytes, messages: int) -> None:
        """Publish, and make who consumes them."""
        ...

    def consume(self, port: int, total: int, done: Synchronized[int]) -> None:
        """Take and acknowledge messages until all consumers together have the total."""
        ...


def publish(port: int, load: Load, seconds: float) -> int:
    """Return how often the publishes went through."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    load = load.of_this_process()
    connection.sendall(load.hello)
    answers = Answers(connection, load.marker)
    for _ in range(load.under_way):
        connection.sendall(load.sent)
    count = load.under_way
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        answers.take(load.answers)
        connection.sendall(load.sent)
        count += 1
    answers.take(load.answers * load.under_way)
    connection.close()
    return count


class Answers:
    """Counts answers in what comes."""

    def __init__(self, connection: socket.socket, marker: bytes) -> None:
        self._connection = connection
        self._marker = marker
        self._rest = b""
        self._spare = 0

    def take(self, count: int) -> None:
        """Wait for so many more."""
        while self._spare < count:
            data = self._connection.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            data = self._rest + data
            self._spare += data.count(self._marker)
            # No marker overlaps itself, so what is left is shorter than one.
            end = data.rfind(self._marker) + len(self._marker) if self._marker in data else 0
            self._rest = data[max(end, len(data) - len(self._marker) + 1) :]
        self._spare -= count


def started(command: list[str], port: int) -> subprocess.Popen[bytes]:
    """Start a server and wait until it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            time.sleep(0.02)
        else:
            return process
    process.kill()
    raise SystemExit(f"{command[0]} did not start")


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class _Server:
    """A server's process, which ends with the block.

    Attributes:
        program: What is started.
        port: Where it listens.
    """

    program: str

    def __init__(self, *arguments: str, port: int) -> None:
        self.port = port
        self._process = started([self.program, *arguments], port)

    @classmethod
    def is_installed(cls) -> bool:
        """Say whether there is one."""
        return shutil.which(cls.program) is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


class Redis(_Server):
    """Redis with an append-only file; a stream and one consumer group."""

    program = "redis-server"
    name = "Redis Streams"
    _ID = re.compile(rb"\$\d+\r\n(\d{13}-\d+)\r\n")

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        port = free_port()
        folder.mkdir()
        super().__init__(
            *("--port", str(port), "--bind", "127.0.0.1"),
            *("--dir", str(folder), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "always" if durable else "everysec"),
            port=port,
        )

    def load(self, body: bytes, batch: int, under_way: int) -> Load:
        """Return XADDs."""
        return Load(b"", _resp(b"XADD", b"s", b"*", b"d", body) * batch, b"-", batch, under_way)

    def fill(self, body: bytes, messages: int) -> None:
        """Fill the stream `b` and make its group."""
        sent = _resp(b"XADD", b"b", b"*", b"d", body) * 1_000
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            answers = Answers(connection, b"-")
            for _ in range(messages // 1_000):
                connection.sendall(sent)
                answers.take(1_000)
            connection.sendall(_resp(b"XGROUP", b"CREATE", b"b", b"g", b"0"))
            connection.recv(100)

    @classmethod
    def consume(cls, port: int, total: int, done: Synchronized[int]) -> None:
        """XREADGROUP and XACK."""
        ask = _resp(
            b"XREADGROUP", b"GROUP", b"g", b"c%d" % id(done), *b"COUNT 500 STREAMS b >".split()
        )
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while done.value < total:
                connection.sendall(ask)
                data = b""
                ids: list[bytes] = []
                while not data.endswith(b"\r\n") or (len(ids) < 500 and data != b"*-1\r\n"):
                    data += connection.recv(1 << 20)
                    ids = cls._ID.findall(data)
                    if ids and data.endswith(b"\r\n") and done.value + len(ids) >= total:
                        break
                if ids:
                    connection.sendall(_resp(b"XACK", b"b", b"g", *ids))
                    connection.recv(100)
                    with done.get_lock():
                        done.value += len(ids)


def _resp(*words: bytes) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join((b"*%d\r\n" % len(words), *parts))


class Nats(_Server):
    """NATS with JetStream: a stream on files and one pull consumer. It fsyncs every two minutes."""

    program = "nats-server"
    name = "NATS JetStream"
    _REPLY = re.compile(rb"MSG b \d+ (\$JS\.ACK\.\S+) ")
    _HELLO = b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.0000000 1\r\n'

    def __init__(self, folder: Path) -> None:
        port = free_port()
        folder.mkdir()
        super().__init__("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder), port=port)
        for name in ("s", "b"):
            self._ask(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name]})

    def load(self, body: bytes, batch: int, under_way: int) -> Load:
        """Return publishes with acknowledgements."""
        return Load(self._HELLO, _nats("s", body) * batch, b'{"stream"', batch, under_way)

    def fill(self, body: bytes, messages: int) -> None:
        """Fill the stream `b` and make its consumer."""
        sent = _nats("b", body) * 500
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(self._HELLO)
            answers = Answers(connection, b'{"stream"')
            for _ in range(messages // 500):
                connection.sendall(sent)
                answers.take(500)
        config = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": 100_000}
        create = {"stream_name": "b", "config": config}
        self._ask("$JS.API.CONSUMER.DURABLE.CREATE.b.c", create)

    @classmethod
    def consume(cls, port: int, total: int, done: Synchronized[int]) -> None:
        """Pull batches and acknowledge each message."""
        wanted = json.dumps({"batch": FETCH, "no_wait": True}).encode()
        ask = _nats("$JS.API.CONSUMER.MSG.NEXT.b.c", wanted)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(0.2)
            connection.sendall(_own(cls._HELLO))
            ask = _own(ask)
            while done.value < total:
                connection.sendall(ask)
                taken, data = 0, b""
                while taken < FETCH and done.value < total:
                    try:
                        data += connection.recv(1 << 20)
                    except TimeoutError:
                        break
                    replies = cls._REPLY.findall(data)
                    if not replies:
                        continue
                    data = data[data.rfind(replies[-1]) + len(replies[-1]) :]
                    connection.sendall(b"".join([b"PUB %b 4\r\n+ACK\r\n" % one for one in replies]))
                    taken += len(replies)
                    with done.get_lock():
                        done.value += len(replies)

    def _ask(self, subject: str, document: object) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(self._HELLO + _nats(subject, json.dumps(document).encode()))
            Answers(connection, b'"type"').take(1)


Kind = type[Redis] | type[Nats]


def _nats(subject: str, body: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), _INBOX, len(body), body)


def _own(prepared: bytes) -> bytes:
    return prepared.replace(_INBOX, b"_INBOX.%07d" % os.getpid())
