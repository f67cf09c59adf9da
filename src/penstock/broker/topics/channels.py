"""Which channels a topic has, durably.

Owns the channels that ``topic.json`` names, and that their files come and go with their names. Does
not own the files of a channel (`penstock.broker.channel.store`) nor what is done on the event loop
(`changes`).

Invariants: a channel exists from the moment its topic's ``topic.json`` names it until it does not;
an ephemeral one is never named.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.names import is_ephemeral, require_name
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.channel.channel import Channel
    from penstock.broker.channel.store import ChannelStore
    from penstock.broker.topics.file import TopicFile
    from penstock.broker.topics.topic import Topic


_logger = logging.getLogger(__name__)


class TopicChannels:
    """Changes which channels topics have.

    Args:
        store: Makes the channels; None: there are none, for who only publishes.
        change: Keeps something else of a topic, durably.
    """

    def __init__(
        self, store: ChannelStore | None, change: Callable[[Topic, TopicFile], None]
    ) -> None:
        self._store = store
        self._change = change

    def create(self, topic: Topic, name: str, starts: tuple[int, ...]) -> Channel:
        """Make a channel that begins at these offsets; it still has to be attached.

        One that ``topic.json`` names already, because an exception kept it from being attached, is
        loaded instead: it has its place in the topic.

        Raises:
            InvalidRequest: The name cannot be.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        require_name(name, "channel")
        if name in topic.file.channels:
            return self.load(topic, name)
        channel = self._required().create(topic, name, starts)
        if not is_ephemeral(name):
            held = topic.file.held if topic.file.paused else None
            named = {**topic.file.channels, name: False}
            self._change(topic, replace(topic.file, held=held, channels=named))
        return channel

    def load(self, topic: Topic, name: str) -> Channel:
        """Return a channel as it is kept; it still has to be attached.

        Raises:
            InvalidRequest: Its journal is of a newer format.
            Unavailable: The disk does not answer.
        """
        channel = self._required().load(topic, name)
        channel.paused = topic.file.channels[name]
        return channel

    def attach_all(self, topic: Topic) -> None:
        """Give a topic the channels that it has after a restart. Raises as `load`."""
        if self._store is None:
            return
        for name in topic.file.channels:
            topic.attach(self.load(topic, name))
        for name in self._store.found(topic.folder):
            if name not in topic.file.channels:
                self._store.remove(topic, name)

    def set_paused(self, topic: Topic, name: str, *, paused: bool) -> None:
        """Keep whether a channel is paused.

        Raises:
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        if name in topic.file.channels:
            channels = {**topic.file.channels, name: paused}
            self._change(topic, replace(topic.file, channels=channels))

    def drop(self, topic: Topic, name: str, held: tuple[int, ...] | None) -> None:
        """Forget a channel durably, and remove its files; what cannot be removed is logged.

        Args:
            topic: The topic.
            name: The channel; nothing happens if it is not named.
            held: Up to where channels have the topic's messages then.

        Raises:
            Unavailable: The disk is full; the channel is still there.
        """
        if name in topic.file.channels:
            left = {other: p for other, p in topic.file.channels.items() if other != name}
            self._change(topic, replace(topic.file, held=held, channels=left))
            try:
                if self._store is not None:
                    self._store.remove(topic, name)
            except Exception:  # it is deleted, and the next start removes what is left of it
                _logger.exception("topic %s: files of channel %s are left", topic.name, name)

    def _required(self) -> ChannelStore:
        if self._store is None:
            raise InvalidRequest("this broker serves no channels")
        return self._store
