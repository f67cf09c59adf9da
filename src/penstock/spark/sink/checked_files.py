"""Check of the files that Spark's workers wrote, before a task publishes them.

`SparkFilesEngine` is the batch engine of such a task. Workers run in the cluster of a user, so
nothing that they report is taken for granted: names, columns, numbers of rows and times come from
the files themselves, in the folder of the task.

| of a file | must be |
|---|---|
| its place | in the folder of the task, and younger than the janitor's limit |
| its size and rows | as its worker reported |
| its columns | exactly those of the schema in the spec, in this order, with these types |
| each page | readable: all of it is decoded once |
| its times | present, sorted if the schema requires it, of one time chunk, as in its statistics |

Files of an Iceberg client have another form: their rows are written again (`foreign_files`).

Invariant: a file that passed is never deleted by the janitor while its task is active
(`FILES_AGE_MAX_MS`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    _check_columns(parquet.schema_arrow, schema, path)
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


def _check_columns(found: pa.Schema, schema: DataSchema, path: str) -> None:
    wanted = pa.schema(
        [
            pa.field(name, TIME_TYPE if name == TIME_COLUMN else FieldType(type_).arrow)
            for name, type_ in file_columns(schema)
        ]
    )
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


def _times(
    source: pa.NativeFile, parquet: pq.ParquetFile, path: str, *, by_time: bool
) -> tuple[int, int]:
    """Return the first and the last time of a file, in epoch milliseconds, reading all of it."""
    least: list[int] = []
    most: list[int] = []
    last_us = -(2**63)
    for group in range(parquet.num_row_groups):
        low, high, read = 2**63, -(2**63), 0
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
        if not read or read != parquet.metadata.row_group(group).num_rows:
            raise EngineFailure(f"{path}: row group {group} has {read} rows, unlike its footer")
        _check_statistics(parquet, group, low, high, path)
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


def _check_statistics(
    parquet: pq.ParquetFile, group: int, low_us: int, high_us: int, path: str
) -> None:
    """Check that queries which skip by time do not miss rows."""
    found = parquet.metadata.row_group(group).column(0).statistics
    if found is None or not found.has_min_max:
        return
    told = pa.array([found.min_raw, found.max_raw], pa.int64()).to_pylist()
    if told != [low_us, high_us]:
        raise EngineFailure(f"{path}: the statistics of row group {group} do not fit its times")


def _chunk(granularity: Granularity, min_ms: int, max_ms: int, path: str) -> Interval:
    chunk = granularity.bucket(min_ms)
    if not chunk.contains(max_ms):
        raise EngineFailure(
            f"{path} has rows of more than one time chunk: {chunk} and {granularity.bucket(max_ms)}"
        )
    return chunk
