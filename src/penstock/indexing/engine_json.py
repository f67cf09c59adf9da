"""The JSON form of the engine's results: data files and counts, on disk and between processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from penstock.core.intervals import Interval
from penstock.core.whole_numbers import is_int64
from penstock.indexing.engine import DataFile, RowCounts

Number = TypeVar("Number", int, float)


def data_file_to_json(file: DataFile) -> dict[str, object]:
    """Return the JSON form of a file."""
    return {
        "path": file.path,
        "interval": str(file.interval),
        "rows": file.rows,
        "bytes": file.bytes,
        "minTimeMs": file.min_time_ms,
        "maxTimeMs": file.max_time_ms,
        "columns": [list(column) for column in file.columns],
    }


def data_file_from_json(value: Mapping[str, object]) -> DataFile:
    """Parse the form of a file; KeyError, TypeError, ValueError or InvalidRequest if invalid."""
    columns = value["columns"]
    if not isinstance(columns, list):
        raise TypeError("columns is not a list")
    return DataFile(
        path=str(value["path"]),
        interval=Interval.parse(str(value["interval"])),
        rows=whole_number(value["rows"]),
        bytes=whole_number(value["bytes"]),
        min_time_ms=whole_number(value["minTimeMs"]),
        max_time_ms=whole_number(value["maxTimeMs"]),
        columns=tuple((str(name), str(kind)) for name, kind in columns),
    )


def counts_to_json(counts: RowCounts) -> dict[str, int]:
    """Return the JSON form of counts."""
    return {
        "processed": counts.processed,
        "unparseable": counts.unparseable,
        "thrownAwayLate": counts.thrown_away_late,
        "thrownAwayEarly": counts.thrown_away_early,
        "thrownAwayFiltered": counts.thrown_away_filtered,
        "processedBytes": counts.read_bytes,
    }


def row_stats(counts: Mapping[str, Number]) -> dict[str, Number]:
    """Return counts by the names of Druid's row stats, and the reasons for dropped rows.

    A field that does not fit its column becomes null, and its row counts as processed. So no row is
    processed with an error.

    Args:
        counts: Counts, or rates of them, by the names in `counts_to_json`; a missing one is 0.
    """
    reasons = {name: n for name, n in counts.items() if name.startswith("thrownAway")}
    return {
        "processed": counts.get("processed", 0),
        "processedBytes": counts.get("processedBytes", 0),
        "processedWithError": 0,
        "thrownAway": sum(reasons.values()),
        "unparseable": counts.get("unparseable", 0),
        **reasons,
    }


def counts_from_json(value: object) -> RowCounts:
    """Parse counts; KeyError or TypeError if they are invalid."""
    if not isinstance(value, dict):
        raise TypeError("counts are not an object")
    return RowCounts(
        processed=whole_number(value["processed"]),
        unparseable=whole_number(value["unparseable"]),
        thrown_away_late=whole_number(value["thrownAwayLate"]),
        thrown_away_early=whole_number(value["thrownAwayEarly"]),
        thrown_away_filtered=whole_number(value["thrownAwayFiltered"]),
        read_bytes=whole_number(value.get("processedBytes", 0)),  # Missing in earlier releases.
    )


def whole_number(value: object) -> int:
    """Return a JSON value that is a whole number of 64 bits, or raise TypeError."""
    if not is_int64(value):
        raise TypeError(f"{value!r:.60} is not a whole number of 64 bits")
    return value
