"""Aggregates of Spark as DuckDB's, with the checks that make them raise where Spark does. Pure.

An aggregate has partial values, which the inner query computes for each group, and a result, which
the outer query computes of them. Sums of bigint are exact in DuckDB, in 128 bits, while Spark
raises when any partial sum has more than 64. A group passes its check only if its count times its
largest and its smallest value fits into 64 bits, which covers the partial sums of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.sql import tree
from penstock.fastpath.compiled_query import FastValue, NotCompiled
from penstock.fastpath.decimals import mean_type, quotient, sum_type
from penstock.fastpath.expressions import Expressions
from penstock.fastpath.fragments import (
    INTEGERS,
    LONG_MAX,
    DecimalType,
    Fragment,
    converted,
    has_values,
    is_decimal,
    shared_type,
)

_ANY: Final = frozenset({"any_value", "first", "first_value", "last", "last_value"})
_BY: Final = {"max_by": "max", "min_by": "min"}
_OF_DISTINCT: Final = frozenset({"avg", "count", "max", "mean", "min", "sum"})
_OF_BOOLEANS: Final = {
    **dict.fromkeys(("bool_and", "every"), "bool_and"),
    **dict.fromkeys(("any", "bool_or", "some"), "bool_or"),
}

AGGREGATES: Final = frozenset(
    {"approx_count_distinct", "avg", "count", "count_if", "max", "mean", "min", "sum"}
    | _ANY
    | _BY.keys()
    | _OF_BOOLEANS.keys()
)
"""Those that are compiled."""

_OTHER_AGGREGATES: Final = frozenset(
    {"approx_percentile", "collect_list", "collect_set", "corr", "median", "mode", "percentile"}
    | {"percentile_approx", "std", "stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp"}
    | {"variance", "grouping", "grouping_id"}
)

# Bits that hashes set, and how many of them must be free: those of ten million values are.
_HASH_BITS: Final = 1 << 20
_FREE_BITS_MIN: Final = 64

Partial = Callable[[str, tuple[FastValue, ...]], str]
"""Adds a partial value of the inner query; returns its name in the outer one."""


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """An aggregate in the outer query.

    Attributes:
        result: Its value.
        check: SQL of a condition; where it is not met, Spark may raise. Empty: there is none.
        counts_rows: Whether it is the number of all rows.
    """

    result: Fragment
    check: str = ""
    counts_rows: bool = False


def is_aggregate(node: tree.Expression) -> bool:
    """Return whether an expression is a call of an aggregate, compiled or not."""
    if not isinstance(node, tree.Call) or node.over is not None or len(node.name) > 1:
        return False
    function = node.name[0].lower()
    return function in AGGREGATES or function in _OTHER_AGGREGATES or bool(node.within)


def aggregate(
    call: tree.Call, rows: Expressions, partial: Partial, *, is_grouped: bool
) -> CompiledAggregate:
    """Return an aggregate.

    Args:
        call: Its call.
        rows: Compiles expressions of a row.
        partial: Adds partial values.
        is_grouped: Whether the query has keys of groups.

    Raises:
        NotCompiled: It is not covered.
    """
    function = call.name[0].lower()
    if function not in AGGREGATES or call.within or call.form:
        raise NotCompiled("aggregate")
    condition = None if call.condition is None else rows.condition(call.condition)
    builder = _PartialBuilder(condition, partial, is_grouped=is_grouped)
    if any(isinstance(one, tree.Star) for one in call.arguments):
        return _rows_count(function, call, builder)
    values = [rows.compile(one) for one in call.arguments]
    word = "DISTINCT " if call.is_distinct else ""
    shown = f"{function}({word}{', '.join(one.name for one in values)})"
    name = shown if all(one.name for one in values) else ""
    if function in _ANY:
        return _any_value(call, values, builder, name)
    if call.nulls or (call.is_distinct and function not in _OF_DISTINCT):
        raise NotCompiled("aggregate" if call.nulls else "aggregate of distinct values")
    if function == "count" and values:
        return _count(values, builder, name, is_distinct=call.is_distinct)
    if len(values) != (2 if function in _BY else 1):
        raise NotCompiled("number of arguments")
    if function in _BY:
        return _value_by(_BY[function], values, builder, name)
    return _of_one(function, values[0], builder, name, is_distinct=call.is_distinct)


def _of_one(
    function: str, value: Fragment, builder: _PartialBuilder, name: str, *, is_distinct: bool
) -> CompiledAggregate:
    """Return an aggregate of one value."""
    if function == "approx_count_distinct":
        return _approximate_count(value, builder, name)
    if function == "count_if":
        if value.type != "boolean" or builder.has_condition:
            raise NotCompiled("aggregate")
        sql = f"count(*) FILTER (WHERE {value.sql})"
        return builder.named(name, builder.add(sql, value.parameters), "bigint")
    if function in _OF_BOOLEANS:
        if value.type != "boolean":
            raise NotCompiled("types of arguments")
        found = builder.add(f"{_OF_BOOLEANS[function]}({value.sql})", value.parameters)
        return builder.named(name, found, "boolean")
    if function in {"min", "max"}:
        shared_type((value.type,))
        found = builder.add(f"{function}({value.sql})", value.parameters)
        return builder.named(name, found, value.type)
    return _summed(function, value, builder, name, "DISTINCT " * is_distinct)


def _approximate_count(value: Fragment, builder: _PartialBuilder, name: str) -> CompiledAggregate:
    """Return the number of different values, by hashes; DuckDB's own is less exact than Spark's.

    The rows of a group are counted by different hashes, which is exact. All rows together are
    counted by the bits that hashes set (linear counting, Whang and others 1990): the standard error
    is below 0.1 % up to a million values and 1.3 % at ten million. Spark's is 5 %.
    """
    shared_type((value.type,))
    if builder.is_grouped:
        sql = f"count(DISTINCT CASE WHEN {value.sql} IS NOT NULL THEN hash({value.sql}) END)"
        return builder.named(name, builder.add(sql, value.parameters * 2), "bigint")
    bit = f"CASE WHEN {value.sql} IS NOT NULL THEN hash({value.sql}) & {_HASH_BITS - 1} END"
    # The type of a hash: a cast to another one takes 6 % of the time.
    sql = f"bitstring_agg({bit}, 0::UBIGINT, {_HASH_BITS - 1}::UBIGINT)"
    set_ = f"COALESCE(bit_count({builder.add(sql, value.parameters * 2)}), 0)"
    free = f"(1 - CAST({set_} AS DOUBLE) / {_HASH_BITS})"
    found = f"CAST(round(-{_HASH_BITS} * ln({free})) AS BIGINT)"
    check = f"{set_} <= {_HASH_BITS - _FREE_BITS_MIN}"
    return replace(builder.named(name, found, "bigint"), check=check)


def _rows_count(function: str, call: tree.Call, builder: _PartialBuilder) -> CompiledAggregate:
    star = call.arguments[0]
    if function != "count" or call.is_distinct or call.nulls or len(call.arguments) != 1:
        raise NotCompiled("aggregate")
    if not isinstance(star, tree.Star) or star.qualifier or star.without:
        raise NotCompiled("aggregate")
    found = builder.named("count(1)", builder.count("*", ()), "bigint")
    return replace(found, counts_rows=not builder.has_condition)


def _count(
    values: Sequence[Fragment], builder: _PartialBuilder, name: str, *, is_distinct: bool
) -> CompiledAggregate:
    """Return the number of rows, or of different rows, where no value is NULL."""
    if len(values) == 1 and values[0].constant is not None and not is_distinct:
        return builder.named(name, builder.count("*", ()), "bigint")
    for value in values:
        shared_type((value.type,))
        if value.raises and not (is_distinct and len(values) == 1):
            raise NotCompiled("error in a test for null")
    if len(values) == 1:
        (value,) = values
        sql = f"count({'DISTINCT ' * is_distinct}{value.sql})"
        return builder.named(name, builder.add(sql, value.parameters), "bigint")
    parameters = tuple(one for value in values for one in value.parameters)
    known = " AND ".join(f"{value.sql} IS NOT NULL" for value in values)
    counted = "*"
    if is_distinct:
        counted = f"DISTINCT ROW({', '.join(value.sql for value in values)})"
        parameters *= 2
    sql = f"count({counted}) FILTER (WHERE {known}"
    return builder.named(name, builder.add_filtered(sql, parameters), "bigint")


def _any_value(
    call: tree.Call, values: Sequence[Fragment], builder: _PartialBuilder, name: str
) -> CompiledAggregate:
    """Return the only value of a group: any of several may be Spark's answer."""
    if call.is_distinct:
        raise NotCompiled("aggregate of distinct values")
    ignores = call.nulls == "IGNORE"
    if call.nulls:
        name = ""  # Spark makes another function of it, maybe with another name
    if len(values) == 2 and isinstance(values[1].constant, bool):
        # Spark does not show the second argument.
        ignores, values = values[1].constant, values[:1]
        name = f"{call.name[0].lower()}({values[0].name})" if values[0].name else ""
    if len(values) != 1:
        raise NotCompiled("number of arguments")
    (value,) = values
    shared_type((value.type,))
    if value.raises:
        raise NotCompiled("error in a test for null")
    low = builder.add(f"min({value.sql})", value.parameters)
    high = builder.add(f"max({value.sql})", value.parameters)
    check = f"{low} IS NOT DISTINCT FROM {high}"
    if not ignores:
        known, count = builder.count(value.sql, value.parameters), builder.count("*", ())
        check = f"({check} AND ({known} = 0 OR {known} = {count}))"
    found = builder.named(name, low, value.type)
    return replace(found, check=check)


def _value_by(
    function: str, values: Sequence[Fragment], builder: _PartialBuilder, name: str
) -> CompiledAggregate:
    """Return the value beside the largest or smallest other one, if one row alone has that."""
    value, key = values
    shared_type((value.type,))
    shared_type((key.type,))
    if value.raises or key.raises:
        raise NotCompiled("error in a comparison")
    parameters = (*value.parameters, *key.parameters)
    found = builder.add(f"arg_{function}_null({value.sql}, {key.sql})", parameters)
    ends = builder.add(f"{function}({key.sql}, 2)", key.parameters)
    check = f"COALESCE(len({ends}) < 2 OR {ends}[1] <> {ends}[2], true)"
    return replace(builder.named(name, found, value.type), check=check)


def _summed(
    function: str, value: Fragment, builder: _PartialBuilder, name: str, word: str
) -> CompiledAggregate:
    """Return a sum or a mean; `word` stands before the value."""
    if is_decimal(value.type):
        return _summed_decimals(function, value, builder, name, word)
    if word and value.type in {"float", "double"}:
        # Both engines add them in the order of their hashes, so the sums differ where large ones
        # cancel each other out.
        raise NotCompiled("aggregate of distinct values")
    if function == "sum" and value.type in INTEGERS:
        total = builder.add(f"sum({word}{value.sql})", value.parameters)
        found = builder.named(name, f"CAST({total} AS BIGINT)", "bigint")
        if value.type == "int" and not value.raises:
            return found
        # The largest value is computed even if DuckDB takes sum(a + 1) for sum(a) + count(a).
        count = builder.count("*", ())
        low = builder.add(f"min({value.sql})", value.parameters)
        high = builder.add(f"max({value.sql})", value.parameters)
        check = (
            f"COALESCE(CAST({count} AS HUGEINT) * {high} <= {LONG_MAX}"
            f" AND CAST({count} AS HUGEINT) * {low} >= -{LONG_MAX}, true)"
        )
        return CompiledAggregate(found.result, check)
    if value.type not in {*INTEGERS, "float", "double"}:
        raise NotCompiled("types of arguments")
    real = converted(value, "double")
    total = builder.add(f"sum({word}{real.sql})", real.parameters)
    if function == "sum":
        return builder.named(name, total, "double")
    count = builder.count(f"{word}{value.sql}", value.parameters)
    return builder.named(name, f"({total} / {count})", "double")


def _summed_decimals(
    function: str, value: Fragment, builder: _PartialBuilder, name: str, word: str
) -> CompiledAggregate:
    """Return a sum or a mean; a sum has room for 10^10 values, so Spark does not raise."""
    type_ = sum_type(value.type)
    added = builder.add(f"sum({word}{value.sql})", value.parameters)
    total = Fragment(f"CAST({added} AS {type_.sql})", type_.text)
    if function == "sum":
        return builder.named(name, total.sql, type_.text)
    counted = builder.count(f"{word}{value.sql}", value.parameters)
    long = DecimalType(20, 0)
    # Without values the sum is NULL, and so is the mean.
    count = Fragment(f"CAST({counted} AS {long.sql})", long.text, is_never_zero=True)
    mean = quotient(total, count, mean_type(value.type))
    return builder.named(name, mean.sql, mean.type)


class _PartialBuilder:
    """Makes the partial values of one call, with its condition."""

    def __init__(self, condition: Fragment | None, partial: Partial, *, is_grouped: bool) -> None:
        self.is_grouped = is_grouped
        self._condition = condition
        self._partial = partial

    @property
    def has_condition(self) -> bool:
        return self._condition is not None

    def add_filtered(self, sql: str, parameters: tuple[FastValue, ...]) -> str:
        """Add a partial value whose text ends with a condition, without its parenthesis."""
        if self._condition is not None:
            sql += f" AND {self._condition.sql}"
            parameters += self._condition.parameters
        return self._partial(f"{sql})", parameters)

    def add(self, sql: str, parameters: tuple[FastValue, ...]) -> str:
        if self._condition is not None:
            sql += f" FILTER (WHERE {self._condition.sql})"
            parameters += self._condition.parameters
        return self._partial(sql, parameters)

    def count(self, sql: str, parameters: tuple[FastValue, ...]) -> str:
        return self.add(f"count({sql})", parameters)

    def named(self, name: str, sql: str, type_: str) -> CompiledAggregate:
        if self._condition is not None and name:
            shown = self._condition.name
            name = f"{name} FILTER (WHERE {shown})" if shown else ""
        if not has_values(type_):
            raise NotCompiled("types of arguments")
        return CompiledAggregate(Fragment(sql, type_, name=name))
