"""HTTP requests on an event loop, to the services that the broker and consumers query.

These are authorization servers and nsqlookupd. Owns the limits of a request: the total time and the
size of an answer. Redirects are not followed and no proxy is used, so requests go only to the
server in the URL. Each request has its own connection.

A general HTTP client is not used, because such libraries import and build their parts at the first
request. That request is on the event loop, so all other work on the loop would wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import encodings.idna  # noqa: F401 - otherwise imported on the loop at the first name lookup
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

import httptools

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.loop_tasks import run_on_thread
from penstock.core.tls_trust import TRUST

if TYPE_CHECKING:
    from collections.abc import Mapping

_OK: Final = 200
_HEAD_BYTES_MAX: Final = 65_536
_READ_BYTES: Final = 65_536
_WANTED: Final = "write http://HOST:PORT/PATH or https://…"
_SERVER: Final = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:[^/?#]*@)?(\[[^]/?#@]*\]|[^]\[/?#@:]+)(:\d+)?(?=[/?#]|\Z)",
    re.IGNORECASE,
)
# The second one, for an answer that switches protocols, is not a subclass of the first.
_PARSER_ERRORS: Final = (httptools.HttpParserError, httptools.HttpParserUpgrade)


def shown_server(url: str) -> str:
    """Return `scheme://host:port` of a URL, for logs and errors: other parts may be secret.

    Returns `…` for a text that is not such a URL, which may have a secret anywhere.
    """
    found = _SERVER.match(url)
    return "…" if found is None else "".join(part or "" for part in found.groups())


class AsyncHttpClient:
    """Sends requests on the running event loop; keeps no state of a loop.

    Args:
        connect_timeout_s: Longest wait for a connection.
        request_timeout_s: Longest wait for a whole answer.
        max_answer_bytes: Maximum size of an answer.
    """

    def __init__(
        self, connect_timeout_s: float, request_timeout_s: float, max_answer_bytes: int
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._max_answer_bytes = max_answer_bytes

    async def get(self, url: str, query: Mapping[str, str]) -> bytes:
        """Return the answer to a GET.

        Raises:
            InvalidRequest: The URL is invalid, or the answer is an error or too large.
            Unavailable: No answer arrived in time.
        """
        server = _Server.of(url)
        given = f"{server.query}&" if server.query else ""
        answer = await self._ask(server, "GET", f"{server.path}?{given}{urlencode(query)}", b"")
        return _good(server, answer)

    async def post(self, url: str, body: bytes) -> bytes:
        """Return the answer to a POST of JSON. Raises as `get`."""
        server = _Server.of(url)
        return _good(server, await self._ask(server, "POST", server.target, body))

    async def fetch(self, url: str) -> tuple[int, bytes]:
        """Return status and body of the answer to a GET, for any status.

        Raises:
            InvalidRequest: The URL is invalid, or the answer is too large.
            Unavailable: No answer arrived in time.
        """
        server = _Server.of(url)
        return await self._ask(server, "GET", server.target, b"")

    async def _ask(
        self, server: _Server, method: str, target: str, body: bytes
    ) -> tuple[int, bytes]:
        request = server.request(method, target, body)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                return await self._exchange(server, request)
        except TimeoutError as error:
            raise Unavailable(
                f"{server.place}: no complete answer within {self._request_timeout_s:g} s"
            ) from error
        # ValueError: an invalid host name. Only the type of the error is shown: its text may
        # contain the request.
        except (OSError, ValueError, *_PARSER_ERRORS) as error:
            raise Unavailable(f"{server.place}: {type(error).__name__}") from error

    async def _exchange(self, server: _Server, request: bytes) -> tuple[int, bytes]:
        tls = await run_on_thread(TRUST.context_of_others) if server.is_tls else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await asyncio.open_connection(server.host, server.port, ssl=tls)
        except TimeoutError as error:
            raise Unavailable(
                f"{server.place}: no connection within {self._connect_timeout_s:g} s"
            ) from error
        try:
            writer.write(request)
            await writer.drain()
            return await self._answer(server, reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, server: _Server, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        left = _HEAD_BYTES_MAX + 2 * self._max_answer_bytes  # includes the lengths of chunks
        while not answer.is_complete:
            data = await reader.read(_READ_BYTES)
            if not data:
                if answer.ends_with_connection:
                    break
                raise ConnectionResetError
            left -= len(data)
            parser.feed_data(data)
            if len(answer.body) > self._max_answer_bytes or left < 0:
                raise InvalidRequest(
                    f"{server.place}: an answer of more than {self._max_answer_bytes} bytes"
                )
        return parser.get_status_code(), bytes(answer.body)


def _good(server: _Server, answer: tuple[int, bytes]) -> bytes:
    status, body = answer
    if status != _OK:
        raise InvalidRequest(f"{server.place}: answered {status}")
    return body


class _Answer:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.is_complete = False
        self._has_head = False
        self._has_length = False

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the answer."""
        return self._has_head and not self._has_length

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = True


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    port: int
    is_tls: bool
    path: str
    query: str
    credentials: str | None

    @classmethod
    def of(cls, url: str) -> _Server:
        """Parse a URL.

        Raises:
            InvalidRequest: It is not an HTTP URL.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # its text may contain a password
            raise _invalid(url, _WANTED) from None
        if parts.scheme not in {"http", "https"} or not host:
            raise _invalid(url, _WANTED)
        if not url.isascii() or any(one.isspace() or not one.isprintable() for one in url):
            raise _invalid(url, "escape non-ASCII and blank characters")
        is_tls = parts.scheme == "https"
        return cls(
            *(host, port or (443 if is_tls else 80), is_tls, parts.path or "/", parts.query),
            _credentials(parts),
        )

    @property
    def place(self) -> str:
        """The server and path for errors, without query and credentials, which may be secret."""
        return f"http{'s' if self.is_tls else ''}://{self._name}:{self.port}{self.path}"

    @property
    def target(self) -> str:
        """The path and the query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def request(self, method: str, target: str, body: bytes) -> bytes:
        """Return the bytes of a request."""
        lines = [
            f"{method} {target} HTTP/1.1",
            f"host: {self._name}:{self.port}",
            "accept: application/vnd.nsq; version=1.0",
            "connection: close",
        ]
        if self.credentials is not None:
            lines.append(f"authorization: Basic {self.credentials}")
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + body

    @property
    def _name(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _invalid(url: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"invalid URL of {shown_server(url)}: {remedy}")


def _credentials(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return base64.b64encode(pair.encode()).decode()
