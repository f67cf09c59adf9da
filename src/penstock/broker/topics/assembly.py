"""Parts of a topic (queues, options, threads): created from its file and reconfigured.

Owns how queues are opened, on disk or in memory, and the default options of topics.
Does not own which topics exist (`topic_registry`) nor which channels they have (`channel_names`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.channel.feed import FeedOptions
from penstock.broker.memory.memory_queue import MemoryQueue
from penstock.broker.topic_names import is_ephemeral
from penstock.broker.topics.topic import Topic
from penstock.core.cleanup import CleanupSteps
from penstock.storage.queue.disk_queue import DiskQueue
from penstock.storage.queue.group_commit import SyncThreads

if TYPE_CHECKING:
    from penstock.broker.channel.channel_store import ChannelStore
    from penstock.broker.topics.options import TopicOptions
    from penstock.broker.topics.topic_file import TopicFile
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.disk_queue import DiskQueueOptions


class TopicParts:
    """Opens topics, and applies options to their parts.

    Args:
        queue_options: For every stream partition.
        defaults: Default options of topics.
        channels: Creates the channels; None: topics have no channels.
        fs: The file system.
        clock: For the queues.
    """

    def __init__(
        self,
        queue_options: DiskQueueOptions,
        defaults: TopicOptions,
        channels: ChannelStore | None,
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        self.queue_options = queue_options
        self._defaults = defaults
        self._channels = channels
        self._kept = FeedOptions() if channels is None else channels.kept
        self._fs = fs
        self._clock = clock
        # Shared by all stream partitions: threads for each one would be far too many.
        self._sync_threads: SyncThreads | None = None
        if queue_options.sync_in_background:
            self._sync_threads = SyncThreads(clock=clock)

    def open(self, name: str, folder: str, file: TopicFile) -> Topic:
        """Return a topic with its queues, without channels.

        Raises:
            InvalidRequest: A queue was written by a newer Penstock.
            Unavailable: The disk does not respond, or is full.
        """
        options = self.in_force(file.options)
        queue_options = options.queue(self.queue_options, file.partitions)
        if is_ephemeral(name):
            in_memory = [MemoryQueue(queue_options, self._clock) for _ in range(file.partitions)]
            return Topic(name, "", in_memory, file, options, self._kept)
        queues = self._open_queues(folder, file.partitions, queue_options)
        return Topic(name, folder, queues, file, options, self._kept)

    def in_force(self, options: TopicOptions) -> TopicOptions:
        """Return the options of a topic, with the defaults for those that are not set."""
        return options.over(self._defaults)

    def apply_options(self, topic: Topic) -> None:
        """Apply a topic's options to its parts; on the event loop."""
        options = topic.options = self.in_force(topic.file.options)
        for queue in topic.queues:
            queue.options = options.queue(self.queue_options, len(topic.queues))
        if self._channels is not None:
            for channel in topic.channels.values():
                channel.options = options.channel(self._channels.options, topic.name)
                channel.schedule()

    def unsynced_age_s(self) -> float:
        """Return the age of the oldest message that is not synced; 0 without a background sync."""
        return 0.0 if self._sync_threads is None else self._sync_threads.unsynced.age_s()

    def unsynced_limit_s(self) -> float:
        """Return the age from which messages count as unsynced for too long."""
        return 0.0 if self._sync_threads is None else self._sync_threads.unsynced.limit_s

    def sync_failure(self) -> str | None:
        """Return an error text if messages are unsynced for too long."""
        return None if self._sync_threads is None else self._sync_threads.unsynced.sync_failure()

    def close(self) -> None:
        """Stop the sync threads after all topics are closed."""
        if self._sync_threads is not None:
            self._sync_threads.close()

    def _open_queues(self, folder: str, count: int, options: DiskQueueOptions) -> list[DiskQueue]:
        queues: list[DiskQueue] = []
        try:
            for number in range(count):
                # The folder of all topics is locked already; locks here would use file descriptors.
                queue = DiskQueue.open(
                    f"{folder}/{number}",
                    options,
                    fs=self._fs,
                    clock=self._clock,
                    threads=self._sync_threads,
                    lock=False,
                )
                queues.append(queue)
        except BaseException:
            steps = CleanupSteps()
            for queue in queues:
                steps.take(queue.close)
            steps.finish()
            raise
        return queues
