"""The batches of one stream partition in memory, which its queue and its retention share.

Owns the batches, what they take, and the mutex around both. Does not own who adds (`queue`) and who
takes away (`retention`).

Invariants: offsets ascend, with gaps where batches went; an offset is given once.
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
        """Return the offset behind the last message."""
        return self.base + len(self.messages)


class Batches:
    """What there is of one queue. Whoever calls a method holds the mutex.

    It is held for the length of a list operation: readers beside the event loop must not see half
    of one.

    Attributes:
        mutex: Around all that follows.
        kept: The batches, oldest first; a list that is added to, or replaced, but never cut, so
            that it may be walked through without the mutex where none is added meanwhile. An append
            that raises takes its own batch back.
        latest: The offset that the next message gets.
        size_bytes: What all of them take.
    """

    __slots__ = ("kept", "latest", "mutex", "size_bytes")

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.kept: list[Batch] = []
        self.latest = 0
        self.size_bytes = 0

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        return self.kept[0].base if self.kept else self.latest

    def add(self, batch: Batch) -> None:
        """Let it be the newest."""
        self.kept.append(batch)
        self.size_bytes += batch.size_bytes
        self.latest += len(batch.messages)

    def take_back(self, base: int) -> None:
        """Let the newest batch not have been added, if it begins at this offset."""
        if self.kept and self.kept[-1].base == base:
            self.size_bytes -= self.kept.pop().size_bytes
            self.latest = base

    def keep(self, batches: list[Batch]) -> None:
        """Let go of all others."""
        self.kept = batches
        self.size_bytes = sum(batch.size_bytes for batch in batches)
