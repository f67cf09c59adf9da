"""Statements over `INFORMATION_SCHEMA` that answer JDBC's questions about tables. Pure.

Owns the names and the order of the columns of JDBC's DatabaseMetaData. A catalog, a name or a
pattern of the client is a parameter. A missing one is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.services.api.avatica.messages import (
    GetCatalogs,
    GetColumns,
    GetSchemas,
    GetTables,
    GetTableTypes,
    MetadataRequest,
)

_NO_TEXT: Final = "CAST(NULL AS STRING)"
_TABLE_COLUMNS: Final = (
    "TABLE_CATALOG AS TABLE_CAT, TABLE_SCHEMA AS TABLE_SCHEM, TABLE_NAME, TABLE_TYPE"
    + "".join(
        f", {_NO_TEXT} AS {name}"
        for name in (
            *("REMARKS", "TYPE_CAT", "TYPE_SCHEM", "TYPE_NAME"),
            *("SELF_REFERENCING_COL_NAME", "REF_GENERATION"),
        )
    )
)
_COLUMN_COLUMNS: Final = (
    "TABLE_CATALOG AS TABLE_CAT, TABLE_SCHEMA AS TABLE_SCHEM, TABLE_NAME, COLUMN_NAME,"
    " CAST(JDBC_TYPE AS INT) AS DATA_TYPE, DATA_TYPE AS TYPE_NAME, -1 AS COLUMN_SIZE,"
    " -1 AS BUFFER_LENGTH, -1 AS DECIMAL_DIGITS, -1 AS NUM_PREC_RADIX,"
    " CASE IS_NULLABLE WHEN 'YES' THEN 1 ELSE 0 END AS NULLABLE,"
    f" {_NO_TEXT} AS REMARKS, COLUMN_DEFAULT AS COLUMN_DEF, -1 AS SQL_DATA_TYPE,"
    " -1 AS SQL_DATETIME_SUB, -1 AS CHAR_OCTET_LENGTH,"
    " CAST(ORDINAL_POSITION AS INT) AS ORDINAL_POSITION, IS_NULLABLE,"
    f" {_NO_TEXT} AS SCOPE_CATALOG, {_NO_TEXT} AS SCOPE_SCHEMA, {_NO_TEXT} AS SCOPE_TABLE,"
    " -1 AS SOURCE_DATA_TYPE, 'NO' AS IS_AUTOINCREMENT, 'NO' AS IS_GENERATEDCOLUMN"
)


def metadata_query(request: MetadataRequest) -> tuple[str, list[str]]:
    """Return the statement that answers a question, and the values of its parameters."""
    conditions: list[str] = []
    values: list[str] = []

    def compare(column: str, value: str | None, operator: str = "=") -> None:
        if value is not None:
            conditions.append(f"{column} {operator} ?")
            values.append(value)

    def choose(column: str, among: Sequence[str] | None) -> None:
        if among is not None:
            conditions.append(f"{column} IN ({', '.join('?' * len(among))})" if among else "FALSE")
            values.extend(among)

    match request:
        case GetCatalogs():
            columns, table = "DISTINCT CATALOG_NAME AS TABLE_CAT", "SCHEMATA"
            order = "TABLE_CAT"
        case GetTableTypes():
            columns, table, order = "DISTINCT TABLE_TYPE", "TABLES", "TABLE_TYPE"
        case GetSchemas():
            columns = "SCHEMA_NAME AS TABLE_SCHEM, CATALOG_NAME AS TABLE_CATALOG"
            table, order = "SCHEMATA", "TABLE_CATALOG, TABLE_SCHEM"
            compare("CATALOG_NAME", request.catalog)
            compare("SCHEMA_NAME", request.schema_pattern, "LIKE")
        case GetTables():
            columns, table = _TABLE_COLUMNS, "TABLES"
            order = "TABLE_TYPE, TABLE_CAT, TABLE_SCHEM, TABLE_NAME"
            compare("TABLE_CATALOG", request.catalog)
            compare("TABLE_SCHEMA", request.schema_pattern, "LIKE")
            compare("TABLE_NAME", request.table_name_pattern, "LIKE")
            choose("TABLE_TYPE", request.type_list)
        case GetColumns():
            columns, table = _COLUMN_COLUMNS, "COLUMNS"
            order = "TABLE_CAT, TABLE_SCHEM, TABLE_NAME, ORDINAL_POSITION"
            compare("TABLE_CATALOG", request.catalog)
            compare("TABLE_SCHEMA", request.schema_pattern, "LIKE")
            compare("TABLE_NAME", request.table_name_pattern, "LIKE")
            compare("COLUMN_NAME", request.column_name_pattern, "LIKE")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    sql = f"SELECT {columns} FROM INFORMATION_SCHEMA.{table}{where} ORDER BY {order}"  # noqa: S608 - of constants
    return sql, values
