"""One channel of a topic: its state, journal, consumers and delivery pump.

Owns when the pump runs, the timers that start it, the wall clock that the channel's deadlines
are measured by, and the end of the channel. Does not own which message a consumer receives next
(`delivery`), the state of a message (`channel_state`) or when a message is dropped (`drop_policy`).

The pump runs in slices of bounded duration so that it does not block the event loop. A caller
that changes what can be delivered requests a slice with `Channel.schedule`; several requests
cause one slice. A slice that raises is retried after one second. `ChannelAlarm` is one
event-loop timer that is set to the earliest of the requested times. `WallTime` adjusts
deadlines when the wall clock is set.

Invariants: used on the broker's event loop only. If an exception interrupts a state change, the
channel refuses all further work and the exception goes to the event loop's exception handler; a
restart restores the state from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.channel.delivery import MessageDelivery, ReadyConsumers
from penstock.broker.channel.drop_policy import DropPolicy
from penstock.broker.topic_names import is_ephemeral
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Unavailable
from penstock.core.loop_tasks import report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from penstock.broker.channel.channel_state import ChannelCounts, ChannelState
    from penstock.broker.channel.delivery import Subscriber
    from penstock.broker.channel.drop_policy import ChannelOptions, DeadLetterStore
    from penstock.broker.channel.feed import SubscribedTopic
    from penstock.broker.channel.persistence import ChannelJournal
    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.core.clock import Clock


class ChannelAlarm:
    """Calls a function when it is due.

    Args:
        ring: The function, called on the event loop; it sets the alarm again.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def set(self, wanted_ms: int | None, now_ms: int) -> None:
        """Ring at a wall time, or earlier if an earlier time was set; None: not at all."""
        if wanted_ms is None:
            self.cancel()
            return
        if self._timer is not None and now_ms < self._timer_ms <= wanted_ms:
            return  # the callback sets the next alarm
        delay_s = max(1, wanted_ms - now_ms) / 1000
        # The earlier timer stays until the new one exists, because the loop may raise.
        timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)
        self.cancel()
        self._timer, self._timer_ms = timer, wanted_ms

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()


_STEP_MS: Final = 1_000  # smaller steps are gradual adjustments of the clock


class WallTime:
    """Wall clock of a channel.

    Args:
        clock: The clock, which may be set at any time.
        state: State whose deadlines are shifted.

    Attributes:
        last_ms: The wall time that was returned last.
    """

    def __init__(self, clock: Clock, state: ChannelState) -> None:
        self._clock = clock
        self._state = state
        self.last_ms, self._last_s = clock.now_ms(), clock.monotonic_s()

    def now_ms(self) -> int:
        """Return the wall time; shift the deadlines first if the clock was set."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        step_ms = now_ms - self.last_ms - round((now_s - self._last_s) * 1000)
        if abs(step_ms) >= _STEP_MS:
            # Consumers keep their full time-out. Waiting messages are due no later than requested:
            # an early delivery does less harm than one that is hours late.
            self._state.in_flight.shift(step_ms)
            self._state.retries.shift(min(step_ms, 0))
        self.last_ms, self._last_s = now_ms, now_s
        return now_ms


_logger = logging.getLogger(__name__)

_TURN_BATCHES: Final = 8
_RETRY_MS: Final = 1_000


class Channel:
    """One channel of a topic.

    Args:
        name: Its name.
        topic: Source of its messages.
        state: State of its messages.
        journal: Persists the state; None if the channel or its topic is ephemeral.
        options: Its options.
        clock: For deadlines.
        dead_letters: Receives messages that are given up.
        memory: Memory budget of the broker; without free memory, no new message is delivered.

    Attributes:
        ephemeral: It is deleted with its last consumer.
        counters: Counts of messages that were not delivered.
    """

    def __init__(
        self,
        name: str,
        topic: SubscribedTopic,
        state: ChannelState,
        journal: ChannelJournal | None,
        options: ChannelOptions,
        clock: Clock,
        dead_letters: DeadLetterStore,
        memory: MemoryBudget,
    ) -> None:
        self.name = name
        self.state = state
        self.options = options
        self.paused = False
        self.ephemeral = is_ephemeral(name)
        self.subscribers: dict[int, Subscriber] = {}
        self._topic = topic
        self._journal = journal
        self._memory = memory
        self._time = WallTime(clock, state)
        self._alarm = ChannelAlarm(self.schedule)
        self._drops = DropPolicy(state, dead_letters)
        self.counters = self._drops.counters
        self._ready_consumers = ReadyConsumers(state.in_flight)
        self._delivery = MessageDelivery(topic, state, self._ready_consumers, self._drops, memory)
        self._counted_from = sum(progress.next for progress in state.progress)
        self._scheduled = False
        self._closed = False
        self._failed = False

    # -- consumers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a consumer.

        Raises:
            Unavailable: The channel has stopped after an exception.
        """
        if self._failed:
            raise Unavailable(
                f"channel {self.name} stopped after an unexpected exception, which is in the"
                " broker's log: restart the broker to restore the channel from its journal"
            )
        self.subscribers[subscriber.number] = subscriber
        self.wake(subscriber)

    def wake(self, subscriber: Subscriber) -> None:
        """Check again a consumer whose RDY or connection may allow more messages."""
        self._ready_consumers.update(subscriber)
        self.schedule()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a consumer; its messages are redelivered at once, or after their time-out."""
        self.subscribers.pop(subscriber.number, None)
        self._ready_consumers.remove(subscriber)
        if self.options.requeue_on_disconnect and not self._closed:
            # Due at once, and without reading the clock: no failure may prevent the redelivery.
            try:
                self.state.release(subscriber.number, self._time.last_ms)
            finally:
                self.schedule()

    def finish(self, subscriber: Subscriber, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Finish messages; return those that were not in flight for this consumer."""
        done = self.state.finish(subscriber.number, ids)
        self.wake(subscriber)
        return ids if not done.any() else ids[~done]

    def requeue(self, subscriber: Subscriber, message: int, delay_ms: int) -> bool:
        """Redeliver a message after a delay; False if it was not in flight for this consumer."""
        due_ms = self._time.now_ms() + delay_ms
        done = self.state.requeue(subscriber.number, message, due_ms)
        self.wake(subscriber)
        return done

    def touch(self, subscriber: Subscriber, message: int, max_timeout_ms: int) -> bool:
        """Extend the time-out of a message; False if it was not in flight for this consumer."""
        return self.state.in_flight.touch(
            subscriber.number,
            message,
            self._time.now_ms(),
            subscriber.message_timeout_ms,
            max_timeout_ms,
        )

    # -- the whole channel

    def counts(self) -> ChannelCounts:
        """Return the number of messages in each state."""
        return self.state.counts(self._topic.position())

    @property
    def backend_depth(self) -> int:
        """Return how many undelivered messages would be read from the disk.

        Messages that were delivered before are not counted.
        """
        oldest = [feed.oldest for feed in self._topic.feeds]
        ends = [min(pair) for pair in zip(self._topic.position(), oldest, strict=True)]
        return self.state.counts(ends).fresh

    @property
    def message_count(self) -> int:
        """Return how many messages the channel has received since the broker started."""
        return max(0, sum(self._topic.position()) - self._counted_from)

    def clear(self) -> None:
        """Finish all messages, including those in flight and deferred."""
        self.seek(self._topic.position())

    def pass_over(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Finish undelivered messages between two offsets of each stream partition."""
        try:
            for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
                progress = self.state.progress[partition]
                if max(start, progress.next) < end:
                    self.state.skip(partition, max(start, progress.next), end)
        finally:
            self.schedule()  # also reports a state that is half changed

    def trim_below(self, partition: int, offset: int) -> None:
        """Finish and count messages that were deleted before they were delivered or finished."""
        try:
            self.counters.trimmed += self.state.drop_below(partition, offset)
        finally:
            self.schedule()

    async def keep(self, *, durable: bool = False) -> None:
        """Return once the current state survives a kill of the broker.

        Args:
            durable: Wait until the state, including earlier writes, survives a power loss.

        Raises:
            Unavailable: The disk write failed; it will be retried.
        """
        if self._journal is not None:
            await self._journal.keep(durable=durable)

    def seek(self, offsets: Sequence[int | None]) -> None:
        """Continue at an offset of each stream partition, back or forward; None: no change."""
        try:
            for partition, offset in enumerate(offsets):
                if offset is not None:
                    self.state.seek(partition, offset)
            for subscriber in self.subscribers.values():
                self._ready_consumers.update(subscriber)  # no message is in flight for it now
        finally:
            self.schedule()

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume deliveries."""
        self.paused = paused
        self.schedule()

    def close(self) -> None:
        """Stop, and close the consumers. The state on disk is not changed."""
        self._closed = True
        steps = CleanupSteps()
        for subscriber in tuple(self.subscribers.values()):
            steps.take(subscriber.evict)
        steps.take(self._drops.close)
        steps.take(self._alarm.cancel)
        steps.take(self._memory.hold, self, 0)
        steps.finish()

    async def shut(self) -> None:
        """Stop, and close the files after everything is written."""
        try:
            self.close()
        finally:
            if self._journal is not None:
                await self._journal.close()

    def schedule(self) -> None:
        """Run the pump in the next iteration of the loop."""
        if not self._scheduled and not self._closed:
            asyncio.get_running_loop().call_soon(self._pump)
            self._scheduled = True  # set last: if `call_soon` raises, a later call tries again

    # -- the pump

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - the outermost handler of a callback
            self._turn_failed(error)

    def _take_turn(self) -> None:
        if not self.state.is_whole:
            raise RuntimeError("a change of the channel's state was interrupted by an exception")
        now_ms = self._time.now_ms()
        try:
            for number in self.state.expire(now_ms):
                if number in self.subscribers:
                    self._ready_consumers.update(self.subscribers[number])
            if not self.paused:
                self._deliver(now_ms)
        finally:
            for transfer in self._drops.begun_transfers():
                transfer.add_done_callback(self._transfer_ended)
            if self._journal is None:
                self._drops.trim_backlog(self._topic.position(), self.options.max_backlog)
            else:
                self._journal.note()
        self._memory.hold(self, self.state.memory_bytes)
        self._alarm.set(self.state.next_event_ms(), now_ms)

    def _deliver(self, now_ms: int) -> None:
        """Deliver some batches; continue in the next iteration, or when more can be delivered."""
        for _ in range(_TURN_BATCHES):
            result = self._delivery.deliver(self.options, now_ms)
            if result.needs_memory:
                self._memory.when_room(self.schedule)
            for feed, offset in result.unread:
                feed.when_read(offset, self.schedule)
            if not result.progressed:
                return
        self.schedule()

    def _transfer_ended(self, _transfer: asyncio.Task[None]) -> None:
        self.schedule()

    def _turn_failed(self, error: Exception) -> None:
        if self.state.is_whole:
            _logger.error(
                "channel %s: a turn of the pump failed, will retry", self.name, exc_info=error
            )
            now_ms = self._time.last_ms
            self._alarm.set(now_ms + _RETRY_MS, now_ms)
            return
        self._failed = True
        text = f"channel {self.name}: an exception interrupted a change of its state, so it stops"
        # A RuntimeError ends the process, for any cause: the loop's handler only logs an OSError,
        # which usually concerns a single connection.
        fault = RuntimeError(text)
        fault.__cause__ = error
        try:
            self.close()
        finally:
            report(text, fault)
