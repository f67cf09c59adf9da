"""Actions that ask for places: a version and a partition number of a time chunk each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.wire import intervals, objects
from penstock.indexing.filejson import whole_number


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A version and a partition number of a time chunk, kept for one part of a sequence."""

    interval: Interval
    version: str
    partition_number: int
    core_partitions: int


@dataclass(frozen=True, slots=True)
class SegmentAllocate:
    """Places for the parts of a sequence: for part n of a chunk, ask for the chunk n + 1 times.

    The same question gets the same answer, so a publish that was cut goes on under the same ids.
    """

    sequence_name: str
    intervals: tuple[Interval, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        intervals = [str(interval) for interval in self.intervals]
        name = self.sequence_name
        return {"type": "segmentAllocate", "sequenceName": name, "intervals": intervals}

    def parse_result(self, value: object) -> tuple[SegmentPlace, ...]:
        """Read the answer: one place for each interval."""
        return tuple(
            SegmentPlace(
                Interval.parse(str(item["interval"])),
                str(item["version"]),
                whole_number(item["partitionNumber"]),
                whole_number(item["corePartitions"]),
            )
            for item in objects(value)
        )

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentAllocate:
        """Read the JSON form."""
        return cls(str(value["sequenceName"]), intervals(value["intervals"]))


def place_to_json(place: SegmentPlace) -> dict[str, object]:
    """Return a place's JSON form."""
    return {
        "interval": str(place.interval),
        "version": place.version,
        "partitionNumber": place.partition_number,
        "corePartitions": place.core_partitions,
    }
