"""A channel at work: its state, the journal that keeps it, its consumers and who gets what.

Owns the pump that gives messages to consumers, in turns of bounded length so that nobody waits long
for the event loop, and the channel's timer. Does not own what state a message is in (`state`), the
bytes (`feed`), what is not delivered any more (`giveup`) nor who may take something (`consumers`).

Invariants: used on the broker's event loop only. A message that is due again goes out before any
that was never sent, the lowest offset first: one consumer that takes one at a time sees the
messages of a stream partition in publishing order. From its third delivery on a message takes turns
with those that were never sent, so that none can keep the others back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.broker import messageid
from penstock.broker.channel.consumers import Delivery, Takers
from penstock.broker.channel.giveup import GiveUp, too_old
from penstock.broker.names import is_ephemeral

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.broker.channel.consumers import Subscriber
    from penstock.broker.channel.feed import FeedingTopic, Slice
    from penstock.broker.channel.giveup import DeadLetters
    from penstock.broker.channel.keeping import ChannelKeeper
    from penstock.broker.channel.options import ChannelOptions
    from penstock.broker.channel.state import ChannelCounts, ChannelState, Retry
    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.core.clock import Clock

_TURN_BATCHES: Final = 8
_TURN_MESSAGES: Final = 2_500
_STUBBORN_ATTEMPTS: Final = 2
_RETRIES_BYTES: Final = 1 << 20
_MAX_ATTEMPTS: Final = 65_535
_CLOCK_STEP_MS: Final = 1_000  # smaller ones are a clock that is being adjusted


class Channel:
    """One channel of a topic.

    Args:
        name: Its name.
        topic: Where its messages come from.
        state: What it knows of them.
        keeper: Keeps the state on disk; None for one that is ephemeral, or its topic is.
        options: What it was told.
        clock: For deadlines.
        dead_letters: Where messages go that are given up.
        memory: What the broker holds in memory; without room nothing new is given out.

    Attributes:
        ephemeral: It goes with its last consumer.
        counters: What it did not deliver.
    """

    def __init__(
        self,
        name: str,
        topic: FeedingTopic,
        state: ChannelState,
        keeper: ChannelKeeper | None,
        options: ChannelOptions,
        clock: Clock,
        dead_letters: DeadLetters,
        memory: MemoryLedger,
    ) -> None:
        self._memory = memory
        self.name = name
        self.state = state
        self.options = options
        self.paused = False
        self.ephemeral = is_ephemeral(name)
        self.subscribers: dict[int, Subscriber] = {}
        self._topic = topic
        self._keeper = keeper
        self._clock = clock
        self._last_ms, self._last_s = clock.now_ms(), clock.monotonic_s()
        self._given_up = GiveUp(state, dead_letters, clock, self.schedule)
        self.counters = self._given_up.counters
        self._takers = Takers(state.in_flight)
        self._random = np.random.default_rng()
        self._turn = 0
        self._fresh_next = False
        self._counted_from = sum(state.next(number) for number in range(len(topic.feeds)))
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    # -- consumers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a consumer."""
        self.subscribers[subscriber.number] = subscriber
        self.wake(subscriber)

    def wake(self, subscriber: Subscriber) -> None:
        """Look at a consumer again that may take more than before, by its RDY or its connection."""
        self._takers.look(subscriber)
        self.schedule()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a consumer; what it held comes again at once, or when its time is over."""
        self.subscribers.pop(subscriber.number, None)
        self._takers.remove(subscriber)
        if self.options.requeue_on_disconnect and not self._closed:
            self.state.release(subscriber.number, self._now_ms())
            self.schedule()

    def finish(self, subscriber: Subscriber, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Be done with messages; returns those that were not in flight for this consumer."""
        done = self.state.finish(subscriber.number, ids)
        self.wake(subscriber)
        return ids if not done.any() else ids[~done]

    def requeue(self, subscriber: Subscriber, message: int, delay_ms: int) -> bool:
        """Let a message come again after a delay; False if it was not in flight for this one."""
        due_ms = self._now_ms() + delay_ms
        done = self.state.requeue(subscriber.number, message, due_ms)
        self.wake(subscriber)
        return done

    def touch(self, subscriber: Subscriber, message: int, max_timeout_ms: int) -> bool:
        """Give a consumer more time; False if the message was not in flight for it."""
        return self.state.in_flight.touch(
            subscriber.number,
            message,
            self._now_ms(),
            subscriber.message_timeout_ms,
            max_timeout_ms,
        )

    # -- the whole channel

    @property
    def depth(self) -> int:
        """Return how many messages wait, without those in flight and deferred."""
        counts = self.counts()
        return counts.fresh + counts.ready

    def counts(self) -> ChannelCounts:
        """Return how many messages are in which state."""
        return self.state.counts(self._ends())

    @property
    def backend_depth(self) -> int:
        """Return how many of the messages that wait would be read from the disk for the first time.

        What was given out before is left out.
        """
        oldest = [feed.oldest for feed in self._topic.feeds]
        ends = [min(pair) for pair in zip(self._ends(), oldest, strict=True)]
        return self.state.counts(ends).fresh

    def next_offsets(self) -> list[int]:
        """Return what is given out next of each stream partition."""
        return [self.state.next(partition) for partition in range(len(self._topic.feeds))]

    @property
    def message_count(self) -> int:
        """Return how many messages came to the channel since the broker started."""
        return max(0, sum(self._ends()) - self._counted_from)

    def clear(self) -> None:
        """Be done with everything that is there, in flight and deferred, too."""
        self.seek(self._ends())

    def pass_over(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Be done with what was never given out between two offsets of each stream partition."""
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if max(start, self.state.next(partition)) < end:
                self.state.skip(partition, start, end)
        self.schedule()

    def shed_below(self, partition: int, offset: int) -> None:
        """Be done with what was deleted before it was given out, or waits; it is counted."""
        self.counters.shed += self.state.drop_below(partition, offset)
        self.schedule()

    async def keep(self, *, durable: bool = False) -> None:
        """Return when the state as it is survives the death of the broker.

        Args:
            durable: When it survives a power loss, too, with what an earlier broker wrote of it.

        Raises:
            Unavailable: The disk would not take it now; it is tried again.
        """
        if self._keeper is not None:
            await self._keeper.keep(durable=durable)

    def seek(self, offsets: Sequence[int | None]) -> None:
        """Go on at an offset of each stream partition, back or forward; None: stay."""
        for partition, offset in enumerate(offsets):
            if offset is not None:
                self.state.seek(partition, offset)
        for subscriber in self.subscribers.values():
            self._takers.look(subscriber)  # nothing is in flight for it any more
        self.schedule()

    def set_paused(self, *, paused: bool) -> None:
        """Stop giving messages out, or begin again."""
        self.paused = paused
        self.schedule()

    def close(self) -> None:
        """Stop; consumers are closed. The state stays as it is on disk."""
        self._closed = True
        self._memory.hold(self, 0)
        if self._timer is not None:
            self._timer.cancel()
        for subscriber in tuple(self.subscribers.values()):
            subscriber.evict()
        self._given_up.close()

    async def shut(self) -> None:
        """Stop, and let go of the files, when all is written."""
        self.close()
        if self._keeper is not None:
            await self._keeper.close()

    def schedule(self) -> None:
        """Look, in the next turn of the loop, whether there is something to give out."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    # -- the pump

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now_ms = self._now_ms()
        for number in self.state.expire(now_ms):
            if number in self.subscribers:
                self._takers.look(self.subscribers[number])
        if not self.paused:
            for _ in range(_TURN_BATCHES):
                takers = self._takers.first()
                if not takers or not self._serve(takers, now_ms):
                    break
            else:
                self.schedule()
        if self._keeper is None:
            self._given_up.shed(self._ends(), self.options.max_backlog)
        else:
            self._keeper.note()
        self._memory.hold(self, self.state.memory_bytes)
        self._set_timer(now_ms)

    def _serve(self, takers: list[tuple[Subscriber, int]], now_ms: int) -> bool:
        """Give something out, or otherwise get on; False when there is nothing to do now."""
        room = min(sum(room for _, room in takers), _TURN_MESSAGES)
        retries = self.state.due(now_ms, room)
        # What comes back again and again must not keep from going out what was never sent.
        stubborn = bool(retries) and _STUBBORN_ATTEMPTS <= retries[0].attempts < self._last_attempt
        if retries and not (stubborn and self._fresh_next):
            self._fresh_next = stubborn
            return self._serve_retries(retries, takers, now_ms)
        self._fresh_next = False
        if self._serve_any_fresh(takers, room, now_ms):
            return True
        return bool(retries) and self._serve_retries(retries, takers, now_ms)

    @property
    def _last_attempt(self) -> int:
        return self.options.max_attempts or _MAX_ATTEMPTS

    def _serve_any_fresh(
        self, takers: list[tuple[Subscriber, int]], room: int, now_ms: int
    ) -> bool:
        if not self._memory.has_room_for(self.state.memory_bytes):
            self._memory.when_room(self.schedule)
            return False
        count = len(self._topic.feeds)
        for step in range(1, count + 1):
            partition = (self._turn + step) % count
            found = self._fresh(partition, room)
            if found is not None:
                self._turn = partition
                self._serve_fresh(partition, found, takers, now_ms)
                return True
        return False

    def _fresh(self, partition: int, room: int) -> Slice | None:
        start, end = self.state.next(partition), self._topic.fed(partition)
        if start >= end:
            return None
        feed = self._topic.feeds[partition]
        found = feed.slice(start, min(self.state.fresh_until(partition, end), start + room))
        if found is None:
            feed.when_read(start, self.schedule)
        return found

    def _serve_fresh(
        self, partition: int, found: Slice, takers: list[tuple[Subscriber, int]], now_ms: int
    ) -> None:
        if found.messages is None:
            self.state.skip(partition, found.start, found.end)
            self._given_up.count_missing(found)
            return
        if found.due_ms > now_ms:
            self.state.defer(partition, found.start, found.end, found.due_ms)
            return
        expired = too_old(found, self.options.message_ttl_ms, now_ms)
        if expired:
            self.state.skip(partition, found.start, found.start + expired)
            self.counters.expired += expired
            return
        start = found.start
        share = -(-(found.end - start) // len(takers))
        for subscriber, room in takers:
            end = min(found.end, start + min(share, room))
            part = found.part(start, end)
            if end == start or part.messages is None:
                break
            timeout_ms = subscriber.message_timeout_ms
            self.state.deliver(partition, start, end, subscriber.number, now_ms, timeout_ms)
            first = messageid.of(partition, start)
            ids = np.arange(first, first + end - start, dtype=np.int64)
            self._send(subscriber, Delivery(part.messages, ids, 1, part.times_ns))
            start = end

    def _serve_retries(
        self, retries: list[Retry], takers: list[tuple[Subscriber, int]], now_ms: int
    ) -> bool:
        found: list[tuple[Retry, Slice]] = []
        gone: list[Retry] = []
        size = 0
        for retry in retries:
            if size > _RETRIES_BYTES:
                break
            partition, offset = messageid.split(retry.id)
            feed = self._topic.feeds[partition]
            place = feed.slice(offset, offset + 1)
            if place is None:
                # What is behind it waits, too, or the order would be lost.
                feed.when_read(offset, self.schedule)
                break
            if place.messages is None:
                self._given_up.count_missing(place)
                gone.append(retry)
            elif too_old(place, self.options.message_ttl_ms, now_ms):
                self.counters.expired += 1
                gone.append(retry)
            else:
                found.append((retry, place))
                size += place.messages.nbytes
        if gone:
            self.state.drop(gone)
        found, buried = self._given_up.bury(found, self.options, now_ms)
        start = 0
        share = -(-len(found) // len(takers))
        for subscriber, room in takers:
            part = found[start : start + min(share, room)]
            if not part:
                break
            start += len(part)
            again = [retry for retry, _ in part]
            timeout_ms = subscriber.message_timeout_ms
            self.state.redeliver(again, subscriber.number, now_ms, timeout_ms)
            attempts = [min(retry.attempts + 1, _MAX_ATTEMPTS) for retry in again]
            self._send(
                subscriber,
                Delivery(
                    pa.concat_arrays([place.messages for _, place in part]),
                    np.array([retry.id for retry in again], np.int64),
                    np.array(attempts, np.uint16),
                    np.array([_time_ns(place) for _, place in part], np.int64),
                ),
            )
        return bool(start or gone or buried)

    def _send(self, subscriber: Subscriber, batch: Delivery) -> None:
        if subscriber.sample_rate:
            draws = self._random.integers(0, 100, len(batch.ids))
            wanted = draws <= subscriber.sample_rate
            self.state.finish(subscriber.number, batch.ids[~wanted])
            batch = batch.masked(wanted)
        if len(batch.ids):
            subscriber.deliver(batch)
        self._takers.served(subscriber)

    # -- time

    def _ends(self) -> list[int]:
        return [self._topic.fed(partition) for partition in range(len(self._topic.feeds))]

    def _now_ms(self) -> int:
        """Return the wall time; when somebody has set the clock, deadlines are moved first."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        step_ms = now_ms - self._last_ms - round((now_s - self._last_s) * 1000)
        if abs(step_ms) >= _CLOCK_STEP_MS:
            # Consumers have the time that they were given. What waits is due no later than was
            # asked for: early does less harm than hours late.
            self.state.in_flight.shift(step_ms)
            self.state.retries.shift(min(step_ms, 0))
        self._last_ms, self._last_s = now_ms, now_s
        return now_ms

    def _set_timer(self, now_ms: int) -> None:
        wanted_ms = self.state.next_event_ms()
        if self._timer is not None:
            if wanted_ms is not None and now_ms < self._timer_ms <= wanted_ms:
                return  # it looks again by itself then
            self._timer.cancel()
            self._timer = None
        if wanted_ms is not None:
            delay_s = max(1, wanted_ms - now_ms) / 1000
            self._timer_ms = wanted_ms
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump_on_time)

    def _pump_on_time(self) -> None:
        self._timer = None
        self.schedule()


def _time_ns(place: Slice) -> int:
    return place.times_ns if isinstance(place.times_ns, int) else int(place.times_ns[0])
