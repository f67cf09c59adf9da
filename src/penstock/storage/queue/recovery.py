"""Recovery of the last log file of a queue: its valid blocks, and where writing continues.

Owns: the rules below. Does not own: earlier files, which are not read when a queue opens (readers
detect their damage), nor any file but log files: there is no index or metadata that could be
missing or stale.

Rules, for the bytes of the last file:

- Damage before a valid block stays in place; its messages are counted and their offsets are not
  assigned again.
- So does a complete block with a valid header and an invalid body: its offsets are known.
- The bytes after the last of these are a torn tail: copied to a ``.bad`` file unless they are
  zeros, then cut off, and the cut is synced.
- A file without a valid block is started again with the base offset in its name. A damaged header
  alone loses nothing: the name has the base offset, the blocks have the tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.queue.blocks import (
    FILE_HEADER_BYTES,
    Damage,
    FileHeader,
    Found,
    LogBytes,
    encode_file_header,
    scan_blocks,
)
from penstock.storage.queue.log_files import LogWriter, OpenLog, log_file_name, make_tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.quarantine import Quarantine


@dataclass(frozen=True, slots=True)
class RecoveredTail:
    """The last log file, ready for writing."""

    writer: LogWriter
    next_offset: int
    last_time_ms: int


@dataclass(slots=True)
class _Scan:
    """The content of the last file."""

    end: int
    next_offset: int
    last_time_ms: int
    tag: int | None
    torn: Damage | None = None


def recover_tail(
    fs: FileSystem,
    folder: str,
    base_offset: int,
    quarantine: Quarantine,
    *,
    now_ms: int,
    max_bytes_per_file: int,
    on_block: Callable[[LogBytes, Found], None],
) -> RecoveredTail:
    """Open the last log file for writing, after cutting off an unfinished write of a crash.

    Args:
        fs: The file system.
        folder: The queue's folder.
        base_offset: The base offset of the last log file.
        quarantine: Receives reports of damage and of the torn tail.
        now_ms: The time for a header that must be written again.
        max_bytes_per_file: For the same.
        on_block: Called with each valid block, in order.

    Raises:
        InvalidRequest: The file has a newer format, or is not writable.
        Unavailable: Disk full or I/O error.
    """
    path = f"{folder}/{log_file_name(base_offset)}"
    with OpenLog(fs, path) as opened:
        log = opened.map(opened.size())
        scan = _scan(opened, log, base_offset, quarantine, on_block)
    anew = opened.header is None and scan.end <= FILE_HEADER_BYTES
    if scan.torn is not None:
        quarantine.record_torn_tail(
            base_offset, scan.torn.position, bytes(log.view[scan.torn.position :])
        )
    tag = make_tag(folder, base_offset, now_ms) if scan.tag is None else scan.tag
    header = FileHeader(base_offset, now_ms, max_bytes_per_file, tag)
    if not anew and scan.torn is None:
        return RecoveredTail(
            LogWriter(fs, path, header, scan.end), scan.next_offset, scan.last_time_ms
        )
    file = fs.open_append(path)
    try:
        if anew:
            file.truncate(0)
            file.writev([encode_file_header(header)])
        else:
            file.truncate(scan.end)
        file.sync()
    except BaseException:
        file.close()
        raise
    writer = LogWriter(fs, path, header, file.size, file)
    return RecoveredTail(writer, scan.next_offset, scan.last_time_ms)


def _scan(
    opened: OpenLog,
    log: LogBytes,
    base_offset: int,
    quarantine: Quarantine,
    on_block: Callable[[LogBytes, Found], None],
) -> _Scan:
    start = min(FILE_HEADER_BYTES, log.size) if opened.header is None else FILE_HEADER_BYTES
    created_ms = 0 if opened.header is None else opened.header.created_ms
    scan = _Scan(start, base_offset, created_ms, opened.tag)
    for item in scan_blocks(log, start, tag=opened.tag, expected=base_offset, limit=None):
        if isinstance(item, Found):
            on_block(log, item)
            scan.end = item.position + item.header.length
            scan.next_offset = item.header.end_offset
            scan.last_time_ms = item.header.append_time_ms
            scan.tag = item.header.tag
        elif item.next_offset is None:
            scan.torn = item
        else:
            quarantine.record(base_offset, log, item)
            scan.end = item.end
            scan.next_offset = item.next_offset
    if opened.header is None and scan.end == start and log.size:
        # No block and no header: the whole file is one torn tail.
        scan.torn = Damage(0, log.size, base_offset, None)
    return scan
