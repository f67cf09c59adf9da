"""Drives asyncnsq."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncnsq

from tests.conformance.lines_kit import encoded, serve, tell

ANSWER_S = 5.0


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.messages: dict[tuple[str, str], Any] = {}
        self.reading: list[asyncio.Task[None]] = []

    async def produce(self, name: str, port: int, **features: bool) -> None:
        self.clients[name] = await asyncnsq.create_writer("127.0.0.1", port, **features)

    async def publish(self, name: str, topic: str, body: str) -> None:
        # A command on a connection that the broker is closing gets no answer, and asyncnsq does not
        # end its wait: an application needs a limit of its own.
        async with asyncio.timeout(ANSWER_S):
            _check(await self.clients[name].pub(topic, *encoded([body])))

    async def publish_batch(self, name: str, topic: str, bodies: list[str]) -> None:
        _check(await self.clients[name].mpub(topic, *encoded(bodies)))

    async def defer(self, name: str, topic: str, body: str, ms: int) -> None:
        _check(await self.clients[name].dpub(topic, ms, encoded([body])[0]))

    async def consume(
        self,
        name: str,
        port: int,
        topic: str,
        channel: str,
        in_flight: int,
        finish: bool,
        **features: bool,
    ) -> None:
        reader = await asyncnsq.create_reader(
            [f"127.0.0.1:{port}"], max_in_flight=in_flight, **features
        )
        self.clients[name] = reader
        await reader.subscribe(topic, channel)
        self.reading.append(asyncio.create_task(self._read(name, reader, finish)))

    async def _read(self, name: str, reader: Any, finish: bool) -> None:
        async for message in reader.messages():
            identity = message.message_id.decode()
            self.messages[name, identity] = message
            if finish:
                await message.fin()
            tell(name, identity, message.attempts, message.body)

    async def finish(self, name: str, message: str) -> None:
        await self.messages[name, message].fin()

    async def requeue(self, name: str, message: str, ms: int) -> None:
        await self.messages[name, message].req(ms)

    async def touch(self, name: str, message: str) -> None:
        await self.messages[name, message].touch()

    async def leave(self, name: str) -> None:
        self.clients.pop(name).close()


def _check(response: bytes) -> None:
    if response != b"OK":
        raise RuntimeError(repr(response))


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
