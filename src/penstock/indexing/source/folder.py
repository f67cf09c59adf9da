"""A folder of growing files as a `RecordSupplier`: each file is a stream partition of lines.

A line counts once its newline is written. A file is identified by its inode and its first line, so
it keeps its stream partition when it is renamed (rotated), and another file under its name is
another stream partition. Copies (``copytruncate``) count as new files: exclude their names from the
pattern. Offsets are line numbers; their positions in a file are found by reading it once from its
start, and kept in memory.

A file that cannot be read, for example for lack of permission, does not stop the others: it is
skipped with a reason, as is a link to a missing file. If a file has several names, such as hard
links, it is read under one of them.

Penstock cannot delay the deletion of a file. If a file is deleted after all of it was read, the
supplier still reports the end of its lines. If it is deleted earlier, the remaining lines are lost,
and the task and the supervisor report the loss.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import logging
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.read_guard import READ_GUARD
from penstock.indexing.engine import FileRange
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.storage.filesystem import open_guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.sequences import Offsets
    from penstock.storage.filesystem import FileSystem, ReadFile

_WINDOW_BYTES: Final = 4 * 1024 * 1024
_HEAD_BYTES: Final = 1024
_NEWLINE: Final = 10
_POLL_S: Final = 0.25
_PARTITIONS: Final = 1 << 31
_LISTINGS_MAX: Final = 5
# Number of deleted files that are remembered; those that were requested last are kept longest.
_GONE_FILES_MAX: Final = 1 << 16
# Maximum number of skipped files that are logged, each once.
_LOGGED_MAX: Final = 1_000

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tail:
    """State of one file: some (line, position) pairs in order, and how far it was read.

    `lines` whole lines end at `position`. The bytes after it belong to an incomplete line and were
    searched for a newline up to `searched`.
    """

    path: str
    inode: int
    marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    lines: int = 0
    position: int = 0
    searched: int = 0


@dataclass(slots=True)
class _Listing:
    """Result of one listing of the folder.

    Attributes:
        found: The files, by stream partition.
        skipped: Reasons by path; it includes the paths of `missing` and `duplicates`.
        missing: Paths that were listed and then not found.
        duplicates: Further paths of files in `found`.
        collision: Why two different files have the same stream partition, empty if none have.
    """

    found: dict[int, _Tail] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    duplicates: set[str] = field(default_factory=set)
    collision: str = ""


class FolderSupplier:
    """The files of one folder. One thread at a time.

    Args:
        fs: The file system.
        clock: Used to wait for new lines.
        folder: The folder.
        pattern: Pattern of the file names, with ``*`` and ``?``.
    """

    def __init__(self, fs: FileSystem, clock: Clock, folder: str, pattern: str = "*") -> None:
        self._fs = fs
        self._clock = clock
        self._pattern = pattern
        self._tails: dict[int, _Tail] = {}
        self._gone: dict[int, int] = {}
        self._skipped: dict[str, str] = {}
        self._logged: set[str] = set()
        self._condition = threading.Condition()
        self._reads = READ_GUARD.now()
        self.stream = folder

    def available(
        self,
        *,
        after: Offsets | None = None,
        wait_ms: int = 0,
        stream_id: str = "",  # noqa: ARG002 - a folder has no id
    ) -> SeenTopic:
        """Return the files and the number of whole lines in each; a folder has no id.

        Raises:
            NotFound: The folder does not exist.
            Unavailable: The folder cannot be read now.
            InvalidRequest: It is not a folder, tasks must not read it, permission is denied, or two
                files have the same stream partition: see `_partition`.
        """
        until_s = self._clock.monotonic_s() + wait_ms / 1000
        while True:
            self._list_files()
            done = dict(self._done(after or {}))
            has_new = after is None or any(
                self._tails[p].lines > offset if p in self._tails else p not in done
                for p, offset in after.items()
            )
            left_s = until_s - self._clock.monotonic_s()
            if has_new or left_s <= 0:
                found = {p: _available(t) for p, t in self._tails.items()}
                done = {p: a for p, a in self._done(after or {}) if p not in found}
                return SeenTopic("", dict(sorted({**found, **done}.items())), self._skipped)
            with self._condition:
                self._clock.wait(self._condition, min(left_s, _POLL_S))

    def ranges(
        self,
        start: Offsets,
        end: Offsets,
        seen: SeenTopic,  # noqa: ARG002 - the supplier knows more about its files
    ) -> tuple[FileRange, ...]:
        """Return the positions of the lines in their files.

        Raises:
            Unavailable: A file has changed since `seen`.
            NotFound: A file was deleted since the last listing.
            InvalidRequest: A file lost its permission since the last listing.
        """
        wanted = [p for p in sorted(start) if start[p] < end[p]]
        try:
            return tuple(self._range(p, start[p], end[p]) for p in wanted)
        except NotFound:  # narrow: it was renamed or deleted
            self._list_files()
            return tuple(self._range(p, start[p], end[p]) for p in wanted)

    def spans_ms(
        self,
        ranges: Mapping[int, tuple[int, int]],
    ) -> dict[int, int | None]:
        """Return no times: it is unknown when a line was written."""
        return dict.fromkeys(ranges)

    def hold(self, name: str, offsets: Offsets) -> None:
        """Do nothing: the deletion of files cannot be prevented."""

    def let_go(self, name: str, partitions: Sequence[int]) -> None:
        """Do nothing."""

    def _done(self, after: Offsets) -> Iterator[tuple[int, AvailableRange]]:
        """Yield the files that were deleted after all of them was read, in their last state."""
        for p, offset in after.items():
            if self._gone.get(p, -1) == offset:
                self._gone[p] = self._gone.pop(p)  # Move it to the end, as the newest.
                yield p, AvailableRange("", offset, offset)

    def _list_files(self) -> None:
        """List the files; list them again if some were renamed meanwhile.

        A file that is renamed after the listing could be missing, and count as deleted, or be
        listed under both names, of which one would be skipped. Each listing continues at the
        positions of the previous one.
        """
        tails = dict(self._tails)
        known = set(self._skipped)
        for _ in range(_LISTINGS_MAX):
            listing = self._list_once(tails)
            tails |= listing.found
            if listing.missing | listing.duplicates <= known:
                break
            known |= listing.duplicates
        if listing.collision:
            raise InvalidRequest(listing.collision)
        self._skipped = listing.skipped
        self._log_skipped()
        for p in tails.keys() - listing.found.keys():
            self._gone[p] = tails[p].lines
        for p in list(itertools.islice(self._gone, max(0, len(self._gone) - _GONE_FILES_MAX))):
            del self._gone[p]
        self._tails = listing.found

    def _list_once(self, tails: Mapping[int, _Tail]) -> _Listing:
        listing = _Listing()
        for path in self._paths(tails):
            try:
                reason = self._inspect(path, tails, listing)
            except NotFound:
                listing.missing.add(path)
                reason = "it is listed but does not exist, like a link whose target is missing"
            except InvalidRequest as error:
                reason = str(error)
            if reason:
                listing.skipped[path] = reason
        return listing

    def _paths(self, tails: Mapping[int, _Tail]) -> list[str]:
        """Return the paths of the files, those that are read first.

        If a file has two names, the name under which it was read before is kept.
        """
        self._reads = READ_GUARD.now()
        self._reads.path(self.stream)
        known = {tail.path for tail in tails.values()}
        names = fnmatch.filter(self._fs.listdir(self.stream), self._pattern)
        paths = sorted(f"{self.stream}/{name}" for name in names)
        return sorted(paths, key=lambda path: path not in known)

    def _inspect(self, path: str, tails: Mapping[int, _Tail], listing: _Listing) -> str:
        """Add a file that has a whole line; return why it must be skipped, else nothing.

        Raises:
            NotFound: It was renamed or deleted, or is a link whose target is missing.
            InvalidRequest: It cannot be opened, for example for lack of permission.
        """
        stat = self._fs.stat(path)
        if stat.is_folder:
            return ""
        if stat.is_special:
            return "it is a pipe, a socket or a device, not a file"
        if not _is_unicode(path):
            return "its name is not valid UTF-8"
        file = open_guarded(self._fs, path, self._reads)
        try:
            head, newline, _ = file.pread(_HEAD_BYTES, 0).partition(b"\n")
            if not newline and len(head) < _HEAD_BYTES:
                return ""
            partition = _partition(stat.inode, head)
            first, tail = listing.found.get(partition), tails.get(partition)
            for other in (first, tail):
                if other is not None and other.inode != stat.inode:
                    listing.collision = _collision(path, other.path)
                    return listing.collision
            if first is not None:
                listing.duplicates.add(path)
                return f"it is another name of {first.path}, as a hard link is"
            if tail is None:
                if self._fs.stat(path).inode != stat.inode:
                    raise NotFound(f"{path}: it was replaced while its first line was read")
                tail = _Tail(path, stat.inode)
            if stat.size < tail.position:
                tail = _Tail(
                    path, stat.inode
                )  # The file was truncated: a new count shows the missing lines.
            elif stat.size < tail.searched:
                tail.searched = tail.position
            tail.path = path
            _read_on(file, tail, stat.size)
            listing.found[partition] = tail
        finally:
            file.close()
        return ""

    def _log_skipped(self) -> None:
        for path, reason in self._skipped.items():
            if path in self._logged:
                continue
            if len(self._logged) >= _LOGGED_MAX:
                return
            self._logged.add(path)
            _logger.warning(
                "%a is skipped: %s; rename or remove it, or exclude its name from the filter",
                path,
                reason,
            )

    def _range(self, partition: int, start: int, end: int) -> FileRange:
        tail = self._tails.get(partition)
        if tail is None or tail.lines < end:
            raise Unavailable(f"{self.stream}: stream partition {partition} has changed: try again")
        file = open_guarded(self._fs, tail.path, self._reads)
        try:
            places = _position(file, tail, start), _position(file, tail, end)
        finally:
            file.close()
        return FileRange(partition, tail.path, start, end, *places)


def _partition(inode: int, head: bytes) -> int:
    """Return the stream partition of a file: a number of 31 bits, like those of Kafka.

    With 1,000 files the probability of a collision is about 1 in 4,000, with 50,000 files 1 in 2.
    The stream then stops, because one file would be mistaken for the other.
    """
    digest = hashlib.sha256(f"{inode}:".encode() + head).digest()
    return int.from_bytes(digest[:8]) % _PARTITIONS


def _collision(path: str, other: str) -> str:
    return (
        f"{path} and {other} would get the same stream partition by chance: copy {path}, and delete"
        " the original, because a copy gets another one"
    )


def _available(tail: _Tail) -> AvailableRange:
    return AvailableRange(tail.path, 0, tail.lines, tail.position // max(1, tail.lines))


def _is_unicode(path: str) -> bool:
    """Return whether a path can be written as JSON: other names have lone surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_on(file: ReadFile, tail: _Tail, size: int) -> None:
    """Count the new lines; add a mark for each window.

    Stops after the size that the file had when it was listed: it may grow faster than it is read.
    """
    at = max(tail.position, tail.searched)
    while at < size and (window := file.pread(_WINDOW_BYTES, at)):
        ends = np.flatnonzero(np.frombuffer(window, np.uint8) == _NEWLINE)
        if ends.size:
            tail.lines += int(ends.size)
            tail.position = at + int(ends[-1]) + 1
            tail.marks.append((tail.lines, tail.position))
        at += len(window)
        tail.searched = at
    # Merge marks, because many small reads would leave many of them.
    if len(tail.marks) > 2 and tail.marks[-1][1] - tail.marks[-3][1] < _WINDOW_BYTES:
        del tail.marks[-2]


def _position(file: ReadFile, tail: _Tail, line: int) -> int:
    """Return the position at which a line begins."""
    known, at = tail.marks[bisect_right(tail.marks, (line, tail.position)) - 1]
    missing = line - known
    while missing:
        window = file.pread(_WINDOW_BYTES, at)
        if not window:
            raise Unavailable(f"{tail.path} is shorter than before: try again")
        ends = np.flatnonzero(np.frombuffer(window, np.uint8) == _NEWLINE)
        if ends.size >= missing:
            return at + int(ends[missing - 1]) + 1
        missing -= int(ends.size)
        at += len(window)
    return at
