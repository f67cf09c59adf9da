"""Publishes records that a process keeps in files to their topic: of the audit, of provenance.

Owns the thread that reads the files and the order of its steps. The files are the source: no
request and no flow waits for the topic, and while the broker is away the files grow up to their
limit. `audit_files` and `provenance_records` are such sources.

    store the range of the batch → publish it durably → store that it is published

Each record is in the topic exactly once. A batch whose answer was lost is published again with the
same records and the same sequence number, by which the broker recognizes it, even after a restart
of this process. Only a damaged file of the position lets records be published again.

Publishing needs the rights of a process, and calls of processes are not recorded. A refused call is
recorded, so a refusal adds one record for each attempt, and attempts become rare.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.broker.broker_client import BrokerClient
from penstock.broker.message_bodies import encode_binary
from penstock.core.backoff import Backoff, RetryPolicy
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.host.audit_files import AuditPosition

EVERY_S: Final = 1.0
"""Interval at which new records are published, in seconds."""
END_S: Final = 3.0
_POLICY: Final = RetryPolicy(initial_ms=1_000, max_ms=60_000, jitter=0.5)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedLines:
    """Records that are encoded already.

    Attributes:
        count: Their number.
        body: They, in the broker's binary format.
    """

    count: int
    body: bytes

    def __len__(self) -> int:
        return self.count


Lines = list[bytes] | EncodedLines


class PublishedBatch(Protocol):
    """Records in the order of their numbers."""

    @property
    def lines(self) -> Lines:
        """Return the records."""
        ...

    @property
    def last(self) -> int:
        """Return the number of the last record."""
        ...


class PublishedSource(Protocol):
    """Files with records, as the publisher uses them."""

    def position(self) -> AuditPosition:
        """Return which records are in the topic."""
        ...

    def set_position(self, position: AuditPosition) -> None:
        """Store which records are in the topic, durably."""
        ...

    def read_next(self, number: int) -> PublishedBatch:
        """Return the next batch, from a number on."""
        ...

    def read_again(self, first: int, last: int) -> PublishedBatch:
        """Return the batch with these numbers, without the records that were deleted."""
        ...

    def settled(self, first: int, last: int, count: int) -> None:
        """Count the records of a batch that are in the topic, and those that were deleted."""
        ...


class AuditTopic(Protocol):
    """The topic, as the publisher uses it."""

    def publish(self, lines: Lines, producer: tuple[str, int]) -> None:
        """Append records durably, once for each producer and sequence number.

        Raises:
            PenstockError: They may or may not have been appended.
        """
        ...

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        ...


class BrokerAuditTopic:
    """The topic at the broker. One thread.

    Args:
        topic: Its name.
        broker: Returns the URL of the broker's HTTP API.
        bearer: Returns the bearer token of this process for one request.
    """

    def __init__(self, topic: str, broker: Callable[[], str], bearer: Callable[[], str]) -> None:
        self._name = topic
        self._broker = broker
        self._bearer = bearer
        self._client: BrokerClient | None = None

    def publish(self, lines: Lines, producer: tuple[str, int]) -> None:
        """Append records. Raises as `AuditTopic.publish`."""
        if self._client is None:
            self._client = BrokerClient(self._broker(), token=self._bearer, role="broker")
        body = lines.body if isinstance(lines, EncodedLines) else encode_binary(lines)
        self._client.publish_encoded(self._name, body, partition=0, durable=True, producer=producer)

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class AuditPublisher:
    """Publishes the records of one source.

    The condition only lets `stop` end the waits of the thread.

    Args:
        records: The records.
        topic: The topic.
        clock: Time.
        random: Returns numbers in [0, 1), for the delays.
        name: Kind of the records, for threads and messages.
    """

    def __init__(
        self,
        records: PublishedSource,
        topic: AuditTopic,
        clock: Clock,
        random: Callable[[], float] = random.random,
        name: str = "audit",
    ) -> None:
        self._records = records
        self._name = name
        self._topic = topic
        self._clock = clock
        self._backoff = Backoff(_POLICY, random)
        self._log = RateLimitedLog(_logger, clock)
        self._changed = threading.Condition()
        self._thread = OwnedThread(name, self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; records that remain are published after the next start."""
        self._thread.end(self._changed, END_S)

    def publish_next(self) -> bool:
        """Publish one batch; return whether there was one.

        Raises:
            PenstockError: The records cannot be read, or the batch may not have been published.
        """
        records, position = self._records, self._records.position()
        producer, following, last = position.producer, position.following, position.sending
        if last:
            lines = records.read_again(following, last).lines
        else:
            batch = records.read_next(following)
            if not batch.lines:
                return False
            lines, last = batch.lines, batch.last
            records.set_position(AuditPosition(producer, following, last))
        if lines:
            self._topic.publish(lines, (producer, last))
        records.set_position(AuditPosition(producer, last + 1))
        records.settled(following, last, len(lines))
        return True

    def _run(self) -> None:
        try:
            while not self._thread.is_end_expected:
                self._wait(self._step())
        finally:
            self._topic.close()

    def _step(self) -> float:
        """Publish what there is; return the time until the next attempt, in seconds."""
        try:
            while not self._thread.is_end_expected and self.publish_next():
                self._backoff.reset()
        except PenstockError as error:
            self._topic.close()
            self._log.warning("records of %s are not published yet: %s", self._name, error)
            return self._backoff.next_s()
        return EVERY_S

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._thread.is_end_expected:
                self._clock.wait(self._changed, seconds)
