"""Segment ids and segments: text and JSON forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.segments.segment import Segment, SegmentId, ShardSpec

MONTH = Interval.parse("2013-01-01/2013-02-01")
VERSION = "2024-05-06T07:08:09.123Z"
TIMES = "2013-01-01T00:00:00.000Z_2013-02-01T00:00:00.000Z"

names = st.text("ab_0 -.:ü", min_size=1, max_size=8)
versions = st.one_of(st.just(VERSION), st.text("v1_90.", min_size=1, max_size=8))
intervals = st.tuples(
    st.integers(ETERNITY.start_ms, ETERNITY.end_ms), st.integers(ETERNITY.start_ms, ETERNITY.end_ms)
).map(lambda ends: Interval(min(ends), max(ends)))
ids = st.builds(SegmentId, names, intervals, versions, st.integers(0, 2**31 - 1))


def test_partition_0_is_not_written() -> None:
    assert str(SegmentId("d", MONTH, VERSION)) == f"d_{TIMES}_{VERSION}"
    assert str(SegmentId("d", MONTH, VERSION, 7)) == f"d_{TIMES}_{VERSION}_7"


def test_a_number_at_the_end_has_two_readings() -> None:
    assert SegmentId.possible_readings(f"d_{TIMES}_v_7", "d") == [
        SegmentId("d", MONTH, "v", 7),
        SegmentId("d", MONTH, "v_7", 0),
    ]


@pytest.mark.parametrize("end", ["0", "07", "x", "1.5", "99999999999", "٣"])
def test_what_is_no_partition_number_belongs_to_the_version(end: str) -> None:
    assert SegmentId.possible_readings(f"d_{TIMES}_v_{end}", "d") == [
        SegmentId("d", MONTH, f"v_{end}", 0)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d",
        f"d_{TIMES}",
        f"d_{TIMES}_",
        f"_{TIMES}_v",
        f"e_{TIMES}_v",
        "d_2013-01-01_2013-02-01_v",  # not as it would be printed
        "d_2013-02-01T00:00:00.000Z_2013-01-01T00:00:00.000Z_v",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="use datasource_start_end_version"):
        SegmentId.parse(text, "d")


def test_names_with_underscores_need_no_hint() -> None:
    wanted = SegmentId("my_data_2013", MONTH, VERSION, 3)
    assert SegmentId.parse(str(wanted)) == wanted


@given(ids)
def test_an_id_is_among_the_readings_of_its_text(segment_id: SegmentId) -> None:
    text = str(segment_id)
    assert segment_id in SegmentId.possible_readings(text, segment_id.datasource)
    assert segment_id in SegmentId.possible_readings(text)
    assert {str(reading) for reading in SegmentId.possible_readings(text)} == {text}


def segment(**changes: object) -> Segment:
    fields: dict[str, Any] = {
        "datasource": "d",
        "interval": MONTH,
        "version": VERSION,
        "load_spec": {"type": "local", "path": "/x"},
        "shard_spec": ShardSpec(2, 1),
        "size": 10,
        "total_rows": 5,
        "dimensions": ("a", "b"),
        "metrics": (),
        "columns": (("__time", "TIMESTAMP"), ("a", "STRING")),
    }
    return Segment(**{**fields, **changes})


def test_a_segment_has_druids_json_form() -> None:
    assert segment().to_json() == {
        "dataSource": "d",
        "interval": "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z",
        "version": VERSION,
        "loadSpec": {"type": "local", "path": "/x"},
        "dimensions": "a,b",
        "metrics": "",
        "shardSpec": {"type": "numbered", "partitionNum": 2, "partitions": 1},
        "binaryVersion": 9,
        "size": 10,
        "totalRows": 5,
        "columns": [["__time", "TIMESTAMP"], ["a", "STRING"]],
        "identifier": f"d_{TIMES}_{VERSION}_2",
    }


@pytest.mark.parametrize(
    "changes",
    [{}, {"dimensions": ()}, {"columns": ()}, {"shard_spec": ShardSpec(kind="tombstone")}],
)
def test_a_segment_survives_json_and_rows(changes: Mapping[str, object]) -> None:
    wanted = segment(**changes)
    for back in (Segment.from_json(wanted.to_json()), Segment.from_row(wanted.to_row())):
        assert back.to_json() == wanted.to_json()
        assert back.is_tombstone == wanted.is_tombstone


def test_segments_are_equal_and_ordered_by_id() -> None:
    assert segment() == segment(size=99)
    assert len({segment(), segment(size=99), segment(version="w")}) == 2
    assert min([segment(version="w"), segment()]) == segment()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dataSource", None),
        ("interval", 5),
        ("version", ""),
        ("loadSpec", "x"),
        ("shardSpec", {"type": "bucket_hash"}),
        ("size", "10"),
        ("totalRows", -1),
        ("dimensions", [1]),
        ("columns", [["a"]]),
        ("columns", "ab"),
        ("columns", [["a", 1]]),
    ],
)
def test_a_wrong_field_is_named(key: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Segment.from_json({**segment().to_json(), key: value})
    assert key in str(caught.value)
