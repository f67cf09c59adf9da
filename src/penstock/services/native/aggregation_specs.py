"""Aggregators and post-aggregators of native queries: the JSON forms.

Owns only the form; `aggregation_sql` has the meaning. The aggregators of ingestion are others
(`indexing.specs.aggregators`): they say what a column keeps, and these compute from columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from penstock.indexing.specs.scalars import Count, Flag
from penstock.indexing.specs.spec_base import IgnoredValue, SpecModel, mistake, refuse_types
from penstock.services.native.dimension_specs import Dimension
from penstock.services.native.filter_specs import NativeFilter

OutputName = Annotated[str, Field(min_length=1, max_length=1_000)]
_ANY: Final = IgnoredValue.ANY
_SKETCHES: Final[Mapping[str, IgnoredValue]] = dict.fromkeys(
    (
        "errorBoundsStdDev",
        "isInputHyperUnique",
        "isInputThetaSketch",
        "maxStreamLength",
        "numStdDev",
        "round",
        "stringEncoding",
        "tgtHllType",
    ),
    _ANY,
)


class CountAggregator(SpecModel):
    """The number of rows."""

    type: Literal["count"]
    name: OutputName

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"fieldName": _ANY}  # pydruid sends it


class NumberAggregator(SpecModel):
    """A sum, a minimum, a maximum or a mean of numbers."""

    type: Literal[
        "longSum",
        "longMin",
        "longMax",
        "doubleSum",
        "doubleMin",
        "doubleMax",
        "doubleMean",
        "floatSum",
        "floatMin",
        "floatMax",
    ]
    name: OutputName
    field_name: str | None = Field(default=None, min_length=1)
    expression: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _check_input(self) -> NumberAggregator:
        if (self.field_name is None) == (self.expression is None):
            raise mistake("set fieldName or expression")
        return self


class PickAggregator(SpecModel):
    """The value of the earliest row, of the latest one, or of any."""

    type: Literal[
        "longFirst",
        "longLast",
        "longAny",
        "doubleFirst",
        "doubleLast",
        "doubleAny",
        "floatFirst",
        "floatLast",
        "floatAny",
        "stringFirst",
        "stringLast",
        "stringAny",
    ]
    name: OutputName
    field_name: str = Field(min_length=1)
    time_column: str | None = Field(default=None, min_length=1)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        "maxStringBytes": IgnoredValue.NUMBER,
        "aggregateMultipleValues": IgnoredValue.FLAG,
    }


class CardinalityAggregator(SpecModel):
    """The approximate number of distinct values, or of distinct rows of values."""

    type: Literal["cardinality"]
    name: OutputName
    fields: tuple[Dimension, ...] = Field(min_length=1, max_length=20)
    by_row: Flag = False

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"round": _ANY}
    repeated: ClassVar[Mapping[str, str]] = {"fieldNames": "fields"}


class SketchAggregator(SpecModel):
    """A sketch: of distinct values (hyperUnique, HLLSketch…, thetaSketch), or of quantiles."""

    type: Literal[
        "hyperUnique",
        "HLLSketchBuild",
        "HLLSketchMerge",
        "thetaSketch",
        "quantilesDoublesSketch",
    ]
    name: OutputName
    field_name: str = Field(min_length=1)
    lg_k: Count | None = Field(default=None, ge=4, le=21)
    size: Count | None = Field(default=None, ge=16, le=67_108_864)
    k: Count | None = Field(default=None, ge=8, le=32_768)
    should_finalize: Literal[True] = True

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = _SKETCHES


class FilteredAggregator(SpecModel):
    """Another aggregator over the rows that a filter selects."""

    type: Literal["filtered"]
    filter: NativeFilter
    aggregator: Aggregation
    own_name: str | None = Field(default=None, alias="name")

    @property
    def name(self) -> str:
        """The name of its value in the answer."""
        return self.own_name or self.aggregator.name


_REFUSED: Final[Mapping[str, str]] = {
    "javascript": "queries cannot run code: use expression in another aggregator",
    "expression": "use another aggregator with expression",
    "grouping": "query each grouping by itself, or use GROUPING SETS in SQL",
    "stringFirstFold": "use stringFirst",
    "stringLastFold": "use stringLast",
    "variance": "use var_pop or var_samp in SQL",
    "varianceFold": "use var_pop or var_samp in SQL",
    "momentSketch": "use quantilesDoublesSketch",
    "approxHistogram": "use quantilesDoublesSketch",
    "approxHistogramFold": "use quantilesDoublesSketch",
    "fixedBucketsHistogram": "use quantilesDoublesSketch",
    "tDigestSketch": "use quantilesDoublesSketch",
    "KllDoublesSketch": "use quantilesDoublesSketch",
    "KllFloatsSketch": "use quantilesDoublesSketch",
    "arrayOfDoublesSketch": "use thetaSketch",
    "bloom": "compare with values, or join in SQL",
    "distinctCount": "use cardinality, or count(DISTINCT …) in SQL",
}
Aggregation = Annotated[
    CountAggregator
    | NumberAggregator
    | PickAggregator
    | CardinalityAggregator
    | SketchAggregator
    | FilteredAggregator,
    Field(discriminator="type"),
    refuse_types(_REFUSED),
]
"""An aggregator of a query."""
FilteredAggregator.model_rebuild()


class _PostAggregator(SpecModel):
    """Base of post-aggregators; those within others need no name."""

    name: str | None = None


class ArithmeticPost(_PostAggregator):
    """An operation between each two fields, from the left, with doubles."""

    type: Literal["arithmetic"]
    fn: Literal["+", "-", "*", "/", "quotient", "pow"]
    fields: tuple[PostAggregation, ...] = Field(min_length=2, max_length=100)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"ordering": _ANY}


class FieldPost(_PostAggregator):
    """The value of an aggregator or of an earlier post-aggregator."""

    type: Literal["fieldAccess", "finalizingFieldAccess", "hyperUniqueCardinality"]
    field_name: str = Field(min_length=1)


class ConstantPost(_PostAggregator):
    """A number."""

    type: Literal["constant"]
    value: float | int

    @field_validator("value", mode="before")
    @classmethod
    def _check_value(cls, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise mistake("must be a number")
        return value


class ExtremePost(_PostAggregator):
    """The greatest or the least of the fields."""

    type: Literal["doubleGreatest", "longGreatest", "doubleLeast", "longLeast"]
    fields: tuple[PostAggregation, ...] = Field(min_length=1, max_length=100)


class ExpressionPost(_PostAggregator):
    """An expression of Druid over the values of aggregators and earlier post-aggregators."""

    type: Literal["expression"]
    expression: str = Field(min_length=1)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"ordering": _ANY, "outputType": _ANY}


class EstimatePost(_PostAggregator):
    """The number of distinct values that a sketch estimates."""

    type: Literal["thetaSketchEstimate", "HLLSketchEstimate"]
    field: PostAggregation

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"round": _ANY}


class SketchSetPost(_PostAggregator):
    """A theta sketch of the union, intersection or difference of others."""

    type: Literal["thetaSketchSetOp"]
    func: Literal["UNION", "INTERSECT", "NOT"]
    fields: tuple[PostAggregation, ...] = Field(min_length=2, max_length=20)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"size": _ANY}


class QuantilePost(_PostAggregator):
    """The value of a sketch of quantiles below which a fraction of the values is."""

    type: Literal["quantilesDoublesSketchToQuantile"]
    field: PostAggregation
    fraction: float = Field(ge=0, le=1)


_POST_REFUSED: Final[Mapping[str, str]] = {
    "javascript": "queries cannot run code: use expression",
    "quantilesDoublesSketchToQuantiles": "use quantilesDoublesSketchToQuantile for each fraction",
    "thetaSketchToString": "use thetaSketchEstimate",
    "HLLSketchToString": "use HLLSketchEstimate",
    "stddev": "use stddev_pop or stddev_samp in SQL",
}
PostAggregation = Annotated[
    ArithmeticPost
    | FieldPost
    | ConstantPost
    | ExtremePost
    | ExpressionPost
    | EstimatePost
    | SketchSetPost
    | QuantilePost,
    Field(discriminator="type"),
    refuse_types(_POST_REFUSED),
]
"""A post-aggregator."""
for _model in (ArithmeticPost, ExtremePost, EstimatePost, SketchSetPost, QuantilePost):
    _model.model_rebuild()
