"""Aggregators and post-aggregators as Spark SQL.

Owns the meaning of each. Sums of whole numbers that overflow are errors, as everywhere in
Penstock's SQL; in Druid they wrap. Sums of floats are doubles. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity
from penstock.indexing.specs.scalars import TIME_COLUMN
from penstock.services.native.aggregation_specs import (
    Aggregation,
    ArithmeticPost,
    CardinalityAggregator,
    ConstantPost,
    CountAggregator,
    EstimatePost,
    ExpressionPost,
    ExtremePost,
    FieldPost,
    FilteredAggregator,
    NumberAggregator,
    PickAggregator,
    PostAggregation,
    QuantilePost,
    SketchAggregator,
    SketchSetPost,
)
from penstock.services.native.dimension_sql import dimension_value
from penstock.services.native.filter_sql import condition
from penstock.services.native.written_sql import (
    NamedValues,
    Value,
    ValueType,
    all_of,
    check_characters,
    checked_size,
    number_literal,
)

_NUMBERS: Final[Mapping[str, ValueType]] = {"long": "LONG", "double": "DOUBLE", "float": "FLOAT"}
_FUNCTIONS: Final[Mapping[str, str]] = {"Sum": "sum", "Min": "min", "Max": "max", "Mean": "avg"}
_SETS: Final[Mapping[str, str]] = {
    "UNION": "theta_union",
    "INTERSECT": "theta_intersection",
    "NOT": "theta_difference",
}
_ESTIMATES: Final[Mapping[str, str]] = {
    "theta": "theta_sketch_estimate",
    "hll": "hll_sketch_estimate",
    "quantiles": "kll_sketch_get_n_double",
}
_LG_K: Final = 12
_THETA_SIZE: Final = 16_384
_QUANTILES_K: Final = 128


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregator or a post-aggregator in SQL.

    Attributes:
        value: The value in the answer.
        sketch: SQL of the sketch from which `value` is estimated; empty if there is none.
        kind: The kind of the sketch: `theta`, `hll` or `quantiles`.
        empty: Its value over no rows, for buckets of time without rows.
        is_known_empty: Whether `empty` is known without a query.
    """

    value: Value
    sketch: str = ""
    kind: str = ""
    empty: float | None = None
    is_known_empty: bool = True


def aggregate(
    spec: Aggregation, scope: NamedValues, place: str, conditions: tuple[str, ...] = ()
) -> Aggregate:
    """Return an aggregator in SQL.

    Args:
        spec: The aggregator.
        scope: The values that its names stand for.
        place: Its place in the request.
        conditions: The conditions that rows must fulfil.

    Raises:
        InvalidRequest: It names an unknown column.
    """
    rows = f" FILTER (WHERE {all_of(conditions)})" if conditions else ""
    match spec:
        case FilteredAggregator():
            own = condition(spec.filter, scope, f"{place}.filter")
            return aggregate(spec.aggregator, scope, f"{place}.aggregator", (*conditions, own))
        case CountAggregator():
            return Aggregate(Value(f"count(*){rows}", "LONG"), empty=0)
        case NumberAggregator():
            return _number(spec, scope, place, rows)
        case PickAggregator():
            return _picked(spec, scope, place, rows)
        case CardinalityAggregator():
            values = [
                dimension_value(one, scope, Granularity.parse("ALL"), f"{place}.fields[{number}]")
                for number, one in enumerate(spec.fields)
            ]
            if len(values) > 1 and not spec.by_row:
                return _counted_together(values, rows)
            counted = values[0].sql
            if len(values) > 1:
                counted = f"struct({', '.join(one.sql for one in values)})"
            return Aggregate(Value(f"approx_count_distinct({counted}){rows}", "LONG"), empty=0)
        case SketchAggregator():
            return _sketched(spec, scope.of(spec.field_name, f"{place}.fieldName"), rows)


def _counted_together(values: Sequence[Value], rows: str) -> Aggregate:
    sketches = [f"hll_sketch_agg({one.text}, {_LG_K}){rows}" for one in values]
    sketch = reduce(lambda left, right: f"hll_union({left}, {right})", sketches)
    value = Value(f"coalesce(hll_sketch_estimate({sketch}), 0L)", "LONG")
    return Aggregate(value, sketch, "hll", empty=0)


def _number(spec: NumberAggregator, scope: NamedValues, place: str, rows: str) -> Aggregate:
    if spec.expression is not None:
        value = scope.expression(spec.expression, f"{place}.expression")
    else:
        value = scope.of(spec.field_name or "", f"{place}.fieldName")
    kind = _NUMBERS[spec.type[:-3] if spec.type != "doubleMean" else "double"]
    function = _FUNCTIONS[spec.type[-3:] if spec.type != "doubleMean" else "Mean"]
    made: ValueType = "DOUBLE" if kind == "FLOAT" and function == "sum" else kind
    return Aggregate(Value(f"{function}({value.cast(kind).sql}){rows}", made))


def _picked(spec: PickAggregator, scope: NamedValues, place: str, rows: str) -> Aggregate:
    kind: ValueType = next(
        (found for begin, found in _NUMBERS.items() if spec.type.startswith(begin)), "STRING"
    )
    value = scope.of(spec.field_name, f"{place}.fieldName").cast(kind)
    if spec.type.endswith("Any"):
        return Aggregate(Value(f"any_value({value.sql}){rows}", kind))
    time = scope.of(spec.time_column or TIME_COLUMN, f"{place}.timeColumn")
    function = "min_by" if spec.type.endswith("First") else "max_by"
    return Aggregate(Value(f"{function}({value.sql}, {time.sql}){rows}", kind))


def _sketched(spec: SketchAggregator, value: Value, rows: str) -> Aggregate:
    is_made = value.type == "OTHER"  # a column that ingestion filled with sketches
    if spec.type == "hyperUnique" and not is_made:
        return Aggregate(Value(f"approx_count_distinct({value.sql}){rows}", "LONG"), empty=0)
    if spec.type == "quantilesDoublesSketch":
        kind = "quantiles"
        sketch = f"kll_sketch_agg_double({value.cast('DOUBLE').sql}, {spec.k or _QUANTILES_K})"
        if is_made:
            sketch = f"kll_merge_agg_double({value.sql})"
    elif spec.type == "thetaSketch":
        kind = "theta"
        size = ((spec.size or _THETA_SIZE) - 1).bit_length()
        function = "theta_union_agg" if is_made else "theta_sketch_agg"
        sketch = f"{function}({value.sql if is_made else value.text}, {min(size, 26)})"
    else:
        kind = "hll"
        sketch = f"hll_sketch_agg({value.text}, {spec.lg_k or _LG_K})"
        if is_made:
            sketch = f"hll_union_agg({value.sql}, TRUE)"
    sketch += rows
    estimate = Value(f"{_ESTIMATES[kind]}({sketch})", "LONG")
    return Aggregate(Value(f"coalesce({estimate.sql}, 0L)", "LONG"), sketch, kind, empty=0)


def post_aggregate(spec: PostAggregation, known: Mapping[str, Aggregate], place: str) -> Aggregate:
    """Return a post-aggregator in SQL.

    Args:
        spec: The post-aggregator.
        known: The aggregators, and the post-aggregators before it, by name.
        place: Its place in the request.

    Raises:
        InvalidRequest: It names an unknown value, or has no exact translation.
    """
    found = _post(spec, known, place)
    checked_size(found.value, place)
    return found


def _post(spec: PostAggregation, known: Mapping[str, Aggregate], place: str) -> Aggregate:
    match spec:
        case FieldPost():
            return _field(spec.field_name, known, f"{place}.fieldName")
        case ConstantPost():
            literal = number_literal(spec.value)
            kind: ValueType = "LONG" if isinstance(spec.value, int) else "DOUBLE"
            return Aggregate(Value(literal, kind), empty=spec.value)
        case ExpressionPost():
            values = {name: one.value for name, one in known.items()}
            scope = NamedValues(values, "aggregator or post-aggregator")
            value = scope.expression(spec.expression, f"{place}.expression")
            return Aggregate(value, is_known_empty=False)
        case EstimatePost() | QuantilePost():
            return _of_sketch(spec, known, place)
        case ArithmeticPost() | ExtremePost() | SketchSetPost():
            fields = [
                post_aggregate(one, known, f"{place}.fields[{number}]")
                for number, one in enumerate(spec.fields)
            ]
            check_characters(sum(len(one.value.sql) for one in fields), place)
            if isinstance(spec, ArithmeticPost):
                return reduce(lambda left, right: _operation(spec.fn, left, right), fields)
            return (
                _extreme(spec, fields)
                if isinstance(spec, ExtremePost)
                else _set(spec, fields, place)
            )


def _field(name: str, known: Mapping[str, Aggregate], place: str) -> Aggregate:
    found = known.get(name)
    if found is None:
        NamedValues({one: other.value for one, other in known.items()}, "aggregator").of(
            name, place
        )
        raise AssertionError("an unknown name was found")
    return found


def _operation(operator: str, left: Aggregate, right: Aggregate) -> Aggregate:
    one, other = left.value.cast("DOUBLE").sql, right.value.cast("DOUBLE").sql
    match operator:
        case "/":  # by zero it is zero, as in Druid
            sql = f"(CASE WHEN ({other} = 0) THEN 0D ELSE ({one} / {other}) END)"
        case "quotient":
            sql = f"try_divide({one}, {other})"
        case "pow":
            sql = f"power({one}, {other})"
        case _:
            sql = f"({one} {operator} {other})"
    is_known = left.is_known_empty and right.is_known_empty
    empty = None
    if is_known and left.empty is not None and right.empty is not None:
        empty = _computed(operator, float(left.empty), float(right.empty))
    is_known = is_known and (operator != "pow" or empty is not None)
    return Aggregate(Value(sql, "DOUBLE"), empty=empty, is_known_empty=is_known)


def _computed(operator: str, left: float, right: float) -> float | None:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right if right else 0.0
        case "quotient":
            return left / right if right else None
        case _:
            return None


def _extreme(spec: ExtremePost, fields: Sequence[Aggregate]) -> Aggregate:
    kind: ValueType = "LONG" if spec.type.startswith("long") else "DOUBLE"
    function = "greatest" if spec.type.endswith("Greatest") else "least"
    values = [one.value.cast(kind).sql for one in fields]
    sql = values[0] if len(values) == 1 else f"{function}({', '.join(values)})"
    return Aggregate(Value(sql, kind), is_known_empty=False)


def _set(spec: SketchSetPost, fields: Sequence[Aggregate], place: str) -> Aggregate:
    if any(one.kind != "theta" for one in fields):
        raise InvalidRequest(
            "its fields must be aggregators of the type thetaSketch, or sets of them", place=place
        )
    function = _SETS[spec.func]
    sketch = reduce(lambda left, right: f"{function}({left}, {right})", (f.sketch for f in fields))
    value = Value(f"coalesce(theta_sketch_estimate({sketch}), 0L)", "LONG")
    return Aggregate(value, sketch, "theta", is_known_empty=False)


def _of_sketch(
    spec: EstimatePost | QuantilePost, known: Mapping[str, Aggregate], place: str
) -> Aggregate:
    field = post_aggregate(spec.field, known, f"{place}.field")
    wanted = {"thetaSketchEstimate": "theta", "HLLSketchEstimate": "hll"}.get(
        spec.type, "quantiles"
    )
    if field.kind != wanted:
        raise InvalidRequest(f"must be a sketch for {spec.type}", place=f"{place}.field")
    if isinstance(spec, EstimatePost):
        return field
    sql = f"kll_sketch_get_quantile_double({field.sketch}, {number_literal(spec.fraction)})"
    return Aggregate(Value(sql, "DOUBLE"), is_known_empty=False)
