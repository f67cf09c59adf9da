"""Metrics of tasks: how long they wait and run, and how they end.

State of the overlord's mailbox. Times are measured in this term only: for a task that a former
overlord handed over, only the end is counted, because its start is unknown.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.indexing.overlord.task_index import RunnerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.indexing.events import Events
    from penstock.indexing.overlord.entries.entry import QueuedTask
    from penstock.indexing.ports import TaskState

PERIOD_MS: Final = 60_000
"""Interval at which counts are reported."""


class TaskTimes:
    """Reports times and counts of tasks. On the overlord's mailbox.

    Args:
        events: Receives the metrics.
        clock: The clock.
    """

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._ends: Counter[tuple[TaskState, str]] = Counter()

    def handed(self, entry: QueuedTask) -> None:
        """A task has its locks; reported the first time only."""
        if entry.handed_ms is None:
            entry.handed_ms = self._clock.now_ms()
            self._tell("task/waiting/time", entry.handed_ms - entry.created_ms, entry)

    def runs(self, entry: QueuedTask) -> None:
        """A task runs at a worker; reported the first time only."""
        if entry.handed_ms is not None and entry.running_ms is None:
            entry.running_ms = self._clock.now_ms()
            self._tell("task/pending/time", entry.running_ms - entry.handed_ms, entry)

    def ended(self, entry: QueuedTask, state: TaskState) -> None:
        """A task's end has been stored."""
        self._ends[state, entry.task.datasource] += 1
        if entry.running_ms is not None:
            took_ms = self._clock.now_ms() - entry.running_ms
            self._tell("task/run/time", took_ms, entry, taskStatus=str(state))

    def count(self, active: Mapping[RunnerState, int]) -> None:
        """Report the number of tasks in each state, and the ends since the last report."""
        for state in (RunnerState.WAITING, RunnerState.PENDING, RunnerState.RUNNING):
            self._events.measured(f"task/{state.lower()}/count", active.get(state, 0))
        for (end, datasource), number in self._ends.items():
            self._events.measured(f"task/{end.lower()}/count", number, dataSource=datasource)
        self._ends.clear()

    def _tell(self, metric: str, took_ms: int, entry: QueuedTask, **more: str) -> None:
        task = entry.task
        self._events.measured(
            metric,
            max(took_ms, 0),  # The wall clock may be set back.
            taskId=task.id,
            taskType=task.type,
            groupId=task.group_name,
            dataSource=task.datasource,
            **more,
        )
