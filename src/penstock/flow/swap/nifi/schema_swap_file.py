"""Reader of NiFi's schema-based swap files (NiFi 1.1 and later).

    "SWAP"   UTF name of the serializer   schema   01   summary   int count, FlowFiles

`SchemaSwapFile` owns the fields of a swap file, in three versions. `open_nifi_swap` opens a
file of any format and reads everything before the FlowFiles. Does not own older formats
(`legacy`).

Invariant: FlowFiles before a damaged byte are read, and the number of missing ones is known.
The format has no checksum, so a changed byte within a value cannot be detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.legacy import LegacySwapFile
from penstock.flow.swap.nifi.nifi_swap_file import FlowFileBatches, NifiSwapFile, NifiSwapSummary
from penstock.flow.swap.nifi.primitives import ByteReader, TruncatedInput
from penstock.flow.swap.nifi.swap_schema import (
    Field,
    Repetition,
    read_schema,
    record_reader,
    value_reader,
)
from penstock.storage.content.claims import ContentClaim, ResourceClaim

MAGIC: Final = b"SWAP"
SERIALIZER: Final = "Schema Swap Serialization"
INLINE_RECORD: Final = b"\x01"
SUMMARY: Final = "Swap Summary"
FLOWFILES: Final = "FlowFiles"

_NUMBERS: Final = (
    "Record ID",
    "FlowFile Size",
    "Entry Date",
    "Lineage Start Date",
    "Lineage Start Index",
    "Queued Date",
    "Queued Date Index",
)


class SchemaSwapFile(FlowFileBatches):
    """File with this layout; see `summary.NifiSwapFile`.

    Args:
        name: Name of the file, for errors.
        data: Its bytes.

    Raises:
        CorruptData: It is not such a file, or is damaged before its FlowFiles begin.
    """

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(ByteReader(name, data))
        reader = self._reader
        try:
            self._read_front(reader)
        except TruncatedInput as cut:
            raise reader.corrupt(str(cut), cut.position) from cut

    def _read_front(self, reader: ByteReader) -> None:
        reader.skip(len(MAGIC))
        if not reader.data.startswith(MAGIC):
            raise reader.corrupt("not a swap file: it does not begin with SWAP", 0)
        start = reader.position
        name = reader.utf()
        if name != SERIALIZER:
            raise reader.corrupt(f"written by the unknown serializer {name!r}", start)
        start = reader.position
        fields = read_schema(reader)
        at = reader.position
        if not reader.boolean():
            raise reader.corrupt("the summary is missing", at)
        values: dict[str, object] = {}
        for field in fields:
            if field.name == FLOWFILES:
                self._begin(reader, fields, field, values.get(SUMMARY), start)
                return
            values[field.name] = value_reader(field)(reader)
        raise reader.corrupt(f"the schema has no {FLOWFILES!r}", start)

    def _begin(
        self,
        reader: ByteReader,
        fields: Sequence[Field],
        flowfiles: Field,
        summary: object,
        start: int,
    ) -> None:
        summary_field = next((field for field in fields if field.name == SUMMARY), None)
        if summary_field is None or not isinstance(summary, list):
            raise reader.corrupt(f"the schema has no {SUMMARY!r} before {FLOWFILES!r}", start)
        try:
            self.summary = _summary(summary_field, summary)
            self._read_one = _flowfile_reader(flowfiles)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise reader.corrupt(
                f"the schema is not that of a swap file: {error}", start
            ) from error
        self.format = f"schema V{_version(summary_field, flowfiles)}"
        at = reader.position
        self._expect(reader.int32(), at)


def _version(summary: Field, flowfiles: Field) -> int:
    if summary.find("Min Last Queue Date") is not None:
        return 3
    attributes = flowfiles.find("Attributes")
    return 2 if attributes is not None and attributes.fields[1].type == "LONG_STRING" else 1


def _summary(field: Field, values: list[object]) -> NifiSwapSummary:
    found = dict(zip([part.name for part in field.fields], values, strict=True))
    claims: dict[ResourceClaim, int] = {}
    for claim, count in cast("dict[Sequence[object], int]", found["Resource Claims"]).items():
        claims[_resource(claim)] = count
    return NifiSwapSummary(
        cast("str", found["Queue Identifier"]),
        cast("int", found["FlowFile Count"]),
        cast("int", found["FlowFile Size"]),
        cast("int", found["Max Record ID"]),
        cast("int | None", found.get("Min Last Queue Date")),
        cast("int | None", found.get("Total Last Queue Date")),
        claims,
    )


def _resource(values: Sequence[object]) -> ResourceClaim:
    container, section, identifier, loss_tolerant = values
    return ResourceClaim(
        cast("str", identifier),
        cast("str", container),
        cast("str", section),
        cast("bool", loss_tolerant),
    )


def _flowfile_reader(field: Field) -> Callable[[ByteReader], FlowFile]:
    """Return a function that reads one FlowFile.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type.
    """
    names = [part.name for part in field.fields]
    for name in _NUMBERS:
        if field.fields[names.index(name) if name in names else _missing(name)].type != "LONG":
            raise TypeError(f"{name!r} is not a LONG")
    at_id, at_size, at_entry, at_start, at_index, at_queued, at_queue_index = map(
        names.index, _NUMBERS
    )
    at_claim, at_attributes = (
        names.index(name) if name in names else _missing(name)
        for name in ("Content Claim", "Attributes")
    )
    _check_claim(field.fields[at_claim])
    if not _is_text_map(field.fields[at_attributes]):
        raise TypeError("'Attributes' is not a map of texts")
    read = cast("Callable[[ByteReader], list[int]]", record_reader(field.fields))
    claims: dict[tuple[object, ...], ContentClaim] = {}

    def flowfile(reader: ByteReader) -> FlowFile:
        values = read(reader)
        claim, offset = None, 0
        found = cast("list[object] | None", values[at_claim])
        if found is not None:
            claim, offset = _claim(claims, found)
        attributes = cast("dict[str, str] | None", values[at_attributes])
        return FlowFile(
            values[at_id],
            attributes or {},
            values[at_size],
            claim,
            offset,
            values[at_entry],
            values[at_start],
            values[at_index],
            values[at_queued],
            values[at_queue_index],
        )

    return flowfile


def _is_text_map(field: Field) -> bool:
    return field.type == "MAP" and all(
        part.type in {"STRING", "LONG_STRING"} and part.repetition is Repetition.EXACTLY_ONE
        for part in field.fields
    )


def _missing(name: str) -> int:
    raise KeyError(name)


def _check_claim(field: Field) -> None:
    shape = [(part.name, part.type) for part in field.fields]
    wanted = [
        ("Resource Claim", "COMPLEX"),
        ("Resource Claim Offset", "LONG"),
        ("Content Claim Offset", "LONG"),
        ("Content Claim Length", "LONG"),
    ]
    if shape != wanted or [part.type for part in field.fields[0].fields] != [
        "STRING",
        "STRING",
        "STRING",
        "BOOLEAN",
    ]:
        raise TypeError("'Content Claim' has other fields")


def _claim(
    known: dict[tuple[object, ...], ContentClaim], values: list[object]
) -> tuple[ContentClaim, int]:
    resource, position, offset, length = cast("tuple[list[object], int, int, int]", values)
    key = (*resource, position, length)
    claim = known.get(key)
    if claim is None:
        claim = known[key] = ContentClaim(_resource(resource), position, length)
    return claim, offset


def open_nifi_swap(name: str, data: bytes, *, now_ms: int) -> NifiSwapFile:
    """Read a file up to its FlowFiles.

    Args:
        name: Name of the file, for errors.
        data: Its bytes.
        now_ms: Time of entry into the queue for FlowFiles without one.

    Raises:
        CorruptData: It is not a NiFi swap file, or is damaged before its FlowFiles begin.
    """
    if len(data) < len(MAGIC):
        raise CorruptData(name, len(data), "not a swap file: it has less than 4 bytes")
    if data.startswith(MAGIC):
        return SchemaSwapFile(name, data)
    return LegacySwapFile(name, data, now_ms)
