"""`penstock status` while many tasks wait, and what `penstock up` reports before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.host import up as launcher_up
from tests.services.test_cli import Capture, FakeServer, server

__all__ = ["server"]


def test_status_names_the_tasks_that_wait_at_most_20(server: FakeServer, capsys: Capture) -> None:
    wait = {"dependency": "input", "since": "2026-11-23", "tries": 2, "work": "read", "error": "x"}
    waits = [wait | {"owner": f"task {number}"} for number in range(22)]
    for count, last in (
        (20, "waits for input since 2026-11-23, 2 tries (task 19: read): x"),
        (22, "and 2 more waits: see penstock status --json"),
    ):
        server.answers["/status"] = (200, {"version": "1", "services": [], "waits": waits[:count]})
        assert run(["status"]) == exit_codes.OK
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == last
        assert out.count("waits for input") == 20


def test_an_options_file_that_up_does_not_read_is_reported(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher_up, "up", lambda *_, **__: None)
    monkeypatch.setenv("PENSTOCK_CONFIG", "")  # which the command sets
    assert run(["up", "--data-dir", "data"]) == exit_codes.OK
    assert capsys.readouterr().err == ""
    Path("penstock.toml").write_text("")
    assert run(["up", "--data-dir", "data"]) == exit_codes.OK
    read = tmp_path / "data" / "penstock.toml"
    told = f"penstock: {tmp_path / 'penstock.toml'} is not read; options are in {read}\n"
    assert capsys.readouterr().err == told
    for arguments in (["--data-dir", "."], ["--config", "penstock.toml"]):
        assert run(["up", *arguments]) == exit_codes.OK
        assert capsys.readouterr().err == ""
