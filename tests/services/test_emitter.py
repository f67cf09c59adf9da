"""The emitter's contract, and the text for Prometheus."""

from __future__ import annotations

import logging
import threading
from collections import deque

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.metrics import MetricRegistry, Sample
from penstock.services.emitter.emitter import (
    ComposingSink,
    Record,
    ServiceEmitter,
    SwitchingSink,
    send_alert,
)
from penstock.services.emitter.events import AlertEvent, MetricEvent, Severity
from penstock.services.emitter.log_sink import DropOldest, LogSink
from penstock.services.emitter.service_emitter import PrometheusSink
from penstock.services.metrics_text import metrics_text
from penstock.testing.clock import VirtualClock


def test_events_become_lines_of_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    emitter = ServiceEmitter(
        {"service": "worker"}, LogSink(VirtualClock(), metrics=["wanted"]), VirtualClock()
    )
    emitter.start()
    emitter.emit(MetricEvent("wanted", 1.5, {"task": "t"}))
    emitter.emit(MetricEvent("unwanted", 2))
    emitter.emit(AlertEvent("disk full", data={"folder": "/x"}))
    emitter.stop()
    bodies = [orjson.loads(record.getMessage()) for record in caplog.records]
    assert [body["feed"] for body in bodies] == ["metrics", "alerts"]
    assert bodies[0]["task"] == "t"
    assert bodies[0]["service"] == bodies[1]["service"] == "worker"
    assert bodies[1]["severity"] == "component-failure"


def test_too_many_events_are_dropped_the_oldest_first_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    emitter = ServiceEmitter({}, LogSink(VirtualClock()), VirtualClock(), capacity=2)
    for number in range(5):  # not started: nobody takes them
        emitter.emit(MetricEvent("m", number))
    assert emitter.dropped == 3
    emitter.start()
    emitter.flush()
    emitter.stop()
    bodies = [record.getMessage() for record in caplog.records]
    assert [orjson.loads(body)["value"] for body in bodies if body[0] == "{"] == [3, 4]
    assert (emitter.taken, emitter.dropped) == (2, 3)


def test_a_sink_that_waits_drops_the_oldest_too() -> None:
    queue: DropOldest[int] = DropOldest(2, VirtualClock())
    assert [queue.put(number) for number in range(4)] == [True, True, False, False]
    assert queue.take(10) == [2, 3]
    assert queue.dropped.value == 2
    assert not queue.wait_done(0)
    queue.done(2)
    assert queue.wait_done(0)
    queue.close()
    assert not queue.put(5)
    assert queue.take(1) == []
    with pytest.raises(InvalidRequest):
        DropOldest(0, VirtualClock())


class NoMemoryOnce(deque[int]):
    """Cannot grow at the first append."""

    appended = 0

    def append(self, item: int, /) -> None:
        self.appended += 1
        if self.appended == 1:
            raise MemoryError
        super().append(item)


def test_later_items_that_are_dropped_do_not_count_as_earlier_ones_that_are_done() -> None:
    class FillsMeanwhile(VirtualClock):
        def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
            assert timeout_s is not None
            for number in range(3, 9):
                queue.put(number)
            self.advance(timeout_s)
            return False

    queue: DropOldest[int] = DropOldest(2, FillsMeanwhile())
    queue.put(1)
    taken = queue.take(1)
    queue.put(2)
    assert not queue.wait_done(0.4)  # the first item is not done
    assert queue.dropped.value == 5
    queue.done(len(taken))
    queue.done(len(queue.take(10)))
    assert queue.wait_done(0)


def test_an_item_that_could_not_be_added_is_not_waited_for() -> None:
    queue: DropOldest[int] = DropOldest(2, VirtualClock())
    queue._waiting = NoMemoryOnce()
    with pytest.raises(MemoryError):
        queue.put(1)
    assert queue.put(2)
    assert queue.take(10) == [2]
    queue.done(1)
    assert queue.wait_done(0)


def test_records_that_could_not_be_written_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    sink = LogSink(VirtualClock())
    calls = iter([orjson.dumps, None])

    def dumps(value: object) -> bytes:
        write = next(calls, None)
        if write is None:
            raise MemoryError
        return write(value)

    monkeypatch.setattr("penstock.services.emitter.log_sink.orjson.dumps", dumps)
    for number in range(5):
        sink.accept(Record("metrics", {"metric": "m", "value": number}))
    with pytest.raises(MemoryError):
        sink._write_all()
    sink.flush()  # returns at once
    assert sink.dropped == 4
    assert len([one for one in caplog.records if '"m"' in one.getMessage()]) == 1


class Faulty(LogSink):
    """A sink with a fault."""

    def accept(self, record: Record) -> None:
        raise KeyError(record.feed)

    def flush(self) -> None:
        raise Unavailable("faulty")


class Kept(LogSink):
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.records: list[Record] = []

    def accept(self, record: Record) -> None:
        self.records.append(record)


class Wrong(MetricEvent):
    """An event with a fault."""

    def body(self) -> dict[str, object]:
        raise ZeroDivisionError


def test_no_fault_of_events_and_sinks_reaches_who_emits(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    emitter = ServiceEmitter({}, ComposingSink([Faulty(VirtualClock()), kept]), VirtualClock())
    emitter.start()
    emitter.emit(MetricEvent("m", 1))
    emitter.emit(Wrong("m", 1))
    emitter.emit(None)  # type: ignore[arg-type]
    emitter.emit(AlertEvent("a"))
    with pytest.raises(Unavailable, match="faulty"):
        emitter.flush()
    emitter.stop()
    assert [one.feed for one in kept.records] == ["metrics", "alerts"]
    assert emitter.refused == 4
    warnings = [one for one in caplog.records if "could not be emitted" in one.getMessage()]
    assert len(warnings) == 1  # the others are within a minute of it


def test_feeds_go_to_sinks_of_their_own_which_start_and_stop_once() -> None:
    calls: list[str] = []

    class Counting(Kept):
        """Counts when it is started and stopped."""

        def start(self) -> None:
            calls.append("start")

        def stop(self) -> None:
            calls.append("stop")

        def flush(self) -> None:
            calls.append("flush")

        def samples(self) -> list[Sample]:
            return [Sample("kept", "counter", "Records kept", (), len(self.records))]

    both, alerts = Counting(), Counting()
    sink = SwitchingSink({"alerts": [both, alerts], "noise": []}, [both])
    emitter = ServiceEmitter({}, sink, VirtualClock())
    emitter.start()
    emitter.emit(MetricEvent("m", 1))
    emitter.emit(AlertEvent("a"))
    emitter.emit(MetricEvent("n", 1, feed="noise"))
    sink.flush()
    emitter.stop()  # what was emitted has come by then
    assert [one.value for one in sink.samples()] == [2, 1]
    assert [one.feed for one in both.records] == ["metrics", "alerts"]
    assert [one.feed for one in alerts.records] == ["alerts"]
    assert calls == [what for what in ("start", "flush", "stop") for _ in (both, alerts)]


def test_events_say_when_where_and_what() -> None:
    kept = Kept()
    emitter = ServiceEmitter({"host": "h"}, kept, VirtualClock())
    emitter.start()
    emitter.emit(MetricEvent("m", 1, {"tags": ("a", "b")}, created_ms=0))
    send_alert(emitter, logging.getLogger("t"), "bad", Severity.ANOMALY, error=ValueError("x"))
    emitter.stop()
    first, alert = kept.records
    assert dict(first.body) == {
        "feed": "metrics",
        "timestamp": "1970-01-01T00:00:00.000Z",
        "host": "h",
        "metric": "m",
        "value": 1,
        "tags": ["a", "b"],
    }
    assert alert.feed == "alerts"
    assert alert.body["severity"] == "anomaly"
    assert isinstance(alert.body["data"], dict)
    assert alert.body["data"]["exceptionType"] == "ValueError"


def test_events_become_metrics_of_prometheus_with_few_labels() -> None:
    sink = PrometheusSink(series_max=2)
    emitter = ServiceEmitter({}, sink, VirtualClock())
    emitter.start()
    for user in ("a", "b"):
        emitter.emit(MetricEvent("sqlQuery/time", 7, {"user": user, "success": "true"}))
    emitter.emit(AlertEvent("bad"))
    emitter.emit(MetricEvent("one/tooMany", 7))
    emitter.stop()
    text = metrics_text([emitter.samples]).decode()
    assert 'penstock_event_sql_query_time_count{success="true"} 2.0' in text
    assert 'penstock_alerts_total{severity="component-failure"} 1.0' in text
    assert "too_many" not in text
    assert 'penstock_emitter_dropped_total{sink="prometheus"} 1.0' in text
    assert 'penstock_emitter_events_total{outcome="taken"} 4.0' in text


@given(
    capacity=st.integers(1, 5),
    steps=st.lists(st.sampled_from(["emit", "wrong"]), max_size=20),
)
def test_every_event_is_taken_refused_or_dropped(capacity: int, steps: list[str]) -> None:
    kept = Kept()
    emitter = ServiceEmitter({}, kept, VirtualClock(), capacity)
    for number, step in enumerate(steps):
        emitter.emit((Wrong if step == "wrong" else MetricEvent)("m", number))
    emitter.start()
    emitter.stop()
    assert emitter.taken + emitter.refused + emitter.dropped == len(steps)
    wanted = [number for number, step in enumerate(steps) if step == "emit"]
    first = len(steps) - capacity
    assert [one.body["value"] for one in kept.records] == [one for one in wanted if one >= first]


@pytest.mark.parametrize(
    ("name", "value", "dimensions"),
    [
        ("m", float("nan"), {}),
        ("m", float("inf"), {}),
        ("", 1, {}),
        ("m", 1, {"": "x"}),
        ("m", 1, {"feed": "x"}),
        ("m", 1, {"d": None}),
    ],
)
def test_a_metric_that_is_wrong_is_refused(
    name: str, value: float, dimensions: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest):
        MetricEvent(name, value, dimensions)


def test_prometheus_reads_all_kinds() -> None:
    registry = MetricRegistry()
    registry.counter("penstock_rows_total", "Rows", topic='a"b').add(3)
    registry.read("gauge", "penstock_depth", "Depth", lambda: 2.5)
    registry.histogram("penstock_s", "Time", (0.1, 1.0)).observe(0.5)
    text = metrics_text([registry.snapshot]).decode()
    assert 'penstock_rows_total{topic="a\\"b"} 3.0' in text
    assert "penstock_depth 2.5" in text
    assert 'penstock_s_bucket{le="0.1"} 0' in text
    assert 'penstock_s_bucket{le="+Inf"} 1' in text
    assert "penstock_s_sum 0.5" in text


def test_a_part_that_is_down_does_not_hide_the_others() -> None:
    registry = MetricRegistry()
    registry.read("gauge", "penstock_up", "Up", lambda: 1)

    def down() -> list[Sample]:
        raise Unavailable("broker")

    assert b"penstock_up 1.0" in metrics_text([down, registry.snapshot])
