"""The HTTP front: NSQ's API as a bare ASGI application.

Owns the table of routes, the bearer token and the top-level boundary where errors become answers.
Does not own what the routes do (``publishing``, ``reading``, and the topics' own below). It is
no framework application: an answer to a small publish costs tens of microseconds, and routing by a
dictionary is all it needs.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING

from penstock.broker.http.exchange import (
    EMPTY,
    ApiError,
    ClientLeftError,
    Request,
    Response,
    as_api_error,
    error_response,
    json_response,
)
from penstock.broker.http.publishing import PublishRoutes
from penstock.broker.http.reading import ReadRoutes
from penstock.broker.names import is_valid_name
from penstock.broker.stats import health, info, stats, stats_text
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from penstock.broker.broker import Broker

    Handler = Callable[[Request], Awaitable[Response]]

_logger = logging.getLogger(__name__)

_OPEN_PATHS = frozenset({"/ping"})


class HttpFront:
    """The ASGI application of one broker.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        publish, read, topics = PublishRoutes(broker), ReadRoutes(broker), TopicRoutes(broker)
        self.routes: Mapping[str, Mapping[str, Handler]] = {
            "/ping": {"GET": topics.ping},
            "/info": {"GET": topics.info},
            "/stats": {"GET": topics.stats},
            "/pub": {"POST": publish.pub},
            "/mpub": {"POST": publish.mpub},
            "/topic/create": {"POST": topics.create},
            "/topic/delete": {"POST": topics.delete},
            "/topic/empty": {"POST": topics.empty},
            "/topic/pause": {"POST": topics.pause},
            "/topic/unpause": {"POST": topics.unpause},
            "/offsets": {"GET": read.offsets},
            "/fetch": {"GET": read.fetch},
            "/cursor": {"POST": read.set_cursor, "DELETE": read.delete_cursor},
        }
        token = broker.options.token
        self._credentials = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            response = await self._handler(request)(request)
        except ClientLeftError:
            return
        except PenstockError as error:
            answer = as_api_error(error)
            if answer.status == 500:
                _logger.exception("%s %s failed", request.method, request.path)
            response = error_response(answer)
        except Exception:
            # The boundary: a bug in one request must not take the others along, and no traceback
            # goes to a client.
            _logger.exception("%s %s failed", request.method, request.path)
            response = error_response(ApiError(500, "INTERNAL_ERROR"))
        await response.send(send, close=request.must_close)

    def _handler(self, request: Request) -> Handler:
        methods = self.routes.get(request.path)
        if methods is None:
            raise ApiError(404, "NOT_FOUND", f"there is no {request.path}")
        if self._credentials is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._credentials):
                raise ApiError(401, "UNAUTHORIZED", "send Authorization: Bearer and the token")
        handler = methods.get(request.method)
        if handler is None:
            allowed = ", ".join(methods)
            raise ApiError(405, "METHOD_NOT_ALLOWED", f"{request.path} takes {allowed}")
        return handler


class TopicRoutes:
    """Handles topics as a whole, and the broker's state.

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
        form = request.query.get("format", "text")
        if form not in {"json", "text"}:
            raise ApiError(400, "INVALID_FORMAT", "the formats are json and text")
        topic = request.query.get("topic") or None
        memory = "include_mem" not in request.query or request.flag("include_mem")
        if form == "json":
            return json_response(stats(self._broker, topic, include_memory=memory))
        text = stats_text(self._broker, topic, include_memory=memory)
        return Response(body=(text.encode(),))

    async def create(self, request: Request) -> Response:
        """Make a topic."""
        changes, name = self._broker.changes, request.required("topic")
        if "partitions" in request.query:
            await changes.create(name, request.integer("partitions"))
        else:
            await changes.find_or_create(name, self._broker.options.default_partitions)
        return EMPTY

    async def delete(self, request: Request) -> Response:
        """Delete a topic; it is gone at once, the answer comes when its files are, too."""
        await self._broker.changes.delete(self._name(request))
        return EMPTY

    async def empty(self, request: Request) -> Response:
        """Drop a topic's messages."""
        name = request.required("topic")
        if not is_valid_name(name):
            raise ApiError(400, "INVALID_TOPIC", f"{name!r} is no name of a topic")
        topic = self._broker.topics.get(self._name(request))
        for queue in topic.queues:
            # It waits for an fsync, and deletes files.
            await asyncio.to_thread(queue.clear)
        topic.notify()
        return EMPTY

    async def pause(self, request: Request) -> Response:
        """Pause a topic."""
        await self._broker.changes.set_paused(self._name(request), paused=True)
        return EMPTY

    async def unpause(self, request: Request) -> Response:
        """Unpause a topic."""
        await self._broker.changes.set_paused(self._name(request), paused=False)
        return EMPTY

    def _name(self, request: Request) -> str:
        name = request.required("topic")
        if self._broker.topics.find(name) is None:
            raise ApiError(404, "TOPIC_NOT_FOUND", f"there is no topic {name!r}")
        return name
