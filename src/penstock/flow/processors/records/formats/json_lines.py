"""JSON lines: reading.

Owns dividing content into chunks of whole lines, and the types without a schema. Arrow parses one
chunk at a time. Lists of objects are converted to lines first (`json_array`).

Without a schema, content longer than one chunk is read twice: the fields and their types are only
known at the end. Text stays text, even if it looks like a date. An integer of more than 64 bits
becomes a double, unless a schema declares it as a decimal, written as text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from penstock.core.json_structure import max_depth, signs_outside
from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.format_protocols import (
    CHUNK_BYTES,
    BadRecords,
    ReadingOptions,
    RecordBatches,
    RecordSource,
    record_too_long,
    translated,
)

_BOM: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = ord("\n")
_DOING: Final = "the content is not valid JSON records"
FIELDS_MAX: Final = 10_000
"""Maximum number of fields in content without a schema, including those of nested objects."""
CELLS_PER_BYTE_MAX: Final = 50
"""Maximum number of values, with missing ones, for each byte of content without a schema."""
DEPTH_MAX: Final = 500
"""Maximum nesting of arrays and objects in a record.

Arrow's parser recurses for each level: 100,000 levels exhaust its stack and end the process.
"""
_TYPE_LEVELS_MAX: Final = 100
"""Maximum nesting of the type of a field in content without a schema.

Python's recursion is limited to 1,000 calls, and writers need several for each level.
"""
_PIECE_BYTES: Final = 32 << 10
_KEY: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
# Values of all fields that are created at once: a record of two bytes becomes a row with all
# fields, and so does an object of two bytes in a list.
_CELLS_MAX: Final = 4 << 20
_RECORD_CELLS_MAX: Final = 16 << 20


class _Width(NamedTuple):
    """How many values each record takes in memory, and how many each object in a list may take."""

    record: int
    listed: int

    @classmethod
    def of(cls, schema: pa.Schema) -> _Width:
        """Return the width of records of a schema."""
        widths = [cls._of_type(field.type) for field in schema]
        return cls(1 + sum(one.record for one in widths), sum(one.listed for one in widths))

    @classmethod
    def _of_type(cls, type_: pa.DataType) -> _Width:
        if pa.types.is_struct(type_):
            return cls.of(pa.schema(list(type_)))
        if pa.types.is_nested(type_) and not pa.types.is_map(type_):
            inner = cls._of_type(type_.value_type)
            return cls(1, inner.listed + (inner.record if inner.record > 1 else 0))
        return cls(1, 0)

    def cells(self, chunk: bytes) -> int:
        """Return an upper estimate of the number of values of a chunk's records."""
        # A record, or an object, takes at least two bytes.
        if len(chunk) // 2 * (self.record + self.listed) <= _CELLS_MAX:
            return 0
        objects = chunk.count(b"{") if self.listed else 0
        return (_ends_of(chunk) + 1) * self.record + objects * self.listed


class _Budget:
    """Number of values of content without a schema, which its bytes limit."""

    def __init__(self) -> None:
        self._bytes = 0
        self._cells = 0

    def add(self, chunk: bytes, width: _Width) -> None:
        """Count the values of a chunk.

        Raises:
            BadRecords: There are too many.
        """
        self._bytes += len(chunk)
        self._cells += width.cells(chunk)
        if self._cells > _RECORD_CELLS_MAX + CELLS_PER_BYTE_MAX * self._bytes:
            raise BadRecords(
                f"the records and their objects have {sum(width) - 1:,} different fields, most of "
                f"which are missing in most of them: more than {CELLS_PER_BYTE_MAX} values for "
                "each byte. Specify a schema with the fields that you need"
            )


def read_json_lines(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records.

    Raises:
        BadRecords: The content is not JSON, or its values have no common type.
    """
    return read_chunks(lambda: chunks(pieces(source.open), options.record_max_bytes), options)


def read_chunks(open_: Callable[[], Iterator[bytes]], options: ReadingOptions) -> RecordBatches:
    """Read records from chunks of whole lines; the chunks may be requested twice.

    Raises:
        BadRecords: As `read_json_lines`.
    """
    if options.schema is not None:
        return _by_schema(open_, options.schema, refuse_others=options.refuse_others)
    schema = pa.schema([])
    known: pa.Schema | None = None
    tables: list[pa.Table | None] = []
    budget = _Budget()
    for chunk in open_():
        table = _parsed_alike(chunk, known)
        # Only the records of a single chunk are kept.
        tables = [table] if not tables else [None]
        known = None if table is None else table.schema
        schema = _unified(schema, _found_in(chunk, table, budget))
        del table  # before the next chunk is read: its memory is reused
    concrete = pa.schema([pa.field(field.name, _concrete(field.type)) for field in schema])
    [only] = tables or [_parse(b"")]
    if only is not None and concrete == only.schema:
        return RecordBatches(concrete, iter(only.combine_chunks().to_batches()))
    return _by_schema(open_, concrete, refuse_others=True, is_inferred=True)


def _parsed_alike(chunk: bytes, known: pa.Schema | None) -> pa.Table | None:
    """Return the records of a chunk if all have the same fields; None: fields must be inferred.

    For each field that it finds, Arrow allocates a column as long as the number of records, and
    both may be large. Therefore it infers fields only from small pieces.

    Args:
        chunk: The records.
        known: Fields of the previous chunk, which usually match; None: those of the first records
            are used.
    """
    if len(chunk) <= _PIECE_BYTES:
        return _parse(chunk)
    if known is not None and (table := _parsed_as(chunk, known)) is not None:
        return table
    end = chunk.rfind(b"\n", 0, _PIECE_BYTES) + 1
    return _parsed_as(chunk, _parse(chunk[:end]).schema) if end else None


def _parsed_as(chunk: bytes, known: pa.Schema, width: _Width | None = None) -> pa.Table | None:
    """Return the records of a chunk if they have exactly these fields; otherwise None."""
    if (width or _Width.of(known)).cells(chunk) > _CELLS_MAX:
        return None
    try:
        return _parse(chunk, known, "error")
    except BadRecords:
        return None  # another field, or a value of another type


def _found_in(chunk: bytes, table: pa.Table | None, budget: _Budget) -> pa.Schema:
    """Return the schema that fits all values of a chunk.

    Args:
        chunk: The records.
        table: Result of `_parsed_alike`.
        budget: Values of the chunks before this one.

    Raises:
        BadRecords: There is no such schema; or there are too many fields.
    """
    if table is not None:
        return table.schema
    schema, width = pa.schema([]), _Width(0, 0)
    start, size = 0, _PIECE_BYTES
    while start < len(chunk):
        piece = chunk[start : _end_of_lines(chunk, start, size)]
        # Once most fields are known, this is faster than finding and merging them.
        if len(schema) and _parsed_as(piece, schema, width) is not None:
            budget.add(piece, width)
            start += len(piece)
            size *= 2 if 2 * width.cells(piece) <= _CELLS_MAX else 1
            continue
        if size > _PIECE_BYTES:
            size = _PIECE_BYTES
            continue
        if len(piece) > _PIECE_BYTES:
            _check_depth(piece)
            _check_fields(piece)
        found = _parse(piece).schema
        budget.add(piece, _Width.of(found))
        schema = _unified(schema, found)
        width = _Width.of(schema)
        start += len(piece)
    return schema


def _unified(known: pa.Schema, more: pa.Schema) -> pa.Schema:
    with translated("the values of a field have incompatible types"):
        untimed = pa.schema([pa.field(field.name, _untimed(field.type)) for field in more])
        schema = pa.unify_schemas([known, untimed], promote_options="permissive")
    if sum(_Width.of(schema)) > FIELDS_MAX + 1:
        raise BadRecords(
            f"the records have more than {FIELDS_MAX:,} different fields: specify a schema with "
            "the fields that you need"
        )
    return schema


def _check_fields(line: bytes) -> None:
    """Refuse a long record with very many fields, including those of nested objects."""
    signs = signs_outside(line, b":{")
    count = int(np.count_nonzero(signs == ord(":")))
    if count > FIELDS_MAX:
        raise BadRecords(
            f"a record has {count:,} fields, more than {FIELDS_MAX:,}: specify a schema with the "
            "fields that you need"
        )
    objects = len(signs) - count
    if objects * count <= _RECORD_CELLS_MAX:
        return
    different = len({found[1] for found in _KEY.finditer(line)})
    if objects * different > _RECORD_CELLS_MAX:
        raise _too_many_objects(objects, different)


def _too_many_objects(objects: int, fields: int) -> BadRecords:
    return BadRecords(
        f"a record has {objects:,} objects, which may have {fields:,} different fields; both "
        f"together are more than {_RECORD_CELLS_MAX:,} values: write the objects as records, or "
        "as text"
    )


def _check_depth(chunk: bytes) -> None:
    """Refuse records that nest too deeply; only lines longer than twice `DEPTH_MAX` bytes can."""
    whole = len(chunk) // DEPTH_MAX * DEPTH_MAX
    ends = np.frombuffer(chunk, np.uint8, whole) == _NEWLINE
    if len(chunk) <= 2 * DEPTH_MAX or ends.reshape(-1, DEPTH_MAX).any(axis=1).all():
        return  # such a part would be inside a long line
    start = 0
    while start < len(chunk):
        # The last line end in this range: the lines before it are too short.
        end = chunk.rfind(b"\n", start, start + 2 * DEPTH_MAX)
        if end < 0:
            end = chunk.find(b"\n", start + 2 * DEPTH_MAX)
            end = len(chunk) if end < 0 else end
            line = chunk[start:end]
            if line.count(b"[") + line.count(b"{") > DEPTH_MAX and max_depth(line) > DEPTH_MAX:
                raise BadRecords(
                    f"a record has more than {DEPTH_MAX} levels of arrays and objects: write the "
                    "deeper levels as text"
                )
        start = end + 1


def _end_of_lines(chunk: bytes, start: int, size: int) -> int:
    """Return the end of whole lines of up to a size, or of one longer line."""
    if len(chunk) - start <= size:
        return len(chunk)
    return (
        (chunk.rfind(b"\n", start, start + size) + 1)
        or (chunk.find(b"\n", start + size) + 1)
        or len(chunk)
    )


def pieces(open_: Callable[[], BinaryIO], size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a stream, and close it at the end."""
    with open_() as stream:
        while piece := stream.read(size):
            yield piece


def chunks(pieces: Iterator[bytes], record_max_bytes: int) -> Iterator[bytes]:
    """Yield pieces of bytes as chunks that end with a line; blank chunks are skipped.

    Raises:
        BadRecords: A line is too long, or is not valid UTF-8.
    """
    first = next(pieces, b"").removeprefix(_BOM)
    kept: list[bytes] = []
    kept_bytes = 0
    for piece in itertools.chain([first], pieces):
        end = piece.rfind(b"\n") + 1
        if not end:
            kept.append(piece)
            kept_bytes += len(piece)
            _check_length(kept_bytes, record_max_bytes)
            continue
        _check_length(kept_bytes + piece.find(b"\n"), record_max_bytes)
        yield from _checked(b"".join([*kept, piece[:end]]))
        kept = [piece[end:]]
        kept_bytes = len(kept[0])
    yield from _checked(b"".join(kept))


def _check_length(length: int, most: int) -> None:
    if length > most:
        raise record_too_long(most)


def _checked(chunk: bytes) -> Iterator[bytes]:
    if chunk.isspace() or not chunk:
        return
    with translated(_DOING):
        chunk.decode("utf-8")  # Arrow does not check this
    yield chunk


def _ends_of(chunk: bytes) -> int:
    """Return the number of lines, a little faster than `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE))


def _by_schema(
    open_: Callable[[], Iterator[bytes]],
    schema: pa.Schema,
    *,
    refuse_others: bool,
    is_inferred: bool = False,
) -> RecordBatches:
    """Return the records by their schema.

    Args:
        open_: Returns the chunks.
        schema: The schema.
        refuse_others: Whether a field that the schema lacks is an error.
        is_inferred: The schema is that of the content, whose nesting depth was checked.
    """
    parse = line_parser(schema, refuse_others=refuse_others, is_checked=is_inferred)
    width = _Width.of(schema)

    def batches() -> Iterator[pa.RecordBatch]:
        budget = _Budget()
        for chunk in open_():
            if is_inferred:
                budget.add(chunk, width)
            yield from map(parse, _of_few_cells(chunk, width))

    return RecordBatches(schema, batches())


def bounded(chunks: Iterator[bytes], schema: pa.Schema) -> Iterator[bytes]:
    """Yield chunks whose records take few values in memory, with the fields that they lack.

    Raises:
        BadRecords: A record has very many objects in lists.
    """
    width = _Width.of(schema)
    for chunk in chunks:
        yield from _of_few_cells(chunk, width)


def _of_few_cells(chunk: bytes, width: _Width) -> Iterator[bytes]:
    """Yield whole lines of a chunk that take few values in memory.

    Raises:
        BadRecords: A line has very many objects in lists.
    """
    if width.cells(chunk) <= _CELLS_MAX:
        yield chunk
        return
    half = len(chunk) // 2
    cut = chunk.find(b"\n", half) + 1
    if not 0 < cut < len(chunk):
        cut = chunk.rfind(b"\n", 0, half) + 1
    if cut:
        yield from _of_few_cells(chunk[:cut], width)
        yield from _of_few_cells(chunk[cut:], width)
        return
    objects = int(np.count_nonzero(signs_outside(chunk, b"{") == ord("{")))
    if width.listed and objects * width.listed > _RECORD_CELLS_MAX:
        raise _too_many_objects(objects, width.listed)
    yield chunk


def line_parser(
    schema: pa.Schema, *, refuse_others: bool, is_checked: bool = False
) -> Callable[[bytes], pa.RecordBatch]:
    """Return a function that parses whole lines as records of a schema.

    Raises:
        BadRecords: JSON does not support a type. The returned function raises it if a record is
            invalid or does not fit.
    """
    readable = pa.schema(
        [pa.field(field.name, _readable(field.type, field.name)) for field in schema]
    )
    others = "error" if refuse_others else "ignore"

    def parse(chunk: bytes) -> pa.RecordBatch:
        table = _parse(chunk, readable, others, is_checked=is_checked)
        [batch] = table.combine_chunks().to_batches() or [None]
        if batch is None:
            return pa.RecordBatch.from_pylist([], schema)
        return fitted(batch, schema)

    return parse


def _parse(
    chunk: bytes,
    schema: pa.Schema | None = None,
    others: str = "infer",
    *,
    is_checked: bool = False,
) -> pa.Table:
    if not chunk:
        return pa.schema([]).empty_table()
    if not is_checked:
        _check_depth(chunk)
    with translated(_DOING):
        table = pj.read_json(
            pa.BufferReader(chunk),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=False,
                unexpected_field_behavior=others,
            ),
        )
    if schema is None:
        _check_levels(table.schema)
    return table


def _check_levels(schema: pa.Schema) -> None:
    """Refuse fields whose types nest too deeply for writers."""
    left = [(field.name, field.type, 1) for field in schema if pa.types.is_nested(field.type)]
    while left:
        name, type_, level = left.pop()
        if level > _TYPE_LEVELS_MAX:
            raise BadRecords(
                f"the type of field {name!r} has more than {_TYPE_LEVELS_MAX} levels of arrays and "
                "objects: write the deeper levels as text"
            )
        inner = (type_.field(number).type for number in range(type_.num_fields))
        left += [(name, part, level + 1) for part in inner if pa.types.is_nested(part)]


def _untimed(type_: pa.DataType) -> pa.DataType:
    """Return the type with text instead of times, because not all texts may be times."""
    if pa.types.is_timestamp(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_untimed(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _untimed(f.type)) for f in type_])
    return type_


def _concrete(type_: pa.DataType) -> pa.DataType:
    """Return the type for inferred values: a column with only nulls has the null type."""
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_concrete(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _concrete(f.type)) for f in type_])
    return type_


def _readable(type_: pa.DataType, name: str) -> pa.DataType:
    """Return the type that Arrow's reader is given; `fitted` converts it to the final type."""
    if pa.types.is_map(type_):
        raise BadRecords(f"field {name!r}: a map cannot be read from JSON; use a struct")
    if pa.types.is_temporal(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_readable(type_.value_type, name))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _readable(f.type, name)) for f in type_])
    return type_
