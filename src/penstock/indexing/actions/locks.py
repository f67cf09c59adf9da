"""Actions on locks: acquire, list and release locks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.action_json import intervals, objects, strings
from penstock.indexing.engine_json import whole_number


@dataclass(frozen=True, slots=True)
class TaskLockView:
    """A task's lock as reported to the task; a revoked one is no longer valid."""

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
    """A segment to lock."""

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
    """All requested locks, or no new ones; `refused` describes the conflicting locks."""

    locks: tuple[TaskLockView, ...]
    refused: tuple[str, ...] = ()

    @property
    def granted(self) -> bool:
        """Whether the task holds all requested locks."""
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

    The task's context determines the type of a lock on an interval.

    Attributes:
        intervals: Intervals to lock, aligned to time chunks and condensed.
        appends: Whether the task only adds to existing segments and replaces nothing.
        segments: Segments to lock individually.
        exclusive: Whether locks on intervals are EXCLUSIVE, as those on segments are.
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
    """List the locks that the task holds, including revoked ones."""

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
    """Release the lock on exactly this interval; does nothing if the task does not hold it."""

    interval: Interval

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "lockRelease", "interval": str(self.interval)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> LockRelease:
        """Read the JSON form."""
        return cls(Interval.parse(str(value["interval"])))

    def parse_result(self, value: object) -> None:
        """Read the answer, which has no value."""
