"""`GET /penstock/v1/live`: one stream of server-sent events with the answers of other GET routes.

A client names up to `WATCHES_MAX` paths of this port. Each is requested again and again through the
whole application, with the client's own headers and connection. So the access rules are those of
the path, and a right that is revoked ends its answers at the next request. Streams of the same
principal share these requests: ten open pages cost as much as one. If the credential of one of them
has ended, as after a logout in another browser, only its own streams end. A path is requested every
`INTERVAL_S`, or less often if the client requests so: the parameters `every` have the seconds for
the paths, in their order. Any sequence of answers costs at most 5 % of a core over time: a path
rests for `LONG_RESTS` times the mean of its last two. It also rests for `RESTS` times the faster of
these two, up to `REST_S_MAX` seconds. So answers of up to a fifth of a second that take equally
long cost at most 1 %, and one answer that waited for something else delays the next ones less. If
more paths are watched than `PATHS_AT_ONCE`, each rests longer, up to `SLOWDOWN_MAX` times: ten
tabs with ten different pages have some 25 paths, many of which ask two processes. A path that is
refused (403) rests for `REFUSED_INTERVALS` times `INTERVAL_S`, because each refusal is audited.

An event has the number of the path in the request, the status and the JSON of the answer:

    data: {"watch": 0, "status": 200, "body": {...}}

An answer that is the same as before is not sent again. A slow client misses answers, never the
newest one. After a lost connection the client connects again and gets every path's current answer.

Owns the streams, their limits and the repeated requests. Does not own the answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.core.access.principal import Principal
from penstock.core.errors import Full, InvalidRequest, Unavailable
from penstock.core.http_errors import plain_body
from penstock.core.loop_tasks import start_owned
from penstock.core.printable import quoted
from penstock.core.whole_numbers import int64_of
from penstock.services.api.request_access import access_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_logger = logging.getLogger(__name__)

LIVE: Final = "/penstock/v1/live"
INTERVAL_S: Final = 2.0
RESTS: Final = 100
REST_S_MAX: Final = 20.0
LONG_RESTS: Final = 20
PATHS_AT_ONCE: Final = 4.0
"""Paths that are requested every `INTERVAL_S`; a path that is requested less often counts less.

An answer costs all processes together one to two milliseconds, so they cost less than 1 % of a
core.
"""
SLOWDOWN_MAX: Final = 4.0
REFUSED_INTERVALS: Final = 15
EVERY_S_MAX: Final = 600
WATCHES_MAX: Final = 16
STREAMS_MAX: Final = 256
STREAMS_OF_ONE_MAX: Final = 32
"""Streams of one principal, which must not take those of all others."""
PATHS_OF_ONE_MAX: Final = 64
"""Different paths in the streams of one principal; the answer of each is kept in memory."""
ANSWER_BYTES_MAX: Final = 2 << 20
KEEP_ALIVE_S: Final = 15.0
"""Proxies close connections that are idle for a minute or less."""

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_KEEP_ALIVE: Final = b": still here\n\n"
# Parts of the stream's own request that its repeated requests have, too.
_KEPT_SCOPE: Final = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
_DROPPED_HEADERS: Final = frozenset({b"accept-encoding", b"content-length", b"if-none-match"})


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


@dataclass(eq=False, slots=True)
class _Watch:
    """A path that is requested again and again for the streams of one principal.

    Attributes:
        interval_s: Seconds from the end of a request to the next one.
        app: The whole application.
        streams: Scope of the request of each stream, by the event that wakes it up when the answer
            has changed. The requests are those of the oldest stream.
        refused: Answers 401 to single streams, which end with them.
        number: How often the answer has changed.
    """

    path: str
    interval_s: float
    app: ASGIApp
    answer: _Answer | None = None
    number: int = 0
    streams: dict[asyncio.Event, Scope] = field(default_factory=dict)
    refused: dict[asyncio.Event, _Answer] = field(default_factory=dict)
    job: asyncio.Task[object] | None = None

    def set_answer(self, answer: _Answer) -> None:
        """Keep a new answer, and wake up the streams if it differs."""
        if answer != self.answer:
            self.answer = answer
            self.number += 1
            for event in self.streams:
                event.set()

    def refuse_oldest(self, answer: _Answer) -> None:
        """Give an answer to the oldest stream alone."""
        event = next(iter(self.streams))
        del self.streams[event]
        self.refused[event] = answer
        event.set()


class _Stream(StreamingResponse):
    """The answer with the events of one stream.

    Args:
        events: The events.
        ended: Called at its end, even if the client has gone before the first event.
    """

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


_Key: TypeAlias = tuple[Principal, str, float]
"""The principal, the path and the interval of a watch."""


class LiveAnswers:
    """The streams of one port. Its methods run on the port's event loop, except for `close`.

    Args:
        interval_s: Seconds from the end of a request for a path to the next one, if the client
            does not request more.

    Attributes:
        slowdown: How many times longer each path rests because of the number of paths.
    """

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._watches: dict[_Key, _Watch] = {}
        # The ids of their principals.
        self._streams: dict[asyncio.Event, str] = {}
        self.slowdown = 1.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def routes(self) -> list[BaseRoute]:
        """Return the route."""
        return [Route(LIVE, self.stream)]

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def close(self) -> None:
        """End all streams, so that the server can stop. Any thread may call it."""
        self._closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for event in list(self._streams):
            event.set()

    async def stream(self, request: Request) -> StreamingResponse:
        """Begin a stream.

        Raises:
            InvalidRequest: A path is missing, wrong, or one too many; or an interval is wrong.
            Full: The principal has too many streams, or watches too many paths.
            Unavailable: There are too many streams.
        """
        paths = _paths(request)
        intervals = self._intervals(request, len(paths))
        if len(self._streams) >= STREAMS_MAX or self._closed:
            raise Unavailable(
                f"there are {len(self._streams)} streams of live answers, the limit of this "
                "process: close other pages of the console, or try again later"
            )
        own = access_of(request).principal.id
        if sum(one == own for one in self._streams.values()) >= STREAMS_OF_ONE_MAX:
            raise Full(
                f"{own} has {STREAMS_OF_ONE_MAX} streams of live answers, as many as it may: close"
                " other pages of the console"
            )
        watched = {path for principal, path, _ in self._watches if principal.id == own}
        if len(watched.union(paths)) > PATHS_OF_ONE_MAX:
            raise Full(
                f"the streams of {own} watch {len(watched)} paths, and may watch"
                f" {PATHS_OF_ONE_MAX}: close other pages of the console"
            )
        self._loop = asyncio.get_running_loop()
        # Counted before anything waits: otherwise streams that begin at once pass the limits.
        changed = asyncio.Event()
        self._streams[changed] = own
        watches = [
            self._joined(request, path, each_s, changed)
            for path, each_s in zip(paths, intervals, strict=True)
        ]
        ended = partial(self._ended, watches, changed)
        return _Stream(self._events(watches, changed), ended)

    def _intervals(self, request: Request, paths: int) -> list[float]:
        """Return the interval of each path. Raises InvalidRequest."""
        given = request.query_params.getlist("every")
        if len(given) > paths:
            raise InvalidRequest(
                f"the request has {len(given)} parameters every for {paths} paths: give one for"
                " each parameter watch, or leave the last ones out",
                place="every",
            )
        found = [max(self._interval_s, _seconds(text)) for text in given]
        return [*found, *[self._interval_s] * (paths - len(found))]

    async def _events(
        self, watches: Sequence[_Watch], changed: asyncio.Event
    ) -> AsyncIterator[bytes]:
        sent = [0] * len(watches)
        yield _KEEP_ALIVE  # the browser learns that the stream is open
        while not self._closed:
            changed.clear()
            for index, watch in enumerate(watches):
                if (refused := watch.refused.get(changed)) is not None:
                    yield _event(index, refused)
                    return
                if watch.answer is not None and watch.number != sent[index]:
                    sent[index] = watch.number
                    yield _event(index, watch.answer)
                    if watch.answer.status == 401:
                        return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await changed.wait()
            except TimeoutError:
                yield _KEEP_ALIVE

    def _ended(self, watches: Sequence[_Watch], changed: asyncio.Event) -> None:
        self._streams.pop(changed, None)
        for watch in set(watches):
            self._left(watch, changed)

    def _joined(self, request: Request, path: str, each_s: float, changed: asyncio.Event) -> _Watch:
        """Return the watch of a path, which begins with its first stream."""
        key = (access_of(request).principal, path, each_s)
        watch = self._watches.get(key)
        if watch is None:
            watch = _Watch(path, each_s, request.app)
            watch.job = start_owned(
                f"live answers of {path}", self._repeat(watch), partial(self._failed, key)
            )
            self._watches[key] = watch
            self._share()
        watch.streams.setdefault(changed, _scope_of(request.scope, path))
        return watch

    def _left(self, watch: _Watch, changed: asyncio.Event) -> None:
        watch.streams.pop(changed, None)
        watch.refused.pop(changed, None)
        if not watch.streams and watch.job is not None:
            watch.job.cancel()
            self._watches = {key: one for key, one in self._watches.items() if one is not watch}
            self._share()

    def _share(self) -> None:
        """Divide the requests of a second among the paths, when they have become more or fewer."""
        at_once = sum(self._interval_s / watch.interval_s for watch in self._watches.values())
        self.slowdown = min(max(1.0, at_once / PATHS_AT_ONCE), SLOWDOWN_MAX)

    def _failed(self, key: _Key, name: str, error: BaseException) -> None:
        """Tell the streams of a path that its requests have ended because of a bug.

        The application has logged it. A stream that begins later tries the path again.
        """
        _logger.error("%s ended: %r", name, error)
        if (watch := self._watches.pop(key, None)) is not None:
            text = f"internal error ({type(error).__name__}): the log of the router has the details"
            body = orjson.dumps(plain_body(text, "general"))
            watch.set_answer(_Answer(500, body))

    async def _repeat(self, watch: _Watch) -> None:
        loop = asyncio.get_running_loop()
        former = 0.0
        while True:
            began = loop.time()
            answer = await _requested(watch.app, next(iter(watch.streams.values())))
            if answer.status == 401 and len(watch.streams) > 1:
                watch.refuse_oldest(answer)
                continue
            watch.set_answer(answer)
            took = loop.time() - began
            refused_s = REFUSED_INTERVALS * self._interval_s if answer.status == 403 else 0.0
            interval_s = watch.interval_s * self.slowdown
            await asyncio.sleep(max(interval_s, refused_s, rest_s(took, former)))
            former = took


def rest_s(took_s: float, former_s: float) -> float:
    """Return the least number of seconds from an answer to the next request for its path.

    Args:
        took_s: Seconds that the answer took.
        former_s: Seconds that the one before it took; 0: it was the first one.
    """
    short_s = min(RESTS * min(took_s, former_s), REST_S_MAX)
    # The mean adds half of the rest of an answer now, and half after the next answer.
    return max(short_s, LONG_RESTS * (took_s + former_s) / 2)


def _paths(request: Request) -> list[str]:
    """Return the paths of a request. Raises InvalidRequest."""
    paths = request.query_params.getlist("watch")
    if not 1 <= len(paths) <= WATCHES_MAX:
        raise InvalidRequest(
            f"the request has {len(paths)} parameters watch: name 1 to {WATCHES_MAX} paths",
            place="watch",
        )
    for path in paths:
        # Decoded, because the routes compare it so: a stream must not request a stream.
        decoded = unquote(path)
        if not path.startswith("/") or decoded.startswith(LIVE) or not path.isascii():
            raise InvalidRequest(
                f"{quoted(path)} cannot be watched: name the path of a GET request to this port, "
                "such as /status",
                place="watch",
            )
    return paths


def _seconds(text: str) -> int:
    """Return an interval in seconds. Raises InvalidRequest."""
    found = int64_of(text)
    if found is None or not 1 <= found <= EVERY_S_MAX:
        raise InvalidRequest(
            f"{quoted(text)} is not a whole number of seconds from 1 to {EVERY_S_MAX}",
            place="every",
        )
    return found


def _event(index: int, answer: _Answer) -> bytes:
    # JSON of orjson has no line break, which would end the event.
    return b'data: {"watch":%d,"status":%d,"body":%b}\n\n' % (index, answer.status, answer.body)


def _scope_of(scope: Scope, path: str) -> Scope:
    raw, _, query = path.partition("?")
    headers = [one for one in scope["headers"] if one[0] not in _DROPPED_HEADERS]
    kept = {name: scope[name] for name in _KEPT_SCOPE if name in scope}
    return {
        **kept,
        "method": "GET",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "state": scope.get("state", {}),
    }


async def _requested(app: ASGIApp, scope: Scope) -> _Answer:
    """Send a request to the application and return its answer as JSON in one line."""
    status, headers, body = 500, {}, bytearray()
    is_too_large = is_received = False

    async def receive() -> Message:
        nonlocal is_received
        if is_received:
            # Streamed answers watch for the end of their client, which never comes: without a
            # wait, they would watch for it without a pause.
            await asyncio.get_running_loop().create_future()
        is_received = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers, is_too_large
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
            return
        if len(body) + len(message.get("body", b"")) > ANSWER_BYTES_MAX:
            is_too_large = True
            body.clear()
        if not is_too_large:
            body.extend(message.get("body", b""))

    await app(dict(scope), receive, send)
    if is_too_large:
        text = (
            f"the answer has more than {ANSWER_BYTES_MAX} bytes: request less, or without a watch"
        )
        return _Answer(413, orjson.dumps(plain_body(text, "invalidInput")))
    return _Answer(status, _as_json(bytes(body), headers))


def _as_json(body: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    if headers.get(b"content-type", b"").startswith(b"application/json"):
        try:
            return orjson.dumps(orjson.loads(body)) if b"\n" in body or not body else body
        except orjson.JSONDecodeError:
            pass
    return orjson.dumps(body.decode(errors="replace"))
