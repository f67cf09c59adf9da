"""Metrics of the process itself in every `/metrics`."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from penstock.core.loop_stalls import stall_samples
from penstock.core.metrics import MetricRegistry, Sample
from penstock.core.threads import DEATHS
from penstock.services.readiness import resident_bytes

FAULTS: Final = "Unexpected errors after which a part continued"


def process_metrics(
    role: str,
    registry: MetricRegistry | None = None,
    more: Callable[[], Iterable[Sample]] | None = None,
    *,
    faults: Mapping[str, Callable[[], float]] | None = None,
) -> Callable[[], bytes]:
    """Return a function that formats the metrics of this process, a registry and another source.

    Args:
        role: Role of the process, used as a label.
        registry: Its metrics.
        more: Further metrics, read at each scrape; they are left out while it raises
            `PenstockError`.
        faults: Numbers of unexpected errors of threads that continue after them.
    """
    metrics = registry or MetricRegistry()
    for part, count in (faults or {}).items():
        metrics.read("counter", "penstock_faults_total", FAULTS, count, part=part)
    metrics.read(
        "gauge", "penstock_process_memory_bytes", "Resident memory", resident_bytes, role=role
    )
    metrics.read(
        "counter",
        "penstock_process_cpu_seconds_total",
        "Processor time",
        lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        role=role,
    )
    metrics.read("gauge", "penstock_process_threads", "Threads", threading.active_count, role=role)

    def text() -> bytes:
        # Imported here, because a process without scrapes does not need the library.
        from penstock.services.metrics_text import metrics_text  # noqa: PLC0415

        return metrics_text(
            [
                metrics.snapshot,
                lambda: stall_samples(role),
                lambda: DEATHS.samples(role),
                *([] if more is None else [more]),
            ]
        )

    return text
