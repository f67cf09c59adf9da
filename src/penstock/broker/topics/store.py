"""The files of one topic: written, read again, mended where they are damaged, removed.

Owns what lies in ``<topic>/`` beside the disk queues and channels: ``topic.json`` says what the
topic is (`file`), ``topic.id`` repeats its id, and ``<n>/`` is the disk queue of each stream
partition. Does not own which topics there are (`folder`) nor what they hold.

Invariants:

- A ``topic.json`` that cannot be read is kept aside and written anew from the folders of stream
  partitions and channels, so it costs pause flags and the topic's options at most.
- A topic keeps its id from its creation to its deletion, also when ``topic.json`` is lost, and no
  other topic ever has it.
- Of a removed topic ``topic.json`` goes last, so that a crash does not bring back what is left.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.broker.channel.store import FOLDER as CHANNELS_FOLDER
from penstock.broker.topics.file import FILE_NAME, ID_FILE_NAME, TopicFile, parse_id
from penstock.core.errors import NotFound, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.channel.store import ChannelStore
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

_LEFT_BY_A_CREATE = {ID_FILE_NAME, f"{ID_FILE_NAME}.tmp", f"{FILE_NAME}.tmp", CHANNELS_FOLDER}


@dataclass(frozen=True, slots=True)
class TopicStore:
    """Keeps the files of topics that are not ephemeral.

    Attributes:
        folder: Holds a folder for each topic.
        fs: The file system.
        clock: Gives the time to the name of a file that is kept aside.
        new_id: Gives ids that were never given before.
    """

    folder: str
    fs: FileSystem
    clock: Clock
    new_id: Callable[[], str]

    def path(self, name: str) -> str:
        """Return the folder of a topic."""
        return f"{self.folder}/{name}"

    def create(self, name: str, file: TopicFile) -> None:
        """Write a new topic's files, durably; its disk queues are made when they are opened.

        Raises:
            Unavailable: The disk is full; there is no such topic.
        """
        self.fs.mkdir(self.path(name))
        # Before the topic is there: so it never is without the copy.
        self._save_id(name, file.id)
        self.save(name, file)

    def save(self, name: str, file: TopicFile) -> None:
        """Write what is kept of a topic, durably.

        Raises:
            Unavailable: The disk is full; what was kept before stays.
        """
        self.fs.write_atomically(f"{self.path(name)}/{FILE_NAME}", file.to_bytes(name))

    def read(self, name: str) -> TopicFile:
        """Return what is kept of a topic; ValueError when it is damaged.

        Raises:
            NotFound: Nothing is.
            InvalidRequest: It is of a newer format.
        """
        path = f"{self.path(name)}/{FILE_NAME}"
        return TopicFile.parse(self.fs.read_bytes(path), path)

    def load(self, name: str, channels: ChannelStore | None) -> TopicFile | None:
        """Return what is kept of a topic, mended where it is damaged; None: there is no topic.

        Args:
            name: The topic.
            channels: Finds its channels where only their folders tell of them.

        Raises:
            InvalidRequest: It is of a newer format.
            Unavailable: The disk does not answer.
        """
        try:
            found = self.read(name)
        except (NotFound, ValueError) as error:
            found = self._rebuild(name, error, channels)
        if found.deleted:
            return found
        return self._identified(name, found) if found.partitions else None

    def remove(self, name: str) -> None:
        """Remove all files of a topic, durably. Slow.

        Raises:
            Unavailable: A file would not go; what says that the topic is deleted stays.
        """
        path = self.path(name)
        self._remove_tree(path, keep=FILE_NAME)
        # The file that says "deleted" goes durably last, or a power loss could bring it all back.
        self.fs.fsync_folder(path)
        self._remove_tree(path)
        self.fs.fsync_folder(self.folder)

    def _save_id(self, name: str, topic_id: str) -> None:
        path = f"{self.path(name)}/{ID_FILE_NAME}"
        self.fs.write_atomically(path, f"{topic_id}\n".encode())

    def _identified(self, name: str, file: TopicFile) -> TopicFile:
        """Return what is kept of a topic with its id, which is durable then, in both places.

        The messages of a topic whose ``topic.json`` was damaged are those that its readers know, so
        the copy gives it its old id again. Where both are gone it gets a new one, and who indexes
        it reads from the start what is kept: rather twice than never, and both sides log it. The
        old id is what nobody may guess.
        """
        try:
            copy = parse_id(self.fs.read_bytes(f"{self.path(name)}/{ID_FILE_NAME}"))
        except NotFound:
            copy = ""
        known = file.id or copy or self.new_id()
        if copy != known:
            self._save_id(name, known)
        if file.id != known:
            if not copy:
                _logger.warning("topic %s has no id that can be read: it gets %s", name, known)
            file = replace(file, id=known)
            self.save(name, file)
        return file

    def _rebuild(self, name: str, error: Exception, store: ChannelStore | None) -> TopicFile:
        """Write topic.json anew from the folders; where there are none, no topic was made."""
        folder = self.path(name)
        path = f"{folder}/{FILE_NAME}"
        if isinstance(error, ValueError):
            self.fs.rename(path, f"{path}.{self.clock.now_ms()}.bad")
        entries = self.fs.listdir(folder)
        partitions = max((int(entry) for entry in entries if entry.isdecimal()), default=-1) + 1
        found = TopicFile(partitions)
        if partitions:
            channels = [] if store is None else store.found(folder)
            found = replace(
                found,
                channels=dict.fromkeys(channels, False),
                held=None if channels else (0,) * partitions,
            )
            _logger.warning(
                "topic %s: %s; %s is written anew with %s and the channels %s, none paused",
                *(name, error, path, counted(partitions, "stream partition"), channels),
            )
            self.save(name, found)
        elif set(entries) <= _LEFT_BY_A_CREATE:
            self._remove_tree(folder)
        else:
            _logger.warning("%s is no topic and is left alone: move it away", folder)
        return found

    def _remove_tree(self, folder: str, keep: str = "") -> None:
        """Remove a folder; with `keep`, everything in it but that file."""
        for entry in self.fs.listdir(folder):
            path = f"{folder}/{entry}"
            if entry == keep:
                continue
            if self.fs.stat(path).is_folder:
                self._remove_tree(path)
            else:
                self.fs.unlink(path)
        if not keep:
            self.fs.rmdir(folder)
