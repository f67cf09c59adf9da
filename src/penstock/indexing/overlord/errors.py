"""Errors of the overlord that its API distinguishes."""

from __future__ import annotations

from penstock.core.errors import Dependency, Full, Unavailable


class QueueFull(Full):
    """The task queue is full.

    Args:
        tasks: Number of tasks in the queue.
        tasks_max: Maximum number of tasks.
    """

    def __init__(self, tasks: int, tasks_max: int) -> None:
        super().__init__(
            f"the task queue is full: it holds {tasks} active tasks, the maximum is {tasks_max};"
            " wait for some to end, or set a larger --task-queue-size"
        )
        self.tasks = tasks
        self.tasks_max = tasks_max


class NotLeading(Unavailable):
    """This overlord does not lead, or is still starting to lead: ask the leader."""

    dependency = Dependency.OVERLORD
