"""Asynchronous statements, as Druid has them: a query runs after its request has ended.

Owns the statements of one router with their answers, in memory: their states, pages, bounds and
expiry. A small answer is kept in memory, a large one in the files that any large answer has. Does
not own how queries run and take turns (`QueryRunner`).

If there are too many ended statements, or their files are too large, only the principal with the
most loses some, the oldest first. So no principal can displace the answers of one that has fewer.
An answer that a client reads stays until the end of the read; such answers count as active, so a
client that reads slowly cannot keep more and more of them.

A statement belongs to the principal that sent it. Its rows are only for that principal, and only
while its rights are those with which the statement ran. The same holds for the sample in its state,
and for the text of its error, which may repeat a value.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action
from penstock.core.errors import Forbidden, Full, InvalidRequest, NotFound, PenstockError
from penstock.core.instants import format_time
from penstock.core.loop_tasks import start_job
from penstock.indexing.engine import EngineFailure
from penstock.services.api.access_rules import QUERIES
from penstock.services.api.asgi import JsonResponse, integer
from penstock.services.api.indexer.task_json import typed_error
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.services.api.sql_answer import ENGINE_HEADER, SqlAnswer, close_soon
from penstock.services.api.sql_request import SqlRequest, read_body, whole_number
from penstock.services.api.sql_results import (
    CONTENT_TYPES,
    check_columns,
    check_format,
    type_name,
    write_rows,
)
from penstock.services.api.statement_pages import AnswerSummary, PageRows, summary_of
from penstock.services.json_client import TRUNCATED_HEADER
from penstock.spark.sql.service import SqlQuery, SqlResult

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from penstock.core.clock import Clock
    from penstock.spark.sql.fetcher import RowSource

STATEMENTS: Final = "/druid/v2/sql/statements"

KEPT_S: Final = 3_600.0
"""Time for which a statement is kept after its end."""
EXPIRY_EVERY_S: Final = 60.0
"""Interval at which statements expire without a request."""
ACTIVE_MAX: Final = 100
"""Statements that run, wait, or are read at a time."""
OWN_ACTIVE_MAX: Final = 25
"""Those of one principal: the statements of one leave room for those of others."""
OWN_READS_MAX: Final = 10
"""Answers that one principal reads at a time: a page in files is found by reading those before it,
on one of the threads of all requests."""
ENDED_MAX: Final = 100
"""Ended statements that are kept; answers in memory have at most 1 MiB each."""
FILES_BYTES_MAX: Final = 2 << 30
"""Size of the files of all answers that are kept: a quarter of the limit of all large answers."""

_PAGE_ROWS: Final = 100_000
_PAGE_ROWS_MAX: Final = 1_000_000
# As Druid documents it.
_FILE_NAME: Final = re.compile(r'[^/\\:*?"<>|\0\r\n]{1,255}')

_HIDDEN: Final = EngineFailure(
    "the statement failed, and only its principal, with the rights that it had then, is shown the"
    " reason"
)


class BegunQuery(Protocol):
    """A query that no client waits for."""

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun to run."""
        ...

    async def result(self) -> SqlResult:
        """Return its answer. Raises PenstockError if it failed or was cancelled."""
        ...

    async def cancel(self) -> None:
        """Cancel it."""
        ...


class QueryRunner(Protocol):
    """Runs queries for the principals of requests."""

    def begin(self, request: Request, query: SqlQuery) -> BegunQuery:
        """Begin a query that continues after the end of its request."""
        ...


@dataclass(slots=True)
class _Statement:
    """A statement and, once it has ended, its answer or its error.

    `query` is None then: it has the text and the parameters, which may be large.
    """

    id: str
    owner: str
    rights: str
    created_ms: int
    begun_s: float
    page_rows: int
    query: BegunQuery | None
    ended_s: float | None = None
    result: SqlResult | None = None
    summary: AnswerSummary | None = None
    error: PenstockError | None = None
    reads: int = 0

    @property
    def is_active(self) -> bool:
        """Return whether it runs, waits, or is read."""
        return self.ended_s is None or self.reads > 0

    @property
    def state(self) -> str:
        """Return Druid's name of its state."""
        if self.query is not None:
            return "ACCEPTED" if self.query.is_waiting else "RUNNING"
        return "SUCCESS" if self.error is None else "FAILED"

    @property
    def file_bytes(self) -> int:
        """Return the size of its files."""
        in_files = self.result is not None and self.result.is_in_files
        return self.summary.size_bytes if in_files and self.summary is not None else 0


class StatementRoutes:
    """The routes of asynchronous statements. All state belongs to the event loop.

    Args:
        runner: Runs the queries.
        clock: Time.
    """

    def __init__(self, runner: QueryRunner, clock: Clock) -> None:
        self._runner = runner
        self._clock = clock
        self._known: dict[str, _Statement] = {}  # the oldest first
        self._expiry: asyncio.Task[None] | None = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = STATEMENTS + "/{query_id}"
        return [
            Route(STATEMENTS, self.submit, methods=["POST"]),
            Route(one, self.status),
            Route(one, self.cancel, methods=["DELETE"]),
            Route(one + "/results", self.results),
        ]

    async def submit(self, request: Request) -> Response:
        """Begin a statement, and return its state."""
        try:
            body = await read_body(request)
            # Parsing a long statement takes a while, and other requests must be answered meanwhile.
            wanted = await run_in_threadpool(SqlRequest, body)
            page_rows = _page_rows(body.get("context"))
            self._forget_old()
            access = access_of(request)
            self._check_room(access.principal.id)
        except PenstockError as error:  # narrow: translates
            return _refusal(error)
        now_s = self._clock.monotonic_s()
        query_id = f"query-{uuid.uuid4()}"
        query = self._runner.begin(
            request, replace(wanted.query, query_id=query_id, arrived_s=now_s)
        )
        own = _Statement(
            id=query_id,
            owner=access.principal.id,
            rights=access.control.rights_of(access.principal),
            created_ms=self._clock.now_ms(),
            begun_s=now_s,
            page_rows=page_rows,
            query=query,
        )
        self._known[query_id] = own
        start_job("statement", self._ended(own, query))
        return JsonResponse(_to_json(own, is_reader=True))

    async def _ended(self, own: _Statement, query: BegunQuery) -> None:
        """Keep the answer of a statement, or its error."""
        try:
            own.result = await query.result()
            own.summary = await run_in_threadpool(summary_of, own.result.rows, own.page_rows)
        except PenstockError as error:  # narrow: kept for the client
            # Not the frames that it was raised in, which have the tree of the statement.
            own.error = error.with_traceback(None)
            error.__cause__ = error.__context__ = None
        finally:
            own.ended_s, own.query = self._clock.monotonic_s(), None
            if own.error is None and own.summary is None:
                own.error = EngineFailure("the answer could not be kept: the log has the reason")
            self._forget_old()
            if self._expiry is None or self._expiry.done():
                self._expiry = start_job("expiry of statements", self._expire())

    async def _expire(self) -> None:
        """Forget old statements even if no request comes, as long as there are some."""
        while self._known:
            await asyncio.sleep(EXPIRY_EVERY_S)
            self._forget_old()

    def _check_room(self, owner: str) -> None:
        """Refuse another statement of a principal that has too many, or if all have.

        Raises:
            Full: There are too many.
        """
        active = [one.owner for one in self._known.values() if one.is_active]
        if (own := active.count(owner)) >= OWN_ACTIVE_MAX:
            raise Full(
                f"{own} asynchronous statements of yours run, wait, or are read, as many as may:"
                " wait for some, or cancel them"
            )
        if len(active) >= ACTIVE_MAX:
            raise Full(
                f"{len(active)} asynchronous statements of all principals run, wait, or are read,"
                " as many as may: try again later"
            )

    def _forget_old(self) -> None:
        """Forget statements that ended long ago, and some of those who have too many."""
        now_s = self._clock.monotonic_s()
        ended = [one for one in self._known.values() if one.ended_s is not None]
        for one in ended:
            if not one.reads and one.ended_s is not None and now_s >= one.ended_s + KEPT_S:
                self._forget(one)
        self._make_room(ENDED_MAX, lambda one: 0 if one.reads else 1)
        self._make_room(FILES_BYTES_MAX, lambda one: one.file_bytes)

    def _make_room(self, most: int, size: Callable[[_Statement], int]) -> None:
        """Forget ended statements of the principal with the most, while all have too much.

        Args:
            most: Maximum for all principals together.
            size: Returns the share of a statement.
        """
        of_owners: dict[str, list[_Statement]] = {}
        for one in self._known.values():
            if one.ended_s is not None and size(one):
                of_owners.setdefault(one.owner, []).append(one)
        sums = {owner: sum(map(size, those)) for owner, those in of_owners.items()}
        while sum(sums.values()) > most:
            owner = max(sums, key=sums.__getitem__)
            oldest = next((one for one in of_owners[owner] if not one.reads), None)
            if oldest is None:
                return  # others must not lose theirs instead
            of_owners[owner].remove(oldest)
            sums[owner] -= size(oldest)
            self._forget(oldest)

    def _forget(self, own: _Statement) -> None:
        """Forget an ended statement that no client reads."""
        del self._known[own.id]
        if own.result is not None and own.result.is_in_files:
            close_soon(own.result)

    async def status(self, request: Request) -> Response:
        """Return the state of a statement, and a summary of its answer."""
        own = self._find(request)
        if own is None:
            return _refusal(_unknown(request))
        return JsonResponse(_to_json(own, is_reader=_may_read(access_of(request), own)))

    async def cancel(self, request: Request) -> Response:
        """Cancel a statement that runs or waits."""
        own = self._find(request)
        if own is None:
            return _refusal(_unknown(request))
        if own.query is None:
            return Response(status_code=200)
        await own.query.cancel()
        return Response(status_code=202)

    async def results(self, request: Request) -> Response:
        """Return a page of the rows of a statement, or all of them."""
        try:
            return self._results(request)
        except PenstockError as error:  # narrow: translates
            return _refusal(error)

    def _results(self, request: Request) -> Response:
        """Return the rows.

        Raises:
            NotFound: There is no such statement or page, or it failed.
            Forbidden: The rights of its principal have changed.
            InvalidRequest: It has not ended, or a parameter is invalid.
            Full: The principal reads too many.
        """
        own, access = self._find(request), access_of(request)
        if own is None or access.principal.id != own.owner:
            raise _unknown(request)
        if not _may_read(access, own):
            raise Forbidden(
                "your rights have changed since the statement began, and its rows are those that"
                " you could read then: run it again"
            )
        if own.ended_s is None:
            raise InvalidRequest(
                f"statement {own.id} is {own.state}, and only one that is SUCCESS has results: ask"
                f" for its state at {STATEMENTS}/{own.id}"
            )
        if own.error is not None or own.result is None or own.summary is None:
            raise NotFound(f"statement {own.id} failed: {own.error}")
        reads = sum(one.reads for one in self._known.values() if one.owner == own.owner)
        if reads >= OWN_READS_MAX:
            raise Full(f"{reads} answers of yours are read, as many as may: wait until one ends")
        form = check_format(request.query_params.get("resultFormat") or None)
        check_columns(own.result.rows.schema, form)
        rows = _page(request, own.id, own.result, own.summary.page_rows)
        headers = {ENGINE_HEADER: own.result.engine}
        if own.result.truncated:
            headers[TRUNCATED_HEADER] = "true"
        if name := request.query_params.get("filename"):
            headers["Content-Disposition"] = f'attachment; filename="{_file_name(name)}"'
        # The files stay until the statement is forgotten.
        answer = SqlResult(cast("RowSource", rows), own.result.column_types, truncated=False)
        chunks = write_rows(answer.rows, form, header=False)
        return _KeptAnswer(own, self._forget_old, answer, chunks, headers, CONTENT_TYPES[form])

    def _find(self, request: Request) -> _Statement | None:
        """Return the statement of a path, if it exists for the principal."""
        self._forget_old()
        own = self._known.get(request.path_params["query_id"])
        return own if own is not None and _may_see(access_of(request), own) else None


class _KeptAnswer(SqlAnswer):
    """Sends rows of a statement, which is kept meanwhile.

    Args:
        own: The statement.
        on_end: Called at the end.
        result: The rows.
        chunks: The rows in the requested format.
        headers: Headers of the response.
        media_type: Its content type.
    """

    def __init__(
        self,
        own: _Statement,
        on_end: Callable[[], None],
        result: SqlResult,
        chunks: Iterator[bytes],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(result, chunks, lambda: None, headers, media_type)
        self._own = own
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        self._own.reads += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._own.reads -= 1
            self._on_end()


def _page(request: Request, query_id: str, result: SqlResult, page_rows: int) -> PageRows:
    """Return the rows of a page of a request. Raises as `StatementRoutes.results`."""
    every = result.rows.num_rows
    page = integer(request, "page")
    if page is None:
        return PageRows(result.rows, 0, every)
    if page < 0:
        raise InvalidRequest(f"{page} is below 0: pages count from 0", place="page")
    start = page * page_rows
    if page and start >= every:
        pages = max(1, -(-every // page_rows))
        raise NotFound(f"statement {query_id} has {pages} pages, from 0: there is no page {page}")
    return PageRows(result.rows, start, min(page_rows, every - start))


def _page_rows(context: object) -> int:
    """Return how many rows a page has. Raises InvalidRequest."""
    given = context if isinstance(context, dict) else {}
    mode = given.get("executionMode")
    if not isinstance(mode, str) or mode.upper() != "ASYNC":
        found = "" if mode is None else f", not {mode!r:.40}"
        raise InvalidRequest(
            f"must be ASYNC{found}: set it, or POST the query to /druid/v2/sql",
            place="context.executionMode",
        )
    rows = whole_number(given, "rowsPerPage", "rows")
    return min(rows or _PAGE_ROWS, _PAGE_ROWS_MAX)


def _file_name(name: str) -> str:
    if not _FILE_NAME.fullmatch(name) or not name.isascii() or not name.isprintable():
        raise InvalidRequest(
            f"{name!r:.60} cannot be the name of a file: use 1 to 255 ASCII characters without"
            ' / \\ : * ? " < > |',
            place="filename",
        )
    return name


def _may_see(access: RequestAccess, own: _Statement) -> bool:
    return access.principal.id == own.owner or access.may(Action.MANAGE, QUERIES.kind, QUERIES.name)


def _may_read(access: RequestAccess, own: _Statement) -> bool:
    """Return whether a principal may read the rows of a statement, or values of them."""
    is_owner = access.principal.id == own.owner
    return is_owner and access.control.rights_of(access.principal) == own.rights


def _to_json(own: _Statement, *, is_reader: bool) -> dict[str, object]:
    """Return the JSON of a statement.

    Args:
        own: The statement.
        is_reader: Whether it is for a principal that may read the rows.
    """
    shown: dict[str, object] = {
        "queryId": own.id,
        "state": own.state,
        "createdAt": format_time(own.created_ms),
        "durationMs": -1 if own.ended_s is None else round((own.ended_s - own.begun_s) * 1_000),
    }
    if own.error is not None:
        shown["errorDetails"] = typed_error(own.error if is_reader else _HIDDEN)[1]
    elif own.result is not None and own.summary is not None:
        shown["schema"] = [
            {
                "name": field.name,
                "type": type_name(field.type, "sqlType"),
                "nativeType": type_name(field.type, "type"),
            }
            for field in own.result.rows.schema
        ]
        shown["result"] = _result_json(own.summary, is_reader=is_reader)
    return shown


def _result_json(summary: AnswerSummary, *, is_reader: bool) -> dict[str, object]:
    return {
        "numTotalRows": summary.rows,
        "totalSizeInBytes": summary.size_bytes,
        "dataSource": "__query_select",
        "sampleRecords": orjson.Fragment(summary.sample) if is_reader else [],
        "pages": orjson.Fragment(summary.pages),
    }


def _unknown(request: Request) -> NotFound:
    return NotFound(
        f"there is no statement {request.path_params['query_id']!r:.60}: it is kept for an hour"
        " after its end, until the router restarts, or until newer ones need the room"
    )


def _refusal(error: PenstockError) -> Response:
    status, body = typed_error(error)
    return JsonResponse(body, status)
