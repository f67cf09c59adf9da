"""An `IndexingEngine` without a JVM: orjson in, Parquet out, one row at a time.

For tests of what uses an engine, not of what an engine does. It counts as the real one does and
writes real Parquet; it can be made to fail, to be unavailable, or to wait.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, parse_time
from penstock.indexing.engine import (
    DataFile,
    DivideRequest,
    EngineFailure,
    FileRange,
    MergeRequest,
    PersistRequest,
    PersistResult,
    RowCounts,
    StreamRange,
    TopicRange,
)
from penstock.indexing.specs import TIME_COLUMN, Aggregator, DataSchema, Dimension
from penstock.storage.queue.log_reader import read_range

Row = dict[str, object]
Moment = Literal["before persist", "after persist", "before merge", "after merge"]

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "json": pa.string(),
    "auto": pa.string(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_SPARK: Final[Mapping[str, str]] = {
    "string": "STRING",
    "json": "STRING",
    "auto": "STRING",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
}


def read_stream(wanted: StreamRange) -> Iterable[tuple[int, bytes]]:
    """Read the records of a range from its log files, or its lines."""
    if isinstance(wanted, FileRange):
        data = Path(wanted.path).read_bytes()[wanted.start_position : wanted.end_position]
        yield from enumerate(data.splitlines(), wanted.start)
        return
    if not isinstance(wanted, TopicRange):
        raise EngineFailure(f"{wanted.topic}: this engine reads no Kafka")
    for part in read_range(wanted.folder, wanted.start, wanted.end):
        for index, message in enumerate(part.messages.to_pylist()):
            yield part.base_offset + index, message


@dataclass(slots=True)
class FakeEngine:
    """The fake.

    Attributes:
        read: Where messages come from.
        at: Called at each moment of each call, on its thread; it may raise or wait there.
        persists: The requests that were answered.
        merges: The requests that were answered.
    """

    read: Callable[[StreamRange], Iterable[tuple[int, bytes]]] = read_stream
    at: Callable[[Moment], None] = lambda _moment: None
    persists: list[PersistRequest] = field(default_factory=list)
    merges: list[MergeRequest] = field(default_factory=list)

    def persist(self, request: PersistRequest) -> PersistResult:
        """Write the rows of the ranges; as the protocol says."""
        self.at("before persist")
        rows: list[Row] = []
        bad_files: list[str] = []
        counts = RowCounts()
        for wanted in request.ranges:
            bad: list[bytes] = []
            for offset, message in self.read(wanted):
                row, became = parse_row(message, request)
                counts = counts.plus(became).plus(RowCounts(read_bytes=len(message)))
                if row is not None:
                    rows.append(row)
                elif became.unparseable:
                    bad.append(_bad_line(request.topic, wanted.partition, offset, message))
            if bad:
                name = f"{wanted.partition}-{wanted.start}-{wanted.end}.jsonl"
                path = Path(request.bad_folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(bad))
                bad_files.append(str(path))
        files = _write(rows, request.schema, request.output_folder)
        self.at("after persist")
        self.persists.append(request)
        return PersistResult(tuple(files), counts, tuple(bad_files))

    def merge(self, request: MergeRequest) -> DataFile:
        """Write one file of all rows; as the protocol says."""
        self.at("before merge")
        rows: list[Row] = []
        for file in request.files:
            rows.extend(read_rows(file.path))
        (merged,) = _write(rows, request.schema, request.output_folder, merging=True)
        self.at("after merge")
        self.merges.append(request)
        return merged

    def divide(self, request: DivideRequest) -> tuple[DataFile, ...]:
        """Write a file for each of the times that has rows; as the protocol says."""
        rows = read_rows(request.file.path)
        parts = [
            ([row for row in rows if times.contains(_time_of(row))], times)
            for times in request.times
        ]
        assert sum(len(part) for part, _ in parts) == len(rows), "rows are in none of the times"
        return tuple(
            write_chunk(part, times, request.schema, request.output_folder)
            for part, times in parts
            if part
        )

    def close(self) -> None:
        """Do nothing."""


def _time_of(row: Row) -> int:
    ms = row[TIME_COLUMN]
    assert isinstance(ms, int)
    return ms


def read_rows(path: str) -> list[Row]:
    """Return the rows of a file, times as epoch milliseconds."""
    rows: list[Row] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
    for row in rows:
        row[TIME_COLUMN] = int(row[TIME_COLUMN].timestamp() * 1000)  # type: ignore[attr-defined]
    return rows


def parse_row(message: bytes, request: PersistRequest) -> tuple[Row | None, RowCounts]:
    """Return the row of a message, or None, and what it counts as."""
    schema = request.schema
    try:
        value = orjson.loads(message)
        if not isinstance(value, dict):
            return None, RowCounts(unparseable=1)
        time = value[schema.timestamp_spec.column]
        ms = parse_time(time) if isinstance(time, str) else int(time)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, InvalidRequest):
        return None, RowCounts(unparseable=1)
    if request.min_time_ms is not None and ms < request.min_time_ms:
        return None, RowCounts(thrown_away_late=1)
    if request.max_time_ms is not None and ms >= request.max_time_ms:
        return None, RowCounts(thrown_away_early=1)
    row: Row = {TIME_COLUMN: schema.query_granularity.truncate(ms)}
    for dimension in schema.dimensions:
        row[dimension.name] = _dimension(dimension, value.get(dimension.name))
    for metric in schema.metrics:
        row[metric.name] = _metric(metric, value)
    return row, RowCounts(processed=1)


def _dimension(dimension: Dimension, value: object) -> object:
    if value is None:
        return None
    if dimension.type == "long":
        return int(str(value))
    if dimension.type in {"float", "double"}:
        return float(str(value))
    return value if isinstance(value, str) else json.dumps(value)


def _metric(metric: Aggregator, value: Mapping[str, object]) -> object:
    if metric.type == "count":
        return 1
    found = value.get(metric.field_name or "")
    if found is None:
        return None
    return int(str(found)) if metric.type.startswith("long") else float(str(found))


def _combine(metric: Aggregator, one: object, other: object) -> object:
    if not isinstance(one, int | float) or not isinstance(other, int | float):
        return other if one is None else one
    if metric.type.endswith("Min"):
        return min(one, other)
    if metric.type.endswith("Max"):
        return max(one, other)
    return one + other


def _write(
    rows: list[Row], schema: DataSchema, folder: str, *, merging: bool = False
) -> list[DataFile]:
    chunks: dict[Interval, list[Row]] = {}
    for row in _rolled_up(rows, schema) if schema.rollup else rows:
        chunk = schema.segment_granularity.bucket(_time_of(row))
        chunks.setdefault(chunk, []).append(row)
    assert not merging or len(chunks) == 1, "files of several time chunks are not merged"
    return [write_chunk(chunks[i], i, schema, folder) for i in sorted(chunks)]


def _rolled_up(rows: list[Row], schema: DataSchema) -> list[Row]:
    names = [TIME_COLUMN, *(dimension.name for dimension in schema.dimensions)]
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        if (same := merged.get(key)) is None:
            merged[key] = dict(row)
        else:
            for metric in schema.metrics:
                same[metric.name] = _combine(metric, same[metric.name], row[metric.name])
    return list(merged.values())


def write_chunk(rows: list[Row], interval: Interval, schema: DataSchema, folder: str) -> DataFile:
    """Write rows of one time chunk to a file, sorted."""
    names = [dimension.name for dimension in schema.dimensions]
    rows = sorted(rows, key=lambda row: [str(row[name]) for name in (TIME_COLUMN, *names)])
    times = [row[TIME_COLUMN] for row in rows]
    kinds = [(d.name, d.type) for d in schema.dimensions]
    kinds += [
        (m.name, "long" if m.type == "count" or m.type.startswith("long") else "double")
        for m in schema.metrics
    ]
    stamps = pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    columns: dict[str, pa.Array] = {TIME_COLUMN: stamps}
    for name, kind in kinds:
        columns[name] = pa.array([row[name] for row in rows], _ARROW[kind])
    path = Path(folder, f"{interval.start_ms}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), str(path))
    whole = [time for time in times if isinstance(time, int)]
    return DataFile(
        path=str(path),
        interval=interval,
        rows=len(rows),
        bytes=path.stat().st_size,
        min_time_ms=min(whole),
        max_time_ms=max(whole),
        columns=(
            (TIME_COLUMN, "TIMESTAMP"),
            *((name, _SPARK[kind]) for name, kind in kinds),
        ),
    )


def _bad_line(topic: str, partition: int, offset: int, message: bytes) -> bytes:
    line = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "reason": "not a JSON object with a time",
        "message_base64": base64.b64encode(message).decode(),
    }
    return orjson.dumps(line) + b"\n"
