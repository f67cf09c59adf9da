"""Delta tables over a real metadata store and real files, by their routes, with two routers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from penstock.core.errors import StorageUnavailable
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.table_log import LOG_KEPT_MS
from penstock.segments.delta.table_registry import KillBounds
from penstock.services.api.delta import delta_tables
from penstock.services.api.delta.delta_routes import DeltaRoutes
from penstock.services.api.delta.delta_tables import FAILED_S, POLL_S, UPKEEP_S, DeltaTables
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.segments.delta_kit import NaiveReader
from tests.services.published_kit import ROWS, PublishedWorld
from tests.spark.servers_kit import Served

CLICKS = "/penstock/v1/datasources/clicks/delta"


class World(PublishedWorld):
    """A router with Delta tables, and others if asked for."""

    def __init__(self, folder: Path, store: MetadataStore, clock: VirtualClock) -> None:
        super().__init__(folder, store, clock)
        self.stack = ExitStack()
        self.tables = self.router()
        self.served = self.stack.enter_context(Served(DeltaRoutes(self.tables).routes()))

    def router(self) -> DeltaTables:
        """Start another router's thread."""
        made = DeltaTables(self.source, self.store, self.deep_storage, self.clock)
        made.start()
        self.stack.callback(made.stop)
        return made

    def close(self) -> None:
        self.stack.close()

    def ask(self, method: str = "GET", path: str = CLICKS) -> httpx.Response:
        return httpx.request(method, self.served.url + path, timeout=30)

    def reader(self) -> NaiveReader:
        return NaiveReader(Path(self.deep_storage) / "clicks")

    def numbers(self) -> list[int]:
        return self.reader().rows("n")

    def wait_for(self, check: Callable[[], object], step_s: float = POLL_S) -> None:
        """Let virtual time pass until something is true."""
        end_s = time.monotonic() + 120
        while time.monotonic() < end_s:
            if check():
                return
            self.clock.advance(seconds=step_s)
            time.sleep(0.005)
        raise AssertionError(f"it is not so: {self.ask().text}")

    def state(self) -> str:
        return str(self.ask().json()["state"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = VirtualClock()
    with open_metadata(tmp_path, clock) as store, closing(World(tmp_path, store, clock)) as made:
        yield made


def hours(first: int, count: int = ROWS) -> list[int]:
    return list(range(first, first + count))


def test_an_enabled_table_follows_each_publish(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    assert world.ask().json()["state"] == "disabled"
    answer = world.ask("POST").json()
    assert (answer["state"], answer["reason"]) == ("current", "")
    assert answer["location"] == f"{world.deep_storage}/clicks"
    assert answer["table"]["rows"] == ROWS
    assert world.numbers() == hours(100)
    world.publish("2024-10-02/2024-10-03", 200)
    world.wait_for(lambda: world.reader().version == 1)
    assert world.numbers() == hours(100) + hours(200)
    world.wait_for(lambda: world.ask().json()["table"]["version"] == 1)
    assert world.ask("POST").json()["table"]["version"] == 1, "it is enabled already"


def test_rows_of_a_segment_that_is_visible_in_part_are_copied(world: World) -> None:
    world.publish("2024-10-01/2024-10-04", 100)
    world.ask("POST")
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    world.wait_for(lambda: world.reader().version == 1)
    expected = hours(100, ROWS // 3) + hours(100 + 2 * ROWS // 3, ROWS // 3) + hours(200)
    assert world.numbers() == expected
    world.wait_for(lambda: world.ask().json()["table"]["copies"] == 1)


def test_rows_of_running_tasks_follow_when_they_are_published(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.announce("2024-10-02/2024-10-03", 200)
    assert world.ask("POST").json()["table"]["rows"] == ROWS


def test_segments_that_become_unused_are_removed_from_the_table(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    (row,) = world.store.snapshot().segments
    world.store.segments.mark_unused([row.id])
    world.wait_for(lambda: world.reader().version == 1)
    assert world.numbers() == []
    assert len(world.reader().removed) == 1


def test_two_routers_write_each_version_once(world: World) -> None:
    other = world.router()
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    for number in range(2, 6):
        world.publish(f"2024-10-0{number}/2024-10-0{number + 1}", number * 100)
        world.wait_for(
            lambda: all(
                (found := one.status("clicks").sums) and found.rows == world.rows_published
                for one in (world.tables, other)
            )
        )
        assert len(world.numbers()) == world.rows_published
    assert world.reader().version == 4


def test_a_lost_log_is_reported_and_rebuilt(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    log = Path(world.deep_storage) / "clicks" / "_delta_log"
    for path in log.iterdir():
        path.unlink()
    world.wait_for(lambda: world.state() == "damaged", UPKEEP_S / 4)
    reason = world.ask().json()["reason"]
    assert "penstock table delta rebuild clicks" in reason
    assert caplog.text.count("the Delta table of clicks is not up to date") == 1
    world.publish("2024-10-02/2024-10-03", 200)
    world.clock.advance(seconds=FAILED_S)
    assert list(log.iterdir()) == []
    answer = world.ask("POST", f"{CLICKS}/rebuild").json()
    assert (answer["state"], answer["table"]["version"]) == ("current", 0)
    assert world.numbers() == hours(100) + hours(200)


def test_a_restored_log_is_current_again(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    (entry,) = (Path(world.deep_storage) / "clicks" / "_delta_log").iterdir()
    content = entry.read_bytes()
    entry.write_bytes(content[:50])
    world.wait_for(lambda: world.state() == "damaged", UPKEEP_S / 4)
    entry.write_bytes(content)
    world.wait_for(lambda: world.state() == "current", FAILED_S)


def test_a_deep_storage_that_fails_for_a_while_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")

    def refuse(*_: object) -> bool:
        raise StorageUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaFiles, "create", refuse)
        world.publish("2024-10-02/2024-10-03", 200)
        world.wait_for(lambda: world.state() == "failing")
        assert world.ask().json()["reason"] == "it is away"
    world.wait_for(lambda: world.state() == "current", FAILED_S)
    assert world.numbers() == hours(100) + hours(200)


def test_a_disabled_table_is_deleted_and_can_be_enabled_again(world: World) -> None:
    world.publish("2024-10-01/2024-10-03", 100)
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    world.ask("POST")
    folder = Path(world.deep_storage) / "clicks"
    assert world.ask("DELETE").json()["state"] == "deleting"
    assert not (folder / "_delta_log").exists()
    assert world.ask("DELETE").status_code == 404
    world.wait_for(lambda: world.state() == "disabled", UPKEEP_S)
    assert not (folder / "_delta_rows").exists()
    assert world.ask("POST").json()["table"]["version"] == 0
    assert world.numbers() == hours(100, ROWS // 2) + hours(200)


def test_a_table_that_is_enabled_while_it_is_deleted_is_a_new_one(world: World) -> None:
    world.publish("2024-10-01/2024-10-03", 100)
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    world.ask("POST")
    before = world.reader().fields["metaData"]["id"]
    world.ask("DELETE")
    assert world.ask("POST").json()["state"] == "current"
    assert world.reader().fields["metaData"]["id"] != before
    world.wait_for(
        lambda: len(list(Path(world.deep_storage).rglob("_delta_rows/*"))) == 1, UPKEEP_S
    )


def test_columns_that_differ_in_case_refuse_a_table(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100, columns=("n", "N"))
    answer = world.ask("POST")
    assert answer.json()["errorCode"] == "conflict"
    assert "differ only in case" in answer.json()["error"]
    assert world.state() == "disabled"


def test_a_table_that_gets_such_columns_keeps_its_last_version(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    world.publish("2024-10-02/2024-10-03", 200, columns=("n", "N"))
    world.wait_for(lambda: world.state() == "refused")
    answer = world.ask().json()
    assert "differ only in case" in answer["reason"]
    (sample,) = world.tables.samples()
    assert (sample.labels, sample.value) == ((("datasource", "clicks"),), 0.0)
    assert answer["table"]["version"] == 0
    assert world.numbers() == hours(100)


def test_changes_are_in_the_audit_log(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    world.ask("POST", f"{CLICKS}/rebuild")
    world.ask("DELETE")
    assert [row.key for row in world.store.audit.list(type="delta")] == ["clicks"] * 3


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", ""), ("DELETE", ""), ("POST", "/rebuild")],
)
def test_a_datasource_without_data_or_table_is_not_found(
    world: World, method: str, path: str
) -> None:
    assert world.ask(method, CLICKS + path).status_code == 404


def test_the_rate_is_bounded_by_the_time_that_an_entry_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    maintained = world.tables._maintain
    begun: list[float] = []

    def slow(*asked: object) -> None:
        begun.append(world.clock.monotonic_s())
        world.clock.advance(seconds=10)
        maintained(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(world.tables, "_maintain", slow)
    world.publish("2024-10-02/2024-10-03", 200)
    world.wait_for(lambda: len(begun) >= 2)
    assert begun[1] - begun[0] >= 10 + delta_tables.REST_FACTOR * 10


def test_a_list_of_tables_of_an_unknown_form_is_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    stored = world.store.config.get("delta")
    value = json.dumps({"tables": {"clicks": {"id": "x", "goal": "paint it"}}}).encode()
    assert world.store.config.compare_and_set("delta", stored, value)
    assert world.ask().json()["errorCode"] == "corruptData"
    world.wait_for(lambda: "unknown form" in caplog.text)


def test_commands_enable_show_rebuild_and_delete_a_table(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish("2024-10-01/2024-10-03", 100)
    world.publish("2024-10-02/2024-10-03", 200, version="v2")
    monkeypatch.setenv("PENSTOCK_URL", world.served.url)

    def out(*words: str, code: int = exit_codes.OK) -> list[str]:
        assert run(["table", "delta", *words]) == code
        return capsys.readouterr().out.splitlines()

    assert out("status", "clicks") == ["clicks has no Delta table"]
    shown = out("enable", "clicks")
    assert shown[:2] == [
        f"{world.deep_storage}/clicks: current",
        "version 0, with 36 rows in 2 files",
    ]
    assert shown[2].startswith("1 file with ")
    assert shown[2].endswith(" copied from segments that are visible in part")
    assert out("rebuild", "clicks")[0].endswith(": current")
    assert json.loads("\n".join(out("status", "clicks", "--json")))["state"] == "current"
    assert out("disable", "clicks", "--yes") == ["deleted the Delta table of clicks"]
    assert out("status", "clicks") == [f"{world.deep_storage}/clicks: deleting"]
    assert out("rebuild", "clicks", code=exit_codes.FAILED) == []
    assert run(["table", "delta", "status", "a/b"]) == exit_codes.USAGE


def test_the_status_of_a_table_that_is_not_current_is_a_failed_command(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    world.publish("2024-10-02/2024-10-03", 200, columns=("n", "N"))
    world.wait_for(lambda: world.state() == "refused")
    monkeypatch.setenv("PENSTOCK_URL", world.served.url)
    assert run(["table", "delta", "status", "clicks"]) == exit_codes.FAILED
    assert "differ only in case" in capsys.readouterr().err


def killed(world: World) -> list[str]:
    """Delete the rows of unused segments as kills do; return their ids."""
    unused = world.store.segments.unused(changed_before_ms=world.clock.now_ms() + 1)
    bounds = KillBounds.read(world.store)
    done = world.store.segments.kill([row.id for row in unused], changed_until=bounds.of)
    return [row.id for row in done.rows]


def test_files_of_versions_that_can_be_read_are_not_killed(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.publish("2024-10-01/2024-10-02", 300, name="other")
    world.ask("POST")
    world.publish("2024-10-01/2024-10-02", 200, version="v2")
    world.wait_for(lambda: world.reader().version == 1)
    rows = {(row.datasource, row.version): row.id for row in world.store.segments.every()}
    old, other = rows["clicks", "v1"], rows["other", "v1"]
    world.store.segments.mark_unused([old, other])
    assert killed(world) == [other], "it has no table"
    log = Path(world.deep_storage) / "clicks" / "_delta_log"
    world.wait_for(lambda: any(log.glob("*.checkpoint.parquet")), UPKEEP_S)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    assert killed(world) == []
    assert NaiveReader(log.parent, last=0).rows("n") == hours(100)
    behind_s = checkpoint.stat().st_mtime - world.clock.now_ms() / 1000
    world.clock.advance(seconds=max(0.0, behind_s) + LOG_KEPT_MS / 1000)
    found: list[str] = []
    world.wait_for(lambda: found.extend(killed(world)) or found, UPKEEP_S)
    assert found == [old]
    assert not (log / f"{0:020d}.json").exists()
    newest = max(log.glob("*.checkpoint.parquet"))
    assert NaiveReader(log.parent, int(newest.name.split(".")[0])).rows("n") == hours(200)


def test_files_of_a_table_that_is_deleted_may_be_killed(world: World) -> None:
    world.publish("2024-10-01/2024-10-02", 100)
    world.ask("POST")
    (row,) = world.store.segments.every()
    world.store.segments.mark_unused([row.id])
    assert killed(world) == []
    world.ask("DELETE")
    world.wait_for(lambda: world.state() == "disabled")
    assert killed(world) == [row.id]
