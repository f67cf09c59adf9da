"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the broker and the peons are called on lanes. Every
second it looks what there is and moves it towards what should be: a task that reads for every
group of stream partitions, an end agreed with each that has read long enough, a successor for it at
once, and a task in place of each that was lost. Nothing is remembered that a new overlord could not
find again: offsets and tasks are in the metadata store, their progress is asked of the peons.

A task that fails while it publishes leaves a gap between the committed offsets and the tasks that
read on behind it. Those are healthy and are left alone; another task reads the gap again, and their
publishes wait for it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.core.intervals import format_time, parse_time
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import Offsets
from penstock.indexing.supervisor.groups import (
    GroupPhase,
    StartPlan,
    TaskGroup,
    find_gaps,
    first_offsets,
    plan_starts,
)
from penstock.indexing.taskspec import StreamTaskSpec, base_sequence_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.core.clock import Clock
    from penstock.indexing.batches import Available
    from penstock.indexing.ports import BrokerPort, Lanes, TaskClient, TaskReport
    from penstock.indexing.spec import SupervisorSpec
    from penstock.indexing.taskqueue import TaskQueue
    from penstock.mailbox import MailboxProcessor, Timer
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)

_UNHEALTHY_AFTER: Final = 3
_ERRORS_KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How supervisors behave beside what their specs say.

    Attributes:
        look_interval_ms: How often at most a supervisor looks at its topic and its tasks.
        retry_delay_ms: How long it waits after a task failed before it starts the next.
        retry_delay_max_ms: The longest such wait; it doubles with each failure in a row.
    """

    look_interval_ms: int = 1_000
    retry_delay_ms: int = 1_000
    retry_delay_max_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class SupervisorPorts:
    """What a supervisor works with; `new_token` gives texts that were never given before."""

    metadata: MetadataStore
    queue: TaskQueue
    broker: BrokerPort
    peons: TaskClient
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    new_token: Callable[[], str]


@dataclass(slots=True)
class _Health:
    """What went wrong lately, and how often in a row."""

    errors: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=_ERRORS_KEPT))
    failed_tasks: int = 0
    failed_looks: int = 0
    not_before_s: float = 0.0


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
        self._health = _Health()
        self._available: dict[int, Available] | None = None
        self._looked_ms = 0
        self._committed: dict[int, int] = {}
        self._cursor: dict[int, int] = {}
        self._looking = False
        self._converging = False
        self._stopping = False
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
        if spec.io.topic != self.spec.io.topic:
            raise InvalidRequest(
                f"supervisor {self.id} reads the topic {self.spec.io.topic}, its committed offsets"
                f" mean nothing in {spec.io.topic}: give the new spec another id",
                place="spec.ioConfig.topic",
            )

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
            Unavailable: The metadata store does not answer.
        """
        self._adopt()
        self._converging = True
        try:
            for task_id, group in list(self._groups.items()):
                if offsets is None or group.partitions & offsets.keys():
                    del self._groups[task_id]
                    self._ports.queue.shutdown(task_id, "the supervisor's offsets were reset")
            self._reset_committed(offsets)
        finally:
            self._converging = False
        self._health = _Health()
        self._converge()

    def _reset_committed(self, offsets: Offsets | None) -> None:
        committed = self._ports.metadata.offsets(self.id) or {}
        if offsets is not None:
            wanted: dict[int, int] | None = {**committed, **offsets}
        elif self._available is None:
            wanted = None
        else:
            # Explicit ones, so that a publish that is under way just now cannot match.
            wanted = first_offsets(self._available, None, earliest=self.spec.io.use_earliest_offset)
        self._ports.metadata.reset_offsets(self.id, wanted)
        self._committed = dict(wanted or {})

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full: close it and have the task go on with another."""
        group = self._groups.get(task_id)
        if group is None or group.phase not in {GroupPhase.READING, GroupPhase.UNKNOWN}:
            return
        group.phase = GroupPhase.ROLLING

        def done(_end: Offsets | None) -> None:
            group.phase = GroupPhase.READING

        def failed(error: PenstockError) -> None:
            # The task asks again after a while.
            group.phase = GroupPhase.READING
            self._note(error)

        peons = self._ports.peons
        self._calls.call(
            self._lane(group), lambda: _checkpoint(peons, task_id, start), done, failed
        )

    def task_ended(self, task: StreamTaskSpec, state: TaskState, error: str) -> None:
        """A task of this supervisor has ended."""
        known = self._groups.pop(task.id, None)
        if state is TaskState.SUCCESS:
            self._health.failed_tasks = 0
        elif known is not None:
            self._task_failed(task, error)
        self._converge()

    # Looking

    def _look(self) -> None:
        if self._looking or self._ended:
            return
        self._looking = True
        cursor = dict(self._committed) if self._committed != self._cursor else None
        broker, topic, name = self._ports.broker, self.spec.io.topic, cursor_name(self.id)

        def work() -> dict[int, Available]:
            if cursor:
                broker.set_cursor(topic, name, cursor)
            return broker.available(topic)

        self._calls.call(f"broker-{self.id}", work, lambda a: self._seen(a, cursor), self._unseen)
        for group in self._groups.values():
            self._ask(group)

    def _seen(self, available: dict[int, Available], cursor: dict[int, int] | None) -> None:
        self._looking = False
        self._available, self._looked_ms = available, self._ports.clock.now_ms()
        self._health.failed_looks = 0
        if cursor is not None:
            self._cursor = cursor
        self._converge()

    def _unseen(self, error: PenstockError) -> None:
        self._looking = False
        self._health.failed_looks += 1
        self._note(error)
        self._converge()

    def _ask(self, group: TaskGroup) -> None:
        if group.asking:
            return
        group.asking = True
        task_id, peons = group.task.id, self._ports.peons

        def done(report: TaskReport) -> None:
            group.asking = False
            group.report = report
            if report.end is not None:
                self._end_agreed(group, report.end)
            elif group.phase is GroupPhase.UNKNOWN:
                group.phase, group.since_ms = GroupPhase.READING, self._ports.clock.now_ms()

        def failed(_error: PenstockError) -> None:
            group.asking = False  # It is starting, or being started again by its worker.

        self._calls.call(self._lane(group), lambda: peons.report(task_id), done, failed)

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
            self._committed = self._ports.metadata.offsets(self.id) or {}
            if self._may_create():
                self._fill_gaps()
                if not self._stopping and not self.spec.suspended:
                    self._create()
            self._finish_stopping()
        except PenstockError as error:
            self._note(error)
        finally:
            self._converging = False

    def _adopt(self) -> None:
        """Find active tasks that this object does not know: those of an overlord before."""
        for task_id, active in self._ports.queue.active().items():
            if active.task.supervisor_id == self.id and task_id not in self._groups:
                group = TaskGroup(active.task, GroupPhase.UNKNOWN, self._ports.clock.now_ms())
                self._groups[task_id] = group
                if active.task.end_offsets is not None:
                    self._end_agreed(group, active.task.end_offsets)
                self._ask(group)

    def _roll_over(self) -> None:
        now_ms = self._ports.clock.now_ms()
        stopping = self._stopping or self.spec.suspended
        for group in list(self._groups.values()):
            old = now_ms - group.since_ms >= self.spec.io.task_duration
            stale = not group.task.base_sequence_name.startswith(self._base_name(group.task))
            if group.phase is GroupPhase.READING and (old or stale or stopping or group.roll_asked):
                self._roll(group)
            elif group.phase is GroupPhase.UNKNOWN and stopping and self._is_unassigned(group):
                self._ports.queue.shutdown(group.task.id, "the supervisor stopped before it began")

    def _is_unassigned(self, group: TaskGroup) -> bool:
        active = self._ports.queue.active().get(group.task.id)
        return active is not None and active.worker is None

    def _roll(self, group: TaskGroup) -> None:
        """Tell a task its end: where it stands now."""
        group.phase = GroupPhase.ROLLING
        task_id, peons = group.task.id, self._ports.peons

        def failed(error: PenstockError) -> None:
            if group.phase is GroupPhase.ROLLING:
                group.phase = GroupPhase.READING
            if not isinstance(error, Unavailable):
                self._note(error)

        self._calls.call(
            self._lane(group),
            lambda: _finish(peons, task_id),
            lambda end: self._rolled(group, end),
            failed,
        )

    def _rolled(self, group: TaskGroup, end: Offsets) -> None:
        self._end_agreed(group, end)
        self._converge()

    def _end_agreed(self, group: TaskGroup, end: Offsets) -> None:
        if not group.is_pending:
            group.phase, group.end = GroupPhase.PENDING, dict(end)
            now_ms = self._ports.clock.now_ms()
            group.deadline_ms = now_ms + self.spec.io.completion_timeout

    def _end_overdue(self) -> None:
        now_ms = self._ports.clock.now_ms()
        for group in list(self._groups.values()):
            if group.is_pending and now_ms > group.deadline_ms:
                seconds = self.spec.io.completion_timeout // 1000
                self._ports.queue.shutdown(
                    group.task.id, f"it has not published within completionTimeout ({seconds} s)"
                )

    def _finish_stopping(self) -> None:
        if self._groups or not self._stopping or self._ended:
            return
        self.abandon()
        topic, name = self.spec.io.topic, cursor_name(self.id)
        partitions = sorted(self._available or {})
        self._calls.call(
            f"broker-{self.id}",
            lambda: self._ports.broker.drop_cursor(topic, name, partitions),
            lambda _none: None,
            lambda error: _log.warning("the cursor of %s is left: %s", self.id, error),
        )
        self._stopped()

    # New tasks

    def _may_create(self) -> bool:
        waited = self._ports.clock.monotonic_s() >= self._health.not_before_s
        return waited and self._available is not None

    def _fill_gaps(self) -> None:
        for gap in find_gaps(self._committed, self._groups.values()):
            _log.info("supervisor %s reads %s to %s again", self.id, gap.start, gap.end)
            self._add_task(gap.group_id, gap.start, gap.end)

    def _create(self) -> None:
        available = self._available or {}
        metadata, earliest = self._ports.metadata, self.spec.io.use_earliest_offset
        first = first_offsets(available, self._committed or None, earliest=earliest)
        if first:
            self._committed = metadata.begin_offsets(self.id, first)
        plans = plan_starts(
            available, self._committed, self._groups.values(), self.spec.io.task_count
        )
        for plan in plans:
            if plan.gone:
                self._messages_gone(plan)
            else:
                self._add_task(plan.group_id, plan.start)

    def _messages_gone(self, plan: StartPlan) -> None:
        gone = {p: (plan.start[p], a.earliest, a.latest) for p, a in plan.gone.items()}
        if self.spec.tuning.reset_offset_automatically:
            _log.warning(
                "supervisor %s: offsets %s are gone: going on at the earliest", self.id, gone
            )
            self.reset({p: a.earliest for p, a in plan.gone.items()})
            return
        text = ", ".join(
            f"partition {p} goes on at {start}, but only {earliest} to {latest} is there"
            for p, (start, earliest, latest) in sorted(gone.items())
        )
        self._note(
            NotFound(
                f"topic {self.spec.io.topic}: {text}. Was it emptied or made anew? Reset the"
                " supervisor's offsets, or set resetOffsetAutomatically"
            )
        )

    def _add_task(self, group_id: int, start: Offsets, end: Offsets | None = None) -> None:
        io = self.spec.io
        now_ms = self._ports.clock.now_ms()
        late = io.late_message_rejection_period
        early = io.early_message_rejection_period
        min_ms = None if late is None else now_ms - late
        if io.late_message_rejection_start_date_time is not None:
            min_ms = parse_time(io.late_message_rejection_start_date_time)
        max_ms = None if early is None else now_ms + io.task_duration + early
        token = self._ports.new_token()
        base = f"{base_sequence_name(self.spec, start, min_ms, max_ms)}_{token}"
        task = StreamTaskSpec(
            id=base,
            group_id=group_id,
            supervisor_id=self.id,
            base_sequence_name=base,
            data_schema=self.spec.data_schema,
            tuning_config=self.spec.tuning,
            topic=io.topic,
            dead_letter_topic=io.dead_letters,
            start_offsets=dict(start),
            end_offsets=None if end is None else dict(end),
            min_time_ms=min_ms,
            max_time_ms=max_ms,
        )
        self._ports.queue.add(task)
        group = TaskGroup(task, GroupPhase.UNKNOWN, now_ms)
        if end is not None:
            self._end_agreed(group, end)
        self._groups[task.id] = group

    def _base_name(self, task: StreamTaskSpec) -> str:
        """Return how a task of the present spec would be called that reads as this one."""
        name = base_sequence_name(self.spec, task.start_offsets, task.min_time_ms, task.max_time_ms)
        return f"{name}_"

    def _task_failed(self, task: StreamTaskSpec, error: str) -> None:
        health = self._health
        health.failed_tasks += 1
        self._note(Unavailable(f"task {task.id} failed: {error}"))
        delay_ms = self._options.retry_delay_ms << min(health.failed_tasks - 1, 16)
        delay_ms = min(delay_ms, self._options.retry_delay_max_ms)
        health.not_before_s = self._ports.clock.monotonic_s() + delay_ms / 1000

    def _lane(self, group: TaskGroup) -> str:
        return f"peon-{self.id}-{group.task.group_id}"

    def _note(self, error: Exception) -> None:
        last = self._health.errors[-1] if self._health.errors else {}
        if last.get("exceptionMessage") == str(error):
            self._health.errors.pop()
        else:
            _log.warning("supervisor %s: %s", self.id, error)
        self._health.errors.append(
            {
                "timestamp": format_time(self._ports.clock.now_ms()),
                "exceptionClass": type(error).__name__,
                "exceptionMessage": str(error),
            }
        )

    # Status

    @property
    def state(self) -> str:
        """Its state in Druid's words."""
        if self._stopping:
            return "STOPPING"
        if self.spec.suspended:
            return "SUSPENDED"
        if self._health.failed_looks >= _UNHEALTHY_AFTER:
            lost = self._available is not None
            return "LOST_CONTACT_WITH_STREAM" if lost else "UNABLE_TO_CONNECT_TO_STREAM"
        if self._health.failed_tasks >= _UNHEALTHY_AFTER:
            return "UNHEALTHY_TASKS"
        if self._available is None:
            return "CONNECTING_TO_STREAM"
        return "RUNNING" if self._groups else "CREATING_TASKS"

    @property
    def healthy(self) -> bool:
        """Whether it does what it should."""
        return not self.state.startswith(("UN", "LOST"))

    def lag(self) -> dict[int, int]:
        """Return how many messages of each stream partition are not read yet."""
        current = dict(self._committed)
        for group in self._groups.values():
            for p, offset in (group.report.current if group.report else {}).items():
                current[p] = max(offset, current.get(p, 0))
        return {
            p: max(0, a.latest - current.get(p, a.latest))
            for p, a in sorted((self._available or {}).items())
        }

    def groups(self) -> tuple[TaskGroup, ...]:
        """Return the task groups, reading and publishing; to look at only."""
        return tuple(self._groups.values())

    def committed(self) -> Mapping[int, int]:
        """Return the committed offsets as last seen."""
        return dict(self._committed)

    def latest(self) -> tuple[dict[int, int], int]:
        """Return the end of each stream partition, and when that was."""
        ends = {p: a.latest for p, a in (self._available or {}).items()}
        return ends, self._looked_ms

    def errors(self) -> list[dict[str, str]]:
        """Return what went wrong lately, the newest last."""
        return list(self._health.errors)


def cursor_name(supervisor_id: str) -> str:
    """Return the name of the broker's cursor that keeps messages until they are published."""
    plain = all(c.isascii() and (c.isalnum() or c in "._-") for c in supervisor_id)
    if plain and len(supervisor_id) <= 40:
        return f"supervisor.{supervisor_id}"
    return f"supervisor.{supervisor_id.encode().hex()[:50]}"


def _finish(peons: TaskClient, task_id: str) -> Offsets:
    """Pause a task and agree on its end; blocking. Repeating it finds the end that was agreed."""
    try:
        end = peons.pause(task_id)
    except Conflict:
        known = peons.report(task_id).end
        if known is None:
            raise
        return known
    peons.set_end_offsets(task_id, end, finish=True)
    return end


def _checkpoint(peons: TaskClient, task_id: str, start: Offsets) -> Offsets | None:
    """Close the task's open sequence if it is still the one that began at `start`; blocking."""
    report = peons.report(task_id)
    newest = max(report.checkpoints, default=None)
    if newest is None or dict(report.checkpoints[newest]) != dict(start) or report.end is not None:
        return None
    end = peons.pause(task_id)
    peons.set_end_offsets(task_id, end, finish=False)
    return end
