"""Times cut by the clock of a zone: columns as single instants, batches, and streams."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as sf

from penstock.core.intervals import (
    END_OF_TIME_MS,
    START_OF_TIME_MS,
    Granularity,
    Interval,
    parse_time,
)
from penstock.indexing.engine import DivideRequest, MergeRequest
from penstock.indexing.specs import parse_data_schema
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine, SparkBatchOptions
from penstock.spark.expressions import chunk_number
from penstock.spark.expressions import truncated as truncated_on_spark
from penstock.spark.row_chunks import truncated
from tests.spark.spark_batch_kit import inline, request, rows_of
from tests.spark.stream_kit import persist_request

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pydantic import JsonValue

    from penstock.indexing.engine import DataFile
    from penstock.spark.connect.spark_sessions import SparkSessions
    from penstock.spark.spark_engine import SparkEngine
    from tests.spark.conftest import MakeTopic

pytestmark = pytest.mark.spark

ZONES = [
    "America/New_York",
    "America/Havana",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "+05:45",
]
ODD = ["2011-12-30T10:00", "2024-03-10T07:00", "2024-11-03T06:00", "2007-11-04T02:31", "2009-02-15"]
granularities = st.builds(
    lambda period, zone, origin: Granularity.parse(f"{period} in {zone}{origin}"),
    st.sampled_from(["PT15M", "PT1H", "PT8H", "P1D", "P7D", "P1W", "P1M", "P3M", "P1Y"]),
    st.sampled_from(ZONES),
    st.sampled_from(["", "", " from 2020-01-31T09:30:00Z"]),
)
near_shifts = st.builds(
    lambda at, away: parse_time(at) + away,
    st.sampled_from(ODD),
    st.integers(-2 * 86_400_000, 2 * 86_400_000),
)
instants = st.lists(
    st.one_of(near_shifts, st.integers(START_OF_TIME_MS, END_OF_TIME_MS - 1)), min_size=1
)


@given(granularities, instants)
def test_a_column_is_cut_as_each_of_its_instants(cut: Granularity, times: list[int]) -> None:
    column = pa.array(np.array(times) * 1000).cast(pa.timestamp("us", "UTC"))
    made = truncated(column, cut).cast(pa.int64()).to_numpy() // 1000
    assert made.tolist() == [cut.truncate(ms) for ms in times]


def test_spark_cuts_as_arrow_does(sessions: SparkSessions) -> None:
    times = [parse_time(at) + step * 1_740_000 for at in ODD for step in range(-100, 100)]
    for text in ("P1D in Pacific/Apia", "PT1H in America/New_York", "P1M in Asia/Kolkata"):
        cut = Granularity.parse(text)
        with sessions.use() as spark:
            rows = spark.createDataFrame([(ms,) for ms in times], "ms bigint")
            time = sf.timestamp_millis(sf.col("ms"))
            made = rows.select(
                sf.unix_millis(truncated_on_spark(time, cut)), chunk_number(time, cut)
            ).collect()
        expected = [cut.truncate(ms) for ms in times]
        assert [row[0] for row in made] == expected
        order = sorted(zip(expected, (row[1] for row in made), strict=True))
        assert all((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairwise(order))


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_batch_is_cut_into_the_days_of_a_zone(
    sessions: SparkSessions, tmp_path: Path, is_computed: bool
) -> None:
    # Over the end of summer time, across which a day has 25 hours, and one of them twice.
    start = parse_time("2024-11-02T12:00:00Z")
    times = [start + step * 1_260_000 for step in range(140)]
    day = {"type": "period", "period": "P1D", "timeZone": "America/New_York"}
    hour = {**day, "period": "PT1H"}
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["shop"]},
        "metricsSpec": [{"type": "count", "name": "count"}],
    }
    if is_computed:
        # Through the JVM, and its shuffle.
        told = {"type": "expression", "name": "shop", "expression": 'upper("shop")'}
        parts["transformSpec"] = {"transforms": [told]}
    given = inline(*({"at": ms, "shop": "A"} for ms in times))
    engine = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    granularity: dict[str, JsonValue] = {
        "segmentGranularity": day,
        "queryGranularity": hour,
        "rollup": True,
    }
    result = engine.write(request(tmp_path, given, parts, granularity))
    days = Granularity.parse("P1D in America/New_York")
    hours = Counter(Granularity.parse("PT1H in America/New_York").truncate(ms) for ms in times)
    chunks = sorted({days.bucket(ms) for ms in times})
    assert sorted(file.data.interval for file in result.files) == chunks
    assert [chunk.length_ms // 3_600_000 for chunk in chunks] == [24, 25, 24]
    made = {int(row["__time"].timestamp() * 1000): row["count"] for row in rows_of(result)}  # type: ignore[attr-defined]
    assert made == hours


def counts_of(files: Iterable[DataFile]) -> Counter[int]:
    made: Counter[int] = Counter()
    for file in files:
        table = pq.read_table(file.path)
        times = table.column("__time").cast(pa.int64()).to_numpy() // 1000
        assert all(file.interval.contains(ms) for ms in times.tolist())
        made.update(dict(zip(times.tolist(), table.column("rows").to_pylist(), strict=True)))
    return made


@pytest.mark.parametrize("is_computed", [False, True])
def test_a_stream_is_cut_into_the_days_of_a_zone(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, is_computed: bool
) -> None:
    # Over the end of summer time; rows are persisted, merged and divided as a task has them.
    start = parse_time("2024-11-02T12:00:00Z")
    times = [start + step * 1_260_000 for step in range(140)]
    day = {"type": "period", "period": "P1D", "timeZone": "America/New_York"}
    told = {"type": "expression", "name": "shop", "expression": 'upper("shop")'}
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["shop"]},
            "metricsSpec": [{"type": "count", "name": "rows"}],
            "granularitySpec": {
                "segmentGranularity": day,
                "queryGranularity": {**day, "period": "PT1H"},
                "rollup": True,
            },
            "transformSpec": {"transforms": [told] if is_computed else []},
        }
    )
    messages = [orjson.dumps({"at": ms, "shop": "A"}) for ms in times]
    result = engine.persist(persist_request(tmp_path, make_topic(messages), schema))
    days, hours = (Granularity.parse(f"{p} in America/New_York") for p in ("P1D", "PT1H"))
    expected = Counter(hours.truncate(ms) for ms in times)
    chunks = sorted({days.bucket(ms) for ms in times})
    assert [file.interval for file in result.files] == chunks
    assert [chunk.length_ms // 3_600_000 for chunk in chunks] == [24, 25, 24]
    assert counts_of(result.files) == expected

    long_day = result.files[1]
    both = MergeRequest("task", long_day.interval, (long_day, long_day), schema, f"{tmp_path}/m")
    merged = engine.merge(both)
    assert merged.interval == long_day.interval
    of_day = {ms: n for ms, n in expected.items() if long_day.interval.contains(ms)}
    assert len(of_day) == 25
    assert counts_of([merged]) == {ms: 2 * n for ms, n in of_day.items()}

    # Between the two hours that the clock shows alike.
    again = parse_time("2024-11-03T06:00:00Z")
    parts = (
        Interval(long_day.interval.start_ms, again),
        Interval(again, long_day.interval.end_ms),
    )
    divided = engine.divide(DivideRequest("task", merged, parts, schema, f"{tmp_path}/d"))
    assert tuple(file.interval for file in divided) == parts
    assert counts_of(divided) == counts_of([merged])
