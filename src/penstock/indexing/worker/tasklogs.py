"""Logs and reports of a worker's tasks: in their folders while these exist, then in the store.

Owns where they are looked up, and the copy to the log store when a task ends. The launcher writes
the logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_log import READ_BYTES_MAX, LogPart
from penstock.indexing.worker.logstore import checked_id, part_bounds
from penstock.indexing.worker.task_attempts import Attempts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from penstock.indexing.ports import Lanes
    from penstock.indexing.worker.logstore import LogStore
    from penstock.storage.filesystem import FileSystem


class TaskLogs:
    """A `TaskLogReader` and `LogShipper` of one worker. Any thread.

    Args:
        base_folders: Hold the folders of the tasks.
        fs: The file system.
        store: Stores logs and reports of tasks that ended.
        lanes: Threads on which logs are copied.
    """

    def __init__(
        self, base_folders: Sequence[str], fs: FileSystem, store: LogStore, lanes: Lanes
    ) -> None:
        self._base_folders = tuple(base_folders)
        self._fs = fs
        self._store = store
        self._lanes = lanes

    def ship(self, task_id: str, folder: str) -> Future[None]:
        """Copy log and report of a task that ended to the store."""
        return self._lanes.submit("task logs", lambda: self._copy(task_id, folder))

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return a part of a task's log, also of a running one; see `TaskLogReader`."""
        for base in self._base_folders:
            try:
                return self._live(f"{base}/{checked_id(task_id)}", offset, bytes_max)
            except NotFound:
                continue
        return self._store.read_log(task_id, offset, bytes_max)

    def read_report(self, task_id: str) -> bytes:
        """Return a task's report, once it has ended; see `TaskLogReader`."""
        for base in self._base_folders:
            path = f"{base}/{checked_id(task_id)}"
            if self._fs.exists(path) and (report := self._report(path)) is not None:
                return report
        return self._store.read_report(task_id)

    def _copy(self, task_id: str, folder: str) -> None:
        try:
            # The end of the log, which has the reason.
            log = self._live(folder, -self._store.log_bytes_max, self._store.log_bytes_max).content
        except NotFound:
            log = b""
        self._store.put(task_id, log, self._report(folder))

    def _live(self, folder: str, offset: int, bytes_max: int) -> LogPart:
        file = self._fs.open_read(f"{folder}/log")
        try:
            size = file.size()
            start, end = part_bounds(size, offset, bytes_max)
            return LogPart(file.pread(end - start, start), start, size)
        finally:
            file.close()

    def _report(self, folder: str) -> bytes | None:
        if not self._fs.exists(folder):
            return None
        path = Attempts(TaskFolder(folder, self._fs), self._fs).report_path()
        return None if path is None else self._fs.read_bytes(path)
