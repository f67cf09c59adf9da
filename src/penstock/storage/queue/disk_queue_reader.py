"""Reads in the writing process: blocks by offset, and an offset by time.

Owns: iteration over the log files of a queue as they were at one moment, and the positions where
readers stopped. Does not own: the extent of the queue (`log`), and the handling of damage
(`quarantine`).

Invariants:

- Bytes after the end of the extent are never read, so a batch that is being written is invisible.
- Damage is reported to the quarantine before a later block is returned.
- A remembered position is the start of a block that was reached by iteration, never a guess. So
  each reader continues without a search, and forgetting a position only costs a search.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import InvalidRequest, NotFound
from penstock.storage.queue.blocks import Block, BlockDamage, FoundBlock, block_of, find_block
from penstock.storage.queue.log_files import (
    OffsetsDeleted,
    OpenLogFile,
    index_of_file,
    log_file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.log import QueueExtent, QueueLog
    from penstock.storage.queue.quarantine import Quarantine

T = TypeVar("T")

_PLACES = 64


class DiskQueueReader:
    """Reads log files for any number of threads; a mutex guards the remembered positions.

    Args:
        fs: The file system.
        folder: The folder of the queue.
        quarantine: Receives reports of damage.
        log: The log of the queue; its extent is taken for each read.
    """

    __slots__ = ("_damage_mutex", "_folder", "_fs", "_log", "_mutex", "_places", "_quarantine")

    def __init__(self, fs: FileSystem, folder: str, quarantine: Quarantine, log: QueueLog) -> None:
        self._fs = fs
        self._folder = folder
        self._quarantine = quarantine
        self._log = log
        self._damage_mutex = threading.Lock()  # around counting and copying one damaged place
        self._mutex = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}  # offset -> (base offset, position)

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds `offset`; see `DiskQueue.read`."""
        return self._while_files_stay(lambda extent: self._read(extent, offset, max_bytes))

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; see `DiskQueue.offset_at`."""
        return self._while_files_stay(lambda extent: self._offset_at(extent, time_ms))

    def _while_files_stay(self, read: Callable[[QueueExtent], T]) -> T:
        """Read, and repeat that if retention deleted a file after the extent was taken."""
        while True:
            extent = self._log.extent()
            try:
                return read(extent)
            except NotFound:
                if self._log.extent().bases[0] == extent.bases[0]:
                    raise

    def _read(self, extent: QueueExtent, offset: int, max_bytes: int) -> list[Block]:
        if offset > extent.latest:
            raise InvalidRequest(
                f"{self._folder}: offset {offset} is beyond the end, {extent.latest}"
            )
        first = index_of_file(extent.bases, offset)
        if first < 0:
            raise self._deleted(offset, extent.bases[0])
        blocks: list[Block] = []
        for index in range(first, len(extent.bases)):
            if offset >= extent.latest or (blocks and max_bytes <= 0):
                break
            try:
                opened = OpenLogFile(self._fs, self._path(extent.bases[index]))
            except NotFound as error:
                raise self._deleted(offset, extent.limit(index) or extent.latest) from error
            with opened:
                offset, max_bytes = self._read_file(
                    opened, extent, index, offset, max_bytes, blocks
                )
        return blocks

    def _read_file(
        self,
        opened: OpenLogFile,
        extent: QueueExtent,
        index: int,
        offset: int,
        max_bytes: int,
        blocks: list[Block],
    ) -> tuple[int, int]:
        """Add one log file's blocks; return the next position and the remaining bytes."""
        base, limit = extent.bases[index], extent.limit(index)
        size = opened.size()
        if limit is None and size < extent.end:
            # Another program truncated the file: the rest is returned, then reported as damage.
            limit = extent.latest
        log = opened.map(extent.end if limit is None else size)
        border = None
        hint = self._place(offset, base)
        for item in opened.blocks(log, offset, base_offset=base, limit=limit, hint=hint):
            if isinstance(item, BlockDamage):
                with self._damage_mutex:
                    self._quarantine.record(base, log, item)
                continue
            if blocks and item.header.length > max_bytes:
                max_bytes = 0
                break
            blocks.append(block_of(log, item.position, item.header))
            max_bytes -= item.header.length
            offset, border = item.header.end_offset, item.position + item.header.length
            if max_bytes <= 0:
                break
        else:
            if limit is not None:
                return limit, max_bytes
        if border is not None:
            self._remember(offset, base, border)
        return offset, 0

    def _place(self, offset: int, base: int) -> tuple[int, int] | None:
        with self._mutex:
            known = self._places.get(offset)
        return (offset, known[1]) if known is not None and known[0] == base else None

    def _remember(self, offset: int, base: int, position: int) -> None:
        """Remember the position where a reader stopped, because it will continue there."""
        with self._mutex:
            self._places.pop(offset, None)
            if len(self._places) >= _PLACES:
                del self._places[next(iter(self._places))]
            self._places[offset] = (base, position)

    def _offset_at(self, extent: QueueExtent, time_ms: int) -> int:
        after = bisect_left(extent.bases, time_ms, key=self.created_ms)
        index = max(0, after - 1)
        base, limit = extent.bases[index], extent.limit(index)
        with OpenLogFile(self._fs, self._path(base)) as opened:
            log = opened.map(extent.end if limit is None else opened.size())
            near = opened.seek(log.size, lambda header: header.append_time_ms < time_ms)
            offset = base if near is None else near[0]
            for item in opened.blocks(log, offset, base_offset=base, limit=limit):
                if isinstance(item, FoundBlock) and item.header.append_time_ms >= time_ms:
                    return item.header.base_offset
        return extent.latest if limit is None else limit

    def created_ms(self, base: int) -> int:
        """Return the creation time of a log file: a lower bound of its messages' times."""
        with OpenLogFile(self._fs, self._path(base)) as opened:
            if opened.header is not None:
                return opened.header.created_ms
            log = opened.map(opened.size())
            found = find_block(log, 0, tag=None, expected=base, limit=None)
            return 0 if found is None else found.header.append_time_ms

    def _path(self, base: int) -> str:
        return f"{self._folder}/{log_file_name(base)}"

    def _deleted(self, offset: int, earliest: int) -> OffsetsDeleted:
        return OffsetsDeleted(
            f"{self._folder}: offset {offset} was deleted by retention; the earliest left is "
            f"{earliest}",
            earliest,
        )
