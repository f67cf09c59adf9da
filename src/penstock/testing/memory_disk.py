"""File system in memory that can lose power, fill up and fail at any step.

`CrashableFileSystem` owns the operations of a file system, which consist of steps.
`FallibleDisk` counts the steps and owns which of them fails and how, the free space and the
power. `Disk` owns the files and folders: their visible and durable states, and the states that a
power loss may leave. Permissions, symbolic links and times are not modelled (a file is as old as
the steps that made it).

File bytes are durable after ``sync`` (or ``fsync_file``), names after ``fsync_folder``.
``crash`` keeps what is durable and any subset of the rest: unsynced pages (a lost page keeps
its old bytes, or zeros where the file grew), a write torn inside one page, and unsynced changes
of names.

Steps that change something are numbered from 1 (`steps`), so that a test can run an operation
once, and then again with a failure or a power loss at each of its steps:

    fs.fail_at(step, keep_bytes=7)     that step raises `Unavailable`, as on a full disk
    fs.fail_next("fsync")              the next step of this kind raises it
    fs.kill_at(step, keep_bytes=7)     that step raises `PowerLoss`; then take `fs.crash(rng)`
    fs.capacity_bytes = 4096           a disk of that size
    fs.read_only = True                every change is refused

Invariants: without power nothing is read or changed. A failed write leaves nothing visible,
except for bytes that a test keeps for a power loss. A failed sync behaves as on
Linux: the pages count as clean but are not durable, and a later sync makes them durable only if
they are written again. For one thread, or several under the owner's mutex.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.storage.filesystem import FileStat, FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from penstock.core.read_guard import ReadCheck

__all__ = ["CrashableFileSystem", "PowerLoss", "reopen_after_power_loss"]


S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)

_PAGE = 512  # small, so that small test files have several pages


class Change(Protocol[S_contra]):
    """A change of a file's bytes, or of the names in a folder."""

    def apply(self, state: S_contra, /) -> None:
        """Apply all of it."""
        ...

    def apply_partly(self, state: S_contra, rng: random.Random, /) -> None:
        """Apply a part that a power loss may leave."""
        ...


class DurabilityState(Generic[S]):
    """Visible and durable state of an object, and the changes between them."""

    __slots__ = ("durable", "pending", "visible")

    def __init__(self, visible: S, durable: S) -> None:
        self.visible = visible
        self.durable = durable
        self.pending: list[Change[S]] = []

    def change(self, change: Change[S]) -> None:
        """Apply a change to the visible state."""
        change.apply(self.visible)
        self.pending.append(change)

    def sync(self) -> None:
        """Make all changes durable."""
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()


@dataclass(slots=True)
class Write:
    """Bytes at a position of a file."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Apply all of it."""
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
class Truncate:
    """A file's new size; zeros where it grows."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Apply all of it."""
        if len(content) > self.size:
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))

    def apply_partly(self, content: bytearray, rng: random.Random) -> None:
        """Apply all of it or nothing."""
        if rng.random() < 0.5:
            self.apply(content)


class Inode(DurabilityState[bytearray]):
    """The bytes of a file."""

    __slots__ = ()

    def after_crash(self, rng: random.Random) -> Inode:
        """Return a possible state after a power loss, durable now."""
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
        return Inode(bytearray(content), content)


@dataclass(slots=True)
class Rename:
    """One change of names in a folder: `removed` is deleted, `added` becomes `inode`."""

    removed: str | None
    added: str | None
    inode: Inode | None

    def apply(self, names: dict[str, Inode]) -> None:
        """Apply all of it."""
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.inode is not None:
            names[self.added] = self.inode

    def apply_partly(self, names: dict[str, Inode], rng: random.Random) -> None:
        """Apply all of it or nothing."""
        if rng.random() < 0.5:
            self.apply(names)


class DiskFolder(DurabilityState[dict[str, Inode]]):
    """The names in a folder."""

    __slots__ = ()

    def after_crash(self, rng: random.Random, files: dict[int, Inode]) -> DiskFolder:
        """Return a possible state of the folder and its files after a power loss, durable now.

        Args:
            rng: Chooses among the legal outcomes.
            files: Files after the power loss, by the id of the file before; each may have names.
        """
        names = dict(self.durable)
        all_or_any = rng.random()
        for change in self.pending:
            if all_or_any < 0.3:
                change.apply(names)
            elif all_or_any < 0.8:
                change.apply_partly(names, rng)
        kept = {}
        for name, inode in names.items():
            if id(inode) not in files:
                files[id(inode)] = inode.after_crash(rng)
            kept[name] = files[id(inode)]
        return DiskFolder(dict(kept), kept)


class Disk:
    """Folders by path, including the root. Folders are durable from the start."""

    def __init__(self) -> None:
        self._folders = {"/": DiskFolder({}, {})}

    def after_crash(self, rng: random.Random) -> Disk:
        """Return a possible state after a power loss.

        Args:
            rng: Chooses among the legal outcomes.
        """
        after = Disk()
        files: dict[int, Inode] = {}
        folders = self._folders.items()
        after._folders = {path: one.after_crash(rng, files) for path, one in folders}
        return after

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        folders = self._folders.values()
        inodes = {id(one): one for folder in folders for one in folder.visible.values()}
        return sum(len(inode.visible) for inode in inodes.values())

    # -- folders

    def has_folder(self, path: str) -> bool:
        """Return whether a folder exists."""
        return (path.rstrip("/") or "/") in self._folders

    def folder(self, path: str) -> DiskFolder:
        """Return a folder.

        Raises:
            NotFound: There is no such folder.
        """
        folder = self._folders.get(path.rstrip("/") or "/")
        if folder is None:
            raise NotFound(f"{path}: no such folder")
        return folder

    def make_folder(self, path: str) -> None:
        """Create an empty folder."""
        self._folders[path] = DiskFolder({}, {})

    def remove_folder(self, path: str) -> None:
        """Remove a folder."""
        del self._folders[path.rstrip("/")]

    def names_in(self, path: str) -> list[str]:
        """Return the sorted names in a folder.

        Raises:
            NotFound: There is no such folder.
        """
        prefix = path.rstrip("/") + "/"
        below = {
            other[len(prefix) :]
            for other in self._folders
            if other.startswith(prefix) and other != "/" and "/" not in other[len(prefix) :]
        }
        return sorted(below | set(self.folder(path).visible))

    # -- files

    def place(self, path: str) -> tuple[DiskFolder, str]:
        """Return the folder of a file, and its name there.

        Raises:
            NotFound: There is no such folder.
        """
        folder, _, name = path.rpartition("/")
        return self.folder(folder or "/"), name

    def find(self, path: str) -> Inode | None:
        """Return a file, None if there is none."""
        folder, _, name = path.rpartition("/")
        found = self._folders.get(folder or "/")
        return None if found is None else found.visible.get(name)

    def file(self, path: str, doing: str) -> Inode:
        """Return a file.

        Args:
            path: Its path.
            doing: The operation, for the error.

        Raises:
            NotFound: There is no such file.
        """
        inode = self.find(path)
        if inode is None:
            raise NotFound(f"{path}: cannot {doing}: no such file or folder")
        return inode


_NO_END_BYTES = 1 << 62


class PowerLoss(BaseException):
    """Power is lost at this step. Not an `Exception`, so that nothing catches it and continues."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Effect of a step: an error or a power loss; a write does `keep_bytes` first."""

    power_loss: bool
    keep_bytes: int
    reason: str


class FallibleDisk:
    """Disk whose changing steps are numbered from 1; a test chooses which of them fail.

    Args:
        disk: Initial content; None: empty.

    Attributes:
        steps: Number of steps so far.
        syncs: Number of successful syncs.
        capacity_bytes: Size of the disk; None: unlimited.
        read_only: Every change is refused.
        powerless: Power was lost.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()
        self._faults: dict[int, Fault] = {}
        self._next_faults: dict[str, Fault] = {}
        self.steps = 0
        self.syncs = 0
        self.capacity_bytes: int | None = None
        self.read_only = False
        self.powerless = False

    # -- faults

    def fail_at(self, step: int, *, keep_bytes: int = 0, reason: str = "I/O error") -> None:
        """Make a step raise `Unavailable`; a failed write leaves nothing visible."""
        self._faults[step] = Fault(power_loss=False, keep_bytes=keep_bytes, reason=reason)

    def fail_next(self, kind: str, *, keep_bytes: int = 0, reason: str = "I/O error") -> None:
        """Make the next create, append, truncate, fsync, rename or delete raise `Unavailable`."""
        self._next_faults[kind] = Fault(power_loss=False, keep_bytes=keep_bytes, reason=reason)

    def kill_at(self, step: int, *, keep_bytes: int = 0) -> None:
        """Make a step raise `PowerLoss`, after `keep_bytes` of it if it is a write."""
        self._faults[step] = Fault(power_loss=True, keep_bytes=keep_bytes, reason="power loss")

    def forget_faults(self) -> None:
        """Clear all faults, the capacity and the read-only mode."""
        self._faults.clear()
        self._next_faults.clear()
        self.capacity_bytes = None
        self.read_only = False

    # -- room

    def used_bytes(self) -> int:
        """Return the bytes of all visible files."""
        return self._disk.used_bytes()

    def free_bytes(self, folder: str) -> int:  # noqa: ARG002  # one disk for all folders
        """Return the free part of the capacity."""
        if self.capacity_bytes is None:
            return _NO_END_BYTES
        return max(0, self.capacity_bytes - self.used_bytes())

    # -- steps

    def live(self) -> Disk:
        """Return the content.

        Raises:
            PowerLoss: Power was lost.
        """
        if self.powerless:
            raise PowerLoss("this file system lost its power; use the one that crash() returned")
        return self._disk

    def step(self, path: str, doing: str) -> Fault | None:
        """Count a step; raise its fault. A fault of a write is returned, to be done partly.

        Raises:
            Unavailable: The step fails.
            PowerLoss: Power is lost at this step, or was lost before.
        """
        disk = self.live()
        if self.read_only:
            raise Unavailable(f"{path}: cannot {doing}: the file system is read-only")
        self.steps += 1
        fault = self._faults.pop(self.steps, None) or self._next_faults.pop(doing, None)
        if fault is None or doing == "append":
            return fault
        if fault.power_loss:
            raise self._power_loss(path, doing)
        if doing == "fsync" and (inode := disk.find(path)) is not None:
            inode.pending.clear()
        raise Unavailable(f"{path}: cannot {doing}: {fault.reason}")

    def write(self, inode: Inode, path: str, data: bytes, position: int, *, cut_back: bool) -> None:
        """Write bytes at a position of a file, in one step; raises as `step`.

        Args:
            inode: The file.
            path: Its path, for the error.
            data: The bytes.
            position: Offset of the first byte.
            cut_back: Truncate the file there if the step fails.
        """
        fault = self.step(path, "append")
        if fault is not None:
            partly = data[: fault.keep_bytes]
            if partly:
                inode.change(Write(position, partly))
            if fault.power_loss:
                raise self._power_loss(path, "append")
            if cut_back:
                inode.change(Truncate(position))
            raise Unavailable(f"{path}: cannot append: {fault.reason}")
        grown = max(0, position + len(data) - len(inode.visible))
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            raise Unavailable(f"{path}: cannot append: no space left on the device; free space")
        inode.change(Write(position, data))

    def sync(self, changed: Inode | DiskFolder, path: str) -> None:
        """Make the changes of a file or folder durable, in one step; raises as `step`."""
        self.step(path, "fsync")
        self.syncs += 1
        changed.sync()

    def _power_loss(self, path: str, doing: str) -> PowerLoss:
        self.powerless = True
        return PowerLoss(f"{path}: power loss at step {self.steps}: {doing}")


T = TypeVar("T")


class CrashableFileSystem(FallibleDisk, FileSystem):
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

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        inode = self.live().file(source, "link")
        folder, name = self.live().place(target)
        self.step(target, "link")
        if name in folder.visible:
            raise Conflict(f"{target}: cannot link: it exists already")
        folder.change(Rename(None, name, inode))

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

    def check_readable(self, reads: ReadCheck) -> None:
        pass  # Its files are not those of this machine.

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
