"""Each ready-made role, and nobody, on each route of the OpenAPI document, against one table.

The table of this file says which roles have which right. It is written down here once more, apart
from the rules of the code, so that a change of either is noticed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.core.access.policy import READY_MADE_ROLES
from penstock.core.clock import SystemClock
from penstock.core.errors import NotFound
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.flow.controller.controller import FlowController
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.services.api import access_rules
from penstock.services.api.access_rules import OPEN, ROUTE_RULES, RouteRule
from penstock.services.api.asgi import application
from penstock.services.api.avatica.routes import AvaticaRoutes
from penstock.services.api.delta.delta_routes import DeltaRoutes
from penstock.services.api.delta.delta_tables import DeltaTables
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.api.input_samples import SampleRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.peon import PeonRoutes
from penstock.services.api.request_access import is_open
from penstock.services.api.router import BROKER, RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.spark_writes import SparkWriteRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.static_pages import ManualRoutes
from penstock.services.api.uploads import UploadRoutes
from penstock.services.api.worker import WorkerRoutes
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.roles.router import routes_of
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import PublishRequest
from penstock.storage.uploads import UploadStore
from reference.pages import ROOT
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api, OverlordWorld, noop, ready, served, supervisor_spec
from tests.services.places_kit import FixedPlaces, NoSampler
from tests.services.routes_kit import no_overlord, running_routes, without_names

if TYPE_CHECKING:
    from penstock.indexing.task_log import TaskLogReader
    from penstock.indexing.worker.peon_task import PeonTask
    from penstock.services.api.peon import TaskControl
    from penstock.services.api.sql import SqlPort
    from penstock.services.api.worker import WorkerPort

DOCUMENT = json.loads((ROOT / "docs/reference/openapi.json").read_text())["paths"]
NOBODY = "nobody"
ADMIN, OPERATOR, ANALYST, VIEWER = "admin", "operator", "analyst", "viewer"
# In this order, so that those who may end things come last.
ROLES = ("publisher", "consumer", ANALYST, VIEWER, OPERATOR, ADMIN)
EVERYONE = frozenset(ROLES)
OPERATORS = frozenset({ADMIN, OPERATOR})
VIEWERS = OPERATORS | {VIEWER}
ANALYSTS = OPERATORS | {ANALYST}

WHO: Mapping[str, frozenset[str]] = {
    "nothing, not even a credential": EVERYONE | {NOBODY},
    "any valid credential, except that of a task": EVERYONE,
    "read system:status": EVERYONE,
    "read system:manual": EVERYONE,
    "read system:metrics": VIEWERS,
    "read system:cluster": VIEWERS,
    "manage system:cluster": OPERATORS,
    "manage system:processes": frozenset({ADMIN}),
    "the credential of the task, or manage system:processes": frozenset({ADMIN}),
    "read datasource:DATASOURCE": ANALYSTS,
    "manage datasource:DATASOURCE": OPERATORS,
    "write datasource:DATASOURCE": OPERATORS,
    "read datasource:DATASOURCE, for _default read system:cluster": ANALYSTS,
    "manage datasource:DATASOURCE, for _default manage system:cluster": OPERATORS,
    "read datasource:NAME for each entry": EVERYONE,
    "read datasource:NAME for each entry, also of a part of its rows": EVERYONE,
    "read datasource:DATASOURCE, also of a part of its rows": ANALYSTS,
    "read datasource:NAME of each datasource in the body": ANALYSTS,
    "read datasource:NAME of the datasources in the query": EVERYONE,
    "one's own query, or manage system:queries": EVERYONE,
    "one's own query": EVERYONE,
    "read datasource:NAME for each entry, read task:TASK, or write on its datasource": EVERYONE,
    "read task:TASK for each entry, or write on its datasource": EVERYONE,
    "read supervisor:ID for each entry, or write on its datasource": EVERYONE,
    "read task:TASK, or write on its datasource": VIEWERS,
    "read task:TASK and read on its datasource, or write on its datasource": OPERATORS,
    "manage task:TASK, or write on its datasource": OPERATORS,
    "read supervisor:ID, or write on its datasource": VIEWERS,
    "read supervisor:ID and read on its datasource, or write on its datasource": OPERATORS,
    "manage supervisor:ID, or write on its datasource": OPERATORS,
    str(access_rules.OWN_UPLOADS): OPERATORS,
    str(access_rules.OF_INPUT): OPERATORS,
    str(access_rules.SUBMIT): OPERATORS,
    str(access_rules.SUBMIT_SUPERVISOR): OPERATORS,
    "read flow:NAME": VIEWERS,
    "read flow:NAME, and read datasource:NAME of its provenance": VIEWERS,
    "read and write flow:NAME, and read datasource:NAME of its provenance": OPERATORS,
    "write flow:NAME": OPERATORS,
    "manage flow:NAME of the new flow and of the old one, if there is one, and what its processors"
    " need": OPERATORS,
    "read topic:TOPIC, and read datasource:NAME for each entry, without a row filter or mask": (
        OPERATORS | {"consumer"}
    ),
    "read datasource:NAME, without a row filter or mask; read topic:TOPIC for messages": ANALYSTS,
    "read lookup:NAME for each entry": EVERYONE,
    "read lookup:LOOKUP": ANALYSTS,
    "write lookup:LOOKUP": OPERATORS,
    "write lookup:NAME, and what its input needs, as for a task": OPERATORS,
}

P, C = "/druid/indexer/v1", "/druid/coordinator/v1"
DAY = "2024-01-01/2024-01-02"
NAMES = {
    "datasource": "clicks",
    "task": "t1",
    "id": "flights",
    "host": "h",
    "query_id": "q",
    "segment": "s",
    "interval": "2024-01-01_2024-01-02",
    "path": "index.html",
    "lookup": "names",
    "cursor": "copies",
    "namespace": "penstock",
    "tier": "__default",
}
CLUSTER = {"compactionTaskSlotRatio": 0.1, "maxCompactionTaskSlots": 5}
FLOW = "name: flow\nprocessors: {Make: {type: GenerateFlowFile, auto_terminated: [success]}}\n"
LOCKS = [{"datasource": "clicks", "priority": 0}]
STATEMENT = "INSERT INTO clicks SELECT 1 AS __time PARTITIONED BY ALL"
OFFSETS = {"partitionOffsetMap": {"0": 1}}
BODIES: Mapping[tuple[str, str], object] = {
    ("POST", f"{P}/task"): noop("", "clicks"),
    ("POST", f"{P}/taskStatus"): ["t1"],
    ("POST", f"{P}/action"): {"task": "t1", "action": {"type": "lockList"}},
    ("POST", f"{P}/lockedIntervals/v2"): LOCKS,
    ("POST", f"{P}/activeLocks"): LOCKS,
    ("POST", f"{P}/worker"): {"type": "default"},
    ("POST", f"{P}/supervisor"): supervisor_spec("flights"),
    ("POST", f"{P}/compaction/config/cluster"): CLUSTER,
    ("POST", f"{P}/compaction/simulate"): CLUSTER,
    ("POST", f"{P}/compaction/config/datasources/{{datasource}}"): {"dataSource": "clicks"},
    ("POST", f"{C}/rules/{{datasource}}"): [{"type": "loadForever"}],
    ("POST", "/penstock/v1/sample"): {"inputSource": {"type": "inline", "data": "a"}},
    ("POST", "/penstock/v1/datasources/{datasource}/rules/preview"): [],
    ("PUT", "/penstock/v1/datasources/{datasource}/cursors/{cursor}"): {
        "revision": 0,
        "rowsLeft": 0,
    },
    ("POST", "/druid/v2/sql"): {"query": "SELECT 1"},
    ("POST", "/druid/v2"): {"queryType": "timeBoundary", "dataSource": "clicks"},
    ("POST", "/druid/v2/sql/task"): {"query": STATEMENT},
    ("POST", "/druid/v2/sql/statements"): {
        "query": "SELECT 1",
        "context": {"executionMode": "ASYNC"},
    },
    ("POST", f"{P}/supervisor/{{id}}/resetOffsets"): {
        "partitions": {"partitionOffsetMap": {"0": 1}}
    },
    ("POST", "/penstock/v1/supervisors/{id}/backfill"): {"partitionOffsetRanges": {"0": [0, 1]}},
    ("POST", f"{P}/supervisor/{{id}}/taskGroups/handoff"): {"taskGroupIds": [0]},
    ("POST", "/penstock/v1/trace/row"): {"datasource": "clicks", "time": 0},
    ("POST", "/penstock/v1/lookups"): {"name": "names", "map": {"a": "A"}},
    ("POST", f"{C}/lookups/config"): {"__default": {"names": {"map": {}}}},
    ("POST", f"{C}/lookups/config/{{tier}}/{{lookup}}"): {"map": {}},
    ("PUT", "/flow"): FLOW,
    ("POST", "/flow/validate"): FLOW,
}
QUERIES = {
    "connection": "c",
    "target": "Make",
    "attribute": "a",
    "request": "1",
    "interval": DAY,
    "flowFile": "1",
    "flowfile": "1",
    "key": "k",
    "topic": "flights",
    "partition": "0",
    "offset": "0",
}


def operations() -> list[tuple[str, str]]:
    """Method and path of every operation outside of the broker."""
    found = [
        (method.upper(), path)
        for path, item in DOCUMENT.items()
        for method in item.keys() & {"get", "put", "post", "delete"}
        if rule_of(method.upper(), path) is not None and not path.startswith(BROKER)
    ]
    return sorted(found, key=lambda one: (one[0] != "GET", one[1], one[0]))


RULES = {(method, without_names(path)): rule for (method, path), rule in ROUTE_RULES.items()}


def rule_of(method: str, path: str) -> RouteRule | None:
    """The rule of an operation; None: it is one of the broker."""
    path = without_names(path)
    rule = RULES.get((method, path))
    if rule in {None, access_rules.FORWARDED} and path.startswith(f"{C}/datasources/"):
        rule = RULES.get((method, path.replace(C, P, 1)))  # an older path of the same route
    return rule


class Absent:
    """A part that has nothing of what it is asked for."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        def refuse(*_: object, **__: object) -> object:
            raise NotFound(f"there is no {name}")

        return refuse


class Apis:
    """All APIs but the broker's in one process, with one access folder."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access")
        for role in (OPERATOR, ADMIN):  # those who apply flows
            self.kit.add_user(role, role)
        access = self.kit.control
        self.world = OverlordWorld(folder).start()
        self._overlord = served(self.world, self.world.make_app(access=access))
        address = self._overlord.__enter__()
        leases = self.world.metadata.leases
        leases.renew("overlord", "o", host=address.host, port=address.port, ttl_ms=10**9)
        places = FixedPlaces(address)
        bearer = access.key.process_bearer
        parts = RouterParts(
            *(self.world.metadata, LeaseDirectory(leases), address, places, ready),
            self.world.clock,
            bearer=bearer,
        )
        nobody = Absent()
        sql = SqlRoutes(cast("SqlPort", nobody), MetricRegistry(), KeptEvents(), self.world.clock)
        files = VisibleFiles(self.world.metadata, str(folder / "deep"))
        tables = TableRoutes(files, self.world.metadata, DeepStore(str(folder / "deep")))
        catalog = CatalogTables(files, self.world.metadata, str(folder / "deep"), self.world.clock)
        delta = DeltaRoutes(
            DeltaTables(files, self.world.metadata, str(folder / "deep"), self.world.clock)
        )
        commits = CatalogCommits(
            *(catalog, self.world.metadata, str(folder / "deep"), no_overlord, self.world.clock)
        )
        iceberg = CatalogRoutes(catalog, commits)
        logs, peons = cast("TaskLogReader", nobody), cast("PeonTask", nobody)
        worker = WorkerRoutes("w", cast("WorkerPort", nobody), logs, places, places)
        control = cast("TaskControl", nobody)
        numbers = itertools.count()
        self._flow = FlowController.open(
            str(folder / "flow"),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry(BUILTIN),
            new_uuid=lambda: f"u{next(numbers)}",
            environment={},
        )
        flow = FlowRoutes(lambda: self._flow, SystemClock()).routes()
        flow.append(Route("/flow/metrics", lambda _: PlainTextResponse("")))
        store = UploadStore(folder / "uploads", self.world.clock)
        jdbc = AvaticaRoutes(sql, self.world.clock)
        deep = DeepStore(str(folder / "deep"))
        deep.make_root()
        clock = self.world.clock
        writes = SparkWriteRoutes(files, self.world.metadata, deep, folder / "tmp", clock)
        more = UploadRoutes(store), SampleRoutes(NoSampler(), store), jdbc, iceberg, writes, delta
        routes = {
            "/druid/worker/v1/chat/": PeonRoutes("t1", peons, lambda: None, control).routes(),
            "/druid/worker/": worker.routes(),
            "/druid-internal/": worker.routes(),
            "/flow": flow,
            "/penstock/v1/flow/": flow,
            "/": routes_of(sql, RouterRoutes(parts), tables, LiveAnswers(), *more),
        }
        self._apis = {
            prefix: Api(application(one, access=access)) for prefix, one in routes.items()
        }
        self.world.api.post(f"{P}/task", json=noop("t1", "clicks"))
        self.world.api.post(f"{P}/supervisor", json=supervisor_spec("flights"))
        row = Segment(
            "clicks",
            Interval.parse(DAY),
            "2024-02-01T00:00:00.000Z",
            load_spec={"type": "local", "path": "/p"},
            total_rows=3,
        )
        assert self.world.metadata.publish(PublishRequest("u", "clicks", (row.to_row(),))).ok

    def ask(self, role: str, method: str, path: str) -> int:
        """The status of an operation for a role."""
        real = re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], path)
        api = next(api for prefix, api in self._apis.items() if path.startswith(prefix))
        headers = {} if role == NOBODY else as_principal(self.kit.control, f"user:{role}", role)
        body = BODIES.get((method, path), BODIES.get((method, path.replace(C, P, 1))))
        more = {"content": body} if isinstance(body, str) else {"json": body}
        wanted = DOCUMENT[path][method.lower()].get("parameters", [])
        given = {p["name"] for p in wanted if p["in"] == "query"} & QUERIES.keys()
        params = {name: QUERIES[name] for name in given}
        return api(method, real, headers=headers, params=params, **more).status_code

    def close(self) -> None:
        for api in self._apis.values():
            api.close()
        self._flow.close()
        self._overlord.__exit__(None, None, None)
        self.world.close()


@pytest.fixture(scope="module")
def apis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apis]:
    made = Apis(tmp_path_factory.mktemp("sweep"))
    yield made
    made.close()


def test_the_table_of_this_file_has_every_right() -> None:
    forwarded = str(access_rules.FORWARDED)
    assert {str(rule) for rule in ROUTE_RULES.values()} - {forwarded} == WHO.keys()
    assert READY_MADE_ROLES.keys() == set(ROLES)
    assert len(operations()) > 130


@pytest.mark.parametrize("role", [NOBODY, *ROLES])
def test_each_role_may_use_its_routes_and_no_others(apis: Apis, role: str) -> None:
    wrong = []
    for method, path in operations():
        rule = rule_of(method, path)
        found = apis.ask(role, method, path)
        refusal = 401 if role == NOBODY else 403
        is_refused = found in {401, 403}
        if is_refused == (role in WHO[str(rule)]) or (is_refused and found != refusal):
            wrong.append((method, path, found, str(rule)))
    assert wrong == []


def test_every_rule_has_a_route(tmp_path: Path) -> None:
    served_here = running_routes(tmp_path) | {("GET", "/flow/metrics")}
    unserved = {
        (method, path)
        for method, path in ROUTE_RULES
        if (method, without_names(path)) not in served_here
        and ROUTE_RULES[method, path] is not access_rules.FORWARDED
        and not path.startswith(("/flow", "/penstock/v1/flow/"))
    }
    assert unserved == set()


def test_a_route_without_a_rule_is_refused() -> None:
    route = Route("/unruled", lambda _: PlainTextResponse("x"))
    with pytest.raises(LookupError, match="/unruled has no rule"):
        application([route], access=with_token(None))


def test_open_paths_are_those_of_open_rules() -> None:
    for (_, path), rule in ROUTE_RULES.items():
        assert is_open(path.replace("{path:path}", "a/b")) == (rule is OPEN), path
    assert {type(route) for route in ManualRoutes().routes()} == {Route}
