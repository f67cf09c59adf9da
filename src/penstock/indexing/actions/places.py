"""Actions that ask for places: a version and a partition number of a time chunk each.

A file may go into a segment of a larger time chunk than its own, but not into several: a task asks
first how the rows of its time chunks have to be divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.wire import intervals, objects
from penstock.indexing.filejson import whole_number


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A version and a partition number of a time chunk, kept for one part of a sequence.

    `minor_version` is 0 but for a segment that rewrites others of its version.
    """

    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    minor_version: int = 0


@dataclass(frozen=True, slots=True)
class SegmentDivision:
    """Of each time chunk the times whose rows must not share a segment.

    That is the time chunk itself, unless segments of finer chunks, or of some that cross its ends,
    are visible in it. The answer holds until somebody publishes there.
    """

    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "segmentDivision", "intervals": [str(one) for one in self.intervals]}

    def parse_result(self, value: object) -> tuple[tuple[Interval, ...], ...]:
        """Read the answer: for each interval one or more, in order, which are all of it."""
        return tuple(intervals(item["times"]) for item in objects(value))

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentDivision:
        """Read the JSON form."""
        return cls(intervals(value["intervals"]))


@dataclass(frozen=True, slots=True)
class SegmentAllocate:
    """Places for the parts of a sequence: for part n of a chunk, ask for the chunk n + 1 times.

    A place has the time chunk of the segments that are visible at the interval, which may be
    larger. An interval that has to be divided is refused with Conflict. The same question gets the
    same answer while nobody publishes there, so a publish that was cut goes on under the same ids.

    Attributes:
        sequence_name: Whose places they are.
        intervals: One for each.
        by_segment: Each place is locked by itself; else its time chunk is, as the context says.
        rewrites: They are for segments that rewrite others of their version, locked by themselves.
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

    def parse_result(self, value: object) -> tuple[SegmentPlace, ...]:
        """Read the answer: one place for each interval."""
        return tuple(
            SegmentPlace(
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


def place_to_json(place: SegmentPlace) -> dict[str, object]:
    """Return a place's JSON form."""
    return {
        "interval": str(place.interval),
        "version": place.version,
        "partitionNumber": place.partition_number,
        "corePartitions": place.core_partitions,
        "minorVersion": place.minor_version,
    }
