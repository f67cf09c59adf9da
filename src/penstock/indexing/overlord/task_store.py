"""Tasks in the metadata store: added, read at the start of a term, compared, ended.

State of the overlord's mailbox; a comparison reads the store on a lane. The store is authoritative
for which tasks are active. `StoredTasks` records the tasks that end during a comparison, so that a
task that was read before its end is not added again. `TaskEnds` owns the ends that are not stored
yet, `TaskWorkers` the workers that are not stored yet. All that wait share a transaction, which is
retried until it succeeds. `TaskQueue` and `task_effects` decide when each is called.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import orjson

from penstock.core.errors import (
    Conflict,
    Dependency,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
    counted,
)
from penstock.core.names import TASK, check_not_taken, check_stored_name
from penstock.core.waits import WaitTable
from penstock.indexing.overlord.lock_requests import check_lock_requests
from penstock.indexing.overlord.task_state import ActiveTaskState
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.task_context import with_defaults
from penstock.indexing.task_spec import parse_task
from penstock.storage.metadata import TaskRow

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pydantic import JsonValue

    from penstock.core.clock import Clock
    from penstock.indexing.lockbox.task_locks import TaskRemoval
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.indexing.overlord.task_state import QueuedTask, TaskEnd
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import JsonObject, MetadataStore

_log = logging.getLogger(__name__)

_ERROR_CHARACTERS_MAX: Final = 2_000
_STORE: Final = "store the ends of tasks"

# Adding


def new_row(task: TaskSpec, now_ms: int, *, payload_bytes_max: int) -> TaskRow:
    """Return the row to store for a new task.

    Raises:
        InvalidRequest: Its id is not valid as a folder name, it is too large, its context does not
            give it the locks that it needs, or its locks cannot be derived from its spec.
    """
    check_stored_name(task.id, TASK, place="id")
    check_not_taken(task.id, TASK, place="id")
    if isinstance(task, CompactSpec):
        task.require_locks()
    check_lock_requests(task)
    payload = task.to_json()
    try:
        size = len(orjson.dumps(payload))
    except TypeError as error:  # A number in YAML may exceed the range of JSON numbers.
        raise InvalidRequest(f"task {task.id} cannot be written as JSON: {error}") from None
    if size > payload_bytes_max:
        raise InvalidRequest(
            f"task {task.id} has {size} bytes, the maximum is {payload_bytes_max} bytes:"
            " name fewer files in it, or set a larger --task-payload-size"
        )
    return TaskRow(
        id=task.id,
        datasource=task.datasource,
        type=task.type,
        group_id=task.group_name,
        payload=payload,
        created_ms=now_ms,
    )


def with_context(task: TaskSpec, context: Mapping[str, JsonValue]) -> TaskSpec:
    """Return a task whose context is extended by defaults."""
    extended = with_defaults(task.context, context)
    if extended == task.context or not isinstance(task, SpecModel):
        return task
    return task.model_copy(update={"context": extended})


def taken(task_id: str) -> Conflict:
    """Return the error for a task whose id is already in use."""
    return Conflict(f"task {task_id!r} already exists: give the new one another id")


# Reading and comparing

ActiveRows: TypeAlias = Mapping[str, TaskRow | None]
"""The stored active tasks by id, oldest first; rows only of those that were unknown."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """An active task in the store; `worker` is the worker that may have it, None if none."""

    task: TaskSpec
    created_ms: int
    worker: str | None


class StoredTasks:
    """The stored tasks; one comparison at a time. On the overlord's mailbox.

    Args:
        metadata: The store.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._ended: set[str] | None = None

    def active(self) -> list[StoredTask]:
        """Return all active tasks, oldest first.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        rows = reversed(self._metadata.tasks.list(active=True))
        return [found for row in rows if (found := self._parsed(row)) is not None]

    def begin_comparison(self) -> bool:
        """Record ends of tasks from now on; return false if a comparison is running."""
        if self._ended is not None:
            return False
        self._ended = set()
        return True

    def read(self, index: TaskIndex) -> ActiveRows:
        """Read the active tasks, with the rows of those that are not in the index. On a lane."""
        tasks = self._metadata.tasks
        ids = tasks.active_ids()
        found = tasks.rows_of([i for i in ids if index.get(i) is None])
        # A task that ended between the two queries is not added.
        unknown = {row.id: row for row in found if row.active}
        return {i: unknown.get(i) for i in ids}

    def end_comparison(self, stored: ActiveRows) -> ActiveRows:
        """Return the stored tasks, without the rows of tasks that ended during the comparison."""
        ended, self._ended = self._ended or set(), None
        return {i: None if i in ended else row for i, row in stored.items()}

    def abandon_comparison(self) -> None:
        """End a comparison that failed."""
        self._ended = None

    def unknown(self, stored: ActiveRows, known: Container[str]) -> list[StoredTask]:
        """Return the tasks that only the store knows."""
        found = []
        for task_id, row in stored.items():
            if row is None or task_id in known:
                continue
            try:
                task = self._parsed(row)
            except (Unavailable, NotFound) as error:
                _log.warning("task %s is taken over later: %s", row.id, error)
                continue
            if task is not None:
                found.append(task)
        return found

    def task_ended(self, task_id: str) -> None:
        """A task ended: a running comparison ignores it."""
        if self._ended is not None:
            self._ended.add(task_id)

    def _parsed(self, row: TaskRow) -> StoredTask | None:
        """Return a task; None if its payload is invalid, which is stored as its failure."""
        place = "its payload cannot be read: "
        try:
            task = parse_task(dict(row.payload))
            place = ""  # Errors of the locks name the task and the cause.
            check_lock_requests(task)
        except InvalidRequest as error:
            _log.error("task %s is invalid and fails: %s", row.id, error)
            status = {"errorMsg": f"{place}{error}"}
            self._metadata.tasks.set_status(row.id, TaskState.FAILED, status)
            return None
        worker = row.status.get("worker")
        return StoredTask(task, row.created_ms, worker if isinstance(worker, str) else None)


# Workers


class TaskWorkers:
    """Workers of tasks that are to be stored. On the overlord's mailbox.

    Args:
        metadata: The metadata store.
    """

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._unstored: dict[str, tuple[QueuedTask, str | None]] = {}

    @property
    def has_unstored(self) -> bool:
        """Whether workers are to be stored."""
        return bool(self._unstored)

    def add(self, entry: QueuedTask, worker: str | None) -> None:
        """Add a task whose worker is to be stored; None: it has no worker."""
        self._unstored[entry.task.id] = (entry, worker)

    def store_all(self) -> list[QueuedTask] | None:
        """Store all workers that have not changed meanwhile.

        Returns:
            The tasks that are stored as tasks without a worker; None if the store does not answer.
        """
        self._unstored = {
            task_id: (entry, worker)
            for task_id, (entry, worker) in self._unstored.items()
            if _has_worker(entry, worker)
        }
        if not self.store({task_id: worker for task_id, (_, worker) in self._unstored.items()}):
            return None
        stored, self._unstored = self._unstored, {}
        return [entry for entry, worker in stored.values() if worker is None]

    def store(self, workers: Mapping[str, str | None]) -> bool:
        """Store the workers of tasks in one transaction; return whether it succeeded."""
        if not workers:
            return True
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


def _has_worker(entry: QueuedTask, worker: str | None) -> bool:
    """Return whether a task is active and has this worker; None: whether it waits for one."""
    if worker is None:
        return entry.state is ActiveTaskState.PENDING
    return entry.worker == worker and entry.state is not ActiveTaskState.ENDED


# Ending


class TaskEnds:
    """Ends of tasks that are to be stored. On the overlord's mailbox.

    Args:
        metadata: The metadata store.
        clock: Time at which a task ended.
        events: Reports an end that came after another one.

    Attributes:
        waits: The wait for the metadata store, if ends cannot be stored; readable by any thread.
    """

    def __init__(self, metadata: MetadataStore, clock: Clock, events: Events) -> None:
        self._metadata = metadata
        self._clock = clock
        self._events = events
        self.waits: Final = WaitTable(clock)
        self._unstored: dict[str, QueuedTask] = {}

    def add(self, entry: QueuedTask) -> None:
        """Add a task whose end is to be stored."""
        self._unstored[entry.task.id] = entry

    def forget(self, task_id: str) -> None:
        """Do not store a task's end: the task was removed."""
        self._unstored.pop(task_id, None)

    def store_all(self) -> list[QueuedTask] | None:
        """Store all ends; return their tasks, None if the store does not answer."""
        batch = [(entry, entry.end) for entry in self._unstored.values() if entry.end is not None]
        try:
            self.store(batch)
        except Unavailable as error:
            tasks = counted(len(batch), "task")
            _log.warning("the ends of %s are not stored yet: %s", tasks, error)
            self.waits.failed(_STORE, error, dependency=Dependency.METADATA)
            return None
        self.waits.ended(_STORE)
        self._unstored.clear()
        return [entry for entry, _end in batch]

    def store(self, ends: Sequence[tuple[QueuedTask, TaskEnd]]) -> None:
        """Store ends in one transaction.

        Raises:
            Unavailable: The metadata store does not answer; no end is stored.
        """
        if not ends:
            return
        changes: list[tuple[str, str, JsonObject | None]] = []
        for entry, end in ends:
            status = {
                "worker": end.worker or entry.worker,
                "errorMsg": _storable(end.error),
                "endedMs": self._clock.now_ms(),
            }
            changes.append((entry.task.id, end.state, status))
        known = self._metadata.tasks.set_statuses(changes)
        for entry, end in ends:
            if entry.task.id not in known:
                text = (
                    f"task {entry.task.id} was complete or deleted already: its end is not stored"
                )
                self._events.alert(text, taskId=entry.task.id, state=str(end.state))
                _log.warning("%s", text)


def _storable(error: str) -> str:
    """Return a worker's error message in a form that any store accepts.

    It may name a file whose name is not valid text, and one refused end would delay all others.
    """
    return error[:_ERROR_CHARACTERS_MAX].encode(errors="replace").decode()


def has_leftovers(removal: TaskRemoval) -> bool:
    """Return whether data of an ended task must be deleted after its locks are released."""
    return removal.last_of_allocator is not None or removal.had_replace_lock


def delete_leftovers(metadata: MetadataStore, task: TaskSpec, removal: TaskRemoval) -> None:
    """Delete the data that belonged to an ended task's locks. On the datasource's lane."""
    if removal.had_replace_lock:
        # An append may have added an upgrade after the task's end was stored.
        metadata.upgrades.forget([task.id])
    if (allocator := removal.last_of_allocator) is not None:
        metadata.segments.delete_pending(task.datasource, allocator_id=allocator)
