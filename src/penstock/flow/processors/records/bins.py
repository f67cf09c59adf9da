"""Plan of bins: which FlowFiles are merged together, and when. Does no I/O.

Owns the plan. Does not own FlowFiles, which stay in their queue until a bin is ready. A plan is
computed anew each time from the waiting FlowFiles, so that a restart loses no bin.

Invariants: a bin has the order of the queue. Every FlowFile is in at most one bin. A bin is within
both bounds, unless a single FlowFile exceeds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Waiting:
    """FlowFile that waits.

    Attributes:
        id: Its id.
        key: Correlation; equal for all FlowFiles of a bin.
        records: Number of its records, as far as known.
        size_bytes: Size of its content.
        since_ms: When it began to wait.
        index: Number of its part, if it is one of several.
        parts: Number of parts; 0: unknown.
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
    """Bounds that decide when a bin is ready, and when it is full.

    Attributes:
        min_records: Number of records at which a bin is ready, if it also has `min_bytes`.
        max_records: Number of records at which a bin is full.
        min_bytes: See `min_records`.
        max_bytes: Size at which a bin is full.
        max_age_ms: Wait of the oldest FlowFile after which a bin is ready; None: no limit.
        max_bins: Maximum number of waiting bins; beyond it the oldest is ready.
    """

    min_records: int
    max_records: int
    min_bytes: int
    max_bytes: int
    max_age_ms: int | None
    max_bins: int


@dataclass(slots=True)
class Bin:
    """FlowFiles that are merged together."""

    waiting: list[Waiting] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0

    @property
    def since_ms(self) -> int:
        """Return when its oldest FlowFile began to wait."""
        return min(one.since_ms for one in self.waiting)

    def add(self, one: Waiting) -> None:
        """Add a FlowFile."""
        self.waiting.append(one)
        self.records += one.records
        self.size_bytes += one.size_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Result of planning.

    Attributes:
        ready: Bins to merge.
        incomplete: Bins that did not become complete in time.
        due_ms: When the next bin is ready by its age; None: only new FlowFiles make one ready.
        waits: Whether FlowFiles continue to wait.
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
        waiting: Waiting FlowFiles in the order of the queue.
        bounds: When a bin is ready.
        now_ms: The time.
        must: Make one bin ready in any case, because the processor cannot see more FlowFiles.
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
    """Plan by parts: a bin is ready when all parts of one split FlowFile are present.

    Args:
        waiting: Waiting FlowFiles in the order of the queue; the key identifies the split FlowFile.
        bounds: Bounds for age and number of bins.
        now_ms: The time.
        must: As for `plan_bins`; the bin is then incomplete.
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
