"""What a client asks for with IDENTIFY, and what it gets.

Owns the fields, their ranges and the answer, as NSQ has them, and one field of our own: with
``durable`` publishes are answered when they survive a power cut. Times are milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker.protocol.commands import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T", str, int, bool)

NSQ_VERSION: Final = "1.3.0"  # clients compare it, so it is the NSQ that is spoken, not ours
_HEARTBEAT_MS: Final = 30_000
_OUTPUT_BUFFER_BYTES: Final = 16_384
_OUTPUT_TIMEOUT_MS: Final = 250
_DEFLATE_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class NegotiationLimits:
    """What the server offers.

    Attributes:
        tls: It has a certificate.
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
class Negotiated:
    """What holds for a connection.

    Attributes:
        client_id: As the client calls itself; None until it does.
        heartbeat_ms: 0: no heartbeats.
        output_buffer_bytes: 1: each message is sent at once.
        output_timeout_ms: 0: sent when the buffer is full.
        sample_rate: Percent of the messages; 0: all.
        answer: The JSON answer; None: the client wants a plain OK, and no upgrade.
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


def negotiate(body: bytes, limits: NegotiationLimits) -> Negotiated:
    """Read the body of an IDENTIFY.

    Raises:
        Refused: It is no JSON object, or a value is not allowed.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
    if not isinstance(document, dict):
        raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    wants_features = _value(document, "feature_negotiation", False)  # noqa: FBT003
    snappy = limits.snappy and _value(document, "snappy", False)  # noqa: FBT003
    deflate = limits.deflate and _value(document, "deflate", False)  # noqa: FBT003
    if wants_features and snappy and deflate:
        raise Refused("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = _value(document, "deflate_level", 0)
    level = min(level if level > 0 else _DEFLATE_LEVEL, limits.max_deflate_level)
    buffer_bytes, output_timeout_ms = _output(document, limits)
    message_timeout_ms = _message_timeout(document, limits)
    sample_rate = _value(document, "sample_rate", 0)
    if not 0 <= sample_rate <= 99:
        raise Refused("E_BAD_BODY", f"IDENTIFY sample rate ({sample_rate}) is invalid")
    region = _value(document, "topology_region", "")
    zone = _value(document, "topology_zone", "")
    tls = limits.tls and _value(document, "tls_v1", False)  # noqa: FBT003
    durable = _value(document, "durable", False)  # noqa: FBT003
    answer = {
        "max_rdy_count": limits.max_ready_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": limits.max_message_timeout_ms,
        "msg_timeout": message_timeout_ms,
        "tls_v1": tls,
        "deflate": deflate,
        "deflate_level": level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": snappy,
        "sample_rate": sample_rate,
        "auth_required": limits.auth_required,
        "output_buffer_size": buffer_bytes,
        "output_buffer_timeout": output_timeout_ms,
        "topology_region": region,
        "topology_zone": zone,
        "durable": durable,
    }
    return Negotiated(
        client_id=_value(document, "client_id", ""),
        hostname=_value(document, "hostname", ""),
        user_agent=_value(document, "user_agent", ""),
        heartbeat_ms=_heartbeat(document, limits),
        output_buffer_bytes=buffer_bytes,
        output_timeout_ms=output_timeout_ms,
        message_timeout_ms=message_timeout_ms,
        sample_rate=sample_rate,
        tls=wants_features and tls,
        deflate=wants_features and deflate,
        deflate_level=level,
        snappy=wants_features and snappy,
        durable=durable,
        topology_region=region,
        topology_zone=zone,
        answer=json.dumps(answer, separators=(",", ":")).encode() if wants_features else None,
    )


def _heartbeat(document: Mapping[str, object], limits: NegotiationLimits) -> int:
    value = _value(document, "heartbeat_interval", 0)
    if value == -1:
        return 0
    if value == 0:
        return _HEARTBEAT_MS
    if 1_000 <= value <= limits.max_heartbeat_ms:
        return value
    raise Refused("E_BAD_BODY", f"IDENTIFY heartbeat interval ({value}) is invalid")


def _output(document: Mapping[str, object], limits: NegotiationLimits) -> tuple[int, int]:
    size = _value(document, "output_buffer_size", 0)
    timeout_ms = _value(document, "output_buffer_timeout", 0)
    if size not in {-1, 0} and not 64 <= size <= limits.max_output_buffer_bytes:
        raise Refused("E_BAD_BODY", f"IDENTIFY output buffer size ({size}) is invalid")
    least, most = limits.min_output_timeout_ms, limits.max_output_timeout_ms
    if timeout_ms not in {-1, 0} and not least <= timeout_ms <= most:
        raise Refused("E_BAD_BODY", f"IDENTIFY output buffer timeout ({timeout_ms}) is invalid")
    if size == -1:
        return 1, 0
    kept_ms = {-1: 0, 0: _OUTPUT_TIMEOUT_MS}.get(timeout_ms, timeout_ms)
    return size or _OUTPUT_BUFFER_BYTES, kept_ms


def _message_timeout(document: Mapping[str, object], limits: NegotiationLimits) -> int:
    value = _value(document, "msg_timeout", 0)
    if value == 0:
        return limits.message_timeout_ms
    if 1_000 <= value <= limits.max_message_timeout_ms:
        return value
    raise Refused("E_BAD_BODY", f"IDENTIFY message timeout ({value}) is invalid")


def _value(document: Mapping[str, object], name: str, default: T) -> T:
    """Return a field of the default's type; null and absence are the default."""
    value = document.get(name)
    if value is None:
        return default
    # In JSON a bool is no number, while in Python it is one.
    if type(value) is not type(default):
        raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    return value
