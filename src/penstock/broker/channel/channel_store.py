"""Channels of topics on disk: creation, loading after a restart, removal.

Owns a topic's folder ``channels/<name>/``, which holds a channel's journal. Does not own which
channels a topic has (``topic.json``, `topics`) nor their behaviour (`penstock.broker.channel`).

Invariants: slow steps run on another thread, while the channel is not used on the event loop; a
damaged channel continues with the readable part of its journal after a restart, and in the worst
case delivers messages again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.channel.channel import Channel
from penstock.broker.channel.channel_state import ChannelState
from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.channel.feed import FeedOptions, SubscribedTopic
from penstock.broker.channel.persistence import ChannelJournal, JournalSyncs, restore, snapshot
from penstock.broker.topic_names import is_ephemeral, is_valid_name
from penstock.core.errors import CorruptData, counted
from penstock.storage.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.channel.drop_policy import DeadLetterStore
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

FOLDER: Final = "channels"


class ChannelRules(Protocol):
    """Options of a topic that concern its channels."""

    def channel(self, defaults: ChannelOptions, topic: str) -> ChannelOptions:
        """Return the options of a topic's channels."""
        ...


class StoredTopic(SubscribedTopic, Protocol):
    """A topic, as the store of its channels sees it.

    Attributes:
        name: Its name.
        folder: Its folder; empty: the topic exists only in memory.
    """

    name: str
    folder: str

    @property
    def options(self) -> ChannelRules:
        """Return the topic's options."""
        ...

    @property
    def queues(self) -> Sequence[MessageQueue]:
        """Return the queue of each stream partition."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelStore:
    """Creates and loads channels.

    Attributes:
        fs: The file system.
        clock: For journals and deadlines.
        options: Default options of channels; a topic can override them.
        dead_letters: Receives messages that are given up.
        kept: Options of the messages that topics keep in memory, with the broker's memory limit.
        syncs: Schedules the fsyncs of the journals.
    """

    fs: FileSystem
    clock: Clock
    options: ChannelOptions
    dead_letters: DeadLetterStore
    kept: FeedOptions = field(default_factory=FeedOptions)
    syncs: JournalSyncs = field(default_factory=JournalSyncs)

    def create(self, topic: StoredTopic, name: str, starts: Sequence[int]) -> Channel:
        """Create a channel at these offsets, durably unless it or its topic is ephemeral.

        Raises:
            Unavailable: The disk is full.
        """
        state = ChannelState(starts)
        if is_ephemeral(name) or not topic.folder:
            return self._channel(topic, name, state, None)
        journal = write_state(topic.folder, name, state, self.fs, self.clock)
        return self._channel(topic, name, state, ChannelJournal(journal, state, self.syncs))

    def load(self, topic: StoredTopic, name: str) -> Channel:
        """Load a channel after a restart.

        Raises:
            InvalidRequest: Its journal has a newer format.
            Unavailable: The disk does not respond.
        """
        folder = self._folder(topic, name)
        journal = Journal.open(folder, fs=self.fs, clock=self.clock, strict=False)
        damage = journal.damage
        whole = bool(journal.snapshot) and not damage.lost_bytes
        starts = [queue.earliest for queue in topic.queues]
        ends = [queue.latest for queue in topic.queues]
        try:
            state, was_cut = restore(journal.snapshot, journal.records, starts, ends)
        except CorruptData as error:
            _logger.warning("%s: %s; delivering all existing messages again", folder, error)
            state = ChannelState(starts)
            was_cut, whole = True, False
        if damage.lost_bytes:
            _logger.warning(
                "%s: moved %s of the journal aside: messages that were finished may be"
                " delivered again",
                *(folder, counted(damage.lost_bytes, "damaged byte")),
            )
        elif not journal.snapshot:
            _logger.warning(
                "%s: the journal is missing; delivering all existing messages again", folder
            )
        if was_cut or not whole:
            # Before anything is appended: offsets that a power loss removed are assigned again, and
            # must not count as finished.
            journal.compact(snapshot(state))
        journal.records = []
        channel = self._channel(topic, name, state, ChannelJournal(journal, state, self.syncs))
        channel.counters.journal_damaged = int(not whole)
        return channel

    def found(self, folder: str) -> list[str]:
        """Return the names of the channels in a topic's folder."""
        place = f"{folder}/{FOLDER}"
        if not self.fs.exists(place):
            return []
        return [name for name in self.fs.listdir(place) if is_valid_name(name)]

    def remove(self, topic: StoredTopic, name: str) -> None:
        """Remove a channel's files, if they exist.

        Raises:
            Unavailable: A file cannot be deleted.
        """
        folder = self._folder(topic, name)
        if topic.folder and self.fs.exists(folder):
            _remove_files(self.fs, folder)
            self.fs.rmdir(folder)

    def _folder(self, topic: StoredTopic, name: str) -> str:
        return f"{topic.folder}/{FOLDER}/{name}"

    def _channel(
        self, topic: StoredTopic, name: str, state: ChannelState, journal: ChannelJournal | None
    ) -> Channel:
        options = topic.options.channel(self.options, topic.name)
        memory = self.kept.budget
        return Channel(name, topic, state, journal, options, self.clock, self.dead_letters, memory)


def write_state(
    topic_folder: str, name: str, state: ChannelState, fs: FileSystem, clock: Clock
) -> Journal:
    """Write the state of a new channel durably.

    Raises:
        Unavailable: The disk is full.
    """
    folder = f"{topic_folder}/{FOLDER}/{name}"
    if fs.exists(folder):
        # The journal of a deleted channel of this name does not apply to this one.
        _remove_files(fs, folder)
    journal = Journal.open(folder, fs=fs, clock=clock, strict=False)
    journal.compact(snapshot(state))
    return journal


def _remove_files(fs: FileSystem, folder: str) -> None:
    for entry in fs.listdir(folder):
        fs.unlink(f"{folder}/{entry}")
