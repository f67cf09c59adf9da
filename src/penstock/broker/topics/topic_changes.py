"""Changes of topics (create, pause, configure, empty, delete) while the event loop serves clients.

Owns the thread that runs the changes one after the other, including those of channels: each needs
fsyncs, and a publisher of another topic must not wait for them. Does not own the effects of a
change (`topic_registry`) or the order of changes of one channel (`channel_changes`).

Invariants: only this thread changes `Topics`, and only the event loop changes a topic's state in
memory; a change whose request is cancelled is completed. After any exception, memory follows the
disk: pauses in memory equal those in ``topic.json`` when a change ends. After a change that failed,
memory is set from the disk once more; if that raises, too, the process ends, and its restart reads
the disk.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.core.cleanup import CleanupSteps
from penstock.core.loop_tasks import call_each, run_on_thread, run_shielded
from penstock.core.threads import SerialExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_registry import Topics

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class TopicWatcher(Protocol):
    """Listener for created, changed and deleted topics, on the event loop."""

    def created(self, topic: Topic) -> None:
        """Handle a new topic; `changed` is called, too."""
        ...

    def changed(self, topic: str) -> None:
        """Handle a topic or channel that was, or may have been, created or deleted."""
        ...


class TopicChanges:
    """Changes the topics of one broker. Used on its event loop.

    Args:
        topics: The topics.

    Attributes:
        watchers: Listeners for topics and channels that are created or deleted.

    Raises:
        Unavailable: No thread can be started.
    """

    def __init__(self, topics: Topics) -> None:
        self.watchers: list[TopicWatcher] = []
        self._topics = topics
        self._thread: Executor = SerialExecutor("topics")

    async def run(self, change: Callable[[], T]) -> T:
        """Run a change of a topic or channel on the thread of changes."""
        return await run_on_thread(change, self._thread)

    def notify(self, name: str) -> None:
        """Report to the watchers that a topic or channel was, or may have been, changed."""
        call_each([partial(watcher.changed, name) for watcher in self.watchers])

    async def create(self, name: str, partitions: int) -> Topic:
        """Create a topic, or return one with as many stream partitions. Raises as `Topics`."""
        return await self._create(name, partitions, same=True)

    async def find_or_create(self, name: str, partitions: int) -> Topic:
        """Return the topic, created if it does not exist. Raises as `Topics.create`."""
        return await self._create(name, partitions, same=False)

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause or unpause a topic durably. Raises as `Topics`."""
        topic = self._topics.get(name)
        await run_shielded(
            self._set_paused(topic, paused=paused),
            lambda: topic.set_paused(paused=topic.file.paused),
        )

    async def _set_paused(self, topic: Topic, *, paused: bool) -> None:
        held = topic.position() if paused or not topic.channels else None
        try:
            await self.run(
                lambda: self._topics.settings.save(
                    topic, replace(topic.file, paused=paused, held=held)
                )
            )
        finally:
            topic.set_paused(paused=topic.file.paused)

    async def configure(self, topic: Topic, texts: Mapping[str, str]) -> None:
        """Change options of a topic durably; its channels apply them at once.

        Args:
            topic: The topic.
            texts: Options by name; an empty text resets an option.

        Raises:
            InvalidRequest: An option is unknown, or a value is invalid.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        await run_shielded(
            self._configure(topic, texts), lambda: self._topics.parts.apply_options(topic)
        )

    async def _configure(self, topic: Topic, texts: Mapping[str, str]) -> None:
        try:
            await self.run(lambda: self._topics.configure(topic, texts))
        finally:
            self._topics.parts.apply_options(topic)

    async def empty(self, topic: Topic) -> None:
        """Withhold all undelivered messages from channels permanently; readers by offset keep them.

        Raises:
            Unavailable: The disk is full: the messages may be back after a restart.
        """
        held = topic.withhold()
        if held is None:
            return
        # Channels first: otherwise, after a crash, they would receive the discarded messages.
        for channel in tuple(topic.channels.values()):
            await channel.keep()

        def write() -> None:
            if topic.file.held is not None:
                self._topics.settings.save(topic, replace(topic.file, held=held))

        await self.run(write)

    async def purge(self, topic: Topic) -> None:
        """Delete every message of a topic, for channels and for readers by offset.

        Raises:
            Unavailable: The disk is full, or an I/O error; some messages may be deleted.
        """
        await run_shielded(self._purge(topic))

    async def _purge(self, topic: Topic) -> None:
        topic.withhold()
        for channel in tuple(topic.channels.values()):
            channel.clear()
            await channel.keep()
        try:
            for queue in topic.queues:
                # It waits for an fsync and deletes files.
                await run_on_thread(queue.retention.clear)
        finally:
            steps = CleanupSteps()
            for feed in topic.feeds:
                steps.take(feed.forget)
            # Messages that arrived meanwhile are deleted, too.
            ends = tuple(queue.earliest for queue in topic.queues)
            for channel in tuple(topic.channels.values()):
                steps.take(channel.pass_over, (0,) * len(ends), ends)
            steps.take(topic.append_listeners.notify)
            steps.finish()

    async def delete(self, name: str) -> None:
        """Delete a topic: permanently at once; return when its files are deleted, too.

        Raises:
            NotFound: No topic has this name.
            Unavailable: The disk is full; the topic still exists.
        """
        await run_shielded(self._delete(name))

    async def _delete(self, name: str) -> None:
        topic = await self.run(lambda: self._topics.retire(name))
        # The deletion is permanent: each part must end, even after exceptions.
        steps = CleanupSteps()
        steps.take(self.notify, name)
        steps.take(topic.end)
        # Ephemeral channels disappear with the last of their consumers, which are closed here.
        for channel in tuple(topic.channels.values()):
            try:
                await channel.shut()
            except Exception:
                _logger.exception("topic %s: cannot shut a channel of the deleted topic", name)
        # Not on the single thread: it may take long, and the name is reserved meanwhile.
        await run_on_thread(partial(self._remove, topic))
        steps.finish()

    def close(self) -> None:
        """Wait for the running change."""
        self._thread.shutdown()

    async def _create(self, name: str, partitions: int, *, same: bool) -> Topic:
        """Create a topic if it does not exist; `same` requires an existing one to be equal."""
        loop = asyncio.get_running_loop()

        def create() -> Topic:
            found = self._topics.find(name)
            if found is not None and not same:
                return found
            topic = self._topics.create(name, partitions)
            if found is None:
                # Announced from here, because the request may have been cancelled meanwhile.
                try:
                    loop.call_soon_threadsafe(self._tell_created, topic)
                except Exception:  # the topic exists and works
                    _logger.exception("topic %s: cannot announce its creation", name)
            return topic

        return await self.run(create)

    def _tell_created(self, topic: Topic) -> None:
        call_each([partial(watcher.created, topic) for watcher in self.watchers])
        self.notify(topic.name)

    def _remove(self, topic: Topic) -> None:
        try:
            topic.close()
            self._topics.purge(topic.name)
        except Exception:
            _logger.exception(
                "topic %s is deleted, but some of its files are not: the next start tries again; "
                "its name is reserved until then",
                topic.name,
            )
        else:
            self._topics.forget(topic.name)
