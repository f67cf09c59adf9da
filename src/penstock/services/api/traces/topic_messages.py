"""Messages of topics for traces: one by its offset, or a bounded part of a range.

Owns the conversion of the broker's raw blocks to slices. Every request opens a connection of its
own, because traces are rare and run on many threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.broker import message_id
from penstock.broker.broker_client import BrokerClient, PartitionOffsets, TopicOffsets
from penstock.core.bearer import Bearer
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.printable import quoted
from penstock.services.membership.membership import BrokerFinder
from penstock.storage.queue.blocks import FoundBlock, LogBytes, block_of, scan_blocks
from penstock.storage.queue.log_reader import MessageSlice

_TIMEOUT_S: Final = 15.0
_BLOCK_BYTES: Final = 1
"""The broker returns whole blocks, at least the one that contains the offset."""


def parse_message_id(text: str) -> tuple[int, int]:
    """Return the stream partition and the offset of a message id of NSQ's protocol.

    Raises:
        InvalidRequest: It is not an id of a message of Penstock.
    """
    number = message_id.parse(text.encode("ascii", "replace"))
    if number is None or number < 0:
        raise InvalidRequest(
            f"{quoted(text)} is not the id of a message: it has 16 of the digits 0-9a-f, of which"
            " the first is at most 7",
            place="id",
        )
    return message_id.split(number)


def id_text(partition: int, offset: int) -> str:
    """Return the id of a message in NSQ's protocol."""
    return message_id.text(message_id.of(partition, offset))


@dataclass(frozen=True, slots=True)
class ReadSlices:
    """Messages of a range, and the offset at which reading continues."""

    slices: Sequence[MessageSlice]
    next_offset: int


class TopicMessages:
    """Reads messages through the broker. Thread-safe.

    Args:
        broker: Finds the broker.
        bearer: Bearer token of this process. The caller checks the rights of the principal.
    """

    def __init__(self, broker: BrokerFinder, bearer: Bearer) -> None:
        self._broker = broker
        self._bearer = bearer

    def topic(self, name: str) -> TopicOffsets:
        """Return the offsets of a topic.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The broker does not answer.
        """
        with self._client() as client:
            return client.offsets(name)

    def one(self, topic: str, partition: int, offset: int) -> MessageSlice | None:
        """Return one message, None if it was deleted. Raises Unavailable as `topic`."""
        try:
            found = self.read(topic, partition, offset, offset + 1, _BLOCK_BYTES)
        except NotFound:
            return None
        return found.slices[0] if found.slices else None

    def read(self, topic: str, partition: int, start: int, end: int, bytes_max: int) -> ReadSlices:
        """Return the messages from `start` on, before `end`, about `bytes_max` of them.

        Raises:
            NotFound: The topic does not exist, or the first message was deleted.
            Unavailable: The broker does not answer.
        """
        with self._client() as client:
            fetched = client.fetch(topic, partition, start, bytes_max)
        log = LogBytes(memoryview(fetched.raw))
        slices = []
        for found in scan_blocks(log, 0, tag=None, expected=0, limit=None):
            if not isinstance(found, FoundBlock):
                continue
            block = block_of(log, found.position, found.header)
            first = max(start, block.base_offset)
            count = min(end, block.base_offset + block.count) - first
            if count > 0:
                messages = block.messages.slice(first - block.base_offset, count)
                slices.append(MessageSlice(first, messages, block.append_time_ms))
        reached = fetched.next_offset if fetched.raw else end
        return ReadSlices(slices, min(end, max(reached, start + 1)))

    def dead_letter(
        self, topic: str, source: tuple[str, int, int], since_ms: int, bytes_max: int
    ) -> tuple[int, int] | None:
        """Return the stream partition and offset of a dead letter, None if it is not found.

        Args:
            topic: The dead-letter topic.
            source: Topic, stream partition and offset of the message.
            since_ms: Only letters appended at this time or later.
            bytes_max: Bytes to search in each stream partition.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The broker does not answer.
        """
        with self._client() as client:
            partitions = client.offsets(topic, timestamp=since_ms).partitions
        return next(
            (
                (part.partition, offset)
                for part in partitions
                if (offset := self._letter_in(topic, part, source, bytes_max)) is not None
            ),
            None,
        )

    def is_redriven(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a dead letter was redriven. Raises Unavailable as `topic`."""
        try:
            with self._client() as client:
                found = client.peek(
                    topic, partition=partition, offset=offset, count=1, more={"body_bytes": 1}
                )
        except NotFound:
            return False
        messages = found.get("messages")
        return isinstance(messages, list) and any(
            isinstance(one, dict) and one.get("redriven") is True for one in messages
        )

    def _letter_in(
        self, topic: str, part: PartitionOffsets, source: tuple[str, int, int], bytes_max: int
    ) -> int | None:
        at = part.earliest if part.offset is None else max(part.offset, part.earliest)
        if at >= part.latest:
            return None
        for piece in self.read(topic, part.partition, at, part.latest, bytes_max).slices:
            for number, body in enumerate(piece.messages.to_pylist()):
                if _source_of(body) == source:
                    return piece.base_offset + number
        return None

    def _client(self) -> BrokerClient:
        return BrokerClient(self._broker.http().url, token=self._bearer, timeout_s=_TIMEOUT_S)


def _source_of(letter: bytes) -> tuple[object, object, object] | None:
    """Return the topic, stream partition and offset in a dead letter, None if it has none."""
    try:
        value = orjson.loads(letter)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    return value.get("topic"), value.get("partition"), value.get("offset")
