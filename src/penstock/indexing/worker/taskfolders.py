"""The folders of a worker's tasks on its disks, and its own small state beside them.

Owns which folder a task gets, how one is made and removed, and what a folder tells when the worker
starts. Invariants: a folder is a task's from the moment its ``task.json`` is durable until that is
durably gone; that the worker takes no new tasks survives its restart.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from penstock.core.errors import CorruptData, InvalidRequest, NotFound, PenstockError
from penstock.core.names import TASK, WORKER_IDENTITY_FILE, WORKER_STATE_FILE, check_not_taken
from penstock.indexing.ports import TaskState
from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.worker.attempts import Attempts, TaskEnd
from penstock.indexing.worker.running import CANNOT_GO_ON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.indexing.taskspec import TaskSpec
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)


def worker_identity(base: str, fs: FileSystem, new_id: Callable[[], str]) -> str:
    """Return the id of the worker that keeps its tasks in a folder; it moves with the folder.

    Args:
        base: The worker's first folder for tasks.
        fs: The file system.
        new_id: Returns an id that was never used before, for a folder without one.

    Raises:
        Unavailable: The disk is full.
    """
    fs.mkdir(base)
    path = f"{base}/{WORKER_IDENTITY_FILE}"
    found = _identity_in(path, fs)
    if found is None:
        fs.write_atomically(path, orjson.dumps({"id": new_id()}))
        # Of two that start at once the one that does not get the folder ends.
        found = _identity_in(path, fs)
    if found is None:
        raise CorruptData(path, 0, "the id that was just written cannot be read")
    return found


def _identity_in(path: str, fs: FileSystem) -> str | None:
    try:
        value = orjson.loads(fs.read_bytes(path))
    except (NotFound, orjson.JSONDecodeError):
        return None
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) and found else None


class TaskFolders:
    """The folders.

    Args:
        bases: Hold a folder for each task; the first has the worker's own state.
        fs: The file system.
    """

    def __init__(self, bases: Sequence[str], fs: FileSystem) -> None:
        self._bases = tuple(bases)
        self._fs = fs
        # Folders that could not be looked into yet, by path: the ids of their tasks.
        self._unread: dict[str, str] = {}

    def found(self) -> Iterator[tuple[str, TaskFolder, TaskEnd | None]]:
        """Yield each task that has a folder, and how it ended, None if it goes on.

        What is damaged is a task that failed, and says so. Folders that cannot be looked into now
        are left for `found_later`.
        """
        seen: set[str] = set()
        for base in self._bases:
            self._fs.mkdir(base)
            for task_id in self._fs.listdir(base):
                path = f"{base}/{task_id}"
                if task_id in seen:
                    _log.warning("%s is left alone: task %s is in another folder", path, task_id)
                    continue
                one = self._look_into(path, task_id)
                if one is not None:
                    seen.add(task_id)
                    yield task_id, *one

    def found_later(
        self, is_free: Callable[[str], bool]
    ) -> Iterator[tuple[str, TaskFolder, TaskEnd | None]]:
        """Yield as `found` the tasks whose folders could not be looked into before and can be now.

        Args:
            is_free: Tells of a task's id whether nobody else has the folder by now.
        """
        for path, task_id in list(self._unread.items()):
            if not is_free(task_id):
                continue
            one = self._look_into(path, task_id)
            if one is not None:
                yield task_id, *one

    def make(self, task: TaskSpec, used: Iterable[TaskFolder]) -> TaskFolder:
        """Make the folder of a new task, which is written down in it, where the fewest run.

        Of an earlier task of that id there is nothing left, but a log: see `clear`.

        Raises:
            InvalidRequest: Its id cannot name a folder.
            Unavailable: The disk is full; there is no folder.
        """
        logs = self._with_folder(task.id)
        bases = [folder.path.rpartition("/")[0] for folder in used]
        base = logs[0] if logs else min(self._bases, key=bases.count)
        path = f"{base}/{task.id}"
        try:
            folder = TaskFolder(path, self._fs)
            folder.write_json("task.json", dict(task.to_json()))
        except BaseException:
            # Nobody would ever ask to have an empty folder forgotten.
            self._unread[path] = task.id
            with suppress(PenstockError):  # it is looked into later
                self.remove(TaskFolder(path, self._fs))
            raise
        self._unread.pop(path, None)
        return folder

    def is_clear(self, task_id: str) -> bool:
        """Whether nothing is left of an earlier task of an id, but for one log.

        Raises:
            InvalidRequest: The id cannot name a folder.
        """
        left = [self._fs.listdir(f"{base}/{task_id}") for base in self._with_folder(task_id)]
        return left in ([], [["log"]])

    def clear(self, task_id: str) -> None:
        """Delete what is left of an earlier task of an id: as much as there are files.

        Its log stays, which may be nowhere else yet: the new task's goes on behind it.

        Raises:
            InvalidRequest: The id cannot name a folder.
            PenstockError: It could not be deleted, or not whole.
        """
        has_log = False
        for base in self._with_folder(task_id):
            path = f"{base}/{task_id}"
            self.remove(TaskFolder(path, self._fs), but=() if has_log else (f"{path}/log",))
            has_log = has_log or self._fs.exists(path)

    def remove(self, folder: TaskFolder, *, but: tuple[str, ...] = ()) -> None:
        """Delete the folder of a task, but for some files in it.

        Raises:
            PenstockError: It could not be deleted, or not whole.
        """
        # What the task is goes first, durably: a folder that was cut without its end would be run
        # again by the next worker.
        task = f"{folder.path}/task.json"
        if self._fs.exists(task):
            self._fs.unlink(task)
            self._fs.fsync_folder(folder.path)
        folder.remove(but=but)

    def read_enabled(self) -> bool:
        """Return whether the worker takes new tasks, as it was written down."""
        path = self._state_path()
        try:
            if self._fs.exists(path):
                value = orjson.loads(self._fs.read_bytes(path))
                return not (isinstance(value, dict) and value.get("enabled") is False)
        except (PenstockError, orjson.JSONDecodeError) as error:
            _log.warning("%s cannot be read, so the worker is enabled: %s", path, error)
        return True

    def write_enabled(self, *, enabled: bool) -> None:
        """Write down whether the worker takes new tasks.

        Raises:
            Unavailable: The disk is full.
        """
        self._fs.write_atomically(self._state_path(), orjson.dumps({"enabled": enabled}))

    def _with_folder(self, task_id: str) -> list[str]:
        """Return the bases that have a folder of a task."""
        if not task_id or "/" in task_id or task_id.startswith("."):
            raise InvalidRequest(f"{task_id!r} cannot name a folder, so it is no id of a task")
        check_not_taken(task_id, TASK)
        return [base for base in self._bases if self._fs.exists(f"{base}/{task_id}")]

    def _state_path(self) -> str:
        return f"{self._bases[0]}/{WORKER_STATE_FILE}"

    def _look_into(self, path: str, task_id: str) -> tuple[TaskFolder, TaskEnd | None] | None:
        try:
            folder = TaskFolder(path, self._fs) if self._fs.stat(path).is_folder else None
        except NotFound:
            folder = None
        except PenstockError as error:
            if path not in self._unread:
                _log.warning("%s is left alone until it can be read: %s", path, error)
                self._unread[path] = task_id
            return None
        self._unread.pop(path, None)
        if folder is None:
            return None
        try:
            if folder.read_json("task.json") is None:
                # Cut before it was taken, or while it was deleted.
                folder.remove()
                return None
            return folder, self._end_of(folder)
        except PenstockError as error:
            return folder, TaskEnd(TaskState.FAILED, f"its folder cannot be read: {error}")

    def _end_of(self, folder: TaskFolder) -> TaskEnd | None:
        attempts = Attempts(folder, self._fs)
        if (end := attempts.end()) is not None:
            return end
        if (reason := attempts.shutdown_reason()) is not None:
            return TaskEnd(TaskState.FAILED, reason)
        if attempts.is_lost():
            return TaskEnd(TaskState.FAILED, f"its worker ended while it ran; {CANNOT_GO_ON}")
        return None
