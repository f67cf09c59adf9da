"""``/offsets``, ``/fetch`` and ``/cursor``: the API for readers that keep their own offsets.

Owns the long poll: a reader waits for appends to the topic, not for a timer, and stops when its
client disconnects, its time limit is reached or the broker stops. Disk access runs on other
threads: publishers must not wait for a reader's old log file.
"""

from __future__ import annotations

import asyncio
import re
import socket
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.http.exchange import (
    BYTES,
    EMPTY,
    ApiError,
    ClientLeftError,
    HttpResponse,
    Request,
    json_response,
)
from penstock.broker.http.topic_lookup import require_topic
from penstock.broker.security.rights import READ_TOPIC
from penstock.broker.topic_names import require_name
from penstock.core.loop_tasks import run_on_thread, start_job

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.topics.topic import Topic

_SECOND_MS = 1000
_AFTER = re.compile(r"[0-9]{1,19}:[0-9]{1,19}")


class ReadRoutes:
    """Handles requests of readers.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._host = socket.gethostname()

    async def offsets(self, request: Request) -> HttpResponse:
        """Return the offsets of the stream partitions, after an append or fsync if requested."""
        topic = self._topic(request)
        # Offsets of a deleted topic of this name do not apply to this one.
        is_known = request.query.get("id", topic.id) == topic.id
        after = _parse_after(request, topic) if is_known else {}
        wait_ms = min(request.integer("wait_ms", 0), self._broker.options.max_wait_ms)
        timestamp = request.integer("timestamp") if "timestamp" in request.query else None
        if after and wait_ms:
            await self._wait_for_news(request, topic, after, wait_ms / _SECOND_MS)
            request.require(READ_TOPIC, topic.name)  # the credential may have been removed since
        durable = request.flag("durable")
        if durable:
            await _sync(topic)
        partitions = []
        for number, queue in enumerate(topic.queues):
            entry: dict[str, int | str] = {
                "partition": number,
                "earliest": queue.earliest,
                "latest": queue.durable if durable else queue.latest,
                "folder": f"{topic.folder}/{number}" if topic.folder else "",
            }
            if timestamp is not None:
                entry["offset"] = await run_on_thread(partial(queue.offset_at, timestamp))
            partitions.append(entry)
        return json_response(
            {
                "topic": topic.name,
                "id": topic.id,
                "folder": topic.folder,
                "host": self._host,
                "paused": topic.paused,
                "partitions": partitions,
            }
        )

    async def fetch(self, request: Request) -> HttpResponse:
        """Return raw blocks, starting with the one that contains the offset."""
        queue = self._queue(request)
        offset = request.integer("offset")
        limit = self._broker.options.max_fetch_bytes
        max_bytes = min(request.integer("max_bytes", limit), limit)
        if not queue.earliest <= offset <= queue.latest:
            raise ApiError(
                404,
                "OFFSET_NOT_FOUND",
                f"offset {offset} is not available: use {queue.earliest} to {queue.latest}",
            )
        blocks = await run_on_thread(partial(queue.read, offset, max_bytes))
        following = blocks[-1].base_offset + blocks[-1].count if blocks else offset
        headers = (
            (b"x-penstock-next-offset", b"%d" % following),
            (b"x-penstock-earliest-offset", b"%d" % queue.earliest),
            (b"x-penstock-latest-offset", b"%d" % queue.latest),
        )
        return HttpResponse(
            body=[block.raw for block in blocks], content_type=BYTES, headers=headers
        )

    async def set_cursor(self, request: Request) -> HttpResponse:
        """Set a cursor, from which on retention keeps messages."""
        queue = self._queue(request)
        name = require_name(request.required("name"), "name")
        offset = request.integer("offset")
        if offset > queue.latest:
            raise ApiError(
                400, "INVALID_OFFSET", f"offset {offset} is beyond the end, {queue.latest}"
            )
        await run_on_thread(lambda: queue.cursor(name, start=offset).seek(offset))
        return EMPTY

    async def delete_cursor(self, request: Request) -> HttpResponse:
        """Delete a cursor."""
        queue = self._queue(request)
        name = require_name(request.required("name"), "name")
        if name in queue.statistics().cursors:
            await run_on_thread(lambda: queue.cursor(name).delete())
        return EMPTY

    def _topic(self, request: Request) -> Topic:
        return require_topic(self._broker.topics, request.required("topic"))

    def _queue(self, request: Request) -> MessageQueue:
        return self._topic(request).queue(request.integer("partition", 0))

    async def _wait_for_news(
        self, request: Request, topic: Topic, after: dict[int, int], timeout_s: float
    ) -> None:
        """Wait until a stream partition has passed its offset, or the time limit is reached."""
        broker = self._broker
        if broker.waiting_readers >= broker.options.max_waiting_readers:
            raise ApiError(
                503, "TOO_MANY_READERS", f"{broker.waiting_readers} readers wait already: try later"
            )
        appended = asyncio.Event()
        gone = start_job("reader watch", request.wait_disconnected())
        unwatch = topic.append_listeners.watch(appended.set)
        broker.waiting_readers += 1
        try:
            gone.add_done_callback(lambda _: appended.set())
            async with asyncio.timeout(timeout_s):
                while not (_has_passed(topic, after) or topic.closed or broker.closing):
                    if gone.done():
                        raise ClientLeftError("the reader disconnected")
                    appended.clear()
                    await appended.wait()
        except TimeoutError:
            pass
        finally:
            broker.waiting_readers -= 1
            gone.cancel()
            unwatch()
        if topic.closed:
            raise ApiError(404, "TOPIC_NOT_FOUND", f"topic {topic.name} was deleted or closed")


async def _sync(topic: Topic) -> None:
    """Fsync earlier appends; stream partitions without unsynced messages are skipped."""
    behind = [queue for queue in topic.queues if queue.durable < queue.latest]
    await asyncio.gather(*(asyncio.wrap_future(queue.request_sync()) for queue in behind))


def _has_passed(topic: Topic, after: dict[int, int]) -> bool:
    return any(topic.queues[number].latest > offset for number, offset in after.items())


def _parse_after(request: Request, topic: Topic) -> dict[int, int]:
    """Return the offsets of ``after=0:12,1:7``."""
    text = request.query.get("after", "")
    after: dict[int, int] = {}
    for pair in text.split(",") if text else ():
        number, _, offset = pair.partition(":")
        if not _AFTER.fullmatch(pair):
            raise ApiError(
                400, "INVALID_AFTER", f"{pair!r}: write partition:offset,partition:offset"
            )
        if int(number) >= len(topic.queues):
            raise ApiError(
                400,
                "INVALID_AFTER",
                f"topic {topic.name} has stream partitions 0 to {len(topic.queues) - 1}",
            )
        after[int(number)] = int(offset)
    return after
