"""Options of a worker: limits and times."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.backoff import RetryPolicy
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of a worker.

    Attributes:
        capacity: Maximum number of peons at a time.
        watch_interval_ms: Time between two checks of its peons; the end of a peon is also reported.
        deaths_max: A task whose peon died this many times within `deaths_window_ms` has failed.
            Another task then reads its unpublished messages, instead of endless restarts.
        deaths_window_ms: Earlier deaths are ignored.
        restart: Delays before a peon is restarted.
        forget_delay_ms: How long the folder of a forgotten task is kept.
        category: Category for the selection of workers.
        version: Reported to the overlord, which may require a minimum.
        shutdown_grace_ms: Time after which a peon that received a signal to end is killed.
        task_bytes_max: A task whose folder is larger has failed; None means unlimited.
        size_interval_ms: Time between two measurements of the folders.
        waiters_max: Maximum number of long polls at a time.
        ship_delay_ms: Time between a task's end and the upload of its log to the log store.
        ship_tries_max: Maximum number of uploads of a log before its folder is deleted without it.
    """

    capacity: int = 4
    watch_interval_ms: int = 200
    deaths_max: int = 8
    deaths_window_ms: int = 600_000
    restart: RetryPolicy = field(default_factory=lambda: RetryPolicy(200, 5_000))
    forget_delay_ms: int = 60_000
    category: str = DEFAULT_WORKER_CATEGORY
    version: str = "0"
    shutdown_grace_ms: int = 10_000
    task_bytes_max: int | None = None
    size_interval_ms: int = 10_000
    waiters_max: int = 64
    ship_delay_ms: int = 1_000
    ship_tries_max: int = 5
