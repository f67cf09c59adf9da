"""The broker's topics as nsqlookupd is told of them, and what is learnt from it for new ones.

Owns the channels that a new topic gets because other brokers' topics of its name have them: without
them a consumer that knows the channel, and comes to this broker later, would miss what was
published before. They begin with the topic's first message, whenever the answers come, so no
publisher waits for them. Of very many new topics a few are asked about at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.broker.names import is_ephemeral, is_valid_name
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.looptasks import start_job

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.broker.lookupd.announcer import Announcer
    from penstock.broker.topics.changes import TopicChanges
    from penstock.broker.topics.folder import Topics
    from penstock.broker.topics.topic import Topic

_logger = logging.getLogger(__name__)

_CHANNELS_MAX: Final = 1_000
_TOPICS_AT_ONCE: Final = 8


class TopicDirectory:
    """The topics of one broker.

    Args:
        topics: They.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def names(self) -> Iterable[str]:
        """Return the topics there are."""
        return [topic.name for topic in self._topics]

    def channels(self, topic: str) -> Collection[str] | None:
        """Return a topic's channels; None: there is no such topic."""
        found = self._topics.find(topic)
        return None if found is None else found.channels.keys()


class Asker(Protocol):
    """Makes HTTP requests."""

    async def get(self, url: str, query: dict[str, str]) -> bytes:
        """Return the answer to a GET."""
        ...


class ChannelInheritance:
    """Tells the announcer of changes, and gives new topics the channels that others have.

    Args:
        announcer: Knows the nsqlookupd servers.
        changes: Makes channels.
        asker: Asks the servers.
    """

    def __init__(self, announcer: Announcer, changes: TopicChanges, asker: Asker) -> None:
        self._announcer = announcer
        self._changes = changes
        self._asker = asker
        self._new: deque[Topic] = deque()
        self._asking: set[asyncio.Task[None]] = set()

    def changed(self, topic: str) -> None:
        """Tell that a topic or its channels came or went."""
        self._announcer.changed(topic)

    def created(self, topic: Topic) -> None:
        """Ask which channels a new topic is to have."""
        if is_ephemeral(topic.name) or not self._announcer.http_addresses():
            return
        self._new.append(topic)
        if len(self._asking) < _TOPICS_AT_ONCE:
            task = start_job("channel inheritance", self._inherit_all())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Ask no more."""
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
                # The top of a task: the other topics have their turn.
                _logger.exception("topic %s: its channels cannot be made", topic.name)

    async def _inherit(self, topic: Topic) -> None:
        addresses = self._announcer.http_addresses()
        answers = await asyncio.gather(*(self._ask(address, topic.name) for address in addresses))
        names = sorted(set().union(*answers))
        try:
            for name in names[:_CHANNELS_MAX]:
                starts = (0,) * len(topic.queues)
                await self._changes.find_or_create_channel(topic, name, starts)
        except PenstockError as error:
            _logger.warning("topic %s: its channels cannot be made: %s", topic.name, error)

    async def _ask(self, address: str, topic: str) -> set[str]:
        try:
            answer = await self._asker.get(f"http://{address}/channels", {"topic": topic})
            return parse_channels(answer)
        except PenstockError as error:
            _logger.warning("nsqlookupd %s: channels of %s: %s", address, topic, error)
            return set()


def parse_channels(answer: bytes) -> set[str]:
    """Return the channels of an answer that outlive their consumers.

    Raises:
        InvalidRequest: It is not what nsqlookupd answers.
    """
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the answer is no JSON: {error}") from None
    names = document.get("channels") if isinstance(document, dict) else None
    if not isinstance(names, list):
        raise InvalidRequest("the answer holds no list of channels")
    return {
        name
        for name in names
        if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
    }
