"""Task groups of a supervisor: which tasks read which stream partitions, and from which offsets.

Pure: records and decisions, no I/O. Stream partition p belongs to group p mod taskCount. A group
has at most one task group that reads, and any number that have agreed on their end and publish.
`TASK_GROUP_MACHINE` has the states of a task group; `task_protocol` carries out its effects.

The tasks of a task group are replicas: they have the same base sequence name, start and end
offsets, and checkpoints. They would publish the same, so the first publish suffices. A replica that
lags behind the agreed checkpoints is brought up to them; one that contradicts them is ended.
"""

from __future__ import annotations

import math
import operator
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Row, StateMachine, Symbol, go

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskReport
    from penstock.indexing.read_plan import AvailableRange
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task_spec import StreamTaskSpec


class GroupState(Symbol):
    """State of a task group."""

    UNKNOWN = "unknown"
    """Its tasks were found or started, and none has reported yet."""
    READING = "reading"
    ROLLING = "rolling"
    """Its tasks agree on their end."""
    CHECKPOINTING = "checkpointing"
    """Its tasks agree on the end of their open sequence."""
    AGREEING_LATE = "agreeing late"
    """A task reported an end while its tasks agree on one: they may still be paused."""
    PUBLISHING = "publishing"
    """The end of its tasks is agreed. It never reads beyond that."""
    ENDED = "ended"
    """Its last task has ended."""


class GroupEvent(Symbol):
    """Event of a task group."""

    FOUND_PAUSED = "the first report of a task says that it is paused"
    REPORTED = "a task reported, and has no end"
    END_KNOWN = "a task has an end"
    PROGRESSED = "a task has persisted more"
    UNASSIGNED = "no task has a worker"
    LAGGING = "a task lacks what its replicas agreed"
    END_WANTED = "it must end, and tasks can be called"
    NOT_NEEDED = "the supervisor stops, and no task has a worker"
    CHECKPOINT_WANTED = "its open sequence is full, and tasks can be called"
    END_AGREED = "a task accepted the end that its replicas agreed on"
    END_NOT_AGREED = "no task accepted an end"
    CHECKPOINT_AGREED = "a task accepted the end of its open sequence"
    CHECKPOINT_NOT_AGREED = "no task accepted an end of its open sequence"
    SPARE = "a task has no worker, a replica has one"
    OVERDUE = "a task answered after the deadline"
    SUCCEEDED = "a task succeeded"
    EMPTY = "its last task has ended"


class GroupEffect(Symbol):
    """Effect of an event of a task group."""

    SET_END = "set its end"
    ADD_CHECKPOINT = "add the start of the next sequence"
    SET_DEADLINE = "restart the time in which it must publish or make progress"
    RESTART_DURATION = "restart the time in which it reads"
    RESUME_TASK = "let the task continue: the overlord that paused it ended before an agreement"
    CATCH_UP = "send lagging tasks what their replicas agreed"
    AGREE_ON_END = "pause its tasks and send all the furthest offsets as their end"
    AGREE_ON_CHECKPOINT = "as AGREE_ON_END, for the end of the open sequence"
    END_REFUSING_TASKS = "end tasks that refused what was agreed"
    END_SPARE_TASKS = "end tasks without a worker"
    END_OVERDUE_TASKS = "end its tasks, because they have not published in time"
    END_UNNEEDED_TASKS = "end its tasks, because they have not begun"
    END_REPLICAS = "end its other tasks, because all is published"
    NOTE_ERRORS = "record errors of the agreement"
    RECONCILE = "run a round of the reconciler"


_S = GroupState
_F = GroupEffect
_READS: Final = (_S.UNKNOWN, _S.READING)
_AGREES: Final = (_S.ROLLING, _S.CHECKPOINTING)
_HAS_END: Final = (_S.AGREEING_LATE, _S.PUBLISHING)
_AGREED: Final = (_F.END_REFUSING_TASKS, _F.RECONCILE)
_CHECKPOINT_AGREED: Final = (_F.NOTE_ERRORS, _F.ADD_CHECKPOINT, _F.END_REFUSING_TASKS)

TASK_GROUP_MACHINE: Final = StateMachine[GroupState, GroupEvent, GroupEffect](
    GroupState,
    {
        GroupEvent.FOUND_PAUSED: Row(
            # In other states, the agreement that paused it is running, and lets it continue.
            {state: go(state, _F.RESUME_TASK) for state in (*_READS, _S.PUBLISHING)},
            IGNORED,
        ),
        GroupEvent.REPORTED: Row({_S.UNKNOWN: go(_S.READING)}, IGNORED),
        GroupEvent.END_KNOWN: Row(
            {
                **{state: go(_S.PUBLISHING, _F.SET_END, _F.SET_DEADLINE) for state in _READS},
                # The agreement continues, because it has paused tasks.
                **{state: go(_S.AGREEING_LATE, _F.SET_END, _F.SET_DEADLINE) for state in _AGREES},
            },
            # An agreed end never changes.
            IGNORED,
        ),
        GroupEvent.PROGRESSED: Row(
            {state: go(state, _F.SET_DEADLINE) for state in _HAS_END}, IGNORED
        ),
        GroupEvent.UNASSIGNED: Row(
            {
                **{state: go(state, _F.RESTART_DURATION) for state in (*_READS, *_AGREES)},
                **{state: go(state, _F.RESTART_DURATION, _F.SET_DEADLINE) for state in _HAS_END},
            },
            otherwise=IMPOSSIBLE,
        ),
        # Tasks that agree on an end get it from the agreement.
        GroupEvent.LAGGING: Row(
            {state: go(state, _F.CATCH_UP) for state in (*_READS, _S.PUBLISHING)},
            IGNORED,
        ),
        GroupEvent.END_WANTED: Row({_S.READING: go(_S.ROLLING, _F.AGREE_ON_END)}, IGNORED),
        GroupEvent.NOT_NEEDED: Row({_S.UNKNOWN: go(_S.UNKNOWN, _F.END_UNNEEDED_TASKS)}, IGNORED),
        # The request of a task may reach a new overlord before the first report does.
        GroupEvent.CHECKPOINT_WANTED: Row(
            {state: go(_S.CHECKPOINTING, _F.AGREE_ON_CHECKPOINT) for state in _READS},
            IGNORED,
        ),
        # During an agreement, a report may have set the end, or the last task may have ended.
        GroupEvent.END_AGREED: Row(
            {
                _S.ROLLING: go(_S.PUBLISHING, _F.SET_END, _F.SET_DEADLINE, *_AGREED),
                _S.AGREEING_LATE: go(_S.PUBLISHING, *_AGREED),
                _S.ENDED: go(_S.ENDED, *_AGREED),
            },
            otherwise=IMPOSSIBLE,
        ),
        GroupEvent.END_NOT_AGREED: Row(
            {
                _S.ROLLING: go(_S.READING, _F.NOTE_ERRORS),
                _S.AGREEING_LATE: go(_S.PUBLISHING, _F.NOTE_ERRORS),
                _S.ENDED: go(_S.ENDED, _F.NOTE_ERRORS),
            },
            otherwise=IMPOSSIBLE,
        ),
        GroupEvent.CHECKPOINT_AGREED: Row(
            {
                _S.CHECKPOINTING: go(_S.READING, *_CHECKPOINT_AGREED),
                _S.AGREEING_LATE: go(_S.PUBLISHING, *_CHECKPOINT_AGREED),
                _S.ENDED: go(_S.ENDED, *_CHECKPOINT_AGREED),
            },
            otherwise=IMPOSSIBLE,
        ),
        GroupEvent.CHECKPOINT_NOT_AGREED: Row(
            {
                _S.CHECKPOINTING: go(_S.READING, _F.NOTE_ERRORS),
                _S.AGREEING_LATE: go(_S.PUBLISHING, _F.NOTE_ERRORS),
                _S.ENDED: go(_S.ENDED, _F.NOTE_ERRORS),
            },
            otherwise=IMPOSSIBLE,
        ),
        GroupEvent.SPARE: Row(
            {state: go(state, _F.END_SPARE_TASKS) for state in _HAS_END}, IGNORED
        ),
        GroupEvent.OVERDUE: Row(
            {state: go(state, _F.END_OVERDUE_TASKS) for state in _HAS_END}, otherwise=IMPOSSIBLE
        ),
        GroupEvent.SUCCEEDED: Row(
            {state: go(state, _F.END_REPLICAS) for state in GroupState if state is not _S.ENDED},
            IGNORED,
        ),
        GroupEvent.EMPTY: Row(
            {state: go(_S.ENDED) for state in GroupState if state is not _S.ENDED},
            otherwise=IMPOSSIBLE,
        ),
    },
    initial=(_S.UNKNOWN,),
    final=(_S.ENDED,),
)


@dataclass(slots=True)
class Replica:
    """One task of a task group.

    Attributes:
        task: The task.
        heard_s: Time of its last answer, or the last time at which it had no worker.
        since_ms: Time at which it got its worker.
        has_worker: Whether it has a worker.
        report: Its last report.
        waits: Dependencies that it waits for, from its worker's last report.
        report_requested: Whether a request for a report is running.
        catching_up: Whether it is being sent what the others have agreed.
    """

    task: StreamTaskSpec
    heard_s: float
    since_ms: int
    has_worker: bool = False
    report: TaskReport | None = None
    waits: tuple[DependencyWait, ...] = ()
    report_requested: bool = False
    catching_up: bool = False

    @property
    def progress(self) -> tuple[bool, int]:
        """Sort key for comparing progress with other replicas of the group."""
        return self.has_worker, sum(self.report.current.values()) if self.report else -1


@dataclass(slots=True)
class TaskGroup:
    """Tasks that do the same work, and the agreements with them.

    Attributes:
        task: One of them, as created: the others differ only in name, first sequence and server
            priority.
        state: Its state.
        since_ms: Time at which it began to read.
        checkpoints: Start offsets of its sequences, by number.
        end: Its end offsets, once agreed.
        deadline_s: Time by which it must have published or made progress.
        roll_requested: Whether it should end now.
        replicas: The active tasks, by id.
    """

    task: StreamTaskSpec
    state: GroupState
    since_ms: int
    checkpoints: dict[int, Offsets] = field(default_factory=dict)
    end: Offsets | None = None
    deadline_s: float = math.inf
    roll_requested: bool = False
    replicas: dict[str, Replica] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The base sequence name that its tasks share."""
        return self.task.base_sequence_name

    @property
    def group_id(self) -> int:
        """The number of its group of stream partitions."""
        return self.task.group_id

    @property
    def partitions(self) -> frozenset[int]:
        """The stream partitions that it reads."""
        return frozenset(self.task.start_offsets)

    def begin(self, partition: int) -> int:
        """Return its first offset in one of its stream partitions."""
        return self.task.start_offsets[partition]

    @property
    def is_publishing(self) -> bool:
        """Whether its end is agreed."""
        return self.state in _HAS_END

    @property
    def is_ending(self) -> bool:
        """Whether it counts against `stopTaskCount`: it publishes, or agrees on an end."""
        return self.state in _AGREES or self.state in _HAS_END

    @property
    def is_repair(self) -> bool:
        """Whether it replaces a lost task, so that its end was known from the start."""
        return self.task.end_offsets is not None

    @property
    def is_unassigned(self) -> bool:
        """Whether none of its tasks has a worker."""
        return not any(replica.has_worker for replica in self.replicas.values())

    @property
    def waiting_tasks(self) -> tuple[str, ...]:
        """The ids of its tasks without a worker."""
        return tuple(task_id for task_id, one in self.replicas.items() if not one.has_worker)

    @property
    def persisted(self) -> dict[int, int]:
        """The furthest offsets that its tasks have persisted, by stream partition."""
        reached = dict(self.task.start_offsets)
        for replica in self.replicas.values():
            for p, offset in (replica.report.persisted if replica.report else {}).items():
                reached[p] = max(offset, reached.get(p, 0))
        return reached

    @property
    def newest(self) -> int:
        """The number of its newest sequence."""
        return max(self.checkpoints)

    def on(self, event: GroupEvent) -> tuple[GroupEffect, ...]:
        """Change its state after an event; return the effects to carry out, in order."""
        outcome = TASK_GROUP_MACHINE.transition(self.state, event)
        assert not isinstance(outcome, Refusal), "no event of a group is a request"
        self.state = outcome.state
        return outcome.effects

    def add(self, task: StreamTaskSpec, now_s: float, now_ms: int) -> Replica:
        """Add a task, and the checkpoints with which it was created."""
        replica = Replica(task, now_s, now_ms)
        self.replicas[task.id] = replica
        self.learn(task.checkpoints or {0: task.start_offsets})
        return replica

    def learn(self, checkpoints: Mapping[int, Offsets]) -> None:
        """Add start offsets of sequences that a task reports; known ones are kept."""
        for number, start in checkpoints.items():
            self.checkpoints.setdefault(number, dict(start))

    def lags(self, replica: Replica) -> bool:
        """Return whether a replica lacks an agreed checkpoint or end, or contradicts one."""
        report = replica.report
        if report is None:
            return False
        if any(
            number in self.checkpoints and dict(start) != dict(self.checkpoints[number])
            for number, start in report.checkpoints.items()
        ):
            return True
        if report.end is not None:
            return False  # A replica that ends elsewhere does so because its stream was lost.
        return self.end is not None or max(report.checkpoints, default=0) < self.newest

    def to_join(self, committed: Offsets) -> dict[int, Offsets]:
        """Return the checkpoints of a replica that joins now.

        Its first sequence is the one that starts at the committed offsets, because all earlier ones
        are published. If there is none, it is the oldest that may be unpublished; publishing one
        again changes nothing.
        """
        first = self.newest
        while first - 1 in self.checkpoints and not self._begins_at(first, committed):
            first -= 1
        return {number: self.checkpoints[number] for number in range(first, self.newest + 1)}

    def replica_changes(self, wanted: Iterable[int]) -> ReplicaChanges:
        """Return which replicas to start and end, given the required server priorities.

        Only existing replicas count, so one that was lost before it was seen is missing again.
        Among replicas of one priority, those with the most progress stay.
        """
        missing, surplus = Counter(wanted), list[str]()
        by_progress = sorted(self.replicas.items(), key=lambda one: one[1].progress, reverse=True)
        for task_id, replica in by_progress:
            if missing[replica.task.server_priority] > 0:
                missing[replica.task.server_priority] -= 1
            else:
                surplus.append(task_id)
        return ReplicaChanges(tuple(sorted(missing.elements(), reverse=True)), tuple(surplus))

    def is_at_end_with(self, changes: ReplicaChanges) -> bool:
        """Return whether changes would end its work: no replica with a worker would stay."""
        staying = (r for task_id, r in self.replicas.items() if task_id not in changes.surplus)
        return not self.is_unassigned and not any(replica.has_worker for replica in staying)

    def _begins_at(self, number: int, committed: Offsets) -> bool:
        return all(committed.get(p) == offset for p, offset in self.checkpoints[number].items())


@dataclass(frozen=True, slots=True)
class ReplicaChanges:
    """Replicas of a group to start and to end.

    Attributes:
        missing: The server priorities that no replica has, highest first.
        surplus: The ids of tasks that are no longer needed.
    """

    missing: tuple[int, ...]
    surplus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Start offsets of a new task, and its end offsets, if known."""

    group_id: int
    start: Mapping[int, int]
    end: Mapping[int, int] | None = None

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """The start offsets as a comparable value."""
        return tuple(sorted(self.start.items()))

    def up_to(self, ends: Offsets) -> StartPlan | None:
        """Return the part of the plan before these ends, None if it is empty."""
        start = {p: offset for p, offset in self.start.items() if offset < ends.get(p, 0)}
        return StartPlan(self.group_id, start, {p: ends[p] for p in start}) if start else None

    def gone(self, available: Mapping[int, AvailableRange]) -> dict[int, str]:
        """Describe the stream partitions that do not hold the planned offsets.

        Messages before the start may have been deleted. If the topic ends before the planned
        offsets, it was emptied or created again, and other messages would get these offsets.
        """
        needed = self.start if self.end is None else self.end
        return {
            p: f"partition {p} continues at {start}, but holds only {a.earliest} to {a.latest}"
            for p, start in sorted(self.start.items())
            if (a := available.get(p)) and not a.earliest <= start <= needed[p] <= a.latest
        }


def partitions_of(group_id: int, task_count: int, partitions: Iterable[int]) -> tuple[int, ...]:
    """Return the stream partitions of a group."""
    return tuple(p for p in sorted(partitions) if p % task_count == group_id)


def first_offsets(
    available: Mapping[int, AvailableRange], committed: Offsets | None, *, earliest: bool
) -> dict[int, int]:
    """Return the first offsets of stream partitions without a committed offset.

    A stream partition that appears after the first discovery starts at its earliest message,
    because none of its messages has been read.
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
    """Return plans for the groups that lack a reading task.

    Each starts at the end of its publishing groups, or at the committed offsets.
    """
    groups = list(groups)
    partitions = [p for p in partitions if p in committed]
    read = {p for group in groups if not group.is_publishing for p in group.partitions}
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
class OffsetGap:
    """Offsets that are not committed and that no task reads, before the start of a follower."""

    plan: StartPlan
    follower: TaskGroup


def find_gaps(committed: Offsets, groups: Iterable[TaskGroup]) -> list[OffsetGap]:
    """Return the gaps that lost tasks left before the start of other tasks.

    A task without a known end may have agreed on one with a former overlord, so offsets after its
    start are never considered a gap.
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
        OffsetGap(StartPlan(group.group_id, begin, {p: group.begin(p) for p in begin}), group)
        for group, begin in found.values()
    ]
