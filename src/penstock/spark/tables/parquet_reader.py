"""Reads one Parquet file of a datasource as Arrow batches of a given schema, without the JVM.

Owns the lookup of columns, the types of the table, and the time of each row. Does not own Spark's
data source API (`datasource`). Invariant: the rows equal those that the JVM's scan of the same file
returns (`penstock.spark.views`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.column_case import ColumnNames
from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.core.intervals import Interval
from penstock.spark.tables.table_files import TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN

if TYPE_CHECKING:
    import pyarrow.dataset as ds

BATCH_ROWS: Final = 65_536


def read_file(
    file: TableFile, schema: pa.Schema, *, exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the visible rows of a file; columns that it lacks are null.

    Args:
        file: The file.
        schema: Names and types of the batches, each type the file's own or a wider one.
        exact: Whether names are case-sensitive, because the table has case variants
            (`core.column_case`).

    Raises:
        Unavailable: The file was deleted or cannot be read now: list the visible files again.
            CorruptData: It is not a Parquet file.
    """
    try:
        dataset = _open(file.path)
        own = ColumnNames({name: name for name in dataset.schema.names}, exact=exact)
        wanted = [name for name in map(own.get, schema.names) if name is not None]
        scanner = dataset.scanner(
            columns=wanted,
            filter=None if file.clip is None else _within(file.clip, dataset.schema),
            batch_size=BATCH_ROWS,
            batch_readahead=1,
            use_threads=False,  # Spark runs one of these for each core
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield _conformed(batch, schema, exact=exact)
    except OSError as error:
        raise Unavailable(
            f"{file.path} cannot be read ({error}): its segment may have been replaced meanwhile;"
            " load the datasource again"
        ) from error


def _open(path: str) -> ds.FileSystemDataset:
    # Imported here, because processes that do not read files would waste time and memory: each peon
    # and the router half a second and 40 MB for pandas, and processes in which Spark plans a read a
    # fifth of their import time for fsspec.
    import fsspec  # noqa: PLC0415
    import pyarrow.dataset as ds  # noqa: PLC0415

    filesystem, inner = fsspec.core.url_to_fs(path)
    kind = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    try:
        return ds.dataset(inner, format=kind, filesystem=filesystem)
    except pa.ArrowInvalid as error:
        raise CorruptData(path, None, f"it is not a Parquet file ({error})") from error


def _within(interval: Interval, schema: pa.Schema) -> pc.Expression:
    time = schema.field(TIME_COLUMN)
    start, end = (
        pa.scalar(ms * 1000, pa.timestamp("us")).cast(time.type)
        for ms in (interval.start_ms, interval.end_ms)
    )
    return (pc.field(time.name) >= start) & (pc.field(time.name) < end)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, *, exact: bool) -> pa.RecordBatch:
    names = batch.schema.names
    own = ColumnNames({name: index for index, name in enumerate(names)}, exact=exact)
    columns = []
    for field in schema:
        index = own.get(field.name)
        if index is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(widened(batch.column(index), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def widened(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values as a type that holds them, with the same outcome as Spark's cast.

    Raises:
        InvalidRequest: The type does not hold the values.
    """
    if values.type == type_:
        return values
    if pa.types.is_string(type_) and pa.types.is_floating(values.type):
        return pa.array([_java_text(value) for value in _numbers(values)], pa.string())
    try:
        # Whole numbers above 2⁵³ lose digits as double, in Spark too.
        return values.cast(type_, safe=not pa.types.is_floating(type_))
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{values.type} cannot be read as {type_}: {error}") from error


def _numbers(values: pa.Array) -> list[np.floating | None]:
    numbers = values.to_numpy(zero_copy_only=False)
    valid = values.is_valid().to_pylist()
    return [number if there else None for number, there in zip(numbers, valid, strict=True)]


def _java_text(number: np.floating | None) -> str | None:
    """Return a number as text in Java's form, like Spark: 5.0, 1.0E10, NaN."""
    if number is None:
        return None
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else ("Infinity" if number > 0 else "-Infinity")
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="0")
    mantissa, exponent = np.format_float_scientific(number, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"
