"""Process of the router: the users' API, mainly SQL."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from penstock.core.access.policy import Policy
from penstock.core.access.row_rules import absent_columns, combined
from penstock.core.clock import Clock
from penstock.core.errors import Dependency, InvalidRequest, PenstockError
from penstock.core.loop_stalls import stall_samples
from penstock.core.metrics import MetricRegistry
from penstock.core.threads import DEATHS
from penstock.fastpath.answer_checks import AnswerChecks, PinnedTables
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.engine_pool import EnginePool, PoolOptions, pool_options
from penstock.fastpath.sql_service import FastOptions, FastSqlService
from penstock.segments.deep_storage import DeepStore
from penstock.segments.remote_files import RemoteFiles
from penstock.segments.segment_cache import SegmentCache
from penstock.services.api.asgi import BODY_BYTES_MAX, application
from penstock.services.api.avatica.logins import AvaticaLogins
from penstock.services.api.avatica.routes import AvaticaRoutes
from penstock.services.api.coordinator.segment_timeline import TimelineRefresher
from penstock.services.api.delta.delta_routes import DeltaRoutes
from penstock.services.api.delta.delta_tables import DeltaTables
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.api.input_samples import SampleRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.native import NativeRoutes
from penstock.services.api.router import RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.router_metrics import RouterMetrics
from penstock.services.api.spark_writes import SparkWriteRoutes, StreamedPaths
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.static_pages import ConsoleRoutes, ManualRoutes
from penstock.services.api.system_tables import SystemTables
from penstock.services.api.traces.flow_history import RecordedFlowHistory
from penstock.services.api.uploads import UploadRoutes
from penstock.services.emitter.emitter import Emitter, send_alert
from penstock.services.host.data_folder import (
    DataFolder,
    queries_run_folder,
    segment_cache_folder,
)
from penstock.services.host.host_plan import child_environment
from penstock.services.host.query_limits import excess_reason
from penstock.services.host.system_call_filter import engine_call_filter
from penstock.services.host.tls_settings import require_protection
from penstock.services.http_server import HttpServer
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.lookup_service import LookupRefresher
from penstock.services.membership.membership import BrokerFinder, Membership
from penstock.services.metrics_text import SampleSource, metrics_text
from penstock.services.options.table import PenstockOptions, local_path
from penstock.services.readiness import Check
from penstock.services.roles.process_metrics import FAULTS
from penstock.services.roles.runtime import RoleContext
from penstock.services.sampler_process import SamplerProcesses
from penstock.spark.connect.spark_server import kill_leftover
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.projection_builder import BuilderOptions, ProjectionBuilder
from penstock.spark.projections.projection_catalog import ProjectionCatalog
from penstock.spark.projections.selector import Projections
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.service import QUERY_CONF, SqlOptions, SqlQuery, SqlService
from penstock.spark.tables import TableSource
from penstock.spark.tables.local_segments import LocalSegments, named_files
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.spark.transforms.transform_errors import ExpressionCheck
from penstock.storage.metadata import MetadataStore
from penstock.storage.secrets.secret_sources import SECRETS
from penstock.storage.uploads import UPLOADS_FOLDER, UploadStore

logger = logging.getLogger(__name__)

# A query that cannot be the cause of a failure: if it fails, Spark fails.
_PROBE = SqlQuery("SELECT 1", is_probe=True)
# Time limit of running queries at a stop; less than the launcher's limit.
QUERIES_GRACE_S = 2.0


def routes_of(
    sql: SqlRoutes,
    router: RouterRoutes,
    tables: TableRoutes,
    live: LiveAnswers,
    uploads: UploadRoutes,
    samples: SampleRoutes,
    jdbc: AvaticaRoutes,
    iceberg: CatalogRoutes,
    writes: SparkWriteRoutes,
    delta: DeltaRoutes,
) -> list[BaseRoute]:
    """Return all routes of a router except those of every process."""
    return [
        *sql.routes(),
        *NativeRoutes(sql, tables.source, sql.clock).routes(),
        *router.routes(),
        *tables.routes(),
        *live.routes(),
        *uploads.routes(),
        *samples.routes(),
        *jdbc.routes(),
        *iceberg.routes(),
        *writes.routes(),
        *delta.routes(),
        *LoginRoutes().routes(),
        *ConsoleRoutes().routes(),
        *ManualRoutes().routes(),
    ]


@dataclass(frozen=True, slots=True)
class SqlParts:
    """Parts that answer queries: from rows and projections, and the maker of projections."""

    sql: SqlService
    projections: Projections
    maker: ProjectionBuilder


def sql_parts(
    sessions: SparkSessions,
    tables: TableSource,
    deep_storage: str,
    clock: Clock,
    options: BuilderOptions | None = None,
    bounds: SqlOptions | None = None,
    answers: AnswerFolder | None = None,
    segments: LocalSegments | None = None,
) -> SqlParts:
    """Build the parts that answer queries."""
    for_queries = sessions.with_conf(QUERY_CONF)
    file_store, known = ProjectionFiles(deep_storage, clock), ProjectionCatalog(tables)
    maker = ProjectionBuilder(for_queries, file_store, tables, known, clock, options)
    projections = Projections(for_queries, file_store, known, maker, clock)
    sql = SqlService(for_queries, tables, clock, bounds, projections, answers, segments)
    return SqlParts(sql, projections, maker)


def _end_of_queries(options: PenstockOptions) -> Callable[[], object] | None:
    """Return a function that ends the local Spark of queries, None if tasks use the same one.

    A remote Spark has no process here, so nothing is ended. The launcher restarts a local one.
    """
    if options.query_connect is None:
        return None
    return partial(kill_leftover, queries_run_folder(DataFolder(options.data_dir.absolute())))


def _bounds_of_queries(context: RoleContext) -> SqlOptions:
    """Return the bounds of a query."""
    return SqlOptions(
        end_spark=_end_of_queries(context.options),
        limit_reason=partial(excess_reason, context.folder, context.clock),
    )


def absent_columns_check(tables: TableSource) -> Callable[[Policy], bool]:
    """Return a function that warns of filters and masks of columns that datasources do not have.

    It returns whether it could check them: the metadata must be readable.
    """

    def check(policy: Policy) -> bool:
        limiting = [role for role in policy.own_roles.values() if role.limits_rows]
        if not limiting:
            return True
        try:
            files = tables.tables().files
        except PenstockError:  # narrow: it is tried again
            return False
        for name, own in files.items():
            columns = [column for column, _ in union_columns(own)]
            for role in limiting:
                absent = absent_columns(combined([role.row_filters], [role.masks], name), columns)
                if absent:
                    logger.warning("role %s: %s", role.name, absent.text(name, columns))
        return True

    return check


def _counted(membership: Membership, answering: SqlParts) -> MetricRegistry:
    """Return a registry with the counters of discovery and of projections."""
    registry, maker = MetricRegistry(), answering.maker
    registry.read("counter", "penstock_faults_total", FAULTS, membership.faults, part="discovery")
    for name, help_text, counter in (
        (
            "penstock_sql_projected_total",
            "Queries answered by projections",
            answering.projections.used,
        ),
        ("penstock_projection_files_made_total", "Files of projections made", maker.made),
        ("penstock_projection_files_failed_total", "Files that could not be made", maker.failed),
        (
            "penstock_projection_files_dropped_total",
            "Files dropped because the queue was full",
            maker.dropped,
        ),
    ):
        registry.read("counter", name, help_text, partial(getattr, counter, "value"))
    return registry


def input_readers(context: RoleContext) -> SamplerProcesses:
    """Return what starts the processes that read files of users."""
    options = context.stored_options or context.options
    return SamplerProcesses(options, SECRETS.get().variables, [context.address.port])


def add_flight(lifecycle: Lifecycle, context: RoleContext) -> None:
    """Serve Flight SQL, if it has an address.

    Raises:
        InvalidRequest: The address lacks protection.
    """
    address = context.options.flight
    if address is None:
        return
    require_protection(context.options, [(address, "--flight")])
    # Imported here: 60 MB that only routers with this port need.
    from penstock.services.flight.flight_server import FlightPort  # noqa: PLC0415

    port = FlightPort(address, context.address.url, context.tls)
    lifecycle.add_handler(LifecycleHandler("Flight SQL", port.start, port.stop), StartStage.SERVER)


def _checks(store: MetadataStore, deep_store: DeepStore, sql: SqlService) -> list[Check]:
    """Return what must work before the router is ready."""
    # The first query pays for the Spark session and for class loading, so it is sent here.
    return [
        Check("read the metadata", Dependency.METADATA, store.leases.list),
        Check("reach the deep storage", Dependency.STORAGE, deep_store.probe),
        Check("answer a query", Dependency.SPARK, lambda: sql.query(_PROBE)),
    ]


def _engine_options(context: RoleContext) -> PoolOptions:
    """Return the bounds of the processes of the embedded engine, and what they may read."""
    options = context.options
    segments = local_path(options.deep_storage_address)
    folders = [context.folder.tasks, *options.task_folders]
    folders.append(segment_cache_folder(context.folder) if segments is None else segments)
    environment = child_environment(os.environ, SECRETS.get().variables)
    calls = engine_call_filter(platform.machine())
    return pool_options([str(one.absolute()) for one in folders], environment, calls)


def _segment_cache(
    context: RoleContext, deep_store: DeepStore, tables: TableSource
) -> SegmentCache | None:
    """Return the cache of a remote deep storage; None: it is local, or there is no cache."""
    bytes_max = context.options.segment_cache_bytes
    if deep_store.is_local or not bytes_max:
        return None
    files, named = RemoteFiles(deep_store.root), partial(named_files, tables)
    folder = segment_cache_folder(context.folder).absolute()
    return SegmentCache(folder, bytes_max, deep_store.root, files, named, context.clock)


def _spark_is_here(context: RoleContext) -> bool:
    """Return whether the launcher of this host runs the Spark of queries, without a cluster."""
    options = context.options
    name = "spark" if options.query_connect is None else "queries"
    is_local = options.spark_master.startswith("local")
    return is_local and name in context.folder.launcher_record()


@dataclass(frozen=True, slots=True)
class FastParts:
    """Parts that answer queries with the embedded engine, and check some of the answers.

    Attributes:
        service: Answers with either engine.
        engines: The processes of the embedded engine.
        checks: Checks of its answers.
        checking: The service with which they ask Spark.
    """

    service: FastSqlService
    engines: EnginePool
    checks: AnswerChecks
    checking: SqlService

    def samples(self) -> Sequence[SampleSource]:
        """Return their metrics."""
        return [self.service.samples, self.engines.samples, self.checks.samples]

    def add_to(self, lifecycle: Lifecycle) -> None:
        """Start and stop them with the process."""
        start = partial(self.engines.start, self.service.first_requests)
        lifecycle.add_handler(LifecycleHandler("SQL engines", start, self.engines.stop))
        lifecycle.add_handler(LifecycleHandler("Spark session of checks", stop=self.checking.close))
        lifecycle.add_handler(
            LifecycleHandler("checks of answers", self.checks.start, self.checks.stop)
        )


def _fast_parts(
    context: RoleContext,
    sessions: SparkSessions,
    tables: TableSource,
    sql: SqlService,
    options: FastOptions,
) -> FastParts:
    """Build the parts of the embedded engine.

    The checks have Spark sessions of their own, because the views of queries have the newest files,
    and they never end Spark, which may be answering a query.
    """
    clock = context.clock
    pinned = PinnedTables(tables)
    checking = SqlService(sessions.with_conf(QUERY_CONF), pinned, clock)
    report = partial(_report_difference, context.emitter)
    folder = context.folder.log / "engine-differences"
    checks = AnswerChecks(checking, pinned, folder, report, clock)
    engines = EnginePool(_engine_options(context), clock)
    options = replace(options, checks=checks)
    service = FastSqlService(sql, tables, engines, compile_query, clock, options)
    return FastParts(service, engines, checks, checking)


def _report_difference(emitter: Emitter, text: str, data: Mapping[str, str]) -> None:
    send_alert(emitter, logger, text, data=data)


def _finish(sql: SqlService, both: FastSqlService) -> None:
    """Let running queries end for a while, then stop the others."""
    sql.finish(QUERIES_GRACE_S)
    both.cancel_all()


def _add_files(
    lifecycle: Lifecycle,
    answers: AnswerFolder,
    readers: SamplerProcesses,
    uploads: UploadStore,
    writes: SparkWriteRoutes,
) -> None:
    """Delete what a killed router left, before anything uses these folders."""
    for handler in (
        LifecycleHandler("files of answers", answers.open, answers.close),
        LifecycleHandler("files of inputs", readers.start, readers.stop),
        LifecycleHandler("uploads", uploads.clear),
        LifecycleHandler("files of writes", writes.clear),
    ):
        lifecycle.add_handler(handler)


def _close_sessions(
    lifecycle: Lifecycle, answering: SqlParts, expressions: ExpressionCheck
) -> None:
    """Let the Spark sessions of a router end with it."""
    for session, close in (
        *(("queries", answering.sql.close), ("expressions", expressions.close)),
        ("projections", answering.projections.close),
        ("the maker of projections", answering.maker.close),
    ):
        lifecycle.add_handler(LifecycleHandler(f"Spark session of {session}", stop=close))


def _metrics_of(context: RoleContext, *sources: SampleSource) -> Callable[[], bytes]:
    """Return the function that writes the metrics of these sources and of the process."""
    of_process = (
        lambda: stall_samples("router"),
        lambda: DEATHS.samples("router"),
        context.samples,
    )
    return lambda: metrics_text([*sources, *of_process])


def _add_before_http(lifecycle: Lifecycle, *handlers: LifecycleHandler) -> None:
    """Add parts that end before HTTP, whose stop waits for the requests that they answer."""
    for handler in handlers:
        lifecycle.add_handler(handler, StartStage.ANNOUNCEMENTS)


def _table_formats(
    tables: TableSource, store: MetadataStore, options: PenstockOptions, clock: Clock
) -> tuple[CatalogTables, DeltaTables]:
    """Return the datasources as Iceberg tables, and as Delta tables."""
    deep_storage = options.deep_storage_address
    iceberg = CatalogTables(tables, store, deep_storage, clock)
    return iceberg, DeltaTables(tables, store, deep_storage, clock)


def _catalog(
    tables: CatalogTables,
    store: MetadataStore,
    options: PenstockOptions,
    own: RouterRoutes,
    clock: Clock,
) -> CatalogRoutes:
    root = options.deep_storage_address
    return CatalogRoutes(tables, CatalogCommits(tables, store, root, own.overlord, clock))


def compose(context: RoleContext) -> Lifecycle:
    """Build the process."""
    options, clock = context.options, context.clock
    connect = options.query_connect or options.spark_connect
    if connect is None:
        raise InvalidRequest("a router on its own needs --spark-connect sc://HOST:PORT")
    store = MetadataStore.open(options.metadata_address, clock=clock)
    sessions = SparkSessions(SparkSessionOptions(connect, gets_environment_token=True))
    tables = VisibleFiles(store, options.deep_storage_address, clock)
    bounds = _bounds_of_queries(context)
    answers = AnswerFolder(context.folder.answers)
    deep_store = DeepStore(options.deep_storage_address)
    cache = _segment_cache(context, deep_store, tables)
    local = None if cache is None else LocalSegments(cache, partial(_spark_is_here, context))
    answering = sql_parts(
        *(sessions, tables, options.deep_storage_address, clock), None, bounds, answers, local
    )
    sql, maker = answering.sql, answering.maker
    fast = _fast_parts(context, sessions, tables, sql, FastOptions(bounds, answers, local))
    both = fast.service
    expressions = ExpressionCheck(sessions)
    membership = Membership(options, store, clock)
    readiness = context.readiness(_checks(store, deep_store, sql), membership.waits)
    directory = membership.directory
    broker = BrokerFinder(options, directory)
    registry = _counted(membership, answering)
    readers = input_readers(context)
    parts = RouterParts(
        store=store,
        directory=directory,
        http=options.http,
        broker=broker,
        ready=readiness.state,
        clock=clock,
        folder=context.folder.path,
        bearer=context.bearer,
        mistakes=expressions.mistakes,
        files=deep_store,
        flows=RecordedFlowHistory(directory, context.bearer),
        lookup_files=readers,
        access=context.access,
    )
    numbers = RouterMetrics(store, broker, directory, context.bearer, clock=clock)
    live = LiveAnswers()
    uploads = UploadStore(context.folder.path / UPLOADS_FOLDER, clock)
    writes = SparkWriteRoutes(tables, store, deep_store, context.folder.tmp, clock)
    system = SystemTables(store, directory, broker, context.bearer)
    iceberg, delta = _table_formats(tables, store, options, clock)
    own = RouterRoutes(parts)
    refresher = LookupRefresher(own.lookups, clock)
    queries = SqlRoutes(both, registry, context.emitter, clock, system, own.lookup_tables)
    timelines = TimelineRefresher(own.timelines, clock)
    routes = routes_of(
        *(queries, own, TableRoutes(tables, store, deep_store), live),
        *(UploadRoutes(uploads), SampleRoutes(readers, uploads), AvaticaRoutes(queries, clock)),
        _catalog(iceberg, store, options, own, clock),
        *(writes, DeltaRoutes(delta)),
    )
    served = application(
        routes,
        access=context.access,
        metrics=_metrics_of(
            *(context, registry.snapshot, readiness.samples),
            *fast.samples(),
            *(*numbers.sources(), own.lookups.samples, delta.samples),
            *(() if cache is None else (cache.samples,)),
        ),
        body_bytes_max=max(BODY_BYTES_MAX, options.task_body_bytes),
        streamed=StreamedPaths(),
        outside=[Middleware(AvaticaLogins, access=context.access, clock=clock)],
        ready=readiness.state,
        accepts_sessions=True,
    )
    server = HttpServer(served, context.listener, context.guard, tls=context.tls)
    context.access.on_rules = absent_columns_check(tables)
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("metadata", stop=store.close))
    _add_files(lifecycle, answers, readers, uploads, writes)
    for name, kept in ("timelines", timelines), ("lookups", refresher), ("Iceberg tables", iceberg):
        lifecycle.add_handler(LifecycleHandler(name, kept.start, kept.stop))
    lifecycle.add_handler(LifecycleHandler("Delta tables", delta.start, delta.stop))
    if cache is not None:
        lifecycle.add_handler(LifecycleHandler("segment cache", cache.start, cache.stop))
    fast.add_to(lifecycle)
    _close_sessions(lifecycle, answering, expressions)
    lifecycle.add_handler(LifecycleHandler("HTTP", server.start, server.stop), StartStage.SERVER)
    add_flight(lifecycle, context)
    membership.add_to(lifecycle, "router", context.instance, context.address)
    context.publish_audit(lifecycle, broker.http)
    _add_before_http(
        lifecycle,
        LifecycleHandler("queries", stop=partial(_finish, sql, both)),
        LifecycleHandler("live answers", stop=live.close),
        LifecycleHandler("projections", maker.start, maker.stop),
        LifecycleHandler("readiness", readiness.start, readiness.stop),
    )
    return lifecycle
