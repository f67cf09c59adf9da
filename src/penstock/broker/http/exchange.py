"""One HTTP request and its answer, in NSQ's format.

Owns reading parameters and bodies from ASGI within limits, and the form of answers: success as
text, nothing or bare JSON; errors as ``{"message": "CODE"}``. The explanation of an error and its
remedy are in the header ``X-Penstock-Detail``, so that the bodies equal NSQ's byte for byte.
"""

from __future__ import annotations

import asyncio
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import orjson

from penstock.broker.http_server.authentication import CHALLENGES
from penstock.broker.message_bodies import MalformedBody
from penstock.broker.security.rights import (
    METRICS,
    READ_CHANNEL,
    READ_SYSTEM,
    READ_TOPIC,
    channel_name,
)
from penstock.broker.topic_names import name_mistake
from penstock.core.access.principal import NOBODY
from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    Forbidden,
    InvalidRequest,
    NotFound,
    PenstockError,
    QuotaExceeded,
    TooLargeForQuota,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import retry_headers
from penstock.core.printable import quoted, to_header
from penstock.core.whole_numbers import INT64_MAX, int64_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Receive, Scope, Send

    from penstock.broker.security.rights import ConnectionRights, Right
    from penstock.core.access.principal import Principal
    from penstock.core.access.quota_use import PublishQuota

JSON: Final = b"application/json; charset=utf-8"
TEXT: Final = b"text/plain; charset=utf-8"
BYTES: Final = b"application/octet-stream"

_PARAMETERS_MAX: Final = 64
_CACHED_QUERY_BYTES_MAX: Final = 256
_DETAIL_CHARACTERS_MAX: Final = 1_000
_REMEDIES: Final = {
    "MSG_TOO_BIG": "send smaller messages, or raise the broker's max_message_bytes",
    "BODY_TOO_BIG": "send fewer messages at once, or raise the broker's max_body_bytes",
}
_BROKEN_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})|;")


class ApiError(PenstockError):
    """An answer that reports an error.

    Args:
        status: HTTP status.
        code: Error code of NSQ or Penstock.
        detail: The problem and its remedy.
        headers: Further headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str = "",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(detail or code)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers


class ClientLeftError(PenstockError):
    """The client closed the connection: no answer can be sent."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer; the pieces of the body are sent without joining them."""

    status: int = 200
    body: Sequence[bytes | memoryview] = ()
    content_type: bytes = TEXT
    headers: Sequence[tuple[bytes, bytes]] = field(default_factory=tuple)
    nsq: bool = True

    async def send(self, send: Send, *, close: bool = False) -> None:
        """Send the answer."""
        headers = [
            (b"content-type", self.content_type),
            (b"content-length", b"%d" % sum(map(len, self.body))),
            *self.headers,
        ]
        if self.nsq:
            headers.append((b"x-nsq-content-type", b"nsq; version=1.0"))
        if close:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for piece in self.body[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        last = self.body[-1] if self.body else b""
        await send({"type": "http.response.body", "body": last})


OK: Final = HttpResponse(body=(b"OK",))
EMPTY: Final = HttpResponse()


def json_response(document: object, headers: Sequence[tuple[bytes, bytes]] = ()) -> HttpResponse:
    """Return a success with a JSON body."""
    return HttpResponse(body=(orjson.dumps(document),), content_type=JSON, headers=headers)


def error_response(error: ApiError) -> HttpResponse:
    """Return the answer for an error."""
    headers = list(error.headers)
    if error.detail:
        headers.append((b"x-penstock-detail", to_header(error.detail[:_DETAIL_CHARACTERS_MAX])))
    if error.status == 401:
        headers += [(b"www-authenticate", one.encode()) for one in CHALLENGES]
    body = orjson.dumps({"message": error.code})
    return HttpResponse(error.status, (body,), JSON, headers)


def as_api_error(error: PenstockError) -> ApiError:
    """Convert a Penstock error to the answer for a client."""
    match error:
        case ApiError():
            return error
        case QuotaExceeded():
            headers = [
                (name.lower().encode(), value.encode())
                for name, value in retry_headers(error).items()
            ]
            return ApiError(429, "QUOTA_EXCEEDED", str(error), headers)
        case TooLargeForQuota():
            return ApiError(413, "QUOTA_EXCEEDED", str(error))
        case MalformedBody():
            return ApiError(413, error.code, str(error))
        case Unauthenticated():
            return ApiError(401, "UNAUTHORIZED", str(error))
        case Forbidden():
            return ApiError(403, "FORBIDDEN", str(error))
        case InvalidRequest() if error.place.isidentifier():
            return ApiError(400, f"INVALID_{error.place.upper()}", str(error))
        case InvalidRequest():
            return ApiError(400, "INVALID_REQUEST", str(error))
        case NotFound():
            return ApiError(404, "NOT_FOUND", str(error))
        case Conflict():
            return ApiError(409, "CONFLICT", str(error))
        case Unavailable() | Closed():
            # NSQ's code for every failure to queue.
            return ApiError(503, "EXITING", str(error))
        case CorruptData():
            return ApiError(500, "CORRUPT_DATA", str(error))
    return ApiError(500, "INTERNAL_ERROR", str(error))


def _parse_query(query: bytes) -> Mapping[str, str]:
    if _BROKEN_ESCAPE.search(query):
        raise ValueError("broken escape")
    pairs = parse_qsl(
        query.decode("ascii"),
        keep_blank_values=True,
        errors="strict",
        max_num_fields=_PARAMETERS_MAX,
    )
    # The first value of a name counts, as in NSQ.
    return dict(reversed(pairs))


# Publishers send the same queries repeatedly; long queries are not cached.
_parse_query_once = functools.lru_cache(maxsize=512)(_parse_query)


class Visibility:
    """The topics and channels that a request may see in statistics and lists.

    Args:
        request: The request.

    Attributes:
        everything: It may see all of them, and the numbers of the whole broker.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.everything = request.allows(READ_SYSTEM, METRICS)

    def topic(self, name: str) -> bool:
        """Return whether a topic is visible."""
        return self.everything or self._request.allows(READ_TOPIC, name)

    def channel(self, topic: str, name: str) -> bool:
        """Return whether a channel of a visible topic is visible."""
        if self.everything:
            return True
        return self._request.allows(READ_CHANNEL, channel_name(topic, name))


class Request:
    """One request. The body is read at most once.

    Args:
        scope: ASGI's description of it.
        receive: ASGI's source of its body.

    Attributes:
        principal: Its sender; set by `authenticated`.
    """

    __slots__ = (
        "_body_timed_out",
        "_receive",
        "_rights",
        "headers",
        "method",
        "path",
        "principal",
        "query_string",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.principal = NOBODY
        self._rights: ConnectionRights | None = None
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._body_timed_out = False

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the query.

        Raises:
            ApiError: The query is malformed.
        """
        try:
            short = len(self.query_string) <= _CACHED_QUERY_BYTES_MAX
            return (_parse_query_once if short else _parse_query)(self.query_string)
        except ValueError:
            raise ApiError(
                400, "INVALID_REQUEST", "the query string is malformed: escape its parameters"
            ) from None

    def authenticated(self, principal: Principal, rights: ConnectionRights) -> None:
        """Record the sender of the request.

        Args:
            principal: The principal.
            rights: The rights that its connection was found to have.
        """
        self.principal, self._rights = principal, rights

    def require(self, right: Right, name: str) -> None:
        """Return if the principal has a right on the resource of this name.

        Raises:
            Unauthenticated: The request has no credential.
            Forbidden: The principal does not have the right.
        """
        assert self._rights is not None, "open routes check no rights"
        self._rights.require(self.principal, right, name)

    def finish(self, status: int) -> None:
        """Record the end of the request in the audit, if it changes something."""
        rights = self._rights
        if rights is not None and rights.in_progress:
            rights.finish(status)

    @property
    def publish_quota(self) -> PublishQuota | None:
        """The quota of its sender's publishes, after `require`; None: no limit."""
        return None if self._rights is None else self._rights.publish_quota

    @property
    def origin(self) -> str:
        """Address of its client, for the audit; empty if it is not known."""
        return "" if self._rights is None else self._rights.origin

    def allows(self, right: Right, name: str) -> bool:
        """Return whether the principal has a right on the resource of this name."""
        return self._rights is not None and self._rights.allows(self.principal, right, name)

    def visibility(self) -> Visibility:
        """Return what statistics and lists may show to the principal."""
        return Visibility(self)

    @property
    def content_length(self) -> int | None:
        """Announced bytes of the body; None if it arrives in chunks."""
        if b"transfer-encoding" in self.headers:
            return None
        return int(self.headers.get(b"content-length", b"0"))

    @property
    def must_close(self) -> bool:
        """Whether reading the body timed out, so that the connection should be closed."""
        return self._body_timed_out

    def required(self, name: str) -> str:
        """Return a parameter that is required.

        Raises:
            ApiError: It is missing.
        """
        value = self.query.get(name)
        if value is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}", f"add the parameter {name}=")
        return value

    def topic_name(self) -> str:
        """Return the parameter ``topic``.

        Raises:
            ApiError: It is missing or not a valid name.
        """
        name = self.required("topic")
        if text := name_mistake(name):
            raise ApiError(400, "INVALID_TOPIC", text)
        return name

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a parameter that is a number of 0 or more.

        Raises:
            ApiError: It is missing and there is no default, or it is not such a number.
        """
        text = self.query.get(name)
        if text is None and default is not None:
            return default
        if text is None:
            raise ApiError(400, f"MISSING_ARG_{name.upper()}", f"add the parameter {name}=")
        number = int64_of(text)
        if number is None or number < 0:
            raise ApiError(
                400,
                f"INVALID_{name.upper()}",
                f"{name}={quoted(text)} is not a whole number from 0 to {INT64_MAX}",
            )
        return number

    def flag(self, name: str) -> bool:
        """Return whether a parameter has any value except ``0`` and ``false``, as in NSQ."""
        return self.query.get(name, "0") not in {"0", "false"}

    async def body(self, limit_bytes: int, too_big: str, timeout_s: float) -> bytes:
        """Read the body.

        Args:
            limit_bytes: Maximum size of the body.
            too_big: Error code if it is larger.
            timeout_s: Time limit for receiving it.

        Raises:
            ApiError: It is too large, or the time limit is exceeded.
            ClientLeftError: The client disconnected before the end of the body.
        """
        self.require_length(limit_bytes, too_big)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeftError("the client disconnected during its request")
                    piece: bytes = message.get("body", b"")
                    if piece:
                        pieces.append(piece)
                        size += len(piece)
                    if size > limit_bytes:
                        raise _too_big(size, limit_bytes, too_big)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:  # narrow: only a slow client is disconnected
            self._body_timed_out = True
            raise ApiError(
                408, "REQUEST_TIMEOUT", f"the body did not arrive within {timeout_s:g} s"
            ) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def require_length(self, limit_bytes: int, too_big: str) -> None:
        """Refuse a body that is announced as too large, before reading it.

        Raises:
            ApiError: It is too large.
        """
        length = self.content_length
        if length is not None and length > limit_bytes:
            raise _too_big(length, limit_bytes, too_big)

    async def wait_disconnected(self) -> None:
        """Wait until the client has disconnected. For requests whose body is ignored."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _too_big(size: int, limit: int, code: str) -> ApiError:
    remedy = _REMEDIES.get(code, "send less")
    text = f"{size} bytes or more were sent and the limit is {limit}: {remedy}"
    return ApiError(413, code, text)
