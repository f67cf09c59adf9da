"""Columns of a page: FlowFiles as integers by column, and their attributes by name.

Owns encoding and decoding the uncompressed bytes of a page, and the size of pages. Does not own
checksums, compression and files (`swap_file`).

    page      length of the integers (u32, little endian), integers, texts
    integers  for each column its first value and its smallest step (two int64), then the steps
              above that one, as planes of bytes: constant or consecutive values take no space
    texts     msgpack: the resource claims; the shapes (which names a FlowFile's attributes have, in
              order); for each shape, for each of its names, the list of values

Invariants: sizes in a page are checked against the existing bytes before anything is allocated. A
page can be read without other pages and without the head.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.msgpack_encoding import pack
from penstock.flow.flowfile import FlowFile
from penstock.storage.content.claims import ContentClaim, ResourceClaim

PAGE_ROWS: Final = 256
PAGE_CHARACTERS_MAX: Final = 1 << 20

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
_FIELDS: Final = FlowFile.__struct_fields__
_NO_RESOURCE: Final = -1
_COLUMN_HEAD_BYTES: Final = 16
# Placeholder for a missing claim while columns are built; no store can have such a name.
_ABSENT_CLAIM: Final = ContentClaim(ResourceClaim("", "\0", "\0"), 0, 0)


class _Texts(msgspec.Struct, array_like=True):
    resources: list[ResourceClaim]
    shapes: list[list[str]]
    columns: list[list[msgspec.Raw]]


_decode_texts: Final = msgspec.msgpack.Decoder(_Texts).decode
_decode_values: Final = msgspec.msgpack.Decoder(list[str]).decode


class EncodedPage(NamedTuple):
    """Page with its entry for the head.

    Attributes:
        raw: Its uncompressed bytes.
        rows: Number of rows.
        characters: Sum of the lengths of all attribute values.
        size_bytes: Sum of the content sizes.
        max_id: Highest id.
        min_queued_ms: Earliest time of entry into a queue.
        total_queued_ms: Sum of these times.
        min_entry_ms: Earliest time of entry into the system.
        resource_claims: Number of rows that refer to each resource claim.
    """

    raw: bytes
    rows: int
    characters: int
    size_bytes: int
    max_id: int
    min_queued_ms: int
    total_queued_ms: int
    min_entry_ms: int
    resource_claims: list[tuple[ResourceClaim, int]]


def encode_pages(flowfiles: Sequence[FlowFile]) -> Iterator[EncodedPage]:
    """Yield pages of `PAGE_ROWS` rows, or fewer if their attributes are large.

    Raises:
        InvalidRequest: An attribute is not text, or a number does not fit into 64 bits.
    """
    # Build all columns page by page: FlowFiles of the next page would evict these from the cache.
    for start in range(0, len(flowfiles), PAGE_ROWS):
        yield from _encode_some(flowfiles[start : start + PAGE_ROWS])


def _encode_some(flowfiles: Sequence[FlowFile]) -> Iterator[EncodedPage]:
    attributes = [one.attributes for one in flowfiles]
    values = list(chain.from_iterable([one.values() for one in attributes]))
    try:
        characters = len("".join(values))
        if characters > PAGE_CHARACTERS_MAX and len(flowfiles) > 1:
            middle = len(flowfiles) // 2
            yield from _encode_some(flowfiles[:middle])
            yield from _encode_some(flowfiles[middle:])
            return
        names = list(map(tuple, attributes))
        shapes = list(dict.fromkeys(names))
        columns = (
            _values_of_one_shape(shapes[0], values)
            if len(shapes) == 1
            else _values_by_shape(shapes, names, attributes)
        )
        integers, resources = _integers(flowfiles, shapes, names)
        texts = pack((resources, shapes, columns))
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"a FlowFile cannot be swapped: {error}; attributes must be text that UTF-8 can "
            "encode, and numbers must fit into 64 bits"
        ) from error
    packed = _pack(integers)
    codes = integers[_RESOURCE]
    counts = np.bincount(codes[codes >= 0], minlength=len(resources)).tolist()
    yield EncodedPage(
        raw=b"".join((len(packed).to_bytes(4, "little"), packed, texts)),
        rows=len(flowfiles),
        characters=characters,
        size_bytes=int(integers[_PLACES["size"]].sum()),
        max_id=int(integers[_PLACES["id"]].max()),
        min_queued_ms=int(integers[_PLACES["queued_ms"]].min()),
        total_queued_ms=int(integers[_PLACES["queued_ms"]].sum()),
        min_entry_ms=int(integers[_PLACES["entry_ms"]].min()),
        resource_claims=list(zip(resources, counts, strict=True)),
    )


def _integers(
    flowfiles: Sequence[FlowFile], shapes: list[tuple[str, ...]], names: list[tuple[str, ...]]
) -> tuple[Integers, list[ResourceClaim]]:
    """Return all integers by column, and the resource claims that one column numbers."""
    claims = [one.claim or _ABSENT_CLAIM for one in flowfiles]
    resource_of_each, *places = zip(*map(astuple, claims), strict=True)
    # FlowFiles by field: a transposition in C is several times faster than a loop by field.
    fields = dict(zip(_FIELDS, zip(*map(astuple, flowfiles), strict=True), strict=True))
    codes = {resource: code for code, resource in enumerate(dict.fromkeys(resource_of_each))}
    if codes.pop(_ABSENT_CLAIM.resource, None) is not None:
        codes = {resource: code for code, resource in enumerate(codes)}
    numbers = array("q")
    for name in _FLOWFILE_COLUMNS:
        numbers.extend(fields[name])
    for place in places:
        numbers.extend(place)
    numbers.extend([codes.get(resource, _NO_RESOURCE) for resource in resource_of_each])
    if len(shapes) == 1:
        numbers.frombytes(bytes(8 * len(names)))
    else:
        shape_codes = {shape: code for code, shape in enumerate(shapes)}
        numbers.extend([shape_codes[shape] for shape in names])
    columns = np.frombuffer(numbers, np.int64).reshape(len(INTEGER_COLUMNS), len(flowfiles))
    return columns, list(codes)


def _values_of_one_shape(shape: tuple[str, ...], values: list[str]) -> list[list[list[str]]]:
    width = len(shape)
    return [[values[place::width] for place in range(width)]]


def _values_by_shape(
    shapes: list[tuple[str, ...]],
    names: list[tuple[str, ...]],
    attributes: list[Mapping[str, str]],
) -> list[list[list[str]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {shape: [] for shape in shapes}
    for shape, one in zip(names, attributes, strict=True):
        groups[shape].append(one)
    return [[[one[name] for one in group] for name in shape] for shape, group in groups.items()]


def _pack(integers: Integers) -> bytes:
    """Return integers by column as first values, smallest steps and planes of the differences."""
    steps = np.diff(integers, axis=1)  # wraps at 64 bits; the cumulative sum wraps back
    smallest = steps.min(axis=1) if steps.size else np.zeros(len(integers), np.int64)
    above = np.ascontiguousarray(steps - smallest[:, None]).view(np.uint8)
    planes = above.reshape(len(integers), -1, 8).transpose(0, 2, 1)
    heads = np.stack((integers[:, 0], smallest), axis=1)
    return heads.tobytes() + planes.tobytes()


class SwapPage:
    """One uncompressed page; columns are decoded on demand.

    Args:
        file: Path of the file, for messages.
        position: Position of the page in the file, for messages.
        start: Number of its first row.
        count: Number of rows.
        raw: Its bytes, verified and decompressed.

    Raises:
        CorruptData: The content is invalid, although its checksum is correct.
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
            raise self._corrupt(f"{length} bytes of integers do not match {count} rows")
        if len(raw) < 4 + length:
            raise self._corrupt("its integers are incomplete")
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
            raise self._corrupt("its attributes have different numbers of names and columns")

    def integers(self, *names: str) -> Integers:
        """Return columns of integers, one array row for each name (see `INTEGER_COLUMNS`)."""
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
        """Return the values of one attribute by row; None for FlowFiles without it."""
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
        """Yield the resource claims of some rows (numbered within the page), and their counts."""
        codes = self._resource_codes(self.integers("resource")[0])[rows]
        known, counts = np.unique(codes[codes >= 0], return_counts=True)
        for code, count in zip(known.tolist(), counts.tolist(), strict=True):
            yield self._texts.resources[code], count

    def flowfiles(self, rows: Integers | None = None) -> list[FlowFile]:
        """Return the FlowFiles of all rows, or of some (numbered within the page), in their order.

        Raises:
            CorruptData: The content is invalid, although its checksum is correct.
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
        # -1 selects the last entry, the placeholder for no claim; its claims are discarded.
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
            return self._of_shape(0, self.count, None if rows is None else rows.tolist())
        every: list[dict[str, str]] = [{}] * self.count
        for code in range(len(shapes)):
            places = np.flatnonzero(codes == code).tolist()
            for row, one in zip(places, self._of_shape(code, len(places), None), strict=True):
                every[row] = one
        return every if rows is None else [every[row] for row in rows.tolist()]

    def _of_shape(self, code: int, count: int, rows: list[int] | None) -> list[dict[str, str]]:
        """Return the attributes of all FlowFiles of a shape, or of some, numbered among them."""
        names = self._texts.shapes[code]
        if not names:
            return [{} for _ in (range(count) if rows is None else rows)]
        columns = [self._values(code, place, count) for place in range(len(names))]
        if rows is not None:
            columns = [[values[row] for row in rows] for values in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _values(self, code: int, place: int, count: int) -> list[str]:
        try:
            values = _decode_values(self._texts.columns[code][place])
        except msgspec.DecodeError as error:
            raise self._corrupt(f"values of an attribute cannot be read: {error}") from error
        if len(values) != count:
            raise self._corrupt(f"{len(values)} values of an attribute instead of {count}")
        return values

    def _shape_codes(self, codes: Integers | None = None) -> Integers:
        codes = self.integers("shape")[0] if codes is None else codes
        if codes.min() < 0 or codes.max() >= len(self._texts.shapes):
            raise self._corrupt("a FlowFile's attributes have no names")
        return codes

    def _resource_codes(self, codes: Integers) -> Integers:
        if len(codes) and (codes.min() < -1 or codes.max() >= len(self._texts.resources)):
            raise self._corrupt("a content claim does not name a resource claim")
        return codes

    def _corrupt(self, reason: str) -> CorruptData:
        return CorruptData(self._file, self._position, f"a page of swapped FlowFiles: {reason}")
