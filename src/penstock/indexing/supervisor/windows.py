"""Which rows are late or early of the tasks that a supervisor starts.

On the overlord's mailbox, over the metadata store. Normally that follows from the moment. A task in
place of one that was lost takes what that one took, though it begins later: the rows are the same,
and those that were in time still are. What the lost task took stands in its row, where the next
leader finds it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import offsets_from_json
from penstock.indexing.taskspec import (
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
    from penstock.indexing.supervisor.groups import StartPlan
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.storage.metadata import JsonObject, TaskRow, TaskSummary

# The last task of each stream partition is among the last few; behind so many nobody looks.
_LOOKED_THROUGH_MAX: Final = 500
_READ_AT_ONCE: Final = 100


class PastTasks:
    """The latest tasks of a supervisor, of which as many are read as somebody asks for, once.

    Made for the starts of one look: a hundred groups that start together read them together.

    Args:
        state: The supervisor.
    """

    def __init__(self, state: SupervisorState) -> None:
        self._state = state
        self._listed: list[TaskSummary] | None = None
        self._read: list[_Past] = []
        self._unread_from = 0

    def newest_first(self) -> Iterator[_Past]:
        """Yield what each was to read. Raises Unavailable if the store does not answer."""
        for at in count():
            while at == len(self._read):
                if not self._read_more():
                    return
            yield self._read[at]

    def is_lost(self, name: str) -> bool:
        """Whether all replicas of a base sequence name have failed."""
        # They have the name in common, with a token behind it.
        mine = (one for one in self._all() if one.id.startswith(name))
        return all(one.state == TaskState.FAILED for one in mine)

    def _all(self) -> list[TaskSummary]:
        if self._listed is None:
            group = f"{TASK_TYPE}_{self._state.id}"
            streams = TaskFilter(
                datasource=self._state.spec.data_schema.data_source, type=TASK_TYPE
            )
            tasks = self._state.ports.metadata.tasks
            newest = tasks.summaries(streams, limit=_LOOKED_THROUGH_MAX)
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
    """A task, as far as it is needed to know whose work is to be done again."""

    payload: JsonObject
    name: str
    start: Offsets
    end: Offsets | None

    def covers(self, partition: int, offset: int) -> bool:
        start = self.start.get(partition)
        if start is None or start > offset:
            return False
        return self.end is None or self.end.get(partition, 0) > offset


def times_of(state: SupervisorState, plan: StartPlan, past: PastTasks) -> MessageTimes:
    """Return which rows are late or early of the task that a plan starts.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    times = message_times(state.spec.io, state.ports.clock.now_ms())
    if times == MessageTimes():
        return times
    for payload in _lost(plan, past):
        try:
            task = parse_task_spec(payload)
        except InvalidRequest:
            continue  # Of another version of Penstock: what it took is not known.
        if is_made_by(state.spec, task):  # Else the limits were others.
            times = times.or_wider(task.times)
    return times


def _lost(plan: StartPlan, past: PastTasks) -> list[JsonObject]:
    """Return the tasks that were to publish what is to be read, where all replicas failed.

    For each stream partition that is the newest one that began at the plan's start or before it.
    """
    wanted = set(plan.start)
    found: dict[str, JsonObject] = {}
    for task in past.newest_first():
        covered = {p for p in wanted if task.covers(p, plan.start[p])}
        if covered:
            found[task.name] = task.payload
            wanted -= covered
        if not wanted:
            break
    return [payload for name, payload in found.items() if past.is_lost(name)]


def _past(row: TaskRow) -> _Past | None:
    name, end = row.payload.get("baseSequenceName"), row.payload.get("endOffsets")
    try:
        start = offsets_from_json(row.payload.get("startOffsets"))
        ends = None if end is None else offsets_from_json(end)
    except InvalidRequest:
        return None  # Of another version of Penstock.
    return _Past(row.payload, name, start, ends) if isinstance(name, str) else None
