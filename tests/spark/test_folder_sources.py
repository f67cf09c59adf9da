"""A folder of growing files becomes files on a real Spark: every line once."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.core.clock import SystemClock
from penstock.core.intervals import parse_time
from penstock.indexing.engine import PersistRequest, RowCounts
from penstock.indexing.source import FolderSupplier
from penstock.indexing.specs import parse_data_schema
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.spark_engine import SparkEngine, SparkEngineOptions
from penstock.storage.disk import OsFileSystem

pytestmark = pytest.mark.spark

FILES, LINES = 40, 500


@pytest.mark.parametrize("rollup", [False, True])
def test_many_files_are_read_once(sessions: SparkSessions, tmp_path: Path, *, rollup: bool) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    start_ms = parse_time("2013-01-01")
    for number in range(FILES):
        lines = [
            orjson.dumps({"at": start_ms + n * 60_000, "name": f"f{number}", "size": n})
            for n in range(LINES)
        ]
        (folder / f"{number}.log").write_bytes(b"\n".join([*lines, b"broken", b"half a li"]))
    source = FolderSupplier(OsFileSystem(), SystemClock(), str(folder), "*.log")
    seen = source.available()
    ends = {p: a.latest for p, a in seen.partitions.items()}
    schema = parse_data_schema(
        {
            "dataSource": "logs",
            "timestampSpec": {"column": "at", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["name"]},
            "metricsSpec": [{"type": "longSum", "name": "total", "fieldName": "size"}],
            "granularitySpec": {
                "segmentGranularity": "day",
                "queryGranularity": "hour" if rollup else "none",
                "rollup": rollup,
            },
        }
    )
    engine = SparkEngine(sessions, SparkEngineOptions(split_bytes_min=100_000, parallelism=3))
    result = engine.persist(
        PersistRequest(
            "task",
            "logs",
            source.ranges(dict.fromkeys(ends, 0), ends, seen),
            schema,
            str(tmp_path / "out"),
            str(tmp_path / "bad"),
        )
    )
    engine.close()
    whole_lines = (p.read_bytes().removesuffix(b"half a li") for p in folder.glob("*.log"))
    size = sum(len(text) for text in whole_lines)
    assert result.counts == RowCounts(processed=FILES * LINES, unparseable=FILES, read_bytes=size)
    total = sum(pc.sum(pq.read_table(f.path).column("total")).as_py() for f in result.files)
    assert total == FILES * sum(range(LINES))
