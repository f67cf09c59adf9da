"""Segments that Druid wrote, and ours as Druid's tools read them."""

from __future__ import annotations

import json

from penstock.core.intervals import ETERNITY, Interval
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.shard_spec import ShardSpec

COMPACTED = {
    "dataSource": "wikipedia",
    "interval": "2015-09-12T00:00:00.000Z/2015-09-13T00:00:00.000Z",
    "version": "2024-03-01T10:00:00.000Z",
    "loadSpec": {
        "type": "s3_zip",
        "bucket": "druid",
        "key": "segments/wikipedia/2015/1/index.zip",
        "S3Schema": "s3n",
    },
    "dimensions": "channel,page,user",
    "metrics": "count,added",
    "projections": "",
    "shardSpec": {
        "type": "range",
        "dimensions": ["channel", "page"],
        "start": None,
        "end": ["#en.wikipedia", "Main"],
        "partitionNum": 0,
        "numCorePartitions": 2,
    },
    "lastCompactionState": {
        "partitionsSpec": {"type": "range", "partitionDimensions": ["channel", "page"]},
        "dimensionsSpec": {"dimensions": [{"type": "string", "name": "channel"}]},
        "granularitySpec": {"segmentGranularity": "DAY", "rollup": True},
    },
    "indexingStateFingerprint": "abc123",
    "clusterGroups": [{"name": "g"}],
    "binaryVersion": 9,
    "size": 4_821_529,
    "totalRows": 24_433,
    "identifier": (
        "wikipedia_2015-09-12T00:00:00.000Z_2015-09-13T00:00:00.000Z_2024-03-01T10:00:00.000Z"
    ),
}
TOMBSTONE = {
    "dataSource": "wikipedia",
    "interval": "2015-09-13T00:00:00.000Z/2015-09-14T00:00:00.000Z",
    "version": "2024-03-01T10:00:00.000Z",
    "loadSpec": {"type": "tombstone", "path": None},
    "dimensions": "",
    "metrics": "",
    "shardSpec": {"type": "tombstone", "partitionNum": 0, "partitions": 1},
    "lastCompactionState": None,
    "binaryVersion": 9,
    "size": 1,
}
# Before shard specs, and with dimensions as a list.
ANCIENT = {
    "dataSource": "wiki_old",
    "interval": "2011-01-01/2011-01-02",
    "version": "v1",
    "loadSpec": None,
    "dimensions": ["a", "b"],
    "metrics": None,
    "size": 7,
    "somethingOfTheFuture": {"x": 1},
}
ETERNAL = {
    **TOMBSTONE,
    "interval": "-146136543-09-08T08:23:32.096Z/146140482-04-24T15:36:27.903Z",
}


def test_a_compacted_segment_keeps_what_druid_says_of_it() -> None:
    segment = Segment.from_json(COMPACTED)
    assert segment.id == SegmentId(
        "wikipedia", Interval.parse("2015-09-12/2015-09-13"), "2024-03-01T10:00:00.000Z"
    )
    assert segment.dimensions == ("channel", "page", "user")
    assert segment.projections == ()
    assert segment.last_compaction_state == COMPACTED["lastCompactionState"]
    assert segment.to_json() == {**COMPACTED, "columns": []}


def test_an_old_tombstone_hides_no_appends() -> None:
    segment = Segment.from_json(TOMBSTONE)
    assert segment.is_tombstone
    assert segment.shard_spec == ShardSpec.tombstone()
    assert "lastCompactionState" not in segment.to_json()


def test_very_old_segments_are_read() -> None:
    segment = Segment.from_json(ANCIENT)
    assert segment.shard_spec == ShardSpec(0, 1)
    assert (segment.dimensions, segment.metrics) == (("a", "b"), ())
    assert segment.projections is None
    assert "somethingOfTheFuture" not in segment.to_json()


def test_all_of_time_is_all_of_time() -> None:
    assert Segment.from_json(ETERNAL).interval == ETERNITY


def test_ours_has_the_fields_that_druid_needs_and_none_that_are_null() -> None:
    ours = Segment(
        "d", Interval.parse("2013-01-01/P1D"), "v", {"type": "local", "path": "/s/part.parquet"}
    )
    value = json.loads(json.dumps(ours.to_json()))
    needed = ("dataSource", "interval", "version", "loadSpec", "shardSpec", "binaryVersion", "size")
    assert all(value[name] is not None for name in needed)
    assert all(isinstance(value[name], str) for name in ("dimensions", "metrics"))
    assert None not in value.values()
