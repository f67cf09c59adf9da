"""One topic: its stream partitions, channels and append listeners.

Owns appends, counters, and the offset up to which channels still need messages (`held`).
`AppendListeners` has the readers that wait for new messages at an offset while they poll. Does
not own the bytes (one queue for each stream partition), the folder (`topic_registry`), or which
stream partition receives a publish (`placement`).

Invariants: used on the broker's event loop only. A publish goes to one stream partition as one
block.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.memory.memory_queue import MemoryQueue, admitted
from penstock.broker.topics.placement import PartitionRotation, require_partition
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import NotFound, PenstockError, Unavailable
from penstock.core.loop_tasks import call_each, report
from penstock.storage.queue.blocks import as_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from penstock.broker.channel.channel import Channel
    from penstock.broker.channel.feed import FeedOptions
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.topics.options import TopicOptions
    from penstock.broker.topics.placement import BatchProducer
    from penstock.broker.topics.topic_file import TopicFile


class AppendListeners:
    """Listeners of one topic; a callback only schedules its check."""

    __slots__ = ("_number", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        self._number = 0

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at each append or deletion; return a call that removes the listener."""
        self._number += 1
        number = self._number
        self._waiting[number] = callback

        def unwatch() -> None:
            self._waiting.pop(number, None)

        return unwatch

    def notify(self) -> None:
        """Call all listeners: messages were appended or deleted, or the topic ends."""
        if self._waiting:
            call_each(tuple(self._waiting.values()))


_logger = logging.getLogger(__name__)


class Topic:
    """A topic with its stream partitions.

    Args:
        name: Its name.
        folder: Its folder; empty: the topic exists only in memory.
        queues: A queue for each stream partition, in order.
        file: Its persistent settings.
        options: Its options, with the broker's defaults for those that are not set.
        kept: Options of the messages kept in memory.

    Attributes:
        rotation: Chooses the stream partition of a publish.
        append_listeners: Notifies listeners when messages are appended, or when the topic ends.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        queues: Sequence[MessageQueue],
        file: TopicFile,
        options: TopicOptions,
        kept: FeedOptions,
    ) -> None:
        self.name = name
        self.folder = folder
        self.queues = tuple(queues)
        self.feeds = kept.feeds(self.queues)
        self._kept = kept
        self.file = file  # for the thread that changes topics; the rest is the event loop's
        self.options = options
        self.paused = file.paused
        self.channels: dict[str, Channel] = {}
        self.held = file.held
        if self.held is None and (file.paused or not file.channels):
            self.held = tuple(queue.earliest for queue in queues)
        self.message_count = 0
        self.message_bytes = 0
        self.messages_refused = 0
        self.repeats = 0
        self.closed = False
        self.rotation = PartitionRotation(name, len(self.queues))
        self.append_listeners = AppendListeners()

    @property
    def id(self) -> str:
        """Return the id that distinguishes it from earlier topics of its name; it never changes."""
        return self.file.id

    @property
    def depth(self) -> int:
        """Return how many messages wait because the topic has no channel or is paused."""
        return sum(
            queue.latest - self.fed(partition) for partition, queue in enumerate(self.queues)
        )

    @property
    def backend_depth(self) -> int:
        """Return how many of these messages are not in memory."""
        if not self.folder:
            return 0
        return sum(
            max(0, feed.oldest - self.fed(partition)) for partition, feed in enumerate(self.feeds)
        )

    def fed(self, partition: int) -> int:
        """Return the offset up to which channels have the messages of a stream partition."""
        queue = self.queues[partition]
        latest = queue.latest
        if self.held is None:
            return latest
        return min(max(self.held[partition], queue.earliest), latest)

    def position(self) -> tuple[int, ...]:
        """Return `fed` of each stream partition."""
        return tuple(self.fed(partition) for partition in range(len(self.queues)))

    def held_back(self, partition: int) -> tuple[dict[str, int], bool]:
        """Return the offsets of readers except cursors, and whether to delete finished messages.

        The flag is true if the topic has a channel that outlives its consumers: then messages may
        be deleted once every reader has finished them. A topic that is only read by offset keeps
        them. An ephemeral channel needs at most as many messages as its backlog limit.
        """
        held = {}
        for name, channel in self.channels.items():
            offset = channel.state.progress[partition].floor
            if channel.ephemeral:
                # An ephemeral channel that makes no progress must not fill the disk.
                offset = max(offset, self.fed(partition) - channel.options.max_backlog)
            held[f"channel {name}"] = offset
        for name in self.file.channels:
            if name not in self.channels:
                # It is being deleted, or could not be loaded again; its position is unknown.
                held[f"channel {name}"] = self.queues[partition].earliest
        if (
            not held
            and self.options.keeps_unread
            and not self.queues[partition].statistics().cursors
        ):
            held["the first channel"] = self.fed(partition)
        return held, any(not channel.ephemeral for channel in self.channels.values())

    def channel(self, name: str) -> Channel:
        """Return a channel.

        Raises:
            NotFound: The topic has no channel of this name.
        """
        found = self.channels.get(name)
        if found is None:
            raise NotFound(f"topic {self.name} has no channel {name!r}")
        return found

    def attach(self, channel: Channel) -> None:
        """Add a channel, which receives the topic's messages from now on."""
        self.channels[channel.name] = channel
        self._resume_delivery()

    def detach(self, name: str) -> Channel | None:
        """Remove a channel and return it."""
        position = self.position()
        channel = self.channels.pop(name, None)
        if not self.channels and self.held is None:
            self.held = position
        return channel

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume the delivery of new messages to channels."""
        if paused and not self.paused:
            self.held = self.position()
        self.paused = paused
        self._resume_delivery()

    def withhold(self) -> tuple[int, ...] | None:
        """Withhold all undelivered messages from channels; readers by offset can still read them.

        Returns:
            The offsets up to which channels count as served; None: nothing was undelivered.
        """
        if self.held is None:
            return None
        before = self.position()
        self.held = tuple(queue.latest for queue in self.queues)
        for channel in self.channels.values():
            channel.pass_over(before, self.held)
        return self.held

    def _resume_delivery(self) -> None:
        if self.channels and not self.paused:
            self.held = None
        for channel in self.channels.values():
            channel.schedule()

    def queue(self, partition: int) -> MessageQueue:
        """Return a stream partition's queue.

        Raises:
            InvalidRequest: The stream partition does not exist.
        """
        return self.queues[require_partition(self.name, partition, len(self.queues))]

    def append(
        self,
        partition: int,
        messages: Sequence[bytes] | pa.BinaryArray,
        size_bytes: int,
        producer: BatchProducer | None = None,
        due_ms: int = 0,
    ) -> bool:
        """Append one batch as one block, and notify listeners.

        Args:
            partition: The stream partition.
            messages: The batch; an empty one changes nothing.
            size_bytes: Bytes of the messages.
            producer: Producer and sequence number, to detect a repeated publish.
            due_ms: Earliest delivery to channels, epoch ms; 0: at once.

        Returns:
            False if the producer's publish was appended before.

        Raises:
            Unavailable: Full disk, I/O error, or the topic was deleted; nothing was appended.
        """
        if self.closed:
            raise Unavailable(f"topic {self.name} was deleted meanwhile: publish again")
        queue = self.queue(partition)
        if not len(messages):
            return True
        mark = None
        if producer is not None:
            mark = producer.mark
            last = producer.last_sequence(queue.last_sequence)
            if last is not None and producer.sequence <= last:
                self.repeats += 1
                return False
        batch = as_messages(messages)
        count = len(batch)
        if isinstance(queue, MemoryQueue):
            most = None
            if self.held is not None:  # otherwise channels enforce their own limits
                most = self._kept.keep_messages - (queue.latest - self.fed(partition))
            is_wanted = partial(self._is_wanted, partition)
            batch = admitted(queue, batch, self._kept.budget, most, is_wanted)
        try:
            written = queue.append(batch, producer=mark, due_ms=due_ms, wait=False)
        except BaseException:
            if isinstance(queue, MemoryQueue):
                self._kept.budget.hold(queue, queue.size_bytes)
            raise
        # The batch is appended: a later exception must not make the publisher repeat it.
        self.message_count += count
        self.message_bytes += size_bytes
        try:
            if self.channels and len(batch):
                feed = self.feeds[partition]
                feed.appended(written.start, batch, queue.last_append_ms, size_bytes, due_ms)
                for channel in self.channels.values():
                    channel.schedule()
        except Exception as error:  # noqa: BLE001 - reported to the exception handler
            report(f"topic {self.name}: a channel was not notified of new messages", error)
            call_each([channel.schedule for channel in self.channels.values()])
        self.append_listeners.notify()
        return True

    def _is_wanted(self, partition: int, start: int, end: int) -> bool:
        return end > self.fed(partition) or not all(
            channel.state.progress[partition].done.covers(start, end)
            for channel in self.channels.values()
        )

    def end(self) -> None:
        """Refuse further messages, and notify listeners."""
        if not self.closed:
            self.closed = True
            steps = CleanupSteps()
            for channel in self.channels.values():
                steps.take(channel.close)
            for feed in self.feeds:
                steps.take(feed.close)
            for queue in self.queues:
                if isinstance(queue, MemoryQueue):
                    steps.take(self._kept.budget.hold, queue, 0)
            steps.take(self.append_listeners.notify)
            steps.finish()

    def close(self) -> None:
        """End, then sync and close the stream partitions; slow. Idempotent."""
        steps = CleanupSteps()
        steps.take(self.end)
        for queue in self.queues:
            steps.take(self._close_queue, queue)
        steps.finish()

    def _close_queue(self, queue: MessageQueue) -> None:
        try:
            queue.close()
        except PenstockError as error:
            # The other queues must still be closed; acknowledged data is in the system's page
            # cache.
            _logger.error("topic %s: the last sync failed: %s", self.name, error)  # noqa: TRY400
