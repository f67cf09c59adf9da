"""Options of the runner."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BlacklistOptions:
    """Conditions for blacklisting a worker.

    Attributes:
        failures_max: Consecutive failures that are tolerated on a worker.
        backoff_ms: Time for which a blacklisted worker gets no tasks.
        workers_max_percent: Maximum share of blacklisted workers.
    """

    failures_max: int = 5
    backoff_ms: int = 900_000
    workers_max_percent: float = 20.0


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options of the runner.

    Attributes:
        sync_interval_ms: Interval at which the workers are listed, and the pause between polls of
            a worker without changes.
        long_poll_ms: Maximum time that a poll for changes waits at a worker.
        worker_timeout_ms: Time without an answer after which a worker is lost and its tasks fail.
        handovers_max: Maximum number of tasks sent to one worker that it has not accepted yet.
        parallel_slot_ratio: Share of a worker's slots for tasks of type `index_parallel`.
        worker_version_min: Minimum version of workers that get tasks.
        blacklist: Conditions for blacklisting a worker.
    """

    sync_interval_ms: int = 1_000
    long_poll_ms: int = 20_000
    worker_timeout_ms: int = 120_000
    handovers_max: int = 4
    parallel_slot_ratio: float = 1.0
    worker_version_min: str = "0"
    blacklist: BlacklistOptions = field(default_factory=BlacklistOptions)

    @property
    def question_ms(self) -> int:
        """Waiting time of a poll, short enough that a worker without changes is not lost."""
        return min(self.long_poll_ms, self.worker_timeout_ms // 4)
