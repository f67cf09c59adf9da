"""Protocols for access to a Kafka cluster, so that tests can replace the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.indexing.kafka_settings import Settings


class OffsetsGoneError(NotFound):
    """A partition does not hold an offset to be read; the message names the offset and a fix."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic: its partitions, and its id, which is empty if the cluster provides none."""

    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """Records of one partition in order, with their offsets; a value of None is a tombstone.

    `end` is the partition's end, if it was reached: no record lies between these records and `end`,
    and none was appended after it yet. The other fields have an entry for each record if whole
    records were requested: keys, times in epoch milliseconds (negative: none), headers, if any.
    """

    offsets: Sequence[int] = ()
    values: Sequence[bytes | None] = ()
    end: int | None = None
    keys: Sequence[bytes | None] = ()
    times_ms: Sequence[int] = ()
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] = ()


class KafkaAdmin(Protocol):
    """Queries a cluster. One thread at a time; calls have a timeout."""

    def describe(self, topic: str) -> TopicShape:
        """Return the partitions and the id of a topic.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The cluster does not answer.
        """
        ...

    def offsets(self, topic: str, partitions: Iterable[int], *, latest: bool) -> dict[int, int]:
        """Return the first offset of each partition, or the one after its last durable record.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The cluster does not answer.
        """
        ...


class KafkaLog(Protocol):
    """Reads one partition from one offset onwards. One thread at a time."""

    def take(self, most: int, wait_s: float) -> KafkaRecords:
        """Return up to `most` next records; none if none arrives within `wait_s` seconds.

        Raises:
            OffsetsGoneError: The partition does not hold the next offset.
            NotFound: The topic no longer exists.
            InvalidRequest: The cluster refuses access.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Connect(Protocol):
    """Creates clients of a cluster."""

    def admin(self, settings: Settings) -> KafkaAdmin:
        """Return a client for queries, without contacting the cluster.

        Raises:
            InvalidRequest: The settings are invalid, or the client is not installed.
        """
        ...

    def log(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> KafkaLog:
        """Return a client that reads a partition from an offset onwards. Raises as `admin`.

        With `whole` it also returns keys, times and headers, which is slower.
        """
        ...
