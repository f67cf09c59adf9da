"""A slow disk or a slow client holds up whoever asked, and nobody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.broker.http_server import http_connection
from penstock.core.errors import PenstockError, Unavailable
from penstock.storage.disk import OsAppendFile, OsFileSystem, OsReadFile
from penstock.storage.queue.disk_queue import DiskQueueOptions
from tests.broker.broker_kit import RunningBroker
from tests.kits.raw_http_kit import answer_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.options import BrokerOptions


class StallingDisk(OsFileSystem):
    """Holds up the first step on a path with `stall_at` in it, until `go_on`."""

    def __init__(self) -> None:
        self.stall_at = ""
        self.stalled = threading.Event()
        self.go_on = threading.Event()

    def _step(self, path: str) -> None:
        if self.stall_at and self.stall_at in path:
            self.stall_at = ""
            self.stalled.set()
            assert self.go_on.wait(60)

    def fsync_folder(self, folder: str) -> None:
        self._step(folder)
        super().fsync_folder(folder)

    def write_atomically(self, path: str, data: bytes) -> None:
        self._step(path)
        super().write_atomically(path, data)

    def open_read(self, path: str) -> OsReadFile:
        self._step(path)
        return super().open_read(path)

    def unlink(self, path: str) -> None:
        self._step(path)
        super().unlink(path)


@pytest.fixture
def disk() -> Iterator[StallingDisk]:
    made = StallingDisk()
    yield made
    made.go_on.set()


@pytest.mark.parametrize(
    ("stall_at", "method", "target", "body"),
    [
        ("/new", "POST", "/topic/create?topic=new&partitions=3", None),
        ("/new", "POST", "/pub?topic=new", b"x"),
        ("/slow/topic.json", "POST", "/topic/pause?topic=slow", None),
        ("/slow/topic.json", "POST", "/topic/delete?topic=slow", None),
        ("/slow/0/", "POST", "/topic/delete?topic=slow", None),
        ("/slow/topic.json", "POST", "/topic/empty?topic=slow", None),
        ("/slow/0", "POST", "/topic/empty?topic=slow&purge=1", None),
        ("/slow/0/c.cursor", "POST", "/cursor?topic=slow&name=c&offset=1", None),
        ("/slow/0/old.cursor", "DELETE", "/cursor?topic=slow&name=old", None),
        ("/slow/0/", "GET", "/fetch?topic=slow&offset=0", None),
        ("/slow/0/", "GET", "/offsets?topic=slow&timestamp=0", None),
        ("/slow/0", "GET", "/offsets?topic=slow&durable=1", None),
    ],
)
def test_publishers_do_not_wait_for_somebody_elses_disk(
    options: BrokerOptions,
    disk: StallingDisk,
    stall_at: str,
    method: str,
    target: str,
    body: bytes | None,
) -> None:
    never = DiskQueueOptions(sync_every_messages=1 << 30, sync_interval_ms=1 << 30)
    with RunningBroker(options, never, fs=disk) as broker, ThreadPoolExecutor(1) as pool:
        try:
            broker.ask("POST", "/pub?topic=slow", b"x")
            broker.ask("POST", "/pub?topic=other", b"x")
            broker.ask("POST", "/cursor?topic=slow&name=old&offset=1")
            disk.stall_at = stall_at
            asked = pool.submit(broker.ask, method, target, body)
            assert disk.stalled.wait(120)
            assert broker.ask("POST", "/pub?topic=other", b"y").status == 200
            assert broker.ask("GET", "/stats").status == 200
            assert not asked.done()
        finally:
            disk.go_on.set()
        assert asked.result(120).status == 200


def test_many_publishers_of_a_new_topic_make_it_once(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(broker.ask, "POST", "/pub?topic=new", b"x") for _ in range(8)]
        assert [one.result(120).status for one in asked] == [200] * 8
        assert broker.stored("new") == [[b"x"] * 8]


class Stuck(OsAppendFile):
    """A file whose fsync fails while the switch is on."""

    __slots__ = ()
    stuck = False

    def sync(self) -> None:
        if Stuck.stuck:
            raise Unavailable("the device does not answer")
        super().sync()


class StuckDisk(OsFileSystem):
    """A file system of such files."""

    def create(self, path: str, *, replace: bool = False) -> OsAppendFile:
        made = super().create(path, replace=replace)
        return Stuck(made._fd, path, made.size)


def test_publishes_are_refused_when_fsyncs_fall_two_files_behind(
    options: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = DiskQueueOptions(max_bytes_per_file=5000, sync_interval_ms=20)
    with RunningBroker(options, small, fs=StuckDisk()) as broker:
        assert broker.ask("POST", "/pub?topic=t", b"x").status == 200
        monkeypatch.setattr(Stuck, "stuck", True)
        for _ in range(100):
            answer = broker.ask("POST", "/pub?topic=t", b"y" * 1000)
            if answer.status != 200:
                break
        assert (answer.status, answer.body) == (503, b'{"message":"EXITING"}')
        assert "does not keep up" in answer.headers["x-penstock-detail"]
        monkeypatch.setattr(Stuck, "stuck", False)
        # It goes by without a publish, so health does not wait for one.
        assert broker.ask("GET", "/ping").status == 200
        while broker.ask("POST", "/pub?topic=t", b"z").status != 200:
            pass
        assert broker.stored("t")[0][-1] == b"z"


@pytest.mark.parametrize("before", [b"GET /ping?", b"GET /ping HTTP/1.1\r\nX: ", b"POST /pub"])
def test_a_head_without_end_is_cut_off(broker: RunningBroker, before: bytes) -> None:
    found = answer_to(broker.server.http_port, before, *[b"a" * 65_536] * 64)
    # The answer may be lost where the client was still sending.
    assert found == b"" or found.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert broker.ask("GET", "/ping").status == 200


def test_a_long_head_within_the_bound_is_served(broker: RunningBroker) -> None:
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 1000) for number in range(30))
    head = b"GET /ping HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n" + headers
    assert answer_to(
        broker.server.http_port, head[:9], head[9:20_000], head[20_000:], b"\r\n"
    ).endswith(b"OK")


def test_a_head_that_does_not_come_is_given_up(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.05)
    found = answer_to(broker.server.http_port, b"GET /ping HTTP/1.1\r\nHo")
    assert found.startswith(b"HTTP/1.1 408 ")
    assert found.endswith(b'{"message":"REQUEST_TIMEOUT"}')
    # So is the second one of a connection; the first one comes in time.
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 1.0)
    found = answer_to(broker.server.http_port, b"GET /ping HTTP/1.1\r\nHost: [::1]\r\n\r\nGET /pi")
    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.endswith(b'{"message":"REQUEST_TIMEOUT"}')


def test_old_messages_go_by_the_brokers_retention(options: BrokerOptions) -> None:
    kept = replace(options, retention_bytes=1000, retention_interval_ms=1)
    small = DiskQueueOptions(max_bytes_per_file=1000)
    with RunningBroker(kept, small) as broker, BrokerClient(broker.url) as client:
        client.create_topic("t")
        client.set_cursor("t", 0, "reader", 0)
        for _ in range(10):
            client.publish("t", [b"x" * 400], durable=True)
        assert client.offsets("t").partitions[0].earliest == 0
        client.set_cursor("t", 0, "reader", 10)
        while client.offsets("t").partitions[0].earliest == 0:
            pass
        assert client.offsets("t").partitions[0].earliest <= 8


class BrokenRetention(OsFileSystem):
    """Raises what nobody expects, once."""

    broken = True

    def unlink(self, path: str) -> None:
        if path.endswith(".log") and self.broken:
            self.broken = False
            raise RuntimeError("a bug")
        super().unlink(path)


def test_retention_goes_on_after_a_bug(options: BrokerOptions) -> None:
    kept = replace(options, retention_bytes=0, retention_interval_ms=1)
    small = DiskQueueOptions(max_bytes_per_file=500)
    disk = BrokenRetention()
    with RunningBroker(kept, small, fs=disk) as broker, BrokerClient(broker.url) as client:
        for _ in range(3):
            client.publish("t", [b"x" * 400], durable=True)
        while client.offsets("t").partitions[0].earliest == 0:
            pass
        assert not disk.broken


def test_a_delete_that_fails_half_way_keeps_the_name_until_the_next_start(
    options: BrokerOptions,
) -> None:
    class Immovable(OsFileSystem):
        def unlink(self, path: str) -> None:
            if path.endswith(".log"):
                raise Unavailable(f"{path}: cannot delete: the device reports an I/O error")
            super().unlink(path)

    with RunningBroker(options, fs=Immovable()) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"old"])
        client.delete_topic("t")
        with pytest.raises(PenstockError, match="being deleted"):
            client.publish("t", [b"new"])
    # A start that cannot remove it either serves the others.
    with RunningBroker(options, fs=Immovable()) as broker, BrokerClient(broker.url) as client:
        client.publish("other", [b"x"])
        with pytest.raises(PenstockError, match="being deleted"):
            client.publish("t", [b"new"])
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"new"])
        assert broker.stored("t") == [[b"new"]]
