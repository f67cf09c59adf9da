"""The tasks in the metadata store: read at the start of a term, compared periodically afterwards.

State of the overlord's mailbox; a comparison reads the store on a lane. The store is authoritative
for which tasks are active. Records the tasks that end during a comparison, so that a task that was
read before its end is not added again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.task_spec import parse_task
from penstock.storage.metadata import TaskRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.indexing.overlord.entries.entry import QueuedTask
    from penstock.indexing.overlord.entries.table import QueuedTasks
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)

_Stored: TypeAlias = Mapping[str, TaskRow | None]
"""The stored active tasks by id, oldest first; rows only of those that were unknown."""


class StoredTasks:
    """The stored tasks; one comparison at a time. On the overlord's mailbox.

    Args:
        metadata: The store.
        calls: Runs the comparisons.
        table: The entries to compare with.
        came: Called with a new entry, not in the table yet, for a task that only the store knew.
        gone: Called with an entry whose task is no longer active in the store.
        compared: Called at the end of each comparison.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        calls: Calls,
        table: QueuedTasks,
        *,
        came: Callable[[QueuedTask], None],
        gone: Callable[[QueuedTask], None],
        compared: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._table = table
        self._came = came
        self._gone = gone
        self._compared = compared
        self._ended: set[str] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop all callbacks."""
        self._stopped = True

    def take_over(self) -> list[tuple[QueuedTask, str | None]]:
        """Return entries of all active tasks, oldest first, each with the worker that may have it.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        taken: list[tuple[QueuedTask, str | None]] = []
        for row in reversed(self._metadata.tasks.list(active=True)):
            entry = self._entry_of(row)
            if entry is not None:
                worker = row.status.get("worker")
                taken.append((entry, worker if isinstance(worker, str) else None))
        return taken

    def look(self) -> None:
        """Compare the entries with the store, unless a comparison is running."""
        if self._stopped or self._ended is not None:
            return
        self._ended = set()
        since = self._table.next_number()

        def done(stored: _Stored) -> None:
            ended, self._ended = self._ended or set(), None
            if not self._stopped:
                # Ignore the rows of tasks that ended during the comparison.
                rows = {i: None if i in ended else row for i, row in stored.items()}
                self._compare(rows, since)

        def failed(error: PenstockError) -> None:
            self._ended = None
            _log.info("the tasks cannot be compared with the store: %s", error)

        self._calls.call("tasks", self._read, done, failed)

    def task_ended(self, task_id: str) -> None:
        """A task ended: a running comparison ignores it."""
        if self._ended is not None:
            self._ended.add(task_id)

    def _read(self) -> _Stored:
        tasks, index = self._metadata.tasks, self._table.index
        ids = tasks.active_ids()
        found = tasks.rows_of([i for i in ids if index.get(i) is None])
        # A task that ended between the two queries is not added.
        unknown = {row.id: row for row in found if row.active}
        return {i: unknown.get(i) for i in ids}

    def _compare(self, stored: _Stored, since: int) -> None:
        for entry in self._table.all():
            if entry.task.id not in stored and entry.number < since:
                self._gone(entry)
        for task_id, row in stored.items():
            if row is not None and task_id not in self._table:
                self._take_up(row)
        self._compared()

    def _take_up(self, row: TaskRow) -> None:
        try:
            entry = self._entry_of(row)
        except (Unavailable, NotFound) as error:
            _log.warning("task %s is taken over later: %s", row.id, error)
            return
        if entry is not None:
            self._came(entry)

    def _entry_of(self, row: TaskRow) -> QueuedTask | None:
        """Return a task's entry; None if its payload is invalid, which is stored as its failure."""
        try:
            task = parse_task(dict(row.payload))
        except InvalidRequest as error:
            _log.error("task %s is invalid and fails: %s", row.id, error)
            status = {"errorMsg": f"its payload cannot be read: {error}"}
            self._metadata.tasks.set_status(row.id, TaskState.FAILED, status)
            return None
        return self._table.make(task, row.created_ms)
