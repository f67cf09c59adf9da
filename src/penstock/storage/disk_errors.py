"""Errors of the operating system's files as errors of Penstock, each with its remedy."""

from __future__ import annotations

import errno

from penstock.core.errors import (
    Conflict,
    Dependency,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)

_WRONG_REQUEST = {
    errno.EACCES: "permission denied; grant this user access",
    errno.EPERM: "not permitted; grant this user access",
    errno.ENOTDIR: "a part of the path is not a folder; correct the path",
    errno.EISDIR: "is a folder; correct the path",
    errno.ENAMETOOLONG: "the name is too long; shorten it",
    errno.EINVAL: "invalid name or size; correct it",
    errno.ELOOP: "too many symbolic links; correct the path",
}
_TRY_LATER = {
    errno.ENOSPC: "no space left on the device; free space or move the data folder",
    errno.EDQUOT: "the disk quota is used up; raise it or free space",
    errno.EFBIG: "the file would exceed the size limit; raise it (ulimit -f)",
    errno.EROFS: "the file system is read-only; mount it writable (see the kernel's log for why)",
    errno.EIO: "the device reports an I/O error; check the disk",
    errno.EMFILE: "this process has too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "the system has too many open files; raise the limit (fs.file-max)",
    errno.ENOMEM: "out of memory; add memory or stop another program",
    errno.ENOTEMPTY: "the folder is not empty: delete its contents first",
}


def translate_error(error: OSError, path: str, doing: str) -> PenstockError:
    """Return the error of Penstock for an ``OSError``, with its remedy.

    Args:
        error: The error that the system raised.
        path: The file or folder.
        doing: The step that failed, such as ``"open"``.
    """
    number = error.errno or 0
    if number == errno.ENOENT:
        return NotFound(f"{path}: cannot {doing}: no such file or folder")
    if number == errno.EEXIST:
        return Conflict(f"{path}: cannot {doing}: it exists already")
    if number in _WRONG_REQUEST:
        return InvalidRequest(f"{path}: cannot {doing}: {_WRONG_REQUEST[number]}")
    remedy = _TRY_LATER.get(number, f"{error.strerror or error}; try again")
    return Unavailable(f"{path}: cannot {doing}: {remedy}", dependency=Dependency.DISK)
