"""Choice of the next batch for a channel's consumers.

Owns the order: due messages and undelivered ones, the rotation of stream partitions, the shares of
consumers. Does not own when it runs (`channel`), the states of messages (`state`), the bytes
(`feed`), dropped messages (`giveup`) nor which consumers may take more (`consumers`).

Invariants: due messages are delivered before undelivered ones, the lowest offset first: a consumer
with RDY 1 sees the messages of a stream partition in publishing order. From its third delivery on,
a message alternates with undelivered ones, so that it cannot hold them back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.broker import message_id
from penstock.broker.channel.consumers import Delivery
from penstock.broker.channel.giveup import too_old
from penstock.broker.channel.state.state import ATTEMPTS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.channel.consumers import Subscriber, Takers
    from penstock.broker.channel.feed import FeedingTopic, Slice
    from penstock.broker.channel.giveup import GiveUp
    from penstock.broker.channel.options import ChannelOptions
    from penstock.broker.channel.state.state import ChannelState, Retry
    from penstock.broker.memory.budget import MemoryLedger

_logger = logging.getLogger(__name__)

_BATCH_MESSAGES: Final = 2_500
_STUBBORN_ATTEMPTS: Final = 2
_RETRIES_BYTES: Final = 1 << 20


class Serving:
    """Delivers the messages of one channel to consumers that may take more.

    Args:
        topic: Source of the messages.
        state: State of the channel.
        takers: The consumers that may take more.
        given_up: Handles dropped messages.
        memory: Memory budget of the broker; without free memory, no new message is delivered.
        go_on: Called when there may be something to deliver again.
    """

    def __init__(
        self,
        topic: FeedingTopic,
        state: ChannelState,
        takers: Takers,
        given_up: GiveUp,
        memory: MemoryLedger,
        go_on: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._state = state
        self._takers = takers
        self._given_up = given_up
        self._memory = memory
        self._go_on = go_on
        self._random = np.random.default_rng()
        self._turn = 0
        self._fresh_next = False

    def serve(self, options: ChannelOptions, now_ms: int) -> bool:
        """Deliver a batch, or make other progress; False if there is nothing to do now."""
        takers = self._takers.first()
        if not takers:
            return False
        room = min(sum(room for _, room in takers), _BATCH_MESSAGES)
        retries = self._state.due(now_ms, room)
        # Messages that fail repeatedly must not hold back undelivered ones.
        last_attempt = options.max_attempts or ATTEMPTS_MAX
        stubborn = bool(retries) and _STUBBORN_ATTEMPTS <= retries[0].attempts < last_attempt
        if retries and not (stubborn and self._fresh_next):
            self._fresh_next = stubborn
            return self._serve_retries(retries, takers, options, now_ms)
        self._fresh_next = False
        if self._serve_any_fresh(takers, room, options, now_ms):
            return True
        return bool(retries) and self._serve_retries(retries, takers, options, now_ms)

    def _serve_any_fresh(
        self,
        takers: list[tuple[Subscriber, int]],
        room: int,
        options: ChannelOptions,
        now_ms: int,
    ) -> bool:
        if not self._memory.has_room_for(self._state.memory_bytes):
            self._memory.when_room(self._go_on)
            return False
        count = len(self._topic.feeds)
        for step in range(1, count + 1):
            partition = (self._turn + step) % count
            found = self._fresh(partition, room)
            if found is not None:
                self._turn = partition
                self._serve_fresh(partition, found, takers, options, now_ms)
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
            feed.when_read(start, self._go_on)
        return found

    def _serve_fresh(
        self,
        partition: int,
        found: Slice,
        takers: list[tuple[Subscriber, int]],
        options: ChannelOptions,
        now_ms: int,
    ) -> None:
        if found.messages is None:
            self._state.skip(partition, found.start, found.end)
            self._given_up.count_missing(found)
            return
        if found.due_ms > now_ms:
            self._state.defer(partition, found.start, found.end, found.due_ms)
            return
        expired = too_old(found, options.message_ttl_ms, now_ms)
        if expired:
            self._state.skip(partition, found.start, found.start + expired)
            self._given_up.counters.expired += expired
            return
        start = found.start
        share = -(-(found.end - start) // len(takers))
        for subscriber, room in takers:
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
        retries: list[Retry],
        takers: list[tuple[Subscriber, int]],
        options: ChannelOptions,
        now_ms: int,
    ) -> bool:
        found: list[tuple[Retry, Slice]] = []
        gone: list[Retry] = []
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
                feed.when_read(offset, self._go_on)
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
            self._given_up.counters.expired += len(gone) - len(missing)
            for place in missing:
                self._given_up.count_missing(place)
        found, buried = self._given_up.bury(found, options, now_ms)
        start = 0
        share = -(-len(found) // len(takers))
        for subscriber, room in takers:
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
            self._takers.remove(subscriber)
            subscriber.evict()
            return
        self._takers.served(subscriber)


def _time_ns(place: Slice) -> int:
    return place.times_ns if isinstance(place.times_ns, int) else int(place.times_ns[0])
