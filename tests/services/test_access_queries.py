"""Queries of principals at the router: what they may read, and which of them they may cancel."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

import httpx
import pyarrow as pa
import pytest

from penstock.core.access.audit import AuditOptions
from penstock.core.errors import Forbidden, PenstockError, TooLargeForQuota
from penstock.core.metrics import MetricRegistry
from penstock.indexing.engine import EngineFailure
from penstock.services.api import sql
from penstock.services.api.asgi import application
from penstock.services.api.sql import SqlRoutes
from penstock.spark.sql.crash_principals import SparkEndsRefused
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.event_kit import KeptEvents
from tests.services.overlord_kit import Api

RULES = """
[roles.team]
allow = ["read datasource:clicks*"]
deny = ["read datasource:clicks-secret"]

[roles.few.quotas]
queries = 1
query_time = "5s"
query_bytes = "1 GiB"
"""
NAMES = ("clicks", "clicks-eu", "clicks-secret", "payments")


class HeldSql:
    """Answers once it is released, with the names that the query may read."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.came, self.released = threading.Event(), threading.Event()
        self.refuses = False
        self.error: PenstockError | None = None
        self.queries: list[SqlQuery] = []
        self.arrived: SimpleQueue[str] = SimpleQueue()
        self.begun: SimpleQueue[str] = SimpleQueue()

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        self.ids.add(query.query_id)
        self.arrived.put(query.query_id)
        self.queries.append(query)
        self.came.set()
        try:
            yield RegisteredQuery(lambda: self._run(query), self.released.set)
        finally:
            self.ids.remove(query.query_id)

    def _run(self, query: SqlQuery) -> SqlResult:
        self.begun.put(query.query_id)
        assert self.released.wait(120)
        if self.error is not None:
            raise self.error
        if self.refuses:
            raise Forbidden("you may read no datasource")
        names = [one for one in NAMES if query.reader is None or query.reader.may_read(one)]
        for _ in range(2):  # it may try a query twice
            if query.on_read is not None:
                query.on_read(names)
        return SqlResult(pa.table({"name": names}), ("string",), truncated=False)

    def timeout_ms(self, _query: SqlQuery) -> int:
        return 60_000

    def cancel(self, query_id: str) -> bool:
        self.released.set()
        return query_id in self.ids


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The records of the audit, among what other threads may log."""
    return [json.loads(one.getMessage()) for one in caplog.records if one.name == "penstock.audit"]


class Rig:
    def __init__(self, folder: Path, audit: AuditOptions | None = None) -> None:
        self.access = AccessFolderKit(folder, RULES, audit).control
        self.sql = HeldSql()
        self.clock = VirtualClock()
        self.metrics = MetricRegistry()
        routes = SqlRoutes(self.sql, self.metrics, KeptEvents(), self.clock).routes()
        self.api = Api(application(routes, access=self.access))

    def ask(self, name: str, role: str, query_id: str = "", *more: str) -> httpx.Response:
        body = {"query": "SELECT 1", "context": {"sqlQueryId": query_id} if query_id else {}}
        headers = as_principal(self.access, name, role, *more)
        return self.api.post("/druid/v2/sql", json=body, headers=headers)

    def counted(self, name: str) -> object:
        return next(one.value for one in self.metrics.snapshot() if one.name == name)

    def cancel(self, name: str, role: str) -> int:
        headers = as_principal(self.access, name, role)
        return self.api.delete("/druid/v2/sql/q", headers=headers).status_code

    def close(self) -> None:
        self.sql.released.set()
        self.api.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path / "access")) as made:
        yield made


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("admin", NAMES),
        ("analyst", NAMES),
        ("team", ("clicks", "clicks-eu")),
        ("publisher", ()),
    ],
)
def test_a_query_reads_what_its_principal_may(rig: Rig, role: str, names: tuple[str, ...]) -> None:
    rig.sql.released.set()
    answer = rig.ask(f"user:of-{role}", role)
    assert [one["name"] for one in answer.json()] == list(names)


def test_slow_queries_of_one_principal_leave_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "RUNNING_MAX", 3)
    monkeypatch.setattr(sql, "OWN_RUNNING_MAX", 2)
    with closing(Rig(tmp_path / "access")) as rig, ThreadPoolExecutor(5) as threads:
        try:
            asked = [threads.submit(rig.ask, "user:alice", "team", f"a{n}") for n in range(4)]
            waiting = {rig.sql.arrived.get(timeout=20) for _ in asked}
            asked.append(threads.submit(rig.ask, "user:bob", "team", "b"))
            begun = [rig.sql.begun.get(timeout=20) for _ in range(3)]
            assert "b" in begun
            headers = as_principal(rig.access, "user:alice", "team")
            listed = rig.api.get("/penstock/v1/queries", headers=headers).json()
        finally:
            rig.sql.released.set()
        reasons = {one["queryId"]: one["reason"] for one in listed}
        assert {reasons[one] for one in waiting - {*begun}} == {
            "2 others of the same principal run"
        }
        assert {one.result().status_code for one in asked} == {200}


def test_queries_of_others_do_not_exist(rig: Rig) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(rig.ask, "user:alice", "team", "q")
        assert rig.sql.came.wait(120)
        assert rig.cancel("user:bob", "team") == 404
        assert rig.cancel("token:alice", "analyst") == 404
        assert not rig.sql.released.is_set()
        assert rig.cancel("user:alice", "publisher") == 202
        assert running.result().status_code == 200
    assert rig.cancel("user:alice", "team") == 404


def test_who_may_manage_queries_cancels_those_of_others(rig: Rig) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(rig.ask, "user:alice", "team", "q")
        assert rig.sql.came.wait(120)
        assert rig.cancel("user:root", "admin") == 202
        assert running.result().status_code == 200


def test_queries_are_recorded_with_everything(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="penstock.audit")
    rig.sql.released.set()
    rig.ask("user:alice", "team")
    assert audited(caplog) == []
    with closing(Rig(tmp_path / "all", AuditOptions("", records_everything=True))) as everything:
        everything.sql.released.set()
        everything.ask("user:alice", "team")
        everything.ask("user:root", "admin")
    records = audited(caplog)
    seen = [(one["event"], one["principal"], one["resource"]) for one in records]
    alice = {("user:alice", f"datasource:{name}") for name in ("clicks", "clicks-eu")}
    root = {("user:root", f"datasource:{name}") for name in NAMES}
    assert sorted(seen) == sorted((e, *one) for e in ("decision", "end") for one in alice | root)
    assert all(one["status"] == 200 for one in records if one["event"] == "end")
    assert all(one["duration_ms"] > 0 for one in records if one["event"] == "end")
    assert "SELECT" not in caplog.text


def test_a_refused_query_is_recorded(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.sql.refuses = True
    rig.sql.released.set()
    with caplog.at_level("INFO", logger="penstock.audit"):
        answer = rig.ask("user:poster", "publisher")
    assert (answer.status_code, answer.json()["errorCode"]) == (403, "forbidden")
    records = audited(caplog)
    (refused,) = (one for one in records if one["event"] == "decision")
    assert (refused["principal"], refused["allowed"]) == ("user:poster", False)


def test_a_principal_with_as_many_queries_as_its_quota_gets_429(rig: Rig) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(rig.ask, "user:alice", "team", "q", "few")
        assert rig.sql.came.wait(120)
        refused = rig.ask("user:alice", "team", "r", "few")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["errorCode"] == "quotaExceeded"
        assert refused.json()["category"] == "CAPACITY_EXCEEDED"
        assert refused.json()["errorMessage"] == (
            "user:alice runs as many queries as its quota queries allows (1): wait until one ends,"
            " or ask an administrator for a larger quota"
        )
        assert rig.sql.ids == {"q"}
        rig.sql.released.set()
        assert running.result().status_code == 200
    assert rig.ask("user:alice", "team", "s", "few").status_code == 200


def test_others_are_not_counted_with_a_principal(rig: Rig) -> None:
    with ThreadPoolExecutor(3) as threads:
        queries = [
            threads.submit(rig.ask, name, "team", f"q{n}", *more)
            for n, (name, *more) in enumerate(
                [("user:alice", "few"), ("user:bob", "few"), ("user:carol",)]
            )
        ]
        while len(rig.sql.ids) < 3:
            assert not any(one.done() for one in queries)
        rig.sql.released.set()
        assert [one.result().status_code for one in queries] == [200, 200, 200]


def test_the_quotas_of_a_query_are_those_of_its_principal(rig: Rig) -> None:
    rig.sql.released.set()
    rig.ask("user:alice", "team", "a", "few")
    rig.ask("user:alice", "team", "b")
    found = [(one.quota_ms, one.quota_bytes) for one in rig.sql.queries]
    assert found == [(5_000, 1 << 30), (None, None)]


@pytest.mark.parametrize(
    ("error", "passed_s", "counted"),
    [
        (TooLargeForQuota("it reads too much"), 0, "query_bytes"),
        (EngineFailure("it took longer"), 5, "query_time"),
        (EngineFailure("it failed"), 4, ""),
    ],
)
def test_a_query_that_a_quota_ends_is_recorded(
    rig: Rig,
    caplog: pytest.LogCaptureFixture,
    error: PenstockError,
    passed_s: float,
    counted: str,
) -> None:
    with ThreadPoolExecutor(1) as threads, caplog.at_level("INFO", logger="penstock.audit"):
        rig.sql.error = error
        running = threads.submit(rig.ask, "user:alice", "team", "q", "few")
        assert rig.sql.came.wait(120)
        rig.clock.advance(passed_s)
        rig.sql.released.set()
        assert running.result().json()["errorMessage"] == str(error)
    assert [one.get("quota") for one in audited(caplog)] == ([counted] if counted else [])


def test_a_principal_over_whose_statements_spark_ended_gets_429_and_is_recorded(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.sql.error = SparkEndsRefused("Spark ended 3 times", retry_after_s=60)
    rig.sql.released.set()
    with caplog.at_level("INFO", logger="penstock.audit"):
        answers = [rig.ask("user:alice", "team", f"q{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 429]
    assert answers[0].headers["retry-after"] == "60"
    (record,) = audited(caplog)
    assert (record["event"], record["quota"]) == ("quota", "spark_ends")
    assert record["principal"] == "user:alice"
    assert rig.counted("penstock_sql_spark_ends_refused_total") == 3


def test_the_service_gets_the_principal_of_a_query(rig: Rig) -> None:
    rig.sql.released.set()
    rig.ask("user:alice", "team")
    assert rig.sql.queries[0].principal == "user:alice"
