"""The broker for indexing: `BrokerPort` and `DeadLetterPort` over the broker's client.

Owns the conversion between both, and one client for each thread, because a client has one
connection.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.broker.broker_client import BrokerClient
from penstock.core.bearer import Bearer
from penstock.core.errors import NotFound, NotReachable
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.services.json_client import COMMAND_LINE
from penstock.services.json_values import objects, whole

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets

TIMEOUT_S = 15.0
PRODUCER_NAME_CHARS = 40
NANOSECONDS_PER_MS = 1_000_000


class HttpBrokerPort:
    """Client of a broker; thread-safe.

    Args:
        find: Returns the URL of the broker; called again if it no longer answers there.
        token: Bearer token, if the broker requires one.
    """

    def __init__(self, find: Callable[[], str], token: Bearer = None) -> None:
        self._find = find
        self._token = token
        self._clients = threading.local()

    def available(
        self, topic: str, *, after: Offsets | None = None, wait_ms: int = 0, topic_id: str = ""
    ) -> SeenTopic:
        """Return the topic of this name, and its durably readable offsets."""
        with self._client() as client:
            found = client.offsets(
                topic, after=after, wait_ms=wait_ms, durable=True, topic_id=topic_id
            )
        return SeenTopic(
            found.id,
            {
                part.partition: AvailableRange(part.folder, part.earliest, part.latest)
                for part in found.partitions
            },
        )

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Return when a message was appended, in epoch milliseconds; None if it is not kept."""
        try:
            with self._client() as client:
                found = client.peek(topic, partition=partition, offset=offset, count=1)
        except NotFound:
            return None
        for message in objects(found, "messages"):
            return whole(message, "timestamp") // NANOSECONDS_PER_MS
        return None

    def set_cursor(self, topic: str, name: str, offsets: Offsets) -> None:
        """Set a cursor, which keeps messages from these offsets on."""
        with self._client() as client:
            for partition, offset in offsets.items():
                client.set_cursor(topic, partition, name, offset)

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None:
        """Delete a cursor, if the cursor and the topic exist."""
        for partition in partitions:
            try:
                with self._client() as client:
                    client.delete_cursor(topic, partition, name)
            except NotFound:
                return

    def publish(
        self, topic: str, messages: Sequence[bytes], *, producer: str, sequence: int
    ) -> None:
        """Append messages durably, once for each producer and sequence."""
        # Producer names have a length limit, but those of tasks grow with the supervisor's name.
        name = hashlib.sha256(producer.encode()).hexdigest()[:PRODUCER_NAME_CHARS]
        with self._client() as client:
            client.publish(topic, messages, durable=True, producer=(name, sequence))

    @contextmanager
    def _client(self) -> Iterator[BrokerClient]:
        client: BrokerClient | None = getattr(self._clients, "client", None)
        if client is None:
            client = BrokerClient(
                self._find(),
                token=self._token,
                timeout_s=TIMEOUT_S,
                remedies=COMMAND_LINE,
                role="broker",
            )
            self._clients.client = client
        try:
            yield client
        except NotReachable as error:  # narrow: another port helps only against this error
            # The broker may have restarted at another port.
            self._clients.client = None
            client.close()
            raise NotReachable(
                f"{error}, or name another address with --broker-http", dependency=error.dependency
            ) from error
