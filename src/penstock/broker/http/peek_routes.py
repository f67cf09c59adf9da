"""``/peek`` and ``/message``: show messages without consuming them.

Owns the limits (messages and bytes) and the JSON. Does not own the search
(`penstock.broker.message_filter`) nor the states of messages
(`penstock.broker.channel.message_states`). The disk is read on another thread.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker import message_id
from penstock.broker.channel.message_states import MessageState, message_states, offsets_in
from penstock.broker.dead_letter import parse_dead_letter
from penstock.broker.http.exchange import (
    BYTES,
    ApiError,
    HttpResponse,
    Request,
    json_response,
)
from penstock.broker.http.redrive_routes import wanted_messages
from penstock.broker.http.topic_lookup import require_topic
from penstock.broker.message_filter import ScanLimits, ScanResult, StoredMessage, scan_messages
from penstock.broker.security.rights import READ_TOPIC
from penstock.core.errors import PenstockError
from penstock.core.loop_tasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.broker import Broker
    from penstock.broker.channel.channel import Channel
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.redrive.redrive_log import RedriveLog
    from penstock.broker.topics.topic import Topic
    from penstock.storage.queue.blocks import Block

_logger = logging.getLogger(__name__)

_COUNT: Final = 10
_COUNT_MAX: Final = 1_000
_BYTES: Final = 1_048_576
_REASON_CHARACTERS_MAX: Final = 10_000
_NANOSECONDS_PER_MS: Final = 1_000_000
_GIVEN_OUT: Final = (MessageState.IN_FLIGHT, MessageState.DEFERRED, MessageState.REQUEUED)


@dataclass(frozen=True, slots=True)
class _Shown:
    """How messages are shown.

    Attributes:
        partition: Their stream partition.
        channel: Their states in this channel; None: no states.
        redriven: Which dead letters were redriven; None: none was.
        body_bytes: Maximum number of bytes shown of each body.
    """

    partition: int
    channel: Channel | None
    redriven: RedriveLog | None
    body_bytes: int


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
        elif "timestamp" in request.query:
            time_ms = request.integer("timestamp")
            start = await run_on_thread(partial(queue.offset_at, time_ms))
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
        wanted = wanted_messages(request)
        kind = request.query.get("state")
        if wanted.is_empty:
            offsets: Iterable[int] = range(start, min(start + count, latest))
            if kind is not None:
                offsets = await _of_state(request, channel, kind, (partition, start, count))
            found = await run_on_thread(partial(_read, queue, list(offsets), max_bytes))
            result = ScanResult(found, len(found), _following(found, list(offsets), latest))
        elif kind is not None:
            raise ApiError(400, "INVALID_STATE", "filter by state or by content, not by both")
        else:
            limits = ScanLimits(count, max_bytes)
            scan = partial(scan_messages, queue, start, latest, wanted.matches, limits)
            result = await run_on_thread(scan)
        shown = _Shown(
            partition,
            channel,
            await self._redriven(topic),
            request.integer("body_bytes", self._broker.options.max_fetch_bytes),
        )
        return json_response(
            {
                "topic": topic.name,
                "channel": None if channel is None else channel.name,
                "partition": partition,
                "earliest": earliest,
                "latest": latest,
                "next_offset": result.next_offset,
                "scanned": result.scanned,
                "origins": [
                    name
                    for name in self._broker.redriver.origins(topic)
                    if request.allows(READ_TOPIC, name)
                ],
                "messages": [_document(message, shown) for message in result.found],
            }
        )

    async def message(self, request: Request) -> HttpResponse:
        """Return the body of one message; with ``original``, of the message in a dead letter."""
        topic = require_topic(self._broker.topics, request.required("topic"))
        queue = topic.queue(request.integer("partition", 0))
        offset = request.integer("offset")
        found: list[StoredMessage] = []
        if queue.earliest <= offset < queue.latest:
            found = await run_on_thread(partial(_read, queue, [offset], 1))
        if not found:
            raise ApiError(
                404,
                "OFFSET_NOT_FOUND",
                f"offset {offset} was deleted, lost or does not exist: use {queue.earliest} to"
                f" {queue.latest - 1}",
            )
        body = found[0].body
        if request.flag("original"):
            letter = parse_dead_letter(body)
            if letter is None or letter.message is None:
                raise ApiError(
                    404, "NO_ORIGINAL", f"the message at offset {offset} has no other one in it"
                )
            body = letter.message
        return HttpResponse(body=(body,), content_type=BYTES)

    async def _redriven(self, topic: Topic) -> RedriveLog | None:
        try:
            return await self._broker.redriver.record(topic)
        except PenstockError as error:
            # A damaged record prevents a redrive, but messages can still be shown.
            _logger.warning("topic %s: cannot show what was redriven: %s", topic.name, error)
            return None

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


def _read(queue: MessageQueue, offsets: list[int], max_bytes: int) -> list[StoredMessage]:
    """Read messages by ascending offsets, up to a number of bytes, at least one."""
    found: list[StoredMessage] = []
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
        found.append(StoredMessage(offset, block.append_time_ms, block.due_ms, body))
        if max_bytes <= 0:
            break
    return found


def _following(found: list[StoredMessage], offsets: list[int], latest: int) -> int:
    """Return the offset at which the next request continues."""
    if found and found[-1].offset != offsets[-1]:
        return found[-1].offset + 1
    return offsets[-1] + 1 if offsets else latest


def _document(message: StoredMessage, how: _Shown) -> dict[str, object]:
    partition, channel = how.partition, how.channel
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
    shown |= _body(message.body, how.body_bytes)
    if how.redriven is not None:
        shown["redriven"] = how.redriven.is_redriven(partition, message.offset)
    letter = parse_dead_letter(message.body)
    if letter is not None:
        shown["dead_letter"] = {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "reason": letter.reason[:_REASON_CHARACTERS_MAX],
            "left_out_bytes": letter.left_out_bytes,
            **({} if letter.message is None else _body(letter.message, how.body_bytes)),
        }
    return shown


def _body(body: bytes, max_bytes: int) -> dict[str, object]:
    """Return the beginning of a body as text, or in base64 if it is not text."""
    piece = body[:max_bytes]
    shown: dict[str, object] = {"size": len(body)}
    try:
        shown["body"] = piece.decode()
    except UnicodeDecodeError as error:
        is_cut = len(piece) < len(body) and error.reason == "unexpected end of data"
        if is_cut and error.end == len(piece):
            shown["body"] = piece[: error.start].decode()
        else:
            shown["body_base64"] = base64.b64encode(piece).decode()
    return shown
