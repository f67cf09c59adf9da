"""Principals with a row filter or a mask: no files, segments or raw rows by any HTTP route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from penstock.core.access.policy_file import parse_policy
from penstock.core.access.principal import Principal, PrincipalKind
from penstock.core.access.row_rules import RowRules
from penstock.core.errors import Unavailable
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.services.api.access_rules import ROUTE_RULES
from penstock.services.api.asgi import application
from penstock.services.api.coordinator.datasources import DatasourceRoutes
from penstock.services.api.coordinator.loaded_segments import LoadedRoutes
from penstock.services.api.request_access import RequestAccess
from penstock.services.api.router import TableRoutes
from penstock.services.roles.router import absent_columns_check
from penstock.spark.tables import TableSource
from penstock.spark.tables.table_files import TableFile, Tables
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.storage.sqlite_urls import sqlite_url
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api

RULES = """
[roles.eu]
row_filters.clicks = "region = 'eu'"
[roles.no-mail]
masks.clicks.email = "hash"
"""
DAY = "2024-01-01/2024-01-02"


class FixedTables:
    """A source of tables that answers, or not."""

    def __init__(self, answer: Tables) -> None:
        self.answer: Tables | None = answer

    def tables(self) -> Tables:
        if self.answer is None:
            raise Unavailable("the metadata cannot be read")
        return self.answer


class Rig:
    def __init__(self, folder: Path) -> None:
        self.access = AccessFolderKit(folder / "access", RULES).control
        self.store = MetadataStore.open(sqlite_url(f"{folder}/m.db"), clock=VirtualClock())
        for name in ("clicks", "open"):
            version = "2024-02-01T00:00:00.000Z"
            spec = {"type": "local", "path": f"/{name}.parquet"}
            made = Segment(name, Interval.parse(DAY), version, total_rows=3, load_spec=spec)
            assert self.store.publish(PublishRequest(name, name, (made.to_row(),))).ok
        self.routes = [
            *TableRoutes(
                VisibleFiles(self.store, str(folder)), self.store, DeepStore(str(folder))
            ).routes(),
            *DatasourceRoutes(self.store).routes(),
            *LoadedRoutes(self.store, "h:1").routes(),
        ]
        self.api = Api(application(self.routes, access=self.access))

    def ask(self, path: str, *roles: str) -> tuple[int, str]:
        answer = self.api.get(path, headers=as_principal(self.access, "user:alice", *roles))
        return answer.status_code, answer.text

    def close(self) -> None:
        self.api.close()
        self.store.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with closing(Rig(tmp_path_factory.mktemp("limited"))) as made:
        yield made


def test_new_rules_are_compared_with_the_columns_of_all_datasources(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = TableFile("/a", (("__time", "timestamp"), ("n", "bigint")), Interval.parse(DAY))
    tables = FixedTables(Tables(1, {"clicks": (file,), "open": (file,)}))
    check = absent_columns_check(cast("TableSource", tables))
    assert check(parse_policy(RULES, "access.toml"))
    texts = [one.getMessage() for one in caplog.records]
    assert len(texts) == 2
    assert any(one.startswith("role eu: a row filter for datasource 'clicks'") for one in texts)
    assert any(
        one.startswith("role no-mail: a mask for datasource 'clicks' names") for one in texts
    )
    caplog.clear()
    assert check(parse_policy("", "access.toml"))
    assert check(parse_policy('[roles.a]\nrow_filters.clicks = "true"', "access.toml"))
    assert check(parse_policy('[roles.a]\nrow_filters.gone = "no = 1"', "access.toml"))
    assert caplog.records == []
    tables.answer = None
    assert not check(parse_policy(RULES, "access.toml"))


@pytest.mark.parametrize("limit", ["eu", "no-mail"])
@pytest.mark.parametrize("base", ["analyst", "admin", "operator"])
def test_routes_of_a_limited_datasource_are_refused(rig: Rig, limit: str, base: str) -> None:
    asked = 0
    for (method, template), rule in ROUTE_RULES.items():
        shown = str(rule) == "read datasource:DATASOURCE"
        if method != "GET" or not shown or template not in {r.path for r in rig.routes}:  # type: ignore[attr-defined]
            continue
        asked += 1
        path = template.replace("{datasource:path}", "{datasource}").replace(
            "{segment:path}", "some"
        )
        status, text = rig.ask(path.replace("{datasource}", "clicks"), base, limit)
        assert status == 403
        assert "only by SQL queries" in text
        assert "region" not in text
        assert rig.ask(path.replace("{datasource}", "open"), base, limit)[0] in {
            200,
            204,
            400,
            404,
            503,  # the load specs of these segments name no file
        }, path
        assert rig.ask(path.replace("{datasource}", "clicks"), base)[0] in {
            200,
            204,
            400,
            404,
            503,
        }, path
    assert asked >= 8


@pytest.mark.parametrize("base", ["analyst", "admin"])
def test_lists_do_not_have_segments_of_a_limited_datasource(rig: Rig, base: str) -> None:
    coordinator = "/druid/coordinator/v1"
    for path in (
        *(f"{coordinator}/metadata/datasources", f"{coordinator}/metadata/datasources?full"),
        *(f"{coordinator}/datasources", f"{coordinator}/datasources?full"),
        *(f"{coordinator}/datasources?simple", f"{coordinator}/loadstatus"),
    ):
        status, text = rig.ask(path, base, "eu")
        assert status == 200
        assert ("clicks" in text) is not path.endswith("?full"), path
        assert "open" in text, path
        assert "/clicks.parquet" not in text, path
        assert "clicks" in rig.ask(path, base)[1]
        assert "clicks" not in rig.ask(path, "publisher")[1]


def test_the_size_of_a_limited_datasource_is_null(rig: Rig) -> None:
    path = "/druid/coordinator/v1/datasources?simple"
    whole = {one["name"]: one["properties"] for one in json.loads(rig.ask(path, "analyst")[1])}
    part = {one["name"]: one["properties"] for one in json.loads(rig.ask(path, "analyst", "eu")[1])}
    assert part["open"] == whole["open"]
    assert part["clicks"]["tiers"] == {}
    assert part["clicks"]["segments"].keys() == whole["clicks"]["segments"].keys()
    assert set(part["clicks"]["segments"].values()) == {None}


def test_sql_gets_the_limits(rig: Rig) -> None:
    principal = Principal(PrincipalKind.USER, "alice", ("admin", "eu"))
    assert RequestAccess(rig.access, principal).rows_of("clicks") == RowRules("(region = 'eu')")
    # Not the empty text of those who see everything, so that SQL asks for the limits.
    assert rig.access.rights_of(principal)
