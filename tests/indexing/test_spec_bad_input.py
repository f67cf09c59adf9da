"""Specs of all kinds with anything in any place: a valid spec, or mistakes with their places."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.indexing.specs import SpecError, parse_supervisor, parse_supervisor_spec
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.compaction import parse_compaction
from penstock.indexing.specs.filters import FILTER_LEVELS_MAX
from penstock.indexing.specs.retention_rules import parse_rules
from penstock.indexing.specs.spec_text import SPEC_BYTES_MAX, read_object

SCHEMA = {
    "dataSource": "d",
    "timestampSpec": {"column": "t", "format": "yyyy-MM-dd", "missingValue": "2013-01-01"},
    "dimensionsSpec": {
        "dimensions": [
            {"name": "a", "maxStringLength": 10},
            {"name": "b", "type": "long", "multiValueHandling": "array"},
        ],
        "dimensionExclusions": ["x"],
        "includeAllDimensions": True,
    },
    "metricsSpec": [
        {"type": "count", "name": "n"},
        {"type": "thetaSketch", "name": "u", "fieldName": "a", "size": 1024},
        {"type": "cardinality", "name": "c", "fields": ["a", "b"], "byRow": True},
    ],
    "granularitySpec": {
        "segmentGranularity": {
            "type": "period",
            "period": "P1D",
            "timeZone": "America/New_York",
            "origin": "2013-01-01T05:00:00Z",
        },
        "queryGranularity": {"type": "period", "period": "PT1H", "timeZone": "America/New_York"},
        "intervals": ["2013-01-01/2013-02-01"],
    },
    "transformSpec": {
        "transforms": [{"name": "z", "expression": "nvl(cast(a, 'LONG'), 0) + 1"}],
        "filter": {
            "type": "or",
            "fields": [
                {"type": "expression", "expression": "strlen(a) > 2 && b == 1"},
                {"type": "not", "field": {"type": "in", "dimension": "a", "values": ["x", 1]}},
                {"type": "interval", "dimension": "__time", "intervals": ["2013/P1Y"]},
                {"type": "bound", "dimension": "a", "lower": 1, "ordering": "numeric"},
            ],
        },
    },
}
BATCH: dict[str, Any] = {
    "type": "index_parallel",
    "id": "index_d",
    "spec": {
        "dataSchema": SCHEMA,
        "ioConfig": {
            "inputSource": {
                "type": "combining",
                "delegates": [
                    {"type": "local", "baseDir": "/data", "filter": "*.json"},
                    {
                        "type": "http",
                        "uris": ["https://example.org/x.json"],
                        "httpAuthenticationUsername": "me",
                        "httpAuthenticationPassword": {
                            "type": "environment",
                            "variable": "PENSTOCK_INPUT_PASSWORD",
                        },
                    },
                    {"type": "s3", "uris": ["s3://bucket/x"], "objectGlob": "**.json"},
                    {
                        "type": "sql",
                        "database": {
                            "type": "postgresql",
                            "connectorConfig": {
                                "connectURI": "jdbc:postgresql://h:1/d?sslmode=require",
                                "user": "me",
                                "password": {"type": "default", "password": "x"},
                            },
                        },
                        "sqls": ["SELECT 1"],
                    },
                    {"type": "druid", "dataSource": "e", "interval": "2013/2014"},
                ],
            },
            "inputFormat": {"type": "tsv", "columns": ["t", "a"], "delimiter": "|"},
            "dropExisting": True,
        },
        "tuningConfig": {
            "type": "index_parallel",
            "partitionsSpec": {"type": "hashed", "numShards": 3, "partitionDimensions": ["a"]},
            "forceGuaranteedRollup": True,
            "maxParseExceptions": 10,
        },
    },
    "context": {"priority": 5, "taskLockType": "REPLACE", "tags": {"a": [1, {"b": None}]}},
}
STREAM = {
    "type": "kafka",
    "spec": {
        "dataSchema": {
            "dataSource": "d",
            "dimensionsSpec": {"dimensions": ["a"]},
            "metricsSpec": [{"type": "longSum", "name": "s", "fieldName": "b"}],
        },
        "ioConfig": {
            "topic": "flights-a",
            "consumerProperties": {"bootstrap.servers": "localhost:9092", "x": True},
            "inputFormat": {
                "type": "kafka",
                "valueFormat": {"type": "json"},
                "keyFormat": {"type": "tsv", "columns": ["k"]},
                "headerFormat": {"type": "string", "encoding": "UTF-16"},
                "topicColumnName": "t",
            },
            "taskCount": 2,
            "replicas": 2,
            "taskDuration": "PT1H",
            "lateMessageRejectionStartDateTime": "2013-01-01T00:00:00Z",
            "idleConfig": {"enabled": True, "inactiveAfterMillis": 1000},
            "autoScalerConfig": {
                "enableTaskAutoScaler": True,
                "taskCountMin": 1,
                "taskCountMax": 4,
                "triggerScaleOutFractionThreshold": 0.25,
            },
        },
        "tuningConfig": {"maxRowsPerSegment": 1000, "resetOffsetAutomatically": True},
    },
    "context": {"useConcurrentLocks": True},
}
COMPACT = {
    "type": "compact",
    "dataSource": "d",
    "ioConfig": {"type": "compact", "inputSpec": {"type": "interval", "interval": "2013/2014"}},
    "dimensionsSpec": {"dimensions": ["a"]},
    "metricsSpec": [{"type": "longSum", "name": "s", "fieldName": "s"}],
    "granularitySpec": {"segmentGranularity": "month", "queryGranularity": None, "rollup": True},
    "tuningConfig": {
        "partitionsSpec": {"type": "range", "partitionDimensions": ["a"], "targetRowsPerSegment": 5}
    },
}
MINOR = {
    "type": "compact",
    "dataSource": "d",
    "ioConfig": {
        "type": "compact",
        "inputSpec": {
            "type": "minor",
            "interval": "2013/2014",
            "segments": [{"itvl": "2013-01-01/2013-01-02", "ver": "v", "part": 3}],
        },
        "dropExisting": True,
    },
    "context": {"useConcurrentLocks": True},
}
KILL = {
    "type": "kill",
    "dataSource": "d",
    "interval": "2013/2014",
    "versions": ["2013-01-01T00:00:00.000Z"],
    "limit": 5,
    "maxUsedStatusLastUpdatedTime": "2014-01-01",
}
SQL = {
    "type": "query_controller",
    "dataSource": "d",
    "sql": "REPLACE INTO d …",
    "query": "SELECT 1",
    "overwrite": ["2013/2014"],
    "partitionedBy": "month",
}
SPARK = {
    "type": "index_spark",
    "dataSchema": {
        "dataSource": "d",
        "timestampSpec": {"column": "__time"},
        "dimensionsSpec": {"dimensions": ["a"]},
        "granularitySpec": {"segmentGranularity": "month"},
    },
    "files": [{"name": "a.parquet", "rows": 2, "bytes": 700}],
    "rows": 2,
    "unparseable": 1,
    "maxParseExceptions": 1,
    "overwrite": ["2013/2014"],
}
EXTERN = {
    "type": "query_controller",
    "dataSource": "d",
    "sql": "REPLACE INTO d …",
    "query": "SELECT TIMESTAMP '2013-01-01' AS __time, a FROM __penstock_extern_1",
    "overwrite": ["2013-01-01T05:00Z/2014-01-01T05:00Z"],
    "partitionedBy": "P1D in America/New_York",
    "externs": [
        {
            "inputSource": {"type": "inline", "data": "a"},
            "inputFormat": {"type": "csv", "columns": ["a"]},
            "signature": [{"name": "a", "type": "ARRAY<LONG>"}],
        }
    ],
}
COMPACTION = {"dataSource": "d", "skipOffsetFromLatest": "P1M", "taskContext": {"priority": 1}}
RULES = {
    "rules": [
        {"type": "loadByPeriod", "period": "P1M", "tieredReplicants": {"hot": 1}},
        {"type": "dropByInterval", "interval": "2013/2014"},
    ]
}


def of_rules(value: dict[str, Any]) -> object:
    return parse_rules(value["rules"] if isinstance(value.get("rules"), list) else [])


PARSERS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], object]]] = {
    "batch": (BATCH, parse_batch_task),
    "stream": (STREAM, parse_supervisor_spec),
    "compact": (COMPACT, parse_batch_task),
    "kill": (KILL, parse_batch_task),
    "noop": ({"type": "noop", "runTime": 5}, parse_batch_task),
    "sql": (SQL, parse_batch_task),
    "spark": (SPARK, parse_batch_task),
    "minor": (MINOR, parse_batch_task),
    "extern": (EXTERN, parse_batch_task),
    "compaction": (COMPACTION, parse_compaction),
    "autocompact": (
        {"type": "autocompact", "spec": COMPACTION, "suspended": True},
        parse_supervisor,
    ),
    "rules": (RULES, of_rules),
}
ODD = st.one_of(
    st.sampled_from(
        [
            *(None, True, False, 0, -1, 1.5, 1e300, 10**30, "", " ", "x" * 5000, "\x00", "\ud800"),
            *([], [[]], {}, {"": 1}, {"type": "x"}, {"type": None}, {"type": []}, [None], [{}]),
            *("0000-01-01", "9999-12-31T23:59:59.999Z/P1M", "0001-01-01/9999-12-31", "P9999999Y"),
            *("P1D in Mars/Phobos", "day from 0000-01-01", "P9999Y in America/New_York", "P1D in"),
            *({"type": "period", "period": "P1D", "timeZone": "Mars/Phobos"},),
            *("Mars/Phobos", "2013-02-30", "P1D", "((((", "*", "\u202e", "NaN", "__time", "-1"),
        ]
    ),
    st.text(max_size=20),
    st.integers(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=10,
    ),
).map(copy.deepcopy)  # what is put into a spec may be changed there


def places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every place in a spec, its root apart."""
    items: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for step, inner in items:
        yield (*place, step)
        yield from places(inner, (*place, step))


PLACES = {name: list(places(spec)) for name, (spec, _) in PARSERS.items()}


@pytest.mark.parametrize("kind", PARSERS)
def test_the_specs_are_valid_before_they_are_changed(kind: str) -> None:
    spec, parse = PARSERS[kind]
    parse(copy.deepcopy(spec))


@given(st.data())
def test_any_change_gives_a_spec_or_mistakes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(PARSERS)))
    spec, parse = copy.deepcopy(PARSERS[kind][0]), PARSERS[kind][1]
    for _ in range(data.draw(st.integers(1, 3))):
        change(spec, data.draw(st.sampled_from(PLACES[kind])), data)
    answered(parse, spec)


def change(spec: dict[str, Any], place: tuple[str | int, ...], data: st.DataObject) -> None:
    """Delete, replace or misspell what is in a place, if the place is still there."""
    target: object = spec
    for step in place[:-1]:
        try:
            target = target[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return
    last = place[-1]
    if isinstance(target, list) and isinstance(last, int) and last < len(target):
        target[last] = data.draw(ODD)
    elif isinstance(target, dict) and last in target:
        match data.draw(st.sampled_from(["replace", "delete", "misspell"])):
            case "replace":
                target[last] = data.draw(ODD)
            case "delete":
                del target[last]
            case _:
                target[data.draw(st.text(max_size=12))] = target.pop(last)


def answered(parse: Callable[..., object], spec: dict[str, Any] | bytes | str) -> None:
    try:
        parse(spec)
    except SpecError as error:
        found = error
    else:
        return
    assert found.mistakes
    assert all(mistake.message for mistake in found.mistakes)
    assert len(str(found).encode()) < 200_000


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
@example(b"\xff\xfe")
@example("{" * 50_000)
@example("[" * 200_000)
@example('{"a":' * 101 + "1" + "}" * 101)
@example('{"type": NaN}')
@example("1e999999")
@example(b"[]")
@example("[ ]")
def test_any_text_is_answered(raw: bytes | str) -> None:
    parsers: list[Callable[[bytes | str], object]] = [
        parse_supervisor_spec,
        parse_batch_task,
        parse_rules,
    ]
    if raw.split() in (["[]"], ["[", "]"], [b"[]"], [b"[", b"]"]):
        answered(parsers.pop(), raw)  # no rules are rules, too
    for parse in parsers:
        with pytest.raises(SpecError):
            parse(raw)


HUGE = {
    "mistakes": {"type": "noop", **{f"field{n}": n for n in range(50_000)}},
    "columns": {
        **BATCH,
        "spec": BATCH["spec"]
        | {
            "dataSchema": SCHEMA
            | {"dimensionsSpec": {"dimensions": [f"c{n}" for n in range(50_000)]}}
        },
    },
    "bad columns": {
        **BATCH,
        "spec": BATCH["spec"]
        | {"dataSchema": SCHEMA | {"dimensionsSpec": {"dimensions": [{}] * 20_000}}},
    },
    "same columns": {
        **BATCH,
        "spec": BATCH["spec"]
        | {"dataSchema": SCHEMA | {"dimensionsSpec": {"dimensions": ["a"] * 9_000}}},
    },
    "text": {"type": "noop", "runTime": "x" * 5_000_000},
    "inline": {"type": "kill", "versions": ["v"] * 300_000},
}


@pytest.mark.parametrize("kind", HUGE)
def test_what_is_huge_is_answered_in_short(kind: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_batch_task(copy.deepcopy(HUGE[kind]))
    assert len(caught.value.mistakes) <= 101
    assert len(str(caught.value)) < 100_000


def test_of_many_mistakes_it_is_told_how_many_there_are() -> None:
    with pytest.raises(SpecError, match="and 49900 more"):
        parse_batch_task(copy.deepcopy(HUGE["mistakes"]))


def test_a_text_that_is_too_long_is_not_read() -> None:
    with pytest.raises(SpecError, match="read rows from files"):
        parse_batch_task(b" " * (SPEC_BYTES_MAX + 1))


def test_yaml_is_taken_too() -> None:
    text = """
    type: kill          # a comment
    dataSource: d
    interval: 2013-01-01/2013-02-01
    maxUsedStatusLastUpdatedTime: 2013-01-01
    """
    spec = parse_batch_task(text)
    assert spec == parse_batch_task(json.dumps(read_object(text)))


@pytest.mark.parametrize("number", [str(1 << 64), str(-(1 << 63) - 1), "9" * 1_000_000, "1e999"])
def test_a_number_of_more_than_64_bits_is_refused_with_its_place(number: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_object(f"a: 1\nb: {number}")
    assert str(caught.value).startswith("line 2, column 4: a number of more than 64 bits")
    assert read_object(f"b: '{number}'") == {"b": number}


def in_filter(filter_: object) -> dict[str, Any]:
    return {
        "dataSource": "d",
        "transformSpec": {"filter": filter_},
    }


def test_filters_are_nested_as_deep_as_a_plan_can_be_and_no_deeper() -> None:
    def nested(levels: int) -> object:
        inner: object = {"type": "null", "column": "a"}
        for level in range(levels):
            if level % 2:
                inner = {"type": "not", "field": inner}
            else:
                inner = {"type": "and", "fields": [inner, {"type": "true"}]}
        return inner

    parse_compaction(json.dumps(in_filter(nested(FILTER_LEVELS_MAX))))
    with pytest.raises(SpecError, match="nests filters deeper than 24 levels") as caught:
        parse_compaction(json.dumps(in_filter(nested(FILTER_LEVELS_MAX + 2))))
    assert caught.value.place == "transformSpec.filter.field"
    many = {"type": "or", "fields": [{"type": "true"}] * 5_000}
    deep = {"type": "and", "fields": [many, {"type": "not", "field": many}]}
    parse_compaction(json.dumps(in_filter(deep)))


@pytest.mark.parametrize(
    "number",
    ["18446744073709551616", "-9223372036854775809", "1" * 30, "9" * 10_000],
    ids=["above", "below", "long", "very long"],
)
def test_json_refuses_a_number_of_more_than_64_bits_too(number: str) -> None:
    raw = f'{{"a": [{{"b": {number}}}], "c": {number}, "d": 18446744073709551615}}'
    with pytest.raises(SpecError) as caught:
        read_object(raw)
    assert [one.place for one in caught.value.mistakes] == ["a[0].b", "c"]
    assert "more than 64 bits: put it in quotes" in str(caught.value)


def test_numbers_of_64_bits_are_read_as_they_are() -> None:
    largest, least = (1 << 64) - 1, -(1 << 63)
    zeros = "0" * 5_000
    assert read_object(f"a: {largest}\nb: {least}\nc: -{zeros}7\nd: +1.5e3\ne: .5\nf: 1.") == {
        "a": largest, "b": least, "c": -7, "d": 1500.0, "e": 0.5, "f": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("b: 1\na: &x [1]", "line 2"),
        ("a: *x", "alias"),
        ("type: noop\ntype: kill", "duplicate key 'type', first in line 1"),
        ("type: !!python/object/apply:os.system [ls]", "tag"),
        ("type: noop\n---\ntype: noop", "line 2, column 1: a second document"),
        ("type: [", "line"),
        ("1: x", "must be text"),
        ("? [a]\n: x", "write a text"),
        ("~: x", "must be text"),
        ("a:\n  " + "[" * 300, "nested deeper"),
        ('type: noop\ncontext:\n  a: "\\ud800"', "line 3"),  # libyaml says it in other words
    ],
)
def test_what_yaml_could_hide_is_refused(text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_batch_task(text)
    assert hint in str(caught.value)
