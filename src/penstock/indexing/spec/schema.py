"""What the rows of a datasource look like: time, dimensions, metrics, granularity, transforms.

The models take Druid's JSON (``spec.dataSchema``). The engine reads them through the properties of
`DataSchema`, which are resolved and checked. Owns no parsing of rows and nothing of where they come
from.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, parse_time
from penstock.core.sqltext import check_expression
from penstock.indexing.spec.aggregators import Aggregator
from penstock.indexing.spec.filters import Filter
from penstock.indexing.spec.model import SpecModel, mistake, mistakes
from penstock.indexing.spec.scalars import (
    ColumnName,
    DatasourceName,
    GranularityText,
    IntervalText,
)

DimensionType = Literal["string", "long", "float", "double", "json", "auto"]
TimestampFormat = Literal["auto", "iso", "posix", "millis", "micro", "nano"]

_SAMPLE_STEP_MS: Final = 13 * 3_600_000
_SAMPLE_START_MS: Final = 1_703_030_400_000  # 2023-12-20, then past a leap day and two new years
_SAMPLES: Final = 800


def _check_expression(text: str) -> str:
    try:
        check_expression(text)
    except InvalidRequest as error:
        raise mistake(str(error)) from error
    return text


class TimestampSpec(SpecModel):
    """Where a row's time is, and how it is written."""

    column: str = Field(default="timestamp", min_length=1)
    format: TimestampFormat = "auto"
    missing_value: str | None = None

    @field_validator("format", mode="before")
    @classmethod
    def _refuse_patterns(cls, value: object) -> object:
        if isinstance(value, str) and re.search(r"y{2,}|M{2,}|d{2}|H{2}", value):
            raise mistake(
                f"the date pattern {value!r} is not supported yet:"
                " send ISO 8601 text (iso) or a number (posix, millis, micro, nano)"
            )
        return value

    @field_validator("missing_value")
    @classmethod
    def _check_missing_value(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_time(value)
            except InvalidRequest as error:
                raise mistake(str(error)) from error
        return value

    @property
    def missing_value_ms(self) -> int | None:
        """The time of rows that have none, or None: such rows are unparseable."""
        return None if self.missing_value is None else parse_time(self.missing_value)


class Dimension(SpecModel):
    """A column as it was sent. `auto` and `json` are kept as text; nested values as JSON text."""

    name: ColumnName
    type: DimensionType = "string"

    unsupported: ClassVar[Mapping[str, str]] = {
        "multiValueHandling": "a list in a string dimension is kept as its JSON text",
        "maxStringLength": "shorten the value with a transform",
    }
    without_effect: ClassVar[frozenset[str]] = frozenset({"createBitmapIndex"})


def _named(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class DimensionsSpec(SpecModel):
    """The dimensions in the order in which rows are sorted, after the time."""

    dimensions: tuple[Annotated[Dimension, BeforeValidator(_named)], ...] = ()
    dimension_exclusions: tuple[str, ...] = ()
    include_all_dimensions: Literal[False] = False
    use_schema_discovery: Literal[False] = False
    force_segment_sort_by_time: Literal[True] = True

    unsupported: ClassVar[Mapping[str, str]] = {"spatialDimensions": "use two double dimensions"}

    @field_validator("dimensions")
    @classmethod
    def _need_dimensions(cls, value: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
        if not value:
            raise mistake("list the dimensions: finding them in the data is not supported yet")
        return value

    @field_validator("dimension_exclusions")
    @classmethod
    def _refuse_exclusions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            raise mistake(
                "leave it out: it has a meaning only when dimensions are found in the data,"
                " which is not supported yet"
            )
        return value


class GranularitySpec(SpecModel):
    """The time chunks, the precision of the time, and whether equal rows become one."""

    type: Literal["uniform"] = "uniform"
    segment_granularity: GranularityText = "day"
    query_granularity: GranularityText = "none"
    rollup: bool = True
    intervals: tuple[IntervalText, ...] | None = None

    @model_validator(mode="after")
    def _check_nesting(self) -> GranularitySpec:
        segment = Granularity.parse(self.segment_granularity)
        query = Granularity.parse(self.query_granularity)
        found: list[tuple[tuple[str | int, ...], object, str]] = []
        if segment == Granularity.parse("none"):
            text = "none would make a segment for each millisecond: choose an hour or more"
            found.append((("segmentGranularity",), self.segment_granularity, text))
        elif not _nests(query, segment):
            text = (
                f"{self.query_granularity} does not fit into the segment granularity"
                f" {self.segment_granularity}: choose a finer one"
            )
            found.append((("queryGranularity",), self.query_granularity, text))
        if found:
            raise mistakes("GranularitySpec", found)
        return self


def _nests(inner: Granularity, outer: Granularity) -> bool:
    """Whether each bucket of `inner` lies in one of `outer`; judged on a year of samples."""
    for step in range(_SAMPLES):
        ms = _SAMPLE_START_MS + step * _SAMPLE_STEP_MS
        small, large = inner.bucket(ms), outer.bucket(ms)
        if small.start_ms < large.start_ms or small.end_ms > large.end_ms:
            return False
    return True


class Transform(SpecModel):
    """A column computed from the others: an expression in Spark SQL, double quotes for names."""

    type: Literal["expression"] = "expression"
    name: Annotated[str, Field(min_length=1)]
    expression: Annotated[str, Field(min_length=1), AfterValidator(_check_expression)]


class TransformSpec(SpecModel):
    """Columns to compute, then the rows to keep."""

    transforms: tuple[Transform, ...] = ()
    filter: Filter | None = None


def _place(steps: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in steps).replace(".name", "")


class DataSchema(SpecModel):
    """The whole schema of a datasource."""

    data_source: DatasourceName
    timestamp_spec: TimestampSpec = TimestampSpec()
    dimensions_spec: DimensionsSpec
    metrics_spec: tuple[Aggregator, ...] = ()
    granularity_spec: GranularitySpec = GranularitySpec()
    transform_spec: TransformSpec = TransformSpec()

    unsupported: ClassVar[Mapping[str, str]] = {
        "projections": "roll up in a second datasource",
        "parser": "use timestampSpec, dimensionsSpec and ioConfig.inputFormat",
    }

    @model_validator(mode="after")
    def _check_names(self) -> DataSchema:
        found: list[tuple[tuple[str | int, ...], object, str]] = []
        named: list[tuple[tuple[str | int, ...], str]] = [
            (("dimensionsSpec", "dimensions", i, "name"), d.name)
            for i, d in enumerate(self.dimensions)
        ]
        named += [(("metricsSpec", i, "name"), m.name) for i, m in enumerate(self.metrics)]
        # SQL folds case, so names must differ in more than that.
        seen: dict[str, str] = {}
        for place, name in named:
            first = seen.setdefault(name.lower(), place_text := _place(place))
            if first != place_text:
                found.append((place, name, f"the column {name!r} is there already, at {first}"))
        computed: set[str] = set()
        for i, transform in enumerate(self.transforms):
            if transform.name in computed:
                where = ("transformSpec", "transforms", i, "name")
                found.append((where, transform.name, f"{transform.name!r} is computed twice"))
            computed.add(transform.name)
        if found:
            raise mistakes("DataSchema", found)
        return self

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions in sort order."""
        return self.dimensions_spec.dimensions

    @property
    def metrics(self) -> tuple[Aggregator, ...]:
        """The metric columns."""
        return self.metrics_spec

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The computed columns, in order."""
        return self.transform_spec.transforms

    @property
    def filter(self) -> Filter | None:
        """What a row must meet to be kept, or None."""
        return self.transform_spec.filter

    @property
    def rollup(self) -> bool:
        """Whether rows of equal time and dimensions become one."""
        return self.granularity_spec.rollup

    @functools.cached_property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return Granularity.parse(self.granularity_spec.segment_granularity)

    @functools.cached_property
    def query_granularity(self) -> Granularity:
        """What times are truncated to."""
        return Granularity.parse(self.granularity_spec.query_granularity)
