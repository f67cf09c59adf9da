"""One process has Spark sessions of one kind: Spark Connect or a classic master."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.core.errors import InvalidRequest
from penstock.spark.connect import spark_sessions
from penstock.spark.connect.session_kind import ProcessSessionKind
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import (
    EngineUnavailable,
    SparkSessionOptions,
    SparkSessions,
)
from penstock.spark.flow.sql import SparkSQL
from penstock.testing.flow import ProcessorRunner
from tests.kits.this_host_kit import this_host_listed

NOWHERE = "sc://127.0.0.1:1/;token=hush"
MODE = "SPARK_CONNECT_MODE_ENABLED"


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessSessionKind]:
    """The kind of a process that has no session yet."""
    made = ProcessSessionKind()
    monkeypatch.setattr(spark_sessions, "PROCESS_SESSION_KIND", made)
    monkeypatch.delenv(MODE, raising=False)
    with this_host_listed():
        yield made


def processor(spark: str) -> ProcessorRunner[SparkSQL]:
    return ProcessorRunner(
        SparkSQL, {"input_format": "csv", "out": "SELECT * FROM input", "spark": spark}
    )


@pytest.mark.usefixtures("kind")
def test_a_processor_of_the_other_kind_does_not_start_and_changes_nothing() -> None:
    classic, other = processor("local[2]"), processor(NOWHERE)
    classic.start()
    other.enqueue(b"a\n1\n")
    with pytest.raises(
        InvalidRequest, match=r"the Spark sc://127.0.0.1:1 cannot .* the master local\[2\], and"
    ) as refused:
        other.start()
    assert "hush" not in str(refused.value)
    assert len(other.queued) == 1
    assert MODE not in os.environ
    classic.stop()
    other.start()  # no session was made, so the kind may still change
    with pytest.raises(InvalidRequest, match=r"already uses Spark Connect at sc://127.0.0.1:1,"):
        classic.start()
    other.stop()


def test_a_session_of_the_other_kind_is_refused_before_it_changes_the_process(
    kind: ProcessSessionKind,
) -> None:
    owner = SparkSessions(SparkSessionOptions("local[2]"))
    kind.reserve(owner, "local[2]", is_connect=False)
    kind.fix()
    kind.release(owner)
    with pytest.raises(InvalidRequest, match="restart Penstock"):
        SparkSessions(SparkSessionOptions(NOWHERE)).get()
    assert MODE not in os.environ


@pytest.mark.usefixtures("kind")
def test_sessions_of_the_same_kind_and_closed_ones_do_not_exclude_each_other() -> None:
    first, second = (
        SparkSessions(SparkSessionOptions(NOWHERE)),
        SparkSessions(SparkSessionOptions("sc://127.0.0.1:2")),
    )
    first.reserve()
    with pytest.raises(EngineUnavailable):
        second.get()
    classic = SparkSessions(SparkSessionOptions("local[2]"))
    first.close()
    with pytest.raises(InvalidRequest, match="already uses Spark Connect"):
        classic.reserve()
    second.close()
    classic.reserve()


def test_after_a_connect_session_no_classic_processor_starts(spark_server: SparkServer) -> None:
    sessions = SparkSessions(SparkSessionOptions(spark_server.remote))
    sessions.get()
    sessions.close()
    with pytest.raises(InvalidRequest, match="already uses Spark Connect at sc://"):
        processor("local[2]").start()
