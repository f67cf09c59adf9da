"""Rows of lookups: each kind of file, and rows that are not accepted. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.indexing.specs.lookup_spec import checked_lookup
from penstock.spark.batch.input.lookup_rows import LookupReader, rows_of_map
from penstock.spark.batch.options import SparkBatchOptions
from penstock.storage.lookup_rows import read_rows, written_rows

COLUMNS = {"key": "c", "columns": [{"name": "n"}, {"name": "size", "type": "long"}]}
CSV = {"type": "csv", "findColumnsFromHeader": True}
TSV = {"type": "tsv", "columns": ["c", "n", "size"]}
DOUBLE = {"columns": [{"name": "n", "type": "double"}]}
WANTED = [{"c": "a", "n": "A", "size": 1}, {"c": "b", "n": None, "size": None}]


def read(folder: Path, content: Mapping[str, bytes], **spec: object) -> pa.Table:
    for name, data in content.items():
        (folder / name).write_bytes(data)
    source = {"type": "local", "files": [str(folder / name) for name in content]}
    parsed = checked_lookup({"name": "l", "inputSource": source, **COLUMNS, **spec})
    return LookupReader(parsed, SparkBatchOptions(), folder / "scratch").read()


@pytest.mark.parametrize(
    ("format_", "content"),
    [
        (CSV, b"x,size,c,n\n0,1,a,A\n0,,b,\n"),
        ({"type": "csv", "columns": ["c", "n", "size"]}, b"a,A,1\nb,,\n"),
        ({**TSV, "skipHeaderRows": 1}, b"-\na\tA\t1\nb\t\t\n"),
        ({"type": "json"}, b'{"c": "a", "n": "A", "size": 1}\n{"c": "b", "x": 1}\n'),
    ],
    ids=["csv with a header", "csv", "tsv", "json lines"],
)  # fmt: skip
def test_files_are_read_as_a_task_reads_them(
    tmp_path: Path, format_: Mapping[str, object], content: bytes
) -> None:
    assert read(tmp_path, {"x": content}, inputFormat=format_).to_pylist() == WANTED


def test_several_files_are_one_table_and_are_stored_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"size": pa.array([1], pa.int32()), "c": ["a"], "n": ["A"]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.set_column(1, "c", pa.array(["b"])), tmp_path / "b.parquet")
    files = {name: (tmp_path / name).read_bytes() for name in ("a.parquet", "b.parquet")}
    found = read(tmp_path, files, inputFormat={"type": "parquet"})
    assert found.column("c").to_pylist() == ["a", "b"]
    stored = written_rows(found)
    assert (stored.rows, read_rows("l", stored.data)) == (2, found)
    with pytest.raises(CorruptData, match="apply its spec again"):
        read_rows("l", stored.data[:-9])


@pytest.mark.parametrize(
    ("content", "spec", "reason"),
    [
        (b"c,n,size\na,A,1\na,B,2\n", {}, "row 1 has the key 'a', which a later row has"),
        (b"c,n,size\n,A,1\n", {}, "row 1 has no 'c'"),
        (b"c,n,size\na,A,one\n", {}, "x, line 2: .*size"),
        (b"c,name,size\na,A,1\n", {}, "x has no column 'n': its columns are 'c', 'name', 'size'"),
        (b"c,n,size\na,A,1\nb,B,2\n", {"maxRows": 1}, "more than 1 rows"),
        (b"c,n,size\na,A,1\n", {"maxBytes": 5}, "bytes, more than 5"),
        (b"c,n\na,NaN\n", DOUBLE, "not a double"),
    ],
)  # fmt: skip
def test_rows_that_no_lookup_may_have_are_refused(
    tmp_path: Path, content: bytes, spec: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        read(tmp_path, {"x": content}, inputFormat=CSV, **spec)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_numbers_are_finite(tmp_path: Path, number: float) -> None:
    pq.write_table(pa.table({"c": ["a", "b"], "n": [1.5, number]}), tmp_path / "x")
    with pytest.raises(InvalidRequest, match="row 2, key 'b', has no finite number as 'n'"):
        read(
            tmp_path,
            {"x": (tmp_path / "x").read_bytes()},
            inputFormat={"type": "parquet"},
            **DOUBLE,
        )


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    source = {"type": "local", "files": [str(tmp_path / "absent")]}
    spec = checked_lookup({"name": "l", "inputSource": source, "inputFormat": CSV, **COLUMNS})
    with pytest.raises(NotFound, match="absent"):
        LookupReader(spec, SparkBatchOptions(), tmp_path / "scratch").read()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), max_size=12))
def test_the_last_row_of_a_key_counts_if_the_spec_says_so(rows: list[tuple[str, str]]) -> None:
    # A map has each key once, so the rows come as a table.
    from penstock.spark.batch.input.lookup_rows import checked_rows

    spec = checked_lookup({"name": "l", "map": {}, "duplicates": "last"})
    keys, values = ([row[at] for row in rows] for at in (0, 1))
    table = pa.table({"k": pa.array(keys, pa.string()), "v": pa.array(values, pa.string())})
    found = checked_rows(table, spec)
    assert dict(zip(*found.to_pydict().values(), strict=True)) == dict(rows)
    assert found.num_rows == len(dict(rows))


@given(st.dictionaries(st.text(max_size=20), st.none() | st.text(max_size=20), max_size=8))
def test_a_map_is_stored_as_it_is(entries: dict[str, str | None]) -> None:
    try:
        spec = checked_lookup({"name": "l", "map": entries})
        found = rows_of_map(spec)
    except InvalidRequest:
        return  # half of a surrogate pair
    stored = read_rows("l", written_rows(found).data)
    assert dict(zip(*stored.to_pydict().values(), strict=True)) == entries
