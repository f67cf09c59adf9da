"""`sys` over HTTP: rows by the principal's rights, and what happens without an overlord."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.core.sql.metadata_reads import MetadataRead
from penstock.fastpath.sql_service import DEFAULT_ENGINE
from penstock.segments.segment import Segment
from penstock.services.api.asgi import application
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.system_tables import SystemTables
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.spark.sql.metadata_rows import MetadataRows, table_schema
from penstock.spark.sql.query_statement import read_statement
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.storage.metadata import AnnouncedFile, PublishRequest
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api, OverlordWorld, noop, served, supervisor_spec
from tests.services.places_kit import FixedPlaces

RULES = """
[roles.reader]
allow = ["read datasource:clicks"]
[roles.writer]
allow = ["write datasource:clicks"]
[roles.part]
allow = ["read datasource:clicks"]
row_filters.clicks = "n > 1"
[roles.watch]
allow = ["read system:status"]
[roles.states]
allow = ["read task:*", "read supervisor:*"]
"""
DAYS = [Interval.parse(f"2024-01-0{day}/2024-01-0{day + 1}") for day in (1, 2)]


class Rows:
    """Stands for `MetadataRows`: it keeps the rows of the needed columns."""

    def __init__(self, read: MetadataRead) -> None:
        self.read = read
        self.found: list[dict[str, object]] = []

    def restart(self) -> None:
        self.found = []

    def append(self, columns: Mapping[str, Sequence[object]], count: int) -> None:
        for at in range(count):
            self.found.append(
                {name: columns[name][at] for name in self.read.columns if name in columns}
            )


class NoSpark:
    """Answers with all rows of the first metadata table of a statement."""

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        yield RegisteredQuery(lambda: self._run(query), lambda: None)

    def _run(self, query: SqlQuery) -> SqlResult:
        (read,) = read_statement(query.sql, has_metadata=True).metadata
        rows = Rows(read)
        assert query.metadata is not None
        query.metadata.collect(read, cast("MetadataRows", rows))
        columns = [one for one in table_schema(read.table) if one.name in read.columns]
        table = pa.Table.from_pylist(rows.found, pa.schema(columns))
        return SqlResult(table, (), truncated=False)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, _query_id: str) -> bool:
        return False


def segment(datasource: str, day: int, version: str) -> Segment:
    return Segment(
        datasource,
        DAYS[day],
        version,
        {"type": "local", "path": f"/secret/{datasource}/{day}/{version}"},
        size=10,
        total_rows=5,
        dimensions=("a", "b"),
        columns=(("__time", "timestamp"),),
        projections=("by_a",),
        last_compaction_state={"x": 1},
    )


class Rig:
    """A router before an overlord that has tasks and a supervisor."""

    def __init__(self, access: AccessControl, world: OverlordWorld, overlord: HostPort) -> None:
        self.access = access
        leases = world.metadata.leases
        leases.renew("overlord", "o", host=overlord.host, port=overlord.port, ttl_ms=10**9)
        broker = cast("BrokerFinder", FixedPlaces(HostPort("127.0.0.1", 4151)))
        directory = LeaseDirectory(leases)
        tables = SystemTables(world.metadata, directory, broker, access.key.process_bearer)
        routes = SqlRoutes(NoSpark(), MetricRegistry(), KeptEvents(), VirtualClock(), tables)
        self.api = Api(application(routes.routes(), access=access))

    def ask(self, sql: str, *roles: str, **context: str) -> httpx.Response:
        headers = as_principal(self.access, "user:ann", *roles)
        body = {"query": sql, "context": context}
        return self.api.post("/druid/v2/sql", json=body, headers=headers)

    def rows(self, sql: str, *roles: str, **context: str) -> list[dict[str, Any]]:
        answer = self.ask(sql, *roles, **context)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    def names(self, sql: str, *roles: str) -> list[str]:
        return sorted(str(next(iter(one.values()))) for one in self.rows(sql, *roles))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path_factory.mktemp("sys"), slots=2).start()
    for name in ("clicks", "payments"):
        task = noop(f"task-{name}", name)
        assert made.api.post("/druid/indexer/v1/task", json=task).status_code == 200
        made.runs(f"task-{name}")
        rows = [segment(name, day, version).to_row() for day, version in [(0, "v2"), (1, "v1")]]
        assert made.metadata.publish(PublishRequest("t", name, tuple(rows))).ok
    made.end("task-clicks", "bad row 'x' in clicks")
    made.end("task-payments")
    assert made.api.post("/druid/indexer/v1/supervisor", json=supervisor_spec("clicks")).is_success
    yield made
    made.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, world: OverlordWorld) -> Iterator[Rig]:
    access = AccessFolderKit(tmp_path_factory.mktemp("access") / "access", RULES).control
    with served(world, world.make_app(access=access)) as address:
        made = Rig(access, world, address)
        with closing(made.api):
            yield made


SEGMENTS = "SELECT datasource FROM sys.segments"
TASKS = "SELECT task_id FROM sys.tasks"
SUPERVISORS = "SELECT supervisor_id FROM sys.supervisors"
SERVERS = "SELECT server FROM sys.servers"


@pytest.mark.parametrize(
    ("role", "segments", "tasks", "supervisors"),
    [
        ("admin", ["clicks"] * 2 + ["payments"] * 2, ["task-clicks", "task-payments"], ["clicks"]),
        ("reader", ["clicks"] * 2, [], []),
        ("writer", [], ["task-clicks"], ["clicks"]),
        ("part", [], [], []),
        ("states", [], ["task-clicks", "task-payments"], ["clicks"]),
        ("watch", [], [], []),
    ],
)
def test_rows_are_those_of_the_http_api_of_the_same_things(
    rig: Rig, role: str, segments: list[str], tasks: list[str], supervisors: list[str]
) -> None:
    assert rig.names(SEGMENTS, role) == segments
    assert rig.names(f"{SEGMENTS} WHERE datasource = 'payments'", role) == segments[2:]
    assert [one for one in rig.names(TASKS, role) if one.startswith("task-")] == tasks
    assert rig.names(SUPERVISORS, role) == supervisors


def test_segments_have_what_druid_shows_and_no_place(rig: Rig) -> None:
    found = rig.rows("SELECT * FROM sys.segments WHERE datasource = 'clicks'", "reader")
    found.sort(key=lambda one: one["version"], reverse=True)
    assert found[0] == {
        "segment_id": "clicks_2024-01-01T00:00:00.000Z_2024-01-02T00:00:00.000Z_v2",
        "datasource": "clicks",
        "start": "2024-01-01T00:00:00.000Z",
        "end": "2024-01-02T00:00:00.000Z",
        "size": 10,
        "version": "v2",
        "partition_num": 0,
        "num_replicas": 1,
        "num_rows": 5,
        "is_active": 1,
        "is_published": 1,
        "is_available": 1,
        "is_realtime": 0,
        "is_overshadowed": 0,
        "shard_spec": '{"partitionNum":0,"partitions":0,"type":"numbered"}',
        "dimensions": '["a","b"]',
        "metrics": "[]",
        "projections": '["by_a"]',
        "last_compaction_state": '{"x":1}',
        "replication_factor": 1,
    }
    assert "/secret" not in json.dumps(found)


def test_the_error_of_a_task_needs_the_right_to_read_rows(rig: Rig) -> None:
    sql = "SELECT task_id, status, error_msg FROM sys.tasks"
    seen = {one["task_id"]: one for one in rig.rows(sql, "admin")}
    assert seen["task-clicks"]["error_msg"] == "bad row 'x' in clicks"
    assert seen["task-payments"]["status"] == "SUCCESS"
    hidden = {one["task_id"]: one for one in rig.rows(sql, "states")}
    assert hidden["task-clicks"]["error_msg"].startswith("not shown")


def test_supervisors_have_their_state_and_spec(rig: Rig) -> None:
    (found,) = rig.rows("SELECT * FROM sys.supervisors", "admin")
    assert found["datasource"] == "clicks"
    assert found["source"] == "flights"
    assert {found["healthy"], found["suspended"]} <= {0, 1}
    assert json.loads(found["spec"])["spec"]["dataSchema"]["dataSource"] == "clicks"


def test_servers_need_the_right_to_see_the_status(rig: Rig) -> None:
    assert "127.0.0.1:4151" in rig.names(SERVERS, "watch")
    assert rig.rows("SELECT server, segment_id FROM sys.server_segments", "watch") == []
    for table in ("servers", "server_segments"):
        answer = rig.ask(f"SELECT server FROM sys.{table}", "reader")
        assert answer.status_code == 403
        assert "system:status" in answer.json()["errorMessage"]
    (overlord,) = (
        one
        for one in rig.rows(
            "SELECT server_type, is_leader, plaintext_port FROM sys.servers", "admin"
        )
        if one["server_type"] == "overlord"
    )
    assert overlord["is_leader"] == 1
    assert overlord["plaintext_port"] > 0


def test_queries_are_ones_own(rig: Rig) -> None:
    (found,) = rig.rows("SELECT id, engine, state, info FROM sys.queries", "reader")
    info = json.loads(found["info"])
    assert info["sqlQueryId"] == found["id"]
    assert info["sql"] == "SELECT id, engine, state, info FROM sys.queries"
    assert info["identity"] == "user:ann"
    assert (found["engine"], found["state"]) == (DEFAULT_ENGINE, "RUNNING")
    (found,) = rig.rows("SELECT engine FROM sys.queries", "reader", engine="auto")
    assert found == {"engine": "auto"}


def test_files_of_running_tasks_are_one_row_for_each_sequence_and_time(
    rig: Rig, world: OverlordWorld
) -> None:
    files = [
        AnnouncedFile(f"/secret/{day}{part}", DAYS[day], 3, {"bytes": 7})
        for day in (0, 1)
        for part in "ab"
    ]
    task = noop("task-live", "clicks")
    assert world.api.post("/druid/indexer/v1/task", json=task).status_code == 200
    world.runs("task-live")
    assert world.metadata.announce("task-live", "clicks", "seq-1", files)
    sql = "SELECT segment_id, size, num_rows, version, is_published, is_active FROM sys.segments"
    found = [one for one in rig.rows(sql, "reader") if one["version"] is None]
    found.sort(key=lambda one: str(one["segment_id"]))
    assert [one["segment_id"] for one in found] == [
        f"clicks_2024-01-0{day}T00:00:00.000Z_2024-01-0{day + 1}T00:00:00.000Z_seq-1"
        for day in (1, 2)
    ]
    for one in found:
        numbers = {name: value for name, value in one.items() if isinstance(value, int)}
        assert numbers == {"size": 14, "num_rows": 6, "is_published": 0, "is_active": 1}
    world.end("task-live")


def test_without_an_overlord_the_query_fails_and_segments_are_still_read(
    rig: Rig, world: OverlordWorld
) -> None:
    leases = world.metadata.leases
    (known,) = leases.list("overlord")
    try:
        leases.renew("overlord", "o", host="127.0.0.1", port=1, ttl_ms=10**9)
        answer = rig.ask(TASKS, "admin")
        assert answer.status_code == 503
        assert "the overlord, which knows tasks and supervisors" in answer.json()["errorMessage"]
        leases.drop("overlord", "o")
        answer = rig.ask(SUPERVISORS, "admin")
        assert answer.status_code == 503
        assert "no overlord is running" in answer.json()["errorMessage"]
        assert rig.names(f"{SEGMENTS} WHERE datasource = 'payments'", "admin")
    finally:
        leases.renew("overlord", "o", host=known.host, port=known.port, ttl_ms=10**9)
