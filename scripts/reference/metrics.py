"""Page of the metrics, from `data/metrics.yaml`, and the comparison with a server's `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from reference.markdown import data, head, sentence, table

_ABOUT: Final = """\
Every metric of `GET /metrics`, in the text format of Prometheus. The router's `/metrics` is enough
for a dashboard of a whole Penstock; each other process reports only its own metrics. A measurement
at one moment, such as the time of a task, is an [event](events.md).

The end of a name is its unit: `_bytes`, `_seconds` or `_ms`; otherwise the metric is a count.
"""
_EMITTED: Final = "penstock_event_"


@dataclass(frozen=True)
class MetricRow:
    """A metric: its type, its labels, its meaning."""

    kind: str
    labels: Sequence[str]
    meaning: str


@cache
def metrics() -> Mapping[str, MetricRow]:
    """Return every metric by its name."""
    return {
        name: MetricRow(kind, labels.split(), meaning)
        for group in data("metrics")
        for name, (kind, labels, meaning) in group["metrics"].items()
    }


def page() -> str:
    """Return docs/reference/metrics.md."""
    lines = [head("Metrics", "the table of metrics", _ABOUT)]
    for group in data("metrics"):
        lines += ["", f"## {group['title']}", "", group["about"]]
        rows = [_row(name, metrics()[name]) for name in group["metrics"]]
        lines += table(("metric", "type", "unit", "labels", "meaning"), rows)
    return "\n".join(lines) + "\n"


def _row(name: str, metric: MetricRow) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{name}`", metric.kind, _unit(name), labels, sentence(metric.meaning)


def _unit(name: str) -> str:
    units = {"bytes": "bytes", "seconds": "seconds", "ms": "milliseconds"}
    words = name.removesuffix("_total").split("_")
    if "over" in words or name.startswith(_EMITTED):
        return "count" if "over" in words else "that of the event"
    return next((units[word] for word in reversed(words) if word in units), "count")


def differences(text: str) -> Iterator[str]:
    """Yield how the text of a server's `/metrics` differs from the page: a line for each metric."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    for name, kind in kinds.items():
        known = metrics().get(name)
        if name.startswith(_EMITTED):
            known = metrics()[f"{_EMITTED}…"]
        if known is None:
            yield f"{name} is not on the page"
        elif known.kind != kind:
            yield f"{name} is a {kind}, on the page a {known.kind}"
    for name, labels in re.findall(r"^(\w+)\{([^}]*)\}", text, re.MULTILINE):
        base = re.sub(r"_(?:bucket|sum|count)$", "", name) if name not in kinds else name
        known = metrics().get(base)
        if base.startswith((_EMITTED, "penstock_alerts_total")):
            continue  # each has the labels of its event
        shown = set(re.findall(r'(\w+)="', labels)) - {"le"}
        if known is not None and shown != set(known.labels):
            yield f"{base} has labels {sorted(shown)}, on the page {sorted(known.labels)}"
