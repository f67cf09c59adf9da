"""Parse JSON messages to typed Arrow columns, in batches.

The fast path joins a batch with newlines and passes it to DuckDB (`duckdb_json`), or else to
Arrow's JSON reader, with a schema: no Python per message. A batch with errors is divided into
smaller ones, down to single messages, which `coerce` parses, so one bad message hardly slows down
the others. Pure: no files, no Spark.

Invariants:

- Every message becomes exactly one row, or one `BadMessage` with its index: no message is lost, and
  no row is assigned to another message.
- A row equals the result of `coerce.row_of` for its message. Fields that the shape does not name
  are only checked to be balanced JSON, not for their encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.core.json_structure import count_openings_at_most, max_depth
from penstock.core.time_patterns import TimePattern
from penstock.spark.topic.arrow_times import (
    WHOLE,
    NotCleanError,
    all_match,
    as_times,
    check_times,
    to_millis,
)
from penstock.spark.topic.coerce import (
    DEPTH_MAX,
    KEYS_BYTES_MIN,
    UnparseableError,
    Value,
    has_too_many_keys,
    row_of,
)
from penstock.spark.topic.duckdb_json import DuckdbJson
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE, FieldType, RowShape, TimeFormat

LEAF_MESSAGES: Final = 128
# Maximum number of values of all columns at once: a message of two bytes is a row of all columns.
CELLS_MAX: Final = 16 << 20
_CUT_INTO: Final = 8
_OPEN_BRACE: Final = ord("{")
_CLOSE_BRACE: Final = ord("}")
_ASCII_END: Final = 0x80

_CHANGED: Final = re.compile(r"Column\(/(?P<name>.*)\) changed from \w+ to (?P<kind>\w+) in row")
_DECIMAL: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
# Alternative type of a field whose values turn out to be numbers.
_NUMBER_AS: Final = {FieldType.DOUBLE: pa.float64(), FieldType.FLOAT: pa.float64()}
# A batch is parsed again if a field has another form. Arrow reports one such field at a time, so
# once there are several, all are searched in the first messages, and few are left then.
_FIELDS_NAMED: Final = 2
_READS_MAX: Final = 8
_SAMPLE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that cannot become a row: its index in the batch, and the reason."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """The rows of a batch in the order of their messages, and the bad messages."""

    rows: pa.RecordBatch
    bad: tuple[BadMessage, ...]


class BatchParser(Protocol):
    """Parser of messages of any format. For one thread at a time."""

    def parse(self, messages: pa.BinaryArray) -> ParsedRows:
        """Return the rows and the bad messages of a batch."""
        ...


class MessageParser:
    """Parser of batches of messages of one shape.

    It remembers the form of values in the last clean batch, such as numbers sent as text, and tries
    that form first for the next one. For one thread at a time.
    """

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self._schema = shape.arrow_schema
        self._types = dict(shape.fields)
        # A float is read as a double and rounded once, as `coerce` does.
        self._read_as = {
            name: pa.float64() if type_ is FieldType.FLOAT else type_.arrow
            for name, type_ in shape.fields
        }
        self._messages_max = max(LEAF_MESSAGES, CELLS_MAX // (len(self._types) + 1))
        self._duckdb = DuckdbJson(self._types)
        time = shape.time
        if time is not None and time.name not in self._read_as:
            iso = time.format in {TimeFormat.ISO, TimeFormat.AUTO}
            number_or_text = pa.string() if isinstance(time.format, TimePattern) else pa.int64()
            self._read_as[time.name] = TIME_TYPE if iso else number_or_text

    def parse(self, messages: pa.BinaryArray) -> ParsedRows:
        """Return the rows and the bad messages of a batch."""
        pieces: list[pa.RecordBatch] = []
        bad: list[BadMessage] = []
        for piece in self._pieces(messages, 0):
            pieces.append(piece.rows)
            bad.extend(piece.bad)
        if len(pieces) == 1:
            return ParsedRows(pieces[0], tuple(bad))
        rows = pa.Table.from_batches(pieces, self._schema).combine_chunks().to_batches()
        return ParsedRows(rows[0] if rows else _empty(self._schema), tuple(bad))

    def parse_lines(
        self, text: pa.Buffer, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> ParsedRows:
        """Return the rows and bad lines of a text whose line i is [starts[i], ends[i]).

        Between the lines there are only line ends.
        """
        if not len(starts):
            return ParsedRows(_empty(self._schema), ())
        if len(starts) > self._messages_max:
            return self.parse(cut_out(text, starts, ends))
        try:
            _check_braces(text, starts, ends)
            return self._rows_of(text, len(starts), 0, int((ends - starts).max()))
        except NotCleanError:
            return self.parse(cut_out(text, starts, ends))

    def _pieces(self, messages: pa.BinaryArray, base: int) -> Iterator[ParsedRows]:
        if not len(messages):
            yield ParsedRows(_empty(self._schema), ())
            return
        if len(messages) > self._messages_max:
            for start in range(0, len(messages), self._messages_max):
                yield from self._pieces(messages.slice(start, self._messages_max), base + start)
            return
        try:
            yield self._whole(messages, base)
        except NotCleanError:
            if len(messages) <= LEAF_MESSAGES:
                yield self._one_by_one(messages, base)
                return
            step = max(LEAF_MESSAGES, -(-len(messages) // _CUT_INTO))
            for start in range(0, len(messages), step):
                yield from self._pieces(messages.slice(start, step), base + start)

    def _whole(self, messages: pa.BinaryArray, base: int) -> ParsedRows:
        longest = pc.max(pc.binary_length(messages)).as_py()
        return self._rows_of(lines_of_objects(messages), len(messages), base, longest)

    def _rows_of(self, text: pa.Buffer, count: int, base: int, bytes_max: int) -> ParsedRows:
        reading = dict(self._read_as)
        quickly = self._duckdb.read(text, reading, bytes_max)
        if quickly is not None and quickly.num_rows == count:
            return self._convert(quickly, base, ascii_only=_is_ascii(text))
        # Each field may change its form once; then the batch is not clean.
        for reads in range(_READS_MAX):
            try:
                table = _read(text, reading)
                break
            except pa.ArrowInvalid as error:
                reading.update(self._other_reading(str(error), reading))
                if reads == _FIELDS_NAMED:
                    reading.update(self._sampled_reading(text, reading))
            except UnicodeDecodeError:
                raise NotCleanError from None
        else:
            raise NotCleanError
        if table.num_rows != count:
            raise NotCleanError
        parsed = self._convert(table.combine_chunks(), base, ascii_only=_is_ascii(text))
        self._read_as = reading
        return parsed

    def _other_reading(self, error: str, reading: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """Return an alternative type of a column if Arrow reports that its form differs."""
        match = _CHANGED.search(error)
        if match is None or match["name"] not in reading:
            raise NotCleanError
        name, kind = match["name"], match["kind"]
        if kind not in {"string", "number"}:
            raise NotCleanError
        other = self._type_of(name, kind)
        if reading[name] == other:
            raise NotCleanError
        return {name: other}

    def _type_of(self, name: str, kind: str) -> pa.DataType:
        """Return the type with which to read a field whose values are of a kind of JSON."""
        if kind == "string":
            return pa.string()
        type_ = self._types.get(name)
        return pa.int64() if type_ is None else _NUMBER_AS.get(type_, pa.int64())

    def _sampled_reading(
        self, text: pa.Buffer, reading: dict[str, pa.DataType]
    ) -> dict[str, pa.DataType]:
        """Return alternative types of fields whose form differs in the first messages."""
        kinds: dict[str, str] = {}
        sample = text.slice(0, min(text.size, _SAMPLE_BYTES)).to_pybytes()
        for line in sample.split(b"\n")[:LEAF_MESSAGES]:
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                break
            for name, inner in value.items() if isinstance(value, dict) else ():
                if name in reading and (kind := _kind_of(inner)) is not None:
                    kinds.setdefault(name, kind)
        return {
            name: self._type_of(name, kind)
            for name, kind in kinds.items()
            if _kind_read(reading[name]) not in {None, kind}
        }

    def _convert(self, table: pa.Table, base: int, *, ascii_only: bool) -> ParsedRows:
        columns: list[pa.Array] = []
        time = self._shape.time
        keep: pa.Array | None = None
        bad: tuple[BadMessage, ...] = ()
        if time is not None:
            millis = to_millis(_column(table, time.name), time.format)
            if time.missing_ms is not None:
                millis = pc.fill_null(millis, time.missing_ms)
            keep, outside = check_times(millis, time)
            bad = tuple(BadMessage(base + index, reason) for index, reason in outside)
            columns.append(as_times(millis))
        for name, type_ in self._shape.fields:
            columns.append(_as_type(_column(table, name), type_, ascii_only=ascii_only))
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return ParsedRows(rows if not bad else rows.filter(keep), bad)

    def _one_by_one(self, messages: pa.BinaryArray, base: int) -> ParsedRows:
        rows: list[list[Value]] = []
        bad: list[BadMessage] = []
        for index, message in enumerate(messages):
            try:
                rows.append(row_of(message.as_py(), self._shape))
            except UnparseableError as error:
                bad.append(BadMessage(base + index, error.reason))
        columns: list[pa.Array] = []
        for at, field in enumerate(self._schema):
            values = [row[at] for row in rows]
            if field.name == TIME_COLUMN and self._shape.time is not None:
                millis = pa.array(values, pa.int64())
                columns.append(as_times(millis))
            elif field.type == pa.float32():
                columns.append(pa.array(values, pa.float64()).cast(field.type))
            else:
                columns.append(pa.array(values, field.type))
        return ParsedRows(pa.RecordBatch.from_arrays(columns, schema=self._schema), tuple(bad))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def lines_of_objects(messages: pa.BinaryArray) -> pa.Buffer:
    """Join the messages with newlines, if each begins and ends as an object does.

    Raises:
        NotCleanError: A message does not.

    With a brace at both ends, no message can become part of another's object: within an object, an
    opening brace cannot follow a closing brace and a newline, and strings cannot contain a raw
    newline. So if there are as many rows as messages, there is one for each. (A top-level null,
    which crashes Arrow's reader, cannot come first either.)
    """
    count = len(messages)
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[
        messages.offset : messages.offset + count + 1
    ]
    _check_braces(messages.buffers()[2] or pa.py_buffer(b""), offsets[:-1], offsets[1:])
    whole = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), messages)
    joined = pc.binary_join(whole, b"\n")
    return joined.buffers()[2]


def _check_braces(
    text: pa.Buffer, starts: npt.NDArray[np.integer], ends: npt.NDArray[np.integer]
) -> None:
    data = np.frombuffer(text, np.uint8)
    if not (ends - starts >= len("{}")).all():
        raise NotCleanError
    # Such messages are refused one by one, even if the fields that nest are not needed.
    for index in np.flatnonzero(ends - starts >= KEYS_BYTES_MIN).tolist():
        if has_too_many_keys(data[int(starts[index]) : int(ends[index])].tobytes()):
            raise NotCleanError
    if not ((data[starts] == _OPEN_BRACE).all() and (data[ends - 1] == _CLOSE_BRACE).all()):
        raise NotCleanError
    _check_depth(data, starts, ends)


def _check_depth(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
) -> None:
    """Check the nesting, which Arrow does not limit in fields that the shape does not name."""
    # A shorter message cannot open and close more.
    long = np.flatnonzero(ends - starts > 2 * DEPTH_MAX)
    if not len(long):
        return
    first = int(starts[0])
    part = data[first : int(ends[-1])]
    opened = count_openings_at_most(part, starts[long] - first, ends[long] - first)
    for index in long[opened > DEPTH_MAX].tolist():
        if max_depth(data[int(starts[index]) : int(ends[index])].tobytes()) > DEPTH_MAX:
            raise NotCleanError


def cut_out(
    text: pa.Buffer, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> pa.BinaryArray:
    """Return the parts [starts[i], ends[i]) of a text as separate values."""
    steps = np.zeros(text.size + 1, np.int8)
    # Counted, not marked, because one part may begin where another ends.
    np.add.at(steps, starts, 1)
    np.subtract.at(steps, ends, 1)
    inside = np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)
    data = np.frombuffer(text, np.uint8)[inside]
    offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _is_ascii(text: pa.Buffer) -> bool:
    return bool(np.frombuffer(text, np.uint8).max() < _ASCII_END)


def _kind_of(value: object) -> str | None:
    """Return the kind of JSON of a text or number, by the names in Arrow's messages."""
    if isinstance(value, str):
        return "string"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else None


def _kind_read(type_: pa.DataType) -> str | None:
    """Return the kind of JSON from which Arrow reads a text or number of a type."""
    if pa.types.is_string(type_):
        return "string"
    return "number" if pa.types.is_integer(type_) or pa.types.is_floating(type_) else None


def _read(text: pa.Buffer, reading: dict[str, pa.DataType]) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(reading.items())), unexpected_field_behavior="ignore"
        ),
    )


def _column(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    return chunks[0] if chunks else pa.array([], table.schema.field(name).type)


def _as_type(column: pa.Array, type_: FieldType, *, ascii_only: bool) -> pa.Array:
    if type_.of_values is not None:
        if column.type != type_.arrow:
            raise NotCleanError
        _as_type(column.flatten(), type_.of_values, ascii_only=ascii_only)
        return column
    if column.type == pa.string() and not ascii_only:
        _check_utf8(column)
    if column.type == pa.string() and type_ is not FieldType.STRING:
        pattern = WHOLE if type_ is FieldType.LONG else _DECIMAL
        if type_ is FieldType.BOOLEAN or not all_match(column, pattern):
            raise NotCleanError
    if type_ in {FieldType.DOUBLE, FieldType.FLOAT}:
        return _finite(column).cast(type_.arrow, safe=False)
    if column.type == type_.arrow:
        return column
    if column.type == pa.bool_() or type_ is FieldType.BOOLEAN:
        raise NotCleanError
    try:
        return column.cast(type_.arrow)
    except pa.ArrowInvalid:
        raise NotCleanError from None


def _finite(column: pa.Array) -> pa.Array:
    """Return the column as doubles; NaN and Infinity are not JSON, though Arrow accepts them."""
    doubles = column.cast(pa.float64())
    if pc.all(pc.is_finite(doubles)).as_py() is False:
        raise NotCleanError
    return doubles


def _check_utf8(column: pa.Array) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise NotCleanError from None
