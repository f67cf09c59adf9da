"""``POST /topic/redrive``: publish dead letters to their topics again.

Owns the parameters, and the rights on the targets: the principal publishes to each of them, and its
quota counts. Does not own the steps (`penstock.broker.redrive`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.http.exchange import HttpResponse, Request, json_response
from penstock.broker.http.topic_lookup import require_topic
from penstock.broker.message_filter import MessageFilter
from penstock.broker.redrive.redriver import COUNT_MAX, RedriveReport, RedriveRequest
from penstock.broker.security.rights import READ_TOPIC, WRITE_TOPIC
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topics.topic import Topic

_SECOND_MS = 1000


def wanted_messages(request: Request) -> MessageFilter:
    """Return the conditions on messages of a request. Raises as `MessageFilter.of`."""
    contains, path = request.query.get("contains", ""), request.query.get("json_path", "")
    return MessageFilter.of(contains, path, request.query.get("equals"))


class RedriveRoutes:
    """Handles requests to redrive dead letters.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def redrive(self, request: Request) -> HttpResponse:
        """Publish the selected dead letters that were not published before."""
        topic = require_topic(self._broker.topics, request.required("topic"))
        request.require(READ_TOPIC, topic.name)  # their content goes to another topic
        to, is_preview = request.query.get("to", ""), request.flag("preview")
        confirm = request.query.get("confirm", "")
        if confirm and confirm != to:
            raise InvalidRequest(f"it must be the topic of to, {to!r}", place="confirm")
        if to:
            request.require(WRITE_TOPIC, to)  # before an answer shows whether it exists
        partition = request.integer("partition", 0)
        queue = topic.queue(partition)
        wanted = wanted_messages(request)
        options = self._broker.options
        limit, length = options.max_message_bytes, request.content_length
        request.require_length(limit, "MSG_TOO_BIG")
        async with self._broker.budget.reserve(limit if length is None else length):
            body = await request.body(limit, "MSG_TOO_BIG", options.body_timeout_ms / _SECOND_MS)
        report = await self._broker.redriver.redrive(
            topic,
            RedriveRequest(
                partition,
                request.integer("offset", queue.earliest),
                request.integer("end") if "end" in request.query else None,
                wanted,
                to,
                request.query.get("origin", ""),
                confirm,
                request.integer("count", COUNT_MAX),
                body or None,
                is_preview,
                partial(self._admit, request, is_preview=is_preview),
            ),
        )
        return json_response(_document(topic, partition, report))

    def _admit(
        self, request: Request, target: str, count: int, size_bytes: int, *, is_preview: bool
    ) -> None:
        request.require(WRITE_TOPIC, target)
        quota = request.publish_quota
        if quota is not None and not is_preview:
            quota.take(count, size_bytes, request.origin)


def _document(topic: Topic, partition: int, report: RedriveReport) -> dict[str, object]:
    return {
        "topic": topic.name,
        "partition": partition,
        "redriven": report.redriven,
        "already": report.already,
        "skipped": report.skipped,
        "reasons": [{"offset": offset, "reason": reason} for offset, reason in report.reasons],
        "scanned": report.scanned,
        "next_offset": report.next_offset,
        "end": report.end,
        "total": report.total,
    }
