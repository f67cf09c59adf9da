"""Traces which modules one task, FlowFile, batch, event or message passes through.

`PYTHONPATH=scripts python -m tests.ways.ways` prints for each of five ways the modules that ran,
and the pairs of modules that call each other directly in both directions; with the name of a way
and a folder, everything about this one as JSON. Calls are recorded by
`sys.setprofile`; a call counts if both frames belong to `penstock`, and the code of a module's
import does not count.

The modules of `RUNNERS` only run what they are given, as a thread pool or an event loop does: a
mailbox runs mail, a lane runs calls, a database runs the work of a transaction. They know nothing
of their callers, so a call back through one of them is not a pair. Those are counted apart.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Self

from penstock.broker.options import BrokerOptions
from penstock.indexing.ports import TaskState
from penstock.storage.disk import OsFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.flow.controller_kit import LINE, ControllerWorld, apply, wait_counted
from tests.indexing.batch_kit import BatchWorld, index, lines
from tests.indexing.indexing_kit import OneTask, event
from tests.services.overlord_kit import OverlordWorld, noop

RUNNERS: Final = {
    "core.cleanup": "runs every clean-up step, although some of them raise",
    "core.threads": "runs the function of a thread, and reports what ended it",
    "indexing.batch.retrying_caller": "runs a call of a batch task, again while there is no answer",
    "services.api.request_access": "passes requests on to the application that it protects",
    "mailbox.alarm": "runs the function that is due, on the thread of its mailbox",
    "mailbox.background_calls": "runs blocking calls on lanes, and what takes their outcomes",
    "mailbox.executor": "runs a command as mail, and passes its outcome to a future",
    "mailbox.lanes": "runs blocking calls on threads, the calls of one lane in order",
    "mailbox.mailbox_processor": "runs the mails and the default action of a mailbox",
    "mailbox.timers": "runs what is due, on the thread of its mailbox",
    "storage.queue.group_commit": "runs the sync passes of queues and journals on shared threads",
    "storage.metadata.sql_database": "runs the work of a transaction, again after a conflict",
}
"""Modules whose only purpose is to run what they are given, each with what it runs."""

SOURCE: Final = str(Path(sys.modules["penstock"].__file__ or "").parent) + "/"


@dataclass(frozen=True)
class Way:
    """One way: its module names without `penstock.`, and calls between two modules."""

    modules: frozenset[str]
    calls: frozenset[tuple[str, str]]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Pairs of modules that call each other directly, each once and in order."""
        return [pair for pair in self._both_ways() if RUNNERS.keys().isdisjoint(pair)]

    @property
    def rings(self) -> list[tuple[str, str, str]]:
        """Rings of three modules, each of which calls the next; without runners and pairs.

        Each ring once, beginning with the first of its names. A ring of two is a pair.
        """
        calls: dict[str, set[str]] = {}
        for caller, callee in self.calls:
            if RUNNERS.keys().isdisjoint((caller, callee)):
                calls.setdefault(caller, set()).add(callee)
        return sorted(
            (first, second, third)
            for first, seconds in calls.items()
            for second in seconds
            if first < second
            for third in calls.get(second, ())
            if first < third and third != second and first in calls.get(third, ())
        )

    @property
    def pairs_through_runners(self) -> list[tuple[str, str]]:
        """Pairs of a runner and a module that it calls back."""
        return [pair for pair in self._both_ways() if not RUNNERS.keys().isdisjoint(pair)]

    def _both_ways(self) -> list[tuple[str, str]]:
        return sorted((a, b) for a, b in self.calls if a < b and (b, a) in self.calls)


class Tracer:
    """Records calls in the threads that are started while it is active, and in its own thread."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._calls: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self) -> None:
        """Forget what was recorded so far: the way begins now."""
        self._modules.clear()
        self._calls.clear()

    def way(self) -> Way:
        """Return what was recorded since `begin`."""
        return Way(frozenset(self._modules), frozenset(self._calls))

    def _seen(self, frame: FrameType, what: str, _argument: object) -> None:
        if what != "call" or (callee := _module_of(frame)) is None:
            return
        self._modules.add(callee)
        caller = None if frame.f_back is None else _module_of(frame.f_back)
        if caller is not None and caller != callee:
            self._calls.add((caller, callee))


def _module_of(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    if not name.startswith(SOURCE) or frame.f_code.co_name == "<module>":
        return None
    return name[len(SOURCE) : -len(".py")].removesuffix("/__init__").replace("/", ".")


def task(folder: Path, tracer: Tracer) -> Way:
    """A task from its POST to its end: API, overlord, worker."""
    world = OverlordWorld(folder).start()
    try:
        tracer.begin()
        assert world.api.post("/druid/indexer/v1/task", json=noop("one")).status_code == 200
        world.runs("one")
        world.end("one")
        return tracer.way()
    finally:
        world.close()


def flow(folder: Path, tracer: Tracer) -> Way:
    """A flow of three processors, from its start to the last FlowFile."""
    world = ControllerWorld(OsFileSystem(), str(folder))
    try:
        controller = world.open()
        apply(controller, LINE)
        tracer.begin()
        controller.start()
        wait_counted(controller, 10)
        return tracer.way()
    finally:
        world.close()


def streaming_task(folder: Path, tracer: Tracer) -> Way:
    """A streaming task from its first event to its publish."""
    world = OneTask(folder)
    try:
        tracer.begin()
        for number in range(10):
            world.broker.add("flights", number % 2, [event(number)])
        world.run(lambda: len(world.announced()) == 10)
        offsets = world.ask(world.task.pause())
        world.ask(world.task.set_end_offsets(offsets, finish=True))
        world.run(lambda: world.task.result.state is not TaskState.RUNNING)
        assert world.published() == list(range(10))
        return tracer.way()
    finally:
        world.metadata.close()


def batch_task(folder: Path, tracer: Tracer) -> Way:
    """A batch task from its spec to its publish."""
    world = BatchWorld(folder)
    try:
        tracer.begin()
        result = world.run(index(lines((1, "a", 1), (2, "b", 2))))
        assert result.state is TaskState.SUCCESS, result.error
        return tracer.way()
    finally:
        world.close()


def message(folder: Path, tracer: Tracer) -> Way:
    """A message from PUB to FIN over NSQ's protocol."""
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    with (
        RunningBroker(options) as broker,
        socket.create_connection(("127.0.0.1", broker.server.broker.tcp_port), 30) as client,
    ):
        client.sendall(b"  V2SUB t c\nRDY 1\n")
        _read_frame(client)
        tracer.begin()
        client.sendall(b"PUB t\n" + struct.pack(">I", 5) + b"hello")
        frames = [_read_frame(client), _read_frame(client)]
        given = next(body for kind, body in frames if kind == 2)
        client.sendall(b"FIN " + given[10:26] + b"\nNOP\n")
        client.sendall(b"CLS\n")
        assert _read_frame(client) == (0, b"CLOSE_WAIT")
        return tracer.way()  # before the connection ends, which is another way


def _read_frame(client: socket.socket) -> tuple[int, bytes]:
    size, kind = struct.unpack(">II", _exactly(client, 8))
    return kind, _exactly(client, size - 4)


def _exactly(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = client.recv(size - len(got))
        assert piece, "the broker closed the connection"
        got += piece
    return bytes(got)


WAYS: Final[dict[str, Callable[[Path, Tracer], Way]]] = {
    "a task from POST to its end": task,
    "a flow": flow,
    "a streaming task": streaming_task,
    "a batch task": batch_task,
    "a message from PUB to FIN": message,
}


def trace(name: str, folder: Path) -> Way:
    """Run one way of `WAYS` in a folder of its own."""
    with Tracer() as tracer:
        return WAYS[name](folder, tracer)


def trace_alone(name: str, folder: Path) -> Way:
    """Run one way in a process of its own: threads of other tests would be recorded, too.

    Raises:
        CalledProcessError: The way failed, and has printed why.
    """
    command = [sys.executable, "-m", "tests.ways.ways", name, str(folder)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(command, check=True, env=variables, stdout=subprocess.PIPE).stdout
    modules, calls = json.loads(printed)
    return Way(frozenset(modules), frozenset((a, b) for a, b in calls))


def main() -> None:
    """Print modules and pairs of each way, or all that was recorded of one as JSON."""
    if len(sys.argv) == 3:
        way = trace(sys.argv[1], Path(sys.argv[2]))
        print(json.dumps([sorted(way.modules), sorted(way.calls)]))
        return
    for name in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            way = trace(name, Path(folder))
        through = way.pairs_through_runners
        print(f"{name}: {len(way.modules)} modules, {len(way.pairs)} pairs", end="")
        print(f"; pairs through runners: {len(through)}")
        for a, b in way.pairs:
            print(f"    {a}  <->  {b}")
        for a, b in through:
            print(f"    ({a}  <->  {b})")
        for ring in way.rings:
            print(f"    {'  ->  '.join(ring)}  ->")


if __name__ == "__main__":
    main()
