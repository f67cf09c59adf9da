"""Topics made, paused and deleted while the event loop goes on serving.

Owns the thread that such changes run on, one after the other: each takes fsyncs, and a publisher of
another topic must not wait for them. Does not own what a change does (``topics``).

Invariants: `Topics` is changed on this thread alone; a topic's state in memory on the event loop
alone; what a cancelled request began is finished.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.topic import Topic
    from penstock.broker.topics import Topics

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class TopicChanges:
    """Changes the topics of one broker. Used on its event loop.

    Args:
        topics: The topics.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="topics")

    async def create(self, name: str, partitions: int) -> Topic:
        """Make a topic, or return the one with as many stream partitions. Raises as `Topics`."""
        return await self._run(lambda: self._topics.create(name, partitions))

    async def find_or_create(self, name: str, partitions: int) -> Topic:
        """Return the topic, made if there is none. Raises as `Topics.create`."""
        return await self._run(
            lambda: self._topics.find(name) or self._topics.create(name, partitions)
        )

    async def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause or unpause a topic durably. Raises as `Topics`."""
        await self._run(lambda: self._topics.set_paused(name, paused))

    async def delete(self, name: str) -> None:
        """Delete a topic: gone for good at once; returns when its files are, too.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full; the topic is still there.
        """
        topic = await self._run(lambda: self._topics.retire(name))
        topic.end()
        # Not on the one thread: it may take long, and nobody else can use the name meanwhile.
        await asyncio.to_thread(self._remove, topic)

    def close(self) -> None:
        """Wait for the change that runs."""
        self._thread.shutdown()

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
