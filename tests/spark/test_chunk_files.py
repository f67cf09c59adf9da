"""Runs that wait to be merged: each time chunk is read as it was written, each file opened once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from call_faults_kit import FAULTS
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import PenstockError
from penstock.core.intervals import Interval
from penstock.spark.batch import final_files
from penstock.spark.chunk_files import RunFiles, SortedRun, write_run, write_whole

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
        final_files._write_durably(pa.table({"n": [1]}), tmp_path, "0.parquet", 1)
    assert list(tmp_path.iterdir()) == []
