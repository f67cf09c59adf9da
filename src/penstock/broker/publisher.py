"""Publish path of the broker's servers, from messages in memory to the acknowledgement.

Owns the order of the steps: disk space, the topic (created if it is new), the stream partition, the
append, and the fsync if requested. Owns the grouping of messages: single messages that arrive in
the same iteration of the event loop are written as one block. Does not own protocols or the memory
limit (`publish_admission`).

Invariant: a publish is acknowledged only after its block was passed to the operating system, and
with ``durable`` only after an fsync that began later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.topic_names import is_ephemeral
from penstock.broker.topics.placement import ANYWHERE, PublishPlacement, require_partition
from penstock.core.errors import Full, Unavailable
from penstock.storage.queue.disk_queue import DiskQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    import pyarrow as pa

    from penstock.broker.maintenance import SizeBounds
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_changes import TopicChanges
    from penstock.broker.topics.topic_registry import Topics
    from penstock.core.disk_space import DiskSpace


@dataclass(frozen=True, slots=True)
class PublishReceipt:
    """Result of a publish.

    Attributes:
        partition: Stream partition.
        repeated: Whether the producer's publish had been stored before.
        offset: Offset of its first message; None: unknown.
    """

    partition: int
    repeated: bool = False
    offset: int | None = None


_Gathered = list[tuple[bytes, "asyncio.Future[None]"]]


class MessagePublisher:
    """Appends messages to the topics of one broker. Used on its event loop only.

    Args:
        topics: Topics of the broker.
        changes: Creates new topics.
        disk_space: Guard of the disk's free space.
        bounds: Guard of the topics' size limits.
        default_partitions: Number of stream partitions of a topic that a publish creates.
    """

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        disk_space: DiskSpace,
        bounds: SizeBounds,
        default_partitions: int,
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._disk_space = disk_space
        self._bounds = bounds
        self._default_partitions = default_partitions
        self._gathered: dict[tuple[Topic, int], _Gathered] = {}
        self._failure: str | None = None

    def health(self) -> str | None:
        """Return why publishing would fail now, or None; one successful write clears a failure."""
        try:
            self._disk_space.require(0)
        except Unavailable as error:
            return str(error)
        return self._failure

    async def topic(self, name: str, placement: PublishPlacement) -> Topic:
        """Return the topic of a publish, created if it does not exist and the publish is valid.

        Raises:
            InvalidRequest: The name or the stream partition is invalid.
            Unavailable: It is being deleted, or the disk is full.
        """
        found = self._topics.find(name)
        if found is not None:
            return found
        if placement.partition is not None:
            require_partition(name, placement.partition, self._default_partitions)
        if not is_ephemeral(name):
            self._disk_space.require(0)
        return await self._changes.find_or_create(name, self._default_partitions)

    def when_room(self, topic: Topic, size_bytes: int) -> Awaitable[object] | None:
        """Return the running deletion that makes room for a publish, to await; usually None."""
        return self._bounds.when_room(topic, size_bytes)

    def append_batch(
        self,
        topic: Topic,
        messages: Sequence[bytes] | pa.BinaryArray,
        size_bytes: int,
        placement: PublishPlacement,
        due_ms: int = 0,
    ) -> PublishReceipt:
        """Append a batch as one block.

        Raises:
            InvalidRequest: The stream partition does not exist.
            Unavailable: The disk is full, does not respond or (`Full`) is too slow; nothing was
                appended.
        """
        partition = topic.rotation.partition(placement)
        if topic.folder:
            self._disk_space.require(size_bytes)
        self._bounds.require(topic, partition, len(messages), size_bytes)
        try:
            added = topic.append(partition, messages, size_bytes, placement.producer, due_ms)
        except Full:
            raise  # temporary; if recorded, `health` would report it until the next publish
        except Unavailable as error:  # narrow: only this error is reported by health
            self._failure = str(error)
            raise
        self._failure = None
        offset = _offset_of(topic, partition, placement, len(messages), repeated=not added)
        return PublishReceipt(partition, repeated=not added, offset=offset)

    async def append_one(
        self, topic: Topic, message: bytes, placement: PublishPlacement
    ) -> PublishReceipt:
        """Append one message, in one block with others of the same iteration of the loop.

        Raises:
            InvalidRequest: The stream partition does not exist.
            Unavailable: The disk is full, does not respond or (`Full`) is too slow; nothing was
                appended.
        """
        if placement.producer is not None:
            return self.append_batch(topic, [message], len(message), placement)
        partition = topic.rotation.partition(placement)
        loop = asyncio.get_running_loop()
        appended: asyncio.Future[None] = loop.create_future()
        gathered = self._gathered.get((topic, partition))
        if gathered is None:
            gathered = []
            # Schedule first: a list without a scheduled call would collect publishes forever.
            loop.call_soon(self._append_gathered, topic, partition)
            self._gathered[topic, partition] = gathered
        gathered.append((message, appended))
        await appended
        return PublishReceipt(partition)

    @staticmethod
    def must_wait(topic: Topic, *, requested: bool) -> bool:
        """Return whether a publish is acknowledged only once it is durable."""
        return requested or bool(topic.options.durable)

    async def make_durable(self, topic: Topic, receipt: PublishReceipt) -> None:
        """Wait until a publish survives a power loss; concurrent callers share one fsync.

        Raises:
            Unavailable: The fsync failed; the messages are stored, but a power loss may delete
                them.
        """
        await asyncio.wrap_future(topic.queue(receipt.partition).request_sync())

    def _append_gathered(self, topic: Topic, partition: int) -> None:
        gathered = self._gathered.pop((topic, partition), [])
        failure: BaseException | None = None
        try:
            messages = [message for message, _ in gathered]
            self.append_batch(topic, messages, sum(map(len, messages)), PublishPlacement(partition))
        except BaseException as error:  # noqa: BLE001 - raised to each publisher
            failure = error
        left = iter(gathered)
        try:
            _complete(left, failure)
        finally:
            _complete(left, failure)  # the remaining ones, if the loop raised at one
        if failure is not None and not isinstance(failure, Exception):
            raise failure


def _offset_of(
    topic: Topic, partition: int, placement: PublishPlacement, count: int, *, repeated: bool
) -> int | None:
    """Return the offset of the first message of the last publish; None: unknown."""
    queue = topic.queue(partition)
    if not isinstance(queue, DiskQueue):
        return None
    if not repeated:
        return queue.latest - count
    producer = placement.producer
    last = None if producer is None else queue.last_append(producer.mark[0])
    if producer is None or last is None or last[0] != producer.sequence or last[1] < 0:
        return None
    return last[1]


def _complete(
    gathered: Iterator[tuple[bytes, asyncio.Future[None]]], failure: BaseException | None
) -> None:
    for _, appended in gathered:
        if appended.done():
            continue  # the publisher no longer waits
        if failure is None:
            appended.set_result(None)
        else:
            appended.set_exception(failure)


class DeadLetterTopics:
    """Appends dead letters of channels to their topics.

    Attributes:
        publisher: Appends the messages; set when the broker is composed.
    """

    def __init__(self) -> None:
        self.publisher: MessagePublisher | None = None

    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        """Append messages durably to a topic, created if needed. Raises as `MessagePublisher`."""
        if self.publisher is None:
            raise Unavailable("the broker is starting: try again")
        found = await self.publisher.topic(topic, ANYWHERE)
        room = self.publisher.when_room(found, messages.nbytes)
        if room is not None:
            await room
        receipt = self.publisher.append_batch(found, messages, messages.nbytes, ANYWHERE)
        # The channel then finishes the messages, and that could become durable before this append.
        await self.publisher.make_durable(found, receipt)
