"""Log store for the logs and reports of ended tasks, in a folder or at any fsspec URL.

`LogStore` owns the names ``<task id>.log`` and ``<task id>.report.json``, how much of them is
kept, and for how long. Several workers may share a store, because a log is read after the
task's folder was deleted, and possibly by another process. `TaskLogs` reads the logs and
reports of a worker's tasks from their folders while these exist and from the store afterwards,
and copies them to the store when a task ends. Does not own the writing of a log (the launcher).
Errors of fsspec are translated into Penstock's.

Threading: one thread at a time writes to a store, any thread may read; `TaskLogs` may be used
by any thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, cast

import fsspec

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_log import READ_BYTES_MAX, LogPart
from penstock.indexing.worker.task_attempts import TaskAttempts
from penstock.segments.remote_files import unusable_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.mailbox.lanes import Lanes
    from penstock.storage.filesystem import FileSystem


LOG: Final = ".log"
REPORT: Final = ".report.json"
# Keys of the modification time in the file systems of fsspec.
_CHANGED_NAMES: Final = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


@dataclass(frozen=True, slots=True)
class LogStoreOptions:
    """Limits of a log store.

    Attributes:
        tasks_max: Number of tasks whose logs are kept, the newest.
        total_bytes_max: Total size; the newest log is kept regardless of its size.
        log_bytes_max: Size of one log; only the end is kept.
        tidy_every: Number of new logs after which the oldest are deleted.
    """

    tasks_max: int = 1_000
    total_bytes_max: int = 100_000_000
    log_bytes_max: int = 20_000_000
    tidy_every: int = 16


def part_bounds(size: int, offset: int, bytes_max: int) -> tuple[int, int]:
    """Return start and end of a part of a log of this size."""
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    return start, min(size, start + bytes_max)


def checked_id(task_id: str) -> str:
    """Return a task id if it is safe as part of a file name.

    Raises:
        NotFound: It is not safe, so no task has it. Ids come from outside.
    """
    if not task_id or "/" in task_id or task_id.startswith(".") or "\0" in task_id:
        raise NotFound(f"there is no log of task {task_id}")
    return task_id


class _Files(Protocol):
    """The methods of an fsspec file system that are used."""

    def info(self, path: str) -> Mapping[str, object]: ...
    def put_file(self, lpath: str, rpath: str) -> None: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...
    def rm_file(self, path: str) -> None: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...
    def ls(self, path: str, *, detail: bool) -> list[Mapping[str, object]]: ...
    def invalidate_cache(self) -> None: ...


class LogStore:
    """A `TaskLogReader` of tasks that ended. One thread at a time writes; any may read.

    Args:
        url: An absolute folder, or an fsspec URL such as ``s3://bucket/logs``.
        options: The limits.
    """

    def __init__(self, url: str, options: LogStoreOptions | None = None) -> None:
        self._url = url.rstrip("/")
        self._options = options or LogStoreOptions()
        try:
            fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise unusable_url("the log store", url, error) from error
        self._files = cast("_Files", fs)
        self._root = str(root).rstrip("/")
        self._puts = 0

    def put(self, task_id: str, log: bytes, report: bytes | None) -> None:
        """Store a log and a report, and delete those that exceed the limits.

        Args:
            task_id: The task.
            log: The last `log_bytes_max` bytes of the log, so that callers need not read all of it.
            report: The report, if there is one.

        Raises:
            Unavailable: The store does not answer: repeat the call.
        """
        with self._translated("write", task_id):
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(self._path(task_id, LOG), log)
            if report is not None:
                self._files.pipe_file(self._path(task_id, REPORT), report)
        self._puts += 1
        if self._puts % self._options.tidy_every == 0:
            self.delete_excess()

    @property
    def log_bytes_max(self) -> int:
        """Maximum number of bytes that are kept of a log."""
        return self._options.log_bytes_max

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return a part of a log; see `TaskLogReader`."""
        path = self._path(task_id, LOG)
        with self._translated("read the log of", task_id):
            self._files.invalidate_cache()
            size = int(cast("int", self._files.info(path)["size"]))
            start, end = part_bounds(size, offset, bytes_max)
            content = self._files.cat_file(path, start, end) if end > start else b""
        return LogPart(content, start, size)

    def read_report(self, task_id: str) -> bytes:
        """Return a report; see `TaskLogReader`."""
        with self._translated("read the report of", task_id):
            return self._files.cat_file(self._path(task_id, REPORT))

    def delete_excess(self) -> None:
        """Delete the logs and reports of the oldest tasks that exceed the limits.

        Raises:
            Unavailable: The store does not answer.
        """
        tasks: dict[str, tuple[float, int, list[str]]] = {}
        with self._translated("list", ""):
            self._files.invalidate_cache()
            # Skip subfolders, which others may have created.
            listed = self._files.ls(self._root, detail=True)
        for details in listed:
            path = str(details["name"])
            name = path.rpartition("/")[2]
            # Only once: a task id may end with the suffix itself.
            task_id = name.removesuffix(REPORT if name.endswith(REPORT) else LOG)
            if task_id == name or details.get("type") != "file":
                continue  # not a file of this store
            changed, size, paths = tasks.get(task_id, (0.0, 0, []))
            size += int(cast("int", details.get("size") or 0))
            tasks[task_id] = (max(changed, _changed(details)), size, [*paths, path])
        total_bytes = 0
        newest_first = sorted(tasks.values(), key=lambda task: task[0], reverse=True)
        for number, (_when, size, paths) in enumerate(newest_first):
            total_bytes += size
            too_many = number >= self._options.tasks_max
            if number and (too_many or total_bytes > self._options.total_bytes_max):
                self._delete(paths)

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                with self._translated("delete", path):
                    self._files.rm_file(path)
            except NotFound:
                continue  # another worker deleted it first

    def _path(self, task_id: str, suffix: str) -> str:
        return f"{self._root}/{checked_id(task_id)}{suffix}"

    @contextmanager
    def _translated(self, doing: str, task_id: str) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except FileNotFoundError as error:
            raise NotFound(f"{self._url}: there is no log or report of task {task_id}") from error
        except PermissionError as error:
            raise InvalidRequest(
                f"{self._url}: cannot {doing} {task_id}: grant this process access ({error})"
            ) from error
        except Exception as error:
            # The documented boundary: exceptions of the packages of stores have no common class.
            what = str(error) or type(error).__name__
            raise Unavailable(f"{self._url}: cannot {doing} {task_id}: {what}") from error


def _changed(details: Mapping[str, object]) -> float:
    for name in _CHANGED_NAMES:
        value = details.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


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
        """Return a part of a task's log, even of a running task; see `TaskLogReader`."""
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
        path = TaskAttempts(TaskFolder(folder, self._fs), self._fs).report_path()
        return None if path is None else self._fs.read_bytes(path)
