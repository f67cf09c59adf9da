"""Results of Spark that a flow reads, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core import parquet_bounds
from penstock.flow.processors.records.formats.format_protocols import BadRecords
from penstock.spark.flow.work_folder import WorkFolder

LENGTH = 100_000


def output(folder: Path, values: pa.Array) -> WorkFolder:
    (folder / "output-0").mkdir()
    pq.write_table(pa.table({"a": values}), folder / "output-0/part-0.parquet")
    return WorkFolder(folder)


def test_rows_of_any_size_are_read_in_batches_of_a_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_bounds, "BATCH_BYTES_MAX", 1 << 20)
    values = pa.array(["x" * LENGTH] * 200)  # a few kilobytes in the file
    sizes = [batch.nbytes for batch in output(tmp_path, values).output(0).batches]
    assert sum(sizes) >= 200 * LENGTH
    assert max(sizes) <= 2 << 20


def test_values_that_are_too_large_are_bad_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_bounds, "VALUE_BYTES_MAX", LENGTH // 2)
    records = output(tmp_path, pa.array(["x" * LENGTH])).output(0)
    with pytest.raises(BadRecords, match="Spark's output: the values of column 'a'"):
        list(records.batches)
