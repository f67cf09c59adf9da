"""Keys that were seen recently: limited in number and in age. Does no I/O.

Owns the window and its text. Does not own the computation of keys (`duplicates`).

Invariants: keys are forgotten in the order in which they arrived. A key that is seen again keeps
its position. The text of a full window is below the maximum size of a processor's state.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from penstock.core.errors import CorruptData

KEY_BYTES: Final = 16
KEYS_MAX: Final = 30_000
_TIME_BYTES: Final = 6
_ENTRY_BYTES: Final = KEY_BYTES + _TIME_BYTES


class Seen:
    """Keys of `KEY_BYTES` bytes, with the time when each was first seen.

    Args:
        most: Maximum number of keys, up to `KEYS_MAX`.
        forget_after_ms: How long a key is remembered; None: as long as there is room.
        text: Result of `encode`; empty: no keys.

    Raises:
        CorruptData: The text is invalid.
    """

    def __init__(self, most: int, forget_after_ms: int | None, text: str = "") -> None:
        self._most = most
        self._forget_after_ms = forget_after_ms
        self._times = dict(_entries(text))

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: bytes, now_ms: int) -> bool:
        """Add a key; return False if it is already remembered."""
        self._forget(now_ms)
        if key in self._times:
            return False
        if len(self._times) >= self._most:
            del self._times[next(iter(self._times))]
        self._times[key] = now_ms
        return True

    def encode(self) -> str:
        """Return the window as text."""
        data = b"".join(
            key + time_ms.to_bytes(_TIME_BYTES, "big") for key, time_ms in self._times.items()
        )
        return base64.b64encode(data).decode("ascii")

    def _forget(self, now_ms: int) -> None:
        # Also drops keys that are too many, if the limit was lowered since the text was written.
        excess = len(self._times) - self._most
        for key in list(self._times) if excess > 0 else ():
            if len(self._times) <= self._most:
                break
            del self._times[key]
        if self._forget_after_ms is None:
            return
        while self._times:
            oldest = next(iter(self._times))
            if self._times[oldest] > now_ms - self._forget_after_ms:
                return
            del self._times[oldest]


def _entries(text: str) -> list[tuple[bytes, int]]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptData("the state of recent keys", 0, str(error)) from None
    if len(data) % _ENTRY_BYTES:
        raise CorruptData("the state of recent keys", len(data), "the last key is incomplete")
    return [
        (
            data[at : at + KEY_BYTES],
            int.from_bytes(data[at + KEY_BYTES : at + _ENTRY_BYTES], "big"),
        )
        for at in range(0, len(data), _ENTRY_BYTES)
    ]
