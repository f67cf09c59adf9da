"""One leadership term of an overlord: all components that exist only while it leads.

`LeaderTerm` creates its components from the metadata store and the reports of workers, and
takes over nothing from an earlier term of the same process. Start order, reversed at the stop:
locks and tasks with the runner (half leader: tasks and their actions are served), supervisors,
duties (full leader). `slot_demand` computes how many task slots the stream supervisors use and
whether they leave any for batch tasks: a supervisor needs one slot for each reading task and as
many again while the previous tasks publish. It is pure.

Threading: on the overlord's mailbox, except where a method states otherwise. Invariant: every
write of the term goes to a store that refuses it once a newer term has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, InvalidRequest, PenstockError, counted
from penstock.indexing.lockbox.lock_store import AlertingLockStore, MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.operator_events import NoEvents
from penstock.indexing.overlord.action_handler import ActionHandler
from penstock.indexing.overlord.duties import DutyRounds, DutyTools
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.runner.worker_config import CONFIG_NAME, parse_worker_config
from penstock.indexing.overlord.supervisor_registry import Supervisors
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.supervisor import SupervisorOptions, SupervisorPorts
from penstock.mailbox.event_mail import EventMail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import WaitTable
    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.duties import Duty
    from penstock.indexing.overlord.task_index import ActiveTask
    from penstock.indexing.overlord.task_state import EndedTask
    from penstock.indexing.ports import (
        BrokerPort,
        TaskClient,
        WorkerDirectory,
    )
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor import Supervisor
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.metadata import MetadataStore


_WANT_NOTHING: Final = frozenset({"SUSPENDED", "STOPPING", "IDLE", "COMPLETED"})
_REMEDY: Final = (
    "give workers more slots (--worker-capacity), suspend a supervisor, or lower taskCount or"
    " replicas"
)


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """Demand of supervisors for slots.

    Attributes:
        supervisors: Number of supervisors that need slots.
        reading: Number of their reading tasks.
        capacity: Number of slots of all workers; 0 if there is no worker, which is reported
            elsewhere.
    """

    supervisors: int
    reading: int
    capacity: int

    @property
    def shortage(self) -> str:
        """Description of the shortage and its remedy; empty if there is none.

        There is none if the slots suffice for the maximum demand of the supervisors, even if other
        tasks may then have to wait until a publish is over.
        """
        publishing = 2 * self.reading
        if not self.capacity or (self.reading < self.capacity and publishing <= self.capacity):
            return ""
        who = counted(self.supervisors, "supervisor needs", "supervisors need")
        when = "at all times" if self.reading >= self.capacity else "while their tasks publish"
        return (
            f"{who} {counted(self.reading, 'slot')} for reading tasks, and up to {publishing}"
            f" while the tasks before them publish, of {self.capacity} available: {when} batch"
            f" tasks wait. To fix it, {_REMEDY}"
        )


def tasks_wanted(supervisor: Supervisor) -> int:
    """Return how many tasks of a supervisor read at a time, over all its groups."""
    if supervisor.snapshot.state in _WANT_NOTHING:
        return 0
    io = supervisor.spec.io
    partitions = len(supervisor.snapshot.latest()[0])
    # Without a stream partition there is no group; before they are known, assume all groups.
    groups = min(io.task_count, partitions) if partitions else io.task_count
    return groups * io.replicas


def slot_demand(supervisors: Iterable[Supervisor], capacity: int) -> SlotDemand:
    """Return the demand of supervisors for slots, given the number of slots."""
    wanted = [count for one in supervisors if (count := tasks_wanted(one))]
    return SlotDemand(len(wanted), sum(wanted), capacity)


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverlordOptions:
    """Options of the overlord."""

    queue: TaskQueueOptions = field(default_factory=TaskQueueOptions)
    supervisors: SupervisorOptions = field(default_factory=SupervisorOptions)


@dataclass(frozen=True, slots=True)
class OverlordPorts:
    """Dependencies of the overlord.

    Attributes:
        metadata: The metadata store, not bound to a term.
        broker: The topics.
        peons: Client of running tasks; finds a peon's address with `TaskService.location`.
        workers: The announced workers.
        lanes: Lanes for blocking calls.
        lock_lanes: A lane for the locks, allocations and commits of each datasource. Separate from
            `lanes`, so that no commit waits for a worker's answer.
        clock: The clock.
        new_token: Returns a unique string.
        duties: Creates the duties of a term.
        deposed: Called on the mailbox thread when another term has started and ended this one.
        events: Reports events to operators.
    """

    metadata: MetadataStore
    broker: BrokerPort
    peons: TaskClient
    workers: WorkerDirectory
    lanes: Lanes
    lock_lanes: Lanes
    clock: Clock
    new_token: Callable[[], str]
    duties: Callable[[DutyTools], Sequence[Duty]] = lambda _tools: ()
    deposed: Callable[[], None] = lambda: None
    events: Events = field(default_factory=NoEvents)


class LeaderTerm:
    """A term of leadership.

    Args:
        processor: The overlord's mailbox.
        ports: The overlord's ports.
        options: The overlord's options.
        metadata: The metadata store, bound to the term.
        number: The term's number; 0 if no other process can lead.
        waits: Table in which duties record the dependencies that they wait for.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        ports: OverlordPorts,
        options: OverlordOptions,
        metadata: MetadataStore,
        number: int,
        waits: WaitTable,
    ) -> None:
        self.number: Final = number
        self._processor = processor
        self._ports = ports
        self.metadata: Final = metadata
        self.lockboxes: Final = Lockboxes(
            AlertingLockStore(MetadataLockStore(metadata.locks), ports.events),
            ports.lock_lanes,
            clock=ports.clock,
            changes=EventMail(processor, self._locks_changed, "locks changed"),
        )
        self.queue: Final = TaskQueue(
            QueuePorts(
                metadata=metadata,
                lockboxes=self.lockboxes,
                directory=ports.workers,
                lanes=ports.lanes,
                processor=processor,
                clock=ports.clock,
                events=ports.events,
                # Urgent, so that no supervisor finds a task in its group that is no longer active.
                ended=EventMail(processor, self._task_ended, "a task ended", is_urgent=True),
                compared=EventMail(
                    processor, self._tasks_compared, "tasks compared", is_urgent=True
                ),
            ),
            options=options.queue,
        )
        self.access: Final = TermAccess(self, processor)
        self.handler: Final = ActionHandler(
            metadata, self.lockboxes, ports.lock_lanes, self.access, self.access, ports.clock
        )
        self.supervisors: Final = Supervisors(
            SupervisorPorts(
                metadata=metadata,
                queue=self.queue,
                broker=ports.broker,
                peons=ports.peons,
                lanes=ports.lanes,
                processor=processor,
                clock=ports.clock,
                new_token=ports.new_token,
                events=ports.events,
            ),
            replace(options.supervisors, task_context=options.queue.context),
        )
        self._task_context = options.queue.context
        self._waits = waits
        self._duties: DutyRounds | None = None
        self.is_full = False
        self._is_stopped = False

    def start(self) -> None:
        """Start; tasks and actions are served from now on, everything else when this returns.

        Raises:
            Unavailable: The metadata store does not answer: nothing was started.
        """
        self.queue.start()
        stored = self.metadata.config.get(CONFIG_NAME)
        if stored is not None:
            try:
                self.queue.configure(parse_worker_config(stored))
            except InvalidRequest as error:  # Written by another release; the term starts anyway.
                _log.error("the worker config is invalid, so the default applies: %s", error)
        self.supervisors.start()
        self._duties = DutyRounds(
            self._ports.duties(self.tools), self._ports.lanes, self._processor, self._waits
        )
        self._duties.start()
        self.is_full = True

    def stop(self) -> None:
        """Stop; tasks continue for the next leader."""
        self.is_full, self._is_stopped = False, True
        if self._duties is not None:
            self._duties.stop()
        self.supervisors.stop()
        self.queue.stop()
        self.lockboxes.close()

    @property
    def tools(self) -> DutyTools:
        """Dependencies of the duties. Raises NotLeading before the tasks are read."""
        return DutyTools(
            metadata=self.metadata,
            lockboxes=self.lockboxes,
            index=self.queue.index,
            submit=lambda task: self._processor.main_executor.submit_change(
                lambda: self.queue.add(task), "a duty's task"
            ),
            slots=lambda: self._processor.main_executor.submit(self._slots, "a duty's question"),
            clock=self._ports.clock,
            new_token=self._ports.new_token,
            task_context=self._task_context,
            events=self._ports.events,
        )

    def shortage(self) -> str:
        """Describe how supervisors leave too few slots for other tasks; empty if they do not."""
        return slot_demand(self.supervisors.streams.all(), self._slots()).shortage

    def _slots(self) -> int:
        return self.queue.runner.capacity

    # Events, each in a mail of its own

    def _task_ended(self, ended: EndedTask) -> None:
        task = ended.task
        self.access.ended(task.id)
        try:
            self.supervisors.streams.task_ended(task, ended.state, ended.error)
        except PenstockError as failure:
            _log.warning("the follow-up of the end of task %s is delayed: %s", task.id, failure)

    def _tasks_compared(self, _event: None) -> None:
        # After `stop` no supervisor runs, so every task would look as if it had none.
        if not self._is_stopped:
            self.supervisors.streams.tasks_compared()

    def _locks_changed(self, change: LocksChanged) -> None:
        self.queue.locks_changed(change)


class CurrentTerm:
    """The term that an overlord leads now. Any thread reads it; the overlord's mailbox sets it.

    Attributes:
        term: The term; None if the overlord does not lead.
    """

    def __init__(self) -> None:
        self.term: LeaderTerm | None = None

    def lead(self) -> LeaderTerm:
        """Return the term if the overlord leads, even if the term is not full yet.

        Raises:
            NotLeading: The overlord does not lead.
        """
        term = self.term
        if term is None:
            raise NotLeading("this overlord does not lead: ask the leader, or try again")
        return term

    def full(self) -> LeaderTerm:
        """Return the term once it has started completely.

        Raises:
            NotLeading: The overlord does not lead, or is still starting to lead.
        """
        term = self.lead()
        if not term.is_full:
            raise NotLeading("this overlord is still starting to lead: try again")
        return term


class TermAccess:
    """Thread-safe access to the term, for the action handler.

    Args:
        term: The term.
        processor: The overlord's mailbox.
    """

    def __init__(self, term: LeaderTerm, processor: MailboxProcessor) -> None:
        self._term = term
        self._executor = processor.main_executor
        # Set by threads that perform actions, one assignment each; read to explain waits.
        self._waits: dict[str, str] = {}

    def active_task(self, task_id: str) -> TaskSpec | None:
        """Return the task if it is active."""
        active = self._term.queue.index.get(task_id)
        return None if active is None else active.task

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        """Return the active tasks of a supervisor."""
        return self._term.queue.index.of_supervisor(supervisor_id)

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full."""
        offsets, task = dict(start), self.active_task(task_id)
        if task is not None:
            self._post(
                lambda: self._term.supervisors.streams.checkpoint_wanted(task, offsets),
                "checkpoint wanted",
            )

    def waits(self, task_id: str, reason: str) -> None:
        """A running task waits, or, with an empty reason, continues."""
        if reason:
            self._waits[task_id] = reason
            if self.active_task(task_id) is None:  # The task has ended since its action.
                self.ended(task_id)
        else:
            self._waits.pop(task_id, None)

    def why(self, task_id: str) -> str:
        """Return the reason for which a running task last waited, empty if none."""
        return self._waits.get(task_id, "")

    def ended(self, task_id: str) -> None:
        """Delete the wait reason of an ended task."""
        self._waits.pop(task_id, None)

    def _post(self, command: Callable[[], None], description: str) -> None:
        # A closed mailbox means that this overlord stops; the task reports again to the next one.
        with suppress(Closed):
            self._executor.execute(command, description)
