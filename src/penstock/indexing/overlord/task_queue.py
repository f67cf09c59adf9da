"""The task queue: the active tasks and their progress towards a worker.

Owns the states of the tasks. `task_state` has the table of transitions: `TaskTurns` feeds it the
events and has the effects carried out: those on locks by `LockEffects`, those on workers by
`WorkerEffects`, those of ends by `EndEffects`; `TaskQueue` has the table of them, and the commands
of others. The events come from these commands, from the answers of the lockboxes (`lock_waits`), of
the workers (`runner`) and of the metadata store (`task_store`); these modules decide, and call
nobody. All state belongs to the overlord's mailbox; only `index` is for any thread. Durable state
is in the metadata store, from which a new overlord reads the active tasks and the worker of each.

A turn handles some events, then the events that their effects cause, then begins the calls of
workers that all of these need. Invariants:

- the first final state of a task is kept; from then on its actions are refused;
- a task's end is stored before its locks are released, and its locks are released before any task
  that waits for them is retried;
- no call waits for a worker, a lock or a log; the cost of an event depends on what it changes, not
  on the number of tasks.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import JsonValue

from penstock.core.errors import Closed, NotFound, PenstockError
from penstock.core.state_machine import Refusal
from penstock.indexing.events import NoEvents
from penstock.indexing.lockbox.lock_lane import lane_of
from penstock.indexing.overlord.errors import NotLeading, QueueFull
from penstock.indexing.overlord.lock_requests import lock_requests, lock_task
from penstock.indexing.overlord.lock_waits import LockWaits
from penstock.indexing.overlord.runner.runner import RunnerOptions, TaskRunner
from penstock.indexing.overlord.task_index import QueuedTasks, RunnerState, TaskIndex
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    QueuedTask,
    ReportedEvent,
    TaskEffect,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.overlord.task_store import (
    StoredTasks,
    TaskEnds,
    TaskWorkers,
    delete_leftovers,
    has_leftovers,
    new_row,
    taken,
    with_context,
)
from penstock.indexing.overlord.wait_reasons import WaitReason, reasons_of
from penstock.indexing.ports import TaskState
from penstock.mailbox.background_calls import CallDispatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import Outcome, Removal
    from penstock.indexing.overlord.lock_waits import LockAttempt, LockAttemptResult
    from penstock.indexing.overlord.runner.worker_config import WorkerConfig
    from penstock.indexing.overlord.runner.worker_table import RunnerTasks
    from penstock.indexing.overlord.task_store import ActiveRows
    from penstock.indexing.ports import TaskLocation, WorkerDirectory
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import MetadataStore, TaskRow

T = TypeVar("T")

_log = logging.getLogger(__name__)

METRICS_INTERVAL_MS: Final = 60_000
"""Interval at which counts of tasks are reported."""


@dataclass(frozen=True, slots=True)
class TaskQueueOptions:
    """Options of the task queue.

    Attributes:
        max_tasks: Maximum number of active tasks.
        payload_bytes_max: Maximum size of a task's JSON, in bytes.
        storage_sync_interval_ms: Interval of the comparisons with the metadata store.
        retry_ms: Delay before a retry after a failure of the store.
        context: Default context of new tasks.
        runner: Options of the runner.
    """

    max_tasks: int = 20_000
    payload_bytes_max: int = 16 << 20
    storage_sync_interval_ms: int = 60_000
    retry_ms: int = 1_000
    context: Mapping[str, JsonValue] = field(default_factory=dict)
    runner: RunnerOptions = field(default_factory=RunnerOptions)


@dataclass(frozen=True, slots=True)
class QueuePorts:
    """Dependencies of the task queue."""

    metadata: MetadataStore
    lockboxes: Lockboxes
    directory: WorkerDirectory
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    events: Events = field(default_factory=NoEvents)


class TaskMetrics:
    """Metrics of tasks: how long they wait and run, and how they end. On the overlord's mailbox.

    Times are measured in this term only: for a task that a former overlord handed over, only the
    end is counted, because its start is unknown.

    Args:
        events: Receives the metrics.
        clock: The clock.
    """

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._ends: Counter[tuple[TaskState, str]] = Counter()

    def granted(self, entry: QueuedTask) -> None:
        """A task has its locks; reported the first time only."""
        if entry.granted_ms is None:
            entry.granted_ms = self._clock.now_ms()
            self._measure("task/waiting/time", entry.granted_ms - entry.created_ms, entry)

    def runs(self, entry: QueuedTask) -> None:
        """A task runs at a worker; reported the first time only."""
        if entry.granted_ms is not None and entry.running_ms is None:
            entry.running_ms = self._clock.now_ms()
            self._measure("task/pending/time", entry.running_ms - entry.granted_ms, entry)

    def ended(self, entry: QueuedTask, state: TaskState) -> None:
        """A task's end has been stored."""
        self._ends[state, entry.task.datasource] += 1
        if entry.running_ms is not None:
            took_ms = self._clock.now_ms() - entry.running_ms
            self._measure("task/run/time", took_ms, entry, taskStatus=str(state))

    def count(self, active: Mapping[RunnerState, int]) -> None:
        """Report the number of tasks in each state, and the ends since the last report."""
        for state in (RunnerState.WAITING, RunnerState.PENDING, RunnerState.RUNNING):
            self._events.measured(f"task/{state.lower()}/count", active.get(state, 0))
        for (end, datasource), number in self._ends.items():
            self._events.measured(f"task/{end.lower()}/count", number, dataSource=datasource)
        self._ends.clear()

    def _measure(self, metric: str, took_ms: int, entry: QueuedTask, **more: str) -> None:
        task = entry.task
        self._events.measured(
            metric,
            max(took_ms, 0),  # The wall clock may be set back.
            taskId=task.id,
            taskType=task.type,
            groupId=task.group_name,
            dataSource=task.datasource,
            **more,
        )


class TaskTurns:
    """Turns of the queue. On the overlord's mailbox.

    A turn handles some events of tasks, then the events that their effects cause, then begins the
    calls of workers that all of these need. An effect may give commands to the queue: each is a
    turn of its own, within this one.

    Attributes:
        tasks: The tasks and workers of the runner.
        stopped: Whether the term is over: no effect is begun any longer.
    """

    def __init__(self, tasks: RunnerTasks) -> None:
        self.tasks: Final = tasks
        self.stopped = False
        self._reports: deque[ReportedEvent] = deque()
        self._effects: Mapping[TaskEffect, Callable[[ReportedEvent], object]] = {}
        self._workers: WorkerEffects

    def connect(
        self,
        effects: Mapping[TaskEffect, Callable[[ReportedEvent], object]],
        workers: WorkerEffects,
    ) -> None:
        """Set what carries out the effects, and begins calls at the end of a turn."""
        self._effects, self._workers = effects, workers

    def run(self, reports: Iterable[ReportedEvent]) -> None:
        """Handle events, and then what their effects cause."""
        outer, self._reports = self._reports, deque(reports)
        try:
            while self._reports or self._workers.has_unstored:
                if self._reports:
                    self._handle(self._reports.popleft())
                else:
                    self._reports.extend(self._workers.store_all())
        finally:
            self._reports = outer
        self._workers.begin_calls()

    def add(self, report: ReportedEvent) -> None:
        """Add an event that an effect of the current turn has caused."""
        self._reports.append(report)

    def _handle(self, report: ReportedEvent) -> None:
        entry = report.entry
        outcome = TASK_MACHINE.transition(entry.state, report.event)
        if isinstance(outcome, Refusal):
            return  # `TaskQueue._shut_down` asked before.
        moves = outcome.state is not entry.state
        if moves or TaskEffect.PUBLISH in outcome.effects:
            self.tasks.enter(entry, outcome.state)
        if moves and entry.is_ending and report.end is not None and entry.end is None:
            entry.end = report.end  # The first end stands, also if a further event follows.
        for effect in outcome.effects:
            self._effects[effect](report)


class LockEffects:
    """Effects on the locks of tasks: requests, yields and releases. On the overlord's mailbox.

    Args:
        ports: The dependencies of the queue.
        turns: Handles the events that answers of the lockboxes bring.
        calls: Returns these answers as mail.
        retry_ms: Delay before a retry after a failure of the store.
    """

    def __init__(
        self, ports: QueuePorts, turns: TaskTurns, calls: CallDispatcher, retry_ms: int
    ) -> None:
        self._metadata = ports.metadata
        self._lockboxes = ports.lockboxes
        self._timers = ports.processor.timers
        self._turns = turns
        self._calls = calls
        self._retry_ms = retry_ms
        self._waits = LockWaits()

    def add_task(self, report: ReportedEvent) -> None:
        """Allow the task to request locks."""
        with suppress(Closed):  # The term is ending.
            self._lockboxes.add(lock_task(report.entry.task))

    def acquire(self, report: ReportedEvent) -> None:
        """Request the locks that the task needs before it starts."""
        requests = lock_requests(report.entry.task)
        if requests:
            self._attempt(self._waits.join(report.entry, requests))
        else:
            self._turns.add(ReportedEvent(report.entry, TaskEvent.LOCKS_GRANTED))

    def stop_acquiring(self, report: ReportedEvent) -> None:
        """Let the task wait for locks no longer, and try those behind it."""
        self._attempt(self._waits.leave(report.entry.task))

    def set_yielding(self, task: TaskSpec, *, yields: bool) -> None:
        """Set whether the locks of a task yield to other tasks."""
        if task.lock_wishes():
            with suppress(Closed):  # The term is ending.
                self._lockboxes.place(lock_task(task), waits=yields)

    def release(self, report: ReportedEvent) -> None:
        """Release the locks of a task that ended, then delete what belonged to them."""
        task = report.entry.task
        with suppress(Closed):
            self._calls.watch(
                self._lockboxes.remove(lock_task(task)),
                partial(self._removed, task),
                lambda error: _log.warning(
                    "locks of a task that ended are released later: %s", error
                ),
            )

    def changed(self, change: LocksChanged) -> None:
        """Acquire again the locks that tasks without a worker lost; try the tasks that waited."""
        if change.yielded and not self._turns.stopped:
            known = map(self._turns.tasks.entries.get, change.yielded)
            # A task that was handed to a worker at that moment acquires its locks there.
            self._turns.run(ReportedEvent(one, TaskEvent.LOCKS_YIELDED) for one in known if one)
        if change.released:
            self._attempt(self._waits.released(change.datasource, change.released))

    def position(self, task: TaskSpec) -> tuple[str, int]:
        """Return the task at the head of a task's line, and how many tasks are before it."""
        return self._waits.position(task)

    def _attempt(self, attempts: Iterable[LockAttempt]) -> None:
        """Request the locks of waiting tasks."""
        for attempt in attempts if not self._turns.stopped else ():
            with suppress(Closed):  # The term is ending.
                self._calls.watch(
                    self._lockboxes.acquire(attempt.requests, together=True, waits=True),
                    partial(self._answered, attempt),
                    partial(self._failed, attempt),
                )

    def _answered(self, attempt: LockAttempt, outcomes: list[Outcome]) -> None:
        if not self._turns.stopped:
            self._apply(attempt, self._waits.answered(attempt, outcomes))

    def _failed(self, attempt: LockAttempt, error: PenstockError) -> None:
        if not self._turns.stopped:
            self._apply(attempt, self._waits.failed(attempt, error))

    def _apply(self, attempt: LockAttempt, result: LockAttemptResult) -> None:
        if result.event is not None:
            end = None
            if result.reason:
                end = TaskEnd(attempt.task.id, TaskState.FAILED, result.reason, None)
            self._turns.run([ReportedEvent(attempt.entry, result.event, end=end)])
        if result.retry:
            retry = partial(self._try_again, attempt.task.datasource)
            self._timers.schedule_after(self._retry_ms, retry, "locks again")
        self._attempt(result.following)

    def _try_again(self, datasource: str) -> None:
        self._attempt(self._waits.released(datasource, frozenset()))

    def _removed(self, task: TaskSpec, removal: Removal) -> None:
        if not self._turns.stopped and has_leftovers(removal):
            self._calls.call(
                lane_of(task.datasource),
                partial(delete_leftovers, self._metadata, task, removal),
                lambda _none: None,
                # The janitor deletes it some hours later.
                lambda error: _log.info("data of ended task %s stays for now: %s", task.id, error),
            )


class WorkerEffects:
    """Effects on workers: who gets a task, which is stored first. On the overlord's mailbox.

    Args:
        ports: The dependencies of the queue.
        turns: Handles the events that follow.
        calls: Runs the calls of workers.
        runner: Chooses workers, and has the calls to begin.
        retry_ms: Delay before a retry after a failure of the store.
    """

    def __init__(
        self,
        ports: QueuePorts,
        turns: TaskTurns,
        calls: CallDispatcher,
        runner: TaskRunner,
        retry_ms: int,
    ) -> None:
        self._timers = ports.processor.timers
        self._executor = ports.processor.main_executor
        self._turns = turns
        self._calls = calls
        self._runner = runner
        self._retry_ms = retry_ms
        self._stored = TaskWorkers(ports.metadata)
        self._is_retrying = False  # A timer will store the workers that could not be stored.
        self._is_placing = False  # A mail will choose workers.

    def place_soon(self) -> None:
        """Choose workers for pending tasks soon, once for all changes until then."""
        if not self._is_placing and not self._turns.stopped and len(self._turns.tasks.pending):
            self._is_placing = True
            self._executor.execute(self._place, "hand tasks over")

    def poll(self) -> None:
        """List and poll the workers."""
        self._runner.poll()
        self._turns.run(self._turns.tasks.take_reports())

    def begin_calls(self) -> None:
        """Begin the calls of workers that the events so far need."""
        for call in self._runner.take_calls():
            done = partial(self._continue, call.done)
            self._calls.call(call.lane, call.work, done, partial(self._continue, call.failed))

    def store_worker(self, report: ReportedEvent) -> None:
        """Store the new name of a task's worker at the end of the turn.

        Another worker may take over the old name, and the next overlord would ask that worker.
        """
        self._stored.add(report.entry, report.worker)

    def return_task(self, report: ReportedEvent) -> None:
        """Store at the end of the turn that a task has no worker.

        Otherwise the next overlord would conclude that the task disappeared there.
        """
        self._stored.add(report.entry, None)

    @property
    def has_unstored(self) -> bool:
        """Whether workers of tasks are to be stored now."""
        return not self._is_retrying and self._stored.has_unstored

    def store_all(self) -> list[ReportedEvent]:
        """Store the workers that the events so far have changed; return the events that follow.

        After a failure, all of them are stored later, together with those of the turns until then.
        """
        returned = self._stored.store_all()
        if returned is None:
            self._is_retrying = True
            self._timers.schedule_after(self._retry_ms, self._store_again, "store workers again")
            return []
        return [ReportedEvent(entry, TaskEvent.NO_WORKER_STORED) for entry in returned]

    def _continue(self, step: Callable[[T], None], outcome: T) -> None:
        """Continue after a call of a worker: handle the events that its outcome brings."""
        step(outcome)
        tasks = self._turns.tasks
        if tasks.reports:
            self._turns.run(tasks.take_reports())
        else:
            self.begin_calls()
        if tasks.may_place:
            tasks.may_place = False
            self.place_soon()

    def _place(self) -> None:
        self._is_placing = False
        chosen = [] if self._turns.stopped else self._runner.select()
        # Stored first, so that the next overlord does not hand them to others.
        if chosen and self._stored.store({entry.task.id: name for entry, name in chosen}):
            self._turns.run(
                ReportedEvent(entry, TaskEvent.WORKER_STORED, name) for entry, name in chosen
            )

    def _store_again(self) -> None:
        self._is_retrying = False
        if not self._turns.stopped:
            self._turns.run(())


class EndEffects:
    """Effects of the ends of tasks: stores and reports them. On the overlord's mailbox.

    Args:
        ports: The dependencies of the queue.
        turns: Handles the events that follow.
        metrics: Receives the ends.
        completed: Called for each task that ended, after its locks were released.
        retry_ms: Delay before a retry after a failure of the store.

    Attributes:
        stored: The ends that are to be stored.
    """

    def __init__(
        self,
        ports: QueuePorts,
        turns: TaskTurns,
        metrics: TaskMetrics,
        completed: Callable[[TaskSpec, TaskState, str], None],
        retry_ms: int,
    ) -> None:
        self.stored: Final = TaskEnds(ports.metadata, ports.clock, ports.events)
        self._timers = ports.processor.timers
        self._executor = ports.processor.main_executor
        self._turns = turns
        self._metrics = metrics
        self._completed = completed
        self._retry_ms = retry_ms
        self._is_storing = False  # A mail or a timer will store the ends.

    def store(self, report: ReportedEvent) -> None:
        """Store the end of a task soon, with all others that end until then."""
        self.stored.add(report.entry)
        if not self._is_storing:
            self._is_storing = True
            with suppress(Closed):  # The overlord stops; the next one gets the ends from workers.
                self._executor.execute(self._store_all, "store ends")

    def report(self, report: ReportedEvent) -> None:
        """Count and log the end of a task."""
        end = report.entry.end
        assert end is not None
        self._metrics.ended(report.entry, end.state)
        _log.info("task %s ended: %s %s", end.task_id, end.state, end.error)

    def notify(self, report: ReportedEvent) -> None:
        """Have the end of a task followed up, by its supervisor for example."""
        task, end = report.entry.task, report.entry.end
        assert end is not None
        try:
            self._completed(task, end.state, end.error)
        except PenstockError as failure:
            _log.warning("the follow-up of the end of task %s is delayed: %s", task.id, failure)

    def _store_all(self) -> None:
        stored = [] if self._turns.stopped else self.stored.store_all()
        if stored is None:
            self._timers.schedule_after(self._retry_ms, self._store_all, "store ends")
            return
        self._is_storing = False
        self._turns.run(ReportedEvent(entry, TaskEvent.END_STORED) for entry in stored)


class TaskQueue:
    """The queue of active tasks. On the overlord's mailbox, except for `index`.

    Args:
        ports: Its dependencies.
        completed: Called for each task that ended, after its locks were released.
        compared: Called when tasks may have been added or removed that only the store knew.
        options: Options of the queue.

    Attributes:
        runner: The tasks that wait for a worker or are at one.
    """

    def __init__(
        self,
        ports: QueuePorts,
        *,
        completed: Callable[[TaskSpec, TaskState, str], None],
        compared: Callable[[], None] = lambda: None,
        options: TaskQueueOptions,
    ) -> None:
        self._metadata = ports.metadata
        self._lockboxes = ports.lockboxes
        self._timers = ports.processor.timers
        self._clock = ports.clock
        self._compared = compared
        self._options = options
        self._calls = CallDispatcher(ports.lanes, ports.processor)
        self._tasks = QueuedTasks()
        self._metrics = TaskMetrics(ports.events, ports.clock)
        self._stored = StoredTasks(ports.metadata)
        self.runner: Final = TaskRunner(
            self._tasks.entries, ports.directory, ports.clock, ports.events, options.runner
        )
        retry_ms = options.retry_ms
        self._turns = turns = TaskTurns(self.runner.tasks)
        self._locks = LockEffects(ports, turns, self._calls, retry_ms)
        self._workers = WorkerEffects(ports, turns, self._calls, self.runner, retry_ms)
        self._ends = EndEffects(ports, turns, self._metrics, completed, retry_ms)
        turns.connect(self._effect_methods(), self._workers)
        self._rounds: list[Timer] = []
        self._started = False

    @property
    def index(self) -> TaskIndex:
        """The active tasks. Any thread.

        Raises:
            NotLeading: The tasks have not been read yet.
        """
        if not self._started:
            raise NotLeading("the overlord is starting and has not read its tasks yet: try again")
        return self._tasks.index

    # A term

    def start(self) -> None:
        """Take over the locks, then the tasks, and start to poll the workers.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        found = [
            (self._tasks.make(one.task, one.created_ms), one.worker)
            for one in self._stored.active()
        ]
        lost = self._lockboxes.sync([lock_task(entry.task) for entry, _worker in found])
        self._turns.run(
            ReportedEvent(entry, TaskEvent.FOUND)
            if worker is None
            else ReportedEvent(entry, TaskEvent.FOUND_AT_WORKER, worker)
            for entry, worker in found
        )
        self._started = True
        reason = "its group lost a lock while no overlord led"
        entries = self._tasks.entries
        self._turns.run(
            ReportedEvent(
                entries[task_id],
                TaskEvent.LOCKS_DENIED,
                end=TaskEnd(task_id, TaskState.FAILED, reason, None),
            )
            for task_id in lost
            if task_id in entries
        )
        self._turns.run([ReportedEvent(entry, TaskEvent.TERM_BEGAN) for entry in entries.values()])
        every, options = self._timers.schedule_every, self._options
        poll_ms = options.runner.sync_interval_ms
        self._rounds = [
            every(poll_ms, self._workers.poll, "list the workers", first_after_ms=0),
            every(options.storage_sync_interval_ms, self._compare, "compare tasks"),
            every(METRICS_INTERVAL_MS, self._count, "count tasks"),
        ]

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that the queue itself waits for. Any thread."""
        return self._ends.stored.waits.all()

    def stop(self) -> None:
        """Stop; tasks continue at their workers."""
        self._turns.stopped = True
        self.runner.stop()
        for round_ in self._rounds:
            round_.cancel()

    # Adding tasks

    def add(self, task: TaskSpec) -> None:
        """Store a new task; it goes to a worker once it has its locks and a slot is free.

        Raises:
            InvalidRequest: Its id is not valid as a folder name, or the task is too large.
            Conflict: A task with this id exists.
            QueueFull: The queue holds its maximum number of tasks.
            Unavailable: The metadata store does not answer.
        """
        (refusal,) = self.add_all([task])
        if refusal is not None:
            raise refusal

    def add_all(self, tasks: Sequence[TaskSpec]) -> list[PenstockError | None]:
        """Store new tasks in one transaction; return an error or None for each.

        Raises:
            Unavailable: The metadata store does not answer; no task is stored.
        """
        tasks = [with_context(task, self._options.context) for task in tasks]
        refusals: list[PenstockError | None] = []
        rows: dict[str, TaskRow] = {}
        entries = self._tasks.entries
        # The store and the lists of active tasks must have the same time.
        now_ms, bytes_max = self._clock.now_ms(), self._options.payload_bytes_max
        for task in tasks:
            try:
                if task.id in entries or task.id in rows:
                    raise taken(task.id)
                before, most = len(entries) + len(rows), self._options.max_tasks
                if before >= most:
                    raise QueueFull(before, most)
                rows[task.id] = new_row(task, now_ms, payload_bytes_max=bytes_max)
            except PenstockError as error:
                refusals.append(error)
            else:
                refusals.append(None)
        known = self._metadata.tasks.insert_new(list(rows.values()))
        added = []
        for at, task in enumerate(tasks):
            if refusals[at] is None and task.id in known:
                refusals[at] = taken(task.id)
            elif refusals[at] is None:
                added.append(ReportedEvent(self._tasks.make(task, now_ms), TaskEvent.ADDED))
        self._turns.run(added)
        return refusals

    # Ending tasks

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task; return false if it is not active.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        return bool(self._shut_down([task_id], reason, state))

    def shutdown_all(self, task_ids: Sequence[str], reason: str) -> int:
        """End active tasks in one transaction; return how many of them were active.

        Raises:
            Unavailable: The metadata store does not answer; no task is ended.
        """
        return self._shut_down(task_ids, reason, TaskState.FAILED)

    def _shut_down(self, task_ids: Sequence[str], reason: str, state: TaskState) -> int:
        ends = [
            (entry, TaskEnd(task_id, state, reason, None))
            for task_id in dict.fromkeys(task_ids)
            if (entry := self._tasks.entries.get(task_id)) is not None
            and not isinstance(TASK_MACHINE.transition(entry.state, TaskEvent.SHUT_DOWN), Refusal)
        ]
        self._ends.stored.store(ends)
        # Locks and slots of one must not go to another of them: all are ending before one ended.
        self._turns.run(
            [
                *(ReportedEvent(entry, TaskEvent.SHUT_DOWN, end=end) for entry, end in ends),
                *(ReportedEvent(entry, TaskEvent.END_STORED) for entry, _end in ends),
            ]
        )
        return len(ends)

    # Events of others

    def locks_changed(self, change: LocksChanged) -> None:
        """Tasks released locks, or lost locks to other tasks."""
        self._locks.changed(change)

    def locate(self, task_id: str, location: TaskLocation) -> None:
        """A peon reported its address."""
        entry = self._tasks.entries.get(task_id)
        if entry is not None:
            self._tasks.locate(entry, location)

    def configure(self, config: WorkerConfig) -> None:
        """Apply a new config for selecting workers."""
        self.runner.configure(config)
        self._workers.place_soon()

    # Queries

    def why(self, task_id: str) -> list[WaitReason]:
        """Return the reason why a task waits; empty if it runs.

        Raises:
            NotFound: The task is not active.
        """
        active = self.index.get(task_id)
        if active is None:
            raise NotFound(f"task {task_id!r} is not active, so it waits for nothing")
        line = self._locks.position(active.task)
        refused = self._lockboxes.why(line[0])
        return reasons_of(active, line=line, refused=refused, slots=self.runner.why(task_id))

    # Effects

    def _effect_methods(self) -> Mapping[TaskEffect, Callable[[ReportedEvent], object]]:
        locks, workers, ends = self._locks, self._workers, self._ends
        runner, tasks = self.runner, self.runner.tasks
        return {
            TaskEffect.ADD_TO_LOCKBOX: locks.add_task,
            TaskEffect.ACQUIRE_LOCKS: locks.acquire,
            TaskEffect.STOP_ACQUIRING: locks.stop_acquiring,
            TaskEffect.LET_LOCKS_YIELD: lambda r: locks.set_yielding(r.entry.task, yields=True),
            TaskEffect.KEEP_LOCKS: lambda r: locks.set_yielding(r.entry.task, yields=False),
            TaskEffect.RELEASE_LOCKS: locks.release,
            TaskEffect.ASSIGN_WORKER: lambda r: tasks.assign(r.entry, r.worker),
            TaskEffect.CLEAR_WORKER: lambda r: tasks.clear(r.entry),
            TaskEffect.STORE_WORKER: workers.store_worker,
            TaskEffect.STORE_NO_WORKER: workers.return_task,
            TaskEffect.SEND: lambda r: runner.send(r.entry),
            TaskEffect.REST_WORKER: lambda r: runner.rest(r.worker),
            TaskEffect.POLL_WORKER: lambda r: runner.request_report(r.worker),
            TaskEffect.DISMISS: lambda r: runner.dismiss(r.worker, r.entry.task.id),
            TaskEffect.LEAVE_WORKER: lambda r: runner.leave(r.entry),
            TaskEffect.PLACE_TASKS: lambda _r: workers.place_soon(),
            TaskEffect.STORE_END: ends.store,
            TaskEffect.FORGET: lambda r: self._forget(r.entry.task.id),
            TaskEffect.REPORT_LOCK_WAIT: lambda r: self._metrics.granted(r.entry),
            TaskEffect.REPORT_SLOT_WAIT: lambda r: self._metrics.runs(r.entry),
            TaskEffect.REPORT_END: ends.report,
            TaskEffect.PUBLISH: lambda r: self._tasks.publish(r.entry),
            TaskEffect.NOTIFY: ends.notify,
        }

    def _forget(self, task_id: str) -> None:
        self._tasks.remove(task_id)
        self._ends.stored.forget(task_id)
        self._stored.task_ended(task_id)

    # Rounds

    def _count(self) -> None:
        self._metrics.count(self._tasks.index.counts())

    def _compare(self) -> None:
        """Compare the entries with the store, unless a comparison is running."""
        if self._turns.stopped or not self._stored.begin_comparison():
            return
        self._calls.call(
            "tasks",
            partial(self._stored.read, self._tasks.index),
            partial(self._end_comparison, self._tasks.next_number()),
            self._abandon_comparison,
        )

    def _end_comparison(self, since: int, stored: ActiveRows) -> None:
        stored = self._stored.end_comparison(stored)
        if self._turns.stopped:
            return
        reason = "it is no longer active in the metadata store"
        for entry in list(self._tasks.entries.values()):
            if entry.task.id not in stored and entry.number < since:
                end = TaskEnd(entry.task.id, TaskState.FAILED, reason, None)
                self._turns.run([ReportedEvent(entry, TaskEvent.GONE, end=end)])
        for one in self._stored.unknown(stored, self._tasks.entries):
            entry = self._tasks.make(one.task, one.created_ms)
            self._turns.run([ReportedEvent(entry, TaskEvent.ADDED)])
        self._compared()

    def _abandon_comparison(self, error: PenstockError) -> None:
        self._stored.abandon_comparison()
        _log.info("the tasks cannot be compared with the store: %s", error)


__all__ = ["QueuePorts", "TaskQueue", "TaskQueueOptions"]
