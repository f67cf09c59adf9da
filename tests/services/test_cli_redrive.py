"""`penstock topic redrive` and `peek` with dead letters, against a real broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.services.cli.entry import run
from tests.broker.broker_kit import RunningBroker


def letter(number: int, topic: str = "orders") -> bytes:
    message = base64.b64encode(b'{"order": %d}' % number).decode()
    document = {"topic": topic, "partition": 0, "offset": number, "reason": "no\n time"}
    return json.dumps({**document, "message_base64": message}).encode()


class CommandLine:
    """Commands for one broker."""

    def __init__(self, broker: RunningBroker, output: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self.output = output

    def publish(self, topic: str, *bodies: bytes) -> None:
        assert self.broker.ask("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200

    def says(self, *command: str, code: int = 0) -> list[str]:
        assert run(["topic", *command, "--broker-url", self.broker.url]) == code
        said = self.output.readouterr()
        return (said.out if code == 0 else said.err).splitlines()


@pytest.fixture
def line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0)
    with RunningBroker(options) as broker:
        made = CommandLine(broker, capfd)
        made.publish("orders", b"first")
        made.publish("dead", *(letter(number) for number in range(4)), letter(4, "gone"))
        yield made


def test_dead_letters_are_readable(line: CommandLine) -> None:
    line.publish("dead", b'{"message_base64": "x"}')
    assert line.says("redrive", "dead", "--offset", "1", "--yes") == [
        "1 dead letter published to orders"
    ]
    assert line.says("peek", "dead") == [
        'orders 0:0 | no time | {"order": 0}',
        'orders 0:1 | no time | {"order": 1} | (redriven)',
        'orders 0:2 | no time | {"order": 2}',
        'orders 0:3 | no time | {"order": 3}',
        'gone 0:4 | no time | {"order": 4}',
        '{"message_base64": "x"}',
    ]
    said = line.says("peek", "dead", "--json", "--offset", "1", "--max", "1")
    found = json.loads("\n".join(said))
    assert found[0]["redriven"] is True
    assert found[0]["dead_letter"] == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "reason": "no\n time",
        "message": '{"order": 1}',
    }


def test_messages_are_searched(line: CommandLine) -> None:
    search = ("peek", "dead", "--json-path", "$.order", "--equals")
    assert line.says(*search, "3") == ['orders 0:3 | no time | {"order": 3}']
    assert line.says("peek", "dead", "--contains", "gone") == ['gone 0:4 | no time | {"order": 4}']
    assert line.says("peek", "orders", "--time", "2100-01-01") == []
    assert "single result" in line.says("peek", "dead", "--json-path", "order", code=2)[0]
    assert "not at both" in line.says("peek", "t", "--time", "2100", "--offset", "1", code=2)[0]


def test_all_are_redriven_once(line: CommandLine) -> None:
    assert line.says("redrive", "dead", "--equals", "2", "--json-path", "$.order", "-y") == [
        "1 dead letter published to orders"
    ]
    said = line.says("redrive", "dead", "--yes")
    assert said[:3] == [
        "3 dead letters published to orders",
        "1 were redriven before",
        "1 cannot be redriven:",
    ]
    assert "'gone' does not exist" in said[-1]
    again = json.loads("\n".join(line.says("redrive", "dead", "--yes", "--json")))
    assert (again["redriven"], again["already"], again["skipped"]) == ({}, 4, 1)
    assert line.says("redrive", "dead", "--from", "gone", "--to", "orders", "-y") == [
        "1 dead letter published to orders"
    ]
    expected = sorted([b"first", *(b'{"order": %d}' % number for number in range(5))])
    assert sorted(line.broker.stored("orders")[0]) == expected


def test_it_asks_first(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(text: str, *, yes: bool) -> None:
        asked.append(text)
        raise SystemExit(1)

    monkeypatch.setattr("penstock.services.cli.redrive.confirm", refuse)
    line.says("redrive", "dead", code=1)
    assert asked == ["Publish 4 dead letters again (4 to orders)?"]
    assert line.broker.stored("orders") == [[b"first"]]


def test_errors_name_the_remedy(line: CommandLine) -> None:
    assert "no stream partition 3" in line.says("redrive", "dead", "--partition", "3", code=2)[0]
    assert "to itself" in line.says("redrive", "dead", "--to", "dead", "-y", code=2)[0]
