"""Bounds of Parquet files: how many rows may be read at once, checked before reading them.

A value may be stored once, in a dictionary, and occur in a million rows; a run of equal rows of any
length takes a few bytes; and all bytes of a row group may belong to a few of its rows. So neither
the size of a file nor that of a row group limits the memory of its rows. Owns the bounds, which
follow from the footer, then from the headers of dictionaries, and if these do not suffice, from the
dictionaries and the headers of pages. Values that share prefixes are measured by reading them. In a
process without a memory limit, the sizes in the footer are also checked against the headers of all
pages. Does not own reading.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest
from penstock.core.parquet_levels import CODECS, NO_CODEC, LevelReader
from penstock.core.parquet_pages import (
    OF_DICTIONARY,
    OF_PREFIXES,
    ColumnPages,
    DataPage,
    DictionaryPage,
    PageHeaders,
)
from penstock.core.row_bytes import dictionaries_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

BATCH_BYTES_MAX: Final = 128 << 20
"""Approximate maximum size of rows that are read at once, unless one row alone is larger."""
VALUE_BYTES_MAX: Final = 512 << 20
"""A column chunk whose average value is larger is refused: a value is read as a whole."""
PAGES_BYTES_MAX: Final = 1 << 30
"""Maximum size of a page, and of the largest pages of all columns that are read.

A page is decompressed as a whole. Writers that put 1,024 values into a page reach it with values of
1 MiB."""
ROWS_PER_BYTE_MAX: Final = 100_000
"""Maximum number of rows for each byte of a file; a file of equal rows has a few thousand."""
# Read-ahead of a column of which only the dictionary is needed.
_PROBE_BUFFER_BYTES: Final = 64 << 10
_OF_DICTIONARY: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
# A value may share a prefix with the previous one, and is stored without it.
_OF_PREFIXES: Final = "DELTA_BYTE_ARRAY"
# Arrow decodes such values into a buffer, and copies them from there.
_COPIES: Final = 2
# Columns of such values are not measured further than that.
_READ_BYTES_MAX: Final = 1 << 30
_READS_MAX: Final = 100_000
# Values of a batch may be larger than the average of their page.
_UNEVEN: Final = 4
# Pages are usually smaller. Values of a larger page may be more uneven, in proportion to its size.
_EVEN_BYTES: Final = 2 << 20
# Rows are counted in the pages of lists if their column chunk unpacks to more times its size.
_UNPACKED_MAX: Final = 200
# Where a footer may be wrong, rows are counted in all lists of a row group that exceed that many
# batches: fewer may be read at once if they are not as even as their pages announce.
_UNCOUNTED_BATCHES_MAX: Final = 4
# Size in memory of a value of each type; for other types, that of an offset.
_VALUE_BYTES: Final = 8
# Approximate number of values in a part, and of parts, in which rows of lists are counted.
_PART_VALUES: Final = 4_096
_PARTS: Final = 50_000
# A larger dictionary is decoded by Arrow.
_DICTIONARY_BYTES_MAX: Final = 8 << 20
_LENGTH_BYTES: Final = 4
# Size of a step of the search, so that the results stay in the CPU caches.
_STEP_BYTES: Final = 32 << 10


class _Span(NamedTuple):
    """Consecutive rows, and the maximum size of all of them."""

    size: float
    rows: float

    def bytes_of(self, rows: int) -> float:
        """Return the maximum size of some consecutive rows; sizes may be uneven as in `_Spans`."""
        share = _UNEVEN * max(1.0, self.size / _EVEN_BYTES) * rows / max(self.rows, 1.0)
        return self.size * min(1.0, share)


class _Chunk(NamedTuple):
    """A column chunk.

    `size` includes all pages. `width` is the size in memory of a value, without that of text.
    `largest` is the maximum size of a value that is stored once and occurs in many rows; 0 if there
    is none.
    """

    number: int
    path: str
    values: int
    size: int
    stored_size: int
    width: int
    is_text: bool
    is_list: bool
    has_prefixes: bool
    largest: int

    def per_row(self, rows: int) -> float:
        """Return the average number of values in a row."""
        return max(self.values / rows, 1.0)

    def span(self, rows: float, values: int, size: int) -> _Span:
        """Return the maximum size of some of its rows."""
        text = size if self.is_text else 0
        repeated = values * (self.width + self.largest) if self.is_list else 0
        return _Span(text + repeated, rows)


class _Spans:
    """Consecutive spans of rows of a column.

    The rows of a span may be uneven. If it is large, all of its bytes may be in a few of its rows.

    Args:
        sizes: Maximum size of each span.
        rows: Number of rows of each span.
    """

    def __init__(self, sizes: npt.ArrayLike, rows: npt.ArrayLike) -> None:
        self._sizes = np.asarray(sizes, np.float64)
        counts = np.asarray(rows, np.float64)
        uneven = _UNEVEN * np.maximum(1.0, self._sizes / _EVEN_BYTES)
        self._shares = uneven / np.maximum(counts, 1.0)
        self._ends = np.cumsum(counts)

    @classmethod
    def of(cls, spans: Sequence[_Span]) -> _Spans:
        """Return spans of a column."""
        return cls([one.size for one in spans], [one.rows for one in spans])

    def bytes_of(self, rows: int) -> float:
        """Return the maximum size of a number of consecutive rows."""
        taken = self._sizes * np.minimum(1.0, self._shares * rows)
        totals = np.concatenate(([0.0], np.cumsum(taken)))
        # The worst rows begin with the last one of a span. The last of them may end in a later one.
        last = np.searchsorted(self._ends, self._ends + (rows - 1), side="right")
        following = np.minimum(last + 1, len(self._sizes))
        return float((totals[following] - totals[:-1]).max(initial=0.0))


class _GroupBound(NamedTuple):
    """Bound on the size of rows of a row group: of each row, and of spans of each column."""

    row_bytes: float
    columns: Sequence[_Span | _Spans]

    def bytes_of(self, rows: int) -> float:
        """Return the maximum size of that many consecutive rows."""
        return self.row_bytes * rows + sum(spans.bytes_of(rows) for spans in self.columns)

    def rows_at_once(self, rows: int) -> int:
        """Return how many rows, up to a maximum, have approximately the size of a batch."""
        rows = max(1, min(rows, int(BATCH_BYTES_MAX // max(self.row_bytes, 1.0))))
        while rows > 1 and self.bytes_of(rows) > BATCH_BYTES_MAX:
            rows = rows * 3 // 4
        return rows


def _leaves_of(schema: pq.ParquetSchema, names: Sequence[str]) -> frozenset[int]:
    """Return the numbers of the columns of values that belong to top-level columns."""
    wanted = frozenset(names)
    found: list[int] = []
    at = 0
    for field in schema.to_arrow_schema():
        count = _leaf_count(field.type)
        if field.name in wanted:
            found.extend(range(at, at + count))
        at += count
    # Arrow may represent a column by other leaves than the file has. Then all columns count.
    return frozenset(found if at == len(schema) else range(len(schema)))


def _leaf_count(kind: pa.DataType) -> int:
    """Return the number of Parquet's columns for values of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(at).type) for at in range(kind.num_fields))


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
    all_pages: bool = False,
) -> Iterator[tuple[list[int], int]]:
    """Yield lists of row groups to read consecutively, and the number of rows to read at once.

    Small ones are combined into one batch.

    Args:
        stored: The file.
        metadata: The footer.
        groups: Numbers of the row groups.
        names: The top-level columns to read; None: all.
        rows_max: Maximum number of rows.
        shown: Name of the file in messages.
        all_pages: Whether to check the sizes in the footer against the headers of all pages,
            because the process has no memory limit.

    Raises:
        InvalidRequest: A value is too large to be read.
    """
    run: list[int] = []
    run_rows, run_bytes = 0, 0.0
    bounds = _RowBounds(stored, metadata, names, rows_max, shown, all_pages)
    for group in groups:
        rows = metadata.row_group(group).num_rows
        bound = bounds.of(group)
        size = bound.bytes_of(rows)
        is_small = rows <= rows_max and size <= BATCH_BYTES_MAX
        if run and (
            not is_small or run_rows + rows > rows_max or run_bytes + size > BATCH_BYTES_MAX
        ):
            yield run, rows_max
            run, run_rows, run_bytes = [], 0, 0.0
        if is_small:
            run.append(group)
            run_rows, run_bytes = run_rows + rows, run_bytes + size
        else:
            yield [group], bound.rows_at_once(rows_max)
    if run:
        yield run, rows_max


class _RowBounds:
    """Bounds on the size of rows of one file.

    Opens the file up to twice more: to read dictionaries, and to measure values by reading them.

    Args:
        stored: The file.
        metadata: The footer.
        names: The top-level columns to read; None: all.
        rows_max: Maximum number of rows to read at once.
        shown: Name of the file in messages.
        all_pages: Whether to check the sizes in the footer.
    """

    def __init__(
        self,
        stored: pa.NativeFile,
        metadata: pq.FileMetaData,
        names: Sequence[str] | None,
        rows_max: int,
        shown: str,
        all_pages: bool,
    ) -> None:
        self._stored = stored
        self._pages = PageHeaders(stored, metadata)
        self._levels = LevelReader(stored)
        self._all_pages = all_pages
        self._metadata = metadata
        self._leaves = None if names is None else _leaves_of(metadata.schema, names)
        self._rows_max = rows_max
        self._shown = shown
        self._by_dictionaries: pq.ParquetFile | None = None
        self._as_stored: pq.ParquetFile | None = None
        self._sorted_paths: list[tuple[str, ...]] | None = None

    def of(self, group: int) -> _GroupBound:
        """Return a bound on the size of rows of a row group."""
        found = self._metadata.row_group(group)
        if found.num_rows < 1:  # values without rows are damage, which the reader reports
            return _GroupBound(0.0, ())
        chunks = list(self._chunks(group, found))
        self._check_pages(group, chunks)
        # Each row has a value, or a null, in each column: more rows would seem to be small.
        rows = min([found.num_rows, *(one.values for one in chunks)])
        at_once = min(self._rows_max, rows)
        prefixed = [one for one in chunks if one.has_prefixes]
        chunks = [one for one in chunks if not one.has_prefixes]
        measured = _GroupBound(0.0, ())
        if prefixed and sum(one.size * one.per_row(rows) for one in prefixed) * at_once > (
            BATCH_BYTES_MAX
        ):
            measured = self._by_reading(group, rows, prefixed)
        else:
            chunks += prefixed
        bound = _bound(chunks, rows, measured)
        if bound.bytes_of(at_once) > BATCH_BYTES_MAX and any(one.largest for one in chunks):
            chunks = self._by_headers(group, chunks)
            bound = _bound(chunks, rows, measured)
        if bound.bytes_of(at_once) > BATCH_BYTES_MAX and any(one.largest for one in chunks):
            chunks = self._by_values(group, rows, chunks, bound)
            bound = _bound(chunks, rows, measured)
        if bound.bytes_of(at_once) > BATCH_BYTES_MAX:
            by_pages = self._all_by_pages(group, rows, chunks)
            bound = _GroupBound(bound.row_bytes, [*measured.columns, *by_pages])
        return bound

    def _chunks(self, group: int, found: pq.RowGroupMetaData) -> Iterator[_Chunk]:
        """Yield the column chunks that are read. Refuses values that are too large."""
        for number in range(found.num_columns):
            column = found.column(number)
            path, count = column.path_in_schema, column.num_values
            if count < 1:  # Arrow reads no page
                continue
            if self._leaves is not None and number not in self._leaves:
                continue
            declared = self._metadata.schema.column(number)
            size = column.total_uncompressed_size
            is_text = column.physical_type == "BYTE_ARRAY"
            has_prefixes = is_text and _OF_PREFIXES in column.encodings
            is_coded = is_text and bool(_OF_DICTIONARY.intersection(column.encodings))
            if self._all_pages:
                pages = self._known_pages(group, number, path)
                size = max(size, pages.size())
                count = max(count, sum(page.values for page in pages.data))
                encodings = {page.encoding for page in pages.data}
                has_prefixes |= is_text and OF_PREFIXES in encodings
                is_coded |= is_text and bool(OF_DICTIONARY.intersection(encodings))
            width = _VALUE_BYTES
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY":  # nulls take as much
                width += declared.length
                per_row = max(count / found.num_rows, 1.0)
                _check_values(self._shown, group, path, declared.length * per_row)
            elif is_text:
                _check_values(self._shown, group, path, size / count)
            yield _Chunk(
                number,
                path,
                count,
                size,
                column.total_compressed_size,
                width,
                is_text,
                declared.max_repetition_level > 0,
                has_prefixes,
                # No value is larger than the whole chunk.
                size if has_prefixes or is_coded else 0,
            )

    def _known_pages(self, group: int, number: int, path: str) -> ColumnPages:
        """Return the pages of a column chunk; raise if their sizes are not completely known."""
        pages = self._pages.of(group, number)
        if pages.problem:
            raise InvalidRequest(
                f"{self._shown}: the sizes of the pages of column {path!r} in row group {group} are"
                f" not known: {pages.problem}: check the file, or write it with larger pages"
            )
        return pages

    def _check_pages(self, group: int, chunks: Sequence[_Chunk]) -> None:
        """Refuse pages that take too much memory: one of each column is decompressed as a whole.

        Headers of pages are read, beginning with the largest chunk, if whole chunks exceed the
        limit. The sizes of chunks are those in the footer, unless all pages are checked.
        """
        total = sum(one.size for one in chunks)
        unknown: list[_Chunk] = []
        for one in sorted(chunks, key=lambda one: -one.size):
            if total <= PAGES_BYTES_MAX:
                return
            if self._pages.of(group, one.number).problem and one.size <= PAGES_BYTES_MAX:
                unknown.append(one)  # the others may suffice
                continue
            size = self._known_pages(group, one.number, one.path).largest_at_once()
            total += size - one.size
            if size > PAGES_BYTES_MAX:
                raise InvalidRequest(
                    f"{self._shown}: a page of column {one.path!r} in row group {group} takes"
                    f" {size:,} bytes, more than {PAGES_BYTES_MAX:,}: leave the column out, or"
                    " write smaller pages"
                )
        if total <= PAGES_BYTES_MAX:
            return
        for one in unknown:
            self._known_pages(group, one.number, one.path)
        raise InvalidRequest(
            f"{self._shown}: the pages of {len(chunks):,} columns in row group {group} take"
            f" {total:,} bytes at once, more than {PAGES_BYTES_MAX:,}: read fewer columns, or"
            " write smaller pages"
        )

    def _all_by_pages(
        self, group: int, rows: int, chunks: Sequence[_Chunk]
    ) -> Iterator[_Span | _Spans]:
        """Yield the sizes of pages of the largest columns, and those of the other whole columns."""
        uneven = [one for one in chunks if one.is_text or one.is_list]
        in_lists = sum(one.span(rows, one.values, one.size).size for one in uneven if one.is_list)
        is_counted = self._all_pages and in_lists > _UNCOUNTED_BATCHES_MAX * BATCH_BYTES_MAX
        left = BATCH_BYTES_MAX / _UNEVEN
        for one in sorted(uneven, key=lambda one: one.span(rows, one.values, one.size).size):
            whole = one.span(rows, one.values, one.size)
            left -= whole.size
            yield whole if left >= 0 else self._by_pages(group, rows, one, is_counted)

    def _by_pages(self, group: int, rows: int, chunk: _Chunk, is_counted: bool) -> _Span | _Spans:
        """Return the sizes of pages, which limit those of their rows.

        Args:
            group: The row group.
            rows: Its number of rows.
            chunk: The column chunk.
            is_counted: Whether to count the rows of lists even if the headers contain them.
        """
        whole = chunk.span(rows, chunk.values, chunk.size)
        found = self._pages.of(group, chunk.number)
        if found.problem:
            return whole
        pages = found.data
        are_rows_known = all(page.rows is not None for page in pages)
        if chunk.is_list and (
            is_counted
            or (
                not are_rows_known
                and whole.size > BATCH_BYTES_MAX
                and whole.size > chunk.stored_size * _UNPACKED_MAX
            )
        ):
            return self._by_levels(group, chunk, pages) or _Span(whole.size, 1)
        if chunk.is_list and not are_rows_known:
            share = rows / chunk.values
            return _Spans.of(
                [chunk.span(page.values * share, page.values, page.size) for page in pages]
            )
        spans = []
        for page in pages:
            # A row has a value, or a null, in each column.
            in_page = page.values
            if chunk.is_list and page.rows is not None:
                in_page = min(page.rows, page.values)
            spans.append(chunk.span(in_page, page.values, page.size))
        return _Spans.of(spans)

    def _by_levels(self, group: int, chunk: _Chunk, pages: Sequence[DataPage]) -> _Spans | None:
        """Return the sizes of parts of pages of lists; None if they are not known."""
        levels = self._metadata.schema.column(chunk.number).max_repetition_level
        codec = self._metadata.row_group(group).column(chunk.number).compression
        part = max(_PART_VALUES, sum(page.values for page in pages) // _PARTS)
        sizes, counts = [], []
        for page in pages:
            parts = self._levels.parts_of(page, codec, levels, part)
            if parts is None:  # one row may have nearly all values
                return None
            size = parts.values * float(chunk.width + chunk.largest)
            if chunk.is_text:
                share = parts.values * (_UNEVEN / max(page.values, 1))
                size += page.size * np.minimum(1.0, share)
            sizes.append(size)
            counts.append(parts.rows)
        return _Spans(np.concatenate(sizes), np.concatenate(counts))

    def _by_reading(self, group: int, rows: int, chunks: Sequence[_Chunk]) -> _GroupBound:
        """Return the sizes of rows whose values share prefixes, by reading them a few at a time."""
        row_bytes = 0.0
        columns = []
        for one in chunks:
            # No value is larger than its page or the dictionary.
            pages = self._pages.of(group, one.number)
            largest = one.size if pages.problem else pages.largest()
            at_most = largest * one.per_row(rows) * (_UNEVEN if one.is_list else 1)
            spans = self._measured(group, one, at_most)
            if spans is None:
                row_bytes += at_most * _COPIES
            else:
                columns.append(spans)
        return _GroupBound(row_bytes, columns)

    def _measured(self, group: int, chunk: _Chunk, row_bytes: float) -> _Spans | None:
        """Return the sizes of the rows of a column; None if they cannot be measured in time."""
        if not self._is_unique(chunk.path):
            return None
        rows = max(1, min(self._rows_max, int(BATCH_BYTES_MAX // max(row_bytes * _COPIES, 1.0))))
        spans: list[_Span] = []
        size = 0
        for batch in self._plain().iter_batches(
            rows, row_groups=[group], columns=[chunk.path], use_threads=False
        ):
            size += batch.nbytes
            if size > _READ_BYTES_MAX or len(spans) >= _READS_MAX:
                return None
            spans.append(_Span(batch.nbytes * _COPIES, batch.num_rows))
        return _Spans.of(spans)

    def _by_headers(self, group: int, chunks: Sequence[_Chunk]) -> list[_Chunk]:
        """Return the columns with the sizes of their dictionaries, which limit the values."""
        known = []
        for one in chunks:
            largest = one.largest
            if largest and not one.has_prefixes:
                page = self._pages.dictionary(group, one.number)
                largest = largest if page is None else min(largest, page.size)
            known.append(one._replace(largest=largest))
        return known

    def _by_values(
        self, group: int, rows: int, chunks: Sequence[_Chunk], bound: _GroupBound
    ) -> list[_Chunk]:
        """Return the columns, those with large dictionaries with their largest values."""
        coded = [one for one in chunks if one.largest and not one.has_prefixes]
        at_once = min(self._rows_max, rows)
        others = bound.bytes_of(at_once) - at_once * sum(
            one.largest * one.per_row(rows) for one in coded
        )
        share = (BATCH_BYTES_MAX - others) / at_once / max(1, len(coded))
        found = self._metadata.row_group(group)
        known = [one for one in chunks if not one.largest or one.has_prefixes]
        for one in coded:
            if one.largest * one.per_row(rows) <= share:
                known.append(one)
                continue
            page = self._pages.dictionary(group, one.number)
            codec = found.column(one.number).compression
            largest = None if page is None else _largest_short_value(self._stored, page, codec)
            if largest is None and self._is_unique(one.path):
                largest = _largest_value(self._opened(), group, one.path)
            known.append(one if largest is None else one._replace(largest=largest))
        return known

    def _is_unique(self, path: str) -> bool:
        """Return whether Arrow reads one column under a path: two columns may have the same.

        A column named `a.b` has the path of the field `b` of a struct named `a`.
        """
        if self._sorted_paths is None:
            schema = self._metadata.schema
            paths = (schema.column(number).path for number in range(len(schema)))
            self._sorted_paths = sorted(tuple(one.split(".")) for one in paths)
        parts = tuple(path.split("."))
        following = bisect.bisect_left(self._sorted_paths, parts) + 1
        return all(
            one[: len(parts)] != parts for one in self._sorted_paths[following : following + 1]
        )

    def _plain(self) -> pq.ParquetFile:
        """Open the file once more, to measure rows."""
        if self._as_stored is None:
            import pyarrow.parquet as pq  # noqa: PLC0415

            self._as_stored = pq.ParquetFile(
                self._stored, metadata=self._metadata, pre_buffer=False
            )
        return self._as_stored

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


def _bound(chunks: Sequence[_Chunk], rows: int, measured: _GroupBound) -> _GroupBound:
    """Add the sizes of whole column chunks to the bound of the measured columns."""
    row_bytes = measured.row_bytes
    columns = [*measured.columns]
    for one in chunks:
        if not one.is_list:
            row_bytes += one.width + one.largest
        if one.is_text or one.is_list:
            columns.append(one.span(rows, one.values, one.size))
    return _GroupBound(row_bytes, columns)


def _check_values(shown: str, group: int, path: str, value_bytes: float) -> None:
    if value_bytes > VALUE_BYTES_MAX:
        raise InvalidRequest(
            f"{shown}: the values of column {path!r} in row group {group} take"
            f" {int(value_bytes):,} bytes on average, more than {VALUE_BYTES_MAX:,}: leave the"
            " column out, or write smaller values"
        )


def _largest_short_value(stored: pa.NativeFile, page: DictionaryPage, codec: str) -> int | None:
    """Return the longest value in a dictionary of values of up to 255 bytes, or None.

    A value follows its length, of four bytes. Text never contains three consecutive zero bytes, so
    all of them belong to lengths: it suffices to check that each value ends where the next length
    begins. The result is None for a dictionary of other values, and for some of very short ones.
    """
    if max(page.size, page.stored_size) > _DICTIONARY_BYTES_MAX:
        return None
    if codec not in CODECS and codec != NO_CODEC:
        return None
    data = stored.read_at(page.stored_size, page.start)
    if codec in CODECS:
        try:
            data = pa.Codec(CODECS[codec]).decompress(data, page.size)
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


def _largest_value(file: pq.ParquetFile, group: int, path: str) -> int | None:
    """Return the largest value in the dictionary of a column, at the chunk's beginning.

    The result is None if the column chunk has no rows.
    """
    batches = file.iter_batches(1, row_groups=[group], columns=[path], use_threads=False)
    batch = next(batches, None)
    if batch is None:
        return None
    dictionaries = (one for column in batch.columns for one in dictionaries_of(column))
    return max(map(_largest, dictionaries), default=0)


def _largest(values: pa.Array) -> int:
    if not len(values):
        return 0
    if pa.types.is_fixed_size_binary(values.type) or pa.types.is_decimal(values.type):
        return int(values.type.byte_width)
    found = pc.max(pc.binary_length(values)).as_py()
    return int(found or 0)
