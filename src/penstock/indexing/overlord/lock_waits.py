"""Tasks that wait for locks: in which order they are tried, and when.

`LockWaitQueue` orders the waiting tasks of one datasource. `LockWaits` has the queues of all
datasources. It converts each answer of the lockboxes to an event of the task, and returns which
tasks to try next. Both classes only decide: `LockEffects` sends the attempts to the lockboxes. On
the overlord's mailbox.

Tasks that request the same locks with the same priority form one line, and only the first is tried,
because the same locks refuse the others. A line is tried again when a task that blocked it has
released a lock, so the cost of a release depends only on the lines that it may unblock. A task that
waits in a line and blocks it has held these locks since an earlier leader; it is tried next.

Locks that a waiting task gets yield to running tasks until a worker has accepted the task:
otherwise it could wait for the slot of a running task that waits for these locks.

Invariants: lock attempts are not polled. Each waiting task is reported once, as having its locks or
as unable to get them, unless it leaves before.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.errors import LockRevoked, PenstockError, Unavailable
from penstock.indexing.lockbox.task_locks import LockGranted, LockRefused, Revoked
from penstock.indexing.overlord.task_state import TaskEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.lockbox.task_locks import LockOutcome, LockRequest
    from penstock.indexing.overlord.task_state import QueuedTask
    from penstock.indexing.task_spec import TaskSpec

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Line:
    """Tasks in order.

    `blockers` blocked the last try; `trying` is the task whose attempt is running.
    """

    tasks: dict[str, None] = field(default_factory=dict)
    blockers: frozenset[str] = frozenset()
    trying: str | None = None
    again: bool = False


class LockWaitQueue:
    """The lines of one datasource. Each method returns which tasks to try next, if any."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._keys: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._keys

    def join(self, task_id: str, key: Hashable) -> str | None:
        """Add a task to the end of its line; return it if it is the first."""
        self._keys[task_id] = key
        line = self._lines.setdefault(key, _Line())
        line.tasks[task_id] = None
        return self._next(line)

    def refused(self, task_id: str, blockers: Iterable[str]) -> str | None:
        """Keep a task at the head of its line until one of its blockers releases a lock."""
        line = self._line_of(task_id)
        if line is None or line.trying != task_id:
            return None
        line.trying, line.blockers = None, frozenset(blockers)
        holder = next((one for one in line.tasks if one in line.blockers), None)
        if holder is not None:
            # It holds the locks since an earlier leader and only needs to request them.
            line.tasks = {holder: None} | line.tasks
            return self._next(line, again=True)
        if line.again:
            # A release came during the try, which may not include it.
            return self._next(line, again=True)
        return None

    def leave(self, task_id: str) -> str | None:
        """Remove a task that ended or got its locks; return the task to try next, if any.

        Tasks behind one that got its locks may get the same locks.
        """
        line = self._line_of(task_id)
        if line is None:
            return None
        key = self._keys.pop(task_id)
        del line.tasks[task_id]
        if not line.tasks:
            del self._lines[key]
            return None
        if line.trying != task_id:
            return None
        line.trying = None
        return self._next(line, again=True)

    def released(self, task_ids: frozenset[str]) -> list[str]:
        """Return the tasks to try after these tasks released locks; if empty: all heads."""
        found = []
        for line in self._lines.values():
            if task_ids and line.blockers and task_ids.isdisjoint(line.blockers):
                continue
            head = self._next(line, again=True)
            if head is not None:
                found.append(head)
        return found

    def head_of(self, task_id: str) -> tuple[str, int] | None:
        """Return the head of the task's line and how many tasks are before the task."""
        line = self._line_of(task_id)
        if line is None:
            return None
        order = list(line.tasks)
        return order[0], order.index(task_id)

    def heads(self) -> Iterator[tuple[str, str]]:
        """Yield each waiting task, with the head of its line."""
        for line in self._lines.values():
            head = next(iter(line.tasks))
            for task_id in line.tasks:
                yield task_id, head

    def _line_of(self, task_id: str) -> _Line | None:
        return self._lines.get(self._keys[task_id]) if task_id in self._keys else None

    def _next(self, line: _Line, *, again: bool = False) -> str | None:
        if line.trying is not None:
            line.again = line.again or again
            return None
        if line.blockers and not again:
            return None
        line.trying = next(iter(line.tasks))
        line.again = False
        return line.trying


@dataclass(frozen=True, slots=True, eq=False)
class LockAttempt:
    """A waiting task and the locks that it needs."""

    entry: QueuedTask
    requests: Sequence[LockRequest]

    @property
    def task(self) -> TaskSpec:
        """The task."""
        return self.entry.task


@dataclass(frozen=True, slots=True)
class LockAttemptResult:
    """Consequences of an answer of the lockboxes.

    Attributes:
        event: The event for the task, None if it continues to wait.
        reason: Why it cannot get its locks.
        following: The attempts to make next.
        retry: Whether the datasource must be tried again after a pause.
    """

    event: TaskEvent | None = None
    reason: str = ""
    following: Sequence[LockAttempt] = ()
    retry: bool = False


class LockWaits:
    """The tasks that wait for locks. On the overlord's mailbox."""

    def __init__(self) -> None:
        self._attempts: dict[str, LockAttempt] = {}
        self._queues: defaultdict[str, LockWaitQueue] = defaultdict(LockWaitQueue)

    def join(self, entry: QueuedTask, requests: Sequence[LockRequest]) -> list[LockAttempt]:
        """Add a task that needs locks; return the attempts to make now."""
        task = entry.task
        self._attempts[task.id] = LockAttempt(entry, requests)
        return self._next(
            task.datasource,
            [self._queues[task.datasource].join(task.id, _line_of(task, requests))],
        )

    def leave(self, task: TaskSpec) -> list[LockAttempt]:
        """Remove a task that ended or no longer needs locks; unknown tasks are ignored."""
        if self._attempts.pop(task.id, None) is None:
            return []
        return self._next(task.datasource, [self._queues[task.datasource].leave(task.id)])

    def released(self, datasource: str, task_ids: frozenset[str]) -> list[LockAttempt]:
        """Return the attempts that these tasks may have blocked, after they released or lost locks.

        An empty set means any task.
        """
        if datasource not in self._queues:
            return []
        return self._next(datasource, self._queues[datasource].released(task_ids))

    def position(self, task: TaskSpec) -> tuple[str, int]:
        """Return the task at the head of a task's line, and how many tasks are before it."""
        if task.id not in self._attempts:
            return task.id, 0
        return self._queues[task.datasource].head_of(task.id) or (task.id, 0)

    def heads(self) -> dict[str, str]:
        """Return the waiting tasks, each with the head of its line: a line needs the same locks."""
        return {task_id: head for queue in self._queues.values() for task_id, head in queue.heads()}

    def answered(self, attempt: LockAttempt, outcomes: Sequence[LockOutcome]) -> LockAttemptResult:
        """Return the events and tries that follow from the outcomes of an attempt."""
        task = attempt.task
        if self._attempts.get(task.id) is not attempt:
            return LockAttemptResult()  # The task ended meanwhile, and its locks were released.
        revoked = next((one for one in outcomes if isinstance(one, Revoked)), None)
        if revoked is not None:
            reason = f"its {revoked.lock} was revoked before it could start"
            return LockAttemptResult(TaskEvent.LOCKS_DENIED, reason)
        if all(isinstance(one, LockGranted) for one in outcomes):
            return LockAttemptResult(TaskEvent.LOCKS_GRANTED, following=self.leave(task))
        blockers = [
            task_id
            for outcome in outcomes
            if isinstance(outcome, LockRefused)
            for refusal in outcome.refusals
            for task_id in refusal.task_ids
        ]
        again = self._queues[task.datasource].refused(task.id, blockers)
        return LockAttemptResult(following=self._next(task.datasource, [again]))

    def failed(self, attempt: LockAttempt, error: PenstockError) -> LockAttemptResult:
        """Return the events and tries that follow from a failed attempt."""
        task = attempt.task
        if self._attempts.get(task.id) is not attempt:
            return LockAttemptResult()
        if isinstance(error, Unavailable):
            _log.warning("task %s waits for its locks: %s", task.id, error)
            again = self._queues[task.datasource].refused(task.id, ())
            return LockAttemptResult(
                following=self._next(task.datasource, [again]), retry=again is None
            )
        if isinstance(error, LockRevoked):
            _log.info("task %s ended before it had its locks", task.id)
            return LockAttemptResult()
        return LockAttemptResult(TaskEvent.LOCKS_DENIED, f"it cannot get its locks: {error}")

    def _next(self, datasource: str, task_ids: Iterable[str | None]) -> list[LockAttempt]:
        """Return the attempts of waiting tasks, most urgent first."""
        found = [self._attempts[task_id] for task_id in task_ids if task_id is not None]
        found.sort(key=lambda attempt: (-attempt.task.priority, attempt.entry.number))
        if not self._queues[datasource]:
            del self._queues[datasource]
        return found


def _line_of(task: TaskSpec, requests: Sequence[LockRequest]) -> Hashable:
    """Return the key of a task's line: all tasks of a line have the same conflicts."""
    requested = tuple((str(one.interval), one.type, one.priority) for one in requests)
    # Tasks of one group may share locks, so they have lines of their own.
    return (requested, task.group_name if task.group_name != task.id else "")
