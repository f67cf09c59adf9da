"""``/peek``: lists messages without consuming them.

Owns the limits (messages and bytes) and the JSON. Does not own the states of messages
(`penstock.broker.channel.message_states`). The disk is read on another thread.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker import message_id
from penstock.broker.channel.message_states import MessageState, message_states, offsets_in
from penstock.broker.http.exchange import ApiError, HttpResponse, Request, json_response
from penstock.broker.http.topic_lookup import require_topic
from penstock.core.loop_tasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.broker import Broker
    from penstock.broker.channel.channel import Channel
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.topics.topic import Topic
    from penstock.storage.queue.blocks import Block

_COUNT: Final = 10
_COUNT_MAX: Final = 1_000
_BYTES: Final = 1_048_576
_NANOSECONDS_PER_MS: Final = 1_000_000
_GIVEN_OUT: Final = (MessageState.IN_FLIGHT, MessageState.DEFERRED, MessageState.REQUEUED)


@dataclass(frozen=True, slots=True)
class _Found:
    """A message that was read."""

    offset: int
    time_ms: int
    due_ms: int
    body: bytes


class PeekRoutes:
    """Handles requests to peek.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def peek(self, request: Request) -> HttpResponse:
        """List messages of a stream partition, with their states if a channel is named."""
        topic, channel = self._place(request)
        partition = request.integer("partition", 0)
        queue = topic.queue(partition)
        earliest, latest = queue.earliest, queue.latest
        start = earliest
        if "offset" in request.query:
            start = request.integer("offset")
        elif channel is not None:
            start = max(earliest, channel.state.progress[partition].floor)
        if not earliest <= start <= latest:
            raise ApiError(
                404,
                "OFFSET_NOT_FOUND",
                f"offset {start} was deleted or does not exist: use {earliest} to {latest}",
            )
        count = min(request.integer("count", _COUNT), _COUNT_MAX)
        max_bytes = min(request.integer("max_bytes", _BYTES), self._broker.options.max_fetch_bytes)
        offsets: Iterable[int] = range(start, min(start + count, latest))
        kind = request.query.get("state")
        if kind is not None:
            offsets = await _of_state(request, channel, kind, (partition, start, count))
        found = await run_on_thread(partial(_read, queue, list(offsets), max_bytes))
        return json_response(
            {
                "topic": topic.name,
                "channel": None if channel is None else channel.name,
                "partition": partition,
                "earliest": earliest,
                "latest": latest,
                "next_offset": _following(found, list(offsets), latest),
                "messages": [_shown(message, partition, channel) for message in found],
            }
        )

    def _place(self, request: Request) -> tuple[Topic, Channel | None]:
        name = request.required("topic")
        topic = require_topic(self._broker.topics, name)
        channel_name = request.query.get("channel")
        if channel_name is None:
            return topic, None
        channel = topic.channels.get(channel_name)
        if channel is None:
            raise ApiError(
                404, "CHANNEL_NOT_FOUND", f"topic {name} has no channel {channel_name!r}"
            )
        return topic, channel


async def _of_state(
    request: Request, channel: Channel | None, kind: str, wanted: tuple[int, int, int]
) -> list[int]:
    partition, start, count = wanted
    if channel is None:
        request.required("channel")
    assert channel is not None
    if kind not in _GIVEN_OUT:
        raise ApiError(400, "INVALID_STATE", f"state={kind}: use {', '.join(_GIVEN_OUT)}")
    if "offset" not in request.query:
        start = 0
    return await offsets_in(channel.state, MessageState(kind), partition, start, count)


def _read(queue: MessageQueue, offsets: list[int], max_bytes: int) -> list[_Found]:
    """Read messages by ascending offsets, up to a number of bytes, at least one."""
    found: list[_Found] = []
    blocks: list[Block] = []
    is_run = bool(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1
    for offset in offsets:
        while blocks and offset >= blocks[0].base_offset + blocks[0].count:
            blocks.pop(0)
        if offset < queue.earliest:
            continue
        if not blocks:
            blocks = queue.read(offset, max_bytes if is_run else 1)
        if not blocks or offset < blocks[0].base_offset:
            continue  # the message was lost
        block = blocks[0]
        body: bytes = block.messages[offset - block.base_offset].as_py()
        if found and len(body) > max_bytes:
            break
        max_bytes -= len(body)
        found.append(_Found(offset, block.append_time_ms, block.due_ms, body))
        if max_bytes <= 0:
            break
    return found


def _following(found: list[_Found], offsets: list[int], latest: int) -> int:
    """Return the offset at which the next request continues."""
    if found and found[-1].offset != offsets[-1]:
        return found[-1].offset + 1
    return offsets[-1] + 1 if offsets else latest


def _shown(message: _Found, partition: int, channel: Channel | None) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": message_id.text(message_id.of(partition, message.offset)),
        "partition": partition,
        "offset": message.offset,
        "timestamp": message.time_ms * _NANOSECONDS_PER_MS,
        "due": message.due_ms or None,
    }
    if channel is not None:
        sight = message_states(channel.state, partition, message.offset, message.due_ms)
        shown |= {
            "state": sight.state,
            "attempts": sight.attempts,
            "due": sight.due_ms or None,
        }
    try:
        shown["body"] = message.body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(message.body).decode()
    return shown
