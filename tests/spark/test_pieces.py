"""Work in numbered pieces: how it is shared out, without a Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.intervals import Granularity
from penstock.spark.chunk_files import FileForm
from penstock.spark.chunk_work import (
    Report,
    SpreadWork,
    WriteTarget,
    reports,
    spread_rows,
    write_rows,
)
from penstock.spark.pieces import (
    REPORT_SCHEMA,
    Work,
    distribute,
    numbers,
    reported,
    run_pieces,
)


@given(st.lists(st.integers(0, 1_000)), st.integers(1, 9))
@example([0, 0, 1], 3)
def test_everything_is_in_one_piece_and_no_piece_is_needlessly_large(
    sizes: list[int], most: int
) -> None:
    items = list(enumerate(sizes))
    pieces = distribute(items, most, lambda item: item[1])
    assert sorted(item for piece in pieces for item in piece) == items
    assert len(pieces) == min(most, len(items))
    assert all(pieces)
    loads = [sum(rows for _, rows in piece) for piece in pieces]
    if loads:
        assert max(loads) - min(loads) <= max(sizes)


class Numbers:
    """Stands for Spark: hands out numbers one batch after the other."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces

    def mapInArrow(self, work: Work, schema: str) -> Numbers:  # noqa: N802 - Spark's name
        assert schema == REPORT_SCHEMA
        batches = [pa.record_batch({"id": [number]}) for number in range(self._pieces)]
        self._done = [batch for given in batches for batch in work([given])]
        return self

    def collect(self) -> list[tuple[str]]:
        return [(text,) for batch in self._done for text in batch.column("report").to_pylist()]


class Spark:
    def range(self, start: int, end: int, step: int, parts: int) -> Numbers:
        assert (start, step, parts) == (0, 1, end)
        return Numbers(end)


@dataclass(frozen=True)
class Told:
    number: int


def test_each_piece_is_done_and_its_report_comes_back() -> None:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers(batches):
            yield reported(Told(number))

    texts = run_pieces(Spark(), work, 3)  # type: ignore[arg-type]
    assert [json.loads(text) for text in texts] == [{"number": number} for number in range(3)]
    report = Report(processed=3, late=1)
    (again,) = reports(reported(report).column("report").to_pylist())
    assert again == report


def test_files_are_named_by_spark_alone(tmp_path: Path) -> None:
    """Without its number each piece would be the first, and write over the files of the others."""
    target = WriteTarget(
        str(tmp_path), Granularity.parse("DAY"), ("__time",), FileForm(1, ("__time",))
    )
    rows = [pa.record_batch({"__time": pa.array([0], pa.timestamp("us", "UTC"))})]
    for work in (write_rows(target, rows), spread_rows(SpreadWork(target, None, 2), rows)):
        with pytest.raises(AssertionError, match="only a Spark worker"):
            next(work)
    assert list(tmp_path.iterdir()) == []
