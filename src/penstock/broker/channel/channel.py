"""A channel at work: its state, the journal that keeps it, its consumers and who gets what.

Owns the pump that gives messages to consumers, in turns of bounded length so that nobody waits long
for the event loop, and the channel's timer. Does not own what state a message is in (`state`), the
bytes (`feed`) nor a consumer's connection.

Invariants: used on the broker's event loop only. A message that is due again goes out before any
that was never sent, the lowest offset first: one consumer that takes one at a time sees the
messages of a stream partition in publishing order. From its third delivery on a message takes turns
with those that were never sent, so that none can keep the others back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.broker import messageid
from penstock.broker.names import is_ephemeral
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.broker.channel.feed import Feed, Slice
    from penstock.broker.channel.keeping import ChannelKeeper
    from penstock.broker.channel.state import ChannelCounts, ChannelState, Retry
    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_NANOSECONDS_PER_MS: Final = 1_000_000
_TURN_BATCHES: Final = 8
_TURN_MESSAGES: Final = 2_500
_STUBBORN_ATTEMPTS: Final = 2
_RETRIES_BYTES: Final = 1 << 20
_DEAD_LETTER_CLIENT: Final = -1
_DEAD_LETTER_TIMEOUT_MS: Final = 3_600_000
_DEAD_LETTER_RETRY_MS: Final = 1_000
_MAX_ATTEMPTS: Final = 65_535


class Subscriber(Protocol):
    """A consumer's connection, as its channel sees it.

    Attributes:
        number: Its number, positive, of no other connection since the broker started.
        ready: How many messages it wants in flight at most (RDY); 0 while it closes.
        message_timeout_ms: How long it may take over a message.
        sample_rate: Percent of the messages that it wants; 0: all.
    """

    number: int
    ready: int
    message_timeout_ms: int
    sample_rate: int

    @property
    def writable(self) -> bool:
        """Say whether what was sent before has left, more or less."""
        ...

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        ...

    def evict(self) -> None:
        """Close the connection: the channel is gone."""
        ...


class DeadLetters(Protocol):
    """Where messages go that were tried too often."""

    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        """Append messages to a topic, which is made if there is none.

        Raises:
            PenstockError: It cannot be done now; nothing was appended.
        """
        ...


class FeedingTopic(Protocol):
    """A topic, as its channels see it."""

    @property
    def feeds(self) -> Sequence[Feed]:
        """Return the messages of each stream partition."""
        ...

    def fed(self, partition: int) -> int:
        """Return the offset up to which its channels may have its messages."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for one consumer; the arrays are as long as `messages`, or stand for all."""

    messages: pa.BinaryArray
    ids: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16] | int
    times_ns: npt.NDArray[np.int64] | int


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """What a channel may be told.

    Attributes:
        max_attempts: Deliveries of a message before it is given up; 0: no end.
        dead_letter_topic: Where messages go that were given up; None: they are dropped, counted.
        message_ttl_ms: Age at which a message is not delivered any more; 0: never.
        requeue_on_disconnect: A consumer's messages are due again as soon as it is gone, not only
            when their time is over.
        max_backlog: Messages that an ephemeral channel is behind at most; the newest beyond go.
    """

    max_attempts: int = 0
    dead_letter_topic: str | None = None
    message_ttl_ms: int = 0
    requeue_on_disconnect: bool = True
    max_backlog: int = 10_000


@dataclass(slots=True)
class ChannelCounters:
    """What happened since the broker started.

    Attributes:
        journal_damaged: 1: its journal was damaged or gone then, so that finished messages come
            again.
    """

    lost: int = 0
    expired: int = 0
    dead_lettered: int = 0
    given_up: int = 0
    shed: int = 0
    journal_damaged: int = 0


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
        self.counters = ChannelCounters()
        self.subscribers: dict[int, Subscriber] = {}
        self._topic = topic
        self._keeper = keeper
        self._clock = clock
        self._dead_letters = dead_letters
        self._random = np.random.default_rng()
        self._turn = 0
        self._fresh_next = False
        self._counted_from = sum(state.next(number) for number in range(len(topic.feeds)))
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._dying: set[asyncio.Task[None]] = set()

    # -- consumers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a consumer."""
        self.subscribers[subscriber.number] = subscriber
        self.schedule()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a consumer; what it held comes again at once, or when its time is over."""
        self.subscribers.pop(subscriber.number, None)
        if self.options.requeue_on_disconnect and not self._closed:
            self.state.release(subscriber.number, self._clock.now_ms())
            self.schedule()

    def finish(self, subscriber: Subscriber, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Be done with messages; returns those that were not in flight for this consumer."""
        done = self.state.finish(subscriber.number, ids)
        self.schedule()
        return ids if not done.any() else ids[~done]

    def requeue(self, subscriber: Subscriber, message: int, delay_ms: int) -> bool:
        """Let a message come again after a delay; False if it was not in flight for this one."""
        due_ms = self._clock.now_ms() + delay_ms
        done = self.state.requeue(subscriber.number, message, due_ms)
        self.schedule()
        return done

    def touch(self, subscriber: Subscriber, message: int, max_timeout_ms: int) -> bool:
        """Give a consumer more time; False if the message was not in flight for it."""
        return self.state.in_flight.touch(
            subscriber.number,
            message,
            self._clock.now_ms(),
            subscriber.message_timeout_ms,
            max_timeout_ms,
        )

    # -- the whole channel

    @property
    def ephemeral(self) -> bool:
        """Say whether it goes with its last consumer."""
        return is_ephemeral(self.name)

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
        for task in self._dying:
            task.cancel()

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
        now_ms = self._clock.now_ms()
        self.state.expire(now_ms)
        if not self.paused:
            for _ in range(_TURN_BATCHES):
                takers = self._takers()
                if not takers or not self._serve(takers, now_ms):
                    break
            else:
                self.schedule()
        if self._keeper is None:
            self._shed()
        if self._keeper is not None:
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
            self._count_missing(found)
            return
        if found.due_ms > now_ms:
            self.state.defer(partition, found.start, found.end, found.due_ms)
            return
        expired = self._expired(found, now_ms)
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
                self._count_missing(place)
                gone.append(retry)
            elif self._expired(place, now_ms):
                self.counters.expired += 1
                gone.append(retry)
            else:
                found.append((retry, place))
                size += place.messages.nbytes
        if gone:
            self.state.drop(gone)
        tried = len(found)
        found = self._without_dead(found, now_ms)
        dead = tried - len(found)
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
        return bool(start or gone or dead)

    def _send(self, subscriber: Subscriber, batch: Delivery) -> None:
        if subscriber.sample_rate:
            draws = self._random.integers(0, 100, len(batch.ids))
            wanted = draws <= subscriber.sample_rate
            self.state.finish(subscriber.number, batch.ids[~wanted])
            batch = _masked(batch, wanted)
        if len(batch.ids):
            subscriber.deliver(batch)

    def _takers(self) -> list[tuple[Subscriber, int]]:
        takers = []
        for subscriber in self.subscribers.values():
            if subscriber.ready and subscriber.writable:
                room = subscriber.ready - self.state.in_flight.of(subscriber.number)
                if room > 0:
                    takers.append((subscriber, room))
        if len(takers) > 1:
            # Those that have most room first, so that few messages go to the least busy.
            takers.sort(key=lambda taker: -taker[1])
        return takers

    # -- messages that are not delivered

    def _count_missing(self, place: Slice) -> None:
        count = place.end - place.start
        if place.deleted:
            # For a bound's sake: nothing else deletes what a channel still wants.
            self.counters.shed += count
        else:
            self.counters.lost += count

    def _expired(self, place: Slice, now_ms: int) -> int:
        """Return how many of the first messages of a slice are too old."""
        if not self.options.message_ttl_ms:
            return 0
        latest_ns = (now_ms - self.options.message_ttl_ms) * _NANOSECONDS_PER_MS
        times_ns = place.times_ns
        if isinstance(times_ns, int):
            return place.end - place.start if times_ns <= latest_ns else 0
        return int(np.searchsorted(times_ns, latest_ns, side="right"))

    def _shed(self) -> None:
        """Let an ephemeral channel fall behind no further than it may: the newest go, as in NSQ."""
        for partition, end in enumerate(self._ends()):
            start, done = self.state.next(partition), self.state.done[partition]
            over = end - start - self.options.max_backlog
            if over > 0:
                over -= done.count(start, end)
            if over > 0:
                # It was not over before, so that these are behind all that went so far.
                self.state.skip(partition, end - over, end)
                self.counters.shed += over

    def _without_dead(
        self, found: list[tuple[Retry, Slice]], now_ms: int
    ) -> list[tuple[Retry, Slice]]:
        limit = self.options.max_attempts
        if not limit:
            return found
        dead = [entry for entry in found if entry[0].attempts >= limit]
        if not dead:
            return found
        retries = [retry for retry, _ in dead]
        if self.options.dead_letter_topic is None:
            self.counters.given_up += len(dead)
            self.state.drop(retries)
        else:
            # In flight for nobody's connection until the other topic has them: a crash before that
            # brings them back here.
            timeout_ms = _DEAD_LETTER_TIMEOUT_MS
            self.state.redeliver(retries, _DEAD_LETTER_CLIENT, now_ms, timeout_ms)
            messages = pa.concat_arrays([place.messages for _, place in dead])
            put = self._put_dead_letters(self.options.dead_letter_topic, retries, messages)
            task = asyncio.get_running_loop().create_task(put)
            self._dying.add(task)
            task.add_done_callback(self._dying.discard)
        return [entry for entry in found if entry[0].attempts < limit]

    async def _put_dead_letters(
        self, topic: str, retries: list[Retry], messages: pa.BinaryArray
    ) -> None:
        done = False
        try:
            await self._dead_letters.put(topic, messages)
            done = True
        except PenstockError as error:
            _logger.warning("messages cannot be put into topic %s, tried again: %s", topic, error)
        finally:
            if done:
                ids = np.array([retry.id for retry in retries], np.int64)
                self.state.finish(_DEAD_LETTER_CLIENT, ids)
                self.counters.dead_lettered += len(retries)
            elif not self._closed:
                due_ms = self._clock.now_ms() + _DEAD_LETTER_RETRY_MS
                for retry in retries:
                    self.state.requeue(_DEAD_LETTER_CLIENT, retry.id, due_ms)
            self.schedule()

    # -- time

    def _ends(self) -> list[int]:
        return [self._topic.fed(partition) for partition in range(len(self._topic.feeds))]

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


def _masked(batch: Delivery, wanted: npt.NDArray[np.bool_]) -> Delivery:
    attempts, times_ns = batch.attempts, batch.times_ns
    return Delivery(
        batch.messages.filter(pa.array(wanted)),
        batch.ids[wanted],
        attempts if isinstance(attempts, int) else attempts[wanted],
        times_ns if isinstance(times_ns, int) else times_ns[wanted],
    )
