"""Explains why an active task waits: for locks, for a slot, or for its worker's report.

On the overlord's mailbox; only reads. Selects, by the task's progress, whether the lock acquirer or
the runner explains the wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.indexing.overlord.runner.explaining import told
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.waiting.waits import Wait

if TYPE_CHECKING:
    from penstock.indexing.overlord.runner.runner import Runner
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.indexing.overlord.waiting.seeking import LockSeekers


def waits_of(task_id: str, index: TaskIndex, locks: LockSeekers, runner: Runner) -> list[Wait]:
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
        return [Wait("worker", f"the worker {active.worker} to report that it runs")]
    slots = tuple(runner.why(task_id))
    text = told(slots) or "to be handed over in a moment"
    return [Wait("slots", f"a worker with a free slot: {text}", slots=slots)]
