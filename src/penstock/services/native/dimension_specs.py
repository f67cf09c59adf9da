"""Dimensions of native queries, and the functions that extract their values: the JSON forms.

Owns only the form; `dimension_sql` has the meaning. A dimension may be the name of a column alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.rows.granularities import AnyGranularity
from penstock.indexing.specs.scalars import Count, Flag, in_any_case
from penstock.indexing.specs.spec_base import (
    IgnoredValue,
    SpecModel,
    as_mistake,
    mistake,
    refuse_types,
)

_CONTAINS: Final = frozenset({"contains", "insensitive_contains"})
LOOKUP_ENTRIES_MAX: Final = 1_000
"""Entries of a map of values in a query: Spark compares a value with each."""

_PATTERN_MAX: Final = 10_000

OutputType = Annotated[
    Literal["STRING", "LONG", "FLOAT", "DOUBLE"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]
_MISSING: Final[Mapping[str, IgnoredValue]] = {
    "injective": IgnoredValue.ANY,
    "optimize": IgnoredValue.ANY,
    "isOneToOne": IgnoredValue.ANY,
}


def search_pattern(query: object) -> list[str]:
    """Return the regular expressions of Java that a text must match for a search to find it.

    Args:
        query: The JSON of the search: what Druid calls a search query spec.

    Raises:
        InvalidRequest: It is not one.
    """
    kind = query.get("type") if isinstance(query, dict) else None
    if not isinstance(query, dict) or not isinstance(kind, str):
        raise InvalidRequest('must be an object such as {"type": "contains", "value": "text"}')
    if kind == "all":
        return []
    is_exact = kind != "insensitive_contains" and query.get("caseSensitive") in (True, "true")
    values = query.get("values") if kind == "fragment" else [query.get("value")]
    if kind == "regex":
        values = [query.get("pattern")]
    if kind not in _CONTAINS | {"fragment", "regex"}:
        raise InvalidRequest(
            f"{kind!r:.40} is not one of contains, insensitive_contains, fragment, regex, all"
        )
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise InvalidRequest(f"a search of the type {kind} needs texts")
    if kind == "regex":
        return list(values)
    return [("" if is_exact else "(?iu)") + _exactly(one) for one in values]


def _exactly(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


class MapLookup(SpecModel):
    """Values by values, written in the query."""

    type: Literal["map"]
    map: dict[str, str] = Field(max_length=LOOKUP_ENTRIES_MAX)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _MISSING


_LOOKUPS: Final = {"registeredLookup": "use the extraction function registeredLookup"}
AnyLookup = Annotated[MapLookup, refuse_types(_LOOKUPS, default="map")]


class RegexExtraction(SpecModel):
    """A group of a regular expression of Java."""

    type: Literal["regex"]
    expr: str = Field(min_length=1, max_length=_PATTERN_MAX)
    index: Count = Field(default=1, ge=0, le=100)
    replace_missing_value: Flag = False
    replace_missing_value_with: str | None = None


class PartialExtraction(SpecModel):
    """The value if a part of it matches a regular expression, otherwise null."""

    type: Literal["partial"]
    expr: str = Field(min_length=1, max_length=_PATTERN_MAX)


class SearchExtraction(SpecModel):
    """The value if a search finds it, otherwise null."""

    type: Literal["searchQuery"]
    query: dict[str, JsonValue]

    @field_validator("query")
    @classmethod
    def _check_query(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        with as_mistake():
            search_pattern(value)
        return value


class SubstringExtraction(SpecModel):
    """A part of the text, from an index that counts from 0."""

    type: Literal["substring"]
    index: Count = Field(ge=0, le=2**31 - 2)
    length: Count | None = Field(default=None, ge=1, le=2**31 - 1)


class PlainExtraction(SpecModel):
    """The length, the text in upper or lower case, or the text itself."""

    type: Literal["strlen", "upper", "lower", "identity"]

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"locale": IgnoredValue.ANY}


class TimeFormatExtraction(SpecModel):
    """A time in a format of Joda."""

    type: Literal["timeFormat"]
    format: str | None = None
    time_zone: str | None = None
    locale: Annotated[Literal["en", "en-us", "en-gb"], in_any_case("en", "en-us", "en-gb")] = "en"
    granularity: AnyGranularity | None = None
    as_millis: Flag = False


class LookupExtraction(SpecModel):
    """The value that a map has for the value."""

    type: Literal["lookup"]
    lookup: AnyLookup
    retain_missing_value: Flag = False
    replace_missing_value_with: str | None = None

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _MISSING


class RegisteredLookupExtraction(SpecModel):
    """The value that a lookup of the installation has for the value."""

    type: Literal["registeredLookup"]
    lookup: str = Field(min_length=1)
    retain_missing_value: Flag = False
    replace_missing_value_with: str | None = None

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _MISSING


class BucketExtraction(SpecModel):
    """The start of the bucket of a number."""

    type: Literal["bucket"]
    size: float = Field(default=1, gt=0)
    offset: float = 0


class CascadeExtraction(SpecModel):
    """Functions that are applied one after the other."""

    type: Literal["cascade"]
    extraction_fns: tuple[Extraction, ...] = Field(min_length=1, max_length=10)


_REFUSED: Final = {
    "javascript": "queries cannot run code: use a virtual column",
    "stringFormat": "use a virtual column with concat",
    "time": "use a virtual column with timestamp_parse and timestamp_format",
}
Extraction = Annotated[
    RegexExtraction
    | PartialExtraction
    | SearchExtraction
    | SubstringExtraction
    | PlainExtraction
    | TimeFormatExtraction
    | LookupExtraction
    | RegisteredLookupExtraction
    | BucketExtraction
    | CascadeExtraction,
    Field(discriminator="type"),
    refuse_types(_REFUSED),
]
CascadeExtraction.model_rebuild()


class _NamedDimension(SpecModel):
    """Base of dimensions that read a column."""

    dimension: str = Field(min_length=1)
    output_name: str | None = Field(default=None, min_length=1)
    output_type: OutputType = "STRING"

    @property
    def name(self) -> str:
        """The name of its values in the answer."""
        return self.output_name or self.dimension


class DefaultDimension(_NamedDimension):
    """The values of a column."""

    type: Literal["default"] = "default"


class ExtractionDimension(_NamedDimension):
    """The values of a column after a function."""

    type: Literal["extraction"]
    extraction_fn: Extraction


class LookupDimension(_NamedDimension):
    """The values that a map has for the values of a column; `registered` names a lookup."""

    type: Literal["lookup"]
    lookup: AnyLookup | None = None
    registered: str | None = Field(default=None, alias="name", min_length=1)
    retain_missing_value: Flag = False
    replace_missing_value_with: str | None = None

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _MISSING

    @model_validator(mode="after")
    def _check_one(self) -> LookupDimension:
        if (self.lookup is None) == (self.registered is None):
            raise mistake("set either lookup, a map, or name, which a lookup has")
        return self


class FilteredDimension(SpecModel):
    """The values of another dimension that pass a condition; the others become null."""

    type: Literal["listFiltered", "regexFiltered", "prefixFiltered"]
    delegate: Dimension
    values: tuple[str, ...] | None = Field(default=None, max_length=10_000)
    is_whitelist: Flag = True
    pattern: str | None = Field(default=None, min_length=1, max_length=_PATTERN_MAX)
    prefix: str | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> FilteredDimension:
        needed = {"listFiltered": "values", "regexFiltered": "pattern", "prefixFiltered": "prefix"}
        if getattr(self, needed[self.type]) is None:
            raise mistake(f"{self.type} needs {needed[self.type]}")
        return self

    @property
    def name(self) -> str:
        """The name of its values in the answer."""
        return self.delegate.name


def _by_name(value: object) -> object:
    if isinstance(value, str):
        return {"type": "default", "dimension": value}
    if isinstance(value, dict) and "type" not in value:
        return {**value, "type": "default"}
    return value


Dimension = Annotated[
    DefaultDimension | ExtractionDimension | LookupDimension | FilteredDimension,
    Field(discriminator="type"),
    BeforeValidator(_by_name),
]
FilteredDimension.model_rebuild()
