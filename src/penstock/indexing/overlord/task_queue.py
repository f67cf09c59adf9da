"""The task queue: the active tasks and their progress towards a worker.

Owns the entries of the tasks, the commands of callers, and the rounds. Commands and rounds report
events of tasks, which `task_effects` handles. Further events come from the answers of the lockboxes
(`lock_waits`), of the workers (`runner`) and of the metadata store (`task_store`); these modules
only decide. All state belongs to the overlord's mailbox; only `index` is for any thread. Durable
state is in the metadata store, from which a new overlord reads the active tasks and the worker of
each.

Invariants:

- the first final state of a task is kept; from then on its actions are refused;
- a task's end is stored before its locks are released, and its locks are released before any task
  that waits for them is retried;
- no call waits for a worker, a lock or a log; the cost of an event depends on what it changes, not
  on the number of tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from penstock.core.errors import NotFound, PenstockError
from penstock.core.state_machine import Refusal
from penstock.indexing.overlord.errors import NotLeading, QueueFull
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.runner.runner import RunnerOptions, TaskRunner
from penstock.indexing.overlord.task_effects import QueuePorts, TaskTransitions
from penstock.indexing.overlord.task_index import QueuedTasks, TaskIndex
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    ReportedEvent,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.overlord.task_store import (
    StoredTasks,
    new_row,
    taken,
    with_context,
)
from penstock.indexing.overlord.wait_reasons import BlockedTask, WaitFacts
from penstock.indexing.ports import TaskState
from penstock.mailbox.background_calls import CallDispatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.waits import DependencyWait
    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.overlord.runner.worker_config import WorkerConfig
    from penstock.indexing.overlord.task_store import ActiveRows
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import TaskRow

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


class TaskQueue:
    """The queue of active tasks. On the overlord's mailbox, except for `index`.

    Args:
        ports: Its dependencies.
        options: Options of the queue.

    Attributes:
        runner: The tasks that wait for a worker or are at one.
    """

    def __init__(self, ports: QueuePorts, *, options: TaskQueueOptions) -> None:
        self._metadata = ports.metadata
        self._lockboxes = ports.lockboxes
        self._timers = ports.processor.timers
        self._clock = ports.clock
        self._compared = ports.compared
        self._options = options
        self._calls = CallDispatcher(ports.lanes, ports.processor)
        self._tasks = QueuedTasks()
        self._stored = StoredTasks(ports.metadata)
        self.runner: Final = TaskRunner(
            self._tasks.entries, ports.directory, ports.clock, ports.events, options.runner
        )
        self._transitions = TaskTransitions(
            ports, self._tasks, self._stored, self.runner, options.retry_ms
        )
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
        self._transitions.run(
            ReportedEvent(entry, TaskEvent.FOUND)
            if worker is None
            else ReportedEvent(entry, TaskEvent.FOUND_AT_WORKER, worker)
            for entry, worker in found
        )
        self._started = True
        reason = "its group lost a lock while no overlord led"
        entries = self._tasks.entries
        self._transitions.run(
            ReportedEvent(
                entries[task_id],
                TaskEvent.LOCKS_DENIED,
                end=TaskEnd(task_id, TaskState.FAILED, reason, None),
            )
            for task_id in lost
            if task_id in entries
        )
        self._transitions.run(
            [ReportedEvent(entry, TaskEvent.TERM_BEGAN) for entry in entries.values()]
        )
        every, options = self._timers.schedule_every, self._options
        poll_ms = options.runner.sync_interval_ms
        self._rounds = [
            every(poll_ms, self._transitions.workers.poll, "list the workers", first_after_ms=0),
            every(options.storage_sync_interval_ms, self._compare, "compare tasks"),
            every(METRICS_INTERVAL_MS, self._count, "count tasks"),
        ]

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that the queue itself waits for. Any thread."""
        return self._transitions.ends.stored.waits.all()

    def stop(self) -> None:
        """Stop; tasks continue at their workers."""
        self._transitions.stopped = True
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
        self._transitions.run(added)
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
        self._transitions.ends.stored.store(ends)
        # Locks and slots of one must not go to another of them: all are ending before one ended.
        self._transitions.run(
            [
                *(ReportedEvent(entry, TaskEvent.SHUT_DOWN, end=end) for entry, end in ends),
                *(ReportedEvent(entry, TaskEvent.END_STORED) for entry, _end in ends),
            ]
        )
        return len(ends)

    # Events of others

    def locks_changed(self, change: LocksChanged) -> None:
        """Tasks released locks, or lost locks to other tasks."""
        self._transitions.locks.changed(change)

    def configure(self, config: WorkerConfig) -> None:
        """Apply a new config for selecting workers."""
        self.runner.configure(config)
        self._transitions.workers.place_soon()

    # Queries

    def wait_facts(self, task_id: str) -> WaitFacts:
        """Return the state of the queue from which the reasons of a waiting task follow.

        Raises:
            NotFound: The task is not active.
        """
        active = self.index.get(task_id)
        if active is None:
            raise NotFound(f"task {task_id!r} is not active, so it waits for nothing")
        line = self._transitions.locks.position(active.task)
        refused = self._lockboxes.why(line[0])
        return WaitFacts(active, line, refused=refused, slots=self.runner.why(task_id))

    def blocked_tasks(self) -> list[BlockedTask]:
        """Return all tasks that wait for locks, with the locks that refuse them."""
        refused = self._lockboxes.all_refused()
        heads = {task_id: task_id for task_id in refused} | self._transitions.locks.heads()
        return [
            BlockedTask(active, refused.get(head, ()))
            for task_id, head in heads.items()
            if (active := self.index.get(task_id)) is not None
        ]

    # Rounds

    def _count(self) -> None:
        self._transitions.metrics.count(self._tasks.index.counts())

    def _compare(self) -> None:
        """Compare the entries with the store, unless a comparison is running."""
        if self._transitions.stopped or not self._stored.begin_comparison():
            return
        self._calls.call(
            "tasks",
            partial(self._stored.read, self._tasks.index),
            partial(self._end_comparison, self._tasks.next_number()),
            self._abandon_comparison,
        )

    def _end_comparison(self, since: int, stored: ActiveRows) -> None:
        stored = self._stored.end_comparison(stored)
        if self._transitions.stopped:
            return
        reason = "it is no longer active in the metadata store"
        for entry in list(self._tasks.entries.values()):
            if entry.task.id not in stored and entry.number < since:
                end = TaskEnd(entry.task.id, TaskState.FAILED, reason, None)
                self._transitions.run([ReportedEvent(entry, TaskEvent.GONE, end=end)])
        for one in self._stored.unknown(stored, self._tasks.entries):
            entry = self._tasks.make(one.task, one.created_ms)
            self._transitions.run([ReportedEvent(entry, TaskEvent.ADDED)])
        self._compared.put(None)

    def _abandon_comparison(self, error: PenstockError) -> None:
        self._stored.abandon_comparison()
        _log.info("the tasks cannot be compared with the store: %s", error)


__all__ = ["QueuePorts", "TaskQueue", "TaskQueueOptions"]
