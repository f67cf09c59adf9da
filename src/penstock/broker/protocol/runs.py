"""Runs of the same command, parsed in one step: a fast client sends little else.

Owns two short cuts: FINs, 21 bytes each, and PUBs to one topic. A short cut takes only complete and
valid commands; the first other command ends the run, and is parsed, or refused, as a line. A run
also ends after `RUN_MAX` commands, so that one client does not delay others for long.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import message_id

if TYPE_CHECKING:
    import numpy.typing as npt

RUN_MAX: Final = 2_560  # slightly more than NSQ's largest RDY

_FIN: Final = re.compile(rb"FIN ([0-9a-f]{16})\n")
_FIN_ROW: Final = np.dtype(
    [("head", "<u4"), ("id", np.uint8, (message_id.ID_BYTES,)), ("end", np.uint8)]
)
_FIN_HEAD: Final = int.from_bytes(b"FIN ", "little")
_NEWLINE: Final = 0x0A
# A short run is cheaper one by one. A longer one is parsed in windows that grow with it, so that
# the work is proportional to the run, regardless of the amount of other input after it.
_FEW: Final = 16
_GROWTH: Final = 8
_SIZE: Final = struct.Struct(">i")


def take_fins(data: bytes, start: int) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return the ids of the FINs at `start`, or None, and their end."""
    first: list[int] = []
    end = start
    while len(first) < _FEW and (match := _FIN.match(data, end)):
        first.append(int(match[1], 16))
        end = match.end()
    if not first:
        return None, start
    ids = np.array(first, np.uint64).view(np.int64)
    if len(first) < _FEW:
        return ids, end
    parts = [ids]
    window = _FEW
    left = RUN_MAX - _FEW
    while len(parts[-1]) == window and left:
        window = min(window * _GROWTH, left)
        parts.append(_window_of_fins(data, end, window))
        left -= len(parts[-1])
        end += len(parts[-1]) * _FIN_ROW.itemsize
    return np.concatenate(parts), end


def _window_of_fins(data: bytes, start: int, most: int) -> npt.NDArray[np.int64]:
    count = min(most, (len(data) - start) // _FIN_ROW.itemsize)
    rows = np.frombuffer(data, _FIN_ROW, count, start) if count else np.empty(0, _FIN_ROW)
    sound = (rows["head"] == _FIN_HEAD) & (rows["end"] == _NEWLINE)
    if not sound.all():
        rows = rows[: int(sound.argmin())]
    return message_id.decode(rows["id"])


def take_pubs(data: bytes, start: int, line: bytes, max_bytes: int) -> tuple[list[bytes], int]:
    """Return the messages of the PUBs at `start`, and their end.

    Args:
        data: The input.
        start: Where to begin.
        line: The line of the PUBs, with its line feed.
        max_bytes: Largest message.
    """
    head = len(line) + _SIZE.size
    length = len(data)
    unpack = _SIZE.unpack_from
    messages: list[bytes] = []
    while len(messages) < RUN_MAX and start + head <= length and data.startswith(line, start):
        size: int = unpack(data, start + head - _SIZE.size)[0]
        end = start + head + size
        if not 0 < size <= max_bytes or end > length:
            break
        messages.append(data[start + head : end])
        start = end
    return messages, start
