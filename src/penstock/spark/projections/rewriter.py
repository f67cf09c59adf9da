"""Rewriter of the expressions of a query for the groups of a projection.

`QueryRewriter` owns which nodes an expression may contain: others are refused. It keeps the form of
the query: aggregates become aggregates of measures, and expressions become the keys that they
equal, so Spark treats the rest of the query as before. `nests` and `starts_bucket` decide which
conditions on a time the start of its bucket satisfies too. Everything is pure.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import Final

from penstock.core.durations import DAY_MS
from penstock.core.intervals import Granularity
from penstock.core.sql import tree
from penstock.core.sql.shapes import Shape, shape
from penstock.core.sql.writer import written
from penstock.spark.ddl import quoted
from penstock.spark.projections.grouped_query import (
    AGGREGATES,
    EXTRACTED,
    FUNCTIONS,
    PARTS,
    TRUNCATED,
    TYPES,
    GroupedQuery,
    NoMatch,
)
from penstock.spark.projections.plan import GroupingKey
from penstock.spark.projections.projection_columns import ComputedKey, ProjectionColumns

_TIME: Final = re.compile(
    r"'([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?'",
    re.ASCII,
)
_DAY_LENGTH: Final = len("'2024-01-01'")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def nests(cut: Granularity, unit: str) -> bool:
    """Return whether each bucket of a granularity lies in one of a unit such as DAY."""
    if cut.zoned is not None or cut.given:
        return False
    coarser = Granularity.parse(unit)
    if cut.months:
        return coarser.months > 0 and coarser.months % cut.months == 0
    # Months begin at a midnight in every time zone.
    length_ms = DAY_MS if coarser.months else coarser.fixed_ms
    if not cut.fixed_ms or length_ms % cut.fixed_ms:
        return False
    return (coarser.origin_ms - cut.origin_ms) % cut.fixed_ms == 0


def starts_bucket(cut: Granularity, literal: str, *, is_date: bool) -> bool:
    """Return whether a literal is the start of a bucket.

    Args:
        cut: The granularity.
        literal: In its quotes, as it was written; without a zone it is UTC.
        is_date: Whether it may have no time of the day.
    """
    found = _TIME.fullmatch(literal)
    if found is None or (is_date and len(literal) > _DAY_LENGTH):
        return False
    day, clock, fraction, zone = found.groups()
    text = f"{day}T{clock or '00:00:00'}{(fraction or '.0').ljust(7, '0')}{zone or 'Z'}"
    try:
        since = dt.datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError):
        return False
    ms, rest = divmod(since, _MILLISECOND)
    return not rest and cut.truncate(ms) == ms


_TIME_COLUMN: Final = "__time"
_CONSTANTS: Final = frozenset({"NULL", "TRUE", "FALSE"})
_LITERALS: Final = frozenset({"DATE", "TIMESTAMP"})
_OPERATORS: Final = frozenset(
    {"AND", "OR", "=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=", "||"}
    | {"+", "-", "*", "/", "%", "DIV"}
)
_PREDICATES: Final = frozenset(
    {"BETWEEN", "IN", "LIKE", "ILIKE", "RLIKE", "IS NULL", "IS TRUE", "IS FALSE", "IS UNKNOWN"}
    | {"IS DISTINCT FROM"}
)


@dataclass(slots=True)
class QueryRewriter:
    """A query that is being rewritten.

    Attributes:
        query: The query.
        has: The columns of the projection.
        time: The key that replaces the time; None: the time is unchanged, or not a key.
        aliases: The names of items, in lower case.
    """

    query: GroupedQuery
    has: ProjectionColumns
    time: GroupingKey | None
    aliases: frozenset[str]
    _replaced: dict[int, tuple[int, str]] = field(default_factory=dict)
    _sees_aliases: bool = False
    _aggregates: int = 0

    def replace(self, node: tree.Node, text: str) -> None:
        """Replace a node by a text."""
        self._replaced[node.start] = (node.end, text)

    def replace_table(self, text: str) -> None:
        """Replace the name of the datasource in FROM; another name that it gets there stays."""
        start = self.query.table.start
        self._replaced[start] = (start + 1, text)

    def text(self) -> str:
        """Return the query with all replacements."""
        checked = self.query.checked
        return written(checked.text, checked.tokens, checked.root, self._replaced)

    def rewrite(self, node: tree.Expression, *, sees_aliases: bool) -> bool:
        """Rewrite an expression; return whether it contains an aggregate.

        Args:
            node: The expression: an item, a condition, or an item of GROUP BY or ORDER BY.
            sees_aliases: Whether names of select items are visible in it.

        Raises:
            NoMatch: The projection lacks a column, or a part is not supported.
        """
        self._sees_aliases, self._aggregates = sees_aliases, 0
        self._value(node, is_alone=True)
        return self._aggregates > 0

    def shape(self, node: tree.Expression) -> Shape:
        """Return the shape of an expression of the query."""
        return shape(node, self.query.checked.tokens, self.query.qualifier)

    def _value(self, node: tree.Expression, *, is_alone: bool = False) -> None:
        """Rewrite an expression; `is_alone`: it is not part of another one."""
        if computed := self._computed(node):
            if computed.is_fragile and not is_alone:
                raise self._with_two_zeros(node)
            self.replace(node, quoted(computed.key.stored))
            return
        match node:
            case tree.Number() | tree.Text() | tree.Parameter():
                return
            case tree.Constant() if node.word in _CONSTANTS:
                return
            case tree.TypedText() if node.type in _LITERALS:
                return
            case tree.Name():
                self._name(node, is_alone=is_alone)
                return
            case tree.Call():
                self._call(node)
                return
            case tree.Cast():
                inner = self._cast(node)
            case tree.Operation() if _OPERATORS.issuperset(node.operators):
                inner = self._operands(node)
            case tree.Predicate() if node.operator in _PREDICATES:
                inner = (node.operand, *node.others)
            case tree.Case():
                ends = (one for one in (node.operand, node.otherwise) if one is not None)
                inner = (*node.branches, *ends)
            case tree.Unary() if node.operator != "~":
                inner = (node.operand,)
            case tree.Row(items=(only,)) if not isinstance(only, tree.Aliased):
                inner = (only,)
            case _:
                raise NoMatch(f"{self.query.text(node)} is not supported here")
        for one in inner:
            self._value(one)

    def _computed(self, node: tree.Expression) -> ComputedKey | None:
        if not self.has.computed or isinstance(node, tree.Name | tree.Row):
            return None
        return self.has.computed.get(self.shape(node))

    def _with_two_zeros(self, node: tree.Node) -> NoMatch:
        return NoMatch(f"{self.query.text(node)}, which has two zeros, is in an expression")

    def _name(self, node: tree.Name, *, is_alone: bool) -> None:
        name = self.query.column(node)
        if name == _TIME_COLUMN and self.time is not None:
            raise NoMatch(
                f"{self.query.text(node)} is truncated to {self.time.time}, but the query is finer"
            )
        is_fragile = name in self.has.fragile
        if name not in self.has.plain:
            is_alias = self._sees_aliases and len(node.parts) == 1 and name in self.aliases
            if not is_alias or "(" in name:
                raise NoMatch(f"{self.query.text(node)} is not one of its keys")
            is_fragile = self.has.has_fragile()
        if is_fragile and not is_alone:
            raise self._with_two_zeros(node)

    def _call(self, call: tree.Call) -> None:
        name = call.name[-1].upper()
        if name == "EXTRACT" and call.form == ("FROM",):
            self._extract(call)
            return
        clauses = call.within, call.condition, call.over, call.nulls, call.form
        if any(clauses) or len(call.name) > 1 or name not in AGGREGATES | FUNCTIONS:
            raise NoMatch(f"{self.query.text(call)} is not supported")
        if call.is_distinct:
            raise NoMatch("DISTINCT is not supported")
        if name in AGGREGATES:
            self.replace(call, self._aggregate(name, call.arguments))
            self._aggregates += 1
        elif not self._is_part_of_time(name, call.arguments):
            for one in call.arguments:
                self._value(one)

    def _extract(self, call: tree.Call) -> None:
        part, value = call.arguments
        word = part.parts[0].upper() if isinstance(part, tree.Name) else ""
        if word not in EXTRACTED:
            raise NoMatch(f"{self.query.text(call)} is not supported")
        if not self._replace_time(value, EXTRACTED[word]):
            self._value(value)

    def _aggregate(self, name: str, arguments: tuple[tree.Expression, ...]) -> str:
        """Return an aggregate over the groups instead of one over the rows."""
        match arguments:
            case (tree.Star(qualifier=(), without=()),) if name == "COUNT":
                return self.has.rows()
            case (tree.Number() as number,) if name == "COUNT" and number.text.isdecimal():
                return self.has.rows()
            case (tree.Name() as column,) if self.query.column(column):
                function = "AVG" if name == "MEAN" else name
                return self.has.aggregate(function, self.query.column(column))
            case _:
                raise NoMatch(f"the argument of {name} is not a column")

    def _cast(self, cast: tree.Cast) -> tuple[tree.Expression, ...]:
        """Return the parts of a cast that are still to be rewritten."""
        if cast.type.name not in TYPES or cast.type.end - cast.type.start > 1:
            raise NoMatch(f"the type {self.query.text(cast.type)} is not supported")
        if cast.type.name == "DATE" and self._replace_time(cast.value, "DAY"):
            return ()
        return (cast.value,)

    # the time

    def _replace_time(self, node: tree.Expression, unit: str) -> bool:
        """Replace the time by its key if each bucket lies in one of a unit; return whether."""
        key = self.time
        if key is None or self.query.column(node) != _TIME_COLUMN:
            return False
        if key.time is None or not nests(key.time, unit):
            return False
        self.replace(node, quoted(key.stored))
        return True

    def _is_part_of_time(self, name: str, arguments: tuple[tree.Expression, ...]) -> bool:
        """Replace the time in a call that is constant within a bucket; return whether it is one."""
        match arguments:
            case (time,) if name in PARTS:
                return self._replace_time(time, PARTS[name])
            case (tree.Text(value=str(unit)), time) if name == "DATE_TRUNC":
                return unit.upper() in TRUNCATED and self._replace_time(time, unit.upper())
            case _:
                return False

    def _operands(self, node: tree.Operation) -> tuple[tree.Expression, ...]:
        """Return the operands that are still to be rewritten.

        A time that is compared with the start of a bucket, by `>=` or `<`, becomes its key.
        """
        key = self.time
        if node.operators not in {(">=",), ("<",)} or key is None or key.time is None:
            return node.operands
        time, literal = node.operands
        if self.query.column(time) != _TIME_COLUMN:
            return node.operands
        is_date = isinstance(literal, tree.TypedText) and literal.type == "DATE"
        if isinstance(literal, tree.TypedText) and literal.type in _LITERALS:
            literal = literal.text
        if not isinstance(literal, tree.Text) or literal.end - literal.start > 1:
            return node.operands
        raw = self.query.checked.tokens[literal.start].raw
        if not starts_bucket(key.time, raw, is_date=is_date):
            return node.operands
        self.replace(time, quoted(key.stored))
        return ()
