"""What a streaming task reads next: a pure choice from offsets, no I/O.

Under backlog a batch is as large as the limits allow, so that one persist writes files of published
quality; when the task has caught up it is whatever is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.indexing.sequences import Offsets, Sequences


@dataclass(frozen=True, slots=True)
class Available:
    """What can be read of one stream partition: durable messages below `latest`.

    `message_bytes` is the mean size of a message when it is known, else 0.
    """

    folder: str
    earliest: int
    latest: int
    message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A topic at one look: which one it is, and what can be read of each stream partition.

    A topic that is deleted and made again under its name has another `id`, and its offsets begin
    anew. Empty: the broker gives none.
    """

    id: str
    partitions: Mapping[int, Available]

    def is_another(self, topic_id: str) -> bool:
        """Whether this is surely not the topic with that id; an empty id may be any."""
        return bool(self.id and topic_id and self.id != topic_id)


@dataclass(frozen=True, slots=True)
class Batch:
    """Offsets [start, end) of one sequence that are persisted together, all partitions named."""

    sequence: str
    start: Offsets
    end: Offsets

    @property
    def messages(self) -> int:
        """How many offsets it spans."""
        return sum(self.end[p] - self.start[p] for p in self.start)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may become."""

    max_rows: int
    max_bytes: int


def next_batch(
    sequences: Sequences,
    current: Offsets,
    available: Mapping[int, Available],
    limits: BatchLimits,
) -> Batch | None:
    """Return what to read next, None when nothing is there.

    The oldest sequence that has something unread comes first, since it is published first.
    """
    for sequence in sequences.items:
        left = {
            p: sequence.left(p, current[p], available[p].latest) if p in available else 0
            for p in sequence.start
        }
        if any(left.values()):
            takes = _share(left, available, limits)
            end = {p: current[p] + takes[p] for p in left}
            return Batch(sequence.name, dict(current), end)
        if not sequence.is_read(current):
            return None  # Its rest is not there yet, and nothing after it may be read before it.
    return None


def _share(
    left: Mapping[int, int], available: Mapping[int, Available], limits: BatchLimits
) -> dict[int, int]:
    """Cut what is left down to the limits, in proportion; never to nothing."""
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
