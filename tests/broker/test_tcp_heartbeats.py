"""The plan of heartbeats, under a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.tcp.heartbeats import Heartbeats
from penstock.testing.clock import VirtualClock
from tests.broker.stepped_loop_kit import run_stepped


class Client:
    """Notes when it beats; what it does then is the test's."""

    def __init__(self, plan: Heartbeats, interval_s: float) -> None:
        self.heartbeat_slot = 0
        self.beats: list[float] = []
        self.plan = plan
        self.interval_s = interval_s
        self.ends: list[Client] = []

    def send_heartbeat(self, now_s: float) -> None:
        self.beats.append(now_s)
        for other in self.ends:
            self.plan.forget(other)
        self.plan.plan(self, self.interval_s)


def test_each_beats_at_its_interval_and_little_later() -> None:
    clock = VirtualClock()
    start = clock.monotonic_s()

    async def live() -> list[Client]:
        plan = Heartbeats()
        clients = [Client(plan, interval_s) for interval_s in (1.0, 1.03, 30.0, 7.77)]
        for client in clients:
            plan.plan(client, client.interval_s)
        await asyncio.sleep(60.5)
        return clients

    for client in run_stepped(clock, live()):
        assert client.beats
        before = start
        for at in client.beats:
            late_s = max(0.101, client.interval_s / 30 + 0.001)
            assert client.interval_s <= at - before <= client.interval_s + late_s
            before = at
        assert 60.5 - (before - start) < client.interval_s + 1.1


def test_a_connection_that_ends_in_the_beat_of_another_does_not_beat() -> None:
    clock = VirtualClock()

    async def live() -> list[Client]:
        plan = Heartbeats()
        clients = [Client(plan, 1.0) for _ in range(2)]
        clients[0].ends, clients[1].ends = [clients[1]], [clients[0]]
        for client in clients:
            plan.plan(client, 1.0)
        await asyncio.sleep(5.5)
        return clients

    counts = sorted(len(client.beats) for client in run_stepped(clock, live()))
    assert counts == [0, 5]


def test_a_new_interval_replaces_the_old_one() -> None:
    clock = VirtualClock()

    async def live() -> Client:
        plan = Heartbeats()
        client = Client(plan, 1.0)
        plan.plan(client, 30.0)
        plan.plan(client, 1.0)
        await asyncio.sleep(3.5)
        plan.forget(client)
        await asyncio.sleep(60.0)
        return client

    assert len(run_stepped(clock, live()).beats) == 3


def test_without_connections_nothing_is_planned() -> None:
    clock = VirtualClock()

    async def live() -> None:
        plan = Heartbeats()
        client = Client(plan, 1.0)
        plan.plan(client, 1.0)
        plan.forget(client)
        await asyncio.sleep(2.0)
        # The stepped loop raises where it would wait for nothing: with no timer left it must.
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing will bring about"):
        run_stepped(clock, live())
