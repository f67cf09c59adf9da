"""Task groups of a supervisor: which stream partitions are read by which tasks, and from where.

Pure: records and choices, no I/O. Stream partition p belongs to group p mod taskCount. A group has
at most one task group that reads, and any number that have agreed on their end and publish.

The tasks of a task group are replicas: they have one base sequence name, begin and end at the same
offsets, and cut their sequences at the same checkpoints; so they would publish the same, and the
first that does is enough. A replica that lags behind what the others agreed is brought up to it;
one that contradicts it is ended.
"""

from __future__ import annotations

import math
import operator
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batches import Available
    from penstock.indexing.ports import TaskReport
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import StreamTaskSpec


class GroupPhase(Enum):
    """How far a task group is.

    UNKNOWN: its tasks were found, and none has said yet how it stands. READING. ROLLING: its tasks
    are being told an end, of theirs or of their open sequence. PENDING: its end is agreed, it
    publishes.
    """

    UNKNOWN = "unknown"
    READING = "reading"
    ROLLING = "rolling"
    PENDING = "pending"


@dataclass(slots=True)
class Replica:
    """One task of a task group.

    Attributes:
        task: The task.
        heard_s: When it last answered, or had no worker that could.
        since_ms: Since when it has a worker.
        has_worker: Whether it has one.
        report: What it last said.
        waits: Dependencies that it waits for, as its worker reported last.
        asking: Whether it is being asked how it stands.
        catching_up: Whether it is being told what the others have agreed.
    """

    task: StreamTaskSpec
    heard_s: float
    since_ms: int
    has_worker: bool = False
    report: TaskReport | None = None
    waits: tuple[DependencyWait, ...] = ()
    asking: bool = False
    catching_up: bool = False

    @property
    def progress(self) -> tuple[bool, int]:
        """How far it is, to be compared with other replicas of its group."""
        return self.has_worker, sum(self.report.current.values()) if self.report else -1


@dataclass(slots=True)
class TaskGroup:
    """Tasks that do the same, and what is agreed with them.

    Attributes:
        task: One of them, as it was made: all others differ only in name, first sequence and
            server priority.
        phase: How far it is.
        since_ms: Since when it reads.
        checkpoints: Where its sequences begin, by number.
        end: Its end, once agreed.
        deadline_s: When it must have published or read on.
        roll_asked: Whether somebody wants it to end now.
        replicas: The active tasks, by id.
    """

    task: StreamTaskSpec
    phase: GroupPhase
    since_ms: int
    checkpoints: dict[int, Offsets] = field(default_factory=dict)
    end: Offsets | None = None
    deadline_s: float = math.inf
    roll_asked: bool = False
    replicas: dict[str, Replica] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The base sequence name, which its tasks have in common."""
        return self.task.base_sequence_name

    @property
    def group_id(self) -> int:
        """Which group of stream partitions it reads."""
        return self.task.group_id

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

    @property
    def is_repair(self) -> bool:
        """Whether it makes up for a task that was lost: its end was known from the start."""
        return self.task.end_offsets is not None

    @property
    def is_unassigned(self) -> bool:
        """Whether none of its tasks has a worker."""
        return not any(replica.has_worker for replica in self.replicas.values())

    @property
    def persisted(self) -> dict[int, int]:
        """Up to where its tasks have persisted, the furthest for each stream partition."""
        reached = dict(self.task.start_offsets)
        for replica in self.replicas.values():
            for p, offset in (replica.report.persisted if replica.report else {}).items():
                reached[p] = max(offset, reached.get(p, 0))
        return reached

    @property
    def newest(self) -> int:
        """The number of its newest sequence."""
        return max(self.checkpoints)

    def add(self, task: StreamTaskSpec, now_s: float, now_ms: int) -> Replica:
        """Take in one more task, and the checkpoints that it was made with."""
        replica = Replica(task, now_s, now_ms)
        self.replicas[task.id] = replica
        self.learn(task.checkpoints or {0: task.start_offsets})
        return replica

    def learn(self, checkpoints: Mapping[int, Offsets]) -> None:
        """Note where sequences begin, as a task says; what is known stays."""
        for number, start in checkpoints.items():
            self.checkpoints.setdefault(number, dict(start))

    def lags(self, replica: Replica) -> bool:
        """Whether a replica does not know yet all that is agreed, or contradicts it."""
        report = replica.report
        if report is None:
            return False
        if any(
            number in self.checkpoints and dict(start) != dict(self.checkpoints[number])
            for number, start in report.checkpoints.items()
        ):
            return True
        if report.end is not None:
            return False  # One that ends elsewhere does so because its stream is gone.
        return self.end is not None or max(report.checkpoints, default=0) < self.newest

    def to_join(self, committed: Offsets) -> dict[int, Offsets]:
        """Return the checkpoints that a replica begins with which joins now.

        Its first sequence is the one that begins at the committed offsets: what lies before is
        published. If none does, it is the oldest that may be unpublished: to publish one again
        changes nothing.
        """
        first = self.newest
        while first - 1 in self.checkpoints and not self._begins_at(first, committed):
            first -= 1
        return {number: self.checkpoints[number] for number in range(first, self.newest + 1)}

    def turnover(self, wanted: Iterable[int]) -> Turnover:
        """Return what makes its replicas those that are wanted, each named by its priority.

        Which priorities there are is told by the replicas alone: one that was lost before anybody
        saw it lacks again. Of those of one priority the ones that are furthest stay.
        """
        missing, surplus = Counter(wanted), list[str]()
        by_progress = sorted(self.replicas.items(), key=lambda one: one[1].progress, reverse=True)
        for task_id, replica in by_progress:
            if missing[replica.task.server_priority] > 0:
                missing[replica.task.server_priority] -= 1
            else:
                surplus.append(task_id)
        return Turnover(tuple(sorted(missing.elements(), reverse=True)), tuple(surplus))

    def is_at_end_with(self, turnover: Turnover) -> bool:
        """Whether a turnover would end its work: nobody who has a worker would stay."""
        staying = (r for task_id, r in self.replicas.items() if task_id not in turnover.surplus)
        return not self.is_unassigned and not any(replica.has_worker for replica in staying)

    def _begins_at(self, number: int, committed: Offsets) -> bool:
        return all(committed.get(p) == offset for p, offset in self.checkpoints[number].items())


@dataclass(frozen=True, slots=True)
class Turnover:
    """Which replicas of a group are to come and to go.

    Attributes:
        missing: The server priorities that no replica has, the highest first.
        surplus: The ids of the tasks that nobody wants any more.
    """

    missing: tuple[int, ...]
    surplus: tuple[str, ...]


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

    def up_to(self, ends: Offsets) -> StartPlan | None:
        """Return the part of it that lies before these ends, None if there is none."""
        start = {p: offset for p, offset in self.start.items() if offset < ends.get(p, 0)}
        return StartPlan(self.group_id, start, {p: ends[p] for p in start}) if start else None

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
                found.setdefault(group.name, (group, {}))[1][p] = covered
            covered = max(covered, sys.maxsize if group.end is None else group.end[p])
    return [
        Gap(StartPlan(group.group_id, begin, {p: group.begin(p) for p in begin}), group)
        for group, begin in found.values()
    ]
