"""Sizes in bytes of the rows of a batch, for limits on the length of a row.

Computed by columns, and only where a batch is so large that one of its rows may exceed a bound.
Each value counts as one byte or more: Arrow may store a null without any bytes, but its text takes
some. Unions are not supported: call `check_no_unions` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest


def bytes_of_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return how many bytes the values of each row take."""
    return _sums(batch.columns, batch.num_rows)


def may_have_long_rows(batch: pa.RecordBatch, bytes_max: int) -> bool:
    """Return whether a row may take more bytes than a limit, without reading the rows."""
    if any(map(repeats_values, batch.schema.types)):
        return True
    size = 0
    for column in batch.columns:
        size += column.nbytes
        for dictionary in dictionaries_of(column):
            size += dictionary.nbytes * len(column)
    return size > bytes_max


def repeats_values(kind: pa.DataType) -> bool:
    """Return whether values may take many times the bytes that Arrow stores for them.

    Many rows may refer to one value, other than by a dictionary of the column itself; and lists may
    have values that take no bytes, or a bit.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return repeats_values(kind.storage_type)
    if types.is_dictionary(kind):
        return repeats_values(kind.value_type) or _has_lists_of_small_values(kind.value_type)
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_run_end_encoded(kind):
        return True
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return True
    return _has_lists_of_small_values(kind) or any(map(repeats_values, _inner_types(kind)))


def check_no_unions(fields: Iterable[pa.Field], shown: str) -> None:
    """Refuse columns with a union type, at any depth.

    Args:
        fields: The columns.
        shown: Name of the file in messages.

    Raises:
        InvalidRequest: A column has one.
    """
    for field in fields:
        if _has_union(field.type):
            raise InvalidRequest(
                f"{shown}: column {field.name!r:.200} has a union type ({field.type!s:.200}), which"
                " is not supported: write it as a struct or as text"
            )


def _has_union(kind: pa.DataType) -> bool:
    return pa.types.is_union(kind) or any(map(_has_union, _inner_types(kind)))


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(at).type for at in range(kind.num_fields)]


def _has_lists_of_small_values(kind: pa.DataType) -> bool:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    if is_list or types.is_fixed_size_list(kind):
        return any(map(_is_small, _inner_types(kind)))
    return False


def _is_small(kind: pa.DataType) -> bool:
    """Return whether values of a list may take less than a byte, or are those of a dictionary."""
    types = pa.types
    if types.is_null(kind) or types.is_boolean(kind) or types.is_dictionary(kind):
        return True
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == 0)
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        is_empty = kind.num_fields == 0 or (types.is_fixed_size_list(kind) and kind.list_size == 0)
        return is_empty or any(map(_is_small, _inner_types(kind)))
    if isinstance(kind, pa.BaseExtensionType):
        return _is_small(kind.storage_type)
    return False


def _sums(columns: Iterable[pa.Array], rows: int) -> pa.Array:
    total = pa.repeat(pa.scalar(0, pa.int64()), rows)
    for column in columns:
        total = pc.add(total, _bytes_of_values(column))
    return total


def _bytes_of_values(column: pa.Array) -> pa.Array:
    kind = column.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        sizes = _bytes_of_values(column.storage)
    elif types.is_dictionary(kind):
        sizes = _bytes_of_values(column.dictionary).take(column.indices)
    elif types.is_struct(kind):
        sizes = _sums(column.flatten(), len(column))
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
    elif width := _fixed_bytes(kind):
        sizes = pa.repeat(pa.scalar(width, pa.int64()), len(column))
    elif types.is_null(kind):
        sizes = pa.repeat(pa.scalar(0, pa.int64()), len(column))
    else:
        sizes = pc.binary_length(column)
    return pc.max_element_wise(sizes.cast(pa.int64()), 1)


def _bytes_of_lists(column: pa.Array) -> pa.Array:
    offsets = column.offsets
    width = 0 if pa.types.is_map(column.type) else _fixed_bytes(column.type.value_type)
    if width:  # without an array as long as all values
        lengths = pc.subtract(offsets[1:], offsets[:-1]).cast(pa.int64())
        return pc.multiply(lengths, width)
    if pa.types.is_map(column.type):
        inner = pc.add(_bytes_of_values(column.keys), _bytes_of_values(column.items))
    else:
        inner = _bytes_of_values(column.values)
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(inner)])
    return pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return how many bytes any value of a type takes, at least 1; 0: it depends on the value."""
    types = pa.types
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width // 8))
    return 0


def dictionaries_of(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the dictionaries of a column, including those of nested columns."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from dictionaries_of(column.storage)
    elif pa.types.is_dictionary(kind):
        yield column.dictionary
    elif pa.types.is_struct(kind):
        for inner in column.flatten():
            yield from dictionaries_of(inner)
    elif pa.types.is_map(kind):
        yield from dictionaries_of(column.keys)
        yield from dictionaries_of(column.items)
    elif pa.types.is_nested(kind):
        yield from dictionaries_of(column.values)
