"""A call that is stopped: it is interrupted until it ends, however often it was told to stop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.indexing.engine import EngineFailure
from penstock.spark.connect import running_calls as running_module
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.testing.clock import VirtualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.tables import TableSource


class Interrupted:
    """Stands in for a Spark session that has nothing to interrupt yet; notes who asked."""

    def __init__(self) -> None:
        self.by: list[threading.Thread] = []
        self.again = threading.Event()

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
        return []


def test_a_call_is_interrupted_until_it_ends_once_at_a_time() -> None:
    running, spark = RunningCall(), Interrupted()
    with running.tagged(spark.session()):
        running.stop("it was cancelled")
        assert spark.again.wait(30), "Spark forgets an interrupt of what it does not run yet"
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
        assert reported.acquire(timeout=30)
        running.stop("it was cancelled")
        assert spark.again.wait(30)
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
        service.registered(query) as run,
        pytest.raises(EngineFailure, match="did not end: it took longer than 5000 ms"),
    ):
        run()


def test_a_call_is_interrupted_though_no_timer_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as stopped, and nothing stopped it."""
    running, spark = RunningCall(lambda: None), Interrupted()

    def refuse(_timer: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with running.tagged(spark.session()):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                running.stop("it was cancelled")
        assert spark.by == [threading.current_thread()]
