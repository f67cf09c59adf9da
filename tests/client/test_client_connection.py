"""The beginning of a connection: what is asked for, what is refused, what comes back compressed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client import ConnectionOptions, Producer, ProducerOptions
from penstock.client.options import BackoffOptions, Compression
from penstock.client.v2.nsq_connection import NsqConnection, open_connection
from penstock.client.v2.v2_protocol import Frame
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from tests.client.certificates_kit import contexts
from tests.client.fake_server_kit import (
    ClientWorld,
    FakeServer,
    Manners,
    address_of,
    frame,
    run,
    until,
)

pytestmark = pytest.mark.usefixtures("either_loop")


def producer(
    address: str, options: ConnectionOptions, world: ClientWorld | None = None
) -> Producer:
    return Producer(
        address,
        options=ProducerOptions(connection=options),
        environment=(world or ClientWorld()).environment,
    )


def test_says_what_it_is_and_wants() -> None:
    async def story() -> None:
        async with FakeServer() as server:
            options = ConnectionOptions(client_id="me", heartbeat_ms=5_000, message_timeout_ms=7)
            async with producer(server.address, options):
                pass
            ((_, wanted),) = server.peers[0].of("IDENTIFY")
            assert wanted["client_id"] == "me"
            assert wanted["hostname"]
            assert wanted["feature_negotiation"] is True
            assert wanted["heartbeat_interval"] == 5_000
            assert wanted["msg_timeout"] == 7
            assert wanted["tls_v1"] is wanted["deflate"] is wanted["snappy"] is False
            assert "durable" not in wanted

    run(story())


def test_a_server_without_negotiation_is_fine() -> None:
    async def story() -> None:
        async with (
            FakeServer(Manners(plain_ok=True)) as server,
            producer(server.address, ConnectionOptions()) as p,
        ):
            await p.publish("t", b"x")

    run(story())


@pytest.mark.parametrize("compression", ["deflate", "snappy"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_compressed_and_encrypted(
    compression: Compression, encrypted: bool, tmp_path: Path
) -> None:
    ours, theirs = contexts(tmp_path) if encrypted else (None, None)

    async def story() -> None:
        async with FakeServer(Manners(tls=ours)) as server:
            options = ConnectionOptions(tls=theirs, compression=compression)
            async with producer(server.address, options) as p:
                large = b"abc" * 50_000
                await p.publish("t", large)
                await asyncio.gather(*(p.publish("t", b"%d" % i) for i in range(10)))
                expected = [large] + [b"%d" % i for i in range(10)]
                assert [body for _, _, body in server.peers[0].of("PUB")] == expected

    run(story())


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)
    (tmp_path / "other").mkdir()
    _, strangers = contexts(tmp_path / "other")
    del theirs

    async def story() -> None:
        async with FakeServer(Manners(tls=ours)) as server:
            with pytest.raises(InvalidRequest, match="certificate"):
                await producer(server.address, ConnectionOptions(tls=strangers)).start()

    run(story())


def test_a_server_that_cannot_encrypt_is_refused(tmp_path: Path) -> None:
    _, theirs = contexts(tmp_path)

    async def story() -> None:
        async with FakeServer() as server:
            with pytest.raises(InvalidRequest, match="does not offer TLS"):
                await producer(server.address, ConnectionOptions(tls=theirs)).start()

    run(story())


def test_authentication() -> None:
    async def story() -> None:
        async with FakeServer(Manners(features={"auth_required": True})) as server:
            with pytest.raises(InvalidRequest, match="auth_secret"):
                await producer(server.address, ConnectionOptions()).start()
            async with producer(server.address, ConnectionOptions(auth_secret="s")) as p:
                await p.publish("t", b"x")
            assert [c[0] for c in server.peers[1].commands] == ["IDENTIFY", "AUTH", "PUB"]
            assert server.peers[1].of("AUTH") == [("AUTH", "s")]

    run(story())


def test_durable_is_asked_for_and_must_be_given() -> None:
    async def story() -> None:
        async with FakeServer() as server:
            with pytest.raises(InvalidRequest, match="durable"):
                await producer(server.address, ConnectionOptions(durable=True)).start()
            server.manners = replace(server.manners, features={"durable": True})
            async with producer(server.address, ConnectionOptions(durable=True)) as p:
                await p.publish("t", b"x")

    run(story())


def test_a_port_of_something_else() -> None:
    async def story() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1_000)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = address_of(server)
        with pytest.raises(InvalidRequest, match="TCP port"):
            await producer(address, ConnectionOptions()).start()
        server.close()
        await server.wait_closed()
        with pytest.raises(Unavailable, match="is the server up"):
            await producer(address, ConnectionOptions()).start()

    run(story())


def test_a_server_that_says_nothing() -> None:
    async def story() -> None:
        accepted = asyncio.Event()
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            ended.clear()
            with suppress(OSError):
                while await reader.read(100):
                    pass
            writer.close()
            ended.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        address = address_of(server)
        with pytest.raises(Unavailable, match="did not answer within"):
            await producer(address, ConnectionOptions(connect_timeout_s=0.05)).start()
        async with asyncio.timeout(60):
            await accepted.wait()
        connecting = asyncio.create_task(producer(address, ConnectionOptions()).start())
        accepted.clear()
        await accepted.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await ended.wait()
        server.close()
        await server.wait_closed()

    run(story())


def test_heartbeats_are_answered_and_silence_ends_the_connection() -> None:
    async def story() -> None:
        world = ClientWorld()
        options = ConnectionOptions(heartbeat_ms=1_000)
        async with FakeServer() as server, producer(server.address, options, world) as p:
            first = await server.peer()
            first.send(frame(0, b"_heartbeat_"))
            await first.wait_for("NOP")
            await world.pass_over(2.0)  # something came within it
            await world.pass_over(2.0)  # nothing came within this one
            second = await server.peer(1)
            await p.publish("t", b"x")
            assert second.of("PUB") == [("PUB", "t", b"x")]
            assert first.ended

    run(story())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ConnectionOptions(heartbeat_ms=10), "heartbeat_ms"),
        (lambda: ConnectionOptions(sample_rate=100), "sample_rate"),
        (lambda: ConnectionOptions(deflate_level=0), "deflate_level"),
        (lambda: BackoffOptions(first_ms=0), "first_ms"),
        (lambda: ProducerOptions(max_in_flight_count=0), "max_in_flight_count"),
    ],
)
def test_options_that_cannot_be(make: object, match: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidRequest, match=match):
        make()


class Nobody:
    """Takes no interest in a connection."""

    def received(self, frames: list[Frame]) -> None:
        """Take frames."""

    def disconnected(self, reason: PenstockError) -> None:
        """Take note of the end."""


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyError])
def test_a_connection_that_fails_while_it_opens_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    async def fail(*_given: object) -> None:
        raise error("broken")

    monkeypatch.setattr(NsqConnection, "open", fail)

    async def story() -> None:
        async with FakeServer() as server:
            expected = Unavailable if error is OSError else error
            with pytest.raises(expected, match="broken"):
                await open_connection(
                    server.address, ConnectionOptions(), Nobody(), ClientWorld().environment
                )
            peer = await server.peer()
            await until(lambda: peer.ended)

    run(story())
