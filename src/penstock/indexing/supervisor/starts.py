"""Starts the missing tasks of a supervisor: groups, replicas, and tasks for gaps.

On the overlord's mailbox. Determines where new tasks start, and handles messages that must be read
and are missing; with `skipSequenceNumberAvailabilityCheck` the tasks wait for them. Does not
determine when tasks end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.adoption import join
from penstock.indexing.supervisor.groups import GroupPhase, find_gaps, plan_starts
from penstock.indexing.supervisor.ports import ActiveStream
from penstock.indexing.supervisor.time_windows import PastTasks, limits_of
from penstock.indexing.task_spec import make_replica, make_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.read_plan import Available
    from penstock.indexing.supervisor.groups import StartPlan, TaskGroup
    from penstock.indexing.supervisor.rollover import RollOver
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue
    from penstock.indexing.task_spec import StreamTaskSpec

_log = logging.getLogger(__name__)


class Starts:
    """Starts tasks of one supervisor. After an error of its methods, the next round retries.

    Args:
        state: The supervisor.
        dialogue: Its communication with its tasks.
        roll_over: Determines which groups end soon anyway.
    """

    def __init__(self, state: SupervisorState, dialogue: Dialogue, roll_over: RollOver) -> None:
        self._state = state
        self._dialogue = dialogue
        self._roll_over = roll_over

    def retract(self) -> None:
        """End groups without a worker that would start after a gap.

        They have read nothing, so one task that starts before the gap does the work of both.
        Otherwise they could take the slot that the gap's task needs, and wait for its publish.
        """
        state = self._state
        for gap in find_gaps(state.committed.offsets, state.groups.values()):
            if not gap.follower.is_repair and gap.follower.is_unassigned:
                reason = "a task before it was lost: another begins earlier"
                state.end_group(gap.follower, reason)

    def leave_stream(self) -> None:
        """Switch to the new stream of the name, once the last task of the deleted one has ended.

        Until then the tasks publish, because their rows exist nowhere else.
        """
        state = self._state
        topic = state.spec.io.stream
        for gap in find_gaps(state.committed.offsets, state.groups.values()):
            # The gap cannot be read again, and publishes after it would wait for it.
            story = f"{gap.plan.start} to {gap.plan.end} are lost with it, as their task was lost"
            state.committed.move(gap.plan.end or {})
            state.note(NotFound(f"topic {topic} was deleted: {story}"))
        for group in list(state.groups.values()):
            if group.is_unassigned:
                state.end_group(group, "its topic was deleted before it began")
        if not state.groups:
            state.note(NotFound(f"topic {topic}: {state.committed.begin_successor()}"))

    def start_missing(self, available: Mapping[int, Available]) -> None:
        """Start missing tasks.

        Raises:
            NotFound: Messages that must be read are missing; tasks that could start were started.
        """
        state = self._state
        plans = [g.plan for g in find_gaps(state.committed.offsets, state.groups.values())]
        if available and state.reads and not state.idle:
            plans += self._new_groups(available)
        waits = state.spec.tuning.waits_for_messages
        lacking = [] if waits else [plan for plan in plans if plan.gone(available)]
        past = PastTasks(state)
        for plan in plans:
            if plan not in lacking:
                self._add_group(plan, past, available)
        if state.reads and not state.idle:
            self._add_replicas()
        self._go_on_behind(lacking, available)

    def _new_groups(self, available: Mapping[int, Available]) -> list[StartPlan]:
        state = self._state
        io, groups = state.spec.io, state.groups.values()
        bounds = state.bounds
        if bounds is None:
            state.committed.begin(earliest=io.use_earliest_offset)
            return plan_starts(available, state.committed.offsets, groups, io.task_count)
        state.committed.begin_at({p: start for p, (start, _) in bounds.items() if p in available})
        wanted = [p for p in bounds if p in available]
        plans = plan_starts(wanted, state.committed.offsets, groups, io.task_count)
        # The end of a task must exist already.
        ends = {p: min(bounds[p][1], available[p].latest) for p in wanted}
        return [piece for plan in plans if (piece := plan.up_to(ends)) is not None]

    def _add_group(
        self, plan: StartPlan, past: PastTasks, available: Mapping[int, Available]
    ) -> None:
        """Start the first task of a group; raises what the metadata store raises."""
        state = self._state
        limits = limits_of(state, plan, past, {p: a.latest for p, a in available.items()})
        if limits.after_loss and plan.end is None and not state.stream.is_newer_than_losses:
            return  # The next poll shows how far the lost task may have read.
        task = make_task(
            state.spec,
            plan.group_id,
            plan.start,
            plan.end,
            topic_id=state.committed.topic_id,
            times=limits.times,
            retaken_until=limits.until,
            token=state.ports.new_token(),
        )
        if plan.end is not None:
            _log.info("supervisor %s reads %s to %s again", state.id, plan.start, plan.end)
        self._add(task)

    def _add_replicas(self) -> None:
        """Start missing replicas of each reading group, and end surplus ones."""
        state = self._state
        for group in list(state.groups.values()):
            # An adopted group must first report its checkpoints.
            known = group.phase is GroupPhase.READING or group.is_unassigned
            if group.is_pending or group.is_repair or not known or not self._is_needed(group):
                continue
            turnover = group.turnover(state.spec.io.server_priorities)
            for priority in turnover.missing:
                checkpoints = group.to_join(state.committed.offsets)
                token = state.ports.new_token()
                self._add(
                    make_replica(group.task, checkpoints, token=token, server_priority=priority)
                )
            for task_id in turnover.surplus:
                reason = "fewer replicas, or others, are wanted by now"
                state.end_task(task_id, reason, TaskState.SUCCESS)

    def _is_needed(self, group: TaskGroup) -> bool:
        return not (group.roll_asked or self._roll_over.is_stale(group))

    def _add(self, task: StreamTaskSpec) -> None:
        self._state.ports.queue.add(task)
        made = ActiveStream(task, None, None, self._state.ports.clock.now_ms())
        join(self._state, self._dialogue, made)

    def _go_on_behind(self, lacking: list[StartPlan], available: Mapping[int, Available]) -> None:
        """Skip missing messages if the spec allows it; raise an error for the others."""
        state = self._state
        sure = state.stream.sure(plan.key for plan in lacking)
        missing: list[str] = []
        for plan in lacking:
            if plan.key not in sure:
                continue  # The next polls will confirm or refute it.
            gone = plan.gone(available).values()
            wanted = None
            if state.spec.tuning.reset_offset_automatically:
                wanted = state.committed.skip(plan, available)
            if wanted is None:
                missing += gone
            else:
                story = f"{', '.join(gone)}: continuing at {wanted}, as the spec specifies"
                state.note(NotFound(story))
        if missing:
            raise NotFound(
                f"topic {state.spec.io.stream}: {', '.join(missing)}. Was it emptied or recreated?"
                " Reset the supervisor's offsets, or set resetOffsetAutomatically"
            )
