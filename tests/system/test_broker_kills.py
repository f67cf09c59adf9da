"""A real broker process under load over TCP, killed with -9 again and again, against a model.

A third of a minute long; ``PENSTOCK_KILLS_MINUTES=10`` makes it ten minutes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.broker.v2_kit import V2, Frame, Message, batch, sized
from tests.kits.ports_kit import kept_port

MINUTES = float(os.environ.get("PENSTOCK_KILLS_MINUTES", "0.3"))

pytestmark = [pytest.mark.system, pytest.mark.timeout(900 + MINUTES * 60)]

# The journal of a channel may be a tenth of a second behind; the rest is for a machine under load.
MARGIN_S = 2.0
EARLY_S = 0.05
DELAY_MS = 1_500
SILENT_S = 0.2
# To deliver what is left, one message after the other, on a machine under load.
DRAIN_S = 240.0

PROGRAM = """
import sys
from penstock.broker.channel import persistence
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker
from penstock.storage.queue.disk_queue import DiskQueueOptions

persistence._COMPACT_BYTES = 20_000  # so that kills meet compactions
options = BrokerOptions(folder=sys.argv[1], http_port=int(sys.argv[2]), tcp_port=int(sys.argv[3]),
                        default_partitions=2, min_free_bytes=0, retention_interval_ms=300)
run_broker(options, DiskQueueOptions(max_bytes_per_file=60_000), on_ready=lambda server:
           print(server.broker.http_port, server.broker.tcp_port, flush=True))
"""


class Line(V2):
    """A connection that says when it is gone."""

    def _exactly(self, count: int) -> bytes:
        data = super()._exactly(count)
        if len(data) < count:
            raise ConnectionError("the broker is gone")
        return data

    def message(self) -> Message:
        frame = self.frame()
        while frame is not None and frame.kind == 0:
            if frame.data == b"_heartbeat_":
                self.send(b"NOP\n")
            frame = self.frame()
        assert isinstance(frame, Frame)
        assert frame.kind == 2, frame
        time_ns, attempts = struct.unpack(">qH", frame.data[:10])
        return Message(time_ns, attempts, frame.data[10:26], frame.data[26:])


class Broker:
    """A broker process and its successors on the same ports, which are kept free for them."""

    def __init__(self, folder: Path, http: int, tcp: int) -> None:
        self.folder = folder
        self.http, self.tcp = http, tcp
        self.kills: list[float] = []
        self.silences: list[tuple[float, float]] = []  # in which a publish had no answer
        self.up = threading.Event()
        self.start()

    def spawn(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.folder), str(self.http), str(self.tcp)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        self.spawn()
        assert self.process.stdout is not None
        ports = self.process.stdout.readline().split()
        assert [*map(int, ports)] == [self.http, self.tcp], "the broker did not start"
        self.up.set()

    def kill(self) -> None:
        self.up.clear()
        self.kills.append(time.monotonic())
        self.process.kill()
        self.process.communicate()

    def end(self) -> int:
        self.up.clear()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=180)
        return self.process.returncode

    def killed_about(self, said: float) -> bool:
        """Say whether what was said at a time may not have been heard, or not been written."""
        return any(
            said - MARGIN_S <= at < said + MARGIN_S + self._silent_s(said, at) for at in self.kills
        )

    def _silent_s(self, begin: float, end: float) -> float:
        """Return how long it did not answer between two times: a machine under load."""
        silent_s, until = 0.0, begin
        for first, last in sorted(self.silences):
            silent_s += max(0.0, min(last, end) - max(first, until))
            until = max(until, min(last, end))
        return silent_s

    def answered(self, began: float) -> None:
        """Note that a publish that began at a time has its answer, or never gets one."""
        now = time.monotonic()
        if now - began > SILENT_S:
            self.silences.append((began, now))

    def partitions(self) -> list[dict[str, int]]:
        url = f"http://127.0.0.1:{self.http}/stats?format=json&topic=t"
        with urllib.request.urlopen(url, timeout=30) as answer:
            (topic,) = json.load(answer)["topics"]
        found: list[dict[str, int]] = topic["partitions"]
        return found

    def names(self) -> set[Path]:
        topic = self.folder / "t"
        return {*topic.glob("*/*.log"), *topic.glob("channels/*/*")}


@dataclass
class Wait:
    """A message that a consumer gave back."""

    sent: float
    due: float
    attempts: int


@dataclass
class Seen:
    """What one channel has given out, and what its consumers said."""

    name: str
    finished: dict[int, float] = field(default_factory=dict)
    waits: dict[int, Wait] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # stream partition -> offset
    delivered: int = 0
    again: int = 0
    wrong: list[str] = field(default_factory=list)


class Load:
    """Publishers and consumers, and the model of what must hold."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.mutex = threading.Lock()
        self.numbers = iter(range(1 << 40))
        self.acknowledged: set[int] = set()
        self.not_before: dict[int, float] = {}
        self.seen = {name: Seen(name) for name in ("order", "work", "fast")}
        self.publishing, self.consuming = threading.Event(), threading.Event()
        self.publishing.set()
        self.consuming.set()
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def run(self, work: Callable[[Line], None], going: threading.Event) -> None:
        """Do the work on a connection, on a new one when the broker comes back, until the end."""

        def lives() -> None:
            while going.is_set():
                try:
                    if self.broker.up.wait(0.2):
                        with Line(self.broker.tcp, timeout_s=60) as line:
                            work(line)
                except OSError:
                    continue
                except BaseException as error:  # noqa: BLE001 - the test's thread raises it
                    self.failures.append(error)
                    return

        thread = threading.Thread(target=lives, daemon=True)
        self.threads.append(thread)
        thread.start()

    # -- publishers

    def ask(self, line: Line, command: bytes, body: bytes) -> None:
        """Publish, and wait for the answer."""
        began = time.monotonic()
        try:
            assert line.ask(command, body) == b"OK"
        finally:
            self.broker.answered(began)

    def publish(self, line: Line, *, durable: bool) -> None:
        line.identify(durable=durable)
        pace = threading.Event()
        while self.publishing.is_set():
            with self.mutex:
                group = [next(self.numbers) for _ in range(25)]
            self.ask(line, b"MPUB t\n", batch(*(b"%d " % n + b"x" * 90 for n in group)))
            with self.mutex:
                self.acknowledged.update(group)
            pace.wait(0.1)

    def publish_one_by_one(self, line: Line) -> None:
        pace = threading.Event()
        while self.publishing.is_set():
            with self.mutex:
                now, later = next(self.numbers), next(self.numbers)
                self.not_before[later] = time.monotonic() + DELAY_MS / 1000
            self.ask(line, b"PUB t\n", sized(b"%d " % now))
            self.ask(line, b"DPUB t %d\n" % DELAY_MS, sized(b"%d " % later))
            with self.mutex:
                self.acknowledged |= {now, later}
            pace.wait(0.02)

    # -- consumers

    def consume(self, line: Line, channel: str, ready: int, chance: random.Random) -> None:
        seen = self.seen[channel]
        line.subscribe("t", channel, ready)
        while self.consuming.is_set():
            message = line.message()
            with self.mutex:
                number = self._note(seen, message)
                draw = chance.random()
                requeue = seen.name == "work" and draw < 0.1
                delay_ms = DELAY_MS if draw < 0.05 else 0
                now = time.monotonic()
                if requeue:
                    seen.finished.pop(number, None)
                    seen.waits[number] = Wait(now, now + delay_ms / 1000, message.attempts)
                else:
                    seen.waits.pop(number, None)
                    seen.finished[number] = now
            if requeue:
                line.send(b"REQ %s %d\n" % (message.id, delay_ms))
                continue
            if seen.name == "work" and draw > 0.95:
                line.send(b"TOUCH %s\n" % message.id)
            line.finish(message.id)

    def _note(self, seen: Seen, message: Message) -> int:
        """Hold a delivery against the model; returns the message's number."""
        number, now = int(message.body.split()[0]), time.monotonic()
        seen.delivered += 1
        killed = self.broker.killed_about
        finished, wait = seen.finished.get(number), seen.waits.get(number)
        if finished is not None:
            seen.again += 1
            if not killed(finished):
                seen.wrong.append(f"{number} came again, finished {now - finished:.3f} s ago")
        if wait is not None and not killed(wait.sent):
            if now < wait.due - EARLY_S:
                seen.wrong.append(f"{number} came back {wait.due - now:.3f} s too early")
            if message.attempts <= wait.attempts:
                seen.wrong.append(f"{number}: attempts {wait.attempts}, then {message.attempts}")
        if now < self.not_before.get(number, 0) - EARLY_S:
            seen.wrong.append(f"{number} came before it was due")
        partition, offset = divmod(int(message.id, 16), 1 << 48)
        if seen.name == "order" and number not in self.not_before and finished is None:
            if offset < seen.last.get(partition, 0):
                seen.wrong.append(f"offset {offset} came after {seen.last[partition]}")
            seen.last[partition] = offset
        return number

    def missing(self) -> dict[str, int]:
        with self.mutex:
            return {
                name: len(self.acknowledged - seen.finished.keys())
                for name, seen in self.seen.items()
            }

    def check(self) -> None:
        for failure in self.failures:
            raise failure
        for name, seen in self.seen.items():
            assert not seen.wrong, (name, len(seen.wrong), seen.wrong[:5])


def wait_for_a_moment(broker: Broker, chance: random.Random) -> str:
    """Wait for some time, or until files come or go; returns which."""
    draw = chance.random()
    if draw < 0.5:
        threading.Event().wait(chance.uniform(0.2, 2.5))
        return "any moment"
    wanted: Callable[[set[Path], set[Path]], bool] = chance.choice(
        [
            lambda before, now: any(path.suffix == ".tmp" for path in now),
            lambda before, now: any("channels" in path.parts for path in now - before),
            lambda before, now: any("channels" not in path.parts for path in now - before),
            lambda before, now: any("channels" not in path.parts for path in before - now),
        ]
    )
    before, deadline = broker.names(), time.monotonic() + 4
    while time.monotonic() < deadline:
        now = broker.names()
        if wanted(before, now):
            return "files changed"
        before |= now
    return "no file changed"


def test_nothing_acknowledged_is_lost_and_nothing_finished_returns(tmp_path: Path) -> None:
    chance = random.Random(11)
    with kept_port() as http, kept_port() as tcp:
        kill_again_and_again(Broker(tmp_path / "topics", http, tcp), chance)


def kill_again_and_again(broker: Broker, chance: random.Random) -> None:
    for name in ("order", "work", "fast"):
        with Line(broker.tcp) as line:
            line.subscribe("t", name, 0)
    load = Load(broker)
    load.run(lambda line: load.publish(line, durable=False), load.publishing)
    load.run(lambda line: load.publish(line, durable=True), load.publishing)
    load.run(load.publish_one_by_one, load.publishing)
    for channel, ready in (("order", 1), ("work", 40), ("work", 7), ("fast", 200)):
        draws = random.Random(f"{channel} {ready}")
        load.run(
            lambda line, c=channel, r=ready, d=draws: load.consume(line, c, r, d),
            load.consuming,
        )
    try:
        run(broker, load, chance)
    finally:
        broker.process.kill()
        broker.process.communicate()


def run(broker: Broker, load: Load, chance: random.Random) -> None:
    moments: dict[str, int] = {}
    end = time.monotonic() + MINUTES * 60
    while time.monotonic() < end and not load.failures:
        moment = wait_for_a_moment(broker, chance)
        moments[moment] = moments.get(moment, 0) + 1
        broker.kill()
        while chance.random() < 0.15:  # while it starts, too
            broker.spawn()
            threading.Event().wait(chance.uniform(0.3, 1.2))
            broker.kill()
        broker.start()
    load.publishing.clear()
    deadline = time.monotonic() + DRAIN_S
    while any(load.missing().values()) and time.monotonic() < deadline and not load.failures:
        threading.Event().wait(0.2)
    load.check()
    assert load.missing() == dict.fromkeys(load.seen, 0)
    partitions = broker.partitions()
    assert [part["messages_lost"] for part in partitions] == [0, 0]
    assert [part["damaged_places"] for part in partitions] == [0, 0]
    deadline = time.monotonic() + DRAIN_S
    while any(part["log_files"] > 3 for part in broker.partitions()):
        # Consumed files go by themselves.
        assert time.monotonic() < deadline
        threading.Event().wait(0.2)
    load.consuming.clear()
    assert broker.end() == 0
    for thread in load.threads:
        thread.join(10)
    counts = [f"{s.name}: {s.delivered} given out, {s.again} again" for s in load.seen.values()]
    print(f"{len(broker.kills)} kills {moments}, {len(load.acknowledged)} acknowledged, {counts}")
