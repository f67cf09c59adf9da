"""Filters of native queries: those of ingestion, with extraction functions and searches.

Owns the forms that ingestion lacks. `filter_sql` has the meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator

from penstock.indexing.specs.filters import (
    BoundFilter,
    ColumnComparisonFilter,
    EqualsFilter,
    ExpressionFilter,
    FalseFilter,
    InFilter,
    IntervalFilter,
    LikeFilter,
    NullFilter,
    RangeFilter,
    RegexFilter,
    SelectorFilter,
    TrueFilter,
)
from penstock.indexing.specs.spec_base import SpecModel, as_mistake, refuse_types
from penstock.services.native.dimension_specs import Extraction, search_pattern

_EXTRACTED: Final = "extracted"
"""Type that `_with_wrapped` gives to a filter with an extraction function; Druid has none."""


class SearchFilter(SpecModel):
    """A search finds the column's text."""

    type: Literal["search"]
    dimension: str = Field(min_length=1)
    query: dict[str, JsonValue]

    @field_validator("query")
    @classmethod
    def _check_query(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        with as_mistake():
            search_pattern(value)
        return value


OfOneColumn = (
    SelectorFilter
    | InFilter
    | BoundFilter
    | LikeFilter
    | RegexFilter
    | IntervalFilter
    | SearchFilter
)
"""Filters that may have an extraction function."""


class ExtractedFilter(SpecModel):
    """A filter over the result of an extraction function."""

    type: Literal["extracted"]
    filter: Annotated[OfOneColumn, Field(discriminator="type")]
    extraction_fn: Extraction


class EveryFilter(SpecModel):
    """All of the filters match."""

    type: Literal["and"]
    fields: tuple[NativeFilter, ...] = Field(min_length=1)


class SomeFilter(SpecModel):
    """At least one of the filters matches."""

    type: Literal["or"]
    fields: tuple[NativeFilter, ...] = Field(min_length=1)


class OppositeFilter(SpecModel):
    """The filter does not match."""

    type: Literal["not"]
    field: NativeFilter


_REFUSED: Final[Mapping[str, str]] = {
    "javascript": "queries cannot run code: use expression",
    "spatial": "use range on both columns",
    "extraction": "use selector with extractionFn",
    "inType": "use in",
    "arrayContainsElement": "lists are kept as JSON text: use SQL",
}


def _with_wrapped(value: object) -> object:
    """Wrap a filter that has an extraction function, so that each model has one meaning."""
    if not isinstance(value, dict):
        return value
    rest = {name: given for name, given in value.items() if name != "extractionFn"}
    if value.get("extractionFn") is None or value.get("type") == _EXTRACTED:
        return rest if value.get("type") != _EXTRACTED else {"type": "unknown"}
    return {"type": _EXTRACTED, "filter": rest, "extractionFn": value["extractionFn"]}


NativeFilter = Annotated[
    SelectorFilter
    | EqualsFilter
    | NullFilter
    | InFilter
    | BoundFilter
    | RangeFilter
    | LikeFilter
    | RegexFilter
    | IntervalFilter
    | SearchFilter
    | ColumnComparisonFilter
    | ExpressionFilter
    | TrueFilter
    | FalseFilter
    | ExtractedFilter
    | EveryFilter
    | SomeFilter
    | OppositeFilter,
    Field(discriminator="type"),
    refuse_types(_REFUSED),
    BeforeValidator(_with_wrapped),  # the last one runs first
]
"""A filter of a native query."""

EveryFilter.model_rebuild()
SomeFilter.model_rebuild()
OppositeFilter.model_rebuild()
