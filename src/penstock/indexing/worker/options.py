"""How a worker behaves: its limits and its times."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.indexing.errand import Retry
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves.

    Attributes:
        capacity: Peons at a time.
        watch_interval_ms: How often it looks at its peons; the end of one is told it besides.
        deaths_max: A task whose peon died so often within `deaths_window_ms` has failed. Another
            task reads again what it has not published, which is better than trying for ever.
        deaths_window_ms: Deaths that are longer ago are forgotten.
        restart: How long to wait before a peon is started again.
        forget_delay_ms: How long the folder of a forgotten task is kept.
        category: Which tasks are to be sent here.
        version: Told to the overlord, which may ask for one at least.
        shutdown_grace_ms: A peon that was asked to end and has not is killed after so long.
        task_bytes_max: A task whose folder holds more has failed; None: any size.
        size_interval_ms: How often the folders are measured.
        waiters_max: Long polls at a time.
        ship_delay_ms: How long after a task's end its log is sent to the log store.
        ship_tries_max: So often a log is sent to the log store before its folder goes without it.
    """

    capacity: int = 4
    watch_interval_ms: int = 200
    deaths_max: int = 8
    deaths_window_ms: int = 600_000
    restart: Retry = field(default_factory=lambda: Retry(200, 5_000))
    forget_delay_ms: int = 60_000
    category: str = DEFAULT_WORKER_CATEGORY
    version: str = "0"
    shutdown_grace_ms: int = 10_000
    task_bytes_max: int | None = None
    size_interval_ms: int = 10_000
    waiters_max: int = 64
    ship_delay_ms: int = 1_000
    ship_tries_max: int = 5
