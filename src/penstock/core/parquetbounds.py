"""Bounds of Parquet files: how many rows may be read at once, found out before they are.

A value may be stored once, in a dictionary, and stand in a million rows; a run of equal rows takes
a few bytes, whatever its length. So neither the size of a file nor that of a row group bounds what
its rows take. Owns the bounds, which follow from the footer, then from the headers of
dictionaries, and where these do not suffice from the dictionaries. Does not own reading: a footer
that lies is for the memory limit of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
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
# How much of a column is read ahead where only its dictionary is wanted.
_PROBE_BUFFER_BYTES: Final = 64 << 10
_OF_DICTIONARY: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
# A value may begin as the one before it, and is stored without that part.
_OF_PREFIXES: Final = "DELTA_BYTE_ARRAY"
_PREFIX_ROWS: Final = 1_024
# Values of a batch may be larger than those of the row group are on average.
_UNEVEN: Final = 4
_FIXED: Final = frozenset({"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE"})
# What a value of such a type takes in memory, and where any other ends.
_VALUE_BYTES: Final = 8
# The header of a page, as Thrift's compact protocol writes it: whole numbers with the ids 1 to 3.
_HEADER_BYTES: Final = 64
_NUMBER_FIELD: Final = 0x15
_DICTIONARY_PAGE: Final = 2
# The header of the dictionary, with the id 7, behind the sizes or behind a checksum with the id 4.
_DICTIONARY_FIELDS: Final = frozenset({0x4C, 0x3C})
_PLAIN_ENCODINGS: Final = frozenset({0, 2})
_BOOLEAN_FIELDS: Final = frozenset({0x11, 0x12})
# A larger dictionary is left to Arrow.
_DICTIONARY_BYTES_MAX: Final = 8 << 20
_CODECS: Final[Mapping[str, str]] = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "ZSTD": "zstd",
    "BROTLI": "brotli",
}
_LENGTH_BYTES: Final = 4
# What is searched at once, so that the results stay in the caches.
_STEP_BYTES: Final = 32 << 10


class _DictionaryPage(NamedTuple):
    """Place of a dictionary in its file, and its size when it is unpacked."""

    size: int
    stored_size: int
    start: int


class _Coded(NamedTuple):
    """A column chunk of which values may be in a dictionary, and the values of a row."""

    number: int
    path: str
    per_row: float
    size: int


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
    stored: pa.NativeFile,
    metadata: pq.FileMetaData,
    groups: Iterable[int],
    names: Sequence[str] | None,
    rows_max: int,
    shown: str,
) -> Iterator[tuple[list[int], int]]:
    """Yield row groups to read one after the other, and how many of their rows at once.

    Small ones come together, so that they are not a batch each.

    Args:
        stored: The file.
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
    """What rows of one file may take. Opens the file once more at most.

    Args:
        stored: The file.
        metadata: The footer.
        names: The columns that are read; None: all.
        rows_max: How many rows are read at once at most.
        shown: What messages call the file.
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
        """Return how many bytes a row of a row group may take."""
        found = self._metadata.row_group(group)
        if found.num_rows < 1:  # values of no row are damage, which the reader reports
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
            size = column.total_uncompressed_size
            _check_values(self._shown, group, path, size / count)
            plain += size / found.num_rows * _UNEVEN
            if _OF_DICTIONARY.intersection(column.encodings):
                if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                    plain += self._metadata.schema.column(number).length * per_row
                else:  # No value is larger than all of the chunk.
                    coded.append(_Coded(number, path, per_row, size))
            elif _OF_PREFIXES in column.encodings:
                plain += BATCH_BYTES_MAX / _PREFIX_ROWS
        left = BATCH_BYTES_MAX / min(self._rows_max, found.num_rows) - plain
        if _total(coded) > left:
            coded = self._by_headers(found, coded)
        if _total(coded) > left:
            coded = self._by_values(group, coded, left)
        return plain + _total(coded)

    def _by_headers(self, found: pq.RowGroupMetaData, coded: Sequence[_Coded]) -> list[_Coded]:
        """Return the columns with the sizes of their dictionaries, which no value exceeds."""
        known = []
        for one in coded:
            page = _dictionary_page(self._stored, found.column(one.number))
            known.append(one if page is None else one._replace(size=min(one.size, page.size)))
        return known

    def _by_values(self, group: int, coded: Sequence[_Coded], left: float) -> list[_Coded]:
        """Return the columns with the largest values of those whose dictionaries are large."""
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
        """Return the file opened once more, with the columns of text by their dictionaries."""
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
    """Return where the dictionary of a column chunk is; None: its first page is something else.

    Arrow unpacks a dictionary into as many bytes as its header announces, and no more.
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
        return None  # of a program that writes otherwise


def _end_of_header(head: bytes, place: int) -> int:
    """Return the length of the header of a dictionary, whose sizes end at a place."""
    if head[place] == _NUMBER_FIELD:
        _, place = _number(head, place)
    if head[place] not in _DICTIONARY_FIELDS:
        raise ValueError("no header of a dictionary")
    _, place = _number(head, place + 1)
    encoding, place = _number(head, place)
    if encoding not in _PLAIN_ENCODINGS:
        raise ValueError("a dictionary of another encoding")
    if head[place] in _BOOLEAN_FIELDS:
        place += 1
    if head[place] or head[place + 1]:
        raise ValueError("a header of more fields")
    return place + 2


def _number(head: bytes, place: int) -> tuple[int, int]:
    """Return the number of the field at a place, and where it ends."""
    if head[place] != _NUMBER_FIELD:
        raise ValueError("no number")
    value = 0
    for shift in range(5):
        byte = head[place + 1 + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 2 + shift
    raise ValueError("no number of 32 bits")


def _largest_short_value(stored: pa.NativeFile, column: pq.ColumnChunkMetaData) -> int | None:
    """Return the length of the largest value in a dictionary of values of up to 255 bytes, or None.

    A value is behind its length, of four bytes. Three bytes of 0 in a row stand in no text, so they
    are all in lengths: it suffices to check that each value ends where the next length is. There is
    no result for a dictionary of other values, and for some of very short ones.
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
            return None  # Damage is for the reader, and so is a codec that is not installed.
    found = np.frombuffer(data, np.uint8)
    if len(found) != page.size:
        return None
    end = largest = 0
    for begin in range(0, len(found), _STEP_BYTES):
        part = found[begin : begin + _STEP_BYTES + _LENGTH_BYTES - 1]
        zeros = part == 0
        places = np.flatnonzero(zeros[1:-2] & zeros[2:-1] & zeros[3:])
        if not len(places):
            continue  # If a length should be here, the next one is not at the end.
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
