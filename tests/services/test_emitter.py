"""The emitter's contract, and the text for Prometheus."""

from __future__ import annotations

import logging
import threading

import orjson
import pytest

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.metrics import MetricRegistry, Sample
from penstock.services.emitting.emitter import ServiceEmitter
from penstock.services.emitting.events import AlertEvent, MetricEvent
from penstock.services.emitting.logsink import LogSink
from penstock.services.metricstext import metrics_text
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


def test_too_many_events_are_dropped_and_counted() -> None:
    sink = LogSink(VirtualClock(), capacity=2)
    emitter = ServiceEmitter({}, sink, VirtualClock())
    for number in range(5):  # not started: nobody takes them
        emitter.emit(MetricEvent("m", number))
    assert sink.dropped == 3
    emitter.stop()


def test_a_value_must_be_finite() -> None:
    with pytest.raises(InvalidRequest):
        MetricEvent("m", float("nan"))


def test_prometheus_reads_all_kinds() -> None:
    registry = MetricRegistry()
    registry.counter("penstock_rows_total", "Rows", topic='a"b').add(3)
    registry.gauge("penstock_depth", "Depth").set(2.5)
    registry.histogram("penstock_s", "Time", (0.1, 1.0)).observe(0.5)
    text = metrics_text([registry.snapshot]).decode()
    assert 'penstock_rows_total{topic="a\\"b"} 3.0' in text
    assert "penstock_depth 2.5" in text
    assert 'penstock_s_bucket{le="0.1"} 0' in text
    assert 'penstock_s_bucket{le="+Inf"} 1' in text
    assert "penstock_s_sum 0.5" in text


def test_a_part_that_is_down_does_not_hide_the_others() -> None:
    registry = MetricRegistry()
    registry.gauge("penstock_up", "Up").set(1)

    def down() -> list[Sample]:
        raise Unavailable("broker")

    assert b"penstock_up 1.0" in metrics_text([down, registry.snapshot])


def test_emit_never_blocks() -> None:
    emitter = ServiceEmitter({}, LogSink(VirtualClock(), capacity=1), VirtualClock())
    done = threading.Event()

    def many() -> None:
        for _ in range(1_000):
            emitter.emit(MetricEvent("m", 1))
        done.set()

    threading.Thread(target=many, daemon=True).start()
    assert done.wait(10)
