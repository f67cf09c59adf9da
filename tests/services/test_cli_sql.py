"""Statements that `penstock sql` sends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from test_cli import FakeServer, server

from penstock.services.cli.entry import run

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
