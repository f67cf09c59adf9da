"""Druid's row filters as Spark conditions.

Owns the meaning of each filter. Every value is a literal of the DataFrame's plan; none becomes part
of a text that is parsed. Text comparisons see a number as its text, as in Druid.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.indexing.spec import (
    AndFilter,
    BoundFilter,
    EqualsFilter,
    Filter,
    InFilter,
    NotFilter,
    NullFilter,
    OrFilter,
    RangeFilter,
    SelectorFilter,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

_SPARK_TYPES = {"string": "string", "long": "bigint", "float": "float", "double": "double"}
Scalar = str | int | float | bool


def condition(node: Filter) -> Column:
    """Return the filter as a condition; it is never null, so that `not` means what it says."""
    match node:
        case AndFilter():
            return reduce(and_, map(condition, node.fields))
        case OrFilter():
            return reduce(or_, map(condition, node.fields))
        case NotFilter():
            return ~condition(node.field)
        case SelectorFilter():
            return _equals_text(node.dimension, node.value)
        case InFilter():
            return reduce(or_, (_equals_text(node.dimension, v) for v in node.values), _never())
        case NullFilter():
            return _column(node.column).isNull()
        case EqualsFilter():
            type_ = _SPARK_TYPES[node.match_value_type]
            return _column(node.column).cast(type_).eqNullSafe(_literal(node.match_value, type_))
        case RangeFilter():
            type_ = _SPARK_TYPES[node.match_value_type]
            return _between(
                _column(node.column).cast(type_),
                None if node.lower is None else _literal(node.lower, type_),
                None if node.upper is None else _literal(node.upper, type_),
                lower_open=node.lower_open,
                upper_open=node.upper_open,
            )
        case BoundFilter():
            type_ = "string" if node.ordering == "lexicographic" else "double"
            return _between(
                _column(node.dimension).cast(type_),
                None if node.lower is None else _literal(node.lower, type_),
                None if node.upper is None else _literal(node.upper, type_),
                lower_open=node.lower_strict,
                upper_open=node.upper_strict,
            )


def _equals_text(name: str, value: Scalar | None) -> Column:
    if value is None:
        return _column(name).isNull()
    return _column(name).cast("string").eqNullSafe(_literal(value, "string"))


def _between(
    value: Column,
    lower: Column | None,
    upper: Column | None,
    *,
    lower_open: bool,
    upper_open: bool,
) -> Column:
    found = value.isNotNull()
    if lower is not None:
        found &= (value > lower) if lower_open else (value >= lower)
    if upper is not None:
        found &= (value < upper) if upper_open else (value <= upper)
    return _is_true(found)


def _is_true(value: Column) -> Column:
    return sf.coalesce(value, sf.lit(False))  # noqa: FBT003


def _never() -> Column:
    return sf.lit(False)  # noqa: FBT003


def _literal(value: Scalar, type_: str) -> Column:
    if type_ == "string" and isinstance(value, bool):
        value = str(value).lower()
    return sf.lit(value).cast(type_)


def _column(name: str) -> Column:
    return sf.col("`" + name.replace("`", "``") + "`")
