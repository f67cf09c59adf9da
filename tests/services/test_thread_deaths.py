"""Each long-lived thread of the roles: its unexpected end is noticed, and handled as declared.

A fault is a `MemoryError` at a place where no thread expects one, such as the wait for its next
turn.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.core import threads
from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, Unavailable
from penstock.core.threads import DEATHS, Death, Deaths, OnDeath, OwnedThread
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.mailbox import MailboxThread
from penstock.services.api.asgi import application
from penstock.services.emitter.emitter import Record, ServiceEmitter
from penstock.services.emitter.events import AlertEvent, MetricEvent, Severity
from penstock.services.emitter.http_batches import BatchOptions
from penstock.services.emitter.http_sink import HttpSink, HttpSinkOptions
from penstock.services.emitter.log_sink import LogSink
from penstock.services.host import child_watch
from penstock.services.host.child_watch import ChildWatch
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.membership.election import LeaderSelector
from penstock.services.membership.leases import Announcement, LeaseAnnouncer, LeaseDiscovery
from penstock.services.membership.watchers import CallThread
from penstock.services.membership.zookeeper import ZooKeeperDiscovery
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import Check, Readiness
from penstock.services.roles import runtime
from penstock.services.roles.peon_events import PeonEvents
from penstock.services.roles.process_metrics import process_metrics
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.projection_builder import ProjectionBuilder
from penstock.spark.projections.projection_catalog import ProjectionCatalog
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.group_commit import SyncThreads
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.services.start_kit import Start

LIMIT_S = 120.0


class FaultyClock(SystemClock):
    """A clock whose first wait of the thread under test raises."""

    def __init__(self, faults: int = 1) -> None:
        self.faults = faults

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        if self.faults and isinstance(threading.current_thread(), OwnedThread):
            self.faults -= 1
            raise MemoryError("no room")
        return super().wait(condition, timeout_s)


class Ends:
    """Takes the place of the end of the process."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []

    def __call__(self, death: Death) -> None:
        self.deaths.append(death)


@pytest.fixture
def ends(deaths: Deaths) -> Iterator[Ends]:
    made, hook = Ends(), threading.excepthook
    deaths.end_process_by(made)
    yield made
    deaths._end = None
    threading.excepthook = hook


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)  # the threads have no clock of the test's


class Leases:
    """A lease store that knows nobody."""

    def list(self, service: str | None = None) -> list[object]:
        return []

    def renew(self, service: str, instance: str, **_more: object) -> None:
        pass

    def drop(self, service: str, instance: str) -> None:
        pass


class Nobody:
    """A contest that nobody wins, and a listener that never leads."""

    def start(self, _look: object) -> None:
        pass

    def seek(self) -> None:
        return None

    def leader(self) -> None:
        return None

    def stop(self) -> None:
        pass


class QuietZooKeeper:
    """Servers that know nobody."""

    base = "/penstock"
    session = 1

    def on_session(self, _call: object) -> None:
        pass

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


def _election(clock: FaultyClock, _folder: Path) -> object:
    nobody: object = Nobody()
    return LeaderSelector(nobody, nobody, clock, KeptEvents(), lambda: None)  # type: ignore[arg-type]


def _http_sink(clock: FaultyClock, _folder: Path) -> object:
    return HttpSink(HttpSinkOptions("http://127.0.0.1:1/"), clock, random.Random(1))


def _emitter(clock: FaultyClock, _folder: Path) -> object:
    return ServiceEmitter({}, LogSink(SystemClock()), clock)


def _announcer(clock: FaultyClock, _folder: Path) -> object:
    store: object = Leases()
    return LeaseAnnouncer(store, Announcement("flow", "f", HostPort("h", 1)), clock)  # type: ignore[arg-type]


def _discovery(clock: FaultyClock, _folder: Path) -> object:
    clock.faults = 2  # one for the thread that calls listeners
    store: object = Leases()
    return LeaseDiscovery(store, clock)  # type: ignore[arg-type]


def _zookeeper(clock: FaultyClock, _folder: Path) -> object:
    clock.faults = 2
    servers: object = QuietZooKeeper()
    return ZooKeeperDiscovery(servers, clock)  # type: ignore[arg-type]


def _calls(clock: FaultyClock, _folder: Path) -> object:
    return CallThread(clock)


def _projections(clock: FaultyClock, folder: Path) -> object:
    tables: object = SimpleNamespace(tables=dict)
    sessions: object = SimpleNamespace(with_conf=lambda _conf: None)
    return ProjectionBuilder(
        sessions,  # type: ignore[arg-type]
        ProjectionFiles(str(folder), clock),
        tables,  # type: ignore[arg-type]
        ProjectionCatalog(tables),  # type: ignore[arg-type]
        clock,
    )


def _readiness(clock: FaultyClock, _folder: Path) -> object:
    check = Check("work", Dependency.OTHER, lambda: None)
    return Readiness("flow", [check], clock, Start())


# What a role has, its threads that die, and what follows.
RESTARTED = {
    "event sender": _http_sink,
    "emitter": _emitter,
    "announcer": _announcer,
    "discovery": _discovery,
    "discovery calls": _calls,
    "projections": _projections,
    "readiness: work": _readiness,
}


@pytest.mark.parametrize("name", [*RESTARTED, "discovery over zookeeper"])
def test_threads_without_state_of_their_own_start_again(
    ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: LIMIT_S)
    make = RESTARTED.get(name, _zookeeper)
    name = name.removesuffix(" over zookeeper")
    clock = FaultyClock()
    owner = make(clock, tmp_path)
    owner.start()  # type: ignore[attr-defined]
    until(lambda: name in DEATHS.counts() and not clock.faults)
    # The role is not ready as long as the thread does not run, and reports that.
    ready = Readiness("flow", [], SystemClock(), Start()).state()
    assert not ready.ready
    assert any(one.startswith(f"{name} ended unexpectedly") for one in ready.texts())
    assert f'penstock_thread_deaths_total{{role="flow",thread="{name}"}} 1.0' in metrics_text()
    owner.stop()  # type: ignore[attr-defined]
    assert not ends.deaths
    until(lambda: not DEATHS.down())


def metrics_text() -> str:
    return process_metrics("flow")().decode()


def test_a_sender_that_died_goes_on_with_the_batch_that_it_had(ends: Ends) -> None:
    sent: list[bytes] = []
    faults = [MemoryError("no room")]

    def send(_url: str, body: bytes, _headers: object, _timeout_s: float) -> int:
        if faults:
            raise faults.pop()
        sent.append(body)
        return 200

    batches = BatchOptions(flush_ms=10, flush_count=1)
    options = HttpSinkOptions("http://127.0.0.1:1/", batches)
    sink = HttpSink(options, SystemClock(), random.Random(1), send)
    sink.start()
    sink.accept(Record("metrics", {"metric": "a"}))
    until(lambda: sent)
    sink.stop()
    assert DEATHS.counts() == {"event sender": 1}
    assert sent == [b'[{"metric":"a"}]']


def test_a_log_of_events_that_died_goes_on(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = LogSink(SystemClock())
    faults = [MemoryError("no room")]
    written: list[Record] = []

    def write(record: Record) -> None:
        if faults:
            raise faults.pop()
        written.append(record)

    monkeypatch.setattr(sink, "_write", write)
    sink.start()
    sink.accept(Record("metrics", {"metric": "a"}))
    until(lambda: DEATHS.counts() == {"event log": 1})
    sink.accept(Record("metrics", {"metric": "b"}))
    sink.flush()  # what was lost with the thread is waited for by nobody
    sink.stop()
    assert [one.body["metric"] for one in written] == ["b"]


def test_a_child_watch_that_died_reports_the_end_of_each_child(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ChildWatch()
    register = watch._selector.register
    faults = [MemoryError("no room"), MemoryError("again")]

    def fail_first(*given: object) -> object:
        if faults:
            raise faults.pop()
        return register(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(watch._selector, "register", fail_first)
    watch.start()
    told = threading.Event()
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch.watch(child.pid, reader, told.set)
        os.close(writer)
        assert child.stdin is not None
        child.stdin.close()
    assert told.wait(LIMIT_S)
    watch.stop()
    assert DEATHS.counts() == {"child watch": 2}


def test_a_child_watch_repeats_a_call_that_raised(ends: Ends) -> None:
    """Otherwise nobody learns of the end of a fork server, and no other one is started."""
    watch = ChildWatch()
    watch.start()
    told = threading.Semaphore(0)
    faults = [MemoryError("again"), MemoryError("at the message")]

    def notify() -> None:
        if faults:
            raise faults.pop()
        told.release()

    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch.watch(child.pid, reader, notify)
        os.write(writer, b".")
        assert told.acquire(timeout=LIMIT_S)  # the message, after both faults
        faults.append(MemoryError("at the end"))
        assert child.stdin is not None
        child.stdin.close()
        assert told.acquire(timeout=LIMIT_S)
    os.close(writer)
    watch.stop()
    assert DEATHS.counts() == {"child watch": 3}


def test_a_call_that_raised_three_times_is_made_later(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker would wait for ever for a fork server that has ended."""
    monkeypatch.setattr(child_watch, "_LATER_S", 0.01)
    watch = ChildWatch()
    watch.start()
    faults = [MemoryError()] * 5
    told = threading.Event()

    def notify() -> None:
        if faults:
            raise faults.pop()
        told.set()

    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch.watch(child.pid, reader, notify)
        os.write(writer, b".")
        assert told.wait(LIMIT_S)
        assert child.stdin is not None
        child.stdin.close()
    os.close(writer)
    watch.stop()
    assert DEATHS.counts() == {"child watch": 2}


def test_a_call_that_always_raises_does_not_end_the_watch_of_others(ends: Ends) -> None:
    watch = ChildWatch()
    watch.start()
    told, called = threading.Semaphore(0), threading.Semaphore(0)

    def fail() -> None:
        called.release()
        raise MemoryError

    reader, writer = os.pipe()
    other_reader, other_writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch.watch(child.pid, reader, fail)
        watch.watch(child.pid, other_reader, told.release)
        os.write(writer, b".")
        for _ in range(3):
            assert called.acquire(timeout=LIMIT_S)
        os.write(other_writer, b".")
        assert told.acquire(timeout=LIMIT_S)
        watch.stop()
        assert child.stdin is not None
        child.stdin.close()
    os.close(writer)
    os.close(other_writer)
    assert DEATHS.counts() == {"child watch": 2}


def test_a_descriptor_that_cannot_be_watched_is_dropped_and_its_owner_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The body met it again at each restart, and no child was watched any more."""
    watch = ChildWatch()
    register = watch._selector.register
    refused: list[int] = []

    def refuse_first(fd: int, *given: object) -> object:
        if not refused:
            refused.append(fd)
            raise OSError(errno.ENOSPC, "no space for watches")
        return register(fd, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(watch._selector, "register", refuse_first)
    watch.start()
    told, later = threading.Semaphore(0), threading.Event()
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch.watch(child.pid, reader, told.release)
        assert told.acquire(timeout=LIMIT_S)
        assert refused == [reader]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reader)
        os.close(writer)
        other, words = os.pipe()
        watch.watch(child.pid, other, later.set)
        os.write(words, b".")
        assert later.wait(LIMIT_S)
        os.close(words)
        assert child.stdin is not None
        child.stdin.close()
        assert told.acquire(timeout=LIMIT_S)  # the child's end
    watch.stop()


def test_the_events_of_a_task_are_emitted_after_a_fault(ends: Ends) -> None:
    report = SimpleNamespace(row_stats={"buildSegments": {"processed": 3}})
    task: object = SimpleNamespace(report=lambda: report)
    emitter, clock = KeptEvents(), FaultyClock()
    events = PeonEvents(task, emitter, clock)  # type: ignore[arg-type]
    events.start()
    until(lambda: DEATHS.counts() == {"task events": 1})
    result: object = SimpleNamespace(state=None, error="")
    events.stop(result)  # type: ignore[arg-type]
    (event,) = emitter.events
    assert isinstance(event, MetricEvent)
    assert event.value == 3


def _mailbox(fault: Callable[[], None], stack: ExitStack, _folder: Path) -> None:
    thread = MailboxThread("overlord mailbox", clock=SystemClock())
    thread.start()
    stack.callback(thread.stop)
    thread.executor.execute(fault, "a fault of ours")


def _flow(name: str) -> Callable[[Callable[[], None], ExitStack, Path], None]:
    def kill(fault: Callable[[], None], stack: ExitStack, folder: Path) -> None:
        controller = FlowController.open(
            str(folder),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry({}),
            new_uuid=lambda: "u",
            environment={},
            options=ControllerOptions(stop_limit_s=1.0),
        )
        stack.callback(_close, controller)
        mailbox: MailboxThread = getattr(controller, name)
        mailbox.executor.execute(fault, "a fault of ours")

    return kill


def _close(controller: FlowController) -> None:
    # Its mailboxes are closed; the process would have ended.
    with ExitStack() as stack:
        stack.push(lambda *_found: True)
        controller.close()


def _sync_timer(fault: Callable[[], None], stack: ExitStack, _folder: Path) -> None:
    made = stack.enter_context(SyncThreads(clock=SystemClock()))

    def interrupt() -> None:
        raise KeyboardInterrupt

    made.call_at(0.0, interrupt)


def _stands(_fault: Callable[[], None], stack: ExitStack, folder: Path) -> None:
    selector = _election(FaultyClock(), folder)
    assert isinstance(selector, LeaderSelector)
    stack.callback(selector.stop)
    selector.start()


def _http(_fault: Callable[[], None], stack: ExitStack, _folder: Path) -> None:
    server = HttpServer(
        application([], access=with_token(None)), listen(HostPort("127.0.0.1", 0), "--http")
    )
    server.start()
    stack.callback(server.stop)
    server._server.should_exit = True  # though nobody stops the server


ENDING = {
    "election": _stands,
    "overlord mailbox": _mailbox,
    "flow-scheduler": _flow("_scheduling"),
    "flow-control": _flow("_control"),
    "sync timer": _sync_timer,
    "http": _http,
}


@pytest.mark.parametrize("name", ENDING)
def test_threads_with_state_end_the_process(ends: Ends, tmp_path: Path, name: str) -> None:
    def fault() -> None:
        raise MemoryError("no room")

    with ExitStack() as stack:
        ENDING[name](fault, stack, tmp_path)
        until(lambda: ends.deaths)
    assert ends.deaths[0].name == name
    assert ends.deaths[0].then is OnDeath.END_PROCESS
    assert DEATHS.counts()[name] == 1
    assert any(one.startswith(f"{name} ended unexpectedly") for one in DEATHS.down())


def test_a_check_that_fails_to_be_made_keeps_the_role_unready_and_comes_again(ends: Ends) -> None:
    clock = FaultyClock()
    start = Start()
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise Unavailable("not yet")

    check = Check("work", Dependency.OTHER, attempt)
    readiness = Readiness("flow", [check], clock, start)
    readiness.start()
    assert start.is_ready.wait(LIMIT_S)
    readiness.stop()
    assert DEATHS.counts() == {"readiness: work": 1}


def test_a_death_is_an_alert(deaths: Deaths) -> None:
    emitter: object = KeptEvents()
    assert isinstance(emitter, KeptEvents)
    death = Death("emitter", MemoryError("no room"), OnDeath.RESTART)
    runtime._alert(death, emitter)  # type: ignore[arg-type]
    (alert,) = emitter.events
    assert isinstance(alert, AlertEvent)
    assert alert.severity is Severity.COMPONENT_FAILURE
    assert alert.description == (
        "emitter ended unexpectedly (MemoryError('no room')); it starts again"
    )


def test_a_death_that_ends_the_process_is_sent_before(ends: Ends) -> None:
    accepted: list[Record] = []

    class Sink(LogSink):
        def accept(self, record: Record) -> None:
            accepted.append(record)

    emitter = ServiceEmitter({}, Sink(SystemClock()), SystemClock())
    emitter.start()
    runtime._alert(Death("election", None, OnDeath.END_PROCESS), emitter)
    (alert,) = accepted
    assert alert.body["severity"] == Severity.SERVICE_FAILURE.value
