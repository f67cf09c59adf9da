"""What becomes of publishes: answered, refused, or under way when the connection ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

import pytest

from penstock.client import AnswerLost, ConnectionOptions, Producer, ProducerOptions
from penstock.client.producer import SendWindow
from penstock.core.errors import Closed, InvalidRequest, Unavailable
from tests.client.fake_server_kit import ClientWorld, FakeServer, Manners, run, until, use_loop

pytestmark = pytest.mark.usefixtures("either_loop")

SILENT = Manners(answers_publishes=False)


async def failure(waiting: Awaitable[None]) -> BaseException | None:
    try:
        await waiting
    except Exception as error:  # noqa: BLE001
        return error
    return None


def make(
    server: FakeServer, world: ClientWorld, options: ProducerOptions | None = None
) -> Producer:
    return Producer(server.address, options=options, environment=world.environment)


def test_publishes() -> None:
    async def story() -> None:
        async with FakeServer() as server, make(server, ClientWorld()) as p:
            await p.publish("t", b"one")
            await p.publish_many("t", [b"two", b"three"])
            await p.publish("t", b"later", defer_ms=1_500)
            assert server.peers[0].commands[1:] == [
                ("PUB", "t", b"one"),
                ("MPUB", "t", [b"two", b"three"]),
                ("DPUB", "t", b"later", 1_500),
            ]

    run(story())


def test_many_are_under_way_and_answered_in_order() -> None:
    async def story() -> None:
        async with FakeServer(SILENT) as server, make(server, ClientWorld()) as p:
            tasks = [asyncio.create_task(p.publish("t", b"%d" % i)) for i in range(5)]
            peer = await server.peer()
            await peer.wait_for("PUB", 5)
            assert [body for _, _, body in peer.of("PUB")] == [b"0", b"1", b"2", b"3", b"4"]
            peer.ok(2)
            await asyncio.gather(*tasks[:2])
            assert not any(task.done() for task in tasks[2:])
            peer.ok(3)
            await asyncio.gather(*tasks)

    run(story())


def test_what_is_under_way_is_bounded() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with (
            FakeServer(SILENT) as server,
            make(server, world, ProducerOptions(max_in_flight_count=3)) as p,
        ):
            tasks = [asyncio.create_task(p.publish("t", b"%d" % i)) for i in range(8)]
            peer = await server.peer()
            await peer.wait_for("PUB", 3)
            # Whoever stops waiting before there is room is not published.
            tasks[4].cancel()
            for count in (4, 5, 6, 7):
                peer.ok()
                await peer.wait_for("PUB", count)
            peer.ok(3)
            await asyncio.gather(*tasks, return_exceptions=True)
            published = [body for _, _, body in peer.of("PUB")]
            assert published == [b"0", b"1", b"2", b"3", b"5", b"6", b"7"]

    run(story())


def test_a_publish_that_nobody_waits_for_keeps_its_place_among_the_answers() -> None:
    async def story() -> None:
        async with (
            FakeServer(SILENT) as server,
            make(server, ClientWorld(), ProducerOptions(max_in_flight_count=2)) as p,
        ):
            left = asyncio.create_task(p.publish("t", b"left"))
            kept = asyncio.create_task(p.publish("t", b"kept"))
            peer = await server.peer()
            await peer.wait_for("PUB", 2)
            left.cancel()
            waiting = asyncio.create_task(p.publish("t", b"waiting"))
            peer.ok()
            await peer.wait_for("PUB", 3)
            assert left.cancelled()
            assert not kept.done()
            peer.ok(2)
            await asyncio.gather(kept, waiting)

    run(story())


def test_what_was_not_answered_when_the_connection_broke_is_not_sent_again() -> None:
    async def story() -> None:
        async with FakeServer(SILENT) as server, make(server, ClientWorld()) as p:
            lost = asyncio.create_task(p.publish("t", b"lost"))
            peer = await server.peer()
            await peer.wait_for("PUB")
            peer.drop()
            assert isinstance(await failure(lost), AnswerLost)
            later = asyncio.create_task(p.publish("t", b"later"))  # waits for the next connection
            second = await server.peer(1)
            await second.wait_for("PUB")
            second.ok()
            await later
            assert second.of("PUB") == [("PUB", "t", b"later")]

    run(story())


def test_with_retry_it_is_sent_again_in_order() -> None:
    async def story() -> None:
        async with FakeServer(SILENT) as server, make(server, ClientWorld()) as p:
            tasks = [asyncio.create_task(p.publish("t", b"%d" % i, retry=True)) for i in range(3)]
            peer = await server.peer()
            await peer.wait_for("PUB", 3)
            peer.ok()
            await tasks[0]
            peer.drop()
            second = await server.peer(1)
            await second.wait_for("PUB", 2)
            second.ok(2)
            await asyncio.gather(*tasks)
            assert [body for _, _, body in second.of("PUB")] == [b"1", b"2"]

    run(story())


def test_without_a_server_publishes_fail_at_once_unless_they_retry() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer() as server, make(server, world) as p:
            peer = await server.peer()
            await server.stop_listening()
            peer.drop()
            await until(lambda: world.asleep(0.1))  # the second attempt is to come
            assert isinstance(await failure(p.publish("t", b"x")), Unavailable)
            patient = asyncio.create_task(p.publish("t", b"y", retry=True))
            await world.pass_over(0.1)
            await world.pass_over(0.2)
            await until(lambda: world.asleep(0.4))
            assert not patient.done()
            await server.listen()
            await world.pass_over(0.4)
            await patient
            await p.publish("t", b"z")
            assert [body for _, _, body in server.peers[1].of("PUB")] == [b"y", b"z"]

    run(story())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"E_BAD_TOPIC PUB topic name", InvalidRequest),
        (b"E_PUB_FAILED PUB failed write: no space left on device", Unavailable),
        (b"E_UNAUTHORIZED", InvalidRequest),
    ],
)
def test_refusals_say_what_to_do(text: bytes, kind: type[Exception]) -> None:
    async def story() -> None:
        async with FakeServer(SILENT) as server, make(server, ClientWorld()) as p:
            refused = asyncio.create_task(p.publish("t", b"refused"))
            behind = asyncio.create_task(p.publish("t", b"behind"))
            again = asyncio.create_task(p.publish("t", b"again", retry=True))
            peer = await server.peer()
            await peer.wait_for("PUB", 3)
            peer.error(text)
            peer.writer.close()
            error = await failure(refused)
            assert isinstance(error, kind)
            assert text.decode() in str(error)
            # The server carries out nothing behind what it refuses.
            error = await failure(behind)
            assert isinstance(error, Unavailable)
            assert "another publish" in str(error)
            second = await server.peer(1)
            await second.wait_for("PUB")
            second.ok()
            await again

    run(story())


def test_what_is_refused_for_now_is_retried_in_order_with_pauses() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer(SILENT) as server, make(server, world) as p:
            tasks = [asyncio.create_task(p.publish("t", b"%d" % i, retry=True)) for i in range(2)]
            for number in range(3):
                peer = await server.peer(number)
                await peer.wait_for("PUB", 2)
                peer.error(b"E_PUB_FAILED the disk is full")
                peer.writer.close()
                if number:
                    await world.pass_over(0.1 * 2 ** (number - 1))
            peer = await server.peer(3)
            await peer.wait_for("PUB", 2)
            peer.ok(2)
            await asyncio.gather(*tasks)
            assert [body for _, _, body in peer.of("PUB")] == [b"0", b"1"]

    run(story())


def test_what_the_server_would_end_the_connection_over_is_refused_here() -> None:
    async def story() -> None:
        options = ProducerOptions(max_message_bytes=10, max_body_bytes=40)
        async with FakeServer() as server, Producer(server.address, options=options) as p:
            for call, match in [
                (p.publish("t", b""), "is empty"),
                (p.publish("t", b"x" * 11), "limit is 10"),
                (p.publish("a b", b"x"), "valid topic name"),
                (p.publish("t", b"x", defer_ms=-1), "defer_ms"),
                (p.publish_many("t", []), "without messages"),
                (p.publish_many("t", [b"x", b""]), "is empty"),
                (p.publish_many("t", [b"x", b"x" * 11]), "limit is 10"),
                (p.publish_many("t", [b"x" * 8] * 4), "limit is 40"),
            ]:
                with pytest.raises(InvalidRequest, match=match):
                    await call
            await p.publish("t", b"x")
            assert len(server.peers) == 1

    run(story())


def test_closing_waits_for_answers_and_ends_the_rest() -> None:
    async def story() -> None:
        async with FakeServer(SILENT) as server:
            p = make(server, ClientWorld(), ProducerOptions(max_in_flight_count=1))
            with pytest.raises(Closed, match="not started"):
                await p.publish("t", b"x")
            await p.start()
            sent = asyncio.create_task(p.publish("t", b"sent"))
            waiting = asyncio.create_task(p.publish("t", b"waiting"))
            peer = await server.peer()
            await peer.wait_for("PUB")
            closing = asyncio.create_task(p.close())
            await asyncio.sleep(0)
            assert not closing.done()
            peer.ok()
            await asyncio.gather(sent, closing)
            assert isinstance(await failure(waiting), Closed)
            with pytest.raises(Closed, match="create a new one"):
                await p.publish("t", b"x")
            await p.close()
            assert len(peer.of("PUB")) == 1

    run(story())


def test_closing_without_a_connection_fails_what_would_be_retried() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer(SILENT) as server:
            p = make(server, world)
            await p.start()
            patient = asyncio.create_task(p.publish("t", b"x", retry=True))
            peer = await server.peer()
            await peer.wait_for("PUB")
            await server.stop_listening()
            peer.drop()
            await until(lambda: world.asleep(0.1))
            await p.close()
            assert isinstance(await failure(patient), Closed)

    run(story())


def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async def story() -> None:
        async with FakeServer() as server, make(server, ClientWorld()) as p:
            (await server.peer()).ok()
            await server.peer(1)
            await p.publish("t", b"x")

    run(story())


def test_a_window_lets_one_large_thing_through_alone() -> None:
    async def story() -> None:
        window = SendWindow(10, 100)
        await window.enter(1_000)
        small = asyncio.create_task(window.enter(1))
        await asyncio.sleep(0)
        assert not small.done()
        window.leave(1_000)
        await small
        assert window.count == 1
        large = asyncio.create_task(window.enter(1_000))
        await asyncio.sleep(0)
        assert not window.try_enter(1)  # who came first goes first
        large.cancel()
        await asyncio.wait([large])
        assert window.try_enter(1)

    run(story())


def test_a_waiter_that_cannot_be_woken_gives_its_place_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its place was lost, so a window of one place admitted no item any longer."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        window = SendWindow(1, 100)
        assert window.try_enter(10)
        first = asyncio.ensure_future(window.enter(20))
        second = asyncio.ensure_future(window.enter(30))
        await until(lambda: len(window.waiting) == 2)
        call_soon, errors = loop.call_soon, [MemoryError("no room")]

        def fail_once(*arguments: Any, **named: Any) -> asyncio.Handle:
            if errors:
                raise errors.pop()
            return call_soon(*arguments, **named)

        monkeypatch.setattr(loop, "call_soon", fail_once)
        with pytest.raises(MemoryError):
            window.leave(10)
        await second
        assert (window.count, window.bytes) == (1, 30)
        window.leave(30)
        assert not first.done()  # its loop has lost it
        first.cancel()
        del first
        gc.collect()
        assert (window.count, window.bytes) == (0, 0)

    use_loop("asyncio")  # uvloop's methods cannot be replaced
    run(story())


def test_a_publish_leaves_the_window_once_though_admitting_others_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It left again when its connection ended, and the window admitted too many publishes."""
    admit, errors = SendWindow.admit, [MemoryError("no room")]

    def fail_once(window: SendWindow) -> None:
        if errors:
            raise errors.pop()
        admit(window)

    async def story() -> None:
        async with FakeServer() as server:
            options = ProducerOptions(max_in_flight_count=1)
            environment = ClientWorld().environment
            async with Producer(server.address, options=options, environment=environment) as p:
                monkeypatch.setattr(SendWindow, "admit", fail_once)
                await asyncio.gather(p.publish("t", b"1"), p.publish("t", b"2", retry=True))
                assert not errors
                assert (p._window.count, p._window.bytes) == (0, 0)

    run(story())


def test_a_lasting_connection_makes_the_next_attempt_come_at_once() -> None:
    async def story() -> None:
        options = ProducerOptions(connection=ConnectionOptions(heartbeat_ms=1_000))
        environment = ClientWorld().environment
        async with (
            FakeServer() as server,
            Producer(server.address, options=options, environment=environment) as p,
        ):
            for number in range(3):
                peer = await server.peer(number)
                await p.publish("t", b"x")
                peer.drop()
            await server.peer(3)
            await p.publish("t", b"x")

    run(story())
