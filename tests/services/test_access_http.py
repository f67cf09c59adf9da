"""Principals at the APIs, and hostile attempts to get through."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from argon2 import PasswordHasher

from penstock.broker.http_server.authentication import ORIGIN_HEADER
from penstock.core.access.access_control import AccessControl
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.credentials import CredentialFile
from penstock.core.access.principal import PRINCIPAL_HEADER, Principal
from penstock.core.access.rules import Rule
from penstock.core.clock import SystemClock
from penstock.core.intervals import Interval
from penstock.segments.segment import Segment
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.supervisors import shown_status
from penstock.services.api.request_access import RequestAccess
from penstock.storage.metadata import PublishRequest
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.kits.raw_http_kit import answer_to
from tests.services.overlord_kit import Api, OverlordWorld, noop, served, supervisor_spec

P = "/druid/indexer/v1"
DAY = "2024-01-01/2024-01-02"
NFC = "café"
NFD = unicodedata.normalize("NFD", NFC)
RULES = f"""
[roles.clicks-team]
allow = ["read,write datasource:clicks*", "read topic:clicks", "write topic:clicks*"]
deny = ["* datasource:clicks-secret"]

[roles.loader]
allow = ["write datasource:*", "read-external system:inputs"]

[roles.keeper]
allow = ["manage datasource:*"]
deny = ["* datasource:{NFC}"]

[roles.quiet]
allow = ["write datasource:*"]
deny = ["* task:t-other"]

[roles.clicks-part]
allow = ["read,write datasource:clicks", "write datasource:clicks-2", "read task:*"]
row_filters.clicks = "region = 'eu'"

[roles.quiet-viewer]
allow = ["read supervisor:no-*"]
"""


class Guarded:
    """An overlord with the rules, asked for principals."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", RULES)
        self.world = OverlordWorld(folder).start()
        self.api = Api(self.world.make_app(access=self.kit.control))

    def ask(self, role: str, method: str, path: str, **more: object) -> int:
        return self.answer(role, method, path, **more).status_code

    def answer(self, role: str, method: str, path: str, **more: object):
        headers = as_principal(self.kit.control, f"user:of-{role}", role)
        return self.api(method, path, headers=headers, **more)

    def close(self) -> None:
        self.api.close()
        self.world.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    made.world.api.post(f"{P}/task", json=noop("t-clicks", "clicks"))
    made.world.api.post(f"{P}/task", json=noop("t-other", "other"))
    made.world.api.post(f"{P}/supervisor", json=supervisor_spec("clicks"))
    made.world.api.post(f"{P}/supervisor", json=supervisor_spec("other"))
    yield made
    made.close()


# Names in paths


@pytest.mark.parametrize(
    "name",
    [
        *(
            "clicks-secret",
            "clicks%2dsecret",
            "%63licks-secret",
            "clicks-secret/",
            "clicks-secret//",
        ),
        *("clicks%252dsecret/../clicks-secret", "clicks-secret%2f", "clicks-secret?x=/clicks"),
    ],
)
def test_a_name_has_one_meaning_however_it_is_written(guarded: Guarded, name: str) -> None:
    path = f"{P}/compaction/config/datasources/{name}"
    assert guarded.ask("clicks-team", "GET", path) in {403, 404}
    assert guarded.ask("clicks-team", "HEAD", path) in {403, 404}
    assert guarded.ask("clicks-team", "GET", f"{P}/compaction/config/datasources/clicks") == 404


@pytest.mark.parametrize("name", [NFC, NFD, quote(NFC), quote(NFD), quote(NFD).lower()])
def test_denied_names_are_compared_in_one_normal_form(guarded: Guarded, name: str) -> None:
    for method, path in (
        ("POST", f"{P}/datasources/{name}/markUnused"),
        ("DELETE", f"{P}/datasources/{name}"),
        ("DELETE", f"{P}/pendingSegments/{name}?interval={DAY}"),
    ):
        assert guarded.ask("keeper", method, path, json={"interval": DAY}) == 403


def test_a_name_that_an_older_release_stored_in_another_form_is_denied_too(
    guarded: Guarded,
) -> None:
    rows = Segment(
        NFD,
        Interval.parse(DAY),
        "2024-02-01T00:00:00.000Z",
        total_rows=3,
        load_spec={"type": "local", "path": "/p"},
    )
    assert guarded.world.metadata.publish(PublishRequest("u", NFD, (rows.to_row(),))).ok
    assert guarded.ask("keeper", "DELETE", f"{P}/datasources/{quote(NFD)}") == 403
    assert guarded.ask("admin", "GET", f"{P}/compaction/config/datasources/{quote(NFD)}") == 404


def test_a_refusal_shortens_a_long_name(guarded: Guarded) -> None:
    answer = guarded.answer(
        "clicks-team", "GET", f"{P}/compaction/config/datasources/{'x' * 10_000}"
    )
    assert answer.status_code == 403
    assert f"datasource:'{'x' * 60}…'" in answer.json()["error"]
    assert len(answer.text) < 600


def test_case_makes_another_name(guarded: Guarded) -> None:
    path = f"{P}/compaction/config/datasources"
    assert guarded.ask("clicks-team", "GET", f"{path}/Clicks") == 403


@pytest.mark.parametrize("path", ["//druid/indexer/v1/workers", f"{P}//workers", f"{P}/Workers"])
def test_another_spelling_of_a_path_is_no_route(guarded: Guarded, path: str) -> None:
    assert guarded.ask("clicks-team", "GET", path) == 404


# Tasks and supervisors belong to their datasource


def test_whoever_may_write_a_datasource_sees_and_stops_what_writes_it(guarded: Guarded) -> None:
    for path in ("status", "why"):
        assert guarded.ask("clicks-team", "GET", f"{P}/task/t-clicks/{path}") == 200
        assert guarded.ask("clicks-team", "GET", f"{P}/task/t-other/{path}") == 403
    assert guarded.ask("clicks-team", "GET", f"{P}/task/t-clicks") == 200
    assert guarded.ask("clicks-team", "POST", f"{P}/task/t-other/shutdown") == 403
    assert guarded.ask("clicks-team", "POST", f"{P}/supervisor/other/suspend") == 403
    assert guarded.ask("clicks-team", "POST", f"{P}/supervisor/clicks/suspend") == 200
    assert guarded.ask("clicks-team", "POST", f"{P}/supervisor/clicks/resume") == 200


def test_lists_show_only_what_may_be_seen(guarded: Guarded) -> None:
    def seen(role: str) -> tuple[set[str], list[str], set[str], set[str]]:
        tasks = guarded.answer(role, "GET", f"{P}/tasks").json()
        supervisors = guarded.answer(role, "GET", f"{P}/supervisor").json()
        asked = guarded.answer(role, "POST", f"{P}/taskStatus", json=["t-clicks", "t-other"])
        histories = guarded.answer(role, "GET", f"{P}/supervisor/history").json()
        ids = {one["id"] for one in tasks if one["type"] == "noop"}
        return ids, supervisors, set(asked.json()), set(histories)

    both = {"t-clicks", "t-other"}
    assert seen("admin") == (both, ["clicks", "other"], both, {"clicks", "other"})
    assert seen("viewer") == (both, ["clicks", "other"], both, {"clicks", "other"})
    assert seen("clicks-team") == ({"t-clicks"}, ["clicks"], {"t-clicks"}, {"clicks"})
    assert seen("publisher") == (set(), [], set(), set())


def test_a_denied_task_is_not_reached_by_its_datasource(guarded: Guarded) -> None:
    assert guarded.ask("quiet", "GET", f"{P}/task/t-clicks/status") == 200
    assert guarded.ask("quiet", "GET", f"{P}/task/t-other/status") == 403
    assert guarded.ask("quiet", "POST", f"{P}/task/t-other/shutdown") == 403


def test_what_does_not_exist_looks_as_what_may_not_be_seen(guarded: Guarded) -> None:
    for place in ("task/{}/status", "task/{}", "supervisor/{}", "supervisor/{}/status"):
        there = place.format("t-other" if place.startswith("task") else "other")
        absent = place.format("no-such")
        refusals = [guarded.answer("clicks-team", "GET", f"{P}/{path}") for path in (there, absent)]
        assert [one.status_code for one in refusals] == [403, 403]
        texts = [one.text.replace("t-other", "X").replace("other", "X") for one in refusals]
        assert texts[0] == texts[1].replace("no-such", "X")


def test_a_missing_supervisor_lists_only_those_that_may_be_seen(guarded: Guarded) -> None:
    listed = []
    for role in ("viewer", "quiet-viewer"):
        answer = guarded.answer(role, "GET", f"{P}/supervisor/no-such/status")
        assert answer.status_code == 404
        listed.append(answer.json()["error"].partition("there are: ")[2])
    assert set(listed[0].split(", ")) >= {"clicks", "other"}
    assert listed[1] == "none"


# What is submitted


def submitted(guarded: Guarded, role: str, what: str, spec: dict[str, object]) -> int:
    return guarded.ask(role, "POST", f"{P}/{what}", json=spec)


def index_task(datasource: str, source: dict[str, object]) -> dict[str, object]:
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {
                "dataSource": datasource,
                "timestampSpec": {"column": "t", "format": "auto"},
                "dimensionsSpec": {"dimensions": ["a"]},
                "granularitySpec": {"segmentGranularity": "DAY"},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": source,
                **({} if source["type"] == "druid" else {"inputFormat": {"type": "json"}}),
            },
            "tuningConfig": {"type": "index_parallel"},
        },
    }


INLINE = {"type": "inline", "data": '{"t": 1, "a": 2}'}
LOCAL = {"type": "local", "baseDir": "/etc", "filter": "*"}
DRUID = {"type": "druid", "dataSource": "other", "interval": DAY}


@pytest.mark.parametrize(
    ("role", "spec", "status"),
    [
        ("clicks-team", index_task("clicks-2", INLINE), 200),
        ("clicks-team", index_task("other", INLINE), 403),
        ("clicks-team", index_task("clicks-secret", INLINE), 403),
        ("clicks-team", index_task("clicks-2", LOCAL), 403),
        ("clicks-team", index_task("clicks-2", DRUID), 403),
        (
            "clicks-team",
            index_task("clicks-2", {"type": "combining", "delegates": [INLINE, LOCAL]}),
            403,
        ),
        ("loader", index_task("clicks-2", LOCAL), 200),
        ("loader", index_task("clicks-2", DRUID), 403),
        ("clicks-part", index_task("clicks-2", INLINE), 200),
        ("clicks-part", index_task("clicks-2", {**DRUID, "dataSource": "clicks"}), 403),
        ("clicks-team", {"type": "kill", "dataSource": "clicks", "interval": DAY}, 403),
        ("keeper", {"type": "kill", "dataSource": "clicks", "interval": DAY}, 200),
        ("publisher", noop("p", "clicks"), 403),
        ("analyst", noop("p", "clicks"), 403),
    ],
)
def test_a_task_needs_the_rights_of_what_it_reads_and_writes(
    guarded: Guarded, role: str, spec: dict[str, object], status: int
) -> None:
    assert submitted(guarded, role, "task", spec) == status


def test_a_supervisor_of_others_cannot_be_replaced_by_naming_another_datasource(
    guarded: Guarded,
) -> None:
    spec = supervisor_spec("clicks")
    spec["spec"]["ioConfig"]["topic"] = "clicks"  # type: ignore[index]
    other = {**spec, "id": "other"}
    assert submitted(guarded, "clicks-team", "supervisor", other) == 403
    shown = guarded.answer("admin", "GET", f"{P}/supervisor/other").json()
    assert shown["spec"]["dataSchema"]["dataSource"] == "other"
    assert submitted(guarded, "clicks-team", "supervisor", {**spec, "id": "clicks-2"}) == 200


def test_a_supervisor_needs_its_topic(guarded: Guarded) -> None:
    assert submitted(guarded, "loader", "supervisor", supervisor_spec("new")) == 403


def test_a_sql_task_reads_only_what_its_submitter_may(guarded: Guarded) -> None:
    row = Segment(
        "other",
        Interval.parse(DAY),
        "2024-02-01T00:00:00.000Z",
        total_rows=3,
        load_spec={"type": "local", "path": "/p"},
    )
    assert guarded.world.metadata.publish(PublishRequest("v", "other", (row.to_row(),))).ok
    task = {
        "type": "query_controller",
        "id": "sneaky",
        "dataSource": "clicks",
        "sql": "INSERT INTO clicks SELECT * FROM other",
        "query": "SELECT __time FROM other",
        "reads": ["other"],
    }
    assert submitted(guarded, "clicks-team", "task", task) == 200
    stored = guarded.answer("admin", "GET", f"{P}/task/sneaky").json()
    assert stored["payload"]["reads"] == []


def test_a_principal_with_a_row_filter_gets_no_rows_from_tasks(guarded: Guarded) -> None:
    assert guarded.ask("clicks-part", "GET", f"{P}/task/t-clicks/status") == 200
    for part in ("", "/log", "/reports", "/segments"):
        answer = guarded.answer("clicks-part", "GET", f"{P}/task/t-clicks{part}")
        assert answer.status_code == 403
        assert "region" not in answer.text
        assert guarded.ask("clicks-team", "GET", f"{P}/task/t-clicks{part}") in {200, 404}
    task = {
        "type": "query_controller",
        "id": "sneaky-part",
        "dataSource": "clicks-2",
        "sql": "INSERT INTO clicks-2 SELECT * FROM clicks",
        "query": "SELECT __time FROM clicks",
        "reads": ["clicks"],
    }
    assert submitted(guarded, "clicks-part", "task", task) == 200
    stored = guarded.answer("admin", "GET", f"{P}/task/sneaky-part").json()
    assert stored["payload"]["reads"] == []


# Who asks


def test_a_principal_for_whom_a_process_asks_is_not_believed_from_anybody_else(
    guarded: Guarded,
) -> None:
    claimed = '{"id":"user:root","roles":["admin"]}'
    operator = (guarded.kit.folder / "operator.token").read_text().strip()
    for bearer in (operator, guarded.kit.control.key.task_bearer("t-clicks")):
        headers = {"Authorization": f"Bearer {bearer}", PRINCIPAL_HEADER: claimed}
        assert guarded.api.get(f"{P}/workers", headers=headers).status_code == 403
    assert guarded.api.get(f"{P}/workers", headers={PRINCIPAL_HEADER: claimed}).status_code == 403


def test_the_audit_has_the_address_of_the_client_behind_the_router(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    def origins(headers: dict[str, str]) -> set[str]:
        caplog.clear()
        with caplog.at_level("INFO", logger="penstock.audit"):
            url, body = f"{P}/worker", {"type": "default"}
            assert guarded.api.post(url, json=body, headers=headers).status_code == 200
        audited = [one for one in caplog.records if one.name == "penstock.audit"]
        records = [json.loads(one.getMessage()) for one in audited]
        return {one["origin"] for one in records if one["event"] == "decision"}

    claimed = {ORIGIN_HEADER: "10.1.2.3:45"}
    told = as_principal(guarded.kit.control, "user:root", "admin")
    assert origins({**told, **claimed}) == {"10.1.2.3:45"}
    operator = (guarded.kit.folder / "operator.token").read_text().strip()
    assert origins({"Authorization": f"Bearer {operator}", **claimed}) == {"127.0.0.1:123"}


@pytest.mark.parametrize(
    "shown",
    [
        *("Bearer", "Bearer ", "bearer x", "Basic", "Basic x", "Negotiate x", "\xff"),
        "Basic " + base64.b64encode(b"alice:wrong").decode(),
        "Basic " + base64.b64encode(b"no colon").decode(),
        *("Bearer penstock-process", "Bearer penstock-process_", "Bearer penstock-task_a_b_c_d"),
        "Bearer penstock-process_" + "61" * 900 + "_00",
    ],
)
def test_wrong_credentials(guarded: Guarded, shown: str) -> None:
    headers = {"Authorization": shown.encode("latin-1")}
    answer = guarded.api.get("/status", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer, Basic ")
    # A path that is open without one stays open.
    assert guarded.api.get("/status/health", headers=headers).status_code == 200


def test_a_token_of_a_task_is_good_for_its_own_actions_alone(guarded: Guarded) -> None:
    bearer = guarded.kit.control.key.task_bearer("t-clicks", [Rule.parse("read topic:clicks")])
    headers = {"Authorization": f"Bearer {bearer}"}

    def act(task: str) -> int:
        body = {"task": task, "action": {"type": "lockList"}}
        return guarded.api.post(f"{P}/action", json=body, headers=headers).status_code

    assert act("t-clicks") == 200
    assert act("t-other") == 403
    for name, status in (("clicks", 200), ("other", 400)):
        action = {"type": "segmentListUsed", "dataSource": name, "intervals": [DAY]}
        body = {"task": "t-clicks", "action": action}
        found = guarded.api.post(f"{P}/action", json=body, headers=headers)
        assert (found.status_code, "does not read" in found.text) == (status, status == 400)
    for path in ("task/t-clicks/status", "tasks", "workers", "supervisor/clicks", "task/t-other"):
        found = guarded.api.get(f"{P}/{path}", headers=headers)
        assert found.status_code == 403 or found.json() == []
    other = bearer.replace(b"read topic:clicks".hex(), b"read topic:secret".hex())
    assert other != bearer
    forged = {"Authorization": f"Bearer {other}"}
    assert guarded.api.get(f"{P}/tasks", headers=forged).status_code == 401


def test_users_show_their_password(tmp_path: Path) -> None:
    folder = AccessFolder(tmp_path / "access")
    control = AccessControl(folder.path, SystemClock())
    fast = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    commands = CredentialFile(folder.credentials, SystemClock())
    commands.add_user("alice", fast.hash("correct horse"), roles=("viewer",))
    control.refresh()

    def shown(user: str, password: str) -> dict[str, str]:
        text = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {text}"}

    with closing(OverlordWorld(tmp_path)) as world:
        world.start()
        with closing(Api(world.make_app(access=control))) as api:
            good = shown("alice", "correct horse")
            assert api.get(f"{P}/workers", headers=good).status_code == 200
            assert api.post(f"{P}/task", json=noop("t"), headers=good).status_code == 403
            for bad in (("alice", "wrong"), ("bob", "correct horse"), ("alice", "")):
                assert api.get(f"{P}/workers", headers=shown(*bad)).status_code == 401
            commands.remove_user("alice")
            control.refresh()
            assert api.get(f"{P}/workers", headers=good).status_code == 401


def test_only_the_owner_of_this_host_needs_no_credential(tmp_path: Path) -> None:
    """While nothing is configured; and not behind a proxy."""
    with closing(OverlordWorld(tmp_path)) as world:
        world.start()
        app = world.make_app(access=AccessControl(tmp_path / "access", SystemClock()))
        with served(world, app) as address:
            get = b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            assert answer_to(address.port, get + b"\r\n").startswith(b"HTTP/1.1 200 ")
            for line in (
                *(b"X-Forwarded-For: 10.0.0.1", b"Forwarded: for=10.0.0.1", b"Via: 1.1 proxy"),
                *(b"X-Real-IP: 10.0.0.1", b"X-Forwarded-Host: x", b"x-FORWARDED-proto: https"),
            ):
                refused = answer_to(address.port, get + line + b"\r\n\r\n")
                assert refused.startswith(b"HTTP/1.1 401 "), line
            # A credential of another installation does not matter, and is not remembered.
            foreign = b"Authorization: Bearer penstock_x_y\r\n"
            first = get.replace(b"Connection: close\r\n", b"") + foreign + b"\r\n"
            answers = answer_to(address.port, first + get + foreign + b"Via: 1.1 x\r\n\r\n")
            assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 401 ") == 1
            # Its request comes from this process, too, but not over a connection of this host.
            with closing(Api(app)) as elsewhere:
                assert elsewhere.get("/status").status_code == 401
            (tmp_path / "access" / "access.toml").write_text("# none\n")
            configured = world.make_app(access=AccessControl(tmp_path / "access", SystemClock()))
        with served(world, configured) as address:
            assert answer_to(address.port, get + b"\r\n").startswith(b"HTTP/1.1 401 ")


def test_with_a_shared_token_processes_of_several_hosts_know_each_other(tmp_path: Path) -> None:
    """Their folders have different keys."""
    one, two = (
        AccessControl(tmp_path / name, SystemClock(), shared_token=b"word", process=name)
        for name in ("one", "two")
    )
    sender = two.authenticator.of_bearer(one.key.process_bearer().encode())
    assert sender is not None
    assert sender.may_act_for_others
    shared = two.authenticator.of_bearer(b"word")
    assert shared is not None
    assert not shared.may_act_for_others
    foreign = AccessControl(tmp_path / "one", SystemClock()).key.process_bearer()
    assert two.authenticator.of_bearer(foreign.encode()) is None
    foreign = AccessControl(tmp_path / "one", SystemClock()).key.process_bearer()
    assert two.authenticator.of_bearer(foreign.encode()) is None


# Errors may have values of rows


BAD_VALUE = "cannot parse 4111-1111-1111-1111 as a number"


@pytest.fixture
def own_guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.close()


def test_errors_of_tasks_are_for_those_who_may_read_the_rows(own_guarded: Guarded) -> None:
    guarded = own_guarded
    guarded.world.api.post(f"{P}/task", json=noop("t-broken", "clicks"))
    guarded.world.runs("t-broken")
    guarded.world.end("t-broken", BAD_VALUE)
    for role, is_shown in (
        ("admin", True),
        ("operator", True),
        ("clicks-team", True),
        ("viewer", False),
        ("clicks-part", False),
    ):
        one = guarded.answer(role, "GET", f"{P}/task/t-broken/status").json()["status"]
        why = guarded.answer(role, "GET", f"{P}/task/t-broken/why").json()["status"]
        listed = guarded.answer(role, "GET", f"{P}/completeTasks").json()
        asked = guarded.answer(role, "POST", f"{P}/taskStatus", json=["t-broken"]).json()
        (found,) = (each for each in listed if each["id"] == "t-broken")
        texts = {each["errorMsg"] for each in (one, why, found, asked["t-broken"])}
        assert len(texts) == 1
        assert (texts == {BAD_VALUE}) == is_shown, (role, texts)
        assert is_shown or "it needs read datasource:clicks" in texts.pop()


def test_errors_of_supervisors_are_for_those_who_may_read_the_rows(guarded: Guarded) -> None:
    reports = result_of(guarded.world.overlord.supervisor_service.status("clicks"))
    payload = reports["payload"]
    assert isinstance(payload, dict)
    payload["recentErrors"] = [{"exceptionClass": "X", "exceptionMessage": BAD_VALUE}]
    payload["skippedFiles"] = {"count": 1, "files": [{"path": "/a", "reason": BAD_VALUE}]}
    for role, is_shown in (("admin", True), ("clicks-team", True), ("viewer", False)):
        headers = as_principal(guarded.kit.control, "user:a", role)
        principal = Principal.from_header(headers[PRINCIPAL_HEADER])
        access = RequestAccess(guarded.kit.control, principal)
        shown = json.dumps(shown_status(access, "clicks", reports))
        assert (BAD_VALUE in shown) == is_shown
        assert "exceptionClass" in shown
        assert '"path": "/a"' in shown
    assert json.dumps(reports).count(BAD_VALUE) == 2, "the original is as it was"
