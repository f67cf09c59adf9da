"""How a supervisor finds its tasks: those that others started, and those that wait for a worker.

On the overlord's mailbox. A task belongs to the task group with its base sequence name: so the next
leader puts replicas together again that an overlord before it started. What is agreed with them is
asked of the tasks themselves.
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
    """Find active tasks that are in no group, and see which have a worker."""
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
        # By the clock of a leader before this one, or before the clock was set back: it would read
        # on, and publish nothing, for as long as the clocks differ.
        group.since_ms = min(group.since_ms, now_ms)
        if group.is_unassigned:
            group.since_ms = now_ms
            dialogue.allow_more_time(group)


def join(state: SupervisorState, dialogue: Dialogue, found: ActiveStream) -> TaskGroup:
    """Put a task into its group, a new one if it is the first; return the group."""
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
    """End tasks without a worker whose group has its end: the others do the work already."""
    for group in list(state.groups.values()):
        if not group.is_pending or group.is_unassigned:
            continue
        for task_id, replica in tuple(group.replicas.items()):
            if not replica.has_worker:
                reason = "its replicas ended before it had a worker"
                state.end_task(task_id, reason, TaskState.SUCCESS)
