"""Brokers that are sent nonsense, a client that must not notice, and how much memory it took."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Self

from v2 import V2

PROGRAM = """
import sys
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker

def say(server):
    print(server.http_port, server.broker.tcp_port, flush=True)

run_broker(BrokerOptions(folder=sys.argv[1], http_port=0, tcp_port=0), on_ready=say)
"""
MEBIBYTE = 1 << 20


class BrokerProcess:
    """A broker in a process of its own, so that its memory can be measured."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.http_port, self.tcp_port = map(int, self.process.stdout.readline().split())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)

    def resident(self, what: str = "VmRSS") -> int:
        """Return its memory in bytes: now, or at the most (``VmHWM``)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == what:
                return int(value.split()[0]) * 1024
        raise AssertionError(what)

    def forget_peak(self) -> int:
        """Let the peak begin anew; return what is resident."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.resident()

    def processor_s(self) -> float:
        """Return the processor time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


class Bystander:
    """Somebody else's producer and consumer at the same broker."""

    def __init__(self, port: int) -> None:
        self._numbers = itertools.count()
        self._producer = V2(port)
        self._consumer = V2(port).subscribe("bystander", "channel", ready=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._consumer.close()

    def notices_nothing(self) -> None:
        """Publish and consume a message."""
        body = b"message %d" % next(self._numbers)
        self._producer.publish("bystander", body)
        message = self._consumer.message()
        assert (message.body, message.attempts) == (body, 1)
        self._consumer.finish(message.id)
