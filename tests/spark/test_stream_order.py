"""`forceSegmentSortByTime: false`: rows of streams by their dimensions, wherever files are written.

A query that asks for one value reads fewer pages of files that are sorted so. What cuts rows by
time must not rely on their order then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pyarrow.parquet as pq
import pytest

from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile, DivideRequest, MergeRequest
from penstock.indexing.specs import DataSchema, parse_data_schema
from tests.spark.stream_kit import persist_request

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from penstock.spark.spark_engine import SparkEngine
    from tests.spark.conftest import MakeTopic

JANUARY = Interval.parse("2013-01-01/2013-02-01")
SHOPS = ("d", "b", "a", "c", "b")
# In each shop somebody at times that lie mixed with those of the others, in two time chunks.
SENT = [
    orjson.dumps({"at": f"2013-0{month}-{day:02}", "shop": shop, "person": f"p{day % 3}"})
    for month in (2, 1)
    for day in range(1, 15)
    for shop in SHOPS
]
UPPER: JsonValue = {"type": "expression", "name": "person", "expression": 'upper("person")'}


def make_schema(*, rollup: bool = False, computed: bool = False, found: bool = False) -> DataSchema:
    listed: dict[str, JsonValue] = {"useSchemaDiscovery": True} if found else {}
    return parse_data_schema(
        {
            "dataSource": "visits",
            "timestampSpec": {"column": "at", "format": "auto"},
            "dimensionsSpec": {
                "forceSegmentSortByTime": False,
                **(listed or {"dimensions": ["shop", "person"]}),
            },
            "metricsSpec": [{"type": "count", "name": "rows"}] if rollup else [],
            "granularitySpec": {"segmentGranularity": "month", "rollup": rollup},
            "transformSpec": {"transforms": [UPPER] if computed else []},
        }
    )


def keys_of(file: DataFile, names: tuple[str, ...] = ("shop", "person")) -> list[tuple[str, ...]]:
    table = pq.read_table(file.path)
    times = table.column("__time").to_pylist()
    assert file.min_time_ms == int(min(times).timestamp() * 1000)
    assert file.max_time_ms == int(max(times).timestamp() * 1000)
    return [tuple(str(row[name]) for name in (*names, "__time")) for row in table.to_pylist()]


def assert_by_dimensions(file: DataFile, names: tuple[str, ...] = ("shop", "person")) -> None:
    keys = keys_of(file, names)
    assert keys == sorted(keys)
    assert keys != sorted(keys, key=lambda key: key[-1])


@pytest.mark.spark
@pytest.mark.parametrize("rollup", [False, True])
@pytest.mark.parametrize("computed", [False, True])
def test_rows_are_sorted_by_dimensions_in_persists_merges_and_divisions(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, rollup: bool, computed: bool
) -> None:
    schema = make_schema(rollup=rollup, computed=computed)
    made = engine.persist(persist_request(tmp_path, make_topic(SENT), schema))
    assert made.counts.processed == len(SENT)
    for file in made.files:
        assert_by_dimensions(file)
    ours = [file for file in made.files if file.interval == JANUARY]
    assert 0 < len(ours) < len(made.files)
    merged = engine.merge(
        MergeRequest("task", JANUARY, (*ours, *ours), schema, str(tmp_path / "merged"))
    )
    assert_by_dimensions(merged)
    assert set(keys_of(merged)) == {key for file in ours for key in keys_of(file)}
    times = (Interval.parse("2013-01-01/2013-01-05"), Interval.parse("2013-01-05/2013-02-01"))
    parts = engine.divide(DivideRequest("task", merged, times, schema, str(tmp_path / "parts")))
    assert [part.interval for part in parts] == list(times)
    for part in parts:
        assert_by_dimensions(part)
    divided = [key for part in parts for key in keys_of(part)]
    assert sorted(divided) == keys_of(merged)


@pytest.mark.spark
def test_rows_are_sorted_by_dimensions_that_are_found(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    made = engine.persist(persist_request(tmp_path, make_topic(SENT), make_schema(found=True)))
    for file in made.files:
        names = tuple(name for name, _ in file.columns if name != "__time")
        assert set(names) == {"shop", "person"}
        assert_by_dimensions(file, names)
