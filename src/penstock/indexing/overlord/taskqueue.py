"""The task queue: which tasks are active, and how far each is on its way to a worker.

All state belongs to the overlord's mailbox; `index` alone is for any thread. What must survive is
in the metadata store: a new overlord reads the active tasks and the worker of each from there.
Locks are the lockboxes', workers the runner's; what a new task must be like, how ends are stored
and how the store is compared are `entries`'. Invariants:

- the first complete state of a task stands; from then on its actions are refused;
- a task's end is stored before its locks are released, and its locks are released before any task
  that waits for them is tried again;
- no call waits for a worker, a lock or a log; an event costs what it changes, not what there is.

| event | absent | waiting for locks | at the runner | ended |
|---|---|---|---|---|
| add | stored, entry made | error: exists already | the same | the same |
| locks granted | released again | to the runner | - | released again |
| locks refused | - | waits until one in its way lets go | - | - |
| locks yielded | - | - | from the runner, asks again; at a worker: asks for itself | - |
| runner: ended | ignored | - | stored, locks released, worker forgets | ignored: the first stands |
| shut down | false | stored as failed | stored as failed, worker stops it | false |
| stored and active | entry made; `compared` is told | kept | kept | kept |
| stored no more | - | dropped, if older than the look | the same | the same |
| leadership lost | - | dropped, nothing stored | dropped, goes on at its worker | dropped |
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from penstock.core.errors import (
    Closed,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.indexing.errand import Calls
from penstock.indexing.events import NoEvents
from penstock.indexing.overlord.entries.admission import new_row, taken, with_context
from penstock.indexing.overlord.entries.comparing import Stored, StoreLooks
from penstock.indexing.overlord.entries.ending import Leavings, TaskEnds
from penstock.indexing.overlord.entries.entry import Entry, Stage
from penstock.indexing.overlord.entries.telling import PERIOD_MS, TaskTimes
from penstock.indexing.overlord.errors import NotLeading, QueueFull
from penstock.indexing.overlord.locking import lock_task
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.runner import Runner, RunnerOptions, TaskEnd
from penstock.indexing.overlord.taskindex import ActiveTask, RunnerState, TaskIndex
from penstock.indexing.overlord.waiting.seeking import LockSeekers
from penstock.indexing.ports import TaskState
from penstock.indexing.taskspec import parse_task
from penstock.storage.metadata import TaskRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.ports import Lanes, WorkerDirectory
    from penstock.indexing.taskspec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import Timer
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskQueueOptions:
    """How the task queue behaves.

    Attributes:
        max_tasks: No more active tasks than this.
        payload_bytes_max: No task whose JSON is larger than this.
        storage_sync_interval_ms: How often the entries are compared with the metadata store.
        retry_ms: How long to wait before something that the store did not take is tried again.
        context: What new tasks have in their context where they say nothing else.
        runner: How workers are treated.
    """

    max_tasks: int = 20_000
    payload_bytes_max: int = 16 << 20
    storage_sync_interval_ms: int = 60_000
    retry_ms: int = 1_000
    context: Mapping[str, JsonValue] = field(default_factory=dict)
    runner: RunnerOptions = field(default_factory=RunnerOptions)


@dataclass(frozen=True, slots=True)
class QueuePorts:
    """What the task queue works with."""

    metadata: MetadataStore
    lockboxes: Lockboxes
    directory: WorkerDirectory
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    events: Events = field(default_factory=NoEvents)


class TaskQueue:
    """The queue. On the overlord's mailbox, but for `index`.

    Args:
        ports: What it works with.
        completed: Told of each task that ends, after its locks were let go.
        compared: Told when tasks may have come or gone that only the store knew of.
        options: How the queue behaves.
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
        self._calls = Calls(ports.lanes, ports.processor)
        self._processor = ports.processor
        self._clock = ports.clock
        self._completed = completed
        self._compared = compared
        self._options = options
        self.runner: Final = Runner(
            ports.directory, ports.lanes, ports.processor, ports.clock, self, options.runner
        )
        self.locks: Final = LockSeekers(
            ports.lockboxes,
            self._calls,
            ports.processor.timers,
            retry_ms=options.retry_ms,
            granted=self._hand,
            failed=lambda task_id, reason: self._fail(self._entries[task_id], reason),
        )
        self._ends = TaskEnds(
            ports.metadata,
            ports.processor,
            ports.clock,
            ports.events,
            retry_ms=options.retry_ms,
            worker_of=self._worker_of,
            stored=lambda entry, end: self._finish(entry, end.state, end.error),
        )
        self._times = TaskTimes(ports.events, ports.clock)
        self._events = ports.events
        self._leavings = Leavings(ports.metadata, ports.lockboxes, self._calls)
        self._looks = StoreLooks(
            ports.metadata,
            self._calls,
            is_known=lambda task_id: self._index.get(task_id) is not None,
            seen=self._reconcile,
        )
        self._entries: dict[str, Entry] = {}
        self._index = TaskIndex()
        self._numbers = itertools.count()
        self._rounds: list[Timer] = []
        self._started = False
        self._stopped = False

    @property
    def index(self) -> TaskIndex:
        """The active tasks; any thread.

        Raises:
            NotLeading: The tasks are not read yet.
        """
        if not self._started:
            raise NotLeading("the overlord is starting and has not read its tasks yet: try again")
        return self._index

    # A term

    def start(self) -> None:
        """Take over the locks, then the tasks, and begin to ask the workers.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        rows = list(reversed(self._metadata.tasks.list(active=True)))
        entries = [entry for row in rows if (entry := self._read(row)) is not None]
        lost = self._lockboxes.sync([lock_task(entry.task) for entry in entries])
        workers = {row.id: row.status.get("worker") for row in rows}
        for entry in entries:
            self._entries[entry.task.id] = entry
            worker = workers[entry.task.id]
            if isinstance(worker, str):
                entry.stage = Stage.HANDED
                self.runner.restore(entry.task, worker)
            self._show(entry)
        self._started = True
        reason = "its group lost a lock while no overlord led"
        self.ended([TaskEnd(i, TaskState.FAILED, reason, None) for i in lost])
        waiting = [one for one in self._entries.values() if one.stage is Stage.WAITING]
        for entry in waiting:  # Some have locks since the last term, and no worker.
            self.locks.placed(entry.task, waits=True)
        for entry in waiting:
            if entry.end is None:
                self.locks.seek(entry.task, entry.number)
        self.runner.start()
        interval_ms = self._options.storage_sync_interval_ms
        every = self._processor.timers.schedule_every
        self._rounds = [
            every(interval_ms, lambda: self._looks.look(next(self._numbers)), "compare tasks"),
            every(PERIOD_MS, lambda: self._times.count(self._index.counts()), "count tasks"),
        ]

    def stop(self) -> None:
        """Look after nothing any more; what workers run goes on."""
        self._stopped = True
        self.runner.stop()
        self.locks.stop()
        self._ends.stop()
        self._leavings.stop()
        self._looks.stop()
        for round_ in self._rounds:
            round_.cancel()

    def _read(self, row: TaskRow) -> Entry | None:
        try:
            task = parse_task(dict(row.payload))
        except InvalidRequest as error:
            _log.error("task %s cannot be read and is given up: %s", row.id, error)
            status = {"errorMsg": f"its payload cannot be read: {error}"}
            self._metadata.tasks.set_status(row.id, TaskState.FAILED, status)
            return None
        return Entry(task, row.created_ms, next(self._numbers))

    # Tasks come

    def add(self, task: TaskSpec) -> None:
        """Keep a new task; it goes to a worker when it has its locks and a slot is free.

        Raises:
            InvalidRequest: Its id cannot name a folder, or it is too large.
            Conflict: The id is taken.
            QueueFull: There are as many tasks as there may be.
            Unavailable: The metadata store does not answer.
        """
        (refusal,) = self.add_all([task])
        if refusal is not None:
            raise refusal

    def add_all(self, tasks: Sequence[TaskSpec]) -> list[PenstockError | None]:
        """Keep new tasks with one transaction; return of each why it was refused, or None.

        Raises:
            Unavailable: The metadata store does not answer; none is kept.
        """
        tasks = [with_context(task, self._options.context) for task in tasks]
        refusals: list[PenstockError | None] = []
        rows: dict[str, TaskRow] = {}
        for task in tasks:
            try:
                if task.id in self._entries or task.id in rows:
                    raise taken(task.id)
                before, most = len(self._entries) + len(rows), self._options.max_tasks
                if before >= most:
                    raise QueueFull(before, most)
                rows[task.id] = new_row(task, payload_bytes_max=self._options.payload_bytes_max)
            except PenstockError as error:
                refusals.append(error)
            else:
                refusals.append(None)
        known = self._metadata.tasks.insert_new(list(rows.values()))
        now_ms = self._clock.now_ms()
        for at, task in enumerate(tasks):
            if refusals[at] is not None:
                continue
            if task.id in known:
                refusals[at] = taken(task.id)
            else:
                self._adopt(Entry(task, now_ms, next(self._numbers)))
        return refusals

    def _adopt(self, entry: Entry) -> None:
        self._entries[entry.task.id] = entry
        with suppress(Closed):  # The term ends.
            self._lockboxes.add(lock_task(entry.task))
        self._show(entry)
        self.locks.seek(entry.task, entry.number)

    # The runner, and what it tells

    def _hand(self, task_id: str) -> None:
        entry = self._entries[task_id]
        if entry.end is None:
            entry.stage = Stage.HANDED
            self._times.handed(entry)
            self.runner.run(entry.task)

    def wanted(self, task_id: str) -> TaskSpec | None:
        """Return a task that is active."""
        entry = self._entries.get(task_id)
        return None if entry is None or entry.end is not None else entry.task

    def placed(self, workers: Mapping[str, str | None]) -> None:
        """Store which workers tasks are about to be handed to."""
        self._metadata.tasks.set_statuses(
            [
                (task_id, TaskState.RUNNING, {} if worker is None else {"worker": worker})
                for task_id, worker in workers.items()
            ]
        )
        for task_id, worker in workers.items():
            if task_id in self._entries:
                self.locks.placed(self._entries[task_id].task, waits=worker is None)

    def changed(self, task_id: str) -> None:
        """Show what the runner has of a task."""
        entry = self._entries.get(task_id)
        if entry is None:
            return
        if entry.stage is Stage.WAITING:  # A worker has it, whatever was known here.
            entry.stage = Stage.HANDED
            self.locks.leave(entry.task)
            self.locks.placed(entry.task)
        self._show(entry)

    def yielded(self, task_ids: Sequence[str]) -> None:
        """Tasks that no worker had lost their locks to others: they ask again."""
        for task_id in task_ids:
            entry = self._entries.get(task_id)
            if self._stopped or entry is None or entry.end is not None:
                continue
            self.locks.lets_go(lock_task(entry.task))
            item = self.runner.item(task_id)
            if entry.stage is Stage.HANDED and item is not None and item.worker is None:
                self.runner.drop(task_id)
                entry.stage = Stage.WAITING
                self._show(entry)
                self.locks.seek(entry.task, entry.number)
            # One that was handed to a worker at that moment asks there before it begins.

    def _show(self, entry: Entry) -> None:
        item = self.runner.item(entry.task.id)
        if item is None:
            handed = entry.stage is Stage.HANDED
            state = RunnerState.PENDING if handed else RunnerState.WAITING
            self._index.put(ActiveTask(entry.task, entry.created_ms, state))
            return
        state = RunnerState.RUNNING if item.phase is Phase.RUNNING else RunnerState.PENDING
        if state is RunnerState.RUNNING:
            self._times.runs(entry)
        place = (item.worker, item.location, item.taken)
        self._index.put(ActiveTask(entry.task, entry.created_ms, state, *place))

    # Tasks go

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task; false if it is not active.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        entry = self._entries.get(task_id)
        if entry is None or entry.end is not None:
            return False
        self._ends.store([(entry, TaskEnd(task_id, state, reason, None))])
        self._finish(entry, state, reason)
        return True

    def shutdown_all(self, task_ids: Sequence[str], reason: str) -> int:
        """End active tasks with one transaction; return how many of these there were.

        Raises:
            Unavailable: The metadata store does not answer; none is ended.
        """
        ends = [
            (entry, TaskEnd(task_id, TaskState.FAILED, reason, None))
            for task_id in task_ids
            if (entry := self._entries.get(task_id)) is not None and entry.end is None
        ]
        self._ends.store(ends)
        for entry, end in ends:
            entry.end = end  # What one leaves free is not for another of them.
        for entry, end in ends:
            self._finish(entry, end.state, end.error)
        return len(ends)

    def ended(self, ends: Sequence[TaskEnd]) -> None:
        """Tasks have ended: that is stored soon, with all other ends that are heard of until then.

        If the store does not answer, they are stored later.
        """
        known = ((self._entries.get(end.task_id), end) for end in ends)
        self._ends.soon([(entry, end) for entry, end in known if entry is not None])

    def lost(self, worker: str, reason: str, tasks: int) -> None:
        """The tasks of a worker are given up."""
        text = f"worker {worker} is lost, and its {tasks} tasks have failed: {reason}"
        self._events.alert(text, worker=worker)

    def _worker_of(self, task_id: str) -> str | None:
        item = self.runner.item(task_id)
        return None if item is None else item.worker

    def _fail(self, entry: Entry, reason: str) -> None:
        self.ended([TaskEnd(entry.task.id, TaskState.FAILED, reason, None)])

    def _finish(self, entry: Entry, state: TaskState, error: str) -> None:
        """Let go of a task whose end is stored."""
        task = entry.task
        self._entries.pop(task.id, None)
        self._index.remove(task.id)
        self._ends.forget(task.id)
        self._looks.task_ended(task.id)
        self.locks.lets_go(lock_task(task))
        self._leavings.clear(task)
        self.locks.leave(task)
        self.runner.drop(task.id)
        self._times.ended(entry, state)
        _log.info("task %s ended: %s %s", task.id, state, error)
        try:
            self._completed(task, state, error)
        except PenstockError as failure:
            _log.warning("what follows the end of task %s waits: %s", task.id, failure)
        self.runner.hand_over()

    # The store

    def _reconcile(self, stored: Stored, since: int) -> None:
        """Take over what a look at the store has seen, which began at a number."""
        for entry in list(self._entries.values()):
            if entry.task.id not in stored and entry.number < since:
                reason = "it is not active in the metadata store any more"
                self._finish(entry, TaskState.FAILED, reason)
        for task_id, row in stored.items():
            if row is not None and task_id not in self._entries:
                self._adopt_stored(row)
        self._compared()

    def _adopt_stored(self, row: TaskRow) -> None:
        try:
            entry = self._read(row)
        except (Unavailable, NotFound) as error:
            _log.warning("task %s is looked at later: %s", row.id, error)
            return
        if entry is not None:
            self._adopt(entry)
