"""The entries of the task queue by id, and the index that publishes them to other threads.

State of the overlord's mailbox, except for `index`. The progress of an entry is set by others.
Invariant: a task is in the table exactly as long as it is in the index.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from penstock.indexing.overlord.entries.entry import QueuedTask, Stage
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.task_index import ActiveTask, RunnerState, TaskIndex

if TYPE_CHECKING:
    from penstock.indexing.overlord.runner.worker_table import RunnerTask
    from penstock.indexing.task_spec import TaskSpec


class QueuedTasks:
    """The entries by id. On the overlord's mailbox.

    Attributes:
        index: Thread-safe view of the entries.
    """

    def __init__(self) -> None:
        self.index: Final = TaskIndex()
        self._entries: dict[str, QueuedTask] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._entries

    def next_number(self) -> int:
        """Return the next number: entries created from now on have larger ones."""
        return next(self._numbers)

    def make(self, task: TaskSpec, created_ms: int) -> QueuedTask:
        """Return an entry for a task; `put` adds it to the table."""
        return QueuedTask(task, created_ms, self.next_number())

    def get(self, task_id: str) -> QueuedTask | None:
        """Return the entry of a task, None if it is not active."""
        return self._entries.get(task_id)

    def unended(self, task_id: str) -> QueuedTask | None:
        """Return the entry of a task, None if the task is not active or its end was reported."""
        entry = self._entries.get(task_id)
        return None if entry is None or entry.end is not None else entry

    def all(self) -> list[QueuedTask]:
        """Return a copy of the entries, oldest first."""
        return list(self._entries.values())

    def worker_of(self, task_id: str) -> str | None:
        """Return the worker of a task, from the index."""
        active = self.index.get(task_id)
        return None if active is None else active.worker

    def put(self, entry: QueuedTask, item: RunnerTask | None) -> None:
        """Add or update an entry; its progress is the runner's item, if any, else its stage."""
        self._entries[entry.task.id] = entry
        self.index.put(_shown(entry, item))

    def remove(self, task_id: str) -> None:
        """Remove an entry; unknown ids are ignored."""
        self._entries.pop(task_id, None)
        self.index.remove(task_id)


def _shown(entry: QueuedTask, item: RunnerTask | None) -> ActiveTask:
    if item is None:
        handed = entry.stage is Stage.HANDED
        state = RunnerState.PENDING if handed else RunnerState.WAITING
        return ActiveTask(entry.task, entry.created_ms, state)
    state = RunnerState.RUNNING if item.phase is Phase.RUNNING else RunnerState.PENDING
    place = (item.worker, item.location, item.taken, item.confirmed, item.waits)
    return ActiveTask(entry.task, entry.created_ms, state, *place)
