"""Events in batches to an HTTP server, on a thread of its own.

Owns sending: time limits, retries, the last attempt at the end. `batches` decides which batches
wait and which are dropped. Defaults are Druid's, with one exception. The time limit of sending is a
multiple of the time in which the last batch was filled. After a burst of events that would be too
short for any request, so it is at least `timeout_min_ms`.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol
from urllib.parse import SplitResult, quote, urlsplit

import orjson

from penstock.core.backoff import RetryPolicy
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, Unavailable, counted
from penstock.core.metrics import MetricRegistry, Sample
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.timed_answers import TimedSocket
from penstock.core.tls_trust import TRUST
from penstock.services.emitter.emitter import Record, try_all
from penstock.services.emitter.http_batches import BatchOptions, EventBatch, EventBatches, framed

logger = logging.getLogger(__name__)

Framing = Literal["array", "newlines", "only_events"]

URLS_MAX: Final = 32
_RETRY_TIMEOUT_S: Final = 60.0


class PostRequest(Protocol):
    """Sends one request."""

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        """Return the answer's status; raises OSError if there is none in time."""
        ...


@dataclass(frozen=True, slots=True)
class HttpSinkOptions:
    """Options of sending.

    Attributes:
        url: The URL.
        batches: Limits of waiting batches.
        framing: Format of a batch.
        compress: Whether bodies are compressed with gzip.
        credentials: `user:password` for basic authentication; None: none.
        attempts: Attempts of a batch before it counts as failed.
        backoff_ms: Pause after the first attempt; it doubles.
        backoff_max_ms: Longest pause.
        timeout_factor: Time limit of sending relative to the fill time, while few batches wait.
        timeout_min_ms: Minimum time limit of sending.
        flush_timeout_ms: Time limit of a flush; None: unlimited.
        stop_timeout_ms: Total time limit of the last attempts at the end.
    """

    url: str
    batches: BatchOptions = field(default_factory=BatchOptions)
    framing: Framing = "array"
    compress: bool = False
    credentials: str | None = field(default=None, repr=False)
    attempts: int = 3
    backoff_ms: int = 1_000
    backoff_max_ms: int = 60_000
    timeout_factor: float = 2.0
    timeout_min_ms: int = 1_000
    flush_timeout_ms: int | None = None
    stop_timeout_ms: int = 3_000


def post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
    """Send one request over a connection of its own, and return the answer's status.

    The time limit applies to the whole request, so that a slow server does not stop the delivery of
    events. The body is not read.

    Raises:
        OSError: The server did not answer in time.
    """
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    try:
        with closing(_connection(parts, timeout_s)) as connection:
            connection.putrequest("POST", target)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.connect()
            timed = TimedSocket(connection.sock, until_s, clock)
            timed.limit()
            connection.endheaders(body)
            with closing(timed.answer("POST")) as answer:
                return answer.status
    except (http.client.HTTPException, ValueError) as error:
        # ValueError: an invalid host or path.
        raise OSError(f"no HTTP answer: {error!r}") from None


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if parts.scheme == "https":
        tls = TRUST.context_of_others()
        return http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=tls)
    return http.client.HTTPConnection(parts.netloc, timeout=timeout_s)


class HttpSink:
    """Posts records to one URL.

    The condition's mutex guards the batches, and is held for a few lines that never wait.

    Args:
        options: Options of sending.
        clock: Time.
        chance: Randomizes retries.
        send: Sends one request.

    Raises:
        InvalidRequest: The URL is not an HTTP URL.
    """

    def __init__(
        self,
        options: HttpSinkOptions,
        clock: Clock,
        chance: random.Random | None = None,
        send: PostRequest = post,
    ) -> None:
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(
                f"{options.url!r} is not a URL for events; write http://HOST:PORT/PATH"
            )
        self._options = options
        self._clock = clock
        self._chance = chance or random.Random()  # only spreads load  # noqa: S311
        self._post = send
        self._batches = EventBatches(options.batches)
        self._changed = threading.Condition()
        self._sending: EventBatch | None = None
        self._stop_by_s: float | None = None
        self._registry = MetricRegistry()
        self._measure()
        self._log = RateLimitedLog(logger, clock)
        self._thread = OwnedThread("event sender", self._run, on_death=OnDeath.RESTART)

    def accept(self, record: Record) -> None:
        """Accept a record into its batch. Raises TypeError for values that JSON does not have."""
        event = orjson.dumps(record.body)
        with self._changed:
            dropped = self._batches.dropped
            if self._stop_by_s is not None:
                self._batches.dropped += 1
            elif self._batches.add(event, self._clock.monotonic_s()):
                self._changed.notify_all()
            lost = self._batches.dropped - dropped
        if lost:
            self._log.warning(
                "dropped %s for %s: too large, too many, or after the end",
                counted(lost, "event"),
                self._options.url,
            )

    def start(self) -> None:
        """Start to send."""
        self._thread.start()

    def flush(self) -> None:
        """Send all accepted records; wait until each was sent, or failed once.

        Raises:
            Unavailable: The time limit was reached.
        """
        limit_ms = self._options.flush_timeout_ms
        until_s = None if limit_ms is None else self._clock.monotonic_s() + limit_ms / 1_000
        with self._changed:
            self._batches.seal(self._clock.monotonic_s())
            self._changed.notify_all()
            wanted = self._batches.begun
            while self._batches.completed < wanted:
                left_s = None if until_s is None else until_s - self._clock.monotonic_s()
                if left_s is not None and left_s <= 0:
                    raise Unavailable(f"events for {self._options.url} were not sent in time")
                self._clock.wait(self._changed, left_s)

    def stop(self) -> None:
        """Try all pending batches once more, and end.

        Raises:
            Unavailable: Some events were not sent and are lost.
        """
        stop_s = self._options.stop_timeout_ms / 1_000
        self._thread.expect_end()
        with self._changed:
            self._batches.seal(self._clock.monotonic_s())
            self._stop_by_s = self._clock.monotonic_s() + stop_s
            self._changed.notify_all()
        self._thread.join(stop_s)
        if not self._thread.is_alive():
            self._send_the_rest()
        elif lost := self._drop_all():
            raise Unavailable(
                f"{self._options.url} did not answer within {stop_s:g} s: lost the last"
                f" {counted(lost, 'event')}"
            )

    def samples(self) -> Iterable[Sample]:
        """Return the numbers of waiting, sent and dropped events, and times."""
        return self._registry.snapshot()

    def _measure(self) -> None:
        registry, batches = self._registry, self._batches
        about = "Batches of events that wait, by queue"
        for queue, read in (
            ("waiting", lambda: batches.waiting),
            ("large", lambda: batches.large),
            ("failed", lambda: batches.failed),
        ):
            registry.read("gauge", "penstock_emitter_batches", about, read, queue=queue)
        registry.read(
            "counter",
            "penstock_emitter_dropped_total",
            "Events lost because too many waited, or because they could not be delivered",
            lambda: batches.dropped,
            sink="http",
        )
        self._sent = registry.counter("penstock_emitter_sent_total", "Events sent over HTTP")
        self._failures = registry.counter(
            "penstock_emitter_failures_total", "Requests with events that failed"
        )
        self._send_s = registry.histogram(
            "penstock_emitter_send_seconds", "Time that a request with events took"
        )
        self._fill_s = registry.histogram(
            "penstock_emitter_fill_seconds", "Time that a batch of events took to fill"
        )

    # The sender's thread

    def _run(self) -> None:
        pause_s = self._options.batches.flush_ms / 2_000
        while True:
            with self._changed:
                self._batches.seal_if_old(self._clock.monotonic_s())
                batch = None if self._stop_by_s is not None else self._batches.take()
                self._sending = batch
                if batch is None and self._stop_by_s is None:
                    self._clock.wait(self._changed, pause_s)
                if self._stop_by_s is not None and batch is None:
                    return
            if batch is not None:
                self._send(batch)

    def _send(self, batch: EventBatch) -> None:
        until_s, is_sent = None, False
        try:
            if not batch.is_retry:
                self._fill_s.observe(batch.fill_s)
                until_s = self._clock.monotonic_s() + self._time_limit_s()
            is_sent = self._try(batch, until_s)
        finally:
            with self._changed:
                is_dropped = self._sending is not batch  # by the stop
                self._sending = None
                if is_sent and not is_dropped:
                    self._sent.add(len(batch.events))
                    self._batches.sent(batch)
                elif not is_dropped:
                    self._batches.fail(batch)
                self._changed.notify_all()

    def _drop_all(self) -> int:
        """Drop all batches, including the one whose request hangs; return the number of events."""
        with self._changed:
            before = self._batches.dropped
            if self._sending is not None:
                self._batches.drop(self._sending)
                self._sending = None
            while (batch := self._batches.take_last()) is not None:
                self._batches.drop(batch)
            self._changed.notify_all()
            return self._batches.dropped - before

    def _send_the_rest(self) -> None:
        """Try each batch once; the sender's thread has ended, or never started."""
        until_s, lost = self._stop_by_s, 0
        while True:
            with self._changed:
                batch = self._batches.take_last()
            if batch is None:
                break
            is_sent = False
            try:
                in_time = until_s is not None and self._clock.monotonic_s() < until_s
                is_sent = in_time and self._try_once(batch, until_s)
            except Exception as error:  # noqa: BLE001 - the other batches are still tried
                self._log.warning("the last attempt of a batch of events failed: %r", error)
            finally:
                with self._changed:
                    if is_sent:
                        self._sent.add(len(batch.events))
                        self._batches.sent(batch)
                    else:
                        self._batches.drop(batch)
                        lost += len(batch.events)
                    self._changed.notify_all()
        if lost:
            raise Unavailable(
                f"{self._options.url} did not accept the last {counted(lost, 'event')}"
            )

    def _time_limit_s(self) -> float:
        with self._changed:
            waiting, fill_s = self._batches.waiting, self._batches.last_fill_s
        factor = self._options.timeout_factor if waiting < 5 else 0.9 if waiting < 10 else 0.5
        return max(fill_s * factor, self._options.timeout_min_ms / 1_000)

    def _try(self, batch: EventBatch, until_s: float | None) -> bool:
        for number in range(1, self._options.attempts + 1):
            if self._try_once(batch, until_s):
                return True
            if number == self._options.attempts or not self._back_off(number, until_s):
                break
        return False

    def _back_off(self, number: int, until_s: float | None) -> bool:
        """Wait before the next attempt; return False if there is no time for one."""
        policy = RetryPolicy(self._options.backoff_ms, self._options.backoff_max_ms)
        pause_s = policy.delay_ms(number) / 1_000 * min(2.0, max(0.0, self._chance.gauss(1.0, 0.2)))
        wake_s = self._clock.monotonic_s() + pause_s
        if until_s is not None and wake_s >= until_s:
            return False
        with self._changed:
            while self._stop_by_s is None:
                left_s = wake_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return True
                self._clock.wait(self._changed, left_s)
        return False

    def _try_once(self, batch: EventBatch, until_s: float | None) -> bool:
        options, begun_s = self._options, self._clock.monotonic_s()
        timeout_s = _RETRY_TIMEOUT_S if until_s is None else max(0.001, until_s - begun_s)
        body = framed(batch.events, options.framing)
        headers = {"Content-Type": "application/json"}
        if options.credentials:
            encoded = base64.b64encode(options.credentials.encode()).decode()
            headers["Authorization"] = f"Basic {encoded}"
        if options.compress:
            body, headers["Content-Encoding"] = gzip.compress(body, 6), "gzip"
        try:
            status = self._post(options.url, body, headers, timeout_s)
            reason = f"answered {status}"
        except OSError as error:
            status, reason = 0, f"{error!r}"
        self._send_s.observe(max(0.0, self._clock.monotonic_s() - begun_s))
        if 200 <= status < 300:
            return True
        self._failures.add()
        events = counted(len(batch.events), "event")
        self._log.warning("%s for %s: %s", events, options.url, reason)
        return False


class HttpByFeedSink:
    """Posts the records of each feed to its own URL.

    Its mutex guards the table of sinks, which grows by one for each feed, up to a bound.

    Args:
        pattern: A URL with `{feed}` in it.
        make: Makes the sink of a URL.

    Raises:
        InvalidRequest: The pattern does not contain `{feed}`.
    """

    def __init__(self, pattern: str, make: Callable[[str], HttpSink]) -> None:
        if "{feed}" not in pattern:
            raise InvalidRequest(f"{pattern!r} has no place for the feed: add {{feed}}")
        self._pattern = pattern
        self._make = make
        self._mutex = threading.Lock()
        self._sinks: dict[str, HttpSink] = {}
        self._is_running = False

    def accept(self, record: Record) -> None:
        """Pass a record to the sink of its feed. Raises InvalidRequest for too many feeds."""
        self._sink(record.feed).accept(record)

    def start(self) -> None:
        """Start to send."""
        with self._mutex:
            self._is_running = True
            sinks = list(self._sinks.values())
        for sink in sinks:
            sink.start()

    def flush(self) -> None:
        """Flush all."""
        try_all("flushed", [sink.flush for sink in self._sinks.values()])

    def stop(self) -> None:
        """Stop all."""
        try_all("stopped", [sink.stop for sink in self._sinks.values()])

    def samples(self) -> Iterable[Sample]:
        """Return the metrics of all sinks, with the feed as a label."""
        with self._mutex:
            sinks = list(self._sinks.items())
        for feed, sink in sinks:
            for sample in sink.samples():
                yield replace(sample, labels=(*sample.labels, ("feed", feed)))

    def _sink(self, feed: str) -> HttpSink:
        with self._mutex:
            found = self._sinks.get(feed)
            if found is None:
                if len(self._sinks) >= URLS_MAX:
                    raise InvalidRequest(f"feed {feed!r} exceeds the limit of {URLS_MAX} feeds")
                found = self._make(self._pattern.replace("{feed}", quote(feed, safe="")))
                if self._is_running:
                    found.start()  # first, because a sink that does not send must not accept events
                self._sinks[feed] = found
            return found
