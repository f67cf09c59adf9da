"""Changes of the channels of a topic while another change of them runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker.channel.channel import Channel
from penstock.broker.channel.channel_store import ChannelStore
from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.publisher import DeadLetterTopics
from penstock.broker.topics.channel_changes import ChannelChanges
from penstock.broker.topics.topic import Topic
from penstock.broker.topics.topic_changes import TopicChanges
from penstock.broker.topics.topic_registry import Topics
from penstock.core.clock import SystemClock
from penstock.storage.disk import OsFileSystem

Story = Callable[[ChannelChanges, Topic], Awaitable[None]]


def play(folder: Path, *stories: Story) -> None:
    """Play stories with the topic t, each with the broker after a restart."""

    async def run(story: Story) -> None:
        store = ChannelStore(OsFileSystem(), SystemClock(), ChannelOptions(), DeadLetterTopics())
        topics = Topics.open(str(folder), channels=store)
        changes = TopicChanges(topics)
        try:
            topic = await changes.create("t", 1)
            await story(ChannelChanges(topics, changes), topic)
            for channel in tuple(topic.channels.values()):
                await channel.shut()
        finally:
            changes.close()
            topics.close()

    for story in stories:
        asyncio.run(run(story))


def test_a_channel_that_is_wanted_again_while_it_is_deleted_is_a_new_one_that_lasts(
    tmp_path: Path,
) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        old = await changes.find_or_create(topic, "c")
        topic.append(0, [b"x"], 1)
        gate, shut = asyncio.Event(), old.shut

        async def shut_late() -> None:
            await gate.wait()
            await shut()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(old, "shut", shut_late)  # as on a slow disk
            deleting = asyncio.ensure_future(changes.delete(topic, "c"))
            making = asyncio.ensure_future(changes.find_or_create(topic, "c"))
            await asyncio.wait([making], timeout=0.05)  # as far as it comes
            assert "c" not in topic.channels
            gate.set()
            await deleting
        new = await making
        assert topic.channels["c"] is new is not old
        topic.append(0, [b"last"], 4)

    async def after(_: ChannelChanges, topic: Topic) -> None:
        assert list(topic.channels) == ["c"]
        assert topic.channels["c"].counts().depth == 1

    play(tmp_path, story, after)


def test_where_the_topic_stands_is_kept_when_its_last_channels_are_deleted_at_once(
    tmp_path: Path,
) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        for name in ("a", "b", "c"):
            await changes.find_or_create(topic, name)
        topic.append(0, [b"served"] * 5, 30)
        # The first one's journal takes a while: the others are gone before it.
        busy = asyncio.ensure_future(topic.channels["a"].keep(durable=True))
        await asyncio.sleep(0)
        topic.channels["a"].seek([3])
        await asyncio.gather(busy, *(changes.delete(topic, name) for name in "abc"))
        topic.append(0, [b"waits"], 5)

    async def after(_: ChannelChanges, topic: Topic) -> None:
        assert (topic.fed(0), topic.depth) == (5, 1)

    play(tmp_path, story, after)


def test_a_channel_that_is_deleted_as_soon_as_it_is_created_is_not_returned_afterwards(
    tmp_path: Path,
) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        later: list[asyncio.Task[object]] = []
        attach = topic.attach

        def attach_and_let_others_run(channel: Channel) -> None:
            attach(channel)
            if not later:
                # They run before the callbacks of the task that creates the channel.
                later.append(asyncio.ensure_future(changes.delete(topic, "c")))
                later.append(asyncio.ensure_future(changes.find_or_create(topic, "c")))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topic, "attach", attach_and_let_others_run)
            old = await changes.find_or_create(topic, "c")
            _, new = await asyncio.gather(*later)
        assert topic.channels["c"] is new is not old

    play(tmp_path, story)


def test_a_deletion_after_one_that_failed_is_awaited_by_a_creation(tmp_path: Path) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        await changes.find_or_create(topic, "c")
        attach, drop = topic.attach, changes._topics.channels.drop
        later: list[asyncio.Task[object]] = []
        gate = asyncio.Event()

        def attach_and_delete_again(channel: Channel) -> None:
            attach(channel)
            if not later:
                shut = channel.shut

                async def shut_late() -> None:
                    await gate.wait()
                    await shut()

                patch.setattr(channel, "shut", shut_late)  # as on a slow disk
                # It runs before the callbacks of the task whose deletion failed.
                later.append(asyncio.ensure_future(changes.delete(topic, "c")))

        def fail_once(*given: object) -> None:
            if not later:
                raise MemoryError
            drop(*given)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topic, "attach", attach_and_delete_again)
            patch.setattr(changes._topics.channels, "drop", fail_once)
            with pytest.raises(MemoryError):
                await changes.delete(topic, "c")
            making = asyncio.ensure_future(changes.find_or_create(topic, "c"))
            await asyncio.wait([making], timeout=0.05)  # as far as it comes
            assert "c" not in topic.channels
            gate.set()
            new, _ = await asyncio.gather(making, *later)
        assert topic.channels["c"] is new
        assert "c" in topic.file.channels

    play(tmp_path, story)


def test_a_creation_that_waits_for_a_deletion_that_fails_waits_for_the_next_one_too(
    tmp_path: Path,
) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        await changes.find_or_create(topic, "c")
        channels = changes._topics.channels
        attach, create, drop = topic.attach, channels.create, channels.drop
        later: list[asyncio.Task[object]] = []
        done: list[str] = []
        gate = asyncio.Event()

        def attach_and_delete_again(channel: Channel) -> None:
            attach(channel)
            if not later:
                shut = channel.shut

                async def shut_late() -> None:
                    await gate.wait()
                    await shut()

                patch.setattr(channel, "shut", shut_late)  # as on a slow disk
                # It runs before the creation that waits for the deletion that failed.
                later.append(asyncio.ensure_future(changes.delete(topic, "c")))

        def fail_once(*given: object) -> None:
            if not later:
                raise MemoryError
            drop(*given)  # type: ignore[arg-type]
            done.append("deleted")

        def note_creation(*given: object) -> Channel:
            done.append("created")
            return create(*given)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topic, "attach", attach_and_delete_again)
            patch.setattr(channels, "drop", fail_once)
            patch.setattr(channels, "create", note_creation)
            deleting = asyncio.ensure_future(changes.delete(topic, "c"))
            making = asyncio.ensure_future(changes.find_or_create(topic, "c"))
            with pytest.raises(MemoryError):
                await deleting
            for _ in range(20):  # turns of the loop: as far as it comes
                await asyncio.sleep(0)
            gate.set()
            new, *_ = await asyncio.gather(making, *later)
        assert done == ["deleted", "created"]
        assert topic.channels["c"] is new

    async def after(_: ChannelChanges, topic: Topic) -> None:
        assert list(topic.channels) == ["c"]

    play(tmp_path, story, after)


def test_a_deletion_that_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    class NoMemory(dict[tuple[Topic, str], asyncio.Task[None]]):
        def __setitem__(self, key: object, value: object) -> None:
            raise MemoryError

    async def story(changes: ChannelChanges, topic: Topic) -> None:
        kept = await changes.find_or_create(topic, "c")
        changes._deleting = NoMemory()
        with pytest.raises(MemoryError):
            await changes.delete(topic, "c")
        await asyncio.sleep(0.05)  # or it would happen now
        assert topic.channels["c"] is kept
        assert "c" in topic.file.channels

    play(tmp_path, story)


def test_a_creation_waits_until_a_deletion_that_could_not_begin_is_undone(tmp_path: Path) -> None:
    async def story(changes: ChannelChanges, topic: Topic) -> None:
        old = await changes.find_or_create(topic, "c")
        shut, load = old.shut, changes._topics.channels.load
        done: list[str] = []
        gate = asyncio.Event()

        async def fail_before_the_first_step(*_: object) -> None:
            raise MemoryError

        async def shut_late() -> None:
            await gate.wait()
            await shut()
            done.append("shut")

        def load_and_note(*given: object) -> Channel:
            done.append("loaded")
            return load(*given)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "_delete", fail_before_the_first_step)
            patch.setattr(old, "shut", shut_late)  # as on a slow disk
            patch.setattr(changes._topics.channels, "load", load_and_note)
            deleting = asyncio.ensure_future(changes.delete(topic, "c"))
            making = asyncio.ensure_future(changes.find_or_create(topic, "c"))
            await asyncio.wait([making], timeout=0.05)  # as far as it comes
            assert "c" not in topic.channels
            gate.set()
            with pytest.raises(MemoryError):
                await deleting
            assert topic.channels["c"] is await making is not old
        assert done == ["shut", "loaded"]

    play(tmp_path, story)
