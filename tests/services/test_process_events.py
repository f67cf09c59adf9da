"""What processes tell of themselves: the log of a start, and the events of a task's process."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.task import TaskResult
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState
from penstock.services.emitter.emitter import ServiceEmitter
from penstock.services.emitter.events import AlertEvent, MetricEvent
from penstock.services.emitter.service_emitter import make_sink, service_emitter
from penstock.services.options import resolution, table
from penstock.services.roles.overlord import EmittedEvents
from penstock.services.roles.peon_events import PeonEvents, task_dimensions
from penstock.services.roles.runtime import options_line, start_line
from penstock.testing.clock import VirtualClock
from tests.harness.event_kit import KeptEvents


class Kept(KeptEvents):
    def metrics(self) -> dict[str, float]:
        return {one.metric: one.value for one in self.events if isinstance(one, MetricEvent)}


class CountingTask:
    """A task whose counts a test sets."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.error: Exception | None = None

    def run(self) -> TaskResult:
        return TaskResult(TaskState.SUCCESS)

    def stop(self) -> None: ...

    def report(self) -> IngestionReport:
        if self.error is not None:
            raise self.error
        stats = {"buildSegments": dict(self.counts), "determinePartitions": dict(self.counts)}
        return IngestionReport(IngestionState.BUILD_SEGMENTS, stats)


# The log of a start


def test_the_start_says_release_and_machine() -> None:
    assert start_line("1.2", "3.11.4", 2, 3 << 29) == (
        "Penstock 1.2 on Python 3.11.4, 2 processors, 1.5 GiB of memory"
    )


def test_the_options_are_told_without_their_secrets() -> None:
    given = {
        "token": "hush",
        "emitter_auth": "ann:hush",
        "metadata_url": "postgresql+psycopg://ann:hush@db.example:5432/penstock",
        "spark_connect": "sc://spark.example:15002/;token=hush;user_id=ann%0Ax;x-api-key=hush",
        "emitter_url": "https://ann:hu@sh@events.example/{feed}?api_key=hush",
        "auth_http_addresses": "http://a:hush@one.example,two.example",
        "worker_capacity": "7",
    }
    line = options_line(
        resolution.resolve({}, {f"PENSTOCK_{name.upper()}": given[name] for name in given})
    )
    assert "hush" not in line
    assert "sh@" not in line
    for shown in (
        "token=<masked>",
        "emitter-auth=<masked>",
        "metadata-url=postgresql+psycopg://ann:<masked>@db.example:5432/penstock",
        "spark-connect=sc://spark.example:15002/;token=<masked>;user_id=ann\\nx;x-api-key=<masked>",
        "two.example",
        "worker-capacity=7",
    ):
        assert shown in line
    assert options_line(table.PenstockOptions()) == "options: the defaults"


def test_a_password_with_a_slash_is_hidden_whole() -> None:
    given = {"metadata_url": "postgresql+psycopg://ann:hu/sh@db.example/penstock"}
    line = options_line(
        resolution.resolve({}, {f"PENSTOCK_{name.upper()}": given[name] for name in given})
    )
    assert line == "options: metadata-url=postgresql+psycopg://ann:<masked>@db.example/penstock"


# The events of a task's process


def test_a_peon_tells_what_was_counted_since_it_last_told() -> None:
    task, kept, clock = CountingTask(), Kept(), VirtualClock()
    task.counts = {"processed": 10, "unparseable": 1}
    events = PeonEvents(task, kept, clock, {"processed": 4, "unparseable": 1})
    events.emit_counts()
    assert kept.metrics() == {"ingest/events/processed": 6}
    task.counts = {"processed": 15, "unparseable": 3, "processedBytes": 99}
    kept.events.clear()
    events.stop(TaskResult(TaskState.SUCCESS))
    assert kept.metrics() == {
        "ingest/events/processed": 5,
        "ingest/events/unparseable": 2,
        "ingest/input/bytes": 99,
    }


def test_a_peon_tells_of_a_task_that_failed() -> None:
    task, kept = CountingTask(), Kept()
    task.error = Unavailable("it is busy")
    PeonEvents(task, kept, VirtualClock()).stop(TaskResult(TaskState.FAILED, "the disk is full"))
    (alert,) = kept.events
    assert isinstance(alert, AlertEvent)
    assert alert.description == "the task failed: the disk is full"


def test_the_events_of_a_peon_say_whose_task_it_is_and_no_event_hides_it() -> None:
    task = parse_batch_task({"type": "noop", "id": "n1", "dataSource": "d", "groupId": "g"})
    options = resolution.resolve({"emitters": "none"}, {})
    emitter = service_emitter(options, VirtualClock(), "peon", task_dimensions(task))
    records: list[dict[str, object]] = []
    emitter._sink.accept = lambda record: records.append(dict(record.body))  # type: ignore[method-assign]
    emitter.start()
    emitter.emit(MetricEvent("m", 1, {"taskId": "another", "other": "x"}))
    emitter.stop()
    (body,) = records
    assert body["service"] == "peon"
    assert body["version"] == penstock.__version__
    assert {name: body[name] for name in ("taskId", "taskType", "groupId", "dataSource")} == {
        "taskId": "n1",
        "taskType": "noop",
        "groupId": "g",
        "dataSource": "d",
    }
    assert body["other"] == "x"


@pytest.mark.parametrize(
    "name", ["service", "host", "version", "severity", "description", "feed", "timestamp"]
)
def test_a_dimension_has_no_name_of_a_field_of_every_event(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a dimension"):
        MetricEvent("m", 1, {name: "x"})


# Options of the sinks


def test_what_the_log_holds_of_events_is_set_by_options(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    given = {
        "emitters": "log",
        "emitter_log_level": "debug",
        "emitter_log_metrics": "wanted, another",
    }
    options = resolution.resolve(given, {})
    clock = VirtualClock()
    emitter = ServiceEmitter({}, make_sink(options, clock), clock)
    emitter.start()
    emitter.emit(MetricEvent("wanted", 1))
    emitter.emit(MetricEvent("unwanted", 1))
    emitter.emit(AlertEvent("bad"))
    emitter.stop()
    told = [(one.levelname, '"wanted"' in one.getMessage()) for one in caplog.records]
    assert told == [("DEBUG", True), ("WARNING", False)]


# What indexing tells operators


def test_what_indexing_tells_goes_to_the_emitter() -> None:
    kept = Kept()
    events = EmittedEvents(kept)
    events.measured("task/run/time", 5, taskId="t", taskStatus="SUCCESS")
    events.alert("worker w is lost", worker="w")
    metric, alert = kept.events
    assert isinstance(metric, MetricEvent)
    assert (metric.metric, metric.value) == ("task/run/time", 5)
    assert metric.dimensions == {"taskId": "t", "taskStatus": "SUCCESS"}
    assert isinstance(alert, AlertEvent)
    assert (alert.description, alert.data) == ("worker w is lost", {"worker": "w"})
