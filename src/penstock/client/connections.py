"""The set of a consumer's connections.

Owns connecting, looking up servers, and ending. Does not own how many messages each may have in
flight (`ready_counts`), nor messages, which are passed to `Inbound`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.client.lookup import find_servers, http_get, shown_service
from penstock.client.ready_counts import ClientPace
from penstock.client.subscription import Subscription
from penstock.core.backoff import Backoff
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Closed, InvalidRequest, PenstockError, Unavailable
from penstock.core.loop_tasks import start_owned

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Sequence

    from penstock.client.message import Message
    from penstock.client.options import ConsumerOptions, Environment

_logger = logging.getLogger(__name__)

_JITTER = 0.3


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    """Failed tries to connect since the last connection was accepted.

    Attributes:
        tries: Number of failed tries, at all addresses, and of lookups that found no address.
        error: Error of the last try.
    """

    tries: int
    error: PenstockError


@dataclass(frozen=True, slots=True)
class Inbound:
    """Callbacks for events of the connections.

    Attributes:
        put: Receives messages.
        forget: Called with a closed connection, whose messages need no longer be processed.
        failed: Called if the consumer cannot continue: no server ever accepted it and one refused
            it permanently, or one of its tasks raised an exception.
    """

    put: Callable[[list[Message]], None]
    forget: Callable[[Subscription], None]
    failed: Callable[[PenstockError], None]


class ConsumerConnections:
    """The connections of one consumer.

    Args:
        topic: The topic.
        channel: The channel.
        max_in_flight: Limit over all connections.
        options: Options of the consumer.
        environment: Sources of randomness and delays.
        inbound: Receives messages.

    Attributes:
        failure: Failed tries while there is no connection; replaced as a whole, so that any thread
            may read it.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        max_in_flight: int,
        options: ConsumerOptions,
        environment: Environment,
        inbound: Inbound,
    ) -> None:
        self._topic = topic
        self._channel = channel
        self._options = options
        self._environment = environment
        self._inbound = inbound
        self._pacing = ClientPace(max_in_flight, options, environment)
        self._joined: dict[Subscription, None] = {}
        self._wanted: set[str] = set()
        self._serving: set[str] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._accepted = False
        self._closing = False
        self._drained = asyncio.Event()
        self._received = self._too_late = 0
        self.failure: ConnectFailure | None = None

    # -- for the consumer

    def start(self, addresses: Collection[str], services: Sequence[str]) -> None:
        """Start connecting to fixed addresses, and to servers that lookup services know."""
        self._want(addresses)
        if services:
            self._spawn("lookup", self._look_up(frozenset(addresses), services))
        self._spawn("rotation", self._pacing.take_turns())

    async def start_close(self) -> None:
        """Open no further connections, and request no further messages."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        steps = CleanupSteps()
        for subscription in self._joined:
            steps.take(subscription.start_close)
        steps.finish()

    async def wait_drained(self) -> None:
        """Wait until no further message can arrive and all received ones are answered."""
        while self.in_flight or not all(subscription.quiet for subscription in self._joined):
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Send pending output, and disconnect."""
        steps = CleanupSteps()
        # Try twice, because a call may raise before it has closed anything. Do not wait for a
        # connection that cannot be closed: it may last forever.
        leaving = [
            subscription
            for subscription in list(self._joined)
            if steps.take(subscription.close) or steps.take(subscription.close)
        ]
        await asyncio.gather(*(subscription.ended for subscription in leaving))
        steps.finish()

    def resize(self, max_in_flight: int) -> None:
        """Set the maximum number of messages in flight."""
        self._pacing.resize(max_in_flight)

    def note_outcome(self, succeeded: bool) -> None:
        """Slow down after failures, and speed up after successes."""
        try:
            pause_s = self._pacing.note_outcome(succeeded)
            if pause_s is not None and not self._closing:
                self._spawn("pause", self._pacing.end_pause(pause_s))
        except BaseException as error:
            # Without the task that ends the pause, no message would be requested again.
            self.task_failed("pause", error)
            raise

    def task_failed(self, name: str, error: BaseException) -> None:
        """Report the failure of a task without which the consumer cannot continue."""
        failure = Closed(
            f"the consumer of {self._topic}/{self._channel} failed: {name}: {error!r}: create a "
            "new one"
        )
        failure.__cause__ = error
        self._inbound.failed(failure)

    @property
    def connection_count(self) -> int:
        """Number of subscribed connections."""
        return len(self._joined)

    @property
    def in_flight(self) -> int:
        """Number of messages that were received and not answered."""
        return sum(subscription.in_flight for subscription in self._joined)

    @property
    def received(self) -> int:
        """Number of received messages."""
        return self._received + sum(subscription.received_count for subscription in self._joined)

    @property
    def too_late(self) -> int:
        """Number of answers after a message's time-out."""
        return self._too_late + sum(subscription.too_late_count for subscription in self._joined)

    # -- callbacks of subscriptions

    def arrived(self, messages: list[Message]) -> None:
        """Pass messages on."""
        self._inbound.put(messages)

    def answered(self) -> None:
        """Check again whether all messages are answered."""
        self._drained.set()

    def lost(self, subscription: Subscription) -> None:
        """Remove a connection."""
        steps = CleanupSteps()
        if subscription in self._joined:
            del self._joined[subscription]
            self._received += subscription.received_count
            self._too_late += subscription.too_late_count
            steps.take(self._inbound.forget, subscription)
            steps.take(self._pacing.leave, subscription)
        steps.take(self._drained.set)
        steps.finish()

    # -- connecting

    def _want(self, addresses: Collection[str]) -> None:
        self._wanted = set(addresses)
        for address in sorted(self._wanted - self._serving):
            self._spawn("connection", self._serve(address))
            self._serving.add(address)

    async def _serve(self, address: str) -> None:
        options, environment = self._options.connection, self._environment
        backoff = Backoff(options.backoff.policy, environment.random, free_retries=1)
        while address in self._wanted:
            subscription = Subscription(address, self)
            try:
                limit = await subscription.open(self._topic, self._channel, options, environment)
            except PenstockError as error:
                if isinstance(error, InvalidRequest) and not self._accepted:
                    self._inbound.failed(error)
                    return
                _logger.warning("no connection to consume on: %s", error)
                self._note_failure(error)
            except Exception:
                # The outermost handler of a task: the next attempt must follow.
                _logger.exception("no connection to consume on: %s", address)
            else:
                self._join(subscription, limit)
                reason = await asyncio.shield(subscription.ended)
                _logger.warning("a connection to consume on ended: %s", reason)
                if subscription.proved:
                    backoff.reset()
            await environment.sleep(backoff.next_s())
        self._serving.discard(address)

    def _note_failure(self, error: PenstockError) -> None:
        if not self._joined:
            tries = 1 if self.failure is None else self.failure.tries + 1
            self.failure = ConnectFailure(tries, error)

    def _join(self, subscription: Subscription, limit: int) -> None:
        self._accepted = True
        self.failure = None
        self._joined[subscription] = None
        self._pacing.join(subscription, limit)

    async def _look_up(self, fixed: frozenset[str], services: Sequence[str]) -> None:
        while True:
            try:
                found = await find_servers(services, self._topic, http_get)
                if found is not None:
                    # A server that is no longer known keeps its connection, but is not reconnected.
                    self._want(fixed | found)
                if not self._wanted:  # otherwise each of them is tried, and failures are noted
                    self._note_failure(self._unknown(services, is_answered=found is not None))
            except Exception:
                # The outermost handler of a task: the next lookup must follow.
                _logger.exception("cannot look up the servers of topic %s", self._topic)
            jitter = 1.0 + _JITTER * self._environment.random()
            await self._environment.sleep(self._options.lookup_s * jitter)

    def _unknown(self, services: Sequence[str], *, is_answered: bool) -> Unavailable:
        """Return the error of a lookup after which no address is known."""
        names = ", ".join(map(shown_service, services))
        if is_answered:
            return Unavailable(f"no server with topic {self._topic} is known to {names}")
        return Unavailable(f"no lookup service answers: {names}")

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> None:
        task = start_owned(name, work, self.task_failed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
