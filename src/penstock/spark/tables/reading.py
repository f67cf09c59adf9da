"""From one Parquet file of a datasource to Arrow batches of a given schema, without the JVM.

Owns finding the columns, the types of the table, the clip, and leaving out early what a query's
conditions exclude. Spark's data source API is not known here (`penstock.spark.datasource`).

Invariant: conditions only ever leave out rows for which Spark, which tests them again, would say
no. So none is used where Arrow and Spark compare differently: NaN, and columns that are widened.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.core.intervals import Interval
from penstock.spark.rowshape import TIME_COLUMN
from penstock.spark.tables.model import TableFile

BATCH_ROWS: Final = 65_536

Literal: TypeAlias = str | int | bool | datetime

_COMPARISONS: Final[dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """`column comparison value`, one of = < <= > >=; rows that are null there do not count."""

    column: str
    comparison: str
    value: Literal


def may_hold(file: TableFile, conditions: Sequence[Condition]) -> bool:
    """Return whether the file's time leaves room for rows that fulfil the conditions."""
    interval = file.clip or file.interval
    return not any(_excludes(interval, condition) for condition in conditions)


def read_file(
    file: TableFile, schema: pa.Schema, conditions: Sequence[Condition] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that count; columns it lacks are null.

    Args:
        file: The file.
        schema: Names and types of the batches, each type the file's own or a wider one.
        conditions: Rows that break one of them may be left out.

    Raises:
        Unavailable: The file is gone or cannot be read now: ask for the visible files again.
        CorruptData: It is no Parquet file.
    """
    try:
        dataset = _open(file.path)
        present = {field.name.lower(): field for field in dataset.schema}
        scanner = dataset.scanner(
            columns=[
                present[field.name.lower()].name
                for field in schema
                if field.name.lower() in present
            ],
            filter=_filter(file, schema, present, conditions),
            batch_size=BATCH_ROWS,
            batch_readahead=1,
            use_threads=False,  # Spark runs as many of us at once as there are cores
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield _conformed(batch, schema)
    except OSError as error:
        raise Unavailable(
            f"{file.path} cannot be read ({error}): its segment may have been replaced meanwhile;"
            " run the query again"
        ) from error


def _open(path: str) -> ds.FileSystemDataset:
    filesystem, inner = fsspec.core.url_to_fs(path)
    kind = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    try:
        return ds.dataset(inner, format=kind, filesystem=filesystem)
    except pa.ArrowInvalid as error:
        raise CorruptData(path, 0, f"it is no Parquet file ({error})") from error


def _filter(
    file: TableFile,
    schema: pa.Schema,
    present: dict[str, pa.Field],
    conditions: Sequence[Condition],
) -> pc.Expression | None:
    found = [] if file.clip is None else _clip(file.clip, present[TIME_COLUMN])
    for condition in conditions:
        own = present.get(condition.column.lower())
        index = schema.get_field_index(condition.column)
        if own is not None and index >= 0 and schema.field(index).type == own.type:
            found.append(_expression(condition, own))
    return functools.reduce(operator.and_, found) if found else None


def _clip(interval: Interval, time: pa.Field) -> list[pc.Expression]:
    column = pc.field(time.name)
    start, end = (
        pa.scalar(ms * 1000, pa.timestamp("us")).cast(time.type)
        for ms in (interval.start_ms, interval.end_ms)
    )
    return [column >= start, column < end]


def _expression(condition: Condition, own: pa.Field) -> pc.Expression:
    literal = pa.scalar(condition.value, own.type)
    return _COMPARISONS[condition.comparison](pc.field(own.name), literal)


def _excludes(interval: Interval, condition: Condition) -> bool:
    if condition.column.lower() != TIME_COLUMN or not isinstance(condition.value, datetime):
        return False
    at_ms = condition.value.timestamp() * 1000
    too_early = interval.end_ms <= at_ms
    too_late = interval.start_ms > at_ms
    match condition.comparison:
        case ">" | ">=":
            return too_early
        case "<":
            return interval.start_ms >= at_ms
        case "<=":
            return too_late
        case _:
            return too_early or too_late


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    own = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    columns = []
    for field in schema:
        index = own.get(field.name.lower())
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
    return [
        number if valid else None
        for number, valid in zip(numbers, values.is_valid().to_pylist(), strict=True)
    ]


def _java_text(number: np.floating | None) -> str | None:
    """Return a number as Java prints it, which Spark does: 5.0, 1.0E10, NaN."""
    if number is None:
        return None
    if not np.isfinite(number):
        return "NaN" if np.isnan(number) else ("Infinity" if number > 0 else "-Infinity")
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="0")
    mantissa, exponent = np.format_float_scientific(number, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"
