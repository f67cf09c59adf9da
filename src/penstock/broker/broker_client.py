"""Synchronous client of the broker's HTTP API, for tasks and the command line.

`BrokerClient` owns the format of each request and response. `Requests` owns the kept-alive
connection and the retries; `core.http_errors` maps answers to errors. A client serves one thread
and is a context manager.

Invariants: a request without a body is repeated once if the kept-alive connection turns out to
be closed; a request with a body is never repeated, because a publish without a response may
have been accepted. With a ``producer`` and a ``sequence`` the caller may repeat a publish until
it is answered: the broker appends it once.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlencode, urlsplit

import orjson

from penstock.broker.message_bodies import encode_binary
from penstock.core.bearer import Bearer, authorization
from penstock.core.errors import (
    Dependency,
    InvalidRequest,
    NotReachable,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import ClientRemedies, detail_of, error_of_answer
from penstock.core.tls_trust import TRUST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

_ARGUMENTS: Final = ClientRemedies(
    "pass the argument token", "the argument base_url is the URL of the broker's HTTP port"
)


class Requests:
    """Sends requests to one broker.

    Args:
        base_url: URL such as ``http://127.0.0.1:4151``.
        token: Bearer token, if the broker requires one; a function returns that of each request.
        timeout_s: Limit for connecting and for each read of an answer.
        remedies: Remedies in errors, in the terms of the caller's user.
        tls: TLS context for `https://`; None: that of this process.
        role: Role of the server, which its certificate must not contradict; empty: any.

    Raises:
        InvalidRequest: The URL is not an HTTP URL.
    """

    def __init__(
        self,
        base_url: str,
        token: Bearer,
        timeout_s: float,
        remedies: ClientRemedies = _ARGUMENTS,
        tls: ssl.SSLContext | None = None,
        role: str = "",
    ) -> None:
        address = urlsplit(base_url)
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise InvalidRequest(f"invalid broker address {base_url!r}: write http://host:port")
        self._is_tls = address.scheme == "https"
        self._tls = tls
        self._role = role
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._remedies = remedies
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port or (443 if self._is_tls else 80), timeout=timeout_s
        )
        self._token = token

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
            connection.request(method, target, body, authorization(self._token))
        except (BrokenPipeError, ConnectionResetError):
            # The broker may have refused the body while it was being sent: read its answer.
            if body is None:
                raise
        response = connection.getresponse()
        answer = response.read()
        if response.status != HTTPStatus.OK:
            request = f"{method} {self._base_url}{target}"
            detail = detail_of(response.headers)
            error = error_of_answer(
                response.status,
                answer,
                request,
                detail,
                remedies=self._remedies,
                server=Dependency.BROKER,
            )
            if isinstance(error, Unauthenticated) and callable(self._token):
                # The next request has another token.
                raise Unavailable(str(error), dependency=Dependency.BROKER)
            raise error
        return response.headers, answer

    def _connect(self) -> socket.socket:
        """Return the kept-alive connection, or a new one if the broker has closed it."""
        connection = self._connection
        sock: socket.socket | None = connection.sock
        if sock is None or _has_ended(sock):
            connection.close()
            sock = socket.create_connection((connection.host, connection.port), self._timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._is_tls:
                sock = self._secured(sock)
            connection.sock = sock
        return sock

    def _secured(self, plain: socket.socket) -> ssl.SSLSocket:
        try:
            tls = TRUST.context(self._role) if self._tls is None else self._tls
            return tls.wrap_socket(plain, server_hostname=self._connection.host)
        except BaseException:
            plain.close()
            raise

    def _no_answer(self, error: Exception) -> NotReachable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotReachable(
                f"the broker at {self._base_url} {TRUST.remedy(error)}",
                dependency=Dependency.BROKER,
            )
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


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Offsets of one stream partition; `offset` answers a timestamp, if one was given."""

    partition: int
    earliest: int
    latest: int
    folder: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets of a topic's stream partitions.

    Attributes:
        topic: The topic.
        id: Distinguishes it from a deleted topic of its name; the offsets belong to this id.
        host: Name of the broker's host; if it is this host, the folders can be memory-mapped.
        folder: Folder of the topic on the broker's host.
        partitions: One entry for each stream partition, in order.
    """

    topic: str
    id: str
    host: str
    folder: str
    partitions: tuple[PartitionOffsets, ...]


@dataclass(frozen=True, slots=True)
class FetchedBlocks:
    """Raw blocks as stored on the broker's disk, checksums included."""

    raw: bytes
    next_offset: int


class BrokerClient:
    """Client of one broker. Not shared between threads; usable as a context manager.

    Args:
        base_url: URL such as ``http://127.0.0.1:4151``.
        token: Bearer token, if the broker requires one; a function returns that of each request.
        timeout_s: Limit for connecting and for each read of an answer (long polls add their wait).
        remedies: Remedies in errors, in the terms of the caller's user.
        tls: TLS context for `https://`; None: that of this process.
        role: Role of the server, which its certificate must not contradict; empty: any.

    Raises:
        InvalidRequest: The URL is not an HTTP URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: Bearer = None,
        timeout_s: float = 30.0,
        remedies: ClientRemedies = _ARGUMENTS,
        tls: ssl.SSLContext | None = None,
        role: str = "",
    ) -> None:
        self.base_url = base_url
        self._requests = Requests(base_url, token, timeout_s, remedies, tls, role)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def ping(self) -> None:
        """Return if the broker can accept messages.

        Raises:
            Unavailable: It cannot, or does not answer.
        """
        self._requests.ask("GET", "/ping")

    def publish(
        self,
        topic: str,
        messages: Sequence[bytes] | pa.BinaryArray,
        *,
        partition: int | None = None,
        key: str | None = None,
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> tuple[int, int] | None:
        """Publish a batch to one stream partition, completely or not at all.

        Args:
            topic: The topic; created if it does not exist.
            messages: One or more messages, none of them empty.
            partition: The stream partition; None: chosen by key, by producer or in rotation.
            key: Batches of one key go to one stream partition.
            durable: Return only when the batch survives a power loss.
            producer: A name and a sequence number that grows with each batch. With them the call
                may be repeated after any failure, and the batch is stored once. A producer has at
                most one publish to a stream partition under way.

        Returns:
            The stream partition, and the offset of the first message; None: unknown.

        Raises:
            InvalidRequest: The broker refuses the batch permanently.
            Unavailable: The disk is full, there is no answer, or the connection broke: the batch
                may or may not have been stored.
        """
        return self.publish_encoded(
            topic,
            encode_binary(messages),
            partition=partition,
            key=key,
            durable=durable,
            producer=producer,
        )

    def publish_encoded(
        self,
        topic: str,
        body: bytes,
        *,
        binary: bool = True,
        partition: int | None = None,
        key: str | None = None,
        durable: bool = False,
        producer: tuple[str, int] | None = None,
    ) -> tuple[int, int] | None:
        """Publish an already encoded body: binary, or one message per line.

        Args, Returns and Raises as in `publish`.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if binary:
            parameters["binary"] = "true"
        if partition is not None:
            parameters["partition"] = partition
        if key is not None:
            parameters["key"] = key
        if durable:
            parameters["durable"] = 1
        if producer is not None:
            parameters["producer"], parameters["sequence"] = producer
        headers, _ = self._requests.ask("POST", "/mpub", parameters, body)
        found = headers.get("x-penstock-partition"), headers.get("x-penstock-offset")
        if found[0] is None or found[1] is None:
            return None
        if not (found[0].isdecimal() and found[1].isdecimal()):
            return None
        return int(found[0]), int(found[1])

    def publish_numbered(self, topic: str, body: bytes, producer: tuple[str, int]) -> bool:
        """Publish an encoded binary batch of a producer durably.

        Args:
            topic: The topic; created if it does not exist.
            body: The batch.
            producer: A name and a sequence number, as in `publish`.

        Returns:
            Whether the broker had stored this batch before. Then it stored nothing now.

        Raises: As in `publish`.
        """
        parameters: dict[str, str | int] = {"topic": topic, "binary": "true", "durable": 1}
        parameters |= {"producer": producer[0], "sequence": producer[1]}
        headers, _ = self._requests.ask("POST", "/mpub", parameters, body)
        return headers.get("x-penstock-repeated") is not None

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        """Create a topic; no effect if it exists with as many stream partitions.

        Raises:
            Conflict: It exists with another number of stream partitions.
            InvalidRequest: The name or the number is invalid.
            Unavailable: The broker cannot create it now.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if partitions is not None:
            parameters["partitions"] = partitions
        self._requests.ask("POST", "/topic/create", parameters)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The broker cannot delete it now.
        """
        self._requests.ask("POST", "/topic/delete", {"topic": topic})

    def peek(
        self,
        topic: str,
        *,
        channel: str | None = None,
        partition: int = 0,
        offset: int | None = None,
        count: int | None = None,
        state: str | None = None,
        more: Mapping[str, str | int | None] | None = None,
    ) -> dict[str, object]:
        """Return the document of ``/peek``: messages, which are not consumed.

        Args:
            topic: The topic.
            channel: Include their states in this channel, and begin at its first unfinished
                message.
            partition: The stream partition.
            offset: First offset.
            count: Maximum number of messages.
            state: Only messages that are ``in_flight``, ``deferred`` or ``requeued``.
            more: The parameters ``timestamp``, ``contains``, ``json_path`` and ``equals``.

        Raises:
            InvalidRequest: The stream partition or the state does not exist.
            NotFound: The topic or channel does not exist, or the offset was deleted.
            Unavailable: The broker does not answer.
        """
        wanted: dict[str, str | int | None] = {"channel": channel, "offset": offset}
        wanted |= {"count": count, "state": state, **(more or {})}
        parameters: dict[str, str | int] = {"topic": topic, "partition": partition}
        parameters |= {name: value for name, value in wanted.items() if value is not None}
        document: dict[str, object] = orjson.loads(
            self._requests.ask("GET", "/peek", parameters)[1]
        )
        return document

    def offsets(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        durable: bool = False,
        timestamp: int | None = None,
        topic_id: str = "",
    ) -> TopicOffsets:
        """Return the offsets of the topic's stream partitions.

        Args:
            topic: The topic.
            after: With `wait_ms`: wait until a stream partition's latest exceeds its offset here.
            wait_ms: Maximum wait; afterwards the answer has the current offsets.
            durable: Wait for an fsync, so that `latest` is durable.
            timestamp: Also look up the first offset appended at or after this epoch time in ms.
            topic_id: Id of the topic that `after` belongs to: if another topic has the name now,
                the answer comes at once.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {"topic": topic}
        if topic_id:
            parameters["id"] = topic_id
        if after:
            parameters["after"] = ",".join(f"{number}:{at}" for number, at in after.items())
            parameters["wait_ms"] = wait_ms
        if durable:
            parameters["durable"] = 1
        if timestamp is not None:
            parameters["timestamp"] = timestamp
        _, body = self._requests.ask("GET", "/offsets", parameters, wait_s=wait_ms / 1000)
        document = orjson.loads(body)
        partitions = tuple(
            PartitionOffsets(
                entry["partition"],
                entry["earliest"],
                entry["latest"],
                entry["folder"],
                entry.get("offset"),
            )
            for entry in document["partitions"]
        )
        return TopicOffsets(
            document["topic"], document["id"], document["host"], document["folder"], partitions
        )

    def fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int = 1_048_576
    ) -> FetchedBlocks:
        """Return raw blocks, starting with the one that contains ``offset``; none at the end.

        Raises:
            NotFound: The topic does not exist, or the offset was deleted.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "max_bytes": max_bytes,
        }
        headers, body = self._requests.ask("GET", "/fetch", parameters)
        return FetchedBlocks(body, int(headers["X-Penstock-Next-Offset"]))

    def set_cursor(self, topic: str, partition: int, name: str, offset: int) -> None:
        """Set the cursor ``name`` to ``offset``, which retention then keeps.

        Raises:
            InvalidRequest: The offset was deleted.
            NotFound: The topic does not exist.
            Unavailable: The broker does not answer.
        """
        parameters: dict[str, str | int] = {
            "topic": topic,
            "partition": partition,
            "name": name,
            "offset": offset,
        }
        self._requests.ask("POST", "/cursor", parameters)

    def delete_cursor(self, topic: str, partition: int, name: str) -> None:
        """Delete a cursor; no effect if it does not exist. Raises as `set_cursor`."""
        self._requests.ask(
            "DELETE", "/cursor", {"topic": topic, "partition": partition, "name": name}
        )

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._requests.close()
