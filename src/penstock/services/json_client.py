"""Small JSON client over `http.client`: between Penstock's processes, and for the commands.

Owns one request at a time and its time limit; `http_errors` translates answers into errors. It does
not retry; callers know what may be repeated. A larger client would cost each process memory and
each command start-up time.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from typing import Final
from urllib.parse import urlencode, urlsplit

from penstock.core.bearer import Bearer, authorization
from penstock.core.errors import (
    Dependency,
    InvalidRequest,
    NotReachable,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import (
    ClientRemedies,
    NotServed,
    detail_of,
    error_of_answer,
    is_web_page,
    not_penstock,
)
from penstock.core.printable import quoted
from penstock.core.tls_trust import TRUST

JSON_TYPE = "application/json"
TRUNCATED_HEADER = "X-Penstock-Truncated"
COMMAND_LINE: Final = ClientRemedies(
    "give --token-file, or set PENSTOCK_TOKEN",
    "--url names the API, and --broker-url the broker's HTTP port",
)
"""Remedies for users of the command line, by which processes get their options, too."""
_CHUNK_BYTES = 64 << 10
# Of an answer that is kept in memory, so that no server can exhaust it; the payloads of a million
# segments are smaller.
_ANSWER_BYTES_MAX: Final = 1 << 30
_CONTEXT = 20  # characters around an invalid one


class AnswerTooLarge(InvalidRequest):
    """An answer exceeds the size of those that are kept in memory: request less at once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: its headers, with case-insensitive names, and its bytes."""

    headers: Message
    content: bytes


@dataclass(frozen=True, slots=True)
class ChunkedAnswer:
    """An answer of any status, whose body is read as it is needed.

    Attributes:
        request: Method and URL of the request, for errors.
        status: HTTP status.
        headers: Headers, with case-insensitive names.
        chunks: The body.
    """

    request: str
    status: int
    headers: http.client.HTTPMessage
    chunks: Iterator[bytes]

    @property
    def truncated(self) -> bool:
        """Return whether the row limit of a query cut the answer."""
        return TRUNCATED_HEADER in self.headers

    def read_all(
        self, remedy: str = "request less at once, or check that Penstock listens there"
    ) -> bytes:
        """Return the body, which is kept in memory.

        Args:
            remedy: Remedy of an answer that is too large, for the error.

        Raises:
            AnswerTooLarge: It has more than 1 GiB.
        """
        parts: list[bytes] = []
        size = 0
        for chunk in self.chunks:
            size += len(chunk)
            if size > _ANSWER_BYTES_MAX:
                raise AnswerTooLarge(
                    f"{self.request} was answered with more than {_ANSWER_BYTES_MAX:,} bytes, the"
                    f" limit of an answer that is kept in memory: {remedy}"
                )
            parts.append(chunk)
        return b"".join(parts)


class JsonClient:
    """Client of one base URL; thread-safe, because each request has its own connection.

    Args:
        base_url: Base URL, such as `http://127.0.0.1:8888`.
        token: Bearer token, if the server requires one; a function returns that of each request.
        timeout_s: Limit for connecting and for each read.
        dependency: Dependency to report as failed if nothing answers, or another server does.
        tls: TLS context; None: that of this process.
        role: Role of the server, which its certificate must not contradict; empty: any.
        remedies: The remedies in its errors.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: Bearer = None,
        timeout_s: float = 30.0,
        dependency: Dependency | None = None,
        tls: ssl.SSLContext | None = None,
        role: str = "",
        remedies: ClientRemedies = COMMAND_LINE,
    ) -> None:
        parts = urlsplit(base_url if "//" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"invalid server address {base_url!r}; write http://HOST:PORT")
        self.base_url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._dependency = dependency
        self._tls = tls
        self._role = role
        self._remedies = remedies

    def get(self, path: str, query: Mapping[str, object] | None = None) -> object:
        """Return the JSON of a GET. Raises as `request`."""
        return self.request("GET", path, query=query)

    def post(
        self,
        path: str,
        body: object = None,
        query: Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        """Send JSON and return the JSON of the answer. Raises as `request`."""
        content = json_body(body) if body is not None else b""
        return self.request("POST", path, content, query=query, headers=headers)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        """Send a request and return the JSON of the answer, or its text if it is not JSON.

        Raises:
            NotReachable: Nothing answers there, or the answer is truncated, invalid or a web page.
            AnswerTooLarge: The answer has more than 1 GiB.
            PenstockError: The error class in the server's answer.
        """
        answered, content = self._success(method, path, body, query, headers)
        if not answered.get("Content-Type", "").startswith(JSON_TYPE):
            if is_web_page(content):
                raise NotReachable(
                    f"{method} {self.base_url}{path} was answered with a web page:"
                    f" {not_penstock(self._remedies)}"
                )
            return content.decode(errors="replace")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise NotReachable(
                f"{method} {self.base_url}{path} was answered with invalid JSON: check that"
                " Penstock listens there"
            ) from None

    def fetch(self, path: str, query: Mapping[str, object] | None = None) -> Answer:
        """Return the answer to a GET unparsed. Raises as `request`."""
        return Answer(*self._success("GET", path, b"", query, None))

    def _success(
        self,
        method: str,
        path: str,
        body: bytes,
        query: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Return headers and body of an answer. Raises as `request`."""
        status, answered, content = self._exchange(method, path, body, query, JSON_TYPE, headers)
        if status >= 300:
            request = f"{method} {self.base_url}{path}"
            error = error_of_answer(
                status, content, request, detail_of(answered), remedies=self._remedies
            )
            if isinstance(error, Unauthenticated) and callable(self._token):
                # The next request has another token.
                raise Unavailable(str(error), dependency=self._dependency) from None
            if isinstance(error, NotServed) and self._dependency is not None:
                # The address was discovered, and another server has the port of one that ended.
                text = f"another server listens at {self.base_url} now: try again"
                raise NotReachable(text, dependency=self._dependency) from None
            raise error
        return answered, content

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, object] | None = None,
        content_type: str = JSON_TYPE,
    ) -> tuple[int, str, bytes]:
        """Send a request and return status, content type and body unchanged.

        Raises:
            NotReachable: Nothing answers there, or the answer is truncated.
            AnswerTooLarge: The answer has more than 1 GiB.
        """
        status, headers, content = self._exchange(method, path, body, query, content_type)
        return status, headers.get("Content-Type", ""), content

    @contextmanager
    def stream(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> Iterator[ChunkedAnswer]:
        """Send a request and provide the answer, which is read in chunks, for a block.

        Raises:
            NotReachable: Nothing answers there; or, within the block, the answer is truncated.
        """
        with self._opened(method, path, body, None, JSON_TYPE, headers) as answer:
            yield answer

    def _chunks(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        with self._translated():
            while chunk := answer.read(_CHUNK_BYTES):
                yield chunk
            if answer.length:  # announced, and not sent
                raise http.client.IncompleteRead(b"", answer.length)

    def relay(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Message, bytes]:
        """Forward a request with some of its headers; return status, headers and body unchanged.

        Errors about the answer do not have the address, which the sender of the request cannot use.

        Raises:
            NotReachable: Nothing answers there, or the answer is truncated.
            AnswerTooLarge: The answer has more than 1 GiB.
        """
        with self._opened(method, path, body, None, JSON_TYPE, headers) as answer:
            forwarded = replace(answer, request=f"{method} {path}")
            return answer.status, answer.headers, forwarded.read_all("request less at once")

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes,
        query: Mapping[str, object] | None,
        content_type: str,
        more: Mapping[str, str] | None = None,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        with self._opened(method, path, body, query, content_type, more) as answer:
            return answer.status, answer.headers, answer.read_all()

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        body: bytes,
        query: Mapping[str, object] | None,
        content_type: str,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[ChunkedAnswer]:
        kept = {name: value for name, value in (query or {}).items() if value is not None}
        target = self._path + path + (f"?{urlencode(kept)}" if kept else "")
        headers = dict(more or {})
        if body:
            headers["Content-Type"] = content_type
        headers |= authorization(self._token)
        connection = self._connection()
        try:
            with self._translated():
                connection.request(method, target, body or None, headers)
                answer = connection.getresponse()
            yield ChunkedAnswer(
                *(f"{method} {self.base_url}{path}", answer.status, answer.headers),
                self._chunks(answer),
            )
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._netloc, timeout=self._timeout_s)
        tls = TRUST.context(self._role) if self._tls is None else self._tls
        return http.client.HTTPSConnection(self._netloc, timeout=self._timeout_s, context=tls)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            text = f"{self.base_url} {_no_answer(error)}"
            raise NotReachable(text, dependency=self._dependency) from None


def json_body(value: object) -> bytes:
    """Return the JSON of a request.

    Raises:
        InvalidRequest: A text has a lone surrogate, as Python creates for each byte of the command
            line that is not UTF-8.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = quoted(error.object[max(0, error.start - _CONTEXT) : error.start + _CONTEXT])
        raise InvalidRequest(f"{text} has bytes that are not UTF-8: write it in UTF-8") from None


def _no_answer(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, http.client.BadStatusLine) and not isinstance(
        error, http.client.RemoteDisconnected
    ):
        return "does not answer in HTTP: check that it is not the port of NSQ's TCP protocol"
    if isinstance(error, ssl.SSLCertVerificationError):
        return TRUST.remedy(error)
    if isinstance(error, ssl.SSLError):
        return f"does not answer under TLS ({error.reason or error}); check the address"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"does not answer ({reason}); check that Penstock is running there (penstock up)"
