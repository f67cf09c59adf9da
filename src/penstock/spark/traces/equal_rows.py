"""Comparison of rows with given values, in Arrow batches and in files of a datasource. No Spark.

A value is compared in the type of the column, so values may be texts, as from a command line. Two
NaN are equal, as are two nulls. A column that a file lacks is null in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import END_OF_TIME_MS, Interval
from penstock.core.printable import quoted
from penstock.spark.tables.parquet_reader import read_file
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType

if TYPE_CHECKING:
    from penstock.spark.tables.table_files import TableFile

Values = Mapping[str, object]
# Columns of other types, such as sketches, are not compared.
_TYPES = {one.value: one.arrow for one in FieldType if one is not FieldType.BINARY}


def equal_rows(rows: pa.RecordBatch, values: Values) -> npt.NDArray[np.bool_]:
    """Return which rows have these values; columns that the rows lack are not compared.

    Raises:
        InvalidRequest: A value cannot be of the type of its column.
    """
    found = np.ones(rows.num_rows, np.bool_)
    for name, value in values.items():
        if name in rows.schema.names:
            column = rows.column(name)
            found &= _equal(column, as_type(value, column.type, name))
    return found


def as_type(value: object, type_: pa.DataType, name: str) -> object:
    """Return a value of JSON as one of a type.

    Raises:
        InvalidRequest: It cannot be one; the message names the column.
    """
    if value is None or pa.types.is_list(type_):
        return value
    if pa.types.is_string(type_):
        return value if isinstance(value, str) else str(value)
    try:
        return pa.scalar(value).cast(type_).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise InvalidRequest(
            f"{quoted(str(value))} is not a value of the type {type_}: write one of this type",
            place=f"columns.{name}",
        ) from None


def _equal(column: pa.Array, value: object) -> npt.NDArray[np.bool_]:
    if value is None:
        mask = column.is_null()
    elif pa.types.is_list(column.type):
        return np.array([one == value for one in column.to_pylist()], np.bool_)
    elif isinstance(value, float) and np.isnan(value):
        mask = pc.fill_null(pc.is_nan(column), False)  # noqa: FBT003 - the value to fill in
    else:
        same = pc.equal(column, pa.scalar(value, column.type))
        mask = pc.fill_null(same, False)  # noqa: FBT003 - the value to fill in
    found: npt.NDArray[np.bool_] = mask.to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def count_equal(file: TableFile, time_ms: int, values: Values) -> int:
    """Return the number of rows of a file with this time and these values.

    Args:
        file: The file.
        time_ms: Time of the rows in epoch milliseconds; rows are compared to the millisecond.
        values: Values of columns.

    Raises:
        InvalidRequest: A value cannot be of the type of its column.
        Unavailable: The file was deleted, or cannot be read now.
        CorruptData: It is not a Parquet file.
    """
    types = {name: _TYPES[type_] for name, type_ in file.columns if type_ in _TYPES}
    wanted = {name: types[name] for name in values if name in types}
    absent = set(values).difference(name for name, _ in file.columns)
    if any(values[name] is not None for name in absent):
        return 0
    if time_ms >= END_OF_TIME_MS:
        return 0
    schema = pa.schema([(TIME_COLUMN, TIME_TYPE), *wanted.items()])
    at = Interval(time_ms, time_ms + 1)
    inside = at if file.clip is None else at.intersection(file.clip)
    if inside is None or inside.is_empty:
        return 0
    clipped = _clipped(file, inside)
    batches = read_file(clipped, schema)
    return sum(int(equal_rows(batch, values).sum()) for batch in batches)


def _clipped(file: TableFile, inside: Interval) -> TableFile:
    return type(file)(
        file.path, file.columns, file.interval, inside, file.announced, file.size_bytes
    )
