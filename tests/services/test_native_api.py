"""The HTTP API of native queries: answers, rights, cancelling, and the list of datasources."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from penstock.core.errors import TooLargeForQuota
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.native import NativeRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.spark.tables import Feeder, TableFile, Tables
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api

RULES = """
[roles.team]
allow = ["read datasource:clicks*"]
deny = ["read datasource:clicks-secret"]
"""
COLUMNS = (("__time", "timestamp"), ("country", "string"), ("n", "bigint"))
FILE = TableFile("/p", COLUMNS, Interval.parse("2013-01-01/2013-01-02"), size_bytes=7)
BOUNDARY = {"queryType": "timeBoundary", "dataSource": "clicks"}


@dataclass
class SomeTables:
    """The files of some datasources."""

    names: tuple[str, ...] = ("clicks", "clicks-secret", "payments")
    fed: list[Feeder] = field(default_factory=list)

    def revision(self) -> int:
        return 1

    def tables(self) -> Tables:
        return Tables(1, dict.fromkeys(self.names, (FILE,)))

    def feeders(self, datasource: str) -> list[Feeder]:
        return [one for one in self.fed if one.datasource == datasource]

    def is_dropped(self, datasource: str) -> bool:
        return False

    def projections(self, datasource: str) -> list[object]:
        return []


class HeldSql:
    """Answers with the times of a query, once it is released."""

    def __init__(self) -> None:
        self.queries: list[SqlQuery] = []
        self.came, self.released = threading.Event(), threading.Event()
        self.released.set()
        self.error: Exception | None = None

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self.queries.append(query)
        self.came.set()
        yield RegisteredQuery(self._run, self.released.set)

    def _run(self) -> SqlResult:
        assert self.released.wait(120)
        if self.error is not None:
            raise self.error
        time = pa.array([1_000], pa.int64()).cast(pa.timestamp("ms", "UTC"))
        return SqlResult(pa.table({"a": time, "b": time}), ("timestamp",) * 2, truncated=False)

    def timeout_ms(self, query: SqlQuery) -> int:
        return query.timeout_ms or 60_000

    def cancel(self, query_id: str) -> bool:
        self.released.set()
        return query_id in {one.query_id for one in self.queries}


class Rig:
    def __init__(self, folder: Path) -> None:
        self.access = AccessFolderKit(folder, RULES).control
        self.service, self.tables = HeldSql(), SomeTables()
        clock = VirtualClock()
        sql = SqlRoutes(self.service, MetricRegistry(), KeptEvents(), clock)
        native = NativeRoutes(sql, self.tables, clock)  # type: ignore[arg-type]
        self.api = Api(application([*sql.routes(), *native.routes()], access=self.access))

    def ask(
        self, body: object = BOUNDARY, role: str = "analyst", path: str = "/druid/v2"
    ) -> httpx.Response:
        headers = as_principal(self.access, f"user:{role}", role)
        return self.api.post(path, json=body, headers=headers)

    def cancel(self, role: str, query_id: str = "q") -> int:
        headers = as_principal(self.access, f"user:{role}", role)
        return self.api.delete(f"/druid/v2/{query_id}", headers=headers).status_code

    def close(self) -> None:
        self.service.released.set()
        self.api.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path / "access")) as made:
        yield made


def test_an_answer_has_druids_form_and_the_id_of_the_query(rig: Rig) -> None:
    time = "1970-01-01T00:00:01.000Z"
    context = {"queryId": "q-1", "timeout": 500, "priority": 3, "useCache": False}
    answer = rig.ask({**BOUNDARY, "context": context})
    assert answer.json() == [{"timestamp": time, "result": {"minTime": time, "maxTime": time}}]
    assert answer.headers["X-Druid-Query-Id"] == "q-1"
    (query,) = rig.service.queries
    assert (query.query_id, query.timeout_ms) == ("q-1", 500)
    assert query.sql == "SELECT min(`__time`) AS n_min, max(`__time`) AS n_max FROM `clicks`"
    indented = rig.ask(path="/druid/v2/?pretty")
    assert indented.json() == answer.json()
    assert '\n  "timestamp": ' in indented.text
    assert indented.headers["X-Druid-Query-Id"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "queryType: is required"),
        ({**BOUNDARY, "context": {"queryId": "a b"}}, "context.queryId: 'a b' cannot be the id"),
        ({**BOUNDARY, "context": {"timeout": "x"}}, "context.timeout: 'x' is not valid"),
        ({**BOUNDARY, "dataSource": "click"}, 'dataSource: there is no datasource "click" with'),
    ],
)
def test_a_wrong_query_is_refused_as_sql_is(rig: Rig, body: object, told: str) -> None:
    answer = rig.ask(body)
    found = answer.json()
    assert answer.status_code == 400
    assert found["error"] == "druidException"
    assert found["errorMessage"].startswith(told)
    assert found["context"]["place"] == told.partition(":")[0]
    assert rig.ask([]).json()["errorMessage"] == "the body must be a JSON object"


def test_a_datasource_that_one_may_not_read_does_not_exist(rig: Rig) -> None:
    """Nor is its name a hint for a similar one."""
    for name in ("clicks-secret", "clicks-secre", "payments"):
        told = rig.ask({**BOUNDARY, "dataSource": name}, "team").json()["errorMessage"]
        assert told.startswith(f'dataSource: there is no datasource "{name}" with rows: ')
        assert told.partition(" with rows: ")[2] in {
            'did you mean "clicks"?', "GET /druid/v2/datasources lists them"
        }  # fmt: skip
    assert rig.ask(BOUNDARY, "team").status_code == 200
    (query,) = rig.service.queries
    assert query.reader is not None
    assert not query.reader.may_read("payments")
    assert rig.ask(BOUNDARY, "publisher").status_code == 403
    headers = as_principal(rig.access, "user:team", "team")
    assert rig.api.get("/druid/v2/datasources", headers=headers).json() == ["clicks"]
    headers = as_principal(rig.access, "user:p", "publisher")
    assert rig.api.get("/druid/v2/datasources", headers=headers).json() == []


def test_columns_of_a_datasource_are_listed(rig: Rig) -> None:
    headers = as_principal(rig.access, "user:team", "team")
    answer = rig.api.get("/druid/v2/datasources/clicks", headers=headers)
    assert answer.json() == {"dimensions": ["country"], "metrics": ["n"]}
    for name, status in (("payments", 403), ("clicks-secret", 403), ("clicks-x", 404)):
        answer = rig.api.get(f"/druid/v2/datasources/{name}", headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"].startswith('there is no datasource "clicks-x" with rows')
    headers = as_principal(rig.access, "user:p", "publisher")
    assert rig.api.get("/druid/v2/datasources/clicks", headers=headers).status_code == 403


def test_a_datasource_without_rows_is_told_why(rig: Rig) -> None:
    rig.tables.fed.append(Feeder("s1", suspended=True, datasource="later"))
    told = rig.ask({**BOUNDARY, "dataSource": "later"}).json()["errorMessage"]
    assert told.startswith('dataSource: "later" has no rows: its supervisor s1 is suspended')


def test_a_query_is_cancelled_by_its_principal(rig: Rig) -> None:
    rig.service.released.clear()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(rig.ask, {**BOUNDARY, "context": {"queryId": "q"}})
        assert rig.service.came.wait(120)
        assert rig.cancel("team") == 404
        assert not rig.service.released.is_set()
        assert rig.cancel("analyst") == 202
        assert running.result().status_code == 200


def test_a_refusal_of_the_service_is_the_answer(rig: Rig) -> None:
    rig.service.error = TooLargeForQuota("the query reads 5 bytes")
    answer = rig.ask()
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "tooLargeForQuota")
    assert answer.headers["X-Druid-Query-Id"]
