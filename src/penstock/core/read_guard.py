"""Files that flows and tasks must not read: Penstock's own, its secrets, and the kernel's.

Owns the check of a path, of a file that is open, and of a store's URL, against these places. Code
that opens a path which a flow, a spec or a statement names calls it. `flow.write_guard` compares
paths in the same way.

A user who could read the token of Spark Connect could run any code. The token is in the environment
of processes (`/proc/PID/environ`), in the options of child processes and in the metadata.

Invariants: a path is checked after symbolic links and ``..`` are resolved, and again once the file
is open, so that a link that is replaced in between does not bypass the check. Places are compared
by identity, so that a second name for a folder (a bind mount, another case) does not bypass it
either. A hard link to a kept file is noticed; a hard link to a file inside of a kept folder is not.
"""

# The guard queries the operating system about paths; it opens and changes nothing.
# ruff: noqa: PTH100, PTH115, PTH116, PTH120

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.core.errors import InvalidRequest

Identity: TypeAlias = tuple[int, int]
"""Device and inode of a file or folder."""

_SYSTEM: Final = ("/proc", "/sys", "/dev")
# A folder of ordinary files in memory.
_MEMORY: Final = "/dev/shm"  # noqa: S108 - the guard writes nothing there
# Schemes that name the same stores.
_SAME_STORES: Final = {"s3a": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs", "azure": "abfs"}
# Number of folders that a check remembers.
_PASSED_MAX: Final = 10_000
_KERNEL: Final = "the kernel shows processes, their environment and devices there"
_OWN: Final = "Penstock keeps its own files or secrets there"


@dataclass(frozen=True, slots=True)
class ReadGuard:
    """Places that must not be read. Sent to Spark's workers with their work.

    The kernel's folders `/proc`, `/sys` and `/dev`, except `/dev/shm`, are always refused.

    Attributes:
        kept: Files and folders that must not be read.
        only: Folders that may be read; empty: all that are not kept.
        kept_urls: URLs of stores below which nothing may be read.
    """

    kept: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    kept_urls: tuple[str, ...] = ()

    def now(self) -> ReadCheck:
        """Return a check with the current identities of the places."""
        return ReadCheck(self)


class ReadCheck:
    """Check of one file, or of the files of one listing. One thread at a time.

    Args:
        guard: The places.
    """

    def __init__(self, guard: ReadGuard) -> None:
        self._refused = {identity(place): (place, _OWN) for place in guard.kept}
        self._refused |= {identity(place): (place, _KERNEL) for place in _SYSTEM}
        self._memory = identity(_MEMORY)
        self._only = guard.only
        self._listed = {identity(place) for place in guard.only} - {None}
        self._kept_urls = guard.kept_urls
        self._passed: set[str] = set()

    def path(self, path: str) -> str:
        """Return the path of a file or folder without symbolic links, if it may be read.

        Raises:
            InvalidRequest: It must not be read, or its links cannot be followed.
        """
        real = real_path(path)
        _check_kernel(os.path.abspath(path), path)
        self._check(real, path, identity(real))
        return real

    def url(self, url: str, shown: str) -> None:
        """Check the URL of a file or folder in a store.

        Args:
            url: The URL.
            shown: The URL for error messages, without secrets.

        Raises:
            InvalidRequest: It is inside of a store that must not be read.
        """
        for kept in self._kept_urls:
            if is_below(_comparable_url(url), _comparable_url(kept)):
                raise _refusal(shown, "this store", _OWN)

    def opened(self, descriptor: int, path: str) -> None:
        """Check an open file, whose path may already lead to another file.

        Raises:
            InvalidRequest: It must not be read.
        """
        found = os.fstat(descriptor)
        try:
            real = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # a system without /proc
            real = real_path(path)
        self._check(real, path, (found.st_dev, found.st_ino))

    def _check(self, real: str, path: str, own: Identity | None) -> None:
        _check_kernel(real, path)
        folder = os.path.dirname(real)
        if own in self._refused and own is not None:
            raise _refusal(path, *self._refused[own])
        if folder in self._passed:
            return
        if self._only and self._listed.isdisjoint((own, *identities(folder))):
            raise InvalidRequest(
                f"{path}: flows and tasks may read only these folders: {', '.join(self._only)}:"
                " copy the data there, or add its folder to --readable-folders"
            )
        if own == self._memory and own is not None:
            return
        for one in identities(folder):
            if one in self._refused:
                raise _refusal(path, *self._refused[one])
            if one == self._memory:
                break
        if len(self._passed) >= _PASSED_MAX:
            self._passed.clear()
        self._passed.add(folder)


class ServiceReadGuard:
    """The guard of this process; set when the process starts, read from any thread."""

    def __init__(self) -> None:
        self._guard = ReadGuard()

    def set(self, guard: ReadGuard) -> None:
        """Replace the guard."""
        self._guard = guard

    def get(self) -> ReadGuard:
        """Return the guard; without a service, only the kernel's folders are refused."""
        return self._guard

    def now(self) -> ReadCheck:
        """Return a check with the current identities of the places."""
        return self._guard.now()


READ_GUARD: Final = ServiceReadGuard()


def _check_kernel(place: str, path: str) -> None:
    for folder in _SYSTEM:
        if is_below(place, folder) and not is_below(place, _MEMORY):
            raise _refusal(path, folder, _KERNEL)


def _refusal(path: str, place: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path}: flows and tasks must not read files of {place}, because {why}: read another file,"
        " or copy the data into another folder"
    )


def _comparable_url(url: str) -> str:
    """Return a URL in a form in which two names of one object are equal, as far as stores allow."""
    scheme, _, rest = url.partition("://")
    name = _SAME_STORES.get(scheme.lower(), scheme.lower())
    return f"{name}://{'/'.join(part for part in rest.split('/') if part)}"


def real_path(path: str) -> str:
    """Return a path without symbolic links; missing parts stay unchanged.

    Raises:
        InvalidRequest: A link cannot be followed, for example for lack of permission.
    """
    try:
        return os.path.realpath(path)
    except ValueError:  # NUL, or half of a surrogate pair
        raise InvalidRequest(
            f"invalid path {path!r}: no file can have this name; correct the path"
        ) from None
    except OSError as error:
        raise InvalidRequest(
            f"{path}: its symbolic links cannot be followed ({error.strerror}): use another path"
        ) from None


def is_below(place: str, above: str) -> bool:
    """Return whether a path is another one, or is inside of it."""
    return place == above or place.startswith(above.rstrip("/") + "/")


def identities(place: str) -> Iterator[Identity]:
    """Yield the identity of a path and of each of its parent folders that exists."""
    while True:
        if (found := identity(place)) is not None:
            yield found
        above = os.path.dirname(place)
        if above == place:
            return
        place = above


def identity(path: str) -> Identity | None:
    """Return the identity of the file or folder at a path; None if there is none."""
    try:
        # Not `Path`: it would split the whole path again for each of its parents.
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
