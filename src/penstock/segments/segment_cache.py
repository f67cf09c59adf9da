"""Cache of segment files of a remote deep storage, on a local disk.

Owns a folder of copies, their bound in bytes, and which of them exist. It does not know which files
a query reads (`spark.tables.local_segments`).

    lock               held by the process that uses the folder
    DIGEST.parquet     a complete copy; the digest is that of the file's location and size
    DIGEST.md5         the checksum of its content
    .DIGEST.tmp        a copy that is being written; the next process deletes what a killed one left

Invariants:

- A copy gets its name when it is complete and on the disk, has the size that the metadata have and
  the checksum that the store names, if it names one. After a restart a copy is compared with its
  checksum before its first use.
- All copies, with those that are being fetched, are never larger than the bound. The one whose last
  use was longest ago is evicted first, but none that a query has leased.
- A file is fetched once, however many queries wait for it.
- If anything fails, the queries get `NotCached`, and read the store directly.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import functools
import hashlib
import logging
import os
import re
import shutil
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.metrics import Sample
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread

logger = logging.getLogger(__name__)

FREE_BYTES_MIN: Final = 1 << 30
"""Free space of the disk that is left to others: for less, copies are evicted and none are made."""

_SUFFIX: Final = ".parquet"
_CHECKSUM: Final = ".md5"
_TEMPORARY: Final = ".tmp"
_LOCK: Final = "lock"
_COPY: Final = re.compile(rf"[0-9a-f]{{40}}{re.escape(_SUFFIX)}")
# The ETag of an object of S3 is its MD5 if it was written at once and is not encrypted by KMS:
# https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
_MD5: Final = re.compile(r'"?([0-9a-f]{32})"?')
# All Parquet files begin and end with it: https://parquet.apache.org/docs/file-format/
_PARQUET: Final = b"PAR1"
_READ_BYTES: Final = 1 << 20
# A query computes the names of all its files.
_NAMES_MAX: Final = 65_536
_THREADS: Final = 4
_PART: Final = "segment cache"
_THREADS_STOP_S: Final = 0.2
_CHECK_EVERY_S: Final = 0.1
_DELETE_EVERY_S: Final = 60.0
# After the disk was full, the next file is fetched only then.
_FULL_PAUSE_S: Final = 30.0
_BYPASSED: Final = "Reads of queries that did not use the cache, by reason"
# Name of a metric, what it counts, and its help.
_COUNTERS: Final = (
    (
        "penstock_segment_cache_hits_total",
        "hits",
        "Segment files that queries found in the cache",
    ),
    (
        "penstock_segment_cache_misses_total",
        "misses",
        "Segment files that queries did not find in the cache",
    ),
    (
        "penstock_segment_cache_evictions_total",
        "evictions",
        "Segment files that were deleted from the cache for others",
    ),
    (
        "penstock_segment_cache_fetched_bytes_total",
        "fetched_bytes",
        "Bytes that the cache fetched from the deep storage",
    ),
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class NotCached(Exception):
    """Files are not in the cache now: read the store.

    Args:
        reason: A short fixed text; metrics count by it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the deep storage: its location, and its size as the metadata have it."""

    location: str
    size_bytes: int


class FetchedFiles(Protocol):
    """The store; implemented by `remote_files.RemoteFiles`."""

    def fetch(self, relative: str, write: Callable[[bytes], object]) -> str:
        """Pass the content of a file on piece by piece; return its ETag, "" if it has none."""
        ...


class _State(enum.Enum):
    WANTED = "to be fetched"
    UNCHECKED = "of an earlier process, to be compared with its checksum"
    BUSY = "is being fetched or compared"
    READY = "complete"
    FAILED = "could not be fetched"


@dataclass(slots=True)
class _Copy:
    file: StoredFile
    path: Path
    state: _State
    leases: int = 0
    failure: str = ""
    used_s: float = 0.0


class _Failed(Exception):
    """A copy cannot be made."""


class SegmentCache:
    """Copies of the files below the root of a deep storage. Any thread.

    The mutex guards the table of copies, which the threads of queries and those that fetch share;
    nothing is fetched while it is held.

    Args:
        folder: The folder of the copies; one process uses it at a time.
        bytes_max: Maximum size of all copies.
        root: The root of the deep storage, as it begins the location of a file.
        store: The store.
        named: Returns all files that the metadata name.
        clock: Time.
        free_bytes: Returns the free space of the disk; None: asks the system.
    """

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        root: str,
        store: FetchedFiles,
        named: Callable[[], Iterable[StoredFile]],
        clock: Clock,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._prefix = f"{root}/"
        self._store = store
        self._named = named
        self._clock = clock
        self._free_bytes = free_bytes or (lambda: shutil.disk_usage(folder).free)
        self._changed = threading.Condition(threading.RLock())
        # By the name of the copy; the one whose last use was longest ago is the first.
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        # Copies of an earlier process and their sizes, by name, until a query needs them.
        self._left: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0  # of both
        self._wanted: deque[_Copy] = deque()
        self._full_until_s = 0.0
        self._etag_is_md5 = True
        self._lock: int | None = None
        self._counts: Counter[str] = Counter()
        self._direct: Counter[str] = Counter()
        self._log = RateLimitedLog(logger, clock)
        self._threads = [
            OwnedThread(f"segment cache {n}", self._fetch_all, on_death=OnDeath.RESTART, part=_PART)
            for n in range(_THREADS)
        ]
        self._keeper = OwnedThread("segment cache keeper", self._keep, on_death=OnDeath.RESTART)

    # Life

    def start(self) -> None:
        """Take the folder, and start the threads."""
        self._open()
        for thread in (*self._threads, self._keeper):
            thread.start()

    def stop(self) -> None:
        """End the threads, and leave the folder to the next process."""
        for thread in (*self._threads, self._keeper):
            thread.expect_end()
        with self._changed:
            self._changed.notify_all()
        for thread in (*self._threads, self._keeper):
            thread.join(_THREADS_STOP_S)
        with self._changed:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _open(self) -> None:
        """Take the folder and list its copies, if no other process uses it."""
        try:
            self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left = self._listed()
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            self._log.warning(
                "the segment cache %s is not used, and queries read the deep storage: %s",
                self._folder,
                "another process uses it" if isinstance(error, BlockingIOError) else error,
            )
            return
        with self._changed:
            self._lock, self._left = lock, left
            self._bytes = sum(left.values())
            with contextlib.suppress(NotCached):
                self._make_room(0)

    def _listed(self) -> OrderedDict[str, int]:
        """Return the copies in the folder, and delete everything else that Penstock made there."""
        found: list[tuple[float, str, int]] = []
        for path in self._folder.iterdir():
            is_temporary = path.name.startswith(".") and path.suffix == _TEMPORARY
            is_lone = path.suffix == _CHECKSUM and not path.with_suffix(_SUFFIX).exists()
            if is_temporary or is_lone:
                path.unlink(missing_ok=True)
            elif _COPY.fullmatch(path.name):
                status = path.stat()
                found.append((status.st_mtime, path.name, status.st_size))
        return OrderedDict((name, size) for _, name, size in sorted(found))

    # Queries

    def path_of(self, file: StoredFile) -> str | None:
        """Return the path at which a file has its copy, if it has one.

        None: it is never copied, because it is elsewhere or its size is not known.
        """
        if not file.size_bytes or not file.location.startswith(self._prefix):
            return None
        return str(self._folder / _name_of(file))

    @contextlib.contextmanager
    def leased(
        self, files: Sequence[StoredFile], check: Callable[[], object], until_s: float
    ) -> Iterator[None]:
        """Keep the copies of files for a block; fetch those that are missing before.

        Args:
            files: The files; each has a `path_of`.
            check: Called while they are fetched; an exception ends the wait.
            until_s: When the wait ends, as a time of the clock's monotonic seconds.

        Raises:
            NotCached: A copy is missing: it could not be fetched in time, or has no room.
        """
        try:
            taken = self._take(files)
            try:
                self._wait(taken, check, until_s)
            except BaseException:
                self._release(taken)
                raise
        except NotCached as error:  # narrow: counts
            with self._changed:
                self._direct[error.reason] += 1
            raise
        try:
            yield
        finally:
            self._release(taken)

    def discard(self, path: str) -> bool:
        """Forget a copy that cannot be read; return whether it was one."""
        name = Path(path).name
        with self._changed:
            copy = self._copies.get(name)
            if copy is None or str(copy.path) != path or copy.state is not _State.READY:
                return False
            self._remove(copy)
            return True

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        with self._changed:
            counts, direct = dict(self._counts), dict(self._direct)
            held, files = float(self._bytes), float(len(self._copies) + len(self._left))
        for name, what, text in _COUNTERS:
            yield Sample(name, "counter", text, (), float(counts.get(what, 0)))
        name = "penstock_segment_cache_bypassed_total"
        for reason, count in sorted(direct.items()):
            yield Sample(name, "counter", _BYPASSED, (("reason", reason),), float(count))
        yield Sample("penstock_segment_cache_bytes", "gauge", "Size of the cache", (), held)
        name = "penstock_segment_cache_files"
        yield Sample(name, "gauge", "Segment files in the cache", (), files)

    def _take(self, files: Sequence[StoredFile]) -> list[_Copy]:
        """Lease the copies of files, and have the missing ones fetched."""
        wanted = {_name_of(file): file for file in files}
        if sum(file.size_bytes for file in wanted.values()) > self._bytes_max:
            raise NotCached("larger than the cache")
        taken: list[_Copy] = []
        with self._changed:
            if self._lock is None:
                raise NotCached("not open")
            now_s = self._clock.monotonic_s()
            try:
                for name, file in wanted.items():
                    taken.append(self._leased_copy(name, file, now_s))
            except BaseException:
                self._release(taken)
                raise
            self._changed.notify_all()
        return taken

    def _leased_copy(self, name: str, file: StoredFile, now_s: float) -> _Copy:
        copy = self._copies.get(name)
        if copy is not None and copy.state is _State.READY and not _has_size(copy):
            self._remove(copy)
            copy = None
        if copy is None or copy.state is _State.FAILED:
            if (size := self._left.pop(name, None)) is not None:
                self._bytes -= size
            is_left = size == file.size_bytes
            if size is not None and not is_left:
                _unlink(self._folder / name)
            if not is_left and now_s < self._full_until_s:
                raise NotCached("disk full")
            state = _State.UNCHECKED if is_left else _State.WANTED
            copy = _Copy(file, self._folder / name, state)
            self._make_room(file.size_bytes, is_written=is_left)
            self._copies[name] = copy
            self._bytes += file.size_bytes
            self._wanted.append(copy)
        self._counts["hits" if copy.state is _State.READY else "misses"] += 1
        self._copies.move_to_end(name)
        copy.leases += 1
        if now_s - copy.used_s >= _DELETE_EVERY_S:
            copy.used_s = now_s
            with contextlib.suppress(OSError):  # the order of eviction after a restart
                os.utime(copy.path)
        return copy

    def _wait(self, taken: Sequence[_Copy], check: Callable[[], object], until_s: float) -> None:
        while True:
            check()
            with self._changed:
                for copy in taken:
                    if copy.state is _State.FAILED:
                        raise NotCached(copy.failure)
                if all(copy.state is _State.READY for copy in taken):
                    return
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise NotCached("not fetched in time")
                self._clock.wait(self._changed, min(left_s, _CHECK_EVERY_S))

    def _release(self, taken: Sequence[_Copy]) -> None:
        with self._changed:
            for copy in taken:
                copy.leases -= 1
                # No query waits for it any longer.
                if not copy.leases and copy.state is _State.WANTED:
                    self._forget(copy)

    # Room; all with the mutex

    def _make_room(self, size: int, *, is_written: bool = False) -> None:
        """Evict copies until a file of a size fits.

        Raises:
            NotCached: It does not.
        """
        free = self._free_bytes() - (0 if is_written else size)
        while self._bytes + size > self._bytes_max or free < FREE_BYTES_MIN:
            evicted = self._evict()
            if not evicted:
                if self._bytes + size > self._bytes_max:
                    raise NotCached("all files are in use")
                if is_written:
                    return
                self._full_until_s = self._clock.monotonic_s() + _FULL_PAUSE_S
                raise NotCached("disk full")
            free += evicted
            self._counts["evictions"] += 1

    def _evict(self) -> int:
        """Delete the copy whose last use was longest ago; return its size, 0 if there is none."""
        if self._left:
            name, size = self._left.popitem(last=False)
            self._bytes -= size
            _unlink(self._folder / name)
            return size
        for copy in self._copies.values():
            if not copy.leases and copy.state is _State.READY:
                self._remove(copy)
                return copy.file.size_bytes
        return 0

    def _remove(self, copy: _Copy) -> None:
        # A query that has it open reads on.
        _unlink(copy.path)
        self._forget(copy)

    def _forget(self, copy: _Copy) -> None:
        copy.state = _State.FAILED
        copy.failure = copy.failure or "evicted"
        if self._copies.get(copy.path.name) is copy:
            del self._copies[copy.path.name]
            self._bytes -= copy.file.size_bytes

    # Threads

    def _keep(self) -> None:
        """Delete what is no longer needed from time to time; take the folder once it is free."""
        while not self._keeper.is_end_expected:
            with self._changed:
                self._clock.wait(self._changed, _DELETE_EVERY_S)
            if not self._keeper.is_end_expected:
                self.delete_unneeded()

    def delete_unneeded(self) -> None:
        """Delete copies of files that the metadata no longer name; leave free space to others."""
        if self._lock is None:
            self._open()
        try:
            named = {_name_of(file) for file in self._named()}
        except PenstockError as error:  # narrow: it is tried again
            self._log.warning("unneeded copies of the segment cache are not deleted: %s", error)
            return
        with self._changed:
            for name in [name for name in self._left if name not in named]:
                self._bytes -= self._left.pop(name)
                _unlink(self._folder / name)
            for copy in tuple(self._copies.values()):
                if not copy.leases and copy.state is _State.READY and copy.path.name not in named:
                    self._remove(copy)
            if self._lock is not None:
                with contextlib.suppress(NotCached, OSError):
                    self._make_room(0)

    def _fetch_all(self) -> None:
        """Make the copies that queries wait for."""
        own = threading.current_thread()
        assert isinstance(own, OwnedThread)
        while not own.is_end_expected:
            with self._changed:
                while not self._wanted and not own.is_end_expected:
                    self._clock.wait(self._changed, None)
                if not self._wanted:
                    return
                copy = self._wanted.popleft()
                is_left = copy.state is _State.UNCHECKED
                if copy.state is not _State.WANTED and not is_left:
                    continue  # no query waits for it any longer
                copy.state = _State.BUSY
            failure: str | None = None
            try:
                failure = self._made(copy, is_left=is_left)
            finally:
                self._finish(copy, "error" if failure is None else failure)

    def _finish(self, copy: _Copy, failure: str) -> None:
        """Report to the queries that wait for a copy that it is complete, or why it is not."""
        with self._changed:
            if failure:
                copy.failure = failure
                if self._lock is not None:  # what an earlier process left no longer counts
                    _unlink(copy.path)
                self._forget(copy)
            else:
                copy.state = _State.READY
            if failure == "disk full":
                self._full_until_s = self._clock.monotonic_s() + _FULL_PAUSE_S
            self._changed.notify_all()

    def _made(self, copy: _Copy, *, is_left: bool) -> str:
        """Make a copy, or check the one of an earlier process; return why it failed, "" if not."""
        try:
            if not (is_left and _is_sound(copy)):
                self._fetch(copy)
        except _Failed as error:
            self._log.warning("%s is not copied to the cache: %s", copy.file.location, error)
            return "damaged"
        except PenstockError as error:
            self._log.warning("%s", error)
            return "store"
        except OSError as error:
            self._log.warning("the segment cache %s cannot be written: %s", self._folder, error)
            return "disk full" if error.errno in _FULL else "disk"
        return ""

    def _fetch(self, copy: _Copy) -> None:
        temporary = copy.path.with_name(f".{copy.path.stem}{_TEMPORARY}")
        try:
            checksum, etag = self._written(copy.file, temporary)
            if self._etag_is_md5 and etag and etag != checksum:
                # Encryption by KMS makes ETags of the same form from something else.
                again, _ = self._written(copy.file, temporary)
                if again != checksum:
                    raise _Failed("its content differs each time it is read")
                self._etag_is_md5 = False
            copy.path.with_suffix(_CHECKSUM).write_text(checksum)
            temporary.replace(copy.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _written(self, file: StoredFile, path: Path) -> tuple[str, str]:
        """Write a file durably; return its checksum, and the one that the store names, or ""."""
        digest = hashlib.md5(usedforsecurity=False)
        first, last, size = b"", b"", 0

        with path.open("wb") as target:

            def write(data: bytes) -> None:
                nonlocal first, last, size
                size += len(data)
                if size > file.size_bytes:
                    raise _Failed(f"it is larger than its {file.size_bytes} bytes")
                first, last = (first + data[:4])[:4], (last + data[-4:])[-4:]
                digest.update(data)
                target.write(data)

            etag = self._store.fetch(file.location.removeprefix(self._prefix), write)
            target.flush()
            os.fsync(target.fileno())
        with self._changed:
            self._counts["fetched_bytes"] += size
        if size != file.size_bytes or (first, last) != (_PARQUET, _PARQUET):
            raise _Failed(f"it has {size} bytes of {file.size_bytes}, or is not a Parquet file")
        found = _MD5.fullmatch(etag)
        return digest.hexdigest(), found[1] if found else ""


@functools.lru_cache(maxsize=_NAMES_MAX)
def _name_of(file: StoredFile) -> str:
    text = f"{file.size_bytes} {file.location}"
    return hashlib.sha256(text.encode()).hexdigest()[:40] + _SUFFIX


def _has_size(copy: _Copy) -> bool:
    try:
        return copy.path.stat().st_size == copy.file.size_bytes
    except OSError:
        return False


def _is_sound(copy: _Copy) -> bool:
    """Return whether the copy of an earlier process has the checksum that was noted then."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        noted = copy.path.with_suffix(_CHECKSUM).read_text()
        with copy.path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == noted


def _unlink(path: Path) -> None:
    for one in (path, path.with_suffix(_CHECKSUM)):
        with contextlib.suppress(OSError):  # it is found again at the next start
            one.unlink(missing_ok=True)
