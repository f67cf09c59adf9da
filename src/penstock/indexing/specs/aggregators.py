"""Metric columns: the aggregate of a field that is kept when rows are rolled up.

Owns the list of aggregators, the parameters of each, and their meaning (`kind`, `value_type`); the
engine computes them. Distinct counts and quantiles are stored as Spark's own sketches, whose bytes
differ from those of Druid's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, field_validator, model_validator

from penstock.indexing.specs.scalars import TIME_COLUMN, ColumnName, Count, Flag
from penstock.indexing.specs.spec_base import Found, IgnoredValue, SpecModel, mistake, mistakes

AggregatorType = Literal[
    "count",
    "longSum",
    "longMin",
    "longMax",
    "doubleSum",
    "doubleMin",
    "doubleMax",
    "floatSum",
    "floatMin",
    "floatMax",
    "longFirst",
    "longLast",
    "doubleFirst",
    "doubleLast",
    "floatFirst",
    "floatLast",
    "stringFirst",
    "stringLast",
    "HLLSketchBuild",
    "HLLSketchMerge",
    "hyperUnique",
    "cardinality",
    "thetaSketch",
    "quantilesDoublesSketch",
]
AggregatorKind = Literal["count", "sum", "min", "max", "first", "last", "hll", "theta", "quantiles"]
ValueType = Literal["long", "double", "float", "string", "sketch"]

_TYPES: Final[tuple[ValueType, ...]] = ("long", "double", "float", "string")
_ENDINGS: Final[Mapping[str, AggregatorKind]] = {
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "First": "first",
    "Last": "last",
}
_KINDS: Final[Mapping[str, AggregatorKind]] = {
    "count": "count",
    "HLLSketchBuild": "hll",
    "HLLSketchMerge": "hll",
    "hyperUnique": "hll",
    "cardinality": "hll",
    "thetaSketch": "theta",
    "quantilesDoublesSketch": "quantiles",
    **{f"{type_}{ending}": kind for type_ in _TYPES for ending, kind in _ENDINGS.items()},
}
# The parameters of each kind or type, in addition to `fieldName`.
_PARAMETERS: Final[Mapping[str, frozenset[str]]] = {
    "first": frozenset({"time_column"}),
    "last": frozenset({"time_column"}),
    "stringFirst": frozenset({"time_column", "max_string_bytes"}),
    "stringLast": frozenset({"time_column", "max_string_bytes"}),
    "HLLSketchBuild": frozenset({"lg_k"}),
    "HLLSketchMerge": frozenset({"lg_k"}),
    "hyperUnique": frozenset({"is_input_hyper_unique"}),
    "cardinality": frozenset({"fields", "by_row"}),
    "thetaSketch": frozenset({"size", "is_input_theta_sketch"}),
    "quantilesDoublesSketch": frozenset({"k"}),
}
_ANY_PARAMETER: Final = frozenset().union(*_PARAMETERS.values())
# The parts of a plain dimension besides its name; its output has the same name.
_DIMENSION: Final = {"type": "default", "outputName": None, "outputType": "STRING"}
_UNSUPPORTED: Final[Mapping[str, str]] = {
    **{f"{kind}Any": f"use {kind}First" for kind in ("string", "long", "double", "float")},
    "doubleMean": "keep a doubleSum and a count, and divide in the query",
    "filtered": "compute the column with a transform that is null where the filter fails",
    "stringFirstFold": "use stringFirst",
    "stringLastFold": "use stringLast",
    "variance": "keep a count and the sums of the value and of its square",
    "momentSketch": "use quantilesDoublesSketch",
    "approxHistogram": "use quantilesDoublesSketch",
    "approxHistogramFold": "use quantilesDoublesSketch",
    "fixedBucketsHistogram": "use quantilesDoublesSketch",
    "tDigestSketch": "use quantilesDoublesSketch",
    "KllDoublesSketch": "use quantilesDoublesSketch",
    "KllFloatsSketch": "use quantilesDoublesSketch",
    "arrayOfDoublesSketch": "use thetaSketch",
    "javascript": "specs cannot run code: compute the column with a transform",
}


def field_of(value: object) -> object:
    """Return the name of a column that Druid writes as a dimension, as it does for `cardinality`.

    Anything else is returned unchanged.
    """
    if not isinstance(value, dict) or not value.keys() <= _DIMENSION.keys() | {"dimension"}:
        return value
    name = value.get("dimension")
    plain = all(value.get(key) in (None, default or name) for key, default in _DIMENSION.items())
    return name if plain and isinstance(name, str) else value


class Aggregator(SpecModel):
    """A metric column: the aggregate of `field_name` that is kept when rows are rolled up.

    `cardinality` reads `fields`; the other parameters apply to some types only, which the reference
    page lists.
    """

    type: AggregatorType
    name: ColumnName
    field_name: str | None = None
    fields: tuple[str, ...] | None = None
    by_row: Flag | None = None
    time_column: str | None = Field(default=None, min_length=1)
    max_string_bytes: Count | None = Field(default=None, ge=1, le=1_048_576)
    lg_k: Count | None = Field(default=None, ge=4, le=21)
    size: Count | None = Field(default=None, ge=16, le=67_108_864)
    k: Count | None = Field(default=None, ge=8, le=32_768)
    is_input_hyper_unique: Flag | None = None
    is_input_theta_sketch: Flag | None = None

    unsupported: ClassVar[Mapping[str, str]] = {
        "expression": "compute the column with a transform and name it in fieldName",
        "fieldNames": "it is now called fields",
    }
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        (
            "errorBoundsStdDev",
            "maxStreamLength",
            "round",
            "shouldFinalize",
            "stringEncoding",
            "tgtHllType",
        ),
        IgnoredValue.ANY,
    )

    @field_validator("fields", mode="before")
    @classmethod
    def _name_fields(cls, value: object) -> object:
        return [field_of(one) for one in value] if isinstance(value, list) else value

    @field_validator("type", mode="before")
    @classmethod
    def _name_unsupported(cls, value: object) -> object:
        if isinstance(value, str) and value in _UNSUPPORTED:
            raise mistake(f"the aggregator {value} is not supported yet: {_UNSUPPORTED[value]}")
        return value

    @model_validator(mode="after")
    def _check_fields(self) -> Aggregator:
        found: Found = []
        if self.type == "count" and self.field_name is not None:
            found.append((("fieldName",), self.field_name, "leave it out: count counts the rows"))
        if self.type == "cardinality":
            if self.field_name is not None:
                found.append((("fieldName",), self.field_name, "cardinality reads fields"))
            if not self.fields:
                found.append((("fields",), None, "name the columns that cardinality reads"))
        elif self.type != "count" and not self.field_name:
            text = f"name the column that {self.type} reads"
            found.append((("fieldName",), self.field_name, text))
        allowed = _PARAMETERS.get(self.type) or _PARAMETERS.get(self.kind, frozenset())
        for name in sorted(_ANY_PARAMETER - allowed):
            value = getattr(self, name)
            if value is not None:
                alias = type(self).model_fields[name].alias or name
                text = f"has no meaning for {self.type}: leave it out"
                found.append(((alias,), str(value), text))
        if self.size is not None and self.size & (self.size - 1):
            found.append((("size",), self.size, "must be a power of 2, such as 16384"))
        if found:
            raise mistakes("Aggregator", found)
        return self

    @property
    def kind(self) -> AggregatorKind:
        """How the values of rows are combined."""
        return _KINDS[self.type]

    @property
    def value_type(self) -> ValueType:
        """The type of the column's values."""
        if self.kind == "count":
            return "long"
        return next((t for t in _TYPES if self.type.startswith(t)), "sketch")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that it reads, without the time."""
        named = self.fields if self.fields is not None else (self.field_name,)
        times = (self.time_column,)
        return tuple(n for n in (*named, *times) if n is not None and n != TIME_COLUMN)

    @property
    def reads_sketches(self) -> bool:
        """Whether its field already holds sketches of its own kind."""
        is_input = self.is_input_hyper_unique or self.is_input_theta_sketch
        return self.type == "HLLSketchMerge" or bool(is_input)

    @property
    def sketch_size(self) -> int:
        """Size of its sketch: log2 of the entries (hll, theta), or k (quantiles).

        Limited to the range of Spark's functions: 4 to 21 (hll), 4 to 26 (theta), 8 to 65535.
        """
        if self.kind == "theta":
            return ((self.size or 16_384) - 1).bit_length()
        return (self.k or 128) if self.kind == "quantiles" else (self.lg_k or 12)

    @property
    def string_bytes_max(self) -> int:
        """Maximum number of bytes that stringFirst and stringLast keep."""
        return self.max_string_bytes or 1024
