"""Casts columns of text to other types.

Owns the accepted text of a date, a time, or a number. Does not own the source of the text.

A time without a zone is in UTC. A date is ``2026-01-31``. Binary is the UTF-8 of the text.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.out_of_memory import is_out_of_memory
from penstock.flow.processors.records.formats.format_protocols import BadRecords, no_memory_left

_ZONED: Final = r"(?:[Zz]|[+-]\d{2}:?\d{2})$"


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, by name; missing columns are null.

    Raises:
        BadRecords: A value does not fit; the message names the column.
    """
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            column = as_type(batch.column(at), field)
        if not field.nullable and column.null_count:
            raise BadRecords(
                f"column {field.name!r}: a value is missing, but the column is not null"
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_type(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a column as the type of a field.

    Raises:
        BadRecords: A value does not fit.
    """
    wanted = field.type
    if column.type.equals(wanted):
        return column
    try:
        if is_text(column.type) and pa.types.is_timestamp(wanted):
            return _times(column, wanted)
        return pc.cast(column, wanted, safe=True)
    except (pa.ArrowException, OSError) as error:
        if is_out_of_memory(error):
            raise no_memory_left() from None
        text = " ".join(str(error).split())[:300]
        raise BadRecords(f"column {field.name!r} must be {wanted}: {text}") from None


def is_text(type_: pa.DataType) -> bool:
    """Return whether values of a type are text."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _times(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    zoned = pc.match_substring_regex(column, _ZONED)
    # Arrow requires a zone in all values or in none.
    with_zone = pc.if_else(zoned, column, pc.binary_join_element_wise(column, "Z", ""))
    return pc.cast(pc.cast(with_zone, pa.timestamp(wanted.unit, "UTC")), wanted)
