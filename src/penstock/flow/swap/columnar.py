"""The columns of a page: FlowFiles as integers by column, and their attributes by name.

Owns the bytes of a page before it is compressed, both ways, and choosing where pages end. Does not
own checksums, compression and files (`swapfile`).

    page      length of the integers (u32, little endian), integers, texts
    integers  for each column its first value and its smallest step (two int64), then the steps
              above that one, as planes of bytes: what is constant or counts up packs to nothing
    texts     msgpack: the resource claims; the shapes (which names a FlowFile's attributes have, in
              order); for each shape, for each of its names, the list of values

Invariants: what a page claims is checked against the bytes that are there before anything is made
of its size; a page needs no other page and no head.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.storage.content.claims import ContentClaim, ResourceClaim

PAGE_ROWS: Final = 256
PAGE_CHARACTERS_MAX: Final = 1 << 20

_T = TypeVar("_T")
Integers = npt.NDArray[np.int64]

_FLOWFILE_COLUMNS: Final = (
    "id", "size", "content_offset", "entry_ms", "lineage_start_ms", "lineage_index", "queued_ms",
    "queue_index", "penalty_until_ms",
)  # fmt: skip
_CLAIM_COLUMNS: Final = ("claim_offset", "claim_length", "claim_checksum")
INTEGER_COLUMNS: Final = (*_FLOWFILE_COLUMNS, *_CLAIM_COLUMNS, "resource", "shape")
_PLACES: Final = {name: place for place, name in enumerate(INTEGER_COLUMNS)}
_RESOURCE: Final = _PLACES["resource"]
_SHAPE: Final = _PLACES["shape"]
_NO_RESOURCE: Final = -1
_COLUMN_HEAD_BYTES: Final = 16
# Stands for no claim while columns are made; no store can have such a name.
_ABSENT_CLAIM: Final = ContentClaim(ResourceClaim("", "\0", "\0"), 0, 0)


class _Texts(msgspec.Struct, array_like=True):
    resources: list[ResourceClaim]
    shapes: list[list[str]]
    columns: list[list[msgspec.Raw]]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_texts: Final = msgspec.msgpack.Decoder(_Texts).decode
_decode_values: Final = msgspec.msgpack.Decoder(list[str]).decode


class Columns(NamedTuple):
    """FlowFiles by column, all pages together.

    Attributes:
        integers: One line for each of `INTEGER_COLUMNS`.
        resources: The resource claims that the column of this name counts.
        shapes: The attribute names that the column of this name counts.
        values: The attribute values of all FlowFiles, one behind the other.
        value_ends: For each FlowFile, where its values end; None if all have the first shape.
    """

    integers: Integers
    resources: list[ResourceClaim]
    shapes: list[tuple[str, ...]]
    values: list[str]
    value_ends: Integers | None
    characters: int

    def column(self, name: str) -> Integers:
        """Return one column of integers (see `INTEGER_COLUMNS`)."""
        found: Integers = self.integers[_PLACES[name]]
        return found

    def resource_claims(self) -> tuple[tuple[ResourceClaim, int], ...]:
        """Return how many FlowFiles refer to each resource claim."""
        codes = self.integers[_RESOURCE]
        counts = np.bincount(codes[codes >= 0], minlength=len(self.resources)).tolist()
        return tuple(zip(self.resources, counts, strict=True))


def columns_of(flowfiles: Sequence[FlowFile]) -> Columns:
    """Return FlowFiles by column.

    Raises:
        InvalidRequest: An attribute is no text, or a number does not fit into 64 bits.
    """
    claims = [flowfile.claim or _ABSENT_CLAIM for flowfile in flowfiles]
    resources = [claim.resource for claim in claims]
    table = {resource: code for code, resource in enumerate(dict.fromkeys(resources))}
    if table.pop(_ABSENT_CLAIM.resource, None) is not None:
        table = {resource: code for code, resource in enumerate(table)}

    attributes = [flowfile.attributes for flowfile in flowfiles]
    names = list(map(tuple, attributes))
    shapes = {shape: code for code, shape in enumerate(dict.fromkeys(names))}
    values = list(chain.from_iterable([one.values() for one in attributes]))
    numbers = array("q")
    try:
        characters = len("".join(values)) + len("".join(chain.from_iterable(shapes)))
        # Lists of what exists already: to make 10,000 tuples here would set off the collector.
        for name in _FLOWFILE_COLUMNS:
            numbers.fromlist(list(map(attrgetter(name), flowfiles)))
        for name in ("offset", "length", "checksum"):
            numbers.fromlist(list(map(attrgetter(name), claims)))
        numbers.fromlist([table.get(resource, _NO_RESOURCE) for resource in resources])
        numbers.fromlist([shapes[shape] for shape in names])
    except (TypeError, OverflowError) as error:
        raise InvalidRequest(
            f"a FlowFile cannot be swapped: {error}; attributes must be text, numbers of 64 bits"
        ) from error
    integers = np.frombuffer(numbers, np.int64).reshape(len(INTEGER_COLUMNS), len(flowfiles))
    ends = None
    if len(shapes) > 1:
        ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
    return Columns(integers, list(table), list(shapes), values, ends, characters)


def page_ends(columns: Columns) -> list[int]:
    """Return where pages end: after so many rows, or before where their attributes are large."""
    count = columns.integers.shape[1]
    if columns.characters // count * PAGE_ROWS <= PAGE_CHARACTERS_MAX:
        return [*range(PAGE_ROWS, count, PAGE_ROWS), count]
    ends: list[int] = []
    lengths = np.cumsum(np.fromiter(map(len, columns.values), np.int64, len(columns.values)))
    value_ends = columns.value_ends
    if value_ends is None:
        value_ends = np.arange(1, count + 1) * len(columns.shapes[0])
    through = lengths[value_ends - 1]
    start, before = 0, 0
    while start < count:
        fits = int(np.searchsorted(through, before + PAGE_CHARACTERS_MAX, side="right"))
        start = min(max(fits, start + 1), start + PAGE_ROWS, count)
        before = int(through[start - 1])
        ends.append(start)
    return ends


def encode_page(columns: Columns, start: int, end: int) -> bytes:
    """Return the rows [start, end) as a page.

    Raises:
        InvalidRequest: An attribute is text that UTF-8 cannot hold.
    """
    integers = columns.integers[:, start:end]
    local = integers[[_RESOURCE, _SHAPE]]
    resources, local[0] = _local(columns.resources, local[0])
    values: list[list[list[str]]]
    if columns.value_ends is None:
        shapes = columns.shapes
        width = len(shapes[0])
        values = [[columns.values[start * width + j : end * width : width] for j in range(width)]]
    else:
        shapes, local[1] = _local(columns.shapes, local[1])
        values = _values_by_shape(columns, shapes, local[1], start, end)
    integers = np.concatenate((integers[:_RESOURCE], local))
    try:
        texts = _encode((resources, shapes, values))
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"a FlowFile cannot be swapped: an attribute holds what is no text: {error}"
        ) from error
    packed = _pack(integers)
    return b"".join((len(packed).to_bytes(4, "little"), packed, texts))


def _local(values: list[_T], codes: Integers) -> tuple[list[_T], Integers]:
    """Return the values that a page needs, and codes that count these."""
    if len(values) <= 1:
        return values, codes
    known, local = np.unique(codes, return_inverse=True)
    if known[0] == _NO_RESOURCE:
        known, local = known[1:], local - 1
    return [values[code] for code in known.tolist()], local.astype(np.int64)


def _values_by_shape(
    columns: Columns, shapes: list[tuple[str, ...]], codes: Integers, start: int, end: int
) -> list[list[list[str]]]:
    assert columns.value_ends is not None
    ends = columns.value_ends[start:end]
    by_shape: list[list[list[str]]] = []
    for code, shape in enumerate(shapes):
        begins = (ends[codes == code] - len(shape)).tolist()
        by_shape.append(
            [[columns.values[begin + j] for begin in begins] for j in range(len(shape))]
        )
    return by_shape


def _pack(integers: Integers) -> bytes:
    """Return integers by column as first values, smallest steps and planes of what is above."""
    steps = np.diff(integers, axis=1)  # wraps at 64 bits, and adding up wraps back
    smallest = steps.min(axis=1) if steps.size else np.zeros(len(integers), np.int64)
    above = np.ascontiguousarray(steps - smallest[:, None]).view(np.uint8)
    planes = above.reshape(len(integers), -1, 8).transpose(0, 2, 1)
    heads = np.stack((integers[:, 0], smallest), axis=1)
    return heads.tobytes() + planes.tobytes()


class Page:
    """One page, unpacked; columns are made when they are asked for.

    Args:
        file: Path of the file, for messages.
        position: Of the page in it, for messages.
        start: Number of its first row.
        count: Its rows.
        raw: Its bytes, checked and decompressed.

    Raises:
        CorruptData: It is not what was written, though its checksum holds.
    """

    __slots__ = ("_file", "_heads", "_planes", "_position", "_texts", "count", "start")

    def __init__(self, file: str, position: int, start: int, count: int, raw: bytes) -> None:
        self._file = file
        self._position = position
        self.start = start
        self.count = count
        length = int.from_bytes(raw[:4], "little")
        columns = len(INTEGER_COLUMNS)
        if count < 1 or length != columns * (_COLUMN_HEAD_BYTES + 8 * (count - 1)):
            raise self._corrupt(f"{length} bytes of integers are not {count} rows")
        if len(raw) < 4 + length:
            raise self._corrupt("its integers are cut off")
        heads = np.frombuffer(raw, np.int64, 2 * columns, 4)
        self._heads = heads.reshape(columns, 2)
        planes = np.frombuffer(raw, np.uint8, length - heads.nbytes, 4 + heads.nbytes)
        self._planes = planes.reshape(columns, 8, count - 1)
        try:
            self._texts = _decode_texts(memoryview(raw)[4 + length :])
        except msgspec.DecodeError as error:
            raise self._corrupt(f"its texts cannot be read: {error}") from error
        shapes = self._texts.shapes
        if [len(shape) for shape in shapes] != [len(one) for one in self._texts.columns]:
            raise self._corrupt("names and columns of its attributes differ in number")

    def integers(self, *names: str) -> Integers:
        """Return columns of integers, one line for each name (see `INTEGER_COLUMNS`)."""
        places = [_PLACES[name] for name in names]
        found = np.empty((len(places), self.count), np.int64)
        found[:, 0] = self._heads[places, 0]
        if self.count > 1:
            planes = np.ascontiguousarray(self._planes[places].transpose(0, 2, 1))
            steps = planes.view(np.int64)[:, :, 0]
            found[:, 1:] = steps + self._heads[places, 1][:, None]
            np.cumsum(found, axis=1, out=found)
        return found

    def attribute(self, name: str) -> list[str | None]:
        """Return the values of one attribute by row; None where a FlowFile has none."""
        texts = self._texts
        codes = self._shape_codes()
        if len(texts.shapes) == 1:
            if name not in texts.shapes[0]:
                return [None] * self.count
            return list(self._values(0, texts.shapes[0].index(name), self.count))
        found: list[str | None] = [None] * self.count
        for code, shape in enumerate(texts.shapes):
            if name in shape:
                rows = np.flatnonzero(codes == code).tolist()
                for row, value in zip(
                    rows, self._values(code, shape.index(name), len(rows)), strict=True
                ):
                    found[row] = value
        return found

    def attributes(self) -> list[dict[str, str]]:
        """Return all attributes by row."""
        return self._attributes(self._shape_codes(), None)

    def resources(self, rows: Sequence[int] | Integers) -> Iterator[tuple[ResourceClaim, int]]:
        """Yield the resource claims of some rows (counted within the page), and how often."""
        codes = self._resource_codes(self.integers("resource")[0])[rows]
        known, counts = np.unique(codes[codes >= 0], return_counts=True)
        for code, count in zip(known.tolist(), counts.tolist(), strict=True):
            yield self._texts.resources[code], count

    def flowfiles(self, rows: Integers | None = None) -> list[FlowFile]:
        """Return the FlowFiles of all rows, or of some (counted within the page), in their order.

        Raises:
            CorruptData: It is not what was written, though its checksum holds.
        """
        integers = self.integers(*INTEGER_COLUMNS)
        shapes = self._shape_codes(integers[_SHAPE])
        if rows is not None:
            integers = integers[:, rows]
        lists = dict(zip(INTEGER_COLUMNS, integers.tolist(), strict=True))
        return list(
            map(
                FlowFile,
                lists["id"],
                self._attributes(shapes, rows),
                lists["size"],
                self._claims(integers[_RESOURCE], lists),
                lists["content_offset"],
                lists["entry_ms"],
                lists["lineage_start_ms"],
                lists["lineage_index"],
                lists["queued_ms"],
                lists["queue_index"],
                lists["penalty_until_ms"],
            )
        )

    def _claims(self, codes: Integers, lists: dict[str, list[int]]) -> list[ContentClaim | None]:
        codes = self._resource_codes(codes)
        # -1 finds the last entry, which stands for none; its claims are thrown away.
        resources = [*self._texts.resources, _ABSENT_CLAIM.resource]
        claims: list[ContentClaim | None] = list(
            map(
                ContentClaim,
                map(resources.__getitem__, codes.tolist()),
                *(lists[name] for name in _CLAIM_COLUMNS),
            )
        )
        for row in np.flatnonzero(codes < 0).tolist():
            claims[row] = None
        return claims

    def _attributes(self, codes: Integers, rows: Integers | None) -> list[dict[str, str]]:
        shapes = self._texts.shapes
        if len(shapes) == 1:
            found = self._of_shape(0, self.count)
            return found if rows is None else [found[row] for row in rows.tolist()]
        every: list[dict[str, str]] = [{}] * self.count
        for code in range(len(shapes)):
            places = np.flatnonzero(codes == code).tolist()
            for row, one in zip(places, self._of_shape(code, len(places)), strict=True):
                every[row] = one
        return every if rows is None else [every[row] for row in rows.tolist()]

    def _of_shape(self, code: int, count: int) -> list[dict[str, str]]:
        names = self._texts.shapes[code]
        if not names:
            return [{} for _ in range(count)]
        columns = [self._values(code, place, count) for place in range(len(names))]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values(self, code: int, place: int, count: int) -> list[str]:
        try:
            values = _decode_values(self._texts.columns[code][place])
        except msgspec.DecodeError as error:
            raise self._corrupt(f"values of an attribute cannot be read: {error}") from error
        if len(values) != count:
            raise self._corrupt(f"{len(values)} values of an attribute are not {count}")
        return values

    def _shape_codes(self, codes: Integers | None = None) -> Integers:
        codes = self.integers("shape")[0] if codes is None else codes
        if codes.min() < 0 or codes.max() >= len(self._texts.shapes):
            raise self._corrupt("a FlowFile's attributes have no names")
        return codes

    def _resource_codes(self, codes: Integers) -> Integers:
        if len(codes) and (codes.min() < -1 or codes.max() >= len(self._texts.resources)):
            raise self._corrupt("a content claim names no resource claim")
        return codes

    def _corrupt(self, reason: str) -> CorruptData:
        return CorruptData(self._file, self._position, f"a page of swapped FlowFiles: {reason}")
