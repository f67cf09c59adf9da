"""Files that only their owner may read: read, created and replaced without a moment of exposure.

Owns the permissions of credentials and keys on disk, the steps of their atomic write, and the lock
that serializes writers of different processes. `core` cannot use `storage.filesystem`, whose files
others may read.

Invariants: a file has the mode 0600 before its first byte is written. `replace_private` leaves the
old content or the new one, even if the machine stops in the middle. A file that other users may
read or write is refused, because its secrets are known or its content is not to be trusted. No
``OSError`` leaves this module.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock.core.clock import Clock, pause
from penstock.core.errors import Dependency, InvalidRequest, NotFound, Unavailable

LOCK_FILE: Final = "lock"
_LOCK_WAIT_S: Final = 10.0
_LOCK_PAUSE_S: Final = 0.02
_PRIVATE: Final = 0o600
_FOLDER: Final = 0o700
_READ_BYTES: Final = 1 << 20
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW


class FileVersion(NamedTuple):
    """Properties that differ between two contents of a file.

    Attributes:
        modified_ns: Time of the last change of the content.
        changed_ns: Time of the last change, including those of its permissions.
        size: In bytes.
        inode: Number of the file.
    """

    modified_ns: int
    changed_ns: int
    size: int
    inode: int


def version_of(path: Path) -> FileVersion | None:
    """Return the version of a file; None: it does not exist, or cannot be found."""
    try:
        found = path.stat()
    except OSError:  # narrow: restores nothing
        return None
    return FileVersion(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def read_bounded(
    path: Path, bytes_max: int, *, is_private: bool, owner: int | None = None
) -> bytes:
    """Return the content of a small file.

    Args:
        path: The file.
        bytes_max: Maximum size.
        is_private: Only its owner may be able to read it, and it is not a symbolic link. Otherwise
            it is enough that other users cannot change it, those of its group included.
        owner: Id of a user who may own it, besides the user of this process and root.

    Raises:
        NotFound: It does not exist.
        InvalidRequest: Its permissions or those of its folder, its owner, its kind or its size are
            not allowed.
        Unavailable: It cannot be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | (os.O_NOFOLLOW if is_private else 0))
    except FileNotFoundError:  # narrow: restores nothing
        raise NotFound(f"{path} does not exist") from None
    except OSError as error:
        raise _unavailable(path, "read", error) from None
    try:
        check_file(path, os.fstat(descriptor), is_private=is_private, owner=owner)
        parts: list[bytes] = []
        size = 0
        while part := os.read(descriptor, _READ_BYTES):
            size += len(part)
            if size > bytes_max:
                raise InvalidRequest(
                    f"it has more than {bytes_max:,} bytes: remove what is not needed",
                    place=str(path),
                )
            parts.append(part)
        return b"".join(parts)
    except OSError as error:
        raise _unavailable(path, "read", error) from None
    finally:
        os.close(descriptor)


def check_file(
    path: Path, found: os.stat_result, *, is_private: bool, owner: int | None = None
) -> None:
    """Check who may read or change an open file. Arguments as `read_bounded`.

    Raises:
        InvalidRequest: Its permissions or those of its folder, its owner or its kind are not
            allowed.
        OSError: Its folder cannot be found.
    """
    if not stat.S_ISREG(found.st_mode):
        raise InvalidRequest("it is not a regular file: replace it by one", place=str(path))
    if is_private and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidRequest(
            "other users of this host may read or change it, so its secrets count as known: run"
            f" 'chmod 600 {path}' and replace the secrets in it",
            place=str(path),
        )
    if found.st_mode & stat.S_IWOTH:
        raise InvalidRequest(
            f"every user of this host may change it: run 'chmod o-w {path}' and check its content",
            place=str(path),
        )
    if found.st_uid not in {os.geteuid(), 0, owner}:
        raise InvalidRequest(
            f"it belongs to user {found.st_uid} and could change at any time: give it to user"
            f" {os.geteuid()}, and check its content",
            place=str(path),
        )
    folder = os.stat(path.parent)  # noqa: PTH116 - as the other calls of this module
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        raise InvalidRequest(
            f"every user of this host may replace it: run 'chmod o-w {path.parent}' and check its"
            " content",
            place=str(path),
        )
    # Many editors run with a umask that lets the group write; a private folder keeps the group out.
    if found.st_mode & stat.S_IWGRP and folder.st_mode & stat.S_IXGRP:
        raise InvalidRequest(
            f"all users of the group {found.st_gid} may change it: run 'chmod g-w {path}' and check"
            " its content",
            place=str(path),
        )


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may enter, unless it exists.

    Raises:
        Unavailable: It cannot be created.
    """
    try:
        folder.mkdir(_FOLDER, exist_ok=True)
    except OSError as error:
        raise _unavailable(folder, "create", error) from None


def replace_private(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    """Create or replace a private file; the caller holds `locked`, or is its only writer.

    Args:
        path: The file.
        content: Its new content.
        is_durable: Whether the content must survive a stop of the machine.

    Raises:
        Unavailable: It cannot be written. Its content is the old one, unless the last step failed,
            the fsync of the folder.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        # A file of an interrupted write may exist, with any permissions.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, _PRIVATE)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - each step is a call that tests can fail
        if is_durable:
            _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # on a full disk, its room is needed
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unavailable(path, "write", error) from None
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path, clock: Clock) -> Iterator[None]:
    """Hold the lock of the writers of a folder; the kernel releases it if the process ends.

    A lock on a file also works on network file systems, which do not lock folders.

    Raises:
        Unavailable: Another process has held it for 10 seconds, or it cannot be opened.
    """
    path = folder / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, _PRIVATE)
    except OSError as error:
        raise _unavailable(path, "open", error) from None
    try:
        until_s = clock.monotonic_s() + _LOCK_WAIT_S
        while not _try_lock(descriptor, path):
            if clock.monotonic_s() >= until_s:
                raise Unavailable(
                    f"{path} has been locked for {_LOCK_WAIT_S:.0f} s by another process: repeat"
                    " the command",
                    dependency=Dependency.DISK,
                )
            pause(clock, _LOCK_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # narrow: restores nothing
        return False
    except OSError as error:
        raise _unavailable(path, "lock", error) from None
    return True


def _unavailable(path: Path, what: str, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot {what} {path}: {error.strerror}: check the permissions and the disk",
        dependency=Dependency.DISK,
    )
