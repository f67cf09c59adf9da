"""Spool of commits: second names of the journal's files, which keep them for provenance.

    provenance/<number>.spool    a file of the journal, with the number of its first commit
    provenance/durable           number of a durable commit, and its CRC-32C
    provenance/withdrawn.json    undone commits that a file contains

A commit is written once, to the journal. The file of a journal gets its second name when the
journal begins, so it stays when a snapshot replaces the journal. Owns the names, the two small
files, and the limits of size and age. Does not own the files' content, nor what the commits say
(`flow.provenance`).

Invariants:

- A reader sees only commits that are durable, of each file those before the next file, and none
  that was undone. So it never sees a commit that a later start does not have. A file without bytes
  bounds the one before it: the commits from its number on are not kept.
- The file of a journal has its second name, durably, before a snapshot replaces the journal. After
  a crash, the next start gives it to the journals that it reads.
- The stored number is never after the first commit of a file that has no second name yet.
- A commit never waits for the spool, and never fails because of it. Nor does a start fail because
  the disk has no second names.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import msgspec

from penstock.core.errors import Conflict, InvalidRequest, NotFound, PenstockError
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import AppendFile, FileSystem

SPOOL_SUFFIX: Final = ".spool"
SPOOL_FOLDER: Final = "provenance"
"""Name of the folder in that of the flow."""
WRITE_EVERY_S: Final = 0.2
_READ_AGAIN: Final = 3  # reads of the number while it is being written
_DURABLE: Final = struct.Struct("<QI")
_DIGITS: Final = 20
_WITHDRAWN_MAX: Final = 1_000  # failed fsyncs that are remembered

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """Limits of a spool.

    Args:
        retention_ms: Files whose last commit is older are deleted.
        retention_bytes: Maximum size of all files; the oldest are deleted first. The newest
            complete file stays until its events are published, even if it is larger.
    """

    retention_ms: int = 24 * 3_600_000
    retention_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("retention_ms", "retention_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )


def spool_path(folder: str, first: int) -> str:
    """Return the path of the file whose first commit has this number."""
    return f"{folder}/{first:0{_DIGITS}d}{SPOOL_SUFFIX}"


def spool_files(fs: FileSystem, folder: str) -> list[int]:
    """Return the numbers of the first commits of the files, ascending."""
    names = (one.removesuffix(SPOOL_SUFFIX) for one in fs.listdir(folder) if SPOOL_SUFFIX in one)
    return sorted(int(one) for one in names if len(one) == _DIGITS and one.isdecimal())


def read_durable(fs: FileSystem, folder: str) -> int:
    """Return the number of the last commit that readers may see; 0 if it is not known now."""
    for _ in range(_READ_AGAIN):
        try:
            content = fs.read_bytes(_durable_path(folder))
        except NotFound:
            return 0
        if len(content) == _DURABLE.size:
            number, checksum = _DURABLE.unpack(content)
            if checksum == google_crc32c.value(content[:8]):
                return int(number)
    return 0


def read_withdrawn(fs: FileSystem, folder: str) -> set[int]:
    """Return the numbers of the undone commits that the files contain."""
    return {number for _, numbers in _stored_withdrawn(fs, folder) for number in numbers}


def _stored_withdrawn(fs: FileSystem, folder: str) -> list[tuple[int, list[int]]]:
    try:
        content = fs.read_bytes(_withdrawn_path(folder))
        return msgspec.json.decode(content, type=list[tuple[int, list[int]]])
    except (NotFound, msgspec.MsgspecError):
        return []


def _durable_path(folder: str) -> str:
    return f"{folder}/durable"


def _withdrawn_path(folder: str) -> str:
    return f"{folder}/withdrawn.json"


class CommitSpool:
    """The spool of one repository.

    Its mutex lets one thread at a time change files. Commits only store numbers, one step each.

    Args:
        folder: Its folder.
        fs: The file system.
        clock: For the age of files.
        options: The limits.

    Attributes:
        written: Number of commits with notes since the start.
        lost: Number of commits lost since the start: deleted before `published`, or never kept.
        last: Number of the last commit with notes.
        is_replaced: Whether files of another journal were found at the start.
    """

    def __init__(
        self, folder: str, fs: FileSystem, clock: Clock, options: SpoolOptions | None = None
    ) -> None:
        self.folder: Final = folder
        self._fs = fs
        self._clock = clock
        self._options = options or SpoolOptions()
        self._log = RateLimitedLog(_logger, clock)
        self._files_mutex = threading.Lock()
        self._changed = threading.Condition()
        self._thread: OwnedThread | None = None
        self._withdrawn: list[tuple[int, list[int]]] = []
        self._durable = 0
        self._stored_durable = 0
        self._durable_file: AppendFile | None = None
        self._published = 0
        self._begun: deque[tuple[int, str]] = deque()  # new files that `_link` has not seen
        self._unlinked: dict[int, str] = {}  # files without a second name, by their first commit
        self._end: int | None = None  # first commit that a file of an earlier start must not show
        self._firsts: list[int] = []
        self.written = self.lost = self.last = 0
        self.is_replaced = False
        fs.mkdir(folder)

    # -- start

    def recover(self, paths: Mapping[int, str], number: int, snapshot_number: int) -> None:
        """Give second names to the files of the journals that a start has read.

        Readers see their commits when `show_recovered` follows.

        Args:
            paths: The files, by the number of their first commit.
            number: Number of the last commit of the repository. If a later one was durable before,
                the files belong to another journal, which was replaced by a copy. Then the whole
                record is deleted, with the position of the published events.
            snapshot_number: Number of the last commit of its snapshot.

        Raises:
            Unavailable: I/O error.
        """
        with self._files_mutex:
            durable = read_durable(self._fs, self.folder)
            self.is_replaced = durable > number
            if self.is_replaced:
                self._delete_record()
            found = spool_files(self._fs, self.folder)
            oldest = min(paths)
            live = {first: path for first, path in paths.items() if first <= number + 1}
            for first in found:
                if first < oldest:
                    self._firsts.append(first)
                elif first not in live:
                    self._fs.unlink(spool_path(self.folder, first))
            self._recover_withdrawn(snapshot_number)
            if oldest not in found:
                self._end_record(durable, oldest)
            # Those of journals that are live get new names: theirs may be of other files.
            self._unlinked = live
            self.last = number
            try:
                self._link()
            except PenstockError as error:
                self._warn_unlinked(error)

    def show_recovered(self, number: int) -> None:
        """Show readers the commits of the start, which are durable now.

        Args:
            number: Number of the last one.
        """
        self.made_durable(number)
        try:
            with self._files_mutex:
                self._store_durable(self._durable)
        except PenstockError as error:
            self._log.warning("provenance is not shown yet: %s", error)

    def _delete_record(self) -> None:
        """Delete all files but the number, which shows that they are to be deleted."""
        _logger.warning("%s: deleted, because the FlowFile repository was replaced", self.folder)
        kept = _durable_path(self.folder)
        for name in self._fs.listdir(self.folder):
            path = f"{self.folder}/{name}"
            if path != kept:
                self._fs.unlink(path)
        self._fs.fsync_folder(self.folder)

    def _end_record(self, durable: int, following: int) -> None:
        """Bound the last file after its durable commits: the flow ran without the spool since.

        Args:
            durable: Number of the last commit that readers could see.
            following: Number of the first commit of the next file.
        """
        if not self._firsts:
            return
        end = max(durable + 1, self._firsts[-1])
        if end < following:
            self._end = end

    def _recover_withdrawn(self, snapshot_number: int) -> None:
        """Forget undone commits of which no snapshot exists: they have come back."""
        stored = _stored_withdrawn(self._fs, self.folder)
        self._withdrawn = (
            [] if self.is_replaced else [one for one in stored if one[0] <= snapshot_number]
        )
        if len(self._withdrawn) < len(stored):
            self.store_withdrawn()

    def start(self) -> None:
        """Begin to work in the background."""
        self._thread = OwnedThread("provenance", self._run, on_death=OnDeath.RESTART)
        self._thread.start()

    # -- commits

    def record(self, number: int) -> None:
        """Count a commit with notes; one owner calls this, in the order of numbers."""
        self.last = number
        self.written += 1

    def made_durable(self, number: int) -> None:
        """Record that the commits up to a number are durable."""
        self._durable = max(self._durable, number)

    def withdraw(self, numbers: Collection[int], until: int) -> None:
        """Record commits that were undone.

        Args:
            numbers: Their numbers.
            until: A snapshot from this number on does not contain them.
        """
        self._withdrawn = [*self._withdrawn[1 - _WITHDRAWN_MAX :], (until, sorted(numbers))]

    def store_withdrawn(self) -> None:
        """Store which commits were undone, before a snapshot replaces the journal with them.

        Raises:
            Unavailable: They cannot be stored.
        """
        self._fs.write_atomically(
            _withdrawn_path(self.folder), msgspec.json.encode(self._withdrawn)
        )

    def begin_file(self, path: str, first: int) -> None:
        """Record the file of a new journal, before it has a commit; `keep_files` follows.

        Args:
            path: The file.
            first: Number of its first commit.
        """
        self._begun.append((first, path))

    def keep_files(self) -> None:
        """Give the files of new journals their second names, now or later."""
        with self._files_mutex:
            try:
                self._link()
            except PenstockError as error:
                self._warn_unlinked(error)

    def published(self, number: int) -> None:
        """Record that the events of the commits up to a number are published."""
        self._published = max(self._published, number)

    def flush(self) -> None:
        """Show readers the commits that are durable now.

        Raises:
            Unavailable: A file cannot be written now.
        """
        with self._files_mutex:
            number = self._durable  # the files of these commits have begun
            try:
                self._link()
            finally:
                self._store_durable(number)

    def trim(self) -> None:
        """Delete the files that are too old or too many."""
        with self._files_mutex:
            oldest_ms = self._clock.now_ms() - self._options.retention_ms
            for first, following in zip(self._firsts[:-1], self._firsts[1:], strict=True):
                path = spool_path(self.folder, first)
                with suppress(NotFound):
                    stat = self._fs.stat(path)
                    is_small = self.size_bytes() <= self._options.retention_bytes
                    is_needed = following == self._firsts[-1] and following > self._published + 1
                    if stat.modified_ms >= oldest_ms and (is_small or is_needed):
                        return
                    self._fs.unlink(path)
                    if stat.size:
                        self._count_lost(first, following)
                self._firsts = self._firsts[1:]

    def _count_lost(self, first: int, following: int) -> None:
        """Count the commits of a file whose events were not published."""
        self.lost += max(0, following - max(self._published + 1, first))

    def size_bytes(self) -> int:
        """Return the size of the files."""
        sizes = 0
        for first in self._firsts:
            with suppress(NotFound):
                sizes += self._fs.stat(spool_path(self.folder, first)).size
        return sizes

    def close(self) -> None:
        """Show readers what is durable and close the files. A second call does nothing."""
        if self._thread is not None:
            self._thread.end(self._changed, 5.0)
            self._thread = None
        try:
            self.flush()
        except PenstockError as error:
            _logger.warning("provenance of the last commits is not seen until a start: %s", error)
        finally:
            with self._files_mutex:
                file, self._durable_file = self._durable_file, None
                if file is not None:
                    file.close()

    # -- files

    def _take_begun(self) -> None:
        while self._begun:
            first, path = self._begun.popleft()
            self._unlinked[first] = path

    def _link(self) -> None:
        """Give files their second names, durably."""
        self._take_begun()
        if self._end is not None:
            self._fs.write_atomically(spool_path(self.folder, self._end), b"")
            self._firsts = sorted({*self._firsts, self._end})
            self._end = None
        for first, path in sorted(self._unlinked.items()):
            name = spool_path(self.folder, first)
            try:
                self._give_name(path, name)
            except NotFound:
                self._take_begun()  # the file that follows
                following = min((one for one in self._unlinked if one > first), default=first)
                self._count_lost(first, following)
                _logger.warning("%s: was deleted before it was kept for provenance", path)
                self._fs.write_atomically(name, b"")  # bounds the file before it
            self._fs.fsync_folder(self.folder)
            del self._unlinked[first]
            self._firsts = [*(one for one in self._firsts if one < first), first]

    def _give_name(self, path: str, name: str) -> None:
        try:
            self._fs.link(path, name)
        except Conflict:
            # The journal before has no commit, or the name was not durable at the last try. It is
            # replaced in one step: a start takes a missing name for a flow without the spool.
            temporary = f"{name}.tmp"
            with suppress(NotFound):
                self._fs.unlink(temporary)
            self._fs.link(path, temporary)
            self._fs.rename(temporary, name)
            with suppress(NotFound):  # it stays if both are names of one file
                self._fs.unlink(temporary)

    def _warn_unlinked(self, error: PenstockError) -> None:
        self._log.warning("the journal is not kept for provenance yet: %s", error)

    def _store_durable(self, number: int) -> None:
        # A reader must not read a commit in the file before that of the commit.
        missing = [*self._unlinked, *([] if self._end is None else [self._end])]
        number = min(number, min(missing, default=number + 1) - 1)
        if number == self._stored_durable and self._durable_file is not None:
            return
        packed = number.to_bytes(8, "little")
        content = _DURABLE.pack(number, google_crc32c.value(packed))
        if self._durable_file is None:
            path = _durable_path(self.folder)
            self._fs.write_atomically(path, content)
            self._durable_file = self._fs.open_append(path)
        else:
            # Not fsynced: an older number is as good, and a start stores it again.
            self._durable_file.rewrite(0, content)
        self._stored_durable = number

    def _run(self) -> None:
        thread = self._thread
        while thread is not None and not thread.is_end_expected:
            try:
                self.flush()
                self.trim()
            except PenstockError as error:
                self._log.warning("provenance is not shown yet: %s", error)
            with self._changed:
                if not thread.is_end_expected:
                    self._clock.wait(self._changed, WRITE_EVERY_S)
