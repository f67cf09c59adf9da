"""Shared threads: callbacks at their time, once, and work beside each other."""

from __future__ import annotations

import threading

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, Unavailable
from penstock.core.threads import Deaths
from penstock.storage.queue.group_commit import Syncer, SyncThreads
from penstock.testing.clock import VirtualClock


def test_callbacks_come_at_their_time_the_earliest_first_and_once() -> None:
    clock = VirtualClock()
    called: list[tuple[str, float]] = []

    def first() -> None:
        called.append(("first", clock.monotonic_s()))

    def second() -> None:
        called.append(("second", clock.monotonic_s()))

    with SyncThreads(clock=clock) as threads:
        threads.call_at(3.0, first)
        threads.call_at(2.0, second)
        threads.call_at(1.0, first)  # earlier: this one counts
        threads.call_at(4.0, second)  # later: the first one counts
        clock.wait_for_waiting(1)
        clock.advance(1.0)
        clock.wait_until(lambda: called == [("first", 1.0)])
        clock.wait_for_waiting(1)
        clock.advance(1.0)
        clock.wait_until(lambda: len(called) == 2)
        clock.wait_for_waiting(1)
        clock.advance(5.0)
        threads.call_at(8.0, first)
        clock.wait_for_waiting(1)
        clock.advance(1.0)
        clock.wait_until(lambda: len(called) == 3)
    assert called == [("first", 1.0), ("second", 2.0), ("first", 8.0)]


def test_plans_that_were_replaced_do_not_pile_up() -> None:
    clock = VirtualClock()
    with SyncThreads(clock=clock) as threads:

        def callback() -> None:
            pass

        for number in range(10_000, 0, -1):
            threads.call_at(float(number), callback)
        assert len(threads._heap) < 200


def test_work_runs_beside_other_work_and_none_is_lost() -> None:
    met = threading.Barrier(3, timeout=120)
    done: list[int] = []

    def work() -> None:
        met.wait()
        done.append(1)

    threads = SyncThreads(clock=SystemClock(), most=2)
    threads.run(work)
    threads.run(work)
    met.wait()
    threads.run(lambda: done.append(1))
    threads.close()
    assert done == [1, 1, 1]
    with pytest.raises(Closed, match="close the queues first"):
        threads.run(work)
    with pytest.raises(Closed):
        threads.call_at(0.0, work)
    threads.close()


@pytest.mark.parametrize("fails", ["sync", "sync timer"])
def test_without_its_threads_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Else the first durable write, or the interval, would find that nobody syncs."""
    start = threading.Thread.start

    def no_thread(thread: threading.Thread) -> None:
        if thread.name.rpartition("_")[0] == fails or thread.name == fails:
            _no_thread(thread)
        start(thread)

    before = set(threading.enumerate())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(Unavailable, match="sync: cannot start a thread to fsync"):
            SyncThreads(clock=SystemClock())
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("sync_"):
            thread.join(120)
    assert not [one for one in threading.enumerate() if one not in before and one.is_alive()]


def test_no_thread_is_needed_once_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock()
    done: list[str] = []
    with SyncThreads(clock=clock, most=1) as threads:
        monkeypatch.setattr(threading.Thread, "start", _no_thread)
        has_run = threading.Event()
        threads.run(has_run.set)
        assert has_run.wait(120)
        threads.call_at(2.0, lambda: done.append("called"))
        clock.wait_for_waiting(1)
        clock.advance(2.0)
        clock.wait_until(lambda: bool(done))
    assert done == ["called"]


def test_a_callback_that_raises_ends_no_other_and_is_called_again() -> None:
    clock = VirtualClock()
    called: list[str] = []

    def fail() -> None:
        called.append("first")
        if len(called) == 1:
            raise MemoryError

    with SyncThreads(clock=clock) as threads:
        threads.call_at(1.0, fail)
        threads.call_at(1.5, lambda: called.append("second"))
        for calls, after_s in enumerate((1.0, 0.5, 0.5), 1):
            clock.wait_for_waiting(1)
            clock.advance(after_s)
            clock.wait_until(lambda: len(called) == calls)  # noqa: B023
    assert called == ["first", "second", "first"]


def test_work_that_raises_ends_the_process(deaths: Deaths) -> None:
    """The pool puts the exception into a future that nobody looked at."""

    def fail() -> None:
        raise MemoryError("no room")

    with SyncThreads(clock=SystemClock(), name="queues") as threads:
        threads.run(fail)
    assert deaths.counts() == {"queues": 1}


def test_what_no_thread_could_sync_is_synced_after_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    passes: list[float] = []
    second = threading.Event()

    def run_pass() -> int:
        passes.append(clock.monotonic_s())
        if len(passes) == 2:
            second.set()
        return len(passes)

    with SyncThreads(clock=clock) as threads:
        syncer = Syncer(
            run_pass,
            every_messages=100,
            interval_ms=1000,
            pause_ms=0,
            clock=clock,
            threads=threads,
            name="q",
        )
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", _no_thread)
            syncer.wrote(1)
            assert not passes
            assert syncer.request().result(timeout=120) == 1  # here, on the caller's thread
            syncer.wrote(1)
        syncer.wrote(1)
        clock.wait_for_waiting(1)
        clock.advance(1.0)
        assert second.wait(120)
        syncer.close()


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
