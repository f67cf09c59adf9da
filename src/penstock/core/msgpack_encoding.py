"""Msgpack of values of any size.

Owns the one call that encodes them. Does not own their layout.
"""

from __future__ import annotations

from typing import Final

import msgspec

_encode_into: Final = msgspec.msgpack.Encoder().encode_into


def pack(value: object) -> bytes:
    """Encode a value of any size as msgpack.

    `encode_into` raises `MemoryError` if memory runs out while the result grows. `Encoder.encode`
    of msgspec 0.22 would end the process with a segmentation fault.
    """
    packed = bytearray()
    _encode_into(value, packed)
    return bytes(packed)
