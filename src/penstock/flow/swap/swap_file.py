"""Penstock's swap files: sorted FlowFiles of one queue, in columnar pages with own checksums.

Owns the container: its name, its parts, durable writing, finding and verifying pages. Does not own
the columns in a page (`swap_pages`), NiFi's files (`nifi`), nor which files are valid
(`repository`). The parts are the same as NiFi's: magic, name of the serializer, description of the
content, content.

    file   "SWAP"; length of the name (u16, big endian), "Penstock Columnar Swap"
           length of the head (u32), crc32c (u32) of all bytes before it and of the head
           head: msgpack of the format number, the summary, and each page's length and rows
           pages
    page   magic 9D 'PS' 01; crc32c (u32) of all that follows of the page; length of the page,
           number of its first row, rows, length before compression (u32 each); codec (u32); data

Numbers are little endian, except the name's length, which is as in NiFi.

Invariants:

- Damage affects only the pages that contain it. A page is found by the head or, if the head is
  damaged, by its magic. It contains its row numbers.
- A file with its final name is complete.
- Sizes in a file are checked before memory is allocated: heads and pages are no longer than the
  file, and decompressed pages no longer than `_UNPACKED_BYTES_MAX`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.msgpack_encoding import pack
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.swap_pages import EncodedPage, SwapPage, encode_pages
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.filesystem import FileSystem, ReadFile

FORMAT_NUMBER: Final = 1
MAGIC: Final = b"SWAP"
SERIALIZER: Final = "Penstock Columnar Swap"

_SUFFIX: Final = ".swap"
_NAME: Final = SERIALIZER.encode()
_PREFIX: Final = MAGIC + len(_NAME).to_bytes(2, "big") + _NAME
_HEAD_SIZES: Final = struct.Struct("<II")
_HEAD_AT: Final = len(_PREFIX) + _HEAD_SIZES.size
_PAGE_MAGIC: Final = b"\x9dPS\x01"
_PAGE_HEAD: Final = struct.Struct("<4sIIIIII")
_CHECKED_FROM: Final = 8
_PLAIN: Final = 0
_ZSTD: Final = 1
_UNPACKED_BYTES_MAX: Final = 4 << 20
_PAGE_ROWS_MAX: Final = 1 << 16
_CODEC: Final = pa.Codec("zstd", compression_level=1)


def swap_file_name(number: int) -> str:
    """Return the name of a swap file; names sort in the order of their numbers."""
    return f"{number:016d}{_SUFFIX}"


def swap_file_number(name: str) -> int | None:
    """Return the number at the beginning of a name, even of a file set aside; None: no number."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isdecimal() else None


class SwapSummary(msgspec.Struct, frozen=True, array_like=True):
    """Summary of a swap file, available without reading its rows.

    Attributes:
        queue: Id of the queue.
        count: Number of FlowFiles.
        size_bytes: Sum of their content sizes.
        max_id: Highest id; -1 if there is none.
        order: Order of the rows: names and arguments of the prioritizers.
        min_queued_ms: Earliest time of entry into a queue, epoch ms; 0 if there is none.
        total_queued_ms: Sum of these times.
        min_entry_ms: Earliest time of entry into this system, epoch ms; 0 if there is none.
        resource_claims: Number of rows that refer to each resource claim.
        attribute_characters: Sum of the lengths of all attribute values.
    """

    queue: str
    count: int
    size_bytes: int
    max_id: int
    order: str
    min_queued_ms: int
    total_queued_ms: int
    min_entry_ms: int
    resource_claims: tuple[tuple[ResourceClaim, int], ...]
    attribute_characters: int = 0


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format_number: int
    summary: SwapSummary
    lengths: list[int]
    rows: list[int]


class _Place(NamedTuple):
    """Position of a page, and its rows."""

    position: int
    length: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """FlowFiles that were read, with their row numbers.

    Attributes:
        numbers: Row numbers, one for each FlowFile.
        flowfiles: The FlowFiles, in the requested order.
        lost: Requested row numbers that are in damaged pages.
    """

    numbers: npt.NDArray[np.int64]
    flowfiles: list[FlowFile]
    lost: npt.NDArray[np.int64]


def write_swap_file(
    fs: FileSystem, path: str, queue: str, order: str, flowfiles: Sequence[FlowFile]
) -> SwapSummary:
    """Write a swap file durably: temporary file, fsync, rename, fsync of the folder.

    Args:
        fs: The file system.
        path: Path of the file.
        queue: Id of the queue.
        order: Order of the FlowFiles.
        flowfiles: At least one FlowFile, sorted.

    Raises:
        InvalidRequest: A FlowFile cannot be encoded; no file was written.
        Unavailable: Disk full or I/O error. The file does not exist, unless only the last step
            failed, the fsync of the folder.
    """
    if not flowfiles:
        raise InvalidRequest(f"{path}: a swap file needs at least one FlowFile")
    pages = list(encode_pages(flowfiles))
    summary = _summary(pages, queue, order)
    fs.write_atomically(path, _encode(pages, summary))
    return summary


def read_summary(fs: FileSystem, path: str) -> SwapSummary:
    """Return a swap file's summary; reads only its head if that is not damaged.

    Raises:
        CorruptData: The head is damaged; the pages may be valid.
        NotFound, InvalidRequest, Unavailable: As `SwapReader.open`.
    """
    file = fs.open_read(path)
    try:
        head, _ = _read_head(file, path)
    finally:
        file.close()
    if head is None:
        raise CorruptData(path, 0, "the checksum of the swap file's head is wrong")
    return head.summary


class SwapReader:
    """Reads a swap file by rows and by columns, page by page. Not thread-safe.

    Attributes:
        summary: Summary from the head; None if the head is damaged, so that pages were searched.
        count: Number of rows, including damaged ones as far as known.
    """

    def __init__(
        self, file: ReadFile, path: str, summary: SwapSummary | None, places: list[_Place]
    ) -> None:
        self._file = file
        self._path = path
        self._places = places
        self._starts = np.array([place.start for place in places], np.int64)
        self._ends = self._starts + np.array([place.rows for place in places], np.int64)
        self.summary = summary
        self.count = places[-1].start + places[-1].rows

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Self:
        """Open a file and verify its head.

        Raises:
            NotFound: The file does not exist.
            InvalidRequest: It is a swap file of another serializer or of a newer format.
            CorruptData: Neither the head nor any page is valid.
            Unavailable: It cannot be read now.
        """
        file = fs.open_read(path)
        try:
            return cls._begin(file, path)
        except BaseException:
            file.close()
            raise

    @classmethod
    def _begin(cls, file: ReadFile, path: str) -> Self:
        head, pages_at = _read_head(file, path)
        if head is not None:
            return cls(file, path, head.summary, _places(head, pages_at))
        found = list(_find_pages(file.pread(file.size(), 0)))
        if not found:
            _refuse_foreign(file, path)
            raise CorruptData(
                path, 0, "neither its head nor any of its pages has a correct checksum"
            )
        return cls(file, path, None, found)

    def read(self, start: int, end: int) -> Rows:
        """Return the rows [start, end)."""
        return self.take(np.arange(start, min(end, self.count)))

    def take(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Return rows by their numbers, in the given order; each page is decompressed once."""
        pages = np.searchsorted(self._starts, rows, side="right") - 1
        is_lost = self._ends[pages] <= rows
        is_lost |= pages < 0
        ascending = bool((np.diff(rows) > 0).all())
        found: list[FlowFile | None] = [None] * len(rows)
        for number in np.unique(pages[~is_lost]).tolist():
            wanted = np.flatnonzero((pages == number) & ~is_lost)
            try:
                page = self._page(number)
                whole = ascending and len(wanted) == page.count
                flowfiles = page.flowfiles(None if whole else rows[wanted] - page.start)
            except CorruptData:
                is_lost[wanted] = True
                continue
            if ascending:
                found[wanted[0] : wanted[-1] + 1] = flowfiles
            else:
                for place, flowfile in zip(wanted.tolist(), flowfiles, strict=True):
                    found[place] = flowfile
        return Rows(rows[~is_lost], [one for one in found if one is not None], rows[is_lost])

    def pages(self) -> Iterator[SwapPage]:
        """Yield the valid pages, in the order of their rows; columns are decoded on demand."""
        for number in range(len(self._places)):
            with suppress(CorruptData):
                page = self._page(number)
                yield page

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def _page(self, number: int) -> SwapPage:
        place = self._places[number]
        raw = self._file.pread(place.length, place.position)
        if _verified(raw, place) is None:
            raise CorruptData(
                self._path,
                place.position,
                f"the checksum of the page of rows from {place.start} is wrong",
            )
        _, _, _, start, count, unpacked_bytes, codec = _PAGE_HEAD.unpack_from(raw)
        data = raw[_PAGE_HEAD.size :]
        if codec == _ZSTD and unpacked_bytes <= _UNPACKED_BYTES_MAX:
            try:
                data = _CODEC.decompress(data, unpacked_bytes, asbytes=True)
            except OSError as error:
                raise CorruptData(self._path, place.position, f"a page: {error}") from error
        elif codec != _PLAIN:
            raise CorruptData(
                self._path, place.position, "the page has an unknown compression codec"
            )
        return SwapPage(self._path, place.position, start, count, data)


# -- writing


def _summary(pages: Sequence[EncodedPage], queue: str, order: str) -> SwapSummary:
    claims: Counter[ResourceClaim] = Counter()
    for page in pages:
        claims.update(dict(page.resource_claims))
    return SwapSummary(
        queue=queue,
        count=sum(page.rows for page in pages),
        size_bytes=sum(page.size_bytes for page in pages),
        max_id=max(page.max_id for page in pages),
        order=order,
        min_queued_ms=min(page.min_queued_ms for page in pages),
        total_queued_ms=sum(page.total_queued_ms for page in pages),
        min_entry_ms=min(page.min_entry_ms for page in pages),
        resource_claims=tuple(claims.items()),
        attribute_characters=sum(page.characters for page in pages),
    )


def _encode(pages: Sequence[EncodedPage], summary: SwapSummary) -> bytes:
    framed: list[bytes] = []
    start = 0
    for page in pages:
        framed.append(_framed(page.raw, start, page.rows))
        start += page.rows
    rows = [page.rows for page in pages]
    head = pack(_Head(FORMAT_NUMBER, summary, list(map(len, framed)), rows))
    sizes = _PREFIX + len(head).to_bytes(4, "little")
    crc = google_crc32c.extend(google_crc32c.value(sizes), head)
    return b"".join((sizes, crc.to_bytes(4, "little"), head, *framed))


def _framed(raw: bytes, start: int, count: int) -> bytes:
    codec, data = _PLAIN, raw
    if len(raw) <= _UNPACKED_BYTES_MAX:
        codec, data = _ZSTD, _CODEC.compress(raw, asbytes=True)
    length = _PAGE_HEAD.size + len(data)
    fields = (length, start, count, len(raw), codec)
    framed = bytearray(_PAGE_HEAD.pack(_PAGE_MAGIC, 0, *fields) + data)
    crc = google_crc32c.value(bytes(framed[_CHECKED_FROM:]))
    framed[4:_CHECKED_FROM] = crc.to_bytes(4, "little")
    return bytes(framed)


# -- reading


def _read_head(file: ReadFile, path: str) -> tuple[_Head | None, int]:
    """Return the head and the position of the first page; the head is None if it is damaged.

    Raises:
        InvalidRequest: It is valid, but has a newer format.
    """
    before = file.pread(_HEAD_AT, 0)
    if len(before) < _HEAD_AT or not before.startswith(_PREFIX):
        return None, 0
    length, crc = _HEAD_SIZES.unpack_from(before, len(_PREFIX))
    if length > file.size() - _HEAD_AT:
        return None, 0
    raw = file.pread(length, _HEAD_AT)
    if google_crc32c.extend(google_crc32c.value(before[:-4]), raw) != crc:
        return None, 0
    try:
        number = msgspec.msgpack.decode(msgspec.msgpack.decode(raw, type=list[msgspec.Raw])[0])
        if isinstance(number, int) and number > FORMAT_NUMBER:
            raise InvalidRequest(
                f"{path}: has format number {number}, but this release reads up to "
                f"{FORMAT_NUMBER}: use the newer Penstock that wrote it"
            )
        head = msgspec.msgpack.decode(raw, type=_Head)
    except (msgspec.DecodeError, IndexError):
        return None, 0
    if len(head.lengths) != len(head.rows) or sum(head.rows) != head.summary.count:
        return None, 0
    if not head.rows or min(head.lengths) < _PAGE_HEAD.size:
        return None, 0
    if min(head.rows) < 1 or max(head.rows) > _PAGE_ROWS_MAX:
        return None, 0
    return head, _HEAD_AT + length


def _places(head: _Head, position: int) -> list[_Place]:
    places = []
    start = 0
    for length, rows in zip(head.lengths, head.rows, strict=True):
        places.append(_Place(position, length, start, rows))
        position += length
        start += rows
    return places


def _verified(raw: bytes, expected: _Place | None) -> _Place | None:
    """Return the position and rows in a page's own header if the page is valid."""
    if len(raw) < _PAGE_HEAD.size:
        return None
    magic, crc, length, start, count, _, _ = _PAGE_HEAD.unpack_from(raw)
    if magic != _PAGE_MAGIC or length > len(raw) or length < _PAGE_HEAD.size:
        return None
    if not 0 < count <= _PAGE_ROWS_MAX:
        return None
    if expected is not None and (length, start, count) != expected[1:]:
        return None
    if google_crc32c.value(raw[_CHECKED_FROM:length]) != crc:
        return None
    return _Place(0, length, start, count)


def _find_pages(raw: bytes) -> Iterator[_Place]:
    """Yield the valid pages of a file without a head, with ascending rows."""
    position = raw.find(_PAGE_MAGIC)
    next_row = 0
    while position >= 0:
        # Check the header first: copying the remaining bytes for each magic would be quadratic in a
        # hostile file.
        length = int.from_bytes(raw[position + 8 : position + 12], "little")
        found = _verified(raw[position : position + length], None)
        if found is not None and found.start >= next_row:
            yield found._replace(position=position)
            next_row = found.start + found.rows
            position += found.length - 1
        position = raw.find(_PAGE_MAGIC, position + 1)


def _refuse_foreign(file: ReadFile, path: str) -> None:
    """Raise if the file was written by another program."""
    before = file.pread(4 + 2 + 64, 0)
    if not before.startswith(MAGIC):
        return
    length = int.from_bytes(before[4:6], "big")
    name = before[6 : 6 + length]
    if len(name) == length > 0 and name != _NAME and name.isascii():
        raise InvalidRequest(
            f"{path}: was written by the serializer {name.decode('ascii')!r}, not by "
            f"{SERIALIZER!r}; import NiFi's swap files with `penstock import nifi-swap`"
        )
