"""``/ping``, ``/info`` and ``/stats``: what the broker says of itself.

Owns the parameters. Does not own what the documents hold (`penstock.broker.statistics`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.http.exchange import ApiError, Request, Response, json_response
from penstock.broker.stats import health, info, stats, stats_text

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class StateRoutes:
    """Handles questions about the broker's state.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def ping(self, _request: Request) -> Response:
        """Say whether publishing works."""
        text = health(self._broker)
        return Response(200 if text == "OK" else 500, (text.encode(),), nsq=False)

    async def info(self, _request: Request) -> Response:
        """Say what this broker is."""
        return json_response(info(self._broker))

    async def stats(self, request: Request) -> Response:
        """Say how the topics stand."""
        form = request.query.get("format") or "text"
        if form not in {"json", "text"}:
            raise ApiError(400, "INVALID_FORMAT", "the formats are json and text")
        topic = request.query.get("topic") or None
        memory = "include_mem" not in request.query or request.flag("include_mem")
        if form == "json":
            return json_response(stats(self._broker, topic, include_memory=memory))
        text = stats_text(self._broker, topic, include_memory=memory)
        return Response(body=(text.encode(),))
