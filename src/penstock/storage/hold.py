"""Hold on deletions in a folder: while a backup copies it, deleted files are kept aside.

Owns the hold's file, the folder of what was deleted during it, and the file system that respects
it. Does not own what is copied, nor when.

    run/hold/lock        shared by each deletion, exclusive for each change of the hold
    run/hold/hold.json   until when the hold lasts; a backup renews it while it runs
    run/hold/held/…      files that were deleted meanwhile, under their paths from the root
    run/hold/held.…/     those of a hold that has ended, which are being deleted

Invariants:

- From the moment `Hold.begin` returns until the hold ends or expires, a `HoldingFileSystem` of the
  same root deletes nothing: it moves files into `held`, so their content can be copied still.
- A backup that dies leaves a hold that expires by itself; the next one, and the next start of
  Penstock, delete what it kept aside.
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
from penstock.storage.filesystem import OsFileSystem, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock

HOLD_FOLDER: Final = "run/hold"
HOLD_MS: Final = 60_000
"""How long a hold lasts after it was renewed for the last time."""

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
        """Hold the lock, shared or exclusive, for the length of a block."""
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
        """Give up what was kept aside; with the exclusive lock. `delete_dropped` deletes it."""
        dropped = f"{self.held}.{os.getpid()}.{self._clock.now_ms()}"
        try:
            Path(self.held).rename(dropped)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_error(error, self.held, "give up") from error

    def delete_dropped(self) -> None:
        """Delete what was given up; without the lock, for which deletions of all processes wait."""
        for dropped in Path(self.folder).glob("held.*"):
            shutil.rmtree(dropped, ignore_errors=True)


class HoldingFileSystem(OsFileSystem):
    """The operating system's files; what is deleted below a root during a hold is kept aside.

    Args:
        root: The data folder.
        clock: Tells whether a hold has expired.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._files = _HoldFiles(root, clock)

    def unlink(self, path: str) -> None:
        """Delete a file, or keep it aside while a hold lasts."""
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


class Hold:
    """One hold, of the process that makes a backup.

    Args:
        root: The data folder.
        clock: Tells how long it lasts.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._files = _HoldFiles(root, clock)
        self._clock = clock
        self._owner: int | None = None

    @property
    def held(self) -> str:
        """The folder with what was deleted since the hold began."""
        return self._files.held

    def begin(self) -> None:
        """Begin to keep deleted files; deletions that were under way are over then.

        Raises:
            Conflict: Another backup of this folder is running.
            Unavailable: The folder cannot be written.
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
        """Make the hold last longer.

        Raises:
            Unavailable: It has expired: what the backup names may be deleted.
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
        """End the hold, and delete what was kept aside. Ending it twice is fine."""
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
    """Delete what a backup that died kept aside, unless a hold lasts."""
    files = _HoldFiles(root, clock)
    if Path(files.held).exists():
        with files.locked(fcntl.LOCK_EX):
            if not files.until_ms():
                files.drop()
    files.delete_dropped()
