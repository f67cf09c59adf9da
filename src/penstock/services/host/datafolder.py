"""The data folder: what it holds, who may use it, and how clients find its server.

Owns the layout, `format.json`, the lock that keeps two Penstocks apart, and `penstock.json`, the
addresses for clients. What lies in the parts belongs to the packages that write them.

    format.json    format number of the folder       penstock.lock  held while `penstock up` runs
    penstock.json  addresses, while it is ready       metadata.db    metadata, unless elsewhere
    topics  flow  tasks  segments  log  run  tmp  cache

Invariants: nothing is written into a folder that is not Penstock's own or empty; a folder of a
newer format is left alone; at most one launcher holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.services.config import CONFIG_FILE
from penstock.storage.filesystem import OsFileSystem

FORMAT = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "penstock.lock"
CLIENT_FILE = "penstock.json"
_FORMAT_BEGUN = f"{FORMAT_FILE}."

# What may lie in a folder before it is Penstock's.
_HARMLESS = frozenset({CONFIG_FILE, LOCK_FILE, "lost+found", ".DS_Store", ".gitkeep", ".gitignore"})


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths in a data folder; making one touches nothing."""

    path: Path

    @property
    def topics(self) -> Path:
        """The broker's disk queues."""
        return self.path / "topics"

    @property
    def flow(self) -> Path:
        """What the flow service keeps: FlowFiles, content, the flow itself."""
        return self.path / "flow"

    @property
    def tasks(self) -> Path:
        """One folder for each indexing task that runs on this host."""
        return self.path / "tasks"

    @property
    def log(self) -> Path:
        """Log files of every process."""
        return self.path / "log"

    @property
    def task_logs(self) -> Path:
        """Logs of indexing tasks whose folder is gone."""
        return self.log / "tasks"

    @property
    def run(self) -> Path:
        """What running processes tell each other: pid files, the children's options."""
        return self.path / "run"

    @property
    def tmp(self) -> Path:
        """Spark's temporary files; emptied at each start."""
        return self.path / "tmp"

    @property
    def children_options(self) -> Path:
        """The options that the launcher hands to its children."""
        return self.run / "options.json"

    def prepare(self) -> None:
        """Make the folder Penstock's, or check that it is.

        Raises:
            InvalidRequest: It belongs to something else, or has a newer format.
            Unavailable: It cannot be written.
        """
        try:
            # For this user alone: tasks and metadata may hold passwords of inputs. Of a folder that
            # is there already, who may look into it is its maker's decision.
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            self._check_format()
            for part in (self.topics, self.tasks, self.log, self.run, self.tmp):
                part.mkdir(exist_ok=True)
            # The run folder holds the token and the metadata URL, which may hold a password.
            for part in (self.run, self.tasks):
                part.chmod(0o700)
        except FileExistsError as error:
            raise InvalidRequest(
                f"{error.filename} is no folder; name another one with --data-dir"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"the data folder {self.path} cannot be written ({error.strerror}); "
                "give this user write permission, or name another one with --data-dir"
            ) from None

    def _check_format(self) -> None:
        file = self.path / FORMAT_FILE
        if not file.exists():
            foreign = self._foreign()
            if not foreign:
                self._make_ours(file)
            elif not file.exists():  # another process made it Penstock's while this one looked
                raise InvalidRequest(
                    f"{self.path} holds files that are not Penstock's ({', '.join(foreign[:3])}…); "
                    "name an empty or a new folder with --data-dir"
                )
        try:
            number = json.loads(file.read_text())["format"]
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(
                f"{file} is damaged; if this is a Penstock folder of this release, write "
                f'{{"format": {FORMAT}}} into it'
            ) from None
        if number != FORMAT:
            raise InvalidRequest(
                f"{self.path} has data folder format {number}, and this Penstock knows format "
                f"{FORMAT}; run the newer Penstock that wrote it, or name another folder"
            )

    def _foreign(self) -> list[str]:
        names = (item.name for item in self.path.iterdir())
        return sorted(
            name for name in names if name not in _HARMLESS and not name.startswith(_FORMAT_BEGUN)
        )

    def _make_ours(self, file: Path) -> None:
        """Write the format; several processes may at once, each a file of its own of one content.

        One that is killed here leaves its begun file behind, which is in nobody's way.
        """
        fs = OsFileSystem()
        begun = str(self.path / f"{_FORMAT_BEGUN}{secrets.token_hex(4)}")
        fs.write_atomically(begun, json.dumps({"format": FORMAT}).encode())
        fs.rename(begun, str(file))
        fs.fsync_folder(str(self.path))

    def write_client_file(self, content: Mapping[str, object]) -> None:
        """Tell clients where the server is; written when it is ready."""
        OsFileSystem().write_atomically(
            str(self.path / CLIENT_FILE), json.dumps(content, indent=1).encode()
        )

    def remove_client_file(self) -> None:
        """Take the addresses away."""
        (self.path / CLIENT_FILE).unlink(missing_ok=True)

    def read_client_file(self) -> Mapping[str, object] | None:
        """Return the addresses, or None when no server is ready here."""
        try:
            content = json.loads((self.path / CLIENT_FILE).read_text())
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def live_holder(self) -> int | None:
        """Return the id of the process that took the lock last, if it is there: one that starts.

        The lock itself is not tried: that would stand in the way of a start at this moment.
        """
        try:
            holder = int((self.path / LOCK_FILE).read_text())
        except (OSError, ValueError):
            return None
        try:
            os.kill(holder, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return holder  # it is somebody else's
        return holder


class FolderLock:
    """The lock of one data folder; the kernel drops it when the process ends, however it ends."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.path / LOCK_FILE
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            Conflict: Another Penstock holds it; the message names its process id.
            Unavailable: The lock file cannot be opened.
        """
        try:
            # Not inherited by children: the lock must end with this very process.
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Conflict(
                f"another Penstock{f' (process {holder})' if holder else ''} uses the data folder "
                f"{self._path.parent}; stop it first{f' (kill {holder})' if holder else ''}, "
                "or name another folder with --data-dir"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
