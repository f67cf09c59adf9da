"""The HTTP server: NSQ's API as a plain ASGI application.

Owns the table of routes, the check of each request's principal and right before its route runs, and
the outermost handler, which converts errors to answers. Does not own the routes (the other modules
of this package) nor their rules (`access_rules`). It uses no web framework: an answer to a small
publish takes tens of microseconds, and routing by a dictionary suffices.
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

import orjson

from penstock.broker.http.access_rules import ACCESS_RULES, CONFIG, Rule, Unruled
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
from penstock.broker.http.redrive_routes import RedriveRoutes
from penstock.broker.http.topic_routes import ConfigureRoutes, TopicRoutes
from penstock.broker.http_server.authentication import (
    PEER_STATE,
    HttpAuthenticator,
    HttpPeer,
    origin_of,
)
from penstock.broker.security.rights import ConnectionRights
from penstock.broker.security.tls import Requirement
from penstock.core.access.principal import NOBODY
from penstock.core.errors import PenstockError, Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from penstock.broker.broker import Broker

    Handler = Callable[[Request], Awaitable[HttpResponse]]

_logger = logging.getLogger(__name__)


class BrokerHttpApp:
    """The ASGI application of one broker.

    Args:
        broker: The broker.

    Raises:
        LookupError: A route has no rule: a bug.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        requirement = broker.options.tls.requirement
        self._refuses_plain = requirement in {Requirement.REMOTE, Requirement.ALL}
        self._trusts_loopback = (
            requirement is Requirement.REMOTE or broker.options.tls.plain_loopback
        )
        publish, read, state = PublishRoutes(broker), ReadRoutes(broker), StateRoutes(broker)
        topics, channels = TopicRoutes(broker), ChannelRoutes(broker)
        lookup = LookupRoutes(broker)
        settings = SettingsRoutes(broker)
        configure, peek = ConfigureRoutes(broker), PeekRoutes(broker)
        redrive = RedriveRoutes(broker)
        self.routes: Mapping[str, Mapping[str, Handler]] = {
            "/ping": {"GET": state.ping},
            "/status/ready": {"GET": state.ready},
            "/info": {"GET": state.info},
            "/stats": {"GET": state.stats},
            "/stats/topics": {"GET": state.topic_list},
            "/pub": {"POST": publish.pub},
            "/mpub": {"POST": publish.mpub},
            "/topic/create": {"POST": topics.create},
            "/topic/delete": {"POST": topics.delete},
            "/topic/empty": {"POST": topics.empty},
            "/topic/pause": {"POST": topics.pause},
            "/topic/unpause": {"POST": topics.unpause},
            "/topic/configure": {"GET": configure.get, "POST": configure.put},
            "/topic/redrive": {"POST": redrive.redrive},
            "/channel/create": {"POST": channels.create},
            "/channel/delete": {"POST": channels.delete},
            "/channel/empty": {"POST": channels.empty},
            "/channel/seek": {"POST": channels.seek},
            "/channel/pause": {"POST": channels.pause},
            "/channel/unpause": {"POST": channels.unpause},
            CONFIG: {"GET": settings.get, "PUT": settings.put},
            "/lookup": {"GET": lookup.lookup},
            "/topics": {"GET": lookup.topics},
            "/channels": {"GET": lookup.channels},
            "/nodes": {"GET": lookup.nodes},
            "/debug": {"GET": lookup.debug},
            "/offsets": {"GET": read.offsets},
            "/peek": {"GET": peek.peek},
            "/message": {"GET": peek.message},
            "/fetch": {"GET": read.fetch},
            "/cursor": {"POST": read.set_cursor, "DELETE": read.delete_cursor},
        }
        self._rules = _rules_of(self.routes)
        self._access = broker.access
        self._authenticator = HttpAuthenticator(broker.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        is_plain = scope["scheme"] != "https"
        if is_plain and self._refuses_plain and not self._is_excepted(scope):
            await self._tls_required().send(send, close=True)
            return
        try:
            handler, rule = self._found(request)
            if rule is not Unruled.OPEN:
                await self._admit(request, rule, scope)
            response = await handler(request)
        except ClientLeftError:
            return  # the end of the connection is recorded
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
        request.finish(response.status)
        await response.send(send, close=request.must_close)

    def _is_excepted(self, scope: Scope) -> bool:
        """Return whether a request without TLS comes from this host and is allowed."""
        here, peer = scope["server"], scope["client"]
        if not self._trusts_loopback or here is None or peer is None:
            return False
        return peer[0] == here[0] or ip_address(peer[0]).is_loopback

    def _tls_required(self) -> HttpResponse:
        document = {"message": "TLS_REQUIRED", "https_port": self._broker.https_port}
        return HttpResponse(403, (orjson.dumps(document),), JSON)

    async def _admit(self, request: Request, rule: Rule, scope: Scope) -> None:
        """Return if the principal of a request may use its route.

        Raises:
            ApiError: The query is malformed.
            Forbidden: The principal does not have the right.
            InvalidRequest: The header with the principal of its user is malformed.
            Unauthenticated: The credential is missing or not valid.
            Unavailable: Too many passwords are being checked.
        """
        peer: HttpPeer = scope["state"][PEER_STATE]
        principal = self._authenticator.find(request.headers, peer)
        if principal is None:
            principal = await self._authenticator.check(request.headers, peer)
        if principal is NOBODY:
            raise Unauthenticated(self._access.remedy)
        rights = peer.rights
        if rights is None:
            rights = ConnectionRights(self._access, self._broker.clock, peer.origin)
            peer.rights = rights
        rights.origin = origin_of(request.headers, peer.origin)
        request.authenticated(principal, rights)
        if not isinstance(rule, Unruled):
            rule.require(request)

    def _found(self, request: Request) -> tuple[Handler, Rule]:
        """Return the route of a request, and its rule.

        Raises:
            ApiError: There is none.
        """
        route = _route(request.path)
        methods = self.routes.get(route)
        if methods is None:
            raise ApiError(404, "NOT_FOUND", f"unknown path {request.path}")
        handler = methods.get(request.method)
        if handler is not None:
            return handler, self._rules[route][request.method]
        allowed = ", ".join(methods)
        detail = f"{request.path} supports {allowed}"
        headers = ((b"allow", allowed.encode()),)
        raise ApiError(405, "METHOD_NOT_ALLOWED", detail, headers)


def _rules_of(routes: Mapping[str, Mapping[str, Handler]]) -> Mapping[str, Mapping[str, Rule]]:
    """Return the rules of routes.

    Raises:
        LookupError: A route has no rule.
    """
    for path, methods in routes.items():
        missing = methods.keys() - ACCESS_RULES.get(path, {}).keys()
        if missing:
            raise LookupError(f"{', '.join(missing)} {path} has no rule: add it to ACCESS_RULES")
    return ACCESS_RULES


def _route(path: str) -> str:
    """Return the key of a path in the table."""
    folder, _, name = path.rpartition("/")
    return CONFIG if name and folder == "/config" else path
