"""What slow consumers and busy topics may take of a broker's memory, and that others get on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest

from penstock.storage.disk import OsFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.broker.v2_kit import V2, batch, sized

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.broker.options import BrokerOptions

MEBIBYTE = 1 << 20
LIMIT = 8 * MEBIBYTE
BODY = b"x" * 100_000


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return replace(
        options,
        tcp_port=0,
        max_body_bytes=2 * MEBIBYTE,
        max_inflight_bytes=MEBIBYTE,
        mem_bytes=LIMIT + 2 * MEBIBYTE,
    )


@pytest.fixture
def budget(broker: RunningBroker) -> Iterator[MemoryBudget]:
    budget = broker.server.broker.memory
    assert budget.limit_bytes == LIMIT
    yield budget
    assert budget.peak_bytes <= LIMIT + 4 * MEBIBYTE


def _publish(client: V2, topic: str, count: int) -> None:
    for _ in range(count // 10):
        assert client.ask(b"MPUB %s\n" % topic.encode(), batch(*[BODY] * 10)) == b"OK"


def _take(client: V2, count: int) -> None:
    for _ in range(count):
        message = client.message()
        assert message.body == BODY
        client.finish(message.id)


def test_feeds_of_many_topics_share_one_bound(broker: RunningBroker, budget: MemoryBudget) -> None:
    names = [f"t{number}" for number in range(12)]
    with V2(broker.server.broker.tcp_port) as producer:
        consumers = [V2(broker.server.broker.tcp_port) for _ in names]
        for name, consumer in zip(names, consumers, strict=True):
            consumer.subscribe(name, "c", ready=0)
        for name in names:
            _publish(producer, name, 20)
            assert budget.cached_bytes <= LIMIT + 2 * MEBIBYTE
        assert budget.releases > 0
        for consumer in consumers:
            consumer.ready(5)
            _take(consumer, 20)
            consumer.close()


def test_consumers_that_do_not_read_are_bounded_together(
    broker: RunningBroker, budget: MemoryBudget
) -> None:
    port = broker.server.broker.tcp_port
    with V2(port) as producer, V2(port) as reader:
        stuck = [V2(port) for _ in range(12)]
        for number, consumer in enumerate(stuck):
            consumer.subscribe("t", f"stuck{number}", ready=2_500)
        reader.subscribe("t", "read", ready=10)
        # More than the kernel's buffers and the bound hold together would need without it.
        for _ in range(20):
            _publish(producer, "t", 10)
            assert budget.held_bytes <= LIMIT + 2 * MEBIBYTE
        for consumer in stuck:
            consumer.close()
        # Who reads gets everything, once the others have gone at the latest.
        _take(reader, 200)


def test_very_many_deferred_messages_hold_up_no_other_channel(options: BrokerOptions) -> None:
    # A quarter of the memory, which fewer messages fill.
    small = replace(options, mem_bytes=options.mem_bytes - LIMIT * 3 // 4)
    with (
        RunningBroker(small) as broker,
        V2(port := broker.server.broker.tcp_port) as producer,
        V2(port) as waiting,
        V2(port) as other,
    ):
        budget = broker.server.broker.memory
        assert budget.limit_bytes == LIMIT // 4
        waiting.subscribe("later", "c", ready=1)
        other.subscribe("t", "c", ready=1)
        while budget.has_room:
            producer.send((b"DPUB later 3600000\n" + sized(b"x")) * 1_000)
            assert {producer.answer() for _ in range(1_000)} == {b"OK"}
        for number in range(100):
            producer.publish("t", b"%d" % number)
            message = other.message()
            assert message.body == b"%d" % number
            other.finish(message.id)
        assert not budget.has_room


def test_what_many_channels_give_out_at_once_is_bounded(
    broker: RunningBroker, budget: MemoryBudget
) -> None:
    port = broker.server.broker.tcp_port
    with V2(port) as producer:
        consumers = [V2(port) for _ in range(12)]
        for number, consumer in enumerate(consumers):
            consumer.subscribe("t", f"c{number}", ready=10)
        with httpx.Client(base_url=broker.url) as http:
            assert http.post("/topic/pause?topic=t").status_code == 200
            _publish(producer, "t", 10)
            # All channels look for something to give out in the same turn of the loop.
            assert http.post("/topic/unpause?topic=t").status_code == 200
        for consumer in consumers:
            _take(consumer, 10)
            consumer.close()
    assert budget.held_bytes <= MEBIBYTE
    assert budget.peak_bytes >= LIMIT // 2


class StallingDisk(OsFileSystem):
    """Makes no topic until it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def write_atomically(self, path: str, data: bytes) -> None:
        assert self.go_on.wait(60)
        super().write_atomically(path, data)


def test_publishers_that_have_to_wait_are_not_read(options: BrokerOptions) -> None:
    disk = StallingDisk()
    publish = b"MPUB new\n" + batch(*[b"y" * 1_000] * 50)

    def send(client: V2) -> list[bytes]:
        client.send(publish * 60)
        return [client.answer() for _ in range(60)]

    with RunningBroker(options, fs=disk) as broker, ThreadPoolExecutor(10) as threads:
        budget = broker.server.broker.memory
        clients = [V2(broker.server.broker.tcp_port) for _ in range(10)]
        # Three times the bound, and more than the kernel takes beside it.
        answers = [threads.submit(send, client) for client in clients]
        try:
            while not budget.is_full:
                assert not any(answer.done() for answer in answers)
        finally:
            disk.go_on.set()
        assert all(answer.result() == [b"OK"] * 60 for answer in answers)
        assert budget.peak_bytes <= LIMIT + 10 * MEBIBYTE // 2
        for client in clients:
            client.close()


def test_a_topic_may_keep_nothing_in_memory(options: BrokerOptions) -> None:
    with RunningBroker(replace(options, mem_queue_size=0)) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as producer, V2(port) as consumer:
            consumer.subscribe("t", "c", ready=3)
            _publish(producer, "t", 20)
            _take(consumer, 20)
