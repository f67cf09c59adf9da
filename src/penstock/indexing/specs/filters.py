"""Row filters in Druid's JSON: the conditions for rows to be kept.

Owns only their form; the engine implements them. Values are data and are bound, never made part of
an expression's text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from penstock.core.intervals import Interval
from penstock.indexing.specs.druid_expressions import as_spark_sql
from penstock.indexing.specs.scalars import Flag, IntervalText, in_any_case
from penstock.indexing.specs.spec_base import SpecModel, as_mistake, mistake, refuse_types


def _name_of(value: object) -> object:
    """Return the name of an ordering, which Druid also writes as an object with a type."""
    return value["type"] if isinstance(value, dict) and value.keys() == {"type"} else value


Scalar = str | int | float | bool
# Druid's types are upper case.
MatchType = Annotated[
    Literal["string", "long", "float", "double"],
    in_any_case("string", "long", "float", "double"),
]
Ordering = Annotated[
    Literal["lexicographic", "numeric"],
    in_any_case("lexicographic", "numeric"),
    BeforeValidator(_name_of),  # the last one runs first
]

FILTER_LEVELS_MAX: Final = 24
"""Maximum depth of nested filters; an `and` of many counts as the joins of two that it becomes."""

TYPES_KNOWN: Final = "typesKnown"
"""Key of a validation's context: expressions are checked later, with the types of their columns."""

_PATTERN_LENGTH_MAX: Final = 10_000

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
    """The column is between bounds, compared as text or as numbers."""

    type: Literal["bound"]
    dimension: str = Field(min_length=1)
    lower: Scalar | None = None
    upper: Scalar | None = None
    lower_strict: Flag = False
    upper_strict: Flag = False
    ordering: Ordering = "lexicographic"

    unsupported: ClassVar[Mapping[str, str]] = {
        **_NO_EXTRACTION,
        "alphaNumeric": 'it was removed from Druid: use "ordering": "numeric"',
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"alphaNumeric": False}

    @model_validator(mode="after")
    def _need_a_bound(self) -> BoundFilter:
        if self.lower is None and self.upper is None:
            raise mistake("set lower, upper or both")
        return self


class RangeFilter(SpecModel):
    """The column is between bounds, compared as the given type."""

    type: Literal["range"]
    column: str = Field(min_length=1)
    match_value_type: MatchType
    lower: Scalar | None = None
    upper: Scalar | None = None
    lower_open: Flag = False
    upper_open: Flag = False

    @model_validator(mode="after")
    def _need_a_bound(self) -> RangeFilter:
        if self.lower is None and self.upper is None:
            raise mistake("set lower, upper or both")
        return self


class LikeFilter(SpecModel):
    """The column's text matches a pattern: `%` is any text, `_` any character."""

    type: Literal["like"]
    dimension: str = Field(min_length=1)
    pattern: str = Field(max_length=_PATTERN_LENGTH_MAX)
    escape: str | None = Field(default=None, min_length=1, max_length=1)

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION


class RegexFilter(SpecModel):
    """A part of the column's text matches a regular expression of Java."""

    type: Literal["regex"]
    dimension: str = Field(min_length=1)
    pattern: str = Field(min_length=1, max_length=_PATTERN_LENGTH_MAX)

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION


class IntervalFilter(SpecModel):
    """The column, the time or milliseconds, is in one of the intervals."""

    type: Literal["interval"]
    dimension: str = Field(min_length=1)
    intervals: tuple[IntervalText, ...] = Field(min_length=1)

    unsupported: ClassVar[Mapping[str, str]] = _NO_EXTRACTION

    @property
    def times(self) -> tuple[Interval, ...]:
        """The intervals."""
        return tuple(Interval.parse(text) for text in self.intervals)


class ColumnComparisonFilter(SpecModel):
    """The columns' texts are all the same."""

    type: Literal["columnComparison"]
    dimensions: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=2)

    @field_validator("dimensions", mode="before")
    @classmethod
    def _names_only(cls, value: object) -> object:
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            raise mistake("name the columns as text: dimension objects are not supported")
        return value


class ExpressionFilter(SpecModel):
    """The expression is true."""

    type: Literal["expression"]
    expression: Annotated[str, Field(min_length=1)]

    @field_validator("expression")
    @classmethod
    def _check_expression(cls, text: str, info: ValidationInfo) -> str:
        if not (info.context or {}).get(TYPES_KNOWN):
            with as_mistake():
                as_spark_sql(text, condition=True)
        return text

    @property
    def sql(self) -> str:
        """The expression in Spark SQL."""
        return as_spark_sql(self.expression, condition=True)


class TrueFilter(SpecModel):
    """Every row."""

    type: Literal["true"]


class FalseFilter(SpecModel):
    """No row."""

    type: Literal["false"]


class NestingFilter(SpecModel):
    """Base of filters that consist of other filters: limits their depth."""

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.levels > FILTER_LEVELS_MAX:
            raise mistake(
                f"nests filters deeper than {FILTER_LEVELS_MAX} levels, the limit of a Spark plan:"
                " make it flatter, or write one expression"
            )
        return self

    @property
    def levels(self) -> int:
        """The depth of the filter in a plan."""
        # Conditions are joined in pairs, pairs in pairs, and so on.
        joins = max(1, (len(self.parts) - 1).bit_length())
        inner = (one.levels for one in self.parts if isinstance(one, NestingFilter))
        return joins + max(inner, default=0)

    @property
    @abstractmethod
    def parts(self) -> tuple[Filter, ...]:
        """The filters that it consists of."""


class AndFilter(NestingFilter):
    """All of the filters match."""

    type: Literal["and"]
    fields: tuple[Filter, ...] = Field(min_length=1)

    @property
    def parts(self) -> tuple[Filter, ...]:
        """All of them."""
        return self.fields


class OrFilter(NestingFilter):
    """At least one of the filters matches."""

    type: Literal["or"]
    fields: tuple[Filter, ...] = Field(min_length=1)

    @property
    def parts(self) -> tuple[Filter, ...]:
        """All of them."""
        return self.fields


class NotFilter(NestingFilter):
    """The filter does not match."""

    type: Literal["not"]
    field: Filter

    @property
    def parts(self) -> tuple[Filter, ...]:
        """The one."""
        return (self.field,)


_REFUSED: Final[Mapping[str, str]] = {
    "javascript": "specs cannot run code: use expression",
    "search": "use like or regex",
    "spatial": "use range on both columns",
    "extraction": "use expression",
    "inType": "use in",
    "arrayContainsElement": "lists are kept as JSON text: use expression",
}

Filter = Annotated[
    SelectorFilter
    | EqualsFilter
    | NullFilter
    | InFilter
    | BoundFilter
    | RangeFilter
    | LikeFilter
    | RegexFilter
    | IntervalFilter
    | ColumnComparisonFilter
    | ExpressionFilter
    | TrueFilter
    | FalseFilter
    | AndFilter
    | OrFilter
    | NotFilter,
    Field(discriminator="type"),
    refuse_types(_REFUSED),
]

AndFilter.model_rebuild()
OrFilter.model_rebuild()
NotFilter.model_rebuild()
