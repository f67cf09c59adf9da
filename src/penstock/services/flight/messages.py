"""Messages of Flight SQL. Pure.

Owns their kinds and fields, after the public definition (FlightSql.proto of Apache Arrow), of
which this is the part that a server needs which only reads. Each is sent within a
`google.protobuf.Any`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.core.errors import InvalidRequest

STATEMENT: Final = "CommandStatementQuery"
PREPARED: Final = "CommandPreparedStatementQuery"
TICKET: Final = "TicketStatementQuery"
CREATE: Final = "ActionCreatePreparedStatementRequest"
CREATED: Final = "ActionCreatePreparedStatementResult"
BOUND: Final = "DoPutPreparedStatementResult"
CATALOGS: Final = "CommandGetCatalogs"
SCHEMAS: Final = "CommandGetDbSchemas"
TABLES: Final = "CommandGetTables"
TABLE_TYPES: Final = "CommandGetTableTypes"
PRIMARY_KEYS: Final = "CommandGetPrimaryKeys"
IMPORTED_KEYS: Final = "CommandGetImportedKeys"
EXPORTED_KEYS: Final = "CommandGetExportedKeys"
SQL_INFO: Final = "CommandGetSqlInfo"

ABOUT_TABLES: Final = (
    *(CATALOGS, SCHEMAS, TABLES, TABLE_TYPES),
    *(PRIMARY_KEYS, IMPORTED_KEYS, EXPORTED_KEYS),
)
"""Questions about tables."""

_HANDLE: Final = {"prepared_statement_handle": (1, "bytes")}
_KEYS: Final = {"catalog": (1, "text?"), "db_schema": (2, "text?"), "table": (3, "text")}
# By kind: the names of the fields, with their numbers and types.
_FIELDS: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    STATEMENT: {"query": (1, "text")},
    PREPARED: _HANDLE,
    TICKET: {"statement_handle": (1, "bytes")},
    CREATE: {"query": (1, "text")},
    CREATED: {**_HANDLE, "dataset_schema": (2, "bytes"), "parameter_schema": (3, "bytes")},
    BOUND: _HANDLE,
    CATALOGS: {},
    SCHEMAS: {"catalog": (1, "text?"), "db_schema_filter_pattern": (2, "text?")},
    TABLES: {
        "catalog": (1, "text?"),
        "db_schema_filter_pattern": (2, "text?"),
        "table_name_filter_pattern": (3, "text?"),
        "table_types": (4, "texts"),
        "include_schema": (5, "flag"),
    },
    TABLE_TYPES: {},
    PRIMARY_KEYS: _KEYS,
    IMPORTED_KEYS: _KEYS,
    EXPORTED_KEYS: _KEYS,
    SQL_INFO: {"info": (1, "numbers")},
}
_PACKAGE: Final = "arrow.flight.protocol.sql"
_PREFIX: Final = f"type.googleapis.com/{_PACKAGE}."

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "text": _Field.TYPE_STRING,
    "texts": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "flag": _Field.TYPE_BOOL,
    "numbers": _Field.TYPE_UINT32,
}

FlightValue = str | bytes | bool | list[str] | list[int] | None


@dataclass(frozen=True, slots=True)
class FlightMessage:
    """A message.

    Attributes:
        kind: Its name in the definition.
        values: The values of its fields; None: an optional one is missing.
    """

    kind: str
    values: Mapping[str, FlightValue]

    def text(self, name: str) -> str:
        """Return the text of a field."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return the text of an optional field; None: it is missing."""
        return None if self.values[name] is None else self.text(name)

    def texts(self, name: str) -> Sequence[str]:
        """Return the texts of a repeated field."""
        value = self.values[name]
        assert isinstance(value, list)
        return [one for one in value if isinstance(one, str)]

    def bytes(self, name: str) -> bytes:
        """Return the bytes of a field."""
        value = self.values[name]
        assert isinstance(value, bytes)
        return value


def _definition() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="flight_sql", package=_PACKAGE, syntax="proto3")
    for kind, fields in _FIELDS.items():
        message = file.message_type.add(name=kind)
        for name, (number, type_) in fields.items():
            is_optional = type_.endswith("?")
            field = message.field.add(name=name, number=number, type=_TYPES[type_.rstrip("?")])
            many = type_ in {"texts", "numbers"}
            field.label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
            if is_optional:
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(_definition())
_CLASSES: Final = {
    kind: message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{kind}"))
    for kind in _FIELDS
}


def read_message(content: bytes, *kinds: str) -> FlightMessage:
    """Return a message.

    Args:
        content: An `Any` with it.
        kinds: The kinds that it may have.

    Raises:
        InvalidRequest: It is not a message, or of another kind.
    """
    try:
        envelope = any_pb2.Any.FromString(content)
        kind = envelope.type_url.removeprefix(_PREFIX)
        if kind not in kinds or not envelope.type_url.startswith(_PREFIX):
            raise InvalidRequest(
                f"the message {envelope.type_url:.100} of Flight SQL is not supported here: this"
                " server runs queries, and answers questions about tables"
            )
        found = _CLASSES[kind].FromString(envelope.value)
    except DecodeError as error:
        raise InvalidRequest(f"this is not a message of Flight SQL: {error}") from None
    values: dict[str, FlightValue] = {}
    for name, (_, type_) in _FIELDS[kind].items():
        value = getattr(found, name)
        if type_ in {"texts", "numbers"}:
            value = list(value)
        elif type_.endswith("?") and not found.HasField(name):
            value = None
        values[name] = value
    return FlightMessage(kind, values)


def written_message(kind: str, **values: FlightValue) -> bytes:
    """Return an `Any` with a message."""
    message = _CLASSES[kind](**values)
    envelope = any_pb2.Any(type_url=f"{_PREFIX}{kind}", value=message.SerializeToString())
    return bytes(envelope.SerializeToString())


def bare_message(kind: str, **values: FlightValue) -> bytes:
    """Return a message without `Any`, as some answers have it."""
    return bytes(_CLASSES[kind](**values).SerializeToString())
