"""Metric records and their registry."""

from __future__ import annotations

import threading

import pytest

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.metrics import HistogramValue, MetricRegistry


def test_a_snapshot_lists_everything_by_name_and_labels() -> None:
    registry = MetricRegistry()
    registry.counter("events_total", "Events", topic="b").add(2)
    registry.counter("events_total", "Events", topic="a").add()
    registry.read("gauge", "depth", "Depth", lambda: 7)
    registry.read("gauge", "size_bytes", "Size", lambda: 3.0)
    seen = [(s.name, s.kind, s.help, s.labels, s.value) for s in registry.snapshot()]
    assert seen == [
        ("depth", "gauge", "Depth", (), 7),
        ("events_total", "counter", "Events", (("topic", "a"),), 1),
        ("events_total", "counter", "Events", (("topic", "b"),), 2),
        ("size_bytes", "gauge", "Size", (), 3.0),
    ]


def test_the_same_name_and_labels_give_the_same_instrument() -> None:
    registry = MetricRegistry()
    assert registry.counter("a_total", "", x="1") is registry.counter("a_total", "", x="1")
    assert registry.counter("a_total", "", x="2") is not registry.counter("a_total", "", x="1")


def test_a_name_has_one_kind() -> None:
    registry = MetricRegistry()
    registry.counter("a_total", "")
    with pytest.raises(Conflict, match="a counter already"):
        registry.histogram("a_total", "")
    registry.read("counter", "b_total", "", lambda: 0.0)
    with pytest.raises(Conflict, match="as a reading"):
        registry.counter("b_total", "")


def test_histogram_buckets_are_cumulative_and_bounds_belong_to_them() -> None:
    histogram = MetricRegistry().histogram("wait_seconds", "", bounds=(1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 9):
        histogram.observe(value)
    assert histogram.value == HistogramValue((1, 2, 5), (2, 3, 4), 5, 17.0)
    with pytest.raises(InvalidRequest, match="ascending"):
        MetricRegistry().histogram("x", "", bounds=(2, 1))


def test_forgetting_a_label_drops_its_metrics_alone() -> None:
    registry = MetricRegistry()
    registry.counter("a_total", "", task="t1")
    registry.counter("a_total", "", task="t2")
    registry.forget(task="t1")
    assert [sample.labels for sample in registry.snapshot()] == [(("task", "t2"),)]
    with pytest.raises(InvalidRequest):
        registry.forget()


def test_mistakes_are_refused() -> None:
    registry = MetricRegistry()
    with pytest.raises(InvalidRequest, match="snake case"):
        registry.counter("Bad-Name", "")
    with pytest.raises(InvalidRequest, match="only increases"):
        registry.counter("a_total", "").add(-1)


def test_counting_from_many_threads_loses_nothing() -> None:
    registry = MetricRegistry()
    counter, histogram = registry.counter("a_total", ""), registry.histogram("b", "")

    def count() -> None:
        for _ in range(2_000):
            counter.add()
            histogram.observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 8_000
    assert histogram.value.count == 8_000
