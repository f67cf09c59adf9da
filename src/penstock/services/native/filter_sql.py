"""Druid's filters as conditions of Spark SQL.

Most models are those of ingestion (`indexing.specs.filters`); their meaning here is that of Druid's
native queries: a comparison with a missing value is neither true nor false, so `not` does not match
it. Values are compared as the type of the column, so that Spark skips files and row groups. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import END_OF_TIME_MS, START_OF_TIME_MS, Granularity, Interval
from penstock.indexing.specs.filters import (
    BoundFilter,
    ColumnComparisonFilter,
    EqualsFilter,
    ExpressionFilter,
    FalseFilter,
    InFilter,
    IntervalFilter,
    LikeFilter,
    NullFilter,
    RangeFilter,
    RegexFilter,
    SelectorFilter,
    TrueFilter,
)
from penstock.services.native.dimension_specs import search_pattern
from penstock.services.native.dimension_sql import extracted
from penstock.services.native.filter_specs import (
    EveryFilter,
    ExtractedFilter,
    NativeFilter,
    OfOneColumn,
    OppositeFilter,
    SearchFilter,
    SomeFilter,
)
from penstock.services.native.written_sql import (
    NamedValues,
    Scalar,
    Value,
    ValueType,
    all_of,
    any_of,
    check_characters,
    checked_size,
    decimal_number,
    matches_all,
    number_literal,
    text_literal,
    text_of,
    time_literal,
    whole_number,
)

_TYPES: Final[dict[str, ValueType]] = {
    "string": "STRING",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
}


def condition(node: NativeFilter, scope: NamedValues, place: str) -> str:
    """Return a filter as a condition.

    Args:
        node: The filter.
        scope: The values that its names stand for.
        place: Its place in the request.

    Raises:
        InvalidRequest: It names an unknown column.
    """
    match node:
        case EveryFilter() | SomeFilter():
            parts: list[str] = []
            characters = 0
            for number, one in enumerate(node.fields):
                parts.append(condition(one, scope, f"{place}.fields[{number}]"))
                characters += len(parts[-1])
                check_characters(characters, place)
            return all_of(parts) if isinstance(node, EveryFilter) else any_of(parts)
        case OppositeFilter():
            return f"(NOT {condition(node.field, scope, f'{place}.field')})"
        case TrueFilter():
            return "TRUE"
        case FalseFilter():
            return "FALSE"
        case ExpressionFilter():
            where = f"{place}.expression"
            return scope.expression(node.expression, where, condition=True).sql
        case ColumnComparisonFilter():
            first, *others = [
                scope.of(name, f"{place}.dimensions[{number}]").text
                for number, name in enumerate(node.dimensions)
            ]
            check_characters(len(first) * len(others), place)
            return all_of(f"({first} <=> {one})" for one in others)
        case EqualsFilter() | RangeFilter() | NullFilter():
            return _typed(node, scope.of(node.column, f"{place}.column"))
        case ExtractedFilter():
            column = scope.of(node.filter.dimension, f"{place}.dimension")
            where = f"{place}.extractionFn"
            value = extracted(node.extraction_fn, column, Granularity.parse("ALL"), where)
            return _of_text(node.filter, checked_size(value, where), place)
        case _:
            return _of_text(node, scope.of(node.dimension, f"{place}.dimension"), place)


def _typed(node: EqualsFilter | RangeFilter | NullFilter, value: Value) -> str:
    if isinstance(node, NullFilter):
        return f"({value.sql} IS NULL)"
    kind = _TYPES[node.match_value_type]
    if isinstance(node, EqualsFilter):
        return _compared(value, "=", node.match_value, kind)
    lower = "" if node.lower is None else ">" if node.lower_open else ">="
    upper = "" if node.upper is None else "<" if node.upper_open else "<="
    return all_of(
        _compared(value, operator, bound, kind)
        for operator, bound in ((lower, node.lower), (upper, node.upper))
        if bound is not None
    )


def _compared(value: Value, operator: str, given: Scalar, kind: ValueType) -> str:
    if kind == "STRING":
        return f"({value.text} {operator} {text_literal(text_of(given))})"
    is_cast = kind == "LONG" and value.type != "TIME"
    return _numeric(value.cast("LONG") if is_cast else value, operator, given)


def _numeric(value: Value, operator: str, given: Scalar) -> str:
    """Return the comparison of a number, or of a text as one, with a number."""
    text = text_of(given)
    whole = whole_number(text)
    if value.type == "TIME" and whole is not None and _is_time(whole):
        return f"({value.sql} {operator} {time_literal(whole)})"
    if whole is None:
        number = decimal_number(text)
        if number is None:
            raise InvalidRequest(f"{given!r:.40} is not a number, so nothing equals it")
        return f"({value.plain.number} {operator} {number_literal(number)})"
    literal = number_literal(whole)
    if value.type == "FLOAT":
        return f"({value.sql} {operator} CAST({literal} AS FLOAT))"
    return f"({value.plain.number} {operator} {literal})"


def _of_text(node: OfOneColumn, value: Value, place: str) -> str:
    match node:
        case SelectorFilter():
            return f"({value.sql} IS NULL)" if node.value is None else _equals(value, node.value)
        case InFilter():
            return _one_of(value, node.values)
        case LikeFilter():
            pattern = _like_pattern(node.pattern, node.escape)
            return f"({value.text} LIKE {text_literal(pattern)})"
        case RegexFilter():
            return f"({value.text} RLIKE {text_literal(node.pattern)})"
        case SearchFilter():
            matches = matches_all(value.text, search_pattern(node.query), f"{place}.query")
            return matches or f"({value.sql} IS NOT NULL)"
        case IntervalFilter():
            check_characters(2 * len(value.sql) * len(node.intervals), f"{place}.intervals")
            return inside(value, node.times) or "TRUE"
        case BoundFilter():
            lower = ">" if node.lower_strict else ">="
            upper = "<" if node.upper_strict else "<="
            bounds = ((lower, node.lower), (upper, node.upper))
            given = [(operator, bound) for operator, bound in bounds if bound is not None]
            if node.ordering == "numeric":
                return all_of(_numeric(value, operator, bound) for operator, bound in given)
            return all_of(
                f"({value.text} {operator} {text_literal(text_of(bound))})"
                for operator, bound in given
            )


def _equals(value: Value, given: Scalar) -> str:
    text = text_of(given)
    literal = _own_literal(value, text)
    if literal is None:
        # Never true for a number, and unknown for a missing one.
        return f"({value.text} = {text_literal(text)})"
    return f"({value.sql} = {literal})"


def _own_literal(value: Value, text: str) -> str | None:
    """Return the literal, of the type of a value, that a text stands for; None if there is none."""
    if value.type == "STRING":
        return text_literal(text)
    whole = whole_number(text)
    if whole is not None and value.type == "TIME":
        return time_literal(whole) if _is_time(whole) else None
    if whole is not None and value.type in {"LONG", "DOUBLE"}:
        return number_literal(whole)
    if value.type not in {"DOUBLE", "FLOAT"}:
        return None
    number = decimal_number(text)
    if number is None:
        return None
    literal = number_literal(number)
    return f"CAST({literal} AS FLOAT)" if value.type == "FLOAT" else literal


def _one_of(value: Value, values: Sequence[Scalar | None]) -> str:
    texts = [text_of(one) for one in values if one is not None]
    literals = [_own_literal(value, text) for text in texts]
    found = []
    if literals:
        # A text that is not a number equals no number, so the list of numbers leaves it out.
        shown, listed = value.sql, [one for one in literals if one is not None]
        if not listed:
            shown, listed = value.text, [text_literal(text) for text in texts]
        found.append(f"({shown} IN ({', '.join(listed)}))")
    if None in values:
        found.append(f"({value.sql} IS NULL)")
    return any_of(found) or "FALSE"


def _like_pattern(pattern: str, escape: str | None) -> str:
    """Return a pattern of Spark, whose escape character is a backslash."""
    parts: list[str] = []
    is_escaped = False
    for char in pattern:
        if not is_escaped and char == escape:
            is_escaped = True
            continue
        is_literal = char == "\\" or (is_escaped and char in "%_")
        parts.append(f"\\{char}" if is_literal else char)
        is_escaped = False
    return "".join(parts)


def inside(value: Value, intervals: Sequence[Interval]) -> str:
    """Return the condition that a time, or a number of milliseconds, is in one of the intervals.

    Empty if every time is.
    """
    return any_of(
        all_of(
            _bound(value, operator, ms)
            for operator, ms in ((">=", one.start_ms), ("<", one.end_ms))
        )
        or "TRUE"
        for one in intervals
    )


def _bound(value: Value, operator: str, ms: int) -> str:
    if ms in {START_OF_TIME_MS, END_OF_TIME_MS}:
        return ""
    if value.type == "TIME":
        return f"({value.sql} {operator} {time_literal(ms)})"
    return f"({value.cast('LONG').sql} {operator} {number_literal(ms)})"


def _is_time(ms: int) -> bool:
    return START_OF_TIME_MS <= ms < END_OF_TIME_MS
