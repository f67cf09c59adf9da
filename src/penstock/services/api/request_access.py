"""The principal of a request in the APIs, and the answer to a request without a valid credential.

Owns the middleware that adds the principal to each request, the paths that need none, and
`RequestAccess`, which handlers ask. `penstock.broker.http_server.authentication` finds the
principal; `access_rules` has the right that each route needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import orjson
from starlette.responses import Response

from penstock.broker.http_server.authentication import (
    CHALLENGES,
    ORIGIN_HEADER,
    PEER_STATE,
    HttpAuthenticator,
    HttpPeer,
    origin_of,
)
from penstock.broker.http_server.host_policy import comes_from_own_page
from penstock.core.access.access_control import AccessControl
from penstock.core.access.audit import RequestTrail
from penstock.core.access.policy import Decision
from penstock.core.access.principal import ASSIGNABLE, NOBODY, PRINCIPAL_HEADER, Principal
from penstock.core.access.row_rules import RowRules
from penstock.core.access.rules import STAR, Action, Resource, ResourceKind
from penstock.core.errors import (
    Forbidden,
    InvalidRequest,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import status_and_code
from penstock.services.api.error_forms import answered_error

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")

# Load balancers send no credential; the answers report only whether the process runs and is ready.
# The page of the console has no data.
OPEN_PATHS: Final = frozenset({"/status/health", "/status/ready", "/"})
# `penstock.services.api.static_pages` has the reason why they need no credential.
MANUAL: Final = "/docs"
CONSOLE: Final = "/console"
# `penstock.services.api.login` has the reason why they need none.
LOGIN: Final = "/login"
LOGOUT: Final = "/logout"

_OPEN: Final = OPEN_PATHS | {MANUAL, LOGIN, LOGOUT}

_COOKIE: Final = b"cookie"
_AUTHORIZATION: Final = b"authorization"
_REQUESTED_WITH: Final = b"x-requested-with"
_FOR_ANOTHER: Final = PRINCIPAL_HEADER.lower().encode()
_ACCESS: Final = "penstock.access"
LOGGED_IN: Final = "penstock.logged_in"
"""Key of an ASGI scope with a principal that a middleware outside of `Authentication` has found."""
# Of a request without an answer, in the audit.
_BROKEN_OFF: Final = 0


def is_open(path: str) -> bool:
    """Is a path served without a credential?"""
    return path in _OPEN or path.startswith((f"{MANUAL}/", f"{CONSOLE}/"))


def session_cookie(scope: Scope) -> str:
    """Return the name of the cookie with a browser's session.

    Browsers send a cookie to all ports of a host, so each server has a name of its own.
    """
    server = scope.get("server")
    return f"penstock-{server[1]}" if server else "penstock"


@dataclass(frozen=True, slots=True)
class RequestAccess:
    """The principal of one request, and what it may do.

    Attributes:
        control: The access control of this process.
        principal: Its principal; `NOBODY` only on open paths.
        origin: Address of the client, for the audit; behind the router, as that passes it on.
        trail: Records of the request in the audit; None: its end is not recorded.
        session: The browser's session that has the principal; empty: another credential.
    """

    control: AccessControl
    principal: Principal
    origin: str = ""
    trail: RequestTrail | None = None
    session: str = field(default="", repr=False)

    @property
    def is_unlimited(self) -> bool:
        """Whether the principal may do everything, so that lists need not be filtered."""
        return not self.control.rights_of(self.principal)

    def readable(self, datasources: Iterable[T], name_of: Callable[[T], str] = str) -> list[T]:
        """Return the entries of a list whose datasource the principal may read.

        Args:
            datasources: The entries.
            name_of: Returns the datasource of an entry.
        """
        if self.is_unlimited:
            return list(datasources)
        known: dict[str, bool] = {}
        found: list[T] = []
        for one in datasources:
            name = name_of(one)
            if name not in known:
                known[name] = self.may(Action.READ, ResourceKind.DATASOURCE, name)
            if known[name]:
                found.append(one)
        return found

    def visible(self, datasources: Iterable[str]) -> list[str]:
        """Return the names of a list that the principal may know, because SQL answers about them.

        Besides those of `readable`, it has datasources that the principal sees in part. Use it for
        names alone: numbers and segments of such a datasource depend on hidden rows.
        """
        if self.is_unlimited:
            return list(datasources)
        return [name for name in datasources if self.rows_of(name) is not None]

    def may(self, action: Action, kind: ResourceKind, name: str) -> bool:
        """Return whether the principal may do something. It is not audited."""
        return self.control.decide(self.principal, action, Resource(kind, name)).allowed

    def rows_of(self, datasource: str) -> RowRules | None:
        """Return what SQL may show the principal of a datasource now; None: nothing.

        All other ways to read it ask `may` or `require`, which refuse a datasource of which the
        principal sees a part.
        """
        resource = Resource(ResourceKind.DATASOURCE, datasource)
        return self.control.decide(self.principal, Action.READ, resource).rows

    def sees_limited_rows(self, datasource: str) -> bool:
        """Return whether a row filter or mask applies to the principal and a datasource."""
        rows = self.rows_of(datasource)
        return rows is not None and rows.is_limited

    def require(self, action: Action, resource: Resource) -> None:
        """Return if the principal may do something, and audit it.

        Raises:
            Unauthenticated: The request has no valid credential.
            Forbidden: The principal may not do it.
        """
        self.control.require(self.principal, action, resource, origin=self.origin, trail=self.trail)

    def require_some(self, action: Action, kind: ResourceKind) -> None:
        """Return if the principal may do something with some resource of a kind, and audit it.

        Raises:
            Unauthenticated: The request has no valid credential.
            Forbidden: The principal may not do it.
        """
        self.require_known()
        decision = self.control.decide_some(self.principal, action, kind)
        resource = Resource(kind, STAR)
        self.control.audit.decided(
            *(self.principal, action, resource, decision, self.origin, self.trail)
        )
        if not decision.allowed:
            raise Forbidden(
                f"{self.principal.id} may not {action} any {kind}: ask an administrator for the"
                " right on one"
            )

    def record(self, action: Action, resource: Resource) -> None:
        """Audit what the principal does, which was decided for parts of the resource."""
        decision = Decision.granted("a query names it")
        self.control.audit.decided(
            *(self.principal, action, resource, decision, self.origin, self.trail)
        )

    @property
    def owner_id(self) -> str:
        """Id of the owner of everything that the principal applies; empty: the installation."""
        return self.principal.id if self.principal.kind in ASSIGNABLE else ""

    def owner_after(self, needed: Iterable[tuple[Action, Resource]], what: str) -> str:
        """Return for whom a process acts after the end of the request; empty: the installation.

        Args:
            needed: The rights that it needs then.
            what: The words before the name in an error, such as `the flow would act`.

        Raises:
            Forbidden: The principal has rights that end with its credential, and those without it
                are not enough.
        """
        owner, control = self.owner_id, self.control
        if not owner:
            return ""
        lasting = control.represented.named(owner)
        if control.represented.problem(lasting):
            control.refresh()  # this process may not have read a new credential yet
            lasting = control.represented.named(owner)
        problem = control.represented.problem(lasting)
        for action, resource in needed:
            if problem:
                break
            if not control.decide(lasting, action, resource).allowed:
                problem = f"may not {action} {resource.shown}"
        if problem:
            raise Forbidden(
                f"{what} for {owner} without a request's credential: {problem}. Roles from"
                " groups of an issuer end with the token: give the principal its roles in"
                " access.toml, or send the request with a token of Penstock"
            )
        return owner

    def require_known(self) -> None:
        """Return if the request has a valid credential.

        Raises:
            Unauthenticated: The request has no valid credential.
        """
        if self.principal == NOBODY:
            raise Unauthenticated(self.control.remedy)


def access_of(request: HTTPConnection) -> RequestAccess:
    """Return the access of a request that `Authentication` has passed on."""
    found = request.scope[_ACCESS]
    assert isinstance(found, RequestAccess)
    return found


def on_behalf_of(request: HTTPConnection) -> dict[str, str]:
    """Return the headers with which this process asks another one for the request's principal."""
    access = access_of(request)
    return {PRINCIPAL_HEADER: access.principal.to_header(), ORIGIN_HEADER: access.origin}


class Authentication:
    """Adds the principal to each request; answers 401 without one, except on open paths.

    Args:
        app: The application that answers.
        control: The access control of this process.
        accepts_sessions: Whether sessions of browsers count here, as they do at the router alone.
    """

    def __init__(
        self, app: ASGIApp, control: AccessControl, *, accepts_sessions: bool = False
    ) -> None:
        self._app = app
        self._control = control
        self._accepts_sessions = accepts_sessions
        self._authenticator = HttpAuthenticator(control)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        principal: Principal = scope.get(LOGGED_IN, NOBODY)
        may_pass, origin = is_open(scope["path"]), _client(scope)
        headers = dict(scope["headers"])
        session = ""
        try:
            if self._accepts_sessions and _COOKIE in headers and _AUTHORIZATION not in headers:
                session, principal = self._of_session(scope)
            if principal == NOBODY:
                principal = await self._principal(scope, headers)
            origin = origin_of(headers, origin)
            if principal == NOBODY and not may_pass:
                raise Unauthenticated(self._control.remedy)
        except PenstockError as error:  # narrow: translates
            # A credential that is wrong, or cannot be checked now, does not close a path that is
            # open without one.
            if not may_pass or not isinstance(error, InvalidRequest | Unavailable):
                await _refusal(error, scope)(scope, receive, send)
                return
        access = RequestAccess(
            *(self._control, principal, origin, self._control.audit.trail(origin)), session=session
        )
        await self._until_end(access, {**scope, _ACCESS: access}, receive, send)

    async def _until_end(
        self, access: RequestAccess, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass a request on, and record its end."""
        status = _BROKEN_OFF

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if access.trail is not None and access.trail.allowed:
                self._control.audit.ended(access.trail, status)

    def _of_session(self, scope: Scope) -> tuple[str, Principal]:
        """Return the session in the cookie of a request, and its principal; `NOBODY` without one.

        Raises:
            Forbidden: A page of another site or port may have sent the request.
        """
        session, logins = _session_in(scope), self._control.browser_logins
        principal = logins.principal(session) if session and logins is not None else None
        if principal is None:
            return "", NOBODY
        headers = scope["headers"]
        if _FOR_ANOTHER in {name for name, _ in headers} or not comes_from_own_page(
            scope["method"].encode(), headers
        ):
            self._control.audit.failed_login(principal.id, "sent by another page", _client(scope))
            raise Forbidden(
                "the login of this browser counts only for pages of this server, and this request"
                " may come from another one: open the address of this server, or send a token"
            )
        return session, principal

    async def _principal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Principal:
        """Return the principal of a request. Raises as `HttpAuthenticator.find` and `check`."""
        # Servers other than uvicorn, such as those of tests, do not name the connection.
        peer = scope.get("state", {}).get(PEER_STATE)
        if not isinstance(peer, HttpPeer):
            peer = HttpPeer()
        known = self._authenticator.find(headers, peer)
        return await self._authenticator.check(headers, peer) if known is None else known


def _session_in(scope: Scope) -> str:
    """Return the session in the cookie of a request; empty if there is none, or more than one.

    A page of another port of this host can add a cookie of this name, but not take this one away.
    """
    name = f"{session_cookie(scope)}="
    pairs = (
        pair.strip()
        for header, value in scope["headers"]
        if header == _COOKIE
        for pair in value.decode("latin-1").split(";")
    )
    found = {pair.removeprefix(name) for pair in pairs if pair.startswith(name)}
    return found.pop() if len(found) == 1 else ""


def add_challenges(answer: Response, scope: Scope) -> None:
    """Add the headers that an answer with status 401 must have.

    The script of a page, which sends `X-Requested-With`, gets no challenge for which browsers ask
    for a password in a window of their own: the page shows how to log in.
    """
    is_script = any(name == _REQUESTED_WITH for name, _ in scope["headers"])
    for challenge in CHALLENGES:
        if not (is_script and challenge.startswith("Basic")):
            answer.headers.append("WWW-Authenticate", challenge)


def _refusal(error: PenstockError, scope: Scope) -> Response:
    status, _ = status_and_code(error)
    answer = Response(
        orjson.dumps(answered_error(error, scope["path"])), status, media_type="application/json"
    )
    if status == 401:
        add_challenges(answer, scope)
    return answer


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
