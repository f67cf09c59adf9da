"""NiFi's swap files: written and read, in every version, and damaged."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapName, recovery_order
from penstock.flow.swap.nifi.primitives import ByteReader, encode_utf
from penstock.flow.swap.nifi.schema_swap_file import open_nifi_swap
from penstock.flow.swap.nifi.swap_schema import write_schema
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from tests.harness.nifi_swap_kit import nifi_swap_bytes, schema_of

QUEUE = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d4"
NOW = 1_700_000_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
longs = st.integers(0, 2**60)  # five of them still add up to a long
claims = st.builds(
    ContentClaim,
    st.builds(ResourceClaim, texts, texts, texts, st.booleans()),
    longs,
    longs,
)
flowfiles = st.builds(
    lambda claim, offset, numbers, attributes: FlowFile(
        numbers[0], attributes, numbers[1], claim, offset if claim else 0, *numbers[2:]
    ),
    st.none() | claims,
    longs,
    st.tuples(*[longs] * 7),
    st.dictionaries(texts, texts, max_size=4),
)


def read(data: bytes) -> tuple[list[FlowFile], CorruptData | None, int]:
    file = open_nifi_swap("a.swap", data, now_ms=NOW)
    found = list(chain.from_iterable(file.batches(3)))
    return found, file.damage, file.missing_count


def three(count: int = 3) -> list[FlowFile]:
    claim = ContentClaim(ResourceClaim("17-1", "default", "1"), 100, 50)
    return [
        FlowFile(n, {"uuid": f"u{n}", "emoji": "😀\0"}, 10, claim, n, 5, 4, 3, 2 + n, 1)
        for n in range(count)
    ]


@given(st.lists(flowfiles, max_size=5), st.integers(1, 3))
def test_what_is_written_is_read(records: list[FlowFile], version: int) -> None:
    data = nifi_swap_bytes(QUEUE, records, version=version)
    file = open_nifi_swap("a.swap", data, now_ms=NOW)
    assert file.format == f"schema V{version}"
    assert list(chain.from_iterable(file.batches(2))) == records
    assert (file.damage, file.missing_count) == (None, 0)
    summary = file.summary
    assert (summary.queue, summary.count) == (QUEUE, len(records))
    assert summary.size_bytes == sum(one.size for one in records)
    assert summary.max_id == max((one.id for one in records), default=-1)
    if version == 3:
        assert summary.total_queued_ms == sum(one.queued_ms for one in records)
    else:
        assert summary.min_queued_ms is None
    assert sum(summary.resource_claims.values()) == sum(one.claim is not None for one in records)


@pytest.mark.parametrize(("version", "sentinel"), [(1, 4_138), (2, 4_148), (3, 4_416)])
def test_the_front_has_the_length_that_nifi_writes(version: int, sentinel: int) -> None:
    data = nifi_swap_bytes(QUEUE, [], version=version)
    front = 31 + len(write_schema(schema_of(version)))
    assert front == sentinel
    assert data[front] == 1


@given(texts | st.text(max_size=8))
def test_modified_utf8_is_javas(text: str) -> None:
    written = encode_utf(text)
    assert b"\0" not in written[2:]
    assert max(written[2:], default=0) < 0xF0
    shown = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert ByteReader("x", written).utf() == shown


def test_a_long_text_is_cut_at_a_character() -> None:
    written = encode_utf("x" + "ä" * 40_000)
    assert struct.unpack(">H", written[:2]) == (65_535,)
    assert ByteReader("x", written).utf() == "x" + "ä" * 32_767


def test_each_cut_costs_what_is_behind_it() -> None:
    records = three()
    data = nifi_swap_bytes(QUEUE, records)
    first = len(nifi_swap_bytes(QUEUE, [])) + 28  # the map of claims holds one then
    for end in range(len(data)):
        try:
            found, damage, missing = read(data[:end])
        except CorruptData:
            assert end <= first + 40
            continue
        assert damage is not None
        assert found == records[: len(found)]
        assert missing == 3 - len(found)


@given(st.data())
def test_each_flipped_byte_is_an_error_or_a_value(data: st.DataObject) -> None:
    written = bytearray(nifi_swap_bytes(QUEUE, three()))
    written[data.draw(st.integers(0, len(written) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptData):
        _, damage, missing = read(bytes(written))
        assert (damage is None) == (missing == 0)


@pytest.mark.parametrize("version", [3, 10])
def test_counts_are_not_believed(version: int) -> None:
    if version == 3:
        data = bytearray(nifi_swap_bytes(QUEUE, three(1)))
        at = data.index(struct.pack(">iq", 1, 0))
        data[at : at + 4] = struct.pack(">i", 2**31 - 1)
    else:
        data = bytearray(
            struct.pack(">i", 10) + encode_utf("c") + struct.pack(">iqq", 2**31 - 1, 5, 7)
        )
    found, damage, missing = read(bytes(data))
    assert damage is not None
    assert missing == 2**31 - 1 - len(found)


def test_fields_that_are_not_known_are_passed_over() -> None:
    data = nifi_swap_bytes(QUEUE, three())
    old = write_schema(schema_of(3))
    extra = b"\0\0\0\4" + b"".join(
        encode_utf(text)
        for text in (
            *("Field Name", "String", "Later"),
            *("Field Type", "String", "LONG_STRING"),
            *("Repetition", "String", "ZERO_OR_ONE"),
            *("SubFields", "SubFieldList"),
        )
    )
    # A third root field, between the summary and the FlowFiles.
    first = old.index(encode_utf("Field Name") + encode_utf("String") + encode_utf("FlowFiles")) - 4
    new = b"\0\0\0\3" + old[4:first] + extra + b"\0\0\0\0" + old[first:]
    end = len(data) - len(_records_of(data))
    changed = data[:31] + new + data[31 + len(old) : end] + b"\1\0\0\0\2ab" + data[end:]
    assert read(changed) == (three(), None, 0)


def _records_of(data: bytes) -> bytes:
    at = data.index(struct.pack(">i7q", 3, 0, 5, 4, 3, 2, 1, 10))
    return data[at:]


def legacy(version: int, records: list[FlowFile]) -> bytes:
    """Write the layout before 1.1, from its description alone."""

    def lstr(text: str) -> bytes:
        body = text.encode()
        if len(body) < 65_535:
            return struct.pack(">H", len(body)) + body
        return b"\xff\xff" + struct.pack(">i", len(body)) + body

    parts = [struct.pack(">i", version), encode_utf(QUEUE)]
    parts.append(struct.pack(">iq", len(records), sum(one.size for one in records)))
    if version > 7:
        parts.append(struct.pack(">q", max(one.id for one in records)))
    for one in records:
        parts.append(b"\1" if version < 3 else b"")
        parts.append(struct.pack(">qq", one.id, one.entry_ms))
        if version > 1:
            parts.append(struct.pack(">i", 1) + encode_utf("parent") if version < 10 else b"")
            parts.append(struct.pack(">q", one.lineage_start_ms))
            parts.append(struct.pack(">q", one.lineage_index) if version > 8 else b"")
            parts.append(struct.pack(">q", one.queued_ms) if version > 5 else b"")
            parts.append(struct.pack(">q", one.queue_index) if version > 8 else b"")
        parts.append(struct.pack(">q", one.size))
        parts.append(lstr(QUEUE) if version < 3 else b"")
        claim = one.claim
        if claim is None:
            parts.append(b"\0")
        else:
            parts.append(b"\1")
            name = claim.resource.id
            parts.append(struct.pack(">q", int(name)) if version < 5 else encode_utf(name))
            parts += [encode_utf(claim.resource.container), encode_utf(claim.resource.section)]
            parts.append(struct.pack(">qq", claim.offset, claim.length) if version >= 6 else b"")
            parts.append(struct.pack(">q", one.content_offset))
            parts.append(b"\0" if version >= 4 else b"")
        parts.append(b"\0" if version < 3 else b"")
        parts.append(struct.pack(">i", len(one.attributes)))
        parts += [lstr(text) for pair in one.attributes.items() for text in pair]
    return b"".join(parts)


@pytest.mark.parametrize("version", range(1, 11))
def test_each_version_before_1_1(version: int) -> None:
    claim = ContentClaim(ResourceClaim("17", "c", "s"), 0 if version < 6 else 9, 12)
    attributes = {"a": "ä", "long": "x" * 70_000}
    records = [
        FlowFile(
            7,
            attributes,
            10,
            claim,
            2,
            50,
            40 if version > 1 else 50,
            3 if version > 8 else 0,
            30 if version > 5 else NOW,
            2 if version > 8 else 0,
        ),
        FlowFile(
            8,
            {},
            0,
            None,
            0,
            50,
            40 if version > 1 else 50,
            3 if version > 8 else 0,
            30 if version > 5 else NOW,
            2 if version > 8 else 0,
        ),
    ]
    data = legacy(version, records)
    file = open_nifi_swap("old.swap", data, now_ms=NOW)
    assert file.format == f"legacy {version}"
    assert list(file.batches(10)) == [records]
    assert file.summary.max_id == (8 if version > 7 else None)
    for end in range(len(data) - 1, 0, -(len(data) // 400)):
        try:
            found, damage, missing = read(data[:end])
        except CorruptData:
            assert end < 80
        else:
            assert damage is not None
            assert found == records[: len(found)]
            assert missing == 2 - len(found)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "less than 4 bytes"),
        (b"SWA", "less than 4 bytes"),
        (b"SWAP", "ends within"),
        (b"SWAP" + encode_utf("Another"), "unknown serializer 'Another'"),
        (b"\0\0\0\x0b" + b"\0" * 40, "version from 1 to 10"),
        (b"PAR1" + b"\0" * 40, "version from 1 to 10"),
        (b"SWAP" + encode_utf("Schema Swap Serialization") + b"\xff" * 4, "count of -1"),
        (b"SWAP" + encode_utf("Schema Swap Serialization") + b"\0\0\0\0\1", "no 'FlowFiles'"),
    ],
)
def test_what_is_no_swap_file(data: bytes, says: str) -> None:
    with pytest.raises(CorruptData, match=says):
        read(data)


def test_names() -> None:
    name = f"1438888888888-{QUEUE}-11111111-2222-3333-4444-555555555555.swap"
    assert NifiSwapName.parse(name) == NifiSwapName(1438888888888, QUEUE, unfinished=False)
    part = name.replace(".swap", ".local.swap.part")
    assert NifiSwapName.parse(part) == NifiSwapName(1438888888888, QUEUE, unfinished=True)
    assert NifiSwapName.parse(f"17-{QUEUE}.swap") == NifiSwapName(17, None, unfinished=False)
    for ignored in ("x.swap", "12-a.txt", "-1-a.swap", "12-a.swap.bak", ""):
        assert NifiSwapName.parse(ignored) is None
    paths = ["/b/x.swap", "/b/9-b.swap", "/a/9-b.swap", "/z/8-c.swap"]
    assert sorted(paths, key=recovery_order) == [
        "/z/8-c.swap",
        "/a/9-b.swap",
        "/b/9-b.swap",
        "/b/x.swap",
    ]
