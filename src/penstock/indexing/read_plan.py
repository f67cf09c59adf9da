"""The next batch that a streaming task reads: a pure choice from offsets, without I/O.

With a backlog a batch is as large as the limits allow, so that one persist writes files of
published quality; otherwise it contains all new messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.indexing.sequences import Offsets, TaskSequences


@dataclass(frozen=True, slots=True)
class AvailableRange:
    """The readable part of one stream partition: durable messages below `latest`.

    `message_bytes` is the mean size of a message if known, else 0.
    """

    folder: str
    earliest: int
    latest: int
    message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic at one moment: its id, and the readable part of each stream partition.

    A topic that is deleted and created again under its name has another `id`, and its offsets start
    again. Empty: the broker has no ids.

    Attributes:
        id: The id.
        partitions: The stream partitions.
        skipped: The files of a folder that are not read, by path, and the reason of each.
    """

    id: str
    partitions: Mapping[int, AvailableRange]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def is_another(self, topic_id: str) -> bool:
        """Return whether this is certainly not the topic with that id; an empty id may be any."""
        return bool(self.id and topic_id and self.id != topic_id)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Offsets [start, end) of one sequence that are persisted together, all partitions named."""

    sequence: str
    start: Offsets
    end: Offsets

    @property
    def messages(self) -> int:
        """Number of offsets in it."""
        return sum(self.end[p] - self.start[p] for p in self.start)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits for the size of a batch."""

    max_rows: int
    max_bytes: int


def next_batch(
    sequences: TaskSequences,
    current: Offsets,
    available: Mapping[int, AvailableRange],
    limits: BatchLimits,
) -> ReadBatch | None:
    """Return the next batch, None if there is nothing to read.

    The oldest sequence with unread messages comes first, because it is published first.
    """
    for sequence in sequences.items:
        left = {
            p: sequence.left(p, current[p], available[p].latest) if p in available else 0
            for p in sequence.start
        }
        if any(left.values()):
            takes = _share(left, available, limits)
            end = {p: current[p] + takes[p] for p in left}
            return ReadBatch(sequence.name, dict(current), end)
        if not sequence.is_read(current):
            return None  # Its rest has not arrived, and nothing after it may be read before it.
    return None


def _share(
    left: Mapping[int, int], available: Mapping[int, AvailableRange], limits: BatchLimits
) -> dict[int, int]:
    """Reduce the rest to the limits, in proportion; at least one message."""
    rows = sum(left.values())
    size = sum(n * available[p].message_bytes for p, n in left.items() if n)
    share = min(1.0, limits.max_rows / rows, limits.max_bytes / size if size else 1.0)
    if share >= 1.0:
        return dict(left)
    takes = {p: int(n * share) for p, n in left.items()}
    if not any(takes.values()):
        largest = max(left, key=lambda p: left[p])
        takes[largest] = 1
    return takes
