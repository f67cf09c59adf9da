"""Parse lines of delimited text to typed Arrow columns, in batches.

The fast path passes a whole text to Arrow's CSV reader with the requested types. A batch with
errors is divided into smaller ones, down to single lines. Empty and missing values are null; extra
values are left out.

Invariant: every line becomes exactly one row, or one `BadMessage` with its index.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from penstock.core.errors import InvalidRequest
from penstock.core.time_patterns import TimePattern
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.open_files import translated
from penstock.spark.batch.input.schema_casts import conformed, empty_rows, rows_of_objects
from penstock.spark.batch.input.text_lines import BOM, Lines, read_lines
from penstock.spark.topic.arrow_times import NotCleanError
from penstock.spark.topic.coerce import Json
from penstock.spark.topic.parse import LEAF_MESSAGES, BadMessage, ParsedRows
from penstock.spark.topic.row_shape import FieldType, RowShape

_CUT_INTO: Final = 8
_HEX: Final = re.compile("0[xX][0-9a-fA-F]{1,15}")
_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
_QUOTE: Final = ord('"')
_Positions = npt.NDArray[np.int64]
# Python's reader refuses longer values; its default limit is 131,072 bytes.
_VALUE_CHARS_MAX: Final = 1 << 30
_HEADER_BYTES_MAX: Final = 8 << 20
_CONVERT: Final = "convert the file, such as with iconv -f ISO-8859-1 -t UTF-8"
HEADER_COLUMNS_MAX: Final = 100_000
"""Maximum number of columns of a header."""
VALUES_MAX: Final = 1_000_000
"""Maximum number of values of a line, including those without a column."""
_READ_AS: Final = {
    FieldType.LONG: pa.int64(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.FLOAT: pa.float64(),
}


class DelimitedParser:
    """Parser of one file's lines. For one thread at a time.

    Args:
        shape: The rows to make.
        columns: Names of the values of a line, in order.
        separator: Separator of values.
        list_delimiter: Separator of the values in a list; such a value becomes a JSON list.
    """

    def __init__(
        self,
        shape: RowShape,
        columns: tuple[str, ...],
        separator: str,
        list_delimiter: str | None = None,
    ) -> None:
        self._shape = shape
        self._columns = columns
        self._separator = separator
        self._list_delimiter = list_delimiter
        wanted = dict(shape.fields)
        self._makes_lists = any(type_.of_values is not None for type_ in wanted.values())
        names = [*wanted, *([shape.time.name] if shape.time else [])]
        self._wanted = list(dict.fromkeys(name for name in names if name in set(columns)))
        self._types = {
            name: _READ_AS.get(wanted.get(name, FieldType.STRING), pa.string())
            for name in self._wanted
        }
        if shape.time is not None and isinstance(shape.time.format, TimePattern):
            # As a number it would lose its leading zeros.
            self._types.update({shape.time.name: pa.string()} if shape.time.name in columns else {})

    def parse(self, lines: Lines) -> ParsedRows:
        """Return the rows, and the bad lines by their index."""
        pieces = list(self._pieces(lines, 0, len(lines.starts)))
        bad = tuple(one for piece in pieces for one in piece.bad)
        if len(pieces) == 1:
            return pieces[0]
        table = pa.Table.from_batches([p.rows for p in pieces], self._shape.arrow_schema)
        rows = table.combine_chunks().to_batches()
        return ParsedRows(rows[0] if rows else empty_rows(self._shape), bad)

    def _pieces(self, lines: Lines, start: int, end: int) -> Iterator[ParsedRows]:
        if start == end:
            yield ParsedRows(empty_rows(self._shape), ())
            return
        try:
            yield self._whole(lines, start, end)
        except NotCleanError:
            if end - start <= LEAF_MESSAGES:
                yield self._one_by_one(lines, start, end)
                return
            step = max(LEAF_MESSAGES, -(-(end - start) // _CUT_INTO))
            for at in range(start, end, step):
                yield from self._pieces(lines, at, min(at + step, end))

    def _whole(self, lines: Lines, start: int, end: int) -> ParsedRows:
        if self._makes_lists:
            raise NotCleanError  # Arrow's reader has no list delimiter.
        first = int(lines.starts[start])
        text = lines.text.slice(first, int(lines.ends[end - 1]) - first)
        _check_breaks(text, lines.starts[start:end] - first, lines.ends[start:end] - first)
        try:
            table = pv.read_csv(
                pa.BufferReader(text),
                read_options=pv.ReadOptions(
                    use_threads=False, block_size=text.size + 1, column_names=list(self._columns)
                ),
                parse_options=pv.ParseOptions(delimiter=self._separator),
                convert_options=pv.ConvertOptions(
                    column_types=self._types,
                    include_columns=self._wanted or [self._columns[0]],
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            ).combine_chunks()
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise NotCleanError from None
        if table.num_rows != end - start:
            raise NotCleanError
        for name, type_ in self._types.items():
            if type_ == pa.float64() and pc.all(pc.is_finite(table.column(name))).as_py() is False:
                raise NotCleanError
        if self._list_delimiter is not None:
            table = self._with_lists(table, self._list_delimiter)
        rows, bad = conformed(table.to_batches()[0], self._shape)
        return ParsedRows(rows, tuple(BadMessage(start + index, why) for index, why in bad))

    def _with_lists(self, table: pa.Table, delimiter: str) -> pa.Table:
        for at, name in enumerate(table.column_names):
            column = table.column(at)
            if column.type != pa.string():
                continue
            escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
            values = pc.replace_substring(escaped, delimiter, '","')
            listed = pc.binary_join_element_wise('["', values, '"]', "")
            is_list = pc.match_substring(column, delimiter)
            table = table.set_column(at, name, pc.if_else(is_list, listed, column))
        return table

    def _one_by_one(self, lines: Lines, start: int, end: int) -> ParsedRows:
        csv.field_size_limit(_VALUE_CHARS_MAX)
        text = memoryview(lines.text)
        objects: list[dict[str, Json] | str] = []
        for first, last in zip(
            lines.starts[start:end].tolist(), lines.ends[start:end].tolist(), strict=True
        ):
            objects.append(self._object(bytes(text[first:last])))
        rows, bad = rows_of_objects(objects, self._shape)
        return ParsedRows(rows, tuple(BadMessage(start + index, why) for index, why in bad))

    def _object(self, line: bytes) -> dict[str, Json] | str:
        """Return the values by name, or the reason why the line is bad."""
        if _has_too_many(line, self._separator):
            return f"more than {VALUES_MAX:,} values"
        try:
            values = next(csv.reader([line.decode()], delimiter=self._separator, strict=True))
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error.reason} at byte {error.start}: {_CONVERT}"
        except csv.Error as error:
            return f"not delimited text: {error}"
        found: dict[str, Json] = {}
        for name, value in zip(self._columns, values, strict=False):
            if self._types.get(name, pa.string()) != pa.string():
                found[name] = _as_arrow_reads(value)
            elif self._list_delimiter is not None and self._list_delimiter in value:
                found[name] = value.split(self._list_delimiter)
            else:
                found[name] = value or None
        return found


def _check_breaks(text: pa.Buffer, starts: _Positions, ends: _Positions) -> None:
    """Refuse lines that Arrow would split, because the number of rows could still match."""
    if bytes(text[: len(BOM)]) == BOM:
        raise NotCleanError  # Arrow removes it, but only in the first line.
    data = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero((data == _NEWLINE) | (data == _RETURN))
    lines = np.searchsorted(starts, breaks, side="right") - 1
    if (breaks < ends[lines]).any():
        raise NotCleanError


def _has_too_many(line: bytes, separator: str) -> bool:
    """Return whether a line has more than `VALUES_MAX` values: each needs tens of bytes here."""
    if line.count(separator.encode()) < VALUES_MAX:
        return False
    data = np.frombuffer(line, np.uint8)
    outside = np.cumsum(data == _QUOTE, dtype=np.uint8) % 2 == 0
    return int(np.count_nonzero((data == ord(separator)) & outside)) >= VALUES_MAX


def _as_arrow_reads(value: str) -> Json:
    """Return a number's text as in a clean batch: without spaces, and converted from base 16."""
    text = value.strip(" \t")
    return int(text, 16) if _HEX.fullmatch(text) else text or None


def typed_columns(lines: Lines, columns: tuple[str, ...], separator: str) -> dict[str, pa.DataType]:
    """Return the columns of a block of lines with types that fit all values; text if unsure."""
    try:
        table = pv.read_csv(
            pa.BufferReader(lines.text),
            read_options=pv.ReadOptions(
                use_threads=False, block_size=lines.text.size + 1, column_names=list(columns)
            ),
            parse_options=pv.ParseOptions(delimiter=separator),
            convert_options=pv.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return dict.fromkeys(columns, pa.string())
    # A dimension has no type for true and false, so that the text of such a column stays.
    return {
        field.name: pa.string() if pa.types.is_boolean(field.type) else field.type
        for field in table.schema
    }


def header_of(file: InputFile, source: Source) -> tuple[str, ...] | None:
    """Return the columns of a file's header; None for a file that ends before it.

    Raises:
        InvalidRequest: The header has no columns, or one twice.
        PenstockError: The file cannot be read.
    """
    wanted = source.skip - 1
    with translated(file):
        for lines in read_lines(Split(file), line_bytes_max=_HEADER_BYTES_MAX):
            at = int(np.searchsorted(lines.numbers, wanted))
            if at == len(lines.numbers):
                continue
            if int(lines.numbers[at]) != wanted:
                break
            line = memoryview(lines.text)[int(lines.starts[at]) : int(lines.ends[at])]
            return _names(bytes(line), file, source)
        else:
            return None
    raise InvalidRequest(f"{file.shown}:{wanted + 1}: the line of the header is empty")


def _names(line: bytes, file: InputFile, source: Source) -> tuple[str, ...]:
    try:
        names = tuple(next(csv.reader([line.decode()], delimiter=source.separator)))
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{file.shown}:{source.skip}: the header is not UTF-8: {error.reason} at byte"
            f" {error.start}: {_CONVERT}"
        ) from None
    except csv.Error as error:
        raise InvalidRequest(f"{file.shown}:{source.skip}: invalid header: {error}") from None
    if len(names) > HEADER_COLUMNS_MAX:
        raise InvalidRequest(
            f"{file.shown}:{source.skip}: the header names {len(names):,} columns, more than"
            f" {HEADER_COLUMNS_MAX:,}: check the separator, and that the line is a header"
        )
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or "" in names:
        what = f"has {twice[0]!r} twice" if twice else "has a column without a name"
        raise InvalidRequest(f"{file.shown}:{source.skip}: the header {what}: name the columns")
    return names
