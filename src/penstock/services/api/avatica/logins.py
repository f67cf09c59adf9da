"""Logins of JDBC drivers that send a user and a password only when they open a connection.

Owns the logins of their connections. Druid's JDBC driver has two ways to log in: each request has a
credential of HTTP (`avatica_user`), or the request that opens a connection has the properties
`user` and `password`. For a request of the second kind, this middleware adds them as HTTP Basic,
and the authentication behind it checks that as any other one. The password is not kept. Further
requests of the connection have the user's principal, as long as the user has the same password: a
changed password, other roles and a removed user take effect at once.

The id of such a connection is as good as its password while it is open, so it must be a UUID, which
drivers draw at random. Ids are not logged. A login is forgotten when its connection is closed, or
was not used for as long as connections are kept.

Used on the server's event loop only.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import Forbidden, InvalidRequest, PenstockError, Unavailable
from penstock.services.api.avatica.connections import CONNECTIONS_MAX, IDLE_S, MissingConnection
from penstock.services.api.avatica.routes import PATH, error_answer
from penstock.services.api.request_access import LOGGED_IN

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.core.access.access_control import AccessControl
    from penstock.core.clock import Clock

BODY_BYTES_MAX: Final = 1 << 20
"""Requests with larger bodies need a credential of HTTP."""
HELD_BYTES_MAX: Final = 32 << 20
"""Bodies of all current requests that are read before their credential is known."""
SMALL_BYTES_MAX: Final = 16 << 10
"""A body of this size is read even if others hold too much: unknown clients must not keep drivers
from logging in."""
LOGINS_MAX: Final = 1_000
"""Connections whose logins are kept; the one that was not used for longest goes first."""

_AUTHORIZATION: Final = b"authorization"
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_OPEN: Final = "openConnection"
_CLOSE: Final = "closeConnection"


class _Handle(msgspec.Struct, rename="camel"):
    connection_id: str = ""


class _Request(msgspec.Struct, rename="camel"):
    """The fields of a request that say whose it is."""

    request: str = ""
    connection_id: str = ""
    statement_handle: _Handle | None = None
    info: dict[str, object] | None = None

    @property
    def connection(self) -> str:
        """The id of its connection."""
        return self.connection_id or (self.statement_handle or _Handle()).connection_id


@dataclass(slots=True)
class _Login:
    """The user of a connection, the mark of the password, and when the login was used last."""

    user: str
    mark: str
    used_s: float


class AvaticaLogins:
    """Adds the login of its connection to each request of JDBC that has no credential.

    Args:
        app: The application that answers.
        access: The access control of this process.
        clock: Time.
    """

    def __init__(self, app: ASGIApp, access: AccessControl, clock: Clock) -> None:
        self._app = app
        self._access = access
        self._clock = clock
        self._held_bytes = 0
        # By the id of the connection; the one that was used last is the last one.
        self._logins: dict[str, _Login] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with its login if there is one."""
        is_own = scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST"
        needs_none = not is_own or self._access.is_open
        if needs_none or any(name == _AUTHORIZATION for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            has_more = await self._receive(receive, body)
            read = bytes(body)
            await self._pass_on(scope, read, _replayed(read, receive, has_more=has_more), send)
        finally:
            self._held_bytes -= len(body)

    async def _receive(self, receive: Receive, body: bytearray) -> bool:
        """Receive a body, or as much as it takes to see that it, or all together, are too large.

        Returns:
            Whether more follows: of the body, or that the client has gone.
        """
        has_more = True
        while has_more and len(body) <= BODY_BYTES_MAX and not self._is_full(body):
            message = await receive()
            if message["type"] != "http.request":
                break
            part = message.get("body", b"")
            body += part
            self._held_bytes += len(part)
            has_more = bool(message.get("more_body"))
        return has_more

    def _is_full(self, body: bytes | bytearray) -> bool:
        return self._held_bytes > HELD_BYTES_MAX and len(body) > SMALL_BYTES_MAX

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        if self._is_full(body):
            error = Unavailable("too many requests that must log in are read now: try again later")
            await error_answer(error, scope)(scope, receive, send)
            return
        wanted = _read(body)
        try:
            user, password = _user_and_password(wanted)
        except InvalidRequest as error:
            await error_answer(error, scope)(scope, receive, send)
            return
        if user:
            header = b"Basic " + b64encode(f"{user}:{password}".encode())
            scope = {**scope, "headers": [*scope["headers"], (_AUTHORIZATION, header)]}
        login = self._login(wanted)
        if login is not None:
            principal = self._access.authenticator.of_mark(login.user, login.mark)
            if principal is None:
                await error_answer(_wrong_login(), scope)(scope, receive, send)
                return
            scope = {**scope, LOGGED_IN: principal}
        answer = _Answer(send)
        await self._app(scope, receive, answer.send)
        if answer.status == 401:
            is_read = len(body) <= BODY_BYTES_MAX
            refusal = _refusal(wanted) if is_read else _too_large()
            await error_answer(refusal, scope)(scope, receive, send)
        elif wanted.request == _OPEN and user and answer.status == 200:
            # Empty: the server's own user needs no password while no user exists.
            if mark := self._access.authenticator.password_mark(user, password):
                self._make_room(user)
                self._keep(wanted.connection, user, mark)
        elif wanted.request == _CLOSE and answer.status == 200:
            self._logins.pop(wanted.connection, None)

    def _login(self, wanted: _Request) -> _Login | None:
        """Return the login of the connection of a request, which is used now."""
        if wanted.request == _OPEN:
            return None
        kept = self._logins.get(wanted.connection)
        if kept is None or kept.used_s <= self._clock.monotonic_s() - IDLE_S:
            return None
        self._keep(wanted.connection, kept.user, kept.mark)
        return kept

    def _make_room(self, user: str) -> None:
        """Forget the oldest logins of a user who has as many as connections: those were closed.

        So a user who opens and closes connections displaces only their own logins.
        """
        own = [one for one, login in self._logins.items() if login.user == user]
        for one in own[: max(0, len(own) - CONNECTIONS_MAX + 1)]:
            del self._logins[one]

    def _keep(self, connection: str, user: str, mark: str) -> None:
        now_s = self._clock.monotonic_s()
        self._logins.pop(connection, None)
        self._logins[connection] = _Login(user, mark, now_s)
        # In the order of their use: the first ones have expired.
        for one, login in list(self._logins.items()):
            if len(self._logins) <= LOGINS_MAX and login.used_s > now_s - IDLE_S:
                break
            del self._logins[one]


class _Answer:
    """Passes an answer on, except one with the status 401, which no driver reads."""

    def __init__(self, send: Send) -> None:
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if self.status != 401:
            await self._send(message)


def _user_and_password(wanted: _Request) -> tuple[str, str]:
    """Return the user and the password in a request; empty: it has none.

    Raises:
        InvalidRequest: A connection with a password has an id that could be guessed.
    """
    info = (wanted.info or {}) if wanted.request == _OPEN else {}
    user, password = info.get("user"), info.get("password")
    if not isinstance(user, str) or not isinstance(password, str):
        return "", ""
    if not _UUID.fullmatch(wanted.connection):
        raise InvalidRequest(
            "the id of a connection that logs in by the properties user and password must be a"
            " UUID drawn at random, because a client that guesses it could use the connection",
            place="connectionId",
        )
    return user, password


def _refusal(wanted: _Request) -> PenstockError:
    """Return the error in Avatica's terms; after that of a connection a driver opens it again."""
    if wanted.request != _OPEN:
        return MissingConnection("there is no such connection: it was closed, or has expired")
    return _wrong_login()


def _wrong_login() -> Forbidden:
    return Forbidden(
        "the user or the password is wrong or missing: set the driver's properties user and"
        " password, or avatica_user and avatica_password with authentication=BASIC"
    )


def _too_large() -> InvalidRequest:
    return InvalidRequest(
        f"the request has more than {BODY_BYTES_MAX >> 20} MiB, and no credential of HTTP: set the"
        " driver's properties avatica_user and avatica_password with authentication=BASIC"
    )


def _read(body: bytes) -> _Request:
    if len(body) > BODY_BYTES_MAX:
        return _Request()
    try:
        return msgspec.json.decode(body, type=_Request)
    # The route reports it.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Request()


def _replayed(body: bytes, receive: Receive, *, has_more: bool) -> Receive:
    """Return a function that receives the body as far as it was read, then what follows."""
    is_first = True

    async def receiving() -> Message:
        nonlocal is_first
        if not is_first:
            return await receive()
        is_first = False
        return {"type": "http.request", "body": body, "more_body": has_more}

    return receiving
