"""Columns of a projection for a query: keys by name and by expression, and measures. Pure.

Owns which aggregate of groups equals an aggregate of rows. Sums over no groups are null, and counts
are 0. An average is divided as in Spark. AVG of bigint is not supported: Spark adds those as
doubles, so if large values cancel out its result differs from the exact sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.sql_text import Token, tokens
from penstock.spark.ddl import quoted
from penstock.spark.projections.parsed_query import KEYWORDS, WITHOUT_ZERO, NoMatch, is_number
from penstock.spark.projections.plan import GroupingKey, MeasureKind, ProjectionPlan
from penstock.spark.tables.table_files import Columns

Normal = tuple[str, str]

_FLOATING: Final = frozenset({"float", "double"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_AVERAGED: Final = _FLOATING | _WHOLE - {"bigint"}


@dataclass(frozen=True, slots=True)
class ComputedKey:
    """A key that is an expression.

    Attributes:
        key: The key.
        form: Its tokens, as returned by `normal`.
        is_call: Whether it is a single call, which surrounding tokens cannot split.
        is_fragile: Whether its zero may differ from that of a row, because -0.0 and 0.0 are one
            group.
    """

    key: GroupingKey
    form: tuple[Normal, ...]
    is_call: bool
    is_fragile: bool


class ProjectionColumns:
    """The keys and measures of one projection.

    Attributes:
        stored: All names of its columns, which aliases must not use, case folded.
        columns: The names of the datasource's columns, case folded.
        names: The same in lower case.
        plain: The keys that are columns, by their names in lower case.
        fragile: Names, in lower case, of keys whose zero may differ.
        computed: The keys that are expressions not computable from others, by their first tokens.
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
        self.computed: dict[Normal, list[ComputedKey]] = {}
        for one in (_computed(key, types) for key in others):
            if not all(name in self.plain for kind, name in one.form if kind == "name"):
                self.computed.setdefault(one.form[0], []).append(one)
        self._measures = {(m.kind, m.column.lower()): quoted(m.stored) for m in plan.measures}

    def has_fragile(self) -> bool:
        """Return whether any key's zero may differ."""
        return bool(self.fragile) or any(
            one.is_fragile for some in self.computed.values() for one in some
        )

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


def normal(found: Sequence[Token]) -> tuple[Normal, ...]:
    """Return tokens in normal form: names without quotes and case, key words without case."""
    followed = [*(token.text for token in found[1:]), ""]
    return tuple(_normal(token, after) for token, after in zip(found, followed, strict=False))


def _normal(token: Token, after: str) -> Normal:
    if token.is_text:
        return ("text", token.raw)
    if not token.name:
        return ("mark", token.raw)
    if is_number(token):
        return ("number", token.raw.lower())
    if token.text and (token.text in KEYWORDS or after == "("):
        return ("word", token.text)
    return ("name", token.name.lower())


def closing_parentheses(form: Sequence[Normal]) -> dict[int, int]:
    """Return the index of the closing parenthesis for each opening one."""
    opened: list[int] = []
    found: dict[int, int] = {}
    for at, one in enumerate(form):
        if one == ("mark", "("):
            opened.append(at)
        elif one == ("mark", ")") and opened:
            found[opened.pop()] = at
    return found


def _computed(key: GroupingKey, types: Mapping[str, str]) -> ComputedKey:
    form = normal(tokens(key.sql))
    is_call = closing_parentheses(form).get(1) == len(form) - 1 and form[0][0] == "word"
    is_exact = (is_call and form[0][1] in WITHOUT_ZERO) or _is_whole(form, types)
    return ComputedKey(key, form, is_call, key.time is None and not is_exact)


def _is_whole(form: tuple[Normal, ...], types: Mapping[str, str]) -> bool:
    """Return whether an expression is a sum or product of whole numbers."""
    return all(
        (kind == "name" and types.get(text) in _WHOLE)
        or (kind == "number" and text.isdecimal())
        or (kind == "mark" and text in {"+", "-", "*", "(", ")"})
        for kind, text in form
    )
