"""Statements that `penstock sql` sends, and results that are cut."""

from __future__ import annotations

import io
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from tests.services.test_cli import Capture, FakeServer, server

__all__ = ["server"]


def test_a_statement_is_sent_with_the_blanks_and_lines_before_it(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/druid/v2/sql"] = (200, [["x"], [1]])
    server.answers["/druid/v2/sql/task"] = (400, {"errorMessage": "refused"})
    file = tmp_path / "q.sql"
    for text, sent in (
        ("\n\n\n  SELECT x\n  FROM t ; \n", "\n\n\n  SELECT x\n  FROM t"),
        ("\n\n  REPLACE INTO t\n", "\n\n  REPLACE INTO t"),
    ):
        file.write_text(text)
        for arguments in (["-f", str(file)], [text], []):
            monkeypatch.setattr("sys.stdin", io.StringIO(text))
            run(["sql", *arguments])
            assert json.loads(server.asked[-1][3])["query"] == sent


def test_a_result_that_the_row_limit_cut_fails_unless_the_limit_was_asked_for(
    server: FakeServer, capsys: Capture
) -> None:
    server.answers["/druid/v2/sql"] = (200, [["year"], [2013]])
    for form in ("table", "csv", "json", "jsonl"):
        server.more_headers = {"X-Penstock-Truncated": "true"}
        assert run(["sql", "SELECT 1", "--format", form]) == exit_codes.FAILED
        assert "the result was cut" in capsys.readouterr().err
        asked = ["sql", "SELECT 1", "--format", form, "--context", "sqlOuterLimit=1"]
        assert run(asked) == exit_codes.OK
        assert "the result was cut" in capsys.readouterr().err
        server.more_headers = {}
        assert run(["sql", "SELECT 1", "--format", form]) == exit_codes.OK
        assert capsys.readouterr().err == ""


def files_in(folder: Path) -> list[str]:
    """Return the names in a folder, except for that of the fixture's server."""
    return sorted(one.name for one in folder.iterdir() if one.name != "penstock.json")


def save(file: Path, *more: str, form: str = "parquet") -> int:
    return run(["sql", "SELECT 1", "--format", form, "--output", str(file), *more])


def test_a_result_is_written_to_a_file(server: FakeServer, tmp_path: Path, capsys: Capture) -> None:
    server.answers["/druid/v2/sql"] = (200, "PAR1 … PAR1\n")
    file = tmp_path / "x.parquet"
    assert save(file) == exit_codes.OK
    assert json.loads(server.asked[-1][3])["resultFormat"] == "parquet"
    assert file.read_text() == "PAR1 … PAR1\n"
    assert capsys.readouterr().out == f"14 bytes written to {file}\n"
    server.answers["/druid/v2/sql"] = (200, "a\n1\n\n")
    asked = len(server.asked)
    assert save(file) == exit_codes.USAGE
    assert (len(server.asked), file.read_text()) == (asked, "PAR1 … PAR1\n")
    assert save(file, "--yes", form="csv") == exit_codes.OK
    assert file.read_text() == "a\n1\n"
    link = tmp_path / "link"
    link.symlink_to(file)
    server.answers["/druid/v2/sql"] = (200, "ARROW1")
    assert save(link, "--yes", form="arrow") == exit_codes.OK
    assert (file.read_text(), link.is_symlink()) == ("ARROW1", True)
    assert files_in(tmp_path) == ["link", "x.parquet"]


def test_an_error_or_a_cut_leaves_no_file(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    file = tmp_path / "x.parquet"
    server.answers["/druid/v2/sql"] = (400, {"errorMessage": "refused"})
    assert save(file) == exit_codes.USAGE
    server.answers["/druid/v2/sql"] = (200, "PAR1 … PAR1")
    server.more_headers = {"X-Penstock-Truncated": "true"}
    assert save(file) == exit_codes.FAILED
    assert files_in(tmp_path) == []
    assert save(file, "--context", "sqlOuterLimit=5") == exit_codes.OK
    server.more_headers = {}
    old = file.read_text()

    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"PAR1")
        handler.close_connection = True

    monkeypatch.setattr(server, "handle", cut)
    capsys.readouterr()
    assert save(file, "--yes") == exit_codes.NOT_REACHABLE
    assert "996 more expected" in capsys.readouterr().err
    assert (file.read_text(), files_in(tmp_path)) == (old, ["x.parquet"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["SELECT 1", "--format", "parquet"], "name one with --output"),
        (["SELECT 1", "--yes"], "--yes replaces the file of --output"),
        (["SELECT 1", "-o", "x"], "choose --format with one of csv, json, jsonl, parquet, arrow"),
        (["INSERT INTO x SELECT 1", "--format", "csv", "-o", "x"], "a task has none"),
        (["SELECT 1", "--format", "csv", "-o", "no/x"], "its folder does not exist"),
        (["SELECT 1", "--format", "csv", "-o", "."], "is not a regular file"),
    ],
)
def test_outputs_that_are_refused_before_the_query(
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sql", *arguments]) == exit_codes.USAGE
    assert re.search(said, capsys.readouterr().err)
    assert (server.asked, files_in(tmp_path)) == ([], [])
