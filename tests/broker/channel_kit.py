"""A topic and its channels on a disk that stops at any step, and a model of what must hold.

The model knows of each channel what may come after a kill -9 and after a power loss: what was done
and written is done for ever, what was not done comes, and nothing else ever.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.broker import message_id
from penstock.broker.channel.channel_store import ChannelStore
from penstock.broker.channel.delivery import Delivery
from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.maintenance import sync_leftovers
from penstock.broker.topics.channel_changes import ChannelChanges
from penstock.broker.topics.topic_changes import TopicChanges
from penstock.broker.topics.topic_registry import Topics
from penstock.core.errors import PenstockError
from penstock.storage.queue.disk_queue import DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.broker.stepped_loop_kit import change_inline, run_stepped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from penstock.broker.channel.channel import Channel
    from penstock.broker.topics.topic import Topic

FOLDER = "/topics"
OPTIONS = DiskQueueOptions(max_bytes_per_file=700, sync_in_background=False)
LATER_MS = 60_000


class NoDeadLetters:
    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        raise AssertionError


@dataclass
class View:
    """What a channel may be found to be: all from `start` on comes, but for what is done."""

    start: int
    done: set[int] = field(default_factory=set)

    def wanted(self, latest: int) -> set[int]:
        return set(range(self.start, latest)) - self.done


@dataclass
class Known:
    """What is known of a channel."""

    possible: list[View]
    there: bool | None = None  # None: it may be there
    kill_from: int = 0  # the first of the possible views that a kill -9 may leave
    kept: set[int] = field(default_factory=set)  # done, also after a kill -9
    durable: set[int] = field(default_factory=set)  # done, also after a power loss
    waits: dict[int, int] = field(default_factory=dict)  # not to come before
    waits_kept: dict[int, int] = field(default_factory=dict)
    waits_durable: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    attempts_kept: dict[int, int] = field(default_factory=dict)
    attempts_durable: dict[int, int] = field(default_factory=dict)
    paused: bool | None = False
    journal: list[str] = field(default_factory=list)

    @property
    def view(self) -> View:
        return self.possible[-1]


class Taker:
    """A consumer that takes what it is given and waits for the test."""

    sample_rate = 0
    writable = True

    def __init__(
        self, world: ChannelWorld, channel: str, number: int, timeout_ms: int = 30_000
    ) -> None:
        self.number = number
        self.ready = 0
        self.message_timeout_ms = timeout_ms
        self.held: list[int] = []
        self._world = world
        self._channel = channel

    def deliver(self, batch: Delivery) -> None:
        attempts = np.broadcast_to(batch.attempts, len(batch.ids)).tolist()
        bodies = batch.messages.to_pylist()
        for number, tries, body in zip(batch.ids.tolist(), attempts, bodies, strict=True):
            _, offset = message_id.split(number)
            self._world.delivered(self._channel, offset, body, tries)
            if number not in self.held:  # it may have timed out
                self.held.append(number)

    def evict(self) -> None:
        self.ready = 0


class ChannelWorld:
    """One topic, its channels and their consumers, over any number of crashes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.fs = CrashableFileSystem()
        self.candidates: dict[int, set[bytes]] = {}
        self.visible: dict[int, bytes] = {}
        self.due: dict[int, int] = {}  # of messages that were published with a delay
        self.promised = 0
        self.latest = 0
        self.known: dict[str, Known] = {}
        self.takers: dict[str, Taker] = {}
        self.held: int | None = 0
        self.paused: bool | None = None  # unknown, as is whether there is a topic
        self.faulty = False
        self.number = 0
        self.came: dict[str, dict[int, int]] | None = None
        self.power = False
        self.looked = True
        self.log: list[str] = []

    # -- the broker

    async def open(self) -> None:
        store = ChannelStore(self.fs, self.clock, ChannelOptions(), NoDeadLetters())
        self.topics = Topics.open(
            FOLDER,
            queue_options=OPTIONS,
            channels=store,
            fs=self.fs,
            clock=self.clock,
            new_id=lambda: "id",
        )
        self.changes = TopicChanges(self.topics)
        change_inline(self.changes)
        self.channel_changes = ChannelChanges(self.topics, self.changes)

    @property
    def topic(self) -> Topic:
        return self.topics.get("t")

    def channel(self, name: str) -> Channel:
        return self.topic.channel(name)

    # -- one operation, and what the model makes of it

    async def do(self, operation: Callable[[], Awaitable[None]]) -> None:
        before = {name: set(known.view.done) for name, known in self.known.items()}
        views = {name: known.view for name, known in self.known.items()}
        self.log.append(f"{self.fs.steps} {operation.__name__}")
        try:
            await operation()
        except PenstockError as error:
            self.log.append(f"  failed: {error}")
        self.alive()
        self.promised = max(self.promised, self.topic.queues[0].durable)
        for name, known in self.known.items():
            folder = f"{self.topic.folder}/channels/{name}"
            names = self.fs.listdir(folder) if self.fs.exists(folder) else []
            compacted = len(names) == 1 and known.journal and names[0] not in known.journal
            if compacted and known.view is views.get(name):
                known.durable |= before[name]
                known.possible = [known.view]
                known.kill_from = 0
            known.journal = names

    def alive(self) -> None:
        """End here if something beside the story met the end."""
        if self.fs.powerless:
            raise PowerLoss

    async def turns(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        self.alive()

    async def publish(self, count: int = 0, delay_ms: int = 0, *, sync: bool | None = None) -> None:
        base = self.latest
        batch = []
        for index in range(count or self.rng.randint(1, 5)):
            self.number += 1
            body = f"{self.number}-".encode() * self.rng.randint(1, 40)
            batch.append(body)
            self.candidates.setdefault(base + index, set()).add(body)
        due_ms = self.clock.now_ms() + delay_ms if delay_ms else 0
        self.topic.append(0, batch, sum(map(len, batch)), due_ms=due_ms)
        self.latest = base + len(batch)
        for index, body in enumerate(batch):
            self.visible[base + index] = body
            self.due[base + index] = due_ms
        await self.turns()
        if sync if sync is not None else self.rng.random() < 0.4:
            await asyncio.wrap_future(self.topic.queues[0].request_sync())

    async def create_channel(self, name: str) -> None:
        if name in self.topic.channels:
            return
        known = Known([View(self.topic.position()[0])])
        self.known[name] = known
        if not self.topic.paused:
            self.held = None
        await self.channel_changes.find_or_create(self.topic, name)
        known.there = True
        self.subscribe(name)

    def subscribe(self, name: str) -> None:
        self.number += 1
        self.takers[name] = Taker(self, name, self.number)
        self.channel(name).subscribe(self.takers[name])

    async def delete_channel(self, name: str) -> None:
        if name not in self.topic.channels:
            return
        known = self.known[name]
        known.there = None
        last, held = len(self.topic.channels) == 1, self.topic.position()[0]
        before, self.held = self.held, None
        try:
            await self.channel_changes.delete(self.topic, name)
        except PenstockError:
            if name in self.topic.channels:
                # It was loaded from its journal again, and may have forgotten as in a crash.
                raise PowerLoss from None
            raise
        known.there = False
        self.held = held if last or self.topic.paused else before

    async def pause(self, *, paused: bool) -> None:
        held = self.topic.position()[0] if paused or not self.topic.channels else None
        self.paused = self.held = None
        await self.changes.set_paused("t", paused=paused)
        self.paused, self.held = paused, held

    async def pause_channel(self, name: str, *, paused: bool) -> None:
        if name in self.topic.channels:
            self.known[name].paused = None
            await self.channel_changes.set_paused(self.topic, name, paused=paused)
            self.known[name].paused = paused

    async def take(self, name: str, ready: int) -> None:
        taker = self.takers.get(name)
        if taker is not None and name in self.topic.channels:
            taker.ready = ready
            self.channel(name).wake(taker)
            await self.turns()

    async def finish(self, name: str, share: float) -> None:
        taker = self.takers.get(name)
        if taker is None or name not in self.topic.channels:
            return
        chosen = [number for number in taker.held if self.rng.random() < share]
        taker.held = [number for number in taker.held if number not in chosen]
        failed = self.channel(name).finish(taker, np.array(chosen, np.int64)).tolist()
        done = {message_id.split(number)[1] for number in chosen if number not in failed}
        known = self.known[name]
        known.view.done |= done
        for offset in done:
            known.waits.pop(offset, None)
        await self.turns()

    async def requeue(self, name: str, delay_ms: int) -> None:
        taker = self.takers.get(name)
        if taker is None or name not in self.topic.channels or not taker.held:
            return
        number = taker.held.pop(self.rng.randrange(len(taker.held)))
        taker.ready = 0  # or it comes back at once
        if not self.channel(name).requeue(taker, number, delay_ms):
            return
        known, (_, offset) = self.known[name], message_id.split(number)
        known.waits[offset] = due_ms = self.clock.now_ms() + delay_ms
        await self.turns()
        if not self.faulty:
            # It goes to the journal at the end of the turn, and survives a kill from then on.
            known.waits_kept[offset] = due_ms
            known.attempts_kept[offset] = known.attempts[offset]

    async def touch(self, name: str) -> None:
        taker = self.takers.get(name)
        if taker is not None and name in self.topic.channels and taker.held:
            self.channel(name).touch(taker, taker.held[0], 900_000)

    async def reconnect(self, name: str) -> None:
        if name in self.topic.channels:
            self.channel(name).unsubscribe(self.takers[name])
            self.subscribe(name)
            await self.turns()

    async def seek(self, name: str, offset: int) -> None:
        """Go on elsewhere; at the end it is emptying the channel."""
        if name not in self.topic.channels:
            return
        known = self.known[name]
        known.possible.append(View(offset))
        known.kept = known.kept & set(range(offset))
        known.durable = known.durable & set(range(offset))
        known.waits, known.waits_kept, known.attempts = {}, {}, {}
        known.attempts_kept = {}
        known.waits_durable, known.attempts_durable = {}, {}
        self.takers[name].held = []
        self.channel(name).seek([offset])
        await self.turns()
        await self.channel(name).keep()
        known.kill_from = len(known.possible) - 1

    async def empty_topic(self) -> None:
        held, latest = self.topic.held, self.latest
        before, self.held = self.held, None
        if held is not None:
            for known in self.known.values():
                view = known.view
                after = View(view.start, view.done | set(range(self.topic.position()[0], latest)))
                known.possible.append(after)
        await self.changes.empty(self.topic)
        self.held = before if held is None else latest
        if held is not None:
            for name in self.topic.channels:
                self.known[name].kill_from = len(self.known[name].possible) - 1

    async def rest(self) -> None:
        """Until what happened is written."""
        # The journal is at most a tenth of a second behind.
        attempts = {name: dict(known.attempts) for name, known in self.known.items()}
        await asyncio.sleep(0.11)
        self.alive()
        for name, channel in self.topic.channels.items():
            if self.faulty:
                await channel.keep()
            known = self.known[name]
            known.kept |= known.view.done
            known.attempts_kept = attempts[name]
            known.kill_from = len(known.possible) - 1

    async def settle(self) -> None:
        """Until what happened is durable: the sync interval, and what is written late."""
        told = {
            name: (set(known.view.done), dict(known.waits), dict(known.attempts))
            for name, known in self.known.items()
        }
        await self.rest()
        # The server does it after a kill: the journals' last records may not be durable yet.
        await sync_leftovers(self.topics, lambda: True, self.clock)
        await asyncio.sleep(2.1)
        self.alive()
        for name, channel in self.topic.channels.items():
            if self.faulty:
                await channel.keep(durable=True)
            known = self.known[name]
            done, known.waits_durable, known.attempts_durable = told[name]
            known.durable |= done
            known.possible, known.kill_from = [known.view], 0

    async def time_passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.alive()

    async def retain(self) -> None:
        held, consumed = self.topic.held_back(0)
        retain = self.topic.queues[0].retention.retain
        await asyncio.to_thread(retain, self.clock.now_ms(), held=held, consumed=consumed)

    async def sync(self) -> None:
        await asyncio.wrap_future(self.topic.queues[0].request_sync())

    # -- what comes

    def delivered(self, name: str, offset: int, body: bytes, attempts: int) -> None:
        known, now_ms = self.known[name], self.clock.now_ms()
        assert body == self.visible[offset], f"{name}: {offset} was invented"
        assert now_ms >= self.due.get(offset, 0), f"{name}: {offset} came before it was due"
        assert now_ms >= known.waits.get(offset, 0), f"{name}: {offset} came back too early"
        if self.came is not None:
            assert offset not in self.came[name], f"{name}: {offset} came twice"
            self.came[name][offset] = attempts
            return
        assert offset >= known.view.start
        assert offset not in known.view.done, f"{name}: {offset} was finished"
        assert attempts == known.attempts.get(offset, 0) + 1, (name, offset)
        known.attempts[offset] = attempts

    # -- the end, and what is found after it

    def restart(self, *, power: bool, again: int = 0) -> None:
        """Come back after a kill -9 or a power loss, which comes again after so many steps."""
        self.log.append(f"{self.fs.steps} {'power loss' if power else 'kill'}")
        # Where nobody has looked yet, the one before is not over.
        self.power = power or (self.power and not self.looked)
        self.looked = False
        self.fs.forget_faults()
        self.fs = self.fs.crash(self.rng) if power else self.fs.kill_process()
        if again:
            self.fs.kill_at(self.fs.steps + again, keep_bytes=self.rng.choice((0, 30)))
            play(self, ChannelWorld.open)
            self.fs.forget_faults()
            self.fs = self.fs.crash(self.rng) if power else self.fs.kill_process()
        self.takers, self.faulty, self.came = {}, False, None

    async def look(self) -> None:
        """Open what is left, and see that everything is there that must be, and no more."""
        power = self.power
        await self.open()
        if self.topics.find("t") is None:
            assert self.paused is None, "the topic is gone"
            self.looked = True
            return
        self._look_at_queue(power=power)
        topic = self.topic
        for name, known in list(self.known.items()):
            if known.there is not None:
                assert (name in topic.channels) == known.there, f"{name}: {known.there}"
            if name not in topic.channels:
                del self.known[name]
            elif known.paused is not None:
                assert topic.channels[name].paused == known.paused, name
        assert set(topic.channels) == set(self.known)
        if self.paused is not None:
            assert topic.paused == self.paused, "topic paused"
        if self.held is not None and topic.held is not None:
            held = max(min(self.held, self.latest), topic.queues[0].earliest)
            assert topic.fed(0) == held, "where the topic stands is lost"
        for known in self.known.values():
            known.waits = known.waits_durable if power else known.waits_kept
            known.there = True
        self.came = {name: {} for name in self.known}
        await self._take_all()
        self.alive()
        self._compare(self.came, power=power)
        self.came = None
        self.looked = True
        for name in self.known:
            self.channel(name).unsubscribe(self.takers[name])
            self.subscribe(name)
        self.held = topic.fed(0) if topic.held is not None else None
        self.paused = False
        for name in self.known:
            await self.channel(name).keep()

    def _look_at_queue(self, *, power: bool) -> None:
        queue = self.topic.queues[0]
        found = {
            block.base_offset + index: body
            for block in queue.read(queue.earliest, 1 << 30)
            for index, body in enumerate(block.messages.to_pylist())
        }
        kept = self.promised if power else self.latest
        assert queue.latest >= kept
        for offset, body in self.visible.items():
            if queue.earliest <= offset < kept:
                assert found.get(offset) == body, f"{offset} is lost"
        for offset, body in found.items():
            assert body in self.candidates[offset]
        for known in self.known.values():
            if not known.there:
                continue
            wanted = known.view.wanted(queue.latest) & set(self.visible)
            gone = {offset for offset in wanted if offset < min(queue.earliest, kept)}
            assert not gone, f"the files of {gone} were deleted before their time"
        self.visible, self.latest = found, queue.latest
        self.candidates = {offset: {body} for offset, body in found.items()}
        self.due = {offset: due for offset, due in self.due.items() if offset < self.latest}
        self.promised = max(self.promised, queue.durable)
        if not power:
            return
        for known in self.known.values():
            for view in known.possible:
                view.start = min(view.start, self.latest)
                view.done = {offset for offset in view.done if offset < self.latest}
            known.durable = {offset for offset in known.durable if offset < self.latest}
            # Others get the offsets of what is gone.
            for told in (known.waits_durable, known.attempts_durable):
                for offset in [offset for offset in told if offset >= self.latest]:
                    del told[offset]
        if self.held is not None:
            self.held = min(self.held, self.latest)

    async def _take_all(self) -> None:
        self.paused = self.held = None
        await self.changes.set_paused("t", paused=False)
        for name, channel in self.topic.channels.items():
            self.known[name].paused = None
            await self.channel_changes.set_paused(self.topic, name, paused=False)
            self.number += 1
            self.takers[name] = Taker(self, name, self.number, 3_600_000)
            self.takers[name].ready = 1_000_000
            channel.subscribe(self.takers[name])
            self.known[name].paused = False
        await asyncio.sleep(2 * LATER_MS / 1000)

    def _compare(self, came: dict[str, dict[int, int]], *, power: bool) -> None:
        for name, known in self.known.items():
            found, there = set(came[name]), set(self.visible)
            possible = known.possible if power else known.possible[known.kill_from :]
            lost = [(view.wanted(self.latest) & there) - found for view in possible]
            assert not all(lost), f"{name}: lost {lost}"
            again = found & (known.durable if power else known.kept)
            assert not again, f"{name}: {again} were finished"
            first = min(view.start for view in possible)
            assert min(found, default=first) >= first, (name, first, possible)
            kept = known.attempts_durable if power else known.attempts_kept
            for offset, attempts in kept.items():
                assert offset not in found or came[name][offset] > attempts, (name, offset)
            view = View(0, set(range(self.latest)) - found)
            known.possible = [view] if power else [*known.possible, view]
            known.kill_from = len(known.possible) - 1
            known.kept = set(view.done)
            if power:
                known.durable = set(view.done)
            known.attempts = dict(came[name])
            known.attempts_kept, known.attempts_durable = {}, {}
            known.waits, known.waits_kept, known.waits_durable = {}, {}, {}
            known.journal = []


def play(world: ChannelWorld, story: Callable[[ChannelWorld], Awaitable[None]]) -> bool:
    """Run a part of a world's life; False when the power went away meanwhile."""

    async def run() -> bool:
        try:
            await story(world)
        except PowerLoss:
            return False
        finally:
            world.fs.powerless = True  # what still runs does no more
        return True

    return run_stepped(world.clock, run())
