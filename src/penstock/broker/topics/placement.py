"""Choice of the stream partition of a publish.

Owns the choice by the publisher, and the rotation if the publisher makes none. Invariant: a
repeated publish of a producer goes to the same stream partition as the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import google_crc32c

from penstock.broker.topic_names import require_name
from penstock.core.errors import InvalidRequest
from penstock.storage.queue.producers import Mark, mark_of

_SEQUENCE_MAX = 2**63 - 1
_BROKER: Final = "~redrive"  # no principal has this id


@dataclass(frozen=True, slots=True)
class BatchProducer:
    """A producer and the sequence number of a publish, to detect a repeated publish.

    Attributes:
        name: 64-bit hash of the producer's name, and of its owner if it has one. Earlier releases
            remember producers under this number.
        owner: Hash of the owner; None: the installation.
        sequence: Grows with each publish of the producer to a stream partition.
    """

    name: int
    owner: int | None
    sequence: int

    @classmethod
    def named(cls, name: str, sequence: int, owner: str = "") -> Self:
        """Return the producer with this name and sequence number.

        Args:
            name: Its name.
            sequence: The sequence number.
            owner: Id of the principal to which the name belongs; empty: to the installation. So
                one principal cannot use the names of another one with higher numbers, after which
                the messages of the other would count as repeated.

        Raises:
            InvalidRequest: The name or the sequence number is invalid.
        """
        require_name(name, "producer")
        if not 0 <= sequence <= _SEQUENCE_MAX:
            raise InvalidRequest(
                f"{sequence} is not a valid sequence number: count up from 0", place="sequence"
            )
        # A zero byte is in no name, so no name is equal to an owner with a name.
        text = f"{owner}\0{name}" if owner else name
        return cls(_hash(text), _hash(owner) if owner else None, sequence)

    @classmethod
    def of_broker(cls, name: str, sequence: int) -> Self:
        """Return a producer of the broker itself, whose name no publish of others can have."""
        return cls(_hash(f"{_BROKER}\0{name}"), None, sequence)

    @property
    def mark(self) -> Mark:
        """The producer and the sequence number, as a queue remembers them."""
        if self.owner is None:
            return self.name, self.sequence
        return mark_of(self.owner, self.name, self.sequence)

    def last_sequence(self, known: Callable[[int], int | None]) -> int | None:
        """Return its last sequence number in a queue; None: it is not remembered.

        Args:
            known: Returns the last sequence number that the queue has for a name.
        """
        found = known(self.mark[0])
        return known(self.name) if found is None else found


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True)
class PublishPlacement:
    """A publisher's choice of the stream partition; all None: no choice."""

    partition: int | None = None
    key: bytes | None = None
    producer: BatchProducer | None = None


ANYWHERE: Final = PublishPlacement()


class PartitionRotation:
    """Rotation of a topic's stream partitions for publishers that make no choice.

    Args:
        topic: The topic's name.
        count: Number of its stream partitions.
    """

    __slots__ = ("_count", "_topic", "_turn")

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._count = count
        self._turn = 0

    def partition(self, placement: PublishPlacement) -> int:
        """Return the stream partition of a publish.

        Raises:
            InvalidRequest: The named stream partition does not exist.
        """
        if placement.partition is not None:
            return require_partition(self._topic, placement.partition, self._count)
        if placement.key is not None:
            return int(google_crc32c.value(placement.key)) % self._count
        if placement.producer is not None:
            return placement.producer.name % self._count
        self._turn = (self._turn + 1) % self._count
        return self._turn


def require_partition(topic: str, partition: int, count: int) -> int:
    """Check that a topic has a stream partition; return its number.

    Raises:
        InvalidRequest: The topic does not have it.
    """
    if not 0 <= partition < count:
        raise InvalidRequest(
            f"topic {topic} has no stream partition {partition}: it has 0 to {count - 1}",
            place="partition",
        )
    return partition
