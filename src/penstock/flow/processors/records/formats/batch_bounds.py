"""Bounds of the size of batches of records, and of each record.

Owns the division of batches that are too large. In some formats many records share a value in
memory. Readers of such formats apply the bounds before casts, because a cast copies the value for
each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.row_bytes import (
    bytes_of_rows,
    dictionaries_of,
    may_have_long_rows,
    repeats_values,
)
from penstock.flow.processors.records.formats.format_protocols import record_too_long, translated

CELLS_MAX: Final = 2 << 20
"""Maximum number of values, rows times columns, of a batch with more than one row."""
BATCH_BYTES_MAX: Final = 32 << 20
"""Approximate maximum size in bytes of a batch with more than one row."""
_SIZES: Final = "the sizes of the records cannot be computed"


def bounded_batches(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of a limited size; raise if a record is too long."""
    for batch in batches:
        # For most batches this check is sufficient.
        if (
            batch.nbytes <= min(bytes_max, BATCH_BYTES_MAX)
            and batch.num_rows * batch.num_columns <= CELLS_MAX
            and not any(
                pa.types.is_nested(t) or pa.types.is_dictionary(t) or repeats_values(t)
                for t in batch.schema.types
            )
        ):
            yield batch
            continue
        yield from _of_bounded_size(_of_bounded_length(iter((batch,)), bytes_max))


def _of_bounded_length(
    batches: Iterator[pa.RecordBatch], bytes_max: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        with translated(_SIZES):
            is_long = (
                may_have_long_rows(batch, bytes_max)
                and pc.any(pc.greater(bytes_of_rows(batch), bytes_max)).as_py()
            )
        if is_long:
            raise record_too_long(bytes_max)
        yield batch


def _of_bounded_size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches with very many columns or bytes: as text, a value may be many times larger."""
    for batch in batches:
        with translated(_SIZES):
            size = max(1, _bytes_of(batch))
        rows = min(
            CELLS_MAX // max(1, batch.num_columns),
            batch.num_rows * BATCH_BYTES_MAX // size,
        )
        if batch.num_rows <= rows:
            yield batch
            continue
        for start in range(0, batch.num_rows, max(1, rows)):
            yield batch.slice(start, max(1, rows))


def _bytes_of(batch: pa.RecordBatch) -> int:
    """Return how many bytes the values of a batch take, including shared ones."""
    has_dictionary = any(True for column in batch.columns for _ in dictionaries_of(column))
    if has_dictionary or any(map(repeats_values, batch.schema.types)):
        return int(pc.sum(bytes_of_rows(batch)).as_py() or 0)
    return int(batch.nbytes)
