"""Slow clients, full memory, full disks: what pushes back, what is refused, what recovers."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import Unavailable
from penstock.core.threads import Death, Deaths, OnDeath
from penstock.storage.disk import OsAppendFile, OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueueOptions
from tests.broker.broker_kit import RunningBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from penstock.broker.options import BrokerOptions


def publishing(broker: RunningBroker) -> dict[str, int]:
    document = orjson.loads(broker.ask("GET", "/stats?format=json").body)
    numbers: dict[str, int] = document["publishing"]
    return numbers


class SlowBody:
    """A client that announces a body and sends half of it."""

    def __init__(self, broker: RunningBroker, size: int) -> None:
        self._rest = size - size // 2
        self._socket = socket.create_connection(("127.0.0.1", broker.server.http_port))
        head = b"POST /pub?topic=slow HTTP/1.1\r\nHost: [::1]\r\nContent-Length: %d\r\n\r\n" % size
        self._socket.sendall(head + b"x" * (size // 2))

    def finish(self) -> bytes:
        self._socket.sendall(b"x" * self._rest)
        return self.answer()

    def answer(self) -> bytes:
        with self._socket, self._socket.makefile("rb") as file:
            head = b"".join(iter(file.readline, b"\r\n"))
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            return head + file.read(length)

    def leave(self) -> None:
        self._socket.close()


@pytest.fixture
def options(options: BrokerOptions) -> BrokerOptions:
    return replace(options, max_message_bytes=1000, max_body_bytes=1000, max_inflight_bytes=1000)


def test_bodies_in_memory_are_bounded_and_others_wait_their_turn(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, ThreadPoolExecutor(4) as pool:
        slow = SlowBody(broker, 800)
        while publishing(broker)["held_bytes"] != 800:
            pass
        others = [pool.submit(broker.ask, "POST", "/pub?topic=t", b"y" * 300) for _ in range(4)]
        while publishing(broker)["waiting_publishers"] != 4:
            assert publishing(broker)["held_bytes"] <= 1000
        assert not any(other.done() for other in others)
        assert slow.finish().startswith(b"HTTP/1.1 200")
        assert [other.result(120).status for other in others] == [200] * 4
        assert broker.stored("t") == [[b"y" * 300] * 4]
        assert publishing(broker)["held_bytes"] == 0


def test_a_publisher_without_room_is_told_to_come_back(options: BrokerOptions) -> None:
    with RunningBroker(replace(options, admission_timeout_ms=20)) as broker:
        slow = SlowBody(broker, 800)
        while publishing(broker)["held_bytes"] != 800:
            pass
        answer = broker.ask("POST", "/pub?topic=t", b"y" * 300)
        assert (answer.status, answer.body) == (503, b'{"message":"EXITING"}')
        assert "max_inflight_bytes" in answer.headers["x-penstock-detail"]
        assert broker.ask("POST", "/pub?topic=t", b"y" * 200).status == 200
        slow.leave()
        while publishing(broker)["held_bytes"]:
            pass
        assert broker.ask("POST", "/pub?topic=t", b"y" * 300).status == 200
        assert publishing(broker)["refused_publishes"] == 1


def test_slow_senders_of_large_bodies_keep_nobody_from_publishing_small_ones(
    options: BrokerOptions,
) -> None:
    options = replace(options, max_inflight_bytes=1024, admission_timeout_ms=600_000)
    with RunningBroker(options) as broker:
        slow = [SlowBody(broker, 1000) for _ in range(3)]
        while publishing(broker)["waiting_publishers"] != 2:
            pass
        assert broker.ask("POST", "/pub?topic=t", b"four").status == 200
        assert broker.ask("POST", "/mpub?topic=t", b"a\nb").status == 200
        for sender in slow:
            sender.leave()


def test_a_body_that_does_not_come_is_given_up(options: BrokerOptions) -> None:
    with RunningBroker(replace(options, body_timeout_ms=20)) as broker:
        slow = SlowBody(broker, 800)
        answer = slow.answer()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        assert answer.endswith(b'{"message":"REQUEST_TIMEOUT"}')
        assert publishing(broker)["held_bytes"] == 0
        assert broker.server.broker.topics.find("slow") is None


def test_data_that_is_unsynced_for_too_long_is_told(options: BrokerOptions) -> None:
    never = DiskQueueOptions(sync_interval_ms=10**9)
    with RunningBroker(options, never) as broker, BrokerClient(broker.url) as client:
        parts = broker.server.broker.topics.parts
        assert parts._sync_threads is not None
        client.publish("t", [b"first"])
        assert parts.unsynced_limit_s() == 10 * 10**6
        parts._sync_threads.unsynced.limit_s = 1e-9
        answer = broker.ask("GET", "/ping")
        assert (answer.status, answer.body[:33]) == (500, b"NOK - sync: data has not been syn")
        ready = broker.ask("GET", "/status/ready")
        assert (ready.status, ready.body[:14]) == (503, b'{"ready":false')
        client.publish("t", [b"second"], durable=True)
        assert broker.ask("GET", "/ping").status == 200
        assert parts.unsynced_age_s() == 0


def test_a_dead_thread_makes_the_broker_unready(options: BrokerOptions, deaths: Deaths) -> None:
    with RunningBroker(options) as broker:
        deaths.report(Death("retention", None, OnDeath.RESTART), object())
        ready = broker.ask("GET", "/status/ready")
        assert ready.status == 503
        assert b"retention ended unexpectedly (it returned); it starts again" in ready.body
        assert broker.ask("GET", "/ping").status == 200  # publishing works
        stats = orjson.loads(broker.ask("GET", "/stats?format=json").body)
        assert stats["thread_deaths"] == {"retention": 1}


def test_publishes_stop_while_the_disk_is_nearly_full_and_reading_goes_on(
    options: BrokerOptions,
) -> None:
    free = [1 << 40]
    with (
        RunningBroker(options, free_bytes=lambda: free[0]) as broker,
        BrokerClient(broker.url) as client,
    ):
        client.publish("t", [b"before"])
        assert broker.ask("GET", "/status/ready").status == 200
        free[0] = 1 << 20
        while broker.ask("GET", "/ping").status == 200:
            pass
        answer = broker.ask("GET", "/ping")
        assert (answer.status, answer.body[:6]) == (500, b"NOK - ")
        ready = broker.ask("GET", "/status/ready")
        assert (ready.status, ready.body[:14]) == (503, b'{"ready":false')
        with pytest.raises(Unavailable, match=r"1 MiB left, .* delete topics"):
            client.publish("t", [b"refused"])
        with pytest.raises(Unavailable):
            client.publish("new", [b"refused"])
        assert broker.server.broker.topics.find("new") is None
        assert client.fetch("t", 0, 0).next_offset == 1
        assert client.offsets("t", durable=True).partitions[0].latest == 1
        free[0] = 1 << 40
        while broker.ask("GET", "/ping").status != 200:
            pass
        client.publish("t", [b"after"])
        assert broker.stored("t") == [[b"before", b"after"]]


class FullFile(OsAppendFile):
    """A file on a disk that is full while the switch is on."""

    __slots__ = ()
    full = False

    def writev(self, buffers: Sequence[Buffer]) -> int:
        if FullFile.full:
            raise Unavailable("log file: cannot append: no space left on the device")
        return super().writev(buffers)


class FullDisk(OsFileSystem):
    """A file system of such files."""

    def create(self, path: str, *, replace: bool = False) -> OsAppendFile:
        made = super().create(path, replace=replace)
        return FullFile(made._fd, path, made.size)


def test_a_full_disk_refuses_whole_batches_and_the_next_good_write_heals(
    options: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = DiskQueueOptions(sync_interval_ms=60_000)
    with RunningBroker(options, kept, fs=FullDisk()) as broker, ThreadPoolExecutor(3) as pool:
        assert broker.ask("POST", "/mpub?topic=t", b"a\nb").status == 200
        monkeypatch.setattr(FullFile, "full", True)
        asked = [pool.submit(broker.ask, "POST", "/pub?topic=t", b"x") for _ in range(3)]
        answers = [one.result(120) for one in asked]
        answers.append(broker.ask("POST", "/mpub?topic=t", b"c\nd"))
        answers.append(broker.ask("POST", "/mpub?topic=t&producer=p&sequence=1", b"c\nd"))
        for answer in answers:
            assert (answer.status, answer.body) == (503, b'{"message":"EXITING"}')
            assert "no space left" in answer.headers["x-penstock-detail"]
        ping = broker.ask("GET", "/ping")
        assert (ping.status, ping.body[:6]) == (500, b"NOK - ")
        assert broker.stored("t") == [[b"a", b"b"]]
        monkeypatch.setattr(FullFile, "full", False)
        # The producer's number was not taken with its batch.
        assert broker.ask("POST", "/mpub?topic=t&producer=p&sequence=1", b"c\nd").status == 200
        assert broker.ask("GET", "/ping").status == 200
        assert broker.stored("t") == [[b"a", b"b", b"c", b"d"]]
