"""The topics' folder across restarts and damage, the port, and how a broker ends."""

from __future__ import annotations

import asyncio
import copy
import logging
import shutil
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

import orjson
import pytest

from penstock.broker import maintenance
from penstock.broker.broker_client import BrokerClient
from penstock.broker.maintenance import sync_leftovers
from penstock.broker.server import BrokerServer
from penstock.broker.topics import topic_registry
from penstock.broker.topics.topic_registry import Topics
from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.core.threads import OwnedThread
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.broker.stepped_loop_kit import run_stepped

if TYPE_CHECKING:
    from penstock.broker.options import BrokerOptions


class FailingDisk(OsFileSystem):
    """Stops at a chosen step of writing topic.json or of removing files."""

    def __init__(self) -> None:
        self.steps_left = 1 << 30

    def _step(self, path: str) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Unavailable(f"{path}: the disk is gone")

    def write_atomically(self, path: str, data: bytes) -> None:
        self._step(path)
        super().write_atomically(path, data)

    def mkdir(self, folder: str) -> None:
        self._step(folder)
        super().mkdir(folder)

    def unlink(self, path: str) -> None:
        self._step(path)
        super().unlink(path)

    def rmdir(self, folder: str) -> None:
        self._step(folder)
        super().rmdir(folder)


def publish(topics: Topics, name: str, message: bytes) -> None:
    topic = topics.find(name) or topics.create(name, 2)
    topic.append(0, [message], len(message))


def test_topics_are_there_after_a_restart(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.create_topic("t", partitions=3)
        client.publish("t", [b"a"], partition=2)
        assert broker.ask("POST", "/topic/pause?topic=t").status == 200
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        assert broker.stored("t") == [[], [], [b"a"]]
        assert broker.server.broker.topics.get("t").paused
        assert broker.ask("POST", "/topic/unpause?topic=t").status == 200
    with RunningBroker(options) as broker:
        assert not broker.server.broker.topics.get("t").paused


@pytest.mark.parametrize(
    "damage",
    [
        None,
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 1}',
        b'{"format": 1, "partitions": -2}',
        b'{"format": 0, "partitions": 2}',
        b'{"format": "x", "partitions": 2}',
    ],
)
def test_a_damaged_topic_file_is_written_anew_and_kept_aside(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "topics"
    topics = Topics.open(str(folder))
    publish(topics, "t", b"kept")
    topics.close()
    file = folder / "t" / "topic.json"
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        topics = Topics.open(str(folder))
    assert "rebuilt with 2 stream partitions" in caplog.text
    queues = topics.get("t").queues
    assert [queue.latest for queue in queues] == [1, 0]
    topics.close()
    assert orjson.loads(file.read_bytes())["partitions"] == 2
    kept = [path.read_bytes() for path in (folder / "t").glob("topic.json.*.bad")]
    assert kept == ([] if damage is None else [damage])


# identity


def made_again(topics: Topics, name: str) -> None:
    topics.retire(name).close()
    topics.purge(name)
    topics.forget(name)
    topics.create(name, 1)


def test_a_topic_keeps_its_id_and_its_successor_has_another(tmp_path: Path) -> None:
    topics = Topics.open(str(tmp_path))
    first = topics.create("t", 1).id
    assert first
    topics.settings.save(topics.get("t"), replace(topics.get("t").file, paused=True))
    topics.close()
    topics = Topics.open(str(tmp_path))
    assert topics.get("t").id == first
    made_again(topics, "t")
    assert topics.get("t").id not in {"", first}
    topics.close()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1, "partitions": 1, "id": "../x"}'])
def test_a_damaged_topic_file_does_not_make_it_another_topic(tmp_path: Path, damage: bytes) -> None:
    topics = Topics.open(str(tmp_path))
    known = topics.create("t", 1).id
    topics.close()
    (tmp_path / "t" / "topic.json").write_bytes(damage)
    topics = Topics.open(str(tmp_path))
    assert topics.get("t").id == known
    topics.close()
    assert orjson.loads((tmp_path / "t" / "topic.json").read_bytes())["id"] == known


def test_one_without_an_id_gets_one_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Made by a Penstock that gave none, or both places are damaged."""
    topics = Topics.open(str(tmp_path))
    publish(topics, "t", b"kept")
    topics.close()
    (tmp_path / "t" / "topic.id").write_bytes(b"\xff\x00")
    document = orjson.loads((tmp_path / "t" / "topic.json").read_bytes())
    del document["id"]
    (tmp_path / "t" / "topic.json").write_bytes(orjson.dumps(document))
    topics = Topics.open(str(tmp_path), new_id=lambda: "fresh1")
    assert topics.get("t").id == "fresh1"
    assert topics.get("t").queues[0].latest == 1
    assert "gets fresh1" in caplog.text
    topics.close()
    topics = Topics.open(str(tmp_path))
    assert topics.get("t").id == "fresh1"
    topics.close()
    assert (tmp_path / "t" / "topic.id").read_text() == "fresh1\n"


def test_a_copy_of_the_id_that_is_lost_is_written_again(tmp_path: Path) -> None:
    topics = Topics.open(str(tmp_path))
    known = topics.create("t", 1).id
    topics.close()
    (tmp_path / "t" / "topic.id").unlink()
    Topics.open(str(tmp_path)).close()
    assert (tmp_path / "t" / "topic.id").read_text().strip() == known


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "topics"
    topics = Topics.open(str(folder))
    publish(topics, "t", b"kept")
    topics.close()
    file = folder / "t" / "topic.json"
    file.write_bytes(b'{"format": 9, "partitions": 2}')
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="format number 9, but this release reads up to 1"):
            Topics.open(str(folder))
    assert file.read_bytes() == b'{"format": 9, "partitions": 2}'


def test_what_is_no_topic_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "topics"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "readme").write_text("mine")
    (folder / "~odd").mkdir()
    (folder / "file").write_text("x")
    topics = Topics.open(str(folder))
    assert list(topics) == []
    publish(topics, "t", b"x")
    topics.close()
    assert (folder / "notes" / "readme").read_text() == "mine"


def test_a_create_that_stops_anywhere_leaves_a_topic_or_none(tmp_path: Path) -> None:
    for steps in range(12):
        folder = str(tmp_path / str(steps))
        disk = FailingDisk()
        topics = Topics.open(folder, fs=disk)
        disk.steps_left = steps
        try:
            topics.create("t", 2)
            made = True
        except Unavailable:
            made = False
        disk.steps_left = 1 << 30
        # The broker goes on, and so does one that starts afterwards.
        assert made == (topics.find("t") is not None)
        assert len(topics.create("t", 2).queues) == 2
        topics.close()
        topics = Topics.open(folder)
        assert len(topics.get("t").queues) == 2
        topics.close()
        if made:
            return
    pytest.fail("no create got through")


def test_a_delete_that_stops_anywhere_ends_at_the_next_start(tmp_path: Path) -> None:
    for steps in range(20):
        folder = str(tmp_path / str(steps))
        disk = FailingDisk()
        topics = Topics.open(folder, fs=disk)
        publish(topics, "t", b"x")
        disk.steps_left = steps
        try:
            topics.retire("t").close()
            retired = True
            topics.purge("t")
            purged = True
        except Unavailable:
            purged = False
            retired = steps > 0
        disk.steps_left = 1 << 30
        assert (topics.find("t") is None) == retired
        if retired and not purged:
            with pytest.raises(Unavailable, match="being deleted"):
                topics.create("t", 2)
        topics.close()
        topics = Topics.open(folder)
        assert (topics.find("t") is None) == retired
        assert OsFileSystem().exists(f"{folder}/t") != retired
        topics.close()
        if purged:
            return
    pytest.fail("no delete got through")


def test_a_name_that_was_deleted_can_be_used_again(tmp_path: Path) -> None:
    topics = Topics.open(str(tmp_path))
    publish(topics, "t", b"old")
    topics.retire("t").close()
    topics.purge("t")
    topics.forget("t")
    with pytest.raises(NotFound):
        topics.get("t")
    assert topics.create("t", 3).queues[0].latest == 0
    topics.close()


def test_a_deleted_topic_does_not_come_back_with_the_power(tmp_path: Path) -> None:
    class Watched(OsFileSystem):
        steps: ClassVar[list[tuple[str, str]]] = []

        def unlink(self, path: str) -> None:
            self.steps.append(("unlink", path))
            super().unlink(path)

        def fsync_folder(self, folder: str) -> None:
            self.steps.append(("fsync", folder))
            super().fsync_folder(folder)

    topics = Topics.open(str(tmp_path), fs=Watched())
    publish(topics, "t", b"x")
    topics.retire("t").close()
    Watched.steps.clear()
    topics.purge("t")
    # Everything but the file that says "deleted" is durably gone before that file goes.
    last = ("unlink", f"{tmp_path}/t/topic.json")
    assert Watched.steps.index(("fsync", f"{tmp_path}/t")) < Watched.steps.index(last)
    assert Watched.steps[-2:] == [last, ("fsync", str(tmp_path))]
    topics.close()
    logs = [step for step in Watched.steps if step[1].endswith(".log")]
    assert max(map(Watched.steps.index, logs)) < Watched.steps.index(("fsync", f"{tmp_path}/t"))


def test_a_delete_whose_last_fsync_fails_does_not_take_messages_that_the_next_start_drops() -> None:
    for failing in range(1, 6):
        fs = CrashableFileSystem()
        inline = DiskQueueOptions(sync_in_background=False)
        topics = Topics.open("/topics", queue_options=inline, fs=fs)
        publish(topics, "t", b"x")
        fs.fail_at(fs.steps + failing)
        with suppress(Unavailable):
            topics.retire("t").close()
        fs.forget_faults()
        served = topics.find("t") is not None
        if served:
            publish(topics, "t", b"acknowledged")
        topics.close()
        topics = Topics.open("/topics", queue_options=inline, fs=fs)
        assert (topics.find("t") is not None) == served
        topics.close()


def test_a_failing_last_sync_leaves_nothing_open() -> None:
    fs = CrashableFileSystem()
    inline = DiskQueueOptions(sync_in_background=False)
    topics = Topics.open("/topics", queue_options=inline, fs=fs)
    publish(topics, "t", b"x")
    fs.fail_next("fsync")
    topics.close()
    topics = Topics.open("/topics", queue_options=inline, fs=fs)
    assert [queue.latest for queue in topics.get("t").queues] == [1, 0]
    topics.close()


def test_two_brokers_on_one_folder(options: BrokerOptions) -> None:
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"a"])
        with pytest.raises(Conflict, match="has it open"), RunningBroker(options):
            pytest.fail("a second broker started")
        client.publish("t", [b"b"])
        assert broker.stored("t") == [[b"a", b"b"]]


def test_a_taken_port_is_named_before_the_folder_is_touched(
    options: BrokerOptions, tmp_path: Path
) -> None:
    with RunningBroker(options) as broker:
        other = replace(options, folder=str(tmp_path / "b"), http_port=broker.server.http_port)
        with pytest.raises(Unavailable, match=rf"port {other.http_port} of 127.0.0.1 is taken"):
            RunningBroker(other).__enter__()
        assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300])
def test_an_address_of_another_machine_is_refused(options: BrokerOptions, host: str) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        RunningBroker(replace(options, host=host)).__enter__()


def test_a_folder_that_is_a_file_is_refused(options: BrokerOptions) -> None:
    Path(options.folder).write_text("x")
    with pytest.raises(Conflict, match="is a file"):
        RunningBroker(options).__enter__()


def test_a_stopped_broker_can_be_started_again_in_a_moved_folder(
    options: BrokerOptions, tmp_path: Path
) -> None:
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"a"])
    moved = tmp_path / "moved"
    shutil.move(options.folder, moved)
    with RunningBroker(replace(options, folder=str(moved))) as broker:
        assert broker.stored("t") == [[b"a"]]


def test_a_listening_socket_can_be_given(options: BrokerOptions) -> None:
    async def story(listener: socket.socket) -> None:
        server = BrokerServer(options, listeners=[listener])
        await server.start()
        assert server.http_port == listener.getsockname()[1]
        with BrokerClient(f"http://127.0.0.1:{server.http_port}") as client:
            await asyncio.to_thread(client.ping)
        await server.stop()
        await server.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(story(listener))


def test_what_a_killed_broker_had_not_synced_is_synced_soon() -> None:
    fs = CrashableFileSystem()
    options = DiskQueueOptions(sync_in_background=False, sync_interval_ms=1 << 40)
    publish(Topics.open("/topics", queue_options=options, fs=fs), "t", b"acknowledged")
    fs = fs.kill_process()
    topics = Topics.open("/topics", queue_options=options, fs=fs)
    assert topics.left_unsynced
    asyncio.run(sync_leftovers(topics, lambda: False, VirtualClock()))
    topics.close()  # before it came to it: the next one does it
    topics = Topics.open("/topics", queue_options=options, fs=fs)
    assert topics.left_unsynced
    asyncio.run(sync_leftovers(topics, lambda: True, VirtualClock()))
    topics.close()
    for seed in range(10):
        after = copy.deepcopy(fs).crash(seed)
        topics = Topics.open("/topics", queue_options=options, fs=after)
        assert topics.get("t").queues[0].latest == 1
    topics = Topics.open("/topics", queue_options=options, fs=fs)
    assert not topics.left_unsynced
    topics.close()


def test_a_failing_sync_of_leftovers_delays_no_other_and_is_repeated() -> None:
    """Those behind it stayed unsynced, and nothing tried it again."""
    fs, clock = CrashableFileSystem(), VirtualClock()
    options = DiskQueueOptions(sync_in_background=False, sync_interval_ms=1 << 40)
    topics = Topics.open("/topics", queue_options=options, fs=fs)
    for name in "abc":
        publish(topics, name, b"acknowledged")
    fs = fs.kill_process()
    topics = Topics.open("/topics", queue_options=options, fs=fs)
    queues = [topics.get(name).queues[0] for name in "abc"]
    fs.fail_next("fsync")
    seen: list[list[bool]] = []

    def going_on() -> bool:
        seen.append([queue.durable == queue.latest for queue in queues])
        return True

    run_stepped(clock, sync_leftovers(topics, going_on, clock))
    assert not topics.left_unsynced
    assert all(queue.durable == queue.latest for queue in queues)
    assert [False, True, True] in seen
    for seed in range(10):
        after = copy.deepcopy(fs).crash(seed)
        again = Topics.open("/topics", queue_options=options, fs=after)
        assert [again.get(name).queues[0].latest for name in "abc"] == [1, 1, 1]


def test_leftovers_that_cannot_be_synced_do_not_delay_the_stop(
    options: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_LEFTOVER_RETRIES", RetryPolicy(10**8, 10**8))
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.publish("t", [b"a"])
    tried = threading.Event()

    def fail(_queue: DiskQueue) -> NoReturn:
        tried.set()
        raise Unavailable("the disk is gone")

    monkeypatch.setattr(topic_registry, "_mark_running", lambda *_: True)
    with monkeypatch.context() as patched:
        patched.setattr(DiskQueue, "durable", -1)
        patched.setattr(DiskQueue, "request_sync", fail)
        with RunningBroker(options):
            assert tried.wait(120)


def test_a_broker_without_a_thread_for_changes_does_not_start(
    options: BrokerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started, and refused the first topic."""
    start = OwnedThread.start

    def refuse(thread: OwnedThread) -> None:
        if thread.name == "topics":
            raise RuntimeError("can't start new thread")
        start(thread)

    server = BrokerServer(options)

    async def story() -> None:
        with pytest.raises(Unavailable, match=r"'topics' \(can't start new thread\): raise the"):
            await server.start()

    with monkeypatch.context() as patched:
        patched.setattr(OwnedThread, "start", refuse)
        asyncio.run(story())
    with RunningBroker(options) as broker, BrokerClient(broker.url) as client:
        client.create_topic("t", partitions=1)
