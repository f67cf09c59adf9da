"""Segment files from Parquet files that a client of the Iceberg catalog has written.

Such files have the columns of the table in any order, are not sorted, and may have rows of several
time chunks. Owns their conversion, a part of a file at a time: it writes what Spark's workers write
of the same rows (`sink_rows`). A column that the schema of the write lacks must be null in all
rows: its type is one that a datasource cannot get from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile
from penstock.spark.batch.final_files import FinalFile, finalize
from penstock.spark.schema_columns import output_columns
from penstock.spark.sink.write_plan import sink_rows
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.batch.batch_engine import BatchRequest

_TIMES_SHOWN: Final = "a timestamp with a time zone"


def converted(
    request: BatchRequest, files: Iterable[tuple[str, Iterable[pa.RecordBatch]]]
) -> list[DataFile]:
    """Write segment files of the rows of other files, durably.

    Args:
        request: The work; its output folder gets the files.
        files: The name of each file, and its rows.

    Raises:
        InvalidRequest: Rows cannot be stored.
        Unavailable: A file cannot be written.
    """
    schema = request.schema
    plan = sink_rows(schema, (), 0)
    rows = replace(plan, target=replace(plan.target, folder=request.output_folder))
    made: list[FinalFile] = []

    def batches() -> Iterator[pa.RecordBatch]:
        types = dict(plan.fields)
        for path, parts in files:
            for part in parts:
                yield _of_schema(part, types, path)

    rows.write(batches(), made.extend)
    finalize(request.output_folder, [file.name for file in made])
    columns = output_columns(schema)
    return [_described(request, file, columns) for file in made]


def _described(
    request: BatchRequest, file: FinalFile, columns: Sequence[tuple[str, str]]
) -> DataFile:
    chunk = Interval(file.start_ms, file.end_ms)
    times = (file.min_time_ms, file.max_time_ms)
    path = f"{request.output_folder}/{file.name}"
    return DataFile(path, chunk, file.rows, file.bytes, *times, tuple(columns))


def _of_schema(batch: pa.RecordBatch, types: Mapping[str, FieldType], path: str) -> pa.RecordBatch:
    """Return the columns of a schema, in its types."""
    batch.validate(full=True)
    names = batch.schema.names
    if names.count(TIME_COLUMN) != 1 or len(set(names)) < len(names):
        raise InvalidRequest(f"{path} lacks the column {TIME_COLUMN}, or has a column twice")
    for name in names:
        values = batch.column(names.index(name))
        if name not in types and name != TIME_COLUMN and values.null_count < len(values):
            raise InvalidRequest(
                f"{path} has values in column {name!r} ({values.type}), whose type the catalog does"
                " not accept: leave it out, or load the rows with a task"
            )
    times = batch.column(names.index(TIME_COLUMN))
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        raise InvalidRequest(f"{path}: {TIME_COLUMN} is {times.type}, and must be {_TIMES_SHOWN}")
    found = {TIME_COLUMN: _in_microseconds(times, path)}
    for name, type_ in types.items():
        if name in names:
            found[name] = _in_type(batch.column(names.index(name)), type_, name, path)
        else:
            found[name] = pa.nulls(batch.num_rows, type_.arrow)
    return pa.RecordBatch.from_pydict(found)


def _in_microseconds(times: pa.Array, path: str) -> pa.Array:
    """Return times in the unit of segments. Finer ones are cut."""
    try:
        return pc.cast(times, options=pc.CastOptions(TIME_TYPE, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        raise InvalidRequest(
            f"{path}: {TIME_COLUMN} has a time that segments cannot have ({error}): write times in"
            " the unit of the column"
        ) from error


def _in_type(values: pa.Array, type_: FieldType, name: str, path: str) -> pa.Array:
    """Return values in the type of a column, without a loss."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    of, wanted = values.type, type_.arrow
    is_lossless = (
        of == wanted
        or pa.types.is_null(of)
        or (
            type_ is FieldType.STRING and (pa.types.is_large_string(of) or str(of) == "string_view")
        )
        or (type_ is FieldType.LONG and pa.types.is_signed_integer(of))
        or (
            type_ is FieldType.DOUBLE
            and (pa.types.is_floating(of) or of in {pa.int8(), pa.int16(), pa.int32()})
        )
    )
    if not is_lossless:
        raise InvalidRequest(
            f"{path}: column {name!r} is {of}, and {type_.spec_name} in the schema of the write"
        )
    return pc.cast(values, wanted)
