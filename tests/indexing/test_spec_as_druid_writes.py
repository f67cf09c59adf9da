"""Specs that Druid gives out are taken as they are; what says something else is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.indexing.specs import (
    SpecError,
    parse_data_schema,
    parse_supervisor,
    parse_supervisor_spec,
)
from penstock.indexing.specs.batch.batch_task_specs import KillSpec, parse_batch_task
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.compaction import (
    CompactionSupervisorSpec,
    parse_cluster_compaction,
    parse_compaction,
)
from penstock.indexing.specs.partitions import segment_rows_max
from tests.indexing.druid_writes_kit import (
    compact,
    compaction_config,
    index_parallel,
    kill,
    plain_supervisor,
    scaled_supervisor,
)

Steps = tuple[str | int, ...]


def changed(spec: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """Return the spec with one place set; a step may be the number of an item."""
    whole: dict[str, Any] = json.loads(json.dumps(spec))  # Nothing stands in two places.
    at: object = whole
    *path, last = place.split(".")
    for step in path:
        assert isinstance(at, dict | list)
        at = at[int(step)] if isinstance(at, list) else at[step]
    assert isinstance(at, dict)
    at[last] = value
    return whole


def mistakes(raw: dict[str, Any]) -> dict[str, str]:
    kind = raw["type"]
    with pytest.raises(SpecError) as caught:
        (parse_supervisor_spec if kind == "kafka" else parse_batch_task)(json.dumps(raw))
    return {mistake.place: mistake.message for mistake in caught.value.mistakes}


def test_supervisors_are_taken_as_druid_writes_them() -> None:
    plain = parse_supervisor_spec(json.dumps(plain_supervisor()))
    assert plain.supervisor_id == "flights"
    assert (plain.io.source, plain.io.topic, plain.io.use_earliest_offset) == (
        "kafka",
        "flights",
        True,
    )
    assert [d.name for d in plain.data_schema.dimensions] == ["carrier", "delay"]

    scaled = parse_supervisor_spec(json.dumps(scaled_supervisor()))
    assert scaled.supervisor_id == "delays-in"
    assert scaled.io.first_task_count == 2
    assert scaled.settings.use_concurrent_locks
    # What we give out ourselves is taken again, and says the same.
    for spec in (plain, scaled):
        assert parse_supervisor_spec(spec.to_json()) == spec


def test_a_batch_task_is_taken_as_druid_writes_it() -> None:
    raw = index_parallel()
    task = parse_batch_task(json.dumps(raw))
    assert isinstance(task, IndexParallelSpec)
    assert (task.id, task.datasource) == (raw["id"], "flights")
    assert task.tuning.partitions.is_perfect is False
    assert parse_batch_task(task.to_json()) == task
    # Whoever submits it again leaves out the name that is taken.
    again = {name: value for name, value in raw.items() if name not in {"id", "groupId"}}
    assert parse_batch_task(json.dumps(again)).id == ""


def test_metrics_are_taken_as_druid_writes_them() -> None:
    def counted(**changes: object) -> dict[str, Any]:
        plain = {"type": "default", "dimension": "tail", "outputName": "tail"}
        field = plain | {"outputType": "STRING"} | changes
        counts = {"type": "cardinality", "name": "tails", "fields": [field, "carrier"]}
        first = {"type": "longFirst", "name": "first", "fieldName": "delay", "timeColumn": "sent"}
        return {
            "dataSource": "flights",
            "dimensionsSpec": {
                "dimensions": ["carrier"],
                # What metrics read, as it becomes no dimension.
                "dimensionExclusions": ["__time", "timestamp", "tail", "tails", "first", "sent"],
            },
            "metricsSpec": [{**counts, "byRow": False, "round": False}, first],
        }

    schema = parse_data_schema(json.dumps(counted()))
    assert schema.metrics[0].inputs == ("tail", "carrier")
    assert schema.dimensions_spec.dimension_exclusions == ()
    for changes in (
        {"type": "extraction", "extractionFn": {"type": "upper"}},
        {"outputName": "other"},
        {"outputType": "LONG"},
        {"dimension": 3},
    ):
        with pytest.raises(SpecError) as caught:
            parse_data_schema(json.dumps(counted(**changes)))
        places = {mistake.place for mistake in caught.value.mistakes}
        assert "metricsSpec[0].fields[0]" in places


def test_other_tasks_are_taken_as_druid_writes_them() -> None:
    compaction = parse_batch_task(json.dumps(compact()))
    assert isinstance(compaction, CompactSpec)
    assert str(compaction.interval) == "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z"
    assert compaction.granularity_spec.rollup is None
    deletion = parse_batch_task(json.dumps(kill()))
    assert isinstance(deletion, KillSpec)
    assert "markAsUnused" in mistakes(kill() | {"markAsUnused": True})


DAY = "2015-09-12/2015-09-13"
SEGMENT = "flights_2015-09-12T00:00:00.000Z_2015-09-13T00:00:00.000Z_v1_3"


def older_compaction(**fields: object) -> dict[str, Any]:
    return {"type": "compact", "dataSource": "flights", **fields}


def compaction_of(**fields: object) -> CompactSpec:
    task = parse_batch_task(json.dumps(older_compaction(**fields)))
    assert isinstance(task, CompactSpec)
    # The stored form is the current one, and parsing it gives an equal task.
    assert parse_batch_task(task.to_json()) == task
    assert not {"interval", "segments", "segmentGranularity"} & task.to_json().keys()
    return task


def test_an_interval_stands_for_the_io_config_of_a_compaction() -> None:
    tuning = {
        "type": "index_parallel",
        "partitionsSpec": {"type": "dynamic"},
        "maxRowsInMemory": 25_000,
        "forceExtendableShardSpecs": True,
    }
    given = compaction_of(interval=DAY, tuningConfig=tuning)
    current = {"type": "compact", "inputSpec": {"type": "interval", "interval": DAY}}
    assert given == compaction_of(ioConfig=current, tuningConfig=tuning)
    # Fields that stand for others may be null, as in all that Druid writes.
    nothing = {"segments": None, "ioConfig": None, "segmentGranularity": None, "dimensions": None}
    assert given == compaction_of(interval=DAY, tuningConfig=tuning, **nothing)


@pytest.mark.parametrize(
    "tuning",
    [
        {"type": "index", "targetPartitionSize": 7, "forceExtendableShardSpecs": True},
        {"type": "compaction", "maxRowsPerSegment": 7},
        {"type": "index_parallel", "partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 7}},
    ],
)
def test_the_rows_of_a_segment_have_an_older_name(tuning: dict[str, Any]) -> None:
    given = compaction_of(interval=DAY, tuningConfig=tuning)
    assert segment_rows_max(given.tuning_config.partitions) == 7


def test_a_number_of_shards_leaves_the_rows_of_a_segment_without_effect() -> None:
    partitions = {"type": "hashed", "numShards": 1}
    tuning = {"type": "index_parallel", "maxRowsPerSegment": 3, "partitionsSpec": partitions}
    given = compaction_of(interval=DAY, tuningConfig=tuning | {"forceGuaranteedRollup": True})
    assert given.tuning_config.partitions.is_perfect


def test_segments_stand_for_the_io_config_of_a_compaction() -> None:
    whole = {
        "dataSource": "flights",
        "interval": DAY,
        "version": "v1",
        "loadSpec": {"type": "local", "path": "elsewhere"},
        "shardSpec": {"type": "numbered", "partitionNum": 3, "partitions": 4},
        "size": 5,
    }
    assert compaction_of(segments=[SEGMENT, whole]).segment_ids == (SEGMENT, SEGMENT)


@pytest.mark.parametrize("inside", [None, {}, {"rollup": True}, {"segmentGranularity": "day"}])
def test_a_segment_granularity_may_stand_outside(inside: dict[str, Any] | None) -> None:
    given = compaction_of(interval=DAY, segmentGranularity="DAY", granularitySpec=inside)
    assert str(given.segment_granularity) == "DAY"
    assert given.granularity_spec.rollup is (True if inside == {"rollup": True} else None)


def test_older_names_of_a_compaction() -> None:
    dimensions = {"dimensions": ["carrier"]}
    given = compaction_of(interval=DAY, dimensions=dimensions, keepSegmentGranularity=True)
    assert given == compaction_of(interval=DAY, dimensionsSpec=dimensions)


@pytest.mark.parametrize(
    ("fields", "place", "hint"),
    [
        ({}, "ioConfig", "is required"),
        ({"interval": "2015"}, "interval", "write 2015/P1Y"),
        ({"interval": "2015/2015"}, "interval", "is empty: its end"),
        ({"interval": 2015}, "interval", "write an interval as text"),
        ({"interval": DAY, "segments": [SEGMENT]}, "segments", "conflicts with interval"),
        ({"ioConfig": {"type": "compact"}, "interval": DAY}, "interval", "conflicts with ioConfig"),
        ({"segments": [SEGMENT, {}]}, "segments[1]", "does not name a segment"),
        ({"segments": 3}, "segments[0]", "does not name a segment"),
        (
            {
                "interval": DAY,
                "segmentGranularity": "DAY",
                "granularitySpec": {"segmentGranularity": "HOUR"},
            },
            "segmentGranularity",
            "leave one of the two out",
        ),
        (
            {"interval": DAY, "keepSegmentGranularity": False},
            "keepSegmentGranularity",
            "set granularitySpec.segmentGranularity",
        ),
        (
            {"interval": DAY, "tuningConfig": {"forceExtendableShardSpecs": "sometimes"}},
            "tuningConfig.forceExtendableShardSpecs",
            "true or false",
        ),
    ],
)
def test_mistakes_in_older_compactions(fields: dict[str, Any], place: str, hint: str) -> None:
    found = mistakes(older_compaction(**fields))
    assert list(found) == [place]
    assert hint in found[place]


def test_what_compacts_is_taken_as_druid_writes_it() -> None:
    config = parse_compaction(json.dumps(compaction_config()))
    assert segment_rows_max(config.tuning.partitions) == 3_000_000
    spec = {"type": "autocompact", "spec": compaction_config(), "suspended": False}
    supervisor = parse_supervisor(json.dumps(spec))
    assert isinstance(supervisor, CompactionSupervisorSpec)
    assert supervisor.spec == config
    for name, value in (("type", "catalog"), ("skipIntervals", ["2013/2014"])):
        with pytest.raises(SpecError, match=f"^{name}: not supported here: "):
            parse_compaction(json.dumps(compaction_config(**{name: value})))
    cluster = {
        "compactionTaskSlotRatio": 0.1,
        "maxCompactionTaskSlots": 2_147_483_647,
        "compactionPolicy": {"type": "newestSegmentFirst", "priorityDatasource": None},
        "useSupervisors": True,
        "engine": "native",
        "storeCompactionStatePerSegment": True,
    }
    assert parse_cluster_compaction(json.dumps(cluster)).slots(100) == 10


@pytest.mark.parametrize(
    ("place", "value", "hint"),
    [
        ("maxRowsInMemory", "many", "a whole number"),
        ("maxBytesInMemory", 1.5, "a whole number"),
        ("pushTimeout", True, "a whole number"),
        ("skipBytesInMemoryOverheadCheck", "maybe", "true or false"),
        ("chatHandlerTimeout", "ten seconds", "a duration"),
        ("indexSpec", "roaring", "an object"),
        ("partitionsSpec.maxTotalRows", [], "a whole number"),
    ],
)
def test_what_changes_nothing_is_told_where_it_is_mistyped(
    place: str, value: object, hint: str
) -> None:
    at = f"spec.tuningConfig.{place}"
    found = mistakes(changed(index_parallel(), at, value))
    assert list(found) == [at]
    assert hint in found[at]
    # As text Druid takes them, too; and null says nothing.
    for taken in ({"maxRowsInMemory": "150000", "maxBytesInMemory": -1}, {"indexSpec": None}):
        spec = index_parallel()
        for name, good in taken.items():
            spec = changed(spec, f"spec.tuningConfig.{name}", good)
        parse_batch_task(json.dumps(spec))


@pytest.mark.parametrize(
    "partitions",
    [
        {
            "type": "hashed",
            "numShards": None,
            "partitionDimensions": [],
            "partitionFunction": "murmur3_32_abs",
            "maxRowsPerSegment": 5_000_000,
        },
        {"type": "single_dim", "partitionDimension": "carrier", "maxRowsPerSegment": 5_000_000},
    ],
)
def test_a_number_of_rows_stands_in_two_places(partitions: dict[str, Any]) -> None:
    parse_batch_task(changed(index_parallel(), "spec.tuningConfig.partitionsSpec", partitions))
    wrong = changed(index_parallel(), "spec.tuningConfig.maxRowsPerSegment", 7)
    place = "spec.tuningConfig.maxRowsPerSegment"
    assert mistakes(wrong) == {place: "conflicts with partitionsSpec: move it into partitionsSpec"}


@pytest.mark.parametrize(
    ("place", "value", "where", "hint"),
    [
        (
            "dataSchema.dimensionsSpec.dimensions.1.name",
            "dely",
            "dataSchema.dimensionsSpec.dimensions[1].name",
            "differs from spec.dataSchema.dimensionsSpec.dimensions.1.name: make both equal",
        ),
        ("ioConfig.taskCount", 2, "ioConfig.taskCount", "or leave out ioConfig"),
        (
            "tuningConfig.reportParseExceptions",
            0,
            "tuningConfig.reportParseExceptions",
            "differs from",
        ),
        ("source", "others", "source", "spec.ioConfig.topic"),
        ("spec.ioConfig.stream", "others", "spec.ioConfig.stream", "contradicts topic"),
        (
            "spec.ioConfig.useEarliestSequenceNumber",
            False,
            "spec.ioConfig.useEarliestSequenceNumber",
            "contradicts useEarliestOffset",
        ),
        (
            "spec.tuningConfig.intermediateHandoffPeriod",
            "PT10M",
            "spec.tuningConfig.intermediateHandoffPeriod",
            "set ioConfig.taskDuration",
        ),
        (
            "spec.dataSchema.dimensionsSpec.dimensionExclusions",
            ["at", "others"],
            "spec.dataSchema.dimensionsSpec.dimensionExclusions",
            "leave it out",
        ),
        (
            "spec.ioConfig.skipOffsetGaps",
            True,
            "spec.ioConfig.skipOffsetGaps",
            "resetOffsetAutomatically",
        ),
        (
            "spec.ioConfig.inputFormat",
            {"type": "json", "flattenSpec": {"useFieldDiscovery": False, "fields": []}},
            "spec.ioConfig.inputFormat.flattenSpec",
            "with a transform",
        ),
    ],
)
def test_what_says_something_else_is_told(place: str, value: object, where: str, hint: str) -> None:
    whole = plain_supervisor()
    if place.startswith("spec."):
        # Otherwise the part beside it would differ.
        whole = {n: v for n, v in whole.items() if n not in {"dataSchema", "ioConfig"}}
        whole.pop("tuningConfig")
    found = mistakes(changed(whole, place, value))
    assert list(found) == [where]
    assert hint in found[where]


@pytest.mark.parametrize(
    ("place", "value", "where"),
    [
        ("dataSource", "others", "dataSource"),
        ("resource.requiredCapacity", 2, "resource"),
        ("resource.availabilityGroup", "others", "resource"),
    ],
)
def test_a_batch_task_is_told_what_differs(place: str, value: object, where: str) -> None:
    assert list(mistakes(changed(index_parallel(), place, value))) == [where]


def test_a_start_may_be_named_by_its_other_name_alone() -> None:
    whole = plain_supervisor()
    io = dict(whole["spec"]["ioConfig"])
    del io["useEarliestOffset"]
    spec = {**whole["spec"], "ioConfig": io}
    assert parse_supervisor_spec({"type": "kafka", "spec": spec}).io.use_earliest_offset


def test_a_handoff_before_a_task_ends_is_told_with_what_else_no_stream_has() -> None:
    schema = "spec.dataSchema.granularitySpec.intervals"
    period = "spec.tuningConfig.intermediateHandoffPeriod"
    whole = plain_supervisor()
    for twin in ("dataSchema", "tuningConfig"):
        del whole[twin]
    wrong = changed(changed(whole, period, "PT1M"), schema, ["2013/2014"])
    assert mistakes(wrong).keys() == {schema, period}


@pytest.mark.parametrize("period", ["P2147483647D", "P106751991167D", "PT1H", "P30D", None])
def test_a_handoff_that_never_comes_before_a_task_ends_is_taken(period: object) -> None:
    whole = plain_supervisor()
    del whole["tuningConfig"]
    place = "spec.tuningConfig.intermediateHandoffPeriod"
    taken = parse_supervisor_spec(json.dumps(changed(whole, place, period)))
    # It changes nothing, so tasks of a spec without it are not strangers to one with it.
    assert taken == parse_supervisor_spec(json.dumps(changed(whole, place, None)))
    assert "intermediateHandoffPeriod" not in json.dumps(taken.to_json())


@pytest.mark.parametrize(
    ("place", "written", "kept"),
    [
        (
            "dataSchema.transformSpec",
            {
                "filter": {
                    "type": "equals",
                    "column": "delay",
                    "matchValueType": "LONG",
                    "matchValue": 1,
                }
            },
            '"matchValueType":"long"',
        ),
        (
            "dataSchema.transformSpec",
            {
                "filter": {
                    "type": "range",
                    "column": "carrier",
                    "matchValueType": "String",
                    "lower": "a",
                }
            },
            '"matchValueType":"string"',
        ),
        (
            "dataSchema.transformSpec",
            {
                "filter": {
                    "type": "bound",
                    "dimension": "delay",
                    "lower": "1",
                    "ordering": {"type": "numeric"},
                }
            },
            '"ordering":"numeric"',
        ),
        ("dataSchema.timestampSpec.format", "ISO", '"format":"iso"'),
        (
            "tuningConfig.partitionsSpec",
            {"type": "hashed", "partitionFunction": "MURMUR3_32_ABS"},
            '"partitionFunction":"murmur3_32_abs"',
        ),
    ],
)
def test_names_that_druid_takes_in_any_case_are_given_back_as_ever(
    place: str, written: object, kept: str
) -> None:
    spec = index_parallel()
    task = parse_batch_task(json.dumps(changed(spec, f"spec.{place}", written)))
    assert kept in json.dumps(task.to_json(), separators=(",", ":"))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("matchValueType", "ARRAY<LONG>", '"ARRAY<LONG>" is not one of string, long'),
        ("ordering", {"type": "strlen"}, '"strlen" is not one of lexicographic, numeric'),
        ("ordering", "version", '"version" is not one of lexicographic, numeric'),
        ("ordering", {"type": "numeric", "more": 1}, "an object is not one of"),
    ],
)
def test_ways_to_compare_that_are_not_here_are_told(field: str, value: object, told: str) -> None:
    kind = {"type": "range", "column": "a"}
    if field == "ordering":
        kind = {"type": "bound", "dimension": "a"}
    spec = changed(
        index_parallel(),
        "spec.dataSchema.transformSpec",
        {"filter": {**kind, "lower": 1, field: value}},
    )
    (text,) = mistakes(spec).values()
    assert text.startswith(told)
