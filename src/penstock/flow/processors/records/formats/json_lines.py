"""JSON lines: reading.

Owns dividing content into chunks of whole lines, and the types without a schema. Arrow parses one
chunk at a time. Lists of objects are converted to lines first (`json_array`).

Without a schema, content longer than one chunk is read twice: the fields and their types are only
known at the end. Text stays text, even if it looks like a date. An integer of more than 64 bits
becomes a double, unless a schema declares it as a decimal, written as text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pj

from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.protocols import (
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
"""Maximum number of fields in content without a schema."""
DEPTH_MAX: Final = 500
"""Maximum nesting of arrays and objects in a record.

Arrow's parser recurses for each level: 100,000 levels exhaust its stack and end the process.
"""
_PIECE_BYTES: Final = 64 << 10
_NO_SIGNS: Final = bytes(set(range(256)) - set(b'"[]{}'))
# Values of all fields that are created at once: a record of two bytes becomes a row with all
# fields.
_CELLS_MAX: Final = 16 << 20


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
    for chunk in open_():
        table = _parsed_alike(chunk, known)
        # Only the records of a single chunk are kept.
        tables = [table] if not tables else [None]
        known = None if table is None else table.schema
        schema = _unified(schema, _found_in(chunk, table))
        del table  # before the next chunk is read: its memory is reused
    concrete = pa.schema([pa.field(field.name, _concrete(field.type)) for field in schema])
    [only] = tables or [_parse(b"")]
    if only is not None and concrete == only.schema:
        return RecordBatches(concrete, iter(only.combine_chunks().to_batches()))
    return _by_schema(open_, concrete, refuse_others=True, is_checked=True)


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


def _parsed_as(chunk: bytes, known: pa.Schema) -> pa.Table | None:
    """Return the records of a chunk if they have exactly these fields; else None."""
    # A record takes at least two bytes.
    if len(chunk) // 2 * (len(known) + 1) > _CELLS_MAX and (
        _ends_of(chunk) * (len(known) + 1) > _CELLS_MAX
    ):
        return None
    try:
        return _parse(chunk, known, "error")
    except BadRecords:
        return None  # another field, or a value of another type


def _found_in(chunk: bytes, table: pa.Table | None) -> pa.Schema:
    """Return the schema that fits all values of a chunk.

    Args:
        chunk: The records.
        table: Result of `_parsed_alike`.

    Raises:
        BadRecords: There is no such schema; or there are too many fields.
    """
    if table is not None:
        return table.schema
    schema = pa.schema([])
    for piece in _lines_of(chunk, _PIECE_BYTES):
        if len(piece) > _PIECE_BYTES:
            _check_fields(piece)
        schema = _unified(schema, _parse(piece).schema)
    return schema


def _unified(known: pa.Schema, more: pa.Schema) -> pa.Schema:
    with translated("the values of a field have incompatible types"):
        untimed = pa.schema([pa.field(field.name, _untimed(field.type)) for field in more])
        schema = pa.unify_schemas([known, untimed], promote_options="permissive")
    if len(schema) > FIELDS_MAX:
        raise BadRecords(
            f"the records have more than {FIELDS_MAX:,} different fields: specify a schema with "
            "the fields that you need"
        )
    return schema


def _check_fields(line: bytes) -> None:
    """Refuse a long record with very many fields, including those of nested objects."""
    if line.count(b":") <= FIELDS_MAX:
        return
    try:
        with translated(_DOING):
            left: list[object] = [orjson.loads(line)]
    except orjson.JSONDecodeError:
        return  # Arrow's reader reports the error
    count = 0
    while left:
        value = left.pop()
        if isinstance(value, dict):
            count += len(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    if count > FIELDS_MAX:
        raise BadRecords(
            f"a record has {count:,} fields, more than {FIELDS_MAX:,}: specify a schema with the "
            "fields that you need"
        )


def _check_depth(chunk: bytes) -> None:
    """Refuse records that nest too deeply; only lines longer than twice `DEPTH_MAX` bytes can."""
    whole = len(chunk) // DEPTH_MAX * DEPTH_MAX
    ends = np.frombuffer(chunk, np.uint8, whole) == _NEWLINE
    if len(chunk) <= 2 * DEPTH_MAX or ends.reshape(-1, DEPTH_MAX).any(axis=1).all():
        return  # such a part would be inside a long line
    start = 0
    while start < len(chunk):
        # The last line end in reach: the lines before it are too short.
        end = chunk.rfind(b"\n", start, start + 2 * DEPTH_MAX)
        if end < 0:
            end = chunk.find(b"\n", start + 2 * DEPTH_MAX)
            end = len(chunk) if end < 0 else end
            line = chunk[start:end]
            if line.count(b"[") + line.count(b"{") > DEPTH_MAX and _depth(line) > DEPTH_MAX:
                raise BadRecords(
                    f"a record has more than {DEPTH_MAX} levels of arrays and objects: write the "
                    "deeper levels as text"
                )
        start = end + 1


def _depth(line: bytes) -> int:
    """Return the maximum number of arrays and objects that are open at once."""
    if b"\\" in line:
        line = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(line.translate(None, _NO_SIGNS), np.uint8)
    quotes = signs == ord('"')
    is_outside = np.cumsum(quotes, dtype=np.int32) & 1 == 0
    opens = (signs == ord("[")) | (signs == ord("{"))
    steps = np.where(opens, np.int8(1), np.int8(-1)) * (is_outside & ~quotes)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _lines_of(chunk: bytes, size: int) -> Iterator[bytes]:
    """Yield whole lines of a chunk, in pieces up to a size; a longer line is a piece of its own."""
    start = 0
    while start < len(chunk):
        end = len(chunk)
        if end - start > size:
            end = (
                (chunk.rfind(b"\n", start, start + size) + 1)
                or (chunk.find(b"\n", start + size) + 1)
                or end
            )
        yield chunk[start:end]
        start = end


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
    is_checked: bool = False,
) -> RecordBatches:
    """Return the records by their schema; `is_checked`: the nesting depth was already checked."""
    parse = line_parser(schema, refuse_others=refuse_others, is_checked=is_checked)
    records_max = _CELLS_MAX // (len(schema) + 1)

    def batches() -> Iterator[pa.RecordBatch]:
        for chunk in open_():
            # A record takes at least two bytes.
            if len(chunk) < 2 * records_max or _ends_of(chunk) < records_max:
                yield parse(chunk)
                continue
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _NEWLINE) + 1
            cuts = [0, *ends[records_max - 1 :: records_max].tolist(), len(chunk)]
            yield from (parse(chunk[a:b]) for a, b in itertools.pairwise(cuts) if a < b)

    return RecordBatches(schema, batches())


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
        return pj.read_json(
            pa.BufferReader(chunk),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                newlines_in_values=False,
                unexpected_field_behavior=others,
            ),
        )


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
