"""A synchronous client of the broker's HTTP API, for tasks and the command line.

Owns what each request of the API looks like, and its answer. Does not own the connection that they
go over (`requests`). One client serves one thread.

A publish whose answer was lost may or may not have been taken, so publishes are never repeated by
the client itself. With a ``producer`` and a ``sequence`` the caller may repeat a publish until it
is answered: the broker appends it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import orjson

from penstock.broker.messages import encode_binary
from penstock.broker.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Where one stream partition stands; `offset` answers a timestamp, when one was asked for."""

    partition: int
    earliest: int
    latest: int
    folder: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Where a topic's stream partitions stand.

    Attributes:
        topic: The topic.
        id: Tells it from one that was deleted and had its name; its offsets are of this one.
        host: Name of the broker's host; when it is this host, the folders can be mapped.
        folder: Folder of the topic on the broker's host.
        partitions: One entry for each stream partition, in order.
    """

    topic: str
    id: str
    host: str
    folder: str
    partitions: tuple[PartitionOffsets, ...]


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """Raw blocks as they stand on the broker's disk, checksums included."""

    raw: bytes
    next_offset: int


class BrokerClient:
    """Speaks to one broker. Not shared between threads; usable as a context manager.

    Args:
        base_url: Such as ``http://127.0.0.1:4151``.
        token: Bearer token, when the broker asks for one.
        timeout_s: Limit for connecting and for each read of an answer (long polls add their wait).

    Raises:
        InvalidRequest: The URL is not one of HTTP.
    """

    def __init__(self, base_url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.base_url = base_url
        self._requests = Requests(base_url, token, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def ping(self) -> None:
        """Return when the broker is there and can take messages.

        Raises:
            Unavailable: It cannot, or does not answer.
        """
        self._requests.ask("GET", "/ping")

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
        """Publish a batch: all of it to one stream partition, or nothing.

        Args:
            topic: The topic; made when there is none.
            messages: One or more messages, none of them empty.
            partition: Where to; by key, by producer or in turns otherwise.
            key: Batches of one key go to one stream partition.
            durable: Return only when the batch survives power loss.
            producer: A name and a sequence number that grows with each batch. With them the call
                may be repeated after any failure, and the batch is there once. A producer has one
                publish to a stream partition under way at a time.

        Raises:
            InvalidRequest: The broker refuses the batch as it is.
            Unavailable: No room, no answer, or the connection broke: the batch may be there or not.
        """
        self.publish_encoded(
            topic,
            encode_binary(messages),
            partition=partition,
            key=key,
            durable=durable,
            producer=producer,
        )

    def publish_encoded(
        self,
        topic: str,
        body: bytes,
        *,
        binary: bool = True,
        partition: int | None = None,
        key: str | None = None,
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> None:
        """Publish a body that is encoded already: binary, or one message per line.

        Args and Raises as `publish`.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if binary:
            parameters["binary"] = "true"
        if partition is not None:
            parameters["partition"] = partition
        if key is not None:
            parameters["key"] = key
        if durable:
            parameters["durable"] = 1
        if producer is not None:
            parameters["producer"], parameters["sequence"] = producer
        self._requests.ask("POST", "/mpub", parameters, body)

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Create a topic; nothing happens if it exists with as many stream partitions.

        Raises:
            Conflict: It exists with another number of stream partitions.
            InvalidRequest: The name or the number cannot be.
            Unavailable: The broker cannot do it now.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if partitions is not None:
            parameters["partitions"] = partitions
        self._requests.ask("POST", "/topic/create", parameters)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages.

        Raises:
            NotFound: There is none.
            Unavailable: The broker cannot do it now.
        """
        self._requests.ask("POST", "/topic/delete", {"topic": topic})

    def peek(
        self,
        topic: str,
        *,
        channel: str | None = None,
        partition: int = 0,
        offset: int | None = None,
        count: int | None = None,
        state: str | None = None,
    ) -> dict[str, object]:
        """Return the document of ``/peek``: messages, which are not taken.

        Args:
            topic: The topic.
            channel: Also say how they stand in this channel, and begin where it has work to do.
            partition: The stream partition.
            offset: Begin here.
            count: So many at most.
            state: Only those that are ``in_flight``, ``deferred`` or ``requeued``.

        Raises:
            InvalidRequest: The stream partition or the state does not exist.
            NotFound: There is no such topic or channel, or the offset is not kept.
            Unavailable: The broker does not answer.
        """
        wanted = {"channel": channel, "offset": offset, "count": count, "state": state}
        parameters: dict[str, str | int] = {"topic": topic, "partition": partition}
        parameters |= {name: value for name, value in wanted.items() if value is not None}
        document: dict[str, object] = orjson.loads(
            self._requests.ask("GET", "/peek", parameters)[1]
        )
        return document

    def offsets(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        durable: bool = False,
        timestamp: int | None = None,
        topic_id: str = "",
    ) -> TopicOffsets:
        """Return where the topic's stream partitions stand.

        Args:
            topic: The topic.
            after: With `wait_ms`: answer when a stream partition's latest passes its offset here.
            wait_ms: How long to wait for that; then the answer says that nothing is new.
            durable: `latest` is fsynced; the call waits for that.
            timestamp: Also look up the first offset appended at or after this epoch time in ms.
            topic_id: The topic that `after` was read in: where another has its name by now, the
                answer comes at once.

        Raises:
            NotFound: There is no such topic.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if topic_id:
            parameters["id"] = topic_id
        if after:
            parameters["after"] = ",".join(f"{number}:{at}" for number, at in after.items())
            parameters["wait_ms"] = wait_ms
        if durable:
            parameters["durable"] = 1
        if timestamp is not None:
            parameters["timestamp"] = timestamp
        _, body = self._requests.ask("GET", "/offsets", parameters, wait_s=wait_ms / 1000)
        document = orjson.loads(body)
        partitions = tuple(
            PartitionOffsets(
                entry["partition"],
                entry["earliest"],
                entry["latest"],
                entry["folder"],
                entry.get("offset"),
            )
            for entry in document["partitions"]
        )
        return TopicOffsets(
            document["topic"], document["id"], document["host"], document["folder"], partitions
        )

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = 1_048_576
    ) -> FetchedBlocks:
        """Return raw blocks from the one that holds ``offset`` on; none at the end.

        Raises:
            NotFound: There is no such topic, or the offset is not kept.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "max_bytes": max_bytes,
        }
        headers, body = self._requests.ask("GET", "/fetch", parameters)
        return FetchedBlocks(body, int(headers["X-Penstock-Next-Offset"]))

    def set_cursor(self, topic: str, partition: int, name: str, offset: int) -> None:
        """Hold retention back at ``offset`` under ``name``.

        Raises:
            InvalidRequest: The offset is not kept.
            NotFound: There is no such topic.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {
            "topic": topic,
            "partition": partition,
            "name": name,
            "offset": offset,
        }
        self._requests.ask("POST", "/cursor", parameters)

    def delete_cursor(self, topic: str, partition: int, name: str) -> None:
        """Drop a cursor; nothing happens if there is none. Raises as `set_cursor`."""
        self._requests.ask(
            "DELETE", "/cursor", {"topic": topic, "partition": partition, "name": name}
        )

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._requests.close()
