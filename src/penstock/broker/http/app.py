"""The HTTP server: NSQ's API as a plain ASGI application.

Owns the table of routes, the bearer token and the outermost handler, which converts errors to
answers. Does not own the routes (the other modules of this package). It uses no web framework: an
answer to a small publish takes tens of microseconds, and routing by a dictionary suffices.
"""

from __future__ import annotations

import hmac
import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

import orjson

from penstock.broker.http.channel_routes import ChannelRoutes
from penstock.broker.http.config_routes import SettingsRoutes
from penstock.broker.http.exchange import (
    JSON,
    ApiError,
    ClientLeftError,
    HttpResponse,
    Request,
    as_api_error,
    error_response,
)
from penstock.broker.http.info_routes import LookupRoutes, StateRoutes
from penstock.broker.http.peek_routes import PeekRoutes
from penstock.broker.http.publish_routes import PublishRoutes
from penstock.broker.http.read_routes import ReadRoutes
from penstock.broker.http.topic_routes import ConfigureRoutes, TopicRoutes
from penstock.broker.security.tls import Requirement
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from penstock.broker.broker import Broker

    Handler = Callable[[Request], Awaitable[HttpResponse]]

_logger = logging.getLogger(__name__)

_OPEN_PATHS = frozenset({"/ping", "/status/ready"})
_CONFIG = "/config/<option>"


class BrokerHttpApp:
    """The ASGI application of one broker.

    Args:
        broker: The broker.
        secure: It is served under TLS.
    """

    def __init__(self, broker: Broker, *, secure: bool = False) -> None:
        self._broker = broker
        self._refuses_plain = not secure and broker.options.tls.requirement is Requirement.ALL
        publish, read, state = PublishRoutes(broker), ReadRoutes(broker), StateRoutes(broker)
        topics, channels = TopicRoutes(broker), ChannelRoutes(broker)
        lookup = LookupRoutes(broker)
        settings = SettingsRoutes(broker)
        configure, peek = ConfigureRoutes(broker), PeekRoutes(broker)
        self.routes: Mapping[str, Mapping[str, Handler]] = {
            "/ping": {"GET": state.ping},
            "/status/ready": {"GET": state.ready},
            "/info": {"GET": state.info},
            "/stats": {"GET": state.stats},
            "/pub": {"POST": publish.pub},
            "/mpub": {"POST": publish.mpub},
            "/topic/create": {"POST": topics.create},
            "/topic/delete": {"POST": topics.delete},
            "/topic/empty": {"POST": topics.empty},
            "/topic/pause": {"POST": topics.pause},
            "/topic/unpause": {"POST": topics.unpause},
            "/topic/configure": {"GET": configure.get, "POST": configure.put},
            "/channel/create": {"POST": channels.create},
            "/channel/delete": {"POST": channels.delete},
            "/channel/empty": {"POST": channels.empty},
            "/channel/seek": {"POST": channels.seek},
            "/channel/pause": {"POST": channels.pause},
            "/channel/unpause": {"POST": channels.unpause},
            _CONFIG: {"GET": settings.get, "PUT": settings.put},
            "/lookup": {"GET": lookup.lookup},
            "/topics": {"GET": lookup.topics},
            "/channels": {"GET": lookup.channels},
            "/nodes": {"GET": lookup.nodes},
            "/debug": {"GET": lookup.debug},
            "/offsets": {"GET": read.offsets},
            "/peek": {"GET": peek.peek},
            "/fetch": {"GET": read.fetch},
            "/cursor": {"POST": read.set_cursor, "DELETE": read.delete_cursor},
        }
        token = broker.options.token
        self._credentials = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        if self._refuses_plain and not self._is_excepted(scope):
            await self._tls_required().send(send, close=True)
            return
        try:
            response = await self._handler(request)(request)
        except ClientLeftError:
            return
        except PenstockError as error:
            answer = as_api_error(error)
            if answer.status == 500:
                _logger.exception("%s %s failed", request.method, request.path)
            answer.detail = self._broker.for_clients(answer.detail)
            response = error_response(answer)
        except Exception:
            # The outermost handler: a bug in one request must not affect others, and no traceback
            # is sent to a client.
            _logger.exception("%s %s failed", request.method, request.path)
            response = error_response(ApiError(500, "INTERNAL_ERROR"))
        await response.send(send, close=request.must_close)

    def _is_excepted(self, scope: Scope) -> bool:
        """Return whether a request without TLS comes from this host and is allowed."""
        here, peer = scope["server"], scope["client"]
        if not self._broker.options.tls.plain_loopback or here is None or peer is None:
            return False
        return peer[0] == here[0] or ip_address(peer[0]).is_loopback

    def _tls_required(self) -> HttpResponse:
        document = {"message": "TLS_REQUIRED", "https_port": self._broker.https_port}
        return HttpResponse(403, (orjson.dumps(document),), JSON)

    def _handler(self, request: Request) -> Handler:
        methods = self.routes.get(_route(request.path))
        if methods is None:
            raise ApiError(404, "NOT_FOUND", f"unknown path {request.path}")
        if self._credentials is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._credentials):
                raise ApiError(401, "UNAUTHORIZED", "send Authorization: Bearer and the token")
        handler = methods.get(request.method)
        if handler is not None:
            return handler
        allowed = ", ".join(methods)
        detail = f"{request.path} supports {allowed}"
        headers = ((b"allow", allowed.encode()),)
        raise ApiError(405, "METHOD_NOT_ALLOWED", detail, headers)


def _route(path: str) -> str:
    """Return the key of a path in the table."""
    folder, _, name = path.rpartition("/")
    return _CONFIG if name and folder == "/config" else path
