"""All topics of one folder: made, found again after a restart, paused and deleted.

Owns the folder: ``<topic>/topic.json`` says how many stream partitions there are, and
``<topic>/<n>/`` is the disk queue of each. Does not own what the topics hold.

Invariants:

- One broker for one folder: it is locked.
- A topic exists from the moment its ``topic.json`` is durable until that file says ``deleted``;
  a crash between the steps of either leaves a topic that opens, or remains that are cleared.
- A ``topic.json`` that cannot be read is kept aside and written anew from the stream partitions'
  folders, so it costs a pause flag at most.
- One thread at a time changes them (``changes``); looking is for the event loop, at any time.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from penstock.broker.names import is_ephemeral, is_valid_name, require_name
from penstock.broker.topic import Topic
from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.storage.diskqueue import DiskQueue, DiskQueueOptions
from penstock.storage.filesystem import OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem, FolderLock

_logger = logging.getLogger(__name__)

_FILE: Final = "topic.json"
_FORMAT: Final = 1


class Topics:
    """The topics of one folder. Made by `open`."""

    def __init__(
        self,
        folder: str,
        queue_options: DiskQueueOptions,
        max_partitions: int,
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        self.folder = folder
        self._queue_options = queue_options
        self._max_partitions = max_partitions
        self._fs = fs
        self._clock = clock
        self._topics: dict[str, Topic] = {}
        self._leaving: set[str] = set()
        self._lock: FolderLock | None = None

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        queue_options: DiskQueueOptions | None = None,
        max_partitions: int = 256,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Lock the folder and open every topic in it.

        Args:
            folder: The folder; made when it is missing.
            queue_options: For every stream partition.
            max_partitions: Stream partitions that a topic may have.
            fs: The file system.
            clock: For the disk queues.

        Raises:
            Conflict: Another broker has the folder.
            InvalidRequest: A topic was written by a newer Penstock, or the folder is out of reach.
            Unavailable: The disk does not answer.
        """
        fs = fs or OsFileSystem()
        options = queue_options or DiskQueueOptions()
        topics = cls(folder, options, max_partitions, fs, clock or SystemClock())
        fs.mkdir(folder)
        topics._lock = fs.lock_folder(folder)
        try:
            # Whoever made a topic's folder may have died before it synced the name.
            fs.fsync_folder(folder)
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
            NotFound: There is none of this name.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name!r}: create it, or publish to it")
        return topic

    def create(self, name: str, partitions: int) -> Topic:
        """Make a topic, or return the one that is there with as many stream partitions.

        Raises:
            Conflict: It exists with another number of stream partitions.
            InvalidRequest: The name or the number cannot be.
            Unavailable: It is being deleted, or the disk is full.
        """
        require_name(name)
        if not 1 <= partitions <= self._max_partitions:
            raise InvalidRequest(
                f"{partitions} stream partitions: ask for 1 to {self._max_partitions}",
                place="partitions",
            )
        found = self._topics.get(name)
        if found is not None:
            if len(found.queues) != partitions:
                raise Conflict(
                    f"topic {name} has {len(found.queues)} stream partitions, not {partitions}: "
                    "their number is fixed, or keys would change places"
                )
            return found
        if is_ephemeral(name):
            raise InvalidRequest(
                f"{name}: topics in memory are not served yet: leave the suffix out", place="topic"
            )
        self._require_free(name)
        self._fs.mkdir(self._path(name))
        self._save(name, partitions, paused=False)
        return self._open_topic(name, partitions, paused=False)

    def set_paused(self, name: str, paused: bool) -> None:
        """Pause or unpause a topic durably.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full.
        """
        topic = self.get(name)
        self._save(name, len(topic.queues), paused=paused)
        topic.paused = paused

    def retire(self, name: str) -> Topic:
        """Take a topic out of service for good and return it, to be closed and then purged.

        Raises:
            NotFound: There is none of this name.
            Unavailable: The disk is full; the topic is still there.
        """
        topic = self.get(name)
        try:
            self._save(name, len(topic.queues), paused=topic.paused, deleted=True)
        except Unavailable:
            # Where only the last fsync failed, the next start deletes the topic all the same: what
            # it took from now on would be lost.
            if not self._read(name).deleted:
                raise
        del self._topics[name]
        self._leaving.add(name)
        return topic

    def purge(self, name: str) -> None:
        """Remove the files of a retired topic. Slow, and may run beside other changes.

        Raises:
            Unavailable: A file would not go; the next start tries again.
        """
        self._remove_tree(self._path(name), keep=_FILE)
        # The file that says "deleted" goes durably last, or a power loss could bring it all back.
        self._fs.fsync_folder(self._path(name))
        self._remove_tree(self._path(name))
        self._fs.fsync_folder(self.folder)

    def forget(self, name: str) -> None:
        """Let the name of a purged topic be used again."""
        self._leaving.discard(name)

    def close(self) -> None:
        """Sync and close every topic, give the folder back. Closing twice is fine."""
        for topic in self:
            topic.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _require_free(self, name: str) -> None:
        if name in self._leaving:
            raise Unavailable(
                f"topic {name} is being deleted: create it again in a moment; if that goes on, the "
                "broker's log says which file would not go"
            )

    def _save(self, name: str, partitions: int, *, paused: bool, deleted: bool = False) -> None:
        document = {"format": _FORMAT, "topic": name, "partitions": partitions, "paused": paused}
        if deleted:
            document["deleted"] = True
        text = json.dumps(document, indent=2) + "\n"
        self._fs.write_atomically(f"{self._path(name)}/{_FILE}", text.encode())

    def _load(self, name: str) -> None:
        try:
            found = self._read(name)
        except (NotFound, ValueError) as error:
            found = self._rebuild(name, f"{self._path(name)}/{_FILE}", error)
        if found.deleted:
            self._purge_remains(name)
        elif found.partitions:
            self._open_topic(name, found.partitions, paused=found.paused)

    def _read(self, name: str) -> _TopicFile:
        path = f"{self._path(name)}/{_FILE}"
        return _TopicFile.parse(self._fs.read_bytes(path), path)

    def _purge_remains(self, name: str) -> None:
        try:
            self.purge(name)
        except PenstockError:
            _logger.exception("topic %s was deleted, but not all its files go", name)
            self._leaving.add(name)

    def _rebuild(self, name: str, path: str, error: Exception) -> _TopicFile:
        """Write topic.json anew from the folders; where there are none, no topic was made."""
        folder = self._path(name)
        if isinstance(error, ValueError):
            self._fs.rename(path, f"{path}.{self._clock.now_ms()}.bad")
        entries = self._fs.listdir(folder)
        partitions = max((int(entry) for entry in entries if entry.isdecimal()), default=-1) + 1
        if partitions:
            _logger.warning(
                "topic %s: %s; %s is written anew with %d stream partitions, not paused",
                *(name, error, path, partitions),
            )
            self._save(name, partitions, paused=False)
        elif set(entries) <= {f"{_FILE}.tmp"}:
            self._remove_tree(folder)
        else:
            _logger.warning("%s is no topic and is left alone: move it away", folder)
        return _TopicFile(partitions, paused=False, deleted=False)

    def _open_topic(self, name: str, partitions: int, *, paused: bool) -> Topic:
        folder = self._path(name)
        queues: list[DiskQueue] = []
        try:
            for number in range(partitions):
                queue = DiskQueue.open(
                    f"{folder}/{number}", self._queue_options, fs=self._fs, clock=self._clock
                )
                queues.append(queue)
        except BaseException:
            for queue in queues:
                queue.close()
            raise
        topic = Topic(name, folder, queues, paused)
        self._topics[name] = topic
        return topic

    def _remove_tree(self, folder: str, keep: str = "") -> None:
        """Remove a folder; with `keep`, everything in it but that file."""
        for entry in self._fs.listdir(folder):
            path = f"{folder}/{entry}"
            if entry == keep:
                continue
            if self._fs.stat(path).is_folder:
                self._remove_tree(path)
            else:
                self._fs.unlink(path)
        if not keep:
            self._fs.rmdir(folder)


@dataclass(frozen=True, slots=True)
class _TopicFile:
    """What a topic.json says."""

    partitions: int
    paused: bool
    deleted: bool

    @classmethod
    def parse(cls, data: bytes, path: str) -> Self:
        """Read a topic.json; ValueError when it is damaged."""
        document = json.loads(data)
        if not isinstance(document, dict):
            raise ValueError(f"{path} is not an object")  # noqa: TRY004 - damage, as bad JSON is
        number = document.get("format")
        if isinstance(number, int) and number > _FORMAT:
            raise InvalidRequest(
                f"{path} has format number {number}, this Penstock reads up to {_FORMAT}: "
                "use the Penstock that wrote it, or a newer one"
            )
        partitions = document.get("partitions")
        if number != _FORMAT or not isinstance(partitions, int) or partitions < 1:
            raise ValueError(f"{path} says format {number!r}, partitions {partitions!r}")
        return cls(partitions, bool(document.get("paused")), bool(document.get("deleted")))
