"""Which rows are late or early of the tasks that a supervisor starts.

On the overlord's mailbox, over the metadata store. Normally that follows from the moment. A task in
place of one that was lost takes what that one took, though it begins later: the rows are the same,
and those that were in time still are. What the lost task took stands in its row, where the next
leader finds it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import TaskState
from penstock.indexing.taskspec import (
    TASK_TYPE,
    MessageTimes,
    StreamTaskSpec,
    is_made_by,
    message_times,
    parse_task_spec,
)
from penstock.storage.metadata import TaskFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.indexing.supervisor.groups import StartPlan
    from penstock.indexing.supervisor.state import SupervisorState

# The last task of each stream partition is among the last few; behind so many nobody looks.
_LOOKED_THROUGH_MAX: Final = 500


def times_of(state: SupervisorState, plan: StartPlan) -> MessageTimes:
    """Return which rows are late or early of the task that a plan starts.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    times = message_times(state.spec.io, state.ports.clock.now_ms())
    if times == MessageTimes():
        return times
    for task in _lost(state, plan):
        if is_made_by(state.spec, task):  # Else the limits were others.
            times = times.or_wider(task.times)
    return times


def _lost(state: SupervisorState, plan: StartPlan) -> Iterator[StreamTaskSpec]:
    """Yield the tasks that were to publish what is to be read, where all replicas failed.

    For each stream partition that is the newest one that began at the plan's start or before it.
    """
    tasks = state.ports.metadata.tasks
    streams = TaskFilter(datasource=state.spec.data_schema.data_source, type=TASK_TYPE)
    newest = tasks.summaries(streams, limit=_LOOKED_THROUGH_MAX)
    mine = [one for one in newest if one.group_id == f"{TASK_TYPE}_{state.id}"]
    wanted, found = set(plan.start), {}
    for summary in mine:
        row = tasks.get(summary.id) if wanted else None
        task = None if row is None else _read(row.payload)
        covered = {p for p in wanted if task is not None and _covers(task, plan, p)}
        if task is not None and covered:
            found[task.base_sequence_name] = task
            wanted -= covered
    for name, task in found.items():
        # Replicas have the name in common, with a token behind it.
        if all(one.state == TaskState.FAILED for one in mine if one.id.startswith(name)):
            yield task


def _read(payload: Mapping[str, object]) -> StreamTaskSpec | None:
    try:
        return parse_task_spec(payload)
    except InvalidRequest:
        return None  # Of another version of Penstock: what it took is not known.


def _covers(task: StreamTaskSpec, plan: StartPlan, partition: int) -> bool:
    start, wanted = task.start_offsets.get(partition), plan.start[partition]
    if start is None or start > wanted:
        return False
    return task.end_offsets is None or task.end_offsets[partition] > wanted
