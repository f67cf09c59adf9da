"""What channels do with messages that they may not deliver: too old, tried too often, too many."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.broker import message_id
from penstock.broker.channel.channel import Channel
from penstock.broker.channel.channel_store import ChannelStore
from penstock.broker.channel.delivery import Delivery
from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.topics.channel_changes import ChannelChanges
from penstock.broker.topics.topic_changes import TopicChanges
from penstock.broker.topics.topic_registry import Topics
from penstock.core.errors import Unavailable
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.stepped_loop_kit import change_inline, run_stepped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from penstock.broker.topics.topic import Topic


class Taker:
    """A consumer that takes what it is given."""

    sample_rate = 0
    writable = True
    message_timeout_ms = 30_000

    def __init__(self, ready: int, number: int = 1) -> None:
        self.number = number
        self.ready = ready
        self.bodies: list[bytes] = []
        self.ids: list[int] = []

    def deliver(self, batch: Delivery) -> None:
        self.bodies += batch.messages.to_pylist()
        self.ids += batch.ids.tolist()

    def evict(self) -> None:
        self.ready = 0


class ClockThatIsSet(VirtualClock):
    """A clock whose wall time somebody sets; monotonic time goes on."""

    step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


class DeadLetters:
    """Takes dead letters, after it has refused some."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.bodies: list[bytes] = []

    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        assert topic == "dead"
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("full")
        self.bodies += messages.to_pylist()


def play(
    options: ChannelOptions,
    story: Callable[[Topic, Channel, VirtualClock], Awaitable[None]],
    *,
    dead_letters: DeadLetters | None = None,
    name: str = "c",
    clock: VirtualClock | None = None,
) -> None:
    clock, fs = clock or VirtualClock(), CrashableFileSystem()
    store = ChannelStore(fs, clock, options, dead_letters or DeadLetters())

    async def run() -> None:
        queue_options = DiskQueueOptions(sync_in_background=False)
        topics = Topics.open(
            "/topics", queue_options=queue_options, channels=store, fs=fs, clock=clock
        )
        changes = TopicChanges(topics)
        change_inline(changes)
        topic = await changes.create("t", 1)
        channel = await ChannelChanges(topics, changes).find_or_create(topic, name)
        await story(topic, channel, clock)
        await channel.shut()
        topics.close()

    run_stepped(clock, run())


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def publish(topic: Topic, *bodies: bytes) -> None:
    topic.append(0, list(bodies), sum(map(len, bodies)))


def test_messages_that_are_too_old_go_and_younger_ones_of_the_same_read_come() -> None:
    async def story(topic: Topic, channel: Channel, _: VirtualClock) -> None:
        publish(topic, b"old")
        await asyncio.sleep(0.6)
        publish(topic, b"young")
        await asyncio.sleep(0.5)
        taker = Taker(10)
        channel.subscribe(taker)
        await turns()
        assert (taker.bodies, channel.counters.expired) == ([b"young"], 1)
        # It is not delivered again when it is too old by then.
        channel.requeue(taker, taker.ids[0], 600)
        await asyncio.sleep(1.0)
        assert (taker.bodies, channel.counters.expired) == ([b"young"], 2)
        assert channel.state.progress[0].floor == 2

    play(ChannelOptions(message_ttl_ms=1_000), story)


def test_what_is_given_up_does_not_stop_what_comes_behind_it() -> None:
    async def story(topic: Topic, channel: Channel, _: VirtualClock) -> None:
        publish(topic, b"bad", b"good")
        taker = Taker(1)
        channel.subscribe(taker)
        await turns()
        for _attempt in range(3):
            channel.requeue(taker, taker.ids[-1], 0)
            await turns()
        assert taker.bodies == [b"bad"] * 3 + [b"good"]
        assert (channel.counters.out_of_attempts, channel.counters.dead_lettered) == (1, 0)

    play(ChannelOptions(max_attempts=3), story)


def test_dead_letters_are_put_again_until_they_are_taken() -> None:
    letters = DeadLetters(refusals=2)

    async def story(topic: Topic, channel: Channel, _: VirtualClock) -> None:
        publish(topic, b"bad", b"good")
        taker = Taker(1)
        channel.subscribe(taker)
        await turns()
        channel.requeue(taker, taker.ids[-1], 0)
        await turns()
        assert (taker.bodies, letters.bodies) == ([b"bad", b"good"], [])
        assert channel.state.progress[0].floor == 0, (
            "it is not done with before the other topic has it"
        )
        channel.finish(taker, np.array(taker.ids[-1:]))
        await asyncio.sleep(3.0)
        assert letters.bodies == [b"bad"]
        assert (channel.counters.dead_lettered, channel.state.progress[0].floor) == (1, 2)

    options = ChannelOptions(max_attempts=1, dead_letter_topic="dead")
    play(options, story, dead_letters=letters)


def test_dead_letters_on_their_way_are_bounded() -> None:
    class Slow(DeadLetters):
        """Takes them when it is let."""

        def __init__(self) -> None:
            super().__init__()
            self.waiting = 0
            self.most = 0
            self.may = asyncio.Event()

        async def put(self, topic: str, messages: pa.BinaryArray) -> None:
            self.waiting += messages.nbytes
            self.most = max(self.most, self.waiting)
            await self.may.wait()
            self.waiting -= messages.nbytes
            await super().put(topic, messages)

    slow = Slow()

    async def story(topic: Topic, channel: Channel, clock: VirtualClock) -> None:
        bodies = [b"%05d" % number * 10_000 for number in range(300)]  # fifteen megabytes
        publish(topic, *bodies)
        taker = Taker(300)
        channel.subscribe(taker)
        await asyncio.sleep(1)
        for number in taker.ids:
            channel.requeue(taker, number, 0)
        await asyncio.sleep(1)
        assert 0 < slow.most < 6 << 20
        slow.may.set()
        await asyncio.sleep(1)
        assert sorted(slow.bodies) == bodies
        assert channel.counters.dead_lettered == 300
        assert channel.state.progress[0].floor == 300

    options = ChannelOptions(max_attempts=1, dead_letter_topic="dead")
    play(options, story, dead_letters=slow)


def test_an_ephemeral_channel_keeps_the_oldest_and_counts_what_went() -> None:
    async def story(topic: Topic, channel: Channel, _: VirtualClock) -> None:
        publish(topic, *(b"%d" % number for number in range(12)))
        await turns()
        assert (channel.counts().depth, channel.counters.trimmed, channel.message_count) == (
            5,
            7,
            12,
        )
        assert topic.held_back(0) == ({"channel tail#ephemeral": 7}, False)
        publish(topic, b"12")
        await turns()
        assert (channel.counts().depth, channel.counters.trimmed) == (5, 8)
        taker = Taker(2)
        channel.subscribe(taker)
        await turns()
        assert taker.bodies == [b"0", b"1"]
        publish(topic, *(b"%d" % number for number in range(13, 20)))
        await turns()
        assert (channel.counts().depth, channel.counters.trimmed) == (5, 13)
        taker.ready = 100
        channel.wake(taker)
        await turns()
        assert taker.bodies == [b"0", b"1", b"2", b"3", b"4", b"13", b"14"]
        channel.finish(taker, np.array(taker.ids))
        assert channel.state.progress[0].floor == 20
        assert message_id.split(taker.ids[-1]) == (0, 14)

    play(ChannelOptions(max_backlog=5), story, name="tail#ephemeral")


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_makes_no_message_late_and_takes_no_consumers_time(hours: int) -> None:
    clock = ClockThatIsSet()

    async def story(topic: Topic, channel: Channel, _: VirtualClock) -> None:
        publish(topic, b"held", b"requeued")
        taker = Taker(2)
        channel.subscribe(taker)
        await turns()
        channel.requeue(taker, taker.ids[1], 20_000)
        await asyncio.sleep(1.0)
        clock.step_ms = hours * 3_600_000
        channel.schedule()
        await asyncio.sleep(10.0)
        # Where the clock went forward, what was requeued comes early, and nothing is held shorter.
        assert taker.bodies == [b"held", b"requeued"] + [b"requeued"] * (hours > 0)
        await asyncio.sleep(12.0)
        assert taker.bodies == [b"held", b"requeued", b"requeued"]
        await asyncio.sleep(7.5)
        assert taker.bodies[3:] == [b"held"]
        clock.step_ms = 0
        assert channel.touch(taker, taker.ids[-1], 60_000)
        assert channel.requeue(taker, taker.ids[-1], 0)
        await turns()
        assert taker.bodies[3:] == [b"held", b"held"]
        assert channel.counts().deferred == 0

    play(ChannelOptions(), story, clock=clock)
