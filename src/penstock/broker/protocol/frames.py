"""Frames of NSQ's V2 protocol that the server sends.

    frame     int32 size of the rest, int32 type (0 response, 1 error, 2 message), data
    message   int64 time of publication in ns, uint16 attempts, 16 bytes id, body

All numbers are big-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker import message_id

if TYPE_CHECKING:
    import numpy.typing as npt

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

_HEAD: Final = struct.Struct(">ii")
_TYPE_BYTES: Final = 4
_FEW: Final = 16  # up to this number, joining in Python is faster
_MESSAGE_HEAD_BYTES: Final = 8 + 2 + message_id.ID_BYTES
_FRAME_HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("type", ">i4"),
        ("time", ">i8"),
        ("attempts", ">u2"),
        ("id", np.uint8, (message_id.ID_BYTES,)),
    ]
)


def frame(kind: int, data: bytes) -> bytes:
    """Return a frame."""
    return _HEAD.pack(len(data) + _TYPE_BYTES, kind) + data


def response(data: bytes) -> bytes:
    """Return a response."""
    return frame(RESPONSE, data)


def error(code: str, text: str = "") -> bytes:
    """Return an error: NSQ's code and a text."""
    return frame(ERROR, (f"{code} {text}" if text else code).encode())


OK: Final = response(b"OK")
HEARTBEAT: Final = response(b"_heartbeat_")
CLOSE_WAIT: Final = response(b"CLOSE_WAIT")


def message_frames(
    messages: pa.BinaryArray,
    ids: npt.NDArray[np.int64],
    attempts: npt.NDArray[np.uint16] | int,
    times_ns: npt.NDArray[np.int64] | int,
) -> memoryview:
    """Return a frame for each message in one buffer.

    Args:
        messages: The bodies, at least one.
        ids: Their ids.
        attempts: Number of deliveries of each, including this one; a scalar applies to all.
        times_ns: Time of publication of each, epoch ns; a scalar applies to all.
    """
    count = len(messages)
    starts = np.frombuffer(messages.buffers()[1], np.int32, count + 1, messages.offset * 4)
    heads = np.empty(count, _FRAME_HEAD)
    heads["size"] = starts[1:] - starts[:-1] + (_TYPE_BYTES + _MESSAGE_HEAD_BYTES)
    heads["type"] = MESSAGE
    heads["time"] = times_ns
    heads["attempts"] = attempts
    heads["id"] = message_id.encode(ids)
    if count <= _FEW:
        return _joined_one_by_one(heads, messages, starts)
    places = np.arange(count + 1, dtype=np.int32) * np.int32(_FRAME_HEAD.itemsize)
    # As an array, because creating a scalar from Python's b"" would import pandas.
    empty = _array(np.zeros(count + 1, np.int32), b"")
    joined = pc.binary_join_element_wise(_array(places, heads), messages, empty)
    ends = np.frombuffer(joined.buffers()[1], np.int32, count + 1, joined.offset * 4)
    return memoryview(joined.buffers()[2])[int(ends[0]) : int(ends[-1])]


def _joined_one_by_one(
    heads: npt.NDArray[np.void], messages: pa.BinaryArray, starts: npt.NDArray[np.int32]
) -> memoryview:
    raw = heads.tobytes()
    bodies = memoryview(messages.buffers()[2] or b"")
    places = starts.tolist()
    width = _FRAME_HEAD.itemsize
    parts: list[bytes | memoryview] = []
    for index in range(len(places) - 1):
        parts.append(raw[index * width : (index + 1) * width])
        parts.append(bodies[places[index] : places[index + 1]])
    return memoryview(b"".join(parts))


def _array(offsets: npt.NDArray[np.int32], data: bytes | npt.NDArray[np.void]) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
