"""Task groups of a supervisor: which stream partitions are read by which task, and from where.

Pure: records and choices, no I/O. Stream partition p belongs to group p mod taskCount. A group has
at most one task that reads, and any number that have agreed on their end and publish.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    """A task of a supervisor and what is known of it.

    Attributes:
        task: The task.
        phase: How far it is.
        since_ms: Since when it has a worker.
        heard_s: When it last answered, or had no worker that could.
        end: Its end, once agreed.
        deadline_s: When it must have published or read on.
        roll_asked: Whether somebody wants it to end now.
        report: What it last said.
        asking: Whether it is being asked how it stands.
    """

    task: StreamTaskSpec
    phase: GroupPhase
    since_ms: int
    heard_s: float
    end: Offsets | None = None
    deadline_s: float = math.inf
    roll_asked: bool = False
    report: TaskReport | None = None
    asking: bool = False

    @property
    def partitions(self) -> frozenset[int]:
        """The stream partitions it reads."""
        return frozenset(self.task.start_offsets)

    def begin(self, partition: int) -> int:
        """Return its first offset of one of its stream partitions."""
        return self.task.start_offsets[partition]

    @property
    def is_pending(self) -> bool:
        """Whether its end is agreed."""
        return self.phase is GroupPhase.PENDING


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Offsets that a new task is to read, up to `end`, or without one until it is told."""

    group_id: int
    start: Mapping[int, int]
    end: Mapping[int, int] | None = None

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """Where it starts, as a value to compare."""
        return tuple(sorted(self.start.items()))

    def gone(self, available: Mapping[int, Available]) -> dict[int, str]:
        """Return, for each stream partition that does not hold these offsets, what it holds.

        Messages before the start may have been deleted; a topic that ends before it was emptied or
        made anew, and other messages would get the offsets that were meant.
        """
        needed = self.start if self.end is None else self.end
        return {
            p: f"partition {p} goes on at {start}, but only {a.earliest} to {a.latest} is there"
            for p, start in sorted(self.start.items())
            if (a := available.get(p)) and not a.earliest <= start <= needed[p] <= a.latest
        }


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
    partitions: Iterable[int], committed: Offsets, groups: Iterable[TaskGroup], task_count: int
) -> list[StartPlan]:
    """Return the groups that need a task that reads, and from where each reads on.

    That is behind what pending groups will commit, or at what is committed.
    """
    groups = list(groups)
    partitions = [p for p in partitions if p in committed]
    read = {p for group in groups if not group.is_pending for p in group.partitions}
    plans = []
    for group_id in range(task_count):
        wanted = partitions_of(group_id, task_count, partitions)
        if not wanted or read & set(wanted):
            continue
        start = {
            p: max([committed[p], *(g.end[p] for g in groups if g.end is not None and p in g.end)])
            for p in wanted
        }
        plans.append(StartPlan(group_id, start))
    return plans


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that are not committed and that no task reads, though one reads on behind them."""

    plan: StartPlan
    follower: TaskGroup


def find_gaps(committed: Offsets, groups: Iterable[TaskGroup]) -> list[Gap]:
    """Return what a lost task left unpublished before the start of others.

    A task whose end is not known here may have agreed on one with an overlord before this one, so
    nothing behind its start is taken for a gap.
    """
    found: dict[str, tuple[TaskGroup, dict[int, int]]] = {}
    groups = list(groups)
    for p in sorted({p for group in groups for p in group.partitions}):
        readers = [group for group in groups if p in group.partitions]
        readers.sort(key=operator.methodcaller("begin", p))
        covered = committed.get(p, readers[0].begin(p))
        for group in readers:
            if group.begin(p) > covered:
                found.setdefault(group.task.id, (group, {}))[1][p] = covered
            covered = max(covered, sys.maxsize if group.end is None else group.end[p])
    return [
        Gap(StartPlan(group.task.group_id, begin, {p: group.begin(p) for p in begin}), group)
        for group, begin in found.values()
    ]
