"""InvokeHTTP: a FlowFile goes out as a request, and the answer comes back as another.

Owns which answer goes where. Does not own HTTP (httpx).

    2xx            original, and the answer to response
    429, 5xx       retry, penalized
    other          no.retry
    no answer      failure, penalized

Invariants: neither passwords, tokens nor queries of URLs are in attributes, errors or logs; bodies
are streamed, and the answer's has a bound.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import httpx

from penstock.core.errors import InvalidRequest
from penstock.flow.errors import ProcessError
from penstock.flow.flowfile import MIME_TYPE
from penstock.flow.processor import (
    BOOL,
    PERIOD,
    SIZE,
    STR,
    DynamicExpressions,
    ExpressionProperty,
    FlowFile,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.flow.processors.failing import WRITES_REASON, fail

STATUS: Final = "invokehttp.status.code"
_STATUS_TEXT: Final = "invokehttp.status.message"
_URL: Final = "invokehttp.request.url"
_HEADER: Final = "invokehttp.header."
_PIECE_BYTES: Final = 1 << 20
_HEADER_MAX_CHARS: Final = 8_192
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

# httpx logs the URL of each request, which may hold secrets in its query.
logging.getLogger("httpx").setLevel(logging.WARNING)


class InvokeHTTP(Processor):
    """Sends a request for each FlowFile and takes the answer.

    POST, PUT and PATCH send the content. Without an input it sends one request a trigger: give it a
    timer then. A crash between the answer and the commit sends the request again.
    """

    tags = ("http", "rest", "client", "post", "get")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "The Content-Type of what is sent, unless `content_type` says otherwise."
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        STATUS: "Status of the answer.",
        _STATUS_TEXT: "The words with it.",
        _URL: "The URL that was asked, without password and query.",
        f"{_HEADER}*": "Headers of the answer, in small letters; on responses only.",
        "mime.type": "Content-Type of the answer; on responses only.",
        **WRITES_REASON,
    }

    original = Relationship("What was sent, where the answer was 2xx.")
    response = Relationship("The answer, where it was 2xx.")
    retry = Relationship("Answered 429 or 5xx: may work later. Penalized.")
    no_retry = Relationship("Answered anything else: would not work later.", name="no.retry")
    failure = Relationship("No answer, or none that could be taken. Penalized.")

    url = ExpressionProperty(STR, about="Of the request; http or https.")
    method = ExpressionProperty(
        choice("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"),
        default="GET",
        about="Of the request.",
    )
    content_type = ExpressionProperty(
        STR, default="${mime.type}", about="Of what is sent; empty: application/octet-stream."
    )
    username = Property(STR, default="", about="For basic authentication.")
    password = Property(STR, default="", sensitive=True, about="For basic authentication.")
    token = Property(STR, default="", sensitive=True, about="Bearer token to send.")
    connect_timeout = Property(PERIOD, default="5 sec", about="To connect.")
    read_timeout = Property(PERIOD, default="15 sec", about="Without a byte of the answer.")
    follow_redirects = Property(BOOL, default=False, about="Whether to go where a 3xx points.")
    verify_tls = Property(BOOL, default=True, about="Whether certificates must be trusted.")
    maximum_response = Property(SIZE, default="100 MB", about="Of the body of an answer.")
    headers = DynamicExpressions(STR, about="A header of this name, with this value.")

    _client: httpx.Client

    def check(self) -> Iterator[Problem]:
        """Yield what does not go together."""
        if self.token and self.username:
            yield Problem("token", "cannot go with a username: give one of them")

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Make the pool of connections."""
        self._client = httpx.Client(
            timeout=httpx.Timeout(self.read_timeout / 1000, connect=self.connect_timeout / 1000),
            follow_redirects=self.follow_redirects,
            verify=self.verify_tls,
            auth=(self.username, self.password) if self.username else None,
        )

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Close the connections."""
        self._client.close()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Send one request."""
        flowfile = session.get()
        if flowfile is None:
            if context.has_input:
                return
            flowfile = session.create()
        shown = ""
        try:
            request = self._request(flowfile, session, context.clock.now_ms())
            shown = _without_secrets(request.url)
            self._exchange(request, flowfile, context, session)
        except httpx.TransportError as error:
            session.penalize(flowfile)
            why = f"{shown}: {_reason(error)}; try again"
            fail(context, session, flowfile, self.failure, why)
        except (
            httpx.InvalidURL,
            httpx.HTTPError,
            InvalidRequest,
            ProcessError,
            UnicodeEncodeError,  # of a header
        ) as error:
            # Messages of httpx may hold the URL.
            text = str(error) if isinstance(error, InvalidRequest | ProcessError) else ""
            why = text or f"{shown or 'the URL'}: {_reason(error)}; correct the request"
            fail(context, session, flowfile, self.failure, why)

    def _request(self, flowfile: FlowFile, session: ProcessSession, now_ms: int) -> httpx.Request:
        method = self.method.of(flowfile, now_ms=now_ms)
        url = httpx.URL(self.url.of(flowfile, now_ms=now_ms))
        if url.scheme not in {"http", "https"} or not url.host:
            raise InvalidRequest(
                f"{_without_secrets(url)!r} is no URL of HTTP: write http:// or https:// and a host"
            )
        headers = {name: value.of(flowfile, now_ms=now_ms) for name, value in self.headers.items()}
        for name, text in headers.items():
            if "\r" in text or "\n" in text:
                raise InvalidRequest(f"header {name!r} has a line break: take it out")
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if method not in _WITH_BODY:
            return self._client.build_request(method, url, headers=headers)
        kind = self.content_type.of(flowfile, now_ms=now_ms) or "application/octet-stream"
        headers.setdefault("Content-Type", kind)
        headers["Content-Length"] = str(flowfile.size)
        body = _content(session, flowfile)
        return self._client.build_request(method, url, headers=headers, content=body)

    def _exchange(
        self,
        request: httpx.Request,
        flowfile: FlowFile,
        context: ProcessContext,
        session: ProcessSession,
    ) -> None:
        answer = self._client.send(request, stream=True)
        try:
            told = {
                STATUS: str(answer.status_code),
                _STATUS_TEXT: answer.reason_phrase,
                _URL: _without_secrets(request.url),
            }
            if answer.is_success:
                response = session.create(flowfile, attributes={**told, **_headers_of(answer)})
                try:
                    session.import_from(response, self._body(answer))
                except (httpx.HTTPError, InvalidRequest):  # narrow: others roll the session back
                    session.remove(response)
                    raise
                session.transfer(response, self.response)
                session.transfer(session.put_attributes(flowfile, told), self.original)
                return
        finally:
            answer.close()
        flowfile = session.put_attributes(flowfile, told)
        why = f"{told[_URL]} answered {answer.status_code} {answer.reason_phrase}"
        if answer.status_code == 429 or answer.is_server_error:
            session.penalize(flowfile)
            fail(context, session, flowfile, self.retry, f"{why}; try again later")
        else:
            fail(context, session, flowfile, self.no_retry, f"{why}; correct the request")

    def _body(self, answer: httpx.Response) -> Iterator[bytes]:
        size = 0
        for piece in answer.iter_bytes(_PIECE_BYTES):
            size += len(piece)
            if size > self.maximum_response:
                raise InvalidRequest(
                    f"the answer has more than {self.maximum_response:,} bytes: raise "
                    "`maximum_response`"
                )
            yield piece


def _content(session: ProcessSession, flowfile: FlowFile) -> Iterator[bytes]:
    with session.read(flowfile) as content:
        while piece := content.read(_PIECE_BYTES):
            yield piece


def _headers_of(answer: httpx.Response) -> dict[str, str]:
    attributes = {
        f"{_HEADER}{name}": value[:_HEADER_MAX_CHARS]
        for name, value in answer.headers.items()
        if name != "set-cookie"  # what others could log in with
    }
    if kind := answer.headers.get("content-type"):
        attributes[MIME_TYPE] = kind
    return attributes


def _without_secrets(url: httpx.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def _reason(error: Exception) -> str:
    cause = error.__cause__
    text = str(cause) if isinstance(cause, OSError) else ""
    return text or f"{type(error).__name__}"
