"""Metrics in Prometheus' text format, from the samples of any registry.

Owns the conversion of `core.metrics` samples to the exposition of `prometheus_client`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.core.errors import PenstockError
from penstock.core.metrics import HistogramValue, Sample

logger = logging.getLogger(__name__)

SampleSource = Callable[[], Iterable[Sample]]


class _Samples(Collector):
    """One pass over samples, grouped by name."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._samples:
            family = families.get(sample.name)
            if family is None:
                family = families[sample.name] = _family(sample)
            _add(family, sample)
        yield from families.values()


def _family(sample: Sample) -> Metric:
    names = [name for name, _ in sample.labels]
    if sample.kind == "counter":
        return CounterMetricFamily(sample.name.removesuffix("_total"), sample.help, labels=names)
    if sample.kind == "gauge":
        return GaugeMetricFamily(sample.name, sample.help, labels=names)
    return HistogramMetricFamily(sample.name, sample.help, labels=names)


def _add(family: Metric, sample: Sample) -> None:
    labels = dict(sample.labels)
    if not isinstance(sample.value, HistogramValue):
        suffix = "_total" if sample.kind == "counter" else ""
        family.add_sample(sample.name.removesuffix("_total") + suffix, labels, sample.value)
        return
    value = sample.value
    for bound, count in zip(value.bounds, value.cumulative, strict=True):
        family.add_sample(f"{sample.name}_bucket", {**labels, "le": repr(bound)}, count)
    family.add_sample(f"{sample.name}_bucket", {**labels, "le": "+Inf"}, value.count)
    family.add_sample(f"{sample.name}_count", labels, value.count)
    family.add_sample(f"{sample.name}_sum", labels, value.sum)


def metrics_text(sources: Iterable[SampleSource]) -> bytes:
    """Return the text for `/metrics`.

    A source that cannot answer now is left out: the others must stay visible when one part is down.
    """
    samples: list[Sample] = []
    for source in sources:
        try:
            samples.extend(source())
        except PenstockError as error:
            logger.warning("metrics of a part are missing: %s", error)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(samples))
    return generate_latest(registry)
