"""`penstock secret`: values go in and never come out; stored specs lose their passwords."""

from __future__ import annotations

import io
import itertools
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import orjson
import pytest

from penstock.core.errors import PenstockError
from penstock.indexing.secrets import MASK, with_references
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder, DataFolderLock
from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.rows.tasks import TaskRow
from penstock.storage.secrets.secret_sources import Secrets
from penstock.storage.sqlite_urls import sqlite_url

Capture = pytest.CaptureFixture[str]
SECRET = "open-sesame-4711"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def secrets_of(data: Path) -> Secrets:
    return Secrets(data / "secrets", {})


def test_a_value_from_standard_input_is_sealed_listed_and_removed(
    data: Path, enter: Callable[[str], None], capsys: Capture
) -> None:
    enter(f"{SECRET}\n")
    assert run(["secret", "set", "shop"]) == exit_codes.OK
    assert "secret://shop" in capsys.readouterr().out
    assert secrets_of(data).value("shop") == SECRET
    assert stat.S_IMODE((data / "secrets" / "secrets.json").stat().st_mode) == 0o600
    assert run(["secret", "list", "--json"]) == exit_codes.OK
    shown = capsys.readouterr().out
    (row,) = json.loads(shown)
    assert (row["name"], row["source"], row["version"]) == ("shop", "sealed", 1)
    assert run(["secret", "rotate"]) == exit_codes.OK
    assert secrets_of(data).value("shop") == SECRET
    enter("")
    assert run(["secret", "remove", "shop"]) == exit_codes.USAGE
    assert run(["secret", "remove", "shop", "--yes"]) == exit_codes.OK
    assert run(["secret", "remove", "shop", "--yes"]) == exit_codes.FAILED
    assert run(["secret", "list"]) == exit_codes.OK
    written = capsys.readouterr()
    assert "no secrets" in written.out
    assert SECRET not in shown + written.out + written.err


def test_a_prompt_does_not_show_the_value(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    given = iter([SECRET, "another", SECRET, SECRET])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(given))
    assert run(["secret", "set", "shop"]) == exit_codes.USAGE
    assert not (data / "secrets").exists()
    assert run(["secret", "set", "shop"]) == exit_codes.OK
    assert secrets_of(data).value("shop") == SECRET
    assert SECRET not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["set", "a/b"], SECRET, "invalid name of a secret"),
        (["set", "shop"], "", "a secret must have 1 to"),
        (["set", "elsewhere"], SECRET, "secrets.toml names another source"),
        (["remove", "shop", "--yes"], "", "unknown secret 'shop'"),
    ],
)
def test_a_wrong_command_changes_nothing(
    data: Path,
    enter: Callable[[str], None],
    capsys: Capture,
    arguments: list[str],
    text: str,
    said: str,
) -> None:
    (data / "secrets").mkdir(parents=True)
    (data / "secrets" / "secrets.toml").write_text('[secrets.elsewhere]\nfile = "/run/x"')
    (data / "secrets" / "secrets.toml").chmod(0o600)
    enter(text)
    assert run(["secret", *arguments]) in {exit_codes.USAGE, exit_codes.FAILED}
    error = capsys.readouterr().err
    assert said in error
    assert SECRET not in error
    assert not (data / "secrets" / "secrets.json").exists()


def test_sources_are_listed_by_their_kind(data: Path, capsys: Capture) -> None:
    (data / "secrets").mkdir(parents=True)
    (data / "secrets" / "secrets.toml").write_text(
        '[secrets.a]\nvariable = "HELD"\n[secrets.b]\nfile = "/run/b"\n'
        f'[secrets.c]\ncommand = ["vault", "{SECRET}"]\n'
    )
    (data / "secrets" / "secrets.toml").chmod(0o600)
    assert run(["secret", "list", "--json"]) == exit_codes.OK
    shown = capsys.readouterr().out
    sources = [row["source"] for row in json.loads(shown)]
    assert sources == ["variable HELD", "file /run/b", "command vault"]
    assert SECRET not in shown


def test_commands_send_a_token_that_is_a_secret(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets_of(data).store().set("api", SECRET)
    monkeypatch.setattr(CLI, "data_dir", str(data))
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret://api")
    assert CLI.options().token == "secret://api"
    assert CLI.token_for("http://127.0.0.1:8888") == SECRET
    assert CLI.resolved_options().token == SECRET


def test_a_start_with_an_unknown_secret_is_refused_at_once(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret://absent")
    assert run(["up", "--data-dir", str(data)]) == exit_codes.USAGE
    assert "token: unknown secret 'absent'" in capsys.readouterr().err


def test_a_new_key_is_printed_and_nothing_is_stored(data: Path, capsys: Capture) -> None:
    assert run(["secret", "key"]) == exit_codes.OK
    assert len(capsys.readouterr().out.strip()) == 43
    assert not data.exists()


HTTP: dict[str, object] = {
    "type": "http",
    "uris": ["https://example.org/a"],
    "httpAuthenticationUsername": "ann",
    "httpAuthenticationPassword": {"type": "default", "password": SECRET},
    "requestHeaders": {"Authorization": f"Bearer {SECRET}", "X-Odd": " x", "X-Named": "secret://a"},
}
TASK: dict[str, object] = {
    "id": "t1",
    "type": "index_parallel",
    "spec": {"ioConfig": {"inputSource": {"type": "combining", "delegates": [HTTP]}}},
}
SUPERVISOR: dict[str, object] = {
    "type": "kafka",
    "spec": {
        "ioConfig": {
            "consumerProperties": {
                "bootstrap.servers": "k:9092",
                "sasl.password": SECRET,
                "ssl.key.pem": {"type": "environment", "variable": "PENSTOCK_INPUT_KEY"},
            }
        }
    },
}


def fill(data: Path, **changes: object) -> MetadataStore:
    DataFolder(data).prepare()
    store = MetadataStore.open(sqlite_url(data / "metadata.db"))
    task = {**TASK, **changes}
    store.tasks.insert_new([TaskRow("t1", "d", "index_parallel", "t1", task, active=False)])
    store.supervisors.put("s", SUPERVISOR)
    store.supervisors.put("s", SUPERVISOR | {"suspended": True})
    folder = data / "tasks" / "t1"
    folder.mkdir(parents=True)
    (folder / "task.json").write_bytes(orjson.dumps(task))
    return store


def holders(data: Path) -> set[str]:
    """Return the files of a data folder in which the secret stands as text."""
    files = (path for path in data.rglob("*") if path.is_file())
    return {path.name for path in files if SECRET.encode() in path.read_bytes()}


def test_passwords_of_stored_specs_are_sealed_and_leave_the_disk(
    data: Path, capsys: Capture
) -> None:
    fill(data).close()
    assert holders(data) >= {"metadata.db", "task.json"}
    assert run(["secret", "adopt"]) == exit_codes.OK
    shown = capsys.readouterr()
    assert "sealed 2 secrets of 2 supervisor specs, 1 task and 1 task folder" in shown.out
    assert SECRET not in shown.out + shown.err
    assert holders(data) == set()
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as store:
        row = store.tasks.get("t1")
        newest, *_ = store.supervisors.history("s")
    assert row is not None
    source = row.payload["spec"]["ioConfig"]["inputSource"]["delegates"][0]  # type: ignore[index, call-overload]
    secrets = secrets_of(data)
    assert secrets.text(source["httpAuthenticationPassword"]) == SECRET
    assert secrets.text(source["requestHeaders"]["Authorization"]) == f"Bearer {SECRET}"
    assert source["requestHeaders"]["X-Odd"] == " x"
    assert source["requestHeaders"]["X-Named"] == "secret://a"
    given = newest.payload["spec"]["ioConfig"]["consumerProperties"]  # type: ignore[index, call-overload]
    assert given["sasl.password"] == source["httpAuthenticationPassword"], "sealed once"
    assert given["ssl.key.pem"] == {"type": "environment", "variable": "PENSTOCK_INPUT_KEY"}
    assert run(["secret", "adopt"]) == exit_codes.OK
    assert "sealed 0 secrets of 0 supervisor specs" in capsys.readouterr().out


def test_nothing_is_adopted_while_penstock_runs(data: Path, capsys: Capture) -> None:
    store = fill(data)
    lock = DataFolderLock(DataFolder(data))
    lock.take()
    assert run(["secret", "adopt"]) == exit_codes.FAILED
    lock.release()
    store.leases.renew("overlord", "o", host="h", port=1, ttl_ms=60_000)
    assert run(["secret", "adopt"]) == exit_codes.FAILED
    store.close()
    assert "overlord at h:1 uses these specs: stop it" in capsys.readouterr().err
    assert "metadata.db" in holders(data)


def test_an_interrupted_adoption_loses_nothing_and_is_completed_by_the_next(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at each call in turn: every spec then still has its secret, as text or sealed."""
    from penstock.services.cli import secret_commands
    from penstock.storage.metadata import migrations
    from penstock.storage.metadata.backends import sqlite
    from penstock.storage.secrets.secret_store import SecretStore

    fill(data).close()
    points = [
        (SecretStore, "adopt"),
        (SecretStore, "_write"),
        (migrations, "rewrite_specs"),
        (sqlite, "erase_old_content"),
        (secret_commands, "_adopt_task_folders"),
    ]
    for (owner, name), after in itertools.product(points, (False, True)):
        with monkeypatch.context() as patched:
            whole = getattr(owner, name)

            def fails(
                *given: object,
                whole: Callable[..., object] = whole,
                after: bool = after,
                **more: object,
            ) -> object:
                if after:
                    whole(*given, **more)
                raise PenstockError("the power failed")

            patched.setattr(owner, name, fails)
            run(["secret", "adopt"])
        with MetadataStore.open(sqlite_url(data / "metadata.db")) as store:
            newest, *_ = store.supervisors.history("s")
        given = newest.payload["spec"]["ioConfig"]["consumerProperties"]  # type: ignore[index, call-overload]
        assert secrets_of(data).text(given["sasl.password"]) == SECRET
    assert run(["secret", "adopt"]) == exit_codes.OK
    assert holders(data) == set()


def test_a_spec_without_secrets_stays_as_it_is() -> None:
    def adopt(_value: str) -> str:
        raise AssertionError

    environment = {"type": "environment", "variable": "PENSTOCK_INPUT_A"}
    for password in (environment, "secret://a", None, MASK, "", 5):
        spec = {"password": password, "a": [{"b": {"password": password}}], "sql": "SELECT 1"}
        assert with_references(cast("dict[str, object]", spec), adopt) is None
