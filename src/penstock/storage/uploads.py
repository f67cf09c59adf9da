"""Uploads: files that clients send to be loaded, until a task has read them.

Owns the folder of uploads, its layout, and its bounds. Does not own who may upload
(`services.api.access_rules`) and which tasks read an upload (the overlord).

    uploads/new-ID/…            an upload that still arrives
    uploads/ID/content          its bytes, as they were sent
    uploads/ID/upload.json      its name, owner and size
    uploads/gone-ID/…           an upload that is being deleted

Invariants:

- An upload is complete on disk before its folder has its name, and one rename ends it. So a crash,
  a full disk or a client that disconnects leaves nothing that could be read.
- The name that a client gives is text for people; no path contains it.
- Only the principal that made an upload gets it. For others it does not exist.
- An upload expires `EXPIRES_AFTER_MS` after its last use, but not while a task needs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.durations import HOUR_MS
from penstock.core.errors import (
    Dependency,
    Full,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.core.printable import quoted
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    from penstock.core.clock import Clock

UPLOADS_FOLDER: Final = "uploads"
"""The folder of uploads in a data folder; the first upload creates it."""
EXPIRES_AFTER_MS: Final = 24 * HOUR_MS
"""Time after its last use at which an upload is deleted."""
NAME_CHARACTERS_MAX: Final = 255
UPLOAD_ID: Final = re.compile("[0-9a-f]{32}")
"""Ids of uploads: random, so that they cannot be guessed, and safe as the name of a folder."""

_CONTENT: Final = "content"
_RECORD: Final = "upload.json"
_NEW: Final = "new-"
_GONE: Final = "gone-"


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Bounds of a folder of uploads.

    Attributes:
        file_bytes_max: Size limit of one upload.
        owner_bytes_max: Size limit of all uploads of one principal.
        total_bytes_max: Size limit of all uploads.
        owner_files_max: Number of uploads of one principal.
        files_max: Number of all uploads.
        owner_running_max: Number of uploads of one principal that arrive at the same time.
        free_bytes_min: Free space that must remain on the disk.
    """

    file_bytes_max: int = 2 << 30
    owner_bytes_max: int = 8 << 30
    total_bytes_max: int = 32 << 30
    owner_files_max: int = 100
    files_max: int = 1_000
    owner_running_max: int = 4
    free_bytes_min: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Upload:
    """A complete upload.

    Attributes:
        id: Its id.
        name: The name of the file that the client gave.
        owner: Id of the principal that made it.
        bytes: Its size.
        used_ms: Time of its last use.
        path: Its content.
    """

    id: str
    name: str
    owner: str
    bytes: int
    used_ms: int
    path: Path

    @property
    def expires_ms(self) -> int:
        """Return when it expires if it is not used again."""
        return self.used_ms + EXPIRES_AFTER_MS

    def to_json(self) -> dict[str, object]:
        """Return its JSON for the principal that made it."""
        return {
            "id": self.id,
            "name": self.name,
            "bytes": self.bytes,
            "expiresMs": self.expires_ms,
        }


class UploadTooLarge(InvalidRequest):
    """The file is larger than an upload may be."""


class UploadStore:
    """The uploads of one data folder. Thread-safe.

    One process writes into the folder; others read it and call `use`. A mutex guards the sizes of
    uploads, because the threads of uploads that arrive share the bounds.

    Args:
        folder: The folder of uploads; created when the first upload arrives.
        clock: Time.
        limits: Bounds.
    """

    def __init__(self, folder: Path, clock: Clock, limits: UploadLimits | None = None) -> None:
        self._folder = folder
        self._clock = clock
        self.limits: Final = limits or UploadLimits()
        self._mutex = threading.Lock()
        # Owner and size of each upload, by its id; filled when the first one arrives.
        self._stored: dict[str, tuple[str, int]] | None = None
        self._arriving: dict[str, tuple[str, int]] = {}

    def clear(self) -> None:
        """Delete what interrupted uploads and deletions left; for the start of the writer."""
        for path in self._entries():
            if path.name.startswith((_NEW, _GONE)):
                shutil.rmtree(path, ignore_errors=True)

    def begin(self, owner: str, name: str, size_bytes: int | None) -> UploadWriter:
        """Begin an upload.

        Args:
            owner: Id of the principal that makes it.
            name: Name of the file, for people.
            size_bytes: Its size, if it is known already; it is refused early then.

        Raises:
            InvalidRequest: The name is not usable.
            UploadTooLarge: The file is larger than an upload may be.
            Full: The principal, or all together, have as many uploads as they may.
            Unavailable: The folder cannot be written, or its disk is full.
        """
        _check_name(name)
        one = secrets.token_hex(16)
        with self._mutex:
            self._recount()
            self._check_counts(owner)
            self._arriving[one] = owner, 0
        writer = UploadWriter(self, one, owner, name, self._folder / f"{_NEW}{one}")
        try:
            with self._mutex:
                self._check_room(one, size_bytes or 0)
            writer.open()
        except BaseException:
            writer.abort()
            raise
        return writer

    def grow(self, upload_id: str, more_bytes: int) -> None:
        """Count bytes of an upload that arrives, before they are written.

        Raises:
            UploadTooLarge: The file is larger than an upload may be.
            Full: The uploads of the principal, or all, are larger than they may be together.
            Unavailable: The disk is nearly full.
        """
        with self._mutex:
            self._check_room(upload_id, more_bytes)
            owner, size = self._arriving[upload_id]
            self._arriving[upload_id] = owner, size + more_bytes

    def end(self, upload_id: str, *, is_complete: bool) -> None:
        """Count an upload as stored, or no longer at all."""
        with self._mutex:
            found = self._arriving.pop(upload_id, None)
            if is_complete and found is not None and self._stored is not None:
                self._stored[upload_id] = found

    def all(self, owner: str | None = None) -> list[Upload]:
        """Return the uploads, oldest use first; with an `owner`, its own."""
        found = [one for one in map(self._read, self._entries()) if one is not None]
        own = [one for one in found if owner is None or one.owner == owner]
        return sorted(own, key=lambda one: (one.used_ms, one.id))

    def use(self, upload_id: str, owner: str | None) -> Upload:
        """Return an upload, whose time until it expires begins again.

        Args:
            upload_id: Its id.
            owner: The principal that uses it; None: one that may use all.

        Raises:
            NotFound: It does not exist, has expired, or belongs to another principal.
        """
        if owner not in {None, self.get(upload_id).owner}:
            raise _no_upload(upload_id)
        now_ns = self._clock.now_ms() * 1_000_000
        try:
            os.utime(self._folder / upload_id, ns=(now_ns, now_ns))
        except FileNotFoundError:
            raise _no_upload(upload_id) from None
        except OSError as error:
            raise translate_error(error, str(self._folder), "write") from error
        return self.get(upload_id)

    def get(self, upload_id: str) -> Upload:
        """Return an upload.

        Raises:
            NotFound: It does not exist, or has expired.
        """
        if UPLOAD_ID.fullmatch(upload_id):
            found = self._read(self._folder / upload_id)
            if found is not None:
                return found
        raise _no_upload(upload_id)

    def delete(self, upload_id: str) -> None:
        """Delete an upload. Returns if it does not exist."""
        if not UPLOAD_ID.fullmatch(upload_id):
            return
        gone = self._folder / f"{_GONE}{upload_id}"
        try:
            (self._folder / upload_id).rename(gone)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise translate_error(error, str(self._folder), "write") from error
        shutil.rmtree(gone, ignore_errors=True)
        with self._mutex:
            if self._stored is not None:
                self._stored.pop(upload_id, None)

    def expired(self) -> list[Upload]:
        """Return the uploads whose time has passed."""
        now = self._clock.now_ms()
        return [one for one in self.all() if one.expires_ms <= now]

    def expire(self, needed: Collection[str]) -> int:
        """Delete uploads whose time has passed, and return how many.

        Call it with a list that was made after a call of `expired`: an upload that a task has begun
        to need since then was used again, and has not expired.

        Args:
            needed: Ids of the uploads that tasks need.
        """
        count = 0
        for one in self.expired():
            if one.id not in needed:
                self.delete(one.id)
                count += 1
        return count

    def _entries(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate_error(error, str(self._folder), "read") from error

    def _read(self, path: Path) -> Upload | None:
        if not UPLOAD_ID.fullmatch(path.name):
            return None
        try:
            record = json.loads((path / _RECORD).read_bytes())
            used_ms = path.stat().st_mtime_ns // 1_000_000
            size = (path / _CONTENT).stat().st_size
            return Upload(
                path.name, record["name"], record["owner"], size, used_ms, path / _CONTENT
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # it was deleted meanwhile

    def _recount(self) -> None:
        """Count the uploads that exist: the process of the overlord deletes expired ones."""
        if self._stored is None:
            self._stored = {one.id: (one.owner, one.bytes) for one in self.all()}
            return
        present = {path.name for path in self._entries()}
        self._stored = {one: of for one, of in self._stored.items() if one in present}

    def _check_counts(self, owner: str) -> None:
        limits, arriving = self.limits, [of for of, _ in self._arriving.values()]
        if arriving.count(owner) >= limits.owner_running_max:
            raise Full(
                f"{arriving.count(owner)} uploads of {owner} arrive now, as many as may: wait for"
                " one of them"
            )
        owners = [*arriving, *(of for of, _ in (self._stored or {}).values())]
        if owners.count(owner) >= limits.owner_files_max:
            raise Full(
                f"{owner} has {owners.count(owner)} uploads, as many as a principal may: delete"
                " some, or wait until they expire"
            )
        if len(owners) >= limits.files_max:
            raise Full(
                f"there are {len(owners)} uploads, as many as this server keeps: try again later"
            )

    def _check_room(self, one: str, more_bytes: int) -> None:
        limits = self.limits
        owner, before = self._arriving[one]
        if before + more_bytes > limits.file_bytes_max:
            raise UploadTooLarge(
                f"the file is larger than {limits.file_bytes_max} bytes, the limit of an upload:"
                " compress it with gzip, split it, or copy it to the server or an object store"
            )
        sizes = [*self._arriving.values(), *(self._stored or {}).values()]
        own = sum(size for of, size in sizes if of == owner) + more_bytes
        if own > limits.owner_bytes_max:
            raise Full(
                f"the uploads of {owner} would have {own} bytes, and a principal may have"
                f" {limits.owner_bytes_max}: delete some, or wait until they expire"
            )
        total = sum(size for _, size in sizes) + more_bytes
        if total > limits.total_bytes_max:
            raise Full(
                f"all uploads would have {total} bytes, and this server keeps"
                f" {limits.total_bytes_max}: try later, or copy the file to an object store"
            )
        try:
            disk = os.statvfs(self._folder if self._folder.exists() else self._folder.parent)
        except OSError as error:
            raise translate_error(error, str(self._folder), "read") from error
        if disk.f_bavail * disk.f_frsize - more_bytes < limits.free_bytes_min:
            raise Unavailable(
                f"the disk of {self._folder.parent} has too little space for the upload:"
                f" {limits.free_bytes_min} bytes must stay free; free space, or try later",
                dependency=Dependency.DISK,
            )


class UploadWriter:
    """An upload that arrives; made by `UploadStore.begin`. One thread at a time."""

    def __init__(self, store: UploadStore, one: str, owner: str, name: str, folder: Path) -> None:
        self._store = store
        self._id = one
        self._owner = owner
        self._name = name
        self._folder = folder
        self._fd: int | None = None
        self._size = 0

    def open(self) -> None:
        """Create the file. Raises Unavailable if the folder cannot be written."""
        with self._translated():
            self._folder.parent.mkdir(0o700, exist_ok=True)
            self._folder.mkdir(0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self._folder / _CONTENT, flags, 0o600)

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            UploadTooLarge: The file is larger than an upload may be.
            Full: A bound of the principal or the server is reached.
            Unavailable: The disk is full.
        """
        assert self._fd is not None, "the upload has ended"
        self._store.grow(self._id, len(data))
        left = memoryview(data)
        with self._translated():
            while left:
                left = left[os.write(self._fd, left) :]
        self._size += len(data)

    def finish(self) -> Upload:
        """Complete the upload and return it.

        Raises:
            InvalidRequest: No byte has arrived.
            Unavailable: The disk is full.
        """
        assert self._fd is not None, "the upload has ended"
        if not self._size:
            raise InvalidRequest("the file is empty: choose another one")
        final = self._folder.with_name(self._id)
        record = {"name": self._name, "owner": self._owner}
        with self._translated():
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None
            path = self._folder / _RECORD
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "w") as file:
                json.dump(record, file)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(self._folder)
            self._folder.rename(final)
            _sync_folder(final.parent)
        self._store.end(self._id, is_complete=True)
        return self._store.use(self._id, None)

    def abort(self) -> None:
        """Delete what has arrived. Does nothing after `finish`."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._store.end(self._id, is_complete=False)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _unwritten(error, self._folder.parent) from error


def _unwritten(error: OSError, folder: Path) -> PenstockError:
    found = translate_error(error, str(folder), "store the upload")
    if isinstance(found, Unavailable):
        return found
    # Nothing in it is the client's mistake.
    return Unavailable(str(found), dependency=Dependency.DISK)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"{quoted(name[:NAME_CHARACTERS_MAX])} cannot be the name of an upload: use 1 to"
            f" {NAME_CHARACTERS_MAX} printable characters",
            place="name",
        )


def _no_upload(upload_id: str) -> NotFound:
    return NotFound(
        f"there is no upload {quoted(upload_id)}: it has expired, was never complete, or is on"
        " another host; upload the file again"
    )


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
