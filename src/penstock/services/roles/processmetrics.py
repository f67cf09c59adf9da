"""What `/metrics` of every process says of the process itself."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.core.metrics import MetricRegistry


def process_metrics(role: str, registry: MetricRegistry | None = None) -> Callable[[], bytes]:
    """Return what writes the metrics of this process, and of its registry."""
    metrics = registry or MetricRegistry()
    metrics.read(
        "gauge", "penstock_process_memory_bytes", "Resident memory", _resident_bytes, role=role
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
        # Here, because a process that nobody scrapes does without the library.
        from penstock.services.metricstext import metrics_text  # noqa: PLC0415

        return metrics_text([metrics.snapshot])

    return text


def _resident_bytes() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
