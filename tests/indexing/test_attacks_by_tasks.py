"""Attacks with the token of a task: its actions name segments, files and addresses of others.

The attacker sends any action, and has no access to a disk. The files that it publishes or
announces become rows of its datasource, which it may then query.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import orjson
import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.actions import AnnounceFiles, LockTryAcquire, PublishSegments
from penstock.indexing.actions.segment_allocation import AllocatedSegment
from penstock.indexing.engine import DataFile
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.segments.layout import attempt_folder, relative_folder
from penstock.segments.segment import SegmentId
from tests.indexing.action_kit import DAY, NOTHING, Desk, batch, rows, stream

BASE = "/var/lib/penstock/tasks"
FOREIGN = relative_folder(SegmentId("payments", DAY, "2024-02-01T00:00:00.000Z", 0), "x")
OWN_DAY = relative_folder(SegmentId("flights", DAY, "2024-02-01T00:00:00.000Z", 0), "x")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.metadata.roots.register("w", BASE)
    for name in ("b", "other"):
        made.add(batch(name))
    made.add(stream("s"))
    return made


def locked(desk: Desk, task: str = "b") -> str:
    """Return the version of a task's lock on the day."""
    (lock,) = desk.do(task, LockTryAcquire((DAY,))).locks
    return lock.version


def publish_form(desk: Desk) -> dict[str, object]:
    """Return the JSON of a publish that is accepted."""
    place = AllocatedSegment(DAY, locked(desk), 0, 1)
    return PublishSegments("b", rows([place]), None, None, NOTHING).to_json()


LOAD_SPECS: list[object] = [
    {"type": "deepStorage", "path": f"{FOREIGN}/part.parquet"},
    {"type": "deepStorage", "path": f"{OWN_DAY}/part.parquet"},  # of another version
    {"type": "deepStorage", "path": f"{attempt_folder('payments', 'b', 'x')}/a.parquet"},
    {"type": "deepStorage", "path": f"{attempt_folder('flights', 'other', 'x')}/a.parquet"},
    {"type": "deepStorage", "path": "flights/attempts/b/x/../../../../payments/p.parquet"},
    {"type": "deepStorage", "path": "flights/attempts/b/x/../../b"},
    {"type": "deepStorage", "path": "flights/attempts/b/../other/x/a.parquet"},
    {"type": "deepStorage", "path": "flights/attempts/b/"},
    {"type": "deepStorage", "path": "/etc/passwd"},
    {"type": "deepStorage", "path": "../secrets.json"},
    {"type": "deepStorage", "path": "~projections/payments/x/a.parquet"},
    {"type": "deepStorage", "path": ""},
    {"type": "deepStorage", "path": None},
    {"type": "deepStorage", "path": ["flights"]},
    {"type": "deepStorage"},
    {"type": "local", "path": "/etc/passwd"},
    {"type": "local", "path": f"/var/lib/penstock/segments/{FOREIGN}/part.parquet"},
    {"type": "fsspec", "url": "http://169.254.169.254/latest"},
    {"type": "fsspec", "url": "s3://other-bucket/x.parquet"},
    {"type": "tombstone"},
    {},
]


def refused_publish(desk: Desk, form: Mapping[str, object], task: str = "b") -> str:
    before = desk.metadata.segments.every()
    with pytest.raises(InvalidRequest) as refused:
        desk.handler.perform(task, orjson.loads(orjson.dumps(form)))
    assert list(desk.metadata.segments.every()) == list(before)
    return str(refused.value)


def succeeds(desk: Desk, form: Mapping[str, object]) -> bool:
    answer = cast("dict[str, object]", desk.handler.perform("b", dict(form)))
    return answer["success"] is True


def changed(form: Mapping[str, object], field: str, value: object) -> dict[str, object]:
    """Return a publish in which a field of the segment, or of its payload, has another value."""
    found = copy.deepcopy(dict(form))
    (segment,) = cast("list[dict[str, dict[str, object]]]", found["segments"])
    node, _, name = field.rpartition(".")
    place: dict[str, object] = segment[node] if node else cast("dict[str, object]", segment)
    place[name] = value
    return found


def test_a_publish_with_its_own_file_is_accepted(desk: Desk) -> None:
    form = publish_form(desk)
    assert succeeds(desk, form)


def test_a_publish_from_an_attempt_is_accepted(desk: Desk) -> None:
    path = f"{attempt_folder('flights', 'b', 'token')}/day=1/part-0.parquet"
    form = changed(publish_form(desk), "payload.loadSpec", {"type": "deepStorage", "path": path})
    assert succeeds(desk, form)


@pytest.mark.parametrize("load_spec", LOAD_SPECS, ids=str)
def test_no_segment_names_a_file_of_others(desk: Desk, load_spec: object) -> None:
    form = changed(publish_form(desk), "payload.loadSpec", load_spec)
    assert "b" in refused_publish(desk, form)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataSource", "payments"),
        ("id", "payments_2024-01-01T00:00:00.000Z_2024-01-02T00:00:00.000Z_v"),
        ("interval", "2024-01-01T00:00:00.000Z/2024-01-01T12:00:00.000Z"),
        ("partitionNumber", 7),
        ("payload.dataSource", "payments"),
        ("payload.interval", "2020-01-01T00:00:00.000Z/2020-01-02T00:00:00.000Z"),
        ("payload.version", "2999-01-01T00:00:00.000Z"),
        ("payload.shardSpec", {"type": "numbered", "partitionNum": 7, "partitions": 1}),
        ("payload.shardSpec", {"type": "tombstone"}),
        ("payload.shardSpec", {"type": "?"}),
        ("payload.upgradedFromSegmentId", "payments_x"),
        ("payload.size", "many"),
        ("payload", {}),
        ("payload.columns", [["a", "string), (SELECT 1"]]),
        ("payload.columns", [["a", "string) AS x FROM payments --"]]),
        ("payload.columns", [["a", "string COMMENT 'x'"]]),
        ("payload.columns", [["a", "array<string"]]),
        ("payload.columns", [["a", "string>"]]),
        ("payload.columns", [["a", ""]]),
        ("payload.columns", [["a", "x" * 201]]),
    ],
    ids=str,
)
def test_no_segment_says_two_things_about_itself(desk: Desk, field: str, value: object) -> None:
    refused_publish(desk, changed(publish_form(desk), field, value))


@pytest.mark.parametrize("kind", ["string", "BIGINT", "decimal(10,2)", "array<array<double>>"])
def test_types_of_columns_are_accepted(desk: Desk, kind: str) -> None:
    form = changed(publish_form(desk), "payload.columns", [["__time", "timestamp"], ["a", kind]])
    assert succeeds(desk, form)


# Announced files


def announce_form(path: str, sequence: str = "base-s_0", kind: str = "string") -> dict[str, object]:
    file = DataFile(path, DAY, 1, 2, DAY.start_ms, DAY.start_ms, (("page", kind),))
    return AnnounceFiles(sequence, (file,), {0: 0}, {0: 5}).to_json()


def test_a_task_announces_files_of_its_folder(desk: Desk) -> None:
    for name in ("persist/1-0/1356998400000.parquet", "merge/2-7/x.parquet"):
        assert desk.handler.perform("s", announce_form(f"{BASE}/s/{name}")) is True
    desk.metadata.roots.register("relative", "/home/me/../data/tasks")
    path = "/home/me/../data/tasks/s/persist/1-0/a.parquet"
    assert desk.handler.perform("s", announce_form(path)) is True


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        f"/var/lib/penstock/segments/{FOREIGN}/part.parquet",
        f"{BASE}/other/persist/1-0/a.parquet",
        f"{BASE}/s/../other/persist/1-0/a.parquet",
        f"{BASE}/s/persist/1-0/../../../other/persist/1-0/a.parquet",
        f"{BASE}/s//persist/1-0/a.parquet",
        f"{BASE}/s/credentials.json",
        f"{BASE}/s/task.json",
        f"{BASE}/s/persist/a.parquet",
        f"{BASE}/s/persist/1-0/",
        f"{BASE}/sneaky/persist/1-0/a.parquet",
        f"{BASE}2/s/persist/1-0/a.parquet",
        "s/persist/1-0/a.parquet",
        "persist/1-0/a.parquet",
        f"file://{BASE}/s/persist/1-0/a.parquet",
        "http://169.254.169.254/s/persist/1-0/a.parquet",
        "",
    ],
)
def test_a_task_announces_no_file_of_others(desk: Desk, path: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a data file in the folder of task s"):
        desk.handler.perform("s", announce_form(path))
    assert desk.metadata.latest("flights").announced == ()


@pytest.mark.parametrize("kind", ["string) FROM payments", "string, x bigint", "`string`"])
def test_an_announced_column_has_a_type(desk: Desk, kind: str) -> None:
    with pytest.raises(InvalidRequest, match="has the type"):
        desk.handler.perform("s", announce_form(f"{BASE}/s/persist/1-0/a", kind=kind))


@pytest.mark.parametrize("sequence", ["base-other_0", "base-s", "base-sx_0", "other", ""])
def test_a_task_announces_no_sequence_of_others(desk: Desk, sequence: str) -> None:
    with pytest.raises(InvalidRequest, match="does not belong to the task"):
        desk.handler.perform("s", announce_form(f"{BASE}/s/persist/1-0/a", sequence))


# Addresses and names


@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.1", "attacker.example"])
def test_a_task_does_not_say_where_its_peon_listens(desk: Desk, host: str) -> None:
    """The overlord and the router would send their requests there; the worker reports it."""
    with pytest.raises(InvalidRequest, match="unknown action 'updateLocation'"):
        desk.handler.perform("s", {"type": "updateLocation", "host": host, "port": 80})


def test_a_task_lists_only_its_own_datasources(desk: Desk) -> None:
    publish = publish_form(desk)
    assert succeeds(desk, publish)
    task: dict[str, JsonValue] = {
        "type": "index_parallel",
        "id": "reader",
        "spec": {
            "dataSchema": {
                "dataSource": "copies",
                "timestampSpec": {"column": "__time", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["a"]},
                "granularitySpec": {"segmentGranularity": "DAY"},
            },
            "ioConfig": {
                "inputSource": {
                    "type": "druid",
                    "dataSource": "flights",
                    "interval": "2024-01-01/2024-01-02",
                }
            },
        },
    }
    desk.add(parse_batch_task(task))
    desk.add(batch("stranger", datasource="elsewhere"))
    assert desk.handler.perform("reader", {"type": "datasourceList"}) == ["flights"]
    assert desk.handler.perform("stranger", {"type": "datasourceList"}) == []
