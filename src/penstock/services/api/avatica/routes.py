"""`POST /druid/v2/sql/avatica`: queries of Druid's JDBC driver, in Avatica's JSON protocol.

Owns the answer to each request. `messages` reads requests, `connections` keeps statements and
results, `result_columns` describes columns and writes rows. Queries run as those of
`POST /druid/v2/sql`, with the same rights, limits and records.

A driver reads the error of an answer only with the status 500, and repeats a request for ever after
503, so every error has 500.

Every request is authenticated as other requests are, by HTTP; `logins` adds the credential of
drivers that send it only when they open a connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import orjson
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import Forbidden, InvalidRequest, NotFound, PenstockError
from penstock.core.loop_tasks import start_job
from penstock.core.sql_sizes import check_text
from penstock.core.whole_numbers import is_int64
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.avatica import messages
from penstock.services.api.avatica.connections import (
    FRAME_ROWS_MAX,
    AvaticaConnection,
    AvaticaConnections,
    AvaticaStatement,
    Frame,
    Frames,
    MissingConnection,
    Row,
)
from penstock.services.api.avatica.metadata_queries import metadata_query
from penstock.services.api.avatica.result_columns import JsonObject, signature
from penstock.services.api.indexer.sql_task import refuse_writes
from penstock.services.api.request_access import access_of
from penstock.services.api.sql_answer import close_on_thread
from penstock.services.api.sql_request import (
    check_zone,
    describe_query,
    engine_in,
    parameter_count,
    undescribed,
)
from penstock.services.api.sql_results import described_schema
from penstock.spark.sql.service import SqlQuery, SqlResult, SqlValue

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from penstock.core.clock import Clock

PATH: Final = "/druid/v2/sql/avatica"
EXPIRY_EVERY_S: Final = 30.0
# Numbers and texts of Avatica's errors.
_OTHER_ERROR: Final = -1
_MISSING_CONNECTION: Final = 1
_UNAUTHORIZED: Final = 2
_OTHER_STATE: Final = "00000"
_UNAUTHORIZED_STATE: Final = "00002"
_NO_STATEMENT: Final = -1
DESCRIBED_MAX: Final = 20_000
"""Rows of an answer about tables, which is sent at once."""
_READ_ONLY: Final = (
    "this protocol only reads: POST INSERT INTO and REPLACE INTO to /druid/v2/sql/task"
)


class QueryPort(Protocol):
    """Runs queries: `penstock.services.api.sql.SqlRoutes`."""

    async def run(self, request: Request, query: SqlQuery) -> SqlResult:
        """Run a query for the principal of a request."""
        ...


class AvaticaRoutes:
    """The routes of JDBC.

    Args:
        queries: Runs queries.
        clock: Time.
    """

    def __init__(self, queries: QueryPort, clock: Clock) -> None:
        self._queries = queries
        self._connections = AvaticaConnections(clock)
        self._expiry: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(PATH, self.answer, methods=["POST"])]

    async def answer(self, request: Request) -> Response:
        """Answer one request of the protocol."""
        try:
            wanted = await run_in_threadpool(messages.read_request, await request.body())
            body = await self._answer(request, wanted)
        except PenstockError as error:
            return error_answer(error, request.scope)
        # Rows of a frame take a while to write, and other requests must be answered meanwhile.
        content = await run_in_threadpool(orjson.dumps, {**body, **_server(request.scope)})
        return Response(content, media_type="application/json")

    async def _answer(self, request: Request, wanted: messages.Request) -> JsonObject:
        match wanted:
            case messages.OpenConnection():
                info = wanted.info or {}
                check_zone(info.get("sqlTimeZone"), "info.sqlTimeZone")
                engine = engine_in(info, "info")
                self._connections.open(wanted.connection_id, self._principal(request), engine)
                self._expire_later()
                return {"response": "openConnection"}
            case messages.CloseConnection():
                self._connections.close(wanted.connection_id, self._principal(request))
                return {"response": "closeConnection"}
            case messages.Execute():
                return await self._execute(request, wanted)
        connection = self._connections.of(wanted.connection_id, self._principal(request))
        match wanted:
            case messages.ConnectionSync():
                return _synchronized(connection, wanted)
            case messages.CreateStatement():
                return {
                    "response": "createStatement",
                    "connectionId": wanted.connection_id,
                    "statementId": connection.create(AvaticaStatement()),
                }
            case messages.CloseStatement():
                if statement := connection.statements.pop(wanted.statement_id, None):
                    statement.drop_result()
                return {"response": "closeStatement"}
            case messages.Prepare():
                return await self._prepare(request, connection, wanted)
            case messages.PrepareAndExecute():
                return await self._prepare_and_execute(request, connection, wanted)
            case messages.Fetch():
                return await _fetched(connection, wanted, _rights(request))
            case messages.SyncResults():
                return _synchronized_results(connection, wanted)
            case messages.DatabaseProperties():
                return {"response": "databaseProperties", "map": {}}
            case messages.GetTypeInfo():
                return _empty(wanted.connection_id)
            case messages.Commit():
                return {"response": "commit"}
            case messages.Rollback():
                return {"response": "rollback"}
            case messages.ExecuteBatch() | messages.PrepareAndExecuteBatch():
                raise InvalidRequest(_READ_ONLY)
            case _:
                return await self._described(request, connection, wanted)

    def _principal(self, request: Request) -> str:
        return access_of(request).principal.id

    def _expire_later(self) -> None:
        """Close connections that are not used any longer, as long as there are some."""
        if self._expiry is None or self._expiry.done():
            self._expiry = start_job("connections of JDBC", self._expire())

    async def _expire(self) -> None:
        while self._connections.expire():  # noqa: ASYNC110 - no event marks that time has passed
            await asyncio.sleep(EXPIRY_EVERY_S)

    async def _prepare(
        self, request: Request, connection: AvaticaConnection, wanted: messages.Prepare
    ) -> JsonObject:
        count = await run_in_threadpool(_checked, wanted.sql)
        query = SqlQuery(describe_query(wanted.sql), [None] * count)
        try:
            found = await self._run(request, connection, query)
        except InvalidRequest as error:  # narrow: translates
            raise undescribed(error) from None
        try:
            schema = await run_in_threadpool(_described_columns, found)
        finally:
            await close_on_thread(found)
        limit = messages.limit_of(wanted.max_rows_total, wanted.max_row_count)
        number = connection.create(AvaticaStatement(wanted.sql, limit))
        return {
            "response": "prepare",
            "statement": {
                "connectionId": wanted.connection_id,
                "id": number,
                "signature": signature(schema, wanted.sql, count),
            },
        }

    async def _prepare_and_execute(
        self, request: Request, connection: AvaticaConnection, wanted: messages.PrepareAndExecute
    ) -> JsonObject:
        statement = connection.statements.get(wanted.statement_id)
        if statement is None:
            return _missing_statement("executeResults")
        await run_in_threadpool(_checked, wanted.sql)
        statement.sql = wanted.sql
        statement.rows_max = messages.limit_of(wanted.max_rows_total, wanted.max_row_count)
        first = wanted.max_rows_in_first_frame
        handle = messages.StatementHandle(wanted.connection_id, wanted.statement_id)
        return await self._executed(request, connection, handle, [], first)

    async def _execute(self, request: Request, wanted: messages.Execute) -> JsonObject:
        handle = wanted.statement_handle
        connection = self._connections.of(handle.connection_id, self._principal(request))
        if handle.id not in connection.statements:
            return _missing_statement("executeResults")
        values = messages.parameters_of(wanted.parameter_values)
        return await self._executed(request, connection, handle, values, wanted.max_row_count)

    async def _executed(
        self,
        request: Request,
        connection: AvaticaConnection,
        handle: messages.StatementHandle,
        values: list[SqlValue],
        first_rows: int,
    ) -> JsonObject:
        statement = connection.statements[handle.id]
        statement.drop_result()
        sql, limit = statement.sql, statement.rows_max
        query = SqlQuery(sql, values, row_limit=limit, engine=connection.engine)
        result = await self._run(request, connection, query)
        frames = Frames(result, limit, _rights(request))
        try:
            _check_whole(result, limit)
            first = await frames.at(0, first_rows)
            is_open = connection.statements.get(handle.id) is statement
            self._keep(statement if is_open else None, frames, self._principal(request))
        except BaseException:
            await close_on_thread(result)
            raise
        described = signature(frames.schema, sql, len(values))
        return _results(_result_set(handle, described, first, owned=False))

    def _keep(self, statement: AvaticaStatement | None, frames: Frames, principal: str) -> None:
        """Keep a result. It does not wait, so no other one is kept between the checks and the end.

        Raises:
            NotFound: The statement was closed, which is None then, or run again.
            Unavailable: The principal has too many large results.
        """
        if statement is None or statement.frames is not None:
            raise NotFound("the statement was closed or run again while it ran")
        if frames.result.is_in_files:
            self._connections.check_large_results(principal)
        statement.frames = frames

    async def _described(
        self, request: Request, connection: AvaticaConnection, wanted: messages.MetadataRequest
    ) -> JsonObject:
        sql, values = metadata_query(wanted)
        result = await self._run(request, connection, SqlQuery(sql, values))
        try:
            if result.rows.num_rows > DESCRIBED_MAX:
                raise InvalidRequest(
                    f"the answer has more than {DESCRIBED_MAX:,} rows: ask with a narrower pattern,"
                    " or query INFORMATION_SCHEMA"
                )
            frames = Frames(result, None)
            rows: list[Row] = []
            is_last = False
            while not is_last:
                frame = await frames.at(len(rows), FRAME_ROWS_MAX)
                rows += frame.rows
                is_last = frame.is_last
            whole = Frame(0, rows, is_last=True)
        finally:
            await close_on_thread(result)
        handle = messages.StatementHandle(wanted.connection_id, _NO_STATEMENT)
        return _result_set(handle, signature(frames.schema, sql), whole, owned=True)

    async def _run(
        self, request: Request, connection: AvaticaConnection, query: SqlQuery
    ) -> SqlResult:
        connection.running += 1
        try:
            return await self._queries.run(request, query)
        finally:
            connection.running -= 1


def _described_columns(described: SqlResult) -> pa.Schema:
    return described_schema(described.table)


def _checked(sql: str) -> int:
    """Check a statement's form; return how many parameters it has."""
    check_text(sql)
    if not sql.strip():
        raise InvalidRequest("the statement is empty: write a query such as SELECT 1", place="sql")
    refuse_writes(sql)
    return parameter_count(sql)


def _synchronized(connection: AvaticaConnection, wanted: messages.ConnectionSync) -> JsonObject:
    for name in ("autoCommit", "readOnly", "transactionIsolation", "catalog", "schema"):
        value = (wanted.conn_props or {}).get(name)
        is_short = isinstance(value, str) and len(value) <= messages.ID_CHARACTERS_MAX
        if is_short or isinstance(value, bool) or is_int64(value):  # others cannot be answered
            connection.properties[name] = value
    properties = {
        "connProps": "connPropsImpl",
        "autoCommit": True,
        "readOnly": True,
        "transactionIsolation": 0,
        "catalog": None,
        "schema": None,
        **connection.properties,
        "dirty": False,
    }
    return {"response": "connectionSync", "connProps": properties}


def _rights(request: Request) -> str:
    access = access_of(request)
    return access.control.rights_of(access.principal)


def _check_whole(result: SqlResult, rows_max: int | None) -> None:
    """Return if a result has all rows that the client asked for.

    Raises:
        InvalidRequest: The router's limit cut it, which a client of JDBC could not see.
    """
    if result.truncated and (rows_max is None or result.rows.num_rows < rows_max):
        raise InvalidRequest(
            f"the answer has more than {result.rows.num_rows:,} rows, the limit of the router:"
            " select less, or set the maximum number of rows of the statement"
        )


async def _fetched(
    connection: AvaticaConnection, wanted: messages.Fetch, rights: str
) -> JsonObject:
    statement = connection.statements.get(wanted.statement_id)
    frames = None if statement is None else statement.frames
    if statement is not None and frames is not None and frames.rights != rights:
        statement.drop_result()
        raise Forbidden("your rights have changed since the query ran: run it again")
    frame = None
    if frames is not None:
        frame = (await frames.at(wanted.offset, wanted.fetch_max_row_count)).to_json()
    return {
        "response": "fetch",
        "frame": frame,
        "missingStatement": statement is None,
        "missingResults": statement is not None and frames is None,
    }


def _synchronized_results(
    connection: AvaticaConnection, wanted: messages.SyncResults
) -> JsonObject:
    """Report that results are gone: rows are read forwards only, so the client runs it again."""
    return {
        "response": "syncResults",
        "moreResults": False,
        "missingStatement": wanted.statement_id not in connection.statements,
    }


def _results(*result_sets: JsonObject) -> JsonObject:
    return {"response": "executeResults", "resultSets": [*result_sets], "missingStatement": False}


def _missing_statement(response: str) -> JsonObject:
    return {"response": response, "resultSets": [], "missingStatement": True}


def _result_set(
    handle: messages.StatementHandle, described: JsonObject, frame: Frame, *, owned: bool
) -> JsonObject:
    return {
        "response": "resultSet",
        "connectionId": handle.connection_id,
        "statementId": handle.id,
        "ownStatement": owned,
        "signature": described,
        "firstFrame": frame.to_json(),
        "updateCount": -1,
    }


def _empty(connection_id: str) -> JsonObject:
    handle = messages.StatementHandle(connection_id, _NO_STATEMENT)
    nothing = Frame(0, [], is_last=True)
    return _result_set(handle, signature(pa.schema([]), ""), nothing, owned=True)


def _server(scope: Scope) -> JsonObject:
    host, port = scope.get("server") or ("", 0)
    return {"rpcMetadata": {"response": "rpcMetadata", "serverAddress": f"{host}:{port}"}}


def error_answer(error: PenstockError, scope: Scope) -> Response:
    """Return the answer to a request that failed."""
    return JsonResponse({**_error(error), **_server(scope)}, 500)


def _error(error: PenstockError) -> JsonObject:
    code, state = _OTHER_ERROR, _OTHER_STATE
    if isinstance(error, MissingConnection):
        code = _MISSING_CONNECTION
    elif isinstance(error, Forbidden):
        code, state = _UNAUTHORIZED, _UNAUTHORIZED_STATE
    return {
        "response": "error",
        "exceptions": [str(error)],
        "errorMessage": str(error),
        "errorCode": code,
        "sqlState": state,
        "severity": "ERROR",
    }
