"""``/topic/…``: creation, deletion, emptying and pausing of topics.

Owns which names are refused and how, which differs between endpoints as in NSQ. Does not own the
changes (`penstock.broker.topics.changes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import EMPTY, ApiError, Request, Response

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

    async def create(self, request: Request) -> Response:
        """Create a topic."""
        changes, name = self._broker.changes, request.required("topic")
        if "partitions" in request.query:
            await changes.create(name, request.integer("partitions"))
        else:
            await changes.find_or_create(name, self._broker.options.default_partitions)
        return EMPTY

    async def delete(self, request: Request) -> Response:
        """Delete a topic at once; the answer comes after its files are deleted, too."""
        await self._broker.changes.delete(self._topic(request).name)
        return EMPTY

    async def empty(self, request: Request) -> Response:
        """Withhold undelivered messages from channels; with ``purge``, delete all messages."""
        request.topic_name()
        topic = self._topic(request)
        if request.flag("purge"):
            await self._broker.changes.purge(topic)
        else:
            await self._broker.changes.empty(topic)
        return EMPTY

    async def pause(self, request: Request) -> Response:
        """Pause a topic."""
        await self._broker.changes.set_paused(self._topic(request).name, paused=True)
        return EMPTY

    async def unpause(self, request: Request) -> Response:
        """Unpause a topic."""
        await self._broker.changes.set_paused(self._topic(request).name, paused=False)
        return EMPTY

    def _topic(self, request: Request) -> Topic:
        name = request.required("topic")
        topic = self._broker.topics.find(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND", f"topic {name!r} does not exist")
        return topic
