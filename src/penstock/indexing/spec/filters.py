"""Row filters in Druid's JSON: what a row must meet to be kept.

The shapes only; the engine gives them their meaning. Values are data and are bound, never made part
of an expression's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from penstock.indexing.spec.model import SpecModel, mistake

Scalar = str | int | float | bool
MatchType = Literal["string", "long", "float", "double"]

_NO_EXTRACTION = {"extractionFn": "compute the column with a transform and filter on that"}


class SelectorFilter(SpecModel):
    """The column's text equals the value; a null value means that it is missing."""

    type: Literal["selector"]
    dimension: str = Field(min_length=1)
    value: Scalar | None

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION


class EqualsFilter(SpecModel):
    """The column equals the value, compared as the given type."""

    type: Literal["equals"]
    column: str = Field(min_length=1)
    match_value_type: MatchType = "string"
    match_value: Scalar


class NullFilter(SpecModel):
    """The column is missing."""

    type: Literal["null"]
    column: str = Field(min_length=1)


class InFilter(SpecModel):
    """The column's text is one of the values."""

    type: Literal["in"]
    dimension: str = Field(min_length=1)
    values: tuple[Scalar | None, ...]

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION


class BoundFilter(SpecModel):
    """The column lies between bounds, compared as text or as numbers."""

    type: Literal["bound"]
    dimension: str = Field(min_length=1)
    lower: Scalar | None = None
    upper: Scalar | None = None
    lower_strict: bool = False
    upper_strict: bool = False
    ordering: Literal["lexicographic", "numeric"] = "lexicographic"

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION

    @model_validator(mode="after")
    def _need_a_bound(self) -> BoundFilter:
        if self.lower is None and self.upper is None:
            raise mistake("give lower, upper or both")
        return self


class RangeFilter(SpecModel):
    """The column lies between bounds, compared as the given type."""

    type: Literal["range"]
    column: str = Field(min_length=1)
    match_value_type: MatchType
    lower: Scalar | None = None
    upper: Scalar | None = None
    lower_open: bool = False
    upper_open: bool = False

    @model_validator(mode="after")
    def _need_a_bound(self) -> RangeFilter:
        if self.lower is None and self.upper is None:
            raise mistake("give lower, upper or both")
        return self


class AndFilter(SpecModel):
    """All of the filters hold."""

    type: Literal["and"]
    fields: tuple[Filter, ...] = Field(min_length=1)


class OrFilter(SpecModel):
    """At least one of the filters holds."""

    type: Literal["or"]
    fields: tuple[Filter, ...] = Field(min_length=1)


class NotFilter(SpecModel):
    """The filter does not hold."""

    type: Literal["not"]
    field: Filter


Filter = Annotated[
    SelectorFilter
    | EqualsFilter
    | NullFilter
    | InFilter
    | BoundFilter
    | RangeFilter
    | AndFilter
    | OrFilter
    | NotFilter,
    Field(discriminator="type"),
]

AndFilter.model_rebuild()
OrFilter.model_rebuild()
NotFilter.model_rebuild()
