"""Drives ansq."""

from __future__ import annotations

import asyncio
from typing import Any

import ansq

from tests.conformance.lines_kit import encoded, serve, tell


class Driver:
    def __init__(self) -> None:
        self.connections: dict[str, Any] = {}
        self.messages: dict[tuple[str, str], Any] = {}
        self.reading: list[asyncio.Task[None]] = []

    async def _connect(self, name: str, port: int, timeout_ms: int | None = None) -> Any:
        features = {} if timeout_ms is None else {"msg_timeout": timeout_ms}
        options = ansq.ConnectionOptions(features=ansq.ConnectionFeatures(**features))
        connection = await ansq.open_connection("127.0.0.1", port, connection_options=options)
        self.connections[name] = connection
        return connection

    async def produce(self, name: str, port: int) -> None:
        await self._connect(name, port)

    async def _connected(self, name: str) -> Any:
        """Wait while it comes back: what is sent before takes the answers of what is sent after."""
        connection = self.connections[name]
        while connection._reader.at_eof():  # noqa: ASYNC110 - it has no event for this
            await asyncio.sleep(0.05)
        return connection

    async def publish(self, name: str, topic: str, body: str) -> None:
        _check(await (await self._connected(name)).pub(topic, *encoded([body])))

    async def publish_batch(self, name: str, topic: str, bodies: list[str]) -> None:
        _check(await self.connections[name].mpub(topic, *encoded(bodies)))

    async def defer(self, name: str, topic: str, body: str, ms: int) -> None:
        _check(await self.connections[name].dpub(topic, encoded([body])[0], ms))

    async def consume(
        self,
        name: str,
        port: int,
        topic: str,
        channel: str,
        in_flight: int,
        finish: bool,
        timeout_ms: int | None = None,
    ) -> None:
        connection = await self._connect(name, port, timeout_ms)
        await connection.subscribe(topic, channel, in_flight)
        self.reading.append(asyncio.create_task(self._read(name, connection, finish)))

    async def _read(self, name: str, connection: Any, finish: bool) -> None:
        async for message in connection.messages():
            identity = message.id if isinstance(message.id, str) else message.id.decode()
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
        await self.connections.pop(name).close()


def _check(response: Any) -> None:
    if response is None or not response.is_ok:
        raise RuntimeError(str(response))


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
