"""Every HTTP route that the processes of Penstock serve, with parameters of paths written `{}`."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from starlette.routing import BaseRoute, Route

from penstock.core.errors import Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.indexing.task_log import TaskLogReader
from penstock.indexing.worker.peon_task import PeonTask
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import application
from penstock.services.api.avatica.routes import AvaticaRoutes
from penstock.services.api.delta.delta_routes import DeltaRoutes
from penstock.services.api.delta.delta_tables import DeltaTables
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.input_samples import SampleRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.peon import PeonRoutes, TaskControl
from penstock.services.api.router import RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.spark_writes import SparkWriteRoutes
from penstock.services.api.sql import SqlPort, SqlRoutes
from penstock.services.api.uploads import UploadRoutes
from penstock.services.api.worker import WorkerPort, WorkerRoutes
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.roles.router import routes_of
from penstock.spark.tables import TableSource
from penstock.storage.uploads import UploadStore
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import OverlordWorld, ready
from tests.services.places_kit import FixedPlaces, NoSampler

NOBODY = SimpleNamespace()
COORDINATOR = "/druid/coordinator/v1"


def no_overlord() -> JsonClient:
    """Answer for an overlord that cannot be found."""
    raise Unavailable("there is no overlord here")


def running_routes(folder: Path) -> set[tuple[str, str]]:
    """Every method and path of router, overlord, worker and task."""
    with closing(OverlordWorld(folder)) as world:
        overlord = keys(world.app.routes)
        directory, address = LeaseDirectory(world.metadata.leases), HostPort("127.0.0.1", 1)
        places = FixedPlaces(address)
        parts = RouterParts(world.metadata, directory, address, places, ready, world.clock)
        sql = SqlRoutes(cast("SqlPort", NOBODY), MetricRegistry(), KeptEvents(), world.clock)
        tables = TableRoutes(
            cast("TableSource", NOBODY), world.metadata, DeepStore(str(folder / "deep"))
        )
        store = UploadStore(folder / "uploads", world.clock)
        jdbc = AvaticaRoutes(sql, world.clock)
        delta = DeltaRoutes(cast("DeltaTables", NOBODY))
        iceberg = CatalogRoutes(cast("CatalogTables", NOBODY), cast("CatalogCommits", NOBODY))
        source, deep = cast("TableSource", NOBODY), DeepStore(str(folder / "deep"))
        writes = SparkWriteRoutes(source, world.metadata, deep, folder / "tmp", world.clock)
        more = UploadRoutes(store), SampleRoutes(NoSampler(), store), jdbc, iceberg, writes, delta
        router = keys(routes_of(sql, RouterRoutes(parts), tables, LiveAnswers(), *more))
    worker = WorkerRoutes(
        "w",
        cast("WorkerPort", NOBODY),
        cast("TaskLogReader", NOBODY),
        places,
        places,
    )
    peon = PeonRoutes(
        "t", cast("PeonTask", NOBODY), lambda: None, cast("TaskControl", NOBODY)
    ).routes()
    every = keys(application([], access=with_token(None)).routes)
    return overlord | passed_on(router, overlord) | keys(worker.routes()) | keys(peon) | every


def without_names(path: str) -> str:
    """Write every parameter of a path `{}`."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def keys(routes: list[BaseRoute]) -> set[tuple[str, str]]:
    found = [route for route in routes if isinstance(route, Route)]
    return {
        (method, without_names(route.path))
        for route in found
        for method in (route.methods or ())
        if method != "HEAD"
    }


def passed_on(router: set[tuple[str, str]], overlord: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Paths of a router, with the overlord's instead of those that it passes on to it."""
    every, marking = "/druid/indexer/{}", COORDINATOR + "/datasources/{}"
    own = {key for key in router if key[1] != every and (key[0] == "GET" or key[1] != marking)}
    return own | {
        (method, COORDINATOR + path.removeprefix(PREFIX))
        for method, path in overlord
        if (method, marking) in router and path.startswith(PREFIX + "/datasources/")
    }
