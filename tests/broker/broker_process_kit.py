"""A broker in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

PROGRAM = """
import sys
from penstock.broker.options import BrokerOptions
from penstock.broker.server import run_broker

def say(server):
    print(server.http_port, server.broker.tcp_port, flush=True)

options = BrokerOptions(folder=sys.argv[1], http_port=0, tcp_port=0, min_free_bytes=0)
run_broker(options, on_ready=say)
"""


class BrokerProcess:
    """A broker in a process of its own: it can be killed, and its memory measured.

    Args:
        folder: Where its topics are.
        end: The signal that ends it.
    """

    def __init__(self, folder: Path, end: signal.Signals = signal.SIGTERM) -> None:
        self._end = end
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.http_port, self.tcp_port = map(int, self.process.stdout.readline().split())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(self._end)
        self.process.communicate(timeout=120)

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
