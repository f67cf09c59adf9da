"""Exceptions that nobody expects in clients: they go on, or close with the error; nobody waits."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

import pytest

from penstock.client import (
    BackoffOptions,
    ConnectionOptions,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
)
from penstock.client.v2.nsq_connection import NsqConnection
from penstock.core.errors import Closed, PenstockError, Unavailable
from tests.client.fake_server_kit import (
    ClientWorld,
    FakeServer,
    message_frame,
    run,
    until,
    use_loop,
)
from tests.harness.call_faults_kit import Faults
from tests.kits.fault_cases_kit import DrawnCases, FaultPlan, count_calls, single_cases

CLIENT = ("penstock.client",)
ROTATE_S = 5.0
LOOKUP_S = 60.0
HEARTBEAT_S = 60.0
DRAIN_S = 30.0
# A callback of the loop that raised may leave a handshake without its end.
QUICK = ConnectionOptions(connect_timeout_s=1.0)


class FailingWorld(ClientWorld):
    """Fails the sleep of some length, once."""

    def __init__(self, fails_s: float) -> None:
        super().__init__()
        self.fails_s = fails_s

    async def sleep(self, seconds: float) -> None:
        if seconds == self.fails_s:
            self.fails_s = -1.0
            raise MemoryError("no room")
        await super().sleep(seconds)


class QuickWorld(ClientWorld):
    """Waits for nothing but what the test does not want to happen by itself."""

    async def sleep(self, seconds: float) -> None:
        if seconds in {ROTATE_S, HEARTBEAT_S, LOOKUP_S, DRAIN_S}:
            await super().sleep(seconds)
        else:
            await asyncio.sleep(0)


async def fail(message: Message) -> None:
    raise ValueError(message.id)


@pytest.mark.parametrize("task", ["rotation", "lookup", "connection", "pause"])
def test_a_consumer_whose_task_fails_closes_with_that_error(task: str) -> None:
    """Messages stopped to come, and nobody heard of it."""
    sleep_s = {"rotation": ROTATE_S, "lookup": LOOKUP_S, "connection": 0.0, "pause": 1.0}[task]

    async def story() -> None:
        async with FakeServer() as server:
            c = Consumer(
                *("t", "c"),
                fail if task == "pause" else None,
                addresses=[server.address],
                lookup=["http://127.0.0.1:1"] if task == "lookup" else [],
                options=ConsumerOptions(slow_down=BackoffOptions(1_000, 120_000)),
                environment=FailingWorld(sleep_s).environment,
            )
            async with c:
                if task == "connection":
                    (await server.peer()).drop()
                if task == "pause":
                    peer = await server.peer()
                    await peer.wait_for("RDY")
                    peer.send(message_frame(1, b"x"))
                for wait in (c.wait_stopped(), c.take()):
                    with pytest.raises(Closed, match=rf"t/c failed: {task}.*create a new") as found:
                        await wait
                    assert isinstance(found.value.__cause__, MemoryError)
                await until(lambda: all(peer.ended for peer in server.peers))

    run(story())


def test_a_consumer_that_dies_logs_why(caplog: pytest.LogCaptureFixture) -> None:
    """A program whose code is all in the handler awaits nothing that would raise it."""

    async def story() -> None:
        async with FakeServer() as server:
            world = FailingWorld(ROTATE_S)
            async with Consumer(
                "t", "c", fail, addresses=[server.address], environment=world.environment
            ) as c:
                await c._stopped.wait()

    run(story())
    (record,) = [one for one in caplog.records if one.name == "penstock.client.consumer"]
    assert record.levelname == "ERROR"
    assert "the consumer of t/c failed: rotation" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], MemoryError)


def test_a_connection_that_does_not_get_its_transport_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_connection: NsqConnection, _transport: asyncio.BaseTransport) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(NsqConnection, "connection_made", fail)

    async def story() -> None:
        async with FakeServer() as server:
            options = ProducerOptions(ConnectionOptions(connect_timeout_s=0.05))
            with pytest.raises(Unavailable, match="did not answer within"):
                await Producer(server.address, options=options).start()
            peer = await server.peer()
            await until(lambda: peer.ended)

    use_loop("asyncio")
    run(story())


@pytest.mark.parametrize("name", ["_flush", "close"])
def test_a_consumer_stops_though_closing_its_connection_raises(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It waited for ever for the end of a connection that was never closed."""
    original = getattr(NsqConnection, name)
    errors = [MemoryError("no room")]

    def fail_once(connection: NsqConnection) -> None:
        if errors:
            raise errors.pop()
        original(connection)

    async def story() -> None:
        async with FakeServer() as server:
            c = Consumer(
                "t", "c", addresses=[server.address], environment=ClientWorld().environment
            )
            c.start()
            peer = await server.peer()
            await peer.wait_for("RDY")
            await c._connections.start_close()
            await until(lambda: all(one.quiet for one in c._connections._joined))
            monkeypatch.setattr(NsqConnection, name, fail_once)
            with pytest.raises(MemoryError):
                await c.stop()
            await c.wait_stopped()
            await until(lambda: peer.ended)

    run(story())


def test_a_connection_whose_heartbeat_check_fails_is_opened_again() -> None:
    async def story() -> None:
        async with FakeServer() as server:
            world = FailingWorld(HEARTBEAT_S)
            async with Consumer(
                "t", "c", addresses=[server.address], environment=world.environment
            ):
                await (await server.peer(0)).wait_for("SUB")
                await (await server.peer(1)).wait_for("RDY")

    run(story())


def test_a_producer_that_cannot_connect_again_fails_what_waits_and_what_comes() -> None:
    """Publishes with `retry` waited for ever."""

    async def story() -> None:
        async with FakeServer() as server:
            server.manners.answers_publishes = False
            producer = Producer(server.address, environment=FailingWorld(0.1).environment)
            async with producer:
                waiting = asyncio.ensure_future(producer.publish("t", b"x", retry=True))
                peer = await server.peer()
                await peer.wait_for("PUB")
                await server.stop_listening()
                peer.drop()
                with pytest.raises(Closed, match="failed: reconnecting: MemoryError") as found:
                    await waiting
                assert isinstance(found.value.__cause__, MemoryError)
                with pytest.raises(Closed, match="create a new one") as found:
                    await producer.publish("t", b"y", retry=True)
                assert isinstance(found.value.__cause__, MemoryError)

    run(story())


# -- an exception at calls of each function of the client

NEVER = 1 << 40  # number of a call that no work makes
Work = Callable[[Faults, int], Coroutine[object, object, None]]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# The event loop calls them once, at the end of a connection, and only logs what they raise.
UNNOTICED = {
    "penstock.client.v2.nsq_connection.NsqConnection.connection_lost",
    "penstock.client.subscription.Subscription.disconnected",
}


async def consume(faults: Faults, at: int) -> None:
    """Consume ten messages while a call fails; then the connection breaks, and they come again."""
    done: set[bytes] = set()

    async def handle(message: Message) -> None:
        if message.attempts == 1 and message.body == b"3":
            raise ValueError(message.body)
        await asyncio.sleep(0)
        done.add(message.body)

    async with FakeServer() as server:
        c = Consumer(
            *("t", "c", handle),
            addresses=[server.address],
            options=ConsumerOptions(QUICK, requeue_delay_ms=0, drain_s=DRAIN_S),
            environment=QuickWorld().environment,
        )
        is_started, sent = False, 0
        with faults.armed_inside(CLIENT, MemoryError, at):
            c.start()
            is_started = True
            await turns(60)
            for peer in server.peers:
                if peer.of("RDY"):
                    peer.send(frames(1))
            await turns(60)
            sent = len(server.peers) or 1
            for peer in server.peers:
                peer.drop()
            await turns(60)
        if not is_started or faults.raised in UNNOTICED:
            return
        if faults.raised.endswith(".NsqConnection._flush"):
            for peer in server.peers:
                peer.drop()  # as a server does with a client that does not answer its heartbeats
        stopped = asyncio.ensure_future(c.wait_stopped())
        while len(done) < 10 and not stopped.done():
            for peer in server.peers[sent:]:
                if peer.of("RDY"):
                    peer.send(frames(2))
                    sent += 1
            await turns(1)
        await c.stop()
        with suppress(Closed):
            await stopped
        with suppress(Closed):
            assert await c.take() == []


async def stop(faults: Faults, at: int) -> None:
    """Stop a consumer that has messages in flight while a call fails."""
    async with FakeServer() as server:
        release, world = asyncio.Event(), QuickWorld()

        async def handle(message: Message) -> None:
            await release.wait()

        c = Consumer(
            *("t", "c", handle),
            addresses=[server.address],
            options=ConsumerOptions(QUICK, drain_s=DRAIN_S),
            environment=world.environment,
        )
        c.start()
        peer = await server.peer()
        await peer.wait_for("RDY")
        peer.send(frames(1))
        await until(lambda: c.statistics().received == 10)
        with faults.armed_inside(CLIENT, MemoryError, at):
            stopping = asyncio.ensure_future(c.stop())
            await turns(30)
            release.set()
            await turns(60)
        if faults.raised in UNNOTICED:
            return
        while not stopping.done():
            if world.asleep(DRAIN_S):
                await world.pass_over(DRAIN_S)
            await turns(1)
        with suppress(MemoryError):
            await stopping
        await c.stop()
        with suppress(Closed):
            await c.wait_stopped()
        with suppress(Closed):
            assert await c.take() == []
        await until(lambda: peer.ended)


def frames(attempts: int) -> bytes:
    return b"".join(message_frame(i, b"%d" % i, attempts) for i in range(10))


async def produce(faults: Faults, at: int) -> None:
    """Publish while a call fails; then the connection breaks, and publishes must go on."""
    async with FakeServer() as server:
        options = ProducerOptions(QUICK, max_in_flight_count=2)
        environment = QuickWorld().environment
        producer = Producer(server.address, options=options, environment=environment)
        publishes: list[asyncio.Task[None]] = []
        with faults.armed_inside(CLIENT, MemoryError, at):
            with suppress(PenstockError):
                await producer.start()
            publishes += [
                asyncio.ensure_future(producer.publish("t", b"%d" % i, retry=i % 2 == 0))
                for i in range(6)
            ]
            await turns(60)
        for peer in server.peers:
            peer.drop()
        while not all(one.done() for one in publishes):
            await turns(1)
        stored = {body for peer in server.peers for _, _, body in peer.of("PUB")}
        for number, one in enumerate(publishes):
            error = one.exception()
            assert isinstance(error, MemoryError | PenstockError | None), error
            assert error is not None or b"%d" % number in stored
        with suppress(Closed, MemoryError):
            await producer.publish("t", b"last", retry=True)
        await producer.close()
        assert (producer._window.count, producer._window.bytes) == (0, 0)


def attempt(work: Work, plan: FaultPlan) -> Faults:
    """Do some work while a call fails, and return the faults."""
    use_loop("asyncio")  # uvloop does not survive an exception in some of its callbacks
    faults = Faults()
    try:
        run(work(faults, plan.at))
    except BaseException as error:
        error.add_note(f"{plan}, in {faults.raised}")
        raise
    if faults.raised.endswith(".open_connection.<locals>.<lambda>"):
        gc.collect()  # asyncio does not close a socket whose factory of the protocol raised
    return faults


def insides() -> DrawnCases:
    """Return the cases of `make soak`: each call of a function of the client."""
    return single_cases(
        (consume, stop, produce),
        lambda work: count_calls(partial(attempt, work), CLIENT),
        lambda work, plan: bool(attempt(work, plan).raised),
        inside=CLIENT,
    )


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [consume, stop, produce])
def test_a_fault_in_any_function_of_a_client_leaves_nobody_waiting(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Logged exceptions refer to sockets that would be collected only after this test.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    functions = attempt(work, FaultPlan(MemoryError, NEVER, inside=CLIENT)).passed
    # `make soak` has all calls.
    for at in sorted({at for name in set(functions) for at in some_calls(functions, name)}):
        assert attempt(work, FaultPlan(MemoryError, at, inside=CLIENT)).raised
    gc.collect()  # coroutines of tasks that could not be started, whose warnings are ignored here
    assert len(set(functions)) > 40


def some_calls(functions: list[str], name: str) -> list[int]:
    """Return the numbers of the first two calls of a function, and of the last."""
    calls = [number for number, one in enumerate(functions) if one == name]
    return [*calls[:2], calls[-1]]
