"""Records as JSON, one a line: reading.

Owns the cutting of content into chunks of whole lines, and what the types are without a schema. The
parsing is Arrow's, a chunk at a time. Lists of objects come here as lines, too (`jsonarray`).

Without a schema content that is longer than one chunk is read twice: only then is it known which
fields there are and what fits all their values. Text stays text, also where it looks like a date; a
whole number beyond 64 bits is a double, unless a schema has it as decimal, of text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.json as pj

from penstock.flow.processors.records.formats.casting import fitted
from penstock.flow.processors.records.formats.model import (
    CHUNK_BYTES,
    BadRecords,
    ReadingOptions,
    Records,
    Source,
    translated,
)

_BOM: Final = b"\xef\xbb\xbf"
_DOING: Final = "the content is no JSON of records"


def read_json_lines(source: Source, options: ReadingOptions) -> Records:
    """Read records.

    Raises:
        BadRecords: The content is no JSON, or its values fit no common type.
    """
    return read_chunks(lambda: chunks(pieces(source.open), options.record_max_bytes), options)


def read_chunks(open_: Callable[[], Iterator[bytes]], options: ReadingOptions) -> Records:
    """Read records from chunks of whole lines, which may be asked for twice.

    Raises:
        BadRecords: As `read_json_lines`.
    """
    if options.schema is not None:
        return _by_schema(open_, options.schema, refuse_others=options.refuse_others)
    found = open_()
    first = next(found, b"")
    table = _parse(first)
    schemas = [table.schema, *(_parse(chunk).schema for chunk in found)]
    with translated("fields have values of types that do not fit together"):
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    settled = pa.schema([pa.field(field.name, _settled(field.type)) for field in schema])
    if len(schemas) == 1 and settled == table.schema:
        return Records(settled, iter(table.combine_chunks().to_batches()))
    return _by_schema(open_, settled, refuse_others=True)


def pieces(open_: Callable[[], BinaryIO], size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of a stream, and close it in the end."""
    with open_() as stream:
        while piece := stream.read(size):
            yield piece


def chunks(pieces: Iterator[bytes], record_max_bytes: int) -> Iterator[bytes]:
    """Yield pieces of bytes as chunks that end with a line; blank chunks are left out.

    Raises:
        BadRecords: A line is too long, or is no UTF-8.
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
        raise BadRecords(
            f"a record is longer than {most:,} bytes: raise max_record, or check the format"
        )


def _checked(chunk: bytes) -> Iterator[bytes]:
    if chunk.isspace() or not chunk:
        return
    with translated(_DOING):
        chunk.decode("utf-8")  # Arrow takes any bytes
    yield chunk


def _by_schema(
    open_: Callable[[], Iterator[bytes]], schema: pa.Schema, *, refuse_others: bool
) -> Records:
    parse = line_parser(schema, refuse_others=refuse_others)
    return Records(schema, (parse(chunk) for chunk in open_()))


def line_parser(schema: pa.Schema, *, refuse_others: bool) -> Callable[[bytes], pa.RecordBatch]:
    """Return what parses whole lines as records of a schema.

    Raises:
        BadRecords: JSON cannot be of such a type; when it is called: a record is no JSON, or does
            not fit.
    """
    readable = pa.schema(
        [pa.field(field.name, _readable(field.type, field.name)) for field in schema]
    )
    others = "error" if refuse_others else "ignore"

    def parse(chunk: bytes) -> pa.RecordBatch:
        [batch] = _parse(chunk, readable, others).combine_chunks().to_batches() or [None]
        if batch is None:
            return schema.empty_table().to_batches()[0]
        return fitted(batch, schema)

    return parse


def _parse(chunk: bytes, schema: pa.Schema | None = None, others: str = "infer") -> pa.Table:
    if not chunk:
        return pa.schema([]).empty_table()
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


def _settled(type_: pa.DataType) -> pa.DataType:
    """Return the type for what Arrow found: no times out of text, and nothing that is only null."""
    if pa.types.is_timestamp(type_) or pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_settled(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _settled(f.type)) for f in type_])
    return type_


def _readable(type_: pa.DataType, name: str) -> pa.DataType:
    """Return the type that Arrow's reader is asked for; `fitted` makes the other of it."""
    if pa.types.is_map(type_):
        raise BadRecords(f"field {name!r}: JSON cannot be read as a map; use a struct")
    if pa.types.is_temporal(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_list(type_):
        return pa.list_(_readable(type_.value_type, name))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _readable(f.type, name)) for f in type_])
    return type_
