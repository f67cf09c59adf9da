"""Protocol limits and compression formats of a client connection.

`ProtocolLimits` has the bounds on what a client may send, with nsqd's defaults. The compression
formats of the server and the client are those of `penstock.core.compression`, which this module
exports under the names that the protocol uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.compression import Codec, Deflate, Snappy

__all__ = ["Codec", "Deflate", "Snappy"]


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """The limits of one server.

    Attributes:
        max_message_bytes: Largest message.
        max_body_bytes: Largest body of a command.
        max_ready_count: Largest RDY.
        max_requeue_ms: Longest delay of a requeued or deferred message.
        max_line_bytes: Longest command without its body.
    """

    max_message_bytes: int = 1_048_576
    max_body_bytes: int = 5_242_880
    max_ready_count: int = 2_500
    max_requeue_ms: int = 3_600_000
    max_line_bytes: int = 16_384
