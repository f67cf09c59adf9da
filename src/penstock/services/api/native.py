"""`POST /druid/v2`: Druid's native queries, answered by the service that runs SQL.

Owns the routes, the keys of `context`, and the outlines of datasources that the translation needs.
`penstock.services.native` translates a query and gives the rows of its statement their shape;
`SqlRoutes` runs the statement for the principal, within its quotas, and cancels it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import Forbidden, InvalidRequest, NotFound
from penstock.core.names import DATASOURCE, check_name
from penstock.core.similar_names import most_similar
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.request_access import access_of
from penstock.services.api.sql import AskedQuery, SqlRoutes, reader_of
from penstock.services.api.sql_request import engine_in, query_id_in, uses_cache_in, whole_number
from penstock.services.api.sql_results import json_bytes, row_chunks
from penstock.services.native.answers import NativeStatement
from penstock.services.native.query_specs import parse_query
from penstock.services.native.row_statements import statement_of
from penstock.services.native.sources import OutlineOf, TableOutline
from penstock.spark.projections.selector import projection_options
from penstock.spark.sql.limited_tables import SqlReader, readable_source, seen_tables
from penstock.spark.sql.service import SqlQuery
from penstock.spark.tables import TableSource, why_empty
from penstock.spark.tables.table_columns import KnownColumns

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.spark.sql.fetcher import RowSource

PATH: Final = "/druid/v2"
ID_HEADER: Final = "X-Druid-Query-Id"

_ELEMENTS_PER_CHUNK: Final = 1_000
_NUMBERS: Final = frozenset({"bigint", "int", "double", "float"})


class NativeRoutes:
    """The routes of native queries.

    Args:
        sql: Runs their statements.
        tables: The files of all datasources.
        clock: Time.
    """

    def __init__(self, sql: SqlRoutes, tables: TableSource, clock: Clock) -> None:
        self._sql = sql
        self._tables = tables
        self._clock = clock
        self._known = KnownColumns()

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(PATH, self.execute, methods=["POST"]),
            Route(PATH + "/datasources", self.datasources),
            Route(PATH + "/datasources/{datasource}", self.columns),
            Route(PATH + "/{query_id}", self._sql.cancel, methods=["DELETE"]),
        ]

    async def execute(self, request: Request) -> Response:
        """Answer a native query."""
        return await self._sql.answer(request, self._asked, ID_HEADER)

    async def _asked(self, request: Request) -> AskedQuery:
        body = await json_object(request)
        reader = reader_of(access_of(request))
        is_indented = "pretty" in request.query_params
        return await run_in_threadpool(self._translated, body, reader, is_indented)

    def _translated(
        self, body: Mapping[str, object], reader: SqlReader | None, is_indented: bool
    ) -> AskedQuery:
        query = parse_query(body)
        statement = statement_of(query, self._outlines(reader), self._clock.now_ms())
        context = query.context
        return AskedQuery(
            SqlQuery(
                sql=statement.sql,
                query_id=query_id_in(context, "queryId"),
                timeout_ms=whole_number(context, "timeout", "milliseconds"),
                projections=projection_options(context),
                engine=engine_in(context),
                uses_cache=uses_cache_in(context),
            ),
            lambda _schema: None,
            partial(written, statement=statement, is_indented=is_indented),
            "application/json",
        )

    def _outlines(self, reader: SqlReader | None) -> OutlineOf:
        """Return the function that returns the outlines of datasources as a principal sees them."""
        seen = seen_tables(self._tables, reader)
        files = seen.tables.files

        def outline(name: str, place: str) -> TableOutline:
            found = files.get(name)
            if not found:
                raise InvalidRequest(self._absent(name, reader, list(files)), place=place)
            return TableOutline(
                name,
                self._known.of(name, found),
                tuple(sorted({file.interval for file in found})),
                sum(file.size_bytes for file in found),
                is_limited=name in seen.limits,
            )

        return outline

    def _absent(self, name: str, reader: SqlReader | None, names: list[str]) -> str:
        if why := why_empty(readable_source(self._tables, reader), name):
            return why
        near = most_similar(name, names)
        hint = (
            f'did you mean "{near}"?'
            if near is not None
            else "GET /druid/v2/datasources lists them"
        )
        return f'there is no datasource "{name:.80}" with rows: {hint}'

    def datasources(self, request: Request) -> Response:
        """List the datasources that have rows and that the principal may read, by name."""
        try:
            seen = seen_tables(self._tables, reader_of(access_of(request)))
        except Forbidden:  # narrow: the principal may read none
            return JsonResponse([])
        return JsonResponse(sorted(name for name, files in seen.tables.files.items() if files))

    def columns(self, request: Request) -> Response:
        """Return the names of a datasource's columns: those of numbers are called metrics.

        Raises:
            Forbidden: The principal sees nothing of it.
            InvalidRequest: No datasource can have this name.
            NotFound: It has no rows.
        """
        access = access_of(request)
        name = check_name(request.path_params["datasource"], DATASOURCE, place="datasource")
        if not access.sees_limited_rows(name):
            access.require(Action.READ, Resource(ResourceKind.DATASOURCE, name))
        outline_of = self._outlines(reader_of(access))
        try:
            outline = outline_of(name, "")
        except InvalidRequest as error:  # narrow: the path names it
            raise NotFound(str(error)) from None
        names: dict[str, list[str]] = {"dimensions": [], "metrics": []}
        for column, type_ in outline.columns:
            if column != TIME_COLUMN:
                names["metrics" if type_ in _NUMBERS else "dimensions"].append(column)
        return JsonResponse(names)


def written(source: RowSource, statement: NativeStatement, *, is_indented: bool) -> Iterator[bytes]:
    """Yield the JSON of an answer, a list, in chunks.

    Args:
        source: The rows of the statement.
        statement: The statement, which has the shape of the answer.
        is_indented: Whether it is written for people.
    """
    yield b"["
    elements = statement.shape(row_chunks(source))
    is_first = True
    while some := list(itertools.islice(elements, _ELEMENTS_PER_CHUNK)):
        texts = b",".join(json_bytes(one, is_indented=is_indented) for one in some)
        yield texts if is_first else b"," + texts
        is_first = False
    yield b"]"
