"""Where a channel gets its messages: from memory, or read from the disk piece by piece."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from penstock.broker.channel.feed import Feed
from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.broker.options import BrokerOptions
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.broker_kit import RunningBroker
from tests.broker.stepped_loop_kit import run_stepped
from tests.broker.v2_kit import V2


def test_a_channel_after_a_pause_without_any_reads_what_came_meanwhile(
    options: BrokerOptions,
) -> None:
    with RunningBroker(replace(options, tcp_port=0)) as broker:
        port = broker.server.broker.tcp_port
        with V2(port) as producer, V2(port) as first, V2(port) as second:
            first.subscribe("t", "a")
            producer.publish("t", b"heard")
            first.finish(first.message().id)
            first.send(b"NOP\n")
            assert broker.ask("POST", "/channel/delete?topic=t&channel=a").status == 200
            producer.publish("t", b"unheard")
            second.subscribe("t", "b", ready=10)
            assert second.message().body == b"unheard"


def test_a_read_of_very_many_small_blocks_takes_bounded_memory_and_wakes_each_once() -> None:
    clock = VirtualClock()
    budget = MemoryBudget(1 << 30)
    woken: list[int] = []

    async def live() -> None:
        options = DiskQueueOptions(sync_in_background=False)
        with DiskQueue.open("/q", options, fs=CrashableFileSystem(), clock=clock) as queue:
            for _ in range(13_000):
                queue.append([b"x"])
            feed = Feed(queue, 0, 1 << 21, budget)
            place = 0
            while place < queue.latest:
                found = feed.slice(place, queue.latest)
                if found is not None:
                    place = found.end
                    continue
                woken.clear()
                wake = partial(woken.append, place)
                for _ in range(100):
                    feed.when_read(place, wake)
                await asyncio.sleep(0.01)  # of the virtual clock: the read is done on the spot
                assert woken == [place]
                assert budget.cached_bytes < 5 << 20

    run_stepped(clock, live())
    assert 0 < budget.peak_bytes < 5 << 20
