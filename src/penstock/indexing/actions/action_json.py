"""JSON forms that several actions share: segments and lists."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.intervals import Interval
from penstock.indexing.engine_json import whole_number
from penstock.storage.metadata import SegmentRow


def segment_to_json(row: SegmentRow) -> dict[str, object]:
    """Return a segment row's JSON form."""
    return {
        "id": row.id,
        "dataSource": row.datasource,
        "interval": str(row.interval),
        "version": row.version,
        "partitionNumber": row.partition_number,
        "corePartitions": row.core_partitions,
        "payload": dict(row.payload),
    }


def segment_from_json(value: Mapping[str, object]) -> SegmentRow:
    """Read a segment row."""
    (payload,) = objects([value["payload"]])
    return SegmentRow(
        id=str(value["id"]),
        datasource=str(value["dataSource"]),
        interval=Interval.parse(str(value["interval"])),
        version=str(value["version"]),
        partition_number=whole_number(value["partitionNumber"]),
        core_partitions=whole_number(value["corePartitions"]),
        payload=payload,
    )


def objects(value: object) -> list[dict[str, object]]:
    """Return a list of JSON objects, or raise TypeError."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TypeError("not a list of objects")
    return value


def strings(value: object) -> list[str]:
    """Return a list of strings, or raise TypeError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("not a list of texts")
    return value


def intervals(value: object) -> tuple[Interval, ...]:
    """Return a list of intervals, or raise TypeError or InvalidRequest."""
    return tuple(Interval.parse(text) for text in strings(value))
