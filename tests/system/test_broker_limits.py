"""A broker process under real limits: memory, file descriptors, threads.

Whatever a limit made fail, the broker takes messages again once the limit is lifted, or its process
has ended and is started again. Then each message that was acknowledged exists, in one copy, and
none that nobody published. A channel delivers what was not finished, and may redeliver the rest.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Self

import pytest

from tests.broker.v2_kit import V2, Frame, Message, batch, sized
from tests.system.limit_kit import check_refused, limit_folder, limitable, limited

CHILD: Final = Path(__file__).with_name("broker_limits.py")
TOPICS: Final = ("a", "b")
BODY_BYTES: Final = 30_000
BATCH: Final = 20
ROUNDS: Final = 60
MORE_BYTES: Final = 24 << 20
_LIMITED_S: Final = 5.0
_WAIT_S: Final = 120.0

pytestmark = pytest.mark.system


class Gone(OSError):
    """The connection was closed."""


class Line(V2):
    """A connection whose end is an `OSError`."""

    def _exactly(self, count: int) -> bytes:
        data = super()._exactly(count)
        if len(data) < count:
            raise Gone("the connection was closed")
        return data


@dataclass
class Notes:
    """Messages, as clients know them.

    Attributes:
        acknowledged: Numbers of messages that were acknowledged, by topic.
        unsure: Numbers of those that were not; they may exist.
        finished: Numbers of those that a consumer has finished.
        ids: By topic and number, the ids under which a message was delivered.
        failed: How many requests failed.
        refusal: Answer to the last publish that was not acknowledged.
    """

    acknowledged: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    unsure: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    finished: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    ids: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    failed: int = 0
    refusal: str = ""
    _next: int = 0

    def numbers(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def note(self, topic: str, numbers: list[int], *, is_acknowledged: bool) -> None:
        (self.acknowledged if is_acknowledged else self.unsure)[topic].update(numbers)
        self.failed += not is_acknowledged

    def delivered(self, topic: str, message: Message) -> None:
        self.ids[topic, int(message.body.split()[0])].add(message.id)

    def missing(self, topic: str) -> set[int]:
        seen = {number for name, number in self.ids if name == topic}
        return self.acknowledged[topic] - self.finished[topic] - seen


class Broker:
    """A broker process, and those that follow it in its folder."""

    def __init__(self, folder: Path, log: IO[bytes]) -> None:
        self.folder = folder
        self._log = log
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.folder / "topics")],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=limitable(self.folder),
        )
        assert self.process.stdout is not None
        ports = self.process.stdout.readline().split()
        assert ports, "the broker does not start"
        self.http, self.tcp = map(int, ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


class Client:
    """Publishes to one topic and consumes it, over a connection for each."""

    def __init__(self, broker: Broker, notes: Notes, topic: str) -> None:
        self.broker = broker
        self.notes = notes
        self.topic = topic
        self.lines: list[Line] = []
        self.connect(_WAIT_S)

    def connect(self, timeout_s: float) -> None:
        self.close()
        self.publisher = Line(self.broker.tcp, timeout_s=timeout_s)
        self.lines.append(self.publisher)
        self.consumer = Line(self.broker.tcp, timeout_s=timeout_s)
        self.lines.append(self.consumer)
        self.consumer.subscribe(self.topic, "c", 2_000)

    def close(self) -> None:
        for line in self.lines:
            line.close()
        self.lines.clear()

    def publish(self) -> bool:
        """Publish a batch; say whether it was acknowledged."""
        numbers = self.notes.numbers(BATCH)
        body = batch(*(b"%d " % number + b"x" * BODY_BYTES for number in numbers))
        is_acknowledged = False
        try:
            self.publisher.send(f"MPUB {self.topic}\n".encode(), body)
            frame = self.publisher.frame()
            while frame == Frame(0, b"_heartbeat_"):
                self.publisher.send(b"NOP\n")
                frame = self.publisher.frame()
            is_acknowledged = frame == Frame(0, b"OK")
            if not is_acknowledged:
                self.notes.refusal = repr(frame)
        except OSError as error:
            self.notes.refusal = repr(error)
        self.notes.note(self.topic, numbers, is_acknowledged=is_acknowledged)
        return is_acknowledged

    def published(self) -> bool:
        """Publish until a batch is acknowledged: a broker whose disk is slow refuses some."""
        end_s = time.monotonic() + _WAIT_S
        while not self.publish():
            if time.monotonic() > end_s:
                return False
            threading.Event().wait(0.1)
            self.connect(_WAIT_S)  # it closes a connection after such an error, as nsqd does
        return True

    def consume(self, count: int) -> None:
        """Take messages, and finish every other one."""
        for number in range(count):
            message = self.consumer.message()
            self.notes.delivered(self.topic, message)
            if number % 2:
                self.consumer.finish(message.id)
                self.notes.finished[self.topic].add(int(message.body.split()[0]))


def post(broker: Broker, path: str, body: bytes = b"", timeout_s: float = 1.0) -> bool:
    """Send a request over HTTP; say whether it was answered with success."""
    request = urllib.request.Request(f"http://127.0.0.1:{broker.http}{path}", body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status == 200
    except OSError:
        return False


def load(broker: Broker, notes: Notes, clients: list[Client]) -> None:
    """Publish and consume under the limit, and make topics and channels, for a while."""
    end_s = time.monotonic() + _LIMITED_S
    for client in clients:
        for line in client.lines:
            line.socket.settimeout(1.0)
    for number in range(ROUNDS):
        if broker.has_ended or time.monotonic() > end_s:
            return
        for client in clients:
            try:
                if client.publish():
                    client.consume(4)
                else:
                    client.connect(1.0)
            except (OSError, AssertionError):  # closed, or an error frame
                notes.failed += 1
        if number % 6 == 0:
            topic = f"n{number}"
            numbers = notes.numbers(1)
            is_done = post(broker, f"/pub?topic={topic}", b"%d x" % numbers[0])
            notes.note(topic, numbers, is_acknowledged=is_done)
            notes.failed += not post(broker, f"/channel/create?topic=a&channel=x{number}")


def works_again(broker: Broker, notes: Notes) -> bool:
    """Say whether the broker takes a message now that the limit is lifted, or has ended."""
    end_s = time.monotonic() + _WAIT_S
    while time.monotonic() < end_s:
        if broker.has_ended:
            return True
        numbers = notes.numbers(1)
        with contextlib.suppress(OSError), Line(broker.tcp, timeout_s=5.0) as line:
            line.send(b"PUB a\n", sized(b"%d x" % numbers[0]))
            is_done = line.frame() == Frame(0, b"OK")
            notes.note("a", numbers, is_acknowledged=is_done)
            if is_done:
                return True
        notes.note("a", numbers, is_acknowledged=False)
        threading.Event().wait(0.1)
    return False


def drain(broker: Broker, notes: Notes, topic: str) -> None:
    """Take all messages of a channel until none that was acknowledged is missing, then the rest."""
    with Line(broker.tcp, timeout_s=_WAIT_S) as line:
        line.subscribe(topic, "c", 50)
        while notes.missing(topic):
            message = line.message()
            notes.delivered(topic, message)
            line.finish(message.id)


@pytest.fixture
def folder() -> Iterator[Path]:
    with limit_folder() as made:
        yield made


@pytest.mark.parametrize("kind", ["memory", "files", "threads"])
def test_a_broker_keeps_what_it_acknowledged_under_a_limit(folder: Path, kind: str) -> None:
    notes = Notes()
    log_path = folder / "log"
    with log_path.open("wb") as log, Broker(folder, log) as broker:
        clients = [Client(broker, notes, topic) for topic in TOPICS]
        for client in clients:
            assert client.published(), notes.refusal
            client.consume(4)
        with limited(broker.process, kind, spare_bytes=MORE_BYTES, spare_files=2):
            load(broker, notes, clients)
        said = log_path.read_text()
        check_refused(notes.failed, said)
        assert works_again(broker, notes), said
        for client in clients:
            client.close()
        was = "ended by itself" if broker.has_ended else "killed"
        broker.kill()
        broker.start()
        for topic in sorted(notes.acknowledged):
            drain(broker, notes, topic)
        for topic in TOPICS:
            with contextlib.closing(Client(broker, notes, topic)) as client:
                assert client.published(), (notes.refusal, log_path.read_text()[-2_000:])
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(_WAIT_S) == 0, log_path.read_text()[-2_000:]
    copies = {place: ids for place, ids in notes.ids.items() if len(ids) > 1}
    assert not copies, f"{was}: {copies}"
    for topic, number in notes.ids:
        assert number in notes.acknowledged[topic] | notes.unsure[topic], (topic, number)
    print(kind, was, notes.failed, {topic: len(one) for topic, one in notes.acknowledged.items()})
