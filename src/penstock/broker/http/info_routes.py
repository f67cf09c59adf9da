"""HTTP routes that read the broker's state, in the form of nsqd and of nsqlookupd.

`StateRoutes` serves ``/ping``, ``/info`` and ``/stats`` as nsqd does. `LookupRoutes` serves
``/lookup``, ``/topics``, ``/channels``, ``/nodes`` and ``/debug`` as nsqlookupd does. Both own
their parameters and error codes. Neither owns the returned documents
(`penstock.broker.statistics`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from penstock.broker.http.exchange import JSON, ApiError, HttpResponse, Request, json_response
from penstock.broker.http.topic_lookup import no_topic, require_topic
from penstock.broker.statistics import lookup_documents
from penstock.broker.statistics.broker_info import health, info
from penstock.broker.statistics.document import json_pieces, text_pieces
from penstock.broker.statistics.topic_list import LIMIT_MAX, TopicOrder, TopicPage, topic_list
from penstock.broker.statistics.topic_statistics import Selection
from penstock.core.threads import DEATHS

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_TOPICS = 50


class StateRoutes:
    """Handles requests for the broker's state.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def ping(self, _request: Request) -> HttpResponse:
        """Report whether publishing works."""
        text = health(self._broker)
        return HttpResponse(200 if text == "OK" else 500, (text.encode(),), nsq=False)

    async def ready(self, _request: Request) -> HttpResponse:
        """Report whether a publish would succeed, as the other processes report their readiness."""
        text = health(self._broker)
        reasons = [] if text == "OK" else [text.removeprefix("NOK - ")]
        reasons += DEATHS.down()
        document = {"ready": not reasons, "role": "broker", "reasons": reasons, "waits": []}
        body = (orjson.dumps(document),)
        return HttpResponse(503 if reasons else 200, body, content_type=JSON, nsq=False)

    async def info(self, _request: Request) -> HttpResponse:
        """Return the broker's addresses and versions."""
        return json_response(info(self._broker))

    async def stats(self, request: Request) -> HttpResponse:
        """Return the statistics of topics, channels and clients."""
        query = request.query
        form = query.get("format") or "text"
        if form not in {"json", "text"}:
            raise ApiError(400, "INVALID_FORMAT", "use one of the formats json and text")
        selection = Selection(
            query.get("topic", ""),
            query.get("channel", ""),
            _unless_off(request, "include_clients"),
            request.visibility(),
        )
        with_memory = _unless_off(request, "include_mem")
        if form == "json":
            body = await json_pieces(self._broker, selection, with_memory=with_memory)
            return HttpResponse(body=body, content_type=JSON)
        return HttpResponse(
            body=await text_pieces(self._broker, selection, with_memory=with_memory)
        )

    async def topic_list(self, request: Request) -> HttpResponse:
        """Return one page of the list of topics."""
        query = request.query
        order = query.get("order") or TopicOrder.NAME
        if order not in set(TopicOrder):
            raise ApiError(400, "INVALID_ORDER", f"order={order}: use {', '.join(TopicOrder)}")
        limit = request.integer("limit", _TOPICS)
        if limit > LIMIT_MAX:
            raise ApiError(400, "INVALID_LIMIT", f"limit={limit}: use at most {LIMIT_MAX}")
        page = TopicPage(
            query.get("search", ""),
            TopicOrder(order),
            request.integer("skip", 0),
            limit,
            request.visibility(),
        )
        return json_response(await topic_list(self._broker, page))


def _unless_off(request: Request, name: str) -> bool:
    return name not in request.query or request.flag(name)


class LookupRoutes:
    """Handles requests of nsqlookupd's API.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def lookup(self, request: Request) -> HttpResponse:
        """Return the producers of a topic."""
        name = request.required("topic")
        visibility = request.visibility()
        if not visibility.topic(name):
            raise no_topic(name)
        topic = require_topic(self._broker.topics, name, with_hint=False)
        return json_response(lookup_documents.lookup(self._broker, topic, visibility))

    async def topics(self, request: Request) -> HttpResponse:
        """Return the names of the topics."""
        names = lookup_documents.topic_names(self._broker, request.visibility())
        return json_response({"topics": names})

    async def channels(self, request: Request) -> HttpResponse:
        """Return the channels of a topic; none if it does not exist, as nsqlookupd does."""
        name = request.required("topic")
        topic, visibility = self._broker.topics.find(name), request.visibility()
        is_visible = topic is not None and visibility.topic(name)
        names = lookup_documents.channel_names(topic, visibility) if topic and is_visible else []
        return json_response({"channels": names})

    async def nodes(self, request: Request) -> HttpResponse:
        """Return the producers: this broker."""
        return json_response(lookup_documents.nodes(self._broker, request.visibility()))

    async def debug(self, request: Request) -> HttpResponse:
        """Return every registration."""
        visibility = request.visibility()
        return json_response(lookup_documents.registrations(self._broker, visibility))
