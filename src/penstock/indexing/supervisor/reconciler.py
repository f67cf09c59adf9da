"""Reconciler of a supervisor: starts, adopts and ends tasks until they match the spec.

Owns the order of a round and its parts, on the overlord's mailbox. Rounds do not nest: the ends of
tasks that a round ends are reported by later mail.

- Adoption finds active tasks that are in no group and tasks that wait for a worker. A task
  belongs to the task group with its base sequence name, so a new leader restores the replicas
  that an earlier overlord started. Tasks without a worker are ended if the end of their group
  is already agreed.
- Roll-over chooses which groups end, the oldest first: they have read long enough, a user
  requests it, or they do not respond. It also decides which tasks count as failed.
- Starts create missing groups and replicas, choose their start offsets, and handle messages
  that must be read but no longer exist; with `skipSequenceNumberAvailabilityCheck` the tasks
  wait for those. The next round retries all failures.

Does not own how an end is agreed with the tasks (`task_protocol`).
"""

from __future__ import annotations

import logging
import math
import operator
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, NotFound, PenstockError, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.supervisor_ports import ActiveStream
from penstock.indexing.supervisor.task_groups import (
    GroupEvent,
    GroupState,
    TaskGroup,
    find_gaps,
    partitions_of,
    plan_starts,
)
from penstock.indexing.supervisor.task_protocol import EventFacts
from penstock.indexing.supervisor.time_windows import PastTasks, limits_of
from penstock.indexing.task_spec import is_made_by, make_replica, make_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.read_plan import AvailableRange
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.task_groups import StartPlan
    from penstock.indexing.supervisor.task_protocol import TaskProtocol
    from penstock.indexing.task_spec import StreamTaskSpec


class RollOver:
    """Roll-over of one supervisor's groups.

    Args:
        state: The supervisor.
        protocol: Its communication with its tasks.
    """

    def __init__(self, state: SupervisorState, protocol: TaskProtocol) -> None:
        self._state = state
        self._protocol = protocol
        self._first_seen_s: dict[int, float] = {}
        # Whether each group, by name, differs from the result of `_expected_spec`. Cached, because
        # computing a name takes longer than the rest of a round without changes.
        self._expected_spec = state.spec
        self._other_spec: dict[str, bool] = {}

    def advance(self) -> None:
        """Agree on the ends of groups that must end, and align tasks with their replicas.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        self._note_partitions()
        at_once = not state.reads
        # Limit how many groups that have read long enough end at the same time.
        room = state.spec.io.stop_task_count or state.spec.io.task_count
        room -= sum(group.is_ending for group in state.groups.values())
        for group in sorted(state.groups.values(), key=operator.attrgetter("since_ms")):
            self._protocol.align_replicas(group)
            if at_once and group.is_unassigned:
                self._protocol.report(group, GroupEvent.NOT_NEEDED)
            if group.state is not GroupState.READING:
                continue
            if at_once or self._must_roll_over(group):
                self._protocol.roll(group)
            elif room > 0 and self._has_read_enough(group):
                self._protocol.roll(group)
                room -= 1

    def is_stale(self, group: TaskGroup) -> bool:
        """Return whether its work must end: the current spec requires other tasks or replicas.

        Either the current spec gives a task with the same offsets another name, or no replica with
        a worker has one of the server priorities that the spec requires.
        """
        spec = self._state.spec
        changes = group.replica_changes(spec.io.server_priorities)
        return self._has_other_spec(group) or group.is_at_end_with(changes)

    def _has_other_spec(self, group: TaskGroup) -> bool:
        spec = self._state.spec
        if spec is not self._expected_spec:
            self._expected_spec, self._other_spec = spec, {}
        found = self._other_spec.get(group.name)
        if found is None:
            there = self._state.groups
            self._other_spec = {
                name: one for name, one in self._other_spec.items() if name in there
            }
            found = self._other_spec[group.name] = not is_made_by(spec, group.task)
        return found

    def _must_roll_over(self, group: TaskGroup) -> bool:
        return group.roll_requested or self.is_stale(group) or self._is_misfit(group)

    def _has_read_enough(self, group: TaskGroup) -> bool:
        state = self._state
        return state.ports.clock.now_ms() - group.since_ms >= state.spec.io.task_duration

    def _is_misfit(self, group: TaskGroup) -> bool:
        """Return whether the stream partitions or the number of groups have changed.

        New stream partitions are collected for a while, because files appear one by one and each
        would end a group. Removed ones change nothing, because there is nothing to read.
        """
        state = self._state
        known = (state.stream.available or {}).keys() & state.committed.offsets.keys()
        if not known:
            return False
        group_id, task_count = group.group_id, state.spec.io.task_count
        fitting = set(partitions_of(group_id, task_count, known | group.partitions))
        if not group.partitions <= fitting:
            return True
        limit_s = state.spec.tuning.repartition_transition_duration / 1000
        now_s = state.ports.clock.monotonic_s()
        return any(now_s - self._since_s(p) >= limit_s for p in fitting - group.partitions)

    def _note_partitions(self) -> None:
        """Record when each stream partition appeared; those of the first poll may be old."""
        available = self._state.stream.available
        if available is None:
            return
        since_s = self._state.ports.clock.monotonic_s() if self._first_seen_s else -math.inf
        known = self._first_seen_s
        self._first_seen_s = {p: known.get(p, since_s) for p in available}

    def _since_s(self, partition: int) -> float:
        return self._first_seen_s.get(partition, -math.inf)

    def end_overdue(self) -> None:
        """End groups that do not publish in time, and tasks that do not answer.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        state, now_s = self._state, self._state.ports.clock.monotonic_s()
        for group in list(state.groups.values()):
            # Its last report may be out of date: it must have answered after the deadline.
            overdue = any(r.heard_s > group.deadline_s for r in group.replicas.values())
            if overdue:
                self._protocol.report(group, GroupEvent.OVERDUE)
                continue
            for task_id, replica in tuple(group.replicas.items()):
                silent_s = now_s - replica.heard_s
                if silent_s * 1000 > state.options.silence_limit_ms:
                    reason = f"it has not answered for {silent_s:.0f} s"
                    state.ports.queue.shutdown(task_id, reason)


def adopt(state: SupervisorState, protocol: TaskProtocol) -> None:
    """Add active tasks without a group to their groups, and note which have a worker."""
    now_ms, now_s = state.ports.clock.now_ms(), state.ports.clock.monotonic_s()
    active = state.ports.queue.index.streams(state.id)
    for task_id, found in active.items():
        group = state.groups.get(found.task.base_sequence_name)
        if group is None or task_id not in group.replicas:
            group = join(state, protocol, found)
            protocol.request_reports(group)
        replica = group.replicas[task_id]
        replica.has_worker, replica.waits = found.worker is not None, found.waits
        if not replica.has_worker:
            replica.since_ms, replica.heard_s = now_ms, now_s
    for group in state.groups.values():
        # The group may have been created by a former leader's clock, or before the clock was set
        # back. Otherwise it would read, and publish nothing, for as long as the clocks differ.
        group.since_ms = min(group.since_ms, now_ms)
        if group.is_unassigned:
            protocol.report(group, GroupEvent.UNASSIGNED)


def join(state: SupervisorState, protocol: TaskProtocol, found: ActiveStream) -> TaskGroup:
    """Add a task to its group, creating the group if necessary; return the group."""
    task, now_s = found.task, state.ports.clock.monotonic_s()
    group = state.groups.get(task.base_sequence_name)
    if group is None:
        group = TaskGroup(task, GroupState.UNKNOWN, found.created_ms)
        state.groups[group.name] = group
    replica = group.add(task, now_s, found.created_ms)
    replica.has_worker = found.worker is not None
    group.since_ms = min(group.since_ms, found.created_ms)
    if task.end_offsets is not None:
        protocol.report(group, GroupEvent.END_KNOWN, EventFacts(task.end_offsets))
    return group


def end_late_comers(state: SupervisorState, protocol: TaskProtocol) -> None:
    """End tasks without a worker if their group has its end: the other replicas do the work."""
    for group in list(state.groups.values()):
        if group.waiting_tasks and not group.is_unassigned:
            protocol.report(group, GroupEvent.SPARE)


_log = logging.getLogger(__name__)


class TaskStarter:
    """Starts tasks of one supervisor. After an error of its methods, the next round retries.

    Args:
        state: The supervisor.
        protocol: Its communication with its tasks.
        roll_over: Determines which groups end soon anyway.
    """

    def __init__(self, state: SupervisorState, protocol: TaskProtocol, roll_over: RollOver) -> None:
        self._state = state
        self._protocol = protocol
        self._roll_over = roll_over

    def retract(self) -> None:
        """End groups without a worker that would start after a gap.

        They have read nothing, so one task that starts before the gap does the work of both.
        Otherwise they could take the slot that the gap's task needs, and wait for its publish.
        """
        state = self._state
        for gap in find_gaps(state.committed.offsets, state.groups.values()):
            if not gap.follower.is_repair and gap.follower.is_unassigned:
                reason = "an earlier task was lost: another one begins earlier"
                state.end_group(gap.follower, reason)

    def leave_stream(self) -> None:
        """Switch to the new stream of the name, once the last task of the deleted one has ended.

        Until then the tasks publish, because their rows exist nowhere else.
        """
        state = self._state
        topic = state.spec.io.stream
        for gap in find_gaps(state.committed.offsets, state.groups.values()):
            # The gap cannot be read again, and publishes after it would wait for it.
            story = (
                f"offsets {gap.plan.start} to {gap.plan.end} are lost with it, because the task"
                " that had read them failed"
            )
            state.committed.move(gap.plan.end or {})
            state.note(NotFound(f"topic {topic} was deleted: {story}"))
        for group in list(state.groups.values()):
            if group.is_unassigned:
                state.end_group(group, "its topic was deleted before it began")
        if not state.groups:
            state.note(NotFound(f"topic {topic}: {state.committed.begin_successor()}"))

    def start_missing(self, available: Mapping[int, AvailableRange]) -> None:
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

    def _new_groups(self, available: Mapping[int, AvailableRange]) -> list[StartPlan]:
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
        self, plan: StartPlan, past: PastTasks, available: Mapping[int, AvailableRange]
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
            known = group.state is GroupState.READING or group.is_unassigned
            if group.is_publishing or group.is_repair or not known or not self._is_needed(group):
                continue
            changes = group.replica_changes(state.spec.io.server_priorities)
            for priority in changes.missing:
                checkpoints = group.to_join(state.committed.offsets)
                token = state.ports.new_token()
                self._add(
                    make_replica(group.task, checkpoints, token=token, server_priority=priority)
                )
            for task_id in changes.surplus:
                reason = "the spec now requires fewer or other replicas"
                state.end_task(task_id, reason, TaskState.SUCCESS)

    def _is_needed(self, group: TaskGroup) -> bool:
        return not (group.roll_requested or self._roll_over.is_stale(group))

    def _add(self, task: StreamTaskSpec) -> None:
        self._state.ports.queue.add(task)
        made = ActiveStream(task, None, None, self._state.ports.clock.now_ms())
        join(self._state, self._protocol, made)

    def _go_on_behind(
        self, lacking: list[StartPlan], available: Mapping[int, AvailableRange]
    ) -> None:
        """Skip missing messages if the spec allows it; raise an error for the others."""
        state = self._state
        confirmed_missing = state.stream.confirmed_missing(plan.key for plan in lacking)
        missing: list[str] = []
        for plan in lacking:
            if plan.key not in confirmed_missing:
                continue  # The next polls will confirm or refute it.
            gone = plan.gone(available).values()
            wanted = None
            if state.spec.tuning.reset_offset_automatically:
                wanted = state.committed.skip(plan, available)
            if wanted is None:
                missing += gone
            else:
                story = f"{', '.join(gone)}: continuing at {wanted} (resetOffsetAutomatically)"
                state.note(NotFound(story))
        if missing:
            raise NotFound(
                f"topic {state.spec.io.stream}: {', '.join(missing)}. Was it emptied or recreated?"
                " Reset the supervisor's offsets, or set resetOffsetAutomatically"
            )


_ROUND: Final = "reconcile the tasks"
_RELEASE: Final = "release the stream"


class Reconciler:
    """The reconciliation rounds of one supervisor.

    Args:
        state: The supervisor.
        protocol: Its communication with its tasks.
    """

    def __init__(self, state: SupervisorState, protocol: TaskProtocol) -> None:
        self._state = state
        self._protocol = protocol
        self._roll_over = RollOver(state, protocol)
        self._starts = TaskStarter(state, protocol, self._roll_over)
        self._letting_go = False
        self._stopped = False

    def stop(self) -> None:
        """Stop all further rounds."""
        self._stopped = True

    def advance(self) -> None:
        """Run a round. Errors are recorded, and the next round retries."""
        state = self._state
        if self._stopped:
            return
        state.in_round = True
        try:
            adopt(state, self._protocol)
            self._roll_over.advance()
            end_late_comers(state, self._protocol)
            self._roll_over.end_overdue()
            state.committed.refresh(state.ports.clock.monotonic_s())
            if state.committed.is_left_behind:
                self._starts.leave_stream()
            else:
                self._starts.retract()
                if state.health.may_start_tasks(state.ports.clock.monotonic_s()):
                    self._starts.start_missing(state.stream.available or {})
            state.note_discovery()
            self._finish_stopping()
        except PenstockError as error:
            state.health.round_failed()
            state.note(error)
            if isinstance(error, Unavailable):
                state.waits.failed(_ROUND, error, dependency=Dependency.METADATA)
            else:
                state.waits.ended(_ROUND)
        else:
            state.health.round_done()
            state.waits.ended(_ROUND)
        finally:
            state.in_round = False

    def _finish_stopping(self) -> None:
        """After the last task has ended, let the source delete its messages, then finish."""
        state = self._state
        if state.groups or not state.stopping or self._letting_go:
            return
        self._letting_go = True

        def failed(error: PenstockError) -> None:
            self._letting_go = False  # The next round retries.
            state.note(error)
            if isinstance(error, Unavailable):
                state.waits.failed(_RELEASE, error)
            else:
                state.waits.ended(_RELEASE)

        def done() -> None:
            state.is_released = True
            state.request_round()

        state.stream.let_go(state.committed.offsets, done, failed)
