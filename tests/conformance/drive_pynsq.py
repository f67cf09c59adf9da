"""Drives pynsq."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import nsq

from tests.conformance.lines_kit import encoded, serve, tell


class QuickReader(nsq.Reader):
    """A reader that comes back soon: the 10 and 15 seconds of the original are fixed."""

    def _on_connection_close(self, conn: Any, **more: Any) -> None:
        loop = self.io_loop
        self.io_loop = _SoonLoop(loop)
        self.connection_attempts.clear()
        super()._on_connection_close(conn, **more)
        self.io_loop = loop


class _SoonLoop:
    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def call_later(self, _seconds: float, call: Callable[[], object]) -> object:
        return self._loop.call_later(0.2, call)


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.messages: dict[tuple[str, str], Any] = {}

    async def produce(self, name: str, port: int, **features: Any) -> None:
        writer = nsq.Writer([f"127.0.0.1:{port}"], reconnect_interval=0.2, **features)
        self.clients[name] = writer
        while not writer.conns:  # noqa: ASYNC110 - it has no event for this
            await asyncio.sleep(0.01)

    async def _publish(self, publish: Callable[..., object], *what: object) -> None:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        publish(*what, callback=lambda _conn, data: answer.set_result(data))
        data = await answer
        if data != b"OK":
            raise RuntimeError(repr(data))

    async def publish(self, name: str, topic: str, body: str) -> None:
        await self._publish(self.clients[name].pub, topic, encoded([body])[0])

    async def publish_batch(self, name: str, topic: str, bodies: list[str]) -> None:
        await self._publish(self.clients[name].mpub, topic, encoded(bodies))

    async def defer(self, name: str, topic: str, body: str, ms: int) -> None:
        await self._publish(self.clients[name].dpub, topic, ms, encoded([body])[0])

    async def consume(
        self,
        name: str,
        port: int,
        topic: str,
        channel: str,
        in_flight: int,
        finish: bool,
        timeout_ms: int | None = None,
        **features: Any,
    ) -> None:
        def handle(message: Any) -> None:
            identity = message.id.decode()
            message.enable_async()
            self.messages[name, identity] = message
            if finish:
                message.finish()
            tell(name, identity, message.attempts, message.body)

        self.clients[name] = QuickReader(
            topic,
            channel,
            message_handler=handle,
            nsqd_tcp_addresses=[f"127.0.0.1:{port}"],
            max_tries=0,
            max_in_flight=in_flight,
            msg_timeout=None if timeout_ms is None else timeout_ms / 1000,
            **features,
        )

    async def finish(self, name: str, message: str) -> None:
        self.messages[name, message].finish()

    async def requeue(self, name: str, message: str, ms: int) -> None:
        self.messages[name, message].requeue(time_ms=ms, backoff=False)

    async def touch(self, name: str, message: str) -> None:
        self.messages[name, message].touch()

    async def leave(self, name: str) -> None:
        client = self.clients.pop(name)
        client.nsqd_tcp_addresses = []
        client.connect_to_nsqd = lambda **_: None  # it would come back
        for connection in tuple(client.conns.values()):
            connection.close()


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
