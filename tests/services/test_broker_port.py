"""The broker as tasks and supervisors see it, over HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer
from penstock.core.errors import NotFound, NotReachable
from penstock.services.api.broker_port import HttpBrokerPort


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = BrokerServer(BrokerOptions(folder=str(tmp_path), http_port=0))

    def run(what: str) -> None:
        asyncio.run_coroutine_threadsafe(getattr(server, what)(), loop).result(120)

    try:
        run("start")
        yield f"http://127.0.0.1:{server.http_port}"
        run("stop")
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(120)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_what_is_seen_says_which_topic_it_is_of(url: str) -> None:
    port = HttpBrokerPort(lambda: url)
    with pytest.raises(NotFound, match="topic 'flights' does not exist"):
        port.available("flights")
    with BrokerClient(url) as client:
        client.create_topic("flights", 2)
        client.publish("flights", [b"a", b"b"], partition=1)
        old = port.available("flights")
        assert {p: (a.earliest, a.latest) for p, a in old.partitions.items()} == {
            0: (0, 0),
            1: (0, 2),
        }
        assert not port.available("flights").is_another(old.id)
        client.delete_topic("flights")
        client.create_topic("flights", 1)
    # At once, though nothing is new to one who has read so far, and a stream partition is gone.
    new = port.available("flights", after={0: 5, 1: 2}, wait_ms=60_000, topic_id=old.id)
    assert new.is_another(old.id)
    assert not new.is_another("")
    assert list(new.partitions) == [0]
    with port._client() as client:
        client.close()


def test_when_a_message_came_is_known_while_it_is_kept(url: str) -> None:
    port, before_ms = HttpBrokerPort(lambda: url), time.time_ns() // 1_000_000
    assert port.append_time_ms("clicks", 0, 0) is None  # No such topic.
    with BrokerClient(url) as client:
        client.create_topic("clicks", 2)
        client.publish("clicks", [b"a", b"b"], partition=1)
        found = [port.append_time_ms("clicks", 1, offset) for offset in range(3)]
        assert port.append_time_ms("clicks", 1, 9) is None
    first, second, none = found
    assert first is not None
    assert second is not None
    assert before_ms <= first <= second <= time.time_ns() // 1_000_000
    assert none is None
    with port._client() as client:
        client.close()


def test_a_broker_that_moved_is_found_again_and_one_that_is_gone_is_named(url: str) -> None:
    places = ["http://127.0.0.1:1"]
    port = HttpBrokerPort(lambda: places[-1])
    with pytest.raises(NotReachable, match=r"127\.0\.0\.1:1 .*--broker-http"):
        port.available("flights")
    places.append(url)
    with BrokerClient(url) as client:
        client.create_topic("flights", 1)
    assert list(port.available("flights").partitions) == [0]
    with port._client() as kept:
        kept.close()
