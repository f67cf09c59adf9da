"""The active tasks of one datasource, which may request locks.

Tracks the active tasks, which of them share allocations, which wait for a worker, and ended tasks
whose removal could not be stored; `lock_table` has their locks. Invariant: a task that has ended
never becomes active again under its id while any of its state is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked
from penstock.indexing.lockbox.task_locks import LockGranularity, LockType, TaskRemoval

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.indexing.lockbox.task_locks import LockRequest, LockTask


class ActiveLockTasks:
    """The active tasks. One thread at a time.

    Args:
        datasource: The datasource of the tasks.
    """

    def __init__(self, datasource: str) -> None:
        self._datasource = datasource
        self._tasks: dict[str, LockTask] = {}
        self._allocators: dict[str, dict[str, None]] = {}
        # Tasks whose removal could not be stored, with the answer of the removal.
        self._ended: dict[str, TaskRemoval] = {}
        # Tasks that no worker has. Never undone: a failed transaction does not change it.
        self._waiting: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks or self._ended)

    @property
    def ended(self) -> Sequence[str]:
        """The ended tasks whose removal could not be stored."""
        return tuple(self._ended)

    def find(self, task_id: str) -> LockTask | None:
        """Return a task if it is active."""
        return self._tasks.get(task_id)

    def require(self, task_id: str) -> LockTask:
        """Return an active task.

        Raises:
            LockRevoked: The task is not active.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise LockRevoked(
                f"task {task_id!r} is not active in {self._datasource}: it has ended or was never"
                " added; abandon it"
            )
        return task

    def is_new(self, task: LockTask) -> bool:
        """Return whether a task must be added; false if it is active already.

        Raises:
            InvalidRequest: The task belongs to another datasource.
            Conflict: Another task has, or had, its id.
        """
        if task.datasource != self._datasource:
            raise InvalidRequest(
                f"task {task.id!r} writes datasource {task.datasource!r}, not {self._datasource!r}"
            )
        if task.id in self._ended:
            raise Conflict(f"task {task.id!r} has ended: use another id")
        known = self._tasks.get(task.id)
        if known is not None and known != task:
            raise Conflict(f"a different task {task.id!r} is active: use another id")
        return known is None

    def enter(self, task: LockTask) -> None:
        """Add an active task."""
        self._tasks[task.id] = task
        if task.allocator_id:
            self._allocators.setdefault(task.allocator_id, {})[task.id] = None

    def leave(self, task_id: str) -> str | None:
        """Remove an active task; return its allocator id if no other active task shares it."""
        task = self._tasks.pop(task_id)
        self._waiting.discard(task_id)
        sharers = self._allocators.get(task.allocator_id)
        if sharers is None:
            return None
        del sharers[task_id]
        if sharers:
            return None
        del self._allocators[task.allocator_id]
        return task.allocator_id

    def keep_ended(self, removal: TaskRemoval) -> None:
        """Record the end of a task whose removal could not be stored."""
        self._ended[removal.task_id] = removal

    def take_ended(self, task_id: str) -> TaskRemoval | None:
        """Delete such a record and return it; None if there is none."""
        return self._ended.pop(task_id, None)

    def place(self, task_id: str, *, waits: bool) -> None:
        """Set whether an active task waits for a worker; other tasks are ignored."""
        if not waits:
            self._waiting.discard(task_id)
        elif task_id in self._tasks:
            self._waiting.add(task_id)

    def waits(self, task_id: str) -> bool:
        """Return whether no worker has a task."""
        return task_id in self._waiting

    def all_wait(self, task_ids: Iterable[str]) -> bool:
        """Return whether no worker has any of these tasks."""
        return self._waiting.issuperset(task_ids)

    def check(self, request: LockRequest, first: LockRequest) -> None:
        """Refuse a request that does not match its task.

        Args:
            request: One of the requests of a call.
            first: The first request of the call.

        Raises:
            LockRevoked: The task is not active.
            InvalidRequest: The request contradicts the task, or the task may not have the lock.
        """
        task = self.require(request.task_id)
        if request.task_id != first.task_id:
            raise InvalidRequest(
                f"one call requests locks of tasks {first.task_id!r} and {request.task_id!r}:"
                " request each task's locks in a call of its own"
            )
        given = (request.group, request.datasource, request.priority)
        if given != (task.group, self._datasource, task.priority):
            raise InvalidRequest(
                f"task {task.id!r} has group {task.group!r}, datasource {self._datasource!r} and"
                f" priority {task.priority}, but its request has {given}: use the task's values"
            )
        if request.type is LockType.KILL and not task.embedded_killer:
            raise InvalidRequest(
                f"task {task.id!r} requests a KILL lock, which is only for the overlord's own"
                " deletion of unused segments: use EXCLUSIVE"
            )
        if request.granularity is LockGranularity.SEGMENT and (
            request.partition_number is None or request.version is None
        ):
            raise InvalidRequest(
                f"task {task.id!r} requests a lock on a segment without its version and partition"
                " number: allocate the segment first"
            )
