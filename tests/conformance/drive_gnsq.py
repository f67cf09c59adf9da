"""Drives gnsq, which lives on gevent: its conversation with the test is one of greenlets."""

from __future__ import annotations

import json
import sys
from typing import Any

import gevent
import gnsq
from gevent.fileobject import FileObjectThread

from tests.conformance.lines_kit import encoded, say, tell


class BareProducer:
    """gnsq's TCP client alone: its producer trips over the OK that follows any upgrade."""

    def __init__(self, port: int, features: dict[str, Any]) -> None:
        self._connection = gnsq.NsqdTCPClient("127.0.0.1", port, **features)
        self._connection.connect()
        self._connection.identify()

    def publish(self, topic: str, body: bytes, **_more: object) -> None:
        self._connection.publish(topic, body)
        self._connection.check_ok()

    def multipublish(self, topic: str, bodies: list[bytes], **_more: object) -> None:
        self._connection.multipublish(topic, bodies)
        self._connection.check_ok()

    def close(self) -> None:
        self._connection.close_stream()


def in_bytes(features: dict[str, Any]) -> dict[str, Any]:
    """Return the features with texts, such as a secret, as bytes."""
    return {
        name: value.encode() if isinstance(value, str) else value
        for name, value in features.items()
    }


class Driver:
    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.messages: dict[tuple[str, str], Any] = {}

    def produce(self, name: str, port: int, **features: Any) -> None:
        if features:
            self.clients[name] = BareProducer(port, in_bytes(features))
            return
        producer = gnsq.Producer([f"127.0.0.1:{port}"], max_backoff_duration=1)
        producer.start()
        self.clients[name] = producer

    def publish(self, name: str, topic: str, body: str) -> None:
        self.clients[name].publish(topic, *encoded([body]), timeout=60)

    def publish_batch(self, name: str, topic: str, bodies: list[str]) -> None:
        self.clients[name].multipublish(topic, encoded(bodies), timeout=60)

    def defer(self, name: str, topic: str, body: str, ms: int) -> None:
        self.clients[name].publish(topic, *encoded([body]), defer=ms, timeout=60)

    def consume(
        self,
        name: str,
        port: int,
        topic: str,
        channel: str,
        in_flight: int,
        finish: bool,
        **features: Any,
    ) -> None:
        def handle(_consumer: object, message: Any) -> None:
            identity = message.id if isinstance(message.id, str) else message.id.decode()
            message.enable_async()
            self.messages[name, identity] = message
            if finish:
                message.finish()
            tell(name, identity, message.attempts, message.body)

        consumer = gnsq.Consumer(
            topic,
            channel,
            [f"127.0.0.1:{port}"],
            message_handler=handle,
            max_tries=0,
            max_in_flight=in_flight,
            max_backoff_duration=1,
            **in_bytes(features),
        )
        consumer.start(block=False)
        self.clients[name] = consumer

    def finish(self, name: str, message: str) -> None:
        self.messages[name, message].finish()

    def requeue(self, name: str, message: str, ms: int) -> None:
        self.messages[name, message].requeue(ms, backoff=False)

    def touch(self, name: str, message: str) -> None:
        self.messages[name, message].touch()

    def leave(self, name: str) -> None:
        self.clients.pop(name).close()


def carry_out(driver: Driver, request: dict[str, Any]) -> None:
    try:
        value = getattr(driver, request["do"])(**request["with"])
        say(number=request["number"], value=value)
    except Exception as error:  # noqa: BLE001 - the test judges what a client raises
        say(number=request["number"], error=f"{type(error).__name__}: {error}")


def main() -> None:
    driver = Driver()
    requests = FileObjectThread(sys.stdin.buffer, "rb")
    while line := requests.readline():
        gevent.spawn(carry_out, driver, json.loads(line))


if __name__ == "__main__":
    main()
