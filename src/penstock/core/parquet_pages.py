"""Headers of the pages of Parquet files: sizes, numbers of values and encodings.

A header is a struct in Thrift's compact protocol. Owns the parsing of headers, which are hostile
input, and the limits on this work. Does not own the bounds that follow from the sizes.

A header is used only if Arrow interprets it in the same way. Therefore a header in which a field
occurs twice, or a number has more than 32 bits, is treated as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

PAGES_MAX: Final = 200_000
"""Maximum number of pages of a row group whose headers are read."""
SMALL_PAGES_MAX: Final = 100_000
"""Maximum number of small pages of a file whose headers are read, besides one for each chunk.

The time to read a larger page exceeds that to read its header."""
OF_DICTIONARY: Final = frozenset({2, 8})
"""Encodings of values that are numbers of values in the dictionary."""
OF_PREFIXES: Final = 7
"""Encoding of values that may share a prefix with the previous one (`DELTA_BYTE_ARRAY`)."""
_SMALL_VALUES: Final = 1_024
_SMALL_BYTES: Final = 16 << 10
# A header has up to 40 bytes, and statistics. Arrow reads headers of up to 16 MiB.
_HEADER_BYTES: Final = 256
_HEADER_BYTES_MAX: Final = 16 << 20
_HEADER_LEVELS_MAX: Final = 4
_HEADER_FIELDS_MAX: Final = 64
# Fields of the header of a page.
_KIND: Final = 1
_SIZE: Final = 2
_STORED_SIZE: Final = 3
# Kinds of pages, and the fields with their details. Arrow skips pages of other kinds.
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DETAILS: Final = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}
# Fields of the details.
_VALUES: Final = 1
_ROWS: Final = 3
_ENCODING: Final = {_DATA: 2, _DICTIONARY: 2, _DATA_V2: 4}
_LEVELS_SIZE: Final = 6
_LEVELS_ENCODING: Final = 4
# Runs, as `parquet_levels` decodes them. The other encoding, of bits without runs, is deprecated,
# but Arrow reads it.
_OF_RUNS: Final = 3
_PLAIN_ENCODINGS: Final = frozenset({0, 2})
# Types of Thrift's compact protocol.
_BOOLEANS: Final = frozenset({1, 2})
_INTEGER: Final = 5
_OTHER_INTEGERS: Final = frozenset({4, 6})
_BINARY: Final = 8
_STRUCT: Final = 12
_INTEGER_BYTES: Final = 5
_LONG_BYTES: Final = 10
_FIELD_NUMBER_MAX: Final = 0x7FFF
_Fields: TypeAlias = dict[int, "int | _Fields"]


class DictionaryPage(NamedTuple):
    """Decompressed size of a dictionary, and its position in the file.

    Arrow decompresses a dictionary to exactly as many bytes as its header announces.
    """

    size: int
    stored_size: int
    start: int


class DataPage(NamedTuple):
    """Decompressed size of a data page, its number of values, and of rows if it is known.

    Its bytes begin at `start` in the file; those of a page of the second version with its
    repetition levels, which are not compressed. `levels_size` is their size, None for the first
    version. `are_levels_runs` is false if these levels are encoded in another way.
    """

    size: int
    values: int
    rows: int | None
    encoding: int
    start: int
    stored_size: int
    levels_size: int | None = None
    are_levels_runs: bool = True


class ColumnPages(NamedTuple):
    """The pages of a column chunk.

    `problem` is the reason why they are not known completely; "": they are.
    """

    dictionary: DictionaryPage | None
    data: Sequence[DataPage]
    problem: str

    def size(self) -> int:
        """Return the decompressed size of all pages."""
        return self._dictionary_size() + sum(page.size for page in self.data)

    def largest_at_once(self) -> int:
        """Return the size of the largest page and the dictionary, which are in memory together."""
        return self._dictionary_size() + max((page.size for page in self.data), default=0)

    def largest(self) -> int:
        """Return the size of the largest page, which may be the dictionary."""
        return max(self._dictionary_size(), max((page.size for page in self.data), default=0))

    def _dictionary_size(self) -> int:
        return 0 if self.dictionary is None else self.dictionary.size


class PageHeaders:
    """Reads headers of pages of one file, each row group's once.

    Args:
        stored: The file.
        metadata: The footer.
    """

    def __init__(self, stored: pa.NativeFile, metadata: pq.FileMetaData) -> None:
        self._stored = stored
        self._metadata = metadata
        self._end = stored.size()
        self._group = -1
        self._found: dict[int, ColumnPages] = {}
        self._dictionaries: dict[int, DictionaryPage | None] = {}
        self._left = PAGES_MAX
        self._small_left = SMALL_PAGES_MAX

    def of(self, group: int, number: int) -> ColumnPages:
        """Return the pages of a column chunk."""
        self._begin(group)
        if number not in self._found:
            self._found[number] = self._listed(self._metadata.row_group(group).column(number))
        return self._found[number]

    def dictionary(self, group: int, number: int) -> DictionaryPage | None:
        """Return the dictionary of a column chunk; None if it has none, or an unknown layout."""
        self._begin(group)
        if number in self._found:
            return self._found[number].dictionary
        if number not in self._dictionaries:
            column = self._metadata.row_group(group).column(number)
            try:
                header, start = _page_header(self._stored, _start_of(column))
                found = _dictionary(header, start)
            except (IndexError, ValueError, OverflowError, OSError):
                found = None
            self._dictionaries[number] = found
        return self._dictionaries[number]

    def _begin(self, group: int) -> None:
        """Forget the pages of the previous row group."""
        if group != self._group:
            self._group = group
            self._found.clear()
            self._dictionaries.clear()
            self._left = PAGES_MAX

    def _listed(self, column: pq.ColumnChunkMetaData) -> ColumnPages:
        at = _start_of(column)
        end = at + column.total_compressed_size
        left = column.num_values
        dictionary: DictionaryPage | None = None
        pages: list[DataPage] = []
        problem = ""
        # Arrow reads up to the first of these two ends.
        while left > 0 and at < end and not problem:
            begin, is_first = at, not pages and dictionary is None
            try:
                page, at = self._page(begin, is_first)
            except (IndexError, KeyError, ValueError, OverflowError, OSError):
                problem = f"the header of the page at byte {begin:,} is damaged or not supported"
                break
            if isinstance(page, DataPage):
                problem = self._counted(page.values, page.stored_size, is_first)
                pages.append(page)
                left -= page.values
            else:
                problem = self._counted(0, 0, is_first)
                dictionary = page or dictionary
        return ColumnPages(dictionary, pages, problem)

    def _page(self, at: int, is_first: bool) -> tuple[DataPage | DictionaryPage | None, int]:
        """Return the page at a position, None for one that Arrow skips, and the page's end."""
        header, start = _page_header(self._stored, at)
        end = start + _size(header, _STORED_SIZE)
        if end > self._end:
            raise ValueError("the file ends within the page")
        if header[_KIND] != _DICTIONARY:
            return _data_page(header, start), end
        dictionary = _dictionary(header, start)
        if dictionary is None or not is_first:
            raise ValueError("a dictionary with an unknown layout, or after another page")
        return dictionary, end

    def _counted(self, values: int, stored_size: int, is_first: bool) -> str:
        """Count a page; return the limit that it exceeds, if any."""
        self._left -= 1
        if self._left < 0:
            return f"the row group has more than {PAGES_MAX:,} pages"
        if not is_first and values < _SMALL_VALUES and stored_size < _SMALL_BYTES:
            self._small_left -= 1
            if self._small_left < 0:
                return f"the file has more than {SMALL_PAGES_MAX:,} small pages"
        return ""


def _start_of(column: pq.ColumnChunkMetaData) -> int:
    """Return the position of the first page of a column chunk."""
    at = int(column.data_page_offset)
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = int(column.dictionary_page_offset)
    return at


def _data_page(header: _Fields, start: int) -> DataPage | None:
    """Return a page by its header; None if it is not a data page."""
    kind = _size(header, _KIND)
    if kind not in {_DATA, _DATA_V2}:
        return None
    found = header.get(_DETAILS[kind])
    details = found if isinstance(found, dict) else {}
    return DataPage(
        _size(header, _SIZE),
        _size(details, _VALUES),
        _size(details, _ROWS) if kind == _DATA_V2 else None,
        _size(details, _ENCODING[kind]),
        start,
        _size(header, _STORED_SIZE),
        _size(details, _LEVELS_SIZE) if kind == _DATA_V2 else None,
        kind == _DATA_V2 or details.get(_LEVELS_ENCODING) == _OF_RUNS,
    )


def _dictionary(header: _Fields, start: int) -> DictionaryPage | None:
    """Return a dictionary by its header; None if it is another page, or has another layout."""
    details = header.get(_DETAILS[_DICTIONARY])
    if header.get(_KIND) != _DICTIONARY or not isinstance(details, dict):
        return None
    if details.get(_ENCODING[_DICTIONARY]) not in _PLAIN_ENCODINGS:
        return None
    size, stored_size = header.get(_SIZE), header.get(_STORED_SIZE)
    if not isinstance(size, int) or not isinstance(stored_size, int) or min(size, stored_size) < 0:
        return None
    return DictionaryPage(size, stored_size, start)


def _size(fields: _Fields, number: int) -> int:
    """Return a field that is a number and not negative."""
    value = fields[number]
    if not isinstance(value, int) or value < 0:
        raise ValueError("not a size")
    return value


def _page_header(stored: pa.NativeFile, at: int) -> tuple[_Fields, int]:
    """Return the header of the page at a position, and the position of its end."""
    size = _HEADER_BYTES
    while True:
        head = bytes(stored.read_at(size, at))
        try:
            header, length = _fields(head, 0, 0)
        except IndexError:
            if len(head) < size or size >= _HEADER_BYTES_MAX:
                raise
            size *= 16  # the header contains statistics
            continue
        return header, at + length


def _fields(head: bytes, place: int, depth: int) -> tuple[_Fields, int]:
    """Return the numbers of 32 bits and the structs of a struct, and its end."""
    if depth > _HEADER_LEVELS_MAX:
        raise ValueError("too many levels")
    found: _Fields = {}
    number = 0
    for _ in range(_HEADER_FIELDS_MAX):
        byte = head[place]
        place += 1
        if not byte:
            return found, place
        kind = byte & 0x0F
        if byte >> 4:
            number += byte >> 4
        else:
            number, place = _integer(head, place)
        if number in found or not 0 <= number <= _FIELD_NUMBER_MAX:
            raise ValueError("an invalid or repeated number of a field")
        if kind in _BOOLEANS:
            continue
        if kind == _INTEGER:
            found[number], place = _integer(head, place)
        elif kind == _STRUCT:
            found[number], place = _fields(head, place, depth + 1)
        elif kind in _OTHER_INTEGERS:
            _, place = _varint(head, place, _LONG_BYTES)
        elif kind == _BINARY:
            length, place = _varint(head, place, _INTEGER_BYTES)
            place += length
        else:
            raise ValueError("a field of another type")
    raise ValueError("too many fields")


def _varint(head: bytes, place: int, bytes_max: int) -> tuple[int, int]:
    """Return the unsigned number at a position, and its end."""
    value = 0
    for shift in range(bytes_max):
        byte = head[place + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("a number of too many bytes")


def _integer(head: bytes, place: int) -> tuple[int, int]:
    """Return the signed number of 32 bits at a position, and its end."""
    value, place = _varint(head, place, _INTEGER_BYTES)
    if value >> 32:  # Arrow would drop the other bits
        raise ValueError("not a number of 32 bits")
    return (value >> 1) ^ -(value & 1), place
