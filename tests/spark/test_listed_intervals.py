"""Type `arbitrary` of a granularitySpec on real Spark: rows find the chunk that is listed.

Wherever rows are computed, by Arrow alone or by the JVM, the chunks must be the same, those that
touch apart, and what lies between them thrown away and counted.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Granularity, Interval
from penstock.indexing.batch.batch_engine import Partitioning
from penstock.indexing.ports import TaskState
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine, SparkBatchOptions
from penstock.spark.row_chunks import explicit_bucket_starts
from tests.indexing.batch_kit import START_MS, BatchWorld, day, index
from tests.spark.spark_batch_kit import inline, request, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import JsonValue

    from penstock.spark.connect.spark_sessions import SparkSessions

HOUR_MS = 3_600_000
# Two that touch, one that begins amid a day, and one that is no round time long.
CHUNKS = [
    Interval(START_MS + start * HOUR_MS, START_MS + end * HOUR_MS)
    for start, end in [(0, 30), (30, 36), (60, 61), (100, 173)]
]
COMPUTED: JsonValue = {"type": "expression", "name": "place", "expression": 'upper("place")'}


@pytest.fixture
def engine(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    made = SparkBatchEngine(sessions, SparkBatchOptions(parallelism=2))
    yield made
    made.close()


def chunk_of(ms: int) -> Interval | None:
    return next((one for one in CHUNKS if one.contains(ms)), None)


@given(
    st.lists(st.integers(-1_000, 1_000), min_size=2, max_size=8, unique=True),
    st.lists(st.integers(-1_100, 1_100), min_size=1),
)
def test_starts_are_those_of_the_granularity(ends: list[int], times: list[int]) -> None:
    at = sorted(ends)
    intervals = [Interval(*pair) for pair in zip(at[::2], at[1::2], strict=False)]
    granularity = Granularity.of_intervals(intervals)
    found = explicit_bucket_starts(np.array(times, np.int64), granularity.given)
    assert found.tolist() == [granularity.truncate(ms) for ms in times]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("partitioning", "is_computed", "rollup"),
    [
        (None, False, True),
        (None, True, False),
        (Partitioning("dynamic", rows_max=7), False, False),
        (Partitioning("dynamic", rows_max=7), True, True),
        (Partitioning("hashed", shards=2, dimensions=("place",)), False, True),
        (Partitioning("hashed", shards=2, dimensions=("place",)), True, False),
        (Partitioning("hashed", rows_target=20), False, False),
        (Partitioning("hashed", rows_target=20), True, True),
        (Partitioning("range", rows_target=20, dimensions=("place",)), False, False),
        (Partitioning("range", rows_target=20, dimensions=("place",)), True, True),
    ],
)
def test_rows_go_into_the_listed_chunks(
    engine: SparkBatchEngine,
    tmp_path: Path,
    partitioning: Partitioning | None,
    is_computed: bool,
    rollup: bool,
) -> None:
    times = [START_MS + hour * HOUR_MS + offset for hour in range(180) for offset in (0, 7, -1)]
    rows = inline(*({"at": at, "place": f"P{number % 9}"} for number, at in enumerate(times)))
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["place"]},
        "metricsSpec": [{"type": "count", "name": "count"}],
        "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
    }
    granularity: dict[str, JsonValue] = {
        "type": "arbitrary",
        "segmentGranularity": None,
        "queryGranularity": "hour",
        "rollup": rollup,
        "intervals": [str(one) for one in reversed(CHUNKS)],
    }
    asked = request(tmp_path, rows, parts, granularity, partitioning)
    result = engine.write(asked)
    wanted = Counter(found for at in times if (found := chunk_of(at)) is not None)
    assert result.counts.processed == wanted.total()
    assert result.counts.thrown_away_early == len(times) - wanted.total()
    if partitioning is not None and not rollup:
        assert len(result.files) > len(CHUNKS)
    got: Counter[Interval] = Counter()
    for file in result.files:
        interval = file.data.interval
        assert interval.covers(Interval(file.data.min_time_ms, file.data.max_time_ms + 1))
        got[interval] += file.data.rows
    assert set(got) == set(CHUNKS)
    counted: Counter[Interval | None] = Counter()
    for row in rows_of(result):
        counted[chunk_of(round(row["__time"].timestamp() * 1000))] += row["count"]
    assert counted == wanted
    if not rollup:
        assert got == wanted


@pytest.mark.spark
@pytest.mark.parametrize("is_computed", [False, True])
def test_there_may_be_many_chunks(
    engine: SparkBatchEngine, tmp_path: Path, is_computed: bool
) -> None:
    chunks = [
        Interval(START_MS + at * 10_000, START_MS + at * 10_000 + 5_000) for at in range(1_500)
    ]
    rows = inline(*({"at": START_MS + at * 3_000} for at in range(5_000)))
    parts: dict[str, JsonValue] = {
        "dimensionsSpec": {"dimensions": ["place"]},
        "transformSpec": {"transforms": [COMPUTED] if is_computed else []},
    }
    granularity: dict[str, JsonValue] = {
        "type": "arbitrary",
        "segmentGranularity": None,
        "intervals": [str(one) for one in chunks],
    }
    asked = request(tmp_path, rows, parts, granularity)
    result = engine.write(asked)
    times = [START_MS + at * 3_000 for at in range(5_000)]
    inside = [at for at in times if (at - START_MS) % 10_000 < 5_000 and at < chunks[-1].end_ms]
    assert result.counts.processed == len(inside)
    assert {file.data.interval for file in result.files} <= set(chunks)
    assert sum(file.data.rows for file in result.files) == len(inside)


@pytest.mark.spark
def test_listed_chunks_replace_days_are_appended_to_and_compacted(
    engine: SparkBatchEngine, tmp_path: Path
) -> None:
    world = BatchWorld(tmp_path)
    try:
        world.engine = engine
        data = "\n".join(
            f'{{"t": {START_MS + hour * HOUR_MS}, "a": "x", "n": {hour}}}' for hour in range(24 * 9)
        )
        listed = {"type": "arbitrary", "segmentGranularity": None}
        noon = str(Interval(START_MS + 12 * HOUR_MS, START_MS + 36 * HOUR_MS))
        for task in (
            index(data),
            index(data, mode="replace", intervals=[noon, day(5, 7)], granularity=listed),
            index(data, mode="append", intervals=[day(5, 7)], granularity=listed),
        ):
            result = world.run(task)
            assert result.state is TaskState.SUCCESS, result.error
        assert len([one for one in world.visible() if str(one.interval) == day(5, 7)]) == 2
        whole = {"type": "interval", "interval": day(5, 7)}
        compact = {"type": "compact", "dataSource": "d", "ioConfig": {"inputSpec": whole}}
        result = world.run(compact)
        assert result.state is TaskState.SUCCESS, result.error
        assert len([one for one in world.visible() if str(one.interval) == day(5, 7)]) == 1
        intervals = {str(one.interval) for one in world.visible()}
        assert {noon, day(5, 7), day(1), day(2), day(9)} <= intervals
        assert day(5) not in intervals
        seen = Counter(row[2] for row in world.rows())
        assert seen == Counter(range(24 * 9)) + Counter(range(4 * 24, 7 * 24))
    finally:
        world.close()
