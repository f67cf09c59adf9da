"""Hold on deletions in a folder: while a backup copies it, deleted files are moved aside.

Owns the hold's file, the folder of the files deleted during it, and the file system that respects
it. Does not own the choice of files to copy, nor the schedule.

    run/hold/lock        shared by each deletion, exclusive for each change of the hold
    run/hold/hold.json   when the hold expires; a backup renews it while it runs
    run/hold/held/…      files that were deleted meanwhile, under their paths from the root
    run/hold/held.…/     those of an ended hold, which are being deleted

Invariants:

- From the moment `DeletionHold.begin` returns until the hold ends or expires, a
  `HoldingFileSystem` of the same root deletes nothing: it moves files into `held`, so that they can
  still be copied.
- The hold of a backup that dies expires by itself; the next backup, and the next start of Penstock,
  delete the files in it.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import Conflict, Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock

HOLD_FOLDER: Final = "run/hold"
HOLD_MS: Final = 60_000
"""How long a hold lasts after its last renewal."""

_FOLDER_MODE: Final = 0o700
_TEMPORARY: Final = ".tmp"


class _HoldFiles:
    """The files of the hold of one root folder."""

    def __init__(self, root: str, clock: Clock) -> None:
        self.root = root
        self.folder = posixpath.join(root, HOLD_FOLDER)
        self.held = posixpath.join(self.folder, "held")
        self.file = posixpath.join(self.folder, "hold.json")
        self._clock = clock

    @contextmanager
    def locked(self, kind: int) -> Iterator[None]:
        """Hold the lock, shared or exclusive, during a block."""
        path = posixpath.join(self.folder, "lock")
        try:
            _make_folder(self.folder)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise translate_error(error, path, "open") from error
        try:
            fcntl.flock(fd, kind)
            yield
        finally:
            os.close(fd)

    def until_ms(self) -> int:
        """Return when the hold ends, 0 if there is none or it has expired."""
        try:
            value = orjson.loads(Path(self.file).read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return 0
        except OSError as error:
            raise translate_error(error, self.file, "read") from error
        until_ms = value.get("untilMs") if isinstance(value, dict) else None
        if not isinstance(until_ms, int) or until_ms <= self._clock.now_ms():
            return 0
        return until_ms

    def drop(self) -> None:
        """Rename the folder of held files, with the exclusive lock, for `delete_dropped`."""
        dropped = f"{self.held}.{os.getpid()}.{self._clock.now_ms()}"
        try:
            Path(self.held).rename(dropped)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_error(error, self.held, "give up") from error

    def delete_dropped(self) -> None:
        """Delete dropped files; without the lock, which deletions of all processes wait for."""
        for dropped in Path(self.folder).glob("held.*"):
            shutil.rmtree(dropped, ignore_errors=True)


class HoldingFileSystem(OsFileSystem):
    """The operating system's files; files below a root that are deleted during a hold are kept.

    Args:
        root: The data folder.
        clock: Returns the time, to check whether a hold has expired.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._files = _HoldFiles(root, clock)

    def unlink(self, path: str) -> None:
        """Delete a file, or move it aside during a hold."""
        relative = posixpath.relpath(path, self._files.root)
        if relative.startswith("../") or relative.endswith(_TEMPORARY):
            super().unlink(path)
            return
        with self._files.locked(fcntl.LOCK_SH):
            if not self._files.until_ms():
                super().unlink(path)
                return
            target = posixpath.join(self._files.held, relative)
            try:
                _make_folder(posixpath.dirname(target))
                # The first file of a name is the one that existed when the hold began.
                if not Path(target).exists():
                    Path(path).rename(target)
                    return
            except OSError as error:
                raise translate_error(error, path, "keep aside for a backup") from error
            super().unlink(path)


class DeletionHold:
    """One hold, of the process that makes a backup.

    Args:
        root: The data folder.
        clock: Measures the hold.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._files = _HoldFiles(root, clock)
        self._clock = clock
        self._owner: int | None = None

    @property
    def held(self) -> str:
        """The folder with the files deleted since the hold began."""
        return self._files.held

    def begin(self) -> None:
        """Start the hold; running deletions have ended when this returns.

        Raises:
            Conflict: Another backup of this folder is running.
            Unavailable: The folder is not writable.
        """
        files = self._files
        with files.locked(fcntl.LOCK_EX):
            owner = posixpath.join(files.folder, "owner")
            try:
                fd = os.open(owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise translate_error(error, owner, "open") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                os.close(fd)
                if isinstance(error, BlockingIOError):
                    raise Conflict(
                        f"another backup of {files.root} is running: wait until it has ended"
                    ) from error
                if isinstance(error, OSError):
                    raise translate_error(error, owner, "lock") from error
                raise
            self._owner = fd
            try:
                files.drop()
                self._write()
            except BaseException:
                self._release()
                raise
        files.delete_dropped()

    def renew(self) -> None:
        """Extend the hold.

        Raises:
            Unavailable: It has expired: files that the backup needs may be deleted.
        """
        with self._files.locked(fcntl.LOCK_EX):
            if self._owner is None or not self._files.until_ms():
                raise Unavailable(
                    f"the hold on deletions in {self._files.root} expired after"
                    f" {HOLD_MS // 1000} s without a renewal, so files that the backup needs may"
                    " be deleted: run the backup again"
                )
            self._write()

    def end(self) -> None:
        """End the hold, and delete the held files. Ending it twice is allowed."""
        if self._owner is None:
            return
        try:
            with self._files.locked(fcntl.LOCK_EX):
                Path(self._files.file).unlink(missing_ok=True)
                self._files.drop()
            self._files.delete_dropped()
        finally:
            self._release()

    def _write(self) -> None:
        until_ms = self._clock.now_ms() + HOLD_MS
        fs = OsFileSystem()
        fs.write_atomically(self._files.file, orjson.dumps({"untilMs": until_ms}))

    def _release(self) -> None:
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def _make_folder(path: str) -> None:
    Path(path).mkdir(_FOLDER_MODE, parents=True, exist_ok=True)


def clear_expired(root: str, clock: Clock) -> None:
    """Delete the held files of a backup that died, unless a hold is active."""
    files = _HoldFiles(root, clock)
    if Path(files.held).exists():
        with files.locked(fcntl.LOCK_EX):
            if not files.until_ms():
                files.drop()
    files.delete_dropped()
