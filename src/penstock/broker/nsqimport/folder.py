"""The data folder of an nsqd: its topics, its channels, and a reader for each of their queues.

Owns what exists, from ``nsqd.dat`` and from the files' names together. Changes nothing: it holds
nsqd's own lock on the folder, so that no nsqd writes meanwhile, and opens files for reading only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Self

from penstock.broker.names import is_valid_name
from penstock.broker.nsqimport.metadata import (
    DataFile,
    NsqdChannel,
    NsqdTopic,
    QueueMetadata,
    QueueName,
    parse_data_file_name,
    parse_metadata,
    parse_metadata_file_name,
    parse_topics,
)
from penstock.broker.nsqimport.queue import ImportOptions, QueueReader
from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem, FolderLock

_TOPICS_FILE: Final = "nsqd.dat"


class NsqdFolder:
    """A data folder. Made by `open`; usable as a context manager.

    Attributes:
        topics: The topics and channels, in the order of ``nsqd.dat``; those that only files speak
            of come last.
        queues: The queues that have files, in order of their names.
        warnings: What is not as it should be, apart from what the queues' reports say.
    """

    def __init__(
        self, folder: str, options: ImportOptions, fs: FileSystem, claim: FolderLock
    ) -> None:
        self.warnings: list[str] = []
        self._folder = folder
        self._options = options
        self._fs = fs
        self._claim = claim
        self._files: defaultdict[QueueName, list[DataFile]] = defaultdict(list)
        self._metadata_files: dict[QueueName, str] = {}
        self._list()
        self.queues: tuple[QueueName, ...] = tuple(sorted(self._files))
        self.topics: tuple[NsqdTopic, ...] = self._all_topics()

    @classmethod
    def open(cls, folder: str, *, fs: FileSystem, options: ImportOptions | None = None) -> Self:
        """Look at a folder.

        Args:
            folder: nsqd's ``--data-path``.
            fs: The file system.
            options: How it is read.

        Raises:
            Conflict: An nsqd is running on it: stop that first.
            NotFound: There is no such folder.
            InvalidRequest: It cannot be read by this user.
            Unavailable: I/O error.
        """
        claim = fs.lock_folder(folder)
        try:
            return cls(folder, options or ImportOptions(), fs, claim)
        except BaseException:
            claim.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder. Closing twice is fine."""
        self._claim.release()

    def read(self, queue: QueueName) -> QueueReader:
        """Return a reader of the records that nsqd has not handed out.

        Args:
            queue: One of `queues`.

        Raises:
            NotFound: It has no files.
        """
        if queue not in self._files:
            raise NotFound(f"{self._folder}: no files of a queue {queue}: look at `queues`")
        metadata, trouble = self._read_metadata(queue)
        files = sorted(self._files[queue])
        return QueueReader(self._folder, files, metadata, trouble, self._options, self._fs)

    # -- what there is

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
                self.warnings.append(f"topic {queue.topic} is known from its files only")
            known = channels.setdefault(queue.topic, {})
            if queue.channel and queue.channel not in known:
                self.warnings.append(f"channel {queue} is known from its files only")
                known[queue.channel] = NsqdChannel(queue.channel)
        for name, of in channels.items():
            for text in (name, *of):
                if not is_valid_name(text):
                    self.warnings.append(f"{text!r} in topic {name!r} cannot be a name here")
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
            self.warnings.append(f"{_TOPICS_FILE} is cut or damaged: nothing is paused")
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
        return metadata, "" if metadata else "it is cut or damaged: everything was read"
