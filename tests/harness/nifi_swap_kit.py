"""Writes NiFi's swap files, in the current format or one before it; Penstock only reads them.

Owns the schemas of the three versions. Does not own files: the caller gives the bytes a name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.primitives import encode_lutf, encode_utf
from penstock.flow.swap.nifi.schema_swap_file import (
    FLOWFILES,
    INLINE_RECORD,
    MAGIC,
    SERIALIZER,
    SUMMARY,
)
from penstock.flow.swap.nifi.swap_schema import Field, Repetition, write_schema
from penstock.storage.content.claims import ContentClaim, ResourceClaim

CURRENT_VERSION: Final = 3

_RESOURCE: Final = (
    Field("Container", "STRING"),
    Field("Section", "STRING"),
    Field("Identifier", "STRING"),
    Field("Loss Tolerant", "BOOLEAN"),
)
_NUMBERS: Final = (
    "Record ID",
    "Entry Date",
    "Lineage Start Date",
    "Lineage Start Index",
    "Queued Date",
    "Queued Date Index",
    "FlowFile Size",
)
_LONGS: Final = struct.Struct(">7q")
_CLAIM_LONGS: Final = struct.Struct(">3q")


def schema_of(version: int) -> tuple[Field, ...]:
    """Return the schema of a version, 1 to 3."""
    claims = Field(
        "Resource Claims",
        "MAP",
        fields=(
            Field("Resource Claim", "COMPLEX", fields=_RESOURCE),
            Field("Claim Count", "INT"),
        ),
    )
    dates = (
        (Field("Min Last Queue Date", "LONG"), Field("Total Last Queue Date", "LONG"))
        if version >= 3
        else ()
    )
    summary = Field(
        SUMMARY,
        "COMPLEX",
        fields=(
            Field("Queue Identifier", "STRING"),
            Field("FlowFile Count", "INT"),
            Field("FlowFile Size", "LONG"),
            Field("Max Record ID", "LONG"),
            *dates,
            claims,
        ),
    )
    text = "STRING" if version == 1 else "LONG_STRING"
    flowfiles = Field(
        FLOWFILES,
        "COMPLEX",
        Repetition.ZERO_OR_MORE,
        (
            *(Field(name, "LONG") for name in _NUMBERS),
            Field(
                "Content Claim",
                "COMPLEX",
                Repetition.ZERO_OR_ONE,
                (
                    Field("Resource Claim", "COMPLEX", fields=_RESOURCE),
                    Field("Resource Claim Offset", "LONG"),
                    Field("Content Claim Offset", "LONG"),
                    Field("Content Claim Length", "LONG"),
                ),
            ),
            Field(
                "Attributes",
                "MAP",
                Repetition.ZERO_OR_ONE,
                (Field("Attribute Name", text), Field("Attribute Value", text)),
            ),
        ),
    )
    return summary, flowfiles


def nifi_swap_bytes(
    queue: str, flowfiles: Sequence[FlowFile], *, version: int = CURRENT_VERSION
) -> bytes:
    """Return the bytes of a swap file.

    Args:
        queue: Id of the connection, with a UUID in it, or NiFi refuses the file.
        flowfiles: In the order of the file: the first to go comes last.
        version: Of the schema, 1 to 3.
    """
    encode = encode_utf if version == 1 else encode_lutf
    parts = [MAGIC, encode_utf(SERIALIZER), write_schema(schema_of(version)), INLINE_RECORD]
    parts.append(_summary(queue, flowfiles, version))
    parts.append(struct.pack(">i", len(flowfiles)))
    for flowfile in flowfiles:
        parts.append(
            _LONGS.pack(
                flowfile.id,
                flowfile.entry_ms,
                flowfile.lineage_start_ms,
                flowfile.lineage_index,
                flowfile.queued_ms,
                flowfile.queue_index,
                flowfile.size,
            )
        )
        parts.append(_claim(flowfile.claim, flowfile.content_offset))
        parts.append(b"\x01" + struct.pack(">i", len(flowfile.attributes)))
        for name, value in flowfile.attributes.items():
            parts += [encode(name), encode(value)]
    return b"".join(parts)


def _summary(queue: str, flowfiles: Sequence[FlowFile], version: int) -> bytes:
    claims = Counter(one.claim.resource for one in flowfiles if one.claim is not None)
    queued = [one.queued_ms for one in flowfiles]
    parts = [
        encode_utf(queue),
        struct.pack(
            ">iqq",
            len(flowfiles),
            sum(one.size for one in flowfiles),
            max((one.id for one in flowfiles), default=-1),
        ),
    ]
    if version >= 3:
        parts.append(struct.pack(">qq", min(queued, default=0), sum(queued)))
    parts.append(struct.pack(">i", len(claims)))
    for resource, count in claims.items():
        parts += [_resource(resource), struct.pack(">i", count)]
    return b"".join(parts)


def _resource(claim: ResourceClaim) -> bytes:
    texts = (claim.container, claim.section, claim.id)
    return b"".join(map(encode_utf, texts)) + bytes([claim.loss_tolerant])


def _claim(claim: ContentClaim | None, offset: int) -> bytes:
    if claim is None:
        return b"\x00"
    longs = _CLAIM_LONGS.pack(claim.offset, offset, claim.length)
    return b"\x01" + _resource(claim.resource) + longs
