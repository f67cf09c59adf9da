"""Bounds of Parquet files: how many rows may be read at once, checked before reading them.

A value may be stored once, in a dictionary, and occur in a million rows; a run of equal rows of any
length takes a few bytes. So neither the size of a file nor that of a row group limits the memory of
its rows. Owns the bounds, which follow from the footer, then from the headers of dictionaries, and
if these do not suffice, from the dictionaries. Does not own reading: the memory limit of the
process handles a wrong footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.row_bytes import dictionaries_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_BYTES_MAX: Final = 128 << 20
"""Approximate maximum size of rows that are read at once, unless one row alone is larger."""
VALUE_BYTES_MAX: Final = 512 << 20
"""A column chunk whose average value is larger is refused: a value is read as a whole."""
ROWS_PER_BYTE_MAX: Final = 100_000
"""Maximum number of rows for each byte of a file; a file of equal rows has a few thousand."""
# Read-ahead of a column of which only the dictionary is needed.
_PROBE_BUFFER_BYTES: Final = 64 << 10
_OF_DICTIONARY: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
# A value may share a prefix with the previous one, and is stored without it.
_OF_PREFIXES: Final = "DELTA_BYTE_ARRAY"
_PREFIX_ROWS: Final = 1_024
# Values of a batch may be larger than the average of the row group.
_UNEVEN: Final = 4
_FIXED: Final = frozenset({"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE"})
# Size in memory of a value of each type; for other types, that of an offset.
_VALUE_BYTES: Final = 8
# The header of a page in Thrift's compact protocol: integers with the ids 1 to 3.
_HEADER_BYTES: Final = 64
_NUMBER_FIELD: Final = 0x15
_DICTIONARY_PAGE: Final = 2
# The header of the dictionary, with the id 7, after the sizes or after a checksum with the id 4.
_DICTIONARY_FIELDS: Final = frozenset({0x4C, 0x3C})
_PLAIN_ENCODINGS: Final = frozenset({0, 2})
_BOOLEAN_FIELDS: Final = frozenset({0x11, 0x12})
# A larger dictionary is decoded by Arrow.
_DICTIONARY_BYTES_MAX: Final = 8 << 20
_CODECS: Final[Mapping[str, str]] = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "ZSTD": "zstd",
    "BROTLI": "brotli",
}
_LENGTH_BYTES: Final = 4
# Size of a step of the search, so that the results stay in the CPU caches.
_STEP_BYTES: Final = 32 << 10


class _DictionaryPage(NamedTuple):
    """Position of a dictionary in its file, and its decompressed size."""

    size: int
    stored_size: int
    start: int


class _Coded(NamedTuple):
    """A column chunk that may have a dictionary, and its number of values per row."""

    number: int
    path: str
    per_row: float
    size: int


def check_rows(metadata: pq.FileMetaData, size: int, shown: str) -> None:
    """Refuse a file with more rows than its bytes can contain.

    Raises:
        InvalidRequest: It announces too many rows.
    """
    if metadata.num_rows > ROWS_PER_BYTE_MAX * max(size, 1):
        raise InvalidRequest(
            f"{shown}: the footer announces {metadata.num_rows:,} rows in {size:,} bytes, more than"
            f" {ROWS_PER_BYTE_MAX:,} for each byte: check the program that wrote the file"
        )


def runs_of_groups(
    stored: pa.NativeFile,
    metadata: pq.FileMetaData,
    groups: Iterable[int],
    names: Sequence[str] | None,
    rows_max: int,
    shown: str,
) -> Iterator[tuple[list[int], int]]:
    """Yield lists of row groups to read consecutively, and the number of rows to read at once.

    Small ones are combined into one batch.

    Args:
        stored: The file.
        metadata: The footer.
        groups: Numbers of the row groups.
        names: The columns to read; None: all.
        rows_max: Maximum number of rows.
        shown: Name of the file in messages.

    Raises:
        InvalidRequest: A value is too large to be read.
    """
    run: list[int] = []
    run_rows, run_bytes = 0, 0.0
    bounds = _RowBounds(stored, metadata, names, rows_max, shown)
    for group in groups:
        rows = metadata.row_group(group).num_rows
        row_bytes = bounds.row_bytes(group)
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


class _RowBounds:
    """Bounds on the size of rows of one file. Opens the file at most once more.

    Args:
        stored: The file.
        metadata: The footer.
        names: The columns to read; None: all.
        rows_max: Maximum number of rows to read at once.
        shown: Name of the file in messages.
    """

    def __init__(
        self,
        stored: pa.NativeFile,
        metadata: pq.FileMetaData,
        names: Sequence[str] | None,
        rows_max: int,
        shown: str,
    ) -> None:
        self._stored = stored
        self._metadata = metadata
        self._wanted = None if names is None else frozenset(names)
        self._rows_max = rows_max
        self._shown = shown
        self._by_dictionaries: pq.ParquetFile | None = None

    def row_bytes(self, group: int) -> float:
        """Return the maximum number of bytes of a row of a row group."""
        found = self._metadata.row_group(group)
        if found.num_rows < 1:  # values without rows are damage, which the reader reports
            return 0.0
        plain = 0.0
        coded: list[_Coded] = []
        for number in range(found.num_columns):
            column = found.column(number)
            path = column.path_in_schema
            count = column.num_values
            if not count:
                continue
            if self._wanted is not None and path.partition(".")[0] not in self._wanted:
                continue
            per_row = max(count / found.num_rows, 1.0)
            plain += _VALUE_BYTES * per_row
            if column.physical_type in _FIXED:
                continue
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY":  # nulls take as much
                row_bytes = self._metadata.schema.column(number).length * per_row
                _check_values(self._shown, group, path, row_bytes)
                plain += row_bytes
                continue
            size = column.total_uncompressed_size
            _check_values(self._shown, group, path, size / count)
            plain += size / found.num_rows * _UNEVEN
            if _OF_DICTIONARY.intersection(column.encodings):
                # No value is larger than the whole chunk.
                coded.append(_Coded(number, path, per_row, size))
            elif _OF_PREFIXES in column.encodings:
                plain += BATCH_BYTES_MAX / _PREFIX_ROWS
        left = BATCH_BYTES_MAX / min(self._rows_max, found.num_rows) - plain
        if coded and _total(coded) > left:
            coded = self._by_headers(found, coded)
        if coded and _total(coded) > left:
            coded = self._by_values(group, coded, left)
        return plain + _total(coded)

    def _by_headers(self, found: pq.RowGroupMetaData, coded: Sequence[_Coded]) -> list[_Coded]:
        """Return the columns with the sizes of their dictionaries, which limit the values."""
        known = []
        for one in coded:
            page = _dictionary_page(self._stored, found.column(one.number))
            known.append(one if page is None else one._replace(size=min(one.size, page.size)))
        return known

    def _by_values(self, group: int, coded: Sequence[_Coded], left: float) -> list[_Coded]:
        """Return the columns, those with large dictionaries with their largest values."""
        share = left / len(coded)
        found = self._metadata.row_group(group)
        known: list[_Coded] = []
        unknown: dict[str, _Coded] = {}
        for one in coded:
            if one.size * one.per_row <= share:
                known.append(one)
                continue
            largest = _largest_short_value(self._stored, found.column(one.number))
            if largest is None:
                unknown[one.path] = one
            else:
                known.append(one._replace(size=largest))
        if unknown:
            found_largest = _largest_values(self._opened(), group, list(unknown))
            known += [unknown[path]._replace(size=largest) for path, largest in found_largest]
        return known

    def _opened(self) -> pq.ParquetFile:
        """Open the file once more, reading text columns as dictionaries."""
        if self._by_dictionaries is None:
            # Imported here: see `penstock.spark.batch.input.columnar`.
            import pyarrow.parquet as pq  # noqa: PLC0415

            schema = self._metadata.schema
            columns = [schema.column(number) for number in range(len(schema))]
            self._by_dictionaries = pq.ParquetFile(
                self._stored,
                metadata=self._metadata,
                read_dictionary=[one.path for one in columns if one.physical_type == "BYTE_ARRAY"],
                pre_buffer=False,
                buffer_size=_PROBE_BUFFER_BYTES,
            )
        return self._by_dictionaries


def _total(coded: Iterable[_Coded]) -> float:
    return sum(one.size * one.per_row for one in coded)


def _check_values(shown: str, group: int, path: str, value_bytes: float) -> None:
    if value_bytes > VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"{shown}: the values of column {path!r} in row group {group} take"
            f" {int(value_bytes):,} bytes on average, more than {VALUE_BYTES_MAX:,}: leave the"
            " column out, or write smaller values"
        )


def _dictionary_page(
    stored: pa.NativeFile, column: pq.ColumnChunkMetaData
) -> _DictionaryPage | None:
    """Return the position of the dictionary of a column chunk; None if it has none.

    Arrow decompresses a dictionary to exactly as many bytes as its header announces.
    """
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    head = bytes(stored.read_at(_HEADER_BYTES, at))
    try:
        kind, place = _number(head, 0)
        size, place = _number(head, place)
        stored_size, place = _number(head, place)
        if kind != _DICTIONARY_PAGE or size < 0 or stored_size < 0:
            return None
        return _DictionaryPage(size, stored_size, at + _end_of_header(head, place))
    except (IndexError, ValueError):
        return None  # written by a program with another layout


def _end_of_header(head: bytes, place: int) -> int:
    """Return the length of a dictionary's header, given the end of its sizes."""
    if head[place] == _NUMBER_FIELD:
        _, place = _number(head, place)
    if head[place] not in _DICTIONARY_FIELDS:
        raise ValueError("not a header of a dictionary")
    _, place = _number(head, place + 1)
    encoding, place = _number(head, place)
    if encoding not in _PLAIN_ENCODINGS:
        raise ValueError("unsupported encoding of a dictionary")
    if head[place] in _BOOLEAN_FIELDS:
        place += 1
    if head[place] or head[place + 1]:
        raise ValueError("a header with further fields")
    return place + 2


def _number(head: bytes, place: int) -> tuple[int, int]:
    """Return the number in the field at a position, and the end of the field."""
    if head[place] != _NUMBER_FIELD:
        raise ValueError("not a number")
    value = 0
    for shift in range(5):
        byte = head[place + 1 + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 2 + shift
    raise ValueError("not a number of 32 bits")


def _largest_short_value(stored: pa.NativeFile, column: pq.ColumnChunkMetaData) -> int | None:
    """Return the longest value in a dictionary of values of up to 255 bytes, or None.

    A value follows its length, of four bytes. Text never contains three consecutive zero bytes, so
    all of them belong to lengths: it suffices to check that each value ends where the next length
    begins. The result is None for a dictionary of other values, and for some of very short ones.
    """
    page = _dictionary_page(stored, column)
    codec = column.compression
    if page is None or max(page.size, page.stored_size) > _DICTIONARY_BYTES_MAX:
        return None
    if codec not in _CODECS and codec != "UNCOMPRESSED":
        return None
    data = stored.read_at(page.stored_size, page.start)
    if codec in _CODECS:
        try:
            data = pa.Codec(_CODECS[codec]).decompress(data, page.size)
        except (pa.ArrowException, OSError, ValueError):
            return None  # The reader reports damage and missing codecs.
    found = np.frombuffer(data, np.uint8)
    if len(found) != page.size:
        return None
    end = largest = 0
    for begin in range(0, len(found), _STEP_BYTES):
        part = found[begin : begin + _STEP_BYTES + _LENGTH_BYTES - 1]
        zeros = part == 0
        places = np.flatnonzero(zeros[1:-2] & zeros[2:-1] & zeros[3:])
        if not len(places):
            continue  # If a length should be here, the final check of `end` fails.
        lengths = part[places]
        ends = places + lengths + _LENGTH_BYTES
        if begin + places[0] != end or not np.array_equal(ends[:-1], places[1:]):
            return None
        end = begin + int(ends[-1])
        largest = max(largest, int(lengths.max()))
    return largest if end == len(found) else None


def _largest_values(
    file: pq.ParquetFile, group: int, paths: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Yield the largest value in the dictionary of each column, at the chunk's beginning."""
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
