"""Segments and their ids.

Owns the text form of segment ids and the JSON form of segments (Druid's names, plus `columns`). It
does not decide visibility. Invariants: everything here is immutable; a parsed text prints as the
same text; segments are equal, and ordered, by their ids alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, format_time, parse_time
from penstock.segments.json_fields import JsonFields
from penstock.segments.shard_spec import ShardKind, ShardSpec
from penstock.storage.metadata import SegmentRow
from penstock.storage.metadata.rows.segments import segment_id

__all__ = ["PARTITION_NUMBER_MAX", "Segment", "SegmentId", "ShardKind", "ShardSpec"]

BINARY_VERSION: Final = 9
PARTITION_NUMBER_MAX: Final = 2**31 - 1
_FIRST: Final = ShardSpec()


@dataclass(frozen=True, slots=True, order=True)
class SegmentId:
    """Datasource, interval, version and partition number; ordered by them in this order.

    Its text is ``datasource_start_end_version``, followed by ``_partition`` unless that is 0.
    """

    datasource: str
    interval: Interval
    version: str
    partition_number: int = 0

    def __str__(self) -> str:
        return segment_id(self.datasource, self.interval, self.version, self.partition_number)

    @classmethod
    def parse(cls, text: str, datasource: str | None = None) -> SegmentId:
        """Return the most probable reading of a text.

        Raises:
            InvalidRequest: It is not a segment id, or not one of this datasource.
        """
        readings = cls.possible_readings(text, datasource)
        if not readings:
            of = f" of datasource {datasource!r}" if datasource is not None else ""
            raise InvalidRequest(
                f"{text!r} is not a segment id{of}: use datasource_start_end_version[_partition]"
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
        # Try the leftmost place first: a version is often a time, but a part of a datasource's name
        # rarely is.
        at = text.find("_", 1)
        while at != -1:
            readings.extend(cls._read(text[:at], text[at + 1 :]))
            at = text.find("_", at + 1)
        return readings

    @classmethod
    def _read(cls, datasource: str, rest: str) -> list[SegmentId]:
        """Parse the text after the datasource."""
        start, _, rest = rest.partition("_")
        end, _, version = rest.partition("_")
        interval = _canonical_interval(start, end)
        if interval is None or not version or not datasource:
            return []
        # One string for all segments of a datasource or version, because there may be very many.
        name = sys.intern(datasource)
        readings = []
        shorter, _, number = version.rpartition("_")
        if shorter and number.isascii() and number.isdigit() and number[0] != "0":
            partition_number = int(number[:11])
            if partition_number <= PARTITION_NUMBER_MAX:
                readings.append(cls(name, interval, sys.intern(shorter), partition_number))
        readings.append(cls(name, interval, sys.intern(version), 0))
        return readings


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A published part of a datasource, and how to fetch its file.

    `columns` are its (name, Spark SQL type) pairs in order, `__time` first; a segment from Druid
    has none.

    Attributes:
        upgraded_from: The id that its rows were appended under, if a replacement of the time chunk
            copied them under this one, else empty; both then name one file.
        projections: None if its writer did not support projections.
        last_compaction_state: How it was compacted, in Druid's form; None if it was not.
        indexing_state_fingerprint: The name of that state, if it is stored separately.
        cluster_groups: As Druid wrote it; not used here.
        rollup: The roll-up of its rows: `queryGranularity` and `metricsSpec`, in Druid's form; None
            if they were not rolled up, or if that is unknown.
    """

    datasource: str
    interval: Interval
    version: str
    load_spec: Mapping[str, object]
    shard_spec: ShardSpec = _FIRST
    size: int = 0
    total_rows: int = 0
    dimensions: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    upgraded_from: str = ""
    projections: tuple[str, ...] | None = None
    last_compaction_state: Mapping[str, object] | None = None
    indexing_state_fingerprint: str | None = None
    cluster_groups: object = None
    rollup: Mapping[str, object] | None = None

    @property
    def id(self) -> SegmentId:
        """The id of the segment."""
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
        """Return Druid's JSON form, with `columns` and `rollup`, which Druid skips."""
        found: dict[str, object] = {
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
        projections = None if self.projections is None else ",".join(self.projections)
        optional = {
            "projections": projections,
            "lastCompactionState": self.last_compaction_state,
            "indexingStateFingerprint": self.indexing_state_fingerprint,
            "clusterGroups": self.cluster_groups,
            "upgradedFromSegmentId": self.upgraded_from or None,
            "rollup": self.rollup,
        }
        found.update((key, value) for key, value in optional.items() if value is not None)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Segment:
        """Parse the form of `to_json`, or a segment of Druid; unknown fields are dropped.

        Raises:
            InvalidRequest: A field is missing or has the wrong type; the message names it.
        """
        fields = JsonFields(value, "segment")
        spec = fields.optional_mapping("shardSpec")
        return cls(
            datasource=sys.intern(fields.text("dataSource")),
            interval=Interval.parse(fields.text("interval")),
            version=sys.intern(fields.text("version")),
            load_spec=fields.mapping("loadSpec"),
            # Druid treats a very old segment without one as the only one of its chunk.
            shard_spec=ShardSpec(0, 1) if spec is None else ShardSpec.from_json(spec),
            size=fields.whole("size", 0),
            total_rows=fields.whole("totalRows", 0),
            dimensions=_interned(fields.joined_texts("dimensions")),
            metrics=_interned(fields.joined_texts("metrics")),
            columns=_columns(fields),
            upgraded_from=fields.optional_text("upgradedFromSegmentId") or "",
            projections=(
                None if value.get("projections") is None else fields.joined_texts("projections")
            ),
            last_compaction_state=fields.optional_mapping("lastCompactionState"),
            indexing_state_fingerprint=fields.optional_text("indexingStateFingerprint"),
            cluster_groups=value.get("clusterGroups"),
            rollup=fields.optional_mapping("rollup"),
        )

    def to_row(self, *, used: bool = True) -> SegmentRow:
        """Return the row that a publish inserts into the metadata."""
        return SegmentRow(
            id=str(self.id),
            datasource=self.datasource,
            interval=self.interval,
            version=self.version,
            partition_number=self.shard_spec.partition_number,
            core_partitions=self.shard_spec.core_partitions,
            payload=self.to_json(),
            used=used,
            upgraded_from=self.upgraded_from,
        )

    @classmethod
    def from_row(cls, row: SegmentRow) -> Segment:
        """Return the segment of a row, whose columns take precedence over its payload.

        A copy may have the payload of its original. Raises as `from_json`.
        """
        found = cls.from_json(row.payload)
        spec = found.shard_spec
        number, core = row.partition_number, row.core_partitions
        same = (spec.partition_number, spec.core_partitions) == (number, core)
        if not same and not found.is_tombstone:
            spec = spec.renumbered(number, core)
        place = (found.interval, found.version, found.upgraded_from, found.shard_spec)
        if place == (row.interval, row.version, row.upgraded_from or found.upgraded_from, spec):
            return found
        return replace(
            found,
            interval=row.interval,
            version=sys.intern(row.version),
            shard_spec=spec,
            upgraded_from=row.upgraded_from or found.upgraded_from,
        )


def _canonical_interval(start: str, end: str) -> Interval | None:
    """Return the interval if both texts are times in the form of `format_time`."""
    try:
        interval = Interval(parse_time(start), parse_time(end))
    except InvalidRequest:
        return None
    written = (format_time(interval.start_ms), format_time(interval.end_ms))
    return interval if written == (start, end) else None


def _interned(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(sys.intern, names))


def _columns(fields: JsonFields) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in fields.items("columns") or ():
        pair = item if isinstance(item, list | tuple) else ()
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise fields.wrong("columns", f"must be [name, type] pairs, not {item!r}")
        pairs.append((sys.intern(pair[0]), sys.intern(pair[1])))
    return tuple(pairs)
