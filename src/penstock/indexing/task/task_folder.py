"""The folder of a task: the files that survive a crash, and the order in which they are synced.

    task.json        the spec; the worker writes it before it accepts the task
    lock             held by the one process that works here
    location.json    address of the running peon
    sequences.json   sequences and their agreed ends
    commit.json      persisted work: files, offsets, counts, dead letters sent
    status.json      result of the task
    starts.json      how many processes have started here
    persist/, bad/, merge/   folders of one attempt each, named by the start and a number

Names of data files are never reused: a query may still read the old file. Every JSON file is
replaced atomically, and refers to files by relative paths, so that the folder may be moved. A data
file and the folders that hold its name are fsynced before ``commit.json`` names it. So a file that
it names exists, and a file that it does not name is left over from an interrupted attempt. Does not
decide which messages are read or published.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import CorruptData, NotFound
from penstock.indexing.sequences import TaskSequences
from penstock.indexing.task.commit_file import CommitFile

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from penstock.storage.filesystem import FileSystem, FolderLock

_STARTS: Final = "starts.json"
_DATA_FOLDERS: Final = ("persist", "bad", "merge")
# The end of a data file's path, relative to the folder of any task.
_DATA_FILE: Final = re.compile(
    rf"(?:.*/)?((?:{'|'.join(_DATA_FOLDERS)})/\d+-\d+(?:/.*)?)", re.DOTALL
)
_OWN_FILE: Final = re.compile(rf"(?:{'|'.join(_DATA_FOLDERS)})/\d+-\d+/.+", re.DOTALL)


def is_data_file_of(path: str, base: str, task_id: str) -> bool:
    """Return whether a path is that of a data file of a task.

    Args:
        path: An absolute path.
        base: The folder with the folders of tasks.
        task_id: The task.
    """
    folder = f"{base}/{task_id}/"
    rest = path.removeprefix(folder)
    is_normal = posixpath.normpath(rest) == rest
    return is_normal and path.startswith(folder) and bool(_OWN_FILE.fullmatch(rest))


class TaskFolder:
    """One task's folder. One process at a time, which holds the lock.

    Args:
        path: The folder; it is created if it does not exist.
        fs: The file system.
    """

    def __init__(self, path: str, fs: FileSystem) -> None:
        self.path = path
        self._fs = fs
        self._start = 0
        self._numbers = itertools.count()
        fs.mkdir(path)

    def lock(self) -> FolderLock:
        """Lock the folder for this process.

        Raises:
            Conflict: Another process works in it.
        """
        return self._fs.lock_folder(self.path)

    def read_json(self, name: str) -> dict[str, object] | None:
        """Return the content of a JSON file of the folder, None if it does not exist.

        Raises:
            CorruptData: It is not a JSON object.
        """
        path = f"{self.path}/{name}"
        try:
            raw = self._fs.read_bytes(path)
        except NotFound:
            return None
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise CorruptData(path, error.pos, f"not JSON: {error.msg}") from error
        if not isinstance(value, dict):
            raise CorruptData(path, 0, "not a JSON object")
        return value

    def write_json(self, name: str, value: dict[str, object]) -> None:
        """Replace a JSON file of the folder, durably."""
        self._fs.write_atomically(f"{self.path}/{name}", orjson.dumps(value))

    def write_commit(self, commit: CommitFile) -> None:
        """Make a commit durable; the files it names are durable already."""
        self.write_json(
            "commit.json",
            commit.relocated({path: self._relative(path) for path in commit.paths}).to_json(),
        )

    def write_sequences(self, sequences: TaskSequences) -> None:
        """Make the sequences durable."""
        self.write_json("sequences.json", sequences.to_json())

    def restore_sequences(self) -> TaskSequences | None:
        """Return the last written sequences, None at the first start.

        Raises:
            CorruptData: The file is damaged. It was written atomically, so this is a broken disk.
        """
        value = self.read_json("sequences.json")
        source = f"{self.path}/sequences.json"
        return None if value is None else TaskSequences.from_json(value, source=source)

    def restore_commit(self, sequences: Container[str]) -> CommitFile | None:
        """Return the newest commit whose files all exist, None if there is none.

        Persists of other sequences than the given ones were published. All persists from the first
        with a missing or truncated file on are dropped: their messages are read again. Files that
        no remaining persist names are deleted.

        Raises:
            CorruptData: A JSON file itself is damaged. It was written atomically, so this is a
                broken disk.
        """
        self._count_start()
        value = self.read_json("commit.json")
        if value is None:
            self._delete_unnamed(None)
            return None
        stored = CommitFile.from_json(value, source=f"{self.path}/commit.json")
        found = stored.relocated({path: self._absolute(path) for path in stored.paths})
        commit = found
        for name in found.sequence_names():
            if name not in sequences:
                commit = commit.without(name)
        for index, persist in enumerate(commit.persists):
            files = [(f.path, f.bytes) for f in persist.files]
            files += [(b.path, b.size) for b in persist.bad_files if not b.sent]
            if not all(self._is_whole(path, size) for path, size in files):
                commit = commit.back_to(index)
                break
        if commit is not found:
            self.write_commit(commit)
        self._delete_unnamed(commit)
        return commit

    def new_folder(self, kind: str) -> str:
        """Return the path of a folder that was never used: ``persist``, ``bad`` or ``merge``.

        Call `restore_commit` first, once per process: it counts the starts. Any thread may call.
        """
        self._fs.mkdir(f"{self.path}/{kind}")
        return f"{self.path}/{kind}/{self._start}-{next(self._numbers)}"

    def sync(self, paths: Iterable[str]) -> dict[str, int]:
        """Make files and their names durable, up to this folder; return their sizes.

        May be called from the thread that wrote them.
        """
        sizes: dict[str, int] = {}
        folders: set[str] = set()
        for path in paths:
            self._fs.fsync_file(path)
            sizes[path] = self._fs.stat(path).size
            for parent in PurePosixPath(path).parents:
                if len(str(parent)) < len(self.path):
                    break
                folders.add(str(parent))
        # The deepest first: a name is durable before the name of its parent.
        for folder in sorted(folders, key=len, reverse=True):
            self._fs.fsync_folder(folder)
        return sizes

    def delete(self, paths: Iterable[str]) -> None:
        """Delete existing data files, and their folders if they are empty then."""
        parents: set[str] = set()
        for path in paths:
            if self._fs.exists(path):
                self._fs.unlink(path)
                parents.add(str(PurePosixPath(path).parent))
        for parent in parents:
            self._remove_empty(parent)

    def remove(self, *, but: Container[str] = ()) -> None:
        """Delete the folder and its content, except files with these paths."""
        if self._fs.exists(self.path):
            self._sweep(self.path, but)

    def _count_start(self) -> None:
        """Count this start durably, so that its names differ from those of all earlier ones."""
        value = self.read_json(_STARTS)
        before = 0 if value is None else value.get("starts")
        if not isinstance(before, int):
            raise CorruptData(f"{self.path}/{_STARTS}", 0, f"{before!r} is not a number of starts")
        self._start = before + 1
        self.write_json(_STARTS, {"starts": self._start})

    def _delete_unnamed(self, commit: CommitFile | None) -> None:
        named = frozenset[str]() if commit is None else commit.paths
        for kind in _DATA_FOLDERS:
            for name in self._names(f"{self.path}/{kind}"):
                self._sweep(f"{self.path}/{kind}/{name}", named)

    def _sweep(self, path: str, named: Container[str]) -> bool:
        """Delete the files of a tree that are not named; return whether none are left."""
        if path in named:
            return False
        if not self._fs.stat(path).is_folder:
            self._fs.unlink(path)
            return True
        swept = [self._sweep(f"{path}/{name}", named) for name in self._fs.listdir(path)]
        if all(swept):
            self._fs.rmdir(path)
            return True
        return False

    def _remove_empty(self, path: str) -> None:
        while PurePosixPath(path).name not in _DATA_FOLDERS and not self._names(path):
            self._fs.rmdir(path)
            path = str(PurePosixPath(path).parent)

    def _relative(self, path: str) -> str:
        return path.removeprefix(f"{self.path}/")

    def _absolute(self, path: str) -> str:
        """Return the current path of a file, even if an earlier release stored an absolute one."""
        found = _DATA_FILE.fullmatch(path)
        return path if found is None else f"{self.path}/{found[1]}"

    def _is_whole(self, path: str, size: int) -> bool:
        try:
            return self._fs.stat(path).size == size
        except NotFound:
            return False

    def _names(self, folder: str) -> list[str]:
        try:
            return self._fs.listdir(folder)
        except NotFound:
            return []
