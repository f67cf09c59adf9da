"""Bounds of Parquet files: how many rows may be read at once, found out before they are.

A value may be stored once, in a dictionary, and stand in a million rows; a run of equal rows takes
a few bytes, whatever its length. So neither the size of a file nor that of a row group bounds what
its rows take. Owns the bounds, which follow from the footer and, where needed, from the dictionary
of a column. Does not own reading: a footer that lies is for the memory limit of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.rowbytes import dictionaries_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_BYTES_MAX: Final = 128 << 20
"""Rows that are read at once take about as much at most, unless one row alone takes more."""
VALUE_BYTES_MAX: Final = 512 << 20
"""A column chunk whose values take more on average is refused: one value is read as a whole."""
ROWS_PER_BYTE_MAX: Final = 100_000
"""A file may hold as many rows for each of its bytes; one of equal rows has some thousands."""
PROBE_BUFFER_BYTES: Final = 64 << 10
"""How much of a column is read ahead where only its dictionary is wanted."""
_OF_DICTIONARY: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
# A value may begin as the one before it, and is stored without that part.
_OF_PREFIXES: Final = "DELTA_BYTE_ARRAY"
_PREFIX_ROWS: Final = 1_024
# Values of a batch may be larger than those of the row group are on average.
_UNEVEN: Final = 4
_FIXED: Final = frozenset({"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE"})
# What a value of such a type takes in memory, and where any other ends.
_VALUE_BYTES: Final = 8


def check_rows(metadata: pq.FileMetaData, size: int, shown: str) -> None:
    """Refuse a file of more rows than its bytes can be meant for.

    Raises:
        InvalidRequest: It announces too many.
    """
    if metadata.num_rows > ROWS_PER_BYTE_MAX * max(size, 1):
        raise InvalidRequest(
            f"{shown}: the footer announces {metadata.num_rows:,} rows in {size:,} bytes, more than"
            f" {ROWS_PER_BYTE_MAX:,} for each byte: check the program that wrote the file"
        )


def runs_of_groups(
    opened: Callable[[Sequence[str]], pq.ParquetFile],
    metadata: pq.FileMetaData,
    groups: Iterable[int],
    names: Sequence[str] | None,
    rows_max: int,
    shown: str,
) -> Iterator[tuple[list[int], int]]:
    """Yield row groups to read one after the other, and how many of their rows at once.

    Small ones come together, so that they are not a batch each.

    Args:
        opened: Opens the file once more; returns the given columns by their dictionaries.
        metadata: The footer.
        groups: Which row groups.
        names: The columns that are read; None: all.
        rows_max: How many rows at most.
        shown: What messages call the file.

    Raises:
        InvalidRequest: A value is too large to be read.
    """
    run: list[int] = []
    run_rows, run_bytes = 0, 0.0
    wanted = None if names is None else frozenset(names)
    for group in groups:
        rows = metadata.row_group(group).num_rows
        row_bytes = _row_bytes(opened, metadata, group, wanted, rows_max, shown)
        is_small = rows <= rows_max and row_bytes * rows <= BATCH_BYTES_MAX
        if run and (
            not is_small
            or run_rows + rows > rows_max
            or run_bytes + row_bytes * rows > BATCH_BYTES_MAX
        ):
            yield run, rows_max
            run, run_rows, run_bytes = [], 0, 0.0
        if is_small:
            run.append(group)
            run_rows, run_bytes = run_rows + rows, run_bytes + row_bytes * rows
        else:
            yield [group], max(1, min(rows_max, int(BATCH_BYTES_MAX // max(row_bytes, 1.0))))
    if run:
        yield run, rows_max


def _row_bytes(
    opened: Callable[[Sequence[str]], pq.ParquetFile],
    metadata: pq.FileMetaData,
    group: int,
    wanted: frozenset[str] | None,
    rows_max: int,
    shown: str,
) -> float:
    """Return how many bytes a row of a row group may take."""
    found = metadata.row_group(group)
    if found.num_rows < 1:  # values of no row are damage, which the reader reports
        return 0.0
    plain, coded_at_most = 0.0, 0.0
    coded: dict[str, float] = {}
    for number in range(found.num_columns):
        column = found.column(number)
        path = column.path_in_schema
        if not column.num_values:
            continue
        if wanted is not None and path.partition(".")[0] not in wanted:
            continue
        plain += _VALUE_BYTES * max(column.num_values / found.num_rows, 1.0)
        if column.physical_type in _FIXED:
            continue
        size, count = column.total_uncompressed_size, column.num_values
        _check_values(shown, group, path, size / count)
        plain += size / found.num_rows * _UNEVEN
        if _OF_DICTIONARY.intersection(column.encodings):
            coded[path] = max(count / found.num_rows, 1.0)
            # No value is larger than all of the chunk.
            coded_at_most += size * coded[path]
        elif _OF_PREFIXES in column.encodings:
            plain += BATCH_BYTES_MAX / _PREFIX_ROWS
    if (plain + coded_at_most) * min(rows_max, found.num_rows) <= BATCH_BYTES_MAX:
        return plain + coded_at_most
    if not coded:
        return plain
    file = opened(list(coded))
    return plain + sum(
        largest * coded[path] for path, largest in _largest_values(file, group, list(coded))
    )


def _check_values(shown: str, group: int, path: str, value_bytes: float) -> None:
    if value_bytes > VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"{shown}: the values of column {path!r} in row group {group} take"
            f" {int(value_bytes):,} bytes on average, more than {VALUE_BYTES_MAX:,}: leave the"
            " column out, or write smaller values"
        )


def _largest_values(
    file: pq.ParquetFile, group: int, paths: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Yield the largest value in the dictionary of each column, which is at the chunk's start."""
    batch = next(file.iter_batches(1, row_groups=[group], columns=paths, use_threads=False))
    for path in paths:
        column = batch.column(path.partition(".")[0])
        yield path, max((_largest(one) for one in dictionaries_of(column)), default=0)


def _largest(values: pa.Array) -> int:
    if not len(values):
        return 0
    if pa.types.is_fixed_size_binary(values.type) or pa.types.is_decimal(values.type):
        return int(values.type.byte_width)
    found = pc.max(pc.binary_length(values)).as_py()
    return int(found or 0)
