"""Ended tasks: reported until the overlord has their results; their folders are kept longer.

Belongs to the worker's mailbox thread. Owns the upload of the log of such a task, and the deletion
of its folder: after `forget_delay_ms`, when queries no longer read its files, and after the upload
has succeeded or failed `ship_tries_max` times. A task with the same id takes over the folder of an
earlier one. If a folder cannot be deleted, the deletion is retried every `forget_delay_ms`, until
it succeeds or the folder belongs to a later task.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.indexing.ports import WorkerTask

if TYPE_CHECKING:
    from collections.abc import Container
    from concurrent.futures import Future

    from penstock.core.waits import WaitTable
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.worker.options import WorkerOptions
    from penstock.indexing.worker.task_attempts import AttemptEnd
    from penstock.indexing.worker.task_folders import TaskFolders
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.background_calls import CallDispatcher

_log = logging.getLogger(__name__)

_SHIP: Final = "upload the logs of tasks"
_DELETE: Final = "delete the folders of tasks"


class LogShipper(Protocol):
    """Copies log and report of a task to a store that keeps them after its folder is deleted."""

    def ship(self, task_id: str, folder: str) -> Future[None]:
        """Copy log and report; the future completes afterwards. The call may be repeated."""
        ...


@dataclass(slots=True)
class _Ended:
    """An ended task, until its folder is deleted."""

    id: str
    folder: TaskFolder
    end: AttemptEnd
    shipped: bool = False
    ship_tries: int = 0

    def mark_shipped(self) -> None:
        """Record that its log and report are in the log store."""
        self.shipped = True

    def status(self) -> WorkerTask:
        """Return its status, for the overlord."""
        return WorkerTask(self.id, self.end.state, None, self.end.error, self.end.duration_ms)


class EndedTasks:
    """The ended tasks.

    Args:
        processor: The worker's mailbox.
        options: Determine how long folders are kept, and how many times an upload is tried.
        logs: Uploads the logs; None if logs are deleted with their folder.
        calls: Runs the deletion of folders on a lane, because it may take long.
        folders: Deletes folders; on the lane.
        running: The running tasks by id. If a running task has the id of an ended one, the folder
            belongs to the running task, and is not deleted.
        waits: Records logs that cannot be uploaded and folders that cannot be deleted.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        options: WorkerOptions,
        logs: LogShipper | None,
        calls: CallDispatcher,
        *,
        folders: TaskFolders,
        running: Container[str],
        waits: WaitTable,
    ) -> None:
        self._processor = processor
        self._options = options
        self._logs = logs
        self._calls = calls
        self._folders = folders
        self._running = running
        self._waits = waits
        self._tasks: dict[str, _Ended] = {}
        # The last forgotten task of each id. Its folder may be that of an earlier one, whose timer
        # then has nothing to delete.
        self._leaving: dict[str, _Ended] = {}
        # Tasks whose folder is being deleted, by id; None for a task that ended before the worker's
        # start.
        self._deleting: dict[str, _Ended | None] = {}

    def keep(self, task_id: str, folder: TaskFolder, end: AttemptEnd) -> None:
        """Keep an ended task until it is forgotten."""
        ended = self._tasks[task_id] = _Ended(task_id, folder, end)
        if self._logs is not None:
            # The process writes its last log lines after the task's end.
            self._processor.timers.schedule_after(
                self._options.ship_delay_ms, lambda: self._ship(ended), "ship a log"
            )

    def status(self, task_id: str) -> WorkerTask | None:
        """Return the result of a task; None if it is not kept."""
        ended = self._tasks.get(task_id)
        return None if ended is None else ended.status()

    def statuses(self) -> list[WorkerTask]:
        """Return the results of all tasks."""
        return [ended.status() for ended in self._tasks.values()]

    def forget(self, task_id: str) -> bool:
        """Stop reporting a task, and delete its folder later; return false if it is not kept."""
        ended = self._tasks.pop(task_id, None)
        if ended is not None:
            self._leaving[task_id] = ended
            self._delete_later(ended)
        return ended is not None

    def is_deleting(self, task_id: str) -> bool:
        """Return whether the folder of an id is being deleted."""
        return task_id in self._deleting

    def require_no_deletion(self, task_id: str) -> None:
        """Check that the folder of an id is not being deleted, as a new task would lose its files.

        Raises:
            Unavailable: It is being deleted.
        """
        if self.is_deleting(task_id):
            raise Unavailable(
                f"the folder of an earlier task {task_id} is being deleted: try again in a moment"
            )

    def begin_deletion(self, task_id: str) -> None:
        """Record that the files of an earlier task are being deleted for a new one of that id."""
        self._deleting[task_id] = self._leaving.pop(task_id, None)

    def end_deletion(self, task_id: str, *, whole: bool) -> None:
        """Record the end of that deletion.

        Args:
            task_id: The id.
            whole: Whether all files were deleted. If not, the deletion is tried again later.
        """
        ended = self._deleting.pop(task_id, None)
        if whole:
            self._waits.ended(_DELETE)
        if ended is not None and not whole:
            # A new object: the timer of the old one, if it still runs, has nothing to delete.
            again = self._leaving[task_id] = replace(ended)
            self._delete_later(again)

    def _delete_later(self, ended: _Ended) -> None:
        self._processor.timers.schedule_after(
            self._options.forget_delay_ms,
            lambda: self._delete(ended),
            "delete the folder of a task",
        )

    def _delete(self, ended: _Ended) -> None:
        if self._leaving.get(ended.id) is not ended:
            return
        if ended.id in self._running or ended.id in self._tasks:
            del self._leaving[ended.id]
            self._waits.ended(_DELETE)
            return
        tries_left = ended.ship_tries < self._options.ship_tries_max
        if self._logs is not None and not ended.shipped and tries_left:
            self._ship(ended)
            self._delete_later(ended)
            return
        if not tries_left:
            self._waits.ended(_SHIP)  # No further attempt for this log; others may follow.
        self.begin_deletion(ended.id)

        def failed(error: PenstockError) -> None:
            _log.warning("cannot delete the folder of task %s, will retry: %s", ended.id, error)
            self._waits.failed(_DELETE, error, dependency=Dependency.DISK)
            self.end_deletion(ended.id, whole=False)

        self._calls.call(
            "delete",
            lambda: self._folders.remove(ended.folder),
            lambda _none: self.end_deletion(ended.id, whole=True),
            failed,
        )

    def _ship(self, ended: _Ended) -> None:
        if self._logs is None:
            return
        ended.ship_tries += 1

        def note(done: Future[None]) -> None:
            error = "cancelled" if done.cancelled() else done.exception()
            if error is not None:
                _log.warning("cannot upload the log of task %s: %s", ended.id, error)
                if isinstance(error, Unavailable):
                    self._waits.failed(_SHIP, error, dependency=Dependency.STORAGE)
                return
            self._waits.ended(_SHIP)
            self._processor.post(ended.mark_shipped, "the log of %s is uploaded", ended.id)

        try:
            shipped = self._logs.ship(ended.id, ended.folder.path)
        except PenstockError as error:  # The lanes are closed: the next worker uploads it.
            _log.warning("cannot upload the log of task %s: %s", ended.id, error)
            return
        shipped.add_done_callback(note)
