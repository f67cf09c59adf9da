"""``/topic/configure``: options of a topic.

Owns the form of requests and answers: each option is a parameter; an empty one resets the option.
Does not own the options (`penstock.broker.topics.options`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import ApiError, Request, Response, json_response
from penstock.broker.topics.options import WhenFull

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topics.topic import Topic


class ConfigureRoutes:
    """Handles requests for the options of topics.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def get(self, request: Request) -> Response:
        """Return the effective options of a topic, and those that are set for it."""
        topic = self._topic(request)
        options, count = topic.options, len(topic.queues)
        channel = options.channel(self._broker.options.channels, topic.name)
        queue = options.queue(self._broker.topics.parts.queue_options, count)
        return json_response(
            {
                "topic": topic.name,
                "options": {
                    "max_attempts": channel.max_attempts,
                    "dead_letter_topic": channel.dead_letter_topic,
                    "message_ttl_ms": channel.message_ttl_ms,
                    "requeue_on_disconnect": channel.requeue_on_disconnect,
                    "max_bytes": options.max_bytes or 0,
                    "when_full": options.when_full or WhenFull.REFUSE,
                    "durable": bool(options.durable),
                    "retention_ms": queue.retention_ms,
                    "retention_bytes": queue.retention_bytes,
                },
                "set": topic.file.options.to_mapping(),
            }
        )

    async def put(self, request: Request) -> Response:
        """Change the given options, and answer as `get`."""
        topic = self._topic(request)
        texts = {name: text for name, text in request.query.items() if name != "topic"}
        await self._broker.changes.configure(topic, texts)
        return await self.get(request)

    def _topic(self, request: Request) -> Topic:
        name = request.required("topic")
        topic = self._broker.topics.find(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND", f"topic {name!r} does not exist")
        return topic
