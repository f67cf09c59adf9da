"""Avro from outside: whatever its bytes are, an error names the file; and numbers stay exact."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.avro_bounds import unpacks_to_more
from penstock.core.errors import CorruptData, InvalidRequest
from penstock.spark.batch.input.avro_files import read_avro
from penstock.spark.batch.input.file_splits import InputFile

NUMBERS: Mapping[str, object] = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "number", "type": ["null", "long", "double"]}],
}
MANY: Mapping[str, object] = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "number", "type": ["null", "long", "double"]},
        {"name": "text", "type": "string"},
        {"name": "list", "type": {"type": "array", "items": "bytes"}},
    ],
}


def packed(schema: Mapping[str, object], rows: list[dict[str, object]]) -> bytes:
    stored = io.BytesIO()
    fastavro.writer(stored, schema, rows)
    return stored.getvalue()


GOOD = packed(MANY, [{"number": n, "text": "t" * n, "list": [b"a"] * n} for n in range(8)])


def read(raw: bytes) -> list[object]:
    file = InputFile("a.avro", "a.avro", len(raw), 0)
    wanted = frozenset({"number", "text", "list"})
    batches = read_avro(pa.BufferReader(raw), file, wanted)
    return [row for _, batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("cut", [10, len(GOOD) - 1, len(GOOD) - 20])
def test_a_file_that_is_cut_is_damaged_at_its_end(cut: int) -> None:
    with pytest.raises(CorruptData, match=rf"a\.avro: damaged at byte {cut}: "):
        read(GOOD[:cut])


def with_schema(schema: str) -> bytes:
    """Return a file whose header has this text for a schema, and no rows."""
    stored = io.BytesIO()
    meta = {"avro.schema": schema.encode(), "avro.codec": b"null"}
    header = fastavro.parse_schema(
        {
            "type": "record",
            "name": "header",
            "fields": [
                {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
                {"name": "meta", "type": {"type": "map", "values": "bytes"}},
                {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": 16}},
            ],
        }
    )
    fastavro.schemaless_writer(
        stored, header, {"magic": b"Obj\x01", "meta": meta, "sync": b"s" * 16}
    )
    return stored.getvalue()


@pytest.mark.parametrize(
    "schema",
    [
        json.dumps({"type": "record", "fields": []}),
        '{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000,
        json.dumps({"type": "record", "name": "a", "fields": [{"name": "b", "type": "c"}]}),
    ],
    ids=["no name", "endless", "unknown type"],
)
def test_a_schema_that_is_none(schema: str) -> None:
    with pytest.raises(CorruptData, match=r"a\.avro.*check that the file is complete"):
        read(with_schema(schema))


def test_a_length_below_nothing() -> None:
    # The first row has a text of 0 bytes: now it says that it has -1.
    at = GOOD.rindex(b"\x02\x00\x00\x00") + 2
    with pytest.raises(CorruptData, match=r"a\.avro"):
        read(GOOD[:at] + b"\x01" + GOOD[at + 1 :])


@given(st.data())
def test_any_damage_is_an_error_of_ours(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GOOD) - 1))
    end = data.draw(st.integers(at, min(at + 20, len(GOOD))))
    with_damage = GOOD[:at] + data.draw(st.binary(max_size=5)) + GOOD[end:]
    with contextlib.suppress(CorruptData, InvalidRequest):
        read(with_damage)


def test_integers_that_no_double_holds_stay_exact_beside_fractions() -> None:
    large = 2**60 + 1
    rows: list[dict[str, object]] = [{"number": large}, {"number": 0.5}, {"number": None}]
    assert read(packed(NUMBERS, rows)) == [
        {"number": str(large)},
        {"number": "0.5"},
        {"number": None},
    ]


@pytest.mark.parametrize("told", [-1, 1, 3], ids=["below none", "too few", "too many"])
def test_a_block_has_as_many_records_as_it_tells(told: int) -> None:
    raw = packed(NUMBERS, [{"number": None}, {"number": None}])
    # The block: how many (2), how many bytes (2), two nulls, and 16 bytes of a mark.
    assert raw[-20:-16] == b"\x04\x04\x00\x00"
    count = bytes([told << 1 if told >= 0 else (-told << 1) - 1])
    with pytest.raises(CorruptData, match=r"a\.avro"):
        read(raw[:-20] + count + raw[-19:])


def test_rows_without_bytes_are_not_gathered_whole() -> None:
    schema = {"type": "record", "name": "row", "fields": [{"name": "text", "type": "null"}]}
    stored = io.BytesIO()
    fastavro.writer(stored, schema, [{"text": None}])
    raw = stored.getvalue()
    assert raw[-18:-16] == b"\x02\x00"
    # One block of 2**19 rows.
    many = raw[:-18] + b"\x80\x80\x40" + raw[-17:]
    file = InputFile("a.avro", "a.avro", len(many), 0)
    batches = read_avro(pa.BufferReader(many), file, frozenset({"text"}))
    first, second = next(batches), next(batches)
    assert [first[0], second[0]] == [0, first[1].num_rows]
    # And one of 2**40.
    endless = raw[:-18] + b"\x80\x80\x80\x80\x80\x40" + raw[-17:]
    with pytest.raises(InvalidRequest, match=r"a\.avro: with the block at byte \d+ the file"):
        next(read_avro(pa.BufferReader(endless), file, frozenset({"text"})))


ZEROS: Mapping[str, object] = {
    "type": "record",
    "name": "row",
    "fields": [{"name": "text", "type": "string"}],
}


def in_one_block(codec: str, size: int) -> bytes:
    stored = io.BytesIO()
    small, large = {"text": "a"}, {"text": "0" * size}
    fastavro.writer(stored, ZEROS, [small, small, large], codec=codec, sync_interval=1)
    return stored.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_block_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(codec: str) -> None:
    raw = in_one_block(codec, 200_000)
    file = InputFile("a.avro", "a.avro", len(raw), 0)

    def rows(bytes_max: int) -> int:
        found = read_avro(
            pa.BufferReader(raw), file, frozenset({"text"}), block_bytes_max=bytes_max
        )
        return sum(batch.num_rows for _, batch in found)

    assert rows(200_100) == 3
    with pytest.raises(InvalidRequest, match=r"a\.avro: the block at byte \d+ unpacks to more"):
        rows(199_999)


def test_the_length_of_a_block_is_known_for_codecs_that_are_not_installed() -> None:
    plain = b"0" * 300_000
    snappy = pa.Codec("snappy").compress(plain, asbytes=True)
    lz4 = len(plain).to_bytes(4, "little") + pa.Codec("lz4_raw").compress(plain, asbytes=True)
    for codec, data in (
        ("zstandard", pa.Codec("zstd").compress(plain, asbytes=True)),
        ("snappy", snappy),
        ("lz4", lz4),
    ):
        head = io.BytesIO()
        for number in (1, len(data)):
            fastavro.schemaless_writer(head, "long", number)
        stored = pa.BufferReader(head.getvalue() + data)
        assert unpacks_to_more(stored, codec, 299_999), codec
        assert not unpacks_to_more(stored, codec, 300_000), codec
        assert stored.tell() == 0
