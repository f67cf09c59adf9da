"""Creates topics from those of an nsqd: messages, channels with their backlogs, pause flags.

Owns the writing. Does not own the input (`nsqd_data_folder`) nor the merging of queues (`backlog`).

Invariants: a topic exists either completely or not at all, even after a crash; an existing topic is
not changed; the nsqd's folder is not changed. So an interrupted import can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.channel_store import write_state
from penstock.broker.channel.persistence import restore
from penstock.broker.nsq_import.backlog import NsqBacklog
from penstock.broker.nsq_import.metadata import QueueName
from penstock.broker.topic_names import is_ephemeral, is_valid_name
from penstock.broker.topics.topic_registry import Topics
from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.channel.channel_state import ChannelState
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.nsq_import.backlog import BacklogShare
    from penstock.broker.nsq_import.metadata import NsqdTopic
    from penstock.broker.nsq_import.nsqd_data_folder import NsqdFolder
    from penstock.broker.nsq_import.nsqd_records import NsqdRecords
    from penstock.broker.nsq_import.report import QueueReport
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.disk_queue import DiskQueueOptions

_BLOCK_MESSAGES: Final = 5_000
_BLOCK_BYTES: Final = 1 << 20
_BLOCK_SPAN_MS: Final = 1_000  # all messages of a block have one timestamp

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ImportedTopic:
    """Result of the import of one topic.

    Attributes:
        name: Its name.
        channels: Number of undelivered messages of each channel.
        messages: Number of messages written.
        left_alone: Why the topic was skipped; empty: it was imported.
    """

    name: str
    channels: dict[str, int]
    messages: int = 0
    left_alone: str = ""


class NsqImport:
    """Imports a folder. Used once.

    Args:
        source: The nsqd's folder.
        topics_folder: Folder of the topics; no broker may run on it.
        include_doubtful: Import messages whose length is damaged, too.
        skip_existing: Skip topics that exist already, instead of refusing the import.
        fs: The file system.
        queue_options: For the stream partition of each topic.

    Attributes:
        reports: Findings in each queue that was read.
    """

    def __init__(
        self,
        source: NsqdFolder,
        topics_folder: str,
        *,
        include_doubtful: bool = False,
        skip_existing: bool = False,
        fs: FileSystem,
        queue_options: DiskQueueOptions | None = None,
    ) -> None:
        self.reports: dict[QueueName, QueueReport] = {}
        self._source = source
        self._folder = topics_folder
        self._include_doubtful = include_doubtful
        self._skip_existing = skip_existing
        self._fs = fs
        self._queue_options = queue_options
        self._clock = _TimesOfMessages()

    def run(self, progress: Progress = lambda _topic, _done, _total: None) -> list[ImportedTopic]:
        """Import every topic; return the result of each.

        Args:
            progress: Called with a topic, the number of its messages written so far, and their
                total number.

        Raises:
            Conflict: A broker runs on the folder, or a topic exists already; nothing was imported.
            Unavailable: The disk is full; topics imported so far are complete.
        """
        options = self._queue_options
        opened = Topics.open(self._folder, queue_options=options, fs=self._fs, clock=self._clock)
        with closing(opened) as topics:
            existing = [one.name for one in self._source.topics if topics.find(one.name)]
            if existing and not self._skip_existing:
                raise Conflict(
                    f"topics exist already: {', '.join(existing)}: skip them with "
                    "--skip-existing, or delete them first"
                )
            return [
                self._import(topics, topic, existing, progress) for topic in self._source.topics
            ]

    def _import(
        self, topics: Topics, source: NsqdTopic, existing: Collection[str], progress: Progress
    ) -> ImportedTopic:
        if source.name in existing:
            return ImportedTopic(source.name, {}, left_alone="it exists already")
        if not is_valid_name(source.name) or is_ephemeral(source.name):
            return ImportedTopic(source.name, {}, left_alone="its name is not valid here")
        channels = {
            channel.name: channel.is_paused
            for channel in source.channels
            if is_valid_name(channel.name) and not is_ephemeral(channel.name)
        }
        backlog = NsqBacklog(
            self._records(QueueName(source.name)),
            {name: self._records(QueueName(source.name, name)) for name in channels},
        )
        topic = topics.prepare(source.name, 1)
        try:
            self._write(topic.queues[0], backlog, source.name, progress)
            for name, share in backlog.shares.items():
                state = _state(share, backlog.delivered_count, len(backlog))
                write_state(topic.folder, name, state, self._fs, self._clock).close()
        finally:
            topic.close()
        held = (backlog.handed,) if source.is_paused or not channels else None
        file = replace(topic.file, paused=source.is_paused, held=held, channels=channels)
        topics.complete(topic, file)
        own = len(backlog) - backlog.handed
        waiting = {name: int(share.wanted.sum()) + own for name, share in backlog.shares.items()}
        return ImportedTopic(source.name, waiting, len(backlog))

    def _records(self, queue: QueueName) -> Iterator[NsqdRecords]:
        if queue not in self._source.queues:
            return
        reader = self._source.read(queue)
        self.reports[queue] = reader.report
        for found in reader:
            if self._include_doubtful or not found.doubtful:
                yield found

    def _write(
        self, queue: MessageQueue, backlog: NsqBacklog, topic: str, progress: Progress
    ) -> None:
        done = 0
        for time_ms, batch in backlog.blocks(_BLOCK_MESSAGES, _BLOCK_BYTES, _BLOCK_SPAN_MS):
            self._clock.time_ms = time_ms
            queue.append(batch)
            done += len(batch)
            progress(topic, done, len(backlog))
        queue.request_sync().result()  # `close` ignores a failed sync


def _state(share: BacklogShare, delivered_count: int, total: int) -> ChannelState:
    """Return the state of a channel: delivered messages wait, unneeded ones are finished."""
    waiting = np.flatnonzero(share.wanted[:delivered_count])
    parts = [
        journal_records.next_(0, delivered_count),
        *(
            journal_records.retry(message_id.of(0, offset), 0, attempts)
            for offset, attempts in zip(
                waiting.tolist(), share.attempts[waiting].tolist(), strict=True
            )
        ),
        *(journal_records.done(0, start, end) for start, end in share.unwanted()),
    ]
    state, _ = restore(b"", [b"".join(parts)], [0], [total])
    return state


class _TimesOfMessages(SystemClock):
    """Clock that gives blocks the times at which nsqd received their messages."""

    def __init__(self) -> None:
        self.time_ms = 0

    def now_ms(self) -> int:
        """Return the time of the message being written."""
        return self.time_ms
