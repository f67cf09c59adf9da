"""``dataSchema`` for batch tasks: time patterns, discovery, granularities, metrics, filters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, parse_time
from penstock.core.time_patterns import TimePattern
from penstock.indexing.specs import SpecError, parse_data_schema
from penstock.indexing.specs.data_schema import DataSchema
from penstock.spark.schema_columns import filter_columns


def schema(**parts: object) -> DataSchema:
    value: dict[str, Any] = {"dataSource": "d", "dimensionsSpec": {"dimensions": ["a"]}}
    return parse_data_schema(value | parts)


def refused(**parts: object) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        schema(**parts)
    return {mistake.place: mistake.message for mistake in caught.value.mistakes}


@pytest.mark.parametrize(
    ("pattern", "text", "time"),
    [
        ("yyyy-MM-dd HH:mm:ss", "2013-02-03 04:05:06", "2013-02-03T04:05:06Z"),
        ("yyyy-MM-dd HH:mm:ss", "2013-2-3 4:5:6", "2013-02-03T04:05:06Z"),
        ("yyyyMMdd", "20130203", "2013-02-03"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "2013-02-03T04:05:06.789+01:00", "2013-02-03T03:05:06.789Z"),
        (
            "yyyy-MM-dd'T'HH:mm:ss.SSSSSSZZ",
            "2013-02-03T04:05:06.789999Z",
            "2013-02-03T04:05:06.789",
        ),
        ("EEE, dd MMM yyyy HH:mm:ss Z", "Sun, 03 Feb 2013 04:05:06 -0030", "2013-02-03T04:35:06Z"),
        ("dd/MMMM/yyyy hh:mm a", "03/february/2013 12:05 PM", "2013-02-03T12:05:00Z"),
        ("dd/MMM/yyyy hh:mm a", "03/Feb/2013 12:05 am", "2013-02-03T00:05:00Z"),
        ("yyyy", "0001", "0001-01-01"),
        ("yyyy-DDD", "2012-366", "2012-12-31"),
        ("yyyy-MM-dd HH 'o''clock'", "9999-12-31 23 o'clock", "9999-12-31T23:00:00Z"),
    ],
)
def test_times_are_read_as_joda_reads_them(pattern: str, text: str, time: str) -> None:
    spec = schema(timestampSpec={"format": pattern}).timestamp_spec
    assert spec.pattern is not None
    assert spec.pattern.parse(text) == parse_time(time)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd", "2013-02-30"),
        ("yyyy-MM-dd", "0000-01-01"),
        ("yyyy-MM-dd", "2013-02-03 "),
        ("yyyyMMdd", "201311"),
        ("yyyy-MM-dd HH", "2013-01-01 24"),
        ("yyyy hh a", "2013 13 pm"),
        ("EEE yyyy-MM-dd", "Mon 2013-02-03"),
        ("yyyy-DDD", "2013-366"),
        ("yyyy Z", "0001 +23:59"),
    ],
)
def test_what_is_no_time_is_refused(pattern: str, text: str) -> None:
    with pytest.raises(InvalidRequest):
        TimePattern.compile(pattern).parse(text)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("yy-MM-dd", "two digits"),
        ("yyyy-MM-dd z", "write offsets"),
        ("xxxx-'W'ww", "week years"),
        ("yyyy-MM-dd 'T", "quote"),
        ("yyyy-yyyy", "twice"),
        ("MM-dd-HH", "no year"),
        ("yyyy hh", "both h and a"),
        ("yyyy-MM-ddTHH", "'T'"),
        ("y" * 500, "too long"),
        ("unix", "is not one of"),
        ("Milis", 'did you mean "millis"'),
        ("YYYY-MM-DD", "write dd for the day of the month"),
    ],
)
def test_patterns_that_cannot_be_read_exactly_are_refused(pattern: str, hint: str) -> None:
    assert hint in refused(timestampSpec={"format": pattern})["timestampSpec.format"]


def test_a_pattern_of_numbers_has_a_layout() -> None:
    assert TimePattern.compile("yyyy-M'T'SSS").layout == (
        *(("year", 4), ("", b"-"), ("month", 2), ("", b"T"), ("fraction", 3)),
    )
    assert TimePattern.compile("yyyy MMM").layout is None


def test_dimensions_may_be_found_in_the_data() -> None:
    assert schema(dimensionsSpec={}).dimensions_spec.discovers
    found = schema(dimensionsSpec={"useSchemaDiscovery": True, "dimensionExclusions": ["x"]})
    assert found.dimensions_spec.discovers_types
    assert not schema().dimensions_spec.discovers
    both = {"dimensions": ["a"], "dimensionExclusions": ["a"], "includeAllDimensions": True}
    place = "dimensionsSpec.dimensionExclusions"
    assert "is also a dimension" in refused(dimensionsSpec=both)[f"{place}[0]"]
    del both["includeAllDimensions"]
    assert "leave it out" in refused(dimensionsSpec=both)[place]


def test_lists_are_kept_as_they_were_sent_or_in_order_or_as_sets() -> None:
    def of(handling: str) -> dict[str, Any]:
        return {"dimensions": [{"name": "a", "multiValueHandling": handling}]}

    for kept in ("ARRAY", "array"):
        assert not schema(dimensionsSpec=of(kept)).dimensions[0].orders_lists
    for ordered in ("SORTED_ARRAY", "sorted_array"):
        assert schema(dimensionsSpec=of(ordered)).dimensions[0].orders_lists
        assert not schema(dimensionsSpec=of(ordered)).dimensions[0].has_sets
    assert schema(dimensionsSpec=of("SORTED_SET")).dimensions[0].has_sets
    place = "dimensionsSpec.dimensions[0].multiValueHandling"
    assert "array, sorted_array, sorted_set" in refused(dimensionsSpec=of("SET"))[place]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"type": "period", "period": "PT6H", "timeZone": "UTC"}, "PT6H"),
        ({"type": "period", "period": "P1D", "origin": "2013-01-01"}, "day"),
        ({"type": "duration", "duration": 3_600_000}, "hour"),
        ({"type": "duration", "duration": "86400000"}, "day"),
        ({"type": "all"}, "all"),
        ({"type": "period", "period": "P1D", "timeZone": "Europe/Paris"}, "P1D in Europe/Paris"),
        (
            {"type": "period", "period": "P1W", "origin": "2013-01-01T01:00:00Z"},
            "P1W from 2013-01-01T01:00:00Z",
        ),
        ("day in Europe/Paris", "P1D in Europe/Paris"),
    ],
)
def test_granularities_may_be_objects(given: str | dict[str, Any], meant: str) -> None:
    found = schema(granularitySpec={"segmentGranularity": given}).segment_granularity
    assert found == Granularity.parse(meant)


@pytest.mark.parametrize(
    ("given", "step", "hint"),
    [
        (
            {"type": "period", "period": "P1D", "timeZone": "Europe/Pairs"},
            "timeZone",
            "Europe/Paris",
        ),
        (
            {"type": "period", "period": "P1D", "timeZone": "../../etc"},
            "timeZone",
            "unknown time zone",
        ),
        ({"type": "period", "period": "P1D", "timeZone": [1]}, "timeZone", "must be a time zone"),
        ({"type": "period", "period": "P1D", "timeZone": "a b"}, "timeZone", "must be a time zone"),
        ({"type": "period", "period": "P1D", "origin": "once"}, "origin", "not an ISO 8601 time"),
        ({"type": "period"}, "period", "is required"),
        ({"type": "duration", "duration": 0}, "duration", "1 or more"),
        ({"type": "weekly"}, "type", "period, duration, all, none"),
        ({"type": "all", "periode": 1}, "periode", "unknown field"),
    ],
)
def test_granularities_that_mean_something_else_are_refused(
    given: dict[str, Any], step: str, hint: str
) -> None:
    told = refused(granularitySpec={"segmentGranularity": given})
    assert hint in told[f"granularitySpec.segmentGranularity.{step}"]


def test_a_zone_is_written_as_druid_does_and_read_back() -> None:
    day = {"type": "period", "period": "P1D", "timeZone": "Asia/Kolkata"}
    hour = {"type": "period", "period": "PT1H", "timeZone": "Asia/Kolkata"}
    found = schema(granularitySpec={"segmentGranularity": day, "queryGranularity": hour})
    written = found.model_dump(mode="json", by_alias=True)
    assert written["granularitySpec"]["segmentGranularity"] == day
    assert (found.rollup_json() or {})["queryGranularity"] == hour
    assert parse_data_schema(written) == found


@pytest.mark.parametrize(
    ("zone", "query", "fits"),
    [
        ("Asia/Kolkata", "hour", False),
        ("Asia/Kolkata", "thirty_minute", True),
        ("America/New_York", "hour", True),
        ("America/New_York", "day", False),
        ("America/New_York", "PT6H", False),
        ("America/New_York", "PT6H in America/New_York", True),
        ("America/New_York", "PT7H in America/New_York", False),
        ("Pacific/Apia", "PT1H in Pacific/Apia", True),
    ],
)
def test_what_times_are_cut_to_lies_within_the_days_of_a_zone(
    zone: str, query: str, fits: bool
) -> None:
    given = {"segmentGranularity": f"day in {zone}", "queryGranularity": query}
    if fits:
        schema(granularitySpec=given)
    else:
        assert "does not fit" in refused(granularitySpec=given)["granularitySpec.queryGranularity"]


@pytest.mark.parametrize(
    ("metric", "kind", "value_type", "inputs"),
    [
        ({"type": "count"}, "count", "long", ()),
        ({"type": "floatMax", "fieldName": "f"}, "max", "float", ("f",)),
        ({"type": "stringLast", "fieldName": "f"}, "last", "string", ("f",)),
        ({"type": "longFirst", "fieldName": "f", "timeColumn": "t"}, "first", "long", ("f", "t")),
        ({"type": "HLLSketchBuild", "fieldName": "f", "round": True}, "hll", "sketch", ("f",)),
        ({"type": "cardinality", "fields": ["f", "g"]}, "hll", "sketch", ("f", "g")),
        ({"type": "thetaSketch", "fieldName": "f", "size": 4096}, "theta", "sketch", ("f",)),
        ({"type": "quantilesDoublesSketch", "fieldName": "f"}, "quantiles", "sketch", ("f",)),
    ],
)
def test_metrics_say_what_an_engine_needs(
    metric: dict[str, Any], kind: str, value_type: str, inputs: tuple[str, ...]
) -> None:
    (found,) = schema(metricsSpec=[metric | {"name": "m"}]).metrics
    assert (found.kind, found.value_type, found.inputs) == (kind, value_type, inputs)


def test_sizes_of_sketches() -> None:
    metrics = [
        {"type": "thetaSketch", "name": "a1", "fieldName": "f", "size": 4096},
        {"type": "thetaSketch", "name": "a2", "fieldName": "f"},
        {"type": "HLLSketchMerge", "name": "a3", "fieldName": "f"},
        {"type": "quantilesDoublesSketch", "name": "a4", "fieldName": "f", "k": 64},
    ]
    found = schema(metricsSpec=metrics).metrics
    assert [m.sketch_size for m in found] == [12, 14, 12, 64]
    assert [m.reads_sketches for m in found] == [False, False, True, False]


@pytest.mark.parametrize(
    ("metric", "step", "hint"),
    [
        ({"type": "longSum", "fieldName": "f", "size": 64}, "size", "no meaning for longSum"),
        ({"type": "thetaSketch", "fieldName": "f", "size": 100}, "size", "power of 2"),
        ({"type": "cardinality", "fieldName": "f"}, "fields", "name the columns"),
        ({"type": "longAny", "fieldName": "f"}, "type", "use longFirst"),
        ({"type": "filtered"}, "type", "transform that is null"),
        ({"type": "doubleFirst"}, "fieldName", "name the column"),
    ],
)
def test_mistakes_in_metrics(metric: dict[str, Any], step: str, hint: str) -> None:
    told = refused(metricsSpec=[metric | {"name": "m"}])
    assert hint in told[f"metricsSpec[0].{step}"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("__penstock_rows", "reserved for Penstock"),
        ("__Penstock_x", "reserved for Penstock"),
        ("__Time", "only in case"),
    ],
)
def test_names_that_spark_would_take_for_columns_of_ours_are_refused(name: str, hint: str) -> None:
    transform = {"type": "expression", "name": name, "expression": "1"}
    told = refused(transformSpec={"transforms": [transform]})
    assert hint in told["transformSpec.transforms[0].name"]
    told = refused(metricsSpec=[{"type": "count", "name": name}])
    assert hint in told["metricsSpec[0].name"]
    told = refused(dimensionsSpec={"dimensions": [{"type": "long", "name": name}]})
    assert hint in told["dimensionsSpec.dimensions[0].name"]


def test_filters_say_what_they_look_at() -> None:
    fields = [
        {"type": "like", "dimension": "b", "pattern": "x%"},
        {"type": "regex", "dimension": "c", "pattern": "^x"},
        {"type": "interval", "dimension": "__time", "intervals": ["2013-01-01/P1D"]},
        {"type": "columnComparison", "dimensions": ["d", "e"]},
        {"type": "expression", "expression": "strlen(f) > 2 && g == 1"},
        {"type": "not", "field": {"type": "false"}},
    ]
    found = schema(transformSpec={"filter": {"type": "and", "fields": fields}}).filter
    assert found is not None
    assert list(filter_columns(found)) == ["b", "c", "__time", "d", "e", "f", "g"]


@pytest.mark.parametrize(
    ("given", "step", "hint"),
    [
        ({"type": "javascript"}, ".type", "specs cannot run code"),
        ({"type": "expression", "expression": "strlen(x)"}, ".expression", "compare it"),
        (
            {"type": "interval", "dimension": "a", "intervals": ["2013/2012"]},
            ".intervals[0]",
            "end",
        ),
        ({"type": "columnComparison", "dimensions": ["a"]}, ".dimensions", ""),
        ({"type": "like", "dimension": "a", "pattern": "x", "escape": "ab"}, ".escape", ""),
    ],
)
def test_mistakes_in_filters(given: dict[str, Any], step: str, hint: str) -> None:
    assert hint in refused(transformSpec={"filter": given})[f"transformSpec.filter{step}"]


def test_a_transform_in_druids_language_is_translated_and_kept_as_it_was_written() -> None:
    transform = {"name": "x", "expression": "nvl(cast(a, 'LONG'), 0)"}
    found = schema(transformSpec={"transforms": [transform]})
    assert found.transforms[0].sql == 'COALESCE(CAST("a" AS BIGINT), 0L)'
    assert found.transforms[0].expression == "nvl(cast(a, 'LONG'), 0)"
    assert parse_data_schema(found.model_dump(mode="json", by_alias=True)) == found
