"""`penstock topic …` on channels and options, against a real broker."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.services.cli.entry import run
from tests.broker.broker_kit import RunningBroker

Command = Callable[..., str]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    options = BrokerOptions(folder=str(tmp_path / "topics"), http_port=0, tcp_port=0)
    with RunningBroker(options) as running, BrokerClient(running.url) as client:
        client.create_topic("t", 1)
        yield running


@pytest.fixture
def command(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Command:
    def do(*words: str, code: int = 0) -> str:
        assert run([*words, "--broker-url", broker.url]) == code
        shown = capfd.readouterr()
        return shown.err if code else shown.out

    return do


def channel(command: Command, name: str = "c") -> dict[str, object]:
    (topic,) = json.loads(command("topic", "stats", "t", "--json"))["stats"]
    return next(one for one in topic["channels"] if one["channel_name"] == name)


def test_a_created_topic_is_told_from_one_that_exists(
    broker: RunningBroker, command: Command
) -> None:
    assert command("topic", "create", "new") == "created topic new\n"
    assert command("topic", "create", "new") == "topic new already exists\n"
    assert command("topic", "create", "t", "-p", "1") == "topic t already exists\n"


@pytest.mark.parametrize(
    "words",
    [("stats", "salse"), ("peek", "salse"), ("pause", "salse"), ("pause", "salse", "-c", "c")],
)
def test_a_misspelt_topic_has_the_nearest_name(
    words: tuple[str, ...], broker: RunningBroker, command: Command
) -> None:
    command("topic", "create", "sales")
    said = command("topic", *words, code=1)
    assert "topic 'salse' does not exist; did you mean 'sales'? If not, create it with" in said


def test_cursors_are_shown_with_the_messages_after_them(
    broker: RunningBroker, command: Command
) -> None:
    command("pub", "--topic", "t", "one", "two", "three")
    assert "cursor" not in command("topic", "stats", "t")
    with BrokerClient(broker.url) as client:
        client.set_cursor("t", 0, "copies", 1)
    shown = command("topic", "stats", "t")
    assert re.search(r"cursor +messages behind\n.*\ncopies +2\n", shown)
    said = command("topic", "delete", "t", "--cursor", "copy", "-y", code=1)
    assert "topic t has no cursor 'copy'; its cursors are: copies" in said
    said = command("topic", "delete", "t", "--cursor", "supervisor.t", "-y", code=2)
    assert "terminate the supervisor instead" in said
    deleted = "cursor copies of topic t is deleted\n"
    assert command("topic", "delete", "t", "--cursor", "copies", "-y") == deleted
    assert "copies" not in command("topic", "stats", "t")


def test_channels_are_made_paused_emptied_and_deleted(
    broker: RunningBroker, command: Command
) -> None:
    assert command("topic", "create", "t", "-c", "c") == "created channel c of topic t\n"
    exists = "channel c of topic t already exists\n"
    assert command("topic", "create", "t", "-c", "c") == exists
    command("pub", "--topic", "t", "one", "two", "three")
    assert channel(command)["depth"] == 3
    assert "waiting" in command("topic", "stats", "t")
    command("topic", "pause", "t", "-c", "c")
    assert channel(command)["paused"]
    command("topic", "unpause", "t", "-c", "c")
    assert not channel(command)["paused"]
    command("topic", "empty", "t", "-c", "c", "--yes")
    assert channel(command)["depth"] == 0
    command("topic", "delete", "t", "-c", "c", "--yes")
    assert not broker.server.broker.topics.get("t").channels
    assert "CHANNEL_NOT_FOUND" in command("topic", "pause", "t", "-c", "c", code=1)


def test_a_topic_is_not_created_if_the_name_of_its_channel_is_refused(command: Command) -> None:
    said = command("topic", "create", "other", "-c", "a/b", code=2)
    assert "channel: 'a/b' is not a valid channel name" in said
    assert "other" not in command("topic", "list")
    assert "'a/b' is not a valid channel name" in command(
        "topic", "pause", "t", "-c", "a/b", code=2
    )


def test_a_number_that_is_too_large_for_an_option_is_refused_with_the_bound(
    command: Command,
) -> None:
    said = command("topic", "configure", "t", "max_attempts=" + "9" * 22, code=2)
    assert "is not a whole number from 0 to 9007199254740992" in said


def test_a_channel_is_replayed(command: Command) -> None:
    command("topic", "create", "t", "-c", "c")
    command("pub", "--topic", "t", "one", "two", "three")
    assert command("sub", "t", "-c", "c", "--max", "3") == "one\ntwo\nthree\n"
    command("topic", "replay", "t", "-c", "c", "--to", "beginning")
    assert command("sub", "t", "-c", "c", "--max", "3") == "one\ntwo\nthree\n"
    (place,) = json.loads(command("topic", "replay", "t", "-c", "c", "--offset", "2", "--json"))
    assert place == {"partition": 0, "offset": 2, "repeated": 1, "skipped": 0}
    assert command("sub", "t", "-c", "c", "--max", "1") == "three\n"
    command("topic", "replay", "t", "-c", "c", "--time", "2100-01-01")
    assert channel(command)["depth"] == 0
    command("topic", "replay", "t", "-c", "new", "--time", "2013-01-01")
    assert channel(command, "new")["depth"] == 3
    for places in ((), ("--to", "end", "--offset", "1"), ("--to", "start")):
        assert "one of --to" in command("topic", "replay", "t", "-c", "c", *places, code=2)
    assert "not an ISO 8601 time" in command(
        "topic", "replay", "t", "-c", "c", "--time", "noon", code=2
    )
    assert "OFFSET_NOT_FOUND" in command(
        "topic", "replay", "t", "-c", "wrong", "--offset", "9", code=1
    )
    assert "wrong" not in command("topic", "stats", "t", "--json")


def test_what_was_refused_is_counted_in_stats(command: Command) -> None:
    # Durable, as a small bound makes small log files, of which two at most may wait for an fsync.
    command("topic", "configure", "t", "max_bytes=1048576", "durable=true")
    for _ in range(3):
        command("pub", "--topic", "t", "x" * 300_000)
    assert "refused" not in command("topic", "stats", "t")
    error = command("pub", "--topic", "t", "x" * 300_000, code=1)
    assert error.startswith("penstock: topic t is full")
    assert "refused" in command("topic", "stats", "t")


def test_a_topic_that_a_publish_creates_is_told_of_once(
    broker: RunningBroker, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A name may be mistyped, and how many stream partitions a topic has is settled then."""
    events = tmp_path / "events"
    events.write_text("")
    for topic, told in (("t", ""), ("typo", "typo did not exist: it was created, with 1 stream ")):
        publish = ["pub", "-t", topic, "--batch", "1", "--broker-url", broker.url]
        assert run([*publish, "--file", str(events)]) == 0
        assert run([*publish, "one", "two"]) == 0
        shown = capfd.readouterr()
        assert shown.out.splitlines()[1:] == [f"2 events published to {topic}"]
        assert told in shown.err
        assert len(shown.err.splitlines()) == bool(told)
        assert run([*publish, "three"]) == 0
        assert capfd.readouterr().err == ""


def test_options_are_shown_and_changed(command: Command) -> None:
    command("topic", "configure", "t", "max_attempts=5", "dead_letter_topic=dead")
    found = json.loads(command("topic", "configure", "t", "--json"))
    assert found["options"]["max_attempts"] == 5
    assert found["set"] == {"max_attempts": 5, "dead_letter_topic": "dead"}
    assert "for this topic" in command("topic", "configure", "t", "max_attempts=")
    assert json.loads(command("topic", "configure", "t", "--json"))["set"] == {
        "dead_letter_topic": "dead"
    }
    assert "OPTION=VALUE" in command("topic", "configure", "t", "max_attempts", code=2)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([], ["one", "two", "three", "four"]),
        (["--max", "2"], ["one", "two"]),
        (["--offset", "-2"], ["three", "four"]),
        (["--offset", "2", "--max", "1", "--partition", "0"], ["three"]),
        (["--offset", "99"], []),
        (["--partition", "1"], []),
    ],
)
def test_peeking_into_a_topic(
    broker: RunningBroker, command: Command, arguments: list[str], messages: list[str]
) -> None:
    command("topic", "create", "two", "--partitions", "2")
    with BrokerClient(broker.url) as client:
        client.publish("two", [b"one", b"two", b"three", b"four"], partition=0)
    shown = command("topic", "peek", "two", *arguments)
    assert shown == "".join(f"{message}\n" for message in messages)
    rows = json.loads(command("topic", "peek", "two", "--json", *arguments))
    assert [row["message"] for row in rows] == messages
    assert "it has 0 to 1" in command("topic", "peek", "two", "--partition", "2", code=2)


def test_peeking_goes_on_behind_what_is_lost(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("topic", "create", "t")
    command("pub", "--topic", "t", "one")
    look = BrokerClient.peek
    asked: list[object] = []

    def peek(client: BrokerClient, topic: str, **how: object) -> dict[str, object]:
        asked.append(how["offset"])
        if len(asked) == 1:  # as if damage had taken the first thousand
            return {"messages": [], "next_offset": 0, "latest": 1}
        return look(client, topic, offset=0, count=10)

    monkeypatch.setattr(BrokerClient, "peek", peek)
    assert command("topic", "peek", "t", "--offset", "0") == "one\n"
    assert asked == [0, 0]


def test_peeking_into_a_channel(command: Command) -> None:
    command("topic", "create", "t", "-c", "c")
    command("pub", "--topic", "t", "one", "two", "three")
    command("sub", "t", "-c", "c", "--max", "1")
    rows = json.loads(command("topic", "peek", "t", "-c", "c", "--offset", "0", "--json"))
    assert [row["state"] for row in rows] == ["finished", "new", "new"]
    assert "two" in command("topic", "peek", "t", "-c", "c")
    assert "no messages" in command("topic", "peek", "t", "-c", "c", "--state", "in_flight")
    assert "--channel" in command("topic", "peek", "t", "--state", "in_flight", code=2)


@pytest.mark.parametrize(
    ("body", "line", "shown"),
    [
        (
            '{\n  "a": 1.10,\n  "b": "ü 👨‍👩‍👧"\n}\n'.encode(),
            '{ "a": 1.10, "b": "ü 👨‍👩‍👧" }',
            True,
        ),
        ("größer\tals".encode(), "größer\tals", True),
        (b"[1,\n2", "[1,\n2", True),
        (b"\xff\x00", "base64 /wA=", False),
        (b"\x1b[31mred", "base64 G1szMW1yZWQ=", False),
    ],
)
def test_what_is_text_is_shown_as_text(
    broker: RunningBroker, command: Command, body: bytes, line: str, shown: bool
) -> None:
    with BrokerClient(broker.url) as client:
        client.publish("t", [body])
    assert command("topic", "peek", "t") == f"{line}\n"
    (row,) = json.loads(command("topic", "peek", "t", "--json"))
    if shown:
        assert row["message"] == body.decode()
    else:
        assert base64.b64decode(row["message_base64"]) == body


def test_more_than_one_look(broker: RunningBroker, command: Command) -> None:
    with BrokerClient(broker.url) as client:
        client.publish("t", [b"%d" % number for number in range(2_500)])
    shown = command("topic", "peek", "t", "--max", "9999").split()
    assert shown == [str(number) for number in range(2_500)]


@pytest.mark.parametrize(
    "words",
    [("topic", "create", "Café"), ("pub", "--topic", "Café", "an event")],
    ids=["create", "pub"],
)
def test_a_name_that_is_refused_is_shown_as_it_was_typed(
    command: Command, words: tuple[str, ...]
) -> None:
    said = " ".join(command(*words, code=2).split())
    assert "INVALID_TOPIC: " in said
    assert "'Café' is not a valid topic name: use 1 to 64 of the characters a-z A-Z 0-9" in said
