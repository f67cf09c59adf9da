"""An installation with data of others, which attackers with few rights try to reach."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx

from penstock.core.clock import SystemClock
from penstock.core.errors import NotFound
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.flow.controller.controller import FlowController
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.segments.deep_storage import LOAD_SPEC_TYPE, DeepStore
from penstock.segments.segment import Segment
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
from penstock.services.api.router import RouterParts, RouterRoutes, TableRoutes
from penstock.services.api.spark_writes import SparkWriteRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.uploads import UploadRoutes
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.roles.router import routes_of
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import PublishRequest
from penstock.storage.uploads import UploadStore
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api, OverlordWorld, noop, ready, served, supervisor_spec
from tests.services.places_kit import FixedPlaces, NoSampler
from tests.services.routes_kit import no_overlord

if TYPE_CHECKING:
    from penstock.services.api.sql import SqlPort

P, C = "/druid/indexer/v1", "/druid/coordinator/v1"
DAY = "2024-01-01/2024-01-02"
VERSION = "2031-07-07T07:07:07.077Z"
"""Version of the segments of others: no attacker knows it."""
MARK = "marked7f3a"
"""Part of names and texts of others that no attacker sends."""

ROLES = """
[roles.nothing]
allow = ["read topic:nothing"]
[roles.publisher-clicks]
allow = ["write topic:clicks"]
[roles.analyst-clicks]
allow = ["read datasource:clicks*"]
deny = ["* datasource:clicks-secret"]
[roles.submitter]
allow = ["read,write datasource:clicks*", "read topic:clicks*", "write topic:clicks*"]
deny = ["* datasource:clicks-secret", "* topic:clicks-secret"]
[roles.writer]
allow = ["write datasource:*"]
deny = ["* datasource:payments", "* datasource:clicks-secret"]
[roles.keeper]
allow = ["manage datasource:clicks*"]
deny = ["* datasource:clicks-secret"]
[roles.author]
allow = ["read,write,manage flow:flow", "write topic:clicks", "read channel:clicks*"]
deny = ["* topic:clicks-secret"]
"""
FLOW = "name: flow\nprocessors: {Make: {type: GenerateFlowFile, auto_terminated: [success]}}\n"


@dataclass(frozen=True)
class Attack:
    """A request that must be refused.

    Attributes:
        who: The role of the attacker.
        what: The attempt.
        method: HTTP method.
        path: Path and query.
        body: JSON, or text that is sent as it is.
        headers: More headers.
        answers: The possible statuses.
    """

    who: str
    what: str
    method: str
    path: str
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[int, ...] = (403,)

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


class NoSql:
    """Queries that nobody may reach in these tests."""

    def cancel(self, query_id: str) -> bool:
        del query_id
        return False

    def __getattr__(self, name: str) -> object:
        raise NotFound(f"there is no {name}")


def segment(datasource: str, number: int = 0) -> Segment:
    return Segment(
        datasource,
        Interval.parse(DAY),
        VERSION,
        load_spec={"type": LOAD_SPEC_TYPE, "path": f"{MARK}/{datasource}/{number}"},
        total_rows=3,
    )


class AttackedInstallation:
    """Overlord, router and flow service of one installation, and what an administrator sees.

    Attributes:
        in_spark: The expressions that the router gave to Spark.
    """

    def __init__(self, folder: Path, rules: str = ROLES) -> None:
        self.in_spark: list[str] = []
        self.kit = AccessFolderKit(folder / "access", rules)
        access = self.kit.control
        assert access.problems == ()
        for role in ("admin", "author"):  # those who apply flows
            self.kit.add_user(f"of-{role}", role)
        self.world = OverlordWorld(folder).start()
        self._overlord = served(self.world, self.world.make_app(access=access))
        address = self._overlord.__enter__()
        leases = self.world.metadata.leases
        leases.renew("overlord", "o", host=address.host, port=address.port, ttl_ms=10**9)
        numbers = itertools.count()
        self.flow = FlowController.open(
            str(folder / "flow"),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry(BUILTIN),
            new_uuid=lambda: f"u{next(numbers)}",
            environment={"AWS_SECRET_ACCESS_KEY": MARK, "PENSTOCK_TOKEN": MARK},
        )
        flow_routes = FlowRoutes(lambda: self.flow, SystemClock()).routes()
        self._flow_app = application(flow_routes, access=access)
        self._flow_service = served(self.world, self._flow_app)
        place = self._flow_service.__enter__()
        leases.renew("flow", "f", host=place.host, port=place.port, ttl_ms=10**9)
        parts = RouterParts(
            *(self.world.metadata, LeaseDirectory(leases), address, FixedPlaces(address), ready),
            self.world.clock,
            bearer=access.key.process_bearer,
            mistakes=self._checked,
        )
        sql = SqlRoutes(cast("SqlPort", NoSql()), MetricRegistry(), KeptEvents(), self.world.clock)
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
        store = UploadStore(folder / "uploads", self.world.clock)
        jdbc = AvaticaRoutes(sql, self.world.clock)
        deep = DeepStore(str(folder / "deep"))
        deep.make_root()
        clock = self.world.clock
        writes = SparkWriteRoutes(files, self.world.metadata, deep, folder / "tmp", clock)
        more = UploadRoutes(store), SampleRoutes(NoSampler(), store), jdbc, iceberg, writes, delta
        self.router = Api(
            application(
                [*routes_of(sql, RouterRoutes(parts), tables, LiveAnswers(), *more)],
                access=access,
            )
        )
        self.overlord = Api(self.world.make_app(access=access))
        self._add_data_of_others()

    def _checked(self, expressions: Sequence[str]) -> Sequence[str]:
        self.in_spark += expressions
        return [""] * len(expressions)

    def _add_data_of_others(self) -> None:
        ask = self.world.api
        for name in ("payments", "clicks-secret", "clicks"):
            spec = supervisor_spec(name, context={"about": MARK})
            spec["spec"]["ioConfig"]["topic"] = f"{name}-{MARK}"  # type: ignore[index]
            assert ask.post(f"{P}/supervisor", json=spec).status_code == 200
            task = noop(f"t-{name}", name, context={"about": MARK})
            assert ask.post(f"{P}/task", json=task).status_code == 200
            row = segment(name).to_row()
            assert self.world.metadata.publish(PublishRequest(f"u-{name}", name, (row,))).ok
            headers = {"X-Druid-Author": MARK, "X-Druid-Comment": MARK}
            config = {"dataSource": name, "taskContext": {"about": MARK}}
            path = f"{P}/compaction/config/datasources/{name}"
            assert ask.post(path, json=config, headers=headers).status_code == 200
            rules = [{"type": "loadForever"}]
            answer = self.ask("admin", "POST", f"{C}/rules/{name}", json=rules, headers=headers)
            assert answer.status_code == 200
        assert self.ask("admin", "PUT", "/flow", content=FLOW).status_code == 200

    def ask(
        self, role: str, method: str, path: str, *, api: Api | None = None, **more: object
    ) -> httpx.Response:
        """Answer of the router to a user with a role."""
        given = cast("Mapping[str, str]", more.pop("headers", {}))
        headers = {**as_principal(self.kit.control, f"user:of-{role}", role), **given}
        return (api or self.router)(method, path, headers=headers, **more)

    def attack(self, tried: Attack, api: Api | None = None) -> httpx.Response:
        body = tried.body
        more: dict[str, object] = {}
        if body is not None:
            more = {"content": body} if isinstance(body, str) else {"json": body}
        return self.ask(tried.who, tried.method, tried.path, api=api, headers=tried.headers, **more)

    def state(self) -> list[str]:
        """Everything that an attack might change, as an administrator sees it."""
        paths = (
            *(f"{P}/supervisor/history", f"{P}/supervisor?system", f"{P}/worker"),
            *(f"{P}/compaction/config/datasources", f"{P}/compaction/config/cluster"),
            *(f"{C}/rules", f"{C}/metadata/datasources?full", "/flow"),
            f"{C}/metadata/datasources/payments/unusedSegments",
        )
        found = [self.ask("admin", "GET", path).text for path in paths]
        tasks = self.ask("admin", "GET", f"{P}/tasks").json()
        return [*found, str(sorted((one["id"], one["statusCode"]) for one in tasks))]

    def close(self) -> None:
        self.router.close()
        self.overlord.close()
        self._flow_service.__exit__(None, None, None)
        self.flow.close()
        self._overlord.__exit__(None, None, None)
        self.world.close()
