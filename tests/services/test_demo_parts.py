"""The demo's parts that need no server: messages, and finding processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest
from penstock.services.demo.chaos import kill_one, processes_of
from penstock.services.demo.flights import DISTANCE, ROWS, read_flights, to_messages
from penstock.services.demo.server import fresh_folder
from penstock.services.host.datafolder import DataFolder


def test_each_row_becomes_its_json() -> None:
    rows = [
        {"n": 1, "s": 'q"\\', "t": "2013-01-01T10:00:00Z"},
        {"n": None, "s": None, "t": "é\n"},
        {"n": -3, "s": 'q"\\', "t": ""},
    ]
    messages = to_messages(pa.Table.from_pylist(rows))
    assert [orjson.loads(message) for message in messages.to_pylist()] == rows


def test_the_flights_are_all_there() -> None:
    table = read_flights()
    assert table.num_rows == ROWS
    assert table["time_hour"][0].as_py() == "2013-01-01T10:00:00Z"
    assert sum(table["distance"].to_pylist()) == DISTANCE


def test_processes_are_found_by_what_they_are() -> None:
    script = "import sys; sys.stdin.read()"
    argv = [sys.executable, "-c", script, "penstock.services.roles", "broker"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        found = processes_of(os.getpid())
        assert [one.name for one in found if one.pid == process.pid] == ["broker"]
        # Below the child alone there is nobody else to choose.
        victim = kill_one(process.pid, random.Random(1))
        assert victim is not None
        assert victim.pid == process.pid
        assert process.wait() == -9
    assert kill_one(process.pid, random.Random(1)) is None


def test_only_the_demos_own_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "demo-data"
    assert fresh_folder(folder).path == folder
    DataFolder(folder).prepare()
    (folder / "topics" / "x").write_text("old")
    fresh_folder(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "thesis.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match="not the demo's"):
        fresh_folder(folder)
    assert (folder / "thesis.txt").exists()
