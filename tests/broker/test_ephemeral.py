"""Topics that live in memory: what they keep, what they leave behind (nothing), when they go."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.memory.memory_queue import MemoryQueue
from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import LogBytes, scan_blocks
from penstock.storage.queue.log_files import OffsetsDeleted
from penstock.storage.queue.options import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions
    from penstock.broker.topics.topic import Topic

TOPIC = "t#ephemeral"


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return dataclasses.replace(options, tcp_port=0, mem_queue_size=5, min_free_bytes=0)


def topic_of(broker: RunningBroker) -> Topic:
    return broker.server.broker.topics.get(TOPIC)


def finish_next(client: V2) -> bytes:
    message = client.message()
    client.finish(message.id)
    return message.body


def test_a_topic_in_memory_delivers_and_leaves_no_file(
    broker: RunningBroker, client: V2, options: BrokerOptions
) -> None:
    client.subscribe(TOPIC, "c#ephemeral", ready=10)
    with V2(broker.server.broker.tcp_port) as producer:
        producer.publish(TOPIC, b"a")
        sent_s = time.monotonic()
        assert producer.ask(b"DPUB %s 50\n" % TOPIC.encode(), sized(b"later")) == b"OK"
        producer.publish(TOPIC, b"b")
    messages, after_s = [], {}
    for _ in range(3):
        messages.append(client.message())
        after_s[messages[-1].body] = time.monotonic() - sent_s
    assert [body for body in after_s if body != b"later"] == [b"a", b"b"]
    assert after_s[b"later"] >= 0.049  # the broker's clock shows whole milliseconds
    client.send(b"REQ %s 0\n" % messages[0].id)
    again = client.message()
    assert (again.body, again.attempts) == (b"a", 2)
    assert not [path for path in Path(options.folder).iterdir() if "#" in path.name]


def test_without_a_channel_the_newest_go_beyond_the_queue_size(
    broker: RunningBroker, client: V2
) -> None:
    client.publish(TOPIC, *(b"%d" % number for number in range(4)))
    bodies = [b"%d" % number for number in range(4, 12)]
    assert client.ask(b"MPUB %s\n" % TOPIC.encode(), batch(*bodies)) == b"OK"
    (found,) = json.loads(broker.ask("GET", "/stats?format=json").body)["topics"]
    assert (found["depth"], found["backend_depth"]) == (5, 0)
    assert (found["message_count"], found["messages_dropped"]) == (12, 7)
    client.subscribe(TOPIC, "c", ready=10)
    assert [finish_next(client) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_channel_that_stands_still_loses_its_newest_and_no_other_channels(
    broker: RunningBroker, client: V2
) -> None:
    broker.ask("POST", f"/topic/create?topic={TOPIC.replace('#', '%23')}")
    for name in ("stuck", "quick"):
        place = f"/channel/create?topic={TOPIC.replace('#', '%23')}&channel={name}"
        assert broker.ask("POST", place).status == 200
    client.subscribe(TOPIC, "quick", ready=5)
    with V2(broker.server.broker.tcp_port) as producer:
        for number in range(20):
            producer.publish(TOPIC, b"%d" % number)
            assert finish_next(client) == b"%d" % number
    with V2(broker.server.broker.tcp_port) as late:
        late.subscribe(TOPIC, "stuck", ready=10)
        assert [finish_next(late) for _ in range(5)] == [b"%d" % number for number in range(5)]
    assert topic_of(broker).channels["stuck"].counters.trimmed == 15


def test_what_is_done_with_goes_while_a_stuck_channel_keeps_its_own(
    broker: RunningBroker, client: V2
) -> None:
    broker.ask("POST", f"/topic/create?topic={TOPIC.replace('#', '%23')}")
    broker.ask("POST", f"/channel/create?topic={TOPIC.replace('#', '%23')}&channel=stuck")
    client.subscribe(TOPIC, "quick", ready=1)
    body = b"x" * 100_000
    with V2(broker.server.broker.tcp_port) as producer:
        for _ in range(500):
            producer.publish(TOPIC, body)
            assert finish_next(client) == body
    queue = topic_of(broker).queues[0]
    assert queue.size_bytes < 3_000_000
    assert queue.earliest == 0
    assert queue.statistics().messages_dropped == 0
    assert broker.server.broker.memory.held_bytes >= queue.size_bytes - 200_000


def test_the_topic_goes_with_its_last_channel(broker: RunningBroker, client: V2) -> None:
    with V2(broker.server.broker.tcp_port) as consumer:
        consumer.subscribe(TOPIC, "c#ephemeral")
        first = topic_of(broker)
    topics = broker.server.broker.topics
    while topics.find(TOPIC) is not None:
        assert broker.ask("GET", "/ping").status == 200
    # The name can be used at once, and nothing of the old one is there.
    client.publish(TOPIC, b"new")
    assert topic_of(broker).id != first.id
    client.subscribe(TOPIC, "c", ready=1)
    assert client.message().body == b"new"


def test_a_paused_topic_takes_more_than_it_trims_at(broker: RunningBroker, client: V2) -> None:
    client.subscribe(TOPIC, "c#ephemeral", ready=0)
    assert broker.ask("POST", "/topic/pause?topic=t%23ephemeral").status == 200
    for _ in range(4):
        assert broker.ask("POST", "/pub?topic=t%23ephemeral", b"x" * 200_000).status == 200
    assert broker.ask("GET", "/ping").status == 200
    assert topic_of(broker).queues[0].latest > 0


def test_a_topic_is_deleted_under_its_ephemeral_channels(broker: RunningBroker) -> None:
    clients = [V2(broker.server.broker.tcp_port) for _ in range(5)]
    for number, client in enumerate(clients):
        client.subscribe("durable", f"c{number}#ephemeral", ready=1)
    assert broker.ask("POST", "/topic/delete?topic=durable").status == 200
    for client in clients:
        assert client.closed()
        client.close()


def test_a_restart_forgets_it(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, V2(broker.server.broker.tcp_port) as client:
        client.publish(TOPIC, b"gone")
        client.publish("t", b"kept")
    with RunningBroker(options) as broker:
        assert [topic.name for topic in broker.server.broker.topics] == ["t"]


def test_what_else_topics_can_do(broker: RunningBroker) -> None:
    name = TOPIC.replace("#", "%23")
    for body in (b"a", b"b"):
        place = f"/pub?topic={name}&durable=1&producer=p&sequence={body[0]}"
        assert broker.ask("POST", place, body).body == b"OK"
        assert broker.ask("POST", place, body).headers["x-penstock-repeated"] == "1"
    assert broker.ask("POST", f"/topic/configure?topic={name}&max_attempts=3").status == 200
    seen = json.loads(broker.ask("GET", f"/peek?topic={name}").body)
    assert [message["body"] for message in seen["messages"]] == ["a", "b"]
    (entry,) = json.loads(broker.ask("GET", f"/offsets?topic={name}").body)["partitions"]
    assert entry == {"partition": 0, "earliest": 0, "latest": 2, "folder": ""}
    raw = broker.ask("GET", f"/fetch?topic={name}&offset=0").body
    found = scan_blocks(LogBytes(memoryview(raw)), 0, tag=None, expected=0, limit=None)
    assert [item.header.messages for item in found] == [1, 1]  # type: ignore[union-attr]
    answer = broker.ask("POST", f"/cursor?topic={name}&name=c&offset=0")
    assert (answer.status, json.loads(answer.body)) == (400, {"message": "INVALID_TOPIC"})
    assert broker.ask("POST", f"/channel/create?topic={name}&channel=c&to=end").status == 200
    assert broker.ask("POST", f"/channel/seek?topic={name}&channel=c&to=beginning").status == 200
    assert topic_of(broker).channels["c"].counts().depth == 2
    assert broker.ask("POST", f"/topic/pause?topic={name}").status == 200
    assert broker.ask("POST", f"/topic/empty?topic={name}&purge=1").status == 200
    assert topic_of(broker).channels["c"].counts().depth == 0
    assert broker.ask("POST", f"/topic/delete?topic={name}").status == 200
    assert broker.server.broker.topics.find(TOPIC) is None


class AgainstModel(RuleBasedStateMachine):
    """A queue in memory and a list of what it should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.queue = MemoryQueue(DiskQueueOptions(), self.clock)
        self.messages: dict[int, tuple[bytes, int]] = {}
        self.batches: list[tuple[int, int]] = []
        self.latest = 0

    @rule(count=st.integers(0, 5), size=st.integers(0, 300), ms=st.integers(0, 3))
    def append(self, count: int, size: int, ms: int) -> None:
        self.clock.advance(ms / 1000)
        bodies = [b"%d" % (self.latest + index) * size for index in range(count)]
        written = self.queue.append(pa.array(bodies, pa.binary()))
        assert (written.start, written.end) == (self.latest, self.latest + count)
        for index, body in enumerate(bodies):
            self.messages[self.latest + index] = (body, self.queue.last_append_ms)
        if count:
            self.batches.append((self.latest, self.latest + count))
        self.latest += count

    def forget(self, gone: list[tuple[int, int]]) -> None:
        self.batches = [entry for entry in self.batches if entry not in gone]
        for start, end in gone:
            for offset in range(start, end):
                del self.messages[offset]

    @rule(wanted=st.sets(st.integers(0, 60)))
    def trim(self, wanted: set[int]) -> None:
        self.clock.advance(1)
        self.queue.retention.trim(lambda start, end: bool(wanted & set(range(start, end))))
        self.forget([entry for entry in self.batches if not wanted & set(range(*entry))])

    @rule(share=st.integers(0, 4))
    def drop(self, share: int) -> None:
        before = len(self.messages)
        most = self.queue.size_bytes * share // 4
        dropped = self.queue.retention.drop_oldest(most)
        assert self.queue.size_bytes <= most
        earliest = self.queue.earliest
        self.forget([entry for entry in self.batches if entry[0] < earliest])
        assert before - len(self.messages) == dropped

    @rule()
    def clear(self) -> None:
        self.queue.retention.clear()
        self.forget(self.batches.copy())

    @rule(offset=st.integers(0, 70), max_bytes=st.integers(0, 5_000))
    def read(self, offset: int, max_bytes: int) -> None:
        earliest = self.batches[0][0] if self.batches else self.latest
        if offset > self.latest:
            with pytest.raises(InvalidRequest):
                self.queue.read(offset, max_bytes)
            return
        if offset < earliest:
            with pytest.raises(OffsetsDeleted):
                self.queue.read(offset, max_bytes)
            return
        blocks = self.queue.read(offset, max_bytes)
        expected = [entry for entry in self.batches if entry[1] > offset]
        assert bool(blocks) == bool(expected)
        found = [(block.base_offset, block.base_offset + block.count) for block in blocks]
        assert found == expected[: len(found)]
        for block in blocks:
            bodies = [self.messages[block.base_offset + i][0] for i in range(block.count)]
            assert block.messages.to_pylist() == bodies

    @rule(ms=st.integers(-5, 5))
    def offset_at(self, ms: int) -> None:
        time_ms = self.queue.last_append_ms + ms
        expected = min((o for o, (_, at) in self.messages.items() if at >= time_ms), default=None)
        assert self.queue.offset_at(time_ms) == (self.latest if expected is None else expected)

    @invariant()
    def agree(self) -> None:
        assert self.queue.latest == self.latest
        assert self.queue.earliest == min(self.messages, default=self.latest)
        assert (self.queue.size_bytes == 0) == (not self.messages)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("all_of_it", [False, True])
def test_what_goes_beside_a_trim_does_not_come_back(all_of_it: bool) -> None:
    """A purge, or a bound, deletes beside the event loop, which may trim for a publish then."""
    queue = MemoryQueue(DiskQueueOptions(), VirtualClock())
    for body in (b"0", b"1", b"2", b"3"):
        queue.append([body])
    size_bytes = queue.size_bytes // 4
    asked: list[int] = []

    def is_wanted(start: int, end: int) -> bool:
        if start == 1:  # as another thread would
            if all_of_it:
                queue.retention.clear()
            else:
                assert queue.retention.drop_oldest(2 * size_bytes) == 2
        asked.append(start)
        return start != 3

    queue.retention.trim(is_wanted)
    assert asked == [0, 1, 2, 3]
    left = [] if all_of_it else [2]
    assert [block.base_offset for block in queue.read(queue.earliest, 1 << 20)] == left
    assert queue.size_bytes == len(left) * size_bytes
    assert queue.statistics().messages_dropped == (0 if all_of_it else 2)


def test_a_closed_queue_takes_and_gives_nothing() -> None:
    queue = MemoryQueue(DiskQueueOptions(max_producers=1), VirtualClock())
    queue.append([b"a"], producer=(1, 5))
    queue.append([b"b"], producer=(2, 6))
    assert (queue.last_sequence(1), queue.last_sequence(2)) == (None, 6)
    known = queue.statistics()
    assert (known.producers, known.producers_forgotten) == (1, 1)
    assert queue.request_sync().result() == queue.durable == 2
    queue.close()
    queue.close()
    with pytest.raises(Closed):
        queue.append([b"c"])
    with pytest.raises(Closed):
        queue.read(0, 1)
