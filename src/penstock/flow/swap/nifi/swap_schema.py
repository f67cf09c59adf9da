"""Schema of a NiFi swap file, and readers that follow it.

Owns the encoding of a schema and the meaning of its types. Does not own the fields of a swap file
(`schema_swap_file`).

A reader follows the schema in the file, so that unknown fields are skipped correctly. Consecutive
fields of a fixed size are read with one call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.flow.swap.nifi.primitives import ByteReader, encode_utf

Value = object
Read = Callable[[ByteReader], Value]

_DEPTH_MAX: Final = 16
_FIELDS_MAX: Final = 1_000
_SMALLEST_FIELD_BYTES: Final = 4
_FIXED: Final = {"INT": "i", "LONG": "q", "BOOLEAN": "?"}


class Repetition(Enum):
    """Number of values of a field in a record."""

    EXACTLY_ONE = "EXACTLY_ONE"
    ZERO_OR_ONE = "ZERO_OR_ONE"
    ZERO_OR_MORE = "ZERO_OR_MORE"


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a schema."""

    name: str
    type: str
    repetition: Repetition = Repetition.EXACTLY_ONE
    fields: tuple[Field, ...] = ()

    def find(self, name: str) -> Field | None:
        """Return a subfield."""
        return next((field for field in self.fields if field.name == name), None)


def read_schema(reader: ByteReader) -> tuple[Field, ...]:
    """Read a schema: its root fields.

    Raises:
        CorruptData: The schema is invalid.
        Cut: The bytes are incomplete.
    """
    return _read_fields(reader, 0)


def write_schema(fields: Sequence[Field]) -> bytes:
    """Write a schema."""
    parts = [_int(len(fields))]
    for field in fields:
        parts.append(_int(4))
        texts = (
            ("Field Name", field.name),
            ("Field Type", field.type),
            ("Repetition", field.repetition.value),
        )
        for name, value in texts:
            parts += [encode_utf(name), encode_utf("String"), encode_utf(value)]
        parts += [encode_utf("SubFields"), encode_utf("SubFieldList"), write_schema(field.fields)]
    return b"".join(parts)


def value_reader(field: Field) -> Read:
    """Return a function that reads one field's value, regardless of its repetition.

    The value is an int, bool, text, bytes or None; a list for a repeated field; a dict for a map; a
    list of the values of the subfields, in their order, for a record.
    """
    read = _plain_reader(field)
    if field.repetition is Repetition.EXACTLY_ONE:
        return read
    if field.repetition is Repetition.ZERO_OR_ONE:
        return lambda reader: read(reader) if reader.boolean() else None
    return lambda reader: [read(reader) for _ in range(reader.count(1))]


def _read_fields(reader: ByteReader, depth: int) -> tuple[Field, ...]:
    if depth > _DEPTH_MAX:
        raise reader.corrupt(f"the schema has more than {_DEPTH_MAX} levels")
    start = reader.position
    count = reader.count(_SMALLEST_FIELD_BYTES)
    if count > _FIELDS_MAX:
        raise reader.corrupt(
            f"the schema has {count} fields, more than the limit of {_FIELDS_MAX}", start
        )
    return tuple(_read_field(reader, depth) for _ in range(count))


def _read_field(reader: ByteReader, depth: int) -> Field:
    start = reader.position
    texts: dict[str, str] = {}
    fields: tuple[Field, ...] = ()
    for _ in range(reader.count(4)):
        name, kind = reader.utf(), reader.utf()
        if kind == "String":
            texts[name] = reader.utf()
        elif kind == "Integer":
            reader.int32()
        elif kind == "Long":
            reader.int64()
        elif kind == "SubFieldList":
            fields = _read_fields(reader, depth + 1)
        else:
            raise reader.corrupt(f"the schema has a property of the unknown kind {kind!r}", start)
    try:
        field = Field(
            texts["Field Name"],
            texts["Field Type"],
            Repetition(texts["Repetition"]),
            fields,
        )
    except (KeyError, ValueError) as error:
        raise reader.corrupt(f"a field of the schema has no valid {error}", start) from error
    _check(reader, field, start)
    return field


def _check(reader: ByteReader, field: Field, start: int) -> None:
    known = {"STRING", "LONG_STRING", "BYTE_ARRAY", "MAP", "COMPLEX", "UNION", *_FIXED}
    if field.type not in known:
        raise reader.corrupt(f"field {field.name!r} has the unknown type {field.type!r}", start)
    if field.type == "MAP" and len(field.fields) != 2:
        raise reader.corrupt(f"map {field.name!r} has {len(field.fields)} subfields, not 2", start)


def _plain_reader(field: Field) -> Read:
    if field.type in _FIXED:
        layout = struct.Struct(f">{_FIXED[field.type]}")
        return lambda reader: reader.unpack(layout)[0]
    if field.type == "STRING":
        return ByteReader.utf
    if field.type == "LONG_STRING":
        return ByteReader.lutf
    if field.type == "BYTE_ARRAY":
        return lambda reader: reader.skip(reader.count(1))
    if field.type == "MAP":
        return _map_reader(field)
    if field.type == "UNION":
        return _union_reader(field)
    return record_reader(field.fields)


def record_reader(fields: Sequence[Field]) -> Callable[[ByteReader], list[Value]]:
    """Return a function that reads the values of consecutive fields."""
    steps: list[Callable[[ByteReader, list[Value]], None]] = []
    fixed = ""
    for field in fields:
        if field.type in _FIXED and field.repetition is Repetition.EXACTLY_ONE:
            fixed += _FIXED[field.type]
            continue
        if fixed:
            steps.append(_many(fixed))
            fixed = ""
        steps.append(_one(value_reader(field)))
    if fixed:
        steps.append(_many(fixed))

    def read(reader: ByteReader) -> list[Value]:
        values: list[Value] = []
        for step in steps:
            step(reader, values)
        return values

    return read


def _many(layout: str) -> Callable[[ByteReader, list[Value]], None]:
    packed = struct.Struct(f">{layout}")

    def step(reader: ByteReader, values: list[Value]) -> None:
        values.extend(reader.unpack(packed))

    return step


def _one(read: Read) -> Callable[[ByteReader, list[Value]], None]:
    def step(reader: ByteReader, values: list[Value]) -> None:
        values.append(read(reader))

    return step


def _map_reader(field: Field) -> Read:
    read_key, read_value = (value_reader(part) for part in field.fields)

    def read(reader: ByteReader) -> Value:
        found: dict[Value, Value] = {}
        for _ in range(reader.count(1)):
            key = read_key(reader)
            found[_frozen(key) if isinstance(key, list) else key] = read_value(reader)
        return found

    return read


def _frozen(value: Value) -> Value:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _union_reader(field: Field) -> Read:
    readers = {part.name: value_reader(part) for part in field.fields}

    def read(reader: ByteReader) -> Value:
        start = reader.position
        name = reader.utf()
        if name not in readers:
            raise reader.corrupt(f"{field.name!r} contains the unknown field {name!r}", start)
        return readers[name](reader)

    return read


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)
