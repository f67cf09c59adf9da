"""The scheduler with real threads and the machine's clock: nothing is lost in a race."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from itertools import pairwise
from typing import TypeVar

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, Unavailable
from penstock.core.threads import Deaths
from penstock.flow.scheduling.component_protocol import (
    NOTHING_DONE,
    WORKED,
    ComponentRun,
    RunOutcome,
)
from penstock.flow.scheduling.dispatcher import SchedulerOptions
from penstock.flow.scheduling.pool import ThreadPool
from penstock.flow.scheduling.scheduler import Scheduler
from penstock.flow.scheduling.strategy import ComponentSchedule
from penstock.mailbox import Mail, MailboxThread
from penstock.mailbox.task_mailbox import TaskMailbox
from tests.harness.call_faults_kit import Faults
from tests.harness.mailbox_kit import StepPool

LIMIT_S = 120.0
T = TypeVar("T")


class Part:
    """Takes from a deque, and hands on to another part's."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.taken = 0
        self.wake_next = lambda: None
        self.next: Part | None = None
        self.enough = threading.Event()
        self.wanted = 0
        self.terminated = threading.Event()

    def has_work(self, now_ms: int) -> bool:
        return bool(self.queue)

    def next_due_ms(self) -> None:
        return None

    def is_open(self) -> bool:
        return True

    def problems(self) -> list[str]:
        return []

    def trigger(self, run: ComponentRun) -> RunOutcome:
        try:
            number = self.queue.popleft()
        except IndexError:
            return NOTHING_DONE
        if self.next is not None:
            self.next.queue.append(number)
            self.wake_next()
        self.taken += 1
        if self.taken == self.wanted:
            self.enough.set()
        return WORKED

    def on_scheduled(self) -> None: ...

    def on_unscheduled(self) -> None: ...

    def on_stopped(self) -> None: ...

    def on_terminated(self) -> None:
        self.terminated.set()


class Stuck(Part):
    """Stays in its trigger until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.left = threading.Event()

    def has_work(self, now_ms: int) -> bool:
        return True

    def trigger(self, run: ComponentRun) -> RunOutcome:
        self.entered.set()
        self.let_go.wait(LIMIT_S)
        assert run.is_terminated
        self.left.set()
        return WORKED


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    clock = SystemClock()
    pool = ThreadPool("test flow")
    with MailboxThread("test scheduler", clock=clock) as thread:
        scheduler = Scheduler(
            thread.processor, pool, clock=clock, options=SchedulerOptions(threads=3)
        )
        yield scheduler
        done(scheduler.close())
    assert thread.failure is None


def done(future: Future[T]) -> T:
    return future.result(LIMIT_S)


def test_all_that_is_put_goes_through_a_chain(scheduler: Scheduler) -> None:
    parts = [Part() for _ in range(4)]
    count = 500
    for number, part in enumerate(parts):
        done(scheduler.add(str(number), part, ComponentSchedule()))
        part.wanted = count
    for number, (part, following) in enumerate(pairwise(parts)):
        part.next = following
        part.wake_next = scheduler.waker(str(number + 1))
    for number in range(len(parts)):
        done(scheduler.start(str(number)))
    for number in range(count):
        parts[0].queue.append(number)
        scheduler.wake("0")
    assert parts[-1].enough.wait(LIMIT_S)
    for number in range(len(parts)):
        done(scheduler.stop(str(number)))
    assert [part.taken for part in parts] == [count] * len(parts)


def test_an_event_at_each_moment_of_a_run_is_seen(scheduler: Scheduler) -> None:
    """One at a time from another thread, each only when the one before was taken."""
    part = Part()
    done(scheduler.add("one", part, ComponentSchedule()))
    wake = scheduler.waker("one")
    done(scheduler.start("one"))
    for number in range(1, 301):
        part.enough.clear()
        part.wanted = number
        part.queue.append(number)
        wake()
        assert part.enough.wait(LIMIT_S), number
    done(scheduler.stop("one"))


def test_a_stuck_thread_is_replaced_and_what_it_did_counts_for_nothing(
    scheduler: Scheduler,
) -> None:
    stuck = Stuck()
    done(scheduler.add("stuck", stuck, ComponentSchedule(concurrent_tasks=3)))
    done(scheduler.start("stuck"))
    assert stuck.entered.wait(LIMIT_S)
    stopped = scheduler.stop("stuck")
    done(scheduler.terminate("stuck"))
    done(stopped)
    assert stuck.terminated.is_set()
    found = done(scheduler.statistics())
    assert found.busy_threads == 0
    assert found.terminated_threads == 2
    part = Part()
    part.wanted = 1
    done(scheduler.add("other", part, ComponentSchedule()))
    done(scheduler.start("other"))
    part.queue.append(1)
    scheduler.wake("other")
    assert part.enough.wait(LIMIT_S)
    stuck.let_go.set()
    assert stuck.left.wait(LIMIT_S)


def test_threads_are_kept_and_an_abandoned_one_ends() -> None:
    pool = ThreadPool("test pool")
    first, second = threading.Event(), threading.Event()
    names: list[str] = []

    def work(event: threading.Event) -> None:
        event.wait(LIMIT_S)
        names.append(threading.current_thread().name)

    one = pool.run(lambda: work(first))
    two = pool.run(lambda: work(second))
    assert pool.threads == 2
    one.abandon()
    one.abandon()
    assert pool.threads == 1
    first.set()
    second.set()
    ends = [each for each in threading.enumerate() if each.name.startswith("test pool")]
    pool.close()
    for thread in ends:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert pool.threads == 0
    two.abandon()  # too late: the thread has long been free
    assert pool.threads == 0
    assert any(name.endswith("(terminated)") for name in names)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
def test_a_thread_that_cannot_start_takes_no_slot(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, ran = ThreadPool("test pool"), threading.Event()

    def refuse(_: threading.Thread) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(error if error is KeyboardInterrupt else Unavailable):
            pool.run(lambda: pytest.fail("it was refused"))
    assert pool.threads == 0
    pool.run(ran.set)
    assert ran.wait(LIMIT_S)
    assert pool.threads == 1
    pool.close()


@pytest.mark.parametrize("is_idle", [False, True])
def test_without_memory_work_runs_or_is_refused_and_takes_no_slot(*, is_idle: bool) -> None:
    faults = Faults()
    for at in itertools.count():
        pool, ran, again = ThreadPool("test pool"), threading.Event(), threading.Event()
        if is_idle:
            pool.run(again.set)
            while not pool._idle:  # it is soon
                threading.Event().wait(0.001)
            again.clear()
        accepted = 0
        with (
            contextlib.suppress(Unavailable),
            faults.armed_inside(["penstock.flow.scheduling.pool"], MemoryError, at),
        ):
            pool.run(ran.set)
            accepted = 1
        if accepted:
            assert ran.wait(LIMIT_S), faults.raised
        pool.run(again.set)
        assert again.wait(LIMIT_S), faults.raised
        assert pool.threads <= 1 + accepted, faults.raised
        assert accepted or not ran.is_set(), faults.raised
        pool.close()
        if not faults.raised:
            break
    assert at


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_work_that_an_idle_thread_is_not_given_takes_no_slot(after: bool) -> None:
    """Whether or not the queue had taken it: it runs, or its caller hears that it does not."""
    pool, faults, ran = ThreadPool("test pool"), Faults(), []
    work = threading.Event()
    pool.run(work.set)
    assert work.wait(LIMIT_S)
    while not pool._idle:  # it is soon
        threading.Event().wait(0.001)
    tasks = pool._tasks
    pool._tasks = faults.port(tasks)
    with faults.armed(MemoryError, 0, after=after), contextlib.suppress(Unavailable):
        pool.run(lambda: ran.append(1))
        ran.append(0)
    pool._tasks = tasks
    again = threading.Event()
    pool.run(lambda: (ran.append(2), again.set()))
    assert again.wait(LIMIT_S)
    assert (1 in ran) == (0 in ran)
    assert pool.threads == 1
    pool.close()


def test_work_that_raises_ends_the_process(deaths: Deaths) -> None:
    """The end of a run was lost with a log line: its component never ran again."""

    def fail() -> None:
        raise MemoryError("no room")

    pool, ran = ThreadPool("test pool"), threading.Event()
    pool.run(fail)
    pool.run(ran.set)
    assert ran.wait(LIMIT_S)
    pool.close()
    assert deaths.counts() == {"test pool": 1}


@pytest.mark.parametrize("event", ["wake", "a run ended", "a method ended"])
def test_an_event_that_cannot_be_put_ends_the_scheduler(
    event: str, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its component stood still for good, and the process said that it was ready."""
    put, failed = TaskMailbox.put, []

    def fail_once(mailbox: TaskMailbox, mail: Mail) -> None:
        if mail.description == event and not failed:
            failed.append(event)
            raise MemoryError("no room")
        put(mailbox, mail)

    monkeypatch.setattr(TaskMailbox, "put", fail_once)
    clock, part, pool = SystemClock(), Part(), ThreadPool("test flow")
    thread = MailboxThread("test scheduler", clock=clock, daemon=True)
    scheduler = Scheduler(thread.processor, pool, clock=clock)
    thread.start()
    done(scheduler.add("one", part, ComponentSchedule()))
    part.queue.append(1)
    with contextlib.suppress(CancelledError, Closed):
        done(scheduler.start("one"))
    while thread.is_alive and not failed:
        with contextlib.suppress(MemoryError):
            scheduler.wake("one")
    assert thread.join(LIMIT_S)
    assert isinstance(thread.failure, MemoryError)
    assert deaths.counts()["test scheduler"] == 1
    pool.close()


def test_a_step_pool_runs_work_when_told_to() -> None:
    pool = StepPool()
    ran: list[int] = []
    pool.run(lambda: ran.append(1))
    given_up = pool.run(lambda: ran.append(2))
    given_up.abandon()
    assert pool.run_one()
    assert [step.abandoned for step in pool.begun] == [True]
    assert pool.run_one()
    assert not pool.run_one()
    pool.close()
    assert (ran, pool.closed) == ([1, 2], True)
