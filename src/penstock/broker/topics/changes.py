"""Topics and channels made, paused and deleted while the event loop goes on serving.

Owns the thread that such changes run on, one after the other: each takes fsyncs, and a publisher of
another topic must not wait for them. Does not own what a change does (`folder`).

Invariants: `Topics` is changed on this thread alone; a topic's state in memory on the event loop
alone; what a cancelled request began is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.broker.names import is_ephemeral
from penstock.core.errors import NotFound, PenstockError, Unavailable
from penstock.core.looptasks import start_awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.channel.channel import Channel
    from penstock.broker.topics.folder import Topics
    from penstock.broker.topics.topic import Topic

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class TopicWatcher(Protocol):
    """Is told what comes and goes, on the event loop."""

    def created(self, topic: Topic) -> None:
        """Take note of a new topic; `changed` is called, too."""
        ...

    def changed(self, topic: str) -> None:
        """Take note that a topic or one of its channels came or went, or may have."""
        ...


class TopicChanges:
    """Changes the topics of one broker. Used on its event loop.

    Args:
        topics: The topics.

    Attributes:
        watchers: Who is told of topics and channels that come and go.
    """

    def __init__(self, topics: Topics) -> None:
        self.watchers: list[TopicWatcher] = []
        self._topics = topics
        self._making: dict[tuple[Topic, str], asyncio.Task[Channel]] = {}
        self._dropping: dict[tuple[Topic, str], asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topics")

    async def create(self, name: str, partitions: int) -> Topic:
        """Make a topic, or return the one with as many stream partitions. Raises as `Topics`."""
        return await self._create(name, partitions, same=True)

    async def find_or_create(self, name: str, partitions: int) -> Topic:
        """Return the topic, made if there is none. Raises as `Topics.create`."""
        return await self._create(name, partitions, same=False)

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause or unpause a topic durably. Raises as `Topics`."""
        topic = self._topics.get(name)
        held = topic.position() if paused or not topic.channels else None
        await self._run(
            lambda: self._topics.change(topic, replace(topic.file, paused=paused, held=held))
        )
        topic.set_paused(paused=paused)

    async def configure(self, topic: Topic, texts: Mapping[str, str]) -> None:
        """Tell a topic something else, durably; its channels obey at once.

        Args:
            topic: The topic.
            texts: Options by name; an empty text takes a setting back.

        Raises:
            InvalidRequest: There is no such option, or a value cannot be.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        await self._run(lambda: self._topics.configure(topic, texts))
        self._topics.parts.obey(topic)

    async def empty(self, topic: Topic) -> None:
        """Let no channel have what none was given yet, for good; readers by offset keep it.

        Raises:
            Unavailable: The disk is full: after a restart it may be there again.
        """
        held = topic.forgo()
        if held is None:
            return
        # Before the file says so: behind it they would have what they were not to get.
        for channel in tuple(topic.channels.values()):
            await channel.keep()

        def write() -> None:
            if topic.file.held is not None:
                self._topics.change(topic, replace(topic.file, held=held))

        await self._run(write)

    async def purge(self, topic: Topic) -> None:
        """Delete every message of a topic, for channels and for readers by offset alike.

        Raises:
            Unavailable: Disk full or I/O error; some may be deleted.
        """
        topic.forgo()
        for channel in tuple(topic.channels.values()):
            channel.clear()
            await channel.keep()
        for queue in topic.queues:
            # It waits for an fsync, and deletes files.
            await asyncio.to_thread(queue.retention.clear)
        for feed in topic.feeds:
            feed.forget()
        # What came meanwhile is deleted, too.
        ends = tuple(queue.earliest for queue in topic.queues)
        for channel in tuple(topic.channels.values()):
            channel.pass_over((0,) * len(ends), ends)
        topic.news.tell()

    async def find_or_create_channel(
        self, topic: Topic, name: str, starts: tuple[int, ...] | None = None
    ) -> Channel:
        """Return the channel of a topic, made if there is none.

        The first one begins where the topic stands, others with what comes from now on.

        Args:
            topic: The topic.
            name: The channel's name.
            starts: Where a new one begins instead, in each stream partition.

        Raises:
            InvalidRequest: The name cannot be.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        found = topic.channels.get(name)
        if found is not None:
            return found
        making = self._making.get((topic, name))
        if making is None:
            making = start_awaited(self._make_channel(topic, name, starts))
            self._making[topic, name] = making
            making.add_done_callback(lambda _: self._making.pop((topic, name), None))
        return await asyncio.shield(making)

    async def delete_channel(self, topic: Topic, name: str) -> None:
        """Delete a channel: its consumers are closed, and its files go.

        An ephemeral topic goes with its last channel.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full; the channel is still there.
        """
        channel = topic.channel(name)
        # Closed before its files go, so that nothing is written into them any more.
        topic.detach(name)
        self._tell(topic.name)
        dropping = start_awaited(self._drop_channel(topic, channel))
        self._dropping[topic, name] = dropping
        dropping.add_done_callback(lambda _: self._dropping.pop((topic, name), None))
        await asyncio.shield(dropping)
        await self._delete_unused(topic)

    async def _drop_channel(self, topic: Topic, channel: Channel) -> None:
        name = channel.name
        await channel.shut()
        # As it is now: other channels may have come or gone meanwhile.
        held = topic.held
        try:
            await self._run(lambda: self._topics.channels.drop(topic, name, held))
        except PenstockError:
            if name in topic.file.channels and not topic.closed:
                topic.attach(await self._run(lambda: self._topics.channels.load(topic, name)))
                self._tell(topic.name)
            raise

    async def _delete_unused(self, topic: Topic) -> None:
        """Delete an ephemeral topic that has no channel any more."""
        awaited = any(wanted is topic for wanted, _ in self._making)
        if is_ephemeral(topic.name) and not (topic.channels or topic.closed or awaited):
            with contextlib.suppress(NotFound):
                await self.delete(topic.name)

    async def set_channel_paused(self, topic: Topic, name: str, *, paused: bool) -> None:
        """Pause or unpause a channel durably.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full.
        """
        channel = topic.channel(name)
        await self._run(lambda: self._topics.channels.set_paused(topic, name, paused=paused))
        channel.set_paused(paused=paused)

    async def delete(self, name: str) -> None:
        """Delete a topic: gone for good at once; returns when its files are, too.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full; the topic is still there.
        """
        loop = asyncio.get_running_loop()

        def retire() -> Topic:
            topic = self._topics.retire(name)
            loop.call_soon_threadsafe(self._tell, name)
            return topic

        topic = await self._run(retire)
        topic.end()
        # Some go by themselves, with the last of the consumers that are closed here.
        for channel in tuple(topic.channels.values()):
            await channel.shut()
        # Not on the one thread: it may take long, and nobody else can use the name meanwhile.
        await asyncio.to_thread(self._remove, topic)

    def close(self) -> None:
        """Wait for the change that runs."""
        self._thread.shutdown()

    async def _create(self, name: str, partitions: int, *, same: bool) -> Topic:
        """Make a topic if there is none; with `same` one that is there must be like it."""
        loop = asyncio.get_running_loop()

        def create() -> Topic:
            found = self._topics.find(name)
            if found is not None and not same:
                return found
            topic = self._topics.create(name, partitions)
            if found is None:
                # From here, because the request may have been given up meanwhile.
                loop.call_soon_threadsafe(self._tell_created, topic)
            return topic

        return await self._run(create)

    async def _make_channel(
        self, topic: Topic, name: str, starts: tuple[int, ...] | None
    ) -> Channel:
        # Its consumers, who are closed, may be back before its files are gone.
        dropping = self._dropping.get((topic, name))
        if dropping is not None:
            await asyncio.wait([dropping])
            if name in topic.channels:
                return topic.channels[name]  # they would not go
        begin = topic.position() if starts is None else starts
        channel = await self._run(lambda: self._topics.channels.create(topic, name, begin))
        if topic.closed:
            await channel.shut()
            raise Unavailable(f"topic {topic.name} was deleted meanwhile: try again")
        topic.attach(channel)
        self._topics.parts.obey(topic)  # it may have been told something else meanwhile
        self._tell(topic.name)
        return channel

    def _tell_created(self, topic: Topic) -> None:
        for watcher in self.watchers:
            watcher.created(topic)
        self._tell(topic.name)

    def _tell(self, name: str) -> None:
        for watcher in self.watchers:
            watcher.changed(name)

    def _remove(self, topic: Topic) -> None:
        topic.close()
        try:
            self._topics.purge(topic.name)
        except PenstockError:
            _logger.exception(
                "topic %s is deleted, but not all its files went: the next start tries again, and "
                "its name is taken until then",
                topic.name,
            )
        else:
            self._topics.forget(topic.name)

    async def _run(self, change: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, change)
