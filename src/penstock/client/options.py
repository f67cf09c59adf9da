"""What a user may set: connections, reconnecting, producers and consumers.

Owns the options, their defaults and their bounds. The defaults follow NSQ's own clients where
those are sound.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.client.message import Message

Compression = Literal["none", "deflate", "snappy"]
GiveUp = Callable[["Message"], Awaitable[None]]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvalidRequest(what)


@dataclass(frozen=True, slots=True)
class Environment:
    """Chance and waiting, passed in so that a test decides over both.

    Attributes:
        random: Gives numbers in [0, 1); spreads load, guards nothing.
        sleep: Waits so many seconds.
    """

    random: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True, slots=True)
class BackoffOptions:
    """How pauses grow: doubled each time, and shortened by chance to half of it at most.

    Attributes:
        first_ms: The first pause.
        max_ms: The longest.

    Raises:
        InvalidRequest: A bound does not hold.
    """

    first_ms: int = 100
    max_ms: int = 60_000

    def __post_init__(self) -> None:
        _require(0 < self.first_ms <= self.max_ms, "first_ms must be above 0, and max_ms not less")


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What a connection asks of the server.

    Attributes:
        client_id: How the server's statistics name this client; the host's name when empty.
        hostname: The host's name when empty.
        heartbeat_ms: The server lets itself be heard that often; a connection on which nothing
            came for two of these is given up.
        message_timeout_ms: A message that is not answered for so long comes again; 0: as the
            server has it.
        sample_rate: Percent of a channel's messages that are wanted; 0: all.
        tls: Encrypts with this; a server that cannot is refused.
        compression: Asked for; a server that cannot is used without.
        auth_secret: Sent when the server wants authentication.
        durable: Publishes are answered when they survive a power cut. Only Penstock does it, so
            another server is refused.
        connect_timeout_s: For all of connecting.
        max_frame_bytes: Largest frame that is taken.
        backoff: Between attempts to connect.

    Raises:
        InvalidRequest: A bound does not hold.
    """

    client_id: str = ""
    hostname: str = ""
    heartbeat_ms: int = 30_000
    message_timeout_ms: int = 0
    sample_rate: int = 0
    tls: ssl.SSLContext | None = None
    compression: Compression = "none"
    deflate_level: int = 6
    auth_secret: str | None = field(default=None, repr=False)
    durable: bool = False
    connect_timeout_s: float = 10.0
    max_frame_bytes: int = 64 * 1024 * 1024
    backoff: BackoffOptions = BackoffOptions()

    def __post_init__(self) -> None:
        _require(self.heartbeat_ms >= 1_000, "heartbeat_ms must be 1,000 or more")
        _require(0 <= self.sample_rate <= 99, "sample_rate must be 0 to 99 percent")
        _require(1 <= self.deflate_level <= 9, "deflate_level must be 1 to 9")
        _require(self.connect_timeout_s > 0, "connect_timeout_s must be above 0")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The bounds of a producer.

    Attributes:
        max_in_flight_count: Publishes that wait for their answer at the same time; further ones
            wait for room.
        max_in_flight_bytes: Bytes of these.
        max_message_bytes: Largest message, as the server has it; larger ones are refused here,
            because the server ends the connection over them.
        max_body_bytes: Largest batch, as the server has it.

    Raises:
        InvalidRequest: A bound does not hold.
    """

    connection: ConnectionOptions = ConnectionOptions()
    max_in_flight_count: int = 1_000
    max_in_flight_bytes: int = 16 * 1024 * 1024
    max_message_bytes: int = 1_048_576
    max_body_bytes: int = 5_242_880

    def __post_init__(self) -> None:
        _require(self.max_in_flight_count > 0, "max_in_flight_count must be above 0")
        _require(self.max_in_flight_bytes > 0, "max_in_flight_bytes must be above 0")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer takes messages and what it does when handling fails.

    Attributes:
        concurrency: Handlers that run at the same time; None: one for each message in flight. With
            1, messages are handled in the order they come.
        requeue_delay_ms: A message whose handler failed comes again after this, times its
            attempts.
        max_requeue_delay_ms: The longest such delay.
        max_attempts: A message that was delivered more often is not handled but given up: finished
            after `give_up` has taken it. None: never; the server may have a limit of its own.
        give_up: Takes a message that is given up, such as to publish it elsewhere.
        slow_down: After a failed handler no messages are asked for during such a pause, then one,
            and all again when as many succeeded as failed. None: never.
        rotate_s: With more connections than `max_in_flight`, those with nothing to give pass their
            turn on after this time.
        lookup_s: Time between two looks for servers, lengthened by chance by up to three tenths.
        drain_s: How long stopping waits for what is in flight.

    Raises:
        InvalidRequest: A bound does not hold.
    """

    connection: ConnectionOptions = ConnectionOptions()
    concurrency: int | None = None
    requeue_delay_ms: int = 90_000
    max_requeue_delay_ms: int = 900_000
    max_attempts: int | None = None
    give_up: GiveUp | None = None
    slow_down: BackoffOptions | None = BackoffOptions(first_ms=1_000, max_ms=120_000)
    rotate_s: float = 5.0
    lookup_s: float = 60.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        _require(self.concurrency is None or self.concurrency > 0, "concurrency must be above 0")
        _require(self.requeue_delay_ms >= 0, "requeue_delay_ms must be 0 or more")
        _require(self.max_attempts is None or self.max_attempts > 0, "max_attempts is 1 or more")
        _require(self.rotate_s > 0, "rotate_s must be above 0")
        _require(self.lookup_s > 0, "lookup_s must be above 0")
        _require(self.drain_s >= 0, "drain_s must be 0 or more")
