"""Signs of a JSON text outside of its strings, found without a loop over bytes.

Used for limits that are checked before a text is parsed: the nesting and the number of keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_NOT_QUOTE: Final = bytes(set(range(256)) - set(b'"'))


def signs_outside(text: bytes, signs: bytes) -> npt.NDArray[np.uint8]:
    """Return which of these signs a text has outside of strings, in order."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    others = _NOT_QUOTE.translate(None, signs)
    found = np.frombuffer(text.translate(None, others), np.uint8)
    quotes = found == ord('"')
    is_outside = np.cumsum(quotes, dtype=np.uint8) & 1 == 0
    outside: npt.NDArray[np.uint8] = found[is_outside & ~quotes]
    return outside


def count_keys(text: bytes) -> int:
    """Return the number of keys of all objects."""
    return len(signs_outside(text, b":"))
