"""What task locks are made of: types, requests, locks and answers.

Owns the values alone, with the checks that need nothing but the value; `rules` says which of them
go together, `lockbox` who holds them. Invariants: everything here is immutable; no interval is
empty; a lock on single segments is EXCLUSIVE.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from penstock.core.intervals import Interval

APPEND_VERSION: Final = "1970-01-01T00:00:00.000Z"
"""Version of APPEND locks: older than any other, so an append never hides what is there."""


TASKS_NAMED_MAX: Final = 8
"""Tasks that the text of a refusal names for each lock."""


class LockType(StrEnum):
    """What else may be held for the same time; the table is in `docs/locks.md`."""

    EXCLUSIVE = "EXCLUSIVE"
    SHARED = "SHARED"
    REPLACE = "REPLACE"
    APPEND = "APPEND"
    KILL = "KILL"


class LockGranularity(StrEnum):
    """Whether a lock is on a time with all that lies in it, or on one segment."""

    TIME_CHUNK = "timeChunk"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True)
class LockTask:
    """A task, as far as locks go.

    Attributes:
        id: The task's id.
        group: Tasks of one group share their locks, and their fate.
        datasource: The one datasource that it may lock.
        priority: Higher ones take locks from lower ones.
        allocator_id: Whose pending segments it makes, shared by replicas; empty if it makes none.
        embedded_killer: Whether it is the overlord's own deletion of unused segments: KILL locks
            are for it alone.
    """

    id: str
    group: str
    datasource: str
    priority: int
    allocator_id: str = ""
    embedded_killer: bool = False

    def request(
        self,
        interval: Interval,
        type: LockType = LockType.EXCLUSIVE,  # noqa: A002 - the word of Druid's JSON
        *,
        granularity: LockGranularity = LockGranularity.TIME_CHUNK,
        version: str | None = None,
        partition_number: int | None = None,
    ) -> LockRequest:
        """Return this task's request for a lock. Raises as `LockRequest`."""
        return LockRequest(
            task_id=self.id,
            group=self.group,
            datasource=self.datasource,
            interval=interval,
            type=type,
            granularity=granularity,
            priority=self.priority,
            version=version,
            partition_number=partition_number,
        )


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One lock that a task asks for.

    Attributes:
        task_id: The task.
        group: Its group.
        datasource: The datasource.
        interval: The time.
        type: The lock's type.
        granularity: Time chunk, or one segment.
        priority: The task's priority.
        version: The version that the lock is to have; None lets the lockbox choose. A segment's
            own for a lock on it.
        partition_number: Which segment; None for time chunks, and for a segment that has no number
            yet, which can be compared with locks but not locked.

    Raises:
        InvalidRequest: An empty interval, a type that segments cannot be locked with, or a segment
            number for a time chunk.
    """

    task_id: str
    group: str
    datasource: str
    interval: Interval
    type: LockType = LockType.EXCLUSIVE
    granularity: LockGranularity = LockGranularity.TIME_CHUNK
    priority: int = 0
    version: str | None = None
    partition_number: int | None = None

    def __post_init__(self) -> None:
        if self.interval.is_empty:
            raise InvalidRequest(
                f"task {self.task_id!r} asks for a lock on the empty interval {self.interval}:"
                " give it an end after its start",
                place="interval",
            )
        if self.granularity is LockGranularity.TIME_CHUNK:
            if self.partition_number is not None:
                raise InvalidRequest(
                    "a time chunk lock has no partition number: leave it out, or ask for"
                    " granularity segment",
                    place="partitionId",
                )
        elif self.type is not LockType.EXCLUSIVE:
            raise InvalidRequest(
                f"a segment cannot be locked {self.type}: use EXCLUSIVE, or granularity timeChunk",
                place="type",
            )


@dataclass(frozen=True, slots=True)
class TaskLock:
    """A lock that one task, or several of one group, hold.

    Attributes:
        granularity: Time chunk, or one segment.
        type: What else may be held beside it.
        group: Whose it is.
        datasource: Of what.
        interval: The time.
        version: What segments written under it have, unless it is APPEND.
        priority: That of its tasks.
        revoked: Whether somebody with a higher priority took it away; its tasks still find it.
        partition_number: Which segment; None for time chunks.
        created_ms: Since when it is held.
    """

    granularity: LockGranularity
    type: LockType
    group: str
    datasource: str
    interval: Interval
    version: str
    priority: int
    revoked: bool = False
    partition_number: int | None = None
    created_ms: int = field(default=0, compare=False)

    def revoked_copy(self) -> TaskLock:
        """Return the same lock, revoked."""
        return replace(self, revoked=True)

    def __str__(self) -> str:
        what = f"{self.type} lock on {self.datasource} {self.interval}"
        if self.partition_number is not None:
            what += f", segment partition {self.partition_number},"
        revoked = ", revoked" if self.revoked else ""
        return (
            f"{what} of group {self.group!r}"
            f" (version {self.version}, priority {self.priority}{revoked})"
        )


@dataclass(frozen=True, slots=True)
class HeldLock:
    """That a task holds a lock: one stored row."""

    task_id: str
    lock: TaskLock


@dataclass(frozen=True, slots=True)
class LockChanges:
    """What must be stored, in one transaction, for memory and store to say the same.

    A row is found by its task and by all of the lock that never changes, as `store.row_key` has it.
    """

    added: tuple[HeldLock, ...] = ()
    replaced: tuple[HeldLock, ...] = ()
    removed: tuple[HeldLock, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.replaced or self.removed)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A lock that stands in the way, and all tasks that hold it: it goes with the last of them."""

    task_ids: tuple[str, ...]
    group: str
    type: LockType
    interval: Interval
    priority: int
    since_ms: int
    partition_number: int | None = None

    def text(self) -> str:
        """Return it as a sentence part: who holds what since when."""
        tasks = ", ".join(self.task_ids[:TASKS_NAMED_MAX])
        if len(self.task_ids) > TASKS_NAMED_MAX:
            tasks += f" and {len(self.task_ids) - TASKS_NAMED_MAX} more"
        segment = (
            "" if self.partition_number is None else f", segment partition {self.partition_number},"
        )
        return (
            f"{self.type} lock on {self.interval}{segment} held by {tasks} (group {self.group},"
            f" priority {self.priority}) since {format_time(self.since_ms)}"
        )


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock is held; `fresh` if the task did not hold it before."""

    lock: TaskLock
    fresh: bool


@dataclass(frozen=True, slots=True)
class Revoked:
    """The task or its group held it, and somebody took it away: abandon the work."""

    lock: TaskLock


@dataclass(frozen=True, slots=True)
class Refused:
    """Others hold what does not go with it: wait until they release it.

    Attributes:
        request: What was asked for.
        refusals: Some of the locks in the way, those that weigh most first.
        more: How many further ones there are.
    """

    request: LockRequest
    refusals: tuple[Refusal, ...]
    more: int = 0

    def text(self) -> str:
        """Return what the task waits for, as a sentence."""
        asked = self.request
        held = "; ".join(refusal.text() for refusal in self.refusals)
        more = f"; and {self.more} more" if self.more else ""
        segment = (
            ""
            if asked.partition_number is None
            else f", segment partition {asked.partition_number},"
        )
        return (
            f"{asked.type} lock on {asked.datasource} {asked.interval}{segment} with priority"
            f" {asked.priority} must wait for: {held}{more}"
        )


Outcome: TypeAlias = Granted | Revoked | Refused


@dataclass(frozen=True, slots=True)
class Removal:
    """What must be deleted elsewhere because a task ended.

    Attributes:
        task_id: The task.
        had_replace_lock: Whether its rows of upgrade segments must go.
        last_of_allocator: The allocator id whose pending segments must go, because no active task
            has it any more; None otherwise.
    """

    task_id: str
    had_replace_lock: bool = False
    last_of_allocator: str | None = None


@dataclass(frozen=True, slots=True)
class LockPolicy:
    """Who asks which times are locked for it.

    Attributes:
        datasource: The datasource.
        priority: Locks of a lower priority do not count: it could take them away.
        concurrent: Whether it would take REPLACE locks, which APPEND locks do not hinder.
    """

    datasource: str
    priority: int = 0
    concurrent: bool = False


class SegmentLike(Protocol):
    """What the coverage check must know of a segment; a `SegmentRow` is one."""

    @property
    def id(self) -> object:
        """Its name."""
        ...

    @property
    def interval(self) -> Interval:
        """Its time."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...

    @property
    def partition_number(self) -> int:
        """Its number."""
        ...
