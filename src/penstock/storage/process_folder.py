"""Folder for files of one process among several that share a root.

    ROOT/NAME        one folder of each process
    ROOT/NAME/lock   locked while that process runs

A killed process leaves its folder, which the next process that creates one deletes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LOCK: Final = "lock"
_MODE: Final = 0o700


class ProcessFolder:
    """This process's folder; thread-safe.

    A mutex guards its creation, for which all users of the folder wait.

    Args:
        root: Folder of the folders of all processes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._mutex = threading.Lock()
        self._own: Path | None = None
        self._lock_fd = -1

    def opened(self) -> Path:
        """Return the folder; the first call creates it and deletes those of killed processes.

        Raises:
            OSError: The root cannot be written.
        """
        with self._mutex:
            if self._own is None:
                self._own = self._created()
            return self._own

    def close(self) -> None:
        """Delete the folder."""
        with self._mutex:
            own, self._own = self._own, None
            if own is not None:
                shutil.rmtree(own, ignore_errors=True)
                os.close(self._lock_fd)

    def _created(self) -> Path:
        self.root.mkdir(_MODE, parents=True, exist_ok=True)
        with self._root_locked():
            for folder in self.root.iterdir():
                if not _is_in_use(folder / _LOCK):
                    shutil.rmtree(folder, ignore_errors=True)
            own = self.root / uuid.uuid4().hex
            own.mkdir(_MODE)
            fd = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                os.close(fd)
                raise
        self._lock_fd = fd
        return own

    @contextmanager
    def _root_locked(self) -> Iterator[None]:
        """Lock the root, so that no process deletes a folder that is not locked yet."""
        fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _is_in_use(lock: Path) -> bool:
    """Return whether the process that created a lock file still holds it."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
