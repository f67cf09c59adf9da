"""The overlord: supervisors, the task queue and task actions, put together on one mailbox.

Owns which supervisors there are, and their specs' versions in the metadata store. Its public
methods are for any thread: those that change something post mail and return a future, those that
read the metadata store do so on the caller's thread.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed, InvalidRequest, NotFound, Unavailable
from penstock.indexing.errand import Errand, Retry
from penstock.indexing.overlord.actionhandler import ActionHandler
from penstock.indexing.overlord.taskqueue import TaskQueue, TaskQueueOptions
from penstock.indexing.ports import TaskLocation, TaskState
from penstock.indexing.spec import SupervisorSpec, parse_supervisor_spec
from penstock.indexing.supervisor import (
    ActiveStream,
    Supervisor,
    SupervisorOptions,
    SupervisorPorts,
    UpdateAction,
    succeed,
    supervisor_stats,
    supervisor_status,
    supervisor_summary,
    update_action,
)
from penstock.mailbox import MailboxProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from pydantic import JsonValue

    from penstock.core.clock import Clock
    from penstock.indexing.overlord.janitor import Janitor, SweepReport
    from penstock.indexing.ports import BrokerPort, Lanes, TaskClient, WorkerDirectory
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import StreamTaskSpec
    from penstock.storage.metadata import MetadataStore, SupervisorRow, TaskRow

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverlordOptions:
    """How the overlord behaves."""

    queue: TaskQueueOptions = field(default_factory=TaskQueueOptions)
    supervisors: SupervisorOptions = field(default_factory=SupervisorOptions)
    sweep_interval_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class OverlordPorts:
    """What the overlord works with. `peons` finds a peon's place by `Overlord.location`."""

    metadata: MetadataStore
    broker: BrokerPort
    peons: TaskClient
    workers: WorkerDirectory
    lanes: Lanes
    clock: Clock
    new_token: Callable[[], str]
    janitor: Janitor | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What a submitted spec changed: anything, and whether tasks begin anew for it."""

    id: str
    modified: bool
    restarted: bool


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as the API shows it. `runner_state`: WAITING (for a slot), PENDING, RUNNING, NONE."""

    row: TaskRow
    runner_state: str
    location: TaskLocation | None


class Overlord:
    """The overlord.

    Args:
        processor: Its mailbox, on a thread that runs it after `start`.
        ports: What it works with.
        options: How it behaves.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        ports: OverlordPorts,
        options: OverlordOptions | None = None,
    ) -> None:
        self._processor = processor
        self._ports = ports
        self._options = options or OverlordOptions()
        self._supervisors: dict[str, Supervisor] = {}
        self._queue = TaskQueue(
            ports.metadata,
            ports.workers,
            ports.lanes,
            processor,
            ports.clock,
            completed=self._task_ended,
            options=self._options.queue,
        )
        desk = _Desk(self._queue, processor, self._checkpoint_wanted)
        self._handler = ActionHandler(ports.metadata, desk, desk, ports.clock)
        self._sweeping = Errand(
            "sweeping",
            "janitor",
            ports.lanes,
            processor,
            retry=Retry(60_000, 600_000),
            on_failure=lambda error: _log.warning("the janitor failed: %s", error),
        )

    def start(self) -> Future[None]:
        """Read what there is and begin. Until the future is done, calls raise Unavailable."""
        return self._call(self._start, "start")

    def stop(self) -> Future[None]:
        """Look after nothing any more; tasks go on, for the next overlord to find."""
        return self._call(self._stop, "stop")

    # Supervisors

    def submit_supervisor(self, raw: bytes | dict[str, JsonValue]) -> Future[str]:
        """Start a supervisor, or give a running one another spec; return its id.

        Raises:
            SpecError: The spec has mistakes; all are listed.
        """
        spec = parse_supervisor_spec(raw)
        return self._call(lambda: self._put(spec).id, "submit a supervisor")

    def put_supervisor(
        self, raw: bytes | dict[str, JsonValue], *, skip_unmodified: bool = False
    ) -> Future[Submitted]:
        """As `submit_supervisor`, and tell what changed.

        Args:
            raw: The spec.
            skip_unmodified: Whether a spec that asks for nothing new is not even stored.

        Raises:
            SpecError: The spec has mistakes; all are listed.
        """
        spec = parse_supervisor_spec(raw)
        return self._call(
            lambda: self._put(spec, skip_unmodified=skip_unmodified), "submit a supervisor"
        )

    def backfill(self, supervisor_id: str, *, task_count: int | None = None) -> Future[str]:
        """Go on at the latest messages, and have another supervisor read what lies before.

        Returns the id of the other. The future raises InvalidRequest if the supervisor's spec or
        state does not allow it.
        """
        return self._call(lambda: self._backfill(supervisor_id, task_count), "backfill")

    def suspend(self, supervisor_id: str, *, suspended: bool = True) -> Future[SupervisorSpec]:
        """Have a supervisor publish what is read and read no more; or, not suspended, go on.

        The future raises InvalidRequest if it is so already, NotFound if it is not there.
        """
        return self._call(lambda: self._suspend(supervisor_id, suspended=suspended), "suspend")

    def resume(self, supervisor_id: str) -> Future[SupervisorSpec]:
        """Have a suspended supervisor go on; as `suspend`."""
        return self.suspend(supervisor_id, suspended=False)

    def terminate(self, supervisor_id: str) -> Future[None]:
        """Have a supervisor publish what is read, then be gone. Committed offsets stay."""
        return self._call(lambda: self._terminate(supervisor_id), "terminate")

    def reset(self, supervisor_id: str, offsets: Offsets | None = None) -> Future[None]:
        """Set committed offsets, or begin anew; its tasks end without publishing."""
        return self._call(lambda: self._find(supervisor_id).reset(offsets), "reset")

    def hand_off(self, supervisor_id: str, groups: Sequence[int] | None = None) -> Future[None]:
        """Have task groups, or all, publish now."""
        return self._call(lambda: self._find(supervisor_id).hand_off(groups), "hand off")

    def supervisor_status(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return how a supervisor stands, in Druid's JSON."""
        now_ms = self._ports.clock.now_ms
        return self._call(
            lambda: supervisor_status(self._find(supervisor_id), now_ms()), "supervisor status"
        )

    def supervisor_stats(self, supervisor_id: str) -> Future[dict[str, object]]:
        """Return what a supervisor's tasks have counted, in Druid's JSON."""
        return self._call(lambda: supervisor_stats(self._find(supervisor_id)), "supervisor stats")

    def supervisors(self) -> Future[list[dict[str, object]]]:
        """Return an entry for each supervisor, in Druid's JSON."""
        return self._call(
            lambda: [supervisor_summary(self._supervisors[i]) for i in sorted(self._supervisors)],
            "supervisors",
        )

    def supervisor_spec(self, supervisor_id: str) -> Future[SupervisorSpec]:
        """Return a supervisor's spec; the future raises NotFound."""
        return self._call(lambda: self._find(supervisor_id).spec, "supervisor spec")

    def history(self, supervisor_id: str) -> Sequence[SupervisorRow]:
        """Return all versions of a supervisor's spec, the newest first.

        Raises:
            NotFound: There never was one.
        """
        rows = self._ports.metadata.supervisors.history(supervisor_id)
        if not rows:
            raise NotFound(f"there is no supervisor {supervisor_id!r}, and never was")
        return rows

    # Tasks

    def tasks(
        self, *, active: bool | None = None, datasource: str | None = None, limit: int | None = None
    ) -> list[TaskView]:
        """Return tasks, the newest first."""
        known = self._queue.active()
        rows = self._ports.metadata.tasks.list(active=active, datasource=datasource, limit=limit)
        return [_view(row, known) for row in rows]

    def task(self, task_id: str) -> TaskView:
        """Return a task.

        Raises:
            NotFound: There is none.
        """
        row = self._ports.metadata.tasks.get(task_id)
        if row is None:
            raise NotFound(f"there is no task {task_id!r}")
        return _view(row, self._queue.active())

    def shutdown_task(self, task_id: str, reason: str = "shut down by a user") -> Future[bool]:
        """End a task without publishing; false if it is not active."""
        return self._call(lambda: self._queue.shutdown(task_id, reason), "shut down a task")

    def perform_action(self, task_id: str, action: object) -> object:
        """Do a task's action; JSON in and out. Blocks.

        Raises:
            InvalidRequest: It is no action.
            LockRevoked: The task is not active.
            Unavailable: The overlord is starting, or the metadata store does not answer.
        """
        return self._handler.perform(task_id, action)

    def location(self, task_id: str) -> TaskLocation | None:
        """Return where a task's peon answers, None if nobody knows."""
        active = self._queue.active().get(task_id)
        return None if active is None else active.location

    def active_tasks(self) -> Mapping[str, ActiveStream]:
        """Return the active tasks, with the worker of each."""
        return self._queue.active()

    def slots(self) -> Future[dict[str, int]]:
        """Return how many tasks each worker runs at most, by name."""
        return self._call(self._queue.slots, "slots")

    # The mailbox thread

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit(command, description)

    def _start(self) -> None:
        self._queue.start()
        for row in self._ports.metadata.supervisors.list():
            try:
                self._run(parse_supervisor_spec(_json_object(row.payload)))
            except InvalidRequest as error:
                # One that an older release took must not keep the others from starting.
                _log.error("supervisor %s cannot be started: %s", row.id, error)
        self._end_tasks_of_terminated()
        if self._ports.janitor is not None:
            self._processor.timers.schedule_every(
                self._options.sweep_interval_ms, self._sweep, "sweep"
            )

    def _end_tasks_of_terminated(self) -> None:
        """Go on with terminations that an overlord before this one did not see to the end."""
        for task_id, active in self._queue.active().items():
            supervisor_id = active.task.supervisor_id
            if supervisor_id in self._supervisors:
                continue
            try:
                self._run(parse_supervisor_spec(_json_object(self._last_spec(supervisor_id))))
                self._supervisors[supervisor_id].stop()
            except (InvalidRequest, NotFound) as error:
                # Nobody would ever tell it its end. What it has not published is committed nowhere,
                # so whoever reads the topic next reads that again.
                self._queue.shutdown(task_id, f"nobody looks after it: {error}")

    def _last_spec(self, supervisor_id: str) -> Mapping[str, object]:
        versions = self._ports.metadata.supervisors.history(supervisor_id)
        if not versions:
            raise NotFound(f"there is no supervisor {supervisor_id!r}")
        return versions[0].payload

    def _stop(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.abandon()
        self._supervisors.clear()

    def _run(self, spec: SupervisorSpec) -> None:
        supervisor_id = spec.supervisor_id
        ports = self._ports
        supervisor = Supervisor(
            spec,
            SupervisorPorts(
                metadata=ports.metadata,
                queue=self._queue,
                broker=ports.broker,
                peons=ports.peons,
                lanes=ports.lanes,
                processor=self._processor,
                clock=ports.clock,
                new_token=ports.new_token,
            ),
            self._options.supervisors,
            stopped=lambda: self._gone(supervisor_id),
        )
        self._supervisors[supervisor_id] = supervisor
        supervisor.start()

    def _gone(self, supervisor_id: str) -> None:
        self._supervisors.pop(supervisor_id, None)
        _log.info("supervisor %s has ended", supervisor_id)

    def _put(self, spec: SupervisorSpec, *, skip_unmodified: bool = False) -> Submitted:
        supervisor_id = spec.supervisor_id
        running = self._supervisors.get(supervisor_id)
        if running is not None and running.is_stopping:
            raise Unavailable(
                f"supervisor {supervisor_id} is being terminated, its tasks still publish:"
                " submit it again when it is gone"
            )
        before = self._spec_before(supervisor_id) if running is None else running.spec
        spec = succeed(before, spec)
        action = UpdateAction.RESTART_SUPERVISOR_AND_TASKS
        if running is not None:
            action = update_action(running.spec, spec)
            if action is UpdateAction.NONE and skip_unmodified:
                return Submitted(supervisor_id, modified=False, restarted=False)
        self._ports.metadata.supervisors.put(supervisor_id, spec.to_json())
        if running is not None:
            running.update(spec)
        else:
            self._run(spec)
        return Submitted(
            supervisor_id,
            modified=action is not UpdateAction.NONE,
            restarted=action is UpdateAction.RESTART_SUPERVISOR_AND_TASKS,
        )

    def _spec_before(self, supervisor_id: str) -> SupervisorSpec | None:
        """Return the spec of a terminated supervisor that left committed offsets, if one did."""
        if not self._ports.metadata.offsets(supervisor_id):
            return None
        try:
            return parse_supervisor_spec(_json_object(self._last_spec(supervisor_id)))
        except (InvalidRequest, NotFound):
            return None

    def _backfill(self, supervisor_id: str, task_count: int | None) -> str:
        supervisor = self._find(supervisor_id)
        # Suspended until the one has let go of what the other is to read: whatever dies between
        # the two, nothing is read by both, and what is to be resumed is there to see.
        piece = supervisor.cut_backfill(task_count).with_suspended(True)  # noqa: FBT003 - its name says it
        self._put(piece)
        supervisor.leave_behind(piece)
        self._suspend(piece.supervisor_id, suspended=False)
        return piece.supervisor_id

    def _suspend(self, supervisor_id: str, *, suspended: bool) -> SupervisorSpec:
        supervisor = self._find(supervisor_id)
        if supervisor.spec.suspended == suspended:
            state = "suspended" if suspended else "running"
            raise InvalidRequest(f"supervisor {supervisor_id} is already {state}")
        spec = supervisor.spec.with_suspended(suspended)
        self._ports.metadata.supervisors.put(supervisor_id, spec.to_json())
        supervisor.update(spec)
        return spec

    def _terminate(self, supervisor_id: str) -> None:
        supervisor = self._find(supervisor_id)
        if not supervisor.is_stopping:
            self._ports.metadata.supervisors.terminate(supervisor_id)
            supervisor.stop()

    def _find(self, supervisor_id: str) -> Supervisor:
        supervisor = self._supervisors.get(supervisor_id)
        if supervisor is None:
            known = ", ".join(sorted(self._supervisors)) or "none"
            raise NotFound(f"there is no supervisor {supervisor_id!r}; there are: {known}")
        return supervisor

    def _supervisor_of(self, task_id: str) -> Supervisor | None:
        active = self._queue.active().get(task_id)
        return None if active is None else self._supervisors.get(active.task.supervisor_id)

    def _checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        supervisor = self._supervisor_of(task_id)
        if supervisor is not None:
            supervisor.checkpoint_wanted(task_id, start)

    def _task_ended(self, task: StreamTaskSpec, state: TaskState, error: str) -> None:
        supervisor = self._supervisors.get(task.supervisor_id)
        if supervisor is not None:
            supervisor.task_ended(task, state, error)

    def _sweep(self) -> None:
        janitor = self._ports.janitor
        if janitor is not None and not self._sweeping.busy:
            self._sweeping.start(janitor.sweep, _log_sweep)


class _Desk:
    """What the action handler asks of the overlord and tells it; any thread.

    Args:
        queue: Knows the active tasks.
        processor: The overlord's mailbox.
        checkpoint_wanted: Told, on the mailbox thread, of a full sequence.
    """

    def __init__(
        self,
        queue: TaskQueue,
        processor: MailboxProcessor,
        checkpoint_wanted: Callable[[str, Offsets], None],
    ) -> None:
        self._queue = queue
        self._executor = processor.main_executor
        self._checkpoint_wanted = checkpoint_wanted

    def active_task(self, task_id: str) -> StreamTaskSpec | None:
        """Return the task if it is active."""
        active = self._queue.active().get(task_id)
        return None if active is None else active.task

    def location_changed(self, task_id: str, location: TaskLocation) -> None:
        """A peon says where it answers."""
        self._post(lambda: self._queue.location_changed(task_id, location), "location changed")

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's sequence is full."""
        offsets = dict(start)
        self._post(lambda: self._checkpoint_wanted(task_id, offsets), "checkpoint wanted")

    def published(self, task_id: str) -> None:
        """A task has moved committed offsets; its supervisor sees that when it looks."""

    def _post(self, command: Callable[[], None], description: str) -> None:
        # A closed mailbox means that this overlord stops; the task tells the next one again.
        with suppress(Closed):
            self._executor.execute(command, description)


def _log_sweep(report: SweepReport) -> None:
    _log.debug("swept: %s", report)


def _view(row: TaskRow, known: Mapping[str, ActiveStream]) -> TaskView:
    active = known.get(row.id)
    if active is None:
        return TaskView(row, "NONE", None)
    if active.worker is None:
        return TaskView(row, "WAITING", None)
    return TaskView(row, "PENDING" if active.location is None else "RUNNING", active.location)


def _json_object(payload: Mapping[str, object]) -> dict[str, JsonValue]:
    value: dict[str, JsonValue] = dict(payload)  # type: ignore[arg-type]  # it was stored as JSON
    return value
