"""Secrets of specs: variables reach the processes that run tasks, text is shown to nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import orjson
import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import INPUT_VARIABLES
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.secrets import MASK, masked, masked_url
from penstock.indexing.specs import parse_supervisor
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.errors import SpecError
from penstock.services.host.host_plan import child_environment
from penstock.services.host.private_files import private_places
from penstock.services.host.secret_variables import (
    open_variables,
    read_variables,
    secret_variables,
)
from penstock.services.options.table import PenstockOptions
from tests.services.overlord_kit import OverlordWorld, supervisor_spec


def test_children_get_secrets_beside_their_environment_and_no_options(tmp_path):
    of_specs = f"{INPUT_VARIABLES}KAFKA"
    (tmp_path / "secrets.toml").write_text('[secrets.shop]\nvariable = "SHOP"')
    (tmp_path / "secrets.toml").chmod(0o600)
    given = {of_specs: "hush", "SHOP": "hush", "PENSTOCK_TOKEN": "hush", "PATH": "/bin"}
    found = secret_variables(given, tmp_path)
    assert found == {of_specs: "hush", "SHOP": "hush"}
    environment = child_environment(given, found)
    assert environment["PATH"] == "/bin"
    assert "hush" not in environment.values()
    descriptor = open_variables(found)
    try:  # as two children do, which share its position
        for _ in range(2):
            assert read_variables(os.dup(descriptor)) == found
    finally:
        os.close(descriptor)
    assert read_variables(None) == {}


def test_files_and_programs_of_secrets_are_private(tmp_path):
    script, folder = tmp_path / "print-secret", tmp_path / "data" / "secrets"
    script.write_text("")
    folder.mkdir(parents=True)
    options = PenstockOptions(data_dir=tmp_path / "data")
    assert folder in private_places(options, {})
    (folder / "secrets.toml").write_text(
        f'[secrets.a]\nfile = "/run/secrets/a"\n[key]\ncommand = ["sh", "{script}", "/"]'
    )
    (folder / "secrets.toml").chmod(0o600)
    found = private_places(options, {})
    assert {folder, script, Path("/run/secrets/a")} <= set(found)
    assert Path("/") not in found
    (folder / "secrets.toml").write_text("[secrets")
    with pytest.raises(InvalidRequest, match="is not valid TOML"):
        private_places(options, {})


Way = tuple[str | int, ...]


# Secrets that are written into a spec as text


def from_http(**more: object) -> dict[str, object]:
    source = {
        "type": "http",
        "uris": ["https://hush@example.org/a.json?sig=hush&expires=hush"],
        "httpAuthenticationUsername": "ann",
        "httpAuthenticationPassword": "hush",
        "requestHeaders": {"X-Auth": "hush", "Accept": "hush"},
        **more,
    }
    combining = {"type": "combining", "delegates": [{"type": "inline", "data": "{}"}, source]}
    return {
        "type": "index_parallel",
        "id": "t1",
        "spec": {
            "dataSchema": {
                "dataSource": "d",
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["carrier"]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": combining,
                "inputFormat": {"type": "json"},
            },
        },
    }


def from_database(**more: object) -> dict[str, object]:
    task = from_http()
    url = "jdbc:postgresql://h:5432/shop?sslmode=require"
    connector = {"connectURI": url, "user": "ann", "password": "hush", **more}
    database = {"type": "postgresql", "connectorConfig": connector}
    io = cast("dict[str, dict[str, object]]", task["spec"])["ioConfig"]
    io["inputSource"] = {"type": "sql", "database": database, "sqls": ["SELECT 1 AS time"]}
    del io["inputFormat"]
    return task


def from_kafka(**more: object) -> dict[str, object]:
    spec = supervisor_spec()
    inner = spec["spec"]
    assert isinstance(inner, dict)
    properties = {
        "bootstrap.servers": "k:9092",
        "sasl.username": "ann",
        "sasl.password": "hush",
        "ssl.key.pem": "hush",
        **more,
    }
    inner["ioConfig"] = {"type": "kafka", "topic": "flights", "consumerProperties": properties}
    return {**spec, "type": "kafka"}


@pytest.fixture
def world(tmp_path) -> Iterator[OverlordWorld]:
    made = OverlordWorld(tmp_path).start()
    yield made
    made.close()


def test_a_task_is_shown_without_its_secrets_and_keeps_them(world: OverlordWorld) -> None:
    assert world.api.post("/druid/indexer/v1/task", json=from_http()).status_code == 200
    shown = world.api.get("/druid/indexer/v1/task/t1")
    assert "hush" not in shown.text
    task = shown.json()["payload"]
    source = task["spec"]["ioConfig"]["inputSource"]["delegates"][1]
    assert source["httpAuthenticationPassword"] == MASK
    assert source["requestHeaders"] == {"X-Auth": MASK, "Accept": MASK}
    assert source["uris"] == [f"https://{MASK}@example.org/a.json?sig={MASK}&expires={MASK}"]
    assert source["httpAuthenticationUsername"] == "ann"
    row = world.metadata.tasks.get("t1")
    assert row is not None
    assert "hush" in str(row.payload), "the next overlord needs it"

    again = world.api.post("/druid/indexer/v1/task", json={**task, "id": "t2"})
    assert again.status_code == 400
    assert "write the secret again" in again.text
    assert "write the header again" in again.text
    assert "the query of the URL again" in again.text
    assert world.metadata.tasks.get("t2") is None


def test_a_statement_is_kept_without_its_secrets_beside_its_files(world: OverlordWorld) -> None:
    spec = from_http()["spec"]
    source = orjson.dumps(spec["ioConfig"]["inputSource"]).decode()  # type: ignore[index]
    task = parse_ingest(
        "INSERT INTO d SELECT *, 1 AS __time"
        f" FROM TABLE(EXTERN('{source}', '{{\"type\":\"json\"}}'))"
        " EXTEND (a VARCHAR) PARTITIONED BY DAY"
    ).with_id("t1")
    answer = world.api.post("/druid/indexer/v1/task", json=task.to_json())
    assert answer.status_code == 200, answer.text
    shown = [world.api.get(f"/druid/indexer/v1/{path}") for path in ("task/t1", "tasks")]
    assert not any("hush" in one.text for one in shown)
    row = world.metadata.tasks.get("t1")
    assert row is not None
    assert "hush" not in str(row.payload["sql"])
    assert "hush" in str(row.payload["externs"]), "the next overlord needs it"
    again = world.api.post("/druid/indexer/v1/task", json=shown[0].json()["payload"] | {"id": "t2"})
    assert again.status_code == 400
    assert "externs[0].inputSource" in again.text


def test_a_task_of_a_database_is_shown_without_its_password(world: OverlordWorld) -> None:
    for name, password in (("t1", "hush"), ("t2", WRITTEN)):
        task = from_database(password=password) | {"id": name}
        assert world.api.post("/druid/indexer/v1/task", json=task).status_code == 200
        shown = [world.api.get(f"/druid/indexer/v1/{path}") for path in (f"task/{name}", "tasks")]
        assert not any("hush" in one.text for one in shown)
        assert "jdbc:postgresql://h:5432/shop?sslmode=require" in shown[0].text
        row = world.metadata.tasks.get(name)
        assert row is not None
        assert "hush" in str(row.payload), "the next overlord needs it"
        again = world.api.post("/druid/indexer/v1/task", json=shown[0].json()["payload"])
        assert again.status_code == 400
        assert "write the secret again" in again.text


def test_a_supervisor_is_shown_without_its_secrets_wherever_it_is_shown(world) -> None:
    supervisors = "/druid/indexer/v1/supervisor"
    assert world.api.post(supervisors, json=from_kafka()).status_code == 200
    shown = [
        world.api.get(f"{supervisors}/flights"),
        world.api.get(f"{supervisors}?full"),
        world.api.get(f"{supervisors}?system"),
        world.api.get(f"{supervisors}/history"),
        world.api.get(f"{supervisors}/flights/history"),
        world.api.post(f"{supervisors}/flights/suspend"),
        world.api.post(f"{supervisors}/flights/resume"),
    ]
    assert [answer.status_code for answer in shown] == [200] * len(shown)
    for answer in shown:
        assert "hush" not in answer.text
        assert MASK in answer.text
    spec = shown[0].json()
    assert spec["spec"]["ioConfig"]["consumerProperties"]["sasl.username"] == "ann"

    again = world.api.post(supervisors, json=spec)
    assert again.status_code == 400
    assert "consumerProperties.sasl.password" in again.text
    assert "write the secret again" in again.text
    (newest, *_) = world.metadata.supervisors.history("flights")
    assert "hush" in str(newest.payload)


def test_a_variable_is_no_secret_and_is_shown(world: OverlordWorld) -> None:
    variable = {"type": "environment", "variable": f"{INPUT_VARIABLES}KAFKA"}
    spec = from_kafka(**{"sasl.password": variable, "ssl.key.pem": variable})
    assert world.api.post("/druid/indexer/v1/supervisor", json=spec).status_code == 200
    shown = world.api.get("/druid/indexer/v1/supervisor/flights").json()
    assert shown["spec"]["ioConfig"]["consumerProperties"]["sasl.password"] == variable
    assert world.api.post("/druid/indexer/v1/supervisor", json=shown).status_code == 200


WRITTEN = {"type": "default", "password": "hush"}  # as Druid writes a secret


def test_a_secret_that_druid_wrote_is_taken_kept_and_not_shown(world: OverlordWorld) -> None:
    assert masked({"httpAuthenticationPassword": WRITTEN}) == {
        "httpAuthenticationPassword": {"type": "default", "password": MASK}
    }
    task = from_http(httpAuthenticationPassword=WRITTEN)
    spec = cast("dict[str, dict[str, object]]", task["spec"])
    source = orjson.dumps(spec["ioConfig"]["inputSource"]).decode()
    statement = parse_ingest(
        "INSERT INTO d SELECT *, 1 AS __time"
        f" FROM TABLE(EXTERN('{source}', '{{\"type\":\"json\"}}'))"
        " EXTEND (a VARCHAR) PARTITIONED BY DAY"
    )
    assert "hush" not in statement.sql
    for path, body, kept in (
        ("task", task, lambda: world.metadata.tasks.get("t1")),
        ("task", statement.with_id("t3").to_json(), lambda: world.metadata.tasks.get("t3")),
        (
            "supervisor",
            from_kafka(**{"sasl.password": WRITTEN}),
            lambda: world.metadata.supervisors.history("flights")[0],
        ),
    ):
        answer = world.api.post(f"/druid/indexer/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        name = answer.json().get("task") or answer.json()["id"]
        assert "hush" not in world.api.get(f"/druid/indexer/v1/{path}/{name}").text
        assert "hush" in str(kept())


@pytest.mark.parametrize(
    ("secret", "place"),
    [
        ({**WRITTEN, "passwort": "hush"}, ".passwort: unknown field; there are type, password"),
        ({"type": "default", "passwort": "hush"}, ".password: must be text"),
        ({"type": "hushed", "password": "hush"}, ".type: must be "),
        ({"type": ["hush"]}, ".type: must be "),
        ({"password": {"is": "hush"}}, ".password: must be text"),
        ({"variable": 5, "hint": "hush"}, ".variable: must be text"),
        ({"type": "environment", "password": "hush"}, ".password: unknown field"),
        (["hush"], ": must be text, or an object"),
        ({"type": "default", "password": MASK}, "write the secret again"),
    ],
)
def test_a_secret_that_is_wrong_is_told_without_it(
    world: OverlordWorld, secret: object, place: str
) -> None:
    task = from_http(
        httpAuthenticationPassword=secret, uris=["https://example.org/a"], requestHeaders={}
    )
    kafka = from_kafka(**{"sasl.password": secret})
    for path, body in (("task", task), ("supervisor", kafka)):
        answer = world.api.post(f"/druid/indexer/v1/{path}", json=body)
        assert answer.status_code == 400
        told = answer.json().get("errorMessage") or answer.json()["error"]
        assert place in told
        assert "hush" not in told
        assert "EnvironmentSecret" not in told


def test_a_reference_is_kept_shown_and_taken_again(world: OverlordWorld) -> None:
    """A spec with references has no secret, so what is shown can be sent back."""
    http = from_http(
        httpAuthenticationPassword="secret://shop",
        requestHeaders={"X-Auth": "secret://header"},
        uris=["https://example.org/a"],
    )
    kafka = from_kafka(**{"sasl.password": "secret://kafka", "ssl.key.pem": "secret://key"})
    assert world.api.post("/druid/indexer/v1/task", json=http).status_code == 200
    shown = world.api.get("/druid/indexer/v1/task/t1").json()["payload"]
    source = shown["spec"]["ioConfig"]["inputSource"]["delegates"][1]
    assert source["httpAuthenticationPassword"] == "secret://shop"
    assert source["requestHeaders"] == {"X-Auth": "secret://header"}
    again = world.api.post("/druid/indexer/v1/task", json=shown | {"id": "t2"})
    assert again.status_code == 200, again.text
    supervisors = "/druid/indexer/v1/supervisor"
    assert world.api.post(supervisors, json=kafka).status_code == 200
    spec = world.api.get(f"{supervisors}/flights").json()
    assert spec["spec"]["ioConfig"]["consumerProperties"]["sasl.password"] == "secret://kafka"
    assert world.api.post(supervisors, json=spec).status_code == 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"httpAuthenticationPassword": "secret://../key"}, "invalid name of a secret"),
        ({"httpAuthenticationPassword": "SECRET://shop"}, "in small letters"),
        ({"requestHeaders": {"X-Auth": "Bearer secret://shop"}}, "must be the whole value"),
        ({"requestHeaders": {"X-Auth": "secret://a b"}}, "invalid name of a secret"),
        ({"uris": ["secret://shop"]}, "has the scheme"),
        ({"uris": ["https://ann:secret://shop@h/"]}, "its port must be a number"),
    ],
)
def test_a_reference_that_is_wrong_or_in_a_shown_place_is_refused(
    changes: dict[str, object], said: str
) -> None:
    given: dict[str, object] = {
        "requestHeaders": {},
        "uris": ["https://h/"],
        "httpAuthenticationPassword": "x",
    }
    assert said in refusal(parse_batch_task, from_http(**given | changes))


def ways(value: object, way: Way = ()) -> Iterator[Way]:
    """Yield the way to each place of a spec."""
    if way:
        yield way
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ways(part, (*way, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from ways(part, (*way, number))


def refusal(parse: Callable[[dict[str, JsonValue]], object], spec: dict[str, object]) -> str:
    """Return why a spec is refused; empty if it is not."""
    try:
        parse(cast("dict[str, JsonValue]", spec))
    except SpecError as error:
        return str(error)
    return ""


def put(spec: dict[str, object], way: Way, value: object) -> dict[str, object]:
    """Return a spec with another value in one place."""
    changed = orjson.loads(orjson.dumps(spec))
    at = changed
    for step in way[:-1]:
        at = at[step]
    at[way[-1]] = value
    return cast("dict[str, object]", changed)


@pytest.mark.parametrize(
    "secret", [WRITTEN, {"typ": "default", "passwort": "hush"}, {"password": ["hush"]}]
)
def test_a_secret_in_a_wrong_place_is_not_told(secret: dict[str, JsonValue]) -> None:
    """Whatever is wrong with it: nothing of an object is shown in an error."""
    settings = {"maxNumConcurrentSubTasks": 1, "partitionsSpec": {"type": "dynamic"}}
    task = from_http(uris=["https://example.org/a"], httpAuthenticationPassword=None)
    task["context"] = {"priority": 1, "useConcurrentLocks": True, "tags": {}}
    spec = cast("dict[str, JsonValue]", task["spec"])
    spec["tuningConfig"] = {"type": "index_parallel", **settings}
    database = from_database(password="ours")
    told = [
        refusal(parse, put(given, way, secret))
        for given, parse in (
            (task, parse_batch_task),
            (database, parse_batch_task),
            (from_kafka(), parse_supervisor),
        )
        for way in ways(given)
    ]
    assert [text for text in told if "hush" in text] == []
    assert len([text for text in told if text]) > 40


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("requestHeaders", "X-Auth: hush", "must be an object, not text"),
        ("requestHeaders", {"X-Auth": 5}, "must be text, not a number"),
        ("requestHeaders", {"X-Auth: hush": ""}, "invalid HTTP header 'X-Auth'"),
        ("uris", ["https://ann:hush@h:port/"], "its port must be a number"),
        ("uris", ["htp://ann:hush@h/"], f"'htp://ann:{MASK}@h/' has the scheme"),
        ("systemFields", "https://ann:hush@h/", "leave it out"),
        ("type", "https://ann:hush@h/", f'"https://ann:{MASK}@h/" is not one of'),
        ("httpAuthenticationPassword", {"variable": "hush"}, "cannot be read by a spec"),
    ],
)
def test_a_secret_beside_its_place_is_not_told(place: str, value: object, said: str) -> None:
    given: dict[str, object] = {"requestHeaders": {}, "uris": ["https://h/"]}
    told = refusal(parse_batch_task, from_http(**given | {place: value}))
    assert said in told
    assert "hush" not in told


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("connectURI", "jdbc:postgresql://ann:hush@h/shop", "no user and no password"),
        ("connectURI", "jdbc:postgresql://h/shop?password=hush", "must not contain password"),
        ("connectURI", "postgresql://ann:hush@h/shop", "write jdbc:postgresql://"),
        ("connectURI", {"url": "hush"}, "must be text, not an object"),
        ("passwort", "hush", "unknown field"),
        ("password", {"variable": "hush"}, "cannot be read by a spec"),
        ("user", ["hush"], "must be text, not a list"),
    ],
)
def test_a_secret_of_a_database_beside_its_place_is_not_told(
    place: str, value: object, said: str
) -> None:
    told = refusal(parse_batch_task, from_database(**{place: value}))
    assert said in told
    assert "hush" not in told


@pytest.mark.parametrize(
    "way",
    ["", "database", "database.type", "database.connectorConfig", "sqls", "foldCase"],
)
def test_the_url_of_a_database_in_a_wrong_place_is_not_told(way: str) -> None:
    place: Way = ("spec", "ioConfig", "inputSource", *filter(None, way.split(".")))
    for secret in ("jdbc:postgresql://h/shop?user=ann&password=hush", "JDBC:oracle:thin:a/hush@h"):
        told = refusal(parse_batch_task, put(from_database(password="ours"), place, secret))
        assert "spec.ioConfig.inputSource" in told
        assert "hush" not in told
    if "connectorConfig" in way:
        told = refusal(parse_batch_task, put(from_database(password="ours"), place, "hush"))
        assert told.endswith("connectorConfig: must be an object, not text")


def test_a_running_task_of_kafka_is_shown_without_its_secrets() -> None:
    given = {"sasl.password": "hush", "client.id": "x"}
    place = {"type": "kafka", "name": "t", "properties": given}
    shown = {**place, "properties": {"sasl.password": MASK, "client.id": "x"}}
    assert masked({"id": "t", "place": place}) == {"id": "t", "place": shown}
    assert given["sasl.password"] == "hush"


@pytest.mark.parametrize("secret", ["hush", 7, 1.5, ["hush"], [{"a": "hush"}]])
def test_a_secret_of_a_form_that_no_spec_has_is_not_shown(secret: JsonValue) -> None:
    """As of a spec that a later release stored, which the history shows as it stands there."""
    spec = {"httpAuthenticationPassword": secret, "consumerProperties": {"a.password": secret}}
    shown = {"httpAuthenticationPassword": MASK, "consumerProperties": {"a.password": MASK}}
    assert masked(spec) == shown
    assert masked({"httpAuthenticationPassword": None}) == {"httpAuthenticationPassword": None}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/data/a?b=c.json", "/data/a?b=c.json"),
        ("http://h/a", "http://h/a"),
        ("HTTP://h:80/a?hush#part", f"HTTP://h:80/a?{MASK}#part"),
        ("https://ann:hush@h/a", f"https://ann:{MASK}@h/a"),
        ("simplecache::https://hush@h/a?b=hush", f"simplecache::https://{MASK}@h/a?b={MASK}"),
        ("sftp://ann:hush@h/a?b", f"sftp://ann:{MASK}@h/a?b"),
        # What stands before the @ is a place there, and ? stands for a letter.
        (
            "abfs://rows@account.dfs.core.windows.net/a?",
            "abfs://rows@account.dfs.core.windows.net/a?",
        ),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(given: str, shown: str) -> None:
    assert masked_url(given) == shown
    assert masked({"uris": [given], "paths": given}) == {"uris": [shown], "paths": shown}
