"""Handshake before the first command: IDENTIFY, TLS, compression, authentication. Pure.

Owns the order: IDENTIFY and its answer, then TLS, then compression, each confirmed by an ``OK``
that is already encrypted or compressed, then AUTH. Does not own how bytes are encrypted.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.errors import error_of
from penstock.client.v2 import v2_protocol
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.client.options import Compression, ConnectionOptions
    from penstock.client.v2.v2_protocol import Frame

USER_AGENT: Final = "penstock/0.1.0"
_MAX_READY_COUNT: Final = 2_500


@dataclass(frozen=True, slots=True)
class Features:
    """Negotiated settings of a connection.

    Attributes:
        version: NSQ version of the server.
        max_ready_count: Largest RDY.
        message_timeout_ms: An unanswered message is redelivered after this time.
        deflate_level: Compression level that the server chose.
    """

    version: str = ""
    max_ready_count: int = _MAX_READY_COUNT
    message_timeout_ms: int = 60_000
    tls: bool = False
    compression: Compression = "none"
    deflate_level: int = 6
    auth_required: bool = False
    durable: bool = False


@dataclass(frozen=True, slots=True)
class StartTls:
    """Encrypt everything that follows."""


@dataclass(frozen=True, slots=True)
class StartCompression:
    """Compress everything that follows, in both directions."""


@dataclass(frozen=True, slots=True)
class SendBytes:
    """Send these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    """Commands may follow."""


Step = StartTls | StartCompression | SendBytes | HandshakeDone


class Handshake:
    """Handshake of one connection.

    Args:
        options: The requested settings.
        address: Address of the server, for errors.
    """

    def __init__(self, options: ConnectionOptions, address: str) -> None:
        self.features = Features()
        self._options = options
        self._address = address
        self._steps: deque[Step] | None = None

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        options = self._options
        hostname = options.hostname or socket.gethostname()
        wanted: dict[str, object] = {
            "client_id": options.client_id or hostname,
            "hostname": hostname,
            "user_agent": USER_AGENT,
            "feature_negotiation": True,
            "heartbeat_interval": options.heartbeat_ms,
            "tls_v1": options.tls is not None,
            "deflate": options.compression == "deflate",
            "snappy": options.compression == "snappy",
            "deflate_level": options.deflate_level,
            "sample_rate": options.sample_rate,
            "msg_timeout": options.message_timeout_ms,
        }
        if options.durable:
            wanted["durable"] = True
        return v2_protocol.MAGIC + v2_protocol.identify(json.dumps(wanted).encode())

    def take(self, frame: Frame) -> Step:
        """Process an answer; return the next step.

        Raises:
            InvalidRequest: The server refuses, or lacks a required feature.
            Unavailable: The server refuses for now.
        """
        if isinstance(frame, v2_protocol.ErrorFrame):
            raise error_of(frame.data, self._address)
        if not isinstance(frame, v2_protocol.ResponseFrame):
            raise InvalidRequest(f"{self._address} sent a message before the end of the handshake")
        if self._steps is None:
            self.features = self._read_answer(frame.data)
            self._steps = self._plan()
        return self._steps.popleft()

    def _plan(self) -> deque[Step]:
        features = self.features
        steps: deque[Step] = deque()
        if features.tls:
            steps.append(StartTls())
        if features.compression != "none":
            steps.append(StartCompression())
        if features.auth_required:
            given = self._options.auth_secret
            secret = given() if callable(given) else given
            if not secret:
                raise InvalidRequest(f"{self._address} requires authentication: set auth_secret")
            steps.append(SendBytes(v2_protocol.authenticate(secret)))
        steps.append(HandshakeDone())
        return steps

    def _read_answer(self, data: bytes) -> Features:
        document: object = {}
        if data != v2_protocol.OK:
            try:
                document = json.loads(data)
            except (ValueError, RecursionError):
                document = None
        if not isinstance(document, Mapping):
            raise InvalidRequest(f"{self._address} answers IDENTIFY with {data[:80]!r}, not JSON")
        features = self._features(document)
        if self._options.tls is not None and not features.tls:
            raise InvalidRequest(
                f"{self._address} does not offer TLS: give it a certificate, or omit `tls`"
            )
        if self._options.durable and not features.durable:
            raise InvalidRequest(
                f"{self._address} cannot answer publishes only once they are durable, which only "
                "Penstock supports: omit `durable`"
            )
        return features

    def _features(self, document: Mapping[str, object]) -> Features:
        compression: Compression = "none"
        if document.get("deflate") is True:
            compression = "deflate"
        elif document.get("snappy") is True:
            compression = "snappy"
        return Features(
            version=str(document.get("version", "")),
            max_ready_count=_number(document, "max_rdy_count", _MAX_READY_COUNT),
            message_timeout_ms=_number(document, "msg_timeout", 60_000),
            tls=document.get("tls_v1") is True,
            compression=compression,
            deflate_level=_number(document, "deflate_level", self._options.deflate_level),
            auth_required=document.get("auth_required") is True,
            durable=document.get("durable") is True,
        )


def _number(document: Mapping[str, object], name: str, default: int) -> int:
    value = document.get(name)
    return value if type(value) is int and value > 0 else default
