"""Fake indexing engines without a JVM, for tests of the code that uses an engine.

`FakeEngine` is an `IndexingEngine`: it reads JSON messages with orjson and writes Parquet, one
row at a time. `FakeBatchEngine` is a `BatchEngine`: it reads JSON lines and segment files and
writes Parquet. Both count as the real engine does, and can be made to fail, to be unavailable
or to wait.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval, parse_time
from penstock.indexing.batch.batch_engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    Bucket,
    CombinedInput,
    EngineProgress,
    ExternalInput,
    ParseError,
    SegmentInput,
    SqlInput,
    WorkDone,
    WrittenFile,
    refuse_too_many,
    refuse_unreadable,
)
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
from penstock.indexing.specs.inputs import InlineInput, LocalInput
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
    found = Path(path).stat()
    return [dict(row) for row in _read_rows(path, found.st_ino, found.st_mtime_ns, found.st_size)]


@functools.lru_cache(maxsize=256)
def _read_rows(path: str, *_version: int) -> list[Row]:
    """Return the rows of a version of a file: tests read it after each of thousands of steps."""
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


BatchMoment = Literal["before write", "after write"]


@dataclass(slots=True)
class FakeBatchEngine:
    """The fake.

    Attributes:
        at: Called at each moment of each call, on its thread; it may raise or wait there.
        writes: The requests that were answered.
        cancelled: The tasks that were cancelled.
    """

    at: Callable[[BatchMoment], None] = lambda _moment: None
    writes: list[BatchRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def write(self, request: BatchRequest, progress: EngineProgress | None = None) -> BatchResult:
        """Write the input's rows; as the protocol says."""
        self.at("before write")
        if request.task_id in self.cancelled:
            raise EngineFailure(f"the work of task {request.task_id} was cancelled")
        counts, rows, errors, parsed = RowCounts(), list[Row](), list[ParseError](), 0
        for place, line, row, became in self._rows(request, request.input):
            parsed += row is not None
            wanted = row is None or _wanted(row, request)
            counts = counts.plus(became if wanted else RowCounts(thrown_away_early=1))
            if row is None and len(errors) < request.parse_errors_saved:
                errors.append(ParseError(place, line[:100], "not a JSON object with a time"))
            if row is not None and wanted:
                rows.append(row)
        most, bad = request.parse_errors_max, counts.unparseable
        refuse_unreadable(most, bad, parsed, errors)
        refuse_too_many(most, bad, errors)
        files = tuple(_files(rows, request))
        if progress is not None:
            progress(WorkDone(1, 1, len(rows) + counts.unparseable, 1, 1))
        self.at("after write")
        self.writes.append(request)
        return BatchResult(files, counts, request.schema, tuple(errors))

    def cancel(self, task_id: str) -> None:
        """Note that the task was cancelled."""
        self.cancelled.append(task_id)

    def close(self) -> None:
        """Do nothing."""

    def _rows(
        self, request: BatchRequest, given: BatchInput
    ) -> Iterator[tuple[str, str, Row | None, RowCounts]]:
        if isinstance(given, CombinedInput):
            for part in given.parts:
                yield from self._rows(request, part)
        elif isinstance(given, SegmentInput):
            for file, interval in given.files:
                names = dict(given.renamed)
                for found in _segment_rows(_path(file.path)):
                    row = {names.get(name, name): value for name, value in found.items()}
                    if interval.contains(_time(row)):
                        yield file.path, "", row, RowCounts(processed=1)
        elif isinstance(given, ExternalInput):
            wanted = PersistRequest(request.task_id, "", (), request.schema, "", "")
            for place, line in _lines(given):
                yield place, line, *parse_row(line.encode(), wanted)
        elif isinstance(given, SqlInput):
            # It knows no SQL: every query is for all rows that it was given.
            for _name, rows in given.given:
                yield from self._rows(request, rows)
            for table in given.externs:
                files = ExternalInput(table.input_source, table.input_format)
                yield from self._rows(request, files)


def _segment_rows(path: str) -> list[Row]:
    try:
        return read_rows(path)
    except OSError as error:
        raise EngineFailure(f"{path} cannot be read: {error}") from error


def _lines(given: ExternalInput) -> Iterator[tuple[str, str]]:
    if isinstance(given.source, InlineInput):
        texts = {"inline": given.source.data}
    elif isinstance(given.source, LocalInput):
        try:
            texts = {path: Path(path).read_text() for path in given.source.files}
        except OSError as error:
            raise EngineFailure(f"{error.filename} cannot be read: {error.strerror}") from error
    else:
        raise EngineFailure(f"this engine reads no {given.source.type}")
    for place, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{place}:{number}", line


def _wanted(row: Row, request: BatchRequest) -> bool:
    return not request.intervals or any(i.contains(_time(row)) for i in request.intervals)


def _files(rows: list[Row], request: BatchRequest) -> Iterator[WrittenFile]:
    """Write the rows by time chunk, and of each by its partitions: number modulo, or in order."""
    how = request.partitioning
    # What a segment has no column of is null.
    nothing: Row = dict.fromkeys(m.name for m in request.schema.metrics)
    nothing |= dict.fromkeys(d.name for d in request.schema.dimensions)
    chunks: dict[int, list[Row]] = {}
    for found in rows:
        row = nothing | found
        start_ms = request.schema.segment_granularity.bucket(_time(row)).start_ms
        chunks.setdefault(start_ms, []).append(row)
    for start_ms in sorted(chunks):
        chunk = sorted(chunks[start_ms], key=_time)
        size = how.rows_max if how.kind == "dynamic" else how.rows_target
        count = how.shards or -(-len(chunk) // size)
        for number in range(count):
            part = (
                chunk[number::count]
                if how.kind == "hashed"
                else chunk[number * size : (number + 1) * size]
            )
            if not part:
                continue
            folder = f"{_path(request.output_folder)}/{start_ms}-{number}"
            interval = request.schema.segment_granularity.bucket(start_ms)
            data = write_chunk(part, interval, request.schema, folder)
            bucket = None if how.kind == "dynamic" else Bucket(number, count)
            yield WrittenFile(data, bucket)


def _time(row: Row) -> int:
    found = row[TIME_COLUMN]
    assert isinstance(found, int)
    return found


def _path(uri: str) -> str:
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
