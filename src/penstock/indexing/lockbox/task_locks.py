"""Value types of task locks: types, tasks, requests and results.

Owns the values and the checks that need only the value. `lock_rules` defines which locks are
compatible, `lockbox` which tasks hold them.

Invariants: all values are immutable; no interval is empty; a lock on single segments is
EXCLUSIVE.
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
"""Version of APPEND locks: older than any other, so an append never hides existing segments."""


TASKS_NAMED_MAX: Final = 8
"""Maximum number of tasks that the text of a refusal names for each lock."""


class LockType(StrEnum):
    """Type of a lock, which determines what conflicts with it; the table is in `docs/locks.md`."""

    EXCLUSIVE = "EXCLUSIVE"
    SHARED = "SHARED"
    REPLACE = "REPLACE"
    APPEND = "APPEND"
    KILL = "KILL"


class LockGranularity(StrEnum):
    """Whether a lock is on an interval with all its segments, or on one segment."""

    TIME_CHUNK = "timeChunk"
    SEGMENT = "segment"


@dataclass(frozen=True, slots=True)
class LockTask:
    """The properties of a task that matter for locks.

    Attributes:
        id: The task's id.
        group: Its task group. Tasks of one group share their locks, and fail together if one is
            lost.
        datasource: The one datasource that it may lock.
        priority: A higher priority revokes locks of a lower one.
        allocator_id: Owner of its pending segments, shared by replicas; empty if it allocates none.
        embedded_killer: Whether it is the overlord's own deletion of unused segments, the only task
            that may have KILL locks.
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
    """A task's request for one lock.

    Attributes:
        task_id: The task.
        group: Its group.
        datasource: The datasource.
        interval: The interval.
        type: The lock's type.
        granularity: Time chunk, or one segment.
        priority: The task's priority.
        version: The version of the lock; None lets the lockbox choose. A lock on a segment has the
            segment's version.
        partition_number: The segment's partition number; None for time chunks, and for a segment
            without a number yet, which can be compared with locks but not locked.

    Raises:
        InvalidRequest: The interval is empty, segments cannot have a lock of this type, or a time
            chunk has a partition number.
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
                f"task {self.task_id!r} requests a lock on the empty interval {self.interval}:"
                " give it an end after its start",
                place="interval",
            )
        if self.granularity is LockGranularity.TIME_CHUNK:
            if self.partition_number is not None:
                raise InvalidRequest(
                    "a lock on a time chunk has no partition number: leave it out, or use"
                    " granularity segment",
                    place="partitionId",
                )
        elif self.type is not LockType.EXCLUSIVE:
            raise InvalidRequest(
                f"a segment lock cannot be {self.type}: use EXCLUSIVE, or granularity timeChunk",
                place="type",
            )


@dataclass(frozen=True, slots=True)
class TaskLock:
    """A lock that is held by one task, or by several tasks of one group.

    Attributes:
        granularity: Time chunk, or one segment.
        type: Determines what conflicts with it.
        group: The group that holds it.
        datasource: The locked datasource.
        interval: The locked interval.
        version: The version of segments written under it, unless it is APPEND.
        priority: The priority of its tasks.
        revoked: Whether a task with a higher priority took it; its holders keep it, revoked.
        partition_number: The segment's partition number; None for time chunks.
        created_ms: When it was granted.
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
    """A lock and one task that holds it: one stored row."""

    task_id: str
    lock: TaskLock


@dataclass(frozen=True, slots=True)
class LockChanges:
    """Changes to store in one transaction, so that the store matches memory.

    A row is identified by its task and the immutable properties of the lock, as in
    `store.row_key`.
    """

    added: tuple[HeldLock, ...] = ()
    replaced: tuple[HeldLock, ...] = ()
    removed: tuple[HeldLock, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.replaced or self.removed)


@dataclass(frozen=True, slots=True)
class LockRefusal:
    """A conflicting lock, and all tasks that hold it; the lock ends with the last of them."""

    task_ids: tuple[str, ...]
    group: str
    type: LockType
    interval: Interval
    priority: int
    since_ms: int
    partition_number: int | None = None

    def text(self) -> str:
        """Return a description of the lock, its holders and its start time."""
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
class LockGranted:
    """The lock is granted; `fresh` if the task did not hold it before."""

    lock: TaskLock
    fresh: bool


@dataclass(frozen=True, slots=True)
class Revoked:
    """The task or its group held the lock, and another task revoked it: abandon the work."""

    lock: TaskLock


@dataclass(frozen=True, slots=True)
class LockRefused:
    """Other groups hold conflicting locks: wait until they release them.

    Attributes:
        request: The request.
        refusals: Some of the conflicting locks, highest priority first.
        more: Number of further ones.
    """

    request: LockRequest
    refusals: tuple[LockRefusal, ...]
    more: int = 0

    def text(self) -> str:
        """Return a description of the locks that the task waits for."""
        request = self.request
        held = "; ".join(refusal.text() for refusal in self.refusals)
        more = f"; and {self.more} more" if self.more else ""
        segment = (
            ""
            if request.partition_number is None
            else f", segment partition {request.partition_number},"
        )
        return (
            f"{request.type} lock on {request.datasource} {request.interval}{segment} with priority"
            f" {request.priority} must wait for: {held}{more}"
        )


LockOutcome: TypeAlias = LockGranted | Revoked | LockRefused


@dataclass(frozen=True, slots=True)
class TaskRemoval:
    """Data to delete elsewhere because a task ended.

    Attributes:
        task_id: The task.
        had_replace_lock: Whether to delete its rows of upgrade segments.
        last_of_allocator: The allocator id whose pending segments to delete, because no active task
            has it any longer; None otherwise.
    """

    task_id: str
    had_replace_lock: bool = False
    last_of_allocator: str | None = None


@dataclass(frozen=True, slots=True)
class LockPolicy:
    """Properties of a future lock request that determine which locks conflict with it.

    Attributes:
        datasource: The datasource.
        priority: Locks of a lower priority are ignored, because the request would revoke them.
        concurrent: Whether the request is for REPLACE locks, which do not conflict with APPEND.
    """

    datasource: str
    priority: int = 0
    concurrent: bool = False


class SegmentLike(Protocol):
    """The properties of a segment that the coverage check needs; a `SegmentRow` is one."""

    @property
    def id(self) -> object:
        """Its id."""
        ...

    @property
    def interval(self) -> Interval:
        """Its interval."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...

    @property
    def partition_number(self) -> int:
        """Its partition number."""
        ...
