"""InvokeHTTP: sends a FlowFile as a request, and creates another one from the response.

Owns the routing of responses. Does not own HTTP (httpx), nor which hosts may be reached
(`core.guarded_http`).

    2xx            original, and the response to response
    429, 5xx       retry, penalized
    other          no.retry
    no response    failure, penalized

Invariants: attributes, errors and logs contain no passwords, tokens or URL queries. Bodies are
streamed, and the size of a response is limited.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import httpx

from penstock.core.errors import InvalidRequest
from penstock.core.guarded_http import GuardedTransport
from penstock.core.printable import quoted
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
from penstock.flow.processors.failure import WRITES_REASON, fail

STATUS: Final = "invokehttp.status.code"
_STATUS_TEXT: Final = "invokehttp.status.message"
_URL: Final = "invokehttp.request.url"
_HEADER: Final = "invokehttp.header."
_PIECE_BYTES: Final = 1 << 20
_HEADER_MAX_CHARS: Final = 8_192
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

# httpx logs the URL of each request, whose query may contain secrets.
logging.getLogger("httpx").setLevel(logging.WARNING)


class InvokeHTTP(Processor):
    """Sends a request for each FlowFile and creates a FlowFile from the response.

    POST, PUT and PATCH send the content. Without an input it sends one request per trigger: set a
    timer schedule then. After a crash between the response and the commit, the request is sent
    again. The operator's list of hosts (`--reachable-hosts`) applies, also to redirects; this host
    is not reachable unless it is listed. Proxies of the environment are not used.
    """

    tags = ("http", "rest", "client", "post", "get")
    reads_attributes: ClassVar[Mapping[str, str]] = {
        "mime.type": "Content-Type of the request, unless `content_type` is set."
    }
    writes_attributes: ClassVar[Mapping[str, str]] = {
        STATUS: "Status code of the response.",
        _STATUS_TEXT: "Reason phrase of the response.",
        _URL: "URL of the request, without password and query.",
        f"{_HEADER}*": "Headers of the response, in lower case; only on responses.",
        "mime.type": "Content-Type of the response; only on responses.",
        **WRITES_REASON,
    }

    original = Relationship("The request, if the response was 2xx.")
    response = Relationship("The response, if it was 2xx.")
    retry = Relationship("The response was 429 or 5xx, so a retry may succeed. Penalized.")
    no_retry = Relationship("Any other response: a retry would not succeed.", name="no.retry")
    failure = Relationship("No response, or one that could not be stored. Penalized.")

    url = ExpressionProperty(STR, about="URL of the request; http or https.")
    method = ExpressionProperty(
        choice("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"),
        default="GET",
        about="Method of the request.",
    )
    content_type = ExpressionProperty(
        STR,
        default="${mime.type}",
        about="Content-Type of the request; empty: application/octet-stream.",
    )
    username = Property(STR, default="", about="Username for basic authentication.")
    password = Property(STR, default="", sensitive=True, about="Password for basic authentication.")
    token = Property(STR, default="", sensitive=True, about="Bearer token to send.")
    connect_timeout = Property(PERIOD, default="5 sec", about="Timeout for connecting.")
    read_timeout = Property(
        PERIOD, default="15 sec", about="Timeout without a byte of the response."
    )
    follow_redirects = Property(BOOL, default=False, about="Whether 3xx redirects are followed.")
    verify_tls = Property(BOOL, default=True, about="Whether certificates are verified.")
    maximum_response = Property(SIZE, default="100 MB", about="Maximum size of a response body.")
    headers = DynamicExpressions(STR, about="Request header with this name and value.")

    _client: httpx.Client

    def check(self) -> Iterator[Problem]:
        """Yield combinations of properties that are not allowed."""
        if self.token and self.username:
            yield Problem("token", "cannot be combined with a username: set one of them")

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Create the connection pool."""
        self._client = httpx.Client(
            timeout=httpx.Timeout(self.read_timeout / 1000, connect=self.connect_timeout / 1000),
            follow_redirects=self.follow_redirects,
            trust_env=False,  # neither proxies nor passwords of ~/.netrc
            transport=GuardedTransport(httpx.create_ssl_context(verify=self.verify_tls)),
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
            UnicodeError,  # from a header, or from the host in a redirect
        ) as error:
            # Messages of httpx may contain the URL.
            text = str(error) if isinstance(error, InvalidRequest | ProcessError) else ""
            if not text:
                text = f"{shown or 'the URL'}: {_reason(error)}; correct the request"
            elif shown:
                text = f"{shown}: {text}"  # perhaps about a redirect
            why = text
            fail(context, session, flowfile, self.failure, why)

    def _request(self, flowfile: FlowFile, session: ProcessSession, now_ms: int) -> httpx.Request:
        method = self.method.of(flowfile, now_ms=now_ms)
        url = httpx.URL(self.url.of(flowfile, now_ms=now_ms))
        if url.scheme not in {"http", "https"} or not _host(url):
            raise InvalidRequest(
                f"{_without_secrets(url)!r} is not an HTTP URL: write http:// or https:// and a "
                "host"
            )
        headers = {name: value.of(flowfile, now_ms=now_ms) for name, value in self.headers.items()}
        for name, text in headers.items():
            if "\r" in text or "\n" in text:
                raise InvalidRequest(f"header {name!r} contains a line break: remove it")
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
            about_request = {
                STATUS: str(answer.status_code),
                _STATUS_TEXT: answer.reason_phrase,
                _URL: _without_secrets(request.url),
            }
            if answer.is_success:
                response = session.create(
                    flowfile, attributes={**about_request, **_headers_of(answer)}
                )
                try:
                    session.import_from(response, self._body(answer))
                except (httpx.HTTPError, InvalidRequest):  # narrow: others cause a rollback
                    session.remove(response)
                    raise
                session.transfer(response, self.response)
                session.transfer(session.put_attributes(flowfile, about_request), self.original)
                return
        finally:
            answer.close()
        flowfile = session.put_attributes(flowfile, about_request)
        why = f"{about_request[_URL]} answered {answer.status_code} {answer.reason_phrase}"
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
                    f"the response has more than {self.maximum_response:,} bytes: raise "
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
        if name != "set-cookie"  # would give others access to the login
    }
    if kind := answer.headers.get("content-type"):
        attributes[MIME_TYPE] = kind
    return attributes


def _host(url: httpx.URL) -> str:
    """Return the host of a URL.

    Raises:
        InvalidRequest: It is not the name of a host.
    """
    name = url.raw_host.decode("ascii")
    try:
        name.encode("idna")  # as the socket does
        host = url.host
    except UnicodeError as error:
        raise InvalidRequest(
            f"the URL's host {quoted(name)} is not a valid name: {error}; correct the URL"
        ) from None
    return host


def _without_secrets(url: httpx.URL) -> str:
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def _reason(error: Exception) -> str:
    cause = error.__cause__
    text = str(cause) if isinstance(cause, OSError) else ""
    return text or f"{type(error).__name__}"
