"""The broker's topics for registration at nsqlookupd, and channels of new topics learnt from it.

Owns the channels that a new topic gets because other brokers' topics of its name have them: without
them, a consumer of such a channel that connects to this broker later would miss earlier messages.
They begin with the topic's first message, whenever the answers arrive, so no publisher waits for
them. Only a few of very many new topics are looked up at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.broker.topic_names import is_ephemeral, is_valid_name
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.loop_tasks import start_job

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.broker.lookupd.announcer import LookupdAnnouncer
    from penstock.broker.topics.channel_changes import ChannelChanges
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_registry import Topics

_logger = logging.getLogger(__name__)

_CHANNELS_MAX: Final = 1_000
_TOPICS_AT_ONCE: Final = 8


class TopicDirectory:
    """The topics of one broker.

    Args:
        topics: The topics.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def names(self) -> Iterable[str]:
        """Return the names of the topics."""
        return [topic.name for topic in self._topics]

    def channels(self, topic: str) -> Collection[str] | None:
        """Return a topic's channels, or None if the topic does not exist."""
        found = self._topics.find(topic)
        return None if found is None else found.channels.keys()


class LookupdQuery(Protocol):
    """Sends HTTP requests."""

    async def get(self, url: str, query: dict[str, str]) -> bytes:
        """Return the answer to a GET."""
        ...


class ChannelInheritance:
    """Reports changes to the announcer, and gives new topics the channels of other brokers.

    Args:
        announcer: Knows the nsqlookupd servers.
        changes: Creates channels.
        asker: Sends requests to the servers.
    """

    def __init__(
        self, announcer: LookupdAnnouncer, changes: ChannelChanges, asker: LookupdQuery
    ) -> None:
        self._announcer = announcer
        self._changes = changes
        self._asker = asker
        self._new: deque[Topic] = deque()
        self._asking: set[asyncio.Task[None]] = set()

    def changed(self, topic: str) -> None:
        """Report that a topic or one of its channels was created or deleted."""
        self._announcer.changed(topic)

    def created(self, topic: Topic) -> None:
        """Look up the channels of a new topic at other brokers."""
        if is_ephemeral(topic.name) or not self._announcer.http_addresses():
            return
        self._new.append(topic)
        if len(self._asking) < _TOPICS_AT_ONCE:
            task = start_job("channel inheritance", self._inherit_all())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Stop all lookups."""
        self._new.clear()
        for task in tuple(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _inherit_all(self) -> None:
        while self._new:
            topic = self._new.popleft()
            try:
                if not topic.closed:
                    await self._inherit(topic)
            except Exception:
                # The outermost handler of a task: other topics must get their channels.
                _logger.exception("topic %s: cannot create its channels", topic.name)

    async def _inherit(self, topic: Topic) -> None:
        addresses = self._announcer.http_addresses()
        answers = await asyncio.gather(*(self._ask(address, topic.name) for address in addresses))
        names = sorted(set().union(*answers))
        try:
            for name in names[:_CHANNELS_MAX]:
                starts = (0,) * len(topic.queues)
                await self._changes.find_or_create(topic, name, starts)
        except PenstockError as error:
            _logger.warning("topic %s: cannot create its channels: %s", topic.name, error)

    async def _ask(self, address: str, topic: str) -> set[str]:
        try:
            answer = await self._asker.get(f"http://{address}/channels", {"topic": topic})
            return parse_channels(answer)
        except PenstockError as error:
            _logger.warning("nsqlookupd %s: channels of %s: %s", address, topic, error)
            return set()


def parse_channels(answer: bytes) -> set[str]:
    """Return the channels in an answer that outlive their consumers.

    Raises:
        InvalidRequest: It is not an answer of nsqlookupd.
    """
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the answer is not JSON: {error}") from None
    names = document.get("channels") if isinstance(document, dict) else None
    if not isinstance(names, list):
        raise InvalidRequest("the answer has no list of channels")
    return {
        name
        for name in names
        if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
    }
