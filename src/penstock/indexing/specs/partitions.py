"""How the rows of a time chunk are distributed over segments: ``tuningConfig.partitionsSpec``.

`is_perfect` is set if one segment has all rows of a key, so that roll-up merges all of them;
otherwise roll-up is best effort.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.indexing.specs.scalars import Count, in_any_case
from penstock.indexing.specs.spec_base import IgnoredValue, SpecModel, mistakes

ROWS_DEFAULT: Final = 5_000_000
# Ranges are determined from a sample of the rows, whether these are rolled up already or not.
_GROUPED: Final[Mapping[str, IgnoredValue]] = {"assumeGrouped": IgnoredValue.FLAG}


class DynamicPartitions(SpecModel):
    """Rows in the order of arrival, with a new segment whenever one is full."""

    type: Literal["dynamic"] = "dynamic"
    max_rows_per_segment: Count = Field(default=ROWS_DEFAULT, ge=1)

    # No effect: segments are published at the end of the task, regardless of the total number of
    # rows.
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"maxTotalRows": IgnoredValue.NUMBER}

    @property
    def is_perfect(self) -> bool:
        """Rows of a key may be in several segments."""
        return False

    @property
    def rows_max(self) -> int:
        """Maximum number of rows in a segment."""
        return self.max_rows_per_segment


class HashedPartitions(SpecModel):
    """Rows by a hash of their dimensions: a fixed number of segments, or of rows per segment.

    No `partition_dimensions` means all of them.
    """

    type: Literal["hashed"] = "hashed"
    num_shards: Count | None = Field(default=None, ge=1, le=100_000)
    target_rows_per_segment: Count | None = Field(default=None, ge=1)
    partition_dimensions: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    partition_function: Annotated[Literal["murmur3_32_abs"], in_any_case("murmur3_32_abs")] = (
        "murmur3_32_abs"
    )

    repeated: ClassVar[Mapping[str, str]] = {"maxRowsPerSegment": "targetRowsPerSegment"}

    @model_validator(mode="after")
    def _check_together(self) -> HashedPartitions:
        if self.num_shards is not None and self.target_rows_per_segment is not None:
            text = "conflicts with numShards: set only one of them"
            value = self.target_rows_per_segment
            raise mistakes("HashedPartitions", [(("targetRowsPerSegment",), value, text)])
        _check_distinct(self.partition_dimensions)
        return self

    @property
    def is_perfect(self) -> bool:
        """Rows of a key are in one segment."""
        return True

    @property
    def rows_target(self) -> int:
        """Approximate number of rows in a segment, unless the number of segments is given."""
        return self.target_rows_per_segment or ROWS_DEFAULT


class SingleDimensionPartitions(SpecModel):
    """Rows by ranges of one dimension; `range` with one dimension is the same."""

    type: Literal["single_dim"] = "single_dim"
    partition_dimension: str = Field(min_length=1)
    target_rows_per_segment: Count | None = Field(default=None, ge=1)
    max_rows_per_segment: Count | None = Field(default=None, ge=1)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _GROUPED

    @model_validator(mode="after")
    def _check_together(self) -> SingleDimensionPartitions:
        _check_one_size(self.target_rows_per_segment, self.max_rows_per_segment)
        return self

    @property
    def partition_dimensions(self) -> tuple[str, ...]:
        """The one dimension."""
        return (self.partition_dimension,)

    @property
    def is_perfect(self) -> bool:
        """Rows of a key are in one segment."""
        return True

    @property
    def rows_target(self) -> int:
        """Approximate number of rows in a segment."""
        return _target(self.target_rows_per_segment, self.max_rows_per_segment)


class RangePartitions(SpecModel):
    """Rows by ranges of dimensions, compared one after the other."""

    type: Literal["range"] = "range"
    partition_dimensions: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    target_rows_per_segment: Count | None = Field(default=None, ge=1)
    max_rows_per_segment: Count | None = Field(default=None, ge=1)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _GROUPED

    @model_validator(mode="after")
    def _check_together(self) -> RangePartitions:
        _check_one_size(self.target_rows_per_segment, self.max_rows_per_segment)
        _check_distinct(self.partition_dimensions)
        return self

    @property
    def is_perfect(self) -> bool:
        """Rows of a key are in one segment."""
        return True

    @property
    def rows_target(self) -> int:
        """Approximate number of rows in a segment."""
        return _target(self.target_rows_per_segment, self.max_rows_per_segment)


PartitionsSpec = Annotated[
    DynamicPartitions | HashedPartitions | SingleDimensionPartitions | RangePartitions,
    Field(discriminator="type"),
]


def segment_rows_max(spec: PartitionsSpec) -> int:
    """Return the maximum number of rows in a segment, in Druid's terms."""
    if isinstance(spec, DynamicPartitions):
        return spec.rows_max
    if isinstance(spec, HashedPartitions):
        return spec.rows_target
    return spec.max_rows_per_segment or spec.rows_target * 3 // 2


def _check_distinct(dimensions: tuple[str, ...]) -> None:
    for number, name in enumerate(dimensions):
        if name in dimensions[:number]:
            text = f"duplicate dimension {name!r}: leave one out"
            raise mistakes("partitions", [(("partitionDimensions", number), name, text)])


def _check_one_size(target: int | None, most: int | None) -> None:
    if (target is None) == (most is None):
        text = "set exactly one of this and targetRowsPerSegment"
        raise mistakes("partitions", [(("maxRowsPerSegment",), most, text)])


def _target(target: int | None, most: int | None) -> int:
    """Return the target; for a maximum two thirds of it, because targets may be exceeded."""
    if target is not None:
        return target
    return ROWS_DEFAULT if most is None else max(1, most * 2 // 3)
