"""The id of a message on the wire: its partition and offset as 16 hex digits.

Owns the numbers: ``partition << 48 | offset``. So an id identifies the same message on every
channel and after every restart, and an array of ids is converted to offsets in one step.

Every 16 lower-case hex digits are an id, one int64 each; those that begin with 8 or more are
negative, and no message of Penstock has one. Other bytes are not an id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ID_BYTES: Final = 16
OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1

_UINT64: Final = (1 << 64) - 1
_ID: Final = re.compile(rb"[0-9a-f]{16}")


def _digits_of_octets() -> npt.NDArray[np.uint16]:
    """Return the two digits of each octet, in the order of memory."""
    return np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint16)


def _octets_of_digits() -> npt.NDArray[np.int16]:
    octets = np.full(1 << 16, -1, np.int16)
    octets[_DIGITS_OF] = np.arange(256, dtype=np.int16)
    return octets


_DIGITS_OF: Final = _digits_of_octets()
_OCTET_OF: Final = _octets_of_digits()  # by two digits; -1: not hex digits


def of(partition: int, offset: int) -> int:
    """Return the id of a message."""
    return partition << OFFSET_BITS | offset


def split(number: int) -> tuple[int, int]:
    """Return the stream partition and the offset of a message."""
    return number >> OFFSET_BITS, number & OFFSET_MASK


def text(number: int) -> str:
    """Return an id in its form on the wire."""
    return f"{number & _UINT64:016x}"


def parse(digits: bytes) -> int | None:
    """Parse an id; return None if the bytes are not one."""
    if not _ID.fullmatch(digits):
        return None
    number = int(digits, 16)
    return number - (_UINT64 + 1) if number >> 63 else number


def encode(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return ids in their form on the wire, 16 bytes per row."""
    octets = ids.astype(">i8").view(np.uint8)
    return _DIGITS_OF[octets].view(np.uint8).reshape(-1, ID_BYTES)


def decode(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the ids in rows of 16 bytes, up to the first row that is not an id."""
    octets = _OCTET_OF[np.ascontiguousarray(digits).view(np.uint16)]
    if octets.size and octets.min() < 0:
        octets = octets[: int((octets < 0).any(axis=1).argmax())]
    return octets.astype(np.uint8).view(">i8").ravel().astype(np.int64)
