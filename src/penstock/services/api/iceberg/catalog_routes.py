"""The Iceberg REST catalog, at `/iceberg/v1`: engines read datasources as tables.

Owns the routes and their JSON forms, after the OpenAPI document of the Iceberg project (version
1.11). There is one namespace. Clients read tables and append to them; nothing creates or drops one
here. Does not own versions and plans (`catalog_tables`), nor appends (`catalog_commits`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.core.http_errors import retry_headers
from penstock.core.printable import quoted
from penstock.segments.iceberg.manifest_files import POSITION_DELETES, ManifestEntry
from penstock.segments.iceberg.table_versions import TableVersion
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.error_forms import (
    ICEBERG,
    iceberg_error,
    iceberg_status,
    iceberg_unknown,
)
from penstock.services.api.iceberg.catalog_commits import (
    COMMITS_MAX,
    CatalogCommits,
    CommitPlaces,
    CommitsFull,
    CommitStateUnknown,
)
from penstock.services.api.iceberg.catalog_tables import CatalogTables, ScanPlan
from penstock.services.api.indexer.request_parts import datasource_of
from penstock.services.api.request_access import access_of, on_behalf_of

T = TypeVar("T")

NAMESPACE: Final = "penstock"
"""The one namespace."""

_THREADS: Final = 8
_NAMESPACES: Final = f"{ICEBERG}/namespaces"
_ONE: Final = f"{_NAMESPACES}/{{namespace}}"
_TABLES: Final = f"{_ONE}/tables"
_TABLE: Final = f"{_TABLES}/{{datasource:path}}"
_SERVER: Final = {"scan-planning-mode": "server"}
# The specification writes paths with a prefix, which is empty here.
_OF_SPECIFICATION: Final = "/v1/{prefix}/namespaces"
_ENDPOINTS: Final = [
    f"GET {_OF_SPECIFICATION}",
    f"GET {_OF_SPECIFICATION}/{{namespace}}",
    f"HEAD {_OF_SPECIFICATION}/{{namespace}}",
    f"GET {_OF_SPECIFICATION}/{{namespace}}/tables",
    f"GET {_OF_SPECIFICATION}/{{namespace}}/tables/{{table}}",
    f"HEAD {_OF_SPECIFICATION}/{{namespace}}/tables/{{table}}",
    f"POST {_OF_SPECIFICATION}/{{namespace}}/tables/{{table}}",
    f"POST {_OF_SPECIFICATION}/{{namespace}}/tables/{{table}}/plan",
    f"POST {_OF_SPECIFICATION}/{{namespace}}/tables/{{table}}/tasks",
]
_Handler = Callable[["CatalogRoutes", Request], Awaitable[Response]]


def _answering(not_found: str) -> Callable[[_Handler], _Handler]:
    """Let a handler answer errors in the form of the catalog.

    Args:
        not_found: The type of the error for something that does not exist.
    """

    def wrap(handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def answer(self: CatalogRoutes, request: Request) -> Response:
            try:
                return await handler(self, request)
            except CommitStateUnknown as error:  # narrow: translates
                body = iceberg_unknown(error)
            except CommitsFull as error:  # narrow: translates
                body = iceberg_error(error, not_found)
                later = {"Retry-After": str(error.retry_after_s)}
                return JsonResponse(body, iceberg_status(body), later)
            except PenstockError as error:  # narrow: translates
                body = iceberg_error(error, not_found)
                return JsonResponse(body, iceberg_status(body), retry_headers(error))
            return JsonResponse(body, iceberg_status(body))

        return answer

    return wrap


class CatalogRoutes:
    """The routes of the catalog."""

    def __init__(self, tables: CatalogTables, commits: CatalogCommits) -> None:
        self._tables = tables
        self._commits = commits
        # A slow deep storage must not occupy the threads that answer other requests, nor commits
        # those of reads, nor those of one table the threads of others.
        self._threads = CapacityLimiter(_THREADS)
        self._places = CommitPlaces()
        self._commit_threads = CapacityLimiter(COMMITS_MAX)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(f"{ICEBERG}/config", self.config),
            Route(_NAMESPACES, self.namespaces),
            Route(_ONE, self.namespace),
            Route(_TABLES, self.tables),
            Route(_TABLE, self.table),
            Route(f"{_TABLE}/plan", self.plan, methods=["POST"]),
            Route(f"{_TABLE}/tasks", self.tasks, methods=["POST"]),
            Route(_TABLE, self.commit, methods=["POST"]),  # whose path ends with any name
        ]

    def _name(self, request: Request) -> str:
        return datasource_of(request, self._tables.is_known)

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)

    async def config(self, _request: Request) -> Response:
        """Return the settings of the catalog for clients."""
        return JsonResponse({"defaults": {}, "overrides": _SERVER, "endpoints": _ENDPOINTS})

    @_answering("NoSuchNamespaceException")
    async def namespaces(self, request: Request) -> Response:
        """List the namespaces: one, without further ones below."""
        parent = request.query_params.get("parent", "")
        if parent and parent != NAMESPACE:
            raise _no_namespace(parent)
        return JsonResponse({"namespaces": [] if parent else [[NAMESPACE]]})

    @_answering("NoSuchNamespaceException")
    async def namespace(self, request: Request) -> Response:
        """Return the namespace."""
        _require_namespace(request)
        return JsonResponse({"namespace": [NAMESPACE], "properties": {}})

    @_answering("NoSuchNamespaceException")
    async def tables(self, request: Request) -> Response:
        """List the datasources that the principal may read."""
        _require_namespace(request)
        names = access_of(request).readable(await self._run(self._tables.names))
        identifiers = [{"namespace": [NAMESPACE], "name": name} for name in names]
        return JsonResponse({"identifiers": identifiers, "next-page-token": None})

    @_answering("NoSuchTableException")
    async def table(self, request: Request) -> Response:
        """Return the metadata of a datasource as a table."""
        _require_namespace(request)
        version = await self._run(lambda: self._tables.version(self._name(request)))
        # DuckDB takes settings of a table for credentials of a cloud, so there are none.
        return JsonResponse({**_version_json(version), "config": {}})

    @_answering("NoSuchTableException")
    async def commit(self, request: Request) -> Response:
        """Append rows of files that the client has written."""
        _require_namespace(request)
        with self._places.taken(request.path_params["datasource"]):
            return await self._committed(request)

    async def _committed(self, request: Request) -> Response:
        asked, headers = await _json_object(request), on_behalf_of(request)

        def work() -> TableVersion:
            name = self._name(request)
            # The answer shows what readers of the table see.
            access_of(request).require(Action.READ, Resource(ResourceKind.DATASOURCE, name))
            return self._commits.commit(name, asked, headers)

        version = await to_thread.run_sync(work, limiter=self._commit_threads)
        return JsonResponse(_version_json(version))

    @_answering("NoSuchTableException")
    async def plan(self, request: Request) -> Response:
        """Return the files that a scan reads."""
        _require_namespace(request)
        asked = await _json_object(request)
        plan = await self._run(lambda: self._tables.plan(self._name(request), asked))
        return JsonResponse({"status": "completed", **_plan_json(plan)})

    @_answering("NoSuchPlanTaskException")
    async def tasks(self, request: Request) -> Response:
        """Return further files of a plan."""
        _require_namespace(request)
        token = (await _json_object(request)).get("plan-task")
        if not isinstance(token, str):
            raise InvalidRequest("must be a text: a plan has it", place="plan-task")
        plan = await self._run(lambda: self._tables.rest(self._name(request), token))
        return JsonResponse(_plan_json(plan))


def _version_json(version: TableVersion) -> dict[str, object]:
    return {"metadata-location": version.location, "metadata": version.metadata}


def _require_namespace(request: Request) -> None:
    name = request.path_params["namespace"]
    if name != NAMESPACE:
        raise _no_namespace(name)


def _no_namespace(name: str) -> NotFound:
    return NotFound(f"there is no namespace {quoted(name)}: use {NAMESPACE}")


async def _json_object(request: Request) -> Mapping[str, object]:
    try:
        found = orjson.loads(await request.body() or b"{}")
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the body must be a JSON object")
    return found


def _plan_json(plan: ScanPlan) -> dict[str, object]:
    deletes: list[dict[str, object]] = []
    tasks: list[dict[str, object]] = []
    for one in plan.tasks:
        task: dict[str, object] = {"data-file": _file_json(one.file)}
        if one.hidden is not None:
            task["delete-file-references"] = [len(deletes)]
            deletes.append(_file_json(one.hidden))
        tasks.append(task)
    found: dict[str, object] = {"file-scan-tasks": tasks}
    if deletes:
        found["delete-files"] = deletes
    if plan.rest:
        found["plan-tasks"] = list(plan.rest)
    return found


def _file_json(file: ManifestEntry) -> dict[str, object]:
    is_deletes = file.content == POSITION_DELETES
    return {
        # Without partitions: the plan has chosen the files by their time.
        "spec-id": 0,
        "partition": _NO_PARTITION,
        "content": "position-deletes" if is_deletes else "data",
        "file-path": file.path,
        "file-format": "parquet",
        "file-size-in-bytes": file.size_bytes,
        "record-count": file.rows,
    }


_NO_PARTITION: Final[Sequence[object]] = ()
