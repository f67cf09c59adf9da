"""Which log files may go: behind every cursor, and outside the window. A pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one call of `retain` deleted, and the cursor that holds back the next file, if any."""

    files_deleted: int
    bytes_deleted: int
    earliest: int
    held_back_by: str | None


@dataclass(frozen=True, slots=True)
class RetentionChoice:
    """How many of the oldest files may go, and the cursor that keeps the next one."""

    files: int
    held_back_by: str | None


def choose_deletable(
    files: Sequence[tuple[int, int, int]],
    total_bytes: int,
    cursors: Mapping[str, int],
    *,
    retention_ms: int | None,
    retention_bytes: int | None,
    now_ms: int,
    newest_ms: Callable[[int], int],
) -> RetentionChoice:
    """Say how many of the oldest log files may be deleted.

    Args:
        files: (base offset, end offset, bytes), oldest first; only files that are full and synced.
        total_bytes: The size of the whole queue.
        cursors: Name and position of each.
        retention_ms: Files whose newest message is at least this old are outside; None: none is.
        retention_bytes: Files that make the queue larger than this are outside; None: none is.
        now_ms: The wall time.
        newest_ms: Gives the time of a file's newest message, by its index in `files`; asked only
            when it matters.
    """
    slowest = min(cursors, key=lambda name: cursors[name], default=None)
    for index, (_, end, size) in enumerate(files):
        too_large = retention_bytes is not None and total_bytes - size >= retention_bytes
        too_old = retention_ms is not None and now_ms - newest_ms(index) >= retention_ms
        if not (too_large or too_old):
            return RetentionChoice(index, None)
        if slowest is not None and cursors[slowest] < end:
            return RetentionChoice(index, slowest)
        total_bytes -= size
    return RetentionChoice(len(files), None)
