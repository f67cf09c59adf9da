"""`penstock trace` against the API itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import run
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import CountsRow
from tests.services.trace_kit import TraceWorld

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceWorld]:
    with closing(TraceWorld(tmp_path)) as world:
        server = HttpServer(world.api.app, listen(HostPort("127.0.0.1", 0), "--http"))
        server.start()
        monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{server.port}")
        rows = [(world.day, "AA", 1)] * 150
        for one in rows:
            world.send_row((one[0], one[1], one[2]))
        world.send(b"nonsense")
        task = world.task(0)
        segment = world.segment(0, [(world.day, "AA", 1)] * 150, "v1", 0)
        world.publish(task, (0, 151), [segment], CountsRow(processed=150, unparseable=1))
        try:
            yield world
        finally:
            server.stop()


def test_a_message_is_followed_to_its_row(served: TraceWorld, capsys: Capture) -> None:
    assert run(["trace", "message", "flights", "0", "1"]) == exit_codes.OK
    out = capsys.readouterr().out
    assert out.startswith("message 0000000000000001: stream partition 0, offset 1 of flights, 20")
    assert "flights (supervisor flights): visible: SQL shows its row" in out
    assert "the sequence was published as 1 segment" in out
    assert run(["trace", "message", "flights", "--id", "0000000000000096"]) == exit_codes.OK
    assert "unparseable: " in capsys.readouterr().out
    assert run(["trace", "message", "flights", "0", "1", "--json"]) == exit_codes.OK
    assert json.loads(capsys.readouterr().out) == served.message(1)
    assert run(["trace", "message", "flights", "0", "900"]) == exit_codes.FAILED
    assert "has no message at offset 900 yet" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["0"], [], ["0", "1", "--id", "0" * 16]])
def test_a_message_needs_a_place(words: list[str], capsys: Capture) -> None:
    assert run(["trace", "message", "flights", *words]) == exit_codes.USAGE
    assert "write a stream partition and an offset, or --id ID" in capsys.readouterr().err


def test_a_row_is_followed_back_to_all_of_its_messages(served: TraceWorld, capsys: Capture) -> None:
    row = ["trace", "row", "flights", "2013-01-01", "carrier=AA", "n=1"]
    assert run([*row, "--json"]) == exit_codes.OK
    found = capsys.readouterr()
    messages = json.loads(found.out)["messages"]
    assert [one["offset"] for one in messages] == list(range(150))
    assert "of 151 messages scanned" in found.err
    assert run(row) == exit_codes.OK
    out = capsys.readouterr().out
    assert out.startswith("flights at 2013-01-01T00:00:00.000Z: 150 rows\n")
    assert "0000000000000095" in out
    assert run(["trace", "row", "flights", "2013-01-01", "carrier"]) == exit_codes.OK
    assert "SQL shows no such row" in capsys.readouterr().out
    assert run(["trace", "row", "flights", "2013-01-01", "=AA"]) == exit_codes.USAGE
    assert "write the name of a column first" in capsys.readouterr().err
    assert served.row(served.day, carrier="AA")["rows"] == 150
