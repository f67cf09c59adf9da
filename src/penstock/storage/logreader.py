"""Reading a queue's log files from any process, while its writer appends, rolls and deletes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class MessageSlice:
    """Messages that follow each other without a gap; a view of a mapped file."""

    base_offset: int
    messages: pa.BinaryArray
    append_time_ms: int


class OffsetsDeleted(NotFound):
    """The asked offsets were deleted by retention; `earliest` is what is left."""

    def __init__(self, message: str, earliest: int) -> None:
        super().__init__(message)
        self.earliest = earliest


def read_range(
    folder: str,
    start: int,
    end: int,
    *,
    max_block_bytes: int = 64 * 1024 * 1024,
    fs: FileSystem | None = None,
) -> Iterator[MessageSlice]:
    """Yield the messages of [start, end) that exist; a gap shows as a jump of `base_offset`."""
    raise NotImplementedError(folder, start, end, max_block_bytes, fs)
