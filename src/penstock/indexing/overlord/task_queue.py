"""The task queue: the active tasks and their progress towards a worker.

All state belongs to the overlord's mailbox; only `index` is for any thread. Durable state is in the
metadata store, from which a new overlord reads the active tasks and the worker of each.
Owns how tasks are added and how they end. `stages` moves a task from its locks to a worker;
`entries` validates new tasks, stores ends and compares tasks with the store. Invariants:

- the first final state of a task is kept; from then on its actions are refused;
- a task's end is stored before its locks are released, and its locks are released before any task
  that waits for them is retried;
- no call waits for a worker, a lock or a log; the cost of an event depends on what it changes, not
  on the number of tasks.

| event | absent | waiting for locks | at the runner | ended |
|---|---|---|---|---|
| add | stored, entry made | error: exists already | the same | the same |
| locks granted | released again | to the runner | - | released again |
| locks refused | - | waits until a conflicting lock is released | - | - |
| locks yielded | - | - | leaves the runner, asks again; at a worker, that asks | - |
| runner: ended | ignored | - | stored, locks released, worker forgets | ignored |
| shut down | false | stored as failed | stored as failed, worker stops it | false |
| stored and active | entry made; calls `compared` | kept | kept | kept |
| no longer stored | - | dropped, if older than the comparison | the same | the same |
| leadership lost | - | dropped, nothing stored | dropped, continues at its worker | dropped |
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.entries.admission import new_row, taken, with_context
from penstock.indexing.overlord.entries.comparing import StoredTasks
from penstock.indexing.overlord.entries.ending import TaskEnds
from penstock.indexing.overlord.entries.ports import QueuePorts, TaskQueueOptions
from penstock.indexing.overlord.entries.table import QueuedTasks
from penstock.indexing.overlord.entries.telling import PERIOD_MS, TaskTimes
from penstock.indexing.overlord.errors import NotLeading, QueueFull
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.runner.runner import TaskEnd
from penstock.indexing.overlord.stages import Stages
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.waits import DependencyWait
    from penstock.indexing.overlord.entries.entry import QueuedTask
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import TaskRow

_log = logging.getLogger(__name__)


class TaskQueue:
    """The queue of active tasks. On the overlord's mailbox, except for `index`.

    Args:
        ports: Its dependencies.
        completed: Called for each task that ended, after its locks were released.
        compared: Called when tasks may have been added or removed that only the store knew.
        options: Options of the queue.

    Attributes:
        stages: Moves tasks towards a worker.
        locks: The tasks that wait for locks.
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
        self._completed = completed
        self._options = options
        self._table = QueuedTasks()
        self._times = TaskTimes(ports.events, ports.clock)
        self._ends = TaskEnds(
            ports.metadata,
            ports.processor,
            ports.clock,
            ports.events,
            retry_ms=options.retry_ms,
            worker_of=self._table.worker_of,
            stored=lambda entry, end: self._finish(entry, end.state, end.error),
        )
        self.stages: Final = Stages(
            ports, options, table=self._table, ends=self._ends, times=self._times
        )
        self.locks: Final = self.stages.locks
        self.runner: Final = self.stages.runner
        reason = "it is no longer active in the metadata store"
        self._stored = StoredTasks(
            ports.metadata,
            Calls(ports.lanes, ports.processor),
            self._table,
            came=self.stages.enter,
            gone=lambda entry: self._finish(entry, TaskState.FAILED, reason),
            compared=compared,
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
        return self._table.index

    # A term

    def start(self) -> None:
        """Take over the locks, then the tasks, and start to poll the workers.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        taken_over = self._stored.take_over()
        lost = self._lockboxes.sync([lock_task(entry.task) for entry, _worker in taken_over])
        for entry, worker in taken_over:
            self.stages.restore(entry, worker)
        self._started = True
        reason = "its group lost a lock while no overlord led"
        self.stages.ended([TaskEnd(i, TaskState.FAILED, reason, None) for i in lost])
        self.stages.start()
        interval_ms = self._options.storage_sync_interval_ms
        every, index = self._timers.schedule_every, self._table.index
        self._rounds = [
            every(interval_ms, self._stored.look, "compare tasks"),
            every(PERIOD_MS, lambda: self._times.count(index.counts()), "count tasks"),
        ]

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that the queue itself waits for. Any thread."""
        return self._ends.waits.all()

    def stop(self) -> None:
        """Stop; tasks continue at their workers."""
        self.stages.stop()
        self._ends.stop()
        self._stored.stop()
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
        # The store and the lists of active tasks must have the same time.
        now_ms, bytes_max = self._clock.now_ms(), self._options.payload_bytes_max
        for task in tasks:
            try:
                if task.id in self._table or task.id in rows:
                    raise taken(task.id)
                before, most = len(self._table) + len(rows), self._options.max_tasks
                if before >= most:
                    raise QueueFull(before, most)
                rows[task.id] = new_row(task, now_ms, payload_bytes_max=bytes_max)
            except PenstockError as error:
                refusals.append(error)
            else:
                refusals.append(None)
        known = self._metadata.tasks.insert_new(list(rows.values()))
        for at, task in enumerate(tasks):
            if refusals[at] is not None:
                continue
            if task.id in known:
                refusals[at] = taken(task.id)
            else:
                self.stages.enter(self._table.make(task, now_ms))
        return refusals

    # Ending tasks

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task; return false if it is not active.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        entry = self._table.unended(task_id)
        if entry is None:
            return False
        self._ends.store([(entry, TaskEnd(task_id, state, reason, None))])
        self._finish(entry, state, reason)
        return True

    def shutdown_all(self, task_ids: Sequence[str], reason: str) -> int:
        """End active tasks in one transaction; return how many of them were active.

        Raises:
            Unavailable: The metadata store does not answer; no task is ended.
        """
        ends = [
            (entry, TaskEnd(task_id, TaskState.FAILED, reason, None))
            for task_id in task_ids
            if (entry := self._table.unended(task_id)) is not None
        ]
        self._ends.store(ends)
        for entry, end in ends:
            entry.end = end  # Locks and slots of one must not go to another of them.
        for entry, end in ends:
            self._finish(entry, end.state, end.error)
        return len(ends)

    def _finish(self, entry: QueuedTask, state: TaskState, error: str) -> None:
        """Remove a task whose end is stored."""
        task = entry.task
        self._table.remove(task.id)
        self._ends.forget(task.id)
        self._stored.task_ended(task.id)
        self.stages.leave(task)
        self._times.ended(entry, state)
        _log.info("task %s ended: %s %s", task.id, state, error)
        try:
            self._completed(task, state, error)
        except PenstockError as failure:
            _log.warning("the follow-up of the end of task %s is delayed: %s", task.id, failure)
        self.runner.hand_over()


__all__ = ["QueuePorts", "TaskQueue", "TaskQueueOptions"]
