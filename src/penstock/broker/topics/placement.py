"""Which stream partition of a topic a publish goes to.

Owns what a publisher may say about it, and whose turn it is where it says nothing. Invariant: a
repeated publish of a producer goes to the stream partition of the first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

import google_crc32c

from penstock.broker.names import require_name
from penstock.core.errors import InvalidRequest

_SEQUENCE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Producer:
    """Who publishes and which publish of its own it is, so that a repeat is noticed.

    Attributes:
        number: 64 bits that stand for the producer's name.
        sequence: Grows with each publish of the producer to a stream partition.
    """

    number: int
    sequence: int

    @classmethod
    def named(cls, name: str, sequence: int) -> Self:
        """Return the mark of a producer's publish.

        Raises:
            InvalidRequest: The name or the sequence number cannot be.
        """
        require_name(name, "producer")
        if not 0 <= sequence <= _SEQUENCE_MAX:
            raise InvalidRequest(
                f"{sequence} is no sequence number: count up from 0", place="sequence"
            )
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return cls(int.from_bytes(digest, "little"), sequence)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a publisher says about where its messages go."""

    partition: int | None = None
    key: bytes | None = None
    producer: Producer | None = None


ANYWHERE: Final = Placement()


class Turns:
    """The stream partitions of one topic take turns where a publisher does not decide.

    Args:
        topic: The topic's name.
        count: How many stream partitions it has.
    """

    __slots__ = ("_count", "_topic", "_turn")

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._count = count
        self._turn = 0

    def partition(self, placement: Placement) -> int:
        """Return the stream partition of a publish.

        Raises:
            InvalidRequest: The named stream partition does not exist.
        """
        if placement.partition is not None:
            return require_partition(self._topic, placement.partition, self._count)
        if placement.key is not None:
            return int(google_crc32c.value(placement.key)) % self._count
        if placement.producer is not None:
            return placement.producer.number % self._count
        self._turn = (self._turn + 1) % self._count
        return self._turn


def require_partition(topic: str, partition: int, count: int) -> int:
    """Return the number of a stream partition if a topic with so many has it.

    Raises:
        InvalidRequest: It does not.
    """
    if not 0 <= partition < count:
        raise InvalidRequest(
            f"topic {topic} has no stream partition {partition}: it has 0 to {count - 1}",
            place="partition",
        )
    return partition
