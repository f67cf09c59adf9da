"""`POST /druid/v2/sql`: queries in Druid's JSON, answers in Druid's formats.

Owns the turns of queries, and errors in Druid's format. `sql_request` reads requests, `sql_answer`
sends the rows, and queries run in `penstock.spark.sql`. When a client disconnects, its query is
cancelled, and the files of its answer are deleted. A client that stops reading counts as
disconnected: the server closes its connection (`broker.http_server.http_connection`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.principal import PrincipalKind
from penstock.core.access.quotas import Quota
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import Forbidden, PenstockError, TooLargeForQuota, Unavailable
from penstock.core.http_errors import retry_headers
from penstock.core.intervals import format_time
from penstock.core.loop_tasks import retrieve_exception, start_awaited, start_job
from penstock.fastpath.sql_service import DEFAULT_ENGINE
from penstock.indexing.engine import EngineFailure
from penstock.services.api.access_rules import QUERIES
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.indexer.task_json import typed_error
from penstock.services.api.lookups import SeenLookups
from penstock.services.api.request_access import RequestAccess, access_of, on_behalf_of
from penstock.services.api.sql_answer import ENGINE_HEADER, SqlAnswer, close_on_thread, close_soon
from penstock.services.api.sql_request import SqlRequest, read_body
from penstock.services.api.sql_results import CONTENT_TYPES, check_columns, write_rows
from penstock.services.api.sql_statements import StatementRoutes
from penstock.services.emitter.emitter import Emitter
from penstock.services.emitter.events import MetricEvent
from penstock.services.json_client import TRUNCATED_HEADER
from penstock.spark.sql.crash_principals import SparkEndsRefused
from penstock.spark.sql.limited_tables import SqlReader
from penstock.spark.sql.service import LargeAnswer, RegisteredQuery, SqlQuery, SqlResult

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.core.clock import Clock
    from penstock.core.metrics import MetricRegistry
    from penstock.services.api.system_tables import SystemTables
    from penstock.spark.sql.fetcher import RowSource
    from penstock.spark.sql.metadata_rows import MetadataSource
    from penstock.storage.lookup_rows import LookupTables

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATH = "/druid/v2/sql"
QUERIES_PATH = "/penstock/v1/queries"
ID_HEADER = "X-Druid-SQL-Query-Id"

# Time for the interruption after the time limit; planning may ignore an interruption.
OVERDUE_S = 2.0

# The framework has 40 threads; the others are for other requests to this process, such as
# cancelling a query.
RUNNING_MAX = 32

# Those of one principal, except the owner: slow queries of one must not take all turns.
OWN_RUNNING_MAX = 24

# Number of large answers written at once, so that small ones find a free core of Spark.
LARGE_MAX: Final = max(1, (os.cpu_count() or 1) // 2)


_SHOWN_CHARACTERS: Final = 2_000
"""A statement may have megabytes; the list of running queries has its beginning."""

_EVERY_DATASOURCE: Final = Resource(ResourceKind.DATASOURCE, "*")


@dataclass(frozen=True, slots=True)
class AskedQuery:
    """The query of a request, and how its answer is written.

    Attributes:
        query: The query, without what depends on its principal.
        check: Checks the columns of the answer; raises InvalidRequest.
        write: Writes the rows of the answer.
        media_type: The content type of the answer.
    """

    query: SqlQuery
    check: Callable[[pa.Schema], object]
    write: Callable[[RowSource], Iterator[bytes]]
    media_type: str


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
        system: The tables of `sys`; None: they cannot be queried.
        lookups: The lookups; None: they cannot be queried.

    Attributes:
        clock: Time.
    """

    def __init__(
        self,
        service: SqlPort,
        metrics: MetricRegistry,
        emitter: Emitter,
        clock: Clock,
        system: SystemTables | None = None,
        lookups: LookupTables | None = None,
    ) -> None:
        self._service = service
        self._system = system
        self._lookups = lookups
        self._slots = _QuerySlots(RUNNING_MAX, f"{RUNNING_MAX} others run", OWN_RUNNING_MAX)
        self._large_slots = _QuerySlots(
            LARGE_MAX, "other large answers are written", LARGE_MAX, CapacityLimiter(LARGE_MAX)
        )
        # Registered queries, by their ids.
        self._registered: dict[str, _OwnQuery] = {}
        # Registered queries that wait for their turn, by their ids.
        self._waiting: dict[str, _Waiting] = {}
        self._emitter = emitter
        self.clock = clock
        self._seconds = metrics.histogram("penstock_sql_seconds", "Time to the answer of a query")
        self._failures = metrics.counter("penstock_sql_failures_total", "Queries that failed")
        self._large = metrics.counter(
            "penstock_sql_large_answers_total", "Answers that went through files"
        )
        self._refused = metrics.counter(
            "penstock_sql_spark_ends_refused_total",
            "Queries refused because Spark ended too often over those of their principal",
        )
        self._abandoned = metrics.counter(
            "penstock_sql_abandoned_total",
            "Queries and answers that ended before the client had received all of the answer",
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(PATH, self.execute, methods=["POST"]),
            *StatementRoutes(self, self.clock).routes(),
            Route(PATH + "/{query_id:path}", self.cancel, methods=["DELETE"]),
            Route(QUERIES_PATH, self.list_queries),
        ]

    async def execute(self, request: Request) -> Response:
        """Answer a query."""
        return await self.answer(request, _asked, ID_HEADER)

    async def answer(
        self, request: Request, read: Callable[[Request], Awaitable[AskedQuery]], id_header: str
    ) -> Response:
        """Answer the query of a request, in any language that becomes SQL.

        Args:
            request: The request.
            read: Reads the query from it; may raise PenstockError.
            id_header: The header of the answer that has the id of the query.
        """
        query_id = str(uuid.uuid4())
        started_s = self.clock.monotonic_s()
        try:
            wanted = await read(request)
            query_id = wanted.query.query_id or query_id
            query = replace(wanted.query, query_id=query_id, arrived_s=started_s)
            result = await self._run(request, query)
            try:
                wanted.check(result.rows.schema)
            except BaseException:
                await close_on_thread(result)
                raise
        except PenstockError as error:
            self._note_failure(access_of(request), error, query_id, started_s)
            return _refusal(error, {id_header: query_id})
        self._note_success(query_id, started_s)
        headers = {id_header: query_id, ENGINE_HEADER: result.engine}
        if result.truncated:
            headers[TRUNCATED_HEADER] = "true"
        if result.projection:
            # A header accepts only these characters.
            headers["X-Penstock-Projection"] = quote(result.projection)
        return SqlAnswer(
            result,
            wanted.write(result.rows),
            partial(self._abandon, query_id),
            headers,
            wanted.media_type,
        )

    async def run(self, request: Request, query: SqlQuery) -> SqlResult:
        """Run a query for the principal of a request of another protocol.

        It is limited, recorded and counted as one of this route, and cancelled when the client
        disconnects.

        Args:
            request: The request, whose body has been read.
            query: The statement with its parameters.

        Raises:
            PenstockError: As `SqlService.query`.
        """
        query_id, started_s = query.query_id or str(uuid.uuid4()), self.clock.monotonic_s()
        try:
            query = replace(query, query_id=query_id, arrived_s=started_s)
            result = await self._run(request, query)
        except PenstockError as error:  # narrow: counts
            self._note_failure(access_of(request), error, query_id, started_s)
            raise
        self._note_success(query_id, started_s)
        return result

    async def _run(self, request: Request, query: SqlQuery) -> SqlResult:
        return await self._answer(request, self._for_principal(request, access_of(request), query))

    def begin(self, request: Request, query: SqlQuery) -> BegunAlone:
        """Begin a query that continues after the end of its request."""
        # The trail of a request ends with it.
        access = replace(access_of(request), trail=None)
        own = _OwnQuery(self._for_principal(request, access, query), access)
        answer = start_awaited(self._in_turn(own))
        answer.add_done_callback(retrieve_exception)  # the server may stop before it is awaited
        return BegunAlone(own, answer, self)

    async def ended_alone(self, own: _OwnQuery, answer: asyncio.Task[SqlResult]) -> SqlResult:
        """Return the answer of a query that no client waits for.

        Raises:
            PenstockError: It failed, took too long, or was cancelled.
        """
        query, started_s = own.query, own.query.arrived_s or 0.0
        try:
            await asyncio.wait((answer,), timeout=self._left_s(query))
            if not answer.done():
                answer.add_done_callback(_drop)
                raise self._overdue(own, answer)
            if answer.cancelled():
                raise EngineFailure("the query did not begin: it was cancelled")
            result = answer.result()
        except PenstockError as error:  # narrow: counts it
            self._note_failure(own.access, error, query.query_id, started_s)
            raise
        self._note_success(query.query_id, started_s)
        return result

    def _for_principal(self, request: Request, access: RequestAccess, query: SqlQuery) -> SqlQuery:
        """Return a query with the rights and quotas of the principal of a request."""
        quotas = access.control.quotas.of(access.principal)
        return replace(
            query,
            reader=reader_of(access),
            quota_ms=quotas.query_time,
            quota_bytes=quotas.query_bytes,
            on_read=_recorder(access),
            principal=_suspected(access),
            metadata=self._metadata(request, access),
            lookups=None if self._lookups is None else SeenLookups(self._lookups, access),
        )

    def _note_success(self, query_id: str, started_s: float) -> None:
        self._seconds.observe(self.clock.monotonic_s() - started_s)
        self._emit(query_id, started_s, success=True)

    def _note_failure(
        self, access: RequestAccess, error: PenstockError, query_id: str, started_s: float
    ) -> None:
        if isinstance(error, Forbidden):
            with suppress(Forbidden):  # only recorded: the answer is the service's
                access.require(Action.READ, _EVERY_DATASOURCE)
        self._note_quota(access, error, started_s)
        self._failures.add()
        self._emit(query_id, started_s, success=False)

    def _metadata(self, request: Request, access: RequestAccess) -> MetadataSource | None:
        """Return the tables of `sys` as the principal of a request sees them."""
        if self._system is None:
            return None
        return self._system.seen_by(access, on_behalf_of(request), partial(self._seen, access))

    def _note_quota(self, access: RequestAccess, error: PenstockError, started_s: float) -> None:
        """Count a query that was ended or refused because of a quota, or of earlier queries."""
        quotas = access.control.quotas.of(access.principal)
        passed_ms = (self.clock.monotonic_s() - started_s) * 1_000
        exceeded = None
        if isinstance(error, SparkEndsRefused):
            self._refused.add()
            access.control.quotas.refusals.record(
                access.principal, "spark_ends", str(error), access.origin
            )
        elif isinstance(error, TooLargeForQuota):
            exceeded = Quota.QUERY_BYTES
        elif quotas.query_time and isinstance(error, EngineFailure):
            exceeded = Quota.QUERY_TIME if passed_ms >= quotas.query_time else None
        if exceeded is not None:
            refusals = access.control.quotas.refusals
            refusals.add(access.principal, exceeded, str(error), access.origin)

    def _abandon(self, query_id: str) -> None:
        logger.info("query %s ended before its client had received all of the answer", query_id)
        self._abandoned.add()

    async def _answer(self, request: Request, query: SqlQuery) -> SqlResult:
        """Run the query; cancel it when the client disconnects."""
        left_s = self._left_s(query)
        # Another query may have the same id, so all below acts on this object and not on the id.
        own = _OwnQuery(query, access_of(request))
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
        since_s = self.clock.monotonic_s() if query.arrived_s is None else query.arrived_s
        until_s = since_s + self._service.timeout_ms(query) / 1000 + OVERDUE_S
        return max(0.0, until_s - self.clock.monotonic_s())

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
        access = own.access
        running = access.control.quotas.queries.held(access.principal, access.origin)
        with running, self._service.registered(own.query) as registered:
            own.registered = registered
            self._registered[own.query.query_id] = own
            try:
                return await self._run_in_turn(own, registered)
            finally:
                del self._registered[own.query.query_id]

    async def _run_in_turn(self, own: _OwnQuery, registered: RegisteredQuery) -> SqlResult:
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
        principal = own.query.principal
        reason = turns.reason_for(principal)
        own.waiting = self._waiting[own.query.query_id] = _Waiting(task, reason)
        try:
            async with turns.taken(principal):
                self._end_waiting(own)
                return await to_thread.run_sync(run, limiter=turns.threads)
        finally:
            self._end_waiting(own)

    def _end_waiting(self, own: _OwnQuery) -> None:
        if own.waiting is not None:
            own.waiting = None
            del self._waiting[own.query.query_id]

    def _emit(self, query_id: str, started_s: float, *, success: bool) -> None:
        took_ms = (self.clock.monotonic_s() - started_s) * 1_000
        dimensions = {"id": query_id, "success": str(success).lower()}
        self._emitter.emit(MetricEvent("sqlQuery/time", took_ms, dimensions))

    async def list_queries(self, request: Request) -> Response:
        """List the queries that run or wait for their turn, the oldest first.

        A principal sees its own ones; with `manage system:queries`, those of everyone.
        """
        return JsonResponse(self._seen(access_of(request)))

    def _seen(self, access: RequestAccess) -> list[dict[str, object]]:
        """Return the JSON of the queries that a principal sees, on any thread."""
        sees_all = access.may(Action.MANAGE, QUERIES.kind, QUERIES.name)
        now_s, now_ms = self.clock.monotonic_s(), self.clock.now_ms()
        return [
            own.to_json(now_s, now_ms)
            for own in tuple(self._registered.values())
            if sees_all or own.access.principal.id == access.principal.id
        ]

    async def cancel(self, request: Request) -> Response:
        """Cancel a query that runs or waits for its turn."""
        query_id = request.path_params["query_id"]
        access = access_of(request)
        own = self._registered.get(query_id)
        if own is not None and own.access.principal.id != access.principal.id:
            try:
                access.require(Action.MANAGE, QUERIES)
            except Forbidden:  # narrow: the queries of others do not exist for the principal
                return Response(status_code=404)
        waiting = self._waiting.get(query_id)
        if waiting is not None:
            found = waiting.task.cancel()
        else:
            found = await run_in_threadpool(self._service.cancel, query_id)
        return Response(status_code=202 if found else 404)


async def _asked(request: Request) -> AskedQuery:
    """Read a query in Druid's JSON for SQL."""
    body = await read_body(request)
    # Parsing a long statement takes a while, and other requests must be answered meanwhile.
    wanted = await run_in_threadpool(SqlRequest, body)
    form = wanted.result_format
    return AskedQuery(
        wanted.query,
        partial(check_columns, result_format=form),
        partial(write_rows, result_format=form, header=wanted.header, types=wanted.types),
        CONTENT_TYPES[form],
    )


class _QuerySlots:
    """Limit of queries that run at once, and the threads in which they run.

    Args:
        most: Number of queries.
        reason: Why a query waits.
        own_most: Number of queries of one principal.
        threads: Limit of the threads; None: the framework's.
    """

    def __init__(
        self, most: int, reason: str, own_most: int, threads: CapacityLimiter | None = None
    ) -> None:
        self._free = asyncio.Semaphore(most)
        self._reason = reason
        self._own_most = own_most
        # Of principals with queries that run or wait, by their ids: the number of these queries.
        self._own: dict[str, tuple[asyncio.Semaphore, int]] = {}
        self.threads = threads

    def reason_for(self, principal: str) -> str:
        """Return why a query of a principal would wait now."""
        own = self._own.get(principal)
        if own is not None and own[0].locked():
            return f"{self._own_most} others of the same principal run"
        return self._reason

    @asynccontextmanager
    async def taken(self, principal: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for a block; empty: the owner, who may take all."""
        if not principal:
            async with self._free:
                yield
            return
        own, count = self._own.get(principal, (asyncio.Semaphore(self._own_most), 0))
        self._own[principal] = own, count + 1
        try:
            async with own, self._free:
                yield
        finally:
            count = self._own[principal][1]
            if count > 1:
                self._own[principal] = own, count - 1
            else:
                del self._own[principal]


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
    access: RequestAccess
    registered: RegisteredQuery | None = None
    waiting: _Waiting | None = None

    def to_json(self, now_s: float, now_ms: int) -> dict[str, object]:
        """Return the JSON of a query in the list of running ones."""
        sql, arrived_s = self.query.sql, self.query.arrived_s
        running_ms = 0 if arrived_s is None else round((now_s - arrived_s) * 1_000)
        return {
            "queryId": self.query.query_id,
            "principal": self.access.principal.id,
            "engine": self.query.engine or DEFAULT_ENGINE,
            "state": "RUNNING" if self.waiting is None else "WAITING",
            "reason": "" if self.waiting is None else self.waiting.reason,
            "statement": sql[:_SHOWN_CHARACTERS],
            "isCut": len(sql) > _SHOWN_CHARACTERS,
            "startTime": format_time(now_ms - running_ms),
            "runningMs": running_ms,
        }


@dataclass(frozen=True, slots=True)
class BegunAlone:
    """A query that no client waits for."""

    own: _OwnQuery
    answer: asyncio.Task[SqlResult]
    routes: SqlRoutes

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun to run."""
        return self.own.registered is None or self.own.waiting is not None

    async def result(self) -> SqlResult:
        """Return its answer. Raises as `SqlRoutes.ended_alone`."""
        return await self.routes.ended_alone(self.own, self.answer)

    async def cancel(self) -> None:
        """Cancel it."""
        await _end(self.own, self.answer)


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


def reader_of(access: RequestAccess) -> SqlReader | None:
    """Return the reader of a query; None: the principal may read everything."""
    if access.is_unlimited:
        return None
    rights = access.control.rights_of(access.principal)
    return SqlReader(rights, access.rows_of, access.control.key.mask_key)


def _suspected(access: RequestAccess) -> str:
    """Return the principal to whom an end of Spark is attributed; empty: the owner."""
    is_own = access.principal.kind in {PrincipalKind.OWNER, PrincipalKind.PROCESS}
    return "" if is_own else access.principal.id


def _recorder(access: RequestAccess) -> Callable[[Sequence[str]], None] | None:
    """Return the function that records which datasources a query reads, if reads are recorded."""
    if not access.control.audit.options.records_everything:
        return None
    recorded: set[str] = set()

    def record(datasources: Sequence[str]) -> None:
        # A query may be tried more than once.
        for name in set(datasources) - recorded:
            recorded.add(name)
            access.record(Action.READ, Resource(ResourceKind.DATASOURCE, name))

    return record


def _refusal(error: PenstockError, id_headers: Mapping[str, str]) -> Response:
    status, body = typed_error(error)
    if status == 500:
        logger.warning("query %s failed: %s", *id_headers.values(), error)
    return JsonResponse(body, status, {**id_headers, **retry_headers(error)})
