"""Columns of Parquet whose names contain dots have the same bounds as others."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.parquet_bounds import BATCH_BYTES_MAX, runs_of_groups

ROWS = 1 << 16
LENGTH = 100_000


def repeated(length: int = LENGTH) -> pa.Array:
    indices = pa.array([0] * 60_000, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, ["0" * length])


def stored(table: pa.Table, **form: object) -> pa.BufferReader:
    raw = io.BytesIO()
    pq.write_table(table, raw, compression="zstd", dictionary_pagesize_limit=1 << 20, **form)
    return pa.BufferReader(raw.getvalue())


def rows_at_once(file: pa.BufferReader, names: list[str] | None) -> int:
    [(_, rows)] = runs_of_groups(file, pq.read_metadata(file), [0], names, ROWS, "a.parquet")
    return rows


@pytest.mark.parametrize("name", ["username", "user.name", ".", "user."])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_column_whose_name_contains_dots_is_bounded(name: str, is_named: bool) -> None:
    file = stored(pa.table({"id": [1] * 60_000, name: repeated()}))
    rows = rows_at_once(file, [name] if is_named else None)
    assert BATCH_BYTES_MAX / 2 < rows * LENGTH <= BATCH_BYTES_MAX


@pytest.mark.parametrize("name", ["user.name", "user"])
def test_columns_that_are_not_read_do_not_count(name: str) -> None:
    nested = pa.array([[{"a": 1, "b": {"c": 2}}]] * 60_000)
    values = {"id": pa.array(range(60_000)), "list": nested, name: repeated(), "last": nested}
    file = stored(pa.table(values))
    assert rows_at_once(file, ["id", "list", "last"]) == ROWS
    assert rows_at_once(file, ["list", name]) * LENGTH <= BATCH_BYTES_MAX


@pytest.mark.parametrize("others", ["before", "after"])
def test_columns_of_the_same_path_are_both_bounded(others: str) -> None:
    """A column named `a.b` has the path of the field `b` of the struct `a`."""
    struct = pa.StructArray.from_arrays([repeated(10).cast(pa.string())], ["b"])
    columns = [pa.array(struct), repeated()]
    if others == "before":
        table = pa.Table.from_arrays(columns, ["a", "a.b"])
    else:
        table = pa.Table.from_arrays(columns[::-1], ["a.b", "a"])
    assert rows_at_once(stored(table), None) * LENGTH <= BATCH_BYTES_MAX


def test_duplicate_columns_are_both_bounded() -> None:
    table = pa.Table.from_arrays([repeated(), repeated()], ["a", "a"])
    assert rows_at_once(stored(table), None) * LENGTH * 2 <= BATCH_BYTES_MAX
