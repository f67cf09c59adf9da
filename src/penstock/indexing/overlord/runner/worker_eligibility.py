"""Eligibility of workers: which get tasks now, and why others get none.

State of the overlord's mailbox. Checks reasons that exclude a worker from all tasks: it is no
longer announced, disabled, too old, silent, or tasks fail there repeatedly. `selection` checks
reasons that exclude it from one task.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.indexing.overlord.runner.worker_table import view_of
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.runner_options import BlacklistOptions, RunnerOptions
    from penstock.indexing.overlord.runner.worker_table import KnownWorker, WorkerView

_log = logging.getLogger(__name__)


class WorkerBlacklist:
    """The workers on which tasks fail repeatedly: they get no tasks for a while.

    Pure: callers pass task ends and times. Invariant: at most a share of the workers is
    blacklisted, so that a fault of the tasks themselves does not exclude all workers.

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


class WorkerEligibility:
    """Eligibility of the workers.

    Attributes:
        announced: Names of the announced workers.

    Args:
        clock: Measures how long a worker has been silent.
        options: Requirements for workers.
    """

    def __init__(self, clock: Clock, options: RunnerOptions) -> None:
        self.announced: set[str] = set()
        self._clock = clock
        self._options = options
        self._blacklist = WorkerBlacklist(options.blacklist)

    def exclusion_reason(self, worker: KnownWorker) -> str:
        """Return why a worker gets no tasks at all now, empty if it does."""
        if worker.client is None or worker.name not in self.announced:
            return "it is no longer announced"
        if not worker.enabled:
            return "it is disabled: enable it, or wait for others"
        if worker.version < self._options.worker_version_min:
            return f"its version {worker.version!r} is too old"
        now_s = self._clock.monotonic_s()
        until_s = self._blacklist.until_s(worker.name, now_s)
        if until_s is not None:
            return f"tasks failed there in a row, it gets none for {until_s - now_s:.0f} s"
        if worker.rests_until_s > now_s:
            return "it did not answer a request to take a task: the request is repeated soon"
        silent_ms = self._silent_ms(worker)
        # A poll may wait at the worker for this long before it is answered.
        fresh_ms = 10 * self._options.sync_interval_ms + self._options.question_ms
        return f"it has not answered for {silent_ms / 1000:.0f} s" if silent_ms > fresh_ms else ""

    def rest(self, worker: KnownWorker) -> None:
        """Give a worker no tasks for a while.

        A worker that accepts no tasks but answers polls at once would be retried in a tight loop.
        """
        worker.rests_until_s = self._clock.monotonic_s() + self._options.sync_interval_ms / 1000

    def lost(self, worker: KnownWorker) -> str:
        """Return why the tasks of a worker are failed, empty if they are not."""
        silent_ms = self._silent_ms(worker)
        if silent_ms <= self._options.worker_timeout_ms:
            return ""
        return f"its worker {worker.name} has not answered for {silent_ms / 1000:.0f} s"

    def ended(self, worker: KnownWorker, states: Iterable[TaskState]) -> None:
        """Count how tasks ended at a worker."""
        for state in states:
            worker.last_end_ms = self._clock.now_ms()
            if state is TaskState.SUCCESS:
                self._blacklist.succeeded(worker.name)
            elif self._blacklist.failed(
                worker.name, self._clock.monotonic_s(), len(self.announced)
            ):
                _log.warning("worker %s gets no tasks for a while: they fail there", worker.name)

    def forget(self, name: str) -> None:
        """A worker no longer exists."""
        self._blacklist.forget(name)

    def has(self, worker: KnownWorker) -> bool:
        """Return whether a worker is known and not lost."""
        return worker.client is not None and not self.lost(worker)

    def view(self, worker: KnownWorker) -> WorkerView | None:
        """Return the API's view of a worker; None if it is lost."""
        if not self.has(worker):
            return None
        now_s = self._clock.monotonic_s()
        until_s = self._blacklist.until_s(worker.name, now_s)
        until_ms = None if until_s is None else self._clock.now_ms() + int((until_s - now_s) * 1000)
        silent_s = self._silent_ms(worker) / 1000
        return view_of(worker, silent_s=silent_s, blacklisted_until_ms=until_ms)

    def _silent_ms(self, worker: KnownWorker) -> float:
        return (self._clock.monotonic_s() - worker.seen_s) * 1000
