"""Columns of a projection for a query: keys by name and by expression, and measures. Pure.

Owns which aggregate of groups equals an aggregate of rows. Sums over no groups are null, and counts
are 0. An average is divided as in Spark. AVG of bigint is not supported: Spark adds those as
doubles, so if large values cancel out its result differs from the exact sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.checked_expression import parsed_expression
from penstock.core.sql.shapes import Shape, shape
from penstock.spark.ddl import quoted
from penstock.spark.projections.grouped_query import WITHOUT_ZERO, NoMatch
from penstock.spark.projections.plan import GroupingKey, MeasureKind, ProjectionPlan
from penstock.spark.tables.table_files import Columns

_FLOATING: Final = frozenset({"float", "double"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_AVERAGED: Final = _FLOATING | _WHOLE - {"bigint"}


@dataclass(frozen=True, slots=True)
class ComputedKey:
    """A key that is an expression.

    Attributes:
        key: The key.
        form: Its shape.
        names: The columns in it, in lower case.
        is_fragile: Whether its zero may differ from that of a row, because -0.0 and 0.0 are one
            group.
    """

    key: GroupingKey
    form: Shape
    names: frozenset[str]
    is_fragile: bool


class ProjectionColumns:
    """The keys and measures of one projection.

    Attributes:
        stored: All names of its columns, which aliases must not use, case folded.
        columns: The names of the datasource's columns, case folded.
        names: The same in lower case.
        plain: The keys that are columns, by their names in lower case.
        fragile: Names, in lower case, of keys whose zero may differ.
        computed: The keys that are expressions not computable from others, by their shapes.
        time: The first key that is the truncated time; others are only expressions.
    """

    def __init__(self, plan: ProjectionPlan, columns: Columns) -> None:
        self._types = types = {name.lower(): type_ for name, type_ in columns}
        self.columns = frozenset(name.casefold() for name, _ in columns)
        self.names = frozenset(types)
        self.stored = frozenset(
            name.casefold()
            for name in (*(k.stored for k in plan.keys), *(m.stored for m in plan.measures))
        )
        self.plain = {k.stored.lower(): k for k in plan.keys if k.stored.lower() in types}
        self.fragile = frozenset(name for name in self.plain if types[name] in _FLOATING)
        others = [key for key in plan.keys if key.stored.lower() not in types]
        self.time = next((key for key in others if key.time is not None), None)
        computed = (_computed(key, types) for key in others)
        self.computed = {
            one.form: one for one in computed if one and not one.names <= self.plain.keys()
        }
        self._measures = {(m.kind, m.column.lower()): quoted(m.stored) for m in plan.measures}

    def has_fragile(self) -> bool:
        """Return whether any key's zero may differ."""
        return bool(self.fragile) or any(one.is_fragile for one in self.computed.values())

    def rows(self) -> str:
        """Return the number of rows."""
        return f"COALESCE(SUM({self._measure('rows', '')}), 0)"

    def aggregate(self, function: str, name: str) -> str:
        """Return an aggregate of a column over the groups.

        Args:
            function: COUNT, SUM, MIN, MAX or AVG.
            name: The column.

        Raises:
            NoMatch: The projection lacks the measure.
        """
        column = name.lower()
        key = self.plain.get(column)
        if function == "COUNT":
            if key is None:
                return f"COALESCE(SUM({self._measure('values', column)}), 0)"
            rows = self._measure("rows", "")
            return (
                f"COALESCE(SUM(CASE WHEN {quoted(key.stored)} IS NULL THEN 0 ELSE {rows} END), 0)"
            )
        if function in {"MIN", "MAX"}:
            if key is not None and column not in self.fragile:
                return f"{function}({quoted(key.stored)})"
            kind: MeasureKind = "min" if function == "MIN" else "max"
            return f"{function}({self._measure(kind, column)})"
        total = self._measure("sum", column)
        if function == "SUM":
            return f"SUM({total})"
        if self._types.get(column) not in _AVERAGED:
            raise NoMatch(f"AVG of {column}, a bigint, is computed in doubles: use SUM / COUNT")
        count = self._measure("values", column)
        return f"(SUM(CAST({total} AS DOUBLE)) / NULLIF(SUM({count}), 0))"

    def _measure(self, kind: MeasureKind, column: str) -> str:
        found = self._measures.get((kind, column))
        if found is None:
            what = {"values": "count", "sum": "sum"}.get(kind, kind)
            raise NoMatch(f"it has no {what} of {column}")
        return found


def shape_of(sql: str) -> Shape | None:
    """Return the shape of an expression or a condition of a plan; None if it has none."""
    parsed = _parsed(sql)
    return None if parsed is None else parsed[1]


def _parsed(sql: str) -> tuple[tree.Expression, Shape] | None:
    try:
        parsed = parsed_expression(sql)
    except InvalidRequest:  # narrow: restores nothing
        return None
    return parsed.root, shape(parsed.root, parsed.tokens)


def _computed(key: GroupingKey, types: Mapping[str, str]) -> ComputedKey | None:
    parsed = _parsed(key.sql)
    if parsed is None:
        return None
    root, form = parsed
    is_exact = _is_whole(root, types) or (
        isinstance(root, tree.Call) and root.name[-1].upper() in WITHOUT_ZERO
    )
    names = {node.parts[0].lower() for node in tree.walk(root) if isinstance(node, tree.Name)}
    return ComputedKey(key, form, frozenset(names), key.time is None and not is_exact)


def _is_whole(root: tree.Expression, types: Mapping[str, str]) -> bool:
    """Return whether an expression is a sum or product of whole numbers."""
    for node in tree.walk(root):
        match node:
            case tree.Name(parts=(name,)) if types.get(name.lower()) in _WHOLE:
                continue
            case tree.Number() if node.text.isdecimal():
                continue
            case tree.Operation() if set(node.operators) <= {"+", "-", "*"}:
                continue
            case tree.Unary(operator="+" | "-") | tree.Row(items=(_,)):
                continue
        return False
    return True
