"""Brackets and colons of a JSON text outside of its strings, found without a loop over bytes.

Used for limits that are checked before a text is parsed: the nesting and the number of keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_BLOCK_BYTES: Final = 256
_PIECE_BYTES: Final = 64 << 10
_OPENING_BIT: Final = np.uint8(ord("[") ^ ord("{"))  # the two differ only by it
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


def max_depth(text: bytes) -> int:
    """Return the maximum number of arrays and objects that are open at once."""
    signs = signs_outside(text, b"[]{}")
    opens = (signs == ord("[")) | (signs == ord("{"))
    return int(np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0))


def count_openings_at_most(
    text: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.integer],
    ends: npt.NDArray[np.integer],
) -> npt.NDArray[np.int64]:
    """Return an upper bound of the arrays and objects in each part [starts[i], ends[i]) of a text.

    It takes less than a tenth of the time of parsing. In return, it also counts brackets in
    strings, and all brackets of a block that only partly belongs to [starts[i], ends[i]).
    """
    opens = np.zeros(_PIECE_BYTES, np.bool_)
    found: list[npt.NDArray[np.int64]] = []
    # In pieces that fit into the CPU cache.
    for start in range(0, len(text), _PIECE_BYTES):
        piece = text[start : start + _PIECE_BYTES]
        np.equal(piece | _OPENING_BIT, ord("{"), out=opens[: len(piece)])
        opens[len(piece) :] = False
        # Each byte of a sum of words is the sum of bytes at most 255, so it does not overflow.
        words = opens.view(np.uint64).reshape(-1, _BLOCK_BYTES // 8).sum(axis=1)
        found.append(words.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int64))
    before = np.concatenate([[0], np.cumsum(np.concatenate(found))])
    bound: npt.NDArray[np.int64] = before[-(-ends // _BLOCK_BYTES)] - before[starts // _BLOCK_BYTES]
    return bound
