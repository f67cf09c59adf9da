"""The files of one topic: written, loaded, rebuilt if they are damaged, removed.

Owns the files in ``<topic>/`` other than the disk queues and channels: ``topic.json`` has the
topic's settings (`topic_file`), ``topic.id`` a copy of its id, and ``<n>/`` is the disk queue of
each stream partition. Does not own which topics exist (`topic_registry`) nor their messages.

Invariants:

- A damaged ``topic.json`` is moved aside and rebuilt from the folders of stream partitions and
  channels, so only pause flags and the topic's options can be lost.
- A topic keeps its id from its creation to its deletion, even if ``topic.json`` is lost, and no
  other topic ever has this id.
- The ``topic.json`` of a removed topic is deleted last, so that a crash does not restore the rest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.broker.channel.channel_store import FOLDER as CHANNELS_FOLDER
from penstock.broker.topic_names import is_ephemeral
from penstock.broker.topics.topic_file import FILE_NAME, ID_FILE_NAME, TopicFile, parse_id
from penstock.core.errors import NotFound, Unavailable, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.channel.channel_store import ChannelStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)

UNDO_TRIES = 2
"""Number of attempts to undo a change, because the undo may fail, too."""

_LEFT_BY_A_CREATE = {ID_FILE_NAME, f"{ID_FILE_NAME}.tmp", f"{FILE_NAME}.tmp", CHANNELS_FOLDER}


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """Keeps the files of topics that are not ephemeral.

    Attributes:
        folder: Folder that contains a folder for each topic.
        fs: The file system.
        clock: Provides the time in the name of a damaged file that is moved aside.
        new_id: Returns a unique id.
    """

    folder: str
    fs: FileSystem
    clock: Clock
    new_id: Callable[[], str]

    def path(self, name: str) -> str:
        """Return the folder of a topic."""
        return f"{self.folder}/{name}"

    def create(self, name: str, file: TopicFile) -> None:
        """Write a new topic's files durably; its disk queues are created when they are opened.

        Raises:
            Unavailable: The disk is full; the topic does not exist.
        """
        self.fs.mkdir(self.path(name))
        # Before topic.json, so that a topic always has the copy.
        self._save_id(name, file.id)
        self.save(name, file)

    def save(self, name: str, file: TopicFile) -> None:
        """Write the settings of a topic durably.

        Raises:
            Unavailable: The disk is full; the previous settings remain.
        """
        self.fs.write_atomically(f"{self.path(name)}/{FILE_NAME}", file.to_bytes(name))

    def read(self, name: str) -> TopicFile:
        """Return the settings of a topic; raise ValueError if they are damaged.

        Raises:
            NotFound: The topic has no file.
            InvalidRequest: The file has a newer format.
        """
        path = f"{self.path(name)}/{FILE_NAME}"
        return TopicFile.parse(self.fs.read_bytes(path), path)

    def contains(self, name: str, file: TopicFile) -> bool:
        """Return whether the disk has these settings; False if two attempts to read them fail."""
        for _ in range(UNDO_TRIES):
            try:
                return self.read(name) == file
            except Exception:
                _logger.exception("topic %s: cannot read its topic.json", name)
        return False

    def load(self, name: str, channels: ChannelStore | None) -> TopicFile | None:
        """Return the settings of a topic, rebuilt if they are damaged; None: there is no topic.

        Args:
            name: The topic.
            channels: Finds its channels by their folders when the settings are lost.

        Raises:
            InvalidRequest: The file has a newer format.
            Unavailable: The disk does not respond.
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
            Unavailable: A file cannot be deleted; the mark of the deletion remains.
        """
        path = self.path(name)
        self._remove_tree(path, keep=FILE_NAME)
        # The file that contains "deleted" must go last, or a power loss could restore the topic.
        self.fs.fsync_folder(path)
        self._remove_tree(path)
        self.fs.fsync_folder(self.folder)

    def _save_id(self, name: str, topic_id: str) -> None:
        path = f"{self.path(name)}/{ID_FILE_NAME}"
        self.fs.write_atomically(path, f"{topic_id}\n".encode())

    def _identified(self, name: str, file: TopicFile) -> TopicFile:
        """Return the settings of a topic with its id, after making the id durable in both places.

        The messages of a topic whose ``topic.json`` was damaged are those that its readers know, so
        the topic keeps the id in the copy. If both are lost, the topic gets a new id, and indexing
        tasks read it from the start: duplicates are preferred to losses, and both sides log it. The
        old id cannot be guessed.
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
                _logger.warning("topic %s has no readable id: it gets %s", name, known)
            file = replace(file, id=known)
            self.save(name, file)
        return file

    def _rebuild(self, name: str, error: Exception, store: ChannelStore | None) -> TopicFile:
        """Rebuild topic.json from the folders; without any, no topic was created."""
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
                "topic %s: %s; %s is rebuilt with %s and the channels %s, none of them paused",
                *(name, error, path, counted(partitions, "stream partition"), channels),
            )
            self.save(name, found)
        elif set(entries) <= _LEFT_BY_A_CREATE:
            self._remove_tree(folder)
        else:
            _logger.warning("%s is not a topic and is ignored: move it away", folder)
        return found

    def _remove_tree(self, folder: str, keep: str = "") -> None:
        """Remove a folder, or with `keep`, everything in it except that file."""
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


class TopicSettings:
    """Saves changed settings of topics.

    Args:
        files: The files of topics.
        topics: The topics in service, by name.
    """

    def __init__(self, files: TopicFiles, topics: Mapping[str, Topic]) -> None:
        self._files = files
        self._topics = topics

    def save(self, topic: Topic, file: TopicFile) -> None:
        """Save changed settings of a topic durably.

        Raises:
            Unavailable: The disk is full, or the topic was deleted meanwhile. `Topic.file` equals
                the contents of the disk: the change may be saved if only the last fsync failed.
        """
        if self._topics.get(topic.name) is not topic:
            raise Unavailable(f"topic {topic.name} was deleted meanwhile: try again")
        if not is_ephemeral(topic.name):
            try:
                self._files.save(topic.name, file)
            except BaseException:
                if self._files.contains(topic.name, file):
                    topic.file = file
                raise
        topic.file = file
