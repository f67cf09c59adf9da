"""When a channel's journal is written and synced, and when it is left alone."""

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.broker.channel.channel_state import ChannelState
from penstock.broker.channel.channel_store import ChannelStore
from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.channel.persistence import ChannelJournal, JournalSyncs, restore, snapshot
from penstock.broker.maintenance import sync_leftovers
from penstock.broker.publisher import DeadLetterTopics
from penstock.broker.topics.channel_changes import ChannelChanges
from penstock.broker.topics.topic_changes import TopicChanges
from penstock.broker.topics.topic_registry import Topics
from penstock.core.errors import Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.journal import Journal
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.stepped_loop_kit import change_inline, run_stepped

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.channel.channel import Channel
    from penstock.broker.topics.topic import Topic
    from penstock.storage.filesystem import AppendFile


def test_nothing_is_written_after_the_close(tmp_path: Path) -> None:
    async def live() -> None:
        folder = tmp_path / "channel"
        journal = Journal.open(str(folder), fs=OsFileSystem(), clock=VirtualClock())
        state = ChannelState([0])
        keeper = ChannelJournal(journal, state, JournalSyncs())
        state.defer(0, 0, 3, 5_000)
        await keeper.keep(durable=True)
        await keeper.close()
        for path in folder.iterdir():
            path.unlink()  # as the deletion of its topic does
        state.seek(0, 1)
        keeper.note()
        for durable in (True, False):
            with pytest.raises(Unavailable, match="channel was deleted"):
                await keeper.keep(durable=durable)
        assert not keeper.flush()
        assert not list(folder.iterdir())

    asyncio.run(live())


class Disk(CrashableFileSystem):
    """Counts what stays open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()

    def open_append(self, path: str) -> AppendFile:  # type: ignore[override]  # of another class
        file = super().open_append(path)
        self.open.add(id(file))
        close = file.close

        def closed() -> None:
            self.open.discard(id(file))
            close()

        file.close = closed  # type: ignore[method-assign]
        return file


def test_the_journals_of_channels_that_rest_are_durable_and_take_no_descriptors() -> None:
    disk, clock = Disk(), VirtualClock()
    count = 40

    async def live() -> None:
        syncs = JournalSyncs(interval_ms=2_000)
        keepers = []
        for number in range(count):
            journal = Journal.open(f"/{number}", fs=disk, clock=clock)
            state = ChannelState([0])
            journal.compact(snapshot(state))
            keepers.append(ChannelJournal(journal, state, syncs))
            state.deliver(0, 0, 8, 1, 0, 1_000)
            state.finish(1, np.arange(8))
            keepers[-1].note()
        await asyncio.sleep(0.11)
        assert len(disk.open) == count
        await asyncio.sleep(2)
        assert not disk.open

    run_stepped(clock, live())
    for seed in range(5):
        after = copy.deepcopy(disk).crash(seed)
        for number in range(count):
            journal = Journal.open(f"/{number}", fs=after, clock=clock)
            state, _ = restore(journal.snapshot, journal.records, [0], [8])
            assert state.progress[0].floor == 8


def test_what_a_full_disk_does_not_take_waits_merged() -> None:
    disk, clock = Disk(), VirtualClock()

    async def live() -> None:
        journal = Journal.open("/full", fs=disk, clock=clock)
        state = ChannelState([0])
        journal.compact(snapshot(state))
        keeper = ChannelJournal(journal, state, JournalSyncs())
        for turn in range(500):
            disk.fail_next("append")
            state.deliver(0, turn, turn + 1, 1, 0, 1_000)
            state.requeue(1, turn, 10)
            state.finish(1, np.arange(turn, turn + 1))
            state.drop(state.due(10, 1))
            assert not keeper.flush()
        assert len(state.recorder.pending()) < 100
        disk.forget_faults()
        await keeper.keep()
        await keeper.close()

    run_stepped(clock, live())
    journal = Journal.open("/full", fs=disk, clock=clock)
    assert restore(journal.snapshot, journal.records, [0], [500])[0].progress[0].floor == 500


def test_what_a_killed_broker_had_not_synced_of_channels_is_synced_soon() -> None:
    clock = VirtualClock()
    disk: CrashableFileSystem = Disk()

    async def after() -> None:
        topics, _, _, _ = await opened(disk, clock)
        assert topics.left_unsynced
        await sync_leftovers(topics, lambda: True, clock)
        assert not topics.left_unsynced

    async def at_last() -> None:
        _, _, _, channel = await opened(disk, clock)
        assert channel.state.progress[0].floor == 4

    run_stepped(clock, finish_four(disk, clock))
    disk = disk.kill_process()
    run_stepped(clock, after())
    for seed in range(10):
        left, disk = disk, copy.deepcopy(disk).crash(seed)
        run_stepped(clock, at_last())
        disk = left


def test_leftovers_of_a_topic_that_is_deleted_between_two_attempts_are_dropped() -> None:
    """The journal of its channel was tried again until the broker stopped."""
    clock = VirtualClock()
    disk: CrashableFileSystem = Disk()
    attempts = itertools.count()

    async def after() -> None:
        topics, changes, topic, _ = await opened(disk, clock)
        assert topics.left_unsynced
        await asyncio.wrap_future(topic.queues[0].request_sync())
        disk.fail_next("fsync")
        syncing = asyncio.create_task(sync_leftovers(topics, lambda: next(attempts) < 99, clock))
        await asyncio.sleep(0.5)  # virtual: the first attempt has failed, the second is planned
        assert not syncing.done()
        await changes.delete("t")
        await syncing
        assert not topics.left_unsynced

    run_stepped(clock, finish_four(disk, clock))
    disk = disk.kill_process()
    run_stepped(clock, after())


async def finish_four(disk: CrashableFileSystem, clock: VirtualClock) -> None:
    """Append four messages durably, and finish them on a channel whose journal is not synced."""
    _, _, topic, channel = await opened(disk, clock)
    topic.append(0, [b"x"] * 4, 4)
    await asyncio.wrap_future(topic.queues[0].request_sync())
    channel.state.deliver(0, 0, 4, 1, 0, 1_000)
    channel.state.finish(1, np.arange(4))
    await channel.keep()


async def opened(
    disk: CrashableFileSystem, clock: VirtualClock
) -> tuple[Topics, TopicChanges, Topic, Channel]:
    """Open the topics on a disk, with a topic and its channel."""
    store = ChannelStore(disk, clock, ChannelOptions(), DeadLetterTopics())
    options = DiskQueueOptions(sync_in_background=False)
    topics = Topics.open("/t", queue_options=options, channels=store, fs=disk, clock=clock)
    changes = TopicChanges(topics)
    change_inline(changes)
    topic = await changes.create("t", 1)
    channel = await ChannelChanges(topics, changes).find_or_create(topic, "c")
    return topics, changes, topic, channel
