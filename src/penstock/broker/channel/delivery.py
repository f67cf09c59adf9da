"""Delivery of a channel's messages to its consumers, one batch at a time.

Owns the order of due and new messages, the rotation over the stream partitions, the share of
each consumer, and the set of consumers that can take more (`ReadyConsumers`). Does not own when
delivery runs (`channel`), the state of a message (`channel_state`, `in_flight`), the message
bytes (`feed`), dropped messages (`drop_policy`) or the connections (`Subscriber`).

Invariants: a message that is due again is delivered before any new one, the lowest offset
first, so a single consumer that takes one message at a time receives the messages of a stream
partition in publishing order. From its third delivery on, a message alternates with new ones,
so it cannot block them. Used on the broker's event loop only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.broker import message_id
from penstock.broker.channel.channel_state import ATTEMPTS_MAX
from penstock.broker.channel.drop_policy import too_old
from penstock.broker.message_bodies import arrow_mask

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.broker.channel.channel_state import ChannelState, Redelivery
    from penstock.broker.channel.drop_policy import ChannelOptions, DropPolicy
    from penstock.broker.channel.feed import Feed, Slice, SubscribedTopic
    from penstock.broker.channel.in_flight import InFlight
    from penstock.broker.memory.memory_budget import MemoryBudget


_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for one consumer; arrays are as long as `messages`, scalars apply to all."""

    messages: pa.BinaryArray
    ids: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16] | int
    times_ns: npt.NDArray[np.int64] | int

    def masked(self, wanted: npt.NDArray[np.bool_]) -> Delivery:
        """Return the messages where `wanted` is true."""
        attempts, times_ns = self.attempts, self.times_ns
        return Delivery(
            self.messages.filter(arrow_mask(wanted)),
            self.ids[wanted],
            attempts if isinstance(attempts, int) else attempts[wanted],
            times_ns if isinstance(times_ns, int) else times_ns[wanted],
        )


class Subscriber(Protocol):
    """A consumer's connection, as seen by its channel.

    Code that lets it take more than before must call `Channel.wake`.

    Attributes:
        number: A positive number, unique since the broker started.
        ready: Maximum number of messages in flight (RDY); 0 while it closes.
        message_timeout_ms: Time-out of its messages.
        sample_rate: Percentage of the messages that it receives; 0: all.
    """

    number: int
    ready: int
    message_timeout_ms: int
    sample_rate: int

    @property
    def writable(self) -> bool:
        """Whether most of the earlier output has been sent."""
        ...

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        ...

    def evict(self) -> None:
        """Close the connection: the channel was deleted."""
        ...


class ReadyConsumers:
    """The consumers of one channel that may take more messages, found without checking all.

    Invariant: every consumer that may take more is in the set. A consumer that no longer may is
    detected and removed when it is checked; so a delivery needs only a few checks, regardless of
    the number of consumers.

    Args:
        in_flight: Messages in flight of the consumers.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._open: OrderedDict[int, Subscriber] = OrderedDict()

    def update(self, subscriber: Subscriber) -> None:
        """Check whether a consumer may take more: a new RDY, a message answered, or output sent."""
        if self._room(subscriber) > 0:
            self._open.setdefault(subscriber.number, subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a consumer that leaves."""
        self._open.pop(subscriber.number, None)

    def served(self, subscriber: Subscriber) -> None:
        """Move a consumer behind those that were served less recently."""
        if subscriber.number in self._open:
            self._open.move_to_end(subscriber.number)

    def first(self) -> list[tuple[Subscriber, int]]:
        """Return up to 64 consumers to serve next, and how many messages each may take.

        Consumers with the most free capacity come first, so that few messages go to the least busy.
        """
        found: list[tuple[Subscriber, int]] = []
        while self._open and not found:
            for subscriber in tuple(islice(self._open.values(), _AT_ONCE)):
                room = self._room(subscriber)
                if room > 0:
                    found.append((subscriber, room))
                else:
                    del self._open[subscriber.number]
        if len(found) > 1:
            found.sort(key=lambda consumer: -consumer[1])
        return found

    def _room(self, subscriber: Subscriber) -> int:
        if not subscriber.ready or not subscriber.writable:
            return 0
        return subscriber.ready - self._in_flight.of(subscriber.number)


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Result of one call of `MessageDelivery.deliver`, and the events that its caller waits for.

    Attributes:
        progressed: Messages were delivered, deferred or dropped, so there may be more to do now.
        needs_memory: New messages wait for memory of the broker.
        unread: Feeds, each with the offset from which it must read messages from the disk.
    """

    progressed: bool
    needs_memory: bool = False
    unread: tuple[tuple[Feed, int], ...] = ()


_PROGRESSED: Final = DeliveryResult(progressed=True)
_IDLE: Final = DeliveryResult(progressed=False)

_logger = logging.getLogger(__name__)

_BATCH_MESSAGES: Final = 2_500
_STUBBORN_ATTEMPTS: Final = 2
_RETRIES_BYTES: Final = 1 << 20


class MessageDelivery:
    """Delivers the messages of one channel to consumers that may take more.

    Args:
        topic: Source of the messages.
        state: State of the channel.
        consumers: The consumers that may take more.
        drops: Handles dropped messages.
        memory: Memory budget of the broker; without free memory, no new message is delivered.
    """

    def __init__(
        self,
        topic: SubscribedTopic,
        state: ChannelState,
        consumers: ReadyConsumers,
        drops: DropPolicy,
        memory: MemoryBudget,
    ) -> None:
        self._topic = topic
        self._state = state
        self._ready_consumers = consumers
        self._drops = drops
        self._memory = memory
        # Conditions that the current call waits for; if it raises, the next call reports them.
        self._needs_memory = False
        self._unread: list[tuple[Feed, int]] = []
        self._random = np.random.default_rng()
        self._turn = 0
        self._fresh_next = False

    def deliver(self, options: ChannelOptions, now_ms: int) -> DeliveryResult:
        """Deliver a batch, or make other progress."""
        progressed = self._serve(options, now_ms)
        if not (self._needs_memory or self._unread):
            return _PROGRESSED if progressed else _IDLE
        result = DeliveryResult(progressed, self._needs_memory, tuple(self._unread))
        self._needs_memory, self._unread = False, []
        return result

    def _serve(self, options: ChannelOptions, now_ms: int) -> bool:
        consumers = self._ready_consumers.first()
        if not consumers:
            return False
        room = min(sum(room for _, room in consumers), _BATCH_MESSAGES)
        retries = self._state.due(now_ms, room)
        # Messages that fail repeatedly must not hold back undelivered ones.
        last_attempt = options.max_attempts or ATTEMPTS_MAX
        stubborn = bool(retries) and _STUBBORN_ATTEMPTS <= retries[0].attempts < last_attempt
        if retries and not (stubborn and self._fresh_next):
            self._fresh_next = stubborn
            return self._serve_retries(retries, consumers, options, now_ms)
        self._fresh_next = False
        if self._serve_any_fresh(consumers, room, options, now_ms):
            return True
        return bool(retries) and self._serve_retries(retries, consumers, options, now_ms)

    def _serve_any_fresh(
        self,
        consumers: list[tuple[Subscriber, int]],
        room: int,
        options: ChannelOptions,
        now_ms: int,
    ) -> bool:
        if not self._memory.has_room_for(self._state.memory_bytes):
            self._needs_memory = True
            return False
        count = len(self._topic.feeds)
        for step in range(1, count + 1):
            partition = (self._turn + step) % count
            found = self._fresh(partition, room)
            if found is not None:
                self._turn = partition
                self._serve_fresh(partition, found, consumers, options, now_ms)
                return True
        return False

    def _fresh(self, partition: int, room: int) -> Slice | None:
        progress, end = self._state.progress[partition], self._topic.fed(partition)
        start = progress.next
        if start >= end:
            return None
        feed = self._topic.feeds[partition]
        found = feed.slice(start, min(progress.fresh_until(end), start + room))
        if found is None:
            self._unread.append((feed, start))
        return found

    def _serve_fresh(
        self,
        partition: int,
        found: Slice,
        consumers: list[tuple[Subscriber, int]],
        options: ChannelOptions,
        now_ms: int,
    ) -> None:
        if found.messages is None:
            self._state.skip(partition, found.start, found.end)
            self._drops.count_missing(found)
            return
        if found.due_ms > now_ms:
            self._state.defer(partition, found.start, found.end, found.due_ms)
            return
        expired = too_old(found, options.message_ttl_ms, now_ms)
        if expired:
            self._state.skip(partition, found.start, found.start + expired)
            self._drops.counters.expired += expired
            return
        start = found.start
        share = -(-(found.end - start) // len(consumers))
        for subscriber, room in consumers:
            end = min(found.end, start + min(share, room))
            part = found.part(start, end)
            if end == start or part.messages is None:
                break
            first = message_id.of(partition, start)
            ids = np.arange(first, first + end - start, dtype=np.int64)
            delivery = Delivery(part.messages, ids, 1, part.times_ns)
            timeout_ms = subscriber.message_timeout_ms
            self._state.deliver(partition, start, end, subscriber.number, now_ms, timeout_ms)
            self._send(subscriber, delivery)
            start = end

    def _serve_retries(
        self,
        retries: list[Redelivery],
        consumers: list[tuple[Subscriber, int]],
        options: ChannelOptions,
        now_ms: int,
    ) -> bool:
        found: list[tuple[Redelivery, Slice]] = []
        gone: list[Redelivery] = []
        missing: list[Slice] = []
        size = 0
        for retry in retries:
            if size > _RETRIES_BYTES:
                break
            partition, offset = message_id.split(retry.id)
            feed = self._topic.feeds[partition]
            place = feed.slice(offset, offset + 1)
            if place is None:
                # Later messages wait, too, to keep the order.
                self._unread.append((feed, offset))
                break
            if place.messages is None:
                missing.append(place)
                gone.append(retry)
            elif too_old(place, options.message_ttl_ms, now_ms):
                gone.append(retry)
            else:
                found.append((retry, place))
                size += place.messages.nbytes
        if gone:
            self._state.drop(gone)
            self._drops.counters.expired += len(gone) - len(missing)
            for place in missing:
                self._drops.count_missing(place)
        found, buried = self._drops.dead_letter(found, options, now_ms)
        start = 0
        share = -(-len(found) // len(consumers))
        for subscriber, room in consumers:
            part = found[start : start + min(share, room)]
            if not part:
                break
            start += len(part)
            again = [retry for retry, _ in part]
            attempts = [min(retry.attempts + 1, ATTEMPTS_MAX) for retry in again]
            delivery = Delivery(
                pa.concat_arrays([place.messages for _, place in part]),
                np.array([retry.id for retry in again], np.int64),
                np.array(attempts, np.uint16),
                np.array([_time_ns(place) for _, place in part], np.int64),
            )
            timeout_ms = subscriber.message_timeout_ms
            self._state.redeliver(again, subscriber.number, now_ms, timeout_ms)
            self._send(subscriber, delivery)
        return bool(start or gone or buried)

    def _send(self, subscriber: Subscriber, batch: Delivery) -> None:
        try:
            if subscriber.sample_rate:
                draws = self._random.integers(0, 100, len(batch.ids))
                wanted = draws <= subscriber.sample_rate
                self._state.finish(subscriber.number, batch.ids[~wanted])
                batch = batch.masked(wanted)
            if len(batch.ids):
                subscriber.deliver(batch)
        except Exception:
            # It is unknown whether the messages were sent. They stay in flight, and are redelivered
            # when the connection has ended, or after their time-out.
            _logger.exception("cannot send messages to a consumer: disconnecting it")
            self._ready_consumers.remove(subscriber)
            subscriber.evict()
            return
        self._ready_consumers.served(subscriber)


def _time_ns(place: Slice) -> int:
    return place.times_ns if isinstance(place.times_ns, int) else int(place.times_ns[0])
