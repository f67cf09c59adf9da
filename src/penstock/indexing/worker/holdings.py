"""The state of a worker: running tasks, ended tasks, and whether it accepts new ones.

Belongs to the worker's mailbox thread. Owns the reports to overlords; starts and ends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, counted
from penstock.indexing.ports import WorkerReport

if TYPE_CHECKING:
    from penstock.indexing.ports import WorkerTask
    from penstock.indexing.worker.ended_tasks import EndedTasks
    from penstock.indexing.worker.options import WorkerOptions
    from penstock.indexing.worker.running import RunningTask


class Holdings:
    """The state of a worker.

    Attributes:
        running: The running tasks, by id.
        enabled: Whether new tasks are accepted.

    Args:
        options: The number of slots, and other reported properties.
        ended: The ended tasks.
    """

    def __init__(self, options: WorkerOptions, ended: EndedTasks) -> None:
        self.running: dict[str, RunningTask] = {}
        self.enabled = True
        self._options = options
        self._ended = ended

    def everything(self) -> WorkerReport:
        """Return the full state of the worker."""
        tasks = [running.told() for running in self.running.values()]
        tasks += self._ended.all_told()
        options = self._options
        return WorkerReport(
            options.capacity, tuple(tasks), self.enabled, options.category, options.version
        )

    def task(self, task_id: str) -> WorkerTask | None:
        """Return the state of a task; None if it does not exist."""
        running = self.running.get(task_id)
        return self._ended.told(task_id) if running is None else running.told()

    def require_room(self) -> None:
        """Check that a new task can be accepted.

        Raises:
            Conflict: No slot is free, or the worker is disabled.
        """
        if not self.enabled:
            raise Conflict("the worker is disabled: enable it, or assign the task to another")
        if len(self.running) >= self._options.capacity:
            raise Conflict(
                f"all of the worker's {counted(self._options.capacity, 'slot')} are in use: raise"
                " its capacity, or wait for a task to end"
            )
