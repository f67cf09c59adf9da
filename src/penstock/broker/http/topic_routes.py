"""HTTP routes ``/topic/...``: create, delete, empty, pause and configure topics.

Owns which names are refused and with which error, which differs between endpoints as in NSQ,
and the form of ``/topic/configure``: each option is a parameter, and an empty value removes the
setting. Does not own the changes (`penstock.broker.topics.topic_changes`) or the options
(`penstock.broker.topics.options`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import EMPTY, HttpResponse, Request, json_response
from penstock.broker.http.topic_lookup import require_topic
from penstock.broker.security.rights import WRITE_TOPIC
from penstock.broker.topic_names import is_valid_name
from penstock.broker.topics.options import WhenFull

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topics.topic import Topic


class TopicRoutes:
    """Handles requests for topics.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def create(self, request: Request) -> HttpResponse:
        """Create a topic."""
        changes, name = self._broker.changes, request.required("topic")
        if "partitions" in request.query:
            await changes.create(name, request.integer("partitions"))
        else:
            await changes.find_or_create(name, self._broker.options.default_partitions)
        return EMPTY

    async def delete(self, request: Request) -> HttpResponse:
        """Delete a topic at once; the answer comes after its files are deleted, too."""
        await self._broker.changes.delete(self._topic(request).name)
        return EMPTY

    async def empty(self, request: Request) -> HttpResponse:
        """Withhold undelivered messages from channels; with ``purge``, delete all messages."""
        request.topic_name()
        topic = self._topic(request)
        if request.flag("purge"):
            await self._broker.changes.purge(topic)
        else:
            await self._broker.changes.empty(topic)
        return EMPTY

    async def pause(self, request: Request) -> HttpResponse:
        """Pause a topic."""
        await self._broker.changes.set_paused(self._topic(request).name, paused=True)
        return EMPTY

    async def unpause(self, request: Request) -> HttpResponse:
        """Unpause a topic."""
        await self._broker.changes.set_paused(self._topic(request).name, paused=False)
        return EMPTY

    def _topic(self, request: Request) -> Topic:
        return require_topic(self._broker.topics, request.required("topic"))


class ConfigureRoutes:
    """Handles requests for the options of topics.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def get(self, request: Request) -> HttpResponse:
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

    async def put(self, request: Request) -> HttpResponse:
        """Change the given options, and answer as `get`."""
        topic = self._topic(request)
        texts = {name: text for name, text in request.query.items() if name != "topic"}
        dead_letter_topic = texts.get("dead_letter_topic", "")
        if is_valid_name(dead_letter_topic):
            # The broker will publish there on behalf of this principal.
            request.require(WRITE_TOPIC, dead_letter_topic)
        await self._broker.changes.configure(topic, texts)
        return await self.get(request)

    def _topic(self, request: Request) -> Topic:
        return require_topic(self._broker.topics, request.required("topic"))
