"""Blacklist of workers on which tasks fail repeatedly: they get no tasks for a while.

Pure: callers pass task ends and times. Invariant: at most a share of the workers is blacklisted, so
that a fault of the tasks themselves does not exclude all workers.
"""

from __future__ import annotations

from dataclasses import dataclass


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


class WorkerBlacklist:
    """The blacklisted workers and the failures of all workers.

    Args:
        options: Conditions for blacklisting.
    """

    def __init__(self, options: BlacklistOptions) -> None:
        self._options = options
        self._failures: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def succeeded(self, worker: str) -> None:
        """A task of the worker succeeded: remove the worker from the list."""
        self._failures.pop(worker, None)
        self._until_s.pop(worker, None)

    def failed(self, worker: str, now_s: float, workers: int) -> bool:
        """A task failed at one of `workers`; return whether this blacklists the worker."""
        self.expire(now_s)
        count = self._failures[worker] = self._failures.get(worker, 0) + 1
        share = workers * self._options.workers_max_percent / 100
        if (
            count <= self._options.failures_max
            or worker in self._until_s
            or len(self._until_s) > share - 1
        ):
            return False
        self._until_s[worker] = now_s + self._options.backoff_ms / 1000
        return True

    def expire(self, now_s: float) -> None:
        """Remove workers whose time has expired; their failures are counted from zero."""
        for worker in [worker for worker, until_s in self._until_s.items() if until_s <= now_s]:
            self.succeeded(worker)

    def until_s(self, worker: str, now_s: float) -> float | None:
        """Return until when a worker is blacklisted, None if it is not."""
        until_s = self._until_s.get(worker)
        return until_s if until_s is not None and until_s > now_s else None

    def forget(self, worker: str) -> None:
        """The worker no longer exists."""
        self.succeeded(worker)
