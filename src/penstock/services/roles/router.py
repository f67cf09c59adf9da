"""Process of the router: the users' API, mainly SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.routing import BaseRoute

from penstock.core.clock import Clock
from penstock.core.errors import Dependency, InvalidRequest
from penstock.core.loop_stalls import stall_samples
from penstock.core.metrics import MetricRegistry
from penstock.core.threads import DEATHS
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import BODY_BYTES_MAX, application
from penstock.services.api.router import RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.router_metrics import RouterMetrics
from penstock.services.api.sql import SqlRoutes
from penstock.services.host.data_folder import DataFolder, queries_run_folder
from penstock.services.http_server import HttpServer
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.membership import BrokerFinder, Membership
from penstock.services.metrics_text import metrics_text
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check
from penstock.services.roles.process_metrics import FAULTS
from penstock.services.roles.runtime import RoleContext
from penstock.spark.connect.spark_server import kill_leftover
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.projection_builder import BuilderOptions, ProjectionBuilder
from penstock.spark.projections.projection_catalog import ProjectionCatalog
from penstock.spark.projections.selector import Projections
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.service import QUERY_CONF, SqlOptions, SqlQuery, SqlService
from penstock.spark.tables import TableSource
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.spark.transforms.transform_errors import ExpressionCheck
from penstock.storage.metadata import MetadataStore

# A query that cannot be the cause of a failure: if it fails, Spark fails.
_PROBE = SqlQuery("SELECT 1", is_probe=True)
# Time limit of running queries at a stop; less than the launcher's limit.
QUERIES_GRACE_S = 2.0


def routes_of(sql: SqlRoutes, router: RouterRoutes, tables: TableRoutes) -> list[BaseRoute]:
    """Return all routes of a router except those of every process."""
    return [*sql.routes(), *router.routes(), *tables.routes()]


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
) -> SqlParts:
    """Build the parts that answer queries."""
    for_queries = sessions.with_conf(QUERY_CONF)
    file_store, known = ProjectionFiles(deep_storage, clock), ProjectionCatalog(tables)
    maker = ProjectionBuilder(for_queries, file_store, tables, known, clock, options)
    projections = Projections(for_queries, file_store, known, maker, clock)
    sql = SqlService(for_queries, tables, clock, bounds, projections, answers)
    return SqlParts(sql, projections, maker)


def _end_of_queries(options: PenstockOptions) -> Callable[[], object] | None:
    """Return a function that ends the local Spark of queries, None if tasks use the same one.

    A remote Spark has no process here, so nothing is ended. The launcher restarts a local one.
    """
    if options.query_connect is None:
        return None
    return partial(kill_leftover, queries_run_folder(DataFolder(options.data_dir.absolute())))


def _count_projections(registry: MetricRegistry, answering: SqlParts) -> None:
    """Show the counters of projections as metrics."""
    maker = answering.maker
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


def compose(context: RoleContext) -> Lifecycle:
    """Build the process."""
    options, clock = context.options, context.clock
    connect = options.query_connect or options.spark_connect
    if connect is None:
        raise InvalidRequest("a router on its own needs --spark-connect sc://HOST:PORT")
    store = MetadataStore.open(options.metadata_address, clock=clock)
    sessions = SparkSessions(SparkSessionOptions(connect, gets_environment_token=True))
    tables = VisibleFiles(store, options.deep_storage_address, clock)
    bounds = SqlOptions(end_spark=_end_of_queries(options))
    answers = AnswerFolder(context.folder.answers)
    answering = sql_parts(
        *(sessions, tables, options.deep_storage_address, clock), None, bounds, answers
    )
    sql, maker = answering.sql, answering.maker
    expressions = ExpressionCheck(sessions)
    membership = Membership(options, store, clock)
    deep_store = DeepStore(options.deep_storage_address)
    # The first query pays for the Spark session and for class loading, so it is sent here.
    readiness = context.readiness(
        [
            Check("read the metadata", Dependency.METADATA, store.leases.list),
            Check("reach the deep storage", Dependency.STORAGE, deep_store.probe),
            Check("answer a query", Dependency.SPARK, lambda: sql.query(_PROBE)),
        ],
        membership.waits,
    )
    directory = membership.directory
    broker = BrokerFinder(options, directory)
    registry = MetricRegistry()
    registry.read("counter", "penstock_faults_total", FAULTS, membership.faults, part="discovery")
    _count_projections(registry, answering)
    parts = RouterParts(
        store=store,
        directory=directory,
        http=options.http,
        broker=broker,
        ready=readiness.state,
        clock=clock,
        token=options.token,
        mistakes=expressions.mistakes,
    )
    numbers = RouterMetrics(store, broker, directory, options.token, clock=clock)
    routes = routes_of(
        SqlRoutes(sql, registry, context.emitter, clock),
        RouterRoutes(parts),
        TableRoutes(tables),
    )
    server = HttpServer(
        application(
            routes,
            token=options.token,
            metrics=lambda: metrics_text(
                [
                    registry.snapshot,
                    lambda: stall_samples("router"),
                    lambda: DEATHS.samples("router"),
                    context.samples,
                    readiness.samples,
                    *numbers.sources(),
                ]
            ),
            body_bytes_max=max(BODY_BYTES_MAX, options.task_body_bytes),
            ready=readiness.state,
        ),
        context.listener,
        context.guard,
    )
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("metadata", stop=store.close))
    lifecycle.add_handler(LifecycleHandler("files of answers", answers.open, answers.close))
    lifecycle.add_handler(LifecycleHandler("Spark session", stop=sql.close))
    lifecycle.add_handler(LifecycleHandler("Spark session of expressions", stop=expressions.close))
    lifecycle.add_handler(
        LifecycleHandler("Spark session of projections", stop=answering.projections.close)
    )
    lifecycle.add_handler(
        LifecycleHandler("Spark session that makes projections", stop=maker.close)
    )
    lifecycle.add_handler(LifecycleHandler("HTTP", server.start, server.stop), StartStage.SERVER)
    membership.add_to(lifecycle, "router", context.instance, context.address)
    # Before HTTP, whose stop waits for the requests that they answer.
    lifecycle.add_handler(
        LifecycleHandler("queries", stop=lambda: sql.finish(QUERIES_GRACE_S)),
        StartStage.ANNOUNCEMENTS,
    )
    lifecycle.add_handler(
        LifecycleHandler("projections", maker.start, maker.stop), StartStage.ANNOUNCEMENTS
    )
    lifecycle.add_handler(
        LifecycleHandler("readiness", readiness.start, readiness.stop), StartStage.ANNOUNCEMENTS
    )
    return lifecycle
