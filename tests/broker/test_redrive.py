"""Dead letters that are published again: each once, whatever is killed in between."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.message_filter import MessageFilter
from penstock.broker.options import BrokerOptions
from penstock.broker.redrive import redriver
from penstock.broker.redrive.redrive_log import RedriveLog, RedriveStep
from penstock.broker.redrive.redriver import RedriveRequest
from penstock.broker.server import BrokerServer
from penstock.broker.topics.placement import ANYWHERE, BatchProducer, PublishPlacement
from penstock.core.access.access_control import AccessControl
from penstock.core.errors import PenstockError
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.broker.broker_kit import RunningBroker
from tests.broker.stepped_loop_kit import change_inline, run_stepped

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topics.topic import Topic


def letter(number: int, topic: str = "orders", reason: str = "no time") -> bytes:
    message = base64.b64encode(order(number)).decode()
    document = {"topic": topic, "partition": 0, "offset": number, "reason": reason}
    return json.dumps({**document, "message_base64": message}).encode()


def order(number: int) -> bytes:
    return json.dumps({"order": number, "user": {"id": f"u{number % 3}"}}).encode()


class Letters:
    """A broker with ten dead letters of the topic orders."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.create("orders")
        self.publish("dead", *(letter(number) for number in range(10)))

    def create(self, topic: str, partitions: int = 1) -> None:
        path = f"/topic/create?topic={topic}&partitions={partitions}"
        assert self.broker.ask("POST", path).status == 200

    def publish(self, topic: str, *messages: bytes) -> None:
        assert self.broker.ask("POST", f"/mpub?topic={topic}", b"\n".join(messages)).status == 200

    def redrive(self, body: bytes | None = None, **query: object) -> dict[str, object]:
        path = f"/topic/redrive?{urlencode({'topic': 'dead', **query})}"
        answer = self.broker.ask("POST", path, body)
        assert answer.status == 200, (answer.body, answer.headers)
        found: dict[str, object] = json.loads(answer.body)
        return found

    def refused(self, body: bytes | None = None, **query: object) -> tuple[int, str]:
        path = f"/topic/redrive?{urlencode({'topic': 'dead', **query})}"
        answer = self.broker.ask("POST", path, body)
        return answer.status, answer.headers.get("x-penstock-detail", "")

    def stored(self, topic: str = "orders") -> list[bytes]:
        return [message for part in self.broker.stored(topic) for message in part]


@pytest.fixture
def letters(broker: RunningBroker) -> Letters:
    return Letters(broker)


def test_all_are_published_to_their_topic_once(letters: Letters) -> None:
    assert letters.redrive(preview=1)["redriven"] == {"orders": 10}
    assert letters.stored() == []
    first = letters.redrive()
    assert first["redriven"] == {"orders": 10}
    assert (first["already"], first["total"], first["next_offset"]) == (0, 10, 10)
    assert letters.stored() == [order(number) for number in range(10)]
    again = letters.redrive()
    assert (again["redriven"], again["already"], again["total"]) == ({}, 10, 10)
    assert len(letters.stored()) == 10


def test_one_is_published_changed(letters: Letters) -> None:
    found = letters.redrive(b"changed", offset=4, end=5)
    assert found["redriven"] == {"orders": 1}
    assert letters.redrive(b"changed", offset=4, end=5)["already"] == 1
    assert letters.stored() == [b"changed"]
    status, text = letters.refused(b"changed", offset=4)
    assert status == 400
    assert "one dead letter" in text


def test_those_that_match_are_published(letters: Letters) -> None:
    assert letters.redrive(contains='"order": 7')["redriven"] == {"orders": 1}
    found = letters.redrive(json_path="$.user.id", equals="u1", count=2)
    assert found["redriven"] == {"orders": 2}
    assert found["already"] == 0
    assert letters.redrive(json_path="$.user.id", equals="u1", offset=found["next_offset"]) == {
        "topic": "dead",
        "partition": 0,
        "redriven": {},
        "already": 1,
        "skipped": 0,
        "reasons": [],
        "scanned": 5,
        "next_offset": 10,
        "end": 10,
        "total": 3,
    }
    assert letters.redrive(origin="payments")["redriven"] == {}
    assert letters.stored() == [order(7), order(1), order(4)]


def test_another_topic_may_be_named(letters: Letters) -> None:
    letters.create("repaired", 3)
    assert letters.redrive(to="repaired")["redriven"] == {"repaired": 10}
    assert sorted(letters.stored("repaired")) == sorted(map(order, range(10)))
    assert letters.stored() == []


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"to": "dead"}, 400, "to itself"),
        ({"to": "nowhere"}, 404, "does not exist"),
        ({"to": "passing#ephemeral"}, 404, "does not exist"),
        ({"offset": 11}, 404, "use 0 to 10"),
        ({"partition": 1}, 400, "no stream partition"),
        ({"json_path": "$..id"}, 400, "single result"),
        ({"equals": "x"}, 400, "needs a json_path"),
        ({"topic": "nothing"}, 404, "does not exist"),
    ],
)
def test_a_wrong_request_changes_nothing(
    letters: Letters, query: dict[str, object], status: int, text: str
) -> None:
    found = letters.refused(None, **query)
    assert found[0] == status
    assert text in found[1]
    assert letters.stored() == []
    assert letters.redrive(preview=1)["redriven"] == {"orders": 10}


def test_what_cannot_be_published_is_counted_with_its_reason(letters: Letters) -> None:
    large = {"topic": "orders", "partition": 0, "offset": 9, "reason": "r"}
    letters.publish(
        "dead",
        letter(1, topic="gone"),
        json.dumps({**large, "message_left_out_bytes": 2_000_000}).encode(),
        b"of some channel",
    )
    found = letters.redrive(offset=10)
    assert found["redriven"] == {}
    assert found["skipped"] == 3
    reasons = [one["reason"] for one in found["reasons"]]  # type: ignore[attr-defined]
    assert "'gone' does not exist" in reasons[0]
    assert "too large" in reasons[1]
    assert "not known" in reasons[2]
    letters.broker.ask("POST", "/topic/configure?topic=orders&dead_letter_topic=dead")
    assert letters.redrive(offset=10)["redriven"] == {"orders": 1}
    assert letters.stored() == [b"of some channel"]


def test_messages_of_unknown_origin_need_the_name_of_the_target_twice(letters: Letters) -> None:
    letters.publish("dead", b"plain")
    found = letters.redrive(to="orders", offset=9)
    assert (found["redriven"], found["skipped"]) == ({"orders": 1}, 1)
    reasons = [one["reason"] for one in found["reasons"]]  # type: ignore[attr-defined]
    assert len(reasons) == 1
    assert "name this topic as confirm" in reasons[0]
    assert letters.stored() == [order(9)]
    assert letters.refused(None, to="orders", confirm="other")[0] == 400
    assert letters.refused(None, confirm="orders")[0] == 400
    assert letters.redrive(to="orders", confirm="orders", offset=9)["redriven"] == {"orders": 1}
    assert letters.stored() == [order(9), b"plain"]


def test_two_users_at_once_publish_each_once(letters: Letters) -> None:
    letters.publish("dead", *(letter(number) for number in range(10, 300)))
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(letters.redrive, count=200) for _ in range(4)]
        reports = [one.result() for one in asked]
    redriven = [sum(report["redriven"].values()) for report in reports]  # type: ignore[attr-defined]
    assert sum(redriven) >= 200
    assert max(report["total"] for report in reports) == sum(redriven)  # type: ignore[type-var]
    letters.redrive()
    letters.redrive()
    assert Counter(letters.stored()) == Counter(map(order, range(300)))


def test_peek_shows_why_and_whether_it_was_redriven(letters: Letters) -> None:
    letters.redrive(offset=2, end=3)
    found = json.loads(letters.broker.ask("GET", "/peek?topic=dead&count=4").body)["messages"]
    assert [one["redriven"] for one in found] == [False, False, True, False]
    assert found[2]["dead_letter"] == {
        "topic": "orders",
        "partition": 0,
        "offset": 2,
        "reason": "no time",
        "left_out_bytes": 0,
        "size": len(order(2)),
        "body": order(2).decode(),
    }


def test_a_restart_remembers(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        Letters(broker).redrive(offset=3, end=5)
    with RunningBroker(options) as broker:
        letters = object.__new__(Letters)
        letters.broker = broker
        found = letters.redrive()
        assert (found["already"], found["total"]) == (2, 10)
        assert sorted(letters.stored()) == sorted(map(order, range(10)))


def test_a_damaged_record_prevents_the_redrive_and_nothing_else(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker:
        Letters(broker).redrive(offset=3, end=5)
    (record,) = _record(options).iterdir()
    record.write_bytes(record.read_bytes().replace(b"begin", b"BEGIN"))
    with RunningBroker(options) as broker:
        letters = object.__new__(Letters)
        letters.broker = broker
        assert letters.refused()[0] == 500
        assert len(letters.stored()) == 2
        assert broker.ask("GET", "/peek?topic=dead").status == 200
        assert broker.ask("POST", "/topic/delete?topic=dead").status == 200
        letters.publish("dead", letter(1))
        assert letters.redrive()["redriven"] == {"orders": 1}


def _record(options: BrokerOptions) -> Path:
    return Path(options.folder) / "dead" / "redrive"


def test_a_record_that_is_older_than_the_target_loses_no_dead_letter(
    options: BrokerOptions,
) -> None:
    with RunningBroker(options) as broker:
        letters = Letters(broker)
        letters.redrive(count=4)
    shutil.rmtree(_record(options))  # as a backup of before leaves it
    with RunningBroker(options) as broker:
        letters = object.__new__(Letters)
        letters.broker = broker
        letters.redrive(offset=4)
        assert sorted(letters.stored()) == sorted(map(order, range(10)))


def test_a_large_record_is_compacted(
    options: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.redrive.redrive_log._COMPACT_BYTES", 500)
    with RunningBroker(options) as broker:
        letters = Letters(broker)
        for offset in (1, 3, 4, 8, 0):
            letters.redrive(offset=offset, end=offset + 1)
    assert sum(file.stat().st_size for file in _record(options).iterdir()) < 1_000
    with RunningBroker(options) as broker:
        letters = object.__new__(Letters)
        letters.broker = broker
        assert letters.redrive()["already"] == 5
        assert sorted(letters.stored()) == sorted(map(order, range(10)))


# -- the power is cut, or the process killed, at each step


QUEUE = DiskQueueOptions(max_bytes_per_file=2_000, sync_in_background=False)


def composed(disk: CrashableFileSystem, clock: VirtualClock) -> Broker:
    options = BrokerOptions("/data", min_free_bytes=0, channels=ChannelOptions())
    server = BrokerServer(
        options,
        QUEUE,
        fs=disk,
        clock=clock,
        access=AccessControl.open(),
        free_bytes=lambda: 1 << 40,
    )
    broker = server._compose()
    change_inline(broker.changes)
    return broker


async def filled(broker: Broker) -> None:
    """Ten dead letters of two topics; those of the second one have two stream partitions."""
    for name, partitions in (("orders", 1), ("clicks", 2), ("dead", 1)):
        await broker.changes.create(name, partitions)
    dead = broker.topics.get("dead")
    for number in range(10):
        topic = "clicks" if number % 3 == 0 else "orders"
        receipt = broker.publisher.append_batch(dead, [letter(number, topic)], 100, ANYWHERE)
        await broker.publisher.make_durable(dead, receipt)


async def redriven(broker: Broker) -> int:
    """Redrive in requests of a few, and return how many were published."""
    dead, start, count = broker.topics.get("dead"), 0, 0
    request = RedriveRequest(0, 0, wanted=MessageFilter(), count=4)
    while start < 10:
        report = await broker.redriver.redrive(dead, replace(request, start=start))
        count += sum(report.redriven.values())
        start = report.next_offset
    return count


def published(broker: Broker) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for name in ("orders", "clicks"):
        for queue in broker.topics.get(name).queues:
            for block in queue.read(queue.earliest, 1 << 30):
                found.update(block.messages.to_pylist())
    return found


EACH_ONCE = Counter(map(order, range(10)))


def test_steps_of_a_redrive() -> None:
    disk, clock = CrashableFileSystem(), VirtualClock()

    async def live() -> None:
        broker = composed(disk, clock)
        await filled(broker)
        first = disk.steps
        assert await redriven(broker) == 10
        assert published(broker) == EACH_ONCE
        assert disk.steps - first > 30

    run_stepped(clock, live())


@pytest.mark.parametrize("how", ["power", "kill", "error"])
def test_each_is_published_once_if_it_is_cut_at_any_step(how: str) -> None:
    cut = 1
    while _cut_at(cut, how):
        cut += 1
    assert cut > 30


def _cut_at(cut: int, how: str) -> bool:
    """Redrive with a fault at a step, restart, and redrive again; False: it has fewer steps."""
    disk, clock = CrashableFileSystem(), VirtualClock()
    was_cut = False

    async def interrupted() -> None:
        nonlocal was_cut
        broker = composed(disk, clock)
        await filled(broker)
        step = disk.steps + cut
        if how == "error":
            disk.fail_at(step)
        else:
            disk.kill_at(step, keep_bytes=cut % 3 * 20)
        try:
            await redriven(broker)
        except (PenstockError, PowerLoss):
            was_cut = True
        was_cut = was_cut or disk.steps >= step
        if how == "error":
            # The process goes on: the next request completes it.
            disk.forget_faults()
            await redriven(broker)
            assert published(broker) == EACH_ONCE, cut

    async def resumed(left: CrashableFileSystem) -> None:
        broker = composed(left, clock)
        total = await redriven(broker)
        assert total <= 10
        assert published(broker) == EACH_ONCE, cut
        assert await redriven(broker) == 0

    run_stepped(clock, interrupted())
    if how == "power":
        for seed in range(3):
            run_stepped(clock, resumed(disk.crash(seed)))
    else:
        run_stepped(clock, resumed(disk.kill_process()))
    return was_cut


@pytest.mark.parametrize("stored", [True, False])
def test_a_start_decides_the_open_step(options: BrokerOptions, stored: bool) -> None:
    with RunningBroker(options) as broker:
        Letters(broker).redrive(offset=0, end=1)
        dead, orders = (broker.server.broker.topics.get(name) for name in ("dead", "orders"))
        producer = redriver.step_producer(dead, 2)
        if stored:
            broker.run(_append(broker.server.broker, orders, order(1), producer))
        folder, target = dead.folder, orders.id
    log = RedriveLog.open(folder, 1, fs=OsFileSystem(), clock=VirtualClock())
    log.begin(RedriveStep(log.next_number(0), "orders", target, 0, 0, ((1, 2),)))
    with RunningBroker(options) as broker:
        letters = object.__new__(Letters)
        letters.broker = broker
        assert letters.redrive(preview=1)["total"] == 1 + stored
        letters.redrive()
        assert Counter(letters.stored()) == EACH_ONCE


async def _append(broker: Broker, topic: Topic, body: bytes, producer: BatchProducer) -> None:
    placement = PublishPlacement(0, producer=producer)
    broker.publisher.append_batch(topic, [body], len(body), placement)
