"""Read lines of JSON with DuckDB, where the result is certainly that of Arrow's reader.

DuckDB parses rows of many columns in half of the processor time, but converts values that Arrow's
reader refuses: text to numbers, numbers to text, 1.5 to 2; and it accepts a comma after the last
value. This module asks DuckDB for types that keep the difference, and proves for each batch that no
value was converted. Without the proof there is no result, and the caller uses Arrow's reader.

Two differences remain. Fields that no column reads are checked less: a number that no double holds,
or `nan`, may stand there. And `-0` becomes 0.0, as in a message that is parsed alone, not -0.0.

The proof, for a text that DuckDB has accepted (so that its keys are unique and its UTF-8 is valid):

- **No comma is last.** No bracket that closes has a comma before it.
- **No number became text.** A column of text has no value that could be a number, a boolean or a
  list. If it has one, such as an id in digits, its values are read with their quotes from then on.
- **No text became a number.** DuckDB converts only text that begins with a digit, a sign, a point
  or white space. Each such text has a quote before this character. The lines have G such pairs of
  characters, and the columns of text have V values that begin so, each of which has such a pair.
  So at most G - V of the texts are in columns of numbers. If G = V, none is. Fields that no column
  needs are read for this, too, if their texts begin so.
- **No fraction was rounded.** Whole numbers are read as doubles, which keep a fraction, or as text
  if they are too large for that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topic.row_shape import TIME_TYPE, FieldType

BYTES_MIN: Final = 512 << 10
"""Smallest text for which DuckDB is used: each call takes it 3 ms."""
COLUMNS_MIN: Final = 8
"""Smallest number of columns for which DuckDB is used: with fewer, Arrow's reader is as fast."""
ROW_BYTES_MAX: Final = 1 << 20
"""Longest line for which DuckDB is used: its buffers have twice this size."""

# In pieces that fit into the processor's cache.
_PIECE_BYTES: Final = 256 << 10
# After a text without a result as many are left to Arrow; then twice as many, up to this number.
_PAUSE_MAX: Final = 64
# A double has all whole numbers up to here.
_EXACT_MAX: Final = 1 << 53
_SPACES_MAX: Final = 16
_BESIDE_MAX: Final = 16
_SAMPLE_BYTES: Final = 64 << 10
_SAMPLE_LINES: Final = 32
_SPACE: Final = 0x20  # and all below it
_COMMA: Final = ord(",")
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_PLUS: Final = ord("+")
_MINUS: Final = ord("-")
_NINE: Final = ord("9")  # with the point, the stroke and the digits between it and the minus
_CLOSING: Final = ord("}")  # and the square one, which differs by one bit
_CLOSING_BIT: Final = np.uint8(ord("]") ^ ord("}"))
# Text that DuckDB writes for a value that is not text; first by the bytes at its ends.
_NOT_TEXT: Final = (
    r"^(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|-?(?:Infinity|NaN|inf|nan))$"
    r"|^[\[{]"
)
_NO_FORM: Final = ""


def _table(signs: bytes, more: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
    found = np.zeros(256, np.bool_)
    found[[*signs, *more]] = True
    return found


_DIGITS: Final = b"0123456789"
# With the characters that are escaped: in the text, they begin with a backslash.
_BEGINS_PAIR: Final = _table(b'-./+"\\' + _DIGITS, range(_SPACE + 1))
_BEGINS_OTHER: Final = _table(b"-tfNIin[{" + _DIGITS)
_ENDS_OTHER: Final = _table(b"eyNfn]}" + _DIGITS)


class DuckdbJson:
    """Reader of lines of JSON. For one thread at a time.

    It remembers which columns need the forms that take longer.

    Args:
        fields: The types of the fields of rows; other fields that are read are times.
    """

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        self._fields = fields
        self._wide: set[str] = set()
        self._quoted: set[str] = set()
        self._beside: set[str] = set()
        self._pause = self._left_out = 0

    def read(
        self, text: pa.Buffer, reading: Mapping[str, pa.DataType], row_bytes_max: int
    ) -> pa.Table | None:
        """Return the columns of a text of lines as Arrow's reader would; None: use that.

        Args:
            text: The lines; each is an object.
            reading: The columns and the types to read them as.
            row_bytes_max: Size of the longest line.
        """
        is_slower = text.size < BYTES_MIN or len(reading) < COLUMNS_MIN
        # Only Linux has files in memory.
        if is_slower or row_bytes_max >= ROW_BYTES_MAX or sys.platform != "linux":
            return None
        if self._left_out:
            self._left_out -= 1
            return None
        before = self._learned
        found = self._proven(text, reading)
        if found is not None:
            self._pause = 0
        elif self._learned == before:
            self._pause = min(max(2 * self._pause, 1), _PAUSE_MAX)
            self._left_out = self._pause
        return found

    @property
    def _learned(self) -> int:
        return len(self._wide) + len(self._quoted) + len(self._beside)

    def _proven(self, text: pa.Buffer, reading: Mapping[str, pa.DataType]) -> pa.Table | None:
        beside = {name: pa.string() for name in self._beside if name not in reading}
        every = {**reading, **beside}
        forms = {name: self._form(name, type_) for name, type_ in every.items()}
        if _NO_FORM in forms.values():
            return None
        pairs = _pairs(np.frombuffer(text, np.uint8))
        if pairs is None:
            return None
        table = self._parsed(text, forms)
        if table is None:
            return None
        found: list[pa.Array] = []
        for name, type_ in every.items():
            made, count = self._typed(name, type_, table.column(name).combine_chunks())
            if made is None:
                return None
            found.append(made)
            pairs -= count
        if pairs:
            self._look_beside(text, every)
            return None
        return pa.table(found[: len(reading)], names=list(reading))

    def _look_beside(self, text: pa.Buffer, known: Mapping[str, pa.DataType]) -> None:
        """Find other fields whose texts begin as numbers do, in the first lines."""
        names = {name.lower() for name in known}  # DuckDB's names, in which case does not count
        sample = text.slice(0, min(text.size, _SAMPLE_BYTES)).to_pybytes()
        for line in sample.split(b"\n")[:_SAMPLE_LINES]:
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                return
            for name, inner in value.items() if isinstance(value, dict) else ():
                if name.lower() in names or not isinstance(inner, str) or not inner:
                    continue
                if len(self._beside) < _BESIDE_MAX and _BEGINS_PAIR[min(ord(inner[0]), 255)]:
                    self._beside.add(name)
                    names.add(name.lower())

    def _form(self, name: str, type_: pa.DataType) -> str:
        """Return the type of DuckDB that keeps the differences; `_NO_FORM`: there is none."""
        if not name or not name.isprintable():
            return _NO_FORM
        field = self._fields.get(name)
        if type_ == pa.string() or type_ == TIME_TYPE:
            return "JSON" if name in self._quoted else "VARCHAR"
        if type_ == pa.bool_():
            return "VARCHAR"
        if type_ == pa.float64():
            return "DOUBLE"
        # Times; a boolean is not one, and as a text it is refused.
        if type_ == pa.int64() and field is None:
            return "VARCHAR"
        if type_ == pa.int64() and field is FieldType.LONG:
            return "VARCHAR" if name in self._wide else "DOUBLE"
        return _NO_FORM

    @staticmethod
    def _parsed(text: pa.Buffer, forms: Mapping[str, str]) -> pa.Table | None:
        columns = ", ".join(f"{_text(name)}: '{form}'" for name, form in forms.items())
        shown = (
            f"CAST({_name(name)} AS VARCHAR) AS {_name(name)}" if form == "JSON" else _name(name)
            for name, form in forms.items()
        )
        engine = _engine()
        return None if engine is None else engine.read(text, ", ".join(shown), columns)

    def _typed(
        self, name: str, type_: pa.DataType, column: pa.Array
    ) -> tuple[pa.Array | None, int]:
        """Return a column in its type, and how many of its texts begin as numbers do; or None."""
        if type_ == pa.float64():
            return column, 0
        if type_ == pa.int64():
            return self._whole(name, column), 0
        if type_ == pa.bool_():
            is_other = pc.invert(pc.is_in(column, value_set=pa.array(["true", "false"])))
            others = pc.and_(is_other, pc.is_valid(column))
            return (None if pc.any(others).as_py() else pc.equal(column, "true")), 0
        found, begins = self._text(name, column)
        if found is None or type_ == pa.string():
            return found, begins
        try:
            return found.cast(type_), begins
        except pa.ArrowInvalid:
            return None, 0

    def _whole(self, name: str, column: pa.Array) -> pa.Array | None:
        try:
            found = column.cast(pa.int64())
        except pa.ArrowInvalid:
            if column.type == pa.float64() and _has_large(column):
                self._wide.add(name)
            return None
        if column.type == pa.float64() and _has_large(column):
            self._wide.add(name)
            return None
        return found

    def _text(self, name: str, column: pa.Array) -> tuple[pa.Array | None, int]:
        """Return a column of values that were certainly text, and how many begin as numbers do."""
        first, last, data = _ends(column)
        if name in self._quoted:
            # As JSON: no value may have an escape, which would have to be decoded.
            if not (data[first] == _QUOTE).all() or (data == _BACKSLASH).any():
                return None, 0
            found = pc.binary_slice(column.cast(pa.binary()), 1, -1).cast(pa.string())
            first, _, data = _ends(found)
            return found, _count(_BEGINS_PAIR, data, first)
        may_be_other = _BEGINS_OTHER[data[first]] & _ENDS_OTHER[data[last]]
        if may_be_other.any():
            texts = column.filter(pc.greater(pc.binary_length(column), 0))
            some = texts.take(pa.array(np.flatnonzero(may_be_other)))
            if pc.any(pc.match_substring_regex(some, _NOT_TEXT)).as_py():
                self._quoted.add(name)
                return None, 0
        return column, _count(_BEGINS_PAIR, data, first)


def _ends(
    column: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where the first and last bytes of texts are that are not empty, and all bytes."""
    there = column.drop_null() if column.null_count else column
    _, offsets_buffer, data_buffer = there.buffers()
    every = np.frombuffer(offsets_buffer or b"", np.int32)
    offsets = every[there.offset : there.offset + len(there) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    is_filled = offsets[1:] > offsets[:-1]
    return offsets[:-1][is_filled], offsets[1:][is_filled] - 1, data


def _count(
    table: npt.NDArray[np.bool_], data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]
) -> int:
    return int(np.count_nonzero(table[data[at]]))


def _has_large(doubles: pa.Array) -> bool:
    bounds = pc.min_max(doubles)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return low is not None and (low <= -_EXACT_MAX or high >= _EXACT_MAX)


def _pairs(data: npt.NDArray[np.uint8]) -> int | None:
    """Return how often a quote is followed by a character with which DuckDB's numbers begin.

    Or by a backslash, which may be the beginning of any character. None: a bracket that closes may
    have a comma before it.
    """
    count = 0
    for at in range(0, len(data) - 1, _PIECE_BYTES):
        part = data[at : at + _PIECE_BYTES + 1]
        before, after = part[:-1], part[1:]
        closes = after | _CLOSING_BIT == _CLOSING
        blank = before <= _SPACE
        if (closes & ((before == _COMMA) | blank)).any() and _has_last_comma(data, at, closes):
            return None
        begins = after - np.uint8(_MINUS) <= _NINE - _MINUS
        begins |= after <= _SPACE
        begins |= after == _PLUS
        begins |= after == _BACKSLASH
        begins &= before == _QUOTE
        count += int(np.count_nonzero(begins))
    return count


def _has_last_comma(data: npt.NDArray[np.uint8], at: int, closes: npt.NDArray[np.bool_]) -> bool:
    """Return whether one of the brackets after a position may have a comma before it."""
    before = np.flatnonzero(closes) + at
    for _ in range(_SPACES_MAX):
        signs = data[before]
        if (signs == _COMMA).any():
            return True
        before = before[signs <= _SPACE] - 1
        if not len(before):
            return False
    return True


class _Engine:
    """DuckDB, and a file in memory through which it gets its input. For one thread.

    Raises:
        duckdb.Error: It cannot be started.
        OSError: The file cannot be created.
    """

    def __init__(self) -> None:
        import duckdb  # noqa: PLC0415 - 60 MB that only workers with large inputs need

        self._errors = (duckdb.Error, pa.ArrowException, OSError, RuntimeError, UnicodeError)
        self._fatal = (duckdb.FatalException, duckdb.InternalException)
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,  # Spark runs one worker for each core
                "temp_directory": "",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "python_enable_replacements": False,
            },
        )
        self._file = os.memfd_create("penstock-json", os.MFD_CLOEXEC)

    def read(self, text: pa.Buffer, shown: str, columns: str) -> pa.Table | None:
        """Return columns of lines of JSON; None: DuckDB refuses them."""
        view, at = memoryview(text), 0
        try:
            os.ftruncate(self._file, text.size)
            while at < text.size:
                at += os.pwrite(self._file, view[at:], at)
            return self._connection.sql(
                f"SELECT {shown} FROM read_json('/proc/self/fd/{self._file}',"  # noqa: S608 - quoted
                f" format = 'newline_delimited', columns = {{{columns}}}, auto_detect = false,"
                f" records = true, maximum_object_size = {ROW_BYTES_MAX}, compression = 'none')"
            ).to_arrow_table()
        except self._errors as error:
            if isinstance(error, self._fatal):
                _ENGINES.engine = None  # it refuses everything from then on
                os.close(self._file)
            return None  # Arrow's reader finds out what is wrong


_ENGINES: Final = threading.local()
"""The engine of each thread that uses one, because its start takes 10 ms."""


def _engine() -> _Engine | None:
    """Return the engine of this thread; None: it cannot be started."""
    import duckdb  # noqa: PLC0415 - see `_Engine`

    found: _Engine | None = getattr(_ENGINES, "engine", None)
    if found is None:
        try:
            found = _ENGINES.engine = _Engine()
        except (duckdb.Error, OSError, RuntimeError):  # narrow: Arrow's reader does the work
            return None
    return found


def _text(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
