"""Shard specs in Druid's JSON, what may share a chunk, and what queries can leave out."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.timeline.chunks import UNKNOWN_CORE, RootRange
from penstock.segments.shard_spec import ShardSpec

HASHED = {
    "type": "hashed",
    "partitionNum": 3,
    "partitions": 4,
    "bucketId": 1,
    "numBuckets": 2,
    "partitionDimensions": ["a"],
    "partitionFunction": "murmur3_32_abs",
}
SINGLE = {
    "type": "single",
    "dimension": "a",
    "start": "g",
    "end": None,
    "partitionNum": 1,
    "numCorePartitions": 2,
}
RANGE = {
    "type": "range",
    "dimensions": ["a", "b"],
    "start": ["g", None],
    "end": ["k", "m"],
    "partitionNum": 1,
    "numCorePartitions": 3,
}
VALUES = {
    "type": "dim_value_set",
    "partitionNum": 0,
    "partitions": 0,
    "partitionDimensionValues": {"tenant": ["x", None], "n": ["7"]},
    "dimensionColumnTypes": {"n": "LONG"},
}
OVERWRITE = {
    "type": "numbered_overwrite",
    "partitionId": 32768,
    "startRootPartitionId": 0,
    "endRootPartitionId": 3,
    "minorVersion": 1,
    "atomicUpdateGroupSize": 2,
}
ALL = [
    {"type": "none"},
    {"type": "numbered", "partitionNum": 2, "partitions": 1},
    {"type": "linear", "partitionNum": 5},
    HASHED,
    SINGLE,
    RANGE,
    VALUES,
    OVERWRITE,
    {"type": "tombstone", "partitionNum": 0, "partitions": 0},
]


@pytest.mark.parametrize("value", ALL, ids=lambda value: value["type"])
def test_what_was_read_is_written_as_it_was(value: dict[str, Any]) -> None:
    spec = ShardSpec.from_json(value)
    assert spec.to_json() == value
    assert len({spec, ShardSpec.from_json(value)}) == 1


@pytest.mark.parametrize(
    ("value", "number", "core"),
    [
        ({"type": "none"}, 0, 1),
        ({"type": "numbered", "partitionNum": 2, "partitions": 1}, 2, 1),
        ({"type": "linear", "partitionNum": 5}, 5, 0),
        (HASHED, 3, 4),
        (SINGLE, 1, 2),
        (RANGE, 1, 3),
        (OVERWRITE, 32768, 0),
        ({"type": "tombstone", "partitionNum": 0, "partitions": 1}, 0, 0),
        ({"type": "single", "dimension": "a", "partitionNum": 4}, 4, UNKNOWN_CORE),
        ({"type": "single_dim", "dimension": "a", "numCorePartitions": 2}, 0, 2),
        ({"type": "hashed", "partitionNum": 1, "partitions": 2}, 1, 2),
    ],
)
def test_every_kind_has_a_number_and_a_core_count(
    value: dict[str, Any], number: int, core: int
) -> None:
    spec = ShardSpec.from_json(value)
    assert (spec.partition_number, spec.core_partitions) == (number, core)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({}, "shardSpec.type"),
        ({"type": "building_numbered"}, "no published segment"),
        ({"type": "bucket_hash"}, "no published segment"),
        ({"type": "numbered", "partitionNum": -1}, "partitionNum"),
        ({"type": "numbered", "partitions": "2"}, "partitions"),
        ({"type": "single"}, "dimension"),
        ({**SINGLE, "start": 5}, "start"),
        ({**RANGE, "dimensions": []}, "dimensions"),
        ({**RANGE, "start": ["a"]}, "one value for each"),
        ({**RANGE, "virtualColumns": {"v": {}}}, "virtualColumns"),
        ({**VALUES, "partitionDimensionValues": {"a": "x"}}, "partitionDimensionValues.a"),
        ({**OVERWRITE, "partitionId": 7}, "32768 to 65535"),
        ({**OVERWRITE, "endRootPartitionId": 0}, "must not be empty"),
        ({**OVERWRITE, "minorVersion": 0}, "at least 1"),
    ],
)
def test_a_wrong_spec_is_refused_with_its_place(value: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidRequest, match=names):
        ShardSpec.from_json(value)


def test_overwriting_specs_stand_for_a_range_of_root_numbers() -> None:
    overwrite, numbered = ShardSpec.from_json(OVERWRITE), ShardSpec(1)
    assert (overwrite.roots, overwrite.minor_version) == (RootRange(0, 3, 1, 2), 1)
    assert (numbered.roots, numbered.minor_version) == (RootRange(1, 2, 0, 1), 0)


def test_a_new_number_keeps_what_queries_are_pruned_by() -> None:
    assert ShardSpec.from_json(RANGE).renumbered(7, 9).to_json() == {
        **RANGE,
        "partitionNum": 7,
        "numCorePartitions": 9,
    }
    assert ShardSpec.from_json(HASHED).renumbered(7).to_json() == {**HASHED, "partitionNum": 7}
    for alone in (ShardSpec.none(), ShardSpec.tombstone(), ShardSpec.from_json(OVERWRITE)):
        assert alone.renumbered(7, 9) == ShardSpec(7, 9)
    assert ShardSpec.linear(1).renumbered(2) == ShardSpec.linear(2)
    assert ShardSpec.linear(1).renumbered(2, 3) == ShardSpec(2, 3)
