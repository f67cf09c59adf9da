"""State that the connections of one HTTP server share: limits, host checks, metrics and the log.

Owns the limits of a server as a whole, and how a refusal is answered, counted and logged. The rules
of a single connection are in ``connection``. Used on the server's event loop only; `samples` may be
called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.broker.http_server.host_policy import HostPolicy, HttpRefusal
from penstock.core.clock import SystemClock
from penstock.core.metrics import Sample
from penstock.core.rate_limited_log import RateLimitedLogs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 10_000
# Maximum size of all incomplete heads together.
UNFINISHED_BYTES_MAX: Final = 16 << 20
BODY_TIMEOUT_S: Final = 120.0
READING_TIMEOUT_S: Final = 60.0
"""Within this time a client must read a part of its answer."""

_REFUSED: Final = "HTTP connections and requests that were refused or cut off, by reason"
_CONNECTIONS: Final = "Open HTTP connections"


class Evictable(Protocol):
    """A connection that may be closed to make room for a new one."""

    def evict(self) -> None:
        """Close it."""
        ...


def connections_max() -> int:
    """Return how many connections a server accepts: at most half of the descriptor limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if soft < 0 else min(CONNECTIONS_MAX, soft // 2)


def broker_error(refusal: HttpRefusal) -> bytes:
    """Return the body of an error in the broker's format."""
    return orjson.dumps({"message": refusal.code})


class HttpGuard:
    """Limits of one HTTP server.

    Args:
        policy: Checks hosts and origins.
        clock: For the rate of the log.
        error_body: Encodes the body of an error in the server's format.
        max_connections: Maximum number of connections; None: by the limit of descriptors.
        body_timeout_s: Time limit for a request's body to arrive.
        reading_timeout_s: How long a client may pause reading an answer that waits for it.

    Attributes:
        requires_tls: Refuse requests without TLS, except over loopback.
    """

    def __init__(
        self,
        policy: HostPolicy | None = None,
        clock: Clock | None = None,
        error_body: Callable[[HttpRefusal], bytes] = broker_error,
        max_connections: int | None = None,
        body_timeout_s: float = BODY_TIMEOUT_S,
        reading_timeout_s: float = READING_TIMEOUT_S,
    ) -> None:
        self.policy = policy or HostPolicy()
        self.error_body = error_body
        self.body_timeout_s = body_timeout_s
        self.reading_timeout_s = reading_timeout_s
        self.requires_tls = False
        self.connections = 0
        self.unfinished_bytes = 0
        self.refused: Counter[str] = Counter()
        self._max_connections = max_connections
        self._log = RateLimitedLogs(_logger, clock or SystemClock())
        # Connections without a running request, the longest-waiting one first.
        self._waiting: dict[Evictable, None] = {}

    def opened(self, connection: Evictable) -> bool:
        """Count a new connection; return False if it must be refused.

        At the limit, the connection that has waited longest for a request is closed to make room.
        """
        self.connections += 1
        limit = self._max_connections or connections_max()
        if self.connections > limit:
            self._count("connections", "there are %d HTTP connections, the limit", limit)
            if not self._waiting:
                return False
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.evict()
        self._waiting[connection] = None
        return True

    def closed(self, connection: Evictable) -> None:
        """Remove a connection."""
        self.connections -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: Evictable) -> None:
        """Record that a connection waits for its client's next request."""
        self._waiting[connection] = None

    def works(self, connection: Evictable) -> None:
        """Record that a request of a connection is being answered."""
        self._waiting.pop(connection, None)

    def refuse(self, refusal: HttpRefusal, client: str) -> None:
        """Count a refusal and log it at a limited rate."""
        text = f"HTTP request refused ({refusal.reason}): %s; client %s"
        self._count(refusal.reason, text, refusal.detail, client)

    def log_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Log an error of the event loop; errors of the operating system at a limited rate."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self._count("system", "HTTP connections fail: %s", error)
        else:
            loop.default_exception_handler(context)

    def samples(self) -> Iterator[Sample]:
        """Return the metrics."""
        yield Sample("penstock_http_connections", "gauge", _CONNECTIONS, (), self.connections)
        for reason, count in sorted(self.refused.items()):
            labels = (("reason", reason),)
            yield Sample("penstock_http_refused_total", "counter", _REFUSED, labels, count)

    def _count(self, reason: str, text: str, *values: object) -> None:
        self.refused[reason] += 1
        self._log.warning(text, *values)
