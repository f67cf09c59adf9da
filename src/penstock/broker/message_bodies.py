"""Bodies of publishes: to Arrow binary arrays and back, without a Python loop over the messages.

Owns NSQ's two batch formats: text (one message per line, empty lines dropped) and binary
(``int32 count``, then ``int32 size, bytes`` for each message, big-endian). Does not own where the
messages go.

The sizes of a binary batch form a chain: each determines the position of the next. Following it
takes a Python step per message, so the chain is guessed first: the upper bytes of a size are zero,
and payloads rarely contain zeros. If the number of guessed positions is as announced and each size
leads exactly to the next position, the guess is the chain; otherwise the chain is followed.

Invariant: ``parse_binary(encode_binary(x)) == x`` for any messages, and a body that is not exactly
one batch raises without side effects.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import InvalidRequest, counted
from penstock.storage.queue.blocks import as_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_INT32_MAX: Final = 2**31 - 1
_INT32: Final = struct.Struct(">i")
_NEWLINE: Final = 0x0A
_PREFIX_BYTES: Final = 4
_FEW: Final = 16


class MalformedBody(InvalidRequest):
    """A body is not a batch; ``code`` is NSQ's name of the error.

    Args:
        code: ``BAD_BODY``, ``BAD_MESSAGE`` or ``MSG_TOO_BIG``.
        message: The problem, with its place in the body.
        nsq_text: Text of NSQ's TCP protocol for the error.
    """

    def __init__(self, code: str, message: str, nsq_text: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.nsq_text = nsq_text or message


def parse_text(body: bytes, max_message_bytes: int) -> pa.BinaryArray:
    """Return the lines of a body; empty lines are dropped.

    Args:
        body: Newline-separated messages; the last newline may be missing.
        max_message_bytes: Largest message.

    Raises:
        MalformedBody: A line is too long (``MSG_TOO_BIG``).
    """
    if not body:
        return as_messages(())
    if not body.endswith(b"\n"):
        body += b"\n"
    newlines = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    offsets = np.empty(len(newlines) + 1, np.int32)
    offsets[0] = 0
    offsets[1:] = newlines
    offsets[1:] += 1
    sizes = np.diff(offsets)
    longest = int(sizes.max()) - 1
    if longest > max_message_bytes:
        raise MalformedBody(
            "MSG_TOO_BIG",
            f"line {int(sizes.argmax()) + 1} has {longest} bytes, the limit is {max_message_bytes}:"
            " send smaller messages or raise the broker's max_message_bytes",
        )
    lines = _array(offsets, body)
    if int(sizes.min()) == 1:
        kept = pa.py_buffer(np.packbits(sizes > 1, bitorder="little"))
        lines = lines.filter(pa.Array.from_buffers(pa.bool_(), len(sizes), [None, kept]))
    return pc.binary_slice(lines, 0, -1)


def parse_binary(body: bytes, max_message_bytes: int, max_body_bytes: int) -> pa.BinaryArray:
    """Return the messages of a binary batch.

    Args:
        body: The whole body.
        max_message_bytes: Largest message.
        max_body_bytes: Largest body, which limits the count.

    Raises:
        MalformedBody: ``BAD_BODY`` if the count is impossible, or bytes follow the last message;
            ``BAD_MESSAGE`` if a message is empty, too large or truncated.
    """
    messages, used = parse_binary_prefix(body, max_message_bytes, max_body_bytes)
    if used != len(body):
        raise MalformedBody(
            "BAD_BODY",
            f"the body has {counted(len(body) - used, 'byte')} after the last announced message",
        )
    return messages


def parse_binary_prefix(
    body: bytes, max_message_bytes: int, max_body_bytes: int
) -> tuple[pa.BinaryArray, int]:
    """Return the messages of the binary batch at the beginning of a body, and its size.

    Raises:
        MalformedBody: As in `parse_binary`, except for bytes that follow.
    """
    if len(body) < _PREFIX_BYTES:
        text = f"the body has {counted(len(body), 'byte')}, too few for a count"
        raise MalformedBody("BAD_BODY", text, "failed to read message count")
    count: int = _INT32.unpack_from(body)[0]
    # A message takes at least five bytes, so an impossible count is detected early.
    shortest = _PREFIX_BYTES + 1
    if not 0 < count <= (max_body_bytes - _PREFIX_BYTES) // shortest:
        text = f"the body announces {count} messages"
        raise MalformedBody("BAD_BODY", text, f"invalid message count {count}")
    if (equal := _equal_sizes(body, count, max_message_bytes)) is not None:
        return equal
    offsets = None
    if count * shortest + _PREFIX_BYTES <= len(body):
        offsets = _guess_chain(body, count, max_message_bytes)
    if offsets is None:
        offsets = _follow_chain(body, count, max_message_bytes)
    messages = pc.binary_slice(_array(offsets, body), _PREFIX_BYTES, _INT32_MAX)
    return messages, int(offsets[-1])


def parse_few(body: bytes, max_message_bytes: int) -> tuple[list[bytes], int] | None:
    """Do the same as `parse_binary_prefix`, for few messages.

    A few steps in Python take less time than the overhead of Arrow and numpy.

    Returns:
        None if there are many messages, or the body is invalid.
    """
    if len(body) < _PREFIX_BYTES:
        return None
    count: int = _INT32.unpack_from(body)[0]
    if not 0 < count <= _FEW:
        return None
    messages: list[bytes] = []
    position = _PREFIX_BYTES
    for _ in range(count):
        start = position + _PREFIX_BYTES
        size: int = _INT32.unpack_from(body, position)[0] if start <= len(body) else 0
        position = start + size
        if not 0 < size <= max_message_bytes or position > len(body):
            return None
        messages.append(body[start:position])
    return messages, position


def encode_binary(messages: Sequence[bytes] | pa.BinaryArray) -> bytes:
    """Return the binary batch of the messages."""
    array = as_messages(messages)
    count = len(array)
    if not count:
        return _INT32.pack(0)
    starts = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
    sizes = np.diff(starts).astype(">i4")
    places = np.arange(0, _PREFIX_BYTES * (count + 1), _PREFIX_BYTES, dtype=np.int32)
    prefixes = _array(places, sizes)
    # As an array, because a scalar made from Python's b"" would import pandas, see `as_messages`.
    nothing = _array(np.zeros(count + 1, np.int32), b"")
    joined = pc.binary_join_element_wise(prefixes, array, nothing)
    return b"".join((_INT32.pack(count), joined.buffers()[2]))


def _array(offsets: npt.NDArray[np.int32], data: bytes | npt.NDArray[np.generic]) -> pa.BinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _equal_sizes(
    body: bytes, count: int, max_message_bytes: int
) -> tuple[pa.BinaryArray, int] | None:
    """Return the messages and their size in bytes if all are as long as the first."""
    if len(body) < 2 * _PREFIX_BYTES:
        return None
    size: int = _INT32.unpack_from(body, _PREFIX_BYTES)[0]
    step = _PREFIX_BYTES + size
    used = _PREFIX_BYTES + count * step
    if not 0 < size <= max_message_bytes or used > len(body):
        return None
    last: int = _INT32.unpack_from(body, used - step)[0]
    if last != size:  # usually sufficient to detect different lengths
        return None
    sizes = np.ndarray((count,), ">i4", body, _PREFIX_BYTES, (step,))
    if not (sizes == size).all():
        return None
    octets = np.frombuffer(body, np.uint8, count * step, _PREFIX_BYTES).reshape(count, step)
    payloads = np.ascontiguousarray(octets[:, _PREFIX_BYTES:])
    return _array(np.arange(0, (count + 1) * size, size, dtype=np.int32), payloads), used


def _guess_chain(body: bytes, count: int, max_message_bytes: int) -> npt.NDArray[np.int32] | None:
    """Return the verified positions of all sizes and the end, or None if the guess is wrong."""
    octets = np.frombuffer(body, np.uint8)
    zeros = np.flatnonzero(octets[_PREFIX_BYTES:] == 0)
    if len(zeros) < count:
        return None
    # A size below 65,536 begins a run of two or more zeros, and payloads should not.
    adjacent = np.diff(zeros) == 1
    starts = np.empty(len(zeros), np.bool_)
    starts[:-1] = adjacent
    starts[-1] = False
    starts[1:] &= ~adjacent
    places = zeros[starts]
    if len(places) != count or places[-1] + 2 * _PREFIX_BYTES > len(body):
        return None
    places += _PREFIX_BYTES
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1] = places
    offsets[-1] = len(body)
    lower = octets[places + 2].astype(np.int32) << 8 | octets[places + 3]
    sound = (
        offsets[0] == _PREFIX_BYTES
        and np.array_equal(np.diff(offsets), lower + _PREFIX_BYTES)
        and lower.min() > 0
        and lower.max() <= max_message_bytes
    )
    return offsets if sound else None


def _follow_chain(body: bytes, count: int, max_message_bytes: int) -> npt.NDArray[np.int32]:
    """Follow the sizes one by one: for payloads with zeros, and to locate an error."""
    # A count that exceeds the body must not allocate memory.
    offsets = np.empty(min(count, len(body)) + 1, np.int32)
    unpack = _INT32.unpack_from
    end = len(body)
    position = _PREFIX_BYTES
    for index in range(count):
        if position + _PREFIX_BYTES > end:
            raise MalformedBody(
                "BAD_MESSAGE",
                f"the body announces {count} messages, but the size of message {index} is cut off",
                f"failed to read message({index}) body size",
            )
        size: int = unpack(body, position)[0]
        if not 0 < size <= max_message_bytes:
            raise MalformedBody(
                "BAD_MESSAGE",
                f"message {index} at byte {position} has size {size}, the limits are 1 and "
                f"{max_message_bytes}",
                f"invalid message({index}) body size {size}"
                if size <= 0
                else f"message too big {size} > {max_message_bytes}",
            )
        offsets[index] = position
        position += _PREFIX_BYTES + size
        if position > end:
            raise MalformedBody(
                "BAD_MESSAGE",
                f"message {index} is truncated by the body's end",
                "failed to read message body",
            )
    offsets[count] = position
    return offsets


def arrow_mask(wanted: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Return a mask for `filter` from a boolean array.

    `pa.array` would import pandas, if it is installed, at its first call, which blocks the event
    loop for half a second.
    """
    bits = np.packbits(wanted, bitorder="little")
    return pa.BooleanArray.from_buffers(pa.bool_(), len(wanted), [None, pa.py_buffer(bits)])
