"""Msgpack of values that may be large.

Owns the one call that encodes them. Does not own their layout.
"""

from __future__ import annotations

from typing import Final

import msgspec

_encode_into: Final = msgspec.msgpack.Encoder().encode_into


def pack(value: object) -> bytes:
    """Encode a value as msgpack.

    `Encoder.encode` of msgspec 0.22 ends the process with a segmentation fault if memory runs out
    while its result grows. `encode_into` raises `MemoryError`.
    """
    packed = bytearray()
    _encode_into(value, packed)
    return bytes(packed)
