"""The folders of a worker's tasks on its disks, and its own small state next to them.

Owns the choice of a folder, its creation and deletion, and the state that it has when the worker
starts. Invariants: a folder belongs to a task from the moment its ``task.json`` is durable until
its deletion is durable; a disabled worker is still disabled after a restart.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from penstock.core.errors import CorruptData, InvalidRequest, NotFound, PenstockError
from penstock.core.names import TASK, WORKER_IDENTITY_FILE, WORKER_STATE_FILE, check_not_taken
from penstock.indexing.ports import TaskState
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.worker.running_task import CANNOT_GO_ON
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)


def worker_identity(base: str, fs: FileSystem, new_id: Callable[[], str]) -> str:
    """Return the id of the worker that keeps its tasks in a folder; it moves with the folder.

    Args:
        base: The worker's first folder for tasks.
        fs: The file system.
        new_id: Returns an unused id, for a folder without one.

    Raises:
        Unavailable: The disk is full.
    """
    fs.mkdir(base)
    path = f"{base}/{WORKER_IDENTITY_FILE}"
    found = _identity_in(path, fs)
    if found is None:
        fs.write_atomically(path, orjson.dumps({"id": new_id()}))
        # If two start at once, the one that does not get the lock on the folder ends.
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
    """The folders of tasks.

    Args:
        bases: Hold a folder for each task; the first has the worker's own state.
        fs: The file system.
    """

    def __init__(self, bases: Sequence[str], fs: FileSystem) -> None:
        self._bases = tuple(bases)
        self._fs = fs
        # Folders that could not be read yet, by path: the ids of their tasks.
        self._unread: dict[str, str] = {}

    def found(self) -> Iterator[tuple[str, TaskFolder, AttemptEnd | None]]:
        """Yield each task that has a folder, and its result, None if it continues.

        A damaged folder is a failed task with an error message. Folders that cannot be read now
        are left for `found_later`.
        """
        seen: set[str] = set()
        for base in self._bases:
            self._fs.mkdir(base)
            for task_id in self._fs.listdir(base):
                path = f"{base}/{task_id}"
                if task_id in seen:
                    _log.warning("ignoring %s: task %s is in another folder", path, task_id)
                    continue
                one = self._read_folder(path, task_id)
                if one is not None:
                    seen.add(task_id)
                    yield task_id, *one

    def found_later(
        self, is_free: Callable[[str], bool]
    ) -> Iterator[tuple[str, TaskFolder, AttemptEnd | None]]:
        """Yield as `found` the tasks whose folders could not be read before but can be now.

        Args:
            is_free: Returns whether no task with this id exists now.
        """
        for path, task_id in list(self._unread.items()):
            if not is_free(task_id):
                continue
            one = self._read_folder(path, task_id)
            if one is not None:
                yield task_id, *one

    def make(self, task: TaskSpec, used: Iterable[TaskFolder]) -> TaskFolder:
        """Create the folder of a new task, on the disk with the fewest tasks, and store the task.

        Except for a log, no files of an earlier task of that id may exist: see `clear`.

        Raises:
            InvalidRequest: Its id is not a valid name for a folder.
            Unavailable: The disk is full; no folder was created.
        """
        logs = self._with_folder(task.id)
        bases = [folder.path.rpartition("/")[0] for folder in used]
        base = logs[0] if logs else min(self._bases, key=bases.count)
        path = f"{base}/{task.id}"
        try:
            folder = TaskFolder(path, self._fs)
            folder.write_json("task.json", dict(task.to_json()))
        except BaseException:
            # Otherwise the empty folder would never be forgotten.
            self._unread[path] = task.id
            with suppress(PenstockError):  # it is checked later
                self.remove(TaskFolder(path, self._fs))
            raise
        self._unread.pop(path, None)
        return folder

    def is_clear(self, task_id: str) -> bool:
        """Return whether no files of an earlier task of an id exist, except one log.

        Raises:
            InvalidRequest: The id is not a valid name for a folder.
        """
        left = [self._fs.listdir(f"{base}/{task_id}") for base in self._with_folder(task_id)]
        return left in ([], [["log"]])

    def clear(self, task_id: str) -> None:
        """Delete the files of an earlier task of an id, which may be many.

        Its log is kept, because it may not be stored elsewhere yet: the new task appends to it.

        Raises:
            InvalidRequest: The id is not a valid name for a folder.
            PenstockError: The files could not be deleted, or not all of them.
        """
        has_log = False
        for base in self._with_folder(task_id):
            path = f"{base}/{task_id}"
            self.remove(TaskFolder(path, self._fs), but=() if has_log else (f"{path}/log",))
            has_log = has_log or self._fs.exists(path)

    def remove(self, folder: TaskFolder, *, but: tuple[str, ...] = ()) -> None:
        """Delete the folder of a task, except some files in it.

        Raises:
            PenstockError: It could not be deleted, or not completely.
        """
        # The spec is deleted first, durably: the next worker would run a folder that has a spec but
        # no result.
        task = f"{folder.path}/task.json"
        if self._fs.exists(task):
            self._fs.unlink(task)
            self._fs.fsync_folder(folder.path)
        folder.remove(but=but)

    def read_enabled(self) -> bool:
        """Return whether the worker accepts new tasks, as stored."""
        path = self._state_path()
        try:
            if self._fs.exists(path):
                value = orjson.loads(self._fs.read_bytes(path))
                return not (isinstance(value, dict) and value.get("enabled") is False)
        except (PenstockError, orjson.JSONDecodeError) as error:
            _log.warning("%s cannot be read, so the worker is enabled: %s", path, error)
        return True

    def write_enabled(self, *, enabled: bool) -> None:
        """Store whether the worker accepts new tasks.

        Raises:
            Unavailable: The disk is full.
        """
        self._fs.write_atomically(self._state_path(), orjson.dumps({"enabled": enabled}))

    def _with_folder(self, task_id: str) -> list[str]:
        """Return the base folders that have a folder of a task."""
        if not task_id or "/" in task_id or task_id.startswith("."):
            raise InvalidRequest(f"invalid task id {task_id!r}: it is not a valid folder name")
        check_not_taken(task_id, TASK)
        return [base for base in self._bases if self._fs.exists(f"{base}/{task_id}")]

    def _state_path(self) -> str:
        return f"{self._bases[0]}/{WORKER_STATE_FILE}"

    def _read_folder(self, path: str, task_id: str) -> tuple[TaskFolder, AttemptEnd | None] | None:
        try:
            folder = TaskFolder(path, self._fs) if self._fs.stat(path).is_folder else None
        except NotFound:
            folder = None
        except PenstockError as error:
            if path not in self._unread:
                _log.warning("%s is ignored until it can be read: %s", path, error)
                self._unread[path] = task_id
            return None
        self._unread.pop(path, None)
        if folder is None:
            return None
        try:
            if folder.read_json("task.json") is None:
                # Interrupted before the task was accepted, or during its deletion.
                folder.remove()
                return None
            return folder, self._end_of(folder)
        except PenstockError as error:
            return folder, AttemptEnd(TaskState.FAILED, f"its folder cannot be read: {error}")

    def _end_of(self, folder: TaskFolder) -> AttemptEnd | None:
        attempts = TaskAttempts(folder, self._fs)
        if (end := attempts.end()) is not None:
            return end
        if (reason := attempts.shutdown_reason()) is not None:
            return AttemptEnd(TaskState.FAILED, reason)
        if attempts.is_lost():
            return AttemptEnd(TaskState.FAILED, f"its worker ended while it ran; {CANNOT_GO_ON}")
        return None
