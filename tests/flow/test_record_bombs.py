"""Content that stands for gigabytes, or for records without end: processors of records refuse it.

Each is read by a child that may allocate some hundred MB for it, and is ended after some minutes.
"""

from __future__ import annotations

from pathlib import Path

import bombs
import pytest


@pytest.mark.parametrize(
    ("kind", "make", "error"),
    [
        (
            "avro",
            bombs.avro_array_of_nulls,
            "field 'tags' is an array of values that take no bytes",
        ),
        ("avro", bombs.avro_empty_records, "announces 1,099,511,627,776 records"),
        ("avro", bombs.avro_zeros, "the Avro content: the block at byte"),
        ("parquet", bombs.parquet_huge_values, "the Parquet content: the values of column 'name'"),
        ("parquet", bombs.parquet_long_value, "a record is longer than 16,777,216 bytes"),
        ("json-lines", bombs.json_many_keys, "a record has 1,000,001 fields, more than 10,000"),
        ("json-lines", bombs.json_nested_keys, "a record has 1,000,002 fields, more than 10,000"),
        ("json-lines", bombs.json_keys_of_their_own, "more than 10,000 different fields"),
        ("csv", bombs.csv_many_columns, "the first line has more than 100,000 columns"),
        ("csv", bombs.csv_many_values, "CSV"),
        ("csv", bombs.csv_open_quote, "CSV"),
    ],
)
def test_what_cannot_be_read_fails(tmp_path: Path, kind: str, make: bombs.Make, error: str) -> None:
    make(tmp_path / "content")
    assert error in bombs.read_in_child("flow", kind, tmp_path / "content").error


@pytest.mark.parametrize(
    ("kind", "make", "rows"),
    [("avro", bombs.avro_wide_records, 400), ("parquet", bombs.parquet_dictionary, 4_000)],
)
def test_what_is_large_is_read_piece_by_piece(
    tmp_path: Path, kind: str, make: bombs.Make, rows: int
) -> None:
    make(tmp_path / "content")
    found = bombs.read_in_child("flow", kind, tmp_path / "content", memory_mb=1_000)
    assert (found.rows, found.error) == (rows, "")
