"""The operating system's files: the implementation of `FileSystem` that Penstock runs on.

Owns: opening, writing, mapping, syncing and renaming files. The promises are those of
`penstock.storage.filesystem`. No ``OSError`` leaves this module.
"""

# This module wraps `os` for the rest of the product, so it calls `os` by name.
# ruff: noqa: PTH100, PTH102, PTH105, PTH106, PTH108, PTH110, PTH112, PTH116, PTH120, PTH208

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.access.private_file import check_file
from penstock.core.errors import Conflict, Dependency, InvalidRequest, Unavailable
from penstock.core.printable import quoted
from penstock.storage.disk_errors import translate_error
from penstock.storage.filesystem import FileStat, FileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from penstock.core.read_guard import ReadCheck

_READ_BYTES = 1 << 16
# Each folder is made durable separately.
_MISSING_FOLDERS_MAX = 200


class OsAppendFile:
    """An `AppendFile` of the operating system. Writes carry their position: no O_APPEND."""

    __slots__ = ("_fd", "_path", "_size")

    def __init__(self, fd: int, path: str, size: int) -> None:
        self._fd = fd
        self._path = path
        self._size = size

    @property
    def size(self) -> int:
        """Return the size after the last successful write."""
        return self._size

    def writev(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers as one write; on failure cut the file back to its old end."""
        total = sum(memoryview(buffer).nbytes for buffer in buffers)
        try:
            written = os.pwritev(self._fd, buffers, self._size)
            if written != total:
                self._write_rest(buffers, written)
        except BaseException as error:
            self._cut_back()
            if isinstance(error, OSError):
                raise translate_error(error, self._path, "append") from error
            raise
        self._size += total
        return self._size

    def _write_rest(self, buffers: Sequence[Buffer], written: int) -> None:
        # A short write is rare (a nearly full disk, a signal), so the copy here does not matter.
        rest = memoryview(b"".join(memoryview(buffer).cast("B") for buffer in buffers))
        while written < len(rest):
            count = os.pwrite(self._fd, rest[written:], self._size + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            # Bytes after `size` are not a valid block, the next append overwrites them, and
            # recovery cuts them off: nothing of the batch becomes visible.
            return

    def rewrite(self, position: int, data: Buffer) -> None:
        """Write the bytes at `position` again."""
        rest = memoryview(data).cast("B")
        try:
            while rest:
                count = os.pwrite(self._fd, rest, position)
                rest = rest[count:]
                position += count
        except OSError as error:
            raise translate_error(error, self._path, "write again") from error

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise translate_error(error, self._path, "truncate") from error
        self._size = size

    def sync(self) -> None:
        """Make content and size durable."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise translate_error(error, self._path, "fsync") from error

    def close(self) -> None:
        """Close without syncing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with suppress(OSError):  # `sync` reports durability, and the file is closed anyway
                os.close(fd)


class OsReadFile:
    """A `ReadFile` of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def size(self) -> int:
        """Return the size now."""
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise translate_error(error, self._path, "stat") from error

    def pread(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes."""
        try:
            return os.pread(self._fd, length, position)
        except OSError as error:
            raise translate_error(error, self._path, "read") from error

    def map(self, length: int) -> memoryview:
        """Map the first `length` bytes, read-only."""
        if length == 0:
            return memoryview(b"")
        try:
            mapping = mmap.mmap(self._fd, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            # ValueError: the file is shorter than requested.
            raise Unavailable(
                f"{self._path}: cannot map {length} bytes: {error}", dependency=Dependency.DISK
            ) from error
        return memoryview(mapping)

    def check_readable(self, reads: ReadCheck) -> None:
        """Raise `InvalidRequest` if flows and tasks must not read this file."""
        reads.opened(self._fd, self._path)

    def close(self) -> None:
        """Close; mappings stay valid."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OsFolderLock:
    """An flock on the folder itself, so that a lock leaves no file behind."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OsFileSystem(FileSystem):
    """The operating system's files. It has no state: every instance is the same."""

    _file_mode = 0o644
    _folder_mode = 0o777

    def create(self, path: str, *, replace: bool = False) -> OsAppendFile:
        """Create an empty file."""
        kind = os.O_TRUNC if replace else os.O_EXCL
        fd = self._open(path, os.O_RDWR | os.O_CREAT | kind, "create")
        try:
            return OsAppendFile(fd, path, 0)
        except BaseException:
            os.close(fd)
            raise

    def open_append(self, path: str) -> OsAppendFile:
        """Open an existing file for writing at its end."""
        fd = self._open(path, os.O_RDWR, "open for writing")
        try:
            return OsAppendFile(fd, path, os.fstat(fd).st_size)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise translate_error(error, path, "stat") from error
            raise

    def open_read(self, path: str) -> OsReadFile:
        """Open an existing file for reading."""
        fd = self._open_regular(path)
        try:
            return OsReadFile(fd, path)
        except BaseException:
            os.close(fd)
            raise

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content of a small file."""
        fd = self._open_regular(path)
        try:
            parts = [os.read(fd, _READ_BYTES)]
            while len(parts[-1]) == _READ_BYTES:  # a shorter read is the end of a regular file
                parts.append(os.read(fd, _READ_BYTES))
            return b"".join(parts)
        except OSError as error:
            raise translate_error(error, path, "read") from error
        finally:
            os.close(fd)

    def listdir(self, folder: str) -> list[str]:
        """Return the sorted names in a folder."""
        try:
            return sorted(os.listdir(folder))
        except OSError as error:
            raise translate_error(error, folder, "list") from error

    def stat(self, path: str) -> FileStat:
        """Return size, modification time and kind."""
        try:
            found = os.stat(path)
        except OSError as error:
            raise translate_error(error, path, "stat") from error
        is_folder = stat.S_ISDIR(found.st_mode)
        is_special = not is_folder and not stat.S_ISREG(found.st_mode)
        modified_ms = found.st_mtime_ns // 1_000_000
        return FileStat(found.st_size, modified_ms, is_folder, found.st_ino, is_special)

    def exists(self, path: str) -> bool:
        """Return whether a file or folder of this name exists."""
        return os.path.exists(path)

    def resolve(self, path: str) -> str:
        """Return the path without symbolic links."""
        return os.path.realpath(path)

    def mkdir(self, folder: str) -> None:
        """Create a folder durably, with its parents."""
        missing = []
        above = folder
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(os.path.abspath(above))
            if len(missing) > _MISSING_FOLDERS_MAX:
                raise InvalidRequest(
                    f"{folder:.200}…: more than {_MISSING_FOLDERS_MAX} folders would have to be"
                    " created; shorten the path"
                )
        for one in reversed(missing):
            self._mkdir(one)

    def _mkdir(self, folder: str) -> None:
        try:
            os.mkdir(folder, self._folder_mode)
        except FileExistsError as error:
            if not os.path.isdir(folder):
                raise Conflict(f"{folder}: is a file, not a folder; move it away") from error
        except OSError as error:
            raise translate_error(error, folder, "create the folder") from error
        self.fsync_folder(os.path.dirname(os.path.abspath(folder)))

    def rmdir(self, folder: str) -> None:
        """Remove an empty folder."""
        try:
            os.rmdir(folder)
        except OSError as error:
            raise translate_error(error, folder, "remove the folder") from error

    def rename(self, source: str, target: str) -> None:
        """Rename within a folder, replacing the target."""
        try:
            os.replace(source, target)
        except OSError as error:
            raise translate_error(error, source, f"rename to {target}") from error

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        try:
            os.link(source, target)
        except OSError as error:
            raise translate_error(error, source, f"link as {target}") from error

    def unlink(self, path: str) -> None:
        """Delete a file."""
        try:
            os.unlink(path)
        except OSError as error:
            raise translate_error(error, path, "delete") from error

    def fsync_file(self, path: str) -> None:
        """Make a file durable that something else wrote."""
        self._fsync(path, os.O_RDONLY)

    def fsync_folder(self, folder: str) -> None:
        """Make the names in a folder durable."""
        self._fsync(folder or ".", os.O_RDONLY | os.O_DIRECTORY)

    def lock_folder(self, folder: str) -> OsFolderLock:
        """Lock a folder for this owner."""
        fd = self._open(folder, os.O_RDONLY | os.O_DIRECTORY, "open")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return OsFolderLock(fd)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                raise Conflict(
                    f"{folder}: another process (or another owner in this one) has it open; "
                    "stop that one or use another folder"
                ) from error
            if isinstance(error, OSError):
                raise translate_error(error, folder, "lock") from error
            raise

    def free_bytes(self, folder: str) -> int:
        """Return how many bytes this user can still write to the disk of a folder."""
        try:
            found = os.statvfs(folder)
        except OSError as error:
            raise translate_error(error, folder, "read the free space") from error
        return found.f_bavail * found.f_frsize

    def _open_regular(self, path: str) -> int:
        """Open a regular file for reading; devices and pipes are refused."""
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK, "open")
        try:
            kind = os.fstat(fd).st_mode
            if stat.S_ISREG(kind):
                return fd
            if stat.S_ISDIR(kind):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))  # noqa: TRY301
            refusal = f"{path}: cannot read: it is a device or a pipe; correct the path"
            raise InvalidRequest(refusal)  # noqa: TRY301
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise translate_error(error, path, "read") from error
            raise

    def _open(self, path: str, flags: int, doing: str) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC, self._file_mode)
        except OSError as error:
            raise translate_error(error, path, doing) from error
        except ValueError as error:  # NUL, or half of a surrogate pair
            raise InvalidRequest(
                f"{quoted(path)}: cannot {doing}: no file can have this name; correct the path"
            ) from error

    def _fsync(self, path: str, flags: int) -> None:
        fd = self._open(path, flags, "open")
        try:
            os.fsync(fd)
        except OSError as error:
            raise translate_error(error, path, "fsync") from error
        finally:
            os.close(fd)


class OwnerFileSystem(OsFileSystem):
    """Files and folders that only their owner may read; it refuses to read any others."""

    _file_mode = 0o600
    _folder_mode = 0o700

    def _open_regular(self, path: str) -> int:
        fd = super()._open_regular(path)
        try:
            check_file(Path(path), os.fstat(fd), is_private=True)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise translate_error(error, path, "read") from error
            raise
        return fd
