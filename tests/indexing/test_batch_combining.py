"""Which metrics of rows that were rolled up go on, which are computed, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.metric_merge import (
    KeptRows,
    carried,
    merged_metrics,
    metrics_of,
    united,
)
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.aggregators import Aggregator
from tests.indexing.batch_kit import BatchWorld, day, index, lines

COUNT = {"type": "count", "name": "count"}
SUM = {"type": "longSum", "name": "sum_x", "fieldName": "x"}
MAX_A = {"type": "longMax", "name": "max_n", "fieldName": "n"}
MAX_Y = {"type": "longMax", "name": "max_y", "fieldName": "y"}


def metrics(*values: Mapping[str, str]) -> tuple[Aggregator, ...]:
    return tuple(map(Aggregator.model_validate, values))


ROLLED_UP = KeptRows(
    {"a": "STRING", "n": "BIGINT", "count": "BIGINT", "sum_x": "BIGINT"}, metrics(COUNT, SUM)
)
OTHERS = KeptRows({"a": "STRING", "count": "BIGINT", "max_y": "BIGINT"}, metrics(COUNT, MAX_Y))
RAW = KeptRows({"a": "STRING", "n": "BIGINT", "x": "BIGINT"}, None)
BY_ROW = KeptRows({"a": "STRING", "count": "BIGINT", "sum_x": "BIGINT"}, None)


@pytest.mark.parametrize(
    ("wanted", "rows", "expected"),
    [
        ([COUNT, SUM], [ROLLED_UP], {"count", "sum_x"}),
        ([COUNT, SUM, MAX_A], [ROLLED_UP], {"count", "sum_x"}),
        ([COUNT, SUM, MAX_Y], [ROLLED_UP, OTHERS], {"count", "sum_x", "max_y"}),
        ([COUNT, SUM], [RAW], set()),
        ([COUNT, SUM], [BY_ROW], {"sum_x"}),
        ([COUNT, SUM], [BY_ROW, ROLLED_UP], {"count", "sum_x"}),
        ([{**COUNT, "type": "longSum", "fieldName": "count"}], [ROLLED_UP], {"count"}),
        ([{"type": "longSum", "name": "c", "fieldName": "count"}], [ROLLED_UP], set()),
        ([{**SUM, "type": "doubleSum"}], [ROLLED_UP], {"sum_x"}),
        ([{"type": "HLLSketchBuild", "name": "h", "fieldName": "a"}], [ROLLED_UP], set()),
    ],
    ids=[
        "as they are",
        "and a new one",
        "unlike",
        "never rolled up",
        "of one row each",
        "of one row and of many",
        "a sum of counts",
        "by another name",
        "another type of number",
        "distinct values",
    ],
)
def test_what_goes_on_and_what_is_computed(
    wanted: list[dict[str, str]], rows: list[KeptRows], expected: set[str]
) -> None:
    assert merged_metrics(metrics(*wanted), rows) == expected


@pytest.mark.parametrize(
    ("wanted", "rows", "told"),
    [
        pytest.param(MAX_Y, [ROLLED_UP], "no segment has a column max_y, nor y", id="nowhere"),
        pytest.param(
            {**COUNT, "name": "rows"}, [ROLLED_UP], "no longer hold its field", id="counted again"
        ),
        pytest.param(
            {**SUM, "fieldName": "n"}, [ROLLED_UP], "no longer hold its field", id="another sum"
        ),
        pytest.param(
            {**SUM, "name": "s", "fieldName": "n"},
            [ROLLED_UP],
            "no longer hold its field",
            id="merged",
        ),
        pytest.param(
            {**SUM, "type": "longMax"}, [ROLLED_UP], "no longer hold its field", id="another kind"
        ),
        pytest.param(COUNT, [ROLLED_UP, RAW], "some were not", id="count of both"),
        pytest.param(SUM, [ROLLED_UP, RAW], "some were not", id="sum of both"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_is_there(
    wanted: dict[str, str], rows: list[KeptRows], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        merged_metrics(metrics(wanted), rows)
    assert "count count, longSum sum_x" in str(caught.value)


def test_all_metrics_of_unlike_rows() -> None:
    found = united([ROLLED_UP, OTHERS])
    assert found is not None
    assert [one.name for one in found] == ["count", "sum_x", "max_y"]
    assert united([ROLLED_UP, RAW]) is None
    other = KeptRows({}, metrics({**SUM, "type": "longMax"}))
    assert united([ROLLED_UP, other]) is None


def compact(world: BatchWorld, *wanted: Mapping[str, str], rollup: bool = True) -> str:
    """Compact the first day; return the error, empty if there was none."""
    task: dict[str, Any] = {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"type": "compact", "inputSpec": {"type": "interval", "interval": day(1)}},
        "granularitySpec": {"rollup": rollup},
    }
    if wanted:
        task["metricsSpec"] = list(wanted)
    result = world.run(task)
    assert bool(result.error) == (result.state is TaskState.FAILED)
    return result.error


def rolled_up(world: BatchWorld, *kept: Mapping[str, str], x: int = 1) -> None:
    """Add a segment of the first day, rolled up by these."""
    granularity = {"rollup": True, "queryGranularity": "day"}
    data = lines((1, f"a{x}", 1), (1, f"a{x}", 1))
    spec = index(data, mode="append", granularity=granularity, schema={"metricsSpec": list(kept)})
    assert world.run(spec).error == ""


def test_a_new_metric_beside_those_that_are_there(world: BatchWorld) -> None:
    rolled_up(world, COUNT, SUM)
    assert compact(world, COUNT, SUM, MAX_A) == ""
    asked = world.engine.writes[-1]
    assert asked.combines == {"count", "sum_x"}
    assert [m.name for m in asked.schema.metrics] == ["count", "sum_x", "max_n"]
    before = world.rows()
    assert "max_y (longMax) cannot be derived" in compact(world, COUNT, SUM, MAX_Y)
    assert world.rows() == before


def test_segments_that_were_rolled_up_unlike_keep_all_of_their_metrics(world: BatchWorld) -> None:
    rolled_up(world, COUNT)
    rolled_up(world, COUNT, SUM, x=2)
    assert compact(world) == ""
    assert world.engine.writes[-1].combines == {"count", "sum_x"}
    assert world.engine.writes[-1].schema.rollup


def test_rows_that_are_only_put_together_stay_known_as_rolled_up(world: BatchWorld) -> None:
    """A later compaction would else count each of them as one."""
    rolled_up(world, COUNT)
    rolled_up(world, COUNT, SUM, x=2)
    assert compact(world, rollup=False) == ""
    assert not world.engine.writes[-1].schema.rollup
    (segment,) = world.visible()
    assert [m["name"] for m in metrics_of(segment) or ()] == ["count", "sum_x"]  # type: ignore[index, call-overload]
    assert compact(world, COUNT) == ""
    assert world.engine.writes[-1].combines == {"count"}


def test_a_count_of_rows_of_which_some_were_rolled_up_is_refused(world: BatchWorld) -> None:
    rolled_up(world, COUNT)
    world.run(index(lines((1, "b", 1)), mode="append"))
    assert "some were not" in compact(world, COUNT)
    assert compact(world, rollup=False) == ""


def test_sketches_of_rows_that_all_stay_are_no_dimensions() -> None:
    theta = {"type": "thetaSketch", "name": "known", "fieldName": "x"}
    rows = [
        KeptRows({"a": "STRING", "hll": "BINARY"}, None),
        KeptRows({"hll": "BINARY", "theta": "BINARY", "known": "BINARY"}, None),
    ]
    found = carried(rows, metrics(theta))
    assert [metric.name for metric in found] == ["hll", "theta"]
    assert [metric.inputs for metric in found] == [("hll",), ("theta",)]
    assert all(metric.reads_sketches for metric in found)
    assert carried([RAW, ROLLED_UP], ()) == ()
