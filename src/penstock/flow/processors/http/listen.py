"""ListenHTTP: creates a FlowFile from each HTTP request.

Owns the properties and the commit. Does not own the server (`receiving`).

Invariant: a request is answered with 200 only when its FlowFile survives a power loss. After any
other answer the sender may send it again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final, cast

from penstock.broker.http_server.host_policy import HostPolicy
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.loop_stalls import watched_loop
from penstock.core.looptasks import LoopThread
from penstock.flow.flowfile import MIME_TYPE
from penstock.flow.processor import (
    INT,
    PERIOD,
    REGEX,
    SIZE,
    STR,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    list_of,
)
from penstock.flow.processors.http.receiving import (
    ReceivedRequest,
    Receiver,
    ReceivingOptions,
    ReceivingServer,
)

if TYPE_CHECKING:
    from starlette.requests import Request

_START_S: Final = 10.0
_STOP_S: Final = 10.0
_BATCH: Final = 100
_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


def _check_path(path: str) -> None:
    if not path.startswith("/") or "?" in path or "#" in path:
        raise InvalidRequest(f"{path!r} is not a path of a URL: write one such as /events")


def _check_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise InvalidRequest(f"{port} is not a valid port: write 1 to 65535, or 0 for any free one")


def _check_count(count: int) -> None:
    if not 0 < count <= 100_000:
        raise InvalidRequest(f"{count:,} requests at once: use 1 to 100,000")


class ListenHTTP(Processor):
    """Serves HTTP on its own port: the body of each request becomes the content of a FlowFile.

    A request is answered when the FlowFile is durable. It is answered with 503, and discarded, if
    the outgoing connection is full, too many requests wait, or the flow stops; with 413 if the body
    is too large. Requests that arrive at about the same time share one commit.
    """

    input = InputRequirement.FORBIDDEN
    tags = ("http", "listen", "rest", "webhook", "source")
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "http.method": "Method of the request.",
        "http.path": "Path of the request, without the query.",
        "http.query": "Query string after the question mark.",
        "http.remote.host": "Address of the sender.",
        "http.header.*": "Headers that match `header_attributes`, in lower case.",
        "mime.type": "Header Content-Type, if it is sent.",
    }

    success = Relationship("One FlowFile for each request.")

    host = Property(STR, default="127.0.0.1", about="Address to listen on; 0.0.0.0: all addresses.")
    allowed_hosts = Property(
        list_of(STR),
        default="",
        about="Further hosts that requests may name in `Host`, besides loopback names, `host` "
        "and the address that the sender connected to; *.example.com: all its subdomains.",
        validator=HostPolicy,
    )
    port = Property(INT, required=True, about="Port; 0: any.", validator=_check_port)
    path = Property(STR, default="/", about="Only this path is served.", validator=_check_path)
    methods = Property(
        list_of(STR), default="POST,PUT", about="Accepted methods, from POST, PUT and PATCH."
    )
    token = Property(STR, default="", sensitive=True, about="Required bearer token.")
    maximum_size = Property(SIZE, default="100 MB", about="Maximum size of a body.")
    maximum_requests = Property(
        INT,
        default=200,
        about="Maximum number of requests being read or waiting.",
        validator=_check_count,
    )
    answer_timeout = Property(
        PERIOD, default="30 sec", about="How long a request may wait for the flow to take it."
    )
    answer_status = Property(
        INT, default=200, about="Status code for accepted requests, such as 202."
    )
    header_attributes = Property(
        REGEX,
        default="(?!)",
        about="Regular expression for names of headers, in lower case, that become attributes.",
    )
    certificate = Property(STR, default="", about="PEM file with certificates: enables TLS.")
    certificate_key = Property(
        STR, default="", about="PEM file with the private key, if it is separate."
    )

    _loop: LoopThread
    _receiver: Receiver
    _server: ReceivingServer
    bound_port: int = 0

    def check(self) -> Iterator[Problem]:
        """Yield errors of the properties."""
        if not self.methods or not set(self.methods) <= _METHODS:
            yield Problem("methods", "write one or more of POST, PUT and PATCH")
        if not 200 <= self.answer_status <= 299:
            yield Problem("answer_status", "is for accepted requests: write 200 to 299")

    def on_scheduled(self, context: ProcessContext) -> None:
        """Start to listen.

        Raises:
            Unavailable: The port is in use.
            InvalidRequest: The address or the certificate is invalid.
        """
        listener = _listen(self.host, self.port)
        self._receiver = Receiver(
            self._options(),
            self._attributes_of,
            lambda: context.is_available(self.success),
            context.wake,
        )
        self.bound_port = listener.getsockname()[1]
        name = f"{context.name} listens"
        self._loop = LoopThread(name, watched_loop(name))
        self._loop.start()
        started = False
        try:
            self._server = ReceivingServer(
                *(self._receiver, listener),
                HostPolicy.of_addresses([self.host], self.allowed_hosts),
                *(self.certificate, self.certificate_key),
            )
            self._loop.run(self._server.start(), _START_S)
            started = True
        except OSError as error:
            raise InvalidRequest(
                f"certificate {self.certificate!r}: {error.strerror or error}: correct it"
            ) from None
        finally:
            if not started:
                self._loop.stop()
                listener.close()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:  # noqa: ARG002 - of every processor
        """Take waiting requests."""
        requests: list[ReceivedRequest] = []
        committed = False
        try:
            while len(requests) < _BATCH and (request := self._receiver.take()) is not None:
                requests.append(request)
                flowfile = session.create(attributes=request.attributes)
                session.import_from(flowfile, cast("BinaryIO", request.body))
                session.transfer(flowfile, self.success)
            if requests:
                session.commit(durable=True)
            committed = True
        finally:
            for request in requests:
                request.answer(taken=committed)

    def on_unscheduled(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Answer all waiting requests, and close the port; running triggers still answer theirs.

        This is not done in `on_stopped`, which is not called if the processor is terminated.
        """
        self._receiver.close()
        self._server.begin_stop()

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: ARG002 - of every processor
        """Wait for the last answers."""
        self._receiver.close()
        try:
            self._loop.run(self._server.stop(), _STOP_S)
        finally:
            self._loop.stop()

    def _options(self) -> ReceivingOptions:
        return ReceivingOptions(
            path=self.path,
            methods=frozenset(self.methods),
            token=self.token,
            maximum_bytes=self.maximum_size,
            maximum_requests=self.maximum_requests,
            answer_timeout_s=self.answer_timeout / 1000,
            answer_status=self.answer_status,
        )

    def _attributes_of(self, request: Request) -> Mapping[str, str]:
        attributes = {
            "http.method": request.method,
            "http.path": request.scope["path"],
            "http.query": request.scope["query_string"].decode("latin-1"),
            "http.remote.host": request.client.host if request.client else "",
        }
        if kind := request.headers.get("content-type"):
            attributes[MIME_TYPE] = kind
        for name, value in request.headers.items():
            if self.header_attributes.fullmatch(name) and name != "authorization":
                attributes[f"http.header.{name}"] = value
        return attributes


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; use another port, or "
            "stop the process that uses it"
        ) from None
