"""All topics of one folder: creation, loading after a restart, pausing and deletion.

Owns the set of topics and the lock of their folder. Does not own the files of a topic
(`topic_files`), how one is opened (`assembly`), which channels it has (`channel_names`) nor its
messages.

Invariants:

- One broker per folder: the folder is locked.
- A topic exists from the moment its ``topic.json`` is durable until that file contains ``deleted``;
  a crash in between leaves either a topic that opens or remains that are deleted.
- An ephemeral topic (``name#ephemeral``) and its channels exist only in memory.
- ``~running`` exists while a broker runs, so that the next one detects that it was killed.
- Only one thread at a time changes the topics (``changes``); the event loop reads them at any time.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from penstock.broker.topic_names import is_ephemeral, is_valid_name, require_name
from penstock.broker.topics.assembly import TopicParts
from penstock.broker.topics.channel_names import TopicChannels
from penstock.broker.topics.options import TopicOptions
from penstock.broker.topics.topic_file import TopicFile
from penstock.broker.topics.topic_files import UNDO_TRIES, TopicFiles, TopicSettings
from penstock.core.cleanup import CleanupSteps
from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueueOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.broker.channel.channel_store import ChannelStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem, FolderLock

_logger = logging.getLogger(__name__)

_RUNNING = "~running"  # no topic can have this name


class Topics:
    """The topics of one folder. Create it with `open`.

    Attributes:
        parts: Opens topics, and applies options to their parts.
        settings: Saves changed settings of topics.
        channels: Changes which channels they have.
        left_unsynced: The previous broker was killed, so its last writes may not be durable.
    """

    def __init__(
        self,
        store: TopicFiles,
        parts: TopicParts,
        channels: ChannelStore | None,
        max_partitions: int,
    ) -> None:
        self.parts = parts
        self._topics: dict[str, Topic] = {}
        self.settings = TopicSettings(store, self._topics)
        self.channels = TopicChannels(channels, self.settings)
        self.left_unsynced = False
        self._store = store
        self._channel_store = channels
        self._max_partitions = max_partitions
        self._leaving: set[str] = set()
        self._lock: FolderLock | None = None

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        queue_options: DiskQueueOptions | None = None,
        max_partitions: int = 256,
        channels: ChannelStore | None = None,
        defaults: TopicOptions | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> Self:
        """Lock the folder and open every topic in it.

        Args:
            folder: The folder; created if it does not exist.
            queue_options: For every stream partition.
            max_partitions: Maximum number of stream partitions of a topic.
            channels: Creates the channels; None: no channels, for a process that only publishes.
            defaults: Default options of topics.
            fs: The file system.
            clock: For the disk queues.
            new_id: Returns a unique id.

        Raises:
            Conflict: Another broker uses the folder.
            InvalidRequest: A topic was written by a newer Penstock, or the folder is not
                accessible.
            Unavailable: The disk does not respond.
        """
        fs = fs or OsFileSystem()
        clock = clock or SystemClock()
        parts = TopicParts(
            queue_options or DiskQueueOptions(), defaults or TopicOptions(), channels, fs, clock
        )
        topics = cls(TopicFiles(folder, fs, clock, new_id), parts, channels, max_partitions)
        try:
            fs.mkdir(folder)
            topics._lock = fs.lock_folder(folder)
            # A process that created a topic's folder may have died before it synced the name.
            fs.fsync_folder(folder)
            topics.left_unsynced = _mark_running(fs, folder)
            for name in fs.listdir(folder):
                if is_valid_name(name) and fs.stat(f"{folder}/{name}").is_folder:
                    topics._load(name)
        except BaseException:
            topics.close()
            raise
        return topics

    def __iter__(self) -> Iterator[Topic]:
        """Yield the topics by name."""
        # A copy, in one step: another thread may add a topic meanwhile.
        return iter([topic for _, topic in sorted(self._topics.copy().items())])

    def find(self, name: str) -> Topic | None:
        """Return the topic, or None."""
        return self._topics.get(name)

    def get(self, name: str) -> Topic:
        """Return the topic.

        Raises:
            NotFound: No topic has this name.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"topic {name!r} does not exist: create it, or publish to it")
        return topic

    def create(self, name: str, partitions: int) -> Topic:
        """Create a topic, or return an existing one with this number of stream partitions.

        Raises:
            Conflict: It exists with another number of stream partitions.
            InvalidRequest: The name or the number is invalid.
            Unavailable: It is being deleted, or the disk is full.
        """
        require_name(name)
        if not 1 <= partitions <= self._max_partitions:
            raise InvalidRequest(
                f"{partitions} stream partitions: specify 1 to {self._max_partitions}",
                place="partitions",
            )
        found = self._topics.get(name)
        if found is not None:
            if len(found.queues) != partitions:
                raise Conflict(
                    f"topic {name} exists with partitions={len(found.queues)}, not {partitions}:"
                    " the number is fixed, because keys are assigned to stream partitions; delete"
                    " the topic first if its messages are not needed"
                )
            return found
        file = TopicFile(partitions, self._store.new_id(), held=(0,) * partitions)
        if not is_ephemeral(name):
            self._require_free(name)
            return self._make(name, file)
        return self._open(name, file)

    def prepare(self, name: str, partitions: int) -> Topic:
        """Create a topic that is invisible until `complete`; a crash before that deletes it.

        Raises:
            Conflict: A topic of this name exists.
            InvalidRequest: The name is invalid.
            Unavailable: A topic of this name is being deleted, or the disk is full.
        """
        require_name(name)
        if name in self._topics:
            raise Conflict(f"topic {name} exists already: choose another name or delete it first")
        self._require_free(name)
        file = TopicFile(partitions, self._store.new_id(), deleted=True, held=(0,) * partitions)
        self._store.create(name, file)
        topic = self.parts.open(name, self._store.path(name), file)
        self._leaving.add(name)
        return topic

    def complete(self, topic: Topic, file: TopicFile) -> None:
        """Make a prepared topic, which was closed, visible like any other topic.

        Raises:
            Unavailable: The disk is full; the topic is still only prepared.
        """
        self._store.save(topic.name, replace(file, deleted=False))
        self._leaving.discard(topic.name)
        self._load(topic.name)

    def configure(self, topic: Topic, texts: Mapping[str, str]) -> None:
        """Save changed options of a topic durably; `TopicParts.apply_options` applies them.

        Raises:
            InvalidRequest: An option is unknown, or a value is invalid.
            Unavailable: The disk is full, or the topic was deleted meanwhile.
        """
        options = topic.file.options.with_texts(texts)
        self.parts.in_force(options).require_room(len(topic.queues))
        if options.dead_letter_topic == topic.name:
            raise InvalidRequest(
                f"topic {topic.name} cannot be its own dead-letter topic", place="dead_letter_topic"
            )
        self.settings.save(topic, replace(topic.file, options=options))

    def retire(self, name: str) -> Topic:
        """Take a topic out of service permanently and return it, to be closed and then purged.

        Raises:
            NotFound: No topic has this name.
            Unavailable: The disk is full; the topic still exists.
        """
        topic = self.get(name)
        deleted = replace(topic.file, deleted=True)
        try:
            if not is_ephemeral(name):
                self._store.save(name, deleted)
        except BaseException:
            # If only the last fsync failed, the next start deletes the topic anyway: messages
            # that it accepted from now on would be lost.
            if not self._store.contains(name, deleted):
                raise
        self._leaving.add(name)
        del self._topics[name]
        return topic

    def purge(self, name: str) -> None:
        """Remove the files of a retired topic. Slow, and may run while others change.

        Raises:
            Unavailable: A file cannot be deleted; the next start tries again.
        """
        if not is_ephemeral(name):
            self._store.remove(name)

    def forget(self, name: str) -> None:
        """Allow the name of a purged topic to be used again."""
        self._leaving.discard(name)

    def close(self) -> None:
        """Sync and close every topic, and unlock the folder. Idempotent."""
        steps = CleanupSteps()
        for topic in self:
            steps.take(topic.close)
        steps.take(self.parts.close)
        if self._lock is not None:
            lock, self._lock = self._lock, None
            if not self.left_unsynced:
                steps.take(self._unmark_running)
            steps.take(lock.release)
        steps.finish()

    def _unmark_running(self) -> None:
        with suppress(PenstockError):
            self._store.fs.unlink(f"{self._store.folder}/{_RUNNING}")

    def _require_free(self, name: str) -> None:
        if name in self._leaving:
            raise Unavailable(
                f"topic {name} is being deleted: try again in a moment; if this error persists, "
                "the broker's log names the file that cannot be deleted"
            )

    def _load(self, name: str) -> None:
        found = self._store.load(name, self._channel_store)
        if found is None:
            return
        if found.deleted:
            self._purge_remains(name)
            return
        topic = self._open(name, found)
        self._cut_held(topic)
        self.channels.attach_all(topic)

    def _open(self, name: str, file: TopicFile) -> Topic:
        topic = self._topics[name] = self.parts.open(name, self._store.path(name), file)
        return topic

    def _make(self, name: str, file: TopicFile) -> Topic:
        """Write and open a new topic; if that raises, no later start finds it."""
        try:
            self._store.create(name, file)
            return self._open(name, file)
        except BaseException:
            if self._store.contains(name, file):
                self._unmake(name, file)
            raise

    def _unmake(self, name: str, file: TopicFile) -> None:
        for _ in range(UNDO_TRIES):
            try:
                self._store.save(name, replace(file, deleted=True))
            except Exception:
                _logger.exception("topic %s was not created, but the next start may load it", name)
            else:
                return

    def _cut_held(self, topic: Topic) -> None:
        """Lower `held` to the end of the log: a power loss may have removed delivered messages."""
        held = topic.file.held
        if held is None:
            return
        cut = tuple(min(at, queue.latest) for at, queue in zip(held, topic.queues, strict=True))
        if cut != held:
            self.settings.save(topic, replace(topic.file, held=cut))
            topic.held = cut

    def _purge_remains(self, name: str) -> None:
        try:
            self.purge(name)
        except PenstockError:
            _logger.exception("topic %s was deleted, but not all its files can be removed", name)
            self._leaving.add(name)


def _mark_running(fs: FileSystem, folder: str) -> bool:
    """Mark the folder as used by a running broker; return whether a mark existed already.

    The mark need not be durable: a power loss leaves nothing to be synced.
    """
    mark = f"{folder}/{_RUNNING}"
    if fs.exists(mark):
        return True
    with suppress(PenstockError):  # a full disk
        fs.create(mark).close()
    return False
