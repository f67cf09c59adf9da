"""A file system in memory that can lose power, fill up and fail at any step.

Owns: the operations of a file system, composed of steps that may fail. File bytes are durable
after ``sync`` (or ``fsync_file``), names after ``fsync_folder``. Everything else may or may not
survive ``crash``: any subset of the unsynced pages (a lost page keeps its old bytes, or zeros
where the file grew), a write torn within a page, any subset of the unsynced changes of names.

Does not own: the bytes and names (`disk`), the steps and how they fail (`faults`), permissions,
links, times (every file is as old as the steps that made it).

Steps that change something are numbered from 1 (`steps`), so that a test can run an operation
once, and then again with a failure or a power loss at each of its steps:

    fs.fail_at(step, keep_bytes=7)     that step raises `Unavailable`, as a full disk would
    fs.fail_next("fsync")              so does the next step of this kind
    fs.kill_at(step, keep_bytes=7)     that step raises `PowerLoss`; then take `fs.crash(rng)`
    fs.capacity_bytes = 4096           a disk of that size
    fs.read_only = True                every change is refused

After a failed ``sync`` a later one does not make the bytes durable unless they are written again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.storage.filesystem import FileStat, write_file_atomically
from penstock.testing.disk import Disk, Inode, Rename, Truncate
from penstock.testing.faults import FallibleDisk, PowerLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

__all__ = ["CrashableFileSystem", "PowerLoss", "reopen_after_power_loss"]

T = TypeVar("T")


class CrashableFileSystem(FallibleDisk):
    """A `FileSystem` in memory for one thread (or several under the owner's mutex).

    Folders are durable from the start: `mkdir` syncs its parent, as the real one does.

    Args:
        disk: Initial content; None: empty.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        super().__init__(disk)
        self._locks: set[str] = set()

    # -- faults that a test causes

    def crash(self, rng: random.Random | int) -> CrashableFileSystem:
        """Return a possible state of the file system after a power loss now. This one is dead then.

        Args:
            rng: Chooses among the legal outcomes; a number is a seed.
        """
        if isinstance(rng, int):
            rng = random.Random(rng)  # noqa: S311  -- repeatable on purpose
        return self._replaced(self._disk.after_crash(rng))

    def kill_process(self) -> CrashableFileSystem:
        """Return the file system after kill -9: visible content is not yet durable."""
        return self._replaced(self._disk)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Change a file's bytes without a write, both visible and durable ones.

        Views that were mapped before keep the old bytes.
        """
        inode = self.live().file(path, "damage")
        content = bytearray(inode.visible)
        change(content)
        inode.visible, inode.durable, inode.pending = content, bytearray(content), []

    # -- FileSystem

    def create(self, path: str, *, replace: bool = False) -> _AppendFile:
        """Create an empty file."""
        folder, name = self.live().place(path)
        self.step(path, "create")
        if name in folder.visible and not replace:
            raise Conflict(f"{path}: cannot create: it exists already")
        if name in folder.visible:
            inode = folder.visible[name]
            inode.change(Truncate(0))
        else:
            inode = Inode(bytearray(), bytearray())
            folder.change(Rename(None, name, inode))
        return _AppendFile(self, inode, path)

    def open_append(self, path: str) -> _AppendFile:
        """Open an existing file for writing at its end."""
        if self.read_only:
            raise Unavailable(f"{path}: cannot open for writing: the file system is read-only")
        return _AppendFile(self, self.live().file(path, "open for writing"), path)

    def open_read(self, path: str) -> _ReadFile:
        """Open an existing file for reading."""
        return _ReadFile(self.live().file(path, "open"))

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a file."""
        return bytes(self.live().file(path, "read").visible)

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file's content durably, in numbered steps."""
        write_file_atomically(self, path, data)

    def listdir(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        return self.live().names_in(folder)

    def stat(self, path: str) -> FileStat:
        """Return size and kind; the time is always 0."""
        disk = self.live()
        if disk.has_folder(path):
            return FileStat(0, 0, is_folder=True)
        return FileStat(len(disk.file(path, "stat").visible), 0, is_folder=False)

    def exists(self, path: str) -> bool:
        """Return whether a file or folder of this name exists."""
        try:
            self.stat(path)
        except NotFound:
            return False
        return True

    def resolve(self, path: str) -> str:
        """Return the path unchanged, because there are no links."""
        return path

    def mkdir(self, folder: str) -> None:
        """Create a folder durably, with its parents."""
        folder = folder.rstrip("/")
        if self._disk.has_folder(folder):
            return
        parent, _, name = folder.rpartition("/")
        self.mkdir(parent)
        if name in self.live().folder(parent or "/").visible:
            raise Conflict(f"{folder}: is a file, not a folder; move it away")
        self.step(folder, "create the folder")
        self._disk.make_folder(folder)

    def rmdir(self, folder: str) -> None:
        """Remove an empty folder."""
        if self.listdir(folder):
            raise Unavailable(f"{folder}: cannot remove the folder: it is not empty")
        self.step(folder, "remove the folder")
        self._disk.remove_folder(folder)

    def rename(self, source: str, target: str) -> None:
        """Rename within a folder, replacing the target."""
        folder, name = self.live().place(source)
        target_folder, target_name = self.live().place(target)
        if target_folder is not folder:
            raise InvalidRequest(f"{source}: cannot rename to another folder: {target}")
        inode = self.live().file(source, "rename")
        self.step(source, "rename")
        folder.change(Rename(name, target_name, inode))

    def unlink(self, path: str) -> None:
        """Delete a file."""
        folder, name = self.live().place(path)
        self.live().file(path, "delete")
        self.step(path, "delete")
        folder.change(Rename(name, None, None))

    def fsync_file(self, path: str) -> None:
        """Make a file's content durable."""
        self.sync(self.live().file(path, "fsync"), path)

    def fsync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        self.sync(self.live().folder(folder or "/"), folder)

    def lock_folder(self, folder: str) -> _FolderLock:
        """Claim a folder."""
        self.live().folder(folder)
        if folder in self._locks:
            raise Conflict(f"{folder}: another owner has it open")
        self._locks.add(folder)
        return _FolderLock(self._locks, folder)

    def _replaced(self, disk: Disk) -> CrashableFileSystem:
        self.powerless = True
        after = CrashableFileSystem(disk)
        after.steps = self.steps
        return after


class _AppendFile:
    def __init__(self, disk: FallibleDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._size = len(inode.visible)

    @property
    def size(self) -> int:
        return self._size

    def writev(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)
        self._disk.write(self._inode, self._path, data, self._size, cut_back=True)
        self._size += len(data)
        return self._size

    def rewrite(self, position: int, data: Buffer) -> None:
        again = bytes(memoryview(data))
        self._disk.write(self._inode, self._path, again, position, cut_back=False)

    def truncate(self, size: int) -> None:
        self._disk.step(self._path, "truncate")
        self._inode.change(Truncate(size))
        self._size = size

    def sync(self) -> None:
        self._disk.sync(self._inode, self._path)

    def close(self) -> None:
        pass


class _ReadFile:
    def __init__(self, inode: Inode) -> None:
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


def reopen_after_power_loss(
    fs: CrashableFileSystem,
    seed: int,
    again_after_steps: Sequence[int],
    reopen: Callable[[CrashableFileSystem], T],
) -> T:
    """Lose power now, and again during the following openings; return the last opened object.

    Args:
        fs: The file system that loses power; each later one but the last does, too.
        seed: Chooses among the legal outcomes.
        again_after_steps: Number of steps after which each of the next openings loses power. An
            opening with fewer steps is the last.
        reopen: Opens the object under test on a file system.
    """
    rng = random.Random(seed)  # noqa: S311  -- repeatable on purpose
    for steps in again_after_steps:
        fs = fs.crash(rng)
        fs.kill_at(fs.steps + steps)
        try:
            opened = reopen(fs)
        except PowerLoss:
            continue
        fs.forget_faults()
        return opened
    return reopen(fs.crash(rng))
