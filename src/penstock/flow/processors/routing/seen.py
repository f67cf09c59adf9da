"""Which keys were seen lately: bounded in number and in age. Pure.

Owns the window and its text. Does not own what a key is made of (`duplicates`).

Invariants: keys are forgotten in the order in which they came; a key that is seen again keeps its
place; the text of a full window is under the bound of a processor's state.
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
    """Keys of `KEY_BYTES` bytes, with the time when each was seen first.

    Args:
        most: How many are remembered, up to `KEYS_MAX`.
        forget_after_ms: For how long; None: as long as there is room.
        text: Of `encode`; empty: nothing was seen.

    Raises:
        CorruptData: The text is none of `encode`.
    """

    def __init__(self, most: int, forget_after_ms: int | None, text: str = "") -> None:
        self._most = most
        self._forget_after_ms = forget_after_ms
        self._times = dict(_entries(text))

    def __len__(self) -> int:
        return len(self._times)

    def add(self, key: bytes, now_ms: int) -> bool:
        """Remember a key; False if it is remembered already."""
        self._forget(now_ms)
        if key in self._times:
            return False
        if len(self._times) >= self._most:
            del self._times[next(iter(self._times))]
        self._times[key] = now_ms
        return True

    def encode(self) -> str:
        """Return all of it as text."""
        data = b"".join(
            key + time_ms.to_bytes(_TIME_BYTES, "big") for key, time_ms in self._times.items()
        )
        return base64.b64encode(data).decode("ascii")

    def _forget(self, now_ms: int) -> None:
        # Also what is too many, if the bound was lowered since the text was written.
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
        raise CorruptData("the keys seen", 0, str(error)) from None
    if len(data) % _ENTRY_BYTES:
        raise CorruptData("the keys seen", len(data), "the last key is cut")
    return [
        (
            data[at : at + KEY_BYTES],
            int.from_bytes(data[at + KEY_BYTES : at + _ENTRY_BYTES], "big"),
        )
        for at in range(0, len(data), _ENTRY_BYTES)
    ]
