"""The task queue: the active tasks and their progress towards a worker.

Owns the states of the tasks. `task_state` has the table of transitions: the queue feeds it the
events and carries out the effects. The events come from its own methods, from the answers of the
lockboxes (`lock_waits`), of the workers (`runner`) and of the metadata store (`task_store`); these
modules decide, and call nobody. All state belongs to the overlord's mailbox; only `index` is for
any thread. Durable state is in the metadata store, from which a new overlord reads the active tasks
and the worker of each.

A turn handles some events, then the events that their effects cause, then begins the calls of
workers that all of these need. Invariants:

- the first final state of a task is kept; from then on its actions are refused;
- a task's end is stored before its locks are released, and its locks are released before any task
  that waits for them is retried;
- no call waits for a worker, a lock or a log; the cost of an event depends on what it changes, not
  on the number of tasks.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import JsonValue

from penstock.core.errors import Closed, NotFound, PenstockError, counted
from penstock.core.state_machine import Refusal
from penstock.indexing.errand import Calls
from penstock.indexing.events import NoEvents
from penstock.indexing.lockbox.lockboxes import lane_of
from penstock.indexing.overlord.errors import NotLeading, QueueFull
from penstock.indexing.overlord.lock_requests import lock_requests, lock_task
from penstock.indexing.overlord.lock_waits import LockWaits
from penstock.indexing.overlord.runner.runner import RunnerOptions, TaskRunner
from penstock.indexing.overlord.task_index import ActiveTask, RunnerState, TaskIndex
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    ActiveTaskState,
    QueuedTask,
    ReportedEvent,
    TaskEffect,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.overlord.task_store import (
    StoredTasks,
    TaskEnds,
    delete_leftovers,
    has_leftovers,
    new_row,
    taken,
    with_context,
)
from penstock.indexing.overlord.wait_reasons import WaitReason, reasons_of
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import Outcome, Removal
    from penstock.indexing.overlord.lock_waits import LockAttempt, LockAttemptResult
    from penstock.indexing.overlord.runner.worker_config import WorkerConfig
    from penstock.indexing.overlord.task_store import ActiveRows
    from penstock.indexing.ports import Lanes, TaskLocation, WorkerDirectory
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
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


class QueuedTasks:
    """The entries of the active tasks, and the index that publishes them to other threads.

    On the overlord's mailbox, except for `index`. Invariant: a task is in the table exactly as long
    as it is in the index.

    Attributes:
        index: Thread-safe view of the entries.
        entries: The entries by id, oldest first; read only.
    """

    def __init__(self) -> None:
        self.index: Final = TaskIndex()
        self.entries: Final[dict[str, QueuedTask]] = {}
        self._numbers = itertools.count()

    def next_number(self) -> int:
        """Return the next number: entries created from now on have larger ones."""
        return next(self._numbers)

    def make(self, task: TaskSpec, created_ms: int) -> QueuedTask:
        """Return an entry for a task; `publish` adds it to the table."""
        return QueuedTask(task, created_ms, self.next_number())

    def publish(self, entry: QueuedTask) -> None:
        """Add an entry, or publish its state and its worker."""
        self.entries[entry.task.id] = entry
        place = (entry.worker, entry.location, entry.taken, entry.confirmed, entry.waits)
        self.index.put(ActiveTask(entry.task, entry.created_ms, _shown(entry.state), *place))

    def locate(self, entry: QueuedTask, location: TaskLocation) -> None:
        """Set and publish the address of a task's peon."""
        shown = self.index.get(entry.task.id)
        if shown is not None and entry.location != location:
            entry.location = location
            self.index.put(replace(shown, location=location))

    def remove(self, task_id: str) -> None:
        """Remove an entry; unknown ids are ignored."""
        self.entries.pop(task_id, None)
        self.index.remove(task_id)


def _shown(state: ActiveTaskState) -> RunnerState:
    if state is ActiveTaskState.WAITING:
        return RunnerState.WAITING
    running = state is ActiveTaskState.RUNNING
    return RunnerState.RUNNING if running else RunnerState.PENDING


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
        self._executor = ports.processor.main_executor
        self._clock = ports.clock
        self._completed = completed
        self._compared = compared
        self._options = options
        self._calls = Calls(ports.lanes, ports.processor)
        self._tasks = QueuedTasks()
        self._metrics = TaskMetrics(ports.events, ports.clock)
        self._stored = StoredTasks(ports.metadata)
        self._ends = TaskEnds(ports.metadata, ports.clock, ports.events)
        self._locks = LockWaits()
        self.runner: Final = TaskRunner(
            self._tasks.entries, ports.directory, ports.clock, ports.events, options.runner
        )
        self._effects: Final = self._effect_methods()
        self._reports: deque[ReportedEvent] = deque()
        self._returned: list[QueuedTask] = []  # To be stored as tasks without a worker.
        self._is_storing = False  # A mail or a timer will store the ends.
        self._is_placing = False  # A mail will choose workers.
        self._rounds: list[Timer] = []
        self._started = False
        self._stopped = False

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
        self._turn(
            ReportedEvent(entry, TaskEvent.FOUND)
            if worker is None
            else ReportedEvent(entry, TaskEvent.FOUND_AT_WORKER, worker)
            for entry, worker in found
        )
        self._started = True
        reason = "its group lost a lock while no overlord led"
        entries = self._tasks.entries
        self._turn(
            ReportedEvent(
                entries[task_id],
                TaskEvent.LOCKS_DENIED,
                end=TaskEnd(task_id, TaskState.FAILED, reason, None),
            )
            for task_id in lost
            if task_id in entries
        )
        self._turn([ReportedEvent(entry, TaskEvent.TERM_BEGAN) for entry in entries.values()])
        every, options = self._timers.schedule_every, self._options
        poll_ms = options.runner.sync_interval_ms
        self._rounds = [
            every(poll_ms, self._poll_workers, "list the workers", first_after_ms=0),
            every(options.storage_sync_interval_ms, self._compare, "compare tasks"),
            every(METRICS_INTERVAL_MS, self._count, "count tasks"),
        ]

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that the queue itself waits for. Any thread."""
        return self._ends.waits.all()

    def stop(self) -> None:
        """Stop; tasks continue at their workers."""
        self._stopped = True
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
        self._turn(added)
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
        self._ends.store(ends)
        # Locks and slots of one must not go to another of them: all are ending before one ended.
        self._turn(
            [
                *(ReportedEvent(entry, TaskEvent.SHUT_DOWN, end=end) for entry, end in ends),
                *(ReportedEvent(entry, TaskEvent.END_STORED) for entry, _end in ends),
            ]
        )
        return len(ends)

    # Events of others

    def locks_released(self, datasource: str, task_ids: frozenset[str]) -> None:
        """These tasks released or lost locks: try the tasks that they blocked."""
        self._attempt(self._locks.released(datasource, task_ids))

    def locks_yielded(self, task_ids: Sequence[str]) -> None:
        """Tasks without a worker lost their locks to other tasks: acquire the locks again."""
        if not self._stopped:
            known = map(self._tasks.entries.get, task_ids)
            # A task that was handed to a worker at that moment acquires its locks there.
            self._turn(ReportedEvent(one, TaskEvent.LOCKS_YIELDED) for one in known if one)

    def locate(self, task_id: str, location: TaskLocation) -> None:
        """A peon reported its address."""
        entry = self._tasks.entries.get(task_id)
        if entry is not None:
            self._tasks.locate(entry, location)

    def configure(self, config: WorkerConfig) -> None:
        """Apply a new config for selecting workers."""
        self.runner.configure(config)
        self.place_soon()

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

    # Turns

    def _turn(self, reports: Iterable[ReportedEvent]) -> None:
        """Handle events, and then what their effects cause.

        `NOTIFY` may give commands to the queue: each is a turn of its own, within this one.
        """
        outer, self._reports = self._reports, deque(reports)
        try:
            while self._reports or self._returned:
                if self._reports:
                    self._handle(self._reports.popleft())
                else:
                    self._reports.extend(self._store_returns())
        finally:
            self._reports = outer
        self._begin_calls()

    def _begin_calls(self) -> None:
        """Begin the calls of workers that the events so far need."""
        for call in self.runner.take_calls():
            done = partial(self._continue, call.done)
            self._calls.call(call.lane, call.work, done, partial(self._continue, call.failed))

    def _handle(self, report: ReportedEvent) -> None:
        entry = report.entry
        outcome = TASK_MACHINE.transition(entry.state, report.event)
        if isinstance(outcome, Refusal):
            return  # `_shut_down` asked before.
        moves = outcome.state is not entry.state
        if moves or TaskEffect.PUBLISH in outcome.effects:
            self.runner.tasks.enter(entry, outcome.state)
        if moves and entry.is_ending and report.end is not None and entry.end is None:
            entry.end = report.end  # The first end stands, also if a further event follows.
        for effect in outcome.effects:
            self._effects[effect](report)

    def _continue(self, step: Callable[[T], None], outcome: T) -> None:
        """Continue after a call of a worker: handle the events that its outcome brings."""
        step(outcome)
        tasks = self.runner.tasks
        if tasks.reports:
            self._turn(tasks.take_reports())
        else:
            self._begin_calls()
        if tasks.may_place:
            tasks.may_place = False
            self.place_soon()

    # Effects

    def _effect_methods(self) -> Mapping[TaskEffect, Callable[[ReportedEvent], None]]:
        runner, tasks = self.runner, self.runner.tasks
        return {
            TaskEffect.ADD_TO_LOCKBOX: self._add_to_lockbox,
            TaskEffect.ACQUIRE_LOCKS: self._acquire_locks,
            TaskEffect.STOP_ACQUIRING: lambda r: self._attempt(self._locks.leave(r.entry.task)),
            TaskEffect.LET_LOCKS_YIELD: lambda r: self._set_yielding(r.entry.task, yields=True),
            TaskEffect.KEEP_LOCKS: lambda r: self._set_yielding(r.entry.task, yields=False),
            TaskEffect.RELEASE_LOCKS: self._release_locks,
            TaskEffect.ASSIGN_WORKER: lambda r: tasks.assign(r.entry, r.worker),
            TaskEffect.CLEAR_WORKER: self._clear_worker,
            TaskEffect.STORE_WORKER: self._store_worker,
            TaskEffect.STORE_NO_WORKER: lambda r: self._returned.append(r.entry),
            TaskEffect.SEND: lambda r: runner.send(r.entry),
            TaskEffect.REST_WORKER: lambda r: runner.rest(r.worker),
            TaskEffect.POLL_WORKER: lambda r: runner.request_report(r.worker),
            TaskEffect.DISMISS: lambda r: runner.dismiss(r.worker, r.entry.task.id),
            TaskEffect.LEAVE_WORKER: lambda r: runner.leave(r.entry),
            TaskEffect.PLACE_TASKS: lambda _r: self.place_soon(),
            TaskEffect.STORE_END: self._store_end,
            TaskEffect.FORGET: self._forget,
            TaskEffect.REPORT_LOCK_WAIT: lambda r: self._metrics.granted(r.entry),
            TaskEffect.REPORT_SLOT_WAIT: lambda r: self._metrics.runs(r.entry),
            TaskEffect.REPORT_END: self._report_end,
            TaskEffect.PUBLISH: lambda r: self._tasks.publish(r.entry),
            TaskEffect.NOTIFY: self._notify,
        }

    # Effects on locks

    def _add_to_lockbox(self, report: ReportedEvent) -> None:
        with suppress(Closed):  # The term is ending.
            self._lockboxes.add(lock_task(report.entry.task))

    def _acquire_locks(self, report: ReportedEvent) -> None:
        requests = lock_requests(report.entry.task)
        if requests:
            self._attempt(self._locks.join(report.entry, requests))
        else:
            self._reports.append(ReportedEvent(report.entry, TaskEvent.LOCKS_GRANTED))

    def _attempt(self, attempts: Iterable[LockAttempt]) -> None:
        """Request the locks of waiting tasks."""
        for attempt in attempts if not self._stopped else ():
            with suppress(Closed):  # The term is ending.
                self._calls.watch(
                    self._lockboxes.acquire(attempt.requests, together=True, waits=True),
                    partial(self._locks_answered, attempt),
                    partial(self._locks_failed, attempt),
                )

    def _locks_answered(self, attempt: LockAttempt, outcomes: list[Outcome]) -> None:
        if not self._stopped:
            self._apply(attempt, self._locks.answered(attempt, outcomes))

    def _locks_failed(self, attempt: LockAttempt, error: PenstockError) -> None:
        if not self._stopped:
            self._apply(attempt, self._locks.failed(attempt, error))

    def _apply(self, attempt: LockAttempt, result: LockAttemptResult) -> None:
        if result.event is not None:
            end = None
            if result.reason:
                end = TaskEnd(attempt.task.id, TaskState.FAILED, result.reason, None)
            self._turn([ReportedEvent(attempt.entry, result.event, end=end)])
        if result.retry:
            retry = partial(self.locks_released, attempt.task.datasource, frozenset())
            self._timers.schedule_after(self._options.retry_ms, retry, "locks again")
        self._attempt(result.following)

    def _set_yielding(self, task: TaskSpec, *, yields: bool) -> None:
        if task.lock_wishes():
            with suppress(Closed):  # The term is ending.
                self._lockboxes.place(lock_task(task), waits=yields)

    def _release_locks(self, report: ReportedEvent) -> None:
        task = report.entry.task
        with suppress(Closed):
            self._calls.watch(
                self._lockboxes.remove(lock_task(task)),
                partial(self._locks_removed, task),
                lambda error: _log.warning(
                    "locks of a task that ended are released later: %s", error
                ),
            )

    def _locks_removed(self, task: TaskSpec, removal: Removal) -> None:
        if not self._stopped and has_leftovers(removal):
            self._calls.call(
                lane_of(task.datasource),
                partial(delete_leftovers, self._metadata, task, removal),
                lambda _none: None,
                # The janitor deletes it some hours later.
                lambda error: _log.info("data of ended task %s stays for now: %s", task.id, error),
            )

    # Effects on workers

    def place_soon(self) -> None:
        """Choose workers for pending tasks soon, once for all changes until then."""
        if not self._is_placing and not self._stopped and len(self.runner.tasks.pending):
            self._is_placing = True
            self._executor.execute(self._place, "hand tasks over")

    def _place(self) -> None:
        self._is_placing = False
        chosen = [] if self._stopped else self.runner.select()
        # Stored first, so that the next overlord does not hand them to others.
        if chosen and self._set_workers({entry.task.id: name for entry, name in chosen}):
            self._turn(
                ReportedEvent(entry, TaskEvent.WORKER_STORED, name) for entry, name in chosen
            )

    def _poll_workers(self) -> None:
        self.runner.poll()
        self._turn(self.runner.tasks.take_reports())

    def _clear_worker(self, report: ReportedEvent) -> None:
        self.runner.tasks.clear(report.entry)

    def _store_worker(self, report: ReportedEvent) -> None:
        self._set_workers({report.entry.task.id: report.worker})

    def _store_returns(self) -> list[ReportedEvent]:
        """Store the tasks whose workers certainly do not have them; return the events.

        Otherwise the next overlord would conclude that the tasks disappeared there.
        """
        returned, self._returned = self._returned, []
        if not self._set_workers({entry.task.id: None for entry in returned}):
            again = partial(self._return_again, returned)
            self._timers.schedule_after(self._options.retry_ms, again, "store returned tasks")
            return []
        return [ReportedEvent(entry, TaskEvent.NO_WORKER_STORED) for entry in returned]

    def _return_again(self, entries: Sequence[QueuedTask]) -> None:
        """Store again that tasks have no worker, unless they have one by now."""
        if not self._stopped:
            pending = ActiveTaskState.PENDING
            self._returned.extend(entry for entry in entries if entry.state is pending)
            self._turn(())

    def _set_workers(self, workers: Mapping[str, str | None]) -> bool:
        """Store the workers of tasks in one transaction; return whether it succeeded."""
        try:
            self._metadata.tasks.set_statuses(
                [
                    (task_id, TaskState.RUNNING, {} if worker is None else {"worker": worker})
                    for task_id, worker in workers.items()
                ]
            )
        except PenstockError as error:
            tasks = counted(len(workers), "task")
            _log.warning("cannot store the workers of %s: %s", tasks, error)
            return False
        return True

    # Effects on ends

    def _store_end(self, report: ReportedEvent) -> None:
        self._ends.add(report.entry)
        if not self._is_storing:
            self._is_storing = True
            with suppress(Closed):  # The overlord stops; the next one gets the ends from workers.
                self._executor.execute(self._store_ends, "store ends")

    def _store_ends(self) -> None:
        stored = [] if self._stopped else self._ends.store_all()
        if stored is None:
            self._timers.schedule_after(self._options.retry_ms, self._store_ends, "store ends")
            return
        self._is_storing = False
        self._turn(ReportedEvent(entry, TaskEvent.END_STORED) for entry in stored)

    def _forget(self, report: ReportedEvent) -> None:
        task_id = report.entry.task.id
        self._tasks.remove(task_id)
        self._ends.forget(task_id)
        self._stored.task_ended(task_id)

    def _report_end(self, report: ReportedEvent) -> None:
        end = report.entry.end
        assert end is not None
        self._metrics.ended(report.entry, end.state)
        _log.info("task %s ended: %s %s", end.task_id, end.state, end.error)

    def _notify(self, report: ReportedEvent) -> None:
        task, end = report.entry.task, report.entry.end
        assert end is not None
        try:
            self._completed(task, end.state, end.error)
        except PenstockError as failure:
            _log.warning("the follow-up of the end of task %s is delayed: %s", task.id, failure)

    # Rounds

    def _count(self) -> None:
        self._metrics.count(self._tasks.index.counts())

    def _compare(self) -> None:
        """Compare the entries with the store, unless a comparison is running."""
        if self._stopped or not self._stored.begin_comparison():
            return
        self._calls.call(
            "tasks",
            partial(self._stored.read, self._tasks.index),
            partial(self._end_comparison, self._tasks.next_number()),
            self._abandon_comparison,
        )

    def _end_comparison(self, since: int, stored: ActiveRows) -> None:
        stored = self._stored.end_comparison(stored)
        if self._stopped:
            return
        reason = "it is no longer active in the metadata store"
        for entry in list(self._tasks.entries.values()):
            if entry.task.id not in stored and entry.number < since:
                end = TaskEnd(entry.task.id, TaskState.FAILED, reason, None)
                self._turn([ReportedEvent(entry, TaskEvent.GONE, end=end)])
        for one in self._stored.unknown(stored, self._tasks.entries):
            entry = self._tasks.make(one.task, one.created_ms)
            self._turn([ReportedEvent(entry, TaskEvent.ADDED)])
        self._compared()

    def _abandon_comparison(self, error: PenstockError) -> None:
        self._stored.abandon_comparison()
        _log.info("the tasks cannot be compared with the store: %s", error)


__all__ = ["QueuePorts", "TaskQueue", "TaskQueueOptions"]
