"""Acquires the locks that tasks need before they start.

State of the overlord's mailbox; `lines` selects the tasks to try, and the lockboxes own the locks.
Locks that a task gets here yield to running tasks until `placed` reports that a worker has the
task, because the task may wait for the slot of a task that waits for these locks. Invariants:
nothing polls; exactly one of `granted` and `failed` is called for each task, unless it leaves
before.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, LockRevoked, PenstockError, Unavailable
from penstock.indexing.lockbox.model import Granted, Refused, Revoked
from penstock.indexing.overlord.lock_requests import lock_requests, lock_task
from penstock.indexing.overlord.waiting.lines import LockWaiters
from penstock.indexing.overlord.waiting.waits import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from penstock.indexing.errand import Calls
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import LockRequest, Outcome
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.timers import MailboxTimers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seeker:
    """A task without its locks; `number` gives the order of arrival."""

    task: TaskSpec
    number: int


class LockSeekers:
    """Acquires locks of waiting tasks. On the overlord's mailbox.

    Args:
        lockboxes: The locks.
        calls: Delivers the answers of the lockboxes.
        timers: Timers of the mailbox.
        retry_ms: Delay before a retry when the store does not answer.
        granted: Called when a task has its locks.
        failed: Called when a task cannot get its locks, with the reason.
    """

    def __init__(
        self,
        lockboxes: Lockboxes,
        calls: Calls,
        timers: MailboxTimers,
        *,
        retry_ms: int,
        granted: Callable[[str], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._lockboxes = lockboxes
        self._calls = calls
        self._timers = timers
        self._retry_ms = retry_ms
        self._granted = granted
        self._failed = failed
        self._seekers: dict[str, _Seeker] = {}
        self._lines: defaultdict[str, LockWaiters] = defaultdict(LockWaiters)
        self._stopped = False

    def stop(self) -> None:
        """Stop all callbacks."""
        self._stopped = True

    def seek(self, task: TaskSpec, number: int) -> None:
        """Acquire a task's locks: at once if it needs none, else as soon as they are free."""
        requests = lock_requests(task)
        if not requests:
            self._granted(task.id)
            return
        self._seekers[task.id] = _Seeker(task, number)
        lines = self._lines[task.datasource]
        self._try(task.datasource, [lines.join(task.id, _line_of(task, requests))])

    def leave(self, task: TaskSpec) -> None:
        """Remove a task that ended or no longer needs locks; unknown tasks are ignored."""
        if self._seekers.pop(task.id, None) is not None:
            self._try(task.datasource, [self._lines[task.datasource].leave(task.id)])

    def placed(self, task: TaskSpec, *, waits: bool = False) -> None:
        """A task is placed at a worker and keeps its locks, or, with `waits`, at none."""
        if task.lock_wishes():
            with suppress(Closed):  # The term is ending.
                self._lockboxes.place(lock_task(task), waits=waits)

    def released(self, datasource: str, task_ids: frozenset[str]) -> None:
        """These tasks released or lost locks: try the requests that they blocked."""
        if datasource in self._lines:
            self._try(datasource, self._lines[datasource].released(task_ids))

    def why(self, task: TaskSpec) -> list[Wait]:
        """Return what a task without its locks waits for."""
        line = self._lines[task.datasource].head_of(task.id) if task.id in self._seekers else None
        head, before = line if line is not None else (task.id, 0)
        found = [
            Wait("locks", refused.text(), refused=(refused,))
            for refused in self._lockboxes.why(head)
        ]
        if before:
            text = f"earlier tasks that want the same locks: {before}, of which {head} is next"
            found.append(Wait("line", text))
        return found or [Wait("locks", "the answer of the lockbox")]

    def _try(self, datasource: str, task_ids: Sequence[str | None]) -> None:
        """Request the locks of waiting tasks, most urgent first."""
        seekers = [self._seekers[task_id] for task_id in task_ids if task_id is not None]
        seekers.sort(key=lambda seeker: (-seeker.task.priority, seeker.number))
        for seeker in seekers if not self._stopped else ():
            with suppress(Closed):  # The term is ending.
                self._calls.watch(
                    self._lockboxes.acquire(lock_requests(seeker.task), together=True, waits=True),
                    partial(self._answered, seeker),
                    partial(self._not_answered, seeker),
                )
        if not self._lines[datasource]:
            del self._lines[datasource]

    def _answered(self, seeker: _Seeker, outcomes: list[Outcome]) -> None:
        task = seeker.task
        if self._stopped or self._seekers.get(task.id) is not seeker:
            return  # The task ended meanwhile, and its locks were released.
        revoked = next((one for one in outcomes if isinstance(one, Revoked)), None)
        if revoked is not None:
            self._failed(task.id, f"its {revoked.lock} was revoked before it could start")
        elif all(isinstance(one, Granted) for one in outcomes):
            del self._seekers[task.id]
            following = self._lines[task.datasource].leave(task.id)
            self._granted(task.id)
            self._try(task.datasource, [following])
        else:
            blockers = [
                task_id
                for outcome in outcomes
                if isinstance(outcome, Refused)
                for refusal in outcome.refusals
                for task_id in refusal.task_ids
            ]
            self._try(task.datasource, [self._lines[task.datasource].refused(task.id, blockers)])

    def _not_answered(self, seeker: _Seeker, error: PenstockError) -> None:
        task = seeker.task
        if self._stopped or self._seekers.get(task.id) is not seeker:
            return
        if isinstance(error, Unavailable):
            _log.warning("task %s waits for its locks: %s", task.id, error)
            again = self._lines[task.datasource].refused(task.id, ())
            if again is None:
                retry = partial(self._try_all, task.datasource)
                self._timers.schedule_after(self._retry_ms, retry, "locks again")
            self._try(task.datasource, [again])
        elif isinstance(error, LockRevoked):
            _log.info("task %s ended before it had its locks", task.id)
        else:
            self._failed(task.id, f"it cannot get its locks: {error}")

    def _try_all(self, datasource: str) -> None:
        if not self._stopped and datasource in self._lines:
            self._try(datasource, self._lines[datasource].released(frozenset()))


def _line_of(task: TaskSpec, requests: Sequence[LockRequest]) -> Hashable:
    """Return the key of a task's line: all tasks of a line have the same conflicts."""
    wishes = tuple((str(one.interval), one.type, one.priority) for one in requests)
    # Tasks of one group may share locks, so they have lines of their own.
    return (wishes, task.group_name if task.group_name != task.id else "")
