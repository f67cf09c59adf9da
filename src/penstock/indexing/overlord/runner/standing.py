"""Which workers get tasks now, and why others get none.

State of the overlord's mailbox. Owns what speaks against a worker as a whole: that it is announced
no more, disabled, too old, silent, or that task after task fails there. What speaks against it for
one task is `selection`'s.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.indexing.overlord.runner.blacklist import Blacklist
from penstock.indexing.overlord.runner.workers import view_of
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.ports import RunnerOptions
    from penstock.indexing.overlord.runner.workers import Worker, WorkerView

_log = logging.getLogger(__name__)


class Standing:
    """How the workers stand.

    Attributes:
        announced: The names of those that announce themselves.

    Args:
        clock: Tells how long a worker is silent.
        options: What is asked of workers.
    """

    def __init__(self, clock: Clock, options: RunnerOptions) -> None:
        self.announced: set[str] = set()
        self._clock = clock
        self._options = options
        self._blacklist = Blacklist(options.blacklist)

    def barred(self, worker: Worker) -> str:
        """Return why a worker gets no tasks at all now, empty if it does."""
        if worker.client is None or worker.name not in self.announced:
            return "it is not announced any more"
        if not worker.enabled:
            return "it is disabled: enable it, or wait for others"
        if worker.version < self._options.worker_version_min:
            return f"its version {worker.version!r} is too old"
        now_s = self._clock.monotonic_s()
        until_s = self._blacklist.until_s(worker.name, now_s)
        if until_s is not None:
            return f"tasks failed there in a row, it gets none for {until_s - now_s:.0f} s"
        if worker.rests_until_s > now_s:
            return "it did not answer when it was to take a task: it is asked again soon"
        silent_ms = self._silent_ms(worker)
        # A question may wait at the worker for so long before it is answered.
        fresh_ms = 10 * self._options.sync_interval_ms + self._options.question_ms
        return f"it has not answered for {silent_ms / 1000:.0f} s" if silent_ms > fresh_ms else ""

    def rest(self, worker: Worker) -> None:
        """Give a worker no tasks for a while.

        One that takes none and yet says at once what it has would be asked again without an end.
        """
        worker.rests_until_s = self._clock.monotonic_s() + self._options.sync_interval_ms / 1000

    def lost(self, worker: Worker) -> str:
        """Return why the tasks of a worker are given up, empty if they are not."""
        silent_ms = self._silent_ms(worker)
        if silent_ms <= self._options.worker_timeout_ms:
            return ""
        return f"its worker {worker.name} has not answered for {silent_ms / 1000:.0f} s"

    def ended(self, worker: Worker, states: Iterable[TaskState]) -> None:
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
        """A worker is gone."""
        self._blacklist.forget(name)

    def has(self, worker: Worker) -> bool:
        """Whether a worker is there: announced, and not lost."""
        return worker.client is not None and not self.lost(worker)

    def view(self, worker: Worker) -> WorkerView | None:
        """Return what is shown of a worker; None: it is lost."""
        if not self.has(worker):
            return None
        now_s = self._clock.monotonic_s()
        until_s = self._blacklist.until_s(worker.name, now_s)
        until_ms = None if until_s is None else self._clock.now_ms() + int((until_s - now_s) * 1000)
        silent_s = self._silent_ms(worker) / 1000
        return view_of(worker, silent_s=silent_s, blacklisted_until_ms=until_ms)

    def _silent_ms(self, worker: Worker) -> float:
        return (self._clock.monotonic_s() - worker.seen_s) * 1000
