"""Data schema of a datasource: timestamp, dimensions, metrics, granularity and transforms.

The models accept Druid's JSON (``spec.dataSchema``, with ``timestampSpec`` for the column and
format of a row's time: a format name or a Joda pattern). Engines read them through the
properties of `DataSchema`, which are resolved and validated. Does not own the parsing of rows
or the input source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from penstock.core.column_case import case_variants_in
from penstock.core.intervals import Granularity, parse_time
from penstock.core.time_patterns import TimePattern
from penstock.indexing.specs.aggregators import Aggregator, field_of
from penstock.indexing.specs.druid_expressions import as_spark_sql
from penstock.indexing.specs.errors import did_you_mean
from penstock.indexing.specs.filters import Filter
from penstock.indexing.specs.rows.dimensions import Dimension, DimensionsSpec
from penstock.indexing.specs.rows.granularities import GranularitySpec, granularity_json
from penstock.indexing.specs.rows.projections import BaseColumns, Projections, projection_mistakes
from penstock.indexing.specs.scalars import (
    TIME_COLUMN,
    ComputedName,
    ExpressionText,
    TableName,
)
from penstock.indexing.specs.spec_base import Found, SpecModel, as_mistake, mistake, mistakes

FORMATS: Final = ("auto", "iso", "posix", "millis", "micro", "nano")
# Other values of this form are misspelt names; patterns contain a year.
_PATTERN_LIKE: Final = re.compile(r"[yYx]{2}|[^A-Za-z]|^[yY]")


class TimestampSpec(SpecModel):
    """The field of a row's time, and its format: a name, or a pattern of Joda."""

    column: str = Field(default="timestamp", min_length=1)
    format: str = "auto"
    missing_value: str | None = None

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str) -> str:
        if value.lower() in FORMATS:  # Druid ignores their case
            return value.lower()
        if not _PATTERN_LIKE.search(value):
            names = f"{value!r} is not one of {', '.join(FORMATS)}, nor a pattern with a year"
            raise mistake(names + (did_you_mean(value, list(FORMATS), or_all=False)))
        with as_mistake():
            TimePattern.compile(value)
        return value

    @field_validator("missing_value")
    @classmethod
    def _check_missing_value(cls, value: str | None) -> str | None:
        if value is not None:
            with as_mistake():
                parse_time(value)
        return value

    @property
    def missing_value_ms(self) -> int | None:
        """The time of rows without one; None: such rows are unparseable."""
        return None if self.missing_value is None else parse_time(self.missing_value)

    @functools.cached_property
    def pattern(self) -> TimePattern | None:
        """The pattern, if the format is one."""
        return None if self.format in FORMATS else TimePattern.compile(self.format)


_DISCOVERING: Final = ("includeAllDimensions", "useSchemaDiscovery")


class Transform(SpecModel):
    """A column computed from the others: an expression in Spark SQL or in Druid's language.

    Names are in double quotes, text in single ones.
    """

    type: Literal["expression"] = "expression"
    name: ComputedName
    expression: ExpressionText

    @property
    def sql(self) -> str:
        """The expression in Spark SQL."""
        return as_spark_sql(self.expression)


class TransformSpec(SpecModel):
    """Columns to compute, then the rows to keep."""

    transforms: tuple[Transform, ...] = ()
    filter: Filter | None = None


def _place(steps: tuple[str | int, ...]) -> str:
    """Return the place where a column is named, in the form of places of mistakes."""
    return ".".join(str(step) for step in steps[:-2]) + f"[{steps[-2]}]"


def _elsewhere(schema: dict[str, object]) -> set[str]:
    """Return the columns of rows that are not dimensions: the time, and the inputs of metrics."""
    time, metrics = schema.get("timestampSpec"), schema.get("metricsSpec")
    column = time.get("column") if isinstance(time, dict) else None
    names: list[object] = [TIME_COLUMN, column or TimestampSpec().column]
    for metric in metrics if isinstance(metrics, list | tuple) else ():
        if isinstance(metric, dict):
            names += [metric.get(field) for field in ("name", "fieldName", "timeColumn")]
            if isinstance(fields := metric.get("fields"), list):
                names += map(field_of, fields)
    return {name for name in names if isinstance(name, str)}


class DataSchema(SpecModel):
    """The whole schema of a datasource."""

    datasource: TableName
    timestamp_spec: TimestampSpec = TimestampSpec()
    dimensions_spec: DimensionsSpec
    metrics_spec: tuple[Aggregator, ...] = ()
    granularity_spec: GranularitySpec = GranularitySpec()
    transform_spec: TransformSpec = TransformSpec()
    projections: Projections = ()

    unsupported: ClassVar[Mapping[str, str]] = {
        "parser": "use timestampSpec, dimensionsSpec and ioConfig.inputFormat",
    }

    @model_validator(mode="before")
    @classmethod
    def _without_exclusions_of_its_own(cls, data: object) -> object:
        """Drop the exclusions that Druid adds if dimensions are listed: they exclude nothing."""
        dimensions = data.get("dimensionsSpec") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(dimensions, dict):
            return data
        excluded = dimensions.get("dimensionExclusions")
        found = any(dimensions.get(name) for name in _DISCOVERING)
        if found or not dimensions.get("dimensions") or not isinstance(excluded, list):
            return data
        if not all(isinstance(name, str) for name in excluded) or set(excluded) - _elsewhere(data):
            return data
        return data | {"dimensionsSpec": dimensions | {"dimensionExclusions": []}}

    @model_validator(mode="after")
    def _check_together(self) -> DataSchema:
        if found := [*self._mistakes_in_names(), *self._mistakes_in_projections()]:
            raise mistakes("DataSchema", found)
        return self

    def _mistakes_in_names(self) -> Found:
        found: Found = []
        named: list[tuple[tuple[str | int, ...], str]] = [
            (("dimensionsSpec", "dimensions", i, "name"), d.name)
            for i, d in enumerate(self.dimensions)
        ]
        named += [(("metricsSpec", i, "name"), m.name) for i, m in enumerate(self.metrics)]
        # Names that differ only in case are different columns: see `core.column_case`.
        seen: dict[str, str] = {}
        for place, name in named:
            first = seen.setdefault(name, place_text := _place(place))
            if first != place_text:
                found.append((place, name, f"duplicate column {name!r}: {first} has it already"))
        computed: set[str] = set()
        for i, transform in enumerate(self.transforms):
            if transform.name in computed:
                where = ("transformSpec", "transforms", i, "name")
                found.append((where, transform.name, f"{transform.name!r} is computed twice"))
            computed.add(transform.name)
        return found

    def _mistakes_in_projections(self) -> Found:
        base = BaseColumns(
            {dimension.name: dimension for dimension in self.dimensions},
            {metric.name: metric for metric in self.metrics},
            are_all=not self.dimensions_spec.discovers,
        )
        return projection_mistakes(self.projections, base)

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
        """The filter that rows must match to be kept, or None."""
        return self.transform_spec.filter

    @property
    def has_exact_names(self) -> bool:
        """Whether names are case-sensitive, because rows have columns that differ only in case."""
        dimensions = [dimension.name for dimension in self.dimensions]
        if case_variants_in([*dimensions, *(metric.name for metric in self.metrics)]):
            return True
        if not self.dimensions_spec.discovers:
            return False
        # A discovered column is another column than the field of a metric.
        read = {name for metric in self.metrics for name in metric.inputs}
        found = {name.lower() for name in dimensions}
        return any(name.lower() in found for name in read.difference(dimensions))

    @property
    def rollup(self) -> bool:
        """Whether rows of equal time and dimensions become one."""
        return self.granularity_spec.rollup

    def rollup_json(self) -> dict[str, object] | None:
        """Return the roll-up as stored in segments; None if rows are not rolled up."""
        if not self.rollup:
            return None
        return {
            "queryGranularity": granularity_json(self.granularity_spec.query_granularity),
            "metricsSpec": [
                metric.model_dump(mode="json", by_alias=True, exclude_none=True)
                for metric in self.metrics
            ],
        }

    @functools.cached_property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return self.granularity_spec.chunks

    @functools.cached_property
    def query_granularity(self) -> Granularity:
        """The granularity that times are truncated to."""
        return Granularity.parse(self.granularity_spec.query_granularity)
