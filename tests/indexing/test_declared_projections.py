"""The projections that batch tasks were given are known once the task has published, and only then.

Whoever makes them reads them from the configuration; answers are the same if that is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.errors import LockRevoked, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.rows.declared_projections import (
    DECLARED_MAX,
    DeclaredProjections,
    config_name,
    dump,
    load,
    merged,
    of_schema,
)
from penstock.storage.metadata.tables.configuration import DynamicConfig
from tests.indexing.batch_kit import BatchWorld, day, index, lines

ROWS = [(1, "x", 1), (1, "x", 2), (2, "y", 3)]
COMPACT = {
    "type": "compact",
    "dataSource": "d",
    "ioConfig": {"inputSpec": {"type": "interval", "interval": day(1, 2)}},
}


def by(name: str, column: str = "a") -> dict[str, Any]:
    """Return a projection of this name."""
    return {
        "type": "aggregate",
        "name": name,
        "groupingColumns": [column],
        "aggregators": [{"type": "longSum", "name": "s", "fieldName": "n"}],
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    made = BatchWorld(tmp_path)
    yield made
    made.close()


def kept(world: BatchWorld) -> dict[str, DeclaredProjections]:
    """Return the projections of the datasource, by name."""
    return {one.name: one for one in load(world.store.config.get(config_name("d")))}


def run(world: BatchWorld, task: Mapping[str, object]) -> None:
    result = world.run(task)
    assert result.state is TaskState.SUCCESS, result.error


def test_what_tasks_published_with_is_kept_by_name(world: BatchWorld) -> None:
    run(world, index(lines(*ROWS)))
    assert world.store.config.get(config_name("d")) is None
    run(world, index(lines(*ROWS), schema={"projections": [by("one"), by("two")]}))
    one = kept(world)["one"]
    assert list(kept(world)) == ["one", "two"]
    assert cast("Any", one.projection["groupingColumns"])[0]["name"] == "a"
    run(world, COMPACT | {"projections": [by("one", "__time"), by("three")]})
    assert list(kept(world)) == ["two", "one", "three"]
    assert kept(world)["one"] != one
    # A task without any takes none back: what nobody asks for is not made.
    run(world, COMPACT)
    assert list(kept(world)) == ["two", "one", "three"]


def test_names_of_metrics_are_kept_with_them(world: BatchWorld) -> None:
    metrics = [{"type": "longSum", "name": "n", "fieldName": "n"}]
    schema: dict[str, Any] = {"projections": [by("one")], "metricsSpec": metrics}
    schema["projections"][0]["aggregators"] = metrics
    schema["dimensionsSpec"] = {"dimensions": ["a"]}
    run(world, index(lines(*ROWS), schema=schema))
    assert kept(world)["one"].metrics == ("n",)


def test_a_task_that_fails_leaves_nothing(world: BatchWorld) -> None:
    def lost(step: str) -> None:
        if step.startswith("before segmentTransactional"):
            raise LockRevoked("another task took it")

    world.at = lost
    result = world.run(index(lines(*ROWS), schema={"projections": [by("one")]}))
    assert result.state is TaskState.FAILED
    assert kept(world) == {}


@pytest.mark.parametrize("trouble", ["the store is away", "others are faster"])
def test_trouble_with_it_is_told_and_no_trouble_of_the_publish(
    world: BatchWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    def write(*_given: bytes | str | DynamicConfig | None, **_more: object) -> bool:
        if trouble == "others are faster":
            return False
        raise Unavailable(trouble)

    monkeypatch.setattr(DynamicConfig, "compare_and_set", write)
    with caplog.at_level(logging.WARNING):
        run(world, index(lines(*ROWS), schema={"projections": [by("one")]}))
    assert world.rows() == ROWS
    assert "projections are not registered" in caplog.text


def test_what_cannot_be_read_is_none() -> None:
    for stored in (None, b"", b"[", b"[]", b'{"projections": 5}', b'{"projections": [1, {}]}'):
        assert load(stored) == ()
    empty: tuple[dict[str, Any], ...] = (
        {},
        {"projections": None},
        {"projections": {}},
        {"projections": [1]},
    )
    for schema in empty:
        assert of_schema(schema) == ()
    metrics: dict[str, Any] = {"metricsSpec": [{"name": "n"}, {"type": "count"}, 5]}
    assert of_schema({"projections": [by("x")]} | metrics) == (
        DeclaredProjections(by("x"), ("n",)),
    )


def test_the_newest_are_kept() -> None:
    many = merged([], (DeclaredProjections({"name": str(n)}) for n in range(2 * DECLARED_MAX)))
    assert load(dump(many)) == many[DECLARED_MAX:]
