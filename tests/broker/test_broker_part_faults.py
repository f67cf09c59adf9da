"""Parts of the broker whose ports raise what nobody expects, one by one."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.broker.channel import persistence
from penstock.broker.channel.channel_state import ChannelState
from penstock.broker.channel.feed import Feed
from penstock.broker.channel.persistence import ChannelJournal, JournalSyncs, restore, snapshot
from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.broker.tcp.heartbeats import Heartbeats
from penstock.storage.journal import Journal
from penstock.storage.queue.blocks import Block
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.broker.broker_faults_kit import BrokerWorld, Client, FaultyLoop, turns
from tests.broker.stepped_loop_kit import run_stepped
from tests.harness.call_faults_kit import FAULTS, Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ERRORS = [error for error in FAULTS if issubclass(error, Exception)]


class Source:
    """A queue whose first read raises."""

    latest = 3

    def __init__(self, error: type[BaseException]) -> None:
        self._errors = [error]

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        del max_bytes
        if self._errors:
            raise self._errors.pop()
        batch = pa.array([b"a", b"b", b"c"], pa.binary())
        return [Block(offset, 3, 0, batch, memoryview(b""), 0)]


@pytest.mark.parametrize("error", ERRORS)
def test_channels_that_wait_for_a_read_are_called_when_it_raises(error: type[Exception]) -> None:
    async def live() -> int:
        feed, tries = Feed(Source(error), 0, 1 << 20), 0
        while feed.slice(0, 3) is None:
            tries += 1
            called = asyncio.Event()
            feed.when_read(0, called.set)
            await called.wait()
        return tries

    assert run_stepped(VirtualClock(), live()) == 2


class Ended(BaseException):
    """An exception that no read expects, such as a power loss of a test."""


@pytest.mark.usefixtures("deaths")
def test_a_read_that_always_ends_its_job_is_not_repeated_without_a_pause() -> None:
    """Otherwise the loop would never rest, and time would stand still for everything else."""
    source, tries = Source(Ended), []

    def read(offset: int, max_bytes: int) -> list[Block]:
        del max_bytes
        tries.append(offset)
        raise Ended

    source.read = read  # type: ignore[method-assign]

    async def live() -> None:
        feed = Feed(source, 0, 1 << 20)

        def again() -> None:
            feed.when_read(0, again)

        again()
        await asyncio.sleep(10)
        feed.close()

    run_stepped(VirtualClock(), live())
    assert 5 < len(tries) < 15


def test_a_callback_that_raises_keeps_no_other_from_hearing_of_room() -> None:
    budget, called = MemoryBudget(1_000), []

    def fail() -> None:
        raise MemoryError

    budget.hold("owner", 900)
    budget.when_room(fail)
    budget.when_room(lambda: called.append(1))
    budget.hold("owner", 0)  # the owner's own work does not fail, either
    assert called == [1]


class HeartbeatConnection:
    heartbeat_slot = 0

    def __init__(self, plan: Heartbeats, error: type[BaseException] | None = None) -> None:
        self.beats = 0
        self._plan = plan
        self._error = error

    def send_heartbeat(self, now_s: float) -> None:
        del now_s
        self.beats += 1
        if self._error is not None:
            raise self._error
        self._plan.plan(self, 1.0)


def test_a_heartbeat_that_raises_stops_no_other() -> None:
    async def live() -> list[int]:
        plan = Heartbeats()
        beating = [
            HeartbeatConnection(plan),
            HeartbeatConnection(plan, MemoryError),
            HeartbeatConnection(plan),
        ]
        for one in beating:
            plan.plan(one, 1.0)
        await asyncio.sleep(5.5)
        return [one.beats for one in beating]

    assert run_stepped(VirtualClock(), live()) == [5, 1, 5]


def kept(
    story: Callable[[ChannelJournal, ChannelState, Faults], Coroutine[None, None, None]],
) -> tuple[ChannelState, ChannelState]:
    """Return a state after a story, and the one that its journal tells of after a kill."""
    clock, disk, faults = VirtualClock(), CrashableFileSystem(), Faults()
    state = ChannelState([0])

    async def live() -> None:
        fs = faults.port(disk, results=("create", "open_append", "open_read"))
        journal = Journal.open("/j", fs=fs, clock=clock)
        journal.compact(snapshot(state))
        keeper = ChannelJournal(journal, state, JournalSyncs(clock=clock))
        state.deliver(0, 0, 8, 1, 0, 60_000)
        await story(keeper, state, faults)
        await asyncio.sleep(5)
        await keeper.close()

    run_stepped(clock, live())
    after = Journal.open("/j", fs=disk.kill_process(), clock=clock)
    return state, restore(after.snapshot, after.records, [0], [8])[0]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", ERRORS)
def test_records_that_a_journal_did_not_take_are_written_later(
    error: type[Exception], after: bool
) -> None:
    async def story(keeper: ChannelJournal, state: ChannelState, faults: Faults) -> None:
        state.finish(1, np.arange(4))
        keeper.note()
        with faults.armed(error, 0, after=after):
            await asyncio.sleep(0.2)
        assert faults.raised

    state, found = kept(story)
    assert found.progress[0].done.floor == state.progress[0].done.floor == 4


@pytest.mark.parametrize("error", ERRORS)
def test_a_compaction_that_fails_is_tried_again(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.channel.persistence._COMPACT_BYTES", 10)

    async def story(keeper: ChannelJournal, state: ChannelState, faults: Faults) -> None:
        keeper._compact_above = 10
        for number in range(6):
            state.finish(1, np.arange(number, number + 1))
            keeper.note()
            with faults.armed(error, number):
                await asyncio.sleep(0.2)

    state, found = kept(story)
    assert found.progress[0].done.floor == state.progress[0].done.floor == 6


def test_records_that_wait_for_a_compaction_that_never_begins_are_written() -> None:
    async def story(keeper: ChannelJournal, state: ChannelState, faults: Faults) -> None:
        keeper._compact_above = 10
        state.finish(1, np.arange(2))
        assert keeper.flush()
        keeper._compact_above = 1 << 20  # no later fsync writes them by the way
        (compaction,) = asyncio.all_tasks() - {asyncio.current_task()}
        state.finish(1, np.arange(2, 4))
        assert not keeper.flush()  # the new journal would not have it
        compaction.cancel()
        await asyncio.sleep(5)
        assert not state.recorder.changed

    state, found = kept(story)
    assert found.progress[0].done.floor == state.progress[0].done.floor == 4


def test_a_sync_ends_for_who_waits_for_it_whatever_the_loop_refuses() -> None:
    """A callback of the journal that could not be scheduled took those of all waiters with it."""
    names = []
    for at in itertools.count():
        clock, faults, state = VirtualClock(), Faults(), ChannelState([0])
        journal = Journal.open("/j", fs=CrashableFileSystem(), clock=clock)
        loop = FaultyLoop(clock, faults)

        async def live() -> None:
            keeper = ChannelJournal(journal, state, JournalSyncs(clock=clock))  # noqa: B023
            state.deliver(0, 0, 8, 1, 0, 60_000)  # noqa: B023
            assert keeper.flush()
            with faults.armed(RuntimeError, at):  # noqa: B023
                await keeper.sync()
            await keeper.close()
            assert not journal.unsynced  # noqa: B023

        loop.run_until_complete(live())
        loop.close()
        if not faults.raised:
            break
        names.append(faults.raised)
    assert names == ["create_task", "run_in_executor"]


def test_a_change_that_ends_half_way_makes_a_state_unusable() -> None:
    state = ChannelState([0])
    faults = Faults()
    state.in_flight = cast("object", faults.port(state.in_flight))  # type: ignore[assignment]
    with faults.armed(MemoryError, 0, after=True):
        state.deliver(0, 0, 2, 1, 0, 1_000)
    assert not state.is_whole
    state.release(1, 0)
    assert not state.is_whole


def test_a_connection_whose_transport_cannot_be_closed_is_aborted() -> None:
    world = BrokerWorld()

    def refuse() -> None:
        raise OSError("fault")

    async def live() -> None:
        world.open()
        client = Client(world)
        client.wire.close = refuse  # type: ignore[method-assign]
        with pytest.raises(OSError, match="fault"):
            client.connection.close()
        await turns()
        assert client.gone
        assert not world.tcp_server.connections
        await world.server.stop()

    run_stepped(world.clock, live())


@pytest.mark.parametrize("error", ERRORS)
def test_a_channel_with_half_a_change_raises_what_ends_the_process(error: type[Exception]) -> None:
    """The loop's handler only logs errors of the system, and those that are foreseen."""
    world = BrokerWorld()
    loop = FaultyLoop(world.clock, world.faults)

    async def live() -> None:
        world.open()
        await world.fill()
        channel = next(iter(next(iter(world.broker.topics)).channels.values()))
        state = channel.state
        state.in_flight = cast("object", world.faults.port(state.in_flight))  # type: ignore[assignment]
        with world.faults.armed(error, 0, after=True):
            state.deliver(0, state.progress[0].next, 1, 1, 0, 1_000)
        assert not state.is_whole
        channel.schedule()
        await asyncio.sleep(1)
        await world.server.stop()

    loop.run_until_complete(live())
    loop.close()
    found = [one["exception"] for one in loop.unhandled]
    assert len(found) == 1
    assert isinstance(found[0], RuntimeError)


class SyncedJournal:
    """A journal that counts how often it is synced, and is written during the first time."""

    def __init__(self, rounds: JournalSyncs) -> None:
        self.syncs = 0
        self._rounds = rounds

    async def sync(self) -> bool:
        self.syncs += 1
        if self.syncs == 1:
            self._rounds.add(cast("ChannelJournal", self))
        return True


@pytest.mark.usefixtures("deaths")  # the rounds that end are reported
def test_each_journal_is_synced_though_memory_runs_out_in_a_round() -> None:
    for at in itertools.count():
        faults, syncs = Faults(), JournalSyncs(1_000)
        journals = [SyncedJournal(syncs) for _ in range(5)]
        ended: list[object] = []

        async def live() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _loop, told: ended.append(told))  # noqa: B023
            for journal in journals:  # noqa: B023
                syncs.add(cast("ChannelJournal", journal))  # noqa: B023
            with faults.armed_inside([persistence.__name__], MemoryError, at):  # noqa: B023
                await asyncio.sleep(5.5)

        run_stepped(VirtualClock(), live())
        # An exception that reaches the handler of the loop ends the process.
        assert ended or all(journal.syncs >= 2 for journal in journals), faults.raised
        if not faults.raised:
            assert [journal.syncs for journal in journals] == [2] * 5
            return
