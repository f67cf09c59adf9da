"""Waiting tasks of the overlord: the order of lock attempts, and the reason that users see.

`WaitReason` is one thing that a task waits for: locks, an earlier task in line, a slot, its worker,
a publish, a retry or a dependency. `waits_of` finds the reasons of an active task; it runs on the
overlord's mailbox and only reads. `LockSeekers` has the tasks that need locks before they
start, on the same mailbox. `LockWaiters` orders the waiting tasks of one datasource; it is
pure. `RefusalTracker` records for how long tasks have been refused; any thread may use it, and its
mutex is held for a few statements. Does not own the locks (`lockbox`).

Tasks that want the same locks with the same priority stand in one line, and only the first is
tried, because the same locks refuse the others. A line is tried again when a task that blocked
it has released something, so a release costs only the lines that it may help. A task that is in
a line and blocks it is tried next: it holds the locks from an earlier leader.

Locks that a task gets here yield to running tasks until a worker has accepted it, because it
may wait for the slot of a task that waits for these locks. A refused task asks again after a
while; a pause without a request ends its wait in `RefusalTracker`.

Invariants: lock attempts are not polled. Each seeking task is reported once, as having its
locks or as unable to get them, unless it leaves before.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.core.errors import Closed, LockRevoked, NotFound, PenstockError, Unavailable
from penstock.indexing.lockbox.model import Granted, LockRefused, Revoked
from penstock.indexing.overlord.lock_requests import lock_requests, lock_task
from penstock.indexing.overlord.runner.slot_reasons import told
from penstock.indexing.overlord.task_index import RunnerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.errand import Calls
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import LockRequest, Outcome
    from penstock.indexing.overlord.runner.runner import Runner
    from penstock.indexing.overlord.runner.slot_reasons import SlotReason
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.timers import MailboxTimers


WaitKind: TypeAlias = Literal["locks", "line", "slots", "worker", "publish", "retry", "dependency"]


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason why a task waits.

    Attributes:
        kind: `locks`: for other tasks to release locks. `line`: for an earlier task that wants the
            same locks. `slots`: for a worker with a free slot. `worker`: for its worker to report
            that it runs. `publish`: for an earlier sequence to be published. `retry`: for the next
            try of failed work, because a dependency does not answer. `dependency`: for a failing
            dependency, as the running task reported to its worker.
        text: Description for users.
        refused: The conflicting locks, for `locks`.
        slots: The reason of each worker, for `slots`.
    """

    kind: WaitKind
    text: str
    refused: tuple[LockRefused, ...] = ()
    slots: tuple[SlotReason, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "text": self.text,
            "locks": [
                {
                    "type": str(one.type),
                    "interval": str(one.interval),
                    "taskIds": list(one.task_ids),
                    "groupId": one.group,
                    "priority": one.priority,
                    "sinceMs": one.since_ms,
                }
                for refused in self.refused
                for one in refused.refusals
            ],
            "workers": [
                {"worker": one.worker, "reason": one.reason, "taskIds": list(one.task_ids)}
                for one in self.slots
            ],
        }


_PAUSE_MAX_S: Final = 60.0
"""Upper bound of the time between two retries of a task."""

_SWEEP_AT: Final = 1_000
"""Number of waits at which those that ended are removed."""


@dataclass(slots=True)
class _Wait:
    """Times of the first and the last refusal of a task."""

    first_s: float
    last_s: float


class RefusalTracker:
    """The waits of tasks that are being refused.

    Args:
        clock: Measures the waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        self._sweep_at = _SWEEP_AT

    def refused(self, task_id: str) -> int:
        """Record a refusal; return for how long the task has been refused, in ms."""
        now_s = self._clock.monotonic_s()
        with self._mutex:
            if len(self._waits) >= self._sweep_at:
                self._sweep(now_s)
                # Raise the threshold, so that many active waits are not scanned each time.
                self._sweep_at = max(_SWEEP_AT, 2 * len(self._waits))
            wait = self._waits.get(task_id)
            if wait is None or now_s - wait.last_s > _PAUSE_MAX_S:
                wait = self._waits[task_id] = _Wait(now_s, now_s)
            wait.last_s = now_s
            return int((now_s - wait.first_s) * 1000)

    def served(self, task_id: str) -> None:
        """Delete the wait of a task whose request was granted, or failed for good."""
        with self._mutex:
            self._waits.pop(task_id, None)

    def _sweep(self, now_s: float) -> None:
        gone = [i for i, wait in self._waits.items() if now_s - wait.last_s > _PAUSE_MAX_S]
        for task_id in gone:
            del self._waits[task_id]


@dataclass(slots=True)
class _Line:
    """Tasks in order. `blockers` blocked the last try; `trying` is the one being tried now."""

    tasks: dict[str, None] = field(default_factory=dict)
    blockers: frozenset[str] = frozenset()
    trying: str | None = None
    again: bool = False


class LockWaiters:
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
            # A release came during the try, which may have seen it or not.
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

    def why(self, task: TaskSpec) -> list[WaitReason]:
        """Return what a task without its locks waits for."""
        line = self._lines[task.datasource].head_of(task.id) if task.id in self._seekers else None
        head, before = line if line is not None else (task.id, 0)
        found = [
            WaitReason("locks", refused.text(), refused=(refused,))
            for refused in self._lockboxes.why(head)
        ]
        if before:
            text = f"earlier tasks that want the same locks: {before}, of which {head} is next"
            found.append(WaitReason("line", text))
        return found or [WaitReason("locks", "the answer of the lockbox")]

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
                if isinstance(outcome, LockRefused)
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


def waits_of(
    task_id: str, index: TaskIndex, locks: LockSeekers, runner: Runner
) -> list[WaitReason]:
    """Return what a task waits for; empty if it runs.

    Raises:
        NotFound: The task is not active.
    """
    active = index.get(task_id)
    if active is None:
        raise NotFound(f"task {task_id!r} is not active, so it waits for nothing")
    if active.state is RunnerState.WAITING:
        return locks.why(active.task)
    if active.state is RunnerState.RUNNING:
        return []
    if active.worker is not None:
        return [WaitReason("worker", f"the worker {active.worker} to report that it runs")]
    slots = tuple(runner.why(task_id))
    text = told(slots) or "to be handed over in a moment"
    return [WaitReason("slots", f"a worker with a free slot: {text}", slots=slots)]
