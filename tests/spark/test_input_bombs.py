"""Small files that stand for gigabytes, or for rows without end: refused, or their rows counted.

A forked process reads each of them. It may allocate 120 to 600 MB and use 40 s of CPU time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import bombs
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from penstock.core import orc_bounds
from penstock.core.avro_bounds import endless_array, is_empty
from penstock.core.errors import InvalidRequest
from penstock.core.parquet_bounds import check_rows, runs_of_groups
from penstock.spark.batch.input.columnar import groups_of, read_columns
from penstock.spark.batch.input.splits import InputFile, Source, Split
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField

LONG = "longer than 8388608 bytes"


@pytest.fixture(scope="module")
def child() -> Iterator[bombs.Child]:
    with bombs.Child() as child:
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
            "a.parquet: the values of column 'name' in row group 0 take 545,",
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
    ("kind", "name", "make", "expected"),
    [
        ("avro", "a.avro", bombs.avro_wide_records, bombs.Read(bombs.WIDE_RECORDS)),
        ("parquet", "a.parquet", bombs.parquet_dictionary, bombs.Read(bombs.DICTIONARY_ROWS)),
        ("parquet", "a.parquet", bombs.parquet_long_value, bombs.Read(2, 1, (f"1: {LONG}",))),
        ("orc", "a.orc", bombs.orc_repeated_values, bombs.Read(bombs.ORC_ROWS)),
        ("orc", "a.orc", bombs.orc_long_value, bombs.Read(2, 1, (f"1: {LONG}",))),
        ("json", "a.json.gz", bombs.zeros, bombs.Read(0, 1, (f"0: {LONG}",))),
    ],
)
def test_what_is_large_is_read_piece_by_piece(
    child: bombs.Child, tmp_path: Path, kind: str, name: str, make: bombs.Make, expected: bombs.Read
) -> None:
    make(tmp_path / name)
    assert child.read("batch", kind, tmp_path / name, memory_mb=500) == expected


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


@pytest.mark.parametrize(
    ("make", "columns"),
    [
        (bombs.json_many_keys, 100_000),
        (bombs.json_keys_of_their_own, 100_000),
        (bombs.json_nested_keys, 2),
    ],
)
def test_columns_are_found_in_small_pieces(
    child: bombs.Child, tmp_path: Path, make: bombs.Make, columns: int
) -> None:
    make(tmp_path / "a.json")
    found = child.read("look", "json", tmp_path / "a.json", memory_mb=500)
    assert (found.columns, found.error) == (columns, "")


def test_memory_that_runs_out_is_reported_with_the_file_and_the_limit(
    child: bombs.Child, tmp_path: Path
) -> None:
    table = pa.table({"at": ["2013-01-01"], "name": ["0" * (300 << 20)]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", write_statistics=False)
    found = child.read("batch", "parquet", tmp_path / "a.parquet", memory_mb=100)
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
