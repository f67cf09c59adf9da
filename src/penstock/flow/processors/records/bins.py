"""Which FlowFiles are merged with which, and when. Pure.

Owns the plan. Does not own FlowFiles, which stay in their queue until a bin is ready; so a plan is
made anew each time from what waits there, and a restart loses no bin.

Invariants: order within a bin is that of what waits; every FlowFile is in at most one bin; a bin is
within both bounds, unless a single FlowFile is over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """A FlowFile that waits.

    Attributes:
        id: Its id.
        key: What is the same in all of a bin.
        records: How many it has, as far as is known.
        size_bytes: Of its content.
        since_ms: When it began to wait.
        index: Which part it is, if it is one of several.
        parts: How many parts there are; 0: not known.
    """

    id: int
    key: str
    records: int
    size_bytes: int
    since_ms: int
    index: int = 0
    parts: int = 0


@dataclass(frozen=True, slots=True)
class BinBounds:
    """When a bin is ready, and when it is full.

    Attributes:
        min_records: Ready with so many, if it has `min_bytes`, too.
        max_records: Full with so many.
        min_bytes: See `min_records`.
        max_bytes: Full with so many.
        max_age_ms: Ready when its oldest waited for so long; None: however long.
        max_bins: So many wait; of more the oldest is ready.
    """

    min_records: int
    max_records: int
    min_bytes: int
    max_bytes: int
    max_age_ms: int | None
    max_bins: int


@dataclass(slots=True)
class Bin:
    """FlowFiles that are merged."""

    waiting: list[Waiting] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0

    @property
    def since_ms(self) -> int:
        """Return when its oldest began to wait."""
        return min(one.since_ms for one in self.waiting)

    def add(self, one: Waiting) -> None:
        """Put one in."""
        self.waiting.append(one)
        self.records += one.records
        self.size_bytes += one.size_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now.

    Attributes:
        ready: Bins to merge.
        incomplete: Bins that never became complete, and waited too long.
        due_ms: When the next is ready by its age; None: only by what comes.
        waits: Whether anything waits on.
    """

    ready: list[Bin]
    incomplete: list[Bin]
    due_ms: int | None
    waits: bool


def plan_bins(
    waiting: Sequence[Waiting], bounds: BinBounds, now_ms: int, *, must: bool = False
) -> Plan:
    """Plan by number, size and age.

    Args:
        waiting: In the order of the queue.
        bounds: When a bin is ready.
        now_ms: The time.
        must: One is to be ready in any case: no more are seen than those that wait.
    """
    ready: list[Bin] = []
    opened: dict[str, Bin] = {}
    for one in waiting:
        current = opened.get(one.key)
        if current is not None and (
            current.records + one.records > bounds.max_records
            or current.size_bytes + one.size_bytes > bounds.max_bytes
        ):
            ready.append(opened.pop(one.key))
            current = None
        if current is None:
            current = opened[one.key] = Bin()
        current.add(one)
        if current.records >= bounds.max_records or current.size_bytes >= bounds.max_bytes:
            ready.append(opened.pop(one.key))
    left: list[Bin] = []
    for one_bin in opened.values():
        enough = one_bin.records >= bounds.min_records and one_bin.size_bytes >= bounds.min_bytes
        (ready if enough or _is_old(one_bin, bounds, now_ms) else left).append(one_bin)
    left.sort(key=lambda one_bin: one_bin.since_ms)
    over = max(len(left) - bounds.max_bins, int(must and not ready))
    ready += left[:over]
    return Plan(ready, [], _due_ms(left[over:], bounds), waits=bool(left[over:]))


def plan_parts(
    waiting: Sequence[Waiting], bounds: BinBounds, now_ms: int, *, must: bool = False
) -> Plan:
    """Plan by parts: a bin is ready when all parts of what was split are there, in their order.

    Args:
        waiting: In the order of the queue; the key names what was split.
        bounds: Of age and number of bins.
        now_ms: The time.
        must: As for `plan_bins`; it is incomplete then.
    """
    opened: dict[str, Bin] = {}
    for one in waiting:
        opened.setdefault(one.key, Bin()).add(one)
    ready, incomplete, left = list[Bin](), list[Bin](), list[Bin]()
    for one_bin in opened.values():
        parts = max(one.parts for one in one_bin.waiting)
        if parts and {one.index for one in one_bin.waiting} >= set(range(parts)):
            one_bin.waiting.sort(key=lambda one: one.index)
            ready.append(one_bin)
        else:
            (incomplete if _is_old(one_bin, bounds, now_ms) else left).append(one_bin)
    left.sort(key=lambda one_bin: one_bin.since_ms)
    over = max(len(left) - bounds.max_bins, int(must and not ready and not incomplete))
    incomplete += left[:over]
    return Plan(ready, incomplete, _due_ms(left[over:], bounds), waits=bool(left[over:]))


def _is_old(one_bin: Bin, bounds: BinBounds, now_ms: int) -> bool:
    return bounds.max_age_ms is not None and one_bin.since_ms + bounds.max_age_ms <= now_ms


def _due_ms(left: Sequence[Bin], bounds: BinBounds) -> int | None:
    if bounds.max_age_ms is None or not left:
        return None
    return min(one_bin.since_ms for one_bin in left) + bounds.max_age_ms
