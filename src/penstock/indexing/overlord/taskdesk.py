"""Tasks and workers, as the API asks for them. Any thread.

Reads the index and the metadata store on the caller's thread; what changes something is posted to
the overlord's mailbox and returns a future.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue

from penstock.core.errors import Conflict, NotFound
from penstock.core.instants import format_time
from penstock.core.names import spelling
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.intake import Intake
from penstock.indexing.overlord.runner.workerconfig import (
    CONFIG_NAME,
    WorkerConfig,
    parse_worker_config,
)
from penstock.indexing.overlord.taskindex import RunnerState
from penstock.indexing.overlord.waiting.explaining import waits_of
from penstock.indexing.overlord.waiting.waits import Wait
from penstock.indexing.spec.batch import parse_batch_task
from penstock.indexing.taskspec import StreamTaskSpec
from penstock.storage.metadata import AuditRow

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.core.waits import DependencyWait
    from penstock.indexing.overlord.runner.workers import WorkerView
    from penstock.indexing.overlord.taskindex import ActiveTask, TaskIndex
    from penstock.indexing.overlord.term import LeaderTerm, OverlordPorts
    from penstock.indexing.ports import TaskLocation
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import TaskFilter, TaskRow, TaskSummary

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task as the API shows it: the words of `RunnerState`, and what it waits for."""

    row: TaskRow
    runner_state: str
    location: TaskLocation | None
    waits: tuple[DependencyWait, ...] = ()


class TaskDesk:
    """The desk.

    Args:
        lead: Returns the term, or raises NotLeading.
        ports: What the overlord works with.
        processor: The overlord's mailbox.
    """

    def __init__(
        self, lead: Callable[[], LeaderTerm], ports: OverlordPorts, processor: MailboxProcessor
    ) -> None:
        self._lead = lead
        self._ports = ports
        self._processor = processor
        self._intake = Intake(lambda: lead().queue, processor)

    @property
    def index(self) -> TaskIndex:
        """The active tasks by id, supervisor, datasource and state."""
        return self._lead().queue.index

    @property
    def is_leading(self) -> bool:
        """Whether this overlord leads and answers for tasks."""
        try:
            self._lead()
        except NotLeading:
            return False
        return True

    def submit(self, raw: bytes | Mapping[str, JsonValue]) -> Future[str]:
        """Have a batch task run; the future has its id, which is made up where none is given.

        Raises:
            SpecError: The task has mistakes; all are listed.

        Raises (in the future):
            Conflict: The id is taken.
            QueueFull: There are as many tasks as there may be.
        """
        is_stored = self._ports.metadata.is_stored_name
        task = parse_batch_task(raw, lambda name: spelling(name, is_stored))
        if not task.id:
            now = format_time(self._ports.clock.now_ms())
            name = f"{task.type}_{task.datasource}_{self._ports.new_token()}_{now}"
            task = task.with_id(name)
        return self._intake.submit(task)

    def shutdown(self, task_id: str, reason: str = "shut down by a user") -> Future[bool]:
        """End a task without publishing; false if it is not active."""
        return self._change(
            lambda: self._lead().queue.shutdown(task_id, reason), "shut down a task"
        )

    def shutdown_all(self, datasource: str) -> Future[int]:
        """End all tasks of a datasource; return how many there were."""

        def end() -> int:
            queue = self._lead().queue
            ids = list(queue.index.of_datasource(datasource))
            return queue.shutdown_all(ids, "all tasks of its datasource were shut down by a user")

        return self._change(end, "shut down the tasks of a datasource")

    def tasks(
        self, *, active: bool | None = None, datasource: str | None = None, limit: int | None = None
    ) -> list[TaskView]:
        """Return tasks, the newest first."""
        index = self.index
        rows = self._ports.metadata.tasks.list(active=active, datasource=datasource, limit=limit)
        return [_view(row, index.get(row.id)) for row in rows]

    def task(self, task_id: str) -> TaskView:
        """Return a task.

        Raises:
            NotFound: There is none.
        """
        row = self._ports.metadata.tasks.get(task_id)
        if row is None:
            raise NotFound(f"there is no task {task_id!r}")
        return _view(row, self.index.get(task_id))

    def complete(self, wanted: TaskFilter, *, limit: int) -> Sequence[TaskSummary]:
        """Return tasks that have ended, the newest first, without what they were asked to do."""
        self._lead()
        return self._ports.metadata.tasks.summaries(replace(wanted, active=False), limit=limit)

    def summaries(self, ids: Sequence[str]) -> Sequence[TaskSummary]:
        """Return those of these tasks that there are, in no order."""
        self._lead()
        return self._ports.metadata.tasks.summaries_of(ids)

    def location(self, task_id: str) -> TaskLocation | None:
        """Return where a task's peon answers, None if nobody knows."""
        active = self.index.get(task_id)
        return None if active is None else active.location

    def why(self, task_id: str) -> Future[list[Wait]]:
        """Return what a task waits for; nothing if it just runs.

        Raises (in the future):
            NotFound: It is not active.
        """

        def explain() -> list[Wait]:
            term = self._lead()
            queue = term.queue
            found = waits_of(task_id, queue.index, queue.locks, queue.runner)
            active = queue.index.get(task_id)
            if active is not None and not isinstance(active.task, StreamTaskSpec):
                shortage = term.shortage()
                found = [_with_shortage(one, shortage) for one in found]
            running = term.desk.why(task_id)
            return [*found, Wait("publish", running)] if running and not found else found

        return self._call(explain, "explain a task")

    # Workers

    def workers(self) -> Future[list[WorkerView]]:
        """Return what is known of the workers; lost ones are not among them."""

        def read() -> list[WorkerView]:
            return self._lead().queue.runner.workers()

        return self._call(read, "workers")

    def worker_config(self) -> WorkerConfig:
        """Return how workers are selected."""
        self._lead()
        stored = self._ports.metadata.config.get(CONFIG_NAME)
        return WorkerConfig() if stored is None else parse_worker_config(stored)

    def set_worker_config(
        self, raw: bytes | dict[str, JsonValue], *, author: str = "", comment: str = ""
    ) -> Future[None]:
        """Select workers in another way from now on.

        Raises:
            SpecError: The config has mistakes; all are listed.

        Raises (in the future):
            Conflict: Another overlord changed it at this moment.
        """
        config = parse_worker_config(raw)
        entry = AuditRow(CONFIG_NAME, CONFIG_NAME, author, comment, config.to_json())
        text = json.dumps(config.to_json()).encode()

        def change() -> None:
            # Stored and taken up in one mail: of two changes at once, the last is so in both.
            term = self._lead()
            stored = term.metadata.config
            before = stored.get(CONFIG_NAME)
            if not stored.compare_and_set(CONFIG_NAME, before, text, entry=entry):
                raise Conflict(
                    "the worker config was changed by another overlord just now: look again"
                )
            term.queue.runner.configure(config)

        return self._change(change, "worker config")

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit_change(command, description)

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit(command, description)


def _with_shortage(wait: Wait, shortage: str) -> Wait:
    if wait.kind != "slots" or not shortage:
        return wait
    return replace(wait, text=f"{wait.text}; {shortage}")


def _view(row: TaskRow, active: ActiveTask | None) -> TaskView:
    if active is None:
        return TaskView(row, RunnerState.NONE, None)
    return TaskView(row, active.state, active.location, active.waits)
