"""Native queries: the JSON forms of Druid's query types, with errors that name the place.

Owns the fields of each query type. An unknown field is refused, although Druid ignores it: a
misspelt `filter` would otherwise return other rows. Fields that concern Druid's servers have no
effect, and so have all keys of `context` that Penstock does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval, condensed
from penstock.core.similar_names import most_similar
from penstock.indexing.specs.errors import spec_error
from penstock.indexing.specs.filters import TYPES_KNOWN
from penstock.indexing.specs.rows.granularities import AnyGranularity
from penstock.indexing.specs.scalars import Count, Flag
from penstock.indexing.specs.spec_base import (
    IgnoredValue,
    SpecModel,
    as_mistake,
    mistake,
    refuse_types,
)
from penstock.services.native.aggregation_specs import Aggregation, OutputName, PostAggregation
from penstock.services.native.dimension_specs import Dimension, OutputType, search_pattern
from penstock.services.native.filter_specs import NativeFilter

DEPTH_MAX: Final = 60
"""Objects and lists within each other in a query."""
VALUES_MAX: Final = 200_000
"""Values in the JSON of a query, which take up to fifty times the memory of their text."""
INTERVALS_MAX: Final = 1_000
FIELDS_MAX: Final = 500
"""Dimensions, aggregators or columns of one query."""
LISTED_MAX: Final = 100_000
"""Values in the list of one bucket of a topN or a search, which the router holds in memory."""
SEARCHED_MAX: Final = 50
"""Columns of one search, each of which is a table of the statement."""

_ANY: Final = IgnoredValue.ANY
_JOIN: Final = "use a join in SQL"
_DATASOURCES: Final[Mapping[str, str]] = {
    "join": _JOIN,
    "lookup": "query lookup.NAME in SQL",
    "inline": "use VALUES in SQL",
    "unnest": "use explode in SQL",
    "filter": "use the filter of the query",
}


def _interval_list(value: object) -> object:
    """Return the list of intervals: Druid accepts one text, a list, or an object with a list."""
    # A tuple: the type may be anything, also what no set can have.
    if isinstance(value, dict) and value.get("type") in ("intervals", "LegacySegmentSpec"):
        value = value.get("intervals")
    elif isinstance(value, dict):
        raise mistake("only intervals are supported: segments are not chosen by queries")
    return [value] if isinstance(value, str) else value


# Times outside the calendar, such as Druid's own first and last ones and Metabase's year -5000.
_BEFORE: Final = re.compile(r"(?:-[0-9]{4,9}|0000)(?:-[^/]*)?(?=/)", re.ASCII)
_AFTER: Final = re.compile(r"(?<=/)[0-9]{5,9}(?:-[^/]*)?", re.ASCII)


def _interval(text: str) -> str:
    own = _AFTER.sub("10000-01-01", _BEFORE.sub("0001-01-01", text, count=1), count=1)
    with as_mistake():
        Interval.parse(own)
    return own


Intervals = Annotated[
    tuple[Annotated[str, AfterValidator(_interval)], ...],
    BeforeValidator(_interval_list),
    Field(min_length=1, max_length=INTERVALS_MAX),
]


class TableSourceSpec(SpecModel):
    """A datasource by its name."""

    type: Literal["table"]
    name: str = Field(min_length=1)


def _table_by_name(value: object) -> object:
    return {"type": "table", "name": value} if isinstance(value, str) else value


TableName = Annotated[TableSourceSpec, BeforeValidator(_table_by_name)]


class UnionSourceSpec(SpecModel):
    """The rows of several datasources."""

    type: Literal["union"]
    data_sources: tuple[TableName, ...] = Field(min_length=1, max_length=50)


class QuerySourceSpec(SpecModel):
    """The answer of another query."""

    type: Literal["query"]
    query: GroupByQuery


AnySource = Annotated[
    TableSourceSpec | UnionSourceSpec | QuerySourceSpec,
    Field(discriminator="type"),
    refuse_types(_DATASOURCES),
    BeforeValidator(_table_by_name),  # the last one runs first
]


class VirtualColumn(SpecModel):
    """A column that an expression computes."""

    type: Literal["expression"]
    name: OutputName
    expression: str = Field(min_length=1)
    output_type: OutputType | None = None


_VIRTUAL: Final[Mapping[str, str]] = {
    "nested-field": "use get_json_object in SQL",
    "mv-filtered": "use Spark's functions on from_json in SQL",
    "list-filtered": "use a dimension of the type listFiltered",
}


class NativeQuery(SpecModel):
    """Fields of all queries."""

    kind_field: ClassVar[str] = "query_type"

    datasource: AnySource
    intervals: Intervals = ("0001-01-01/10000-01-01",)
    filter: NativeFilter | None = None
    virtual_columns: tuple[Annotated[VirtualColumn, refuse_types(_VIRTUAL)], ...] = Field(
        default=(), max_length=FIELDS_MAX
    )
    context: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def times(self) -> list[Interval]:
        """Its intervals, in order and apart."""
        return condensed(Interval.parse(text) for text in self.intervals)

    def flag(self, name: str) -> bool:
        """Return a flag of the context, which Druid also accepts as text.

        Raises:
            InvalidRequest: It is neither true nor false.
        """
        value = self.context.get(name)
        if value in (None, False, "false"):
            return False
        if value in (True, "true"):
            return True
        raise InvalidRequest("must be true or false", place=f"context.{name}")


class _Bucketed(NativeQuery):
    """Base of queries that divide time into buckets."""

    granularity: AnyGranularity = "all"

    @property
    def buckets(self) -> Granularity:
        """The division."""
        return Granularity.parse(self.granularity)


class _Aggregating(_Bucketed):
    """Base of queries that aggregate."""

    aggregations: tuple[Aggregation, ...] = Field(default=(), max_length=FIELDS_MAX)
    post_aggregations: tuple[PostAggregation, ...] = Field(default=(), max_length=FIELDS_MAX)

    @field_validator("post_aggregations")
    @classmethod
    def _need_names(cls, value: tuple[PostAggregation, ...]) -> tuple[PostAggregation, ...]:
        for number, one in enumerate(value):
            if not one.name:
                raise mistake(f"give number {number} a name")
        return value


def _none_for_zero(value: object) -> object:
    return None if value == 0 and not isinstance(value, bool) else value


RowLimit = Annotated[
    Annotated[Count, Field(ge=1)] | None,
    BeforeValidator(_none_for_zero),
]
"""Maximum number of rows; 0 is none, as in Druid."""


class TimeseriesQuery(_Aggregating):
    """Values of each bucket of time."""

    query_type: Literal["timeseries"]
    intervals: Intervals
    descending: Flag = False
    limit: RowLimit = None


def _ordering(value: object) -> object:
    """Return the name of an ordering, which Druid also writes as an object with a type."""
    if isinstance(value, dict) and value.keys() == {"type"}:
        value = value["type"]
    if isinstance(value, str) and value.lower() in {"version", "natural"}:
        raise mistake(f"the order {value} is not supported: use lexicographic or numeric")
    return value.lower() if isinstance(value, str) else value


Ordering = Annotated[
    Literal["lexicographic", "numeric", "alphanumeric", "strlen"],
    BeforeValidator(_ordering),
]
"""Order of texts."""


def _direction(value: object) -> object:
    lower = value.lower() if isinstance(value, str) else value
    return {"asc": "ascending", "desc": "descending"}.get(str(lower), lower)


class NumericMetric(SpecModel):
    """Order by a value, the greatest first."""

    type: Literal["numeric"]
    metric: str = Field(min_length=1)


class DimensionMetric(SpecModel):
    """Order by the dimension."""

    type: Literal["dimension", "lexicographic"]
    ordering: Ordering = "lexicographic"
    previous_stop: str | None = None


class InvertedMetric(SpecModel):
    """The opposite order of another metric."""

    type: Literal["inverted"]
    metric: AnyMetric


def _metric_by_name(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "alphaNumeric":
        return {**value, "type": "dimension", "ordering": "alphanumeric"}
    return {"type": "numeric", "metric": value} if isinstance(value, str) else value


AnyMetric = Annotated[
    NumericMetric | DimensionMetric | InvertedMetric,
    Field(discriminator="type"),
    BeforeValidator(_metric_by_name),  # the last one runs first
]
InvertedMetric.model_rebuild()


class TopNQuery(_Aggregating):
    """The values of a dimension that come first, in each bucket of time."""

    query_type: Literal["topN"]
    intervals: Intervals
    dimension: Dimension
    metric: AnyMetric
    threshold: Count = Field(ge=1, le=LISTED_MAX)


class OrderColumn(SpecModel):
    """Order by a dimension or a value."""

    dimension: str = Field(min_length=1)
    direction: Annotated[Literal["ascending", "descending"], BeforeValidator(_direction)] = (
        "ascending"
    )
    dimension_order: Ordering = "lexicographic"


def _column_by_name(value: object) -> object:
    return {"dimension": value} if isinstance(value, str) else value


class DefaultLimit(SpecModel):
    """The order of the rows, and how many of them are returned."""

    type: Literal["default"]
    limit: Count | None = Field(default=None, ge=1)
    offset: Count = Field(default=0, ge=0)
    columns: tuple[Annotated[OrderColumn, BeforeValidator(_column_by_name)], ...] = Field(
        default=(), max_length=FIELDS_MAX
    )


class NoLimit(SpecModel):
    """All rows."""

    type: Literal["NoopLimitSpec"]


AnyLimit = Annotated[
    DefaultLimit | NoLimit, Field(discriminator="type"), refuse_types({}, default="default")
]


class CompareHavingSpec(SpecModel):
    """A value compared with a number."""

    type: Literal["equalTo", "greaterThan", "lessThan"]
    aggregation: str = Field(min_length=1)
    value: float | int


class DimensionHavingSpec(SpecModel):
    """A dimension with a value."""

    type: Literal["dimSelector"]
    dimension: str = Field(min_length=1)
    value: str | int | float | bool | None


class AllHavingSpec(SpecModel):
    """All or some of several conditions."""

    type: Literal["and", "or"]
    having_specs: tuple[AnyHavingSpec, ...] = Field(min_length=1, max_length=100)


class NotHavingSpec(SpecModel):
    """The opposite of a condition."""

    type: Literal["not"]
    having_spec: AnyHavingSpec


class FilterHavingSpec(SpecModel):
    """A filter over dimensions and values."""

    type: Literal["filter"]
    filter: NativeFilter

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"finalize": IgnoredValue.FLAG}


class FixedHavingSpec(SpecModel):
    """All rows or none."""

    type: Literal["always", "never"]


AnyHavingSpec = Annotated[
    CompareHavingSpec
    | DimensionHavingSpec
    | AllHavingSpec
    | NotHavingSpec
    | FilterHavingSpec
    | FixedHavingSpec,
    Field(discriminator="type"),
]
AllHavingSpec.model_rebuild()
NotHavingSpec.model_rebuild()


class GroupByQuery(_Aggregating):
    """Values of each combination of dimensions."""

    query_type: Literal["groupBy"]
    intervals: Intervals
    dimensions: tuple[Dimension, ...] = Field(default=(), max_length=FIELDS_MAX)
    having: AnyHavingSpec | None = None
    limit_spec: AnyLimit | None = None

    unsupported: ClassVar[Mapping[str, str]] = {
        "subtotalsSpec": "send a query for each subtotal, or use GROUPING SETS in SQL",
    }


QuerySourceSpec.model_rebuild()


class OrderBy(SpecModel):
    """Order of a scan by a column."""

    column_name: str = Field(min_length=1)
    order: Literal["ascending", "descending"] = "ascending"


class ScanQuery(NativeQuery):
    """Rows."""

    query_type: Literal["scan"]
    intervals: Intervals
    columns: tuple[str, ...] = Field(default=(), max_length=FIELDS_MAX)
    result_format: Literal["list", "compactedList"] = "list"
    batch_size: Annotated[Count, Field(ge=1), BeforeValidator(lambda given: given or 20_480)] = (
        20_480
    )
    limit: RowLimit = None
    offset: Count = Field(default=0, ge=0)
    order: Literal["none", "ascending", "descending"] = "none"
    order_by: tuple[OrderBy, ...] = Field(default=(), max_length=FIELDS_MAX)
    legacy: Literal[False] = False

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        "columnTypes": _ANY,
        "granularity": _ANY,
    }

    @model_validator(mode="after")
    def _check_order(self) -> ScanQuery:
        if self.order != "none" and self.order_by:
            raise mistake("set order or orderBy")
        return self


class SearchQuery(_Bucketed):
    """Values of dimensions that a search finds."""

    query_type: Literal["search"]
    intervals: Intervals
    search_dimensions: tuple[Dimension, ...] = Field(default=(), max_length=SEARCHED_MAX)
    query: dict[str, JsonValue]
    limit: Annotated[
        Count, Field(ge=1, le=LISTED_MAX), BeforeValidator(lambda given: given or 1_000)
    ] = 1_000
    sort: Ordering = "lexicographic"

    @field_validator("search_dimensions", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str | dict) else value

    @field_validator("query")
    @classmethod
    def _check_query(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        with as_mistake():
            search_pattern(value)
        return value


class TimeBoundaryQuery(NativeQuery):
    """The earliest and the latest time."""

    query_type: Literal["timeBoundary"]
    bound: Literal["minTime", "maxTime"] | None = None

    @field_validator("bound", mode="before")
    @classmethod
    def _both(cls, value: object) -> object:
        return None if value == "" else value


class DatasourceMetadataQuery(NativeQuery):
    """The time of the latest row."""

    query_type: Literal["dataSourceMetadata"]


class ColumnsToInclude(SpecModel):
    """The columns that an answer has."""

    type: Literal["all", "none", "list"]
    columns: tuple[str, ...] = Field(default=(), max_length=FIELDS_MAX)


class SegmentMetadataQuery(NativeQuery):
    """The columns of a datasource, and facts about them."""

    query_type: Literal["segmentMetadata"]
    to_include: ColumnsToInclude | None = None
    merge: Flag = False
    analysis_types: tuple[str, ...] = ("cardinality", "interval", "minmax")

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        "aggregatorMergeStrategy": _ANY,
        "lenientAggregatorMerge": _ANY,
        "usingDefaultInterval": _ANY,
    }

    @field_validator("analysis_types", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return [one.lower() for one in value]
        return value


AnyQuery = (
    TimeseriesQuery
    | TopNQuery
    | GroupByQuery
    | ScanQuery
    | SearchQuery
    | TimeBoundaryQuery
    | DatasourceMetadataQuery
    | SegmentMetadataQuery
)
QUERY_TYPES: Final[Mapping[str, type[AnyQuery]]] = {
    "timeseries": TimeseriesQuery,
    "topN": TopNQuery,
    "groupBy": GroupByQuery,
    "scan": ScanQuery,
    "search": SearchQuery,
    "timeBoundary": TimeBoundaryQuery,
    "segmentMetadata": SegmentMetadataQuery,
    "dataSourceMetadata": DatasourceMetadataQuery,
}
"""The models by the value of `queryType`."""

_REFUSED: Final[Mapping[str, str]] = {
    "select": "it was removed from Druid: use scan",
    "movingAverage": "use a window function in SQL",
    "windowOperator": "use a window function in SQL",
    "unionQuery": "use UNION ALL in SQL",
}


def parse_query(body: Mapping[str, object]) -> AnyQuery:
    """Return the query of a request.

    Raises:
        InvalidRequest: It is not valid; the message has the place of each mistake.
    """
    kind = body.get("queryType")
    if not isinstance(kind, str):
        raise InvalidRequest(f"is required, one of {', '.join(QUERY_TYPES)}", place="queryType")
    if kind in _REFUSED:
        raise InvalidRequest(
            f"the query type {kind} is not supported: {_REFUSED[kind]}", place="queryType"
        )
    # Old clients write segmentMetaData.
    name = next((one for one in QUERY_TYPES if one.lower() == kind.lower()), None)
    if name is None:
        near = most_similar(kind, QUERY_TYPES)
        hint = f'did you mean "{near}"?' if near else f"use one of {', '.join(QUERY_TYPES)}"
        raise InvalidRequest(f"unknown query type {kind!r:.40}: {hint}", place="queryType")
    _check_size(body)
    model = QUERY_TYPES[name]
    try:
        return model.model_validate({**body, "queryType": name}, context={TYPES_KNOWN: True})
    except ValidationError as error:
        raise spec_error(error, model) from None


def _check_size(body: Mapping[str, object]) -> None:
    level: list[object] = [body]
    count = 0
    for _ in range(DEPTH_MAX):
        level = [inner for one in level for inner in _contents(one)]
        if not level:
            return
        count += len(level)
        if count > VALUES_MAX:
            raise InvalidRequest(
                f"the query has more than {VALUES_MAX} values: list fewer, or join a lookup in SQL"
            )
    raise InvalidRequest(f"the query nests objects deeper than {DEPTH_MAX} levels: make it flatter")


def _contents(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
