"""Content that stands for gigabytes, or for records without end: processors of records refuse it.

A forked process reads each of them. It may allocate 120 to 600 MB and use 40 s of CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bombs
import pytest


@pytest.fixture(scope="module")
def child() -> Iterator[bombs.Child]:
    with bombs.Child() as child:
        yield child


@pytest.mark.parametrize(
    ("kind", "make", "error"),
    [
        (
            "avro",
            bombs.avro_array_of_nulls,
            "field 'tags' is an array of values that take no bytes",
        ),
        ("avro", bombs.avro_empty_records, "announces 1,099,511,627,776 records"),
        ("avro", bombs.avro_deep_record, "next"),
        ("avro", bombs.avro_zeros, "the Avro content: the block at byte"),
        ("parquet", bombs.parquet_huge_values, "the Parquet content: the values of column 'name'"),
        ("parquet", bombs.parquet_long_value, "a record is longer than 16,777,216 bytes"),
        ("json-lines", bombs.json_many_keys, "a record has 250,001 fields, more than 10,000"),
        ("json-lines", bombs.json_nested_keys, "a record has 250,002 fields, more than 10,000"),
        ("json-lines", bombs.json_deep_arrays, "more than 500 levels of arrays and objects"),
        ("json-lines", bombs.json_deep_objects, "more than 500 levels of arrays and objects"),
        ("json", bombs.json_deep_arrays, "more than 500 levels of arrays and objects"),
        ("json-lines", bombs.json_keys_of_their_own, "more than 10,000 different fields"),
        ("csv", bombs.csv_many_columns, "the first line has more than 100,000 columns"),
        ("arrow", bombs.arrow_zeros, "takes 1,074,7"),
        (
            "arrow",
            bombs.arrow_file_of_zeros,
            "with its dictionaries, more than 1,073,741,824",
        ),
        ("arrow", bombs.arrow_many_rows, "announces 1,099,511,627,776 rows"),
    ],
)
def test_what_cannot_be_read_fails(
    child: bombs.Child, tmp_path: Path, kind: str, make: bombs.Make, error: str
) -> None:
    make(tmp_path / "content")
    assert error in child.read("flow", kind, tmp_path / "content", memory_mb=600).error


@pytest.mark.parametrize(
    ("kind", "make", "rows"),
    [
        ("avro", bombs.avro_wide_records, bombs.WIDE_RECORDS),
        ("json-lines", bombs.json_many_brackets, 1),
        ("parquet", bombs.parquet_dictionary, bombs.DICTIONARY_ROWS),
    ],
)
def test_what_is_large_is_read_piece_by_piece(
    child: bombs.Child, tmp_path: Path, kind: str, make: bombs.Make, rows: int
) -> None:
    make(tmp_path / "content")
    found = child.read("flow", kind, tmp_path / "content", memory_mb=500)
    assert (found.rows, found.error) == (rows, "")
