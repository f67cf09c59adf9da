"""Which rows are late or early of the tasks that a supervisor starts.

On the overlord's mailbox, over the metadata store. Normally that follows from the moment. A task in
place of one that was lost takes what that one took, though it begins later: the rows are the same,
and those that were in time still are. What the lost task took stands in its row, where the next
leader finds it too. How far it had read does not, but it was not beyond the end that the stream has
when its loss is found: up to there the task in its place, and whoever follows that one, takes what
it took.

Invariant: a row that a lost task had taken is taken by the task that reads it again.
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Which rows are late or early of a task, and up to where lost ones may have taken rows so.

    Where the plan has no end, `until` is as good as the look at the stream behind it: for a task
    `after_loss`, that must have begun after the loss.
    """

    times: MessageTimes
    until: Offsets
    after_loss: bool = False


def limits_of(state: SupervisorState, plan: StartPlan, past: PastTasks, latest: Offsets) -> Limits:
    """Return which rows are late or early of the task that a plan starts.

    Args:
        state: The supervisor.
        plan: What the task is to read.
        past: The supervisor's latest tasks.
        latest: Where stream partitions end now.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    times = message_times(state.spec.io, state.ports.clock.now_ms())
    if times == MessageTimes():
        return Limits(times, {})
    until: dict[int, int] = {}
    after_loss = False
    ends = {**latest, **(plan.end or {})}
    for before, partitions in _before(plan, past):
        try:
            task = parse_task_spec(before.payload)
        except InvalidRequest:
            continue  # Of another version of Penstock: what it took is not known.
        if not is_made_by(state.spec, task):
            continue  # The limits were others.
        lost = past.is_lost(before.name)
        after_loss |= lost
        for p in partitions:
            # One that was lost may have read all that is there; one that was not knows how far
            # those before it may have.
            reached = ends.get(p, 0) if lost else task.retaken_until.get(p, 0)
            if reached > plan.start[p]:
                until[p] = max(reached, until.get(p, 0))
            if lost or reached > plan.start[p]:
                times = times.or_wider(task.times)
    return Limits(times, until, after_loss)


def _before(plan: StartPlan, past: PastTasks) -> Iterator[tuple[_Past, set[int]]]:
    """Yield the tasks that may have taken what is to be read, each with its stream partitions.

    For each stream partition that is the newest task that began at the plan's start or before it,
    which took over from those before, and the lost ones since that began behind it.
    """
    ends = plan.end or {}
    # From here on a newer task that was not lost has taken over from all before it.
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
        return None  # Of another version of Penstock.
    return _Past(row.payload, name, start, ends) if isinstance(name, str) else None
