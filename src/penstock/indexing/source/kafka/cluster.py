"""What is asked of a Kafka cluster: the protocols alone, so that tests can stand in for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.indexing.kafkasettings import Settings


class OffsetsGoneError(NotFound):
    """A partition does not hold an offset that was to be read: the message names it, and a mend."""


@dataclass(frozen=True, slots=True)
class TopicShape:
    """A topic: its partitions, and its id, which is empty where the cluster gives none."""

    id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition in order, with their offsets; a value of None was sent as one.

    `end` is where the partition ended when that was found out: nothing lies between the records
    and it, and it holds nothing behind it yet. The rest is there for each record where whole ones
    were asked for: keys, times in epoch milliseconds (negative: none), and headers, if any.
    """

    offsets: Sequence[int] = ()
    values: Sequence[bytes | None] = ()
    end: int | None = None
    keys: Sequence[bytes | None] = ()
    times_ms: Sequence[int] = ()
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None] = ()


class KafkaAdmin(Protocol):
    """Asks a cluster. One thread at a time; calls are bounded."""

    def describe(self, topic: str) -> TopicShape:
        """Return what a topic is made of.

        Raises:
            NotFound: There is no such topic.
            Unavailable: The cluster does not answer.
        """
        ...

    def offsets(self, topic: str, partitions: Iterable[int], *, latest: bool) -> dict[int, int]:
        """Return the first offset of each partition, or the one behind its last durable record.

        Raises:
            NotFound: There is no such topic.
            Unavailable: The cluster does not answer.
        """
        ...


class KafkaLog(Protocol):
    """Reads one partition from one offset on. One thread at a time."""

    def take(self, most: int, wait_s: float) -> Records:
        """Return the next records, as many as `most`; none if none came within `wait_s` seconds.

        Raises:
            OffsetsGoneError: The partition does not hold the offset that is next.
            NotFound: The topic is gone.
            InvalidRequest: The cluster refuses to be read.
        """
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Connect(Protocol):
    """How a cluster is reached."""

    def admin(self, settings: Settings) -> KafkaAdmin:
        """Return a client that asks; nothing is asked yet.

        Raises:
            InvalidRequest: The settings fit no client, or the client is not installed.
        """
        ...

    def log(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> KafkaLog:
        """Return a client that reads a partition from an offset on. Raises as `admin`.

        With `whole` it gives what records have beside their values, too, which costs time.
        """
        ...
