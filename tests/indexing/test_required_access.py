"""The rights that each kind of task and supervisor needs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.required_access import required_access
from penstock.indexing.specs import parse_supervisor
from penstock.indexing.specs.batch.batch_task_specs import BATCH_TASK_TYPES, parse_batch_task
from penstock.indexing.task_spec import MessageTimes, make_task

DAY = "2024-01-01/2024-01-02"
SCHEMA = {
    "dataSource": "clicks",
    "timestampSpec": {"column": "t", "format": "millis"},
    "dimensionsSpec": {"dimensions": ["a"]},
    "granularitySpec": {"segmentGranularity": "DAY"},
}
INLINE = {"type": "inline", "data": "x"}
LOCAL = {"type": "local", "baseDir": "/data", "filter": "*"}
HTTP = {"type": "http", "uris": ["https://example.com/x"]}
STORED = {"type": "s3", "uris": ["s3://bucket/x"]}
DATABASE = {
    "type": "sql",
    "database": {
        "type": "postgresql",
        "connectorConfig": {"connectURI": "jdbc:postgresql://h/d", "user": "u", "password": "p"},
    },
    "sqls": ["SELECT 1"],
}
DRUID = {"type": "druid", "dataSource": "payments", "interval": DAY}
EXTERN = {
    "inputSource": LOCAL,
    "inputFormat": {"type": "json"},
    "signature": [{"name": "t", "type": "long"}],
}
WRITE, MANAGE = "write datasource:clicks", "manage datasource:clicks"
EXTERNAL = "read-external system:inputs"


def index(source: dict[str, Any], kind: str = "index_parallel") -> dict[str, Any]:
    has_types = source["type"] in {"druid", "sql"}
    io = {"type": kind, "inputSource": source}
    return {
        "type": kind,
        "spec": {
            "dataSchema": SCHEMA,
            "ioConfig": io if has_types else {**io, "inputFormat": {"type": "json"}},
        },
    }


def combined(*sources: dict[str, Any]) -> dict[str, Any]:
    return index({"type": "combining", "delegates": list(sources)})


SQL = {
    "type": "query_controller",
    "dataSource": "clicks",
    "sql": "INSERT",
    "query": "SELECT __time FROM payments",
}
SECRET = "secret://password"
BATCH = [
    (index(INLINE), {WRITE}),
    (index(INLINE, "index"), {WRITE}),
    (index(LOCAL), {WRITE, EXTERNAL}),
    (index(HTTP), {WRITE, EXTERNAL}),
    (index(STORED), {WRITE, EXTERNAL}),
    (index(DATABASE), {WRITE, EXTERNAL}),
    (index(DRUID), {WRITE, "read datasource:payments"}),
    (combined(INLINE, HTTP), {WRITE, EXTERNAL}),
    (combined(INLINE, DRUID), {WRITE, "read datasource:payments"}),
    (SQL, {WRITE}),
    ({**SQL, "externs": [EXTERN]}, {WRITE, EXTERNAL}),
    (
        {
            "type": "compact",
            "dataSource": "clicks",
            "ioConfig": {"inputSpec": {"type": "interval", "interval": DAY}},
        },
        {WRITE},
    ),
    (
        index({**HTTP, "httpAuthenticationUsername": "u", "httpAuthenticationPassword": SECRET}),
        {WRITE, EXTERNAL, "read secret:password"},
    ),
    ({"type": "kill", "dataSource": "clicks", "interval": DAY}, {MANAGE}),
    ({"type": "noop", "dataSource": "clicks"}, {WRITE}),
    (
        {
            "type": "index_spark",
            "dataSchema": {"dataSource": "clicks", "dimensionsSpec": {"dimensions": ["a"]}},
            "files": [{"name": "a.parquet", "rows": 1, "bytes": 1}],
            "rows": 1,
        },
        {WRITE},
    ),
]


def needed(spec: object) -> set[str]:
    found = required_access(spec)
    assert len(found) == len(set(found))
    return {f"{action} {resource}" for action, resource in found}


@pytest.mark.parametrize(("spec", "rights"), BATCH)
def test_batch_tasks(spec: dict[str, Any], rights: set[str]) -> None:
    assert needed(parse_batch_task(spec)) == rights


def test_every_kind_of_batch_task_is_tried() -> None:
    assert {spec["type"] for spec, _ in BATCH} == set(BATCH_TASK_TYPES)


def stream(kind: str, **io: object) -> dict[str, Any]:
    config = {"useEarliestOffset": True, **io}
    return {"type": kind, "spec": {"dataSchema": SCHEMA, "ioConfig": config}}


KAFKA = {"consumerProperties": {"bootstrap.servers": "h:9092"}, "topic": "clicks"}
SEALED_KAFKA = {
    "consumerProperties": {"bootstrap.servers": "h:9092", "sasl.password": SECRET},
    "topic": "clicks",
}
SUPERVISORS = [
    (
        stream("penstock", topic="clicks", deadLetterTopic="bad"),
        {WRITE, "read topic:clicks", "write topic:bad"},
    ),
    (
        stream("kafka", topic="clicks", deadLetterTopic="bad"),
        {WRITE, "read topic:clicks", "write topic:bad"},
    ),
    (stream("kafka", **KAFKA, deadLetterTopic="bad"), {WRITE, EXTERNAL, "write topic:bad"}),
    (
        stream("kafka", **SEALED_KAFKA, deadLetterTopic="bad"),
        {WRITE, EXTERNAL, "write topic:bad", "read secret:password"},
    ),
    (
        stream("folder", baseDir="/data", deadLetterTopic="bad"),
        {WRITE, EXTERNAL, "write topic:bad"},
    ),
]


@pytest.mark.parametrize(("spec", "rights"), SUPERVISORS)
def test_supervisors_and_their_tasks(spec: dict[str, Any], rights: set[str]) -> None:
    parsed = parse_supervisor(spec)
    assert needed(parsed) == rights
    task = make_task(
        parsed,  # type: ignore[arg-type]
        *(0, {0: 0}, None),
        topic_id="",
        times=MessageTimes(),
        token="t",
    )
    assert needed(task) == rights


def test_compaction_supervisors() -> None:
    spec = {"type": "autocompact", "spec": {"dataSource": "clicks"}}
    assert needed(parse_supervisor(spec)) == {MANAGE}  # type: ignore[arg-type]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a spec of the kind str cannot be submitted"):
        required_access("a spec")
