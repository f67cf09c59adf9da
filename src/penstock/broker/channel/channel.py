"""A channel at work: its state, the journal that keeps it, its consumers, and the pump.

Owns when the pump runs, that it runs in turns of bounded length, so that nobody waits long for the
event loop, and the channel's end. Does not own what consumers get next (`serving`), what state a
message is in (`state`) nor what is not delivered any more (`giveup`).

Invariants: used on the broker's event loop only. Whoever changes what could be given out asks for a
turn of the pump (`Channel.schedule`), and has it once however often it asks. A turn that raises is
tried again after a second. If an exception ended a change of the state half way, the channel
refuses all work, and the exception goes to the event loop's exception handler: a restart restores
the state from the journal.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.channel.alarm import Alarm
from penstock.broker.channel.consumers import Takers
from penstock.broker.channel.giveup import GiveUp
from penstock.broker.channel.serving import Serving
from penstock.broker.channel.walltime import WallTime
from penstock.broker.names import is_ephemeral
from penstock.core.errors import Unavailable
from penstock.core.looptasks import report
from penstock.core.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from penstock.broker.channel.consumers import Subscriber
    from penstock.broker.channel.feed import FeedingTopic
    from penstock.broker.channel.giveup import DeadLetters
    from penstock.broker.channel.keeping import ChannelKeeper
    from penstock.broker.channel.options import ChannelOptions
    from penstock.broker.channel.state.state import ChannelCounts, ChannelState
    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_TURN_BATCHES: Final = 8
_RETRY_MS: Final = 1_000


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
        self.name = name
        self.state = state
        self.options = options
        self.paused = False
        self.ephemeral = is_ephemeral(name)
        self.subscribers: dict[int, Subscriber] = {}
        self._topic = topic
        self._keeper = keeper
        self._memory = memory
        self._time = WallTime(clock, state)
        self._alarm = Alarm(self.schedule)
        self._given_up = GiveUp(state, dead_letters, self.schedule)
        self.counters = self._given_up.counters
        self._takers = Takers(state.in_flight)
        self._serving = Serving(topic, state, self._takers, self._given_up, memory, self.schedule)
        self._counted_from = sum(progress.next for progress in state.progress)
        self._scheduled = False
        self._closed = False
        self._failed = False

    # -- consumers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a consumer.

        Raises:
            Unavailable: The channel refuses all work after an exception.
        """
        if self._failed:
            raise Unavailable(
                f"channel {self.name} stopped after an unexpected exception: the broker's log has"
                " it; the channel is whole again after a restart of the broker"
            )
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
            # Due at once, and without the clock: nothing may keep them from coming again.
            self.state.release(subscriber.number, self._time.last_ms)
            self.schedule()

    def finish(self, subscriber: Subscriber, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Be done with messages; returns those that were not in flight for this consumer."""
        done = self.state.finish(subscriber.number, ids)
        self.wake(subscriber)
        return ids if not done.any() else ids[~done]

    def requeue(self, subscriber: Subscriber, message: int, delay_ms: int) -> bool:
        """Let a message come again after a delay; False if it was not in flight for this one."""
        due_ms = self._time.now_ms() + delay_ms
        done = self.state.requeue(subscriber.number, message, due_ms)
        self.wake(subscriber)
        return done

    def touch(self, subscriber: Subscriber, message: int, max_timeout_ms: int) -> bool:
        """Give a consumer more time; False if the message was not in flight for it."""
        return self.state.in_flight.touch(
            subscriber.number,
            message,
            self._time.now_ms(),
            subscriber.message_timeout_ms,
            max_timeout_ms,
        )

    # -- the whole channel

    def counts(self) -> ChannelCounts:
        """Return how many messages are in which state."""
        return self.state.counts(self._topic.position())

    @property
    def backend_depth(self) -> int:
        """Return how many of the messages that wait would be read from the disk for the first time.

        What was given out before is left out.
        """
        oldest = [feed.oldest for feed in self._topic.feeds]
        ends = [min(pair) for pair in zip(self._topic.position(), oldest, strict=True)]
        return self.state.counts(ends).fresh

    @property
    def message_count(self) -> int:
        """Return how many messages came to the channel since the broker started."""
        return max(0, sum(self._topic.position()) - self._counted_from)

    def clear(self) -> None:
        """Be done with everything that is there, in flight and deferred, too."""
        self.seek(self._topic.position())

    def pass_over(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Be done with what was never given out between two offsets of each stream partition."""
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
            progress = self.state.progress[partition]
            if max(start, progress.next) < end:
                self.state.skip(partition, max(start, progress.next), end)
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
        steps = Steps()
        for subscriber in tuple(self.subscribers.values()):
            steps.take(subscriber.evict)
        steps.take(self._given_up.close)
        steps.take(self._alarm.cancel)
        steps.take(self._memory.hold, self, 0)
        steps.finish()

    async def shut(self) -> None:
        """Stop, and let go of the files, when all is written."""
        try:
            self.close()
        finally:
            if self._keeper is not None:
                await self._keeper.close()

    def schedule(self) -> None:
        """Look, in the next turn of the loop, whether there is something to give out."""
        if not self._scheduled and not self._closed:
            asyncio.get_running_loop().call_soon(self._pump)
            self._scheduled = True  # behind it: if it raises, the next one asks again

    # -- the pump

    def _pump(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - the top of a callback
            self._turn_failed(error)

    def _take_turn(self) -> None:
        if not self.state.is_whole:
            raise RuntimeError("a change of the channel's state was ended half way")
        now_ms = self._time.now_ms()
        try:
            for number in self.state.expire(now_ms):
                if number in self.subscribers:
                    self._takers.look(self.subscribers[number])
            if not self.paused:
                for _ in range(_TURN_BATCHES):
                    if not self._serving.serve(self.options, now_ms):
                        break
                else:
                    self.schedule()
        finally:
            if self._keeper is None:
                self._given_up.shed(self._topic.position(), self.options.max_backlog)
            else:
                self._keeper.note()
        self._memory.hold(self, self.state.memory_bytes)
        self._alarm.set(self.state.next_event_ms(), now_ms)

    def _turn_failed(self, error: Exception) -> None:
        if self.state.is_whole:
            _logger.error(
                "channel %s: a turn failed, and is tried again", self.name, exc_info=error
            )
            now_ms = self._time.last_ms
            self._alarm.set(now_ms + _RETRY_MS, now_ms)
            return
        self._failed = True
        text = f"channel {self.name}: an exception left its state half changed, so it stops"
        # Of a kind that ends the process, whatever the cause was: the loop's handler only logs
        # errors of the system, which are trouble of one connection.
        fault = RuntimeError(text)
        fault.__cause__ = error
        try:
            self.close()
        finally:
            report(text, fault)
