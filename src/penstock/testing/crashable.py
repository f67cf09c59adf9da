"""A file system in memory that can lose power, fill up and fail at any step.

Owns: what is visible apart from what is durable. File bytes are durable after ``sync`` (or
``fsync_file``), names after ``fsync_folder``. Everything else may or may not be there after
``crash``: any subset of the unsynced pages (a lost page keeps its old bytes, or zeros where the
file grew), a write torn inside a page, any subset of the unsynced changes of names.

Does not own: permissions, links, times (every file is as old as the steps that made it).

Steps that change something are numbered from 1 (`steps`), so that a test can run an operation
once, and then again with a failure or a power loss at each of its steps:

    fs.fail_at(step, keep_bytes=7)     that step raises `Unavailable`, as a full disk would
    fs.fail_next("fsync")              so does the next step of this kind
    fs.kill_at(step, keep_bytes=7)     that step raises `PowerLoss`; then take `fs.crash(rng)`
    fs.capacity_bytes = 4096           a disk of that size
    fs.read_only = True                every change is refused

A failed ``sync`` behaves as Linux does: the pages count as clean but are not durable, and a later
``sync`` does not bring them there unless they are written again.
"""

# The classes here are one file system in several parts, which know each other from inside.
# ruff: noqa: SLF001

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.storage.filesystem import FileStat, write_file_atomically
from penstock.testing.faults import Fault, FaultPlan, PowerLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

__all__ = ["CrashableFileSystem", "PowerLoss"]

_PAGE = 512  # small, so that small test files have several


@dataclass(slots=True)
class _Write:
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        end = self.position + len(self.data)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        content[self.position : end] = self.data

    def apply_partly(self, content: bytearray, rng: random.Random) -> None:
        """Keep any subset of the pages, and a page torn in the middle."""
        grown = self.position + rng.choice((0, len(self.data), rng.randint(0, len(self.data))))
        if len(content) < grown:
            content.extend(bytes(grown - len(content)))
        start = self.position
        end = self.position + len(self.data)
        while start < end:
            page_end = min(end, (start // _PAGE + 1) * _PAGE)
            kept = rng.choice((0, page_end - start, rng.randint(0, page_end - start)))
            kept = max(0, min(kept, len(content) - start))
            offset = start - self.position
            content[start : start + kept] = self.data[offset : offset + kept]
            start = page_end


@dataclass(slots=True)
class _Truncate:
    size: int

    def apply(self, content: bytearray) -> None:
        if len(content) > self.size:
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))

    def apply_partly(self, content: bytearray, rng: random.Random) -> None:
        if rng.random() < 0.5:
            self.apply(content)


@dataclass(slots=True)
class _Inode:
    visible: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)

    def change(self, change: _Write | _Truncate) -> None:
        change.apply(self.visible)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def after_crash(self, rng: random.Random) -> _Inode:
        content = bytearray(self.durable)
        fate = rng.random()
        if fate < 0.6:
            for change in self.pending:
                change.apply_partly(content, rng)
        elif fate < 0.8:
            # In order: a prefix, the last one torn.
            kept = rng.randint(0, len(self.pending))
            for change in self.pending[:kept]:
                change.apply(content)
            for change in self.pending[kept : kept + 1]:
                change.apply_partly(content, rng)
        elif fate < 0.9:
            for change in self.pending:
                change.apply(content)
        return _Inode(bytearray(content), content)


@dataclass(slots=True)
class _Rename:
    """One change of names in a folder: `removed` goes, `added` becomes `inode`."""

    removed: str | None
    added: str | None
    inode: _Inode | None

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.inode is not None:
            names[self.added] = self.inode


@dataclass(slots=True)
class _Folder:
    visible: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    pending: list[_Rename] = field(default_factory=list)

    def change(self, change: _Rename) -> None:
        change.apply(self.visible)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()


class CrashableFileSystem(FaultPlan):
    """A `FileSystem` in memory for one thread (or several under the owner's mutex).

    Folders are durable from the start: `mkdir` syncs its parent, as the real one does.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folders: dict[str, _Folder] = {"/": _Folder()}
        self._locks: set[str] = set()
        self._dead = False
        self.syncs = 0

    # -- what a test does to it

    def crash(self, rng: random.Random | int) -> CrashableFileSystem:
        """Return the file system as it may be after a power loss now. This one is dead then.

        Args:
            rng: Chooses among the legal outcomes; a number is a seed.
        """
        if isinstance(rng, int):
            rng = random.Random(rng)  # noqa: S311  -- repeatable on purpose
        after = self._survivor()
        for path, folder in self._folders.items():
            names = dict(folder.durable)
            all_or_any = rng.random()
            for change in folder.pending:
                if all_or_any < 0.3 or (all_or_any < 0.8 and rng.random() < 0.5):
                    change.apply(names)
            kept = {name: inode.after_crash(rng) for name, inode in names.items()}
            after._folders[path] = _Folder(dict(kept), kept)
        return after

    def kill_process(self) -> CrashableFileSystem:
        """Return the file system after kill -9: everything visible is there, not yet durable."""
        after = self._survivor()
        after._folders = self._folders
        return after

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        return sum(
            len(inode.visible)
            for folder in self._folders.values()
            for inode in folder.visible.values()
        )

    def content(self, path: str) -> bytes:
        """Return a file's visible bytes without counting as an access."""
        return bytes(self._inode(path, "read").visible)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Change a file's bytes behind everybody's back, visible and durable alike.

        Views that were mapped before keep the old bytes.
        """
        inode = self._inode(path, "damage")
        content = bytearray(inode.visible)
        change(content)
        inode.visible, inode.durable, inode.pending = content, bytearray(content), []

    # -- FileSystem

    def create(self, path: str, *, replace: bool = False) -> _AppendFile:
        """Create an empty file."""
        folder, name = self._parent(path)
        self._step(path, "create")
        if name in folder.visible and not replace:
            raise Conflict(f"{path}: cannot create: it exists already")
        if name in folder.visible:
            inode = folder.visible[name]
            inode.change(_Truncate(0))
        else:
            inode = _Inode()
            folder.change(_Rename(None, name, inode))
        return _AppendFile(self, inode, path)

    def open_append(self, path: str) -> _AppendFile:
        """Open an existing file for writing at its end."""
        if self.read_only:
            raise Unavailable(f"{path}: cannot open for writing: the file system is read-only")
        return _AppendFile(self, self._inode(path, "open for writing"), path)

    def open_read(self, path: str) -> _ReadFile:
        """Open an existing file for reading."""
        return _ReadFile(self._inode(path, "open"))

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a file."""
        return bytes(self._inode(path, "read").visible)

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file's content durably, in numbered steps."""
        write_file_atomically(self, path, data)

    def listdir(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        prefix = folder.rstrip("/") + "/"
        below = {
            path[len(prefix) :]
            for path in self._folders
            if path.startswith(prefix) and path != "/" and "/" not in path[len(prefix) :]
        }
        return sorted(below | set(self._folder(folder).visible))

    def stat(self, path: str) -> FileStat:
        """Return size and kind; the time is always 0."""
        self._check_alive()
        if path.rstrip("/") in self._folders:
            return FileStat(0, 0, is_folder=True)
        return FileStat(len(self._inode(path, "stat").visible), 0, is_folder=False)

    def exists(self, path: str) -> bool:
        """Say whether a file or folder of this name is there."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def mkdir(self, folder: str) -> None:
        """Create a folder durably, with its parents."""
        folder = folder.rstrip("/")
        if not folder or folder in self._folders:
            return
        parent, _, name = folder.rpartition("/")
        self.mkdir(parent)
        if name in self._folder(parent or "/").visible:
            raise Conflict(f"{folder}: is a file, not a folder; move it away")
        self._step(folder, "create the folder")
        self._folders[folder] = _Folder()

    def rmdir(self, folder: str) -> None:
        """Remove an empty folder."""
        if self.listdir(folder):
            raise Unavailable(f"{folder}: cannot remove the folder: it is not empty")
        self._step(folder, "remove the folder")
        del self._folders[folder.rstrip("/")]

    def rename(self, source: str, target: str) -> None:
        """Rename within a folder, replacing the target."""
        folder, name = self._parent(source)
        target_folder, target_name = self._parent(target)
        if target_folder is not folder:
            raise InvalidRequest(f"{source}: cannot rename to another folder: {target}")
        inode = self._inode(source, "rename")
        self._step(source, "rename")
        folder.change(_Rename(name, target_name, inode))

    def unlink(self, path: str) -> None:
        """Delete a file."""
        folder, name = self._parent(path)
        self._inode(path, "delete")
        self._step(path, "delete")
        folder.change(_Rename(name, None, None))

    def fsync_file(self, path: str) -> None:
        """Make a file's content durable."""
        self._sync_inode(self._inode(path, "fsync"), path)

    def fsync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        found = self._folder(folder or "/")
        self._step(folder, "fsync")
        self.syncs += 1
        found.sync()

    def lock_folder(self, folder: str) -> _FolderLock:
        """Claim a folder."""
        self._folder(folder)
        if folder in self._locks:
            raise Conflict(f"{folder}: another owner has it open")
        self._locks.add(folder)
        return _FolderLock(self._locks, folder)

    # -- inside

    def _survivor(self) -> CrashableFileSystem:
        self._dead = True
        after = CrashableFileSystem()
        after.steps = self.steps
        return after

    def _check_alive(self) -> None:
        if self._dead:
            raise PowerLoss("this file system lost its power; use the one that crash() gave")

    def _step(self, path: str, doing: str) -> Fault | None:
        """Count a step; raise its fault. A fault of a write is given back to be done partly."""
        self._check_alive()
        if self.read_only:
            raise Unavailable(f"{path}: cannot {doing}: the file system is read-only")
        fault = self._take_fault(doing)
        if fault is None or doing == "append":
            return fault
        if fault.power_loss:
            self._dead = True
            raise PowerLoss(f"{path}: power loss at step {self.steps}: {doing}")
        if doing == "fsync" and (inode := self._find(path)) is not None:
            inode.pending.clear()
        raise Unavailable(f"{path}: cannot {doing}: {fault.reason}")

    def _write(
        self, inode: _Inode, path: str, data: bytes, position: int, *, cut_back: bool
    ) -> None:
        fault = self._step(path, "append")
        if fault is not None:
            partly = data[: fault.keep_bytes]
            if partly:
                inode.change(_Write(position, partly))
            if fault.power_loss:
                self._dead = True
                raise PowerLoss(f"{path}: power loss at step {self.steps}: append")
            if cut_back:
                inode.change(_Truncate(position))
            raise Unavailable(f"{path}: cannot append: {fault.reason}")
        grown = max(0, position + len(data) - len(inode.visible))
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            raise Unavailable(f"{path}: cannot append: no space left on the device; free space")
        inode.change(_Write(position, data))

    def _sync_inode(self, inode: _Inode, path: str) -> None:
        self._step(path, "fsync")
        self.syncs += 1
        inode.sync()

    def _folder(self, path: str) -> _Folder:
        self._check_alive()
        folder = self._folders.get(path.rstrip("/") or "/")
        if folder is None:
            raise NotFound(f"{path}: no such folder")
        return folder

    def _parent(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        return self._folder(folder or "/"), name

    def _find(self, path: str) -> _Inode | None:
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder or "/")
        return None if found is None else found.visible.get(name)

    def _inode(self, path: str, doing: str) -> _Inode:
        self._check_alive()
        inode = self._find(path)
        if inode is None:
            raise NotFound(f"{path}: cannot {doing}: no such file or folder")
        return inode


class _AppendFile:
    def __init__(self, fs: CrashableFileSystem, inode: _Inode, path: str) -> None:
        self._fs = fs
        self._inode = inode
        self._path = path
        self._size = len(inode.visible)

    @property
    def size(self) -> int:
        return self._size

    def writev(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
        self._fs._write(self._inode, self._path, data, self._size, cut_back=True)
        self._size += len(data)
        return self._size

    def rewrite(self, position: int, data: Buffer) -> None:
        again = bytes(memoryview(data))
        self._fs._write(self._inode, self._path, again, position, cut_back=False)

    def truncate(self, size: int) -> None:
        self._fs._step(self._path, "truncate")
        self._inode.change(_Truncate(size))
        self._size = size

    def sync(self) -> None:
        self._fs._sync_inode(self._inode, self._path)

    def close(self) -> None:
        pass


class _ReadFile:
    def __init__(self, inode: _Inode) -> None:
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.visible)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._inode.visible[position : position + length])

    def map(self, length: int) -> memoryview:
        if length > len(self._inode.visible):
            raise Unavailable(f"cannot map {length} bytes: the file is shorter")
        return memoryview(bytes(self._inode.visible[:length]))

    def close(self) -> None:
        pass


class _FolderLock:
    def __init__(self, locks: set[str], folder: str) -> None:
        self._locks = locks
        self._folder = folder

    def release(self) -> None:
        self._locks.discard(self._folder)
