"""Task groups of a supervisor: which stream partitions are read by which task, and from where.

Pure: records and choices, no I/O. Stream partition p belongs to group p mod taskCount. A group has
at most one task that reads, and any number that have agreed on their end and publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.indexing.batches import Available
    from penstock.indexing.ports import TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import StreamTaskSpec


class GroupPhase(Enum):
    """How far a task group is.

    UNKNOWN: its task was found, and has not said yet how it stands. READING. ROLLING: it is being
    told its end. PENDING: its end is agreed, it publishes.
    """

    UNKNOWN = "unknown"
    READING = "reading"
    ROLLING = "rolling"
    PENDING = "pending"


@dataclass(slots=True)
class TaskGroup:
    """A task of a supervisor and what is known of it."""

    task: StreamTaskSpec
    phase: GroupPhase
    since_ms: int
    end: Offsets | None = None
    deadline_ms: int = 0
    roll_asked: bool = False
    report: TaskReport | None = None
    asking: bool = False

    @property
    def partitions(self) -> frozenset[int]:
        """The stream partitions it reads."""
        return frozenset(self.task.start_offsets)

    @property
    def is_pending(self) -> bool:
        """Whether its end is agreed."""
        return self.phase is GroupPhase.PENDING


@dataclass(frozen=True, slots=True)
class StartPlan:
    """From where a new group reads, or why it cannot."""

    group_id: int
    start: Mapping[int, int]
    gone: Mapping[int, Available] = field(default_factory=dict)


def partitions_of(group_id: int, task_count: int, partitions: Iterable[int]) -> tuple[int, ...]:
    """Return the stream partitions of one group."""
    return tuple(p for p in sorted(partitions) if p % task_count == group_id)


def first_offsets(
    available: Mapping[int, Available], committed: Offsets | None, *, earliest: bool
) -> dict[int, int]:
    """Return where stream partitions begin that have no committed offset.

    One that appears after the first discovery begins at its earliest message: what came to it
    before it was seen is new to everybody.
    """
    known = committed or {}
    return {
        p: a.earliest if earliest or committed is not None else a.latest
        for p, a in available.items()
        if p not in known
    }


def plan_starts(
    available: Mapping[int, Available],
    committed: Offsets,
    groups: Iterable[TaskGroup],
    task_count: int,
) -> list[StartPlan]:
    """Return the groups that need a task that reads, and from where each reads on.

    That is behind what pending groups will commit, or at what is committed.
    """
    groups = list(groups)
    read = {p for group in groups if not group.is_pending for p in group.partitions}
    plans = []
    for group_id in range(task_count):
        partitions = partitions_of(group_id, task_count, available.keys() & committed.keys())
        if not partitions or read & set(partitions):
            continue
        start = {
            p: max([committed[p], *(g.end[p] for g in groups if g.end is not None and p in g.end)])
            for p in partitions
        }
        gone = {
            p: available[p]
            for p in partitions
            if not available[p].earliest <= start[p] <= available[p].latest
        }
        plans.append(StartPlan(group_id, start, gone))
    return plans


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that are not committed and that no task reads, though one reads on behind them."""

    group_id: int
    start: Mapping[int, int]
    end: Mapping[int, int]


def find_gaps(committed: Offsets, groups: Iterable[TaskGroup]) -> list[Gap]:
    """Return what a lost task left unpublished before the start of others."""
    found: list[Gap] = []
    groups = sorted(groups, key=lambda group: sorted(group.task.start_offsets.items()))
    covered = dict(committed)
    for group in groups:
        start = group.task.start_offsets
        # A task that started below what is committed covers what follows, up to its end.
        missing = {p: o for p, o in start.items() if o > covered.get(p, o)}
        if missing:
            begin = {p: covered[p] for p in missing}
            found.append(Gap(group.task.group_id, begin, missing))
        for p in start:
            end = group.end[p] if group.end is not None and p in group.end else None
            covered[p] = max(covered.get(p, 0), start[p] if end is None else end)
    return found
