"""A stopped broker's folder is damaged: what it costs, what is counted, kept aside, and goes on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.options import BrokerOptions
from penstock.storage.queue.blocks import FILE_HEADER_BYTES
from penstock.storage.queue.disk_queue import DiskQueueOptions
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2

BLOCK = 48 + 8 + 104  # of one message of 100 bytes
QUEUE = DiskQueueOptions(max_bytes_per_file=FILE_HEADER_BYTES + 10 * BLOCK)
EVERYTHING = set(range(30))
FINISHED = set(range(0, 30, 3))  # by channel "some"; nothing by channel "none"

Change = Callable[[Path], None]


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return replace(options, tcp_port=0, retention_interval_ms=1 << 30)


@pytest.fixture
def folder(options: BrokerOptions) -> Path:
    """Thirty messages in three log files, two channels, and the broker stopped."""
    with RunningBroker(options, QUEUE) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as producer, V2(port) as some, V2(port) as none:
            some.subscribe("t", "some", ready=50)
            none.subscribe("t", "none", ready=0)
            producer.identify(durable=True)
            producer.publish("t", *(b"%02d" % n * 50 for n in range(30)))
            ids = [message.id for message in (some.message() for _ in range(30))]
            some.finish(*(ids[n] for n in sorted(FINISHED)), b"f" * 16)
            assert some.error().startswith("E_FIN_FAILED")  # so the others were heard
    return Path(options.folder, "t")


def log_file(base: int) -> str:
    return f"0/{base:020d}.log"


def changed(name: str, change: Callable[[bytearray], None]) -> Change:
    def apply(topic: Path) -> None:
        content = bytearray((topic / name).read_bytes())
        change(content)
        (topic / name).write_bytes(content)

    return apply


def flip(at: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[at] ^= 0xFF

    return change


def zero(start: int, end: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[start:end] = bytes(end - start)

    return change


def cut(at: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[at:]

    return change


def removed(name: str) -> Change:
    return lambda topic: (topic / name).unlink()


def at(block: int) -> int:
    return FILE_HEADER_BYTES + block * BLOCK


def came(broker: RunningBroker, channel: str, count: int) -> set[int]:
    """Take so many messages of a channel, which are all that there are."""
    with V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe("t", channel, ready=100)
        found = [int(consumer.message().body[:2]) for _ in range(count)]
        assert len(set(found)) == count
        counts = broker.server.broker.topics.get("t").channels[channel].counts()
        assert (counts.fresh, counts.ready, counts.in_flight) == (0, 0, count)
    return set(found)


def statistics(broker: RunningBroker) -> dict[str, object]:
    (topic,) = json.loads(broker.ask("GET", "/stats?format=json&topic=t").body)["topics"]
    assert isinstance(topic, dict)
    return topic


@pytest.mark.parametrize(
    ("damage", "lost", "kept_aside"),
    [
        pytest.param(changed(log_file(10), flip(at(3) + 80)), {13}, True, id="a flipped bit"),
        pytest.param(changed(log_file(10), flip(at(3) + 9)), {13}, True, id="a flipped header"),
        pytest.param(
            changed(log_file(10), zero(at(3) + 80, at(5) + 8)), {13, 14, 15}, True, id="zeros"
        ),
        pytest.param(changed(log_file(10), zero(at(7), at(10))), {17, 18, 19}, False, id="no end"),
        pytest.param(
            changed(log_file(10), cut(at(7) + 1)), {17, 18, 19}, True, id="cut inside a block"
        ),
        pytest.param(changed(log_file(10), cut(at(7))), {17, 18, 19}, False, id="cut at a border"),
        pytest.param(changed(log_file(10), cut(0)), set(range(10, 20)), False, id="empty"),
        pytest.param(removed(log_file(10)), set(range(10, 20)), False, id="no middle file"),
        pytest.param(changed(log_file(20), flip(at(3) + 80)), {23}, True, id="in the last file"),
    ],
)
def test_damage_costs_the_blocks_it_touches_once_and_is_counted(
    folder: Path,
    options: BrokerOptions,
    damage: Change,
    lost: set[int],
    kept_aside: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(folder)
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "none", 30 - len(lost)) == EVERYTHING - lost
        left = EVERYTHING - lost - FINISHED
        assert came(broker, "some", len(left)) == left
        found = statistics(broker)
        assert found["messages_lost"] == len(lost)
        channels = {entry["channel_name"]: entry for entry in found["channels"]}  # type: ignore[attr-defined]
        assert channels["none"]["messages_lost"] == len(lost)
        assert channels["some"]["messages_lost"] == len(lost - FINISHED)
        assert [entry["journal_damaged"] for entry in channels.values()] == [0, 0]
        with V2(broker.server.broker.tcp_port) as producer:
            producer.publish("t", b"30" * 50)
        assert came(broker, "none", 31 - len(lost)) == (EVERYTHING | {30}) - lost
    said = [
        record
        for record in caplog.records
        if re.search(r": lost \d+ messages?, offsets", record.getMessage())
    ]
    assert len(said) == len({record.getMessage() for record in said}) > 0
    assert bool([*(folder / "0").glob("*.bad")]) == kept_aside
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "none", 31 - len(lost)) == (EVERYTHING | {30}) - lost


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        pytest.param(changed(log_file(20), cut(at(4) + 90)), set(range(24)), id="cut"),
        pytest.param(changed(log_file(20), zero(at(4), at(10))), set(range(24)), id="zeros"),
        pytest.param(removed(log_file(20)), set(range(20)), id="no last file"),
        pytest.param(lambda topic: shutil.rmtree(topic / "0"), set(), id="no file at all"),
        pytest.param(removed(log_file(0)), set(range(10, 30)), id="no first file"),
    ],
)
def test_what_is_left_of_a_topic_comes_and_new_messages_do(
    folder: Path, options: BrokerOptions, damage: Change, left: set[int]
) -> None:
    damage(folder)
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "none", len(left)) == left
        assert came(broker, "some", len(left - FINISHED)) == left - FINISHED
        with V2(broker.server.broker.tcp_port) as producer:
            producer.identify(durable=True)
            producer.publish("t", *(b"%d" % n * 50 for n in range(30, 38)))
        new = set(range(30, 38))
        assert came(broker, "some", len(left - FINISHED) + 8) == (left - FINISHED) | new
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "none", len(left) + 8) == left | new


JOURNAL = "channels/some/{}"


def journal_of(topic: Path) -> Path:
    (found,) = (topic / "channels" / "some").glob("*.log")
    return found


def in_journal(change: Callable[[bytearray], None]) -> Change:
    return lambda topic: changed(str(journal_of(topic).relative_to(topic)), change)(topic)


@pytest.mark.parametrize(
    ("damage", "kept_aside"),
    [
        pytest.param(in_journal(flip(FILE_HEADER_BYTES + 60)), True, id="a flipped bit"),
        pytest.param(in_journal(zero(0, FILE_HEADER_BYTES + 80)), True, id="zeros"),
        pytest.param(in_journal(cut(0)), True, id="empty"),
        pytest.param(lambda topic: journal_of(topic).unlink(), False, id="gone"),
        pytest.param(
            lambda topic: shutil.rmtree(topic / "channels" / "some"), False, id="no folder"
        ),
    ],
)
def test_a_damaged_journal_costs_repeats_and_no_message(
    folder: Path,
    options: BrokerOptions,
    damage: Change,
    kept_aside: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    damage(folder)
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "some", 30) == EVERYTHING
        assert came(broker, "none", 30) == EVERYTHING
        channels = statistics(broker)["channels"]
        assert [(c["channel_name"], c["journal_damaged"]) for c in channels] == [  # type: ignore[attr-defined]
            ("none", 0),
            ("some", 1),
        ]
    said = [record for record in caplog.records if "journal" in record.getMessage()]
    assert len(said) == 1
    assert bool([*(folder / "channels" / "some").glob("*.bad")]) == kept_aside
    with RunningBroker(options, QUEUE) as broker:
        assert statistics(broker)["channels"][1]["journal_damaged"] == 0  # type: ignore[index]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(removed("topic.json"), id="no topic.json"),
        pytest.param(changed("topic.json", cut(30)), id="a cut topic.json"),
        pytest.param(changed("topic.json", zero(0, 90)), id="zeros"),
        pytest.param(changed("topic.json", cut(0)), id="an empty one"),
        pytest.param(removed("topic.id"), id="no topic.id"),
        pytest.param(
            lambda topic: [entry.unlink() for entry in topic.iterdir() if entry.is_file()],
            id="none",
        ),
    ],
)
def test_the_files_that_describe_a_topic_are_written_anew(
    folder: Path, options: BrokerOptions, damage: Change
) -> None:
    damage(folder)
    with RunningBroker(options, QUEUE) as broker:
        left = EVERYTHING - FINISHED
        assert came(broker, "some", len(left)) == left
        assert came(broker, "none", 30) == EVERYTHING
        assert statistics(broker)["messages_lost"] == 0


def test_what_stands_beside_the_topics_stops_nobody(folder: Path, options: BrokerOptions) -> None:
    (folder.parent / "~running").write_bytes(b"")
    (folder.parent / "nonsense").write_bytes(b"\xff" * 100)
    (folder.parent / "empty").mkdir()
    (folder / "channels" / "never-named").mkdir()
    (folder / "0" / "junk.log").write_bytes(b"junk")
    with RunningBroker(options, QUEUE) as broker:
        assert came(broker, "none", 30) == EVERYTHING
        assert {topic.name for topic in broker.server.broker.topics} == {"t"}
