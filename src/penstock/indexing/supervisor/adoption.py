"""Finds the tasks of a supervisor: those that a former leader started, and those without a worker.

On the overlord's mailbox. A task belongs to the task group with its base sequence name, so a new
leader groups the replicas of a former one again. The tasks themselves report what was agreed with
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.groups import GroupPhase, TaskGroup

if TYPE_CHECKING:
    from penstock.indexing.supervisor.ports import ActiveStream
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue


def adopt(state: SupervisorState, dialogue: Dialogue) -> None:
    """Add active tasks without a group to their groups, and note which have a worker."""
    now_ms, now_s = state.ports.clock.now_ms(), state.ports.clock.monotonic_s()
    active = state.ports.queue.index.streams(state.id)
    for task_id, found in active.items():
        group = state.groups.get(found.task.base_sequence_name)
        if group is None or task_id not in group.replicas:
            group = join(state, dialogue, found)
            dialogue.ask(group)
        replica = group.replicas[task_id]
        replica.has_worker, replica.waits = found.worker is not None, found.waits
        if not replica.has_worker:
            replica.since_ms, replica.heard_s = now_ms, now_s
    for group in state.groups.values():
        # The group may have been created by a former leader's clock, or before the clock was set
        # back. Otherwise it would read, and publish nothing, for as long as the clocks differ.
        group.since_ms = min(group.since_ms, now_ms)
        if group.is_unassigned:
            group.since_ms = now_ms
            dialogue.allow_more_time(group)


def join(state: SupervisorState, dialogue: Dialogue, found: ActiveStream) -> TaskGroup:
    """Add a task to its group, creating the group if necessary; return the group."""
    task, now_s = found.task, state.ports.clock.monotonic_s()
    group = state.groups.get(task.base_sequence_name)
    if group is None:
        group = TaskGroup(task, GroupPhase.UNKNOWN, found.created_ms)
        state.groups[group.name] = group
    replica = group.add(task, now_s, found.created_ms)
    replica.has_worker = found.worker is not None
    group.since_ms = min(group.since_ms, found.created_ms)
    if task.end_offsets is not None:
        dialogue.agree(group, task.end_offsets)
    return group


def end_late_comers(state: SupervisorState) -> None:
    """End tasks without a worker if their group has its end: the other replicas do the work."""
    for group in list(state.groups.values()):
        if not group.is_pending or group.is_unassigned:
            continue
        for task_id, replica in tuple(group.replicas.items()):
            if not replica.has_worker:
                reason = "its replicas ended before it had a worker"
                state.end_task(task_id, reason, TaskState.SUCCESS)
