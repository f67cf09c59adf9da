"""Actions on published segments: list, hide and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.intervals import Interval
from penstock.indexing.actions.action_json import (
    intervals,
    objects,
    segment_from_json,
    strings,
)
from penstock.indexing.engine_json import whole_number
from penstock.storage.metadata import SegmentRow


@dataclass(frozen=True, slots=True)
class DatasourceList:
    """List the datasources with used segments or announced files that the task reads or writes."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "datasourceList"}

    def parse_result(self, value: object) -> tuple[str, ...]:
        """Read the answer: their names, sorted."""
        return tuple(strings(value))

    @classmethod
    def from_json(cls, _value: Mapping[str, object]) -> DatasourceList:
        """Read the JSON form."""
        return cls()


@dataclass(frozen=True, slots=True)
class RetrieveSegmentsById:
    """Return those of these segments that are published."""

    ids: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "retrieveSegmentsById", "segments": list(self.ids)}

    def parse_result(self, value: object) -> tuple[SegmentRow, ...]:
        """Read the answer."""
        return tuple(segment_from_json(item) for item in objects(value))

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> RetrieveSegmentsById:
        """Read the JSON form."""
        return cls(tuple(strings(value["segments"])))


@dataclass(frozen=True, slots=True)
class SegmentListUsed:
    """List the used segments that overlap any of the intervals, including hidden ones.

    Attributes:
        datasource: The task's datasource, or one of those that are its input.
        intervals: The intervals.
        replacing: Whether the task will replace the segments. Then segments that were appended
            under its REPLACE lock are left out, since its publish keeps them unchanged.
    """

    datasource: str
    intervals: tuple[Interval, ...]
    replacing: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        intervals = [str(interval) for interval in self.intervals]
        return {
            "type": "segmentListUsed",
            "dataSource": self.datasource,
            "intervals": intervals,
            "replacing": self.replacing,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentListUsed:
        """Read the JSON form."""
        found = intervals(value["intervals"])
        return cls(str(value["dataSource"]), found, value.get("replacing") is True)

    def parse_result(self, value: object) -> tuple[SegmentRow, ...]:
        """Read the answer."""
        return tuple(segment_from_json(item) for item in objects(value))


@dataclass(frozen=True, slots=True)
class SegmentListUnused:
    """List unused segments of the task's datasource that lie within an interval, oldest first.

    Attributes:
        interval: The interval.
        versions: Only segments of these versions; None: all.
        limit: Maximum number of segments.
        changed_before_ms: Only segments that have been unused since before this time.
    """

    interval: Interval
    versions: tuple[str, ...] | None = None
    limit: int | None = None
    changed_before_ms: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "type": "segmentListUnused",
            "interval": str(self.interval),
            "versions": None if self.versions is None else list(self.versions),
            "limit": self.limit,
            "maxUsedStatusLastUpdatedTime": self.changed_before_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentListUnused:
        """Read the JSON form."""
        versions, limit = value.get("versions"), value.get("limit")
        changed = value.get("maxUsedStatusLastUpdatedTime")
        if limit is not None and whole_number(limit) < 0:
            raise ValueError(f"limit {limit} is below 0")
        return cls(
            Interval.parse(str(value["interval"])),
            None if versions is None else tuple(strings(versions)),
            None if limit is None else whole_number(limit),
            None if changed is None else whole_number(changed),
        )

    def parse_result(self, value: object) -> tuple[SegmentRow, ...]:
        """Read the answer."""
        return tuple(segment_from_json(item) for item in objects(value))


@dataclass(frozen=True, slots=True)
class MarkSegmentsAsUnused:
    """Mark all used segments that lie within an interval unused."""

    interval: Interval

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "markSegmentsAsUnused", "interval": str(self.interval)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> MarkSegmentsAsUnused:
        """Read the JSON form."""
        return cls(Interval.parse(str(value["interval"])))

    def parse_result(self, value: object) -> int:
        """Read the answer: the number of marked segments."""
        return whole_number(value)


@dataclass(frozen=True, slots=True)
class MarkSegmentsToUpgrade:
    """Have the task's publish keep segments by adding them again under its version.

    Each must be used and lie within a REPLACE lock of the task.
    """

    ids: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "markSegmentsToUpgrade", "segments": list(self.ids)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> MarkSegmentsToUpgrade:
        """Read the JSON form."""
        return cls(tuple(strings(value["segments"])))

    def parse_result(self, value: object) -> int:
        """Read the answer: the number of these segments."""
        return whole_number(value)


@dataclass(frozen=True, slots=True)
class SegmentNuke:
    """Delete the rows of unused segments; used ones are kept.

    Rows are deleted before files, so no row names a deleted file. A file whose deletion is
    interrupted becomes an orphan.
    """

    ids: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"type": "segmentNuke", "segments": list(self.ids)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> SegmentNuke:
        """Read the JSON form."""
        return cls(tuple(strings(value["segments"])))

    def parse_result(self, value: object) -> tuple[SegmentRow, ...]:
        """Read the answer: the deleted rows whose files no other row names and may be deleted."""
        return tuple(segment_from_json(item) for item in objects(value))
