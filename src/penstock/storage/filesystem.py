"""Protocol of the only access to the disk: every durable step is a method, where tests can fail it.

Owns: the operations and what they promise, and the steps of an atomic write. Does not own: the
meaning of the bytes. The implementation on the operating system's files is `penstock.storage.disk`;
tests have one in memory.

Invariants:

- ``AppendFile.writev`` is all or nothing for this process: if it raises, the end of the file is
  unchanged.
- Nothing is durable before ``sync`` of the file and ``fsync_folder`` of the folder with its name.
- ``write_atomically`` leaves the old content or the new one. If it raises, the content is the old
  one, unless the last step failed, the fsync of the folder.
- No ``OSError`` leaves an implementation.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from penstock.core.read_guard import ReadCheck


@dataclass(frozen=True, slots=True)
class FileStat:
    """Properties of a file or folder, read without opening it.

    Attributes:
        size: In bytes.
        modified_ms: When its content was changed last, epoch milliseconds.
        is_folder: Whether it is a folder.
        inode: Identity of the file as long as it exists, even if it is renamed; 0: unknown.
        is_special: Whether it is a pipe, a socket or a device, which cannot be read as a file.
    """

    size: int
    modified_ms: int
    is_folder: bool
    inode: int = 0
    is_special: bool = False


class AppendFile(Protocol):
    """A file that one owner appends to. Only `rewrite` writes before its end."""

    @property
    def size(self) -> int:
        """Return the size after the last successful write."""
        ...

    def writev(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers as one write; return the new size.

        Raises:
            Unavailable: Disk full or I/O error; the end of the file is unchanged.
        """
        ...

    def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes at `position` again, to mark their pages dirty once more.

        After a failed fsync the kernel may mark pages as clean that never reached the disk, so a
        second fsync alone would succeed without writing them.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Make the content and the size durable (not the name: see `fsync_folder`)."""
        ...

    def close(self) -> None:
        """Close without syncing. Closing twice is allowed."""
        ...


class ReadFile(Protocol):
    """A file opened for reading. It stays readable after its name is deleted."""

    def size(self) -> int:
        """Return the size now."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes; fewer at the end of the file."""
        ...

    def map(self, length: int) -> memoryview:
        """Map the first `length` bytes, which must exist and not be truncated while in use.

        The view keeps the mapping alive; closing the file does not end it.
        """
        ...

    def check_readable(self, reads: ReadCheck) -> None:
        """Raise `InvalidRequest` if flows and tasks must not read this file."""
        ...

    def close(self) -> None:
        """Close. Closing twice is allowed."""
        ...


class FolderLock(Protocol):
    """An exclusive lock on a folder, which ends with the process at the latest."""

    def release(self) -> None:
        """Release the lock. Releasing twice is allowed."""
        ...


class FileSystem(Protocol):
    """Operations on files. Paths are strings; see the module's invariants.

    Every method raises `NotFound`, `Conflict`, `InvalidRequest` or `Unavailable` with the path and
    the remedy.
    """

    def create(self, path: str, *, replace: bool = False) -> AppendFile:
        """Create an empty file. Raises `Conflict` if it exists, unless `replace` is set."""
        ...

    def open_append(self, path: str) -> AppendFile:
        """Open an existing file for writing at its end."""
        ...

    def open_read(self, path: str) -> ReadFile:
        """Open an existing file for reading."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a small file."""
        ...

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace the file's content durably: temp file, fsync, rename, fsync of the folder.

        The temp file is ``path + ".tmp"``: one owner at a time writes a path.
        """
        temporary = f"{path}.tmp"
        file = self.create(temporary, replace=True)
        try:
            try:
                file.writev([data])
                file.sync()
            finally:
                file.close()
            self.rename(temporary, path)
        except BaseException:
            with suppress(PenstockError):  # a full disk needs the space
                self.unlink(temporary)
            raise
        self.fsync_folder(os.path.dirname(path))  # noqa: PTH120  -- paths are strings here

    def listdir(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return size, modification time and kind."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file or folder of this name exists."""
        ...

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links; missing parts stay unchanged."""
        ...

    def mkdir(self, folder: str) -> None:
        """Create a folder and its parents durably; an existing one is allowed."""
        ...

    def rmdir(self, folder: str) -> None:
        """Remove an empty folder."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename within a folder, replacing the target. Durable after `fsync_folder`."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name on the same disk. Durable after `fsync_folder` of its folder.

        Raises:
            Conflict: The name exists.
            Unavailable: The disk has no second names, or an I/O error.
        """
        ...

    def unlink(self, path: str) -> None:
        """Delete a file. Durable after `fsync_folder`."""
        ...

    def fsync_file(self, path: str) -> None:
        """Make a file durable that something else wrote."""
        ...

    def fsync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        ...

    def lock_folder(self, folder: str) -> FolderLock:
        """Lock a folder for this owner; raises `Conflict` if another owner has locked it."""
        ...

    def free_bytes(self, folder: str) -> int:
        """Return how many bytes this user can still write to the disk of a folder."""
        ...


def open_guarded(fs: FileSystem, path: str, reads: ReadCheck) -> ReadFile:
    """Open a file that a flow, a spec or a statement names. Raises as `FileSystem.open_read` does.

    The open file is checked, not its path, which may lead to another file meanwhile.

    Raises:
        InvalidRequest: Flows and tasks must not read it.
    """
    file = fs.open_read(path)
    try:
        file.check_readable(reads)
    except BaseException:
        file.close()
        raise
    return file


def read_guarded(fs: FileSystem, path: str, reads: ReadCheck) -> bytes:
    """Return the whole content of a small file. Raises as `open_guarded` does."""
    file = open_guarded(fs, path, reads)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
