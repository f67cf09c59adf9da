"""The data folder: its layout, its lock, and how clients find its server.

Owns the layout, `format.json`, the lock that excludes a second Penstock, and `penstock.json`, the
addresses for clients. The contents of the parts belong to the packages that write them.

    format.json    format number of the folder       penstock.lock  held while `penstock up` runs
    penstock.json  addresses, while it is ready       metadata.db    metadata, unless elsewhere
    access  topics  flow  tasks  segments  log  run  tmp  cache  tls  secrets  uploads

Invariants: nothing is written into a folder unless it is Penstock's own or empty; a folder of a
newer format is not changed; at most one launcher holds the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import penstock
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, Unavailable, counted
from penstock.core.intervals import format_time
from penstock.services.options.option_values import HostPort
from penstock.services.options.resolution import CONFIG_FILE
from penstock.services.options.table import ACCESS_FOLDER, METADATA_FILE, TLS_FOLDER
from penstock.storage.disk import OsFileSystem
from penstock.storage.secrets.secret_sources import SECRETS_FOLDER
from penstock.storage.uploads import UPLOADS_FOLDER

FORMAT = 1
FORMAT_FILE = "format.json"
LOCK_FILE = "penstock.lock"
CHILDREN_FILE = "children.json"
CLIENT_FILE = "penstock.json"
RESTORING_FILE = "restoring.json"
"""Mark of a folder that `penstock restore` has not completed."""
# Files and folders that Penstock itself creates in a data folder.
SEGMENT_CACHE = "segment-cache"
_OWN = frozenset(
    {
        *(METADATA_FILE, f"{METADATA_FILE}-wal", f"{METADATA_FILE}-shm", CLIENT_FILE),
        *("access", "topics", "flow", "tasks", "segments", "log", "run", "tmp", "cache"),
        *(UPLOADS_FOLDER, SEGMENT_CACHE),
    }
)
_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_HEADER_BYTES = 100
_FORMAT_BEGUN = f"{FORMAT_FILE}."

AUTHORITY = "authority.crt"
AUTHORITY_KEY = "authority.key"
SERVER = "server.pem"
"""Files of the folder `tls`; `tls_authority` has their contents, and those of roles."""

# Files that a folder may contain before it is Penstock's; `tls` may be copied from another host.
_HARMLESS = frozenset(
    {
        *(CONFIG_FILE, LOCK_FILE, ACCESS_FOLDER, SECRETS_FOLDER, TLS_FOLDER),
        *("lost+found", ".DS_Store", ".gitkeep", ".gitignore"),
    }
)


# Hadoop, with which Spark opens files, expands patterns in all paths; SQLAlchemy and log4j reserve
# further characters.
_UNREADABLE = frozenset("*?[]{}:\\")


def check_path(path: Path, option: str) -> None:
    """Check that Spark and the metadata can open files below a path.

    Args:
        path: An absolute path.
        option: The option that sets it, for the message.

    Raises:
        InvalidRequest: It contains a character that they cannot open.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the path {str(path)!a} is not valid UTF-8, which Spark needs: rename the folder, or"
            f" name another one with {option}"
        ) from None
    wrong = "".join(dict.fromkeys(c for c in str(path) if c in _UNREADABLE or not c.isprintable()))
    if wrong:
        characters = ", ".join(map(repr, wrong))
        raise InvalidRequest(
            f"the path {str(path)!r} contains {characters}, which Spark treats as a pattern or the "
            f"end of a name: rename the folder, or name another one with {option}"
        )


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths in a data folder; creating the object does not access the disk."""

    path: Path

    @property
    def topics(self) -> Path:
        """Return the folder of the broker's disk queues."""
        return self.path / "topics"

    @property
    def metadata(self) -> Path:
        """Return the metadata database's path, unless it is elsewhere."""
        return self.path / METADATA_FILE

    @property
    def flow(self) -> Path:
        """Return the folder of the flow service: FlowFiles, content, the flow itself."""
        return self.path / "flow"

    @property
    def access(self) -> Path:
        """Return the folder of users, tokens, roles and the secrets of processes."""
        return self.path / ACCESS_FOLDER

    @property
    def tasks(self) -> Path:
        """Return the folder with one folder for each indexing task on this host."""
        return self.path / "tasks"

    @property
    def log(self) -> Path:
        """Return the folder of every process's log files."""
        return self.path / "log"

    @property
    def task_logs(self) -> Path:
        """Return the folder of logs of indexing tasks whose folder was deleted."""
        return self.log / "tasks"

    @property
    def run(self) -> Path:
        """Return the folder of runtime files: pid files, the options of child processes."""
        return self.path / "run"

    @property
    def secrets(self) -> Path:
        """Return the folder of secrets; it exists once there are any."""
        return self.path / SECRETS_FOLDER

    @property
    def tmp(self) -> Path:
        """Return the folder of Spark's temporary files; emptied at each start."""
        return self.path / "tmp"

    @property
    def answers(self) -> Path:
        """Return the folder of large answers that routers have not sent yet."""
        return self.tmp / "answers"

    @property
    def children_options(self) -> Path:
        """Return the file of the options that the launcher passes to its children."""
        return self.run / "options.json"

    def prepare(self) -> None:
        """Make the folder a data folder, or check that it is one.

        Raises:
            InvalidRequest: The folder belongs to something else, has a newer format, or its path
                has a character that Spark cannot read.
            Unavailable: The folder cannot be written.
        """
        check_path(self.path.absolute(), "--data-dir")
        with self._translated_errors("written", "write"):
            # Accessible only for this user, because tasks and metadata may contain passwords of
            # inputs. `folder_permissions` restricts a folder that exists already.
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            if self._is_new():
                self._make_ours()
            for part in (self.topics, self.tasks, self.log, self.run, self.tmp):
                part.mkdir(0o700, exist_ok=True)

    def check(self) -> None:
        """Raise the errors of `prepare` without writing; a missing folder is accepted.

        Raises:
            InvalidRequest: As `prepare` does.
            Unavailable: The folder cannot be read.
        """
        check_path(self.path.absolute(), "--data-dir")
        with self._translated_errors("read", "read and write"):
            if self.path.exists():
                self._is_new()

    def require_metadata(self) -> None:
        """Refuse a folder whose metadata is damaged, or missing although other data exists.

        Call it before the database is opened, if the metadata belongs in this folder.

        Raises:
            InvalidRequest: Segments or cursors of supervisors exist without metadata; or the
                metadata is not a complete SQLite database.
            Unavailable: The metadata cannot be read.
        """
        metadata = self.metadata
        damage = _damage_of(metadata)
        if damage is not None:
            raise InvalidRequest(
                f"{metadata} {damage}: it was damaged or replaced, and Penstock cannot start with"
                f" it. Put the file back, or move it away and {self._restoring()}"
            )
        if metadata.exists() and metadata.stat().st_size > 0:
            return
        segments = next((self.path / "segments").glob("[!~]*/**/*.parquet"), None)
        cursor = next(self.topics.glob("*/*/supervisor.*.cursor"), None)
        if segments is None and cursor is None:
            return
        beside = [
            text
            for text, found in (
                ("segments/ holds segments", segments),
                ("topics/ has the positions of supervisors", cursor),
            )
            if found is not None
        ]
        raise InvalidRequest(
            f"{metadata} is missing, while {' and '.join(beside)}: without it all datasources,"
            f" supervisors and tasks would be lost. Put the file back, or {self._restoring()}. To"
            " start from scratch, move segments/ and topics/ away"
        )

    def _restoring(self) -> str:
        here = shlex.quote(str(self.path))
        return (
            "restore a backup into a new folder with penstock restore SRC --data-dir NEW; without a"
            f" backup, penstock restore --from-segments --data-dir {here} rebuilds what the"
            " segments contain"
        )

    @contextmanager
    def _translated_errors(self, action: str, permission: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise InvalidRequest(
                f"{error.filename} is not a folder; name another one with --data-dir"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"the data folder {self.path} cannot be {action} ({error.strerror}); "
                f"give this user {permission} permission, or name another one with --data-dir"
            ) from None

    def _is_new(self) -> bool:
        """Check the format of the folder; return whether the folder is empty and needs one."""
        file = self.path / FORMAT_FILE
        if (self.path / RESTORING_FILE).exists():
            raise InvalidRequest(
                f"{self.path} is only half restored: `penstock restore` was interrupted there. Run"
                " it again with the same --data-dir, which starts over, or delete the folder"
            )
        if not file.exists():
            foreign = self._foreign()
            if not foreign:
                return True
            # Another process may have made it a data folder while this one listed its files.
            if not file.exists():
                raise self._refusal_of(foreign)
        if not file.is_file():
            kind = "a folder" if file.is_dir() else "a device or a pipe"
            raise InvalidRequest(
                f"{file} is {kind}, but must be the file with the data folder's format: move"
                " it away; if this is a Penstock folder of this release, write"
                f' {{"format": {FORMAT}}} into a file of that name'
            )
        try:
            number = json.loads(file.read_text())["format"]
        except (ValueError, KeyError, TypeError):
            raise InvalidRequest(
                f"{file} is damaged; if this is a Penstock folder of this release, write "
                f'{{"format": {FORMAT}}} into it'
            ) from None
        if number != FORMAT or isinstance(number, bool):
            raise InvalidRequest(
                f"{self.path} has data folder format {number!r}: {_format_remedy(number)}"
            )
        return False

    def _refusal_of(self, foreign: Sequence[str]) -> InvalidRequest:
        """Return the error for a folder with these files and without a format."""
        strange = [name for name in foreign if name not in _OWN]
        if not strange and {METADATA_FILE, "topics", "segments", "flow"} & set(foreign):
            return InvalidRequest(
                f"{self.path} contains files of Penstock ({', '.join(foreign[:4])}) but no"
                f" {FORMAT_FILE}, which records their format: it was deleted, or the folder was"
                " copied only in part. If nothing else is missing, write"
                f' {{"format": {FORMAT}}} into {self.path / FORMAT_FILE}; or restore a backup'
                " with penstock restore"
            )
        shown = ", ".join((strange or foreign)[:3])
        return InvalidRequest(
            f"{self.path} contains files that are not Penstock's ({shown}…); "
            "name an empty or a new folder with --data-dir"
        )

    def _foreign(self) -> list[str]:
        names = (item.name for item in self.path.iterdir())
        return sorted(
            name for name in names if name not in _HARMLESS and not name.startswith(_FORMAT_BEGUN)
        )

    def _make_ours(self) -> None:
        """Write the format; several processes may do so at once, each with its own temporary file.

        A killed process leaves its temporary file behind, which is harmless.
        """
        fs = OsFileSystem()
        begun = str(self.path / f"{_FORMAT_BEGUN}{secrets.token_hex(4)}")
        fs.write_atomically(begun, json.dumps({"format": FORMAT}).encode())
        fs.rename(begun, str(self.path / FORMAT_FILE))
        fs.fsync_folder(str(self.path))

    def write_client_file(self, content: Mapping[str, object]) -> None:
        """Publish the server's addresses for clients; called when it is ready."""
        OsFileSystem().write_atomically(
            str(self.path / CLIENT_FILE), json.dumps(content, indent=1).encode()
        )
        (self.path / CLIENT_FILE).chmod(0o600)

    def remove_client_file(self, of_process: int | None = None) -> None:
        """Remove the addresses; with `of_process`, only if that process wrote them."""
        if of_process is None or (self.read_client_file() or {}).get("pid") == of_process:
            (self.path / CLIENT_FILE).unlink(missing_ok=True)

    def read_client_file(self) -> Mapping[str, object] | None:
        """Return the addresses, or None if no server is ready here.

        Raises:
            Unavailable: This user cannot read them.
        """
        file = self.path / CLIENT_FILE
        try:
            content = json.loads(file.read_text())
        except PermissionError as error:
            raise Unavailable(
                f"{file}, which has the addresses of the server, cannot be read ({error.strerror}):"
                " run this command as the user that runs Penstock"
            ) from None
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def launcher_record(self) -> Mapping[str, Mapping[str, object]]:
        """Return the launcher's record of its processes; empty if there is no launcher."""
        if self.live_holder() is None:
            return {}
        try:
            content = json.loads((self.run / CHILDREN_FILE).read_text())
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {name: one for name, one in content.items() if isinstance(one, dict)}

    def live_holder(self) -> int | None:
        """Return the id of the process that last took the lock, if that process still runs.

        Does not try to take the lock, because a process that starts at this moment would then fail.
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
            return holder  # another user's process
        return holder


def segment_cache_folder(folder: DataFolder) -> Path:
    """Return the folder of copies of segments of a remote deep storage."""
    return folder.path / SEGMENT_CACHE


def queries_run_folder(folder: DataFolder) -> Path:
    """Return the run folder of the local Spark that answers only queries."""
    return folder.run / "queries"


def about_process(clock: Clock) -> dict[str, object]:
    """Return the fields of `penstock.json` about the process that writes it."""
    return {
        "format": FORMAT,
        "version": penstock.__version__,
        "pid": os.getpid(),
        "started": format_time(clock.now_ms()),
    }


def broker_addresses(http: HostPort, tcp: HostPort) -> dict[str, object]:
    """Return the fields of `penstock.json` about the broker."""
    return {"broker_http": http.url, "broker_tcp": str(tcp)}


def _damage_of(metadata: Path) -> str | None:
    """Describe why a file is not a complete SQLite database; None if it is, is empty or missing.

    Only its first page is read, which has the number of pages, see
    https://www.sqlite.org/fileformat.html#the_database_header. If there is a log next to the file,
    the log may contain the missing pages, so their number is not checked then.
    """
    if metadata.exists() and not metadata.is_file():
        return f"is {'a folder' if metadata.is_dir() else 'a device or a pipe'}, not a file"
    is_logged = _has_log(metadata)
    try:
        with metadata.open("rb") as file:
            header = file.read(_SQLITE_HEADER_BYTES)
            # After the header, because the database of a running Penstock grows.
            size = metadata.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            f"{metadata} cannot be read ({error.strerror}): give this user read and write"
            " permission, or name another data folder with --data-dir"
        ) from None
    if not header:
        return None
    if len(header) < _SQLITE_HEADER_BYTES or not header.startswith(_SQLITE_MAGIC):
        return f"is not an SQLite database, though it has {counted(size, 'byte')}"
    # A page size of 64 KiB is written as 1.
    written = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if written == 1 else written
    if page_bytes < 512 or page_bytes & (page_bytes - 1):
        return f"is not an SQLite database: its header has pages of {page_bytes} bytes"
    pages = int.from_bytes(header[28:32], "big")
    # Releases of SQLite before 3.7 changed the database without updating the number of its pages.
    is_counted = header[24:28] == header[92:96]
    if is_counted and size < pages * page_bytes and not (is_logged or _has_log(metadata)):
        return f"has {size:,} of the {pages * page_bytes:,} bytes of its SQLite database"
    return None


def _has_log(metadata: Path) -> bool:
    """Return whether a log or a rollback journal next to an SQLite database has its changes."""
    for ending in ("-wal", "-journal"):
        # SQLite may delete it at any time, so its existence is not checked first.
        with suppress(FileNotFoundError):
            if metadata.with_name(f"{metadata.name}{ending}").stat().st_size > 0:
                return True
    return False


def _format_remedy(number: object) -> str:
    """Describe why a folder of this format number is refused, with the remedy."""
    if isinstance(number, int) and not isinstance(number, bool) and number > FORMAT:
        return (
            f"this release reads formats up to {FORMAT}. Run the newer Penstock that wrote it, or"
            " name another folder with --data-dir"
        )
    return (
        "no release of Penstock has written such a folder, as formats begin with 1, so"
        f" {FORMAT_FILE} was edited or damaged. If this release wrote the folder, set the number to"
        f" {FORMAT}; otherwise restore a backup with penstock restore"
    )


class DataFolderLock:
    """Lock of one data folder; the kernel releases it when the process ends in any way."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.path / LOCK_FILE
        self._fd: int | None = None

    def take(self) -> None:
        """Take the lock.

        Raises:
            Conflict: Another Penstock holds the lock; the message has its process id.
            Unavailable: The lock file cannot be opened or written.
        """
        try:
            # Not inherited by children: the lock must end with this process.
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be opened: {error.strerror}") from None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                raise Conflict(
                    f"another Penstock{f' (process {holder})' if holder else ''} uses the data "
                    f"folder {self._path.parent}; stop it first"
                    f"{f' (kill {holder})' if holder else ''}, "
                    "or name another folder with --data-dir"
                ) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise Unavailable(
                    f"{self._path} cannot be written: {error.strerror}; make it writable and free "
                    "the disk"
                ) from None
            raise
        self._fd = fd

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
