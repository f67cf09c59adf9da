"""Messages of Avatica's JSON protocol, as its public reference describes them. Pure.

Owns the requests and how values of parameters are written in them. Unknown fields are ignored, as
clients of later releases send some. Names and meanings follow Avatica's JSON reference
(calcite.apache.org/avatica/docs/json_reference.html); of numbers of rows, a negative one or 0 means
"no limit", as in JDBC.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.core.whole_numbers import is_int64
from penstock.spark.sql.service import SqlValue

ID_CHARACTERS_MAX: Final = 255
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WHOLE: Final = frozenset({"BYTE", "SHORT", "INTEGER", "LONG"})
_REAL: Final = frozenset({"FLOAT", "DOUBLE", "NUMBER"})
_TEXT: Final = frozenset({"STRING", "CHARACTER", "CHAR"})
_TIMES: Final = frozenset({"JAVA_SQL_TIMESTAMP", "JAVA_UTIL_DATE"})


class AvaticaRequest(msgspec.Struct, tag_field="request", rename="camel", frozen=True):
    """A request; the field `request` names its kind."""


class OfConnection(AvaticaRequest, frozen=True):
    """A request about a connection, whose id the client has chosen."""

    connection_id: str


class OpenConnection(OfConnection, tag="openConnection", frozen=True):
    """Opens a connection; `info` has the properties of the driver."""

    info: dict[str, object] | None = None


class CloseConnection(OfConnection, tag="closeConnection", frozen=True):
    """Closes a connection and its statements."""


class ConnectionSync(OfConnection, tag="connectionSync", frozen=True):
    """Sets properties of a connection, and asks for all of them."""

    conn_props: dict[str, object] | None = None


class CreateStatement(OfConnection, tag="createStatement", frozen=True):
    """Creates a statement; its id is in the answer."""


class CloseStatement(OfConnection, tag="closeStatement", frozen=True):
    """Closes a statement and its result."""

    statement_id: int


class Prepare(OfConnection, tag="prepare", frozen=True):
    """Creates a statement with its SQL."""

    sql: str
    max_rows_total: int = -1
    max_row_count: int = -1


class PrepareAndExecute(OfConnection, tag="prepareAndExecute", frozen=True):
    """Runs SQL in a statement, and asks for the first rows."""

    statement_id: int
    sql: str
    max_rows_total: int = -1
    max_row_count: int = -1
    max_rows_in_first_frame: int = -1


class StatementHandle(msgspec.Struct, rename="camel", frozen=True):
    """A statement that was prepared."""

    connection_id: str
    id: int


class TypedValue(msgspec.Struct, frozen=True):
    """The value of a parameter; `type` is one of Avatica's representations."""

    type: str
    value: object = None


class Execute(AvaticaRequest, tag="execute", frozen=True):
    """Runs a prepared statement with the values of its parameters."""

    statement_handle: StatementHandle
    parameter_values: list[TypedValue] | None = None
    max_row_count: int = -1


class Fetch(OfConnection, tag="fetch", frozen=True):
    """Asks for further rows, from an offset on."""

    statement_id: int
    offset: int
    fetch_max_row_count: int = -1


class SyncResults(OfConnection, tag="syncResults", frozen=True):
    """Moves a result to an offset."""

    statement_id: int
    offset: int = 0


class DatabaseProperties(OfConnection, tag="databaseProperties", frozen=True):
    """Asks for properties of the database."""


class GetCatalogs(OfConnection, tag="getCatalogs", frozen=True):
    """Asks for the catalogs."""


class GetTableTypes(OfConnection, tag="getTableTypes", frozen=True):
    """Asks for the types of tables."""


class GetTypeInfo(OfConnection, tag="getTypeInfo", frozen=True):
    """Asks for the types of columns."""


class GetSchemas(OfConnection, tag="getSchemas", frozen=True):
    """Asks for schemas; patterns are those of LIKE."""

    catalog: str | None = None
    schema_pattern: str | None = None


class GetTables(OfConnection, tag="getTables", frozen=True):
    """Asks for tables; patterns as in `GetSchemas`."""

    catalog: str | None = None
    schema_pattern: str | None = None
    table_name_pattern: str | None = None
    type_list: list[str] | None = None


class GetColumns(OfConnection, tag="getColumns", frozen=True):
    """Asks for columns; patterns as in `GetSchemas`."""

    catalog: str | None = None
    schema_pattern: str | None = None
    table_name_pattern: str | None = None
    column_name_pattern: str | None = None


class Commit(OfConnection, tag="commit", frozen=True):
    """Ends a transaction; there are none, so it does nothing."""


class Rollback(OfConnection, tag="rollback", frozen=True):
    """Ends a transaction; there are none, so it does nothing."""


class ExecuteBatch(OfConnection, tag="executeBatch", frozen=True):
    """Writes rows, which this protocol cannot do here."""


class PrepareAndExecuteBatch(OfConnection, tag="prepareAndExecuteBatch", frozen=True):
    """Writes rows, which this protocol cannot do here."""


MetadataRequest = GetCatalogs | GetTableTypes | GetSchemas | GetTables | GetColumns

Request = (
    MetadataRequest
    | OpenConnection
    | CloseConnection
    | ConnectionSync
    | CreateStatement
    | CloseStatement
    | Prepare
    | PrepareAndExecute
    | Execute
    | Fetch
    | SyncResults
    | DatabaseProperties
    | GetTypeInfo
    | Commit
    | Rollback
    | ExecuteBatch
    | PrepareAndExecuteBatch
)

_decoder: Final = msgspec.json.Decoder(Request)


def read_request(body: bytes) -> Request:
    """Return a request from its JSON.

    Raises:
        InvalidRequest: It is not a request of this protocol.
    """
    try:
        request: Request = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"this is not a request of Avatica's JSON protocol ({error}): set"
            " serialization=json in the URL of the driver, or leave it out"
        ) from None
    connection = (
        request.statement_handle.connection_id
        if isinstance(request, Execute)
        else request.connection_id
    )
    if not 0 < len(connection) <= ID_CHARACTERS_MAX:
        raise InvalidRequest(
            f"must have 1 to {ID_CHARACTERS_MAX} characters, such as a UUID", place="connectionId"
        )
    return request


def limit_of(*counts: int) -> int | None:
    """Return the smallest limit of rows; None: there is none."""
    return min((count for count in counts if count > 0), default=None)


def parameters_of(values: Sequence[TypedValue] | None) -> list[SqlValue]:
    """Return the values of parameters.

    Raises:
        InvalidRequest: A value does not have its type, or the type is not supported.
    """
    return [_value(one, f"parameterValues[{number}]") for number, one in enumerate(values or ())]


def _value(one: TypedValue, place: str) -> SqlValue:
    kind, value = one.type.removeprefix("PRIMITIVE_"), one.value
    if value is None:
        return None
    if isinstance(value, int) and not is_int64(value):
        raise InvalidRequest("has more than 64 bits: write it as a text", place=place)
    if kind in _TEXT and isinstance(value, str):
        return value
    if kind == "BOOLEAN" and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and kind in _REAL:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if kind in _WHOLE:
            return value
        try:
            if kind in _TIMES:
                return _EPOCH + dt.timedelta(milliseconds=value)
            if kind == "JAVA_SQL_DATE":
                return (_EPOCH + dt.timedelta(days=value)).date()
        except OverflowError:
            raise InvalidRequest("is outside the years 1 to 9999", place=place) from None
    raise InvalidRequest(
        f"a value of the type {one.type:.40} is not supported, or is not of this type: use a text,"
        " a number, a boolean, a date or a timestamp",
        place=place,
    )
