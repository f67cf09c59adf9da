"""Specs of batch tasks: modes, locks, what contradicts itself, and what survives its JSON."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from penstock.core.intervals import ETERNITY, Granularity, Interval, condensed
from penstock.indexing.specs import SpecError
from penstock.indexing.specs.batch.batch_task_specs import BatchTaskSpec, KillSpec, parse_batch_task
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.task import aligned
from penstock.indexing.specs.inputs import InputSource
from penstock.indexing.specs.task_context import (
    IngestionMode,
    read_context,
    uses_concurrent_locks,
)

INDEX: dict[str, Any] = {
    "type": "index_parallel",
    "spec": {
        "dataSchema": {
            "dataSource": "d",
            "dimensionsSpec": {"dimensions": ["a"]},
            "granularitySpec": {
                "segmentGranularity": "month",
                "intervals": ["2013-01-05/2013-02-10", "2013-04-01/2013-04-02"],
            },
        },
        "ioConfig": {
            "inputSource": {"type": "inline", "data": "{}"},
            "inputFormat": {"type": "json"},
        },
    },
}
COMPACT: dict[str, Any] = {
    "type": "compact",
    "dataSource": "d",
    "ioConfig": {"inputSpec": {"type": "interval", "interval": "2013-01-05/2013-01-06"}},
}


def changed(spec: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """Return the spec with a value in a place."""
    spec = copy.deepcopy(spec)
    *path, last = place.split(".")
    target: dict[str, Any] = spec
    for step in path:
        inner = target.setdefault(step, {})
        assert isinstance(inner, dict)
        target = inner
    target[last] = value
    return spec


def index(**io: object) -> BatchTaskSpec:
    spec = copy.deepcopy(INDEX)
    for name, value in io.items():
        spec = changed(spec, f"spec.ioConfig.{name}", value)
    return parse_batch_task(spec)


def locks(spec: BatchTaskSpec) -> list[str]:
    return [str(wish.interval).replace("T00:00:00.000Z", "") for wish in spec.lock_intents()]


def _kill(raw: dict[str, Any]) -> KillSpec:
    made = parse_batch_task(raw)
    assert isinstance(made, KillSpec)
    return made


def test_the_modes() -> None:
    assert index().mode is IngestionMode.REPLACE_LEGACY
    assert index(dropExisting=True).mode is IngestionMode.REPLACE
    assert index(appendToExisting=True).mode is IngestionMode.APPEND


def test_locks_are_of_whole_time_chunks_as_few_as_there_can_be() -> None:
    assert locks(index()) == ["2013-01-01/2013-03-01", "2013-04-01/2013-05-01"]
    assert all(wish.appends for wish in index(appendToExisting=True).lock_intents())
    found = parse_batch_task(changed(INDEX, "spec.dataSchema.granularitySpec.intervals", None))
    assert found.lock_intents() == ()


def test_a_kill_names_no_more_versions_than_a_query_takes() -> None:
    kill = {"type": "kill", "dataSource": "d", "interval": "2013-01-05/2013-01-06"}
    assert len(_kill({**kill, "versions": ["v"] * 1_000}).versions or ()) == 1_000
    with pytest.raises(SpecError, match="at most 1000"):
        parse_batch_task({**kill, "versions": ["v"] * 1_001})


def test_locks_of_other_tasks() -> None:
    kill = {"type": "kill", "dataSource": "d", "interval": "2013-01-05/2013-01-06"}
    assert locks(parse_batch_task(kill)) == ["2013-01-05/2013-01-06"]
    assert locks(parse_batch_task(COMPACT)) == ["2013-01-05/2013-01-06"]
    wide = changed(COMPACT, "granularitySpec.segmentGranularity", "month")
    wide = changed(wide, "ioConfig.allowNonAlignedInterval", value=True)
    assert locks(parse_batch_task(wide)) == ["2013-01-01/2013-02-01"]
    assert parse_batch_task({"type": "noop"}).lock_intents() == ()


def test_a_replace_by_sql_locks_what_it_replaces() -> None:
    sql: dict[str, Any] = {
        "type": "query_controller",
        "dataSource": "d",
        "sql": "…",
        "query": "SELECT 1",
    }
    assert parse_batch_task(sql).lock_intents() == ()
    (wish,) = parse_batch_task(sql | {"overwrite": ["all"]}).lock_intents()
    assert wish.interval == ETERNITY
    month: dict[str, Any] = {"overwrite": ["2013-01-01/2013-02-01"], "partitionedBy": "month"}
    assert locks(parse_batch_task(sql | month)) == ["2013-01-01/2013-02-01"]


@pytest.mark.parametrize(
    ("context", "mode", "kind"),
    [
        ({}, "APPEND", "EXCLUSIVE"),
        ({"useConcurrentLocks": True}, "APPEND", "APPEND"),
        ({"useConcurrentLocks": True}, "REPLACE", "REPLACE"),
        ({"taskLockType": "SHARED"}, "APPEND", "SHARED"),
        ({"taskLockType": "SHARED"}, "REPLACE", "EXCLUSIVE"),
        ({"taskLockType": "APPEND"}, "REPLACE_LEGACY", "EXCLUSIVE"),
        ({"taskLockType": "REPLACE"}, "REPLACE", "REPLACE"),
        ({"useSharedLock": "true"}, "APPEND", "SHARED"),
    ],
)
def test_which_locks_follow_from_the_context(context: dict[str, Any], mode: str, kind: str) -> None:
    settings = parse_batch_task({"type": "noop", "context": context}).settings
    assert settings.lock_type(IngestionMode(mode)) == kind


@pytest.mark.parametrize(("value", "forced"), [(False, False), ("false", False), ("true", True)])
def test_the_context_says_whether_time_chunks_are_locked(value: bool | str, forced: bool) -> None:
    task = parse_batch_task({"type": "noop", "context": {"forceTimeChunkLock": value}})
    assert task.settings.force_time_chunk_lock is forced
    assert not task.locks_segments
    with pytest.raises(SpecError, match=r"context\.forceTimeChunkLock.*true or false"):
        parse_batch_task({"type": "noop", "context": {"forceTimeChunkLock": "perhaps"}})


def test_priorities() -> None:
    assert index().priority == 50
    assert parse_batch_task(COMPACT).priority == 25
    assert parse_batch_task({"type": "noop"}).priority == 0
    assert parse_batch_task({"type": "noop", "context": {"priority": -3}}).priority == -3
    assert parse_batch_task(COMPACT).settings.store_compaction_state


HASHED = {"type": "hashed", "numShards": 2}
RANGE = {"type": "range", "partitionDimensions": ["a"], "targetRowsPerSegment": 5}
IO, TU = "spec.ioConfig", "spec.tuningConfig"
INTERVALS = "spec.dataSchema.granularitySpec.intervals"


@pytest.mark.parametrize(
    ("changes", "place", "hint"),
    [
        ({f"{IO}.appendToExisting": True, f"{IO}.dropExisting": True}, f"{IO}.dropExisting", "or "),
        ({f"{IO}.dropExisting": True, INTERVALS: None}, INTERVALS, "list the intervals"),
        ({INTERVALS: ["2013-01-02/2013-01-01"]}, f"{INTERVALS}[0]", "ends before"),
        ({INTERVALS: ["2013-01-02/2013-01-02"]}, f"{INTERVALS}[0]", "is empty: its end"),
        (
            {f"{IO}.appendToExisting": True, f"{TU}.partitionsSpec": HASHED},
            f"{TU}.partitionsSpec.type",
            "requires the type dynamic",
        ),
        ({f"{TU}.forceGuaranteedRollup": True}, f"{TU}.forceGuaranteedRollup", "hashed"),
        (
            {f"{TU}.partitionsSpec": HASHED | {"targetRowsPerSegment": 5}},
            f"{TU}.partitionsSpec.targetRowsPerSegment",
            "set only one of them",
        ),
        (
            {f"{TU}.partitionsSpec": RANGE | {"maxRowsPerSegment": 5}},
            f"{TU}.partitionsSpec.maxRowsPerSegment",
            "exactly one",
        ),
        (
            {f"{TU}.partitionsSpec": RANGE | {"partitionDimensions": ["a", "a"]}},
            f"{TU}.partitionsSpec.partitionDimensions[1]",
            "duplicate dimension",
        ),
        (
            {f"{TU}.partitionsSpec": RANGE | {"partitionDimensions": ["a", "nowhere"]}},
            f"{TU}.partitionsSpec.partitionDimensions[1]",
            "is not a dimension",
        ),
        (
            {
                f"{TU}.partitionsSpec": HASHED | {"partitionDimensions": ["n"]},
                "spec.dataSchema.metricsSpec": [{"type": "count", "name": "n"}],
            },
            f"{TU}.partitionsSpec.partitionDimensions[0]",
            "is not a dimension",
        ),
        (
            {
                f"{TU}.partitionsSpec": {
                    "type": "single_dim",
                    "partitionDimension": "A",
                    "targetRowsPerSegment": 5,
                }
            },
            f"{TU}.partitionsSpec.partitionDimension",
            "is not a dimension",
        ),
        (
            {f"{TU}.partitionsSpec": RANGE, f"{TU}.maxRowsPerSegment": 5},
            f"{TU}.maxRowsPerSegment",
            "move it into partitionsSpec",
        ),
        ({f"{TU}.numShards": 3}, f"{TU}.numShards", '"hashed"'),
        ({f"{TU}.maxAllowedLockCount": 1}, INTERVALS, "need 2 locks"),
        ({f"{IO}.inputFormat": None}, f"{IO}.inputFormat", "specify the format of the rows"),
        (
            {f"{IO}.inputSource": {"type": "druid", "dataSource": "e", "interval": "2013/P1Y"}},
            f"{IO}.inputFormat",
            "leave it out",
        ),
        (
            {f"{IO}.inputSource": {"type": "druid", "dataSource": "e"}, f"{IO}.inputFormat": None},
            f"{IO}.inputSource.interval",
            "segments",
        ),
        (
            {f"{IO}.inputSource": {"type": "local", "files": ["/a.json", "b.json"]}},
            f"{IO}.inputSource.files[1]",
            "use an absolute path",
        ),
        (
            {f"{IO}.inputSource": {"type": "local", "baseDir": "quickstart", "filter": "*.json"}},
            f"{IO}.inputSource.baseDir",
            "use an absolute path",
        ),
        ({f"{IO}.inputSource": {"type": "local"}}, f"{IO}.inputSource.baseDir", "files"),
        (
            {f"{IO}.inputSource": {"type": "local", "baseDir": "/x"}},
            f"{IO}.inputSource.filter",
            "*.json",
        ),
        (
            {f"{IO}.inputSource": {"type": "http", "uris": ["ftp://x/y"]}},
            f"{IO}.inputSource.uris[0]",
            "http or https",
        ),
        (
            {f"{IO}.inputSource": {"type": "http", "uris": ["http://me:secret@x/y"]}},
            f"{IO}.inputSource.uris[0]",
            "must not contain a password",
        ),
        (
            {f"{IO}.inputSource": {"type": "s3", "uris": ["gs://x/y"]}},
            f"{IO}.inputSource.uris[0]",
            "s3 or s3a",
        ),
        ({f"{IO}.inputSource": {"type": "s3"}}, f"{IO}.inputSource.uris", "exactly one"),
        ({f"{IO}.inputSource": {"type": "inlnie"}}, f"{IO}.inputSource.type", 'mean "inline"'),
        ({f"{IO}.inputSource": {"data": "x"}}, f"{IO}.inputSource.type", "is required, one of "),
        ({f"{IO}.inputFormat": {"type": "csv"}}, f"{IO}.inputFormat.columns", "list the columns"),
        (
            {f"{IO}.inputFormat": {"type": "tsv", "columns": ["a", "a"]}},
            f"{IO}.inputFormat.columns[1]",
            "duplicate column",
        ),
        ({"id": "../x"}, "id", "dot"),
        ({"spec.dataSchem": {}}, "spec.dataSchem", 'did you mean "dataSchema"'),
    ],
)
def test_contradictions_are_told_with_their_place(
    changes: dict[str, Any], place: str, hint: str
) -> None:
    spec = INDEX
    for where, value in changes.items():
        spec = changed(spec, where, value)
    with pytest.raises(SpecError) as caught:
        parse_batch_task(spec)
    told = {mistake.place: mistake.message for mistake in caught.value.mistakes}
    assert hint in told[place]
    assert "secret@" not in str(caught.value)


def test_a_secret_comes_only_from_variables_that_are_meant_for_it() -> None:
    def source(variable: str) -> dict[str, Any]:
        return {
            "type": "http",
            "uris": ["https://x/y"],
            "httpAuthenticationUsername": "me",
            "httpAuthenticationPassword": {"type": "environment", "variable": variable},
        }

    index(inputSource=source("PENSTOCK_INPUT_X"))
    with pytest.raises(SpecError, match="cannot be read by a spec"):
        index(inputSource=source("AWS_SECRET_ACCESS_KEY"))


def test_partitions_have_druids_defaults() -> None:
    def partitions(**tuning: object) -> Any:
        spec = parse_batch_task(changed(INDEX, TU, tuning))
        assert isinstance(spec, IndexParallelSpec)
        return spec.tuning.partitions

    assert partitions().rows_max == 5_000_000
    assert partitions(maxRowsPerSegment=7).rows_max == 7
    assert partitions(partitionsSpec={"type": "hashed"}).rows_target == 5_000_000
    single = {"type": "single_dim", "partitionDimension": "a", "maxRowsPerSegment": 15}
    assert partitions(partitionsSpec=single).rows_target == 10
    assert partitions(partitionsSpec=single).partition_dimensions == ("a",)


@pytest.mark.parametrize(
    ("changes", "place", "hint"),
    [
        (
            {"granularitySpec.segmentGranularity": "month"},
            "ioConfig.inputSpec.interval",
            "/2013-02-01T00:00:00.000Z, or set allowNonAlignedInterval",
        ),
        (
            {
                "granularitySpec.segmentGranularity": "P1D in America/New_York",
                "ioConfig.inputSpec.interval": "2024-03-10/2024-03-11",
            },
            "ioConfig.inputSpec.interval",
            "in America/New_York): write 2024-03-09T05:00:00.000Z/2024-03-11T04:00:00.000Z",
        ),
        ({"interval": "2013/2014"}, "interval", "conflicts with ioConfig"),
        (
            {"ioConfig.inputSpec": {"type": "minor", "interval": "2013/2014", "segments": ["x"]}},
            "ioConfig.inputSpec.segments[0]",
            "",
        ),
        ({"transformSpec.transforms": [{}]}, "transformSpec.transforms", "does not change columns"),
    ],
)
def test_mistakes_in_compaction(changes: dict[str, Any], place: str, hint: str) -> None:
    spec = COMPACT
    for where, value in changes.items():
        spec = changed(spec, where, value)
    with pytest.raises(SpecError) as caught:
        parse_batch_task(spec)
    assert hint in {m.place: m.message for m in caught.value.mistakes}[place]


def test_a_task_survives_its_json_and_can_be_named() -> None:
    for raw in (INDEX, COMPACT, {"type": "noop", "runTime": 5, "groupId": "g"}):
        spec = parse_batch_task(cast("dict[str, Any]", raw))
        assert parse_batch_task(spec.to_json()) == spec
        named = spec.with_id("t1")
        assert (named.id, named.availability_group) == ("t1", "t1")
    assert index().with_id("t1").group_name == "t1"
    assert parse_batch_task({"type": "noop", "groupId": "g"}).group_name == "g"


TIMES = st.integers(0, 10**6)


@given(st.lists(st.tuples(TIMES, st.integers(1, 10**5)), max_size=8))
def test_condensed_intervals_hold_the_same_time(given_: Sequence[tuple[int, int]]) -> None:
    intervals = [Interval(start, start + length) for start, length in given_]
    found = condensed(intervals)
    assert all(a.end_ms < b.start_ms for a, b in itertools.pairwise(found))
    edges = {edge for i in intervals for edge in (i.start_ms, i.end_ms, i.end_ms - 1)}
    for at in edges:
        assert any(i.contains(at) for i in found) == any(i.contains(at) for i in intervals)


@given(TIMES, st.integers(1, 10**12), st.sampled_from(["hour", "week", "month", "PT6H", "all"]))
def test_aligned_intervals_are_the_least_that_cover(start: int, length: int, name: str) -> None:
    granularity = Granularity.parse(name)
    interval = Interval(start, start + length)
    found = aligned(interval, granularity)
    assert granularity.is_aligned(found)
    assert found.covers(interval)
    assert granularity.bucket(found.start_ms).contains(interval.start_ms)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("true", True), ("TRUE", True), ("false", False), (False, False), (None, False)],
)
def test_concurrent_locks_are_read_in_one_way(value: object, *, expected: bool) -> None:
    assert uses_concurrent_locks({"useConcurrentLocks": value}) is expected
    assert read_context({"useConcurrentLocks": value}, priority=0).use_concurrent_locks is expected  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["filter", "dimensions", "metrics"])
def test_a_source_that_is_combined_with_others_is_read_whole(name: str) -> None:
    wanted = {"filter": {"type": "true"}, "dimensions": ["a"], "metrics": []}
    source = {"type": "druid", "dataSource": "d", "interval": "2013/2014", name: wanted[name]}
    value = {"type": "combining", "delegates": [source]}
    with pytest.raises(ValidationError, match="cannot be combined"):
        TypeAdapter[InputSource](InputSource).validate_python(value)


def test_a_datasource_that_no_query_can_name_gets_no_new_rows() -> None:
    named = changed(INDEX, "spec.dataSchema.dataSource", "${x}")
    with pytest.raises(SpecError, match=r"dataSource: '\$\{x\}' .*no query could name it"):
        parse_batch_task(named, str)
    # Stored by an earlier release; what it holds can be removed.
    assert parse_batch_task(named).datasource == "${x}"
    kill = {"type": "kill", "dataSource": "${x}", "interval": "2024-01-01/2024-01-02"}
    assert parse_batch_task(kill, str).datasource == "${x}"
