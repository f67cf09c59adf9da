"""The data folder of an nsqd: its topics, its channels, and a reader for each of their queues.

Owns the list of topics, from ``nsqd.dat`` and the files' names together. Changes nothing: it holds
nsqd's own lock on the folder, so that no nsqd writes meanwhile, and opens files read-only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from penstock.broker.nsq_import.metadata import (
    NsqdChannel,
    NsqdDataFile,
    NsqdTopic,
    QueueMetadata,
    QueueName,
    parse_data_file_name,
    parse_metadata,
    parse_metadata_file_name,
    parse_topics,
)
from penstock.broker.nsq_import.queue_reader import NsqdQueueReader, NsqImportOptions
from penstock.broker.topic_names import is_valid_name
from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem, FolderLock

_TOPICS_FILE: Final = "nsqd.dat"


class NsqdFolder:
    """A data folder. Create it with `open`; usable as a context manager.

    Attributes:
        topics: The topics and channels, in the order of ``nsqd.dat``, followed by those that are
            known only from files.
        queues: The queues that have files, in order of their names.
        warnings: Problems that are not in the queues' reports.
    """

    def __init__(
        self, folder: str, options: NsqImportOptions, fs: FileSystem, claim: FolderLock
    ) -> None:
        self.warnings: list[str] = []
        self._folder = folder
        self._options = options
        self._fs = fs
        self._claim = claim
        self._files: defaultdict[QueueName, list[NsqdDataFile]] = defaultdict(list)
        self._metadata_files: dict[QueueName, str] = {}
        self._list()
        self.queues: tuple[QueueName, ...] = tuple(sorted(self._files))
        self.topics: tuple[NsqdTopic, ...] = self._all_topics()

    @classmethod
    def open(cls, folder: str, *, fs: FileSystem, options: NsqImportOptions | None = None) -> Self:
        """Open a folder.

        Args:
            folder: nsqd's ``--data-path``.
            fs: The file system.
            options: Options for reading it.

        Raises:
            Conflict: An nsqd is running on it: stop it first.
            NotFound: The folder does not exist.
            InvalidRequest: This user cannot read it.
            Unavailable: I/O error.
        """
        claim = fs.lock_folder(folder)
        try:
            return cls(folder, options or NsqImportOptions(), fs, claim)
        except BaseException:
            claim.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder. Idempotent."""
        self._claim.release()

    def read(self, queue: QueueName) -> NsqdQueueReader:
        """Return a reader of the records that nsqd has not delivered.

        Args:
            queue: One of `queues`.

        Raises:
            NotFound: The queue has no files.
        """
        if queue not in self._files:
            raise NotFound(f"{self._folder}: queue {queue} has no files: use one of `queues`")
        metadata, problem = self._read_metadata(queue)
        files = sorted(self._files[queue])
        return NsqdQueueReader(self._folder, files, metadata, problem, self._options, self._fs)

    # -- contents

    def _list(self) -> None:
        for name in self._fs.listdir(self._folder):
            if (found := parse_data_file_name(name)) is not None:
                queue, file = found
                self._files[queue].append(file)
            elif (of := parse_metadata_file_name(name)) is not None:
                self._metadata_files[of] = name

    def _all_topics(self) -> tuple[NsqdTopic, ...]:
        channels: dict[str, dict[str, NsqdChannel]] = {}
        paused: dict[str, bool] = {}
        for topic in self._listed_topics():
            paused[topic.name] = topic.is_paused
            channels[topic.name] = {channel.name: channel for channel in topic.channels}
        for queue in sorted({*self._files, *self._metadata_files}):
            if queue.topic not in channels:
                self.warnings.append(f"topic {queue.topic} is known only from its files")
            known = channels.setdefault(queue.topic, {})
            if queue.channel and queue.channel not in known:
                self.warnings.append(f"channel {queue} is known only from its files")
                known[queue.channel] = NsqdChannel(queue.channel)
        for name, of in channels.items():
            for text in (name, *of):
                if not is_valid_name(text):
                    self.warnings.append(f"{text!r} in topic {name!r} is not a valid name here")
        return tuple(
            NsqdTopic(name, paused.get(name, False), tuple(of.values()))
            for name, of in channels.items()
        )

    def _listed_topics(self) -> Sequence[NsqdTopic]:
        try:
            raw = self._fs.read_bytes(f"{self._folder}/{_TOPICS_FILE}")
        except NotFound:
            self.warnings.append(f"{_TOPICS_FILE} is missing: nothing is paused")
            return ()
        topics = parse_topics(raw)
        if topics is None:
            self.warnings.append(f"{_TOPICS_FILE} is truncated or damaged: nothing is paused")
            return ()
        return topics

    def _read_metadata(self, queue: QueueName) -> tuple[QueueMetadata | None, str]:
        name = self._metadata_files.get(queue)
        if name is None:
            return None, "it is missing: everything was read"
        try:
            metadata = parse_metadata(self._fs.read_bytes(f"{self._folder}/{name}"))
        except PenstockError as error:
            return None, f"it cannot be read: {error}; everything was read"
        return metadata, "" if metadata else "it is truncated or damaged: everything was read"
