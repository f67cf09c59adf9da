"""Group commit without memory: data is synced after two intervals, or its age is reported."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.core.errors import Unavailable
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.group_commit import LIMIT_MIN_S, Syncer, SyncThreads
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import Faults

INSIDE = ("penstock.storage.queue.group_commit",)
INTERVAL_S = 2.0


class Queue:
    """A syncer on real threads, whose data and clock are those of the test."""

    def __init__(self, clock: VirtualClock, threads: SyncThreads) -> None:
        self.clock, self.threads = clock, threads
        self.latest = self.durable = 0
        self.fails = False
        self.syncer = Syncer(
            self._run_pass,
            every_messages=100,
            interval_ms=round(INTERVAL_S * 1_000),
            pause_ms=0,
            clock=clock,
            threads=threads,
            name="q",
        )

    def _run_pass(self) -> int:
        if self.fails:
            self.fails = False
            raise Unavailable("no answer")
        self.durable = self.latest
        return self.durable

    def append(self, messages: int = 1) -> None:
        """Append as a disk queue does."""
        self.latest += messages
        try:
            self.syncer.wrote(messages)
        except MemoryError:
            self.syncer.sync_soon()

    def sync_soon(self) -> None:
        self.latest += 1
        self.syncer.sync_soon()

    def settle(self) -> None:
        """Wait until all callbacks that are due were called, and the passes that they began."""
        settle(self.clock, self.threads)


def settle(clock: VirtualClock, threads: SyncThreads) -> None:
    called = threading.Event()
    threads.call_at(clock.monotonic_s(), called.set)
    assert called.wait(120)
    threads._workers.submit(called.set).result(120)  # there is one worker


def append(queue: Queue) -> None:
    queue.append()


def append_much(queue: Queue) -> None:
    queue.append(1)
    queue.append(150)


def sync_soon(queue: Queue) -> None:
    queue.sync_soon()


def request(queue: Queue) -> None:
    queue.append()
    queue.syncer.request()


def begin(queue: Queue) -> None:
    """Append while a thread has the work of a pass, which has not begun."""
    queue.syncer._given = True
    queue.append()


def work(queue: Queue) -> None:
    """A pass, during which another append comes."""
    run_pass = queue.syncer._run_pass

    def append_meanwhile() -> int:
        queue.syncer._run_pass = run_pass
        durable = run_pass()
        queue.append()
        return durable

    queue.syncer._run_pass = append_meanwhile
    queue.syncer._work()


def failing_work(queue: Queue) -> None:
    queue.fails = True
    queue.syncer._work()


@pytest.mark.parametrize("operation", [append, append_much, sync_soon, request, work, failing_work])
def test_without_memory_data_is_synced_within_two_intervals_all_the_same(
    operation: Callable[[Queue], None],
) -> None:
    """No pass was planned any more, and each append took it that one was."""
    faults = Faults()
    for at in itertools.count():
        clock = VirtualClock()
        with SyncThreads(clock=clock, most=1) as threads:
            queue = Queue(clock, threads)
            if operation in (work, failing_work):
                begin(queue)
            with faults.armed_inside(INSIDE, MemoryError, at):
                operation(queue)
            raised = faults.raised
            if raised.endswith("._work"):
                continue  # the process ends: `test_work_that_raises_ends_the_process`
            queue.append()
            for _ in range(3):
                queue.settle()
                is_noted = bool(threads.unsynced._since_s)
                assert is_noted or queue.durable == queue.latest, raised
                clock.advance(INTERVAL_S)
            queue.settle()
            assert (queue.durable, threads.unsynced.age_s()) == (queue.latest, 0), raised
            queue.syncer.close()
        if not raised:
            break
    assert at > 5


@contextmanager
def synced_queue(clock: VirtualClock) -> Iterator[tuple[SyncThreads, DiskQueue]]:
    """Open a queue that a thread syncs in the background."""
    with (
        SyncThreads(clock=clock, most=1) as threads,
        DiskQueue.open(
            "/topic",
            DiskQueueOptions(sync_interval_ms=round(INTERVAL_S * 1_000)),
            fs=CrashableFileSystem(),
            clock=clock,
            threads=threads,
        ) as queue,
    ):
        yield threads, queue


def test_an_append_that_could_not_be_counted_is_not_refused_and_is_synced() -> None:
    """The block was stored, so the publisher that repeated it doubled it."""
    faults = Faults()
    for at in itertools.count():
        clock = VirtualClock()
        with synced_queue(clock) as (threads, queue):
            answered = []
            with faults.armed_inside(INSIDE, MemoryError, at):
                answered.append(queue.append([b"a"]))
            raised = faults.raised
            assert (len(answered), queue.latest) == (1, 1), raised
            for _ in range(2):
                settle(clock, threads)
                clock.advance(INTERVAL_S)
            settle(clock, threads)
            assert (queue.durable, threads.unsynced.age_s()) == (1, 0), raised
        if not raised:
            break
    assert at > 5


def test_an_append_is_not_refused_if_its_sync_can_be_planned_in_no_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> None:
        raise MemoryError("no plan")

    with DiskQueue.open("/topic", fs=CrashableFileSystem(), clock=VirtualClock()) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(Syncer, "wrote", fail)
            patch.setattr(Syncer, "sync_soon", fail)
            queue.append([b"a"])
        assert caplog.messages == ["/topic: planning the sync of a stored append failed"]
        assert (queue.latest, queue.sync()) == (1, 1)


@pytest.mark.parametrize(
    "failing",
    [
        [(Syncer, "wrote"), (Syncer, "sync_soon")],
        [(SyncThreads, "call_at"), (SyncThreads, "run"), (SyncThreads, "note_append")],
    ],
)
def test_data_whose_sync_could_be_planned_in_no_way_is_synced_without_another_append(
    monkeypatch: pytest.MonkeyPatch, failing: list[tuple[type, str]]
) -> None:
    """It stayed unsynced until the queue was closed."""

    def fail(*_arguments: object) -> None:
        raise MemoryError("no plan")

    clock = VirtualClock()
    with synced_queue(clock) as (threads, queue):
        clock.wait_for_waiting(1)
        with monkeypatch.context() as patch:
            for kind, name in failing:
                patch.setattr(kind, name, fail)
            queue.append([b"a"])
        clock.advance(LIMIT_MIN_S)
        clock.wait_until(lambda: not threads.has_unplanned, 30)
        settle(clock, threads)
        clock.advance(INTERVAL_S)
        settle(clock, threads)
        assert queue.durable == 1


def test_the_check_of_the_age_goes_on_though_memory_ran_out_in_it() -> None:
    """The disk hung, and the alarm that nobody planned any more never came."""
    faults = Faults()
    for at in itertools.count():
        clock = VirtualClock()
        with SyncThreads(clock=clock, most=1) as threads:
            threads.note_append("a queue", clock.monotonic_s())
            clock.advance(threads.unsynced.limit_s / 2)
            callback = failing_once(threads._check_age, faults, at)
            threads.call_at(clock.monotonic_s(), callback)
            threads._planned.pop(threads._check_age)
            settle(clock, threads)
            for _ in range(3):
                clock.advance(threads.unsynced.limit_s)
                settle(clock, threads)
            assert threads.unsynced.check_planned, faults.raised
            assert threads._check_age in threads._planned, faults.raised
        if not faults.raised:
            break
    assert at > 3


def failing_once(callback: Callable[[], None], faults: Faults, at: int) -> Callable[[], None]:
    """Return a callback during whose first call memory runs out; the exception is raised."""

    def call() -> None:
        nonlocal left
        if not left:
            callback()
            return
        left = 0
        done = []
        with faults.armed_inside(INSIDE, MemoryError, at):
            callback()
            done.append(1)
        if not done:
            raise MemoryError("no room")

    left = 1
    return call
