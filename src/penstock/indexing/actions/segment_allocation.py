"""Actions that allocate segment ids: a version and a partition number in a time chunk each.

A file may become a segment of a larger time chunk than its own, but only of one. So a task first
requests how to divide the rows of its time chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.action_json import intervals, objects
from penstock.indexing.engine_json import whole_number


@dataclass(frozen=True, slots=True)
class AllocatedSegment:
    """A pending segment: version and partition number in a time chunk, for one part of a sequence.

    `minor_version` is 0 except for a segment that rewrites others of its version.
    """

    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    minor_version: int = 0


@dataclass(frozen=True, slots=True)
class SegmentDivision:
    """Divide time chunks into intervals whose rows must not share a segment.

    A time chunk is not divided unless segments of finer chunks, or of chunks that cross its ends,
    are visible in it. The answer is valid until another task publishes there.
    """

    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "segmentDivision", "intervals": [str(one) for one in self.intervals]}

    def parse_result(self, value: object) -> tuple[tuple[Interval, ...], ...]:
        """Read the answer: for each interval its parts, in order, without gaps."""
        return tuple(intervals(item["times"]) for item in objects(value))

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentDivision:
        """Read the JSON form."""
        return cls(intervals(value["intervals"]))


@dataclass(frozen=True, slots=True)
class SegmentAllocate:
    """Allocate segment ids for a sequence: for n parts of a time chunk, repeat the chunk n times.

    The time chunk of an id is that of the segments visible at the interval, which may be larger. An
    interval that must be divided is refused with Conflict. A repeated request gets the same ids
    until another task publishes there, so an interrupted publish continues with the same ids.

    Attributes:
        sequence_name: The sequence that the ids belong to.
        intervals: Intervals, one for each id.
        by_segment: Whether each segment is locked, not its time chunk as the context specifies.
        rewrites: Whether the segments rewrite others of their version and are locked individually.
    """

    sequence_name: str
    intervals: tuple[Interval, ...]
    by_segment: bool = False
    rewrites: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        intervals = [str(interval) for interval in self.intervals]
        name = self.sequence_name
        return {
            "type": "segmentAllocate",
            "sequenceName": name,
            "intervals": intervals,
            "lockGranularity": "segment" if self.by_segment else "timeChunk",
            "rewrites": self.rewrites,
        }

    def parse_result(self, value: object) -> tuple[AllocatedSegment, ...]:
        """Read the answer: one pending segment for each interval."""
        return tuple(
            AllocatedSegment(
                Interval.parse(str(item["interval"])),
                str(item["version"]),
                whole_number(item["partitionNumber"]),
                whole_number(item["corePartitions"]),
                whole_number(item.get("minorVersion", 0)),
            )
            for item in objects(value)
        )

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentAllocate:
        """Read the JSON form."""
        return cls(
            str(value["sequenceName"]),
            intervals(value["intervals"]),
            by_segment=value.get("lockGranularity") == "segment",
            rewrites=value.get("rewrites") is True,
        )


def allocated_to_json(place: AllocatedSegment) -> dict[str, object]:
    """Return a pending segment's JSON form."""
    return {
        "interval": str(place.interval),
        "version": place.version,
        "partitionNumber": place.partition_number,
        "corePartitions": place.core_partitions,
        "minorVersion": place.minor_version,
    }
