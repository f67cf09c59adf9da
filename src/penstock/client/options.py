"""Options of the client: connections, reconnecting, producers and consumers.

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

from penstock.core.backoff import RetryPolicy
from penstock.core.bearer import Bearer
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
    """Sources of randomness and delays, passed in so that a test can control both.

    Attributes:
        random: Returns numbers in [0, 1); only spreads load.
        sleep: Waits for a number of seconds.
    """

    random: Callable[[], float] = field(default_factory=lambda: random.SystemRandom().random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True, slots=True)
class BackoffOptions:
    """Growth of pauses: doubled each time, and shortened at random by up to one half.

    Attributes:
        first_ms: The first pause.
        max_ms: The longest pause.

    Raises:
        InvalidRequest: A value is out of range.
    """

    first_ms: int = 100
    max_ms: int = 60_000

    def __post_init__(self) -> None:
        _require(0 < self.first_ms <= self.max_ms, "first_ms must be above 0, and max_ms not less")

    @property
    def policy(self) -> RetryPolicy:
        """The pauses as a retry policy."""
        return RetryPolicy(self.first_ms, self.max_ms, jitter=0.5)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Settings that a connection requests from the server.

    Attributes:
        client_id: Name of this client in the server's statistics; empty: the host's name.
        hostname: Name of this host; empty: the host's name.
        heartbeat_ms: Interval of the server's heartbeats; a connection without input for two
            intervals is closed.
        message_timeout_ms: An unanswered message is redelivered after this time; 0: the server's
            default.
        sample_rate: Percentage of a channel's messages to receive; 0: all.
        tls: TLS context; a server without TLS is refused.
        compression: Requested compression; not used if the server does not support it.
        auth_secret: Sent if the server requires authentication; a function returns that of each
            connection, and must not block.
        durable: Publishes are answered once they survive a power loss. Only Penstock supports it;
            another server is refused.
        connect_timeout_s: Time limit for connecting, including the handshake.
        max_frame_bytes: Largest accepted frame.
        backoff: Pauses between attempts to connect.

    Raises:
        InvalidRequest: A value is out of range.
    """

    client_id: str = ""
    hostname: str = ""
    heartbeat_ms: int = 30_000
    message_timeout_ms: int = 0
    sample_rate: int = 0
    tls: ssl.SSLContext | None = None
    compression: Compression = "none"
    deflate_level: int = 6
    auth_secret: Bearer = field(default=None, repr=False)
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
    """Limits of a producer.

    Attributes:
        max_in_flight_count: Maximum number of unanswered publishes; further ones wait.
        max_in_flight_bytes: Maximum bytes of unanswered publishes.
        max_message_bytes: Largest message that the server accepts; larger ones are refused here,
            because the server closes the connection after such an error.
        max_body_bytes: Largest batch that the server accepts.

    Raises:
        InvalidRequest: A value is out of range.
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
    """Options of a consumer: concurrency, retries, pacing.

    Attributes:
        concurrency: Number of concurrent handlers; None: one for each message in flight. With 1,
            messages are handled in the order of arrival.
        requeue_delay_ms: A message whose handler failed is redelivered after this delay, multiplied
            by its attempts.
        max_requeue_delay_ms: The longest such delay.
        max_attempts: A message that was delivered more often is not handled but given up: finished
            after `give_up` has returned. None: never; the server may have its own limit.
        give_up: Called with a message that is given up, for example to publish it elsewhere.
        slow_down: After a failed handler, no messages are requested during such a pause, then one,
            and full speed resumes after as many successes as failures. None: never.
        rotate_s: If there are more connections than `max_in_flight`, idle ones lose their turn to
            others after this time.
        lookup_s: Time between two lookups of servers, lengthened at random by up to 30 percent.
        drain_s: How long stopping waits for the messages in flight.

    Raises:
        InvalidRequest: A value is out of range.
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
        _require(self.max_attempts is None or self.max_attempts > 0, "max_attempts must be above 0")
        _require(self.rotate_s > 0, "rotate_s must be above 0")
        _require(self.lookup_s > 0, "lookup_s must be above 0")
        _require(self.drain_s >= 0, "drain_s must be 0 or more")
