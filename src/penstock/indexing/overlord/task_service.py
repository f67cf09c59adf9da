"""Task and worker operations of the overlord's API.

`TaskService` reads the task index and the metadata store on the caller's thread; a change is
posted to the overlord's mailbox and returns a future. `TaskSubmissions` collects submitted
tasks, so that those that wait at the same time share one transaction; validation belongs to the
task queue. `TaskView` is the API's form of a task with its state and wait reasons. All methods
may be called from any thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pydantic import JsonValue

from penstock.core.errors import (
    Closed,
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.core.instants import format_time
from penstock.core.names import spelling
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.runner.worker_config import (
    CONFIG_NAME,
    WorkerConfig,
    parse_worker_config,
)
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.wait_reasons import BlockedTask, WaitReason, reasons_of
from penstock.indexing.specs.batch.batch_task_specs import BatchTaskSpec, parse_batch_task
from penstock.storage.metadata import AuditRow

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.overlord.runner.worker_table import WorkerView
    from penstock.indexing.overlord.task_index import ActiveTask, TaskIndex
    from penstock.indexing.overlord.term import CurrentTerm, OverlordPorts
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import TaskFilter, TaskRow, TaskSummary


TASKS_PER_TRANSACTION: Final = 500
"""Tasks that are stored together: a larger number would delay the mailbox's other mail."""


class TaskSink(Protocol):
    """Part of the task queue that `TaskSubmissions` uses."""

    def add_all(self, tasks: Sequence[TaskSpec]) -> Sequence[PenstockError | None]:
        """Store new tasks; return an error for each refused task and None for each stored one."""
        ...


class TaskSubmissions:
    """Collects submitted tasks, so that waiting ones share one transaction.

    The mutex guards the inbox, which callers fill and the mailbox empties. It is held for a few
    statements only.

    Args:
        queue: Returns the current queue, or raises NotLeading; called on the mailbox.
        processor: The overlord's mailbox.
    """

    def __init__(self, queue: Callable[[], TaskSink], processor: MailboxProcessor) -> None:
        self._queue = queue
        self._processor = processor
        self._mutex = threading.Lock()
        self._inbox: list[tuple[TaskSpec, Future[str]]] = []

    def submit(self, task: TaskSpec) -> Future[str]:
        """Submit a task; the future has its id, or raises the errors of `TaskQueue.add`."""
        future: Future[str] = Future()
        with self._mutex:
            self._inbox.append((task, future))
            is_first = len(self._inbox) == 1
        if is_first:
            self._post()
        return future

    def _post(self) -> None:
        try:
            mail = self._processor.main_executor.submit_change(self._serve, "submitted tasks")
        except Closed as error:
            self._refuse(error)
        except BaseException as error:
            self._refuse(Unavailable(f"the task could not be submitted: try again ({error!r})"))
            raise
        else:
            mail.add_done_callback(self._posted)

    def _posted(self, mail: Future[None]) -> None:
        if mail.cancelled():
            self._refuse(Closed("the overlord stops: submit the task to the next leader"))

    def _refuse(self, error: PenstockError) -> None:
        for _task, future in self._taken(None):
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _taken(self, most: int | None) -> list[tuple[TaskSpec, Future[str]]]:
        with self._mutex:
            taken = self._inbox[:most]
            self._inbox = [] if most is None else self._inbox[most:]
        return taken

    def _serve(self) -> None:
        taken = self._taken(TASKS_PER_TRANSACTION)
        with self._mutex:
            more = bool(self._inbox)
        try:
            if more:
                self._post()
        finally:
            waiting = [one for one in taken if one[1].set_running_or_notify_cancel()]
            try:
                self._add(waiting)
            except BaseException as error:
                for _task, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                raise

    def _add(self, waiting: Sequence[tuple[TaskSpec, Future[str]]]) -> None:
        if not waiting:
            return
        try:
            answers = self._queue().add_all([task for task, _future in waiting])
        except PenstockError as error:
            if isinstance(error, InvalidRequest) and len(waiting) > 1:
                # The store refused one of them; the others must still be added.
                for one in waiting:
                    self._add([one])
                return
            for _task, future in waiting:
                future.set_exception(error)
            return
        for (task, future), refusal in zip(waiting, answers, strict=True):
            if refusal is None:
                future.set_result(task.id)
            else:
                future.set_exception(refusal)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task in the API: its row, a `RunnerState`, its peon's address and its waits."""

    row: TaskRow
    runner_state: str
    location: TaskLocation | None
    waits: tuple[DependencyWait, ...] = ()


class TaskService:
    """Task operations of the API: submit, end, list, explain.

    Args:
        current: The term that the overlord leads now.
        ports: The overlord's ports.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, current: CurrentTerm, ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._current = current
        self._ports = ports
        self._processor = processor
        self._intake = TaskSubmissions(lambda: current.lead().queue, processor)

    @property
    def index(self) -> TaskIndex:
        """The active tasks by id, supervisor, datasource and state."""
        return self._current.lead().queue.index

    @property
    def is_leading(self) -> bool:
        """Whether this overlord leads and serves tasks."""
        try:
            self._current.lead()
        except NotLeading:
            return False
        return True

    def parse(self, raw: bytes | Mapping[str, JsonValue]) -> BatchTaskSpec:
        """Return the spec of a batch task that is submitted, with stored names as stored.

        Raises:
            SpecError: The spec is invalid; the error lists all mistakes.
        """
        is_stored = self._ports.metadata.is_stored_name
        return parse_batch_task(raw, lambda name: spelling(name, is_stored))

    def submit(self, given: bytes | Mapping[str, JsonValue] | BatchTaskSpec) -> Future[str]:
        """Submit a batch task; the future has its id, which is generated if the spec has no id.

        Args:
            given: The spec, or its JSON.

        Raises:
            SpecError: The spec is invalid; the error lists all mistakes.

        Raises (in the future):
            Conflict: A task with this id exists.
            QueueFull: The queue holds its maximum number of tasks.
        """
        task = self.parse(given) if isinstance(given, bytes | Mapping) else given
        return self._intake.submit(self.named(task))

    def named(self, task: BatchTaskSpec) -> BatchTaskSpec:
        """Return a task with an id, which is generated if the spec has no id."""
        if task.id:
            return task
        now = format_time(self._ports.clock.now_ms())
        name = f"{task.type}_{task.datasource}_{self._ports.new_token()}_{now}"
        return task.with_id(name)

    def shutdown(self, task_id: str, reason: str = "shut down by a user") -> Future[bool]:
        """End a task without publishing; return false if it is not active."""
        return self._change(
            lambda: self._current.lead().queue.shutdown(task_id, reason), "shut down a task"
        )

    def shutdown_all(self, datasource: str) -> Future[int]:
        """End all tasks of a datasource; return the number of ended tasks."""

        def end() -> int:
            queue = self._current.lead().queue
            ids = list(queue.index.of_datasource(datasource))
            return queue.shutdown_all(ids, "all tasks of its datasource were shut down by a user")

        return self._change(end, "shut down the tasks of a datasource")

    def tasks(
        self, *, active: bool | None = None, datasource: str | None = None, limit: int | None = None
    ) -> list[TaskView]:
        """Return tasks, newest first."""
        index = self.index
        rows = self._ports.metadata.tasks.list(active=active, datasource=datasource, limit=limit)
        return [_view(row, index.get(row.id)) for row in rows]

    def task(self, task_id: str) -> TaskView:
        """Return a task.

        Raises:
            NotFound: There is no such task.
        """
        row = self._ports.metadata.tasks.get(task_id)
        if row is None:
            raise NotFound(f"there is no task {task_id!r}")
        return _view(row, self.index.get(task_id))

    def complete(self, wanted: TaskFilter, *, limit: int) -> Sequence[TaskSummary]:
        """Return summaries of tasks that have ended, newest first."""
        self._current.lead()
        return self._ports.metadata.tasks.summaries(replace(wanted, active=False), limit=limit)

    def summaries(self, ids: Sequence[str]) -> Sequence[TaskSummary]:
        """Return the summaries of those of these tasks that exist, in any order."""
        self._current.lead()
        return self._ports.metadata.tasks.summaries_of(ids)

    def location(self, task_id: str) -> TaskLocation | None:
        """Return the address of a task's peon, None if unknown."""
        active = self.index.get(task_id)
        return None if active is None else active.location

    def why(self, task_id: str) -> Future[list[WaitReason]]:
        """Return the reasons why a task waits, except for retries; empty if it runs.

        Raises (in the future):
            NotFound: The task is not active.
        """

        def explain() -> list[WaitReason]:
            term = self._current.lead()
            facts = term.queue.wait_facts(task_id)
            publish = term.access.why(task_id)
            return reasons_of(replace(facts, shortage=term.shortage(), publish=publish))

        return self._call(explain, "explain a task")

    def blocked_tasks(self) -> Future[list[BlockedTask]]:
        """Return all tasks that wait for locks, with the locks that refuse them."""

        def read() -> list[BlockedTask]:
            return self._current.lead().queue.blocked_tasks()

        return self._call(read, "tasks that wait for locks")

    # Workers

    def workers(self) -> Future[list[WorkerView]]:
        """Return the known workers, without lost ones."""

        def read() -> list[WorkerView]:
            return self._current.lead().queue.runner.workers()

        return self._call(read, "workers")

    def worker_config(self) -> WorkerConfig:
        """Return the config by which workers are selected."""
        self._current.lead()
        stored = self._ports.metadata.config.get(CONFIG_NAME)
        return WorkerConfig() if stored is None else parse_worker_config(stored)

    def set_worker_config(
        self, raw: bytes | dict[str, JsonValue], *, author: str = "", comment: str = ""
    ) -> Future[None]:
        """Set the config by which workers are selected.

        Raises:
            SpecError: The config is invalid; the error lists all mistakes.

        Raises (in the future):
            Conflict: Another overlord changed it at the same time.
        """
        config = parse_worker_config(raw)
        entry = AuditRow(CONFIG_NAME, CONFIG_NAME, author, comment, config.to_json())
        text = json.dumps(config.to_json()).encode()

        def change() -> None:
            # Stored and applied in one mail, so that the last of two changes wins in both.
            term = self._current.lead()
            stored = term.metadata.config
            before = stored.get(CONFIG_NAME)
            if not stored.compare_and_set(CONFIG_NAME, before, text, entry=entry):
                raise Conflict(
                    "another overlord changed the worker config at the same time: read it again"
                )
            term.queue.configure(config)

        return self._change(change, "worker config")

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit_change(command, description)

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit(command, description)


def _view(row: TaskRow, active: ActiveTask | None) -> TaskView:
    if active is None:
        return TaskView(row, RunnerState.NONE, None)
    return TaskView(row, active.state, active.location, active.waits)
