"""A `BatchEngine` without a JVM: JSON lines and segment files in, Parquet out, one row at a time.

For tests of what uses an engine, not of what an engine does. It counts as the real one does and can
be made to fail, to be unavailable, or to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from penstock.indexing.batch.engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    Bucket,
    CombinedInput,
    ExternalInput,
    ParseError,
    Progress,
    SegmentInput,
    WrittenFile,
    refuse_too_many,
    refuse_unreadable,
)
from penstock.indexing.engine import EngineFailure, PersistRequest, RowCounts
from penstock.indexing.specs import TIME_COLUMN
from penstock.indexing.specs.inputs import InlineInput, LocalInput
from penstock.testing.engine import Row, parse_row, read_rows, write_chunk

Moment = Literal["before write", "after write"]


@dataclass(slots=True)
class FakeBatchEngine:
    """The fake.

    Attributes:
        at: Called at each moment of each call, on its thread; it may raise or wait there.
        writes: The requests that were answered.
        cancelled: The tasks that were cancelled.
    """

    at: Callable[[Moment], None] = lambda _moment: None
    writes: list[BatchRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def write(self, request: BatchRequest, progress: Progress | None = None) -> BatchResult:
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
            progress(1, 1)
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
        else:
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
