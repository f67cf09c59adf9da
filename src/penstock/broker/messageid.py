"""The id of a message on the wire: where it stands, as 16 hex digits.

Owns the numbers: ``partition << 48 | offset``. So an id names the same message on every channel and
after every restart, and an array of ids is turned into offsets in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy.typing as npt

ID_BYTES: Final = 16
OFFSET_BITS: Final = 48
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1

_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHIFTS: Final = np.arange(60, -4, -4, dtype=np.int64)
_BAD: Final = 255


def _values() -> npt.NDArray[np.uint8]:
    values = np.full(256, _BAD, np.uint8)
    values[_DIGITS] = np.arange(16, dtype=np.uint8)
    return values


_VALUES: Final = _values()


def of(partition: int, offset: int) -> int:
    """Return the id of a message."""
    return partition << OFFSET_BITS | offset


def split(number: int) -> tuple[int, int]:
    """Return the stream partition and the offset of a message."""
    return number >> OFFSET_BITS, number & OFFSET_MASK


def text(number: int) -> str:
    """Return an id as it stands on the wire."""
    return f"{number:016x}"


def encode(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return ids as they stand on the wire, 16 bytes a row."""
    digits: npt.NDArray[np.uint8] = _DIGITS[(ids[:, None] >> _SHIFTS) & 15]
    return digits


def decode(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return ids from rows of 16 bytes; what is no id of ours becomes -1, which no message has."""
    values = _VALUES[digits].astype(np.int64)
    # Ids are int64, so the first digit is below 8; of a foreign one, nothing is known.
    bad = (_VALUES[digits] == _BAD).any(axis=1) | (values[:, 0] >= 8)
    ids: npt.NDArray[np.int64] = (values << _SHIFTS).sum(axis=1)
    ids[bad] = -1
    return ids


def parse(raw: bytes) -> int:
    """Return one id from its 16 bytes, -1 when it is none of ours.

    Raises:
        InvalidRequest: It has not 16 bytes.
    """
    digits = np.frombuffer(raw, np.uint8)
    if len(digits) != ID_BYTES:
        raise InvalidRequest(f"a message id has {ID_BYTES} bytes, not {len(digits)}")
    return int(decode(digits[None, :])[0])
