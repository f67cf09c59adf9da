"""A projection's filter as conditions in Spark SQL, as queries write them. Pure.

Owns which filters mean exactly the same as a plain comparison. A query that has this comparison
among its AND conditions then needs only rows that the projection has. Other filters have no plan.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from penstock.indexing.specs import (
    AndFilter,
    EqualsFilter,
    Filter,
    InFilter,
    NotFilter,
    NullFilter,
    RangeFilter,
    SelectorFilter,
)
from penstock.indexing.specs.druid_expressions import is_druids
from penstock.indexing.specs.filters import ExpressionFilter, TrueFilter
from penstock.spark.schema_text import quoted

Scalar = str | int | float | bool

_WHOLE_NUMBER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_LONG_MAX: Final = 2**63
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})


class Unresolved(Exception):
    """There is no exact counterpart in Spark SQL: the projection is left out."""


class ColumnSource(Protocol):
    """Lookup of a datasource's columns."""

    def column(self, name: str) -> tuple[str, str]:
        """Return (name, type) of a column.

        Raises:
            Unresolved: There is no such column.
        """
        ...

    def inlined(self, sql: str, *, translated: bool, nested: int = 0) -> str:
        """Return an expression over the columns.

        Raises:
            Unresolved: It has no exact counterpart.
        """
        ...


def conditions(node: Filter, source: ColumnSource) -> tuple[str, ...]:
    """Return the conditions that all rows meet; empty: every row counts.

    Raises:
        Unresolved: No comparison of Spark SQL has exactly this meaning.
    """
    match node:
        case TrueFilter():
            return ()
        case AndFilter():
            return tuple(one for field in node.fields for one in conditions(field, source))
        case ExpressionFilter():
            return (source.inlined(node.sql, translated=is_druids(node.expression)),)
        case NotFilter(field=NullFilter() as inner):
            return (f"{quoted(source.column(inner.column)[0])} IS NOT NULL",)
        case NullFilter(column=column) | SelectorFilter(dimension=column, value=None):
            return (f"{quoted(source.column(column)[0])} IS NULL",)
        case SelectorFilter():
            name, type_ = source.column(node.dimension)
            return (f"{quoted(name)} = {_as_text(node.value, type_)}",)
        case InFilter() if node.values:
            name, type_ = source.column(node.dimension)
            values = ", ".join(_as_text(value, type_) for value in node.values)
            return (f"{quoted(name)} IN ({values})",)
        case EqualsFilter():
            name, type_ = source.column(node.column)
            return (f"{quoted(name)} = {_typed(node.match_value, node.match_value_type, type_)}",)
        case RangeFilter():
            name, type_ = source.column(node.column)
            signs = (">" if node.lower_open else ">=", "<" if node.upper_open else "<=")
            return tuple(
                f"{quoted(name)} {sign} {_typed(bound, node.match_value_type, type_)}"
                for sign, bound in zip(signs, (node.lower, node.upper), strict=True)
                if bound is not None
            )
        case _:
            raise Unresolved(node.type)


def _as_text(value: Scalar | None, type_: str) -> str:
    """Return a literal that equals the column exactly if the column's text equals the value."""
    if type_ == "string" and isinstance(value, str | int):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"'{text.translate(_ESCAPES)}'"
    if type_ == "bigint" and isinstance(value, int | str) and not isinstance(value, bool):
        return _whole(str(value))
    raise Unresolved(str(value))


def _typed(value: Scalar, asked: str, type_: str) -> str:
    """Return a literal of the requested type, which must be the column's type."""
    if asked == type_ == "string":
        return _as_text(value, type_)
    if asked == "long" and type_ == "bigint" and type(value) is int:
        return _whole(str(value))
    raise Unresolved(str(value))


def _whole(text: str) -> str:
    if not _WHOLE_NUMBER.fullmatch(text) or not -_LONG_MAX < int(text) < _LONG_MAX:
        raise Unresolved(text)
    return text
