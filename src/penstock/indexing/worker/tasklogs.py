"""The logs of tasks: in a task's folder while that is there, and kept for a while after it.

Whoever asks why a task failed asks later than its folder lives. Owns the folder of the kept logs,
``<task id>.log`` each, and how many of them there are; who writes a log is the launcher's business.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)

_SUFFIX: Final = ".log"


class TaskLogs:
    """The logs of one worker's tasks.

    Args:
        tasks_folder: Holds the folders of the tasks.
        kept_folder: Where logs go when their folder goes; on the same file system.
        fs: The file system.
        kept_max: So many logs are kept at most, the newest.
        kept_bytes_max: So much room they take at most; the newest is kept however large it is.
    """

    def __init__(
        self,
        tasks_folder: str,
        kept_folder: str,
        fs: FileSystem,
        *,
        kept_max: int = 1_000,
        kept_bytes_max: int = 100_000_000,
    ) -> None:
        self._tasks_folder = tasks_folder
        self._kept_folder = kept_folder
        self._fs = fs
        self._kept_max = kept_max
        self._kept_bytes_max = kept_bytes_max

    def path(self, task_id: str) -> str:
        """Return where the log of a task is now. Any thread.

        Raises:
            NotFound: There is none here (any more).
        """
        # The id comes from outside and must stay below our folders.
        if "/" not in task_id and not task_id.startswith("."):
            for path in (self._in_task(task_id), self._kept(task_id)):
                if self._fs.exists(path):
                    return path
        raise NotFound(f"there is no log of task {task_id} on this worker")

    def keep(self, task_id: str) -> None:
        """Take the log out of a task's folder, which is about to be deleted.

        A log that cannot be kept is no reason to keep the folder.
        """
        try:
            if self._fs.exists(self._in_task(task_id)):
                self._fs.mkdir(self._kept_folder)
                self._fs.rename(self._in_task(task_id), self._kept(task_id))
                self._delete_oldest()
        except PenstockError as error:
            _log.warning("the log of task %s is not kept: %s", task_id, error)

    def _delete_oldest(self) -> None:
        found = []
        for name in self._fs.listdir(self._kept_folder):
            stat = self._fs.stat(f"{self._kept_folder}/{name}")
            if name.endswith(_SUFFIX) and not stat.is_folder:
                found.append((stat.modified_ms, name, stat.size))
        total_bytes = 0
        for number, (_modified_ms, name, size) in enumerate(sorted(found, reverse=True)):
            total_bytes += size
            if number and (number >= self._kept_max or total_bytes > self._kept_bytes_max):
                self._fs.unlink(f"{self._kept_folder}/{name}")

    def _in_task(self, task_id: str) -> str:
        return f"{self._tasks_folder}/{task_id}/log"

    def _kept(self, task_id: str) -> str:
        return f"{self._kept_folder}/{task_id}{_SUFFIX}"
