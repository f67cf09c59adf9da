"""Effects of the events of tasks: on locks, on workers, and at their end.

`TaskTransitions` looks up events in the table of transitions (`task_state`). Three classes carry
out the effects: `LockEffects` those on locks, `WorkerEffects` those on workers, and `EndEffects`
those of ends. Their state belongs to the overlord's mailbox.

A turn handles some events, then the events that their effects cause, then begins the calls of
workers that all of these need. Ends of tasks are reported to the term by mail, after the turn.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, PenstockError
from penstock.core.state_machine import Refusal
from penstock.indexing.lockbox.lock_lane import lane_of
from penstock.indexing.operator_events import NoEvents
from penstock.indexing.overlord.lock_requests import lock_requests, lock_task
from penstock.indexing.overlord.lock_waits import LockWaits
from penstock.indexing.overlord.runner.runner import TaskRunner
from penstock.indexing.overlord.task_index import QueuedTasks, RunnerState
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    EndedTask,
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
)
from penstock.indexing.ports import TaskState
from penstock.mailbox.background_calls import CallDispatcher
from penstock.mailbox.event_mail import EventReceiver, IgnoredEvents

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.task_locks import LockOutcome, TaskRemoval
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.lock_waits import LockAttempt, LockAttemptResult
    from penstock.indexing.ports import WorkerDirectory
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.metadata import MetadataStore

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueuePorts:
    """Dependencies of the task queue.

    Attributes:
        metadata: The metadata store.
        lockboxes: The locks of all datasources.
        directory: The announced workers.
        lanes: Lanes for blocking calls.
        processor: The overlord's mailbox.
        clock: The clock.
        events: Reports events to operators.
        ended: Receives each task that ended.
        compared: Receives None after a comparison with the store, which may have added or removed
            tasks.
    """

    metadata: MetadataStore
    lockboxes: Lockboxes
    directory: WorkerDirectory
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    events: Events = field(default_factory=NoEvents)
    ended: EventReceiver[EndedTask] = field(default_factory=IgnoredEvents)
    compared: EventReceiver[None] = field(default_factory=IgnoredEvents)


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


class TaskTransitions:
    """Runs the transitions of tasks, in turns. On the overlord's mailbox.

    A turn handles some events of tasks, then the events that their effects cause, then begins the
    calls of workers that all of these need.

    Args:
        ports: The dependencies of the queue.
        queued: The entries of the tasks, and their index.
        known: The stored tasks, which record ends during a comparison.
        runner: Chooses workers, and has the calls to begin.
        retry_ms: Delay before a retry after a failure of the store.

    Attributes:
        tasks: The tasks and workers of the runner.
        stopped: Whether the term is over: no effect is begun any longer.
        metrics: How long tasks wait and run, and how they end.
        locks: Carries out the effects on locks.
        workers: Carries out the effects on workers.
        ends: Carries out the effects of ends.
    """

    def __init__(
        self,
        ports: QueuePorts,
        queued: QueuedTasks,
        known: StoredTasks,
        runner: TaskRunner,
        retry_ms: int,
    ) -> None:
        self.tasks: Final = runner.tasks
        self.stopped = False
        self._reports: deque[ReportedEvent] = deque()
        self._is_running = False
        self._queued = queued
        self._known = known
        self._runner = runner
        self.metrics: Final = TaskMetrics(ports.events, ports.clock)
        calls = CallDispatcher(ports.lanes, ports.processor)
        self.locks: Final = LockEffects(ports, self, calls, retry_ms)
        self.workers: Final = WorkerEffects(ports, self, calls, runner, retry_ms)
        self.ends: Final = EndEffects(ports, self, self.metrics, retry_ms)
        self._effects: Final = self._effect_methods()

    def run(self, reports: Iterable[ReportedEvent]) -> None:
        """Handle events, and then what their effects cause.

        Effects report further events by `add`: a nested turn would consume the events of this one.
        """
        assert not self._is_running, "a turn began within another one: report the event with `add`"
        self._is_running = True
        try:
            self._reports.extend(reports)
            while self._reports or self.workers.has_unstored:
                if self._reports:
                    self._handle(self._reports.popleft())
                else:
                    self._reports.extend(self.workers.store_all())
        finally:
            self._reports.clear()
            self._is_running = False
        self.workers.begin_calls()

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
            entry.end = report.end  # The first end stands, even if a further event follows.
        for effect in outcome.effects:
            self._effects[effect](report)

    def _effect_methods(self) -> Mapping[TaskEffect, Callable[[ReportedEvent], object]]:
        locks, workers, ends = self.locks, self.workers, self.ends
        runner, tasks = self._runner, self.tasks
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
            TaskEffect.REPORT_LOCK_WAIT: lambda r: self.metrics.granted(r.entry),
            TaskEffect.REPORT_SLOT_WAIT: lambda r: self.metrics.runs(r.entry),
            TaskEffect.REPORT_END: ends.report,
            TaskEffect.PUBLISH: lambda r: self._queued.publish(r.entry),
            TaskEffect.NOTIFY: ends.notify,
        }

    def _forget(self, task_id: str) -> None:
        self._queued.remove(task_id)
        self.ends.stored.forget(task_id)
        self._known.task_ended(task_id)


class LockEffects:
    """Effects on the locks of tasks: requests, yields and releases. On the overlord's mailbox.

    Args:
        ports: The dependencies of the queue.
        turns: Handles the events that answers of the lockboxes bring.
        calls: Returns these answers as mail.
        retry_ms: Delay before a retry after a failure of the store.
    """

    def __init__(
        self, ports: QueuePorts, transitions: TaskTransitions, calls: CallDispatcher, retry_ms: int
    ) -> None:
        self._metadata = ports.metadata
        self._lockboxes = ports.lockboxes
        self._timers = ports.processor.timers
        self._transitions = transitions
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
            self._transitions.add(ReportedEvent(report.entry, TaskEvent.LOCKS_GRANTED))

    def stop_acquiring(self, report: ReportedEvent) -> None:
        """Let the task wait for locks no longer, and try those behind it."""
        self._attempt(self._waits.leave(report.entry.task))

    def set_yielding(self, task: TaskSpec, *, yields: bool) -> None:
        """Set whether the locks of a task yield to other tasks."""
        if task.lock_intents():
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
        if change.yielded and not self._transitions.stopped:
            known = map(self._transitions.tasks.entries.get, change.yielded)
            # A task that was handed to a worker at that moment acquires its locks there.
            self._transitions.run(
                ReportedEvent(one, TaskEvent.LOCKS_YIELDED) for one in known if one
            )
        if change.released:
            self._attempt(self._waits.released(change.datasource, change.released))

    def position(self, task: TaskSpec) -> tuple[str, int]:
        """Return the task at the head of a task's line, and how many tasks are before it."""
        return self._waits.position(task)

    def heads(self) -> dict[str, str]:
        """Return the waiting tasks, each with the head of its line."""
        return self._waits.heads()

    def _attempt(self, attempts: Iterable[LockAttempt]) -> None:
        """Request the locks of waiting tasks."""
        for attempt in attempts if not self._transitions.stopped else ():
            with suppress(Closed):  # The term is ending.
                self._calls.watch(
                    self._lockboxes.acquire(attempt.requests, together=True, waits=True),
                    partial(self._answered, attempt),
                    partial(self._failed, attempt),
                )

    def _answered(self, attempt: LockAttempt, outcomes: list[LockOutcome]) -> None:
        if not self._transitions.stopped:
            self._apply(attempt, self._waits.answered(attempt, outcomes))

    def _failed(self, attempt: LockAttempt, error: PenstockError) -> None:
        if not self._transitions.stopped:
            self._apply(attempt, self._waits.failed(attempt, error))

    def _apply(self, attempt: LockAttempt, result: LockAttemptResult) -> None:
        if result.event is not None:
            end = None
            if result.reason:
                end = TaskEnd(attempt.task.id, TaskState.FAILED, result.reason, None)
            self._transitions.run([ReportedEvent(attempt.entry, result.event, end=end)])
        if result.retry:
            retry = partial(self._try_again, attempt.task.datasource)
            self._timers.schedule_after(self._retry_ms, retry, "locks again")
        self._attempt(result.following)

    def _try_again(self, datasource: str) -> None:
        self._attempt(self._waits.released(datasource, frozenset()))

    def _removed(self, task: TaskSpec, removal: TaskRemoval) -> None:
        if not self._transitions.stopped and has_leftovers(removal):
            self._calls.call(
                lane_of(task.datasource),
                partial(delete_leftovers, self._metadata, task, removal),
                lambda _none: None,
                # The janitor deletes it some hours later.
                lambda error: _log.info("data of ended task %s stays for now: %s", task.id, error),
            )


class WorkerEffects:
    """Effects on workers: the worker of a task is stored first. On the overlord's mailbox.

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
        transitions: TaskTransitions,
        calls: CallDispatcher,
        runner: TaskRunner,
        retry_ms: int,
    ) -> None:
        self._timers = ports.processor.timers
        self._executor = ports.processor.main_executor
        self._transitions = transitions
        self._calls = calls
        self._runner = runner
        self._retry_ms = retry_ms
        self._stored = TaskWorkers(ports.metadata)
        self._is_retrying = False  # A timer will store the workers that could not be stored.
        self._is_placing = False  # A mail will choose workers.

    def place_soon(self) -> None:
        """Choose workers for pending tasks soon, once for all changes until then."""
        if (
            not self._is_placing
            and not self._transitions.stopped
            and len(self._transitions.tasks.pending)
        ):
            self._is_placing = True
            self._executor.execute(self._place, "hand tasks over")

    def poll(self) -> None:
        """List and poll the workers."""
        self._runner.poll()
        self._transitions.run(self._transitions.tasks.take_reports())

    def begin_calls(self) -> None:
        """Begin the calls of workers that earlier events need."""
        for call in self._runner.take_calls():
            done = partial(self._continue, call.done)
            self._calls.call(call.lane, call.work, done, partial(self._continue, call.failed))

    def store_worker(self, report: ReportedEvent) -> None:
        """Store the new name of a task's worker at the end of the turn.

        Another worker may take over the old name, and the next overlord would call that worker.
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
        """Store the workers that earlier events have changed; return the events that follow.

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
        tasks = self._transitions.tasks
        if tasks.reports:
            self._transitions.run(tasks.take_reports())
        else:
            self.begin_calls()
        if tasks.may_place:
            tasks.may_place = False
            self.place_soon()

    def _place(self) -> None:
        self._is_placing = False
        chosen = [] if self._transitions.stopped else self._runner.select()
        # Stored first, so that the next overlord does not assign them to other workers.
        if chosen and self._stored.store({entry.task.id: name for entry, name in chosen}):
            self._transitions.run(
                ReportedEvent(entry, TaskEvent.WORKER_STORED, name) for entry, name in chosen
            )

    def _store_again(self) -> None:
        self._is_retrying = False
        if not self._transitions.stopped:
            self._transitions.run(())


class EndEffects:
    """Effects of the ends of tasks: stores and reports them. On the overlord's mailbox.

    Args:
        ports: The dependencies of the queue.
        turns: Handles the events that follow.
        metrics: Receives the ends.
        retry_ms: Delay before a retry after a failure of the store.

    Attributes:
        stored: The ends that are to be stored.
    """

    def __init__(
        self,
        ports: QueuePorts,
        transitions: TaskTransitions,
        metrics: TaskMetrics,
        retry_ms: int,
    ) -> None:
        self.stored: Final = TaskEnds(ports.metadata, ports.clock, ports.events)
        self._timers = ports.processor.timers
        self._executor = ports.processor.main_executor
        self._transitions = transitions
        self._metrics = metrics
        self._ended = ports.ended
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
        """Report the end of a task to the term, which notifies its supervisor for example."""
        end = report.entry.end
        assert end is not None
        self._ended.put(EndedTask(report.entry.task, end.state, end.error))

    def _store_all(self) -> None:
        stored = [] if self._transitions.stopped else self.stored.store_all()
        if stored is None:
            self._timers.schedule_after(self._retry_ms, self._store_all, "store ends")
            return
        self._is_storing = False
        self._transitions.run(ReportedEvent(entry, TaskEvent.END_STORED) for entry in stored)
