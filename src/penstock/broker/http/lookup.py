"""``/lookup``, ``/topics``, ``/channels``, ``/nodes``, ``/debug``: the broker as an nsqlookupd.

Owns the parameters and nsqlookupd's codes. Does not own the documents
(`penstock.broker.statistics.lookup_documents`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import ApiError, Request, Response, json_response
from penstock.broker.statistics import lookup_documents

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class LookupRoutes:
    """Handles requests of nsqlookupd's API.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def lookup(self, request: Request) -> Response:
        """Return the producers of a topic."""
        name = request.required("topic")
        topic = self._broker.topics.find(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND", f"topic {name!r} does not exist")
        return json_response(lookup_documents.lookup(self._broker, topic))

    async def topics(self, _request: Request) -> Response:
        """Return the names of the topics."""
        return json_response({"topics": lookup_documents.topic_names(self._broker)})

    async def channels(self, request: Request) -> Response:
        """Return the channels of a topic; none if it does not exist, as nsqlookupd does."""
        topic = self._broker.topics.find(request.required("topic"))
        names = [] if topic is None else lookup_documents.channel_names(topic)
        return json_response({"channels": names})

    async def nodes(self, _request: Request) -> Response:
        """Return the producers: this broker."""
        return json_response(lookup_documents.nodes(self._broker))

    async def debug(self, _request: Request) -> Response:
        """Return every registration."""
        return json_response(lookup_documents.registrations(self._broker))
