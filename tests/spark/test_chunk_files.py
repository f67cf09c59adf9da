"""Runs that wait to be merged: each time chunk is read as it was written, each file opened once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.specs import DataSchema
from penstock.spark.batch import final_files
from penstock.spark.chunk_files import (
    FileForm,
    RunFiles,
    SortedRun,
    write_run,
    write_table,
    write_whole,
)
from penstock.spark.schema_columns import file_form
from tests.harness.call_faults_kit import FAULTS

HOUR_MS = 3_600_000
# Of each split: by hour, the batches of numbers.
SPLITS = st.lists(
    st.dictionaries(
        st.integers(0, 5), st.lists(st.lists(st.integers(0, 99), max_size=3), min_size=1)
    ),
    min_size=1,
    max_size=4,
)


def written(splits: list[dict[int, list[list[int]]]], folder: Path) -> dict[int, list[SortedRun]]:
    """Write the splits and return the runs by hour."""
    found: dict[int, list[SortedRun]] = {}
    for number, hours in enumerate(splits):
        chunks = {
            Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS): [
                pa.record_batch({"n": pa.array(numbers, pa.int64())}) for numbers in batches
            ]
            for hour, batches in hours.items()
        }
        for run in write_run(chunks, folder, number):
            found.setdefault(run.start_ms // HOUR_MS, []).append(run)
    return found


@given(SPLITS)
def test_the_rows_of_a_chunk_come_from_all_its_runs(
    splits: list[dict[int, list[list[int]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = written(splits, Path(folder))
        files = RunFiles()
        for hour, ours in runs.items():
            expected = [n for hours in splits for batch in hours.get(hour, ()) for n in batch]
            assert files.read(ours).column("n").to_pylist() == expected
            assert sum(run.rows for run in ours) == len(expected)


def test_a_file_of_many_chunks_is_opened_once(tmp_path: Path) -> None:
    runs = written([{hour: [[hour]] for hour in range(9)}], tmp_path)
    files = RunFiles()
    assert files.read(runs[0]).column("n").to_pylist() == [0]
    # What is open stays readable; to open it again is not possible.
    Path(runs[0][0].path).unlink()
    assert [files.read(runs[hour]).column("n").to_pylist() for hour in range(9)] == [
        [hour] for hour in range(9)
    ]


@pytest.mark.parametrize("error", FAULTS)
def test_a_file_that_cannot_be_written_whole_is_removed(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """Files that a worker wrote before it ran out of memory stayed in the folder for good."""

    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise error("no more")

    with pytest.raises((error, PenstockError)):
        write_whole(tmp_path / "file", write)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", ["write_table", "_sync"])
def test_a_segment_file_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], name: str
) -> None:
    def fail(*arguments: object) -> None:
        if name == "write_table":
            Path(str(arguments[1])).write_bytes(b"half")
        raise error("no more")

    monkeypatch.setattr(final_files, name, fail)
    with pytest.raises((error, PenstockError)):
        final_files._write_durably(pa.table({"n": [1]}), tmp_path, "0.parquet", FileForm(1))
    assert list(tmp_path.iterdir()) == []


def test_times_in_any_order_are_read_as_they_were_written(tmp_path: Path) -> None:
    times = pa.array([3, 1, None, 2], pa.timestamp("us", "UTC"))
    rows = pa.table({"__time": times, "n": [1, 2, 3, 4]})
    for form in (FileForm(1), FileForm(1, ("n", "__time")), FileForm(1, ("__time",))):
        of_file(rows, tmp_path / "a.parquet", form)
        of_file(rows.slice(0, 0), tmp_path / "b.parquet", form)


def of_file(rows: pa.Table, path: Path, form: FileForm) -> pq.RowGroupMetaData:
    write_table(rows, path, form)
    assert pq.read_table(path).equals(rows)
    return pq.read_metadata(path).row_group(0) if len(rows) else None


def test_readers_can_skip_pages_and_find_one_of_many_values(tmp_path: Path) -> None:
    count = 50_000
    rows = pa.table(
        {
            "__time": pa.array(range(count), pa.timestamp("us", "UTC")),
            "id": [f"u{number % 5_000}" for number in range(count)],
            "channel": [f"#{number % 5}" for number in range(count)],
            "number": range(count),
        }
    )
    form = FileForm(1, ("__time", "id"), ("id", "channel"))
    group = of_file(rows, tmp_path / "a.parquet", form)
    assert all(group.column(number).has_column_index for number in range(4))
    assert [one.column_index for one in group.sorting_columns] == [0, 1]
    lengths = [group.column(number).bloom_filter_length for number in range(4)]
    # About 5,000 values with 1.2 to 2.4 bytes each, and a header; five values need no filter.
    assert lengths[0] is None
    assert 4_096 <= lengths[1] <= 8_300
    assert lengths[2:] == [None, None]
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings


def test_numbers_that_are_repeated_have_a_dictionary(tmp_path: Path) -> None:
    count = 10_000
    columns = {
        "repeated": [number % 70 for number in range(count)],
        "price": [number % 9 / 4 for number in range(count)],
        "seldom": [None if number % 99 else number for number in range(count)],
        "unique": list(range(count)),
        "flag": [True] * count,
        "list": [[1]] * count,
    }
    group = of_file(pa.table(columns), tmp_path / "a.parquet", FileForm(1))
    found = [group.column(number).has_dictionary_page for number in range(6)]
    assert found == [True, True, True, False, False, False]


def test_columns_without_an_order_end_the_sort_keys(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2], "b": [[1], [2]], "c": ["x", None]})
    group = of_file(rows, tmp_path / "a.parquet", FileForm(1, ("a", "b", "c"), ("b", "c")))
    assert [one.column_index for one in group.sorting_columns] == [0]
    assert of_file(rows, tmp_path / "b.parquet", FileForm(1)).sorting_columns == ()


def test_pages_with_nan_are_not_skipped(tmp_path: Path) -> None:
    """For Spark NaN is the greatest number, and Arrow leaves it out of minimum and maximum."""
    rows = pa.table({"a": [1.0, float("nan")], "b": [1.0, 2.0]})
    write_table(rows, tmp_path / "a.parquet", FileForm(1))
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    assert not group.column(0).has_column_index
    assert group.column(1).has_column_index


def test_dimensions_decide_which_columns_have_filters() -> None:
    named = {"text": "string", "plain": "string", "id": "long", "n": "long", "x": "double"}
    indexed = {"plain": False, "id": True, "x": True}
    schema = DataSchema.model_validate(
        {
            "dataSource": "wiki",
            "dimensionsSpec": {
                "dimensions": [
                    {"name": name, "type": kind, "createBitmapIndex": indexed.get(name)}
                    for name, kind in named.items()
                ]
            },
        }
    )
    form = file_form(schema, 1)
    assert form.filtered == ("text", "id")
    assert form.sort_keys == ("__time", *named)
