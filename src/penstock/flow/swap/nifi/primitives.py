"""Encodings of values in NiFi's swap files, all big endian.

    UTF    uint16 length in bytes, then Java's modified UTF-8: NUL is two bytes, a character outside
           the basic plane is two surrogates of three bytes each
    LUTF   int32 length in bytes, then UTF-8

Owns the position in the bytes. Does not own their meaning (`swap_schema`, `schema_swap_file`,
`legacy`).

Invariant: nothing is read beyond the end, and nothing is allocated for missing bytes: a length is
compared with the remaining bytes before it is used.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.core.errors import CorruptData

UTF_BYTES_MAX: Final = 65_535

_SHORT: Final = struct.Struct(">H")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


class TruncatedInput(Exception):
    """The bytes end before the value does.

    Args:
        position: Start of the incomplete value.
    """

    def __init__(self, position: int) -> None:
        super().__init__(f"the file ends within the value that begins at byte {position}")
        self.position = position


class ByteReader:
    """Reader with a position in the bytes of one file.

    Args:
        name: Name of the file, for errors.
        data: Its bytes.

    Attributes:
        position: Position of the next read.
    """

    __slots__ = ("data", "name", "position", "size")

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.size = len(data)
        self.position = 0

    def corrupt(self, reason: str, position: int | None = None) -> CorruptData:
        """Return the error for invalid data at the current or another position."""
        return CorruptData(self.name, self.position if position is None else position, reason)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read numbers of fixed size.

        Raises:
            Cut: The bytes are incomplete.
        """
        start, end = self.position, self.position + layout.size
        if end > self.size:
            raise TruncatedInput(start)
        self.position = end
        return layout.unpack_from(self.data, start)

    def boolean(self) -> bool:
        """Read one byte; return whether it is not zero.

        Raises:
            Cut: The byte is missing.
        """
        if self.position >= self.size:
            raise TruncatedInput(self.position)
        self.position += 1
        return self.data[self.position - 1] != 0

    def int32(self) -> int:
        """Read four bytes.

        Raises:
            Cut: The bytes are incomplete.
        """
        return self.unpack(_INT)[0]

    def int64(self) -> int:
        """Read eight bytes.

        Raises:
            Cut: The bytes are incomplete.
        """
        return self.unpack(_LONG)[0]

    def count(self, least_bytes: int) -> int:
        """Read a count of items.

        Args:
            least_bytes: Length of the smallest item, at least 1.

        Raises:
            CorruptData: The number is negative.
            Cut: The items do not fit into the bytes; the position is that of the number.
        """
        start = self.position
        count = self.int32()
        if count < 0:
            raise self.corrupt(f"invalid count of {count}", start)
        if count * least_bytes > self.size - self.position:
            raise TruncatedInput(start)
        return count

    def utf(self) -> str:
        """Read a UTF.

        Raises:
            CorruptData: It is not modified UTF-8.
            Cut: The bytes are incomplete.
        """
        start = self.position
        (length,) = self.unpack(_SHORT)
        return self._modified(start, length)

    def lutf(self) -> str:
        """Read a LUTF; invalid UTF-8 becomes U+FFFD, as in Java.

        Raises:
            CorruptData: The length is negative.
            Cut: The bytes are incomplete.
        """
        start = self.position
        length = self.int32()
        if length < 0:
            raise self.corrupt(f"invalid text length of {length} bytes", start)
        return self._take(start, length).decode("utf-8", "replace")

    def lstr(self) -> str:
        """Read a text of the layout before 1.0: short, or FF FF and a long length.

        Raises:
            CorruptData: The length is negative.
            Cut: The bytes are incomplete.
        """
        start = self.position
        (length,) = self.unpack(_SHORT)
        if length == UTF_BYTES_MAX:
            return self.lutf()
        return self._take(start, length).decode("utf-8", "replace")

    def skip(self, length: int) -> None:
        """Skip bytes.

        Raises:
            CorruptData: The length is negative.
            Cut: The bytes are incomplete.
        """
        if length < 0:
            raise self.corrupt(f"{length} bytes")
        self._take(self.position, length)

    def _take(self, start: int, length: int) -> bytes:
        end = self.position + length
        if end > self.size:
            raise TruncatedInput(start)
        found = self.data[self.position : end]
        self.position = end
        return found

    def _modified(self, start: int, length: int) -> str:
        found = self._take(start, length)
        try:
            return found.decode("utf-8")  # differs only for NUL and surrogates
        except UnicodeDecodeError:
            pass
        try:
            text = found.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self.corrupt("text that is not modified UTF-8", start) from error
        # Only Java accepts an unpaired surrogate in text.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_utf(text: str) -> bytes:
    """Write a UTF; text of more than 65,535 bytes is cut at a character, as in NiFi."""
    body = _modified_utf8(text)
    if len(body) > UTF_BYTES_MAX:
        end = UTF_BYTES_MAX
        while body[end] & 0xC0 == 0x80:
            end -= 1
        body = body[:end]
    return _SHORT.pack(len(body)) + body


def encode_lutf(text: str) -> bytes:
    """Write a LUTF."""
    body = text.encode("utf-8", "replace")
    return _INT.pack(len(body)) + body


def _modified_utf8(text: str) -> bytes:
    plain = text.encode("utf-8", "surrogatepass")
    if b"\0" not in plain and max(plain, default=0) < 0xF0:
        return plain
    units = text.encode("utf-16-le", "surrogatepass")
    halves = (
        units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)
    )
    return "".join(halves).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
