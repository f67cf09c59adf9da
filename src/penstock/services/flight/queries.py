"""What Flight SQL's clients ask, as statements for the HTTP API. Pure.

Owns handles and tickets: JSON of the statement and the values of its parameters, so the server
keeps nothing between calls, and every router can answer. Owns the statements and columns of
questions about tables as well.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.core.sql_sizes import check_text
from penstock.services.flight import messages
from penstock.services.flight.messages import FlightMessage

PARAMETERS_MAX: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class AskedStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A statement, with the values of its parameters in the form of the HTTP API."""

    sql: str
    parameters: list[object] = []

    def to_handle(self) -> bytes:
        """Return it as an opaque handle."""
        return msgspec.json.encode(self)

    @classmethod
    def of_handle(cls, handle: bytes) -> AskedStatement:
        """Return the statement of a handle, which is not trusted more than a statement.

        Raises:
            InvalidRequest: It is no such handle.
        """
        try:
            found = msgspec.json.decode(handle, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidRequest("this handle was not made by Penstock") from None
        check_text(found.sql)
        return found


def bound_values(row: pa.RecordBatch) -> list[object]:
    """Return the values of one row as parameters of the HTTP API.

    Raises:
        InvalidRequest: A value has a type that parameters cannot have.
    """
    found: list[object] = []
    for number, column in enumerate(row.columns):
        value = column[0].as_py()
        if isinstance(value, dt.datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            ms = (moment - _EPOCH) // dt.timedelta(milliseconds=1)
            found.append({"type": "TIMESTAMP", "value": ms})
        elif isinstance(value, dt.date):
            found.append({"type": "DATE", "value": value.isoformat()})
        elif value is None or isinstance(value, str | int | float | bool):
            found.append(value)
        else:
            raise InvalidRequest(
                f"the parameter {number + 1} has the type {column.type}: use a text, a number, a"
                " boolean, a date or a timestamp"
            )
    return found


@dataclass(frozen=True, slots=True)
class Question:
    """A question about tables: its statement, and the columns of its answer."""

    statement: AskedStatement
    columns: pa.Schema


def _schema(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    # A name with ? may be null.
    return pa.schema(
        [
            pa.field(name.rstrip("?"), of, nullable=name.endswith("?"))
            for name, of in columns.items()
        ]
    )


_TEXT: Final = pa.string()
_KEY_COLUMNS: Final = {
    messages.PRIMARY_KEYS: _schema(
        {
            "catalog_name?": _TEXT,
            "db_schema_name?": _TEXT,
            "table_name": _TEXT,
            "column_name": _TEXT,
            "key_name?": _TEXT,
            "key_sequence": pa.int32(),
        }
    ),
    **dict.fromkeys(
        (messages.IMPORTED_KEYS, messages.EXPORTED_KEYS),
        _schema(
            {
                "pk_catalog_name?": _TEXT,
                "pk_db_schema_name?": _TEXT,
                "pk_table_name": _TEXT,
                "pk_column_name": _TEXT,
                "fk_catalog_name?": _TEXT,
                "fk_db_schema_name?": _TEXT,
                "fk_table_name": _TEXT,
                "fk_column_name": _TEXT,
                "key_sequence": pa.int32(),
                "fk_key_name?": _TEXT,
                "pk_key_name?": _TEXT,
                "update_rule": pa.uint8(),
                "delete_rule": pa.uint8(),
            }
        ),
    ),
}
_SCHEMA_COLUMNS: Final = _schema({"catalog_name?": _TEXT, "db_schema_name": _TEXT})
_TABLE_COLUMNS: Final = {
    "catalog_name?": _TEXT,
    "db_schema_name?": _TEXT,
    "table_name": _TEXT,
    "table_type": _TEXT,
}
TABLE_SCHEMA: Final = "table_schema"


def without_keys(message: FlightMessage) -> pa.Schema | None:
    """Return the columns of a question about keys, which no table has; None: another question."""
    return _KEY_COLUMNS.get(message.kind)


def question(message: FlightMessage) -> Question:
    """Return the statement that answers a question about tables.

    With `include_schema`, the column of the tables' schemas is added to the answer later.
    """
    conditions: list[str] = []
    values: list[object] = []

    def compare(column: str, value: str | None, operator: str = "=") -> None:
        if value is not None:
            conditions.append(f"{column} {operator} ?")
            values.append(value)

    match message.kind:
        case messages.CATALOGS:
            columns = _schema({"catalog_name": _TEXT})
            selected, table = "DISTINCT CATALOG_NAME AS catalog_name", "SCHEMATA"
        case messages.TABLE_TYPES:
            columns = _schema({"table_type": _TEXT})
            selected, table = "DISTINCT TABLE_TYPE AS table_type", "TABLES"
        case messages.SCHEMAS:
            columns = _SCHEMA_COLUMNS
            selected = "CATALOG_NAME AS catalog_name, SCHEMA_NAME AS db_schema_name"
            table = "SCHEMATA"
            compare("CATALOG_NAME", message.text_or_none("catalog"))
            compare("SCHEMA_NAME", message.text_or_none("db_schema_filter_pattern"), "LIKE")
        case _:
            columns = _schema(_TABLE_COLUMNS)
            selected = (
                "TABLE_CATALOG AS catalog_name, TABLE_SCHEMA AS db_schema_name, TABLE_NAME AS"
                " table_name, TABLE_TYPE AS table_type"
            )
            table = "TABLES"
            compare("TABLE_CATALOG", message.text_or_none("catalog"))
            compare("TABLE_SCHEMA", message.text_or_none("db_schema_filter_pattern"), "LIKE")
            compare("TABLE_NAME", message.text_or_none("table_name_filter_pattern"), "LIKE")
            types = message.texts("table_types")
            if types:
                conditions.append(f"TABLE_TYPE IN ({', '.join('?' * len(types))})")
                values.extend(types)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = ", ".join(columns.names)
    sql = f"SELECT {selected} FROM INFORMATION_SCHEMA.{table}{where} ORDER BY {order}"  # noqa: S608 - of constants
    return Question(AskedStatement(sql, values), columns)


def columns_of_tables(tables: pa.Table) -> AskedStatement:
    """Return the statement that lists the columns of tables, with their types.

    Raises:
        InvalidRequest: There are too many tables.
    """
    names = tables.column("table_name").to_pylist()
    if len(names) > PARAMETERS_MAX:
        raise InvalidRequest(
            f"{len(names):,} tables with their columns are more than {PARAMETERS_MAX:,}: ask for"
            " fewer with a pattern"
        )
    marks = ", ".join("?" * len(names)) or "NULL"
    sql = (
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE FROM INFORMATION_SCHEMA.COLUMNS"  # noqa: S608 - of constants
        f" WHERE TABLE_NAME IN ({marks}) ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION"
    )
    return AskedStatement(sql, names)


_OF_SQL_TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}


def with_schemas(tables: pa.Table, columns: pa.Table) -> pa.Table:
    """Return tables with the schema of each, as a message of Arrow's IPC format.

    Args:
        tables: The tables.
        columns: The answer to `columns_of_tables`.
    """
    fields: dict[tuple[object, object], list[pa.Field]] = {}
    for schema, table, name, type_ in zip(*(one.to_pylist() for one in columns), strict=True):
        of = _OF_SQL_TYPES.get(str(type_), _TEXT)
        fields.setdefault((schema, table), []).append(pa.field(str(name), of))
    keys: Sequence[tuple[object, object]] = list(
        zip(*(tables.column(number).to_pylist() for number in (1, 2)), strict=True)
    )
    written = [pa.schema(fields.get(key, [])).serialize().to_pybytes() for key in keys]
    field = pa.field(TABLE_SCHEMA, pa.binary(), nullable=False)
    return tables.append_column(field, pa.array(written, pa.binary()))
