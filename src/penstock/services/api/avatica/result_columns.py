"""Columns and rows of results, as JDBC's clients of Avatica read them. Pure.

Owns the description of each type (JDBC's number, Avatica's representation) and how values are
written: times as milliseconds since 1970 in UTC, days as days since 1970, arrays and other nested
values as JSON text, as Druid writes them for JDBC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.services.api.sql_results import plain_value, type_name, values_of

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class _JdbcType:
    """A type: its name, its number in `java.sql.Types`, its representation, its Java class."""

    name: str
    number: int
    representation: str
    java: str
    is_signed: bool = False

    def to_json(self) -> JsonObject:
        return {
            "type": "scalar",
            "id": self.number,
            "name": self.name,
            "rep": self.representation,
        }


_TEXT: Final = _JdbcType("VARCHAR", 12, "STRING", "java.lang.String")
# By the names of SQL's types in `sql_results`.
_TYPES: Final[Mapping[str, _JdbcType]] = {
    one.name: one
    for one in (
        _TEXT,
        _JdbcType("BOOLEAN", 16, "BOOLEAN", "java.lang.Boolean"),
        _JdbcType("TINYINT", -6, "INTEGER", "java.lang.Integer", is_signed=True),
        _JdbcType("SMALLINT", 5, "INTEGER", "java.lang.Integer", is_signed=True),
        _JdbcType("INTEGER", 4, "INTEGER", "java.lang.Integer", is_signed=True),
        _JdbcType("BIGINT", -5, "LONG", "java.lang.Long", is_signed=True),
        _JdbcType("FLOAT", 6, "FLOAT", "java.lang.Float", is_signed=True),
        _JdbcType("DOUBLE", 8, "DOUBLE", "java.lang.Double", is_signed=True),
        _JdbcType("DECIMAL", 3, "DOUBLE", "java.lang.Double", is_signed=True),
        _JdbcType("TIMESTAMP", 93, "LONG", "java.sql.Timestamp"),
        _JdbcType("DATE", 91, "INTEGER", "java.sql.Date"),
    )
}


def signature(schema: pa.Schema, sql: str, parameters: int = 0) -> JsonObject:
    """Return the description of a statement: its columns, and its parameters as text."""
    return {
        "columns": [_column(number, field) for number, field in enumerate(schema)],
        "sql": sql,
        "parameters": [_parameter(number) for number in range(parameters)],
        "cursorFactory": {"style": "LIST", "clazz": None, "fieldNames": None},
        "statementType": "SELECT",
    }


def _jdbc_type(of: pa.DataType) -> _JdbcType:
    # Nested values, binary ones and intervals are text.
    return _TYPES.get(type_name(of, "sqlType"), _TEXT)


def _column(number: int, field: pa.Field) -> JsonObject:
    of = _jdbc_type(field.type)
    return {
        "ordinal": number,
        "autoIncrement": False,
        "caseSensitive": of is _TEXT,
        "searchable": True,
        "currency": False,
        "nullable": 1,
        "signed": of.is_signed,
        "displaySize": -1,
        "label": field.name,
        "columnName": field.name,
        "schemaName": "",
        "precision": -1,
        "scale": -1,
        "tableName": "",
        "catalogName": "",
        "type": of.to_json(),
        "readOnly": True,
        "writable": False,
        "definitelyWritable": False,
        "columnClassName": of.java,
    }


def _parameter(number: int) -> JsonObject:
    return {
        "signed": False,
        "precision": -1,
        "scale": -1,
        "parameterType": _TEXT.number,
        "typeName": _TEXT.name,
        "className": "java.lang.Object",
        "name": f"?{number}",
    }


def rows_of(batch: pa.RecordBatch) -> list[Sequence[object]]:
    """Return the rows of a batch, as they are written in a frame."""
    return list(zip(*map(_values, batch.columns), strict=True))


def _values(column: pa.Array) -> list[object]:
    of = column.type
    if pa.types.is_timestamp(of):
        # Rounded down, before 1970 as well.
        millis = (
            pc.floor_temporal(column, unit="millisecond") if of.unit in {"us", "ns"} else column
        )
        return millis.cast(pa.timestamp("ms", of.tz)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_date32(of):
        return column.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    values = values_of(column)
    if pa.types.is_decimal(of):
        return column.cast(pa.float64()).to_pylist()  # type: ignore[no-any-return]
    if _jdbc_type(of) is not _TEXT:
        return values
    return [one if one is None or isinstance(one, str) else _text(one) for one in values]


def _text(value: object) -> str:
    plain = value if isinstance(value, list | dict | tuple) else plain_value(value)
    if isinstance(plain, str):
        return plain
    return orjson.dumps(plain, default=plain_value, option=orjson.OPT_NON_STR_KEYS).decode()
