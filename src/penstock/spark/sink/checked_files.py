"""Check of the files that Spark's workers wrote, before a task publishes them.

`SparkFilesEngine` is the batch engine of such a task. Workers run in the cluster of a user, so
nothing that they report is taken for granted: names, columns, numbers of rows and times come from
the files themselves, in the folder of the task.

| of a file | must be |
|---|---|
| its place | in the folder of the task, and younger than the janitor's limit |
| its size and rows | as its worker reported |
| its columns | exactly those of the schema in the spec, in this order, as Penstock writes them |
| each page | readable: all of it is decoded once |
| its times | present, sorted if the schema requires it, and of one time chunk |
| statistics of row groups | those of the rows: number of values and nulls, minimum and maximum |

Engines skip rows by the statistics of row groups, which are also the bounds of plans and manifests.
Page indexes, Bloom filters and bounds of very long texts are not compared with the rows: Arrow does
not read them. An engine that uses them may miss rows of a file whose writer made wrong ones, and
only of this file.

Files of an Iceberg client have another form: their rows are written again (`foreign_files`).

Invariant: a file that passed is never deleted by the janitor while its task is active
(`FILES_AGE_MAX_MS`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.durations import HOUR_MS
from penstock.core.errors import CorruptData, InvalidRequest, NotFound, counted
from penstock.core.intervals import Granularity, Interval
from penstock.core.parquet_bounds import check_rows, runs_of_groups
from penstock.indexing.batch.batch_engine import (
    BatchRequest,
    BatchResult,
    EngineProgress,
    SparkFilesInput,
    WorkDone,
    WrittenFile,
    refuse_too_many,
)
from penstock.indexing.engine import DataFile, EngineFailure, RowCounts
from penstock.indexing.specs.batch.spark_write import ATTEMPT, FILES_AGE_MAX_MS
from penstock.spark.schema_columns import file_columns, output_columns, sort_keys
from penstock.spark.sink.foreign_files import converted
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from penstock.core.clock import Clock
    from penstock.indexing.specs import DataSchema
    from penstock.indexing.specs.batch.spark_write import SparkFile

_BATCH_ROWS: Final = 65_536
_BOUND_BYTES_MAX: Final = 4_096
"""Size of the longest text that Arrow writes as a bound of a column."""
# Arrow believes the statistics of this writer, and ignores some of those of others.
_WRITER: Final = "parquet-cpp-arrow version "


class StoredAttempts(Protocol):
    """Deep storage, as this engine uses it."""

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return the folder of an attempt."""
        ...

    def sync_attempt(self, datasource: str, task_id: str, attempt: str) -> None:
        """Make the names of its files durable."""
        ...

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return the load spec of a file."""
        ...

    def open(self, load_spec: Mapping[str, object]) -> tuple[BinaryIO, int]:
        """Open a file to read, and return when it was last changed."""
        ...


class SparkFilesEngine:
    """`BatchEngine` whose files exist already. Its call may be cancelled from any thread.

    Args:
        store: Deep storage.
        clock: Measures the age of files.
    """

    def __init__(self, store: StoredAttempts, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cancelled = threading.Event()

    def write(self, request: BatchRequest, progress: EngineProgress | None = None) -> BatchResult:
        """Return the files of the write, checked.

        Raises:
            Unavailable: Deep storage does not answer.
            EngineFailure: A file is not as above, or the call was cancelled.
        """
        given, schema = request.input, request.schema
        assert isinstance(given, SparkFilesInput)
        # Which rows they are, only the workers know.
        refuse_too_many(request.parse_errors_max, given.unparseable, ())
        try:
            if given.converts:
                made = self._converted(request, given.files, progress)
            else:
                made = self._checked(request, given.files, progress)
        except (InvalidRequest, NotFound, CorruptData, pa.ArrowException) as error:
            raise EngineFailure(str(error)) from error
        rows = sum(file.data.rows for file in made)
        fits = rows <= given.processed if schema.rollup else rows == given.processed
        if not fits:
            raise EngineFailure(
                f"the files have {counted(rows, 'row')}, and the write reports {given.processed}:"
                " write with the same release of Penstock as the server"
            )
        counts = RowCounts(processed=given.processed, unparseable=given.unparseable)
        ordered = sorted(made, key=lambda one: (one.data.interval, one.data.path))
        return BatchResult(tuple(ordered), counts, schema)

    def cancel(self, task_id: str) -> None:
        """End the call soon; see `BatchEngine.cancel`."""
        del task_id  # a peon has one task
        self._cancelled.set()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _checked(
        self, request: BatchRequest, files: Sequence[SparkFile], progress: EngineProgress | None
    ) -> list[WrittenFile]:
        if not files:
            return []
        folder = self._folder_of(request)
        made = []
        for number, file in enumerate(files):
            self._require_running(request)
            made.append(self._file(request, f"{folder}/{file.name}", file))
            if progress is not None:
                progress(WorkDone(number + 1, len(files), sum(one.data.rows for one in made)))
        return made

    def _converted(
        self, request: BatchRequest, files: Sequence[SparkFile], progress: EngineProgress | None
    ) -> list[WrittenFile]:
        """Write final files of the rows of the client's files."""
        folder = self._folder_of(request)

        def opened() -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
            rows = 0
            for number, file in enumerate(files):
                self._require_running(request)
                path = f"{folder}/{file.name}"
                yield path, self._rows(path, file)
                rows += file.rows
                if progress is not None:
                    progress(WorkDone(number + 1, len(files), rows))

        return [WrittenFile(one) for one in converted(request, opened())]

    def _rows(self, path: str, file: SparkFile) -> Iterator[pa.RecordBatch]:
        with self._opened(path) as stored, _readable(path):
            source, parquet = _checked_footer(stored, path, file)
            read = 0
            for group in range(parquet.num_row_groups):
                for batch in _batches(source, parquet, group, path):
                    read += batch.num_rows
                    yield batch
            if read != file.rows:
                raise EngineFailure(f"{path} has {read} rows, unlike its footer")

    def _require_running(self, request: BatchRequest) -> None:
        if self._cancelled.is_set():
            raise EngineFailure(f"the work of task {request.task_id} was cancelled")

    def _folder_of(self, request: BatchRequest) -> str:
        """Return the folder of the files of a write, whose names are durable then."""
        datasource, task_id = request.schema.datasource, request.task_id
        folder = self._store.attempt_folder(datasource, task_id, ATTEMPT)
        try:
            self._store.sync_attempt(datasource, task_id, ATTEMPT)
        except NotFound as error:
            raise EngineFailure(
                f"{folder} does not exist, so the files of the write are not in Penstock's deep"
                " storage: set option deepStorage of the write to Penstock's own, or leave it out"
            ) from error
        return folder

    def _file(self, request: BatchRequest, path: str, file: SparkFile) -> WrittenFile:
        with self._opened(path) as stored, _readable(path):
            return WrittenFile(_described(stored, path, file, request))

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        """Open a file of the write that the janitor does not delete."""
        hours = FILES_AGE_MAX_MS // HOUR_MS
        try:
            stored, changed_ms = self._store.open(self._store.load_spec_of(path))
        except NotFound as error:
            raise EngineFailure(
                f"{path} does not exist: the write took longer than {hours} hours, or its worker"
                " wrote to another deep storage"
            ) from error
        with closing(stored):
            if changed_ms < self._clock.now_ms() - FILES_AGE_MAX_MS:
                raise EngineFailure(
                    f"{path} was written more than {hours} hours ago, and may be deleted at any"
                    " time: divide the write into shorter ones"
                )
            yield stored


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Translate the errors of a damaged file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptData(path, None, f"not a Parquet file ({str(error).strip()})") from error


def _described(stored: BinaryIO, path: str, file: SparkFile, request: BatchRequest) -> DataFile:
    """Return what a file is, from its own bytes."""
    schema = request.schema
    source, parquet = _checked_footer(stored, path, file)
    _check_columns(parquet, schema, path)
    by_time = sort_keys(schema)[0] == TIME_COLUMN
    min_ms, max_ms = _times(source, parquet, path, by_time=by_time)
    chunk = _chunk(schema.segment_granularity, min_ms, max_ms, path)
    if request.intervals and not any(one.covers(chunk) for one in request.intervals):
        raise EngineFailure(
            f"{path} has rows of {chunk}, outside of the intervals that the write replaces"
        )
    columns = output_columns(schema)
    return DataFile(path, chunk, file.rows, file.bytes, min_ms, max_ms, columns)


def _checked_footer(
    stored: BinaryIO, path: str, file: SparkFile
) -> tuple[pa.NativeFile, pq.ParquetFile]:
    """Open a file of Parquet whose size and rows are those that its writer has reported."""
    # Imported here: 9 MB that only tasks of this type need.
    import pyarrow.parquet as pq  # noqa: PLC0415

    size = stored.seek(0, 2)
    if size != file.bytes:
        raise EngineFailure(f"{path} has {size} bytes, and its worker reported {file.bytes}")
    stored.seek(0)
    source = pa.PythonFile(stored, mode="r")
    parquet = pq.ParquetFile(source, pre_buffer=False)
    check_rows(parquet.metadata, size, path)
    rows = int(parquet.metadata.num_rows)
    if rows != file.rows:
        raise EngineFailure(f"{path} has {rows} rows, and its worker reported {file.rows}")
    return source, parquet


def _check_columns(parquet: pq.ParquetFile, schema: DataSchema, path: str) -> None:
    found, wanted = parquet.schema_arrow, _arrow_schema(file_columns(schema))
    if found.names != wanted.names:
        raise EngineFailure(
            f"{path} has the columns {', '.join(found.names)}, and the schema of the write"
            f" {', '.join(wanted.names)}"
        )
    for field in wanted:
        type_ = found.field(field.name).type
        if type_ != field.type:
            raise EngineFailure(
                f"{path}: column {field.name} has the type {type_}, and in the schema of the write"
                f" {field.type}"
            )
    if not parquet.schema.equals(_form_of(tuple(file_columns(schema)))):
        raise EngineFailure(
            f"{path} has columns in another form than Penstock writes them, such as with ids or"
            " without nulls: write with its data source, of the same release as the server"
        )
    created_by = str(parquet.metadata.created_by)
    if not created_by.startswith(_WRITER):
        raise EngineFailure(
            f"{path} was written by {created_by!r:.60}: write with the data source of Penstock"
        )


@lru_cache(maxsize=1)
def _form_of(columns: tuple[tuple[str, str], ...]) -> pq.ParquetSchema:
    """Return the schema that engines other than Arrow find in a file with these columns."""
    # Imported here: see `_checked_footer`.
    import pyarrow.parquet as pq  # noqa: PLC0415

    form = pa.BufferOutputStream()
    pq.write_table(_arrow_schema(columns).empty_table(), form, store_schema=False)
    return pq.ParquetFile(pa.BufferReader(form.getvalue())).schema


def _arrow_schema(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, TIME_TYPE if name == TIME_COLUMN else FieldType(type_).arrow)
            for name, type_ in columns
        ]
    )


def _times(
    source: pa.NativeFile, parquet: pq.ParquetFile, path: str, *, by_time: bool
) -> tuple[int, int]:
    """Return the first and the last time of a file, in epoch milliseconds, reading all of it."""
    least: list[int] = []
    most: list[int] = []
    last_us = -(2**63)
    for group in range(parquet.num_row_groups):
        low, high, read = 2**63, -(2**63), 0
        found = [_ColumnValues() for _ in parquet.schema_arrow]
        for batch in _batches(source, parquet, group, path):
            batch.validate(full=True)
            times = batch.column(TIME_COLUMN)
            if times.null_count:
                raise EngineFailure(f"{path} has rows without a time: they cannot be published")
            micros: npt.NDArray[np.int64] = times.cast(pa.int64()).to_numpy()
            if by_time and (micros[0] < last_us or (np.diff(micros) < 0).any()):
                raise EngineFailure(f"{path} is not sorted by time, as its schema demands")
            last_us = int(micros[-1])
            low, high = min(low, int(micros.min())), max(high, int(micros.max()))
            read += batch.num_rows
            for values, column in zip(found, batch.columns, strict=True):
                values.add(column)
        if not read or read != parquet.metadata.row_group(group).num_rows:
            raise EngineFailure(f"{path}: row group {group} has {read} rows, unlike its footer")
        _check_statistics(parquet, group, found, path)
        least.append(low // 1000)
        most.append(high // 1000)
    return min(least), max(most)


def _batches(
    source: pa.NativeFile, parquet: pq.ParquetFile, group: int, path: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, as many at once as memory allows."""
    bounds = runs_of_groups(
        source, parquet.metadata, [group], None, _BATCH_ROWS, path, all_pages=True
    )
    for run, rows in bounds:
        yield from parquet.iter_batches(rows, row_groups=run, use_threads=False)


class _ColumnValues:
    """Statistics of the values of a column in a row group, as Parquet has them."""

    def __init__(self) -> None:
        self.nulls = 0
        self.has_nan = False
        self._extremes: list[pa.Array] = []

    def add(self, values: pa.Array) -> None:
        """Add values."""
        self.nulls += values.null_count
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        elif pa.types.is_string(values.type):
            values = values.cast(pa.binary())
        elif pa.types.is_floating(values.type):
            is_nan = pc.is_nan(values)
            self.has_nan |= pc.any(is_nan).as_py() is True
            values = values.filter(pc.invert(is_nan))
        found = pc.min_max(values)
        self._extremes.append(pa.array([found["min"].as_py(), found["max"].as_py()], values.type))

    def extremes(self) -> tuple[object, object]:
        """Return the minimum and the maximum; None if there are only nulls."""
        found = pc.min_max(pa.concat_arrays(self._extremes))
        return found["min"].as_py(), found["max"].as_py()

    def are_bounds_written(self) -> bool:
        """Return whether Arrow writes a minimum and a maximum of these values."""
        return not self.has_nan and not any(
            one is None or (isinstance(one, bytes) and len(one) > _BOUND_BYTES_MAX)
            for one in self.extremes()
        )


def _check_statistics(
    parquet: pq.ParquetFile, group: int, found: Sequence[_ColumnValues], path: str
) -> None:
    """Check that engines which skip row groups by their statistics do not miss rows.

    A column with NaN has no minimum and maximum: Arrow leaves NaN out of them, and for Spark it is
    the greatest number. Other bounds must exist, because engines may use older fields, or one
    bound alone, that Arrow does not show.
    """
    footer = parquet.metadata.row_group(group)
    for number, values in enumerate(found):
        chunk = footer.column(number)
        told = chunk.statistics
        problem = ""
        if chunk.num_values != footer.num_rows:
            problem = f"{chunk.num_values} values"
        elif told is not None and told.has_null_count and told.null_count != values.nulls:
            problem = f"{told.null_count} nulls"
        elif told is not None and told.has_min_max:
            bounds = told.min_raw, told.max_raw
            if values.has_nan or bounds != values.extremes():
                problem = f"the bounds {bounds!r:.100}"
        elif values.are_bounds_written():
            problem = "no bounds"
        if problem:
            raise EngineFailure(
                f"{path}: the statistics of row group {group} do not fit its rows: column"
                f" {chunk.path_in_schema} has {problem} there"
            )


def _chunk(granularity: Granularity, min_ms: int, max_ms: int, path: str) -> Interval:
    chunk = granularity.bucket(min_ms)
    if not chunk.contains(max_ms):
        raise EngineFailure(
            f"{path} has rows of more than one time chunk: {chunk} and {granularity.bucket(max_ms)}"
        )
    return chunk
