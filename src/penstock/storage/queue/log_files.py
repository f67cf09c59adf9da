"""The log files of one queue's folder: their names, writing one, and finding a position in one.

Owns: names (``<base offset, 20 digits>.log``), the writing side with its fsync state, and the
search for an offset or a time inside a file. Does not own: the set of files (`file_sequence`), the
handling of damage (`quarantine`), recovery (`log`).

Invariants:

- Searching needs no index: headers are found by bisecting the bytes and have their own checksum.
  A probe reads with `pread`, never through a mapping, because the writer may cut off the bytes
  after the last valid block at any time and access to a truncated mapping kills the process.
- A position found by bisecting is a guess until a following block with consecutive offsets confirms
  it (a message may contain the bytes of a block). If anything is irregular, the file is read from
  its start.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Self

import google_crc32c

from penstock.core.errors import NotFound, Unavailable
from penstock.storage.queue.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    BlockDamage,
    BlockHeader,
    FileHeader,
    FoundBlock,
    LogBytes,
    encode_file_header,
    magic_positions,
    parse_block_header,
    parse_file_header,
    scan_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from penstock.storage.filesystem import AppendFile, FileSystem, ReadFile

_DIGITS = 20
_SUFFIX = ".log"
_FIRST_PROBE_BYTES = 4096
_LAST_PROBE_BYTES = 1 << 20
_MAPPED_FROM_BYTES = 1 << 14  # below this, copying costs less than the page tables


class OffsetsDeleted(NotFound):
    """Retention has deleted the requested offsets; `earliest` is the first remaining one."""

    def __init__(self, message: str, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


def log_file_name(base_offset: int) -> str:
    """Return the name of the log file whose first message has this offset."""
    return f"{base_offset:0{_DIGITS}d}{_SUFFIX}"


def list_log_files(fs: FileSystem, folder: str) -> list[int]:
    """Return the base offsets of the log files in a folder, ascending.

    Raises:
        NotFound: The folder does not exist.
    """
    return log_files_among(fs.listdir(folder))


def log_files_among(names: Sequence[str]) -> list[int]:
    """Return the base offsets of the log files among the names in a folder, ascending."""
    return sorted(
        int(name[:_DIGITS])
        for name in names
        if len(name) == _DIGITS + len(_SUFFIX)
        and name.endswith(_SUFFIX)
        and name[:_DIGITS].isdecimal()
    )


def index_of_file(bases: Sequence[int], offset: int) -> int:
    """Return the index of the file that holds `offset`; -1 if it is before the first."""
    return bisect_right(bases, offset) - 1


class LogWriter:
    """The writing side of a log file: its size and its durable size.

    The file is opened when needed and may be parked when all of it is durable, so that an idle
    queue needs no file descriptor: a machine has fewer of them than topics.

    Not thread-safe, with one exception: `sync` may run concurrently with `append`, and covers the
    blocks appended before it began; `prepare_sync` must come before, without concurrent appends.

    Args:
        fs: The file system.
        path: The file.
        header: Its header.
        size: The end of its last valid block.
        file: The file, if it is open already.
    """

    __slots__ = (
        "_appended_from",
        "_file",
        "_fs",
        "_path",
        "_suspect",
        "_synced",
        "_uncut",
        "_write_failed",
        "base_offset",
        "size",
        "tag",
    )

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        header: FileHeader,
        size: int,
        file: AppendFile | None = None,
    ) -> None:
        self.base_offset = header.base_offset
        self.tag = header.tag
        self.size = size
        self._fs = fs
        self._path = path
        self._file = file
        # Nothing is known to be durable in a file that another process may have written.
        self._synced = 0
        self._appended_from = size
        self._suspect = False
        self._write_failed = False
        self._uncut = False  # whether the file may have a block whose append raised

    @classmethod
    def create(cls, fs: FileSystem, folder: str, header: FileHeader) -> Self:
        """Create a log file with its header. The folder is not synced yet.

        Raises:
            Unavailable: Disk full or I/O error. A file of this name may be left, which must be
                deleted durably before a message at or above its base offset is written elsewhere.
        """
        path = f"{folder}/{log_file_name(header.base_offset)}"
        file = fs.create(path, replace=True)
        try:
            file.writev([encode_file_header(header)])
            return cls(fs, path, header, file.size, file)
        except BaseException:
            file.close()
            raise

    @property
    def durable(self) -> bool:
        """Return whether everything in it is durable."""
        return self._synced == self.size and not self._suspect

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write one block. All or nothing; raises `Unavailable`."""
        file = self._file or self.unpark()
        if self._uncut:
            self._cut(file)
        try:
            self.size = file.writev(buffers)
        except BaseException:
            self._write_failed = True
            if file.size != self.size:  # it raised after the write had taken effect
                self._uncut = True
                self._cut(file)
            raise

    def _cut(self, file: AppendFile) -> None:
        file.truncate(self.size)
        self._uncut = False

    def unpark(self) -> AppendFile:
        """Open the file, if it is not open.

        Raises:
            Unavailable: It cannot be opened, or has changed.
        """
        if self._file is None:
            try:
                file = self._fs.open_append(self._path)
            except NotFound as error:
                raise Unavailable(
                    f"{self._path}: the active log file was deleted: restore it, or restart"
                ) from error
            if file.size > self.size and self._write_failed:
                # A failing disk may also have refused to cut off the rest of a write.
                file.truncate(self.size)
            if file.size != self.size:
                file.close()
                raise Unavailable(
                    f"{self._path}: has {file.size} bytes instead of {self.size}, so another "
                    "program has changed it: restart, and complete blocks are kept"
                )
            self._file = file
        return self._file

    @property
    def is_uncut(self) -> bool:
        """Return whether the file may have a block whose append raised."""
        return self._uncut

    def prepare_sync(self) -> None:
        """Open the file if it must be fsynced, and cut off invalid bytes.

        Raises:
            Unavailable: That is not possible now.
        """
        if self._uncut:
            self._cut(self.unpark())
        elif not self.durable:
            self.unpark()

    def park(self) -> None:
        """Close the file until it is needed, if all of it is durable."""
        if self.durable:
            self.close()

    def sync(self) -> None:
        """Make everything appended so far durable.

        After a failed fsync, its bytes are checked and written again first: the kernel marks their
        pages as clean, so that another fsync alone would succeed without writing them.

        Raises:
            Unavailable: The device fails; call again later.
        """
        if self._uncut:
            raise Unavailable(
                f"{self._path}: holds a block whose append failed and that cannot be cut off: "
                "check the disk"
            )
        if self.durable:
            return
        end = self.size
        file = self.unpark()
        failed_before, self._suspect = self._suspect, True  # until it succeeds
        if failed_before:
            self._write_again(file, end)
        file.sync()
        self._synced = end
        self._suspect = False

    def _write_again(self, file: AppendFile, end: int) -> None:
        with OpenLogFile(self._fs, self._path) as log:
            content = log.map(end)
        # Bytes from before the file was opened may hold damage that is known and skipped.
        start = max(self._synced, self._appended_from)
        header = parse_block_header(content.view[start : start + BLOCK_HEADER_BYTES])
        expected = self.base_offset if header is None else header.base_offset
        for item in scan_blocks(content, start, tag=self.tag, expected=expected, limit=None):
            if isinstance(item, BlockDamage):
                raise Unavailable(
                    f"{self._path}: an fsync failed and the system lost bytes at "
                    f"{item.position}: check the disk, then restart; the loss is counted"
                )
        file.rewrite(self._synced, content.view[self._synced : end])

    def close(self) -> None:
        """Close without syncing."""
        if self._file is not None:
            self._file.close()
            self._file = None


class OpenLogFile:
    """A log file opened for reading: a context manager with its header and its search."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.path = path
        self._file: ReadFile = fs.open_read(path)
        try:
            self.header = parse_file_header(self._file.pread(FILE_HEADER_BYTES, 0), path)
        except BaseException:
            self._file.close()
            raise
        self.tag = None if self.header is None else self.header.tag

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def size(self) -> int:
        """Return the size now."""
        return self._file.size()

    def map(self, end: int) -> LogBytes:
        """Map the first `end` bytes, which must exist, or read them if that is faster."""
        if end > _MAPPED_FROM_BYTES:
            return LogBytes(self._file.map(end))
        data = self._file.pread(end, 0)
        if len(data) < end:
            raise Unavailable(f"{self.path}: cannot read {end} bytes, there are {len(data)}")
        return LogBytes(memoryview(data))

    def blocks(
        self,
        log: LogBytes,
        offset: int,
        *,
        base_offset: int,
        limit: int | None,
        hint: tuple[int, int] | None = None,
    ) -> Iterator[FoundBlock | BlockDamage]:
        """Iterate from the block that holds `offset`, or the next one.

        Args:
            log: The mapped bytes, up to the trusted end.
            offset: The first wanted message.
            base_offset: The base offset of the file, from its name.
            limit: The base offset of the next file, if there is one.
            hint: (offset, position) of a known start of a block, at or before `offset`.
        """
        sure = hint is not None or offset <= base_offset
        expected, position = hint or (base_offset, FILE_HEADER_BYTES)
        if not sure:
            guess = self.seek(log.size, lambda header: header.base_offset <= offset)
            expected, position = guess or (expected, position)
            sure = guess is None
        while True:
            for item in scan_blocks(log, position, tag=self.tag, expected=expected, limit=limit):
                if isinstance(item, BlockDamage):
                    if not sure:
                        break
                    if item.next_offset is not None and item.next_offset <= offset:
                        continue
                elif item.header.end_offset <= offset:
                    continue
                else:
                    offset = item.header.end_offset
                yield item
            else:
                return
            sure, expected, position = True, base_offset, FILE_HEADER_BYTES

    def seek(self, end: int, at_or_before: Callable[[BlockHeader], bool]) -> tuple[int, int] | None:
        """Bisect for a block near the last one that is at or before the wanted position.

        Returns:
            Its (base offset, position), or None for the file's start.
        """
        low, high = FILE_HEADER_BYTES, end
        best = None
        while high - low > _FIRST_PROBE_BYTES:
            middle = (low + high) // 16 * 8
            found = self._probe(middle, high)
            if found is None or not at_or_before(found.header):
                high = middle
            else:
                best = (found.header.base_offset, found.position)
                low = found.position + max(found.header.length, 8)
        return best

    def _probe(self, position: int, end: int) -> FoundBlock | None:
        """Return the first valid block header between `position` and `end`."""
        size = _FIRST_PROBE_BYTES
        while position < end:
            size = min(size, end - position)
            window = self._file.pread(size + BLOCK_HEADER_BYTES, position)
            for index in magic_positions(window):
                header = parse_block_header(window[index : index + BLOCK_HEADER_BYTES])
                if header is not None and self.tag in (None, header.tag):
                    return FoundBlock(position + index, header)
            position += size
            size = min(size * 2, _LAST_PROBE_BYTES)
        return None


def make_tag(folder: str, base_offset: int, created_ms: int) -> int:
    """Return a number that identifies a file, without a source of randomness."""
    return int(google_crc32c.value(f"{folder}\n{base_offset}\n{created_ms}".encode()))
