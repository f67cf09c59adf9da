"""Spark's Python workers have a memory limit: work that exceeds it ends alone, with a reason."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest
from pydantic import JsonValue

from penstock.core import parquet_bounds
from penstock.core.errors import InvalidRequest
from penstock.core.host_memory import total_memory_bytes
from penstock.indexing.engine import EngineFailure
from penstock.spark.batch import batch_run
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.scan import ScanWork, scan_pieces
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.connect.worker_memory import limit_bytes, translate_memory_errors
from penstock.spark.pieces import limited
from tests.kits import bombs_kit as bombs
from tests.spark.spark_batch_kit import local, request, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1 << 30
PARTS: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]}
}


@pytest.mark.parametrize(
    ("total", "cores", "limit"),
    [
        (1 * GIB, 2, 1 * GIB),
        (4 * GIB, 2, 2 * GIB),
        (8 * GIB, 2, 4 * GIB),
        (16 * GIB, 8, 4 * GIB),
        (64 * GIB, 3, 16 * GIB),
        (256 * GIB, 63, 4 * GIB),
    ],
)
def test_a_worker_gets_its_share_but_four_gib_where_that_is_half(
    total: int, cores: int, limit: int
) -> None:
    assert limit_bytes(total, cores) == limit


def test_memory_that_runs_out_names_the_work() -> None:
    with (
        pytest.raises(
            InvalidRequest, match=r"ran out of its memory.* while reading a\.json: split"
        ),
        translate_memory_errors("reading a.json"),
    ):
        raise MemoryError


@pytest.mark.spark
def test_workers_have_a_limit_and_go_first(spark: SparkSession) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            limits = resource.getrlimit(resource.RLIMIT_DATA)
            first = int(Path("/proc/self/oom_score_adj").read_text())
            yield pa.RecordBatch.from_pydict({"limit": [limits[0]], "first": [first]})

    [row] = spark.range(0, 1, 1, 1).mapInArrow(work, "limit long, first long").collect()
    total = total_memory_bytes()
    assert total is not None
    # More than the limit is what the worker had from the daemon that it was forked from.
    assert GIB <= row["limit"] < total // 2 + 2 * GIB
    assert row["first"] == 500


@pytest.mark.spark
def test_work_that_takes_too_much_ends_with_a_reason(spark: SparkSession) -> None:
    def takes_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        for batch in batches:
            held = bytearray(soft)
            yield batch.slice(0, len(held) % 2)

    rows = spark.range(0, 1, 1, 1).mapInArrow(limited(takes_all), "id long")
    with pytest.raises(Exception, match=r"ran out of its memory limit of [\d,]+ MB while doing"):
        rows.collect()
    assert spark.range(3).count() == 3


@pytest.mark.spark
def test_a_bomb_ends_its_task_while_another_succeeds(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scans(work: ScanWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Scan without the bound that refuses the bomb, so that it meets the limit of workers."""
        bound = parquet_bounds.VALUE_BYTES_MAX
        if work.reading.pieces[0][0].file.path.endswith("bomb.parquet"):
            parquet_bounds.VALUE_BYTES_MAX = 1 << 60  # type: ignore[misc]
        try:
            yield from scan_pieces(work, batches)
        finally:
            parquet_bounds.VALUE_BYTES_MAX = bound  # type: ignore[misc]

    monkeypatch.setattr(batch_run, "scan_pieces", scans)
    bombs.parquet_null_values(tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 10
    good = tmp_path / "good.json"
    good.write_bytes(
        b"".join(orjson.dumps({"at": "2013-01-01", "size": i}) + b"\n" for i in range(9))
    )
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    ended = threading.Event()
    counts: list[int] = []

    def write_on() -> None:
        while not ended.is_set() or not counts:
            folder = tmp_path / f"good-{len(counts)}"
            counts.append(len(rows_of(engine.write(request(folder, local(good), PARTS)))))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        bomb = local(tmp_path / "bomb.parquet", format_={"type": "parquet"})
        with pytest.raises(
            EngineFailure,
            match=r"ran out of its memory limit of [\d,]+ MB while reading .*bomb\.parquet: split",
        ):
            engine.write(request(tmp_path / "bad", bomb, PARTS))
    finally:
        ended.set()
        writer.join()
        engine.close()
    assert counts
    assert set(counts) == {9}
    assert not list((tmp_path / "bad").glob("**/*.parquet"))
