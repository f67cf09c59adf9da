"""The channels of a topic, durably.

Owns the channels in ``topic.json``, and that their files are created and deleted with these
entries. Does not own the files of a channel (`penstock.broker.channel.channel_store`) nor changes
on the event loop (`channel_changes`).

Invariants: a channel exists while its topic's ``topic.json`` lists it; an ephemeral one is never
listed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.topic_names import is_ephemeral, require_name
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.broker.channel.channel import Channel
    from penstock.broker.channel.channel_store import ChannelStore
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_files import TopicSettings


_logger = logging.getLogger(__name__)


class TopicChannels:
    """Changes the channels of topics.

    Args:
        store: Creates the channels; None: no channels, for a process that only publishes.
        settings: Saves changed settings of topics.
    """

    def __init__(self, store: ChannelStore | None, settings: TopicSettings) -> None:
        self._store = store
        self._settings = settings

    def create(self, topic: Topic, name: str, starts: tuple[int, ...]) -> Channel:
        """Create a channel that begins at these offsets; the caller attaches it.

        If ``topic.json`` lists it already, because an exception prevented its attachment, it is
        loaded instead.

        Raises:
            InvalidRequest: The name is invalid.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        require_name(name, "channel")
        if name in topic.file.channels:
            return self.load(topic, name)
        channel = self._required().create(topic, name, starts)
        if not is_ephemeral(name):
            held = topic.file.held if topic.file.paused else None
            named = {**topic.file.channels, name: False}
            self._settings.save(topic, replace(topic.file, held=held, channels=named))
        return channel

    def load(self, topic: Topic, name: str) -> Channel:
        """Load a channel; the caller attaches it.

        Raises:
            InvalidRequest: Its journal has a newer format.
            Unavailable: The disk does not respond.
        """
        channel = self._required().load(topic, name)
        channel.paused = topic.file.channels[name]
        return channel

    def attach_all(self, topic: Topic) -> None:
        """Attach the channels of a topic after a restart. Raises as `load`."""
        if self._store is None:
            return
        for name in topic.file.channels:
            topic.attach(self.load(topic, name))
        for name in self._store.found(topic.folder):
            if name not in topic.file.channels:
                self._store.remove(topic, name)

    def set_paused(self, topic: Topic, name: str, *, paused: bool) -> None:
        """Save whether a channel is paused.

        Raises:
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        if name in topic.file.channels:
            channels = {**topic.file.channels, name: paused}
            self._settings.save(topic, replace(topic.file, channels=channels))

    def drop(self, topic: Topic, name: str, held: tuple[int, ...] | None) -> None:
        """Delete a channel durably, and remove its files; a failed removal is logged.

        Args:
            topic: The topic.
            name: The channel; no effect if it is not listed.
            held: Offsets up to which channels have the topic's messages afterwards.

        Raises:
            Unavailable: The disk is full; the channel still exists.
        """
        if name in topic.file.channels:
            left = {other: p for other, p in topic.file.channels.items() if other != name}
            self._settings.save(topic, replace(topic.file, held=held, channels=left))
            try:
                if self._store is not None:
                    self._store.remove(topic, name)
            except Exception:  # it is deleted, and the next start removes the remaining files
                _logger.exception("topic %s: cannot remove files of channel %s", topic.name, name)

    def _required(self) -> ChannelStore:
        if self._store is None:
            raise InvalidRequest("this broker has no channels: it only publishes")
        return self._store
