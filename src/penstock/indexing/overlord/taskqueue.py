"""The task queue: which tasks are active, and which worker has each.

All state belongs to the overlord's mailbox; workers are called on lanes. What must survive is in
the metadata store: a new overlord reads the active tasks and the worker of each from there, and
learns from the workers' reports how they stand. Invariants:

- a task is handed to one worker; to another only if the first says that it does not have it;
- the first complete state of a task stands; from then on its actions are refused;
- a worker keeps a task that ended until the end is stored here.

| worker reports | entry here | reaction |
|---|---|---|
| any | none | have the worker stop or forget it |
| any | with another worker | have the worker stop or forget it |
| running | with this worker, or with none | it is this worker's; note where it answers |
| ended | with this worker, or with none | store the state, tell the supervisor, have it forgotten |
| nothing | handed over, and the worker had said yes | the task has failed: it disappeared |
| nothing | handed over by an overlord before this one | the same |
| nothing | handed over by this overlord, answer lost | hand it over again |
| nothing at all for a while | with this worker | the task has failed: its worker is lost |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskLocation, TaskState, WorkerReport, WorkerTask
from penstock.indexing.supervisor.ports import ActiveStream
from penstock.indexing.taskspec import TASK_TYPE, parse_task_spec
from penstock.storage.metadata import TaskRow

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.ports import Lanes, WorkerClient, WorkerDirectory
    from penstock.indexing.taskspec import StreamTaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskQueueOptions:
    """How the task queue behaves.

    Attributes:
        max_tasks: No more active tasks than this.
        sync_interval_ms: How often each worker is asked for everything it has.
        worker_timeout_ms: A worker that did not answer for so long is lost, and its tasks failed.
    """

    max_tasks: int = 1_000
    sync_interval_ms: int = 1_000
    worker_timeout_ms: int = 120_000


@dataclass(slots=True)
class _Entry:
    """One active task. `accepted`: the worker has said that it has it, or must have."""

    task: StreamTaskSpec
    created_ms: int
    worker: str | None = None
    accepted: bool = False
    assigning: bool = False
    location: TaskLocation | None = None


@dataclass(slots=True)
class _Worker:
    """One worker. `round` counts the reports asked of it, so that an old one is not trusted."""

    client: WorkerClient
    seen_s: float
    capacity: int = 0
    asking: bool = False


class TaskQueue:
    """The queue. On the overlord's mailbox, but for `active`.

    Args:
        metadata: Where tasks are kept.
        directory: Which workers there are.
        lanes: Where workers are called.
        processor: The overlord's mailbox.
        clock: Tells when a worker is lost.
        completed: Told of each task that ends.
        options: How the queue behaves.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        directory: WorkerDirectory,
        lanes: Lanes,
        processor: MailboxProcessor,
        clock: Clock,
        *,
        completed: Callable[[StreamTaskSpec, TaskState, str], None],
        options: TaskQueueOptions,
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._calls = Calls(lanes, processor)
        self._timers = processor.timers
        self._clock = clock
        self._completed = completed
        self._options = options
        self._entries: dict[str, _Entry] = {}
        self._workers: dict[str, _Worker] = {}
        self._lost_since_s: dict[str, float] = {}
        self._listing = False
        self._active: Mapping[str, ActiveStream] | None = None

    # Any thread

    def active(self) -> Mapping[str, ActiveStream]:
        """Return the active tasks, as of some moment just now.

        Raises:
            Unavailable: The tasks are not read yet.
        """
        if self._active is None:
            raise Unavailable("the overlord is starting and has not read its tasks yet: try again")
        return self._active

    # The mailbox thread

    def streams(self, supervisor_id: str) -> Mapping[str, ActiveStream]:
        """Return the active tasks of a supervisor, by id."""
        active = self.active()
        return {i: one for i, one in active.items() if one.task.supervisor_id == supervisor_id}

    def start(self) -> None:
        """Read the active tasks and begin to ask the workers."""
        for row in reversed(self._metadata.tasks.list(active=True)):
            if row.type != TASK_TYPE:
                continue
            try:
                entry = _Entry(parse_task_spec(dict(row.payload)), row.created_ms)
            except InvalidRequest as error:
                _log.error("task %s cannot be read and is given up: %s", row.id, error)
                status = {"errorMsg": f"its payload cannot be read: {error}"}
                self._metadata.tasks.set_status(row.id, TaskState.FAILED, status)
                continue
            worker = row.status.get("worker")
            # Whether it was handed over is not known. One that was, and is not there any more, must
            # not begin again under its name: its successor may be reading already.
            entry.worker = worker if isinstance(worker, str) else None
            entry.accepted = entry.worker is not None
            self._entries[row.id] = entry
        self._changed()
        self._timers.schedule_every(
            self._options.sync_interval_ms, self._sync, "ask the workers", first_after_ms=0
        )

    def add(self, task: StreamTaskSpec) -> None:
        """Keep a new task and hand it to a worker when one has a free slot.

        Raises:
            Conflict: The id is taken.
            Unavailable: The queue is full, or the metadata store does not answer.
        """
        if len(self._entries) >= self._options.max_tasks:
            raise Unavailable(
                f"the task queue is full: it holds {len(self._entries)} tasks; wait for some to end"
            )
        self._metadata.tasks.insert(
            TaskRow(
                id=task.id,
                datasource=task.datasource,
                type=task.type,
                group_id=task.group_name,
                payload=task.to_json(),
            )
        )
        self._entries[task.id] = _Entry(task, self._clock.now_ms())
        self._changed()
        self._assign_waiting()

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task; false if it is not active.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        entry = self._entries.get(task_id)
        if entry is None:
            return False
        self._complete(entry, state, reason)
        return True

    def location_changed(self, task_id: str, location: TaskLocation) -> None:
        """A peon says where it answers."""
        entry = self._entries.get(task_id)
        if entry is not None and entry.location != location:
            entry.location = location
            self._changed()

    def slots(self) -> dict[str, int]:
        """Return how many tasks each worker runs at most, by name; lost ones are not named."""
        since_s = self._clock.monotonic_s() - self._options.worker_timeout_ms / 1000
        return {n: w.capacity for n, w in self._workers.items() if w.seen_s >= since_s}

    def _changed(self) -> None:
        # A new mapping each time: readers on other threads keep the one they have.
        self._active = MappingProxyType(
            {
                task_id: ActiveStream(entry.task, entry.worker, entry.location, entry.created_ms)
                for task_id, entry in self._entries.items()
            }
        )

    # Workers

    def _sync(self) -> None:
        if not self._listing:
            self._listing = True
            self._calls.call("workers", self._directory.workers, self._listed, self._not_listed)
        self._fail_tasks_of_lost_workers()

    def _not_listed(self, error: PenstockError) -> None:
        self._listing = False
        _log.warning("cannot list the workers: %s", error)

    def _listed(self, clients: Sequence[WorkerClient]) -> None:
        self._listing = False
        for client in clients:
            worker = self._workers.get(client.name)
            if worker is None:
                worker = _Worker(client, self._clock.monotonic_s())
                self._workers[client.name] = worker
            worker.client = client
            if not worker.asking:
                self._ask(worker)
        self._forget_workers_that_are_gone({client.name for client in clients})

    def _forget_workers_that_are_gone(self, announced: set[str]) -> None:
        """A host of a cluster may have another name each time it starts."""
        kept = announced | {entry.worker for entry in self._entries.values()}
        for name in self._workers.keys() - kept:
            if not self._workers[name].asking:
                del self._workers[name]
        for name in self._lost_since_s.keys() - kept:
            del self._lost_since_s[name]

    def _ask(self, worker: _Worker) -> None:
        worker.asking = True
        name = worker.client.name
        # Only what was accepted before the question can be missed in the answer.
        accepted = {i for i, e in self._entries.items() if e.worker == name and e.accepted}
        handed = {i for i, e in self._entries.items() if e.worker == name and not e.assigning}

        def done(report: WorkerReport) -> None:
            worker.asking = False
            worker.seen_s = self._clock.monotonic_s()
            worker.capacity = report.capacity
            self._merge(worker, report, accepted, handed)

        def failed(error: PenstockError) -> None:
            worker.asking = False
            _log.info("worker %s does not answer: %s", name, error)

        self._calls.call(f"worker-{name}", worker.client.report, done, failed)

    def _merge(
        self, worker: _Worker, report: WorkerReport, accepted: set[str], handed: set[str]
    ) -> None:
        for told in report.tasks:
            self._merge_task(worker, told)
        listed = {told.id for told in report.tasks}
        for task_id in handed - listed:
            entry = self._entries.get(task_id)
            if entry is None or entry.worker != worker.client.name:
                continue
            if task_id in accepted:
                name = worker.client.name
                self._end(entry, TaskState.FAILED, f"it disappeared from the worker {name}")
            elif not entry.accepted:
                self._take_back(entry)
        self._changed()
        self._assign_waiting()

    def _merge_task(self, worker: _Worker, told: WorkerTask) -> None:
        name = worker.client.name
        entry = self._entries.get(told.id)
        if entry is None or entry.worker not in {None, name}:
            self._forget(worker, told.id)
            return
        entry.worker, entry.accepted = name, True
        entry.location = told.location or entry.location
        if told.state.complete:
            self._end(entry, told.state, told.error)

    def _forget(self, worker: _Worker, task_id: str) -> None:
        self._calls.call(
            f"worker-{worker.client.name}",
            lambda: worker.client.shutdown(task_id),
            lambda _none: None,
            # It will be in the next report, and then asked for again.
            lambda error: _log.info("worker cannot end %s yet: %s", task_id, error),
        )

    def _fail_tasks_of_lost_workers(self) -> None:
        now_s = self._clock.monotonic_s()
        for entry in list(self._entries.values()):
            if entry.worker is None:
                continue
            worker = self._workers.get(entry.worker)
            # One that this overlord never saw is given the same time from its first look on.
            since_s = (
                worker.seen_s if worker else self._lost_since_s.setdefault(entry.worker, now_s)
            )
            silent_ms = (now_s - since_s) * 1000
            if silent_ms > self._options.worker_timeout_ms:
                reason = f"its worker {entry.worker} has not answered for {silent_ms / 1000:.0f} s"
                self._end(entry, TaskState.FAILED, reason)

    # Handing over

    def _assign_waiting(self) -> None:
        for entry in self._entries.values():
            if entry.worker is None:
                worker = self._roomiest()
                if worker is None:
                    return
                self._assign(entry, worker)

    def _roomiest(self) -> _Worker | None:
        now_s = self._clock.monotonic_s()
        best: _Worker | None = None
        best_free = 0
        for name, worker in self._workers.items():
            used = sum(entry.worker == name for entry in self._entries.values())
            fresh = now_s - worker.seen_s < 10 * self._options.sync_interval_ms / 1000
            if fresh and worker.capacity - used > best_free:
                best, best_free = worker, worker.capacity - used
        return best

    def _assign(self, entry: _Entry, worker: _Worker) -> None:
        name, task = worker.client.name, entry.task
        try:
            # First, so that the next overlord does not hand it to another.
            self._metadata.tasks.set_status(task.id, TaskState.RUNNING, {"worker": name})
        except PenstockError as error:
            _log.warning("task %s waits: %s", task.id, error)
            return
        entry.worker, entry.assigning = name, True

        def done(_none: None) -> None:
            entry.assigning, entry.accepted = False, True

        def failed(error: PenstockError) -> None:
            entry.assigning = False
            if isinstance(error, InvalidRequest):
                if task.id in self._entries:
                    self._end(entry, TaskState.FAILED, f"the worker {name} refuses it: {error}")
                return
            if isinstance(error, Conflict) and task.id in self._entries:
                self._take_back(entry)
                self._changed()
            # Otherwise it may have arrived: the worker's next report says.
            _log.info("worker %s did not take %s: %s", name, task.id, error)

        self._calls.call(f"worker-{name}", lambda: worker.client.assign(task), done, failed)
        self._changed()

    def _take_back(self, entry: _Entry) -> None:
        """Have a task wait for any worker again, as one that surely does not have it gave it back.

        The next overlord must know too, or it would take the task for one that disappeared there.
        """
        entry.worker = None
        try:
            self._metadata.tasks.set_status(entry.task.id, TaskState.RUNNING, {})
        except PenstockError as error:
            _log.warning("that task %s waits again is not stored: %s", entry.task.id, error)

    # Ends

    def _end(self, entry: _Entry, state: TaskState, error: str) -> None:
        """Complete a task; if the store does not answer, the next report brings it here again."""
        try:
            self._complete(entry, state, error)
        except Unavailable as unavailable:
            _log.warning("the end of task %s is not stored yet: %s", entry.task.id, unavailable)

    def _complete(self, entry: _Entry, state: TaskState, error: str) -> None:
        task = entry.task
        status = {
            "worker": entry.worker,
            "errorMsg": error,
            "endedMs": self._clock.now_ms(),
        }
        try:
            self._metadata.tasks.set_status(task.id, state, status)
        except NotFound:
            _log.warning("task %s is not in the metadata store any more", task.id)
        self._entries.pop(task.id, None)
        self._changed()
        worker = self._workers.get(entry.worker or "")
        if worker is not None:
            self._forget(worker, task.id)
        _log.info("task %s ended: %s %s", task.id, state, error)
        self._completed(task, state, error)
        self._assign_waiting()
