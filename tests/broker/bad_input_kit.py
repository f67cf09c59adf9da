"""Brokers that are sent nonsense, a client that must not notice, and how much memory it took."""

from __future__ import annotations

import itertools
from typing import Self

from tests.broker.v2_kit import V2

MEBIBYTE = 1 << 20


class Bystander:
    """Somebody else's producer and consumer at the same broker."""

    def __init__(self, port: int) -> None:
        self._numbers = itertools.count()
        self._producer = V2(port)
        self._consumer = V2(port).subscribe("bystander", "channel", ready=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._consumer.close()

    def notices_nothing(self) -> None:
        """Publish and consume a message."""
        body = b"message %d" % next(self._numbers)
        self._producer.publish("bystander", body)
        message = self._consumer.message()
        assert (message.body, message.attempts) == (body, 1)
        self._consumer.finish(message.id)
