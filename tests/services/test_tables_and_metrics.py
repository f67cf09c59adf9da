"""What SQL reads and what the router's metrics say, over a real metadata store."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import httpx
import orjson
import pytest
from starlette.routing import BaseRoute

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict
from penstock.core.intervals import Interval
from penstock.core.metrics import Sample
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections, config_name, dump
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.router import TableRoutes
from penstock.services.api.router_metrics import RouterMetrics
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.metrics_text import metrics_text
from penstock.services.options.option_values import HostPort
from penstock.spark.tables import Feeder, reason_without_rows, why_empty
from penstock.spark.tables.visible_files import DECLARED_FOR_S, VisibleFiles
from penstock.storage.metadata import (
    AnnouncedFile,
    CountsRow,
    MetadataStore,
    PublishRequest,
    TaskRow,
)
from penstock.storage.metadata.tables.stream_cursors import CURSORS_MAX
from penstock.testing.clock import VirtualClock
from reference.metrics import differences
from tests.harness.access_kit import with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.places_kit import FixedPlaces
from tests.spark.servers_kit import Served

JANUARY = Interval.parse("2013-01-01/2013-02-01")
COLUMNS = (("__time", "timestamp"), ("n", "bigint"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with open_metadata(tmp_path, VirtualClock()) as opened:
        yield opened


def published(store: MetadataStore, folder: Path, version: str) -> Segment:
    local = folder / "local.parquet"
    local.write_bytes(b"x")
    name = SegmentId("x", JANUARY, version)
    deep_store = DeepStore(str(folder / "deep"))
    deep_store.make_root()
    pushed = deep_store.push(str(local), name, "u")
    segment = Segment(
        datasource="x",
        interval=JANUARY,
        version=version,
        load_spec=pushed.load_spec,
        shard_spec=ShardSpec(0, 1),
        size=pushed.size,
        total_rows=5,
        columns=COLUMNS,
    )
    assert store.publish(PublishRequest("t", "x", (segment.to_row(),))).ok
    return segment


def table_routes(source: VisibleFiles, store: MetadataStore, folder: Path) -> list[BaseRoute]:
    return TableRoutes(source, store, DeepStore(str(folder / "deep"))).routes()


def announced(store: MetadataStore) -> None:
    store.tasks.insert_new([TaskRow("t", "x", "index_penstock", "g", {})])
    payload = {"columns": [list(column) for column in COLUMNS]}
    assert store.announce("t", "x", "s", [AnnouncedFile("/tasks/t/1.parquet", JANUARY, 7, payload)])


def test_sql_reads_visible_segments_and_announced_files(
    store: MetadataStore, tmp_path: Path
) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    assert dict(source.tables().files) == {}
    published(store, tmp_path, "v1")
    second = published(store, tmp_path, "v2")
    announced(store)
    tables = source.tables()
    assert tables.revision == source.revision()
    segment, file = tables.files["x"]
    assert segment.path == str(tmp_path / "deep" / str(second.load_spec["path"]))
    assert Path(segment.path).exists()
    assert segment.clip is None
    assert file.path == "/tasks/t/1.parquet"
    assert segment.columns == file.columns == COLUMNS
    assert source.tables() is tables


def test_what_is_announced_does_not_cost_a_look_at_every_segment(
    store: MetadataStore, tmp_path: Path
) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    published(store, tmp_path, "v1")
    (before,) = source.tables().files["x"]
    announced(store)
    assert source.tables().files["x"][0] is before
    second = published(store, tmp_path, "v2")
    path = str(tmp_path / "deep" / str(second.load_spec["path"]))
    assert source.tables().files["x"][0].path == path


@pytest.mark.anyio
async def test_a_datasource_without_rows_is_known_by_its_supervisor(
    store: MetadataStore, tmp_path: Path
) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    spec = {"spec": {"dataSchema": {"dataSource": "Flights"}}}
    store.supervisors.put("odd", {"spec": []})
    store.supervisors.put("a", {**spec, "suspended": True})
    store.supervisors.put("b", {**spec, "suspended": False})
    feeders = source.feeders("flights")
    assert feeders == [
        Feeder("a", suspended=True, datasource="Flights"),
        Feeder("b", suspended=False, datasource="Flights"),
    ]
    assert "supervisor b exists and its first rows will follow" in reason_without_rows(
        "flights", feeders
    )
    assert "penstock supervisor resume a" in reason_without_rows("flights", feeders[:1])
    assert source.feeders("others") == []
    app = application(table_routes(source, store, tmp_path), access=with_token(None))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        answer = await client.get("/penstock/v1/datasources/Flights/files")
        assert answer.status_code == 404
        assert "will follow" in answer.json()["error"]
        answer = await client.get("/penstock/v1/datasources/others/files")
        assert "known are: none yet" in answer.json()["error"]


@pytest.mark.anyio
async def test_the_files_of_an_earlier_revision_are_listed(
    store: MetadataStore, tmp_path: Path
) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    first = published(store, tmp_path, "v1")
    before = store.revision()
    second = published(store, tmp_path, "v2")
    now = store.revision()
    announced(store)
    app = application(table_routes(source, store, tmp_path), access=with_token(None))
    transport = httpx.ASGITransport(app)
    path = "/penstock/v1/datasources/x/files"
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:

        async def files_at(revision: int) -> list[str]:
            answer = (await client.get(path, params={"revision": revision})).json()
            assert answer["revision"] == revision
            return [file["path"] for file in answer["files"]]

        assert await files_at(before) == [location(first, tmp_path)]
        assert await files_at(now) == [location(second, tmp_path)]
        assert await files_at(0) == []
        assert len((await client.get(path)).json()["files"]) == 2
        store.segments.mark_unused([str(first.id)])
        store.segments.kill([str(first.id)])
        gone = await client.get(path, params={"revision": before})
        assert (gone.status_code, "use revision" in gone.json()["error"]) == (404, True)
        later = await client.get(path, params={"revision": 99})
        assert later.status_code == 400
        assert "there is no revision 99: the newest one is" in later.json()["error"]
        unknown = await client.get(path.replace("/x/", "/y/"), params={"revision": now})
        assert "known are" in unknown.json()["error"]


@pytest.mark.anyio
async def test_changes_after_a_revision_are_listed(store: MetadataStore, tmp_path: Path) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    first = published(store, tmp_path, "v1")
    before = store.revision()
    second = published(store, tmp_path, "v2")
    announced(store)
    app = application(table_routes(source, store, tmp_path), access=with_token(None))
    transport = httpx.ASGITransport(app)
    path = "/penstock/v1/datasources/x/changes"
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        page = (await client.get(path, params={"revision": before, "limit": 1})).json()
        [commit] = page.pop("commits")
        assert page == {
            "datasource": "x",
            "revision": store.revision(),
            "newest": commit["revision"],
            "next": commit["revision"],
            "more": False,
        }
        assert [(one["change"], one["path"]) for one in commit["changes"]] == [
            ("delete", location(first, tmp_path)),
            ("insert", location(second, tmp_path)),
        ]
        only_now = (await client.get(path)).json()
        assert (only_now["revision"], only_now["commits"]) == (store.revision(), [])
        whole = (await client.get(path, params={"revision": 0, "limit": 1})).json()
        assert (whole["next"], whole["more"], len(whole["commits"])) == (before, True, 1)
        for wrong in ({"limit": 0}, {"revision": 99}, {"revision": "-1"}, {"revision": "x"}):
            assert (await client.get(path, params=wrong)).status_code == 400
        store.segments.mark_unused([str(first.id)])
        store.segments.kill([str(first.id)])
        gone = await client.get(path, params={"revision": before})
        assert (gone.status_code, "use revision" in gone.json()["error"]) == (404, True)
        nothing = (await client.get(path.replace("/x/", "/y/"), params={"revision": 0})).json()
        assert nothing["commits"] == []


@pytest.mark.anyio
async def test_cursors_of_streams_are_set_listed_and_deleted(
    store: MetadataStore, tmp_path: Path
) -> None:
    source = VisibleFiles(store, str(tmp_path / "deep"))
    published(store, tmp_path, "v1")
    app = application(table_routes(source, store, tmp_path), access=with_token(None))
    transport = httpx.ASGITransport(app)
    path, now = "/penstock/v1/datasources/x/cursors", store.revision()
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:

        async def behind() -> dict[str, int]:
            answer = (await client.get(path)).json()
            return {one["cursor"]: one["rowsBehind"] for one in answer["cursors"]}

        async def put(cursor: str, revision: object, rows: object = 0) -> int:
            body = {"revision": revision, "rowsLeft": rows}
            return (await client.put(f"{path}/{cursor}", json=body)).status_code

        assert await put("a", now - 1) == await put("b", now, 3) == 200
        assert await behind() == {"a": 5, "b": 3}
        published(store, tmp_path, "v2")
        # The segment that was replaced is still used: the janitor has not been there.
        assert await behind() == {"a": 10, "b": 8}
        assert await put("a", now + 1) == 200
        assert await behind() == {"a": 0, "b": 8}
        for revision, rows in ((-1, 0), ("1", 0), (1, None), (True, 0), (2**63, 0)):
            assert await put("a", revision, rows) == 400
        assert await put("a b", now) == 400
        assert await put("a", now + 9) == 400
        assert (await client.delete(f"{path}/a")).status_code == 200
        gone = await client.delete(f"{path}/a")
        assert (gone.status_code, "its cursors are: b" in gone.json()["error"]) == (404, True)
        for number in range(CURSORS_MAX - 1):
            assert await put(f"c{number}", now) == 200
        assert await put("d", now) == 400
        assert await put("b", now) == 200
    assert store.stream_cursors.list("y") == []


def test_a_cursor_belongs_to_the_principal_that_has_set_it_first(store: MetadataStore) -> None:
    cursors = store.stream_cursors
    cursors.move("x", "a", (0, 1), "user:ann", may_manage=False)
    for change in (
        lambda: cursors.move("x", "a", (0, 2), "user:eve", may_manage=False),
        lambda: cursors.delete("x", "a", "user:eve", may_manage=False),
    ):
        with pytest.raises(Conflict, match="belongs to another principal"):
            change()
    cursors.move("x", "a", (0, 3), "user:admin", may_manage=True)
    cursors.move("x", "a", (0, 4), "user:ann", may_manage=False)
    # Names of datasources may have any characters.
    cursors.move("x/a", "b", (0, 5), "user:eve", may_manage=False)
    cursors.move("x_", "a", (0, 6), "user:eve", may_manage=False)
    cursors.move("xy", "a", (0, 7), "user:eve", may_manage=False)
    assert [(one.owner, one.rows_behind) for one in cursors.list("x")] == [("user:ann", 4)]
    assert [one.rows_behind for one in cursors.list("x_")] == [6]
    assert sorted(one.datasource for one in cursors.list()) == ["x", "x/a", "x_", "xy"]
    assert cursors.delete("x", "a", "user:admin", may_manage=True)
    assert not cursors.delete("x", "a", "user:ann", may_manage=False)


def test_the_command_line_lists_and_deletes_cursors(
    store: MetadataStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published(store, tmp_path, "v1")
    store.stream_cursors.move("x", "copies", (0, 0), "", may_manage=False)
    source = VisibleFiles(store, str(tmp_path / "deep"))
    with Served(table_routes(source, store, tmp_path)) as served:
        monkeypatch.setenv("PENSTOCK_URL", served.url)
        assert run(["table", "cursor", "list", "x", "--json"]) == 0
        (row,) = orjson.loads(capsys.readouterr().out)
        assert (row["cursor"], row["rows behind"]) == ("copies", 5)
        assert run(["table", "cursor", "delete", "x", "copies", "--yes"]) == 0
        assert run(["table", "cursor", "delete", "x", "copies", "--yes"]) == exit_codes.FAILED
        assert "its cursors are: none" in capsys.readouterr().err


def location(segment: Segment, folder: Path) -> str:
    return str(folder / "deep" / str(segment.load_spec["path"]))


@pytest.mark.anyio
async def test_a_datasource_whose_segments_are_unused_says_how_they_come_back(
    store: MetadataStore, tmp_path: Path
) -> None:
    """Only the names of other datasources were told, as if there never had been one."""
    source = VisibleFiles(store, str(tmp_path / "deep"))
    segment = published(store, tmp_path, "v1")
    assert not source.is_dropped("x")
    assert why_empty(source, "others") == ""
    store.segments.mark_unused([str(segment.id)])
    assert source.is_dropped("x")
    app = application(table_routes(source, store, tmp_path), access=with_token(None))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
        said = (await client.get("/penstock/v1/datasources/x/files")).json()["error"]
    assert said.startswith('all segments of "x" are unused: penstock segment list x --unused')
    assert "penstock segment mark-used x --interval" in said
    # Rows that come do not bring back those that are gone: both are told.
    feeding = {"spec": {"dataSchema": {"dataSource": "x"}}, "suspended": False}
    store.supervisors.put("b", feeding)
    said = why_empty(source, "x")
    assert "status b or the page Supervisors whether its tasks wait for slots; all segm" in said


def by(name: str, column: str = "n") -> dict[str, object]:
    return {"type": "aggregate", "name": name, "groupingColumns": [column]}


def test_projections_come_from_supervisors_and_from_batch_tasks(
    store: MetadataStore, tmp_path: Path
) -> None:
    clock = VirtualClock()
    tables = VisibleFiles(store, str(tmp_path), clock)
    assert list(tables.projections("x")) == []
    store.config.compare_and_set(
        config_name("x"), None, dump([DeclaredProjections(by("a")), DeclaredProjections(by("b"))])
    )
    schema = {"dataSource": "x", "projections": [by("b", "m")], "metricsSpec": [{"name": "m"}]}
    store.supervisors.put("s", {"type": "penstock", "spec": {"dataSchema": schema}})
    store.supervisors.put("odd", {"type": "penstock", "spec": 5})
    other = {"dataSource": "y", "projections": [by("c")]}
    store.supervisors.put("t", {"type": "penstock", "spec": {"dataSchema": other}})
    # Nothing but speed depends on them: they are read again after some seconds.
    assert list(tables.projections("x")) == []
    clock.advance(DECLARED_FOR_S)
    assert list(tables.projections("x")) == [
        DeclaredProjections(by("a")),
        DeclaredProjections(by("b", "m"), ("m",)),
    ]
    assert [one.name for one in tables.projections("y")] == ["c"]
    store.supervisors.terminate("s")
    clock.advance(DECLARED_FOR_S)
    assert list(tables.projections("x")) == [
        DeclaredProjections(by("a")),
        DeclaredProjections(by("b")),
    ]


def test_metrics_count_what_the_metadata_has_and_say_who_is_down(
    store: MetadataStore, tmp_path: Path
) -> None:
    places = FixedPlaces(overlord=None, broker=HostPort("127.0.0.1", 1))
    metrics = RouterMetrics(store, places, places, clock=SystemClock())
    published(store, tmp_path, "v1")
    announced(store)
    store.stream_cursors.move("x", "copies", (0, 0), "", may_manage=False)
    found: dict[tuple[str, ...], object] = {}
    for source in metrics.sources():
        for sample in source():
            assert isinstance(sample, Sample)
            found[sample.name, *(value for _, value in sample.labels)] = sample.value
    assert found["penstock_segments", "x"] == 1
    assert found["penstock_segment_rows", "x"] == 5
    assert found["penstock_announced_rows", "x"] == 7
    assert found["penstock_datasource_cursor_lag", "x", "copies"] == 5
    assert found["penstock_part_up", "broker"] == 0
    assert found["penstock_part_up", "overlord"] == 0
    text = metrics_text(metrics.sources())
    assert b'penstock_segment_bytes{datasource="x"} 1.0' in text
    assert list(differences(text.decode())) == []


class Overlord(http.server.BaseHTTPRequestHandler):
    """Answers as an overlord of three streams and one that compacts; keeps what it was asked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        name = urlsplit(self.path).path.rpartition("/")[2]
        supervisors: list[dict[str, object]] = [
            {"id": f"s{n}", "type": "penstock", "healthy": n != 1, "aggregateLag": n * 10}
            for n in range(3)
        ]
        supervisors[2]["maxLagMillis"] = 1500
        supervisors[0]["maxLagMillis"] = None
        supervisors.append({"id": "compacts", "type": "autocompact", "healthy": True})
        body = orjson.dumps({"supervisor": supervisors, "runningTasks": [{}]}.get(name, []))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_given: object) -> None:
        """Say nothing."""


def test_a_scrape_asks_for_all_supervisors_at_once(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Overlord, "asked", [])
    counts = CountsRow(processed=5, unparseable=2)
    end = {0: 7}
    store.publish(
        PublishRequest(
            "t",
            "x",
            (),
            supervisor_id="s2",
            topic_id="i",
            start_offsets={0: 0},
            end_offsets=end,
            counts=counts,
        )
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Overlord)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = HostPort("127.0.0.1", server.server_address[1])
        places = FixedPlaces(address, HostPort("127.0.0.1", 1))
        metrics = RouterMetrics(store, places, places, clock=SystemClock())
        samples = list(metrics.of_overlord())
        assert list(differences(metrics_text([lambda: samples]).decode())) == []
        found = {
            (sample.name, *(value for _, value in sample.labels)): sample.value
            for sample in samples
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(Overlord.asked) == 3  # supervisors, running tasks, pending ones
    assert [found["penstock_supervisor_lag", f"s{n}"] for n in range(3)] == [0, 10, 20]
    assert found["penstock_supervisor_lag_seconds", "s2"] == 1.5
    # Not known, and not wanted.
    assert not {("penstock_supervisor_lag_seconds", name) for name in ("s0", "s1")} & found.keys()
    assert [found["penstock_supervisor_healthy", f"s{n}"] for n in range(3)] == [1, 0, 1]
    assert [found["penstock_supervisor_rows", f"s{n}", "processed"] for n in (0, 2)] == [0, 5]
    assert found["penstock_supervisor_rows", "s2", "unparseable"] == 2
    assert found["penstock_supervisor_healthy", "compacts"] == 1
    assert ("penstock_supervisor_lag", "compacts") not in found
    assert found["penstock_tasks", "running"] == 1
    assert store.all_counts() == {"s2": store.counts("s2")}


def test_the_broker_tells_its_dead_threads_and_the_age_of_its_data(store: MetadataStore) -> None:
    stats = {
        "unsynced": {"age_ms": 2_500, "limit_ms": 20_000},
        "thread_deaths": {"retention": 2},
        "access": {"access_denied_total": 3, "audit_lost_total_deleted": 4, "other": 5},
        "topics": [
            {
                "topic_name": "t",
                "repeated_publishes": 6,
                "partitions": [{"partition": 1, "latest": 9, "cursors": {"copies": 7}}],
            }
        ],
    }

    class Broker(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = orjson.dumps(stats)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broker)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = HostPort("127.0.0.1", server.server_address[1])
        places = FixedPlaces(address)
        metrics = RouterMetrics(store, places, places, clock=SystemClock())
        samples = list(metrics.of_broker())
        assert list(differences(metrics_text([lambda: samples]).decode())) == []
        found = {(one.name, one.labels): one.value for one in samples}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    labels = (("role", "broker"), ("thread", "retention"))
    assert found["penstock_thread_deaths_total", labels] == 2
    assert found["penstock_broker_unsynced_seconds", ()] == 2.5
    assert found["penstock_topic_repeated_publishes_total", (("topic", "t"),)] == 6
    of_cursor = (("topic", "t"), ("partition", "1"), ("cursor", "copies"))
    assert found["penstock_topic_cursor_lag", of_cursor] == 2
    assert found["penstock_broker_access_denied_total", ()] == 3
    assert found["penstock_broker_audit_lost_total", (("reason", "deleted"),)] == 4
    assert not any("waiting" in name or "not_written" in str(labels) for name, labels in found)
