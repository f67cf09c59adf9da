"""Projections of Druid's specs: taken and given back, checked as Druid does, and no part of rows.

They change no answer, so a spec with some must run as one without; a mistake in them must be told
at once, as nothing else would ever show it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import JsonValue

from penstock.indexing.ports import TaskState
from penstock.indexing.specs import SpecError, parse_supervisor_spec
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.compaction import parse_compaction
from penstock.indexing.specs.druid_expressions import parse
from penstock.indexing.specs.errors import did_you_mean
from penstock.indexing.supervisor.spec_updates import UpdateAction, update_action
from penstock.indexing.task_spec import base_sequence_name
from tests.indexing.batch_kit import BatchWorld, day, index, lines
from tests.indexing.indexing_kit import spec_json


def aggregator(name: str, field: str, kind: str = "longSum") -> dict[str, JsonValue]:
    """Return an aggregator of a field."""
    return {"type": kind, "name": name, "fieldName": field}


HOURLY: Any = {
    "type": "aggregate",
    "name": "hourly",
    "virtualColumns": [
        {
            "type": "expression",
            "name": "__gran",
            "expression": "timestamp_floor(__time, 'PT1H')",
            "outputType": "LONG",
        }
    ],
    "groupingColumns": [
        {"type": "long", "name": "__gran", "multiValueHandling": "SORTED_ARRAY"},
        {"type": "string", "name": "carrier", "createBitmapIndex": True},
    ],
    "aggregators": [aggregator("n_sum", "n")],
    "ordering": [{"columnName": "__gran", "order": "ascending"}],
}
METRICS: Any = [
    {"type": "count", "name": "count"},
    aggregator("delays", "delay"),
    aggregator("planes", "plane", "HLLSketchBuild"),
]
TWICE: Any = [METRICS[0], METRICS[0]]


def stream(*projections: dict[str, Any], **schema: Any) -> dict[str, Any]:
    raw: Any = copy.deepcopy(spec_json())
    raw["spec"]["dataSchema"].update({"projections": list(projections), **schema})
    spec: dict[str, Any] = raw
    return spec


def mistakes(*projections: dict[str, Any], **schema: Any) -> dict[str, JsonValue]:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(stream(*projections, **schema))
    start = "spec.dataSchema.projections"
    return {m.place.removeprefix(start): m.message for m in caught.value.mistakes}


def changed(**more: Any) -> dict[str, Any]:
    return {**HOURLY, **more}


def virtual(expressions: Mapping[str, str]) -> dict[str, Any]:
    """Return a projection with columns that are computed so."""
    columns = [
        {"type": "expression", "name": name, "expression": text}
        for name, text in expressions.items()
    ]
    return changed(virtualColumns=columns, groupingColumns=["carrier"])


def test_what_is_sent_is_given_back() -> None:
    spec = parse_supervisor_spec(stream(HOURLY))
    shown: Any = spec.to_json()["spec"]
    (given,) = shown["dataSchema"]["projections"]
    assert given["virtualColumns"] == HOURLY["virtualColumns"]
    assert [c["name"] for c in given["groupingColumns"]] == ["__gran", "carrier"]
    assert [c["type"] for c in given["groupingColumns"]] == ["long", "string"]
    told = {name: value for name, value in given["aggregators"][0].items() if value is not None}
    assert told == HOURLY["aggregators"][0]
    assert parse_supervisor_spec(spec.to_json()) == spec
    # One without any is written as it always was.
    written_spec: Any
    for nothing in (stream(), stream(projections=None), spec_json()):
        written = parse_supervisor_spec(nothing).to_json()
        written_spec = written["spec"]
        assert "projections" not in written_spec["dataSchema"]


@pytest.mark.parametrize(
    "projection",
    [
        changed(virtualColumns=[], groupingColumns=["carrier"]),
        changed(groupingColumns=["__time"], virtualColumns=None),
        changed(groupingColumns=[]),
        changed(aggregators=None),
        changed(filter={"type": "in", "dimension": "carrier", "values": ["UA"]}),
        changed(filter={"type": "not", "field": {"type": "null", "column": "__gran"}}),
        changed(
            virtualColumns=[
                {"type": "expression", "name": "a", "expression": "b + n"},
                {"type": "expression", "name": "b", "expression": 'strlen("carrier") + 1'},
                {"type": "nested-field", "columnName": "carrier", "outputName": "c", "path": "$.c"},
            ],
            groupingColumns=["a", "c"],
        ),
    ],
)
def test_what_druid_takes_is_taken(projection: dict[str, Any]) -> None:
    spec = parse_supervisor_spec(stream(projection))
    assert parse_supervisor_spec(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("projection", "place", "message"),
    [
        (changed(type="table"), ".type", 'only "aggregate" is supported yet, not "table"'),
        (changed(type="aggregat"), ".type", 'not "aggregat": did you mean "aggregate"?'),
        (changed(name=""), ".name", "must not be empty"),
        (
            changed(virtualColumn=[]),
            ".virtualColumn",
            'unknown field: did you mean "virtualColumns"?',
        ),
        (
            changed(groupingColumns=[], aggregators=[]),
            ".groupingColumns",
            "must not be empty if aggregators is empty, too: the projection has no columns",
        ),
        (
            changed(groupingColumns=["carier"]),
            ".groupingColumns[0].name",
            "unknown column 'carier': did you mean \"carrier\"?",
        ),
        (
            changed(groupingColumns=["n"]),
            ".groupingColumns[0].type",
            "must be long, as in dimensionsSpec, not string",
        ),
        (
            changed(groupingColumns=["carrier", "carrier"]),
            ".groupingColumns[1]",
            "duplicate column 'carrier': groupingColumns[0] has it already",
        ),
        (
            changed(aggregators=[aggregator("carrier", "n")]),
            ".aggregators[0]",
            "duplicate column 'carrier': groupingColumns[1] has it already",
        ),
        (
            changed(aggregators=[aggregator("m", "delay")]),
            ".aggregators[0].fieldName",
            "unknown column 'delay'; there are __gran, __time, carrier, n",
        ),
        (
            changed(aggregators=[aggregator("m", "n", "longSu")]),
            ".aggregators[0].type",
            'did you mean "longSum"?',
        ),
        (virtual({"v": "m + 1"}), ".virtualColumns[0].expression", "unknown column 'm'"),
        (virtual({"v": "n +"}), ".virtualColumns[0].expression", "expected a value"),
        (virtual({"v": "v + 1"}), ".virtualColumns[0]", "'v' is computed from itself"),
        (
            changed(virtualColumns=[HOURLY["virtualColumns"][0] | {"outputType": "INT"}]),
            ".virtualColumns[0].outputType",
            "'INT' is not a type of column",
        ),
        (
            changed(virtualColumns=[{"type": "mv-filtered", "name": "v"}]),
            ".virtualColumns[0].type",
            "not supported here",
        ),
        (
            changed(
                virtualColumns=[
                    {"type": "nested-field", "columnName": "carrier", "outputName": "v"}
                ]
            ),
            ".virtualColumns[0].path",
            "set this or pathParts",
        ),
        (
            changed(filter={"type": "null", "column": "carier"}),
            ".filter",
            "unknown column 'carier'",
        ),
        (
            changed(filter={"type": "columnComparison", "dimensions": ["carrier", "n", "carier"]}),
            ".filter",
            "unknown column 'carier'",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(
    projection: dict[str, Any], place: str, message: str
) -> None:
    found: Any = mistakes(projection)
    assert message in found[f"[0]{place}"]


def test_they_are_looked_at_though_the_schema_is_wrong_elsewhere() -> None:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(stream(changed(groupingColumns=["carier"]), metricsSpec=TWICE))
    schema = "spec.dataSchema"
    assert [one.place.removeprefix(schema) for one in caught.value.mistakes] == [
        ".metricsSpec[1].name",
        ".projections[0].groupingColumns[0].name",
    ]


def test_names_are_there_once() -> None:
    found: Any = mistakes(HOURLY, changed(name="other"), HOURLY)
    assert found == {"[2].name": "duplicate name 'hourly': projections[0] has it already"}


def test_metrics_are_summed_up_by_what_combines_them() -> None:
    combining: Any = [
        aggregator("count", "count"),
        aggregator("delays", "delays"),
        aggregator("planes", "planes", "HLLSketchMerge"),
        aggregator("greatest", "n", "doubleMax"),
    ]
    rolled = {"metricsSpec": METRICS, "granularitySpec": {"rollup": True}}
    parse_supervisor_spec(stream(changed(aggregators=combining), **rolled))
    parse_supervisor_spec(stream(changed(aggregators=METRICS[:1]), **rolled))
    wrong: Any = [
        aggregator("count", "count", "longMax"),
        aggregator("delays", "n"),
        aggregator("more", "delays"),
    ]
    assert mistakes(changed(aggregators=wrong), **rolled) == {
        "[0].aggregators[0].name": "is a metric of the datasource: aggregate it by longSum of"
        " 'count'",
        "[0].aggregators[1].name": "is a metric of the datasource: aggregate it by longSum of"
        " 'delays'",
        "[0].aggregators[2].fieldName": "'delays' is a metric, aggregated only under its own name:"
        " use that name",
    }


def test_only_columns_on_a_circle_and_what_reads_them_are_computed_from_themselves() -> None:
    chain = {f"c{i}": f"c{i + 1}" for i in range(20)} | {"c20": "n"}
    parse_supervisor_spec(stream(virtual(chain)))
    circle = {"a": "b + n", "b": "c20 + a", "reads": "a", "self": "self"}
    told = mistakes(virtual(chain | circle))
    assert [str(text).split()[0] for text in told.values()] == ["'a'", "'b'", "'reads'", "'self'"]


def test_of_many_columns_each_is_parsed_a_few_times_and_few_names_are_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A spec may have 10,000: the square of that kept an overlord busy for an hour."""
    guessed, parsed = Mock(wraps=did_you_mean), Mock(wraps=parse)
    monkeypatch.setattr("penstock.indexing.specs.rows.projections.did_you_mean", guessed)
    monkeypatch.setattr("penstock.indexing.specs.rows.projections.parse", parsed)
    told = mistakes(virtual({f"v{i}": f"carier{i}" for i in range(90)}))
    assert len(told) == 90
    assert parsed.call_count < 5 * 90
    assert guessed.call_count == 20
    guessed.reset_mock()
    many: Any = {"dimensions": ["carrier", {"type": "long", "name": "n"}, *map(str, range(1_000))]}
    told = mistakes(virtual({"v": "carier"}), dimensionsSpec=many)
    assert list(told.values()) == ["unknown column 'carier'"]
    assert not guessed.called


def test_columns_that_are_found_in_the_data_may_be_any() -> None:
    found: Any = {"includeAllDimensions": True, "dimensions": [{"type": "long", "name": "n"}]}
    parse_supervisor_spec(stream(changed(groupingColumns=["whatever"]), dimensionsSpec=found))
    # What is known must be as it is.
    told = mistakes(changed(groupingColumns=["n"]), dimensionsSpec=found)
    assert told.keys() == {"[0].groupingColumns[0].type"}


def test_other_projections_make_no_other_tasks() -> None:
    plain, some = parse_supervisor_spec(spec_json()), parse_supervisor_spec(stream(HOURLY))
    assert base_sequence_name(plain, {0: 0}) == base_sequence_name(some, {0: 0})
    assert update_action(plain, some) is UpdateAction.RESTART_SUPERVISOR


def test_compaction_takes_them_and_passes_them_on() -> None:
    config = parse_compaction({"dataSource": "d", "projections": [HOURLY]})
    assert parse_compaction(config.to_json()) == config
    raw: Any = {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"inputSpec": {"type": "interval", "interval": "2013-01-05/2013-01-06"}},
        "projections": [HOURLY],
    }
    task = parse_batch_task(raw)
    assert isinstance(task, CompactSpec)
    assert task.projections == config.projections
    assert parse_batch_task(task.to_json()) == task
    with pytest.raises(SpecError, match=r"projections\[1\].name: duplicate name 'hourly'"):
        parse_batch_task(raw | {"projections": [HOURLY, HOURLY]})
    with pytest.raises(SpecError, match=r"projections\[1\].name: duplicate name 'hourly'"):
        parse_compaction({"dataSource": "d", "projections": [HOURLY, HOURLY]})


BY_A = {
    "type": "aggregate",
    "name": "by a",
    "groupingColumns": ["a"],
    "aggregators": [aggregator("n_sum", "n")],
}


def test_a_task_writes_what_it_would_write_without(tmp_path: Path) -> None:
    rows = [(1, "x", 1), (1, "x", 2), (2, "y", 3)]
    compact = {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"inputSpec": {"type": "interval", "interval": day(1, 2)}},
    }
    written = []
    for name, projections in (("plain", []), ("some", [BY_A])):
        (tmp_path / name).mkdir()
        world = BatchWorld(tmp_path / name)
        for task in (
            index(lines(*rows), schema={"projections": projections}),
            compact | {"projections": projections},
        ):
            result = world.run(task)
            assert result.state is TaskState.SUCCESS, result.error
        assert world.rows() == rows
        # They are no part of segments.
        assert [segment.projections for segment in world.visible()] == [None, None]
        written.append([segment.last_compaction_state for segment in world.visible()])
        world.close()
    assert written[0] == written[1]
