"""Avro object container files.

Owns the translation of schemas. The package fastavro does the encoding. Avro stores
one record after the other, so this is the only module with a loop over records.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final, cast

import fastavro
import pyarrow as pa

from penstock.core.avro_bounds import AvroBlocks, bounded_blocks, gathered_records
from penstock.core.errors import InvalidRequest
from penstock.core.out_of_memory import is_out_of_memory
from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.format_protocols import (
    BATCH_ROWS,
    BadRecords,
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSource,
    no_memory_left,
    translated,
)

_DOING: Final = "the content is not an Avro file of records"
_WRITING: Final = "the records cannot be written as Avro"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PRIMITIVE: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Final = {
    "date": pa.date32(), "time-millis": pa.time32("ms"), "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"), "local-timestamp-micros": pa.timestamp("us"),
}  # fmt: skip
_AVRO_NAMES: Final[Sequence[tuple[Callable[[pa.DataType], bool], str]]] = (
    (pa.types.is_boolean, "boolean"), (pa.types.is_null, "null"),
    (pa.types.is_float32, "float"), (pa.types.is_floating, "double"),
    (pa.types.is_string, "string"), (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"), (pa.types.is_large_binary, "bytes"),
    (pa.types.is_fixed_size_binary, "bytes"),
)  # fmt: skip
_MAX_DEPTH: Final = 50
# Exceptions that fastavro raises for bytes that are not Avro: any error of its decoder.
_BROKEN: Final = (
    ValueError, EOFError, TypeError, LookupError, MemoryError, AttributeError,
    struct.error, zlib.error, RecursionError, OSError, SystemError, ArithmeticError,
)  # fmt: skip
# Exceptions for a schema that fastavro or Arrow refuses.
_REFUSED_SCHEMA: Final = (
    *_BROKEN, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType
)  # fmt: skip


def read_avro(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records.

    Raises:
        BadRecords: The content is not Avro, has types that columns do not support, or does not fit
            the schema.
    """
    with source.open() as stream:
        found, _ = _opened(stream)
    wanted = options.schema
    if wanted is not None and options.refuse_others:
        for name in found.names:
            if name not in wanted.names:
                raise BadRecords(
                    f"the schema has no column {name!r}: add it, or allow other fields"
                )

    def batches() -> Iterator[pa.RecordBatch]:
        with source.open() as stream:
            _, records = _opened(stream)
            while True:
                try:
                    rows = next(records, None)
                except InvalidRequest as error:
                    raise BadRecords(str(error)) from None
                except _BROKEN as error:
                    raise _refusal(_DOING, error) from None
                if rows is None:
                    return
                with translated(_DOING):
                    batch = pa.RecordBatch.from_pylist(rows, found)
                rows.clear()
                yield batch if wanted is None else fitted(batch, wanted)

    return RecordBatches(found if wanted is None else wanted, batches())


class AvroWriter:
    """Writer of an object container file.

    Args:
        out: Output for the bytes.
        schema: Schema of the records.

    Raises:
        BadRecords: Avro does not support a type or a name.
    """

    def __init__(self, out: RecordOutput, schema: pa.Schema) -> None:
        self._out = out
        self._buffer = io.BytesIO()
        try:
            parsed = fastavro.parse_schema(_avro_record(list(schema), "record"))
            self._writer = fastavro.write.Writer(self._buffer, parsed, codec="deflate")
        except _REFUSED_SCHEMA as error:
            raise _refusal(_WRITING, error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: A value does not fit.
        """
        try:
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                self._writer.write(row)
        except _BROKEN as error:
            raise _refusal(_WRITING, error) from None
        self._pass_on()

    def close(self) -> None:
        """Write the last block."""
        self._pass_on()

    def _pass_on(self) -> None:
        self._writer.flush()
        self._out.write(self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()


def _opened(stream: BinaryIO) -> tuple[pa.Schema, Iterator[list[Mapping[str, object]]]]:
    """Return the schema of a file, and its records in lists."""
    try:
        reader = fastavro.block_reader(stream)
        plain = _without_uuids(reader.writer_schema)
        if plain != reader.writer_schema:
            stream.seek(0)
            reader = fastavro.block_reader(stream, reader_schema=cast("dict[str, object]", plain))
        if not (isinstance(plain, dict) and plain.get("type") == "record"):
            raise BadRecords(
                "the Avro file contains values that are not records, so there are no "
                "columns: write records"
            )
        type_ = _arrow_type(plain, "record", 0)
    except _REFUSED_SCHEMA as error:
        raise _refusal(_DOING, error) from None
    blocks = bounded_blocks(stream, cast("AvroBlocks", reader), "the Avro content")
    return pa.schema(list(type_)), gathered_records(blocks, BATCH_ROWS)


def _refusal(doing: str, error: Exception) -> BadRecords:
    """Return the error for an exception of fastavro."""
    if is_out_of_memory(error):
        return no_memory_left("or the content is damaged and contains a wrong length")
    return BadRecords(f"{doing}: {_text(error)}")


def _without_uuids(schema: object) -> object:
    """Return a schema with UUIDs as text, because columns have no UUID type."""
    if isinstance(schema, list):
        return [_without_uuids(part) for part in schema]
    if isinstance(schema, dict):
        is_uuid = schema.get("logicalType") == "uuid" and schema.get("type") == "string"
        if is_uuid:
            return "string"
        return {key: _without_uuids(value) for key, value in schema.items()}
    return schema


def _arrow_type(schema: object, place: str, depth: int) -> pa.DataType:
    """Return the column type of an Avro schema."""
    if depth > _MAX_DEPTH:
        raise BadRecords(f"Avro field {place!r}: types nest deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        others = [part for part in schema if part != "null"]
        if len(others) != 1:
            raise BadRecords(
                f"Avro field {place!r} is a union of several types, which a column cannot be: "
                "convert it"
            )
        return _arrow_type(others[0], place, depth + 1)
    if isinstance(schema, dict):
        return _arrow_composed(schema, place, depth)
    if schema not in _PRIMITIVE:
        raise BadRecords(f"Avro field {place!r} has the named type {schema!r}: write the type out")
    return _PRIMITIVE[str(schema)]


def _arrow_composed(schema: Mapping[str, object], place: str, depth: int) -> pa.DataType:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical == "decimal":
        digits, scale = schema.get("precision", 0), schema.get("scale", 0)
        if isinstance(digits, int) and isinstance(scale, int) and 0 < digits <= 76:
            return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
        raise BadRecords(
            f"Avro field {place!r}: a decimal of {digits} digits is too long for a column"
        )
    if logical in _LOGICAL:
        return _LOGICAL[str(logical)]
    if kind == "record":
        fields = schema.get("fields")
        found = fields if isinstance(fields, list) else []
        return pa.struct(
            [
                pa.field(
                    f["name"],
                    _arrow_type(f["type"], f["name"], depth + 1),
                    nullable=f["type"] == "null" or isinstance(f["type"], list),
                )
                for f in found
            ]
        )
    if kind == "array":
        return pa.list_(_arrow_type(schema.get("items"), place, depth + 1))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema.get("values"), place, depth + 1))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary(int(str(schema.get("size", 0))))
    return _arrow_type(kind, place, depth + 1)


def _avro_record(fields: Sequence[pa.Field], path: str) -> dict[str, object]:
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise BadRecords(
                f"{field.name!r} is not a valid Avro name: use only letters, digits and _; "
                "rename it"
            )
    return {
        "type": "record",
        "name": path,
        "fields": [
            {"name": f.name, "type": _avro_type(f.type, f"{path}_{f.name}", nullable=f.nullable)}
            for f in fields
        ],
    }


def _avro_type(type_: pa.DataType, path: str, *, nullable: bool = True) -> object:
    plain = _avro_plain(type_, path)
    return ["null", plain] if nullable and plain != "null" else plain


def _avro_plain(type_: pa.DataType, path: str) -> object:
    for logical, arrow in _LOGICAL.items():
        if type_.equals(arrow):
            return {"type": "int" if arrow.bit_width == 32 else "long", "logicalType": logical}
    t = pa.types
    if t.is_timestamp(type_):
        name = "local-timestamp-micros" if type_.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": name}
    if t.is_integer(type_):
        return "int" if type_.bit_width < 32 or type_.equals(pa.int32()) else "long"
    if t.is_decimal(type_):
        digits = {"precision": type_.precision, "scale": type_.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if t.is_struct(type_):
        return _avro_record(list(type_), path)
    if t.is_map(type_) and type_.key_type.equals(pa.string()):
        return {"type": "map", "values": _avro_type(type_.item_type, f"{path}_value")}
    if t.is_list(type_) or t.is_large_list(type_):
        return {"type": "array", "items": _avro_type(type_.value_type, f"{path}_item")}
    for judge, name in _AVRO_NAMES:
        if judge(type_):
            return name
    raise BadRecords(f"a column of type {type_} cannot be written as Avro: convert it first")


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
