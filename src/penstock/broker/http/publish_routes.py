"""``POST /pub`` and ``POST /mpub``.

Owns the order in which NSQ checks a publish, and when a body counts against the memory budget: from
before it is read until it is appended, but not while waiting for an fsync.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from penstock.broker.http.exchange import OK, ApiError, HttpResponse, Request
from penstock.broker.message_bodies import parse_binary, parse_text
from penstock.broker.topics.placement import BatchProducer, PublishPlacement
from penstock.core.access.installation_key import SHARED_TOKEN
from penstock.core.access.principal import ASSIGNABLE

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.publisher import PublishReceipt
    from penstock.broker.topics.topic import Topic
    from penstock.core.access.principal import Principal

_SECOND_MS: Final = 1000
_SMALL_PARTS: Final = 256  # of the budget for all bodies: 64 KiB by default


class PublishRoutes:
    """Handles requests to publish.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._timeout_s = broker.options.body_timeout_ms / _SECOND_MS

    async def pub(self, request: Request) -> HttpResponse:
        """Publish the body as one message."""
        limit = self._broker.options.max_message_bytes
        request.require_length(limit, "MSG_TOO_BIG")
        async with self._room(_expected(request, limit)):
            body = await request.body(limit, "MSG_TOO_BIG", self._timeout_s)
            if not body:
                raise ApiError(400, "MSG_EMPTY", "send the message as the body")
            topic_name = request.topic_name()
            due_ms = self._due_ms(request)
            placement = _placement(request)
            publisher = self._broker.publisher
            quota = request.publish_quota
            if quota is not None:
                quota.take(1, len(body), request.origin)
            topic = await self._open(topic_name, placement, len(body))
            if due_ms:
                receipt = publisher.append_batch(topic, [body], len(body), placement, due_ms)
            else:
                receipt = await publisher.append_one(topic, body, placement)
        return await self._acknowledge(request, topic, receipt)

    async def mpub(self, request: Request) -> HttpResponse:
        """Publish the messages of the body as one batch."""
        options = self._broker.options
        limit = options.max_body_bytes
        request.require_length(limit, "BODY_TOO_BIG")
        topic_name = request.topic_name()
        placement = _placement(request)
        async with self._room(_expected(request, limit)):
            body = await request.body(limit, "BODY_TOO_BIG", self._timeout_s)
            if request.flag("binary"):
                messages = parse_binary(body, options.max_message_bytes, limit)
                size = len(body) - 4 * (len(messages) + 1)
            else:
                messages = parse_text(body, options.max_message_bytes)
                size = len(body) - body.count(b"\n")
            quota = request.publish_quota
            if quota is not None:
                quota.take(len(messages), size, request.origin)
            topic = await self._open(topic_name, placement, size)
            receipt = self._broker.publisher.append_batch(topic, messages, size, placement)
        return await self._acknowledge(request, topic, receipt)

    def _room(self, size_bytes: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Reserve memory for a body while it is received.

        Small bodies are limited by the number of connections, as over TCP: otherwise a few clients
        that send large bodies slowly would prevent all others from publishing.
        """
        if size_bytes <= self._broker.options.max_inflight_bytes // _SMALL_PARTS:
            return contextlib.nullcontext()
        return self._broker.budget.reserve(size_bytes)

    async def _open(self, name: str, placement: PublishPlacement, size_bytes: int) -> Topic:
        """Return the topic once it has space, or if waiting would not help."""
        publisher = self._broker.publisher
        topic = await publisher.topic(name, placement)
        room = publisher.when_room(topic, size_bytes)
        if room is not None:
            await room
        return topic

    def _due_ms(self, request: Request) -> int:
        """Return the earliest delivery of the message, epoch ms; 0: at once."""
        delay_ms = request.integer("defer", 0)
        longest_ms = self._broker.options.max_requeue_ms
        if delay_ms > longest_ms:
            raise ApiError(400, "INVALID_DEFER", f"defer={delay_ms}: use 0 to {longest_ms} ms")
        return self._broker.clock.now_ms() + delay_ms if delay_ms else 0

    async def _acknowledge(
        self, request: Request, topic: Topic, receipt: PublishReceipt
    ) -> HttpResponse:
        publisher = self._broker.publisher
        if publisher.must_wait(topic, requested=request.flag("durable")):
            await publisher.make_durable(topic, receipt)
        headers: list[tuple[bytes, bytes]] = []
        if receipt.repeated:
            headers.append((b"x-penstock-repeated", b"1"))
        if receipt.offset is not None:
            headers.append((b"x-penstock-partition", b"%d" % receipt.partition))
            headers.append((b"x-penstock-offset", b"%d" % receipt.offset))
        return HttpResponse(body=(b"OK",), headers=headers) if headers else OK


def _expected(request: Request, limit: int) -> int:
    length = request.content_length
    return limit if length is None else length


def _placement(request: Request) -> PublishPlacement:
    """Return the requested stream partition and producer of a publish."""
    query = request.query
    key = query.get("key")
    producer = None
    if "producer" in query or "sequence" in query:
        producer = BatchProducer.named(
            request.required("producer"),
            request.integer("sequence"),
            _owner_of_producers(request.principal),
        )
    return PublishPlacement(
        request.integer("partition") if "partition" in query else None,
        None if key is None else key.encode(),
        producer,
    )


def _owner_of_producers(principal: Principal) -> str:
    """Return the owner of the producers that a principal names.

    Producers of the processes of the installation are its own, because several processes repeat
    their publishes: replicas of a task, and a flow after a change of its owner. Their names are not
    those that users choose. The token of the option `token` belongs to the installation, too:
    before there were principals, it was the only credential.
    """
    if principal.kind not in ASSIGNABLE or principal.via or principal.id == SHARED_TOKEN.id:
        return ""
    return principal.id
