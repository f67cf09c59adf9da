"""Refusals of the overlord that its API tells apart."""

from __future__ import annotations

from penstock.core.errors import Dependency, Full, Unavailable


class QueueFull(Full):
    """The task queue holds as many tasks as it may.

    Args:
        tasks: How many it holds.
        tasks_max: How many it may hold.
    """

    def __init__(self, tasks: int, tasks_max: int) -> None:
        super().__init__(
            f"the task queue is full: it holds {tasks} active tasks and may hold {tasks_max};"
            " wait for some to end, or set a larger --task-queue-size"
        )
        self.tasks = tasks
        self.tasks_max = tasks_max


class NotLeading(Unavailable):
    """This overlord does not lead, or has only begun to: ask the one that leads."""

    dependency = Dependency.OVERLORD
