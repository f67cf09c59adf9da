"""Sizes in bytes of the rows of a batch, for limits on the length of a row.

Computed by columns, and only for a batch so large that one of its rows may exceed a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def bytes_of_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return the size of the values of each row."""
    total = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for column in batch.columns:
        total = pc.add(total, _bytes_of_values(column))
    return total


def may_have_long_rows(batch: pa.RecordBatch, bytes_max: int) -> bool:
    """Tell, without a look at the rows, whether one of them may take more bytes than that."""
    if any(map(repeats_values, batch.schema.types)):
        return True
    size = 0
    for column in batch.columns:
        size += column.nbytes
        for dictionary in dictionaries_of(column):
            size += dictionary.nbytes * len(column)
    return size > bytes_max


def repeats_values(kind: pa.DataType) -> bool:
    """Tell whether many rows may stand for one value, other than by a dictionary."""
    types = pa.types
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_run_end_encoded(kind):
        return True
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return True
    return any(repeats_values(kind.field(at).type) for at in range(kind.num_fields))


def _bytes_of_values(column: pa.Array) -> pa.Array:
    kind = column.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        sizes = _bytes_of_values(column.storage)
    elif types.is_dictionary(kind):
        sizes = _bytes_of_values(column.dictionary).take(column.indices)
    elif types.is_struct(kind):
        sizes = bytes_of_rows(pa.RecordBatch.from_arrays(column.flatten(), names=_names(kind)))
    elif types.is_fixed_size_list(kind):
        inner = column.values.slice(column.offset * kind.list_size, len(column) * kind.list_size)
        rows = _bytes_of_values(inner).to_numpy(zero_copy_only=False)
        sizes = pa.array(rows.reshape(len(column), kind.list_size).sum(axis=1))
    elif types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, _bytes_of_values(column.values))
        sizes = pc.run_end_decode(runs).slice(column.offset, len(column))
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        # The length of a value is the first of the four numbers of its view.
        views = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[column.offset : column.offset + len(column), 0]
        sizes = pa.array(lengths, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))
    elif types.is_list_view(kind) or types.is_large_list_view(kind):
        sums = np.concatenate([[0], np.cumsum(_bytes_of_values(column.values).to_numpy())])
        begins, counts = column.offsets.to_numpy(), column.sizes.to_numpy()
        sizes = pa.array(
            sums[begins + counts] - sums[begins],
            pa.int64(),
            mask=column.is_null().to_numpy(zero_copy_only=False),
        )
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        sizes = _bytes_of_lists(column)
    elif types.is_primitive(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        sizes = pa.repeat(pa.scalar(kind.bit_width // 8, pa.int64()), len(column))
    elif types.is_null(kind):
        sizes = pa.repeat(pa.scalar(0, pa.int64()), len(column))
    else:
        sizes = pc.binary_length(column)
    return pc.fill_null(sizes.cast(pa.int64()), 0)


def _bytes_of_lists(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        inner = pc.add(_bytes_of_values(column.keys), _bytes_of_values(column.items))
    else:
        inner = _bytes_of_values(column.values)
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(inner)])
    offsets = column.offsets
    return pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))


def _names(kind: pa.DataType) -> list[str]:
    return [str(number) for number in range(kind.num_fields)]


def dictionaries_of(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the dictionaries of a column, including those of nested columns."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        yield column.dictionary
    elif pa.types.is_struct(kind):
        for inner in column.flatten():
            yield from dictionaries_of(inner)
    elif pa.types.is_map(kind):
        yield from dictionaries_of(column.keys)
        yield from dictionaries_of(column.items)
    elif pa.types.is_nested(kind):
        yield from dictionaries_of(column.values)
