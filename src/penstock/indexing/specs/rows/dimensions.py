"""Columns that are stored as they were sent: ``dimensionsSpec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from penstock.indexing.specs.scalars import ColumnName, Count, Flag
from penstock.indexing.specs.spec_base import Found, SpecModel, mistakes

# A file has statistics of each column; no table is intentionally that wide.
COLUMNS_MAX: Final = 10_000
_CHARACTERS_MAX: Final = 2**31 - 1  # limit of text in Spark and Java

DimensionType = Literal["string", "long", "float", "double", "json", "auto"]


class Dimension(SpecModel):
    """A column as it was sent. `auto` and `json` are stored as text; nested values as JSON text.

    With `sorted_array` the values of a list, even if it is JSON text, are sorted; with `sorted_set`
    duplicates are also removed.
    Text longer than `max_string_length` is cut to that number of characters, except text in
    brackets, such as a list, which would then be invalid.
    With `create_bitmap_index`, files have a Bloom filter of the values if there are many different
    ones, so that a search for one of them reads few files. Text has it by default; numbers of type
    `long` can have it.
    """

    name: ColumnName
    type: DimensionType = "string"
    multi_value_handling: Literal["array", "sorted_array", "sorted_set"] | None = None
    # Left out if not set: names of streaming tasks are derived from the JSON of the schema.
    max_string_length: Count | None = Field(
        default=None, ge=1, le=_CHARACTERS_MAX, exclude_if=lambda value: value is None
    )

    # Left out if not set, too.
    create_bitmap_index: Flag | None = Field(default=None, exclude_if=lambda value: value is None)

    @field_validator("multi_value_handling", mode="before")
    @classmethod
    def _fold_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_text(self) -> Dimension:
        if self.type == "string":
            return self
        found: Found = []
        if self.has_sets:
            text = f"only string dimensions have sets, not {self.type}: leave it out"
            found.append((("multiValueHandling",), self.multi_value_handling, text))
        if self.max_string_length is not None:
            text = f"only text has a length, not {self.type}: leave it out"
            found.append((("maxStringLength",), self.max_string_length, text))
        if found:
            raise mistakes("Dimension", found)
        if self.multi_value_handling != "sorted_array":
            return self
        # Druid writes it for every column, but it only applies to text.
        return self.model_copy(update={"multi_value_handling": None})

    @model_validator(mode="after")
    def _leave_out_default(self) -> Dimension:
        # Druid writes it for every column, and names of streaming tasks depend on the schema.
        if self.create_bitmap_index is (self.type == "string"):
            return self.model_copy(update={"create_bitmap_index": None})
        return self

    @property
    def has_value_index(self) -> bool:
        """Whether files have an index of its values: text unless forbidden, numbers if asked."""
        if self.type == "string":
            return self.create_bitmap_index is None
        return self.type == "long" and self.create_bitmap_index is True

    @property
    def has_sets(self) -> bool:
        """Whether lists are sorted and have no duplicates."""
        return self.multi_value_handling == "sorted_set"

    @property
    def orders_lists(self) -> bool:
        """Whether the values of lists are sorted."""
        return self.multi_value_handling in {"sorted_array", "sorted_set"}


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class DimensionsSpec(SpecModel):
    """The dimensions in the order in which rows are sorted, after the time.

    If it is empty, or with `include_all_dimensions`, every other column of the data becomes one:
    text, or with `use_schema_discovery` the type of its values.
    """

    dimensions: tuple[Annotated[Dimension, BeforeValidator(_named)], ...] = Field(
        default=(), max_length=COLUMNS_MAX
    )
    dimension_exclusions: tuple[str, ...] = ()
    include_all_dimensions: Flag = False
    use_schema_discovery: Flag = False
    force_segment_sort_by_time: Flag = True

    unsupported: ClassVar[Mapping[str, str]] = {"spatialDimensions": "use two double dimensions"}

    @model_validator(mode="after")
    def _check_exclusions(self) -> DimensionsSpec:
        found: Found = []
        if self.dimension_exclusions and not self.discovers:
            text = (
                "applies only if dimensions are discovered in the data:"
                " leave it out, or set includeAllDimensions"
            )
            found.append((("dimensionExclusions",), list(self.dimension_exclusions), text))
        names = {dimension.name for dimension in self.dimensions}
        for number, name in enumerate(self.dimension_exclusions):
            if name in names:
                text = f"{name!r} is also a dimension: remove it from one of the two"
                found.append((("dimensionExclusions", number), name, text))
        if found:
            raise mistakes("DimensionsSpec", found)
        return self

    @property
    def discovers(self) -> bool:
        """Whether dimensions are discovered in the data."""
        return self.include_all_dimensions or self.use_schema_discovery or not self.dimensions

    @property
    def discovers_types(self) -> bool:
        """Whether discovered dimensions get the type of their values; otherwise text."""
        return self.use_schema_discovery
