"""Publishes dead letters to their topics again, each exactly once.

Owns the choice of the dead letters of a request, their targets, and the order of the durable steps
(`redrive_log` has the record of them):

    1  begin   the step is durable in the record of the dead-letter topic
    2  append  the messages are appended to the target as one block, with the step's number
    3  sync    the block is durable
    4  end     the dead letters are recorded as redriven

A broker that is killed after any of them decides the open step when it starts: the target has the
step's number, or it does not. Requests for one dead-letter topic run one after the other, so two
users who redrive the same dead letters at once publish each once. Does not own rights and quotas:
`RedriveRequest.admit` is called before anything is published.

A dead letter of a task is published to the topic that it names. That of a channel is published to
the only topic whose option `dead_letter_topic` names this topic. Both need an existing topic, and
ephemeral topics are refused: without a disk, nothing is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from penstock.broker.dead_letter import parse_dead_letter
from penstock.broker.message_filter import MessageFilter, ScanLimits, StoredMessage, scan_messages
from penstock.broker.redrive.redrive_log import FOLDER, RedriveLog, RedriveStep
from penstock.broker.topics.placement import ANYWHERE, BatchProducer, PublishPlacement
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.core.loop_tasks import run_on_thread, run_shielded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.broker.channel.drop_policy import ChannelOptions
    from penstock.broker.publisher import MessagePublisher
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_changes import TopicChanges
    from penstock.broker.topics.topic_registry import Topics
    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

COUNT_MAX: Final = 1_000
"""Maximum number of dead letters that one request redrives."""

T = TypeVar("T")

_BYTES: Final = 4 << 20
_SKIPPED_SHOWN_MAX: Final = 100

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Selection of dead letters.

    Attributes:
        partition: Their stream partition.
        start: First offset.
        end: Offset at which the selection ends; None: the end of the topic.
        wanted: Conditions on the messages.
        to: Topic to publish to; empty: the topic that each came from.
        origin: Only dead letters that came from this topic; empty: all.
        confirm: `to` again, to also publish messages of which no origin is known: they need not be
            dead letters.
        count: Maximum number of dead letters; without a preview at most `COUNT_MAX`.
        body: Published instead of the message, if the selection is one offset; None: the message.
        preview: Publish nothing.
        admit: Called with a target, the number of messages and their size in bytes, for each
            target, before anything is published or shown in a preview; it raises if the user may
            not do this.
    """

    partition: int
    start: int
    end: int | None = None
    wanted: MessageFilter = field(default_factory=MessageFilter)
    to: str = ""
    origin: str = ""
    confirm: str = ""
    count: int = COUNT_MAX
    body: bytes | None = None
    preview: bool = False
    admit: Callable[[str, int, int], None] = lambda _topic, _count, _size: None


@dataclass(slots=True)
class RedriveReport:
    """Result of one request.

    Attributes:
        redriven: Number of dead letters by target; in a preview, of those that would be.
        already: Number of selected dead letters that were redriven before.
        skipped: Number of selected dead letters that cannot be redriven.
        reasons: The offsets of the first of these, each with its reason.
        scanned: Number of dead letters that were read.
        next_offset: The offset at which the next request continues.
        end: The offset at which the selection ends.
        total: Number of dead letters of the topic that were redriven so far.
    """

    redriven: dict[str, int] = field(default_factory=dict)
    already: int = 0
    skipped: int = 0
    reasons: list[tuple[int, str]] = field(default_factory=list)
    scanned: int = 0
    next_offset: int = 0
    end: int = 0
    total: int = 0

    def skip(self, offset: int, reason: str) -> None:
        """Count a dead letter that cannot be redriven."""
        self.skipped += 1
        if len(self.reasons) < _SKIPPED_SHOWN_MAX:
            self.reasons.append((offset, reason))


@dataclass(slots=True)
class _Batch:
    """Dead letters that are published to one stream partition of a target."""

    target: Topic
    partition: int
    offsets: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.bodies))


class Redriver:
    """Redrives the dead letters of one broker. Used on its event loop, except for `recover`.

    Args:
        topics: Topics of the broker.
        changes: Runs the writes of records, so that no topic is deleted meanwhile.
        publisher: Appends the messages.
        defaults: Default options of channels.
        fs: The file system.
        clock: For the times in the records.
    """

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        publisher: MessagePublisher,
        defaults: ChannelOptions,
        fs: FileSystem,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._publisher = publisher
        self._defaults = defaults
        self._fs = fs
        self._clock = clock
        self._logs: WeakKeyDictionary[Topic, RedriveLog] = WeakKeyDictionary()
        self._turns: WeakKeyDictionary[Topic, asyncio.Lock] = WeakKeyDictionary()

    def recover(self) -> None:
        """Decide the steps that the previous broker left open. Blocking; before the broker serves.

        It must be before the first publish, because a stream partition remembers a limited number
        of producers. A record that cannot be read is logged, and its topic refuses to redrive.
        """
        for topic in self._topics:
            if not self._has_record(topic):
                continue
            try:
                log = self._open(topic)
                if log.step is not None:
                    log.end(stored=self._is_stored(topic, log.step, sync=True))
            except PenstockError:
                _logger.exception(
                    "topic %s: cannot read which dead letters were redriven", topic.name
                )

    def origins(self, topic: Topic) -> list[str]:
        """Return the topics whose channels send dead letters to this topic, by name."""
        default = self._defaults.dead_letter_topic
        return [
            one.name
            for one in self._topics
            # The first condition takes a tenth of the time: there may be thousands of topics.
            if topic.name in {one.options.dead_letter_topic, default}
            and one.options.channel(self._defaults, one.name).dead_letter_topic == topic.name
        ]

    async def record(self, topic: Topic) -> RedriveLog | None:
        """Return the record of a topic; None if no dead letter of it was ever redriven.

        Raises:
            PenstockError: It cannot be read.
        """
        if topic not in self._logs and not await run_on_thread(partial(self._has_record, topic)):
            return None
        return await self._log(topic)

    async def redrive(self, topic: Topic, request: RedriveRequest) -> RedriveReport:
        """Publish the selected dead letters of a topic that were not published before.

        A request continues to its end if its caller is cancelled.

        Raises:
            InvalidRequest: The selection or the target is invalid.
            NotFound: The target does not exist.
            Unavailable: The disk is full, or a topic was deleted meanwhile: repeat the request.
        """
        if not topic.folder:
            raise InvalidRequest(
                f"topic {topic.name} exists only in memory, so nothing records which of its"
                " messages were redriven: publish them yourself",
                place="topic",
            )
        if request.body is not None and request.end != request.start + 1:
            raise InvalidRequest(
                "a changed message replaces one dead letter: add end=, one more than offset",
                place="end",
            )
        if request.to:
            self._target(topic, request.to)
        queue = topic.queue(request.partition)
        latest = queue.latest
        end = latest if request.end is None else min(request.end, latest)
        if not queue.earliest <= request.start <= latest:
            raise NotFound(
                f"offset {request.start} was deleted or does not exist: use {queue.earliest} to"
                f" {latest}"
            )
        return await run_shielded(self._in_turn(topic, request, end))

    async def _in_turn(self, topic: Topic, request: RedriveRequest, end: int) -> RedriveReport:
        async with self._turns.setdefault(topic, asyncio.Lock()):
            log = await self._log(topic)
            await self._decide(topic, log)
            # After a power loss, an offset that was not durable is that of another message.
            await asyncio.wrap_future(topic.queue(request.partition).request_sync())
            report = RedriveReport(end=end)
            batches = await self._choose(topic, log, request, report)
            for target, count, size_bytes in _totals(batches):
                request.admit(target, count, size_bytes)
            if not request.preview:
                for batch in batches:
                    await self._publish(topic, log, request.partition, batch)
                earliest = [queue.earliest for queue in topic.queues]
                await self._change(topic, partial(log.compact, earliest))
            report.total = log.redriven
            return report

    async def _choose(
        self, topic: Topic, log: RedriveLog, request: RedriveRequest, report: RedriveReport
    ) -> list[_Batch]:
        """Return what is to be published, and complete the report as if it had been."""

        def is_wanted(message: StoredMessage) -> bool:
            if not request.wanted.matches(message):
                return False
            if request.origin and _origin(message, origins) != request.origin:
                return False
            if log.is_redriven(request.partition, message.offset):
                report.already += 1
                return False
            return True

        origins = self.origins(topic)
        count = request.count if request.preview else min(request.count, COUNT_MAX)
        limits = ScanLimits(count, _BYTES)
        queue = topic.queue(request.partition)
        scan = partial(scan_messages, queue, request.start, report.end, is_wanted, limits)
        result = await run_on_thread(scan)
        report.scanned, report.next_offset = result.scanned, result.next_offset
        batches: dict[tuple[str, int], _Batch] = {}
        places: dict[str, int] = {}
        for message in result.found:
            letter = parse_dead_letter(message.body)
            body = message.body if letter is None else letter.message
            if request.body is not None:
                body = request.body
            if body is None:
                report.skip(
                    message.offset, "the message was too large to be kept in the dead letter"
                )
                continue
            origin = _origin(message, origins)
            if not origin and request.to and request.confirm != request.to:
                report.skip(
                    message.offset,
                    "the topic that it came from is not known, so it need not be a dead letter: to"
                    f" publish it to {request.to}, name this topic as confirm, too",
                )
                continue
            try:
                target = self._target(topic, request.to or _known(origin))
            except PenstockError as error:
                report.skip(message.offset, str(error))
                continue
            if letter and letter.topic == target.name and letter.partition < len(target.queues):
                partition = letter.partition  # messages with one key stay in one stream partition
            elif target.name in places:
                partition = places[target.name]
            else:
                partition = places[target.name] = target.rotation.partition(ANYWHERE)
            batch = batches.setdefault((target.name, partition), _Batch(target, partition))
            batch.offsets.append(message.offset)
            batch.bodies.append(body)
            report.redriven[target.name] = report.redriven.get(target.name, 0) + 1
        return list(batches.values())

    def _target(self, topic: Topic, name: str) -> Topic:
        if name == topic.name:
            raise InvalidRequest(
                f"dead letters of topic {name} cannot be redriven to itself: name another topic",
                place="to",
            )
        target = self._topics.find(name)
        if target is None:
            raise NotFound(f"topic {name!r} does not exist: create it, or name another with to=")
        if not target.folder:
            raise InvalidRequest(
                f"topic {name} exists only in memory: redrive to a topic on disk", place="to"
            )
        return target

    async def _publish(self, topic: Topic, log: RedriveLog, partition: int, batch: _Batch) -> None:
        target, size_bytes = batch.target, batch.size_bytes
        room = self._publisher.when_room(target, size_bytes)
        if room is not None:
            await room
        used = target.queue(batch.partition).last_sequence(step_producer(topic, 0).name)
        step = RedriveStep(
            log.next_number(used or 0),
            target.name,
            target.id,
            batch.partition,
            partition,
            tuple(_ranges(batch.offsets)),
        )
        await self._change(topic, partial(log.begin, step))
        placement = PublishPlacement(batch.partition, producer=step_producer(topic, step.number))
        try:
            self._publisher.append_batch(target, batch.bodies, size_bytes, placement)
        except BaseException:
            with suppress(PenstockError):  # the next request decides it
                await self._decide(topic, log)
            raise
        await self._decide(topic, log)

    async def _decide(self, topic: Topic, log: RedriveLog) -> None:
        """Close the open step, if there is one, by the last number that its target has."""
        step = log.step
        if step is None:
            return
        target = self._topics.find(step.topic)
        if target is not None and self._is_stored(topic, step, sync=False):
            await asyncio.wrap_future(target.queue(step.target_partition).request_sync())
            await self._change(topic, partial(log.end, stored=True))
        else:
            await self._change(topic, partial(log.end, stored=False))

    def _is_stored(self, topic: Topic, step: RedriveStep, *, sync: bool) -> bool:
        target = self._topics.find(step.topic)
        if target is None or target.id != step.topic_id:
            return False  # it was deleted with its messages
        queue = target.queue(step.target_partition)
        last = queue.last_sequence(step_producer(topic, step.number).name)
        if last is None or last < step.number:
            return False
        if sync:
            queue.request_sync().result()
        return True

    async def _log(self, topic: Topic) -> RedriveLog:
        found = self._logs.get(topic)
        if found is None:
            found = await self._change(topic, partial(self._open, topic))
        return found

    async def _change(self, topic: Topic, change: Callable[[], T]) -> T:
        """Run a call that writes into a topic's folder, unless the topic was deleted."""

        def run() -> T:
            if self._topics.find(topic.name) is not topic:
                raise Unavailable(f"topic {topic.name} was deleted meanwhile")
            return change()

        return await self._changes.run(run)

    def _open(self, topic: Topic) -> RedriveLog:
        # On the thread of changes, so that two requests at once open one journal.
        found = self._logs.get(topic)
        if found is None:
            found = RedriveLog.open(topic.folder, len(topic.queues), fs=self._fs, clock=self._clock)
            self._logs[topic] = found
        return found

    def _has_record(self, topic: Topic) -> bool:
        return bool(topic.folder) and self._fs.exists(f"{topic.folder}/{FOLDER}")


def step_producer(topic: Topic, number: int) -> BatchProducer:
    """Return the producer and sequence number of a step of a dead-letter topic."""
    return BatchProducer.of_broker(f"redrive.{topic.id}", number)


def _origin(message: StoredMessage, origins: Sequence[str]) -> str:
    """Return the topic that a dead letter came from; empty if it is not known."""
    letter = parse_dead_letter(message.body)
    if letter is not None:
        return letter.topic
    return origins[0] if len(origins) == 1 else ""


def _known(name: str) -> str:
    if not name:
        raise NotFound("the topic that it came from is not known: name one with to=")
    return name


def _totals(batches: Iterable[_Batch]) -> Iterator[tuple[str, int, int]]:
    """Yield each target with the number of messages for it, and their size in bytes."""
    totals: dict[str, tuple[int, int]] = {}
    for batch in batches:
        count, size_bytes = totals.get(batch.target.name, (0, 0))
        totals[batch.target.name] = (count + len(batch.bodies), size_bytes + batch.size_bytes)
    for name, (count, size_bytes) in totals.items():
        yield name, count, size_bytes


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending offsets as ranges [start, end)."""
    start = end = offsets[0]
    for offset in offsets:
        if offset != end:
            yield start, end
            start = offset
        end = offset + 1
    yield start, end
