"""`POST /druid/v2/sql`: queries in Druid's JSON, answers in Druid's formats.

Owns the format of requests, and errors in Druid's format. Queries run in `penstock.spark.sql`. When
a client disconnects, its query is cancelled, and the files of its answer are deleted. A client that
stops reading counts as disconnected: the server closes its connection
(`broker.http_server.http_connection`).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable, counted
from penstock.core.instants import parse_time
from penstock.core.loop_tasks import start_awaited, start_job
from penstock.core.sql_sizes import check_text, statement_tokens
from penstock.core.whole_numbers import is_int64
from penstock.indexing.engine import EngineFailure
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.indexer.sql_task import refuse_writes
from penstock.services.api.indexer.task_json import typed_error
from penstock.services.api.sql_answer import SqlAnswer, close_on_thread, close_soon
from penstock.services.api.sql_results import (
    CONTENT_TYPES,
    TypeName,
    check_format,
    check_names,
    write_rows,
)
from penstock.services.emitter.emitter import Emitter
from penstock.services.emitter.events import MetricEvent
from penstock.services.json_client import TRUNCATED_HEADER
from penstock.spark.projections.selector import projection_options
from penstock.spark.sql.service import (
    LargeAnswer,
    RegisteredQuery,
    SqlQuery,
    SqlResult,
    SqlValue,
)

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.metrics import MetricRegistry

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATH = "/druid/v2/sql"
ID_HEADER = "X-Druid-SQL-Query-Id"

# Time for the interruption after the time limit; planning may ignore an interruption.
OVERDUE_S = 2.0

# The framework has 40 threads; the others are for other requests to this process, such as
# cancelling a query.
RUNNING_MAX = 32

# Number of large answers written at once, so that small ones find a free core of Spark.
LARGE_MAX: Final = max(1, (os.cpu_count() or 1) // 2)


_UTC: Final = (None, "", "UTC", "Etc/UTC", "GMT", "Z", "+00:00")
_TIMES: Final = ("TIMESTAMP", "DATE")
# The JSON types with which a parameter of each of Druid's types may be written.
_PARAMETER_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("VARCHAR", "CHAR"), (str,)),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT"), (int,)),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE", "DECIMAL"), (int, float)),
    "BOOLEAN": (bool,),
    **dict.fromkeys(_TIMES, (str, int)),
}
_QUERY_ID: Final = re.compile(r"[!-~]{1,255}")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class SqlPort(Protocol):
    """Service that runs queries: `penstock.spark.sql.service.SqlService`."""

    def registered(self, query: SqlQuery) -> AbstractContextManager[RegisteredQuery]:
        """Register a query, which can be cancelled from now on."""
        ...

    def timeout_ms(self, query: SqlQuery) -> int:
        """Return how long a query may take after the arrival of its request."""
        ...

    def cancel(self, query_id: str) -> bool:
        """Cancel a registered query; return False if there is none with this id."""
        ...


class SqlRoutes:
    """The routes of SQL.

    Args:
        service: The service that runs queries.
        metrics: Registry for times and failures.
        emitter: Gets an event for each query, under Druid's name for it.
        clock: Time.
    """

    def __init__(
        self,
        service: SqlPort,
        metrics: MetricRegistry,
        emitter: Emitter,
        clock: Clock,
    ) -> None:
        self._service = service
        self._slots = _QuerySlots(RUNNING_MAX, f"{RUNNING_MAX} others run")
        self._large_slots = _QuerySlots(
            LARGE_MAX, "other large answers are written", CapacityLimiter(LARGE_MAX)
        )
        # Registered queries that wait for their turn, by their ids.
        self._waiting: dict[str, _Waiting] = {}
        self._emitter = emitter
        self._clock = clock
        self._seconds = metrics.histogram("penstock_sql_seconds", "Time to the answer of a query")
        self._failures = metrics.counter("penstock_sql_failures_total", "Queries that failed")
        self._large = metrics.counter(
            "penstock_sql_large_answers_total", "Answers that went through files"
        )
        self._abandoned = metrics.counter(
            "penstock_sql_abandoned_total",
            "Queries and answers that ended before the client had received all of the answer",
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(PATH, self.execute, methods=["POST"]),
            Route(PATH + "/{query_id:path}", self.cancel, methods=["DELETE"]),
        ]

    async def execute(self, request: Request) -> Response:
        """Answer a query."""
        query_id = str(uuid.uuid4())
        started_s = self._clock.monotonic_s()
        try:
            body = await _body(request)
            # Parsing a long statement takes a while, and other requests must be answered meanwhile.
            wanted = await run_in_threadpool(_Wanted, body)
            query_id = wanted.query.query_id or query_id
            query = replace(wanted.query, query_id=query_id, arrived_s=started_s)
            result = await self._answer(request, query)
            try:
                check_names(result.rows.schema.names, wanted.result_format)
            except BaseException:
                await close_on_thread(result)
                raise
        except PenstockError as error:
            self._failures.add()
            self._emit(query_id, started_s, success=False)
            return _refusal(error, query_id)
        self._seconds.observe(self._clock.monotonic_s() - started_s)
        self._emit(query_id, started_s, success=True)
        headers = {ID_HEADER: query_id}
        if result.truncated:
            headers[TRUNCATED_HEADER] = "true"
        if result.projection:
            # A header accepts only these characters.
            headers["X-Penstock-Projection"] = quote(result.projection)
        form = wanted.result_format
        return SqlAnswer(
            result,
            write_rows(result.rows, form, header=wanted.header, types=wanted.types),
            partial(self._abandon, query_id),
            headers,
            CONTENT_TYPES[form],
        )

    def _abandon(self, query_id: str) -> None:
        logger.info("query %s ended before its client had received all of the answer", query_id)
        self._abandoned.add()

    async def _answer(self, request: Request, query: SqlQuery) -> SqlResult:
        """Run the query; cancel it when the client disconnects."""
        left_s = self._left_s(query)
        # Another query may have the same id, so all below acts on this object and not on the id.
        own = _OwnQuery(query)
        # Before the query, which would run on without a client if the watch could not start.
        gone = start_job("client watch", _gone(request))
        try:
            answer = start_awaited(self._in_turn(own))
        except BaseException:
            gone.cancel()
            raise
        result: SqlResult | None = None
        try:
            await asyncio.wait((answer, gone), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and not gone.done():
                raise self._overdue(own, answer)
            if not answer.done():
                self._abandon(query.query_id)
                await _end(own, answer)
            result = await answer
        except asyncio.CancelledError:
            if not answer.cancelled():
                raise
            if gone.done():
                raise Unavailable("the client disconnected before the query began") from None
            raise EngineFailure("the query did not begin: it was cancelled") from None
        finally:
            gone.cancel()
            if result is None:
                answer.add_done_callback(_drop)
        return result

    def _left_s(self, query: SqlQuery) -> float:
        """Return how long to wait for the answer: slightly longer than Spark's time limit."""
        since_s = self._clock.monotonic_s() if query.arrived_s is None else query.arrived_s
        until_s = since_s + self._service.timeout_ms(query) / 1000 + OVERDUE_S
        return max(0.0, until_s - self._clock.monotonic_s())

    def _overdue(self, own: _OwnQuery, answer: asyncio.Task[SqlResult]) -> EngineFailure:
        """Stop waiting: the query was interrupted already, or has not begun."""
        timeout_ms = self._service.timeout_ms(own.query)
        if own.registered is None or own.waiting is not None:
            answer.cancel()
            reason = own.waiting.reason if own.waiting else "the router was busy"
            return EngineFailure(
                f"the query did not begin within {timeout_ms} ms, because {reason}: try"
                " again later, or raise its time limit"
            )
        logger.warning("query %s does not stop at its time limit", own.query.query_id)
        return EngineFailure(
            f"the query did not end: it took longer than {timeout_ms} ms, and Spark has not stopped"
            " planning it; select less"
        )

    async def _in_turn(self, own: _OwnQuery) -> SqlResult:
        # Before anything that takes time, because the client may cancel the id at once.
        with self._service.registered(own.query) as registered:
            own.registered = registered
            answer = await self._turn(own, self._slots, registered.run)
            if isinstance(answer, LargeAnswer):
                # The turn of small answers has been returned, so that they do not wait for large
                # ones.
                self._large.add()
                return await self._turn(own, self._large_slots, answer.run)
            return answer

    async def _turn(self, own: _OwnQuery, turns: _QuerySlots, run: Callable[[], T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        own.waiting = self._waiting[own.query.query_id] = _Waiting(task, turns.reason)
        try:
            async with turns.free:
                self._end_waiting(own)
                return await to_thread.run_sync(run, limiter=turns.threads)
        finally:
            self._end_waiting(own)

    def _end_waiting(self, own: _OwnQuery) -> None:
        if own.waiting is not None:
            own.waiting = None
            del self._waiting[own.query.query_id]

    def _emit(self, query_id: str, started_s: float, *, success: bool) -> None:
        took_ms = (self._clock.monotonic_s() - started_s) * 1_000
        dimensions = {"id": query_id, "success": str(success).lower()}
        self._emitter.emit(MetricEvent("sqlQuery/time", took_ms, dimensions))

    async def cancel(self, request: Request) -> Response:
        """Cancel a query that runs or waits for its turn."""
        query_id = request.path_params["query_id"]
        waiting = self._waiting.get(query_id)
        if waiting is not None:
            found = waiting.task.cancel()
        else:
            found = await run_in_threadpool(self._service.cancel, query_id)
        return Response(status_code=202 if found else 404)


class _QuerySlots:
    """Limit of queries that run at once, and the threads in which they run.

    Args:
        most: Number of queries.
        reason: Why a query waits.
        threads: Limit of the threads; None: the framework's.
    """

    def __init__(self, most: int, reason: str, threads: CapacityLimiter | None = None) -> None:
        self.free = asyncio.Semaphore(most)
        self.reason = reason
        self.threads = threads


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A query that waits for its turn."""

    task: asyncio.Task[object]
    reason: str


@dataclass(slots=True)
class _OwnQuery:
    """The query of one request.

    It is `registered` once it has its id; it is also `waiting` while it waits for a turn. Its id
    does not identify it: until it is registered, another query may have the same id.
    """

    query: SqlQuery
    registered: RegisteredQuery | None = None
    waiting: _Waiting | None = None


async def _end(own: _OwnQuery, answer: asyncio.Task[SqlResult]) -> None:
    """End a query that has not begun, waits for its turn or runs."""
    if own.registered is None or own.waiting is not None:
        answer.cancel()
    else:
        await run_in_threadpool(own.registered.cancel)


def _drop(answer: asyncio.Future[SqlResult]) -> None:
    """Consume an abandoned answer, so that asyncio does not report its error."""
    if answer.cancelled() or answer.exception() is not None:
        return
    result = answer.result()
    if result.is_in_files:
        close_soon(result)


async def _gone(request: Request) -> None:
    """Return when the client has disconnected. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> Mapping[str, object]:
    raw = await request.body()
    if request.headers.get("content-type", "").startswith("text/plain"):
        return {"query": raw.decode(errors="replace")}
    body: object
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidRequest('the body must be a JSON object such as {"query": "SELECT 1"}')
    return body


class _Wanted:
    """A request that was parsed and checked.

    Unknown fields are ignored, because Druid's clients send some as hints.
    """

    def __init__(self, body: Mapping[str, object]) -> None:
        statement = body.get("query")
        if not isinstance(statement, str) or not statement.strip():
            raise InvalidRequest("must be the text of a statement", place="query")
        check_text(statement)
        refuse_writes(statement)
        self.result_format = check_format(body.get("resultFormat"))
        self.header = _flag(body, "header")
        self.types = _types(body, header=self.header)
        context = body.get("context") or {}
        if not isinstance(context, dict):
            raise InvalidRequest("must be an object", place="context")
        if (zone := context.get("sqlTimeZone")) not in _UTC:
            raise InvalidRequest(
                f"{zone!r:.60} is not UTC, the only time zone of answers: leave it out, and convert"
                " in the query, with from_utc_timestamp(__time, 'Europe/Berlin')",
                place="context.sqlTimeZone",
            )
        parameters = _parameters(body.get("parameters"))
        _check_bound(statement, len(parameters))
        self.query = SqlQuery(
            sql=statement,
            parameters=parameters,
            query_id=_query_id(context),
            row_limit=_whole(context, "sqlOuterLimit", "rows"),
            timeout_ms=_whole(context, "timeout", "milliseconds"),
            projections=projection_options(context),
        )


def _flag(body: Mapping[str, object], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequest("must be true or false", place=name)
    return value


def _types(body: Mapping[str, object], *, header: bool) -> Sequence[TypeName]:
    """Return which names of the columns' types the header must contain."""
    kinds: list[TypeName] = []
    flags: Sequence[tuple[str, TypeName]] = (("typesHeader", "type"), ("sqlTypesHeader", "sqlType"))
    for name, kind in flags:
        if _flag(body, name):
            if not header:
                raise InvalidRequest("needs header, which must be true as well", place=name)
            kinds.append(kind)
    return kinds


def _query_id(context: Mapping[str, object]) -> str:
    """Return the client's id of the query, which becomes a header of the answer and a log field."""
    given = context.get("sqlQueryId")
    if given is None or given == "":
        return ""
    if isinstance(given, str) and _QUERY_ID.fullmatch(given):
        return given
    raise InvalidRequest(
        f"{given!r:.40} cannot be the id of a query, because it is sent as a header: use 1 to 255"
        " visible ASCII characters, such as a UUID",
        place="context.sqlQueryId",
    )


def _whole(context: Mapping[str, object], name: str, unit: str) -> int | None:
    value = context.get(name)
    if value is None or value == 0:  # in Druid: no limit; here: the service's own limit
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(
            f"{value!r:.40} is not valid: use a whole number of {unit}, 0 for the limit of the"
            " server",
            place=f"context.{name}",
        )
    return value


def _parameters(given: object) -> Sequence[SqlValue]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InvalidRequest("must be a list", place="parameters")
    values: list[SqlValue] = []
    for number, one in enumerate(given):
        # Druid's form is {"type": "VARCHAR", "value": "x"}; a bare value has the type of its JSON.
        value = one.get("value") if isinstance(one, dict) else one
        if value is not None and not isinstance(value, str | int | float | bool):
            raise InvalidRequest(
                "must be a text, a number, true, false or null", place=f"parameters[{number}]"
            )
        if isinstance(value, int) and not isinstance(value, bool) and not is_int64(value):
            raise InvalidRequest(
                f"{value} has more than 64 bits: write it as a text", place=f"parameters[{number}]"
            )
        if isinstance(one, dict) and one.get("type") is not None and value is not None:
            values.append(_typed(one["type"], value, f"parameters[{number}]"))
        else:
            values.append(value)
    return values


def _typed(kind: object, value: str | float, place: str) -> SqlValue:
    """Return the value of a parameter with a type; a number that is a time is in milliseconds."""
    name = kind.upper() if isinstance(kind, str) else ""
    forms = _PARAMETER_TYPES.get(name)
    if forms is None:
        names = ", ".join(_PARAMETER_TYPES)
        raise InvalidRequest(
            f"unknown type {kind!r:.40}: use one of {names}", place=f"{place}.type"
        )
    # In Python, True is an int.
    if not isinstance(value, forms) or (isinstance(value, bool) and bool not in forms):
        raise InvalidRequest(f"{value!r:.40} is not of the type {name}", place=f"{place}.value")
    if name not in _TIMES:
        return value
    try:
        ms = parse_time(value) if isinstance(value, str) else int(value)
        time = _EPOCH + dt.timedelta(milliseconds=ms)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=f"{place}.value") from None
    except OverflowError:
        text = f"{value} ms is outside the years 0001 to 9999: check its unit, milliseconds"
        raise InvalidRequest(text, place=f"{place}.value") from None
    return time if name == "TIMESTAMP" else time.date()


def _check_bound(statement: str, count: int) -> None:
    if "?" not in statement:
        return
    wanted = sum(token.text == "?" for token in statement_tokens(statement))
    if wanted > count:
        given = f"{counted(count, 'parameter')} {'is' if count == 1 else 'are'} given"
        raise InvalidRequest(
            f"the statement has {wanted} ?, and {given}: list one value for each ? in the field"
            " parameters of the request body",
            place="parameters",
        )


def _refusal(error: PenstockError, query_id: str) -> Response:
    status, body = typed_error(error)
    if status == 500:
        logger.warning("query %s failed: %s", query_id, error)
    return JsonResponse(body, status, {ID_HEADER: query_id})
