"""Commands that do not reach the server, or are refused, print the reason and the remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from tests.services.test_cli import Capture, FakeServer, server

__all__ = ["server"]


@pytest.mark.parametrize("status", [200, 404, 501])
def test_another_web_server_at_the_address_is_named(
    status: int, server: FakeServer, capsys: Capture
) -> None:
    page = "<!DOCTYPE HTML>\n<html><p>Jupyter</p></html>"
    server.answers["/status"] = server.answers["/druid/v2/sql"] = (status, page)
    assert run(["status"]) != exit_codes.OK
    error = capsys.readouterr().err
    assert f"GET {server.url}/status was answered" in error
    assert "another program, or a proxy, answers at this address: --url" in error
    assert "Jupyter" not in error
    if status != 200:
        assert run(["sql", "select 1", "--format", "json"]) != exit_codes.OK
        assert f"POST {server.url}/druid/v2/sql was answered" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["penstock.toml", "penstock.json"])
@pytest.mark.parametrize("command", [["status"], ["topic", "list"]])
def test_a_folder_of_another_user_is_refused_with_a_remedy(
    command: list[str],
    file: str,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    # Not by permissions, which do not apply to root.
    def refused_as(method: str) -> None:
        original = getattr(Path, method)

        def refuse(path: Path, *arguments: object, **named: object) -> object:
            if path == tmp_path / file:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **named)

        monkeypatch.setattr(Path, method, refuse)

    refused_as("stat")
    refused_as("read_text")
    assert run(command) != exit_codes.OK
    error = capsys.readouterr().err
    assert "Errno" not in error
    assert str(tmp_path) in error
    assert "(Permission denied): run this command as the user that runs Penstock, or " in error


def test_a_command_during_a_start_names_the_processes_that_are_not_ready(
    server: FakeServer, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "penstock.json").unlink()
    (tmp_path / "penstock.lock").write_text(str(os.getpid()))
    (tmp_path / "run").mkdir()
    waits = "waits for Spark since 2026-11-28T20:29:44.126Z, 4 tries: try again in a moment"
    children = {
        "broker": {"pid": 1, "ready": True, "waits": ""},
        "spark": {"pid": 2, "ready": False, "waits": "has been starting for 13 s"},
        "worker": {"pid": 3, "ready": False, "waits": waits},
    }
    (tmp_path / "run" / "children.json").write_text(json.dumps(children))
    assert run(["pub", "-t", "t", "a"]) == exit_codes.NOT_REACHABLE
    assert capsys.readouterr().err == (
        f"penstock: the Penstock in {tmp_path} (process {os.getpid()}) is not ready yet: it waits"
        " for spark, worker; try again in a moment, or see penstock status\n"
    )


def test_tasks_are_listed_by_how_they_ended(server: FakeServer, capsys: Capture) -> None:
    codes = {"a": "SUCCESS", "b": "FAILED", "c": "FAILED"}
    server.answers["/druid/indexer/v1/tasks"] = (
        200,
        [{"id": name, "statusCode": code} for name, code in codes.items()],
    )
    assert run(["task", "list", "--state", "FAILED", "--json"]) == exit_codes.OK
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["b", "c"]
    assert server.asked[-1][2] == {"state": ["complete"]}
    assert run(["task", "list", "--state", "failed", "--max", "1", "--json"]) == exit_codes.OK
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == ["b"]
    assert run(["task", "list", "--state", "Running"]) == exit_codes.OK
    assert server.asked[-1][2] == {"state": ["running"], "max": ["50"]}
    assert run(["task", "list", "--state", "FAILD"]) == exit_codes.USAGE
    assert capsys.readouterr().err == (
        "penstock: --state: invalid state 'FAILD'; did you mean 'failed'?; use pending, waiting,"
        " running, complete, success, failed\n"
    )
