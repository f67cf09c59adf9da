"""Records in one data file of an nsqd: intact ones, and the damage between them. Pure.

    record   int32 length of the rest, int64 time in ns, uint16 attempts, 16 hex digits, body

All numbers are big-endian. There is no checksum, so a record counts as intact if its length is
legal, its time and id are plausible, and its end is a position where a record, damage or the end of
the file can begin.

After a record that is followed by no other, the scanner searches the next position that looks like
a record. A record whose length extends beyond that position, or ends so shortly before it that no
record fits between, has a wrong length. It is returned up to that position and marked doubtful: its
body may be intact, or followed by other bytes. The same applies to a record whose length is not
possible.

Invariants: records come in the order of the file; each byte from the start on belongs to exactly
one record or damage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker import message_id

if TYPE_CHECKING:
    import numpy.typing as npt

HEAD_BYTES: Final = 4 + 8 + 2 + message_id.ID_BYTES
LENGTH_MIN: Final = HEAD_BYTES - 4

_LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = np.dtype(
    [
        ("length", ">i4"),
        ("time", ">i8"),
        ("attempts", ">u2"),
        ("id", np.uint8, (message_id.ID_BYTES,)),
    ]
)
_TIME_AT: Final = 4
_ID_AT: Final = HEAD_BYTES - message_id.ID_BYTES
# Plausible times of publication: 2010 to 2100.
_TIME_MIN_NS: Final = 1_262_304_000 * 10**9
_TIME_MAX_NS: Final = 4_102_444_800 * 10**9
_TIME_TOP_MIN: Final = _TIME_MIN_NS >> 56
_TIME_TOP_MAX: Final = _TIME_MAX_NS >> 56
_SEARCH_BYTES: Final = 1 << 20
_INT32_MAX: Final = 2**31 - 1


def _hex_digits() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    table[np.frombuffer(b"0123456789abcdef", np.uint8)] = 1
    return table


_IS_HEX: Final = _hex_digits()


@dataclass(frozen=True, slots=True)
class NsqdRecords:
    """Consecutive records.

    Attributes:
        position: Position of the first in the file.
        times_ns: Times of publication, epoch ns.
        attempts: Number of deliveries of each before it was written.
        ids: Their ids as numbers, see `message_id`.
        bodies: The payloads.
        doubt: Problem with the length of a single record; empty: the records are intact.
    """

    position: int
    times_ns: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16]
    ids: npt.NDArray[np.int64]
    bodies: pa.BinaryArray
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def doubtful(self) -> bool:
        """Whether the length was damaged."""
        return bool(self.doubt)


@dataclass(frozen=True, slots=True)
class NsqdDamage:
    """A part of a file that contains no record.

    Attributes:
        start: Its position in the file.
        end: Its end.
        reason: Problem at its start.
        lost_estimate: Number of records of average size that would fill it.
    """

    start: int
    end: int
    reason: str
    lost_estimate: int


class RecordScanner:
    """Scans one file.

    Args:
        data: Its bytes.
        max_length: The largest length of a record.
        batch_bytes: Approximate size of the returned batches of records.
        border: Known end of a record, before any other data; None if it is unknown.
    """

    def __init__(
        self, data: memoryview, max_length: int, batch_bytes: int, border: int | None = None
    ) -> None:
        self._data = data
        self._octets = np.frombuffer(data, np.uint8)
        self._size = len(data)
        self._max_length = max_length
        self._batch_bytes = batch_bytes
        self._border = border
        self._records = 0
        self._record_bytes = 0

    def is_record(self, position: int) -> bool:
        """Return whether a record that looks whole begins there."""
        if position + HEAD_BYTES > self._size:
            return False
        return self._fits(position) and self._has_good_head(position)

    def scan(self, start: int) -> Iterator[NsqdRecords | NsqdDamage]:
        """Yield everything from `start` to the end of the file."""
        position = start
        while position < self._size:
            places, end = self._follow(position)
            good, heads, ids = self._check(places)
            if good < len(places):
                end = int(places[good])
                places = places[:good]
            if end == self._size or self.is_record(end):
                yield self._records_of(places, end, heads, ids)
                position = end
                continue
            last = int(places[-1]) if good else None
            after = self._search(end + 1 if last is None else last + HEAD_BYTES)
            doubt = "" if last is None else self._doubt(last, end, after)
            if last is not None and doubt:
                if good > 1:
                    yield self._records_of(places[:-1], last, heads[:-1], ids[:-1])
                end = last
            elif good:
                yield self._records_of(places, end, heads, ids)
            yield from self._damaged(end, after, doubt)
            position = self._size if after is None else after

    # -- intact records

    def _follow(self, position: int) -> tuple[npt.NDArray[np.int64], int]:
        """Follow the lengths; return the positions of records, and the end of the last one."""
        data, size, longest = self._data, self._size, self._max_length
        unpack = _LENGTH.unpack_from
        stop = position + self._batch_bytes
        places: list[int] = []
        add = places.append
        while position + HEAD_BYTES <= size and position < stop:
            length = unpack(data, position)[0]
            end = position + _LENGTH_BYTES + length
            if not LENGTH_MIN <= length <= longest or end > size:
                break
            add(position)
            position = end
        return np.array(places, np.int64), position

    def _check(
        self, places: npt.NDArray[np.int64]
    ) -> tuple[int, npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Return how many consecutive records have a good head, and these heads and ids."""
        raw = self._octets[places[:, None] + np.arange(HEAD_BYTES)]
        heads: npt.NDArray[np.void] = raw.view(_HEAD)[:, 0]
        ids = message_id.decode(heads["id"])  # up to the first invalid one
        times = heads["time"][: len(ids)]
        bad = (times < _TIME_MIN_NS) | (times > _TIME_MAX_NS)
        good = int(bad.argmax()) if bad.any() else len(ids)
        return good, heads[:good], ids[:good]

    def _records_of(
        self,
        places: npt.NDArray[np.int64],
        end: int,
        heads: npt.NDArray[np.void],
        ids: npt.NDArray[np.int64],
        doubt: str = "",
    ) -> NsqdRecords:
        start = int(places[0])
        if not doubt:
            self._records += len(places)
            self._record_bytes += end - start
        borders = np.empty(len(places) + 1, np.int32)
        borders[:-1] = places - start
        borders[-1] = end - start
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self._data[start:end])]
        whole = pa.Array.from_buffers(pa.binary(), len(places), buffers)
        return NsqdRecords(
            start,
            heads["time"].astype(np.int64),
            heads["attempts"].astype(np.uint16),
            ids,
            pc.binary_slice(whole, HEAD_BYTES, _INT32_MAX),
            doubt,
        )

    # -- damage

    def _doubt(self, last: int, end: int, after: int | None) -> str:
        """Return the problem with the length of the last record, after which no record begins.

        A record that ends where damage begins is intact: the bytes after it are damaged, not
        the length.

        Args:
            last: Its position.
            end: Its end according to its length.
            after: Position of the next record, if there is one.
        """
        if after is None:
            return ""
        length = self._length(last)
        if after < end:
            return f"its length of {length} bytes extends over the record at byte {after:,}"
        if end != self._border and after - end < HEAD_BYTES and not self._has_good_head(end):
            return f"its length of {length} bytes ends {after - end} bytes before the next record"
        return ""

    def _damaged(
        self, start: int, after: int | None, doubt: str
    ) -> Iterator[NsqdRecords | NsqdDamage]:
        """Yield the damage between a position that is not a record and the next record."""
        end = self._size if after is None else after
        has_head = start + HEAD_BYTES <= self._size and self._has_good_head(start)
        if has_head and after is not None and after - start - _LENGTH_BYTES <= self._max_length:
            _, heads, ids = self._check(place := np.array([start], np.int64))
            doubt = doubt or f"its length of {self._length(start)} bytes leads to no record"
            yield self._records_of(place, after, heads, ids, doubt)
            return
        if start == end:
            return
        usual = self._record_bytes / self._records if self._records else end - start
        lost = max(1, round((end - start) / max(usual, 1)))
        yield NsqdDamage(start, end, self._reason(start, end, has_head=has_head), lost)

    def _reason(self, start: int, end: int, *, has_head: bool) -> str:
        if end - start < HEAD_BYTES:
            return "the file ends within a record" if end == self._size else "a torn record"
        if not any(self._data[start:end]):
            return "zeros"
        length = self._length(start)
        if has_head and start + _LENGTH_BYTES + length > self._size:
            return "the file ends within a record"
        if not LENGTH_MIN <= length <= self._max_length:
            return f"a length of {length} bytes"
        return "not a valid time and id of a message"

    def _search(self, start: int) -> int | None:
        """Return the first position from `start` on of a record that looks intact."""
        while start + HEAD_BYTES <= self._size:
            octets = self._octets[start : start + _SEARCH_BYTES + HEAD_BYTES]
            count = len(octets) - HEAD_BYTES + 1
            runs = np.cumsum(_IS_HEX[octets[_ID_AT:]], dtype=np.int32)
            hex_digits = runs[message_id.ID_BYTES - 1 :].copy()
            hex_digits[1:] -= runs[: len(hex_digits) - 1]
            tops = octets[_TIME_AT : _TIME_AT + count]
            likely = (hex_digits[:count] == message_id.ID_BYTES) & (
                (tops >= _TIME_TOP_MIN) & (tops <= _TIME_TOP_MAX)
            )
            for place in np.flatnonzero(likely):
                if self.is_record(start + int(place)):
                    return start + int(place)
            start += count
        return None

    def _length(self, position: int) -> int:
        length: int = _LENGTH.unpack_from(self._data, position)[0]
        return length

    def _fits(self, position: int) -> bool:
        length = self._length(position)
        end = position + _LENGTH_BYTES + length
        return LENGTH_MIN <= length <= self._max_length and end <= self._size

    def _has_good_head(self, position: int) -> bool:
        good, _, _ = self._check(np.array([position], np.int64))
        return good == 1
