"""The batches of one stream partition in memory, shared by its queue and its retention.

Owns the batches, their size, and the mutex for both. Does not own adding (`queue`) and deleting
(`retention`).

Invariants: offsets ascend, with gaps after deletions; an offset is assigned once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa


class Batch(NamedTuple):
    """Messages that were appended together; the first one has the offset `base`."""

    base: int
    messages: pa.BinaryArray
    time_ms: int
    due_ms: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the offset after the last message."""
        return self.base + len(self.messages)


class Batches:
    """Batches of one queue. Callers of its methods must hold the mutex.

    It is held for the duration of a list operation: readers on other threads must not see a part
    of one.

    Attributes:
        mutex: Guards the other attributes.
        kept: The batches, oldest first; the list is appended to or replaced, but never shortened,
            so that it may be iterated without the mutex where no thread appends meanwhile. An
            append that raises removes its own batch.
        latest: The offset that the next message gets.
        size_bytes: Total size of the batches.
    """

    __slots__ = ("kept", "latest", "mutex", "size_bytes")

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.kept: list[Batch] = []
        self.latest = 0
        self.size_bytes = 0

    @property
    def earliest(self) -> int:
        """Return the offset of the first kept message."""
        return self.kept[0].base if self.kept else self.latest

    def add(self, batch: Batch) -> None:
        """Append a batch."""
        self.kept.append(batch)
        self.size_bytes += batch.size_bytes
        self.latest += len(batch.messages)

    def take_back(self, base: int) -> None:
        """Remove the newest batch, if it begins at this offset."""
        if self.kept and self.kept[-1].base == base:
            self.size_bytes -= self.kept.pop().size_bytes
            self.latest = base

    def keep(self, batches: list[Batch]) -> None:
        """Keep only these batches."""
        self.kept = batches
        self.size_bytes = sum(batch.size_bytes for batch in batches)
