"""HTTP routes of the router, except for SQL.

`RouterRoutes` serves the segments and the status of the cluster and forwards requests about
tasks and supervisors to the overlord. `TableRoutes` serves `GET
/penstock/v1/datasources/{name}/files`, the visible files of a datasource, for Spark's data
source `penstock`. Both are stateless: segments are read from the metadata store, and visibility
belongs to the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.clock import Clock
from penstock.core.errors import NotFound, NotReachable, Unavailable
from penstock.services.api.asgi import JsonResponse, process_status
from penstock.services.api.coordinator.datasources import DatasourceRoutes
from penstock.services.api.coordinator.loaded_segments import LoadedRoutes
from penstock.services.api.coordinator.rules import COORDINATOR, RuleRoutes
from penstock.services.api.indexer.request_parts import (
    AUTHOR_HEADER,
    COMMENT_HEADER,
    PREFIX,
    datasource_of,
)
from penstock.services.api.indexer.sql_task import SqlTaskRoutes
from penstock.services.api.overview import ProcessOverview
from penstock.services.api.process_clients import LOG_OFFSET_HEADER, LOG_SIZE_HEADER
from penstock.services.api.spec_check import Mistakes, check_expressions, is_checked
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.spark.tables import TableSource, why_empty
from penstock.storage.metadata import MetadataStore

# The overlord answers within seconds, or reports that it is busy. If it hangs, it must not occupy
# the threads that answer SQL.
OVERLORD_TIMEOUT_S = 20.0
# A change of a flow waits for processors to stop.
FLOW_TIMEOUT_S = 60.0
_PASSED_ON = (AUTHOR_HEADER, COMMENT_HEADER)
_PASSED_BACK = (LOG_OFFSET_HEADER, LOG_SIZE_HEADER, "Retry-After")


@dataclass(frozen=True, slots=True)
class RouterParts:
    """Dependencies of the router.

    Attributes:
        store: The metadata store, for segments and rules.
        directory: Lookup of services.
        http: Address of this API, for `/status`.
        broker: Lookup of the broker, for `/status`.
        ready: Returns the readiness of this process.
        clock: Dates services that do not answer.
        token: Bearer token for the overlord.
        mistakes: Checks expressions of a spec with Spark.
    """

    store: MetadataStore
    directory: LeaseDirectory
    http: HostPort
    broker: BrokerFinder
    ready: Callable[[], ReadyState]
    clock: Clock
    token: str | None = field(default=None, repr=False)
    mistakes: Mistakes = lambda expressions: [""] * len(expressions)


class RouterRoutes:
    """The routes of the router."""

    def __init__(self, parts: RouterParts) -> None:
        self._parts = parts
        self._overview = ProcessOverview(
            *(parts.directory, str(parts.http), parts.broker, parts.ready),
            *(parts.clock, parts.token),
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/status", self.status),
            Route(
                "/druid/indexer/{rest:path}", self.to_overlord, methods=["GET", "POST", "DELETE"]
            ),
            # Paths at which Druid's clients marked segments before the overlord did that.
            Route(
                COORDINATOR + "/datasources/{rest:path}",
                self.to_overlord,
                methods=["POST", "DELETE"],
            ),
            Route("/flow", self.to_flow, methods=["GET", "PUT"]),
            Route("/flow/{rest:path}", self.to_flow, methods=["GET", "POST", "DELETE"]),
            *SqlTaskRoutes(self._overlord).routes(),
            *RuleRoutes(self._parts.store).routes(),
            *DatasourceRoutes(self._parts.store).routes(),
            *LoadedRoutes(self._parts.store, self._parts.http.url).routes(),
        ]

    def _overlord(self) -> JsonClient:
        address = self._parts.directory.find("overlord")
        token = self._parts.token
        return JsonClient(f"http://{address}", token=token, timeout_s=OVERLORD_TIMEOUT_S)

    def status(self, _request: Request) -> Response:
        """Report which processes run, whether each is ready, and why it waits."""
        return JsonResponse(
            {
                **process_status(),
                "http": self._parts.http.url,
                "broker_http": self._broker_url(),
                **self._overview.to_json(),
            }
        )

    def _broker_url(self) -> str | None:
        try:
            return self._parts.broker.http().url
        except Unavailable:
            return None  # the overview has the reason

    async def to_overlord(self, request: Request) -> Response:
        """Forward a request to the overlord and its answer to the client."""
        body = await request.body()
        path = request.url.path
        if request.method == "POST" and is_checked(path):
            await run_in_threadpool(check_expressions, path, body, self._parts.mistakes)
        return await run_in_threadpool(self._pass_on, request, body, "overlord", OVERLORD_TIMEOUT_S)

    async def to_flow(self, request: Request) -> Response:
        """Forward a request to the flow service and its answer to the client."""
        body = await request.body()
        return await run_in_threadpool(self._pass_on, request, body, "flow", FLOW_TIMEOUT_S)

    def _pass_on(self, request: Request, body: bytes, service: str, timeout_s: float) -> Response:
        address = self._parts.directory.find(service)
        client = JsonClient(f"http://{address}", token=self._parts.token, timeout_s=timeout_s)
        query = f"?{request.url.query}" if request.url.query else ""
        # The path as received, still escaped: a datasource's name may contain an escaped slash.
        path = request.scope.get("raw_path", request.url.path.encode()).decode("ascii")
        if path.startswith(COORDINATOR):
            path = PREFIX + path.removeprefix(COORDINATOR)
        try:
            status, headers, content = client.relay(
                request.method, path + query, body, _given(request, _PASSED_ON)
            )
        except NotReachable as error:
            raise Unavailable(
                f"the {service} does not answer: it is restarting, or its log has the reason; "
                f"try again ({error})"
            ) from None
        kept = {name: headers[name] for name in _PASSED_BACK if name in headers}
        return Response(content, status, kept, media_type=headers.get("Content-Type") or None)


def _given(request: Request, names: Sequence[str]) -> dict[str, str]:
    return {name: request.headers[name] for name in names if name in request.headers}


PATH = "/penstock/v1/datasources/{datasource:path}/files"


class TableRoutes:
    """The route of the visible files."""

    def __init__(self, source: TableSource) -> None:
        self._source = source

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(PATH, self.files)]

    def files(self, request: Request) -> Response:
        """List the files of visible segments and the announced files, as of one revision."""
        tables = self._source.tables()
        name = datasource_of(request, lambda name: name in tables.files)
        if not tables.files.get(name) and (why := why_empty(self._source, name)):
            raise NotFound(why)
        files = [file.to_json() for file in tables.of(name)]
        return JsonResponse({"datasource": name, "revision": tables.revision, "files": files})
