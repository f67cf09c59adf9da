"""Small files that stand for gigabytes, or for rows without end: refused, or their rows counted.

A forked process reads each of them. It may allocate 75 to 500 MB and use 40 s of CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from penstock.core import orc_bounds
from penstock.core.avro_bounds import endless_array, is_empty
from penstock.core.errors import InvalidRequest
from penstock.core.out_of_memory import is_out_of_memory
from penstock.core.parquet_bounds import check_rows, runs_of_groups
from penstock.spark.batch.input.columnar import groups_of, read_columns
from penstock.spark.batch.input.dimension_discovery import found_one_by_one
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.topic import coerce, parse
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField
from tests.kits import bombs_kit as bombs

LONG = "longer than 8388608 bytes"


@pytest.fixture(scope="module")
def child() -> Iterator[bombs.Child]:
    with bombs.Child(bombs.SMALLER) as child:
        yield child


@pytest.mark.parametrize(
    ("kind", "name", "make", "error"),
    [
        ("avro", "a.avro", bombs.avro_array_of_nulls, "a.avro: field 'tags' is an array of values"),
        ("avro", "a.avro", bombs.avro_empty_records, "announces 1,099,511,627,776 records"),
        (
            "avro",
            "a.avro",
            bombs.avro_deep_record,
            "a.avro: field 'next' is of a type",
        ),
        ("avro", "a.avro", bombs.avro_zeros, "a.avro: the block at byte"),
        (
            "parquet",
            "a.parquet",
            bombs.parquet_huge_values,
            "a.parquet: the values of column 'name' in row group 0 take 68,157,",
        ),
        (
            "parquet",
            "a.parquet",
            bombs.parquet_null_values,
            "in row group 0 take 214,748,364,800 bytes",
        ),
        (
            "delimited",
            "a.csv",
            bombs.csv_many_columns,
            "a.csv:1: the header names 200,001 columns, more than 100,000",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    child: bombs.Child, tmp_path: Path, kind: str, name: str, make: bombs.Make, error: str
) -> None:
    make(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 32 << 20
    assert error in child.read("batch", kind, tmp_path / name, memory_mb=500).error


@pytest.mark.parametrize(
    ("kind", "name", "make", "memory_mb", "expected"),
    [
        ("avro", "a.avro", bombs.avro_wide_records, 90, bombs.Read(bombs.WIDE_RECORDS)),
        ("parquet", "a.parquet", bombs.parquet_dictionary, 125, bombs.Read(bombs.DICTIONARY_ROWS)),
        ("parquet", "a.parquet", bombs.parquet_prefixes, 75, bombs.Read(bombs.PREFIX_ROWS)),
        ("parquet", "a.parquet", bombs.parquet_long_value, 500, bombs.Read(2, 1, (f"1: {LONG}",))),
        ("orc", "a.orc", bombs.orc_repeated_values, 100, bombs.Read(bombs.ORC_ROWS)),
        ("orc", "a.orc", bombs.orc_long_value, 500, bombs.Read(2, 1, (f"1: {LONG}",))),
        ("json", "a.json.gz", bombs.zeros, 500, bombs.Read(0, 1, (f"0: {LONG}",))),
    ],
)
def test_what_is_large_is_read_piece_by_piece(
    child: bombs.Child,
    tmp_path: Path,
    kind: str,
    name: str,
    make: bombs.Make,
    memory_mb: int,
    expected: bombs.Read,
) -> None:
    make(tmp_path / name)
    assert child.read("batch", kind, tmp_path / name, memory_mb=memory_mb) == expected


def test_very_many_lines_that_do_not_parse_are_counted(child: bombs.Child, tmp_path: Path) -> None:
    bombs.short_lines(tmp_path / "a.json.gz")
    found = child.read("batch", "json", tmp_path / "a.json.gz", memory_mb=120)
    assert (found.rows, found.bad, found.error) == (0, bombs.SHORT_LINES, "")
    assert found.reasons[0].startswith("0: not JSON")


def test_very_many_values_of_a_line_are_not_taken_apart(child: bombs.Child, tmp_path: Path) -> None:
    bombs.csv_many_values(tmp_path / "a.csv")
    found = child.read("batch", "delimited", tmp_path / "a.csv", memory_mb=150)
    assert found == bombs.Read(1, 1, ("1: more than 1,000,000 values",))


def test_an_object_without_end_is_one_row(child: bombs.Child, tmp_path: Path) -> None:
    bombs.json_open_braces(tmp_path / "a.json.gz")
    found = child.read("batch", "json", tmp_path / "a.json.gz")
    assert (found.rows, found.bad, found.error) == (0, 1, "")


def test_a_quote_without_end_costs_its_line_alone(child: bombs.Child, tmp_path: Path) -> None:
    bombs.csv_open_quote(tmp_path / "a.csv")
    found = child.read("batch", "delimited", tmp_path / "a.csv")
    assert (found.bad, found.error) == (1, "")
    assert found.rows > 1_000_000
    assert found.reasons[0].startswith("2: not delimited text")


def test_an_object_of_very_many_keys_is_a_row_or_a_bad_one(
    child: bombs.Child, tmp_path: Path
) -> None:
    bombs.json_a_million_keys(tmp_path / "keys.json")
    found = child.read("batch", "json", tmp_path / "keys.json")
    assert found == bombs.Read(2, 1, ("1: more than 1,000,000 keys",))


def test_columns_of_an_object_in_an_object_are_one(child: bombs.Child, tmp_path: Path) -> None:
    bombs.json_nested_keys(tmp_path / "a.json")
    found = child.read("look", "json", tmp_path / "a.json", memory_mb=500)
    assert (found.columns, found.error) == (2, "")


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (bombs.json_many_keys, "keys.json:1:"),
        (bombs.json_keys_of_their_own, r"keys.json:100\d\d\d:"),
    ],
)
def test_more_columns_than_can_be_found_have_a_place(
    child: bombs.Child, tmp_path: Path, make: bombs.Make, place: str
) -> None:
    make(tmp_path / "keys.json")
    found = child.read("look", "json", tmp_path / "keys.json", memory_mb=500)
    assert re.match(place + " more than 100,000 different columns up to here", found.error)


def test_too_little_memory_for_a_message_does_not_make_it_a_bad_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(text: bytes) -> object:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    monkeypatch.setattr(coerce.orjson, "loads", no_memory)
    with pytest.raises(MemoryError):
        coerce.object_of(b"{}")
    error = SystemError("<built-in function loads> returned a result with an exception set")
    assert not is_out_of_memory(error)
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)


def test_messages_of_very_many_keys_are_refused_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coerce, "KEYS_MAX", 3)
    monkeypatch.setattr(coerce, "KEYS_BYTES_MIN", 15)
    monkeypatch.setattr(parse, "KEYS_BYTES_MIN", 15)
    parser = parse.MessageParser(RowShape((("a", FieldType.STRING),), None))
    few, many = b'{"a":"::\\":","b":{"c":1}}', b'{"a":"1","b":{"c":1,"d":2}}'
    for messages, bad in (([few] * 3, []), ([few, many, few], [1]), ([many] * 2, [0, 1])):
        parsed = parser.parse(pa.array(messages, pa.binary()))
        assert [(one.index, one.reason) for one in parsed.bad] == [
            (index, "more than 3 keys") for index in bad
        ]
        assert parsed.rows.num_rows == len(messages) - len(bad)
        ends = np.cumsum([len(one) + 1 for one in messages]) - 1
        starts = ends - [len(one) for one in messages]
        text = pa.py_buffer(b"\n".join(messages))
        assert [one.index for one in parser.parse_lines(text, starts, ends).bad] == bad
    assert list(found_one_by_one(pa.array([many, few], pa.binary()))) == [
        {"a": "string", "b": "json"}
    ]


def test_memory_that_runs_out_is_reported_with_the_file_and_the_limit(
    child: bombs.Child, tmp_path: Path
) -> None:
    table = pa.table({"at": ["2013-01-01"], "name": ["0" * (60 << 20)]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", write_statistics=False)
    found = child.read("batch", "parquet", tmp_path / "a.parquet", memory_mb=50)
    pattern = r"ran out of its memory limit of [\d,]+ MB while reading a\.parquet: split the file"
    assert re.search(pattern, found.error)


def test_a_parquet_file_that_is_cut_is_damaged_at_no_place(
    child: bombs.Child, tmp_path: Path
) -> None:
    """Arrow does not report the place; it is not the first byte."""
    pq.write_table(pa.table({"at": ["2013-01-01"] * 9}), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) - 20])
    found = child.read("batch", "parquet", tmp_path / "a.parquet")
    assert found.error.startswith("a.parquet: damaged: Parquet magic bytes not found in footer")


def test_a_file_has_not_more_rows_than_its_bytes_can_be_meant_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.nulls(300_000)}), tmp_path / "a.parquet")
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    check_rows(metadata, 3, "a.parquet")
    with pytest.raises(InvalidRequest, match=r"a\.parquet: the footer announces 300,000 rows in 2"):
        check_rows(metadata, 2, "a.parquet")


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "lz4", "zstd"])
def test_a_stripe_of_orc_is_read_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    monkeypatch.setattr(orc_bounds, "STRIPE_BYTES_MAX", 1 << 10)
    monkeypatch.setattr(orc_bounds, "BATCH_ROWS_MAX", 100)
    rows = 5_000
    nested = [[{"key": "x" * (number % 3)}] for number in range(rows)]
    table = pa.table({"at": ["2013"] * rows, "name": [*map(str, range(rows))], "other": nested})
    po.write_table(table, tmp_path / "a.orc", compression=codec, stripe_size=16 << 10)
    shape = RowShape((("name", FieldType.STRING), ("other", FieldType.STRING)), TimeField("at"))
    file = InputFile(str(tmp_path / "a.orc"), "a.orc", 1, 0)
    source = Source("orc", shape)
    stripes = groups_of(file, source)
    assert stripes > 1 or codec != "uncompressed"
    found = []
    for stripe in range(stripes):
        for at, batch in read_columns(Split(file, stripe, stripe + 1), source):
            assert batch.num_rows <= 100
            assert at == sum(map(len, found))
            found.append(batch)
    assert pa.Table.from_batches(found).equals(table)


def test_a_stripe_of_orc_has_bounds_by_its_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"at": ["2013"] * 64, "name": ["0" * 1_000] * 64})
    po.write_table(table, tmp_path / "a.orc")
    with pa.OSFile(str(tmp_path / "a.orc")) as stored:
        tail = orc_bounds.OrcTail.open(stored, "a.orc")
        assert tail is not None
        assert tail.rows_at_once(0, None, "a.orc") is None
        monkeypatch.setattr(orc_bounds, "VALUE_BYTES_MAX", 999)
        assert tail.rows_at_once(0, ["at"], "a.orc") is None
        with pytest.raises(InvalidRequest, match=r"a\.orc: the values of column 'name' in stripe"):
            tail.rows_at_once(0, None, "a.orc")
        monkeypatch.setattr(orc_bounds, "ROWS_PER_BYTE_MAX", 0)
        with pytest.raises(InvalidRequest, match=r"a\.orc: the footer announces 64 rows in"):
            orc_bounds.OrcTail.open(stored, "a.orc")
        monkeypatch.setattr(orc_bounds, "FIELDS_MAX", 4)
        with pytest.raises(InvalidRequest, match=r"a\.orc: the footer has more than .* fields"):
            orc_bounds.OrcTail.open(stored, "a.orc")


def test_a_file_that_is_no_orc_has_no_tail(tmp_path: Path) -> None:
    for data in (b"", b"\3ORC", bytes(100), b"x" * 300, b"\x08\xff\xff\xff\x07ORC\x08"):
        (tmp_path / "a.orc").write_bytes(data)
        with pa.OSFile(str(tmp_path / "a.orc")) as stored:
            assert orc_bounds.OrcTail.open(stored, "a.orc") is None


def test_small_row_groups_are_read_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x"] * 1_000}), tmp_path / "a.parquet", row_group_size=10)
    file = pq.ParquetFile(tmp_path / "a.parquet")
    nothing = pa.BufferReader(b"")  # the footer suffices
    runs = list(runs_of_groups(nothing, file.metadata, range(100), None, 300, "a.parquet"))
    assert [len(run) for run, _ in runs] == [30, 30, 30, 10]
    assert {rows for _, rows in runs} == {300}


def test_which_values_of_avro_take_no_bytes() -> None:
    nothing = {"type": "record", "name": "nothing", "fields": [{"name": "a", "type": "null"}]}
    holds = {"type": "record", "name": "own", "fields": [{"name": "a", "type": ["null", "own"]}]}
    for schema in ("null", {"type": "null"}, nothing, {"type": "fixed", "name": "f", "size": 0}):
        assert is_empty(schema)
        assert endless_array({"type": "array", "items": schema}) == ""
    for schema in ("int", ["null"], holds, {"type": "array", "items": "int"}):
        assert not is_empty(schema)
        assert endless_array({"type": "array", "items": schema}) is None
    inner = {"type": "map", "values": ["null", {"type": "array", "items": "nothing"}]}
    fields = [{"name": "a", "type": nothing}, {"name": "b", "type": inner}]
    assert endless_array({"type": "record", "name": "row", "fields": fields}) == "b{}"
