"""A consumer: messages and their answers, who may have how many, failures, stopping."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import pytest

from penstock.client import (
    BackoffOptions,
    Consumer,
    ConsumerOptions,
    Message,
    finish_all,
)
from penstock.client.consumer import Handler
from penstock.client.lookup import lookup_url, parse_answer
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from tests.client.fake_server_kit import (
    ClientWorld,
    FakeServer,
    Manners,
    Peer,
    address_of,
    message_frame,
    run,
    until,
)

pytestmark = pytest.mark.usefixtures("either_loop")


def consumer(
    servers: Sequence[FakeServer],
    world: ClientWorld,
    handler: Handler | None = None,
    max_in_flight: int = 10,
    options: ConsumerOptions | None = None,
) -> Consumer:
    return Consumer(
        "t",
        "c",
        handler,
        addresses=[server.address for server in servers],
        max_in_flight=max_in_flight,
        options=options,
        environment=world.environment,
    )


def batch(count: int, first: int = 0, attempts: int = 1) -> bytes:
    numbers = range(first, first + count)
    return b"".join(message_frame(i, b"body %d" % i, attempts) for i in numbers)


def ids(count: int, first: int = 0) -> list[str]:
    return [f"{i:016x}" for i in range(first, first + count)]


def ready_of(server: FakeServer) -> int:
    """What a server was told last."""
    said = server.peers[0].of("RDY")
    return said[-1][1] if said else 0


async def subscribed(server: FakeServer, number: int = 0, ready: int = 10) -> Peer:
    peer = await server.peer(number)
    await until(lambda: bool(peer.of("RDY")) and peer.of("RDY")[-1] == ("RDY", ready))
    return peer


def test_a_handler_finishes_what_it_returns_from() -> None:
    async def story() -> None:
        handled: list[Message] = []

        async def handler(message: Message) -> None:
            handled.append(message)

        async with FakeServer() as server:
            async with consumer([server], ClientWorld(), handler) as c:
                peer = await subscribed(server)
                assert peer.of("SUB") == [("SUB", "t", "c")]
                peer.send(batch(3))
                await peer.wait_for("FIN", 3)
                assert [name for _, name in peer.of("FIN")] == ids(3)
                assert [m.body for m in handled] == [b"body 0", b"body 1", b"body 2"]
                assert (handled[0].id, handled[0].attempts) == (b"0" * 16, 1)
                assert handled[0].timestamp_ns == 1_700_000_000 * 10**9
                assert c.statistics().succeeded == c.statistics().received == 3
            assert peer.of("CLS")

    run(story())


def test_messages_one_by_one_and_in_batches() -> None:
    async def story() -> None:
        async with FakeServer() as server, consumer([server], ClientWorld()) as c:
            peer = await subscribed(server)
            peer.send(batch(5))
            seen = []
            async for message in c:
                seen.append(message.body)
                assert message.touch()
                assert message.finish()
                if len(seen) == 2:
                    break
            messages = await c.take(2)
            assert [m.body for m in messages] == [b"body 2", b"body 3"]
            assert finish_all(messages) == 2
            with pytest.raises(Conflict, match="answered before"):
                messages[0].requeue()
            with pytest.raises(Conflict, match="answered before"):
                messages[0].touch()
            await peer.wait_for("FIN", 4)
            (last,) = await c.take()
            assert last.requeue(1_500)
            await peer.wait_for("REQ")
            assert peer.of("REQ") == [("REQ", ids(5)[4], 1_500)]
            assert [name for _, name in peer.of("TOUCH")] == ids(2)
            assert c.statistics().in_flight == 0

    run(story())


def test_who_wants_so_many_and_no_more_gets_no_more() -> None:
    async def story() -> None:
        async with FakeServer() as server, consumer([server], ClientWorld(), max_in_flight=5) as c:
            peer = await subscribed(server, ready=5)
            peer.send(batch(3))
            first = await c.take(3)
            c.set_max_in_flight(2)
            finish_all(first)
            await peer.wait_for("FIN", 3)
            # RDY first: with the answers first, the server would have sent up to five more.
            said = [command for command in peer.commands if command[0] in {"RDY", "FIN"}]
            assert said[:3] == [("RDY", 5), ("RDY", 2), ("FIN", ids(3)[0])]
            peer.send(batch(2, first=3))
            last = await c.take(2)
            c.set_max_in_flight(0)
            finish_all(last)
            await peer.wait_for("FIN", 5)
            assert peer.of("RDY")[-1] == ("RDY", 0)
            c.set_max_in_flight(7)
            await subscribed(server, ready=7)
            with pytest.raises(InvalidRequest, match="0 or more, not -1"):
                c.set_max_in_flight(-1)

    run(story())


def test_a_handler_may_answer_itself() -> None:
    async def story() -> None:
        async def handler(message: Message) -> None:
            message.requeue(7)

        async with FakeServer() as server, consumer([server], ClientWorld(), handler):
            peer = await subscribed(server)
            peer.send(batch(1))
            await peer.wait_for("REQ")
            assert peer.of("REQ") == [("REQ", ids(1)[0], 7)]
            assert not peer.of("FIN")

    run(story())


def test_a_failing_handler_requeues_and_slows_down() -> None:
    async def story() -> None:
        world = ClientWorld()
        fails = True

        async def handler(message: Message) -> None:
            if fails:
                raise ValueError(message.id)

        async with FakeServer() as server, consumer([server], world, handler) as c:
            peer = await subscribed(server)
            peer.send(batch(1, attempts=3))
            await peer.wait_for("REQ")
            assert peer.of("REQ") == [("REQ", ids(1)[0], 270_000)]
            await subscribed(server, ready=0)
            await world.pass_over(1.0)
            await subscribed(server, ready=1)
            peer.send(batch(1, attempts=60))
            await until(lambda: len(peer.of("REQ")) == 2)
            assert peer.of("REQ")[1][2] == 900_000  # the longest
            await world.pass_over(2.0)
            fails = False
            for _ in range(2):
                await subscribed(server, ready=1)
                done = c.statistics().succeeded
                peer.send(batch(1))
                await until(partial(_has_succeeded, c, done + 1))
                if not done:
                    await subscribed(server, ready=0)
                    await world.pass_over(1.0)
            await subscribed(server, ready=10)
            assert c.statistics().failed == 2

    run(story())


def test_too_many_attempts() -> None:
    async def story() -> None:
        given_up: list[bytes] = []

        async def handler(message: Message) -> None:
            raise AssertionError(message)

        async def give_up(message: Message) -> None:
            given_up.append(message.body)

        options = ConsumerOptions(max_attempts=2, give_up=give_up, slow_down=None)
        async with (
            FakeServer() as server,
            consumer([server], ClientWorld(), handler, 10, options) as c,
        ):
            peer = await subscribed(server)
            peer.send(batch(1, attempts=2))
            await peer.wait_for("REQ")
            peer.send(batch(1, attempts=3))
            await peer.wait_for("FIN")
            assert given_up == [b"body 0"]
            assert (c.statistics().given_up, c.statistics().failed) == (1, 1)

    run(story())


@pytest.mark.parametrize("concurrency", [1, 3])
def test_handlers_run_at_the_same_time_up_to_a_bound(concurrency: int) -> None:
    async def story() -> None:
        running: list[Message] = []
        release = asyncio.Event()

        async def handler(message: Message) -> None:
            running.append(message)
            await release.wait()

        options = ConsumerOptions(concurrency=concurrency)
        async with (
            FakeServer() as server,
            consumer([server], ClientWorld(), handler, 10, options) as c,
        ):
            peer = await subscribed(server)
            peer.send(batch(6))
            await until(lambda: c.statistics().received == 6 and len(running) == concurrency)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(running) == concurrency
            assert c.statistics().waiting == 6 - concurrency
            release.set()
            await peer.wait_for("FIN", 6)

    run(story())


def test_max_in_flight_is_shared_over_connections() -> None:
    async def story() -> None:
        async with (
            FakeServer() as one,
            FakeServer() as two,
            consumer([one, two], ClientWorld(), max_in_flight=5) as c,
        ):
            await until(lambda: c.statistics().connections == 2)
            await until(lambda: sorted(map(ready_of, (one, two))) == [2, 3])
            two.peers[0].drop()
            await two.stop_listening()
            await subscribed(one, ready=5)

    run(story())


def test_with_fewer_than_connections_they_take_turns() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with (
            FakeServer() as one,
            FakeServer() as two,
            consumer([one, two], world, max_in_flight=1) as c,
        ):
            await until(lambda: c.statistics().connections == 2)

            def ready() -> list[int]:
                return [ready_of(one), ready_of(two)]

            await until(lambda: sum(ready()) == 1)
            before = ready()
            await world.pass_over(5.0)
            await until(lambda: ready() == before[::-1])
            # What is in flight keeps the turn.
            busy = (one, two)[ready().index(1)].peers[0]
            busy.send(batch(1))
            (message,) = await c.take()
            await world.pass_over(5.0)
            await world.pass_over(5.0)
            await until(lambda: world.asleep(5.0))
            assert ready() == before[::-1]
            message.finish()
            await world.pass_over(5.0)
            await until(lambda: ready() == before)

    run(story())


def test_a_broken_connection_is_made_again_and_its_messages_are_forgotten() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer() as server, consumer([server], world) as c:
            peer = await subscribed(server)
            peer.send(batch(3))
            (taken,) = await c.take(1)
            peer.drop()
            second = await subscribed(server, 1)
            assert taken.finish() is False
            assert c.statistics().waiting == c.statistics().in_flight == 0
            second.send(batch(1, first=9))
            (message,) = await c.take()
            assert message.body == b"body 9"
            message.finish()
            await second.wait_for("FIN")
            assert c.statistics().received == 4

    run(story())


def test_answers_that_come_too_late_are_counted() -> None:
    async def story() -> None:
        async with FakeServer() as server, consumer([server], ClientWorld()) as c:
            peer = await subscribed(server)
            peer.error(b"E_FIN_FAILED FIN 00 failed ID not in flight")
            await until(lambda: c.statistics().too_late == 1)
            assert c.statistics().connections == 1

    run(story())


def test_a_server_that_refuses_for_good_ends_a_consumer_that_was_never_accepted() -> None:
    async def story() -> None:
        manners = Manners(answers_sub=b"\0\0\0\x11\0\0\0\1E_BAD_CHANNEL")

        def refuse(peer: Peer) -> None:
            peer.writer.close()

        async with FakeServer(manners) as server:
            c = consumer([server], ClientWorld())
            c.start()
            peer = await server.peer()
            await peer.wait_for("SUB")
            refuse(peer)
            with pytest.raises(InvalidRequest, match="E_BAD_CHANNEL"):
                await c.wait_stopped()
            with pytest.raises(InvalidRequest, match="E_BAD_CHANNEL"):
                await c.take()

    run(story())


def test_a_server_that_is_not_there_is_tried_again() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer() as server:
            await server.stop_listening()
            async with consumer([server], world) as c:
                await world.pass_over(0.1)
                await until(lambda: world.asleep(0.2))
                failure = c.connect_failure
                assert failure is not None
                assert failure.tries == 3, "the first retry follows at once"
                await server.listen()
                await world.pass_over(0.2)
                await subscribed(server)
                assert c.statistics().connections == 1
                assert c.connect_failure is None

    run(story())


def test_stopping_waits_for_what_is_in_flight() -> None:
    async def story() -> None:
        release = asyncio.Event()

        async def handler(message: Message) -> None:
            await release.wait()

        async with FakeServer() as server:
            c = consumer([server], ClientWorld(), handler)
            c.start()
            peer = await subscribed(server)
            peer.send(batch(2))
            await until(lambda: c.statistics().received == 2)
            stopping = asyncio.create_task(c.stop())
            await peer.wait_for("CLS")
            await asyncio.sleep(0)
            assert not stopping.done()
            release.set()
            await stopping
            await peer.wait_for("FIN", 2)
            assert peer.commands.index(("CLS",)) < peer.commands.index(peer.of("FIN")[0])
            await c.wait_stopped()
            await c.stop()

    run(story())


def test_stopping_does_not_wait_for_ever() -> None:
    async def story() -> None:
        world = ClientWorld()
        cancelled = False

        async def handler(message: Message) -> None:
            nonlocal cancelled
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

        async with FakeServer() as server:
            c = consumer([server], world, handler)
            c.start()
            peer = await subscribed(server)
            peer.send(batch(1))
            await until(lambda: c.statistics().in_flight == 1)
            stopping = asyncio.create_task(c.stop())
            await world.pass_over(30.0)
            await stopping
            await until(lambda: peer.ended)
            assert cancelled
            assert not peer.of("FIN")

    run(story())


def test_without_a_handler_what_nobody_took_goes_back_at_once() -> None:
    async def story() -> None:
        async with FakeServer() as server:
            async with consumer([server], ClientWorld()) as c:
                peer = await subscribed(server)
                peer.send(batch(3))
                await until(lambda: c.statistics().waiting == 3)
                async for message in c:
                    message.finish()
                    break
            await until(lambda: peer.ended)
            assert [name for _, name in peer.of("FIN")] == ids(1)
            assert peer.of("REQ") == [("REQ", name, 0) for name in ids(2, first=1)]
            assert await c.take() == []

    run(story())


def test_iteration_ends_when_the_consumer_is_stopped() -> None:
    async def story() -> None:
        async with FakeServer() as server:
            c = consumer([server], ClientWorld())
            c.start()
            peer = await subscribed(server)
            peer.send(batch(2))
            seen = []

            async def loop() -> None:
                async for message in c:
                    seen.append(message)
                    message.finish()

            looping = asyncio.create_task(loop())
            await peer.wait_for("FIN", 2)
            await c.stop()
            await looping
            assert len(seen) == 2

    run(story())


def _has_succeeded(consumer: Consumer, times: int) -> bool:
    return consumer.statistics().succeeded == times


def _is_asleep(world: ClientWorld, asked: list[str], tries: int) -> bool:
    return len(asked) == tries and world.asleep(50.0)


async def lookup_service(answers: list[tuple[int, bytes]]) -> tuple[asyncio.Server, list[str]]:
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b" ")[1].decode())
        status, body = answers[min(len(asked), len(answers)) - 1]
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0), asked


def producers(*addresses: str) -> tuple[int, bytes]:
    parts = [address.split(":") for address in addresses]
    found = [{"broadcast_address": host, "tcp_port": int(port)} for host, port in parts]
    return 200, json.dumps({"channels": [], "producers": found}).encode()


def test_servers_are_found_by_looking_again_and_again() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer() as one, FakeServer() as two:
            answers = [
                (404, b'{"message":"TOPIC_NOT_FOUND"}'),
                producers(one.address),
                (500, b""),
                producers(one.address, two.address),
                producers(two.address),
            ]
            service, asked = await lookup_service(answers)
            options = ConsumerOptions(lookup_s=50.0)
            lookup = [address_of(service)]
            async with Consumer(
                "t", "c", lookup=lookup, options=options, environment=world.environment
            ) as c:
                await world.pass_over(50.0)
                await until(lambda: c.statistics().connections == 1)
                await world.pass_over(50.0)  # the service fails: what is known stays
                await world.pass_over(50.0)
                await until(lambda: c.statistics().connections == 2)
                await world.pass_over(50.0)
                await until(lambda: len(asked) == 5 and world.asleep(50.0))
                # Who is not known any more keeps its connection, but gets no new one.
                assert c.statistics().connections == 2
                one.peers[0].drop()
                two.peers[0].drop()
                await subscribed(two, 1, ready=100)
                assert len(one.peers) == 1
            assert asked[0] == "/lookup?topic=t"
            service.close()
            await service.wait_closed()

    run(story())


def test_lookups_without_an_address_are_failed_tries() -> None:
    async def story() -> None:
        world = ClientWorld()
        async with FakeServer() as server:
            unknown = (404, b'{"message":"TOPIC_NOT_FOUND"}')
            answers = [(500, b""), unknown, producers(server.address), (500, b"")]
            service, asked = await lookup_service(answers)
            lookup, options = [address_of(service)], ConsumerOptions(lookup_s=50.0)
            async with Consumer(
                "t", "c", lookup=lookup, options=options, environment=world.environment
            ) as c:
                for tries, message in ((1, "no lookup service answers"), (2, "no server with")):
                    await until(partial(_is_asleep, world, asked, tries))
                    failure = c.connect_failure
                    assert failure is not None
                    assert failure.tries == tries
                    assert str(failure.error).startswith(message)
                    await world.pass_over(50.0)
                await until(lambda: c.statistics().connections == 1)
                assert c.connect_failure is None
                await world.pass_over(50.0)
                await until(lambda: len(asked) == 4 and world.asleep(50.0))
                assert c.connect_failure is None, "there is a connection"
            service.close()
            await service.wait_closed()

    run(story())


def test_passwords_of_lookup_services_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        world = ClientWorld()
        options = ConsumerOptions(lookup_s=50.0)
        services = ["http://user:secret@127.0.0.1:1/x?key=secret", "user:secret@127.0.0.1:2"]
        async with Consumer(
            "t", "c", lookup=services, options=options, environment=world.environment
        ) as c:
            await until(lambda: world.asleep(50.0))
            failure = c.connect_failure
        assert failure is not None
        shown = "no lookup service answers: http://127.0.0.1:1, http://127.0.0.1:2"
        assert str(failure.error) == shown
        with pytest.raises(InvalidRequest) as raised:
            lookup_url("ftp://user:secret@h", "t")
        assert str(raised.value) == "invalid lookup service ftp://h: write http://host:4161"

    run(story())
    assert "http://127.0.0.1:1: " in caplog.text
    assert "secret" not in caplog.text


def test_answers_of_lookup_services() -> None:
    status, body = producers("10.0.0.1:4150")
    assert parse_answer(status, body) == ["10.0.0.1:4150"]
    old = json.dumps({"status_code": 200, "data": json.loads(body)}).encode()
    assert parse_answer(200, old) == ["10.0.0.1:4150"]
    six = b'{"producers":[{"broadcast_address":"::1","tcp_port":4150}]}'
    assert parse_answer(200, six) == ["[::1]:4150"]
    assert parse_answer(404, b"") == []
    wrongs = (b"", b"[]", b'{"producers":[{}]}', b'{"producers":1}', b'{"producers":["x"]}')
    for wrong in (*wrongs, b"[" * 100_000):
        with pytest.raises(Unavailable):
            parse_answer(200, wrong)
    assert lookup_url("https://x:1/", "a#ephemeral") == "https://x:1/lookup?topic=a%23ephemeral"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"topic": "a b", "channel": "c", "addresses": ["h:1"]}, "topic"),
        ({"topic": "t", "channel": "", "addresses": ["h:1"]}, "channel"),
        ({"topic": "t", "channel": "c"}, "addresses"),
        ({"topic": "t", "channel": "c", "addresses": ["h"]}, "address"),
        ({"topic": "t", "channel": "c", "lookup": ["ftp://h"]}, "lookup service"),
        ({"topic": "t", "channel": "c", "addresses": ["h:1"], "max_in_flight": 0}, "max_in_flight"),
    ],
)
def test_what_makes_no_consumer(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        Consumer(**arguments)  # type: ignore[arg-type]


def test_consumer_options_that_cannot_be() -> None:
    for wrong in ({"concurrency": 0}, {"max_attempts": 0}, {"rotate_s": 0}, {"lookup_s": 0}):
        with pytest.raises(InvalidRequest):
            ConsumerOptions(**wrong)  # type: ignore[arg-type]
    assert ConsumerOptions(slow_down=BackoffOptions()).slow_down is not None
