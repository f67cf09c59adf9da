"""A synchronous client of the broker's HTTP API, for tasks and the command line.

Owns one kept-alive connection and the encoding of batches. One client serves one thread.

A publish whose answer was lost may or may not have been taken, so publishes are never repeated by the
client itself. With a ``producer`` and a ``sequence`` the caller may repeat a publish until it is
answered: the broker appends it once. Reads are repeated once when a kept-alive connection turns out
to be dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where one stream partition stands."""

    partition: int
    earliest: int
    latest: int
    folder: str


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Where a topic's stream partitions stand.

    Attributes:
        topic: The topic.
        host: Name of the broker's host; when it is this host, the folders can be mapped.
        folder: Folder of the topic on the broker's host.
        partitions: One entry for each stream partition, in order.
    """

    topic: str
    host: str
    folder: str
    partitions: tuple[PartitionOffsets, ...]


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """Raw blocks as they stand on the broker's disk, checksums included."""

    raw: bytes
    next_offset: int


class BrokerClient:
    """Speaks to one broker. Not shared between threads.

    Args:
        base_url: Such as ``http://127.0.0.1:4151``.
        token: Bearer token, when the broker asks for one.
        timeout_s: Limit for connecting and for each read of an answer (long polls add their wait).
    """

    def __init__(self, base_url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        raise NotImplementedError

    def ping(self) -> None:
        """Return when the broker is well; raises Unavailable otherwise."""
        raise NotImplementedError

    def publish(
        self,
        topic: str,
        messages: Sequence[bytes] | pa.BinaryArray,
        *,
        partition: int | None = None,
        key: str | None = None,
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> None:
        """Publish a batch; ``producer`` is (name, sequence number) for safe repeats."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Create a topic; nothing happens if it exists with as many stream partitions."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages."""
        raise NotImplementedError

    def offsets(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        durable: bool = False,
        timestamp: int | None = None,
    ) -> TopicOffsets:
        """Return where the topic's stream partitions stand, waiting for news if asked to."""
        raise NotImplementedError

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20
    ) -> FetchedBlocks:
        """Return raw blocks from the one that holds ``offset`` on."""
        raise NotImplementedError

    def set_cursor(self, topic: str, partition: int, name: str, offset: int) -> None:
        """Hold retention back at ``offset`` under ``name``."""
        raise NotImplementedError

    def delete_cursor(self, topic: str, partition: int, name: str) -> None:
        """Drop a cursor; nothing happens if there is none."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection."""
        raise NotImplementedError
