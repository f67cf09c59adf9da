"""What a worker has: the tasks that run, those that ended, and whether it takes more.

Belongs to the worker's mailbox thread. Owns what overlords are told; it begins and ends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, counted
from penstock.indexing.ports import WorkerReport

if TYPE_CHECKING:
    from penstock.indexing.ports import WorkerTask
    from penstock.indexing.worker.ended import EndedTasks
    from penstock.indexing.worker.options import WorkerOptions
    from penstock.indexing.worker.running import RunningTask


class Holdings:
    """The holdings.

    Attributes:
        running: The tasks that run, by id.
        enabled: Whether new tasks are taken.

    Args:
        options: Of how many slots, and what else is told of the worker.
        ended: The tasks that ended.
    """

    def __init__(self, options: WorkerOptions, ended: EndedTasks) -> None:
        self.running: dict[str, RunningTask] = {}
        self.enabled = True
        self._options = options
        self._ended = ended

    def everything(self) -> WorkerReport:
        """Return all that the worker has."""
        tasks = [running.told() for running in self.running.values()]
        tasks += self._ended.all_told()
        options = self._options
        return WorkerReport(
            options.capacity, tuple(tasks), self.enabled, options.category, options.version
        )

    def task(self, task_id: str) -> WorkerTask | None:
        """Return how a task stands; None: it is not there."""
        running = self.running.get(task_id)
        return self._ended.told(task_id) if running is None else running.told()

    def require_room(self) -> None:
        """Return if a new task can be taken.

        Raises:
            Conflict: No slot is free, or the worker is disabled.
        """
        if not self.enabled:
            raise Conflict("the worker is disabled: enable it, or give the task to another")
        if len(self.running) >= self._options.capacity:
            raise Conflict(
                f"the worker has {counted(self._options.capacity, 'slot')} and as many tasks: raise"
                " its capacity, or wait for a task to end"
            )
