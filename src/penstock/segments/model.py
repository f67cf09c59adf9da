"""Segments and their names.

Owns the text form of segment ids and the JSON form of segments (Druid's names, plus `columns`). It
does not say which segments are visible. Invariants: everything here is immutable; a text that was
parsed prints as the same text; segments are equal, and ordered, by their ids alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, format_time, parse_time
from penstock.storage.metadata import SegmentRow

BINARY_VERSION = 9
PARTITION_NUMBER_MAX = 2**31 - 1

ShardKind: TypeAlias = Literal["numbered", "tombstone"]


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Datasource, interval, version and partition number; ordered by them in this order.

    Its text is ``datasource_start_end_version``, and ``_partition`` behind it unless that is 0.
    """

    datasource: str
    interval: Interval
    version: str
    partition_number: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.datasource}_{format_time(self.interval.start_ms)}"
            f"_{format_time(self.interval.end_ms)}_{self.version}"
        )
        return f"{text}_{self.partition_number}" if self.partition_number else text

    @classmethod
    def parse(cls, text: str, datasource: str | None = None) -> SegmentId:
        """Return the most probable reading of a text.

        Raises:
            InvalidRequest: It is no segment id, or none of this datasource.
        """
        readings = cls.possible_readings(text, datasource)
        if not readings:
            of = f" of datasource {datasource!r}" if datasource is not None else ""
            raise InvalidRequest(
                f"{text!r} is no segment id{of}: write datasource_start_end_version[_partition]"
            )
        return readings[0]

    @classmethod
    def possible_readings(cls, text: str, datasource: str | None = None) -> list[SegmentId]:
        """Return every id whose text this is, the most probable first.

        Names and versions may contain ``_``: the last number may be a partition or the end of the
        version, and without the datasource its end may be in several places.
        """
        if datasource is not None:
            prefix = f"{datasource}_"
            return cls._read(datasource, text[len(prefix) :]) if text.startswith(prefix) else []
        readings: list[SegmentId] = []
        # Leftmost first: a version is often a time, a part of a datasource's name hardly ever.
        at = text.find("_", 1)
        while at != -1:
            readings.extend(cls._read(text[:at], text[at + 1 :]))
            at = text.find("_", at + 1)
        return readings

    @classmethod
    def _read(cls, datasource: str, rest: str) -> list[SegmentId]:
        """Read what follows the datasource."""
        start, _, rest = rest.partition("_")
        end, _, version = rest.partition("_")
        interval = _canonical_interval(start, end)
        if interval is None or not version or not datasource:
            return []
        # One string for all segments of a datasource or version: there may be very many.
        name = sys.intern(datasource)
        readings = []
        shorter, _, number = version.rpartition("_")
        if shorter and number.isascii() and number.isdigit() and number[0] != "0":
            partition_number = int(number[:11])
            if partition_number <= PARTITION_NUMBER_MAX:
                readings.append(cls(name, interval, sys.intern(shorter), partition_number))
        readings.append(cls(name, interval, sys.intern(version), 0))
        return readings


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """A segment's place among those of its interval and version.

    The numbers 0 to `core_partitions` - 1 belong together: none is visible before all are there.
    Higher numbers were appended later. A tombstone stands alone, has no data, and hides what is
    older.
    """

    partition_number: int = 0
    core_partitions: int = 0
    kind: ShardKind = "numbered"

    def to_json(self) -> dict[str, object]:
        """Return Druid's JSON form."""
        return {
            "type": self.kind,
            "partitionNum": self.partition_number,
            "partitions": self.core_partitions,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> ShardSpec:
        """Read Druid's JSON form.

        Raises:
            InvalidRequest: A kind that Penstock does not make.
        """
        kind = value.get("type")
        if kind == "tombstone":
            return cls(kind="tombstone")
        if kind != "numbered":
            raise InvalidRequest(
                f"shard spec {kind!r} is not supported: use numbered", place="shardSpec.type"
            )
        return cls(_whole(value, "partitionNum"), _whole(value, "partitions"))


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A published slice of a datasource, and how to fetch its file.

    `columns` are its (name, Spark SQL type) pairs in order, `__time` first.
    """

    datasource: str
    interval: Interval
    version: str
    load_spec: Mapping[str, object]
    shard_spec: ShardSpec = ShardSpec()
    size: int = 0
    total_rows: int = 0
    dimensions: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = field(default=())

    @property
    def id(self) -> SegmentId:
        """The segment's name."""
        return SegmentId(
            self.datasource, self.interval, self.version, self.shard_spec.partition_number
        )

    @property
    def is_tombstone(self) -> bool:
        """Whether it has no data and only hides older segments."""
        return self.shard_spec.kind == "tombstone"

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Segment) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __lt__(self, other: Segment) -> bool:
        return self.id < other.id

    def to_json(self) -> dict[str, object]:
        """Return Druid's JSON form with `columns`."""
        return {
            "dataSource": self.datasource,
            "interval": str(self.interval),
            "version": self.version,
            "loadSpec": dict(self.load_spec),
            "dimensions": ",".join(self.dimensions),
            "metrics": ",".join(self.metrics),
            "shardSpec": self.shard_spec.to_json(),
            "binaryVersion": BINARY_VERSION,
            "size": self.size,
            "totalRows": self.total_rows,
            "columns": [list(column) for column in self.columns],
            "identifier": str(self.id),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Segment:
        """Read the form that `to_json` gives.

        Raises:
            InvalidRequest: A field is missing or has the wrong type; the message says which.
        """
        return cls(
            datasource=sys.intern(_text(value, "dataSource")),
            interval=Interval.parse(_text(value, "interval")),
            version=sys.intern(_text(value, "version")),
            load_spec=_object(value, "loadSpec"),
            shard_spec=ShardSpec.from_json(_object(value, "shardSpec")),
            size=_whole(value, "size"),
            total_rows=_whole(value, "totalRows"),
            dimensions=_names(value, "dimensions"),
            metrics=_names(value, "metrics"),
            columns=_columns(value),
        )

    def to_row(self, *, used: bool = True) -> SegmentRow:
        """Return the row that a publish puts into the metadata."""
        return SegmentRow(
            id=str(self.id),
            datasource=self.datasource,
            interval=self.interval,
            version=self.version,
            partition_number=self.shard_spec.partition_number,
            core_partitions=self.shard_spec.core_partitions,
            payload=self.to_json(),
            used=used,
        )

    @classmethod
    def from_row(cls, row: SegmentRow) -> Segment:
        """Return the segment of a row. Raises as `from_json`."""
        return cls.from_json(row.payload)


def _canonical_interval(start: str, end: str) -> Interval | None:
    """Return the interval if both texts are times as `format_time` writes them."""
    try:
        interval = Interval(parse_time(start), parse_time(end))
    except InvalidRequest:
        return None
    written = (format_time(interval.start_ms), format_time(interval.end_ms))
    return interval if written == (start, end) else None


def _text(value: Mapping[str, object], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found:
        raise InvalidRequest(f"must be a text, not {found!r}", place=f"segment.{key}")
    return found


def _whole(value: Mapping[str, object], key: str) -> int:
    found = value.get(key, 0)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise InvalidRequest(f"must be a whole number, not {found!r}", place=f"segment.{key}")
    return found


def _object(value: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = value.get(key)
    if not isinstance(found, Mapping):
        raise InvalidRequest(f"must be an object, not {found!r}", place=f"segment.{key}")
    return cast("Mapping[str, object]", found)


def _names(value: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = value.get(key, "")
    if not isinstance(found, str):
        raise InvalidRequest(f"must be names with commas, not {found!r}", place=f"segment.{key}")
    return tuple(found.split(",")) if found else ()


def _columns(value: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    found = value.get("columns", [])
    if isinstance(found, Sequence) and not isinstance(found, str):
        pairs = [tuple(item) for item in found if isinstance(item, list | tuple)]
        if len(pairs) == len(found) and all(
            len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in pairs
        ):
            return tuple((sys.intern(name), sys.intern(kind)) for name, kind in pairs)
    raise InvalidRequest(f"must be [name, type] pairs, not {found!r}", place="segment.columns")
