"""Size limits of queries, checked before Spark plans them. Pure.

Owns the limits, and counts sizes on the tree of a query. The counts are lower bounds: a query below
every limit may still take too long, and then its time limit ends it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql_sizes import AS_TABLE_IN
from penstock.core.sql_text import Token, place

IN_MAX: Final = 10_000
# Constants are looked up in a set; Spark compares and compiles each other element.
IN_COMPUTED_MAX: Final = 500
# Number of tables after each WITH name is replaced by its query, as Spark does.
TABLES_MAX: Final = 500
# Operators on one path from the top of an expression down. Spark's stack tolerates 400 consecutive
# `+`, or 500 NOT; it balances a chain of AND or OR.
DEPTH_MAX: Final = 300
# Spark's stack tolerates 500 consecutive set operators.
UNIONS_MAX: Final = 400
# Spark resolves one pipe in each of its 100 iterations.
PIPES_MAX: Final = 80
# Words of one query after each name is replaced by its expression. It is above `TOKENS_MAX`, so a
# query that uses each name once stays below it.
EXPANDED_MAX: Final = 150_000
# Maximum number of words that replacements add to one expression. When Spark moves a condition
# below projections, an expression of 16,000 words takes 9 s.
REPLACED_MAX: Final = 20_000
GROUPING_SETS_MAX: Final = 4_096


def check_sizes(sql: str, tokens: Sequence[Token], nodes: Sequence[tree.Node]) -> None:
    """Refuse a query that would take too long in Spark's analyzer or optimizer.

    `check_text` and `statement_tokens` limit its text, and the parser its nesting.

    Args:
        sql: The text.
        tokens: Its tokens.
        nodes: The nodes of its tree, as `tree.walk` returns them; the first one is the query.

    Raises:
        InvalidRequest: A size is over its limit; the message names the place and the limit.
    """
    places = _SourceLocations(sql, tokens)
    root, pipes = nodes[0], 0
    for node in nodes:
        if isinstance(node, tree.Predicate) and node.operator == "IN":
            _check_list(places, node)
        elif isinstance(node, tree.GroupBy):
            _check_groups(places, node)
        elif isinstance(node, tree.Pipe):
            pipes += 1
    if pipes > PIPES_MAX:
        raise InvalidRequest(
            f"the statement has more than {PIPES_MAX} pipes |>, {places.of(root)}, {_RECURSIVE}: do"
            " more in each, as in EXTEND a + 1 AS b, a + 2 AS c"
        )
    _check_depths(places, nodes)
    _count_tables(places, root, None)
    assert isinstance(root, tree.Query)
    _Expressions(places).query(root, None)


_RECURSIVE: Final = "and Spark's planning is recursive"


@dataclass(frozen=True, slots=True)
class _SourceLocations:
    """The text of a statement, for the places in errors."""

    sql: str
    tokens: Sequence[Token]

    def of(self, node: tree.Node) -> str:
        """Return the line and column at which a node begins."""
        return place(self.sql, self.tokens[node.start].position)


def _check_list(places: _SourceLocations, node: tree.Predicate) -> None:
    """Limit the elements of an `IN (…)`."""
    computed = 0
    for number, one in enumerate(node.others, 1):
        computed += not isinstance(one, tree.Subquery) and not _is_constant(one)
        if number > IN_MAX or computed > IN_COMPUTED_MAX:
            most, what = IN_MAX, ""
            if number <= IN_MAX:
                most, what = IN_COMPUTED_MAX, " that are not constants"
            raise InvalidRequest(
                f"IN has more than {most} elements{what}, {places.of(one)}, and Spark plans each of"
                f" them: {AS_TABLE_IN}"
            )


def _is_constant(node: tree.Node) -> bool:
    """Return whether an element is looked up in a set."""
    constants = (tree.Number, tree.Text, tree.Constant, tree.TypedText, tree.Interval)
    signs = (tree.Row, tree.Unary, tree.Operation, tree.Parameter)
    return all(isinstance(one, constants + signs) for one in tree.walk(node))


def _check_groups(places: _SourceLocations, groups: tree.GroupBy) -> None:
    """Limit the grouping sets of a GROUP BY: Spark copies each row for each of them."""
    total = 1
    for item in (*groups.items, groups.sets):
        total *= 1 if item is None else _grouping_sets(item)
        if item is not None and total > GROUPING_SETS_MAX:
            raise InvalidRequest(
                f"GROUP BY has more than {GROUPING_SETS_MAX} grouping sets, {places.of(item)}, for"
                " each of which Spark copies each row: name those that you need with GROUPING"
                " SETS, or group by fewer expressions"
            )


def _grouping_sets(node: tree.Node) -> int:
    """Return the number of grouping sets of CUBE, ROLLUP or GROUPING SETS, otherwise 1."""
    if not isinstance(node, tree.GroupingSets):
        return 1
    if node.kind == "CUBE":
        return int(2 ** min(len(node.sets), 64))
    if node.kind == "ROLLUP":
        return len(node.sets) + 1
    return sum(map(_grouping_sets, node.sets))


# Nodes that are a level of Spark's tree of an expression or of a plan.
_LEVELS: Final = (
    *(tree.Unary, tree.Row, tree.Call, tree.Cast, tree.Case, tree.Subscript, tree.Field),
    *(tree.Collated, tree.AtZone, tree.Lambda, tree.Exists, tree.Subquery, tree.Derived),
    *(tree.Grouped, tree.Nested, tree.LateralView, tree.Pivot, tree.Unpivot),
)
_BALANCED: Final = frozenset({"AND", "OR"})
_FLAT: Final = frozenset({"BETWEEN", "IN"})


def _check_depths(places: _SourceLocations, nodes: Sequence[tree.Node]) -> None:
    """Limit chains of operators and set operators, each of which is a level of a tree.

    Args:
        places: The text.
        nodes: The nodes of the tree, each before those below it.
    """
    depths: dict[int, int] = {}  # by the identity of a node
    for node in reversed(nodes):
        below = [depths[id(one)] for one in tree.children(node)]
        depth = max(below, default=0)
        if isinstance(node, tree.Operation):
            if node.operators[0] not in _BALANCED:
                depth = functools.reduce(lambda spine, one: max(spine, one) + 1, below)
        elif isinstance(node, tree.Name):
            depth = len(node.parts) - 1
        elif isinstance(node, tree.Predicate):
            depth += node.operator not in _FLAT
        else:
            depth += isinstance(node, _LEVELS)
        if isinstance(node, tree.SetOperation):
            inner = (one for one in node.operands if isinstance(one, tree.SetOperation))
            if len(node.operators) + sum(len(one.operators) for one in inner) > UNIONS_MAX:
                raise InvalidRequest(
                    f"more than {UNIONS_MAX} consecutive set operators such as UNION,"
                    f" {places.of(node)}, {_RECURSIVE}: put some of them into parentheses, or"
                    " split it into several queries"
                )
        if depth > DEPTH_MAX:
            raise InvalidRequest(
                f"an expression has more than {DEPTH_MAX} nested operators, {places.of(node)},"
                f" {_RECURSIVE}: compute parts of it in a subquery, or write it with functions such"
                " as aggregate(array(…), …), concat(…) or coalesce(…)"
            )
        depths[id(node)] = depth


@dataclass(slots=True)
class _Costs:
    """Number of tables of each query that a WITH defines, by its name in lower case."""

    costs: dict[str, int]
    outer: _Costs | None

    def of(self, name: str) -> int:
        """Return the number of tables of a name, 1 if no WITH defines it."""
        scope: _Costs | None = self
        while scope is not None:
            if name in scope.costs:
                return scope.costs[name]
            scope = scope.outer
        return 1


def _count_tables(places: _SourceLocations, root: tree.Node, outer: _Costs | None) -> int:
    """Return the number of tables of a query after each name of WITH is replaced by its query."""
    total = 0
    waiting: list[tuple[tree.Node, _Costs | None]] = [(root, outer)]
    while waiting:
        node, known = waiting.pop()
        if isinstance(node, tree.Query) and node.definitions:
            known = _Costs({}, known)
            for one in node.definitions:
                known.costs[one.name.lower()] = _count_tables(places, one.query, known)
        elif isinstance(node, tree.Table):
            is_name = known is not None and len(node.parts) == 1
            total += known.of(node.parts[0].lower()) if known is not None and is_name else 1
        elif isinstance(node, tree.TableFunction | tree.InlineTable):
            total += 1
        if total > TABLES_MAX:
            raise InvalidRequest(
                f"the query reads more than {TABLES_MAX} tables once each name of WITH is replaced"
                f" by its query, {places.of(node)}: refer to each name less often, or store an"
                " intermediate result in a datasource"
            )
        below = (one for one in tree.children(node) if not isinstance(one, tree.Definition))
        waiting += [(one, known) for one in below]
    return total


# Total number of columns taken from subqueries: bounds the work of counting.
_MERGED_MAX: Final = 2_000_000


@dataclass(slots=True)
class _Scope:
    """The columns of one query, with their number of words after names are replaced.

    Attributes:
        outer: Scope of the enclosing query.
        known: Number of words by name in lower case.
        total: Words of its expressions.
        largest: Words of the largest expression.
    """

    outer: _Scope | None = None
    known: dict[str, int] = field(default_factory=dict)
    total: int = 0
    largest: int = 1

    def word_count(self, name: str) -> int:
        """Return the number of words of a name's expression; 1 if it is not a known column."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.known:
                return scope.known[name]
            scope = scope.outer
        return 1

    def merge(self, other: _Scope) -> None:
        """Add the columns of a query that this one reads."""
        for name, words in other.known.items():
            self.known[name] = max(words, self.known.get(name, 1))
        self.largest = max(self.largest, other.largest)


class _Expressions:
    """Counts the words of expressions after each name is replaced by its expression.

    Spark does so when it merges the projections of subqueries, WITH, pipes and aliases that refer
    to others in the same list. Columns with the same name are not distinguished: the larger counts.
    """

    def __init__(self, places: _SourceLocations) -> None:
        self._places = places
        self._with: dict[str, _Scope] = {}
        self._merged = 0

    def query(self, query: tree.Query, outer: _Scope | None) -> _Scope:
        """Return the columns of a query; raises as `check_sizes`."""
        for one in query.definitions:
            inside = self.query(one.query, outer)
            _rename(one.columns, inside)
            if known := self._with.get(one.name.lower()):
                self._merge(one, known, inside)
            self._with[one.name.lower()] = inside
        scope = self._body(query.body, outer)
        for part in (*query.sorts, *query.windows, query.limit, query.offset):
            self._clause(part, scope)
        return scope

    def _body(self, body: tree.Body, outer: _Scope | None) -> _Scope:
        scope = _Scope(outer)
        match body:
            case tree.Select():
                if body.source is not None:
                    self._relation(body.source, scope)
                for part in (body.where, body.groups, body.having, body.qualify, *body.windows):
                    self._clause(part, scope)
                self._columns(body.items, scope)
            case tree.SetOperation():
                found = [self._body(one, outer) for one in body.operands]
                scope = self._united(body, found, outer)
            case tree.Nested():
                scope = self.query(body.query, outer)
            case tree.Values():
                self._relation(body.table, scope)
            case tree.WholeTable():
                self._relation(body.table, scope)
            case tree.Pipe():
                scope = self._pipe(body, self._body(body.source, outer), outer)
        return scope

    def _united(self, node: tree.Node, found: Sequence[_Scope], outer: _Scope | None) -> _Scope:
        """Return the columns of queries between set operators, with the names of the first."""
        scope = _Scope(outer)
        for one in found:
            self._merge(node, one, scope)
            scope.total += one.total
        scope.known.update(dict.fromkeys(found[0].known, scope.largest))
        return scope

    def _pipe(self, pipe: tree.Pipe, scope: _Scope, outer: _Scope | None) -> _Scope:
        if pipe.groups is not None:
            self._clause(pipe.groups, scope)
        others = []
        for part in pipe.parts:
            match part:
                case tree.Select():
                    self._columns(part.items, scope)
                case tree.Body():
                    others.append(self._body(part, outer))
                case tree.Relation():
                    self._relation(part, scope)
                case tree.Expression() if pipe.operator != "WHERE":
                    self._columns((part,), scope)
                case _:
                    self._clause(part, scope)
        return self._united(pipe, [scope, *others], outer) if others else scope

    def _relation(self, relation: tree.Relation, scope: _Scope) -> None:
        """Add the columns of relations; those on the left come first, as in LATERAL."""
        waiting: list[tree.Node | tuple[str, ...]] = [relation]
        while waiting:
            match node := waiting.pop():
                case tree.Relation():
                    waiting.append(node.columns)
                    waiting.extend(self._parts(node, scope))
                case tree.Node():
                    self._clause(node, scope)
                case columns:
                    _rename(columns, scope)

    def _parts(self, node: tree.Relation, scope: _Scope) -> Sequence[tree.Node]:
        """Add the columns of a table or a query; return the parts of others, the last one first."""
        match node:
            case tree.Table(parts=(name,)) if name.lower() in self._with:
                self._merge(node, self._with[name.lower()], scope)
            case tree.Derived():
                outer = scope if scope.known else scope.outer
                self._merge(node, self.query(node.query, outer), scope)
            case _:
                return [*reversed([*tree.children(node)])]
        return ()

    def _columns(self, items: Sequence[tree.Expression], scope: _Scope) -> None:
        """Count the columns that a SELECT, EXTEND, SET or AGGREGATE defines."""
        for item in items:
            words = self._clause(item, scope)
            match item:
                case tree.Aliased():
                    scope.known.update(dict.fromkeys(map(str.lower, item.names), words))
                case tree.Named():
                    scope.known[item.name.lower()] = words
                case tree.Name():
                    scope.known[item.parts[-1].lower()] = words

    def _clause(self, clause: tree.Node | None, scope: _Scope) -> int:
        """Count the words of an expression or a clause, and return them."""
        if clause is None:
            return 0
        words = 0
        waiting = [clause]
        while waiting:
            node = waiting.pop()
            if isinstance(node, tree.Query):
                words += self.query(node, scope if scope.known else scope.outer).total
            elif isinstance(node, tree.Name):
                words += sum(scope.word_count(part.lower()) for part in node.parts)
            else:
                words += isinstance(node, tree.Expression)
                waiting.extend(tree.children(node))
        scope.total += words
        scope.largest = max(scope.largest, words)
        if words - (clause.end - clause.start) > REPLACED_MAX:
            self._refuse(clause, "an expression", REPLACED_MAX)
        if scope.total > EXPANDED_MAX:
            self._refuse(clause, "a query", EXPANDED_MAX)
        return words

    def _merge(self, node: tree.Node, query: _Scope, scope: _Scope) -> None:
        """Add the columns of a query that another one reads."""
        self._merged += len(query.known)
        if self._merged > _MERGED_MAX:
            self._refuse(node, "a query", _MERGED_MAX)
        scope.merge(query)

    def _refuse(self, node: tree.Node, what: str, most: int) -> NoReturn:
        raise InvalidRequest(
            f"{what} has more than {most} words after each alias is replaced by its expression,"
            f" {self._places.of(node)}, as Spark does when it merges projections: refer to each"
            " alias less often, or store an intermediate result in a datasource"
        )


def _rename(columns: Sequence[str], scope: _Scope) -> None:
    """Record the columns of `name (columns)`, each as large as the largest known one."""
    scope.known.update(dict.fromkeys(map(str.lower, columns), scope.largest))
