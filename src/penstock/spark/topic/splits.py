"""Cutting offset ranges into splits that are read at the same time. Pure.

Invariants: the splits together hold every message of the ranges once; the same ranges and limits
give the same splits, so that what is named by a split's ranges keeps its name in a later attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Messages [start, end) of a stream partition whose log files are in `folder`.

    `size` is about how many bytes they have; it only decides where ranges are cut. What is not in
    log files has its place in `folder` all the same (see `places`), and if it is in another service
    the settings of the client in `properties`: they hold secrets, so they are not shown.
    """

    partition: int
    folder: str
    start: int
    end: int
    size: int = 0
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)


Split = tuple[SourceRange, ...]


def cut(ranges: Sequence[SourceRange], most: int, least_bytes: int) -> list[Split]:
    """Return at most `most` splits of about equal size, none much under `least_bytes`.

    Small ranges share a split: one small job is quicker than several tiny ones.
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
    """Cut a range so that the head has about `size` bytes; no head if that is no message."""
    messages = int((whole.end - whole.start) * size / whole.size)
    messages = min(messages, whole.end - whole.start - 1)
    if messages <= 0:
        return None, whole
    middle = whole.start + messages
    head_size = int(whole.size * messages / (whole.end - whole.start))
    head = replace(whole, end=middle, size=head_size)
    return head, replace(whole, start=middle, size=whole.size - head_size)
