"""Lockbox of one datasource: a state machine over batches of lock commands.

`Lockbox` owns the batch and its undo. It decides by the tables of `lock_rules` which requests are
granted and which locks they revoke. Which tasks may request locks belongs to `active_tasks`, the
locks themselves to `lock_table`. It does no I/O and has no clock: the caller stores
`LockBatchResult.changes` and then calls `accept`, or `undo` if storing failed. One thread at a
time.

Invariants: a failed command, and a request that is not granted, change nothing. Two
incompatible locks are never held at once by two groups, or by one group at different intervals.
Only active tasks have locks, except until the next batch for tasks whose end could not be
stored. The locks of a task without a worker never block a running task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.errors import Conflict, PenstockError
from penstock.indexing.lockbox.active_tasks import ActiveLockTasks
from penstock.indexing.lockbox.coverage import SectionLocks, require_covered
from penstock.indexing.lockbox.lock_rules import (
    coexist,
    concerns,
    next_version,
    raised_floor,
    reusable,
    supersedes,
)
from penstock.indexing.lockbox.lock_table import LockGroup, LockTable
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockChanges,
    LockGranted,
    LockGranularity,
    LockRefusal,
    LockRefused,
    LockType,
    Revoked,
    TaskLock,
    TaskRemoval,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.task_locks import LockOutcome, LockRequest, LockTask, SegmentLike


REFUSALS_MAX: Final = 8
"""Maximum number of locks that a refusal names; it counts the others."""


class LockGranter:
    """The locks of one datasource and their changes. One thread at a time.

    Args:
        datasource: The datasource.
        active_tasks: The active tasks, and which of them wait for a worker.
        version_floor: Versions that are chosen here are greater than this one.

    Attributes:
        table: The held locks.
        released: Tasks that released or lost a lock since `begin`, so that requests that were
            refused before may be granted now.
        yielded: Tasks that no worker has and that lost all of their locks since `begin`.
    """

    def __init__(self, datasource: str, active_tasks: ActiveLockTasks, version_floor: str) -> None:
        self._datasource = datasource
        self._active_tasks = active_tasks
        self.version_floor = version_floor
        self.table: Final = LockTable()
        self.released: list[str] = []
        self.yielded: list[str] = []

    def begin(self) -> None:
        """Clear `released` and `yielded`."""
        self.released.clear()
        self.yielded.clear()

    def acquire(
        self, requests: tuple[LockRequest, ...], now_ms: int, *, together: bool, waits: bool
    ) -> list[LockOutcome]:
        """Answer the requests of one task, in order. Raises as `ActiveLockTasks.check`."""
        mark = self.table.undo_log.mark()
        released_before = len(self.released)
        outcomes: list[LockOutcome] = []
        for request in requests:
            self._active_tasks.check(request, requests[0])
            self._active_tasks.place(request.task_id, waits=waits)
            outcome = self._create_or_find(request, now_ms)
            if together and not isinstance(outcome, LockGranted):
                self.table.undo_log.rollback_to(mark)
                del self.released[released_before:]
                return [outcome] * len(requests)
            outcomes.append(outcome)
        return outcomes

    def refusal_of_new(self, request: LockRequest) -> LockRefused | None:
        """Return why a new segment without a number would be refused, or None; changes nothing."""
        found = [
            group
            for group in self.table.conflict_candidates(request)
            if concerns(group.lock, request)
        ]
        _, firm = self._in_the_way(request, found, None)
        if all(self._revocable(group, request) for group in firm) or all(
            _same_claim(group.lock, request) for group in firm
        ):
            return None
        return _refused(request, firm)

    def adopt(self, task: LockTask, lock: TaskLock) -> str:
        """Take over a stored lock of an active task unchanged; return a conflict, or ""."""
        # Versions of later locks must be greater than all earlier ones.
        self.version_floor = raised_floor(self.version_floor, lock.version)
        if (lock.group, lock.datasource, lock.priority) != (
            task.group,
            task.datasource,
            task.priority,
        ):
            return f"it does not have group {task.group!r}, {task.datasource}, {task.priority}"
        found = list(self.table.conflict_candidates(lock))
        same = next((group for group in found if group.lock == lock), None)
        if same is not None and lock.type is LockType.REPLACE:
            return f"{', '.join(same.tasks)} holds it, and a REPLACE lock has one task"
        if same is None and not lock.revoked:
            for group in found:
                if not _both(group.lock, lock):
                    return f"{', '.join(group.tasks)} holds an {group.lock}"
        self.table.join(same or LockGroup(lock), task.id, stored=True)
        return ""

    def release(self, task_id: str, interval: Interval) -> None:
        """Release a task's locks on exactly this interval."""
        for group in self.table.held_over(task_id, interval):
            if group.lock.interval == interval:
                self._leave(group, task_id)

    def leave_all(self, task_id: str) -> None:
        """Release all locks of a task."""
        for group in self.table.of_task(task_id):
            self._leave(group, task_id)

    def _leave(self, group: LockGroup, task_id: str) -> None:
        self.table.leave(group, task_id)
        # Even if other tasks of its group hold the lock: requests that waited for this task now
        # wait for them.
        self.released.append(task_id)
        if not group.tasks:
            self.version_floor = raised_floor(self.version_floor, group.lock.version)

    def _create_or_find(self, request: LockRequest, now_ms: int) -> LockOutcome:
        found = [
            group
            for group in self.table.conflict_candidates(request)
            if concerns(group.lock, request)
        ]
        mine = _best([p for p in found if reusable(p.lock, request)], request.task_id)
        if mine is not None:
            outcome = self._reuse(mine, request)
            if outcome is not None:
                return outcome
        yielding, firm = self._in_the_way(request, found, mine)
        if all(self._revocable(group, request) for group in firm):
            for group in firm:
                self._revoke(group)
        elif not all(_same_claim(group.lock, request) for group in firm):
            return _refused(request, firm)
        for task_id in dict.fromkeys(task_id for group in yielding for task_id in group.tasks):
            self._yield(task_id)
        group = LockGroup(self._new_lock(request, now_ms), was_yielded=bool(yielding))
        self.table.join(group, request.task_id)
        self._drop_superseded(group, request.task_id)
        return LockGranted(group.lock, fresh=True)

    def _in_the_way(
        self, request: LockRequest, found: list[LockGroup], mine: LockGroup | None
    ) -> tuple[list[LockGroup], list[LockGroup]]:
        """Return the lock groups that conflict with a request: those that yield, and the others."""
        # A revoked lock conflicts with nothing.
        hindering = [
            group
            for group in found
            if not group.lock.revoked
            and (
                group is mine
                or not coexist(request.type, request.interval, group.lock.type, group.lock.interval)
            )
        ]
        yielding = [group for group in hindering if self._yields(group, request)]
        if not yielding:
            return [], hindering
        return yielding, [group for group in hindering if group not in yielding]

    def _reuse(self, group: LockGroup, request: LockRequest) -> LockOutcome | None:
        """Use a lock that the request's group holds; None: the lock must yield to the request."""
        if group.lock.revoked:
            return Revoked(group.lock)
        if request.task_id in group.tasks:
            return LockGranted(group.lock, fresh=False)
        if group.lock.type is LockType.REPLACE:
            # Segments that an append leaves for a replacing task must belong to exactly one task.
            return None if self._yields(group, request) else _refused(request, [group])
        if group.lock.priority != request.priority:
            raise Conflict(
                f"task {request.task_id!r} has priority {request.priority}, but its group holds"
                f" the {group.lock}: give all tasks of a group the same priority"
            )
        self.table.join(group, request.task_id)
        self._drop_superseded(group, request.task_id)
        return LockGranted(group.lock, fresh=True)

    def _yields(self, group: LockGroup, request: LockRequest) -> bool:
        """Return whether all holders of a lock wait for a worker and must yield to the request.

        Otherwise a running task could wait forever, because the holders may wait for its slot.
        Among tasks that wait, a lower priority yields to a higher one; they have no work to lose.
        """
        return self._active_tasks.all_wait(group.tasks) and (
            not self._active_tasks.waits(request.task_id) or group.lock.priority < request.priority
        )

    def _revocable(self, group: LockGroup, request: LockRequest) -> bool:
        """Return whether the request's priority revokes a lock.

        A task that had to yield a lock must not revoke it before it has a worker, or the running
        task would lose it again at once.
        """
        took_turns = group.was_yielded and self._active_tasks.waits(request.task_id)
        return group.lock.priority < request.priority and not took_turns

    def _yield(self, task_id: str) -> None:
        """Release all locks of a waiting task: it must request all of them together again."""
        self.leave_all(task_id)
        self.yielded.append(task_id)
        self.table.undo_log.note(partial(self.yielded.remove, task_id))

    def _new_lock(self, request: LockRequest, now_ms: int) -> TaskLock:
        version = request.version
        if version is None:
            version = next_version(request.type, now_ms, self.version_floor)
        return TaskLock(
            granularity=request.granularity,
            type=request.type,
            group=request.group,
            datasource=self._datasource,
            interval=request.interval,
            version=version,
            priority=request.priority,
            partition_number=request.partition_number,
            created_ms=now_ms,
        )

    def _revoke(self, group: LockGroup) -> None:
        self.table.revoke(group)
        self.released += group.tasks
        self.version_floor = raised_floor(self.version_floor, group.lock.version)

    def _drop_superseded(self, new: LockGroup, task_id: str) -> None:
        """Release locks that the new one makes redundant, so that later requests find one lock."""
        for group in list(self.table.conflict_candidates(new.lock)):
            if task_id in group.tasks and supersedes(new.lock, group.lock):
                self._leave(group, task_id)


def _best(groups: list[LockGroup], task_id: str) -> LockGroup | None:
    """Return the lock group that a request uses.

    One with the task comes first, so that the task learns of a revocation; then one that is not
    revoked; then the largest, which also fits the group's next requests; then the earliest.
    """
    if len(groups) < 2:
        return groups[0] if groups else None

    def merit(group: LockGroup) -> tuple[bool, bool, int, int]:
        interval = group.lock.interval
        is_mine = task_id in group.tasks
        return is_mine, not group.lock.revoked, interval.length_ms, -interval.start_ms

    return max(groups, key=merit)


def _same_claim(lock: TaskLock, request: LockRequest) -> bool:
    """Return whether a group only changes the type or granularity of its own lock."""
    return lock.group == request.group and lock.interval == request.interval


def _both(one: TaskLock, other: TaskLock) -> bool:
    """Return whether two stored locks whose intervals overlap can be held at once."""
    if one.revoked or (one.group == other.group and one.interval == other.interval):
        return True
    if one.granularity is other.granularity is LockGranularity.SEGMENT and (
        one.interval == other.interval and one.partition_number != other.partition_number
    ):
        return True
    return coexist(one.type, one.interval, other.type, other.interval)


def _refused(request: LockRequest, groups: list[LockGroup]) -> LockRefused:
    # Locks that can never be revoked first; of equal priority, those held longest.
    groups = sorted(groups, key=lambda p: (-p.lock.priority, p.lock.created_ms))
    return LockRefused(
        request,
        tuple(
            LockRefusal(
                task_ids=tuple(group.tasks),
                group=group.lock.group,
                type=group.lock.type,
                interval=group.lock.interval,
                priority=group.lock.priority,
                since_ms=group.lock.created_ms,
                partition_number=group.lock.partition_number,
            )
            for group in groups[:REFUSALS_MAX]
        ),
        more=max(0, len(groups) - REFUSALS_MAX),
    )


@dataclass(frozen=True, slots=True)
class AddTask:
    """A task becomes active."""

    task: LockTask


@dataclass(frozen=True, slots=True)
class RemoveTask:
    """A task is no longer active. The answer is a `TaskRemoval`."""

    task_id: str


@dataclass(frozen=True, slots=True)
class AcquireLocks:
    """A task requests locks. The answer is a list of outcomes.

    Attributes:
        requests: The requests.
        together: Whether to grant all or none.
        waits: Whether no worker has the task. Its locks then yield to others, until a
            `PlaceTask` reports that a worker has it, or the task itself requests locks.
    """

    requests: tuple[LockRequest, ...]
    together: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class PlaceTask:
    """From now on a worker has the task or, with `waits`, no worker has it."""

    task_id: str
    waits: bool


@dataclass(frozen=True, slots=True)
class ReleaseLocks:
    """A task releases its locks on exactly this interval."""

    task_id: str
    interval: Interval


LockCommand: TypeAlias = AddTask | RemoveTask | AcquireLocks | PlaceTask | ReleaseLocks
CommandAnswer: TypeAlias = "list[LockOutcome] | TaskRemoval | PenstockError | None"


@dataclass(frozen=True, slots=True)
class LockBatchResult:
    """Result of a batch of commands.

    Attributes:
        answers: One for each command; an error if the command was refused as a whole.
        changes: The changes to store.
        released: Tasks that released or lost a lock, so that requests that were refused before may
            be granted now.
        yielded: Tasks that no worker has and that lost all of their locks to others: they must
            request them again.
    """

    answers: tuple[CommandAnswer, ...]
    changes: LockChanges
    released: frozenset[str]
    yielded: tuple[str, ...] = ()


class Lockbox:
    """The locks of one datasource. One thread at a time.

    Args:
        datasource: The datasource.
        version_floor: Versions that the lockbox chooses are greater than this one.
    """

    def __init__(self, datasource: str, *, version_floor: str = "") -> None:
        self.datasource: Final = datasource
        self._active_tasks = ActiveLockTasks(datasource)
        self._granter = LockGranter(datasource, self._active_tasks, version_floor)
        self._table = self._granter.table
        self._undo_log = self._table.undo_log

    @property
    def version_floor(self) -> str:
        """Lower bound, exclusive, of the versions that the lockbox chooses."""
        return self._granter.version_floor

    @property
    def is_empty(self) -> bool:
        """Whether the lockbox has no state that must be kept."""
        return not (self._active_tasks or self._table)

    @property
    def active_locks(self) -> int:
        """Number of locks that are held and not revoked."""
        return self._table.active

    def handle(self, commands: Sequence[LockCommand], now_ms: int) -> LockBatchResult:
        """Execute commands in order; the caller must then call `accept` or `undo`.

        Args:
            commands: The commands.
            now_ms: The time, for versions.
        """
        assert not self._undo_log, "the last batch was neither accepted nor undone"
        granter = self._granter
        granter.begin()
        for task_id in self._active_tasks.ended:
            granter.leave_all(task_id)
        answers = tuple(self._answer(command, now_ms) for command in commands)
        released, yielded = frozenset(granter.released), tuple(granter.yielded)
        return LockBatchResult(answers, self._undo_log.changes(), released, yielded)

    def accept(self) -> None:
        """Keep the changes of the last `handle`."""
        self._undo_log.commit()

    def undo(self) -> None:
        """Undo the last `handle`, except that added tasks stay active."""
        self._undo_log.rollback()

    def retire(self, task_id: str) -> None:
        """Stop granting locks to a task whose removal could not be stored.

        The next `handle` releases its locks.
        """
        if self._active_tasks.find(task_id) is not None:
            self._active_tasks.keep_ended(self._dismiss(task_id))

    def adopt(self, task: LockTask, lock: TaskLock) -> str:
        """Take over a stored lock of an active task unchanged; return a conflict, or ""."""
        return self._granter.adopt(task, lock)

    def section_locks(
        self, task_id: str, segments: Sequence[SegmentLike], intervals: Sequence[Interval]
    ) -> SectionLocks:
        """Return the locks for a critical section of a task.

        Raises:
            LockRevoked: A covering lock was revoked, or the task is not active.
            Conflict: No lock covers a segment or an interval.
        """
        self._active_tasks.require(task_id)
        require_covered(self._table, task_id, segments=segments, intervals=intervals)
        return SectionLocks(task_id, self._table)

    def room_for(self, request: LockRequest, now_ms: int) -> LockRefused | str:
        """Return the version of a new segment where none exists, or the conflicting locks.

        Args:
            request: A request for a lock on a segment without a number.
            now_ms: The time.

        Raises:
            LockRevoked: The task is not active.
        """
        self._active_tasks.require(request.task_id)
        refused = self._granter.refusal_of_new(request)
        return refused or next_version(request.type, now_ms, self.version_floor)

    def locks(self, task_id: str | None = None) -> list[HeldLock]:
        """Return all locks with their holders, or those of one task."""
        if task_id is None:
            return list(self._table.every())
        return [HeldLock(task_id, group.lock) for group in self._table.of_task(task_id)]

    def group_locks(self) -> Iterator[TaskLock]:
        """Yield each lock once, regardless of its number of holders."""
        return (group.lock for group in self._table.groups())

    def _answer(self, command: LockCommand, now_ms: int) -> CommandAnswer:
        mark = self._undo_log.mark()
        try:
            match command:
                case AcquireLocks(requests, together, waits):
                    return self._granter.acquire(requests, now_ms, together=together, waits=waits)
                case PlaceTask(task_id, waits):
                    self._active_tasks.place(task_id, waits=waits)
                case ReleaseLocks(task_id, interval):
                    self._granter.release(task_id, interval)
                case AddTask(task):
                    # Never undone: a task is not a row, and it is not added again.
                    if self._active_tasks.is_new(task):
                        self._active_tasks.enter(task)
                case RemoveTask(task_id):
                    return self._remove(task_id)
        except PenstockError as error:
            self._undo_log.rollback_to(mark)
            return error
        return None

    def _remove(self, task_id: str) -> TaskRemoval:
        task = self._active_tasks.find(task_id)
        if task is not None:
            removal = self._dismiss(task_id)
            self._undo_log.note(partial(self._active_tasks.enter, task))
            self._granter.leave_all(task_id)
            return removal
        ended = self._active_tasks.take_ended(task_id)
        if ended is None:
            return TaskRemoval(task_id)
        self._undo_log.note(partial(self._active_tasks.keep_ended, ended))
        return ended

    def _dismiss(self, task_id: str) -> TaskRemoval:
        held = self._table.of_task(task_id)
        replaces = any(group.lock.type is LockType.REPLACE for group in held)
        return TaskRemoval(task_id, replaces, self._active_tasks.leave(task_id))
