"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the broker and the peons are called on lanes. Every
second it looks what there is and moves it towards what should be: a task that reads for every
group of stream partitions, an end agreed with each that has read long enough, a successor for it at
once, and a task in place of each that was lost. Nothing is remembered that a new overlord could not
find again: offsets and tasks are in the metadata store, their progress is asked of the peons.

A task that fails while it publishes leaves a gap between the committed offsets and the tasks that
read on behind it. Those are healthy and are left alone; another task reads the gap again, and their
publishes wait for it.

A topic that was deleted and made again under its name has another id. The tasks of the old one see
that too, publish what they have read, and end; when the last has, the new one is read from its
start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import Offsets
from penstock.indexing.supervisor.committed import Committed
from penstock.indexing.supervisor.dialogue import Dialogue
from penstock.indexing.supervisor.groups import (
    GroupPhase,
    StartPlan,
    TaskGroup,
    find_gaps,
    partitions_of,
    plan_starts,
)
from penstock.indexing.supervisor.health import Health
from penstock.indexing.supervisor.topicwatch import TopicWatch, cursor_name
from penstock.indexing.taskspec import base_sequence_name, make_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.indexing.batches import Available
    from penstock.indexing.spec import SupervisorSpec
    from penstock.indexing.supervisor.ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.taskspec import StreamTaskSpec
    from penstock.mailbox import Timer

_log = logging.getLogger(__name__)


class Supervisor:
    """One supervisor. On the overlord's mailbox.

    Args:
        spec: What it is to do.
        ports: What it works with.
        options: How it behaves.
        stopped: Told when it was stopped and its last task has ended.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        ports: SupervisorPorts,
        options: SupervisorOptions,
        *,
        stopped: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._ports = ports
        self._options = options
        self._stopped = stopped
        self._calls = Calls(ports.lanes, ports.processor)
        self._groups: dict[str, TaskGroup] = {}
        self._health = Health(
            spec.supervisor_id, options.retry_delay_ms, options.retry_delay_max_ms
        )
        self._topic = TopicWatch(
            spec.io.topic,
            cursor_name(spec.supervisor_id),
            ports.broker,
            self._calls,
            f"broker-{spec.supervisor_id}",
        )
        self._dialogue = Dialogue(
            spec.supervisor_id,
            ports.peons,
            self._calls,
            ports.clock,
            completion_timeout_ms=lambda: self.spec.io.completion_timeout,
            agreed=self._converge,
            note=self._note,
        )
        self._looked_ms = 0
        self._committed = Committed(spec.supervisor_id, ports.metadata, self._topic)
        self._converging = False
        self._stopping = False
        self._letting_go = False
        self._ended = False
        self._timer: Timer | None = None

    @property
    def id(self) -> str:
        """Its name."""
        return self.spec.supervisor_id

    def start(self) -> None:
        """Begin to look after the tasks."""
        self._timer = self._ports.processor.timers.schedule_every(
            min(self._options.look_interval_ms, self.spec.io.period),
            self._look,
            f"supervisor {self.id}",
            first_after_ms=self.spec.io.start_delay,
        )

    # Notices and wishes

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping

    def check_update(self, spec: SupervisorSpec) -> None:
        """Say whether a spec may follow the present one.

        Raises:
            InvalidRequest: It reads another topic: the committed offsets would mean nothing there.
        """
        check_topic(spec, self.spec.io.topic)

    def update(self, spec: SupervisorSpec) -> None:
        """Take another version of the spec; tasks of the old one are told to end and publish."""
        self.spec = spec
        if self._timer is not None:
            self._timer.cancel()
        self.start()
        self._converge()

    def stop(self) -> None:
        """Have all tasks publish what they read, then be gone."""
        self._stopping = True
        self._converge()

    def abandon(self) -> None:
        """Look no more; the tasks go on and are found by the next overlord."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def hand_off(self, group_ids: Iterable[int] | None = None) -> None:
        """Have groups, or all, agree on an end now and publish."""
        wanted = None if group_ids is None else set(group_ids)
        for group in self._groups.values():
            if wanted is None or group.task.group_id in wanted:
                group.roll_asked = True
        self._converge()

    def reset(self, offsets: Offsets | None = None) -> None:
        """Forget committed offsets, all or those of some stream partitions, and begin anew there.

        The tasks that read them are ended; what they have not published is read again, or not, as
        the new offsets say.

        Raises:
            InvalidRequest: The topic does not hold these offsets.
            Unavailable: The metadata store does not answer.
        """
        if offsets is not None:
            self._topic.check(offsets)
        self._adopt()
        self._committed.read()
        whole = offsets is None or self._committed.is_left_behind
        for task_id, group in list(self._groups.items()):
            if offsets is None or whole or group.partitions & offsets.keys():
                self._end(task_id, "the supervisor's offsets were reset")
        if offsets is None:
            self._committed.reset({}, earliest=self.spec.io.use_earliest_offset)
        elif whole:
            self._committed.reset(offsets, earliest=True)
        else:
            self._committed.move(offsets)
        self._health.begin_anew()
        self._converge()

    def _end(self, task_id: str, reason: str) -> None:
        """End a task for a reason that is not its own, so that it does not count as a failure."""
        self._groups.pop(task_id, None)
        # What is done here ends a task, and that leads back here.
        converging, self._converging = self._converging, True
        try:
            self._ports.queue.shutdown(task_id, reason)
        finally:
            self._converging = converging

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full: close it and have the task go on with another."""
        group = self._groups.get(task_id)
        if group is not None:
            self._dialogue.checkpoint(group, start)

    def task_ended(self, task: StreamTaskSpec, state: TaskState, error: str) -> None:
        """A task of this supervisor has ended."""
        known = self._groups.pop(task.id, None)
        if state is TaskState.SUCCESS:
            self._health.task_succeeded()
        elif known is not None:
            self._health.task_failed(self._ports.clock.monotonic_s())
            self._note(Unavailable(f"task {task.id} failed: {error}"))
        self._converge()

    # Looking

    def _look(self) -> None:
        if self._ended:
            return
        self._topic.look(self._seen, self._unseen)
        for group in self._groups.values():
            self._dialogue.ask(group)

    def _seen(self) -> None:
        self._looked_ms = self._ports.clock.now_ms()
        self._health.looked()
        self._converge()
        if not self._stopping:
            self._topic.hold(self._committed.to_keep, self._note)

    def _unseen(self, error: PenstockError) -> None:
        self._health.look_failed()
        self._note(error)
        self._converge()

    # Moving towards what should be

    def _converge(self) -> None:
        """Look at everything that is known, and do what is due. Errors wait for the next look."""
        if self._ended or self._converging:
            # What is done here ends tasks, and that leads here again: the next look does the rest.
            return
        self._converging = True
        try:
            self._adopt()
            self._roll_over()
            self._end_overdue()
            self._committed.read()
            if self._committed.is_left_behind:
                self._leave_topic()
            else:
                self._retract()
                if self._health.may_start_tasks(self._ports.clock.monotonic_s()):
                    self._start_tasks(self._topic.available or {})
            self._finish_stopping()
        except PenstockError as error:
            self._health.round_failed()
            self._note(error)
        else:
            self._health.round_done()
        finally:
            self._converging = False

    def _adopt(self) -> None:
        """Find active tasks that this object does not know, and see which wait for a worker."""
        now_ms, now_s = self._ports.clock.now_ms(), self._ports.clock.monotonic_s()
        for task_id, active in self._ports.queue.streams(self.id).items():
            group = self._groups.get(task_id)
            if group is None:
                # One of an overlord before this one.
                group = TaskGroup(active.task, GroupPhase.UNKNOWN, active.created_ms, now_s)
                self._groups[task_id] = group
                if active.task.end_offsets is not None:
                    self._dialogue.agree(group, active.task.end_offsets)
                self._dialogue.ask(group)
            if active.worker is None:
                group.since_ms, group.heard_s = now_ms, now_s
                self._dialogue.allow_more_time(group)

    def _roll_over(self) -> None:
        stopping = self._stopping or self.spec.suspended
        for group in list(self._groups.values()):
            if group.phase is GroupPhase.READING and (stopping or self._has_read_enough(group)):
                self._dialogue.roll(group)
            elif group.phase is GroupPhase.UNKNOWN and stopping and self._is_unassigned(group):
                self._ports.queue.shutdown(group.task.id, "the supervisor stopped before it began")

    def _has_read_enough(self, group: TaskGroup) -> bool:
        old = self._ports.clock.now_ms() - group.since_ms >= self.spec.io.task_duration
        stale = not group.task.base_sequence_name.startswith(self._base_name(group.task))
        return group.roll_asked or old or stale or self._is_misfit(group)

    def _is_misfit(self, group: TaskGroup) -> bool:
        """Whether there are other stream partitions now, or another number of groups."""
        known = (self._topic.available or {}).keys() & self._committed.offsets.keys()
        fitting = partitions_of(group.task.group_id, self.spec.io.task_count, known)
        return bool(known) and group.partitions != set(fitting)

    def _is_unassigned(self, group: TaskGroup) -> bool:
        active = self._ports.queue.streams(self.id).get(group.task.id)
        return active is not None and active.worker is None

    def _end_overdue(self) -> None:
        now_s = self._ports.clock.monotonic_s()
        for group in list(self._groups.values()):
            silent_ms = (now_s - group.heard_s) * 1000
            if now_s > group.deadline_s:
                seconds = self.spec.io.completion_timeout // 1000
                reason = f"it has not published within completionTimeout ({seconds} s)"
                self._ports.queue.shutdown(group.task.id, reason)
            elif silent_ms > self._options.silence_limit_ms:
                reason = f"it has not answered for {silent_ms / 1000:.0f} s"
                self._ports.queue.shutdown(group.task.id, reason)

    def _finish_stopping(self) -> None:
        """When all tasks are gone, let the broker delete what they held back, then be gone."""
        if self._groups or not self._stopping or self._letting_go:
            return
        self._letting_go = True

        def done() -> None:
            self.abandon()
            self._stopped()

        def failed(error: PenstockError) -> None:
            self._letting_go = False  # The next look tries again.
            self._note(error)

        self._topic.let_go(self._committed.offsets, done, failed)

    def _leave_topic(self) -> None:
        """When the last task of a topic that was deleted has ended, begin the one with its name.

        Until then they publish: their rows are in no other place any more.
        """
        for gap in find_gaps(self._committed.offsets, self._groups.values()):
            # Nobody can read it again, and what was read behind it would wait for it.
            story = f"{gap.plan.start} to {gap.plan.end} went with it, as their task was lost"
            self._committed.move(gap.plan.end or {})
            self._note(NotFound(f"topic {self.spec.io.topic} was deleted: {story}"))
        for task_id, group in list(self._groups.items()):
            if self._is_unassigned(group):
                self._end(task_id, "its topic was deleted before it began")
        if not self._groups:
            self._note(NotFound(f"topic {self.spec.io.topic}: {self._committed.begin_successor()}"))

    # New tasks

    def _retract(self) -> None:
        """End tasks that no worker has yet and that would begin behind a gap.

        They have read nothing, so one that begins before the gap does the work of two. To leave
        them would have them take the slot that the gap needs, to wait for the gap to be published.
        """
        for gap in find_gaps(self._committed.offsets, self._groups.values()):
            follower = gap.follower
            if follower.task.end_offsets is None and self._is_unassigned(follower):
                self._end(follower.task.id, "a task before it was lost: another begins earlier")

    def _start_tasks(self, available: Mapping[int, Available]) -> None:
        """Start what is missing.

        Raises:
            NotFound: Messages that have to be read are gone; what can be started was.
        """
        plans = [gap.plan for gap in find_gaps(self._committed.offsets, self._groups.values())]
        if available and not self._stopping and not self.spec.suspended:
            self._committed.begin(earliest=self.spec.io.use_earliest_offset)
            groups, count = self._groups.values(), self.spec.io.task_count
            plans += plan_starts(available, self._committed.offsets, groups, count)
        lacking = [plan for plan in plans if plan.gone(available)]
        for plan in plans:
            if plan not in lacking:
                self._add_task(plan)
        self._go_on_behind(lacking, available)

    def _go_on_behind(self, lacking: list[StartPlan], available: Mapping[int, Available]) -> None:
        """Skip messages that are gone, if the spec says so; complain of the others."""
        sure = self._topic.sure(plan.key for plan in lacking)
        missing: list[str] = []
        for plan in lacking:
            if plan.key not in sure:
                continue  # The next looks say.
            gone = plan.gone(available).values()
            wanted = None
            if self.spec.tuning.reset_offset_automatically:
                wanted = self._committed.skip(plan, available)
            if wanted is None:
                missing += gone
            else:
                story = f"{', '.join(gone)}: going on at {wanted}, as the spec says"
                self._note(NotFound(story))
        if missing:
            raise NotFound(
                f"topic {self.spec.io.topic}: {', '.join(missing)}. Was it emptied or made anew?"
                " Reset the supervisor's offsets, or set resetOffsetAutomatically"
            )

    def _add_task(self, plan: StartPlan) -> None:
        start, end, now_ms = plan.start, plan.end, self._ports.clock.now_ms()
        task = make_task(
            self.spec,
            plan.group_id,
            start,
            end,
            topic_id=self._committed.topic_id,
            now_ms=now_ms,
            token=self._ports.new_token(),
        )
        if end is not None:
            _log.info("supervisor %s reads %s to %s again", self.id, start, end)
        self._ports.queue.add(task)
        group = TaskGroup(task, GroupPhase.UNKNOWN, now_ms, self._ports.clock.monotonic_s())
        if end is not None:
            self._dialogue.agree(group, end)
        self._groups[task.id] = group

    def _base_name(self, task: StreamTaskSpec) -> str:
        """Return how a task of the present spec would be called that reads as this one."""
        name = base_sequence_name(self.spec, task.start_offsets, task.min_time_ms, task.max_time_ms)
        return f"{name}_"

    def _note(self, error: Exception) -> None:
        self._health.note(error, self._ports.clock.now_ms())

    # Status

    @property
    def state(self) -> str:
        """Its state in Druid's words."""
        if self._stopping:
            return "STOPPING"
        if self.spec.suspended:
            return "SUSPENDED"
        now_s = self._ports.clock.monotonic_s()
        trouble = self._health.trouble(now_s, was_there=self._topic.available is not None)
        if trouble is not None:
            return trouble
        if self._topic.available is None:
            return "CONNECTING_TO_STREAM"
        return "RUNNING" if self._groups else "CREATING_TASKS"

    @property
    def healthy(self) -> bool:
        """Whether it does what it should."""
        return not self.state.startswith(("UN", "LOST"))

    def lag(self) -> dict[int, int]:
        """Return how many messages of each stream partition are not read yet."""
        if self._committed.is_left_behind:
            # Nothing of what is there now is read yet.
            return {p: a.latest - a.earliest for p, a in (self._topic.available or {}).items()}
        current = dict(self._committed.offsets)
        for group in self._groups.values():
            for p, offset in (group.report.current if group.report else {}).items():
                current[p] = max(offset, current.get(p, 0))
        return {
            p: max(0, a.latest - current.get(p, a.latest))
            for p, a in sorted((self._topic.available or {}).items())
        }

    def groups(self) -> tuple[TaskGroup, ...]:
        """Return the task groups, reading and publishing; to look at only."""
        return tuple(self._groups.values())

    def committed(self) -> Mapping[int, int]:
        """Return the committed offsets as last seen."""
        return dict(self._committed.offsets)

    @property
    def topic_id(self) -> str:
        """The topic that the committed offsets are of, empty if that is not known."""
        return self._committed.topic_id

    def latest(self) -> tuple[dict[int, int], int]:
        """Return the end of each stream partition, and when that was."""
        ends = {p: a.latest for p, a in (self._topic.available or {}).items()}
        return ends, self._looked_ms

    def errors(self) -> list[dict[str, str]]:
        """Return what went wrong lately, the newest last."""
        return self._health.errors()

    def remaining_s(self, group: TaskGroup) -> int:
        """Return how long a task may read on, or publish."""
        if group.is_pending:
            return max(0, int(group.deadline_s - self._ports.clock.monotonic_s()))
        read_ms = self._ports.clock.now_ms() - group.since_ms
        return max(0, (self.spec.io.task_duration - read_ms) // 1000)


def check_topic(spec: SupervisorSpec, topic: str) -> None:
    """Say whether a spec may follow one that reads a topic.

    Raises:
        InvalidRequest: It reads another one: the committed offsets would mean nothing there.
    """
    if spec.io.topic != topic:
        raise InvalidRequest(
            f"supervisor {spec.supervisor_id} reads the topic {topic}, its committed offsets mean"
            f" nothing in {spec.io.topic}: give the new spec another id",
            place="spec.ioConfig.topic",
        )
