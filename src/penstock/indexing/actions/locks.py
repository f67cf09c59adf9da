"""Actions on locks: a task asks for time, lists what it holds, lets go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.wire import intervals, objects, strings
from penstock.indexing.filejson import whole_number


@dataclass(frozen=True, slots=True)
class TaskLockView:
    """A lock that a task holds, as it hears of it; a revoked one is of no use any more."""

    interval: Interval
    type: str
    version: str
    priority: int
    revoked: bool
    partition_number: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        of_segment = {} if self.partition_number is None else {"partitionId": self.partition_number}
        return {
            "interval": str(self.interval),
            "type": self.type,
            "version": self.version,
            "priority": self.priority,
            "revoked": self.revoked,
            **of_segment,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TaskLockView:
        """Read the JSON form."""
        number = value.get("partitionId")
        return cls(
            Interval.parse(str(value["interval"])),
            str(value["type"]),
            str(value["version"]),
            whole_number(value["priority"]),
            bool(value["revoked"]),
            None if number is None else whole_number(number),
        )


@dataclass(frozen=True, slots=True)
class LockedSegment:
    """Which segment a lock is on."""

    interval: Interval
    version: str
    partition_number: int

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "interval": str(self.interval),
            "version": self.version,
            "partitionId": self.partition_number,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LockedSegment:
        """Read the JSON form."""
        return cls(
            Interval.parse(str(value["interval"])),
            str(value["version"]),
            whole_number(value["partitionId"]),
        )


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """All that was asked for is locked, or nothing new is; `refused` says who is in the way."""

    locks: tuple[TaskLockView, ...]
    refused: tuple[str, ...] = ()

    @property
    def granted(self) -> bool:
        """Whether the task holds what it asked for."""
        return not self.refused

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"locks": [lock.to_json() for lock in self.locks], "refused": list(self.refused)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LockAnswer:
        """Read the JSON form."""
        locks = tuple(TaskLockView.from_json(item) for item in objects(value["locks"]))
        return cls(locks, tuple(strings(value["refused"])))


@dataclass(frozen=True, slots=True)
class LockTryAcquire:
    """Lock intervals or segments now, all of them or none.

    Which type a lock on an interval has follows from the task's context.

    Attributes:
        intervals: Aligned to time chunks and condensed.
        appends: Whether the task adds to what is there, and replaces nothing.
        segments: What is locked one by one.
        exclusive: Locks on intervals are EXCLUSIVE, as those on segments are.
    """

    intervals: tuple[Interval, ...]
    appends: bool = False
    segments: tuple[LockedSegment, ...] = ()
    exclusive: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "type": "lockTryAcquire",
            "intervals": [str(interval) for interval in self.intervals],
            "appends": self.appends,
            "segments": [segment.to_json() for segment in self.segments],
            "exclusive": self.exclusive,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LockTryAcquire:
        """Read the JSON form."""
        return cls(
            intervals(value["intervals"]),
            value.get("appends") is True,
            tuple(LockedSegment.from_json(item) for item in objects(value.get("segments", []))),
            value.get("exclusive") is True,
        )

    def parse_result(self, value: object) -> LockAnswer:
        """Read the answer."""
        (item,) = objects([value])
        return LockAnswer.from_json(item)


@dataclass(frozen=True, slots=True)
class LockList:
    """The locks that the task holds, revoked ones too."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "lockList"}

    @classmethod
    def from_json(cls, _value: Mapping[str, object]) -> LockList:
        """Read the JSON form."""
        return cls()

    def parse_result(self, value: object) -> tuple[TaskLockView, ...]:
        """Read the answer."""
        return tuple(TaskLockView.from_json(item) for item in objects(value))


@dataclass(frozen=True, slots=True)
class LockRelease:
    """Let go of the lock on exactly this interval; one that is not held is fine."""

    interval: Interval

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "lockRelease", "interval": str(self.interval)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LockRelease:
        """Read the JSON form."""
        return cls(Interval.parse(str(value["interval"])))

    def parse_result(self, value: object) -> None:
        """Read the answer, which says nothing."""
