"""Content that stands for gigabytes, or for records without end: processors of records refuse it.

A forked process reads each of them. It may allocate 60 to 600 MB and use 40 s of CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.flow.processors.records.formats.format_protocols import BadRecords
from penstock.flow.processors.records.formats.json_lines import bounded
from tests.kits import bombs_kit as bombs


@pytest.fixture(scope="module")
def child() -> Iterator[bombs.Child]:
    with bombs.Child(bombs.SMALLER) as child:
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
        ("parquet", bombs.parquet_null_values, "the Parquet content: the values of column 'name"),
        ("parquet", bombs.parquet_large_page, "a page of column 'name' in row group 0 takes 137,"),
        ("parquet", bombs.parquet_long_value, "a record is longer than 16,777,216 bytes"),
        ("json-lines", bombs.json_many_keys, "a record has 125,001 fields, more than 10,000"),
        ("json-lines", bombs.json_nested_keys, "a record has 125,002 fields, more than 10,000"),
        ("json-lines", bombs.json_deep_arrays, "more than 500 levels of arrays and objects"),
        ("json-lines", bombs.json_deep_objects, "more than 500 levels of arrays and objects"),
        ("json", bombs.json_deep_arrays, "more than 500 levels of arrays and objects"),
        ("json-lines", bombs.json_keys_of_their_own, " different fields"),
        ("json-lines", bombs.json_nested_keys_of_their_own, "more than 10,000 different fields"),
        ("json-lines", bombs.json_objects_of_a_list, "a record has 5,000,002 objects, which may"),
        ("json-lines", bombs.json_lists_of_objects, "have 4,002 different fields, most of which"),
        ("json-lines", bombs.json_alike_lists, "have 1,502 different fields, most of which are"),
        ("json-lines", bombs.json_empty_records, "have 9,000 different fields, most of which are"),
        ("json-lines", bombs.json_line_without_end, "a record is longer than 16,777,216 bytes"),
        ("json", bombs.json_line_without_end, "a record is longer than 16,777,216 bytes"),
        ("json", bombs.json_object_without_end, "a record is longer than 16,777,216 bytes"),
        ("csv", bombs.csv_many_columns, "the first line has more than 10,000 columns"),
        ("csv", bombs.csv_line_without_end, "record 1 of the CSV, or one of the next, is longer"),
        ("csv", bombs.csv_open_quote, "record 2 of the CSV, or one of the next, is longer than"),
        ("csv", bombs.csv_values_of_one_line, "Row #2: Expected 2 columns, got 1500001"),
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
    # What takes more is a row group or a batch that is read whole.
    memory_mb = 600 if kind in {"parquet", "arrow", "avro"} else 250
    assert error in child.read("flow", kind, tmp_path / "content", memory_mb=memory_mb).error


@pytest.mark.parametrize(
    ("kind", "make", "memory_mb", "rows"),
    [
        ("avro", bombs.avro_wide_records, 90, bombs.WIDE_RECORDS),
        ("json-lines", bombs.json_many_brackets, 500, 1),
        ("json-lines", bombs.json_numbers, 500, 1),
        ("parquet", bombs.parquet_dictionary, 125, bombs.DICTIONARY_ROWS),
        ("parquet", bombs.parquet_prefixes, 75, bombs.PREFIX_ROWS),
        ("parquet", bombs.parquet_dictionary_then_prefixes, 75, bombs.PREFIX_ROWS),
        ("parquet", bombs.parquet_uneven_values, 100, bombs.UNEVEN_ROWS),
        ("parquet", bombs.parquet_uneven_lists, 60, bombs.UNEVEN_LISTS),
    ],
)
def test_what_is_large_is_read_piece_by_piece(
    child: bombs.Child, tmp_path: Path, kind: str, make: bombs.Make, memory_mb: int, rows: int
) -> None:
    make(tmp_path / "content")
    found = child.read("flow", kind, tmp_path / "content", memory_mb=memory_mb)
    assert (found.rows, found.error) == (rows, "")


def test_batches_are_bounded_before_a_cast_copies_their_values(
    child: bombs.Child, tmp_path: Path
) -> None:
    bombs.arrow_dictionary(tmp_path / "content")
    found = child.read("cast", "arrow", tmp_path / "content", memory_mb=250)
    assert (found.rows, found.error) == (bombs.DICTIONARY_ROWS, "")


def test_records_that_lack_most_fields_are_parsed_in_pieces() -> None:
    few = pa.schema([(f"k{number}", pa.int64()) for number in range(20)])
    many = pa.schema([(f"k{number}", pa.int64()) for number in range(999)])
    chunk = b"{}\n" * 100_000 + b"{}"
    assert list(bounded(iter([chunk]), few)) == [chunk]
    pieces = list(bounded(iter([chunk]), many))
    assert b"".join(pieces) == chunk
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])
    assert 20 <= len(pieces) <= 40


def test_a_record_with_very_many_objects_in_lists_is_refused() -> None:
    nested = pa.struct([pa.field(f"k{number}", pa.int64()) for number in range(999)])
    chunk = b'{"a":[' + b"{}," * 100_000 + b"{}]}"
    assert list(bounded(iter([chunk]), pa.schema([("a", nested)]))) == [chunk]
    with pytest.raises(BadRecords, match="a record has 100,002 objects, which may have 1,000"):
        list(bounded(iter([b"{}\n" + chunk]), pa.schema([("a", pa.list_(nested))])))
