"""nsqd's data folders become topics: each message once, each channel gets what it had left."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.channel.persistence import restore
from penstock.broker.nsq_import import ImportedTopic, NsqdFolder, NsqImport
from penstock.broker.options import BrokerOptions
from penstock.broker.topics.topic_registry import Topics
from penstock.core.errors import Conflict, PenstockError, Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.journal import Journal
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.broker.broker_kit import RunningBroker
from tests.broker.nsqd_writer_kit import TIME_NS, NsqdQueue, write_topics
from tests.broker.v2_kit import V2

INLINE = DiskQueueOptions(sync_in_background=False)


def run(source: Path, target: Path, **options: Any) -> list[ImportedTopic]:
    fs = OsFileSystem()
    with NsqdFolder.open(str(source), fs=fs) as opened:
        return NsqImport(opened, str(target), fs=fs, **options).run()


def write(folder: Path, queue: str, *records: tuple[int, int]) -> None:
    """Write a queue of (number, attempts); the number is time, id and body."""
    data = b""
    for number, attempts in records:
        body = b"%d" % number
        head = struct.pack(">iqH", 26 + len(body), TIME_NS + number * 10**9, attempts)
        data += head + b"%016x" % number + body
    (folder / f"{queue}.diskqueue.000000.dat").write_bytes(data)


def taken(broker: RunningBroker, topic: str, channel: str, count: int) -> list[tuple[int, int]]:
    """Take all messages of a channel, one at a time; (number, attempts)."""
    found = []
    with V2(broker.server.broker.tcp_port).subscribe(topic, channel, 1) as consumer:
        for left in range(count, 0, -1):
            message = consumer.message()
            found.append((int(message.body), message.attempts))
            # A block has one time, and time does not go back in a queue.
            assert message.time_ns >= TIME_NS + found[-1][0] * 10**9 - 10**9
            if left == 1:
                consumer.ready(0)
            consumer.finish(message.id)
    return found


def serve(folder: Path) -> RunningBroker:
    return RunningBroker(BrokerOptions(folder=str(folder), http_port=0, tcp_port=0))


def test_each_channel_goes_on_where_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "nsqd", tmp_path / "topics"
    source.mkdir()
    write_topics(
        source, ("t", False, [("a", False), ("b", False), ("idle", True)]), ("p", True, [])
    )
    # In memory when nsqd stopped: 4 and 2, so they are behind the others.
    write(source, "t:a", (3, 0), (5, 0), (6, 0), (2, 1), (4, 0))
    write(source, "t:b", (6, 0), (4, 0))
    write(source, "t", (8, 0), (7, 0))
    write(source, "p", (1, 0))
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert run(source, target) == [
        ImportedTopic("t", {"a": 7, "b": 4, "idle": 2}, 7),
        ImportedTopic("p", {}, 1),
    ]
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    with serve(target) as broker:
        topics = broker.server.broker.topics
        assert topics.get("p").paused
        assert topics.get("p").depth == 1
        assert topics.get("t").channels["idle"].paused
        assert topics.get("t").channels["idle"].counts().depth == 2
        assert taken(broker, "t", "b", 4) == [(4, 1), (6, 1), (7, 1), (8, 1)]
        assert taken(broker, "t", "a", 3) == [(2, 2), (3, 1), (4, 1)]
    with serve(target) as broker:
        assert taken(broker, "t", "a", 4) == [(5, 1), (6, 1), (7, 1), (8, 1)]
        for channel in ("a", "b"):
            assert broker.server.broker.topics.get("t").channels[channel].counts().depth == 0


def test_what_the_topic_still_had_of_a_channels_goes_to_all(tmp_path: Path) -> None:
    """An nsqd that was killed had not noted that it had handed it out."""
    source, target = tmp_path / "nsqd", tmp_path / "topics"
    source.mkdir()
    write(source, "t:a", (1, 0), (2, 0))
    write(source, "t:b", (1, 0))
    write(source, "t", (2, 0), (3, 0))
    assert run(source, target) == [ImportedTopic("t", {"a": 3, "b": 3}, 3)]


def test_a_topic_that_is_there_is_left_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "nsqd", tmp_path / "topics"
    source.mkdir()
    write(source, "t", (1, 0))
    write(source, "u", (1, 0))
    with serve(target) as broker, V2(broker.server.broker.tcp_port) as client:
        client.publish("u", b"7")
        with pytest.raises(Conflict):  # the broker runs
            run(source, target)
    with pytest.raises(Conflict, match="already: u: "):
        run(source, target)
    assert not (target / "t").exists()
    (t, u) = run(source, target, skip_existing=True)
    assert (t.messages, u.messages, u.left_alone) == (1, 0, "it exists already")
    with serve(target) as broker:
        assert broker.stored("u") == [[b"7"]]
        assert broker.stored("t") == [[b"1"]]


def test_doubtful_messages_come_when_they_are_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "nsqd"
    source.mkdir()
    queue = NsqdQueue(source, "t", 10_000)
    queue.put(*[b"%d" % i for i in range(10)])
    _, start, _ = queue.places[4]
    queue.damage(0, start, struct.pack(">i", 500_000))
    assert run(source, tmp_path / "a")[0].messages == 9
    assert run(source, tmp_path / "b", include_doubtful=True)[0].messages == 10


def test_a_crash_at_any_step_leaves_a_topic_whole_or_not_at_all(tmp_path: Path) -> None:
    write_topics(tmp_path, ("t", False, [("a", False), ("b", False)]))
    write(tmp_path, "t:a", (1, 0), (2, 1), (3, 0))
    write(tmp_path, "t:b", (3, 0))

    def attempt(fs: CrashableFileSystem) -> None:
        with NsqdFolder.open(str(tmp_path), fs=OsFileSystem()) as source:
            loading = NsqImport(source, "/topics", skip_existing=True, fs=fs, queue_options=INLINE)
            loading.run()

    fs = CrashableFileSystem()
    attempt(fs)
    steps = fs.steps
    assert steps > 10
    for step in range(1, steps + 1):
        for power_loss in (True, False):
            fs = CrashableFileSystem()
            (fs.kill_at if power_loss else fs.fail_at)(step)
            with contextlib.suppress(PowerLoss, Unavailable):
                attempt(fs)
            fs = fs.crash(step)
            attempt(fs)  # it opens what is there, and imports where nothing is
            assert set(fs.listdir("/topics")) <= {"t", "~running"}
            assert kept(fs) == {"a": 3, "b": 1}


def kept(fs: CrashableFileSystem) -> dict[str, int]:
    """Return how many messages each channel of the topic has to get."""
    with contextlib.closing(Topics.open("/topics", queue_options=INLINE, fs=fs)) as topics:
        topic = topics.get("t")
        ends = [queue.latest for queue in topic.queues]
        assert ends == [3]
        found = {}
        for name in topic.file.channels:
            folder = f"{topic.folder}/channels/{name}"
            journal = Journal.open(folder, fs=fs, clock=VirtualClock())
            state, _ = restore(journal.snapshot, journal.records, [0], ends)
            found[name] = state.counts(ends).depth
        return found


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    own=st.lists(st.integers(20, 30), unique=True),
    channels=st.dictionaries(
        st.sampled_from(["a", "b", "c"]),
        st.dictionaries(st.integers(1, 22), st.sampled_from([0, 0, 0, 1, 5])),
        max_size=3,
    ),
)
def test_every_channel_gets_what_it_had_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    own: list[int],
    channels: dict[str, dict[int, int]],
) -> None:
    source = tmp_path_factory.mktemp("nsqd")
    target = tmp_path_factory.mktemp("target") / "topics"
    write_topics(source, ("t", False, [(name, False) for name in channels]))
    if own:
        write(source, "t", *((number, 0) for number in own))
    for name, records in channels.items():
        if records:
            write(source, f"t:{name}", *records.items())
    (imported,) = run(source, target)
    messages = {*own}.union(*channels.values())
    assert imported.messages == len(messages)
    with serve(target) as broker:
        for name, records in channels.items():
            wanted = {*own, *records}
            assert imported.channels[name] == len(wanted)
            found = taken(broker, "t", name, len(wanted))
            assert {number for number, _ in found} == wanted
            assert all(tries == records.get(number, 0) + 1 for number, tries in found)
            assert broker.server.broker.topics.get("t").channels[name].counts().depth == 0
            never = [
                number
                for number, tries in found
                if not any(other.get(number) for other in channels.values())
            ]
            handed = set().union(*channels.values())
            assert never == sorted(never, key=lambda number: (number not in handed, number))


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "nsqd").mkdir()
    assert run(tmp_path / "nsqd", tmp_path / "topics") == []
    with pytest.raises(PenstockError):
        run(tmp_path / "none", tmp_path / "topics")
