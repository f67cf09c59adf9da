"""The Iceberg REST catalog over a real metadata store and real files, with PyIceberg as client."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import current_thread
from typing import Any

import httpx
import pytest
from anyio import from_thread, to_thread
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import StaticTable, Table

from penstock.services.api.asgi import application
from penstock.services.api.error_forms import ICEBERG
from penstock.services.api.iceberg import catalog_tables
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.harness.metadata_kit import open_metadata
from tests.services.overlord_kit import Api
from tests.services.published_kit import ROWS, PublishedWorld
from tests.services.routes_kit import no_overlord
from tests.spark.servers_kit import Served

CLICKS = f"{ICEBERG}/namespaces/penstock/tables/clicks"


class World(PublishedWorld):
    """A catalog with the rows of some days: one row each hour, numbered from a start."""

    def __init__(self, folder: Path, store: MetadataStore, clock: VirtualClock) -> None:
        super().__init__(folder, store, clock)
        self.tables = CatalogTables(self.source, store, self.deep_storage, clock)
        self.tables.start()
        commits = CatalogCommits(self.tables, store, str(folder / "deep"), no_overlord, clock)
        self.routes = CatalogRoutes(self.tables, commits).routes()
        self.served = Served(self.routes).__enter__()

    def close(self) -> None:
        self.served.__exit__(None, None, None)
        self.tables.stop()

    def publish(self, text: str, first: int, *given: Any, **more: Any) -> None:
        super().publish(text, first, *given, **more)
        self.clock.advance(seconds=catalog_tables.REST_S)

    def announce(self, text: str, first: int, type_: str = "bigint") -> None:
        super().announce(text, first, type_)
        self.clock.advance(seconds=catalog_tables.REST_S)

    def table(self, name: str = "clicks") -> Table:
        return self.catalog().load_table(f"penstock.{name}")

    def catalog(self) -> Catalog:
        return RestCatalog("p", uri=f"{self.served.url}/iceberg")

    def ask(self, path: str, body: object | None = None) -> httpx.Response:
        url = self.served.url + path
        if body is None:
            return httpx.get(url, timeout=60)
        return httpx.post(url, json=body, timeout=60)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = VirtualClock()
    with (
        open_metadata(tmp_path, clock) as store,
        closing(World(tmp_path, store, clock)) as made,
    ):
        yield made


def numbers(table: Table, row_filter: str = "n >= 0") -> list[int]:
    found = table.scan(row_filter=row_filter, selected_fields=("n",)).to_arrow()
    return sorted(found["n"].to_pylist())


def hours(first: int, count: int = ROWS) -> list[int]:
    return list(range(first, first + count))


def test_a_client_finds_the_tables_and_reads_their_rows(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.publish("2024-10-01/2024-10-02", 200, name="other")
    catalog = world.catalog()
    assert catalog.list_namespaces() == [("penstock",)]
    assert catalog.list_tables("penstock") == [("penstock", "clicks"), ("penstock", "other")]
    assert catalog.table_exists("penstock.clicks")
    assert not catalog.table_exists("penstock.none")
    assert numbers(world.table()) == hours(100)
    with pytest.raises(NoSuchTableError, match='no datasource "none"'):
        catalog.load_table("penstock.none")
    with pytest.raises(NoSuchNamespaceError, match="use penstock"):
        catalog.list_tables("elsewhere")


def test_a_slow_deep_storage_does_not_occupy_the_threads_of_other_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    occupied: list[int] = []
    version, plan = world.tables.version, world.tables.plan

    def note() -> None:
        found = from_thread.run_sync(to_thread.current_default_thread_limiter)
        occupied.append(found.borrowed_tokens)

    monkeypatch.setattr(world.tables, "version", lambda name: (note(), version(name))[1])
    monkeypatch.setattr(world.tables, "plan", lambda *asked: (note(), plan(*asked))[1])
    assert world.ask(CLICKS).status_code == world.ask(f"{CLICKS}/plan", {}).status_code == 200
    assert occupied == [0, 0]


def test_plans_have_the_rows_of_running_tasks_and_snapshots_do_not(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.announce("2024-10-02/2024-10-03", 200)
    table = world.table()
    assert numbers(table) == hours(100) + hours(200)
    assert numbers(StaticTable.from_metadata(table.metadata_location)) == hours(100)
    at_snapshot = table.scan(snapshot_id=table.current_snapshot().snapshot_id)  # type: ignore[union-attr]
    assert at_snapshot.to_arrow().num_rows == ROWS


def test_a_segment_that_is_visible_in_part_shows_this_part(world: World) -> None:
    world.publish("2024-10-01/2024-10-03", 100)
    before = world.table()
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    expected = hours(100, ROWS // 2) + hours(200)
    after = world.table()
    assert numbers(after) == expected
    assert numbers(StaticTable.from_metadata(after.metadata_location)) == expected
    assert before.current_snapshot() != after.current_snapshot()
    old = after.scan(snapshot_id=before.current_snapshot().snapshot_id)  # type: ignore[union-attr]
    assert old.to_arrow().num_rows == ROWS


def test_a_segment_with_two_visible_pieces_shows_both(world: World) -> None:
    world.publish("2024-10-01/2024-10-04", 100)
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    expected = hours(100, ROWS // 3) + hours(100 + 2 * ROWS // 3, ROWS // 3) + hours(200)
    table = world.table()
    assert numbers(table) == expected
    assert numbers(StaticTable.from_metadata(table.metadata_location)) == expected
    first_day = "__time < '2024-10-02T00:00:00+00:00'"
    assert numbers(table, first_day) == hours(100, ROWS // 3)
    covered = "__time >= '2024-10-02T00:00:00+00:00' and __time < '2024-10-03T00:00:00+00:00'"
    assert len(list(table.scan(row_filter=covered).plan_files())) == 1


def test_a_newer_segment_of_a_time_without_rows_hides_none(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.publish("2024-10-01T00:10/2024-10-01T00:20", 200, version="v2")
    expected = hours(100) + hours(200)
    table = world.table()
    assert numbers(table) == expected
    assert numbers(StaticTable.from_metadata(table.metadata_location)) == expected


def test_a_column_that_running_tasks_have_with_another_type_is_left_out(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    assert {one.name for one in world.table().schema().fields} == {"__time", "n"}
    world.announce("2024-10-02/2024-10-03", 200, type_="string")
    assert {one.name for one in world.table().schema().fields} == {"__time"}


def test_a_plan_has_the_files_of_the_asked_time_alone(world: World) -> None:
    for day in range(1, 6):
        world.publish(f"2024-10-0{day}/2024-10-0{day + 1}", day * 100)
    planned = world.table().scan(
        row_filter="__time >= '2024-10-02T12:00:00+00:00' and __time < '2024-10-03T00:00:00+00:00'"
    )
    assert len(list(planned.plan_files())) == 1
    assert planned.to_arrow().num_rows == ROWS // 2


FILTERS: Sequence[tuple[object, int]] = [
    (True, 3),
    (False, 0),
    ({"type": "false"}, 0),
    ({"type": "gt-eq", "term": "__time", "value": "2024-10-03T00:00:00+00:00"}, 1),
    ({"type": "lt", "term": "__time", "value": "2024-10-01T05:00:00+02:00"}, 1),
    ({"type": "lt-eq", "term": "__time", "value": "2024-10-02T00:00:00+00:00"}, 2),
    ({"type": "lt", "term": "__time", "value": "2024-10-02T00:00:00+00:00"}, 1),
    ({"type": "eq", "term": "__time", "value": "2024-10-02T01:00:00"}, 1),
    ({"type": "eq", "term": "__time", "value": 1_727_740_800_000_000}, 1),
    ({"type": "eq", "term": "__time", "value": 10**18}, 0),
    ({"type": "eq", "term": "__time", "value": "yesterday"}, 3),
    ({"type": "eq", "term": "__time", "value": True}, 3),
    ({"type": "eq", "term": "n", "value": 1}, 0),
    ({"type": "eq", "term": "n", "value": 205}, 1),
    ({"type": "gt-eq", "term": "n", "value": 205}, 2),
    ({"type": "eq", "term": "N", "value": 1}, 3),
    ({"type": "in", "term": "__time", "values": ["2024-10-02T00:00:00Z"]}, 1),
    ({"type": "in", "term": "__time", "values": ["2024-10-02T00:00:00Z", "x"]}, 3),
    ({"type": "in", "term": "__time", "values": []}, 3),
    ({"type": "not", "child": {"type": "false"}}, 3),
    ({"type": "and", "left": {"type": "false"}, "right": {"type": "true"}}, 0),
    ({"type": "or", "left": {"type": "false"}, "right": {"type": "true"}}, 3),
    ({"type": "and"}, 3),
    ({"type": ["and"]}, 3),
    ("__time > 1", 3),
    (None, 3),
]


@pytest.fixture(scope="module")
def three_days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, clock = tmp_path_factory.mktemp("catalog"), VirtualClock()
    with open_metadata(folder, clock) as store, closing(World(folder, store, clock)) as made:
        for day in range(1, 4):
            made.publish(f"2024-10-0{day}/2024-10-0{day + 1}", day * 100)
        yield made


@pytest.mark.parametrize(("condition", "files"), FILTERS)
def test_a_filter_keeps_every_file_that_may_have_rows(
    three_days: World, condition: object, files: int
) -> None:
    answer = three_days.ask(f"{CLICKS}/plan", {"filter": condition})
    assert len(answer.json()["file-scan-tasks"]) == files


def test_conditions_that_are_nested_too_deep_keep_all_files(three_days: World) -> None:
    condition: object = {"type": "false"}
    for _ in range(300):
        condition = {"type": "or", "left": condition, "right": {"type": "false"}}
    answer = three_days.ask(f"{CLICKS}/plan", {"filter": condition})
    assert len(answer.json()["file-scan-tasks"]) == 3


REFUSED: Sequence[tuple[str, object, int, str]] = [
    ("clicks/plan", {"snapshot-id": 99}, 404, "no snapshot 99"),
    ("clicks/plan", {"snapshot-id": "1"}, 400, "whole number"),
    ("clicks/plan", {"snapshot-id": True}, 400, "whole number"),
    ("clicks/plan", {"start-snapshot-id": 1, "end-snapshot-id": 2}, 400, "one snapshot"),
    ("clicks/plan", {"end-snapshot-id": 2}, 400, "one snapshot"),
    ("clicks/plan", [1], 400, "JSON object"),
    ("none/plan", {}, 404, "no datasource"),
    ("none/plan", {"snapshot-id": 1}, 404, "no datasource"),
    ("clicks/tasks", {}, 400, "must be a text"),
    ("clicks/tasks", {"plan-task": "x"}, 404, "plan the scan again"),
]


def test_the_settings_let_clients_plan_on_the_server(three_days: World) -> None:
    found = three_days.ask(f"{ICEBERG}/config").json()
    assert found["overrides"] == {"scan-planning-mode": "server"}
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan" in found["endpoints"]


@pytest.mark.parametrize(("path", "body", "status", "text"), REFUSED)
def test_errors_have_the_form_of_the_catalog(
    three_days: World, path: str, body: object, status: int, text: str
) -> None:
    answer = three_days.ask(f"{ICEBERG}/namespaces/penstock/tables/{path}", body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], text in error["message"]) == (status, True), error
    assert error["type"].endswith("Exception")


def test_refusals_before_the_handler_have_the_form_of_the_catalog(
    three_days: World, tmp_path: Path
) -> None:
    kit = AccessFolderKit(tmp_path / "access", '[roles.other]\nallow = ["read datasource:other"]')
    own = as_principal(kit.control, "user:a", "other")
    with closing(Api(application(three_days.routes, access=kit.control))) as api:
        for method, path, headers, status, kind in (
            ("GET", f"{ICEBERG}/config", {}, 401, "NotAuthorizedException"),
            ("GET", CLICKS, {"Authorization": "Bearer x"}, 401, "NotAuthorizedException"),
            ("GET", CLICKS, own, 403, "ForbiddenException"),
            ("GET", f"{ICEBERG}/nothing", own, 404, "UnsupportedOperationException"),
            ("PUT", CLICKS, own, 405, "UnsupportedOperationException"),
        ):
            answer = api(method, path, headers=headers)
            assert answer.status_code == status, path
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == (status, kind)
            assert error["message"]
            assert ("www-authenticate" in answer.headers) is (status == 401)
        body = b"{" + b" " * (5 << 20)
        answer = api("POST", f"{CLICKS}/plan", headers=own, content=body)
        assert answer.json()["error"]["code"] == 413
        assert "errorMessage" in api("GET", "/elsewhere", headers=own).json()


def test_a_body_that_is_not_json_is_refused(three_days: World) -> None:
    answer = httpx.post(f"{three_days.served.url}{CLICKS}/plan", content=b"{")
    assert answer.json()["error"]["type"] == "BadRequestException"


def test_a_long_plan_is_read_in_parts(three_days: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_tables, "PLAN_TASKS_MAX", 1)
    assert numbers(three_days.table()) == hours(100) + hours(200) + hours(300)
    plan = three_days.ask(f"{CLICKS}/plan", {}).json()
    token = plan["plan-tasks"][0]
    other = f"{ICEBERG}/namespaces/penstock/tables/other/tasks"
    assert three_days.ask(other, {"plan-task": token}).status_code == 404
    assert three_days.ask(f"{CLICKS}/tasks", {"plan-task": token}).status_code == 200
    assert three_days.ask(f"{CLICKS}/tasks", {"plan-task": token}).status_code == 404
    monkeypatch.setattr(catalog_tables, "PLANNED_FILES_MAX", 3)
    old = three_days.ask(f"{CLICKS}/plan", {}).json()["plan-tasks"]
    three_days.ask(f"{CLICKS}/plan", {})
    assert three_days.ask(f"{CLICKS}/tasks", {"plan-task": old[0]}).status_code == 404
    assert three_days.ask(f"{CLICKS}/tasks", {"plan-task": old[1]}).status_code == 200
    late = three_days.ask(f"{CLICKS}/plan", {}).json()["plan-tasks"][0]
    three_days.clock.advance(seconds=catalog_tables.PLAN_AGE_S)
    three_days.ask(f"{CLICKS}/plan", {})
    assert three_days.ask(f"{CLICKS}/tasks", {"plan-task": late}).status_code == 404


def test_rows_of_a_file_are_counted_where_the_metadata_lacks_their_number(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100, rows=0)
    assert world.table().scan().count() == ROWS


def test_loads_make_at_most_one_version_a_second(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    first = world.tables.version("clicks")
    (row,) = world.store.snapshot().segments
    world.publish("2024-10-02/2024-10-03", 200)
    second = world.tables.version("clicks")
    assert second is not first
    world.store.segments.mark_unused([row.id])
    assert world.tables.version("clicks") is second
    assert numbers(world.table()) == hours(200), "plans are not as old"
    world.clock.advance(seconds=catalog_tables.REST_S)
    third = world.tables.version("clicks")
    assert numbers(StaticTable.from_metadata(third.location)) == hours(200)


def test_a_snapshot_has_the_time_of_the_last_change(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100, version="v0")
    changes = []
    for first in (200, 300):
        changes.append(world.clock.now_ms())
        world.publish("2024-10-01/2024-10-02", first, version=f"v{first}")
        # Neither another datasource nor rows of running tasks change the table.
        world.publish("2024-10-01/2024-10-02", first + 50, name="other")
        if first == 300:
            world.announce("2024-10-03/2024-10-04", 400)
        world.clock.advance(seconds=900)
        assert [one.timestamp_ms for one in world.table().snapshots()] == changes
    (row,) = (one for one in world.store.snapshot().segments if one.version == "v300")
    world.store.segments.mark_unused([row.id])
    kill_unused(world)
    world.clock.advance(seconds=900)
    (shown_one,) = world.table().snapshots()
    assert changes[-1] < shown_one.timestamp_ms <= world.clock.now_ms() - 900_000


def test_a_slow_build_is_not_waited_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_tables, "SLOW_S", -1.0)
    world.publish("2024-10-01/2024-10-02", 100)
    first = world.tables.version("clicks")
    world.publish("2024-10-02/2024-10-03", 200)
    assert world.tables.version("clicks") is first
    until_s = time.monotonic() + 120
    while (second := world.tables.version("clicks")) is first:
        assert time.monotonic() < until_s
        world.clock.advance(seconds=0.01)
        time.sleep(0.01)
    assert numbers(StaticTable.from_metadata(second.location)) == hours(100) + hours(200)


def test_a_slow_table_is_loaded_without_finding_its_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_tables, "SLOW_S", -1.0)
    world.publish("2024-10-01/2024-10-02", 100)
    first = world.tables.version("clicks")
    tables = world.source.tables
    finds: list[str] = []
    monkeypatch.setattr(
        world.source, "tables", lambda: (finds.append(current_thread().name), tables())[1]
    )
    assert world.tables.version("clicks") is first
    (row,) = world.store.snapshot().segments
    world.store.segments.mark_unused([row.id])
    assert world.tables.version("clicks") is first
    until_s = time.monotonic() + 120
    while world.ask(CLICKS).status_code != 404:
        assert time.monotonic() < until_s
        world.clock.advance(seconds=0.01)
        time.sleep(0.01)
    assert finds[0] == "iceberg"


def test_a_table_without_rows_is_not_found(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.table()
    (row,) = world.store.snapshot().segments
    world.store.segments.mark_unused([row.id])
    answer = world.ask(CLICKS)
    assert answer.status_code == 404
    assert "penstock segment mark-used" in answer.json()["error"]["message"]


def test_the_files_of_a_dropped_datasource_are_deleted_later(world: World) -> None:
    for name in ("clicks", "other"):
        world.publish("2024-10-01/2024-10-02", 100, name=name)
        world.table(name)
    folder = world.folder / "deep/~iceberg"
    # Of a client whose commit never came.
    abandoned = folder / "other/data/x.parquet"
    abandoned.parent.mkdir()
    abandoned.write_bytes(b"1")
    os.utime(abandoned, (1, 1))
    (folder / "clicks/data").symlink_to(world.folder)
    world.store.segments.mark_unused_within("clicks")
    passed_s = 0
    while list(folder.glob("clicks/metadata/*")):
        assert passed_s < 2 * catalog_tables.DROPPED_S
        world.clock.wait_for_waiting(1)
        world.clock.advance(seconds=300)
        passed_s += 300
    assert passed_s > catalog_tables.DROPPED_S
    assert list(folder.glob("other/metadata/*"))
    assert (abandoned.exists(), (world.folder / "deep").exists()) == (False, True)
    (folder / "clicks/data").unlink()
    world.store.segments.mark_used_within("clicks")
    assert numbers(world.table()) == hours(100)


def kill_unused(world: World) -> None:
    """Delete the rows of unused segments, as a kill does before it deletes their files."""
    unused = world.store.segments.unused(changed_before_ms=world.clock.now_ms() + 1)
    assert world.store.segments.kill([row.id for row in unused]).files_free


def shown(table: Table) -> list[int]:
    return [one.snapshot_id for one in table.snapshots()]


def test_snapshots_are_not_shown_before_a_kill_deletes_their_files(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    first = world.table()
    world.publish("2024-10-01/2024-10-02", 200, version="v2")
    second = world.table()
    world.publish("2024-10-02/2024-10-03", 300)
    third = world.table()
    assert len(shown(third)) == 3
    old = min(world.store.segments.every(), key=lambda row: (row.interval.start_ms, row.version))
    world.store.segments.mark_unused([old.id])
    assert len(shown(world.table())) == 3
    kill_unused(world)
    after = world.table()
    assert shown(after) == [after.current_snapshot().snapshot_id]  # type: ignore[union-attr]
    assert numbers(after) == hours(200) + hours(300)
    for one in (first, second):
        id_ = one.current_snapshot().snapshot_id  # type: ignore[union-attr]
        answer = world.ask(f"{CLICKS}/plan", {"snapshot-id": id_})
        assert answer.status_code == 404
        assert f"files of the snapshot {id_} are deleted" in answer.text
    written = wait_for_snapshots(world, 1)
    assert shown(written) == shown(after)


def wait_for_snapshots(world: World, count: int) -> Table:
    """Wait until the metadata file has a number of snapshots; a thread writes it."""
    for _ in range(500):
        stored = StaticTable.from_metadata(world.table().metadata_location)
        if len(stored.snapshots()) == count:
            return stored
        time.sleep(0.01)
    raise AssertionError(f"the metadata file has {shown(stored)}")


@pytest.mark.parametrize("slow_s", [catalog_tables.SLOW_S, -1.0], ids=["quick", "slow"])
def test_a_kill_of_current_files_has_the_table_built_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.publish("2024-10-02/2024-10-03", 200)
    monkeypatch.setattr(catalog_tables, "SLOW_S", slow_s)
    before = world.table()
    assert numbers(before) == hours(100) + hours(200)
    (first, _) = sorted(world.store.segments.every(), key=lambda row: row.interval.start_ms)
    world.store.segments.mark_unused([first.id])
    kill_unused(world)  # no time passes: the table would rest
    after = world.table()
    assert shown(after) == [after.current_snapshot().snapshot_id]  # type: ignore[union-attr]
    assert shown(after) != shown(before)
    stored = StaticTable.from_metadata(after.metadata_location)
    assert numbers(stored) == hours(200)


def test_a_kill_of_files_that_no_snapshot_has_changes_nothing(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.store.segments.mark_unused_within("clicks")
    world.publish("2024-10-02/2024-10-03", 200)
    before = world.table()
    world.publish("2024-10-03/2024-10-04", 300)
    assert len(shown(world.table())) == 2
    kill_unused(world)
    assert shown(world.table())[0] == before.current_snapshot().snapshot_id  # type: ignore[union-attr]
