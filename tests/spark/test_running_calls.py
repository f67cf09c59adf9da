"""A call that is stopped: it is interrupted until it ends, however often it was told to stop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from penstock.indexing.engine import EngineFailure
from penstock.spark.connect.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    running, spark = Running(), Interrupted()
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
