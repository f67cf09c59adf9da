"""Settings that a client requests with IDENTIFY, and the negotiated result.

Owns the fields, their ranges and the answer, as in NSQ, and one additional field: with
``durable``, publishes are answered once they survive a power loss. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from penstock.broker.protocol.commands import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", str, int, bool)

NSQ_VERSION: Final = "1.3.0"  # clients compare it, so it is the supported version of NSQ
_HEARTBEAT_MS: Final = 30_000
_OUTPUT_BUFFER_BYTES: Final = 16_384
_OUTPUT_TIMEOUT_MS: Final = 250
_DEFLATE_LEVEL: Final = 6
_NAME_CHARACTERS: Final = 1_024  # of the kept part of a client's name; NSQ keeps whole bodies


@dataclass(frozen=True, slots=True)
class NegotiationLimits:
    """Features and limits of the server.

    Attributes:
        tls: TLS is offered.
        auth_required: Clients must authenticate.
    """

    tls: bool = False
    deflate: bool = True
    snappy: bool = True
    auth_required: bool = False
    max_ready_count: int = 2_500
    message_timeout_ms: int = 60_000
    max_message_timeout_ms: int = 900_000
    max_heartbeat_ms: int = 60_000
    max_output_buffer_bytes: int = 65_536
    min_output_timeout_ms: int = 25
    max_output_timeout_ms: int = 30_000
    max_deflate_level: int = 6


@dataclass(frozen=True, slots=True)
class NegotiatedSettings:
    """Negotiated settings of a connection.

    Attributes:
        client_id: Name that the client sent; None before IDENTIFY.
        heartbeat_ms: Interval of heartbeats; 0: none.
        output_buffer_bytes: Size of the output buffer; 1: each message is sent at once.
        output_timeout_ms: Longest time in the buffer; 0: sent when the buffer is full.
        sample_rate: Percentage of the messages; 0: all.
        answer: The JSON answer; None: the client requests a plain OK, and no upgrade.
    """

    client_id: str | None = None
    hostname: str | None = None
    user_agent: str = ""
    heartbeat_ms: int = _HEARTBEAT_MS
    output_buffer_bytes: int = _OUTPUT_BUFFER_BYTES
    output_timeout_ms: int = _OUTPUT_TIMEOUT_MS
    message_timeout_ms: int = 60_000
    sample_rate: int = 0
    tls: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL
    snappy: bool = False
    durable: bool = False
    topology_region: str = ""
    topology_zone: str = ""
    answer: bytes | None = field(default=None, repr=False)


def negotiate(body: bytes, limits: NegotiationLimits) -> NegotiatedSettings:
    """Parse the body of an IDENTIFY.

    Raises:
        CommandRefused: It is not a JSON object, or a value is not allowed.
    """
    document = _document(body)
    wants_features = _flag(document, "feature_negotiation")
    snappy = _flag(document, "snappy") and limits.snappy
    deflate = _flag(document, "deflate") and limits.deflate
    tls = _flag(document, "tls_v1") and limits.tls
    durable = _flag(document, "durable")
    level = _number(document, "deflate_level")
    client_id, hostname = _text(document, "client_id"), _text(document, "hostname")
    user_agent = _text(document, "user_agent")
    region, zone = _text(document, "topology_region"), _text(document, "topology_zone")
    # In NSQ's order, because the first invalid field is reported.
    heartbeat_ms = _heartbeat(document, limits)
    buffer_bytes, output_timeout_ms = _output(document, limits)
    sample_rate = _number(document, "sample_rate")
    if not 0 <= sample_rate <= 99:
        raise CommandRefused("E_BAD_BODY", f"IDENTIFY sample rate ({sample_rate}) is invalid")
    message_timeout_ms = _message_timeout(document, limits)
    if wants_features and snappy and deflate:
        raise CommandRefused(
            "E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression"
        )
    if not (deflate and level > 0):
        level = _DEFLATE_LEVEL
    negotiated = NegotiatedSettings(
        client_id=client_id,
        hostname=hostname,
        user_agent=user_agent,
        heartbeat_ms=heartbeat_ms,
        output_buffer_bytes=buffer_bytes,
        output_timeout_ms=output_timeout_ms,
        message_timeout_ms=message_timeout_ms,
        sample_rate=sample_rate,
        tls=wants_features and tls,
        deflate=wants_features and deflate,
        deflate_level=min(level, limits.max_deflate_level),
        snappy=wants_features and snappy,
        durable=durable,
        topology_region=region,
        topology_zone=zone,
    )
    return replace(negotiated, answer=_answer(negotiated, limits)) if wants_features else negotiated


def _answer(negotiated: NegotiatedSettings, limits: NegotiationLimits) -> bytes:
    """Return the JSON answer, in NSQ's order."""
    return orjson.dumps(
        {
            "max_rdy_count": limits.max_ready_count,
            "version": NSQ_VERSION,
            "max_msg_timeout": limits.max_message_timeout_ms,
            "msg_timeout": negotiated.message_timeout_ms,
            "tls_v1": negotiated.tls,
            "deflate": negotiated.deflate,
            "deflate_level": negotiated.deflate_level,
            "max_deflate_level": limits.max_deflate_level,
            "snappy": negotiated.snappy,
            "sample_rate": negotiated.sample_rate,
            "auth_required": limits.auth_required,
            "output_buffer_size": negotiated.output_buffer_bytes,
            "output_buffer_timeout": negotiated.output_timeout_ms,
            # The topology of the server, which cannot be configured here.
            "topology_region": "",
            "topology_zone": "",
            "durable": negotiated.durable,
        }
    )


def _heartbeat(document: Mapping[str, object], limits: NegotiationLimits) -> int:
    value = _number(document, "heartbeat_interval")
    if value == -1:
        return 0
    if value == 0:
        return _HEARTBEAT_MS
    if 1_000 <= value <= limits.max_heartbeat_ms:
        return value
    raise CommandRefused("E_BAD_BODY", f"IDENTIFY heartbeat interval ({value}) is invalid")


def _output(document: Mapping[str, object], limits: NegotiationLimits) -> tuple[int, int]:
    timeout_ms = _number(document, "output_buffer_timeout")
    least, most = limits.min_output_timeout_ms, limits.max_output_timeout_ms
    if timeout_ms not in {-1, 0} and not least <= timeout_ms <= most:
        raise CommandRefused(
            "E_BAD_BODY", f"IDENTIFY output buffer timeout ({timeout_ms}) is invalid"
        )
    size = _number(document, "output_buffer_size")
    if size not in {-1, 0} and not 64 <= size <= limits.max_output_buffer_bytes:
        raise CommandRefused("E_BAD_BODY", f"IDENTIFY output buffer size ({size}) is invalid")
    if size == -1:
        return 1, 0
    kept_ms = {-1: 0, 0: _OUTPUT_TIMEOUT_MS}.get(timeout_ms, timeout_ms)
    return size or _OUTPUT_BUFFER_BYTES, kept_ms


def _message_timeout(document: Mapping[str, object], limits: NegotiationLimits) -> int:
    value = _number(document, "msg_timeout")
    if value == 0:
        return limits.message_timeout_ms
    if 1_000 <= value <= limits.max_message_timeout_ms:
        return value
    raise CommandRefused("E_BAD_BODY", f"IDENTIFY msg timeout ({value}) is invalid")


def _document(body: bytes) -> Mapping[str, object]:
    try:
        # As in Go: invalid UTF-8 in a client's name is replaced, not refused.
        document = orjson.loads(body.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        raise _undecodable() from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise _undecodable()
    return document


def _flag(document: Mapping[str, object], name: str) -> bool:
    return _value(document, name, bool, default=False)


def _number(document: Mapping[str, object], name: str) -> int:
    return _value(document, name, int, default=0)


def _text(document: Mapping[str, object], name: str) -> str:
    return _value(document, name, str, default="")[:_NAME_CHARACTERS]


def _value(document: Mapping[str, object], name: str, kind: type[T], *, default: T) -> T:
    """Return a field; null and a missing field are the default."""
    value = document.get(name)
    if value is None:
        return default
    # In Python, bool is a subclass of int.
    if type(value) is not kind:
        raise _undecodable()
    return value


def _undecodable() -> CommandRefused:
    return CommandRefused("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
