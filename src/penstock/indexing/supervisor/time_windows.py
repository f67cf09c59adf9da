"""Limits for late and early rows of the tasks that a supervisor starts.

On the overlord's mailbox, with the metadata store. Normally the limits follow from the current
time. A replacement of a lost task reads the same rows later, and must accept the rows that the lost
task accepted, so it takes over the limits of the lost task. These are in the stored row of that
task, where the next leader finds them, too. How far the lost task had read is unknown, but not
beyond the end of the stream at the time when the loss was detected. Up to that end, the replacement
and its successors apply the limits of the lost task.

Invariant: a row that a lost task had accepted is accepted by the task that reads it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import offsets_from_json
from penstock.indexing.task_spec import (
    TASK_TYPE,
    MessageTimes,
    is_made_by,
    message_times,
    parse_task_spec,
)
from penstock.storage.metadata import TaskFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.task_groups import StartPlan
    from penstock.storage.metadata import JsonObject, TaskRow, TaskSummary

# The last task of each stream partition is among the most recent ones; older ones are not searched.
_SUMMARIES_MAX: Final = 500
_READ_AT_ONCE: Final = 100


class PastTasks:
    """The latest tasks of a supervisor, read lazily and once.

    Created for the starts of one round: a hundred groups that start together share the reads.

    Args:
        state: The supervisor.
    """

    def __init__(self, state: SupervisorState) -> None:
        self._state = state
        self._listed: list[TaskSummary] | None = None
        self._read: list[_Past] = []
        self._unread_from = 0

    def newest_first(self) -> Iterator[_Past]:
        """Yield the tasks, newest first. Raises Unavailable if the store does not answer."""
        for at in count():
            while at == len(self._read):
                if not self._read_more():
                    return
            yield self._read[at]

    def is_lost(self, name: str) -> bool:
        """Return whether all replicas with a base sequence name have failed."""
        # Their ids are that name and a token.
        mine = (one for one in self._all() if one.id.startswith(name))
        return all(one.state == TaskState.FAILED for one in mine)

    def _all(self) -> list[TaskSummary]:
        if self._listed is None:
            group = f"{TASK_TYPE}_{self._state.id}"
            streams = TaskFilter(datasource=self._state.spec.data_schema.datasource, type=TASK_TYPE)
            tasks = self._state.ports.metadata.tasks
            newest = tasks.summaries(streams, limit=_SUMMARIES_MAX)
            self._listed = [one for one in newest if one.group_id == group]
        return self._listed

    def _read_more(self) -> bool:
        ids = [one.id for one in self._all()[self._unread_from :][:_READ_AT_ONCE]]
        rows = {row.id: row for row in self._state.ports.metadata.tasks.rows_of(ids)}
        found = (_past(rows[one]) for one in ids if one in rows)
        self._read += [past for past in found if past is not None]
        self._unread_from += len(ids)
        return bool(ids)


@dataclass(frozen=True, slots=True)
class _Past:
    """The part of a past task that determines whose work must be repeated."""

    payload: JsonObject
    name: str
    start: Offsets
    end: Offsets | None

    def covers(self, partition: int, offset: int) -> bool:
        start = self.start.get(partition)
        if start is None or start > offset:
            return False
        return self.end is None or self.end.get(partition, 0) > offset


@dataclass(frozen=True, slots=True)
class RowTimeLimits:
    """Limits for late and early rows of a task, and up to which offsets lost tasks used them.

    If the plan has no end, `until` depends on the last poll of the stream: for a task `after_loss`,
    the poll must have started after the loss.
    """

    times: MessageTimes
    until: Offsets
    after_loss: bool = False


def limits_of(
    state: SupervisorState, plan: StartPlan, past: PastTasks, latest: Offsets
) -> RowTimeLimits:
    """Return the limits for late and early rows of the task that a plan starts.

    Args:
        state: The supervisor.
        plan: The offsets that the task will read.
        past: The supervisor's latest tasks.
        latest: The current ends of the stream partitions.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    times = message_times(state.spec.io, state.ports.clock.now_ms())
    if times == MessageTimes():
        return RowTimeLimits(times, {})
    until: dict[int, int] = {}
    after_loss = False
    ends = {**latest, **(plan.end or {})}
    for before, partitions in _before(plan, past):
        try:
            task = parse_task_spec(before.payload)
        except InvalidRequest:
            continue  # From another version of Penstock: its limits are unknown.
        if not is_made_by(state.spec, task):
            continue  # Its spec had other limits.
        lost = past.is_lost(before.name)
        after_loss |= lost
        for p in partitions:
            # A lost task may have read everything up to the end; another task has recorded how far
            # its lost predecessors may have read.
            reached = ends.get(p, 0) if lost else task.retaken_until.get(p, 0)
            if reached > plan.start[p]:
                until[p] = max(reached, until.get(p, 0))
            if lost or reached > plan.start[p]:
                times = times.or_wider(task.times)
    return RowTimeLimits(times, until, after_loss)


def _before(plan: StartPlan, past: PastTasks) -> Iterator[tuple[_Past, set[int]]]:
    """Yield the tasks that may have read the planned offsets, each with its stream partitions.

    For each stream partition these are the newest task that started at or before the plan's start,
    which took over from earlier ones, and later lost ones that started after it.
    """
    ends = plan.end or {}
    # From these offsets on, a newer task that was not lost has taken over from all earlier ones.
    taken_over = {p: ends.get(p) for p in plan.start}
    for task in past.newest_first():
        covered = {p for p in taken_over if task.covers(p, plan.start[p])}
        behind = {
            p
            for p, bound in taken_over.items()
            if p not in covered
            and (start := task.start.get(p)) is not None
            and start > plan.start[p]
            and (bound is None or start < bound)
        }
        if behind and not past.is_lost(task.name):
            taken_over |= {p: task.start[p] for p in behind}
            behind = set()
        if covered or behind:
            yield task, covered | behind
        for p in covered:
            del taken_over[p]
        if not taken_over:
            return


def _past(row: TaskRow) -> _Past | None:
    name, end = row.payload.get("baseSequenceName"), row.payload.get("endOffsets")
    try:
        start = offsets_from_json(row.payload.get("startOffsets"))
        ends = None if end is None else offsets_from_json(end)
    except InvalidRequest:
        return None  # From another version of Penstock.
    return _Past(row.payload, name, start, ends) if isinstance(name, str) else None
