"""Division of offset ranges into splits that are read in parallel. Pure.

Invariants: the splits together contain every message of the ranges once; the same ranges and limits
result in the same splits, so that names made from a split's ranges are stable across attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Messages [start, end) of a stream partition whose log files are in `folder`.

    `size` is the approximate number of bytes; it only decides where ranges are divided. Messages
    outside of log files have a location in `folder`, too (see `record_locations`); for another
    service, `properties` has the settings of the client, which are not shown because they contain
    secrets.
    """

    partition: int
    folder: str
    start: int
    end: int
    size: int = 0
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)


Split = tuple[SourceRange, ...]


def cut(ranges: Sequence[SourceRange], most: int, least_bytes: int) -> list[Split]:
    """Return at most `most` splits of about equal size, none much smaller than `least_bytes`.

    Small ranges share a split, because one small job is faster than several tiny ones.
    """
    full = [r for r in ranges if r.start < r.end]
    total = sum(r.size for r in full)
    count = max(1, min(most, total // max(1, least_bytes)))
    goal = total / count
    splits: list[Split] = []
    current: list[SourceRange] = []
    room = goal
    for whole in full:
        rest = whole
        while rest.size > room and len(splits) < count - 1:
            head, rest = _cut_at(rest, room)
            if head is not None:
                current.append(head)
            splits.append(tuple(current))
            current, room = [], goal
        current.append(rest)
        room -= rest.size
    if current:
        splits.append(tuple(current))
    return [split for split in splits if split]


def _cut_at(whole: SourceRange, size: float) -> tuple[SourceRange | None, SourceRange]:
    """Divide a range so that the head has about `size` bytes; no head for less than a message."""
    messages = int((whole.end - whole.start) * size / whole.size)
    messages = min(messages, whole.end - whole.start - 1)
    if messages <= 0:
        return None, whole
    middle = whole.start + messages
    head_size = int(whole.size * messages / (whole.end - whole.start))
    head = replace(whole, end=middle, size=head_size)
    return head, replace(whole, start=middle, size=whole.size - head_size)
