"""A call that is stopped: it is interrupted until it ends, however often it was told to stop."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core import threads
from penstock.core.threads import Deaths
from penstock.indexing.engine import EngineFailure
from penstock.spark.connect import running_calls as running_module
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.spark.tables import TableSource


CALLS = ("penstock.spark.connect.running_calls",)


class Interrupted:
    """Stands in for a Spark session that has nothing to interrupt yet; notes who asked."""

    def __init__(self) -> None:
        self.by: list[threading.Thread] = []
        self.again = threading.Event()
        self.by_other = threading.Event()
        self._made_by = threading.current_thread()

    def session(self) -> SparkSession:
        """Return what has as much of a session as a call needs."""
        calls = {
            "addTag": lambda _tag: None,
            "removeTag": lambda _tag: None,
            "interruptTag": self._interrupt,
        }
        return cast("SparkSession", SimpleNamespace(**calls))

    def _interrupt(self, _tag: str) -> list[str]:
        if self.by:
            self.again.set()
        self.by.append(threading.current_thread())
        if threading.current_thread() is not self._made_by:
            self.by_other.set()
        return []


def test_a_call_is_interrupted_until_it_ends_once_at_a_time() -> None:
    running, spark = RunningCall(), Interrupted()
    with running.tagged(spark.session()):
        running.stop("it was cancelled")
        assert spark.again.wait(120), "Spark forgets an interrupt of what it does not run yet"
        for _ in range(3):
            running.stop("it was cancelled once more")
    running.end()
    # The others are by the timer: a user who is in a hurry starts no more of them.
    assert spark.by.count(threading.current_thread()) == 1
    with pytest.raises(EngineFailure, match=r"^it was cancelled$"):
        running.check()


def test_a_call_that_ignores_its_interrupts_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_module, "_IGNORED_AFTER_S", 0.01)
    reported = threading.Semaphore(0)
    running, spark = RunningCall(reported.release), Interrupted()
    with running.tagged(spark.session()):
        running.stop("it took longer than 1 ms")
        assert reported.acquire(timeout=120)
        running.stop("it was cancelled")
        assert spark.again.wait(120)
    running.end()
    assert not reported.acquire(blocking=False)


def test_a_call_that_ends_or_has_not_reached_spark_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_module, "_IGNORED_AFTER_S", 0.01)
    reported = threading.Event()
    waits, ended, spark = RunningCall(reported.set), RunningCall(reported.set), Interrupted()
    with ended.tagged(spark.session()):
        pass
    ended.end()
    for running in (waits, ended):
        running.stop("it was cancelled")
    assert not reported.wait(0.2)
    waits.end()


def test_the_time_of_a_query_counts_from_the_arrival_of_its_request() -> None:
    clock = VirtualClock()
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", SimpleNamespace()), clock)
    query = SqlQuery("SELECT 1", timeout_ms=5_000, arrived_s=clock.monotonic_s())
    clock.advance(5.0)
    with (
        service.registered(query) as registered,
        pytest.raises(EngineFailure, match="did not end: it took longer than 5000 ms"),
    ):
        registered.run()


def test_a_quota_of_time_shortens_a_query() -> None:
    clock = VirtualClock()
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", SimpleNamespace()), clock)
    query = SqlQuery("SELECT 1", timeout_ms=5_000, quota_ms=2_000, arrived_s=clock.monotonic_s())
    assert service.timeout_ms(query) == 2_000
    assert service.timeout_ms(replace(query, timeout_ms=1_000)) == 1_000
    assert service.timeout_ms(replace(query, timeout_ms=None, quota_ms=10**9)) == 300_000
    clock.advance(2.0)
    with (
        service.registered(query) as registered,
        pytest.raises(EngineFailure, match=r"longer than 2000 ms; .* a larger quota query_time"),
    ):
        registered.run()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat interrupts without a pause."""
    monkeypatch.setattr(running_module, "_INTERRUPT_EVERY_S", 0.001)
    monkeypatch.setattr(running_module, "_LATE_S", ())


def refuse(_thread: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.usefixtures("soon")
def test_a_call_is_interrupted_though_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as stopped, and nothing stopped it; a second cancel did nothing at all."""
    running, spark = RunningCall(lambda: None), Interrupted()
    with running.tagged(spark.session()):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            for calls in (1, 2):
                with pytest.raises(RuntimeError):
                    running.stop("it was cancelled")
                assert spark.by == [threading.current_thread()] * calls
        spark.by.clear()
        running.stop("it was cancelled once more")
        assert spark.by_other.wait(120)
    running.end()


def test_a_stopped_call_ends_with_its_outcome_though_no_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = RunningCall(lambda: None)
    with pytest.raises(RuntimeError):
        running.stop("it was cancelled")
    running.end()
    with pytest.raises(EngineFailure, match="it was cancelled"):
        running.check()


@pytest.mark.usefixtures("soon")
def test_the_time_limit_interrupts_a_call_though_no_other_thread_can_start(
    monkeypatch: pytest.MonkeyPatch, deaths: Deaths
) -> None:
    running, spark = RunningCall(lambda: None), Interrupted()
    start, of_test = threading.Thread.start, threading.current_thread()

    def start_for_test(thread: threading.Thread) -> None:
        if threading.current_thread() is not of_test:
            refuse(thread)
        start(thread)

    with running.tagged(spark.session()), monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_for_test)
        with running.limited(0.01, "it takes too long"):
            assert spark.by_other.wait(120)
            assert spark.again.wait(120)
    running.end()
    (thread,) = set(spark.by)
    thread.join(120)
    assert deaths.counts() == {"time limit": 1}  # it could not start the other thread


@pytest.mark.usefixtures("soon")
def test_a_report_that_cannot_be_planned_is_no_error_of_the_cancel_and_is_planned_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_module, "_IGNORED_AFTER_S", 0.001)
    reported = threading.Event()
    running, spark = RunningCall(reported.set), Interrupted()
    with running.tagged(spark.session()):
        with monkeypatch.context() as patch:
            patch.setattr(threads.JobTimer, "start", refuse)
            running.stop("it was cancelled")
            assert spark.by_other.wait(120)
            assert not reported.is_set()
        assert reported.wait(120)
    running.end()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("is_limit", [False, True])
def test_without_memory_a_call_is_interrupted_until_it_ends(
    *, is_limit: bool, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next cancel took it that interrupts were repeated."""
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.0)
    faults = Faults()
    for at in itertools.count():
        running, spark = RunningCall(lambda: None), Interrupted()
        stop = running._overdue if is_limit else running.stop

        def stop_without_memory(at: int = at, stop: Callable[[str], None] = stop) -> None:
            with faults.armed_inside(CALLS, MemoryError, at):
                stop("it was cancelled")

        thread = threading.Thread(target=stop_without_memory, daemon=True)
        with running.tagged(spark.session()):
            thread.start()
            if not is_limit:
                thread.join(120)
            running.stop("it was cancelled once more")
            assert spark.by_other.wait(120), faults.raised
            spark.again.clear()
            assert spark.again.wait(120), faults.raised
            with pytest.raises(EngineFailure):
                running.check()
        running.end()
        thread.join(120)  # that of the time limit interrupts the call itself if it must
        if not faults.raised:
            break
    assert at > 3
    assert not deaths.counts()


@pytest.mark.usefixtures("soon")
def test_the_thread_that_interrupts_starts_again_after_an_exception(
    deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: 0.0)
    running, spark, failures = RunningCall(), Interrupted(), [None, MemoryError("no room")]
    interrupt = running._interrupt

    def fail_once() -> None:
        if failures and (error := failures.pop(0)) is not None:
            raise error
        interrupt()

    monkeypatch.setattr(running, "_interrupt", fail_once)
    with running.tagged(spark.session()):
        running.stop("it was cancelled")
        assert spark.by_other.wait(120)
    running.end()
    assert deaths.counts() == {"query end": 1}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("lag_s", [0.0, 0.2])
def test_a_report_that_raised_is_made_again(
    deaths: Deaths, monkeypatch: pytest.MonkeyPatch, lag_s: float
) -> None:
    """The Spark of queries was not ended, and the query kept a core of it."""
    start = threads.JobTimer.start

    def start_and_lag(timer: threads.JobTimer) -> None:
        start(timer)
        timer._thread.join(lag_s)  # it raises before who planned it has noted that

    monkeypatch.setattr(threads.JobTimer, "start", start_and_lag)
    monkeypatch.setattr(running_module, "_IGNORED_AFTER_S", 0.001)
    reported, failures = threading.Event(), [MemoryError("no room")]

    def report() -> None:
        if failures:
            raise failures.pop()
        reported.set()

    running, spark = RunningCall(report), Interrupted()
    with running.tagged(spark.session()):
        running.stop("it was cancelled")
        assert reported.wait(120)
    running.end()
    assert deaths.counts() == {"query end": 1}


def test_a_stop_that_raises_leaves_no_other_query_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process waited for the query behind it."""
    nowhere = SparkSessions(SparkSessionOptions("sc://localhost:1"))
    service = SqlService(nowhere, cast("TableSource", SimpleNamespace()), VirtualClock())
    with service.registered(SqlQuery("SELECT 1")), service.registered(SqlQuery("SELECT 2")):
        first, second = service._running.values()
        monkeypatch.setattr(first, "stop", lambda _reason: refuse(threading.current_thread()))
        with pytest.raises(RuntimeError):
            service.finish(0)
        assert second.stopped
        monkeypatch.undo()
