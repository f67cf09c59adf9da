"""Requested position of a channel: ``to=beginning|end|offset|timestamp`` of a request.

Owns the parameters and their conversion to offsets. Does not own the seek
(`penstock.broker.channel`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.http.exchange import ApiError
from penstock.broker.topics.placement import require_partition
from penstock.core.looptasks import run_on_thread

if TYPE_CHECKING:
    from penstock.broker.http.exchange import Request
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
