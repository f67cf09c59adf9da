"""Metrics of batch tasks against exact figures: sketches, first and last, of raw rows and again."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from penstock.core.intervals import Interval
from penstock.indexing.batch.batch_engine import BatchResult, Partitioning, SegmentInput
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from tests.spark.spark_batch_kit import inline, request, rows_of

pytestmark = pytest.mark.spark

ROWS = 6_000
PEOPLE = 2_000
YEAR = Interval.parse("2013-01-01/2014-01-01")
PARTS: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["shop"]},
    "metricsSpec": [
        {"type": "count", "name": "count"},
        {"type": "longSum", "name": "sum", "fieldName": "size"},
        {"type": "longFirst", "name": "first", "fieldName": "size"},
        {"type": "doubleLast", "name": "last", "fieldName": "size"},
        {"type": "stringLast", "name": "who", "fieldName": "person", "maxStringBytes": 4},
        {"type": "stringFirst", "name": "paid", "fieldName": "person", "timeColumn": "settled"},
        {"type": "HLLSketchBuild", "name": "hll", "fieldName": "person"},
        {"type": "thetaSketch", "name": "theta", "fieldName": "person"},
        {"type": "quantilesDoublesSketch", "name": "spread", "fieldName": "size", "k": 512},
    ],
}
ESTIMATES = (
    "SELECT shop, hll_sketch_estimate(hll) AS hll, theta_sketch_estimate(theta) AS theta,"
    " kll_sketch_get_quantile_double(spread, 0.5) AS middle FROM parquet.`{}`"
)


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions, SparkBatchOptions(split_bytes_min=50_000, parallelism=2))
    yield engine
    engine.close()


def visits() -> list[dict[str, JsonValue]]:
    """Visits of people to two shops over ten days, in no order; the last three have no size."""
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    found: list[dict[str, JsonValue]] = []
    for i in range(ROWS):
        at = i * 997 % ROWS
        found.append(
            {
                "at": (start + dt.timedelta(seconds=at * 144)).isoformat(),
                "settled": (start + dt.timedelta(seconds=(ROWS - at) * 144)).isoformat(),
                "shop": f"s{at % 2}",
                "person": f"p{at % PEOPLE:05}",
                "size": at if at < ROWS - 3 else None,
            }
        )
    return found


def check(result: BatchResult, sessions: SparkSessions) -> None:
    assert result.counts.unparseable == 0
    rows = rows_of(result)
    assert [row["shop"] for row in rows] == ["s0", "s1"]
    last = ROWS - 4
    for number, row in enumerate(rows):
        sizes = range(number, ROWS - 3, 2)
        assert {n: row[n] for n in ("count", "sum", "first", "last", "who", "paid")} == {
            "count": ROWS // 2,
            "sum": sum(sizes),
            "first": number,
            "last": float(last - (last - number) % 2),
            "who": "p019",
            "paid": f"p{ROWS - 2 + number - ROWS // PEOPLE * PEOPLE + PEOPLE:05}",
        }
    with sessions.use() as spark:
        for row in spark.sql(ESTIMATES.format(result.files[0].data.path)).collect():
            assert row.hll == pytest.approx(PEOPLE / 2, rel=0.05)
            assert row.theta == pytest.approx(PEOPLE / 2, rel=0.02)
            assert row.middle == pytest.approx(ROWS / 2, rel=0.03)


def test_sketches_and_ends_of_raw_rows_and_of_rolled_up_ones(
    batch: SparkBatchEngine, sessions: SparkSessions, tmp_path: Path
) -> None:
    by_month: Mapping[str, JsonValue] = {"rollup": True, "queryGranularity": "month"}
    rows = inline(*visits())
    spread = Partitioning("hashed")
    whole = batch.write(request(tmp_path / "whole", rows, PARTS, by_month, spread))
    check(whole, sessions)
    # Rolled up again, what was first of equal times is any of them: the same rows are the same.
    again = SegmentInput(tuple((file.data, YEAR) for file in whole.files))
    check(
        batch.write(request(tmp_path / "b", again, PARTS, by_month, spread, combines=True)),
        sessions,
    )


def test_days_are_combined_to_a_month(
    batch: SparkBatchEngine, sessions: SparkSessions, tmp_path: Path
) -> None:
    by_day: Mapping[str, JsonValue] = {"rollup": True, "queryGranularity": "day"}
    by_month: Mapping[str, JsonValue] = {"rollup": True, "queryGranularity": "month"}
    parts = {**PARTS, "metricsSpec": [m for m in PARTS["metricsSpec"] if m["name"] != "paid"]}  # type: ignore[index, union-attr]
    days = batch.write(request(tmp_path / "days", inline(*visits()), parts, by_day))
    assert sum(file.data.rows for file in days.files) == 20
    again = SegmentInput(tuple((file.data, YEAR) for file in days.files))
    spread = Partitioning("range", dimensions=("shop",))
    month = batch.write(request(tmp_path / "m", again, parts, by_month, spread, combines=True))
    rows = rows_of(month)
    assert [(row["shop"], row["count"], row["first"]) for row in rows] == [
        ("s0", ROWS // 2, 0),
        ("s1", ROWS // 2, 1),
    ]
    with sessions.use() as spark:
        for row in spark.sql(ESTIMATES.format(month.files[0].data.path)).collect():
            assert row.hll == pytest.approx(PEOPLE / 2, rel=0.05)
            assert row.theta == pytest.approx(PEOPLE / 2, rel=0.02)
            assert row.middle == pytest.approx(ROWS / 2, rel=0.03)


@pytest.mark.parametrize("computed", [False, True])
def test_rows_are_sorted_by_dimensions_where_time_is_not_first(
    batch: SparkBatchEngine, tmp_path: Path, computed: bool
) -> None:
    filters: JsonValue = {"filter": {"type": "not", "field": {"type": "null", "column": "shop"}}}
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop", "person"], "forceSegmentSortByTime": False},
        **({"transformSpec": filters} if computed else {}),
    }
    result = batch.write(request(tmp_path / "out", inline(*visits()[:500]), parts))
    rows = rows_of(result)
    keys = [(str(row["shop"]), str(row["person"]), str(row["__time"])) for row in rows]
    assert len(keys) == 500
    assert keys == sorted(keys)
    assert keys != sorted(keys, key=lambda key: key[2])


def test_columns_are_found_as_text_or_typed(batch: SparkBatchEngine, tmp_path: Path) -> None:
    rows = inline(
        {"at": "2013-01-01", "a": 1, "b": 1.5, "c": {"x": [1]}},
        {"at": "2013-01-01", "d": "t", "a": None, "e": [1, "2"], "f": False},
    )
    for spec, wanted in (
        ({"dimensions": []}, dict.fromkeys("abcdef", "string")),
        (
            {"useSchemaDiscovery": True},
            {"a": "long", "b": "double", "c": "json", "d": "string", "e": "json", "f": "long"},
        ),
    ):
        parts: dict[str, JsonValue] = {"dimensionsSpec": spec}  # type: ignore[dict-item]
        result = batch.write(request(tmp_path / str(len(spec)), rows, parts))
        assert {d.name: d.type for d in result.schema.dimensions} == wanted
        assert len(rows_of(result)) == 2


def test_a_new_metric_is_computed_beside_those_that_go_on(
    batch: SparkBatchEngine, sessions: SparkSessions, tmp_path: Path
) -> None:
    """Counts of rolled-up rows are added up though a metric is new; without roll-up all stay."""
    names = ("count", "sum", "hll")
    kept = [m for m in PARTS["metricsSpec"] if m["name"] in names]  # type: ignore[index, union-attr, call-overload]
    both: JsonValue = {"dimensions": ["shop", {"type": "long", "name": "hour"}]}
    rows = inline(*({**row, "hour": int(str(row["at"])[11:13])} for row in visits()))
    first: dict[str, JsonValue] = {"dimensionsSpec": both, "metricsSpec": kept}
    by_day: Mapping[str, JsonValue] = {"rollup": True, "queryGranularity": "day"}
    days = batch.write(request(tmp_path / "days", rows, first, by_day))
    again = SegmentInput(tuple((file.data, YEAR) for file in days.files))
    latest: JsonValue = {"type": "longMax", "name": "latest", "fieldName": "hour"}
    wanted: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop"]},
        "metricsSpec": [*kept, latest],
    }
    by_month: Mapping[str, JsonValue] = {"rollup": True, "queryGranularity": "month"}
    asked = request(tmp_path / "month", again, wanted, by_month, Partitioning("hashed"))
    month = batch.write(dataclasses.replace(asked, combines=frozenset(names)))
    sums = [sum(range(number, ROWS - 3, 2)) for number in range(2)]
    assert [(r["shop"], r["count"], r["sum"], r["latest"]) for r in rows_of(month)] == [
        ("s0", ROWS // 2, sums[0], 23),
        ("s1", ROWS // 2, sums[1], 23),
    ]
    asked = request(tmp_path / "same", again, first)
    same = batch.write(dataclasses.replace(asked, combines=frozenset(names)))
    assert sorted(map(repr, rows_of(same))) == sorted(map(repr, rows_of(days)))
