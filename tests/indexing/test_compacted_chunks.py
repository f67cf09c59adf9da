"""Which time chunks a `compact` makes of those that are there, where it is given no granularity.

What it writes has one version, and of one version no time chunk may overlap another: nobody could
read the datasource any more. So chunks that overlap become one; every row must still be there.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.core.intervals import Interval
from penstock.indexing.ports import TaskState
from tests.harness.engine_kit import read_rows
from tests.indexing.batch_kit import DAY_MS, START_MS, BatchWorld, day, index, lines

DAYS = [(1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4)]
HALF_DAY_MS = 43_200_000
NOON = Interval(START_MS + HALF_DAY_MS, START_MS + 3 * HALF_DAY_MS)
LOCKS = [{}, {"useConcurrentLocks": True}, {"forceTimeChunkLock": False}]


def listed(n: int) -> dict[str, Any]:
    """Return a task that writes rows into a chunk from noon to noon, over halves of two days."""
    rows = [NOON.start_ms + 1, NOON.end_ms - 1]
    data = "\n".join(f'{{"t": {at}, "a": "noon", "n": {n}}}' for at in rows)
    granularity = {"type": "arbitrary", "segmentGranularity": None}
    return index(data, intervals=[str(NOON)], granularity=granularity)


def compact(interval: str, **more: object) -> dict[str, Any]:
    given = {"inputSpec": {"type": "interval", "interval": interval}}
    return {"type": "compact", "dataSource": "d", "ioConfig": given, **more}


def chunks(world: BatchWorld) -> list[str]:
    return [str(one) for one in sorted({segment.interval for segment in world.visible()})]


@pytest.mark.parametrize("context", LOCKS)
def test_chunks_that_lie_across_each_other_become_one(
    world: BatchWorld, context: dict[str, Any]
) -> None:
    world.run(index(lines(*DAYS)))
    world.run(listed(7))
    before = world.rows()
    assert chunks(world) == [day(1), str(NOON), day(2), day(3), day(4)]
    result = world.run(compact(day(1, 5), context=context))
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == before
    assert chunks(world) == [day(1, 2), day(3), day(4)]
    assert len({one.version for one in world.visible()}) == 1


def test_a_day_within_a_month_becomes_a_part_of_it(world: BatchWorld) -> None:
    world.run(index(lines((1, "m", 1), (20, "m", 2)), granularity={"segmentGranularity": "month"}))
    world.run(index(lines((9, "day", 3))))
    before = world.rows()
    result = world.run(compact(day(1, 31)))
    assert result.state is TaskState.SUCCESS, result.error
    assert (world.rows(), chunks(world)) == (before, [day(1, 31)])


def test_what_is_appended_meanwhile_goes_along(world: BatchWorld) -> None:
    concurrent = {"useConcurrentLocks": True}
    world.run(index(lines(*DAYS[:2])))
    world.run(listed(7))
    appended: list[tuple[int, str, int]] = []

    def meanwhile(at: str) -> None:
        if at == "before segmentTransactionalReplace":
            world.at = lambda _at: None
            rows = [START_MS, NOON.start_ms]
            data = "\n".join(f'{{"t": {at}, "a": "more", "n": 1}}' for at in rows)
            hours = {"segmentGranularity": "hour"}
            world.run(index(data, mode="append", granularity=hours, context=concurrent))
            appended.extend(world.rows())

    world.at = meanwhile
    result = world.run(compact(day(1, 2), context=concurrent))
    assert result.state is TaskState.SUCCESS, result.error
    assert [a for _, a, _ in appended] == ["a", "more", "more", "noon", "noon"]
    assert world.rows() == appended
    assert chunks(world) == [day(1, 2)]


def test_a_segment_that_stays_beside_chunks_that_become_one_becomes_a_part_of_it(
    world: BatchWorld,
) -> None:
    concurrent = {"useConcurrentLocks": True}
    world.run(index(lines(*DAYS[:2])))
    world.run(listed(7))
    noon = str(NOON)
    hour = {"segmentGranularity": "hour"}
    data = f'{{"t": {NOON.start_ms}, "a": "stays", "n": 8}}'
    world.run(index(data, mode="append", granularity=hour))
    named = [
        {"itvl": str(one.interval), "ver": one.version, "part": one.shard_spec.partition_number}
        for one in world.visible()
        if str(one.interval) in {day(1), noon} and one.shard_spec.partition_number == 0
    ]
    (before,) = {str(one.id) for one in world.visible() if one.shard_spec.partition_number == 1}
    rows = world.rows()
    given = {"type": "minor", "interval": day(1, 3), "segments": named}
    task = {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"inputSpec": given, "dropExisting": True},
        "context": concurrent,
    }
    result = world.run(task)
    assert result.state is TaskState.SUCCESS, result.error
    assert world.rows() == rows
    whole = str(Interval(START_MS, NOON.end_ms))
    assert chunks(world) == [whole, day(2)]
    assert before not in {str(one.id) for one in world.visible()}
    assert len([one for one in world.visible() if str(one.interval) == whole]) == 2


# columns whose names differ in case alone


def cities(world: BatchWorld, at: int, **values: str) -> None:
    """Publish a segment of a row of a day with dimensions of these names."""
    data = orjson.dumps({"t": START_MS + (at - 1) * DAY_MS, **values}).decode()
    world.run(index(data, schema={"dimensionsSpec": {"dimensions": list(values)}}))


def found_cities(world: BatchWorld) -> list[dict[str, Any]]:
    """Return the rows without their times and without what is null."""
    rows = [
        row
        for segment in world.visible()
        for row in read_rows(world.deep_store.location(segment.load_spec))
    ]
    found = ({n: v for n, v in row.items() if n != "__time" and v is not None} for row in rows)
    return sorted(found, key=str)


def test_a_column_whose_case_changed_is_compacted_into_one(world: BatchWorld) -> None:
    cities(world, 1, City="Bern")
    cities(world, 2, city="Chur")
    result = world.run(compact(day(1, 31), granularitySpec={"segmentGranularity": "month"}))
    assert result.state is TaskState.SUCCESS, result.error
    assert found_cities(world) == [{"city": "Bern"}, {"city": "Chur"}]  # as in the newest


def test_a_column_is_compacted_into_the_one_that_is_listed_in_another_case(
    world: BatchWorld,
) -> None:
    cities(world, 1, City="Bern")
    cities(world, 2, city="Chur")
    listed = {"dimensions": ["CITY"]}
    month = {"segmentGranularity": "month"}
    result = world.run(compact(day(1, 31), dimensionsSpec=listed, granularitySpec=month))
    assert result.state is TaskState.SUCCESS, result.error
    assert found_cities(world) == [{"CITY": "Bern"}, {"CITY": "Chur"}]


@pytest.mark.parametrize("outside", [False, True])
def test_columns_that_differ_in_case_alone_are_compacted_apart(
    world: BatchWorld, *, outside: bool
) -> None:
    """Once a segment has both, also one that is not compacted, queries see two columns."""
    cities(world, 1, City="Bern")
    cities(world, 2, city="Chur")
    cities(world, 40 if outside else 3, City="Genf", city="genf")
    result = world.run(compact(day(1, 31), granularitySpec={"segmentGranularity": "month"}))
    assert result.state is TaskState.SUCCESS, result.error
    assert found_cities(world) == [
        {"City": "Bern"},
        {"City": "Genf", "city": "genf"},
        {"city": "Chur"},
    ]


@pytest.mark.parametrize("name", ["ROWS", "A"])
def test_metrics_do_not_become_one_with_what_differs_in_case_alone(
    world: BatchWorld, name: str
) -> None:
    for at, named, dimension in ((1, "rows", "a"), (2, name, "b")):
        schema = {
            "metricsSpec": [{"type": "count", "name": named}],
            "dimensionsSpec": {"dimensions": [dimension]},
        }
        rolled_up = {"rollup": True, "queryGranularity": "day"}
        world.run(index(lines((at, "x", 1)), granularity=rolled_up, schema=schema))
    rollup = {"segmentGranularity": "month", "rollup": False}
    result = world.run(compact(day(1, 31), granularitySpec=rollup))
    assert result.state is TaskState.FAILED
    assert result.error is not None
    assert "differ only in case, and not all of them are dimensions" in str(result.error)
