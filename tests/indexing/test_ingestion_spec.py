"""Specs: what is taken, and each kind of mistake with its place and the name meant."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs import (
    SpecError,
    parse_data_schema,
    parse_supervisor_spec,
)
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.stream_config import IoConfig
from penstock.indexing.specs.task_context import TaskContext
from penstock.indexing.supervisor.spec_updates import UpdateAction, update_action
from penstock.indexing.task_spec import base_sequence_name
from tests.indexing.indexing_kit import spec_json


def changed(place: str, value: object) -> dict[str, Any]:
    """Return the good spec with one place set; ``None`` deletes it."""
    return with_value(spec_json(), place, value)


def with_value(spec: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    spec = copy.deepcopy(spec)
    *path, last = place.split(".")
    target: Any = spec
    for step in path:
        target = target[int(step)] if step.isdigit() else target.setdefault(step, {})
    if last.isdigit():
        target[int(last)] = value
    elif value is DELETED:
        del target[last]
    else:
        target[last] = value
    return spec


DELETED = object()
DS = "spec.dataSchema"
IO = "spec.ioConfig"
COSTS = {"autoScalerStrategy": "costBased", "taskCountMin": 1, "taskCountMax": 2}
TU = "spec.tuningConfig"

MISTAKES = [
    # the whole
    ("type", "kafak", "type", 'did you mean "kafka"?'),
    ("spce", {}, "spce", 'unknown field: did you mean "spec"?'),
    ("spec", DELETED, "spec", "is required"),
    ("spec", [], "spec", "must be an object"),
    ("dataSchema", {}, "dataSchema", "move it into spec"),
    ("suspended", "perhaps", "suspended", "must be true or false"),
    ("id", "../x", "id", "starts with a dot"),
    ("id", "x" * 65, "id", "64 bytes"),
    ("context", [], "context", "must be an object"),
    # dataSchema
    (f"{DS}.dataSource", DELETED, f"{DS}.dataSource", "is required"),
    (f"{DS}.dataSource", "", f"{DS}.dataSource", "must not be empty"),
    (f"{DS}.dataSource", "a/b", f"{DS}.dataSource", "it has '/'"),
    (f"{DS}.dataSource", ".a", f"{DS}.dataSource", "dot"),
    (f"{DS}.dataSource", "a\tb", f"{DS}.dataSource", "white space"),
    (f"{DS}.dataSource", "a\x00b", f"{DS}.dataSource", "control"),
    (f"{DS}.dataSource", " a", f"{DS}.dataSource", "space"),
    (f"{DS}.dataSource", 7, f"{DS}.dataSource", "must be text, not 7"),
    (f"{DS}.dataSorce", "a", f"{DS}.dataSorce", 'did you mean "dataSource"?'),
    (f"{DS}.data_source", "a", f"{DS}.data_source", 'did you mean "dataSource"?'),
    (f"{DS}.projections", [{"name": "x"}], f"{DS}.projections[0].type", "is required"),
    (f"{DS}.parser", {}, f"{DS}.parser", "use timestampSpec"),
    # time
    (f"{DS}.timestampSpec.format", "unix", f"{DS}.timestampSpec.format", "is not one of"),
    (f"{DS}.timestampSpec.format", "ISOO", f"{DS}.timestampSpec.format", 'did you mean "iso"?'),
    (f"{DS}.timestampSpec.format", "yy-MM-dd", f"{DS}.timestampSpec.format", "two digits"),
    (f"{DS}.timestampSpec.colum", "t", f"{DS}.timestampSpec.colum", 'did you mean "column"?'),
    (f"{DS}.timestampSpec.missingValue", "soon", f"{DS}.timestampSpec.missingValue", "'soon'"),
    # dimensions
    (f"{DS}.dimensionsSpec", DELETED, f"{DS}.dimensionsSpec", "is required"),
    (f"{DS}.dimensionsSpec.dimensions", "a", f"{DS}.dimensionsSpec.dimensions", "a list"),
    (
        f"{DS}.dimensionsSpec.dimensions.1",
        {"type": "lng", "name": "n"},
        f"{DS}.dimensionsSpec.dimensions[1].type",
        'did you mean "long"?',
    ),
    (
        f"{DS}.dimensionsSpec.dimensions.1",
        {"type": "long", "nmae": "n"},
        f"{DS}.dimensionsSpec.dimensions[1].nmae",
        'did you mean "name"?',
    ),
    (
        f"{DS}.dimensionsSpec.dimensions.1",
        "__time",
        f"{DS}.dimensionsSpec.dimensions[1].name",
        "the time column itself",
    ),
    (
        f"{DS}.dimensionsSpec.dimensions.1",
        "carrier",
        f"{DS}.dimensionsSpec.dimensions[1].name",
        "duplicate column",
    ),
    (
        f"{DS}.dimensionsSpec.dimensionExclusions",
        ["a"],
        f"{DS}.dimensionsSpec.dimensionExclusions",
        "leave it out",
    ),
    # metrics
    (f"{DS}.metricsSpec", [{"type": "count"}], f"{DS}.metricsSpec[0].name", "is required"),
    (
        f"{DS}.metricsSpec",
        [{"type": "longSum", "name": "s"}],
        f"{DS}.metricsSpec[0].fieldName",
        "name the column",
    ),
    (
        f"{DS}.metricsSpec",
        [{"type": "count", "name": "s", "fieldName": "x"}],
        f"{DS}.metricsSpec[0].fieldName",
        "leave it out",
    ),
    (
        f"{DS}.metricsSpec",
        [{"type": "HLLSketchMerge", "name": "s", "fieldName": "x"}],
        f"{DS}.metricsSpec[0].type",
        "contain no sketches",
    ),
    (
        f"{DS}.metricsSpec",
        [{"type": "longsum", "name": "s", "fieldName": "x"}],
        f"{DS}.metricsSpec[0].type",
        'did you mean "longSum"?',
    ),
    (
        f"{DS}.metricsSpec",
        [{"type": "count", "name": "carrier"}],
        f"{DS}.metricsSpec[0].name",
        "duplicate column 'carrier': dimensionsSpec.dimensions[0] has it already",
    ),
    # granularity
    (
        f"{DS}.granularitySpec.segmentGranularity",
        "MONHT",
        f"{DS}.granularitySpec.segmentGranularity",
        "unknown granularity",
    ),
    (
        f"{DS}.granularitySpec.segmentGranularity",
        "none",
        f"{DS}.granularitySpec.segmentGranularity",
        "choose an hour or more",
    ),
    (
        f"{DS}.granularitySpec.queryGranularity",
        "month",
        f"{DS}.granularitySpec.queryGranularity",
        "does not fit into the segment granularity DAY",
    ),
    (
        f"{DS}.granularitySpec.segmentGranularty",
        "DAY",
        f"{DS}.granularitySpec.segmentGranularty",
        'did you mean "segmentGranularity"?',
    ),
    (
        f"{DS}.granularitySpec.intervals",
        ["2013/2014"],
        f"{DS}.granularitySpec.intervals",
        "late and early",
    ),
    (f"{DS}.granularitySpec.type", "arbitrary", f"{DS}.granularitySpec.type", "uniform"),
    # transforms and filter
    (
        f"{DS}.transformSpec",
        {"transforms": [{"type": "expression", "name": "x"}]},
        f"{DS}.transformSpec.transforms[0].expression",
        "is required",
    ),
    (
        f"{DS}.transformSpec",
        {"transforms": [{"name": "x", "expression": "1"}] * 2},
        f"{DS}.transformSpec.transforms[1].name",
        "twice",
    ),
    (
        f"{DS}.transformSpec",
        {"transforms": [{"name": "x", "expression": "upper(\n`Reflect` ('a', 'b'))"}]},
        f"{DS}.transformSpec.transforms[0].expression",
        "reflect() is not allowed, line 2, column 1",
    ),
    (
        f"{DS}.transformSpec",
        {"transforms": [{"name": "x", "expression": "concat(\n'${env:HOME}', 'a')"}]},
        f"{DS}.transformSpec.transforms[0].expression",
        "${env:HOME} is not allowed, line 2, column 2: Spark could replace it by a variable",
    ),
    (
        f"{DS}.transformSpec",
        {
            "transforms": [
                {"name": "x", "expression": "if(strlen('${x}') == 1 && n == 2, 'a', 'b')"}
            ]
        },
        f"{DS}.transformSpec.transforms[0].expression",
        "variable of the host",
    ),
    (
        f"{DS}.transformSpec",
        {"filter": {"type": "expression", "expression": "carrier = /* ${x} */ 'AA'"}},
        f"{DS}.transformSpec.filter.expression",
        "variable of the host",
    ),
    (
        f"{DS}.transformSpec",
        {"transforms": [{"name": "x", "expression": "(select max(value) from text.`/x`)"}]},
        f"{DS}.transformSpec.transforms[0].expression",
        "a query is not allowed, line 1, column 2",
    ),
    (
        f"{DS}.transformSpec",
        {"transforms": [{"name": "x", "expression": "upper('a"}]},
        f"{DS}.transformSpec.transforms[0].expression",
        "opens a text",
    ),
    (
        f"{DS}.transformSpec",
        {"filter": {"type": "selectr"}},
        f"{DS}.transformSpec.filter.type",
        'did you mean "selector"?',
    ),
    (
        f"{DS}.transformSpec",
        {"filter": {"type": "not", "field": {"type": "in", "dimenson": "a", "values": []}}},
        f"{DS}.transformSpec.filter.field.dimenson",
        'did you mean "dimension"?',
    ),
    (
        f"{DS}.transformSpec",
        {"filter": {"type": "and", "fields": []}},
        f"{DS}.transformSpec.filter.fields",
        "must not be empty",
    ),
    (
        f"{DS}.transformSpec",
        {"filter": {"type": "bound", "dimension": "a"}},
        f"{DS}.transformSpec.filter",
        "set lower, upper or both",
    ),
    # ioConfig
    (IO, DELETED, IO, "is required"),
    (f"{IO}.topic", DELETED, f"{IO}.topic", "is required"),
    (f"{IO}.topic", "../x", f"{IO}.topic", "is not a valid topic name"),
    (f"{IO}.topic", "x" * 65, f"{IO}.topic", "1 to 64"),
    (f"{IO}.taskCount", 0, f"{IO}.taskCount", "must be at least 1, not 0"),
    (f"{IO}.taskCount", "two", f"{IO}.taskCount", "whole number"),
    (f"{IO}.taskCount", True, f"{IO}.taskCount", "must be a whole number, not true"),
    (f"{IO}.replicas", 11, f"{IO}.replicas", "at most 10"),
    (f"{IO}.taskDuration", "1 hour", f"{IO}.taskDuration", "1 hour"),
    (f"{IO}.taskDuration", -5, f"{IO}.taskDuration", ""),
    (f"{IO}.taskDuration", "PT0S", f"{IO}.taskDuration", "longer than 0"),
    (f"{IO}.taskDuraton", "PT1H", f"{IO}.taskDuraton", 'did you mean "taskDuration"?'),
    (f"{IO}.deadLetterTopic", "flights", f"{IO}.deadLetterTopic", "another topic"),
    (
        f"{IO}.autoScalerConfig",
        {"autoScalerStrategy": "cost"},
        f"{IO}.autoScalerConfig.autoScalerStrategy",
        'did you mean "costBased"?',
    ),
    (
        f"{IO}.autoScalerConfig",
        {"autoScalerStrategy": "costBased", "taskCountMin": 3, "taskCountMax": 2},
        f"{IO}.autoScalerConfig.taskCountMin",
        "at most taskCountMax, 2",
    ),
    (
        f"{IO}.autoScalerConfig",
        {**COSTS, "lagWieght": 1},
        f"{IO}.autoScalerConfig.lagWieght",
        'did you mean "lagWeight"?',
    ),
    (
        f"{IO}.autoScalerConfig",
        {**COSTS, "scaleInStep": 1},
        f"{IO}.autoScalerConfig.scaleInStep",
        "a field of lagBased",
    ),
    (
        f"{IO}.autoScalerConfig",
        {**COSTS, "optimalTaskIdleRatio": 1},
        f"{IO}.autoScalerConfig.optimalTaskIdleRatio",
        "less than 1.0, not 1",
    ),
    (
        f"{IO}.autoScalerConfig",
        {**COSTS, "lagWeight": 0, "idleWeight": 0},
        f"{IO}.autoScalerConfig.lagWeight",
        "unless idleWeight is",
    ),
    (
        f"{IO}.autoScalerConfig",
        {"taskCountMin": 1, "taskCountMax": 2, "lagWeight": 1},
        f"{IO}.autoScalerConfig.lagWeight",
        "a field of costBased",
    ),
    (
        f"{IO}.autoScalerConfig",
        {"taskCountMin": 3, "taskCountMax": 2},
        f"{IO}.autoScalerConfig.taskCountMin",
        "at most taskCountMax, 2",
    ),
    (
        f"{IO}.autoScalerConfig",
        {"taskCountMin": 1, "taskCountMax": 2, "scaleInThreshold": 7_000_000},
        f"{IO}.autoScalerConfig.scaleInThreshold",
        "come and go forever",
    ),
    (
        f"{IO}.boundedStreamConfig",
        {"startSequenceNumbers": {"0": 5}, "endSequenceNumbers": {"0": 4}},
        f"{IO}.boundedStreamConfig.endSequenceNumbers",
        "ends before its start, 5",
    ),
    (
        f"{IO}.idleConfig",
        {"inactiveAfterMilis": 5},
        f"{IO}.idleConfig.inactiveAfterMilis",
        "Millis",
    ),
    (f"{IO}.type", "kafka", f"{IO}.type", "must be penstock"),
    (f"{TU}.type", "kafka", f"{TU}.type", "must be penstock, the supervisor's type"),
    ("context", {"priority": "high"}, "context.priority", "must be a whole number"),
    ("context", {"taskLockType": "append"}, "context.taskLockType", "EXCLUSIVE, SHARED, REPLACE"),
    (f"{IO}.stream", "x", f"{IO}.stream", "set only topic"),
    (
        f"{IO}.inputFormat",
        {"type": "parquet"},
        f"{IO}.inputFormat.type",
        "a stream's messages are json, csv, tsv, not parquet",
    ),
    (
        f"{IO}.inputFormat",
        {"type": "kafka", "valueFormat": {"type": "json"}, "keyFormat": {"type": "jsn"}},
        f"{IO}.inputFormat.keyFormat.type",
        '"jsn" is not one of json, csv, tsv: did you mean "json"?',
    ),
    (
        f"{IO}.inputFormat",
        {"type": "kafka", "valueFormat": {"type": "orc"}},
        f"{IO}.inputFormat.valueFormat.type",
        "a stream's messages are json, csv, tsv, not orc",
    ),
    (
        f"{IO}.inputFormat",
        {"type": "csv", "findColumnsFromHeader": True},
        f"{IO}.inputFormat.findColumnsFromHeader",
        "list the columns in columns",
    ),
    (
        f"{IO}.inputFormat",
        {"type": "tsv", "columns": ["a"], "skipHeaderRows": 1},
        f"{IO}.inputFormat.skipHeaderRows",
        "leave it out",
    ),
    (f"{IO}.inputFormat", {"type": "regex"}, f"{IO}.inputFormat.type", "read the lines as tsv"),
    (f"{IO}.inputFormat", {"type": "json", "flattenSpec": {}}, f"{IO}.inputFormat.flattenSpec", ""),
    # tuningConfig
    (f"{TU}.maxRowsPerSegment", 0, f"{TU}.maxRowsPerSegment", "must be at least 1"),
    (f"{TU}.maxRowsPerSegment", "many", f"{TU}.maxRowsPerSegment", "whole number"),
    (f"{TU}.maxParseExceptions", -1, f"{TU}.maxParseExceptions", "at least 0"),
    (f"{TU}.maxRowsInMemry", 5, f"{TU}.maxRowsInMemry", 'did you mean "maxRowsInMemory"?'),
    (f"{TU}.releaseLocksOnHandoff", "perhaps", f"{TU}.releaseLocksOnHandoff", "true or false"),
    ("suspended", "yes", "suspended", 'true or false, not "yes"'),
    (f"{IO}.useEarliestOffset", "1", f"{IO}.useEarliestOffset", 'true or false, not "1"'),
    (f"{TU}.reportParseExceptions", 1.0, f"{TU}.reportParseExceptions", "true or false, not 1.0"),
    (f"{IO}.lagAggregator", {"type": "max"}, f"{IO}.lagAggregator", "lagAggregate"),
    (f"{TU}.partitionsSpec", {}, f"{TU}.partitionsSpec", "maxRowsPerSegment"),
]


@pytest.mark.parametrize(("place", "value", "where", "hint"), MISTAKES)
def test_a_mistake_is_told_with_its_place_and_the_mend(
    place: str, value: object, where: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(changed(place, value))
    told = {mistake.place: mistake.message for mistake in caught.value.mistakes}
    # A name that is not known leaves the one that was meant missing.
    assert len(told) == (2 if "nmae" in where or "dimenson" in where else 1), told
    assert hint in told[where]


@pytest.mark.parametrize(
    ("place", "empty"),
    [
        (f"{DS}.projections", None),
        (f"{DS}.projections", []),
        (f"{DS}.dimensionsSpec.spatialDimensions", []),
        (f"{DS}.granularitySpec.intervals", []),
        (f"{DS}.dimensionsSpec.dimensions.1", {"name": "a", "maxStringLength": None}),
        (f"{TU}.intermediateHandoffPeriod", None),
    ],
)
def test_what_is_refused_may_be_empty_as_in_the_specs_that_druid_gives_out(
    place: str, empty: list[Any] | dict[str, Any] | None
) -> None:
    parse_supervisor_spec(changed(place, empty))


def test_names_are_listed_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(changed("type", "kinesis"))
    assert str(caught.value) == 'type: "kinesis" is not one of penstock, kafka, folder'


def test_a_batch_task_is_told_where_it_belongs() -> None:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(changed("type", "index_parallel"))
    assert str(caught.value) == (
        "type: 'index_parallel' is a kind of batch task, not of supervisor: submit a task"
    )
    with pytest.raises(SpecError, match="submit it as a supervisor"):
        parse_batch_task({"type": "penstock", "spec": {}})


def places(value: Mapping[Any, object] | Sequence[object], place: str = "") -> Iterator[str]:
    """Yield every place of a spec."""
    if place:
        yield place
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    for step, inner in items:
        here = f"{place}.{step}" if place else str(step)
        yield from places(inner, here) if isinstance(inner, dict | list) else [here]


ODD_VALUES: list[JsonValue] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x y",
    [],
    [[]],
    {},
    {"a": 1},
    {"type": "x"},
]
FILTER = {
    "type": "and",
    "fields": [
        {"type": "not", "field": {"type": "selector", "dimension": "a", "value": "b"}},
        {"type": "range", "column": "a", "matchValueType": "long", "lower": 1, "lowerOpen": True},
        {"type": "in", "dimension": "a", "values": [1, "b"]},
    ],
}


def test_no_words_of_a_library_reach_the_user() -> None:
    spec: dict[str, Any] = parse_supervisor_spec(spec_json()).to_json()
    spec["spec"]["dataSchema"]["transformSpec"]["filter"] = FILTER
    spec["spec"]["ioConfig"]["lateMessageRejectionPeriod"] = "PT1H"
    parse_supervisor_spec(spec)
    foreign = re.compile(
        r"Input should|Value error|pydantic|union|discriminator|\btag\b|NoneType"
        r"|\.(str|int|float|bool)\b"
    )
    for place in places(spec):
        for value in ODD_VALUES:
            try:
                parse_supervisor_spec(with_value(spec, place, value))
            except SpecError as error:
                for mistake in error.mistakes:
                    text = f"{mistake.place}: {mistake.message}"
                    assert not foreign.search(text), text
                    assert "must have another value" not in text


def test_late_rejection_is_given_once() -> None:
    spec = changed(f"{IO}.lateMessageRejectionPeriod", "PT1H")
    spec["spec"]["ioConfig"]["lateMessageRejectionStartDateTime"] = "2013-01-01T00:00:00Z"
    with pytest.raises(SpecError, match="set only one of them"):
        parse_supervisor_spec(spec)


def test_all_mistakes_are_told_at_once() -> None:
    spec = changed(f"{IO}.topic", "a b")
    spec["spec"]["dataSchema"]["granularitySpec"]["rolup"] = True
    spec["spec"]["tuningConfig"]["maxTotalRows"] = []
    with pytest.raises(InvalidRequest) as caught:
        parse_supervisor_spec(spec)
    text = str(caught.value)
    assert text.startswith("3 mistakes in the spec:")
    assert "spec.dataSchema.granularitySpec.rolup: unknown field" in text
    assert "spec.ioConfig.topic" in text
    assert "spec.tuningConfig.maxTotalRows" in text


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b'"x"', b"\xff"])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(SpecError):
        parse_supervisor_spec(raw)


def test_a_name_that_stands_twice_is_refused_with_its_place() -> None:
    raw = json.dumps(spec_json())
    raw = raw.replace('"topic": "flights"', '"topic": "flights", "topic": "others"')
    raw = raw.replace('"dimensions": [', '"dimensions": [{"name": "a", "name": "b"}, ', 1)
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(raw)
    assert [m.place for m in caught.value.mistakes] == [
        "spec.dataSchema.dimensionsSpec.dimensions[0].name",
        "spec.ioConfig.topic",
    ]
    assert all("keep one of them" in m.message for m in caught.value.mistakes)


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_a_spec_of_endless_depth_is_refused(depth: int) -> None:
    with pytest.raises(SpecError, match=r"nested deeper|not JSON"):
        parse_supervisor_spec('{"context": ' * depth + "1" + "}" * depth)


def test_a_spec_of_kafka_is_taken_without_what_has_no_meaning_here() -> None:
    spec = spec_json()
    spec["type"] = "kafka"
    spec["spec"]["ioConfig"] |= {
        "type": "kafka",
        "consumerProperties": {"bootstrap.servers": "localhost:9092"},
        "pollTimeout": 100,
        "inputFormat": {"type": "json", "keepNullColumns": False},
    }
    spec["spec"]["tuningConfig"] |= {"type": "kafka", "maxRowsInMemory": 5, "indexSpec": {}}
    spec["spec"]["dataSchema"]["transformSpec"] = None
    parsed = parse_supervisor_spec(json.dumps(spec).encode())
    assert parsed.supervisor_id == "flights"
    assert (parsed.io.source, parsed.io.stream) == ("kafka", "flights")
    assert parsed.io.task_duration == 20_000
    assert parsed.io.dead_letters == "flights.dead-letter"


def streaming(kind: str, **io: object) -> dict[str, Any]:
    spec = spec_json()
    spec["type"] = kind
    spec["spec"]["ioConfig"] = io
    return spec


def test_the_type_of_the_whole_is_that_of_its_parts() -> None:
    parsed = parse_supervisor_spec(streaming("kafka", topic="t"))
    assert (parsed.io.type, parsed.tuning.type) == ("kafka", "kafka")
    # What we give out for a spec without tuningConfig is taken again.
    assert parse_supervisor_spec(parsed.to_json()) == parsed
    bare = streaming("kafka", topic="t")
    bare["spec"].pop("tuningConfig", None)
    again = parse_supervisor_spec(parse_supervisor_spec(bare).to_json())
    assert again.tuning == parse_supervisor_spec(bare).tuning
    # Without consumerProperties it is a topic of ours.
    assert parsed.io.source == "topic"


def test_folders_and_kafka_are_sources_too() -> None:
    folder = parse_supervisor_spec(streaming("folder", baseDir="/data/in", filter="*.json"))
    assert (folder.io.source, folder.io.stream) == ("folder", "/data/in")
    assert folder.io.dead_letters == "_data_in.dead-letter"
    servers = {"bootstrap.servers": "localhost:9092"}
    kafka = parse_supervisor_spec(streaming("kafka", topic="flights-a", consumerProperties=servers))
    assert (kafka.io.source, kafka.io.stream) == ("kafka", "flights-a")


@pytest.mark.parametrize(
    ("kind", "io", "where", "hint"),
    [
        ("folder", {}, "baseDir", "is required"),
        ("folder", {"baseDir": "/x", "topic": "t"}, "topic", "has no meaning for folder"),
        (
            "penstock",
            {"topicPattern": "a.*"},
            "topicPattern",
            "create one supervisor for each topic",
        ),
        ("kafka", {"consumerProperties": {}, "topic": "t"}, "consumerProperties", "bootstrap"),
        ("kafka", {"consumerProperties": {"bootstrap.servers": "x:1"}}, "topic", "is required"),
    ],
)
def test_what_a_source_needs_is_told(kind: str, io: dict[str, Any], where: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(streaming(kind, **io))
    told = {mistake.place: mistake.message for mistake in caught.value.mistakes}
    assert hint in told[f"spec.ioConfig.{where}"]


def test_durations_are_looked_at_though_others_are_wrong() -> None:
    raw = with_value(with_value(spec_json(), f"{IO}.period", "PT0S"), f"{IO}.taskDuration", "PT0S")
    with pytest.raises(SpecError) as caught:
        parse_supervisor_spec(with_value(raw, f"{IO}.taskCount", 0))
    places = {mistake.place for mistake in caught.value.mistakes}
    assert places == {f"{IO}.period", f"{IO}.taskDuration", f"{IO}.taskCount"}


def test_the_scaler_says_how_many_tasks_there_are_at_first() -> None:
    scaler = {"enableTaskAutoScaler": True, "taskCountMin": 2, "taskCountMax": 8}
    assert make(autoScalerConfig=scaler).first_task_count == 2
    assert make(autoScalerConfig=scaler | {"taskCountStart": 5}).first_task_count == 5
    assert make(autoScalerConfig=scaler | {"enableTaskAutoScaler": False}).first_task_count == 1


def test_a_scaler_by_costs_is_taken_as_druid_writes_it() -> None:
    written = {
        "autoScalerStrategy": "costBased",
        "enableTaskAutoScaler": True,
        "taskCountMax": 100,
        "taskCountMin": 5,
        "taskCountStart": 10,
        "minTriggerScaleActionFrequencyMillis": -1,
        "stopTaskCountRatio": None,
        "scaleActionPeriodMillis": 60_000,
        "lagWeight": 0.6,
        "idleWeight": 0.4,
        "optimalTaskIdleRatio": 0.3,
        "useTaskCountBoundariesOnScaleUp": False,
        "useTaskCountBoundariesOnScaleDown": True,
        "minScaleUpDelay": "PT300S",
        "minScaleDownDelay": "PT600S",
        "scaleDownDuringTaskRolloverOnly": True,
        "usePollIdleRatio": True,
        "criticalLagThreshold": 500_000,
        "minCostDropPercentForScaling": 10,
        "highLagCostFactor": 8.0,
    }
    spec = parse_supervisor_spec(spec_json(autoScalerConfig=written))
    assert parse_supervisor_spec(spec.to_json()) == spec
    shown: Any = spec.to_json()["spec"]
    given = shown["ioConfig"]["autoScalerConfig"]
    unsaid = {"minTriggerScaleActionFrequencyMillis", "stopTaskCountRatio", "usePollIdleRatio"}
    assert given == {name: value for name, value in written.items() if name not in unsaid}
    assert spec.io.first_task_count == 10


def make(**io: Any) -> IoConfig:
    return parse_supervisor_spec(spec_json(**io)).io


def test_the_context_says_which_locks_are_taken() -> None:
    def settings(**context: object) -> TaskContext:
        return parse_supervisor_spec(spec_json() | {"context": context}).settings

    assert settings().streaming_lock_type == "EXCLUSIVE"
    assert settings().priority == 75
    assert settings(useConcurrentLocks="true").streaming_lock_type == "APPEND"
    assert settings(useSharedLock=True).streaming_lock_type == "SHARED"
    assert settings(taskLockType="APPEND", priority="7").streaming_lock_type == "APPEND"
    assert settings(priority="7").priority == 7


def test_defaults_are_those_of_druid() -> None:
    spec = spec_json()
    spec["spec"]["ioConfig"] = {"topic": "t"}
    del spec["spec"]["tuningConfig"]
    del spec["spec"]["dataSchema"]["granularitySpec"]
    parsed = parse_supervisor_spec(spec)
    assert (parsed.io.task_count, parsed.io.task_duration, parsed.io.period) == (
        1,
        3_600_000,
        30_000,
    )
    assert parsed.tuning.max_rows_per_segment == 5_000_000
    assert str(parsed.data_schema.segment_granularity).lower() in {"day", "p1d"}
    assert parsed.data_schema.rollup is True


def test_a_spec_survives_its_json() -> None:
    parsed = parse_supervisor_spec(spec_json(lateMessageRejectionPeriod="PT0.5S"))
    again = parse_supervisor_spec(json.dumps(parsed.to_json()).encode())
    assert again == parsed
    schema = parsed.data_schema
    assert parse_data_schema(schema.model_dump(mode="json", by_alias=True)) == schema


def test_the_base_name_follows_from_what_is_done() -> None:
    spec, other = (
        parse_supervisor_spec(spec_json()),
        parse_supervisor_spec(spec_json(period="PT1S")),
    )
    name = base_sequence_name(spec, {0: 1, 1: 2})
    assert name == base_sequence_name(other, {1: 2, 0: 1})
    assert name != base_sequence_name(spec, {0: 1, 1: 3})


@pytest.mark.parametrize(
    "limit",
    [
        {"lateMessageRejectionPeriod": "PT1H"},
        {"lateMessageRejectionStartDateTime": "2013-01-02"},
        {"earlyMessageRejectionPeriod": "PT1H"},
    ],
)
def test_another_limit_of_late_or_early_rows_is_another_task(limit: dict[str, Any]) -> None:
    plain, limited = parse_supervisor_spec(spec_json()), parse_supervisor_spec(spec_json(**limit))
    assert base_sequence_name(plain, {0: 1}) != base_sequence_name(limited, {0: 1})
    for old, new in ((plain, limited), (limited, plain)):
        assert update_action(old, new) is UpdateAction.RESTART_SUPERVISOR_AND_TASKS


@pytest.mark.parametrize(
    ("given", "meant"), [(True, True), ("true", True), ("TRUE", True), (1, True), ("False", False)]
)
def test_flags_are_told_as_to_druid(given: int | str, meant: bool) -> None:
    assert parse_supervisor_spec(spec_json(useEarliestOffset=given)).io.use_earliest_offset is meant


def test_what_has_druids_default_alone_may_say_so_and_changes_no_task() -> None:
    plain = parse_supervisor_spec(spec_json())
    raw = spec_json(lagAggregator={"type": "default"})
    raw["spec"]["tuningConfig"] |= {
        "releaseLocksOnHandoff": False,
        "skipSequenceNumberAvailabilityCheck": False,
    }
    told = parse_supervisor_spec(raw)
    assert base_sequence_name(told, {0: 1}) == base_sequence_name(plain, {0: 1})
    assert told.to_json() == plain.to_json()


def test_rows_of_streams_may_be_sorted_by_dimensions_first() -> None:
    plain = parse_supervisor_spec(spec_json())
    spec = parse_supervisor_spec(
        changed(f"{DS}.dimensionsSpec.forceSegmentSortByTime", value=False)
    )
    assert not spec.data_schema.dimensions_spec.force_segment_sort_by_time
    # Tasks that sort otherwise are others.
    assert base_sequence_name(spec, {}) != base_sequence_name(plain, {})
