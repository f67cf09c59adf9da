"""Requests to one broker over one kept-alive connection.

Owns the connection, when a request is repeated, and the conversion of answers to errors. Does not
own the requests (`client`). Serves one thread.

Invariant: a request without a body is repeated once if a kept-alive connection was closed by the
broker; a request with a body is never repeated.
"""

from __future__ import annotations

import http.client
import select
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import orjson

from penstock.core.errors import (
    Conflict,
    Dependency,
    InvalidRequest,
    NotFound,
    NotReachable,
    PenstockError,
    Unavailable,
)
from penstock.core.printable import from_header

if TYPE_CHECKING:
    from collections.abc import Mapping


class Requests:
    """Sends requests to one broker.

    Args:
        base_url: URL such as ``http://127.0.0.1:4151``.
        token: Bearer token, if the broker requires one.
        timeout_s: Limit for connecting and for each read of an answer.

    Raises:
        InvalidRequest: The URL is not an HTTP URL.
    """

    def __init__(self, base_url: str, token: str | None, timeout_s: float) -> None:
        address = urlsplit(base_url)
        if address.scheme != "http" or not address.hostname:
            raise InvalidRequest(f"invalid broker address {base_url!r}: write http://host:port")
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port or 80, timeout=timeout_s
        )
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self._connection.close()

    def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        wait_s: float = 0,
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Return the headers and the body of an answer.

        Args:
            method: HTTP method.
            path: Path without the query.
            parameters: The query.
            body: Body of a publish; a request with one is never repeated.
            wait_s: Additional time allowed for the answer.

        Raises:
            InvalidRequest: The broker refuses the request permanently.
            NotFound: The named thing does not exist.
            Conflict: The current state forbids the request.
            Unavailable: The broker cannot serve the request now, or does not answer.
        """
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        # A publish may have been stored though its answer was lost. Other requests are idempotent.
        repeats = 1 if body is None and self._connection.sock is not None else 0
        while True:
            try:
                return self._exchange(method, target, body, wait_s)
            except PenstockError:  # the answer was read completely
                raise
            except BaseException as error:
                self.close()  # otherwise the next request would read the rest of this answer
                if not isinstance(error, OSError | http.client.HTTPException):
                    raise
                if not repeats or isinstance(error, TimeoutError):
                    raise self._no_answer(error) from error
                repeats -= 1

    def _exchange(
        self, method: str, target: str, body: bytes | None, wait_s: float
    ) -> tuple[http.client.HTTPMessage, bytes]:
        connection = self._connection
        self._connect().settimeout(self._timeout_s + wait_s)
        try:
            connection.request(method, target, body, self._headers)
        except (BrokenPipeError, ConnectionResetError):
            # The broker may have refused the body while it was being sent: read its answer.
            if body is None:
                raise
        response = connection.getresponse()
        answer = response.read()
        if response.status != HTTPStatus.OK:
            raise _as_error(response, answer, f"{method} {self._base_url}{target}")
        return response.headers, answer

    def _connect(self) -> socket.socket:
        """Return the kept-alive connection, or a new one if the broker has closed it."""
        connection = self._connection
        sock: socket.socket | None = connection.sock
        if sock is None or _has_ended(sock):
            connection.close()
            sock = socket.create_connection((connection.host, connection.port), self._timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock = sock
        return sock

    def _no_answer(self, error: Exception) -> NotReachable:
        what = str(error) or type(error).__name__
        return NotReachable(
            f"the broker at {self._base_url} does not answer ({what}): check that it runs there",
            dependency=Dependency.BROKER,
        )


def _has_ended(idle: socket.socket) -> bool:
    """Return whether the other side closed an idle connection, which makes it readable."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


def _as_error(
    response: http.client.HTTPResponse, answer: bytes, request: str
) -> InvalidRequest | NotFound | Conflict | Unavailable:
    """Convert an answer to an error."""
    try:
        document = orjson.loads(answer)
    except orjson.JSONDecodeError:
        document = None
    code = document.get("message") if isinstance(document, dict) else None
    what = code if isinstance(code, str) else answer.decode(errors="replace")[:200]
    detail = from_header(response.headers.get("X-Penstock-Detail", ""))
    # The broker's detail contains the remedy; without it, name the request.
    if not detail:
        message = f"{request}: {response.status} {what}"
    elif response.status == HTTPStatus.UNAUTHORIZED:
        message = (
            "the broker requires a token, and this token is missing or wrong: use --token-file, or"
            " set PENSTOCK_TOKEN"
        )
    else:
        # All temporary failures have the same code 503; the detail distinguishes them.
        message = detail if what == "EXITING" else f"{what}: {detail}"
    if response.status == HTTPStatus.NOT_FOUND:
        return NotFound(message)
    if response.status == HTTPStatus.CONFLICT:
        return Conflict(message)
    if response.status >= 500 or response.status == HTTPStatus.REQUEST_TIMEOUT:
        return Unavailable(message, dependency=Dependency.BROKER)
    return InvalidRequest(message)
