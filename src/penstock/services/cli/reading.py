"""Messages of a stream partition, from the blocks that the broker gives.

Owns the walk from block to block. It checks each block, as every reader does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.broker.client import BrokerClient
from penstock.storage.blocks import Found, LogBytes, messages_of, scan_blocks


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its offset and the time of its block."""

    offset: int
    append_time_ms: int
    message: bytes


def messages_from(
    broker: BrokerClient, topic: str, partition: int, offset: int, limit: int
) -> Iterator[Message]:
    """Give at most `limit` messages from an offset on. Raises as `BrokerClient.fetch`."""
    until = offset + limit
    while offset < until:
        fetched = broker.fetch(topic, partition, offset)
        for message in _decoded(fetched.raw):
            if offset <= message.offset < until:
                yield message
        if fetched.next_offset <= offset:
            return
        offset = fetched.next_offset


def _decoded(raw: bytes) -> Iterator[Message]:
    log = LogBytes(memoryview(raw))
    for found in scan_blocks(log, 0, tag=None, expected=0, limit=None):
        if isinstance(found, Found):
            header = found.header
            for number, message in enumerate(messages_of(log, found.position, header)):
                offset = header.base_offset + number
                yield Message(offset, header.append_time_ms, message.as_py())
