"""HTTP routes ``/channel/...``: create, delete, empty, pause and reposition channels.

Owns the order in which NSQ validates the parameters, NSQ's error codes, and the start positions
``to=beginning|end|offset|timestamp`` with their meaning in offsets. Does not own the changes
themselves (`penstock.broker.topics.channel_changes`, `penstock.broker.channel`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.http.exchange import EMPTY, ApiError, HttpResponse, Request, json_response
from penstock.broker.http.topic_lookup import require_topic
from penstock.broker.topic_names import NAME_BYTES_MAX, is_valid_name
from penstock.broker.topics.placement import require_partition
from penstock.core.errors import NotFound
from penstock.core.loop_tasks import run_on_thread
from penstock.core.printable import quoted

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.channel.channel import Channel
    from penstock.broker.topics.topic import Topic


async def wanted_offsets(request: Request, topic: Topic) -> list[int | None]:
    """Return the requested offset of each stream partition; None: none is requested.

    Raises:
        ApiError: A parameter is invalid, or the offset was deleted.
        InvalidRequest: The stream partition does not exist.
    """
    to = request.required("to")
    count = len(topic.queues)
    partitions = range(count)
    if "partition" in request.query:
        partition = require_partition(topic.name, request.integer("partition"), count)
        partitions = range(partition, partition + 1)
    wanted: list[int | None] = [None] * count
    for partition in partitions:
        queue = topic.queues[partition]
        match to:
            case "beginning":
                wanted[partition] = queue.earliest
            case "end":
                wanted[partition] = queue.latest
            case "timestamp":
                time_ms = request.integer("timestamp")
                wanted[partition] = await run_on_thread(partial(queue.offset_at, time_ms))
            case "offset":
                if len(partitions) > 1:
                    raise ApiError(
                        400, "MISSING_ARG_PARTITION", "add partition=, to which the offset applies"
                    )
                wanted[partition] = _kept(topic, partition, request.integer("offset"))
            case _:
                raise ApiError(
                    400, "INVALID_TO", f"to={to}: use beginning, end, offset or timestamp"
                )
    return wanted


def _kept(topic: Topic, partition: int, offset: int) -> int:
    queue = topic.queues[partition]
    if not queue.earliest <= offset <= queue.latest:
        raise ApiError(
            404,
            "OFFSET_NOT_FOUND",
            f"offset {offset} is not available: use {queue.earliest} to {queue.latest}",
        )
    return offset


class ChannelRoutes:
    """Handles requests for channels.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, request: Request) -> HttpResponse:
        """Create a channel, optionally at given offsets; no effect if it exists."""
        topic, name = self._place(request)
        starts = None
        if "to" in request.query:
            wanted = await wanted_offsets(request, topic)
            starts = tuple(
                default if offset is None else offset
                for offset, default in zip(wanted, topic.position(), strict=True)
            )
        await self._broker.channel_changes.find_or_create(topic, name, starts)
        return EMPTY

    async def delete(self, request: Request) -> HttpResponse:
        """Delete a channel; its consumers are disconnected."""
        topic, channel = self._channel(request)
        try:
            await self._broker.channel_changes.delete(topic, channel.name)
        except NotFound as error:  # deleted by a concurrent request
            raise _no_channel(topic, channel.name) from error
        return EMPTY

    async def empty(self, request: Request) -> HttpResponse:
        """Finish all messages of a channel, including those in flight and deferred."""
        _, channel = self._channel(request)
        channel.clear()
        await channel.keep()
        return EMPTY

    async def seek(self, request: Request) -> HttpResponse:
        """Seek a channel durably, and return its offsets; with ``preview``, only the effect."""
        topic, channel = self._channel(request)
        wanted = await wanted_offsets(request, topic)
        progress = channel.state.progress
        effects = [
            (0, 0) if offset is None else progress[number].effect_of(offset, queue.earliest)
            for number, (offset, queue) in enumerate(zip(wanted, topic.queues, strict=True))
        ]
        if request.flag("preview"):
            moved = [
                progress[number].next if offset is None else offset
                for number, offset in enumerate(wanted)
            ]
        else:
            channel.seek(wanted)
            moved = [one.next for one in progress]
            await channel.keep(durable=True)
        return json_response(
            {
                "topic": topic.name,
                "channel": channel.name,
                "partitions": [
                    {
                        "partition": partition,
                        "offset": offset,
                        "repeated": effects[partition][0],
                        "skipped": effects[partition][1],
                    }
                    for partition, offset in enumerate(moved)
                ],
            }
        )

    async def pause(self, request: Request) -> HttpResponse:
        """Pause the deliveries of a channel."""
        return await self._set_paused(request, paused=True)

    async def unpause(self, request: Request) -> HttpResponse:
        """Resume the deliveries of a channel."""
        return await self._set_paused(request, paused=False)

    async def _set_paused(self, request: Request, *, paused: bool) -> HttpResponse:
        topic, channel = self._channel(request)
        try:
            await self._broker.channel_changes.set_paused(topic, channel.name, paused=paused)
        except NotFound as error:  # deleted meanwhile
            raise _no_channel(topic, channel.name) from error
        return EMPTY

    def _channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, name = self._place(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise _no_channel(topic, name)
        return topic, channel

    def _place(self, request: Request) -> tuple[Topic, str]:
        topic_name = _name(request, "topic")
        channel_name = _name(request, "channel")
        topic = require_topic(self._broker.topics, topic_name)
        return topic, channel_name


def _name(request: Request, what: str) -> str:
    name = request.required(what)
    if not is_valid_name(name):
        code = f"INVALID_ARG_{what.upper()}"
        detail = (
            f"{quoted(name)} is not a valid {what} name: use 1 to {NAME_BYTES_MAX} of"
            " . a-z A-Z 0-9 _ -"
        )
        raise ApiError(400, code, detail)
    return name


def _no_channel(topic: Topic, name: str) -> ApiError:
    return ApiError(404, "CHANNEL_NOT_FOUND", f"topic {topic.name} has no channel {name!r}")
