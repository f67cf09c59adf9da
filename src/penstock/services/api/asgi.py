"""Common parts of all HTTP applications: limits, errors and status routes.

Owns the body size limit, the header against guessed types, the translation of errors into Druid's
response format, the routes below `/status` and `/metrics`, the JSON helpers for bodies and query
parameters, and the advice for Druid paths that Penstock does not serve (the page on Druid lists the
same paths). Does not own the routes of a single application, the principal of a request
(`request_access`), and the rights that it needs (`access_rules`). Host names, origins and header
sizes are checked before (`penstock.broker.http_server`).
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import penstock
from penstock.core.access.access_control import AccessControl
from penstock.core.access.rules import Action
from penstock.core.errors import InvalidRequest, PenstockError, Unauthenticated, Unavailable
from penstock.core.http_errors import (
    BodyTooLarge,
    retry_headers,
    status_and_code,
)
from penstock.core.loop_stalls import loop_stalls
from penstock.core.printable import quoted
from penstock.core.whole_numbers import INT64_MAX, INT64_MIN, int64_of
from penstock.services.api.access_rules import (
    ROUTE_RULES,
    STATUS,
    RouteRules,
    guarded,
)
from penstock.services.api.error_forms import answered_error, answered_text
from penstock.services.api.request_access import (
    MANUAL,
    Authentication,
    access_of,
    add_challenges,
)
from penstock.services.readiness import ReadyState, resident_bytes

_COORDINATOR: Final = "/druid/coordinator/v1"
_COMPACTION: Final = "use the paths below /druid/indexer/v1/compaction"
_LOADING: Final = "segments are read in place, so nothing is loaded: leave the request out"

_PATHS: Final[Mapping[str, str]] = {
    "/druid/indexer/v1/sampler": "POST the input to /penstock/v1/sample",
    f"{_COORDINATOR}/rules": f"POST rules of all datasources to {_COORDINATOR}/rules/_default",
    f"{_COORDINATOR}/config": "a coordinator has no settings here: leave it out",
}
_BELOW: Final[Mapping[str, str]] = {
    "/druid/v2/sql/avatica-protobuf": "use the driver's JSON form, with /druid/v2/sql/avatica/",
    f"{_COORDINATOR}/compaction": _COMPACTION,
    f"{_COORDINATOR}/config/compaction": _COMPACTION,
    f"{_COORDINATOR}/loadqueue": _LOADING,
    f"{_COORDINATOR}/tiers": _LOADING,
    f"{_COORDINATOR}/lookups": f"use {_COORDINATOR}/lookups/config and /status, or penstock lookup",
}


def instead_of(path: str) -> str:
    """Return the replacement of a path; empty if there is none."""
    if path in _PATHS:
        return _PATHS[path]
    return next((remedy for top, remedy in _BELOW.items() if f"{path}/".startswith(f"{top}/")), "")


logger = logging.getLogger(__name__)

BODY_BYTES_MAX = 4 << 20
# Limit for one route whose application accepts more for another route (actions of tasks).
JSON_BYTES_MAX = 16 << 20
# Limit for all requests that a process answers at one time.
BODIES_BYTES_MAX = 128 << 20
# Text of the RuntimeError of `threading`, which has no type of its own.
_NO_THREAD = "can't start new thread"
_REPORTS_INVALID: Final = "penstock.reports_invalid"  # in the scope of a request
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FRONT_PAGE: Final = f"{MANUAL}/".encode()
_NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")


class JsonResponse(Response):
    """JSON written by orjson."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the content as JSON."""
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)


class BodyLimit:
    """Refuses bodies that are too large, by their announced length or while they are read.

    Also limits the total size of the bodies of all current requests. Bodies of `streamed` paths are
    not kept in memory; their handlers limit them.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int = BODY_BYTES_MAX,
        total_bytes: int = BODIES_BYTES_MAX,
        streamed: Container[str] = (),
    ) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._total_bytes = max(total_bytes, limit_bytes)
        self._streamed = streamed
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413."""
        if scope["type"] != "http" or scope["path"] in self._streamed:
            await self._app(scope, receive, send)
            return
        announced = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        size_bytes = int64_of(announced.decode("latin-1"))
        if announced.isdigit() and (size_bytes is None or size_bytes > self._limit_bytes):
            text = _too_large(self._limit_bytes)
            body = answered_text(text, "invalidInput", 413, scope["path"])
            await JsonResponse(body, 413)(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            taken += size
            self._held_bytes += size
            if taken > self._limit_bytes:
                raise BodyTooLarge(_too_large(self._limit_bytes))
            if self._held_bytes > self._total_bytes:
                raise Unavailable(
                    f"the bodies of current requests have {self._held_bytes} bytes, more than the"
                    f" {self._total_bytes} that this process accepts at once: try again later"
                )
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held_bytes -= taken


class SlashAtEnd:
    """Removes a slash at the end of a path, because Druid serves both paths alike.

    SQL clients send `/druid/v2/sql/`. An escaped slash is part of a name, and stays. So does the
    slash of the manual's front page, whose links are relative to that folder.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            kept = raw.rstrip(b"/")
            if kept and raw not in (kept, _FRONT_PAGE):
                path = scope["path"][: len(kept) - len(raw)]
                scope = {**scope, "path": path, "raw_path": kept}
        await self._app(scope, receive, send)


class NoSniff:
    """Adds `X-Content-Type-Options: nosniff` to each answer.

    Answers have bytes that users sent, such as messages. Without the header, a browser would run
    such an answer as a script of this server, which the policy of the console allows.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and its answer with the header."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _NO_SNIFF]}
            await send(message)

        await self._app(scope, receive, marked)


def _too_large(limit_bytes: int) -> str:
    return (
        f"the body is larger than {limit_bytes} bytes, the limit of this path: send less at once, "
        "and let tasks read rows from files instead of from their specs"
    )


def report_invalid(request: Request) -> None:
    """Answer 200 with the error if the request has the flag `reportInvalid` and is invalid.

    For routes that check what a person is still writing: an invalid input is an ordinary answer
    there, but browsers list each answer 400 as an error of the page.
    """
    if request.query_params.get("reportInvalid", "false").lower() != "false":
        request.scope[_REPORTS_INVALID] = True


def status_of_invalid(request: Request) -> int:
    """Return the status of the answer to an invalid request: 400, or as `report_invalid` says."""
    return 200 if request.scope.get(_REPORTS_INVALID) else 400


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer a Penstock error in Druid's format."""
    if not isinstance(error, PenstockError):
        raise error
    status, _ = status_and_code(error)
    if status == 400:
        status = status_of_invalid(request)
    if status >= 500 and status != 503:
        logger.error("a request failed", exc_info=error)
    answer = JsonResponse(
        answered_error(error, request.scope["path"]), status, retry_headers(error)
    )
    if isinstance(error, Unauthenticated):
        add_challenges(answer, request.scope)
    return answer


async def _answer_no_route(request: Request, error: Exception) -> Response:
    """Answer in JSON if the path does not exist, or not with this method."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path} is not served here"
    if remedy := instead_of(request.url.path):
        text += f": {remedy}"
    elif error.status_code == 405:
        text += ": use another method"
    elif error.status_code != 404:  # whose detail repeats the text
        text += f": {error.detail}"
    status = error.status_code
    body = answered_text(text, "notFound", status, request.scope["path"])
    return JsonResponse(body, status, error.headers)


async def _answer_nobody(_request: Request, error: Exception) -> Response:
    # The client disconnected before the end of its body, so no client reads this answer.
    assert isinstance(error, ClientDisconnect)
    return Response(status_code=400)


async def _answer_no_thread(request: Request, error: Exception) -> Response:
    """Answer 503 if the limit of processes leaves no thread for the request."""
    if str(error) != _NO_THREAD:
        raise error
    reason = f"{error}: raise the limit of processes (ulimit -u, or the container's), or try later"
    return await answer_error(request, Unavailable(reason))


async def _answer_bug(request: Request, error: Exception) -> Response:
    # The documented top-level boundary: the trace goes to the log, a short answer to the client.
    logger.error("a request failed because of a bug in Penstock", exc_info=error)
    text = f"internal error ({type(error).__name__}); the log of this process has the details"
    return JsonResponse(answered_text(text, "general", 500, request.scope["path"]), 500)


def process_status() -> dict[str, object]:
    """Return the status that every process reports, in Druid's fields.

    Its memory is reported by the metrics: there is no heap of a fixed size as in a JVM.
    """
    return {"version": penstock.__version__, "modules": [], "memory": {}}


async def _status(_request: Request) -> Response:
    return JsonResponse(process_status())


async def _properties(_request: Request) -> Response:
    # Options contain secrets, so only the version is reported.
    return JsonResponse(
        {"penstock.version": penstock.__version__, "python.version": platform.python_version()}
    )


async def _stats(_request: Request) -> Response:
    stalls = {name: one.to_json() for name, one in loop_stalls().items()}
    return JsonResponse({"loop_stall_ms": stalls})


async def _discovered(_request: Request) -> Response:
    # A process that answers requests has announced itself, or will at once.
    return JsonResponse({"selfDiscovered": True})


def application(
    routes: Sequence[BaseRoute],
    *,
    access: AccessControl,
    rules: RouteRules = ROUTE_RULES,
    metrics: Callable[[], bytes] | None = None,
    body_bytes_max: int = BODY_BYTES_MAX,
    streamed: Container[str] = (),
    inside: Sequence[Middleware] = (),
    outside: Sequence[Middleware] = (),
    ready: Callable[[], ReadyState] | None = None,
    accepts_sessions: bool = False,
) -> Starlette:
    """Build an application.

    Args:
        routes: Its own routes.
        access: The access control of this process.
        rules: The right that each route needs.
        metrics: Returns the text of `/metrics`.
        body_bytes_max: Largest body.
        streamed: Paths whose handlers read bodies piece by piece, and limit them themselves.
        inside: Further middleware between the authentication and the routes.
        outside: Further middleware before the authentication.
        ready: Returns the state for ``/status/ready``; None: ready once it answers.
        accepts_sessions: Whether sessions of browsers count.

    Raises:
        LookupError: A route has no rule.
    """

    async def health(_request: Request) -> Response:
        return JsonResponse(True)  # Druid's body is the word itself  # noqa: FBT003

    def readiness(request: Request) -> Response:
        if ready is None:
            return JsonResponse({"ready": True})
        state = ready()
        status = 200 if state.ready else 503
        asked = access_of(request)
        if not asked.may(Action.READ, STATUS.kind, STATUS.name):
            # Load balancers send no credential, and need no reasons.
            return JsonResponse({"ready": state.ready}, status)
        return JsonResponse({**state.to_json(), "memoryBytes": resident_bytes()}, status)

    def metrics_text(_request: Request) -> Response:
        return PlainTextResponse(metrics() if metrics else b"", media_type=METRICS_TYPE)

    every = guarded(
        [
            *routes,
            Route("/status", _status),
            Route("/status/health", health),
            Route("/status/ready", readiness),
            Route("/status/properties", _properties),
            Route("/status/selfDiscovered", lambda _: Response(status_code=200)),
            Route("/status/selfDiscovered/status", _discovered),
            Route("/metrics", metrics_text),
            Route("/stats", _stats),
        ],
        rules,
    )
    app = Starlette(
        routes=every,
        middleware=[
            Middleware(NoSniff),
            Middleware(SlashAtEnd),
            *outside,
            Middleware(Authentication, control=access, accepts_sessions=accepts_sessions),
            Middleware(BodyLimit, limit_bytes=body_bytes_max, streamed=streamed),
            *inside,
        ],
        exception_handlers={
            PenstockError: answer_error,
            HTTPException: _answer_no_route,
            ClientDisconnect: _answer_nobody,
            RuntimeError: _answer_no_thread,
            Exception: _answer_bug,
        },
    )
    # Behind a router it would redirect clients to an address that they may not reach.
    app.router.redirect_slashes = False
    return app


async def bounded_body(request: Request, bytes_max: int = JSON_BYTES_MAX) -> bytes:
    """Return a body within the size limit.

    Raises:
        BodyTooLarge: The body is larger.
    """
    body = await request.body()
    if len(body) > bytes_max:
        raise BodyTooLarge(
            f"the body has {len(body)} bytes, more than the {bytes_max} that are allowed here: send"
            " less at once"
        )
    return body


async def bounded_json(request: Request, bytes_max: int = JSON_BYTES_MAX) -> object:
    """Return the JSON of a body.

    Raises:
        InvalidRequest: The body is not JSON, or too large.
    """
    try:
        return orjson.loads(await bounded_body(request, bytes_max))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None


async def json_object(request: Request, bytes_max: int = JSON_BYTES_MAX) -> dict[str, object]:
    """Return the JSON object of a body. Raises as `bounded_json`."""
    body = await bounded_json(request, bytes_max)
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body


def integer(request: Request, name: str, default: int | None = None) -> int | None:
    """Return a query parameter that is a whole number.

    Raises:
        InvalidRequest: The value is not a whole number.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    found = int64_of(text)
    if found is None:
        raise InvalidRequest(
            f"{quoted(text)} is not a whole number from {INT64_MIN} to {INT64_MAX}", place=name
        )
    return found
