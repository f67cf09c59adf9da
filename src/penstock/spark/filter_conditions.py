"""Druid's row filters as Spark conditions.

Owns the meaning of each filter. Every value is a literal of the DataFrame's plan; none is inserted
into text that is parsed. Text comparisons use a number's text, as in Druid, and the time is a
number of milliseconds, except in expressions.
"""

from __future__ import annotations

from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from penstock.core.intervals import Interval
from penstock.core.sql.checked_expression import parsed_expression
from penstock.indexing.specs import (
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
from penstock.indexing.specs.filters import (
    ColumnComparisonFilter,
    ExpressionFilter,
    FalseFilter,
    IntervalFilter,
    LikeFilter,
    RegexFilter,
    TrueFilter,
)
from penstock.spark.expressions import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import Column

_SPARK_TYPES = {"string": "string", "long": "bigint", "float": "float", "double": "double"}
Scalar = str | int | float | bool


def condition(node: Filter) -> Column:
    """Return the filter as a condition that is never null, so that `not` negates it."""
    match node:
        case AndFilter():
            return joined(and_, map(condition, node.fields))
        case OrFilter():
            return joined(or_, map(condition, node.fields))
        case NotFilter():
            return ~condition(node.field)
        case TrueFilter() | FalseFilter():
            return sf.lit(isinstance(node, TrueFilter))
        case ExpressionFilter():
            return _is_true(sf.expr(parsed_expression(node.sql).in_spark()).cast("boolean"))
        case ColumnComparisonFilter():
            first, *others = (value_of(name).cast("string") for name in node.dimensions)
            return joined(and_, (first.eqNullSafe(other) for other in others))
        case EqualsFilter() | RangeFilter() | NullFilter():
            return _typed(node)
        case _:
            return _of_text(node)


def expressions_in(node: Filter | None) -> tuple[str, ...]:
    """Return the expressions of a filter, in Spark SQL."""
    match node:
        case AndFilter() | OrFilter():
            return tuple(text for one in node.fields for text in expressions_in(one))
        case NotFilter():
            return expressions_in(node.field)
        case ExpressionFilter():
            return (node.sql,)
        case _:
            return ()


def _typed(node: EqualsFilter | RangeFilter | NullFilter) -> Column:
    value = value_of(node.column)
    if isinstance(node, NullFilter):
        return value.isNull()
    type_ = _SPARK_TYPES[node.match_value_type]
    if isinstance(node, EqualsFilter):
        return value.cast(type_).eqNullSafe(_literal(node.match_value, type_))
    return _between(
        value.cast(type_),
        None if node.lower is None else _literal(node.lower, type_),
        None if node.upper is None else _literal(node.upper, type_),
        lower_open=node.lower_open,
        upper_open=node.upper_open,
    )


def _of_text(
    node: SelectorFilter | InFilter | BoundFilter | LikeFilter | RegexFilter | IntervalFilter,
) -> Column:
    name = node.dimension
    match node:
        case SelectorFilter():
            return _equals_text(name, node.value)
        case InFilter():
            return _one_of(name, node.values)
        case LikeFilter():
            pattern = _like_pattern(node.pattern, node.escape)
            return _is_true(value_of(name).cast("string").rlike(pattern))
        case RegexFilter():
            return _is_true(value_of(name).cast("string").rlike(node.pattern))
        case IntervalFilter():
            return joined(or_, (_within(name, interval) for interval in node.times))
        case BoundFilter():
            type_ = "string" if node.ordering == "lexicographic" else "double"
            return _between(
                value_of(name).cast(type_),
                None if node.lower is None else _literal(node.lower, type_),
                None if node.upper is None else _literal(node.upper, type_),
                lower_open=node.lower_strict,
                upper_open=node.upper_strict,
            )


def _like_pattern(pattern: str, escape: str | None) -> str:
    """Return a LIKE pattern as a regular expression of Java, which is used as a literal."""
    parts: list[str] = []
    taken = False
    for char in pattern:
        if not taken and char == escape:
            taken = True
            continue
        if not taken and char in "%_":
            parts.append(".*" if char == "%" else ".")
        else:
            parts.append(char if char.isalnum() else f"\\x{{{ord(char):x}}}")
        taken = False
    return f"(?s)^{''.join(parts)}$"


def _within(name: str, interval: Interval) -> Column:
    ms = value_of(name).cast("bigint")
    return _is_true((ms >= sf.lit(interval.start_ms)) & (ms < sf.lit(interval.end_ms)))


def _equals_text(name: str, value: Scalar | None) -> Column:
    if value is None:
        return value_of(name).isNull()
    return value_of(name).cast("string").eqNullSafe(_literal(value, "string"))


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


def _one_of(name: str, values: Sequence[Scalar | None]) -> Column:
    literals = [_literal(value, "string") for value in values if value is not None]
    found = _is_true(value_of(name).cast("string").isin(literals))
    return found | value_of(name).isNull() if None in values else found


def joined(join: Callable[[Column, Column], Column], parts: Iterable[Column]) -> Column:
    """Join conditions in pairs, pairs of pairs and so on.

    Joined one by one, they would be nested as deeply as their number, and plans nested more than
    about fifty levels cannot be sent.
    """
    left = list(parts)
    while len(left) > 1:
        odd = left[len(left) & ~1 :]
        left = [*map(join, left[::2], left[1::2]), *odd]
    return left[0]


def _literal(value: Scalar, type_: str) -> Column:
    if type_ == "string" and isinstance(value, bool):
        value = str(value).lower()
    return sf.lit(value).cast(type_)
