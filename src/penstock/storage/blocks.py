"""Framing of blocks and log files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Messages [start, end) of one stream partition."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """A batch of messages as it lies on disk; `messages` and `raw` are views of the same bytes."""

    base_offset: int
    count: int
    append_time_ms: int
    messages: pa.BinaryArray
    raw: memoryview
