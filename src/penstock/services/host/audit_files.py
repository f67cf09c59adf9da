"""Files in which a process keeps the records of the audit until they are in their topic.

    log/audit/ROLE/00000000000000000001.jsonl   records from number 1 on, one JSON object a line
    log/audit/ROLE/00000000000000004711.jsonl   the current file
    log/audit/ROLE/position.json                which records are in the topic
    log/audit/ROLE/lock                         held by the process

Owns the numbers of records, the limit of their size, and the position. `audit_publisher` publishes
them. A second process of the same role in one data folder uses `ROLE-2`, and so on.

A record of an event loop is written by a thread, because a slow disk must not stop all connections;
other callers wait until their record is written. Without `start`, every caller writes.

Invariants: a record that was written has a number, which is never used again: the name of a file is
the number of its first record, so records of deleted files are counted exactly. Writing never waits
for the topic: at the limit, the oldest file is deleted. Every record that does not reach the topic
is counted by its reason; records that wait for the thread have a bound. A line that a stop of the
machine tore stays in its file, and is not a record. A full disk does not keep a process from
starting.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.access.private_file import make_private_folder, read_bounded, replace_private
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.metrics import Counter, MetricRegistry
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread

AUDIT_FOLDER: Final = "audit"
"""Name of the folder in the folder of logs."""
FILE_BYTES_MAX: Final = 10 << 20
FILES_MAX: Final = 10
"""More files are deleted, the oldest first: the records of a process take at most 100 MiB."""
BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 512 << 10
SAME_ROLE_MAX: Final = 32

_SUFFIX: Final = ".jsonl"
_DIGITS: Final = 20
_POSITION: Final = "position.json"
_POSITION_BYTES_MAX: Final = 10_000
_READ_BYTES: Final = 1 << 20
WAITING_MAX: Final = 10_000
"""Records that wait for the thread; they take up to about 10 MB."""
_WRITTEN_WITHIN_S: Final = 5.0
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

_logger = logging.getLogger(__name__)


class AuditPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records are in the topic.

    Attributes:
        producer: Name of the producer that publishes them.
        following: Number of the first record that is not.
        sending: Number of the last record of a batch that may be; 0: none. It must be sent again
            as it was, so that the broker recognizes it.
    """

    producer: str
    following: int = 1
    sending: int = 0


@dataclass(frozen=True, slots=True)
class AuditBatch:
    """Records in the order of their numbers.

    Attributes:
        first: Number of the first one.
        lines: The records.
    """

    first: int
    lines: list[bytes]

    @property
    def last(self) -> int:
        """Number of the last record; before `first`: there is none."""
        return self.first + len(self.lines) - 1


class AuditFiles:
    """The files of one process. Any thread.

    The mutex serializes writers: the records of all threads go into one file, in one order. A
    condition guards the records that wait; it is not held during a write.

    Args:
        parent: The folder of the audit; created if it is missing.
        name: Name of the process's folder.
        clock: For the rate of the log.
        registry: Metrics of the process.
        file_bytes_max: Size at which a new file begins.
        files_max: Maximum number of files.

    Raises:
        Unavailable: The folder cannot be used.
    """

    def __init__(
        self,
        parent: Path,
        name: str,
        clock: Clock,
        registry: MetricRegistry | None = None,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        registry = registry or MetricRegistry()
        about = "Records of the audit that do not reach its topic, by reason"
        self._not_written = registry.counter(
            "penstock_audit_lost_total", about, reason="not_written"
        )
        self._deleted = registry.counter("penstock_audit_lost_total", about, reason="deleted")
        self.published: Final = registry.counter(
            "penstock_audit_published_total", "Records of the audit that were published"
        )
        self._log = RateLimitedLog(_logger, clock)
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._taken = 0  # records that ever waited
        self._done = 0  # those of them that were written or counted
        self._writer: OwnedThread | None = None
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._mutex = threading.Lock()
        self._descriptor = -1
        self._size = 0
        # The reader's own state: the file that it reads, its place there, and the record's number.
        self._read_base, self._read_at, self._read_next = 0, 0, 0
        make_private_folder(parent)
        self.folder, self._lock = _own_folder(parent, name)
        try:
            position = self.position()
            self._following = position.following
            self._store_first(position)
            end, is_whole = self._end_of_files()
        except BaseException:
            os.close(self._lock)
            raise
        # More than the end: the machine stopped, and the last records are in the topic alone.
        self._next = max(end, position.following, position.sending + 1)
        self._may_continue = is_whole and self._next == end
        registry.read(
            "gauge",
            "penstock_audit_waiting",
            "Records of the audit that are not in its topic yet",
            lambda: float(self._next - self._following),
        )

    @property
    def lost(self) -> Counter:
        """Counter of the records that were deleted before they were published."""
        return self._deleted

    @property
    def not_written(self) -> Counter:
        """Counter of the records that could not be written."""
        return self._not_written

    def append(self, record: str) -> None:
        """Write a record; never raises: a record that cannot be written is counted and logged.

        Args:
            record: One JSON object, without line ends.
        """
        line = record.encode() + b"\n"
        with self._changed:
            has_writer = self._writer is not None
            is_full = len(self._waiting) >= WAITING_MAX
            if has_writer and not is_full:
                self._waiting.append(line)
                self._taken += 1
                self._changed.notify_all()
                if not _is_on_event_loop():
                    self._wait_for(self._taken)
        if not has_writer:
            self._store(line)
        elif is_full:
            self._not_written.add()
            self._log.warning(
                "records of the audit are lost, because the disk of %s is too slow", self.folder
            )

    def start(self) -> None:
        """Start the thread that writes the records of event loops."""
        self._writer = OwnedThread("audit files", self._write_on, on_death=OnDeath.RESTART)
        self._writer.start()

    def _wait_for(self, number: int) -> None:
        """Wait until a record is written, or a few seconds. With the condition held."""
        until_s = self._clock.monotonic_s() + _WRITTEN_WITHIN_S
        while self._done < number and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self._clock.wait(self._changed, left_s)

    def _write_on(self) -> None:
        writer = self._writer
        assert writer is not None
        while True:
            with self._changed:
                while not self._waiting and not writer.is_end_expected:
                    self._clock.wait(self._changed, None)
            self._write_waiting()
            if writer.is_end_expected:
                return

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    return
                line = self._waiting[0]
            self._store(line)
            with self._changed:
                self._waiting.popleft()
                self._done += 1
                self._changed.notify_all()

    def _store(self, line: bytes) -> None:
        with self._mutex:
            try:
                if self._descriptor < 0 or self._size >= self._file_bytes_max:
                    self._begin_file()
                _write(self._descriptor, line)
            except OSError as error:
                self._not_written.add()
                self._log.warning(
                    "records of the audit are lost, because they cannot be written to %s: %s",
                    *(self.folder, error.strerror),
                )
                self._cut_back()
                return
            self._size += len(line)
            self._next += 1

    def read(self, number: int, count_max: int, bytes_max: int) -> AuditBatch:
        """Return records from a number on; those of deleted files are skipped. One thread.

        Args:
            number: Number of the first record.
            count_max: Maximum number of records.
            bytes_max: Size after which reading stops.

        Raises:
            Unavailable: A file cannot be read.
        """
        while True:
            bases = [one for one in self._bases() if one < self._next]
            base = max((one for one in bases if one <= number), default=None)
            if base is None:
                following = min((one for one in bases if one > number), default=None)
                if following is None:
                    return AuditBatch(number, [])
                base = number = following
            lines = self._lines(base, number, count_max, bytes_max)
            later = min((one for one in bases if one > base), default=None)
            if lines or later is None:
                return AuditBatch(number, lines)
            number = later  # numbers may be missing between two files

    def read_next(self, number: int) -> AuditBatch:
        """Return the records of the next batch. Raises as `read`."""
        return self.read(number, BATCH_RECORDS_MAX, BATCH_BYTES_MAX)

    def read_again(self, first: int, last: int) -> AuditBatch:
        """Return the records of a batch that was read before. Raises as `read`."""
        batch = self.read(first, last - first + 1, BATCH_BYTES_MAX * 10)
        # If files were deleted, it begins later, and would end after the batch.
        return AuditBatch(batch.first, batch.lines[: max(0, last - batch.first + 1)])

    def settled(self, first: int, last: int, count: int) -> None:
        """Count the records of a batch that are in the topic, and those that were deleted."""
        self.published.add(count)
        self.lost.add(last - first + 1 - count)

    def position(self) -> AuditPosition:
        """Return which records are in the topic.

        Raises:
            Unavailable: The file cannot be read.
        """
        try:
            content = read_bounded(self.folder / _POSITION, _POSITION_BYTES_MAX, is_private=True)
            return msgspec.json.decode(content, type=AuditPosition)
        except NotFound:  # narrow: restores nothing
            pass
        except (InvalidRequest, msgspec.DecodeError) as error:
            _logger.warning(
                "%s is damaged, and is written again: %s", self.folder / _POSITION, error
            )
        # Another producer: the broker does not take its records for repeated ones.
        bases = self._bases()
        return AuditPosition(f"audit-{os.urandom(8).hex()}", min(bases, default=1))

    def set_position(self, position: AuditPosition) -> None:
        """Store which records are in the topic, durably.

        Raises:
            Unavailable: It cannot be written.
        """
        replace_private(self.folder / _POSITION, msgspec.json.encode(position))
        self._following = position.following

    def close(self) -> None:
        """Write what waits, and let another process use the folder."""
        if self._writer is not None:
            self._writer.end(self._changed)
            with self._changed:
                self._writer = None
            self._write_waiting()
        with self._mutex:
            self._close_file()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _begin_file(self) -> None:
        self._close_file()
        bases = self._bases()
        base = bases[-1] if self._may_continue and bases else self._next
        self._may_continue = False
        self._descriptor = os.open(self._path(base), _FLAGS, 0o600)
        if base == self._next:
            os.ftruncate(self._descriptor, 0)  # it has no complete record
        self._size = os.fstat(self._descriptor).st_size
        if self._size >= self._file_bytes_max:
            self._begin_file()
            return
        bases = self._bases()
        for base in bases[: max(0, len(bases) - self._files_max)]:
            self._path(base).unlink(missing_ok=True)

    def _cut_back(self) -> None:
        """Remove a part of a record that could not be written, or leave its file."""
        if self._descriptor >= 0:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:  # narrow: the next record begins a file
                self._close_file()

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _path(self, base: int) -> Path:
        return self.folder / f"{base:0{_DIGITS}d}{_SUFFIX}"

    def _bases(self) -> list[int]:
        """Return the numbers of the files' first records, in order."""
        names = (one.name.removesuffix(_SUFFIX) for one in self.folder.glob(f"*{_SUFFIX}"))
        return sorted(int(one) for one in names if len(one) == _DIGITS and one.isdecimal())

    def _store_first(self, position: AuditPosition) -> None:
        """Store the position before the first file, so that each deleted record is counted."""
        try:
            self.set_position(position)
        except Unavailable as error:  # narrow: the publisher stores it later
            self._log.warning("%s", error)

    def _end_of_files(self) -> tuple[int, bool]:
        """Return the number after the last record, and whether its file ends with a whole line."""
        bases = self._bases()
        if not bases:
            return 1, False
        path = self._path(bases[-1])
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _unavailable(path, error) from None
        return bases[-1] + content.count(b"\n"), content.endswith(b"\n")

    def _lines(self, base: int, number: int, count_max: int, bytes_max: int) -> list[bytes]:
        """Return the complete lines of a file from a record on."""
        at, current = 0, base
        if self._read_base == base and self._read_next <= number:
            at, current = self._read_at, self._read_next
        found: list[bytes] = []
        size = 0
        try:
            with self._path(base).open("rb") as file:
                file.seek(at)
                while len(found) < count_max and size < bytes_max:
                    line = file.readline(_READ_BYTES)
                    if not line.endswith(b"\n"):
                        break
                    at += len(line)
                    if current >= number:
                        found.append(line[:-1])
                        size += len(line)
                    current += 1
        except FileNotFoundError:  # narrow: it was deleted at this moment
            return []
        except OSError as error:
            raise _unavailable(self._path(base), error) from None
        self._read_base, self._read_at, self._read_next = base, at, current
        return found


class AuditFileHandler(logging.Handler):
    """Writes the records of the logger `penstock.audit` into files.

    Args:
        files: The files.
    """

    def __init__(self, files: AuditFiles) -> None:
        super().__init__()
        self._files = files

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, without the lock of handlers, which a slow write would hold."""
        if not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; never raises."""
        self._files.append(record.getMessage())


@contextmanager
def audit_into(files: AuditFiles) -> Iterator[None]:
    """Write the records of this process's audit into files, in addition to the log."""
    audit, handler = logging.getLogger("penstock.audit"), AuditFileHandler(files)
    audit.addHandler(handler)
    try:
        yield
    finally:
        audit.removeHandler(handler)


def _is_on_event_loop() -> bool:
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the public one raises without


def _write(descriptor: int, line: bytes) -> None:
    if os.write(descriptor, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _own_folder(parent: Path, name: str) -> tuple[Path, int]:
    """Return a folder that no other process uses, and the descriptor of its lock."""
    for number in range(1, SAME_ROLE_MAX + 1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        make_private_folder(folder)
        path = folder / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unavailable(path, error) from None
        if _is_locked(path, descriptor):
            return folder, descriptor
        os.close(descriptor)
    raise Unavailable(
        f"{SAME_ROLE_MAX} processes use the folders {parent / name}, -2, …: give each host a data"
        " folder of its own"
    )


def _is_locked(path: Path, descriptor: int) -> bool:
    """Lock a file; return False if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # narrow: restores nothing
        return False
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise _unavailable(path, error) from None
        raise
    return True


def _unavailable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(f"cannot use {path}: {error.strerror}: check the permissions and the disk")
