"""The routes of lookups: rights, versions, refreshes, Druid's forms, and what they may not read."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, delete

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.services.api import lookups
from penstock.services.api.asgi import application
from penstock.services.api.lookups import DRUID, LOOKUPS, LookupTableRoutes, SeenLookups
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.lookup_service import LookupRefresher, LookupService
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.sampler_process import SamplerProcesses
from penstock.storage.lookup_rows import LookupTables, written_rows
from penstock.storage.metadata import MetadataStore, schema
from penstock.storage.metadata.tables.lookups import LookupContent
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.services.overlord_kit import Api

RULES = """
[roles.keeper]
allow = ["read,write lookup:shop*"]
[roles.outside]
allow = ["read,write lookup:*", "read-external system:inputs"]
[roles.reader]
allow = ["read lookup:*"]
deny = ["read lookup:secret*"]
"""
FILES: Mapping[str, Any] = {
    "inputSource": {"type": "http", "uris": ["https://h/x?token=abc"]},
    "inputFormat": {"type": "json"},
}


def table(values: Mapping[str, str | None]) -> pa.Table:
    return pa.table({"k": list(values), "v": pa.array(values.values(), pa.string())})


class FakeFiles:
    """Files of lookups, whose content or error a test sets."""

    def __init__(self) -> None:
        self.rows: Mapping[str, str | None] = {"a": "A"}
        self.error: Exception | None = None
        self.reads = 0

    def lookup(self, spec: Mapping[str, object]) -> LookupContent:
        assert "map" not in spec
        self.reads += 1
        if self.error is not None:
            raise self.error
        return written_rows(table(self.rows))


def _clear(connection: Connection) -> None:
    for one in (schema.lookups, schema.lookup_contents, schema.audit):
        connection.execute(delete(one))


class Rig:
    """The routes, over files of a test, without lookups."""

    def __init__(self, kit: AccessFolderKit, store: MetadataStore, clock: VirtualClock) -> None:
        self.clock, self.kit, self.store = clock, kit, store
        store._database.write(_clear)
        self.files = FakeFiles()
        self.tables = LookupTables(self.store.lookups)
        self.service = LookupService(self.store.lookups, self.files, self.clock, kit.control)
        routes = LookupTableRoutes(self.service, self.tables).routes()
        self.api = Api(application(routes, access=self.kit.control))

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        role: str = "admin",
        who: str = "user:me",
    ) -> httpx.Response:
        headers = as_principal(self.kit.control, who, role)
        return self.api(method, path, json=body, headers=headers)

    def rules(self, more: str) -> None:
        self.kit.write(RULES + more)
        self.kit.control.refresh()

    def put(self, name: str, role: str = "admin", **spec: object) -> httpx.Response:
        return self.ask("POST", LOOKUPS, {"name": name, **(spec or {"map": {"a": "A"}})}, role)


Shared = tuple[AccessFolderKit, MetadataStore, VirtualClock]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder, clock = tmp_path_factory.mktemp("lookups-api"), VirtualClock()
    kit = AccessFolderKit(folder / "access", RULES)
    kit.add_user("me", "admin")
    with MetadataStore.open(f"sqlite:///{folder}/m.db", clock=clock) as store:
        yield kit, store, clock


@pytest.fixture
def rig(shared: Shared) -> Iterator[Rig]:
    made = Rig(*shared)
    yield made
    made.api.close()


def test_a_lookup_is_declared_shown_replaced_and_deleted(rig: Rig) -> None:
    first = rig.put("shops", map={"b": "Bern", "z": None}).json()
    assert (first["version"], first["rows"], first["nextRefresh"]) == (1, 2, None)
    shown = rig.ask("GET", f"{LOOKUPS}/shops").json()
    assert shown["spec"] == {"name": "shops", "map": {"b": "Bern", "z": None}}
    assert rig.put("shops", map={}).json()["contentVersion"] == 2
    assert [one["name"] for one in rig.ask("GET", LOOKUPS).json()["lookups"]] == ["shops"]
    assert rig.ask("DELETE", f"{LOOKUPS}/shops").status_code == 200
    assert rig.ask("DELETE", f"{LOOKUPS}/shops").status_code == 404
    assert rig.ask("GET", f"{LOOKUPS}/shops").status_code == 404
    entries = rig.store.audit.list("shops")
    assert [one.payload for one in entries] == [
        {},
        *2 * [{"name": "shops", "map": {}}],  # the audit has no rows
    ]
    assert {one.author for one in entries} == {"user:me"}


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("keeper", "POST", LOOKUPS, 403),
        ("reader", "GET", f"{LOOKUPS}/secret", 403),
        ("reader", "DELETE", f"{LOOKUPS}/shops", 403),
        ("reader", "POST", f"{LOOKUPS}/shops/refresh", 403),
        ("keeper", "GET", f"{DRUID}/config/__default/secret", 403),
        ("keeper", "POST", f"{DRUID}/config/__default/secret", 403),
        ("keeper", "DELETE", f"{DRUID}/config/__default/secret", 403),
        ("keeper", "DELETE", f"{LOOKUPS}/shops", 200),
        ("reader", "GET", f"{DRUID}/status/__default/shops", 200),
    ],
)
def test_each_lookup_has_rights_of_its_own(
    rig: Rig, role: str, method: str, path: str, status: int
) -> None:
    rig.put("shops")
    rig.put("secret")
    body = {"name": "secret", "map": {}}
    assert rig.ask(method, path, body, role).status_code == status
    listed = {one["name"] for one in rig.ask("GET", LOOKUPS, role=role).json()["lookups"]}
    assert "secret" not in listed


def test_files_need_the_right_to_read_outside(rig: Rig) -> None:
    assert rig.put("shops", "keeper").status_code == 200
    assert rig.put("shops", "keeper", **FILES).status_code == 403
    assert rig.files.reads == 0
    assert rig.put("shops", "outside", **FILES).status_code == 200
    spec = rig.ask("GET", f"{LOOKUPS}/shops").json()["spec"]
    assert spec["inputSource"]["uris"] == ["https://h/x?token=<masked>"]
    assert "abc" not in str(rig.store.audit.list("shops"))


def test_a_spec_whose_rows_cannot_be_read_changes_nothing(rig: Rig) -> None:
    rig.put("shops", map={"a": "old"})
    for error, status in (
        (InvalidRequest("no column"), 400),
        (NotFound("no file"), 404),
        (Unavailable("no host"), 503),
    ):
        rig.files.error = error
        assert rig.put("shops", **FILES).status_code == status
    found = rig.ask("GET", f"{LOOKUPS}/shops").json()
    assert (found["version"], found["spec"]["map"]) == (1, {"a": "old"})


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"map": {"a": 1}}, "map.a: must be text"),
        ({"map": {"a": "x"}, "inputSource": FILES["inputSource"]}, "either this or inputSource"),
        ({"map": {}, "refreshPeriod": "PT1M"}, "does not change by itself"),
        ({**FILES, "refreshPeriod": "PT1S"}, "PT10S or longer"),
        ({**FILES, "inputFormat": None}, "is required with inputSource"),
        ({**FILES, "columns": [{"name": "K"}]}, "differ at most in case"),
        ({**FILES, "inputSource": {"type": "inline", "data": "a"}}, "not read from inline"),
        ({"map": {}, "maxRows": 1_000_000}, "maxRows"),
        ({"map": {str(n): "x" for n in range(3)}, "maxRows": 2}, "more than 2 rows"),
        ({"map": {"a": "x" * 200}, "maxBytes": 100}, "more than 100"),
        ({"map": {"a" * 5_000: "x"}}, "a key has 5,000 bytes"),
        ({}, "set either this or inputSource"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_place(
    rig: Rig, spec: Mapping[str, object], text: str
) -> None:
    answer = rig.ask("POST", LOOKUPS, {"name": "l", **spec})
    assert answer.status_code == 400
    assert text in answer.json()["error"]
    assert rig.files.reads == 0


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "x" * 65, "${x}", " a"])
def test_a_wrong_name_is_refused(rig: Rig, name: str) -> None:
    assert rig.ask("POST", LOOKUPS, {"name": name, "map": {}}).status_code == 400


def test_what_is_due_is_refreshed_and_a_failure_keeps_the_rows(rig: Rig) -> None:
    rig.put("shops", **FILES, refreshPeriod="PT1M")
    assert not rig.service.refresh_due()
    rig.clock.advance(ms=61_000)
    rig.files.rows = {"a": "new"}
    assert rig.service.refresh_due()
    assert not rig.service.refresh_due()
    current = rig.tables.current("SHOPS")
    assert current is not None
    assert current.rows.to_pylist() == [{"k": "a", "v": "new"}]
    rig.clock.advance(ms=61_000)
    rig.files.error = Unavailable("the host does not answer")
    assert rig.service.refresh_due()
    state = rig.ask("GET", f"{LOOKUPS}/shops").json()
    assert (state["failures"], state["reason"]) == (1, "the host does not answer")
    assert rig.tables.current("shops") == current
    samples = {one.name: one.value for one in rig.service.samples()}
    assert samples["penstock_lookup_failures"] == 1
    assert samples["penstock_lookup_age_seconds"] == 61
    refused = rig.ask("POST", f"{LOOKUPS}/shops/refresh")
    assert (refused.status_code, refused.json()["error"]) == (503, "the host does not answer")
    rig.files.error = None
    assert rig.ask("POST", f"{LOOKUPS}/shops/refresh").json()["failures"] == 0
    assert rig.ask("POST", f"{LOOKUPS}/absent/refresh").status_code == 404
    rig.put("maps")
    assert rig.ask("POST", f"{LOOKUPS}/maps/refresh").status_code == 400


def test_a_refresh_needs_the_rights_that_the_owner_has_now(rig: Rig) -> None:
    rig.kit.add_user("feeder", "feeder")
    rig.rules('[roles.feeder]\nallow = ["write lookup:shops", "read-external system:inputs"]')
    wanted = {"name": "shops", **FILES, "refreshPeriod": "PT1M"}
    stored = rig.ask("POST", LOOKUPS, wanted, "feeder", "user:feeder").json()
    assert stored["owner"] == "user:feeder"
    rig.rules('[roles.feeder]\nallow = ["write lookup:shops"]')
    rig.clock.advance(ms=61_000)
    rig.files.rows = {"a": "new"}
    assert rig.service.refresh_due()
    state = rig.ask("GET", f"{LOOKUPS}/shops").json()
    assert (state["failures"], state["contentVersion"]) == (1, 1)
    assert "user:feeder, which applied its spec, but it may not read-external" in state["reason"]
    path = f"{LOOKUPS}/shops/refresh"
    assert rig.ask("POST", path, None, "keeper").status_code == 403
    assert rig.files.reads == 1
    # Who may apply the spec may also have its rows read; the owner stays.
    assert rig.ask("POST", path).json()["contentVersion"] == 2
    assert rig.ask("GET", f"{LOOKUPS}/shops").json()["owner"] == "user:feeder"
    rig.rules('[roles.feeder]\nallow = ["write lookup:*", "read-external system:*"]')
    rig.clock.advance(ms=61_000)
    assert rig.service.refresh_due()
    assert rig.ask("GET", f"{LOOKUPS}/shops").json()["failures"] == 0
    assert rig.ask("POST", LOOKUPS, wanted).json()["owner"] == "user:me"


def test_who_loses_its_rights_with_its_credential_owns_no_refresh(rig: Rig) -> None:
    wanted: dict[str, object] = {"name": "shops", **FILES}
    assert rig.ask("POST", LOOKUPS, wanted, "outside", "user:guest").status_code == 200
    refused = rig.ask(
        *("POST", LOOKUPS, {**wanted, "refreshPeriod": "PT1M"}, "outside", "user:guest")
    )
    assert refused.status_code == 403
    assert "the lookup would be refreshed for user:guest" in refused.json()["error"]
    assert rig.files.reads == 1


def test_a_version_stays_as_it_is_for_its_readers(rig: Rig) -> None:
    rig.put("shops", map={"a": "old"})
    held = rig.tables.current("shops")
    rig.put("shops", map={"a": "new"})
    rig.ask("DELETE", f"{LOOKUPS}/shops")
    assert rig.tables.current("shops") is None
    rig.put("shops", map={"a": "newer"})
    assert held is not None
    assert held.rows.to_pylist() == [{"k": "a", "v": "old"}]
    now = rig.tables.current("shops")
    assert now is not None
    assert (now.version, now.rows.to_pylist()) == (3, [{"k": "a", "v": "newer"}])


def test_rows_that_are_seldom_read_do_not_stay_in_memory(rig: Rig) -> None:
    small = LookupTables(rig.store.lookups, cache_bytes_max=1)
    rig.put("shops")
    first = small.current("shops")
    assert first == small.current("shops")
    assert first is not small.current("shops")
    assert rig.tables.current("shops") is rig.tables.current("shops")


def test_a_statement_sees_only_readable_lookups(rig: Rig) -> None:
    rig.put("shops")
    rig.put("secret")
    allowed = {("read", "shops")}
    recorded: list[str] = []
    access = SimpleNamespace(
        may=lambda action, kind, name: kind == "lookup" and (action, name) in allowed,
        record=lambda action, resource: recorded.append(f"{action} {resource}"),
    )
    seen = SeenLookups(rig.tables, cast("SeenLookups", access))  # type: ignore[arg-type]
    assert seen.names() == ["shops"]
    assert seen.current("secret") is None
    assert list(seen.described()) == [("shops", (("k", "string"), ("v", "string")))]
    assert recorded == []
    found = seen.current("Shops")
    assert found is not None
    assert recorded == ["read lookup:shops"]


def test_druids_forms_are_understood(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Druid's console and clients send them; `version` is theirs, and counts nothing here."""
    assert rig.ask("POST", f"{DRUID}/config", {}).status_code == 202  # Druid needs it once
    factory = {"type": "map", "map": {"a": "A"}}
    body = {"version": "v9", "lookupExtractorFactory": factory}
    assert rig.ask("POST", f"{DRUID}/config/__default/one", body).status_code == 202
    every = {"__default": {"two": body, "three": body}}
    assert rig.ask("POST", f"{DRUID}/config", every).status_code == 202
    assert rig.ask("GET", f"{DRUID}/config").json() == ["__default"]
    assert rig.ask("GET", f"{DRUID}/config/__default").json() == ["one", "three", "two"]
    shown = rig.ask("GET", f"{DRUID}/config/__default/one").json()
    assert shown == {"version": "1", "lookupExtractorFactory": factory}
    detailed = rig.ask("GET", f"{DRUID}/config/__default?detailed=true").json()
    assert detailed["two"]["lookupExtractorFactory"] == factory
    with monkeypatch.context() as small:
        small.setattr(lookups, "DETAILED_BYTES_MAX", 9)
        assert rig.ask("GET", f"{DRUID}/config/__default?detailed").status_code == 400
    loaded = {name: {"loaded": True} for name in ("one", "three", "two")}
    assert rig.ask("GET", f"{DRUID}/status").json() == {"__default": loaded}
    assert rig.ask("GET", f"{DRUID}/status/__default").json() == loaded
    assert rig.ask("GET", f"{DRUID}/status/__default/one").json() == {"loaded": True}
    assert rig.ask("DELETE", f"{DRUID}/config/__default/one").status_code == 202
    assert rig.ask("GET", f"{DRUID}/status/__default/one").status_code == 404
    assert rig.ask("GET", f"{DRUID}/config/_other").status_code == 404


@pytest.mark.parametrize(
    ("namespace", "spec"),
    [
        (
            {
                "type": "uri",
                "uri": "https://h/x.csv",
                "namespaceParseSpec": {"format": "csv", "columns": ["c", "n"]},
                "pollPeriod": "PT5M",
            },
            {
                "inputSource": {"type": "http", "uris": ["https://h/x.csv"]},
                "inputFormat": {"type": "csv", "columns": ["c", "n"]},
                "key": "c",
                "columns": [{"name": "n"}],
                "duplicates": "last",
                "refreshPeriod": "PT5M",
            },
        ),
        (
            {
                "type": "uri",
                "uri": "file:/data/x.json",
                "namespaceParseSpec": {
                    "format": "customJson",
                    "keyFieldName": "c",
                    "valueFieldName": "n",
                },
                "pollPeriod": 0,
            },
            {
                "inputSource": {"type": "local", "files": ["/data/x.json"]},
                "inputFormat": {"type": "json"},
                "key": "c",
                "columns": [{"name": "n"}],
                "duplicates": "last",
            },
        ),
        ({"type": "jdbc"}, "only the type uri"),
        ({"type": "uri", "uriPrefix": "s3://b"}, "uriPrefix is not supported"),
        (
            {"type": "uri", "uri": "s3://b/x", "namespaceParseSpec": {"format": "simpleJson"}},
            "use csv, tsv or customJson",
        ),
    ],
)
def test_druids_files_become_inputs(
    rig: Rig, namespace: Mapping[str, object], spec: Mapping[str, object] | str
) -> None:
    factory = {"type": "cachedNamespace", "extractionNamespace": namespace}
    body = {"version": "v0", "lookupExtractorFactory": factory}
    answer = rig.ask("POST", f"{DRUID}/config/__default/l", body)
    if isinstance(spec, str):
        assert answer.status_code == 400
        assert spec in answer.json()["error"]
    else:
        assert answer.status_code == 202, answer.text
        stored = rig.store.lookups.find("l")
        assert stored is not None
        assert stored.spec == {"name": "l", **spec}


class FailsOnce:
    """A service whose metadata does not answer at first."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_done = threading.Event()

    def refresh_due(self) -> bool:
        self.calls.append("asked")
        if len(self.calls) == 1:
            return True
        self.is_done.set()
        raise Unavailable("the database does not answer")


def test_the_thread_refreshes_until_nothing_is_due() -> None:
    service = FailsOnce()
    refresher = LookupRefresher(cast("LookupService", service), VirtualClock())
    refresher.start()
    assert service.is_done.wait(120)
    refresher.stop()
    assert len(service.calls) >= 2


# The commands


def test_the_commands_show_what_the_api_answers(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    routes = LookupTableRoutes(rig.service, rig.tables).routes()
    app = application(routes, access=with_token(None))
    server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
    server.start()
    monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{server.port}")
    spec = tmp_path / "shops.yaml"
    try:
        spec.write_text("name: shops\nmap: {b: Bern}\n")
        assert run(["lookup", "apply", str(spec)]) == exit_codes.OK
        assert capsys.readouterr().out == "applied lookup shops, version 1, with 1 row\n"
        assert run(["lookup", "list"]) == exit_codes.OK
        assert "shops         1      1" in capsys.readouterr().out
        assert run(["lookup", "show", "shops"]) == exit_codes.OK
        assert json.loads(capsys.readouterr().out)["spec"]["map"] == {"b": "Bern"}
        assert run(["lookup", "refresh", "shops"]) == exit_codes.USAGE
        assert "apply a spec with another map" in capsys.readouterr().err
        spec.write_text("name: shops\nmap: {b: Bern}\nmaxRow: 5\n")
        assert run(["lookup", "apply", str(spec)]) == exit_codes.USAGE
        assert 'shops.yaml:3:1: maxRow: unknown field: did you mean "maxRows"' in (
            capsys.readouterr().err
        )
        assert run(["lookup", "delete", "shops"]) == exit_codes.USAGE
        assert "confirm with --yes" in capsys.readouterr().err
        assert run(["lookup", "delete", "shops", "--yes"]) == exit_codes.OK
        assert run(["lookup", "list"]) == exit_codes.OK
        assert capsys.readouterr().out == "deleted lookup shops\nno lookups\n"
    finally:
        server.stop()


# Files, in the process that reads them


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> SamplerProcesses:
    data = DataFolder(tmp_path_factory.mktemp("lookups"))
    options = PenstockOptions(data_dir=data.path, http=HostPort("127.0.0.1", 1))
    return SamplerProcesses(options, {}, [], timeout_s=120)


def test_files_that_a_killed_router_left_are_deleted(readers: SamplerProcesses) -> None:
    root = DataFolder(readers.options.data_dir).tmp / "inputs"
    left = root / "killed" / "lookup-x"
    left.mkdir(parents=True)
    other = SamplerProcesses(readers.options)
    other.start()
    readers.start()
    assert not left.exists()
    assert len(list(root.iterdir())) == 2
    other.stop()
    readers.stop()
    assert list(root.iterdir()) == []


def test_each_kind_of_file_is_read_in_a_process_of_its_own(
    readers: SamplerProcesses, tmp_path: Path
) -> None:
    wanted = pa.table({"code": ["de", "fr"], "name": ["Deutschland", None], "size": [357, 544]})
    pq.write_table(wanted, tmp_path / "x.parquet")
    spec = {
        "name": "l",
        "inputSource": {"type": "local", "files": [str(tmp_path / "x.parquet")]},
        "inputFormat": {"type": "parquet"},
        "key": "code",
        "columns": [{"name": "name"}, {"name": "size", "type": "long"}],
    }
    found = readers.lookup(spec)
    assert pq.read_table(pa.BufferReader(found.data)).to_pylist() == wanted.to_pylist()
    assert (found.rows, found.bytes > 20) == (2, True)


class Redirects(http.server.BaseHTTPRequestHandler):
    """A server of this host, to which no lookup may connect."""

    asked: list[str] = []  # noqa: RUF012 - of one test

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def test_neither_this_host_nor_penstocks_own_files_are_read(readers: SamplerProcesses) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Redirects)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        own = readers.options.data_dir / "metadata.db"
        own.touch()
        for source, text in (
            ({"type": "http", "uris": [f"http://127.0.0.1:{server.server_port}/x"]}, "this host"),
            ({"type": "local", "files": [str(own)]}, "Penstock keeps its own files"),
        ):
            spec = {"name": "l", "inputSource": source, "inputFormat": {"type": "json"}}
            with pytest.raises(InvalidRequest, match=text):
                readers.lookup(spec)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert Redirects.asked == []
