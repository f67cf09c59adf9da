"""HTTP routes of the router, except for SQL.

`RouterRoutes` serves the segments, the status of the cluster and the description of all APIs, and
forwards requests about tasks and supervisors to the overlord, about flows to their service, and
about topics to the broker, so that a browser needs one address. `TableRoutes` serves `GET
/penstock/v1/datasources/{name}/files`, the visible files of a datasource, for Spark's data
source `penstock`. Both are stateless: segments are read from the metadata store, and visibility
belongs to the catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.access_control import AccessControl
from penstock.core.access.principal import Principal
from penstock.core.access.rules import Action, ResourceKind
from penstock.core.bearer import Bearer
from penstock.core.clock import Clock
from penstock.core.errors import Full, InvalidRequest, NotFound, NotReachable, Unavailable
from penstock.core.printable import quoted
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import JsonResponse, integer, process_status
from penstock.services.api.coordinator.datasource_pages import DatasourcePageRoutes
from penstock.services.api.coordinator.datasources import DatasourceRoutes
from penstock.services.api.coordinator.loaded_segments import LoadedRoutes
from penstock.services.api.coordinator.rules import COORDINATOR, RuleRoutes
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.services.api.coordinator.segment_timeline import SegmentTimelineRoutes
from penstock.services.api.host_resources import HostResourceRoutes
from penstock.services.api.indexer.request_parts import (
    AUTHOR_HEADER,
    COMMENT_HEADER,
    LOCKS,
    PREFIX,
    SUPERVISORS,
    TASKS,
    datasource_of,
)
from penstock.services.api.indexer.sql_task import SqlTaskRoutes
from penstock.services.api.lookups import LookupTableRoutes
from penstock.services.api.overview import ProcessOverview
from penstock.services.api.process_clients import LOG_OFFSET_HEADER, LOG_SIZE_HEADER
from penstock.services.api.request_access import access_of, on_behalf_of
from penstock.services.api.spec_check import (
    Mistakes,
    check_expressions,
    datasources_named,
    is_checked,
)
from penstock.services.api.stream_cursors import StreamCursorRoutes
from penstock.services.api.traces.flow_history import FlowHistory, NoFlowHistory
from penstock.services.api.traces.message_trace import TraceParts
from penstock.services.api.traces.segments_at import ReadableFiles, ReadableLocalFiles
from penstock.services.api.traces.topic_messages import TopicMessages
from penstock.services.api.traces.trace_routes import TraceRoutes
from penstock.services.json_client import JsonClient
from penstock.services.lookup_service import LookupFiles, LookupService, NoLookupFiles
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.spark.datasource_changes import CHANGES_MAX, changes_after, files_at
from penstock.spark.tables import TableSource, why_empty
from penstock.spark.tables.readable_tables import ReadableTables
from penstock.spark.tables.table_files import TableFile
from penstock.storage.lookup_rows import LookupTables
from penstock.storage.metadata import MetadataStore

# The overlord answers within seconds, or reports that it is busy. If it hangs, it must not occupy
# the threads that answer SQL.
OVERLORD_TIMEOUT_S = 20.0
# A change of a flow waits for processors to stop.
FLOW_TIMEOUT_S = 60.0
# Its answers take milliseconds; a reader may wait for messages.
BROKER_TIMEOUT_S = 30.0
# A service that is slow, or a reader that waits, must not occupy the threads of all requests.
FORWARDED_MAX = 16
"""Requests that are forwarded to one service at a time; others wait."""
BROKER_REQUESTS_OF_ONE_MAX = 8
"""Requests of one principal to the broker at a time. Each may wait for messages."""
BROKER = "/penstock/v1/broker"
"""Prefix of the paths that are forwarded to the broker."""
_PASSED_ON = (AUTHOR_HEADER, COMMENT_HEADER)
_PASSED_BACK = (
    LOG_OFFSET_HEADER,
    LOG_SIZE_HEADER,
    "Retry-After",
    "X-Penstock-Detail",
    "X-Penstock-Offset",
    "X-Penstock-Partition",
    "X-Penstock-Repeated",
)


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
        bearer: Bearer token of this process for the others.
        mistakes: Checks expressions of a spec with Spark.
        files: The files of segments.
        flows: Steps of a message in flows.
        folder: The data folder on this host, for its size; None: there is none.
        lookup_files: Reads the files of lookups.
        access: Decides for the owners of lookups; None: nothing is decided.
    """

    store: MetadataStore
    directory: LeaseDirectory
    http: HostPort
    broker: BrokerFinder
    ready: Callable[[], ReadyState]
    clock: Clock
    bearer: Bearer = field(default=None, repr=False)
    mistakes: Mistakes = lambda expressions: [""] * len(expressions)
    files: ReadableFiles = field(default_factory=ReadableLocalFiles)
    flows: FlowHistory = field(default_factory=NoFlowHistory)
    folder: Path | None = None
    lookup_files: LookupFiles = field(default_factory=NoLookupFiles)
    access: AccessControl | None = None


class RouterRoutes:
    """The routes of the router.

    Attributes:
        timelines: Those of the segment timeline, whose sums may be kept ready.
        lookups: Declares and refreshes lookups.
        lookup_tables: The rows of lookups.
    """

    def __init__(self, parts: RouterParts) -> None:
        self._parts = parts
        self._sums = SegmentSums(parts.store)
        self.timelines = SegmentTimelineRoutes(parts.store, self._sums)
        self.lookups = LookupService(
            parts.store.lookups, parts.lookup_files, parts.clock, parts.access
        )
        self.lookup_tables = LookupTables(parts.store.lookups)
        self._overview = ProcessOverview(
            *(parts.directory, str(parts.http), parts.broker, parts.ready),
            *(parts.clock, parts.bearer),
        )
        self._threads = {
            name: CapacityLimiter(FORWARDED_MAX) for name in ("overlord", "flow", "broker")
        }
        # Requests of each principal that are forwarded to the broker now. On the event loop only.
        self._broker_requests: Counter[str] = Counter()
        self._openapi = (Path(__file__).parent / "openapi.json").read_bytes()

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/status", self.status),
            Route(
                "/druid/indexer/{rest:path}", self.to_overlord, methods=["GET", "POST", "DELETE"]
            ),
            Route(LOCKS, self.to_overlord),
            Route(TASKS, self.to_overlord),
            Route(SUPERVISORS, self.to_overlord),
            Route(SUPERVISORS + "/{supervisor_id}/lag", self.to_overlord),
            Route(SUPERVISORS + "/{supervisor_id}/backfill", self.to_overlord, methods=["POST"]),
            # Paths at which Druid's clients marked segments before the overlord did that.
            Route(
                COORDINATOR + "/datasources/{rest:path}",
                self.to_overlord,
                methods=["POST", "DELETE"],
            ),
            Route(
                f"{BROKER}/{{rest:path}}", self.to_broker, methods=["GET", "POST", "PUT", "DELETE"]
            ),
            Route("/openapi.json", self.openapi),
            Route("/flow", self.to_flow, methods=["GET", "PUT"]),
            Route("/flow/{rest:path}", self.to_flow, methods=["GET", "POST", "DELETE"]),
            Route("/penstock/v1/flow/{rest:path}", self.to_flow, methods=["GET", "POST"]),
            *SqlTaskRoutes(self.overlord).routes(),
            *RuleRoutes(self._parts.store).routes(),
            *DatasourceRoutes(self._parts.store).routes(),
            *DatasourcePageRoutes(self._parts.store, self._parts.clock, self._sums).routes(),
            *self.timelines.routes(),
            *HostResourceRoutes(self._parts.folder, self._parts.clock).routes(),
            *LoadedRoutes(self._parts.store, self._parts.http.url).routes(),
            *LookupTableRoutes(self.lookups, self.lookup_tables).routes(),
            *self._traces().routes(),
        ]

    def _traces(self) -> TraceRoutes:
        parts = self._parts
        messages = TopicMessages(parts.broker, parts.bearer)
        return TraceRoutes(TraceParts(parts.store, messages, parts.files, parts.clock, parts.flows))

    async def openapi(self, _request: Request) -> Response:
        """Return the description of all HTTP APIs in OpenAPI."""
        return Response(self._openapi, media_type="application/json")

    def overlord(self) -> JsonClient:
        """Return a client of the overlord. Raises Unavailable if none is known."""
        address = self._parts.directory.find("overlord")
        bearer = self._parts.bearer
        return JsonClient(address.url, token=bearer, timeout_s=OVERLORD_TIMEOUT_S, role="overlord")

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
        if request.method == "POST" and is_checked(request.url.path):
            await run_in_threadpool(self._check, request, body)
        return await self._passed_on(request, body, "overlord", OVERLORD_TIMEOUT_S)

    def _check(self, request: Request, body: bytes) -> None:
        """Refuse a spec with wrong expressions. Raises as `check_expressions`.

        Not for principals whose spec the overlord refuses: they must not have work done by Spark.
        """
        access = access_of(request)
        if access.is_unlimited or any(
            access.may(action, ResourceKind.DATASOURCE, name)
            for name in datasources_named(body)
            for action in (Action.WRITE, Action.MANAGE)
        ):
            check_expressions(request.url.path, body, self._parts.mistakes)

    async def to_flow(self, request: Request) -> Response:
        """Forward a request to the flow service and its answer to the client."""
        body = await request.body()
        return await self._passed_on(request, body, "flow", FLOW_TIMEOUT_S)

    async def to_broker(self, request: Request) -> Response:
        """Forward a request to the broker and its answer to the client.

        Raises:
            Full: Too many requests of the principal are forwarded now.
        """
        if not _raw_path(request).startswith(f"{BROKER}/"):
            raise NotFound(
                f"{quoted(_raw_path(request))} is not served here: write {BROKER}/ as it is"
            )
        body = await request.body()
        with self._broker_request(access_of(request).principal):
            return await self._passed_on(request, body, "broker", BROKER_TIMEOUT_S)

    async def _passed_on(
        self, request: Request, body: bytes, service: str, timeout_s: float
    ) -> Response:
        pass_on = partial(self._pass_on, request, body, service, timeout_s)
        return await to_thread.run_sync(pass_on, limiter=self._threads[service])

    @contextmanager
    def _broker_request(self, principal: Principal) -> Iterator[None]:
        """Count a request to the broker for a block. Raises Full as `to_broker`."""
        running = self._broker_requests
        if running[principal.id] >= BROKER_REQUESTS_OF_ONE_MAX:
            raise Full(
                f"{principal.id} waits for {BROKER_REQUESTS_OF_ONE_MAX} answers of the broker, as"
                " many as it may: wait for them, or send requests to the broker's own address"
            )
        running[principal.id] += 1
        try:
            yield
        finally:
            running[principal.id] -= 1
            if not running[principal.id]:
                del running[principal.id]

    def _pass_on(self, request: Request, body: bytes, service: str, timeout_s: float) -> Response:
        if service == "broker":
            address = self._parts.broker.http()
        else:
            address = self._parts.directory.find(service)
        client = JsonClient(
            address.url, token=self._parts.bearer, timeout_s=timeout_s, role=service
        )
        query = f"?{request.url.query}" if request.url.query else ""
        # The path as received, still escaped: a datasource's name may contain an escaped slash.
        path = _raw_path(request)
        if path.startswith(COORDINATOR):
            path = PREFIX + path.removeprefix(COORDINATOR)
        path = path.removeprefix(BROKER)
        # The process that knows the resource decides for the principal.
        sent = {**_given(request, _PASSED_ON), **on_behalf_of(request)}
        try:
            status, headers, content = client.relay(request.method, path + query, body, sent)
        except NotReachable as error:
            raise Unavailable(
                f"the {service} does not answer: it is restarting, or its log has the reason; "
                f"try again ({error})"
            ) from None
        kept = {name: headers[name] for name in _PASSED_BACK if name in headers}
        return Response(content, status, kept, media_type=headers.get("Content-Type") or None)


def _raw_path(request: Request) -> str:
    """Return the path of a request as received, with its escapes."""
    raw: bytes = request.scope.get("raw_path", request.url.path.encode())
    return raw.decode("ascii")


def _given(request: Request, names: Sequence[str]) -> dict[str, str]:
    return {name: request.headers[name] for name in names if name in request.headers}


PATH = "/penstock/v1/datasources/{datasource:path}/files"
CHANGES_PATH = "/penstock/v1/datasources/{datasource:path}/changes"


class TableRoutes:
    """The routes of the visible files, of their changes, and of the cursors of their readers.

    Args:
        source: The files that are visible now.
        store: The metadata store, for earlier revisions.
        deep_store: Where the files of segments are.
    """

    def __init__(self, source: TableSource, store: MetadataStore, deep_store: DeepStore) -> None:
        self.source = source
        self._store = store
        self._deep_store = deep_store

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        own = [Route(PATH, self.files), Route(CHANGES_PATH, self.changes)]
        return [*own, *StreamCursorRoutes(self._store).routes()]

    def files(self, request: Request) -> Response:
        """List the files of visible segments, and the announced files unless a revision is named.

        All of them are as of one revision.
        """
        access = access_of(request)
        source = self.source
        if not access.is_unlimited:  # messages list datasources, too
            source = ReadableTables(
                self.source, lambda name: access.may(Action.READ, ResourceKind.DATASOURCE, name)
            )
        tables = source.tables()
        name = datasource_of(request, lambda name: name in tables.files)
        revision = integer(request, "revision")
        past = [] if revision is None else files_at(self._store, self._deep_store, name, revision)
        if revision is not None and (past or tables.files.get(name)):
            return _files_answer(name, revision, past)
        if not tables.files.get(name) and (why := why_empty(source, name)):
            raise NotFound(why)
        return _files_answer(name, tables.revision, tables.of(name))

    def changes(self, request: Request) -> Response:
        """List the changes of visible files after a revision, revision by revision."""
        name = datasource_of(request, self._store.is_stored_name)
        after = integer(request, "revision")
        if after is None:
            after = self._store.revision()
        limit = integer(request, "limit", CHANGES_MAX) or 0
        if not 1 <= limit <= CHANGES_MAX:
            raise InvalidRequest(f"{limit} is not from 1 to {CHANGES_MAX}", place="limit")
        page = changes_after(self._store, self._deep_store, name, after, limit)
        return JsonResponse(page.to_json(name))


def _files_answer(datasource: str, revision: int, files: Sequence[TableFile]) -> Response:
    listed = [file.to_json() for file in files]
    return JsonResponse({"datasource": datasource, "revision": revision, "files": listed})
