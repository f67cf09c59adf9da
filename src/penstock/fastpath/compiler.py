"""Compiler of queries over one datasource, from their syntax tree to DuckDB's SQL. Pure.

Owns which clauses are covered, and the form of the SQL: a query without aggregates is one SELECT; a
query with groups is one SELECT that computes keys and partial aggregates, and one around it. A
query in parentheses is the relation `rows` of the one around it. Other clauses are not compiled, so
that Spark answers the query. Texts of the statement are parameters of the SQL, and the names of
results stay outside of it.

Source of the rules for names: the page "Name resolution" of Spark's SQL reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from penstock.core.column_case import case_variants_in
from penstock.core.sql import tree
from penstock.core.sql.metadata_tables import DRUID_SCHEMA
from penstock.fastpath.aggregates import aggregate, is_aggregate
from penstock.fastpath.compiled_query import (
    NEWEST_ROWS_MAX,
    CompiledQuery,
    FastValue,
    NewestRows,
    NotCompiled,
)
from penstock.fastpath.expressions import Expressions
from penstock.fastpath.fragments import (
    DUCKDB_TYPES,
    Fragment,
    TimeBounds,
    has_values,
    left_to_spark,
    numbered,
    of_column,
)
from penstock.spark.tables.table_files import Columns
from penstock.spark.topic.row_shape import TIME_COLUMN

NODES_MAX: Final = 5_000
"""Maximum number of nodes of a tree, which bounds the time of the compiler."""
COMPILED_BYTES_MAX: Final = 1_000_000
"""Maximum size of the SQL and the texts among its parameters: each process gets them."""
DEPTH_MAX: Final = 100
"""Maximum number of nodes within each other: each is up to six calls, of which Python allows 1,000.
"""
DEFINITIONS_MAX: Final = 20
"""Maximum number of definitions of WITH: each may be within the one after it."""

# Compared with a hash of a value, which makes DuckDB compute the value; equal once in 2^64 times,
# and then Spark answers.
_UNLIKELY_HASH: Final = "1234567890123456789"
_SORTED: Final = {
    ("", ""): "ASC NULLS FIRST",
    ("", "FIRST"): "ASC NULLS FIRST",
    ("", "LAST"): "ASC NULLS LAST",
    ("ASC", ""): "ASC NULLS FIRST",
    ("ASC", "FIRST"): "ASC NULLS FIRST",
    ("ASC", "LAST"): "ASC NULLS LAST",
    ("DESC", ""): "DESC NULLS LAST",
    ("DESC", "FIRST"): "DESC NULLS FIRST",
    ("DESC", "LAST"): "DESC NULLS LAST",
}
_ORDINAL: Final = re.compile(r"[0-9]{1,4}")
_COUNT: Final = re.compile(r"[0-9]{1,9}")


def compile_query(
    query: tree.Query,
    datasource: str,
    columns: Columns,
    parameters: Sequence[object] = (),
    now_us: int | None = None,
) -> CompiledQuery:
    """Return a query for the embedded engine.

    Args:
        query: The tree of the text that Spark would get, which has none of Druid's functions.
        datasource: The stored name of the only datasource that it reads.
        columns: The names and Spark types of the columns that statements see.
        parameters: The values of each `?`.
        now_us: The value of CURRENT_TIMESTAMP, in microseconds since the epoch; None: a statement
            with it is not compiled.

    Raises:
        NotCompiled: Spark must answer it.
    """
    _check_tree(query)
    scope = _Scope(datasource, columns, parameters, now_us)
    found = scope.compile_query(query)
    bounds = found.bounds or TimeBounds()
    sql, values = numbered(found.sql, found.parameters)
    texts = (sql, *(one for one in values if isinstance(one, str)))
    if sum(len(one.encode()) for one in texts) > COMPILED_BYTES_MAX:
        raise NotCompiled("size")
    return CompiledQuery(
        datasource,
        sql,
        values,
        tuple((name, type_) for name, type_ in columns if name in scope.used),
        found.columns,
        None if bounds.start is None else bounds.start // 1_000,
        None if bounds.end is None else -(-bounds.end // 1_000),
        bool(query.sorts),
        _newest(query, sql) if found.is_newest else None,
    )


def _check_tree(query: tree.Query) -> None:
    """Refuse a tree with too many nodes, or too many within each other."""
    nodes, level = 1, list(tree.children(query))
    for _ in range(DEPTH_MAX):
        if not level:
            return
        nodes += len(level)
        if nodes > NODES_MAX:
            break
        level = [below for node in level for below in tree.children(node)]
    raise NotCompiled("size")


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of SELECT, with its alias; empty: it has none."""

    node: tree.Expression
    alias: str


@dataclass(slots=True)
class _Text:
    """SQL that grows at its end, with its parameters.

    Attributes:
        sql: The SQL.
        parameters: The values of its parameters, in order.
        columns: Names and types of its result.
        bounds: The times of rows that it reads; None: all.
        raises: Whether a value of its result can be an error.
        time: The column of its result that is the time of rows; empty: there is none.
        is_newest: Whether its first key of order is the time of rows, the newest first.
    """

    sql: str = ""
    parameters: tuple[FastValue, ...] = ()
    columns: Columns = ()
    bounds: TimeBounds | None = None
    raises: bool = False
    time: str = ""
    is_newest: bool = False

    def add(self, sql: str, parameters: tuple[FastValue, ...] = ()) -> None:
        self.sql += sql
        self.parameters += parameters


@dataclass(frozen=True, slots=True)
class _Relation:
    """The datasource or the query in parentheses that a query reads.

    Attributes:
        alias: The name that may stand before a column's name.
        columns: The names and types of its columns.
        text: Its SQL, whose columns are `stored`.
        stored: The names of the columns in `text`, by the names that statements see.
        time: The name in `text` of the time of rows; empty: it is not among the columns.
    """

    alias: str
    columns: Columns
    text: _Text
    stored: Mapping[str, str]
    time: str


class _Rows(Expressions):
    """Compiles expressions of one row of a relation."""

    def __init__(
        self, relation: _Relation, parameters: Sequence[object], now_us: int | None
    ) -> None:
        super().__init__(parameters, now_us)
        names = [name for name, _ in relation.columns]
        if case_variants_in(names) or len(set(names)) < len(names):
            raise NotCompiled("case variants")
        self.relation = relation
        self.columns = relation.columns
        self.qualifiers = {relation.alias.lower()} - {""}
        self.used: set[str] = set()
        self._types = dict(relation.columns)
        self._by_name = {name.lower(): name for name in names}
        # By the id of the node, because expressions of groups are looked up at each level.
        self._compiled: dict[int, Fragment | NotCompiled] = {}

    def compile(self, node: tree.Expression) -> Fragment:
        """Return the piece of an expression, computed once for each node."""
        found = self._compiled.get(id(node))
        if found is None:
            try:
                found = super().compile(node)
            except NotCompiled as error:
                found = error
            self._compiled[id(node)] = found
        if isinstance(found, NotCompiled):
            raise found
        return found

    def find(self, node: tree.Name) -> str:
        """Return the stored name of a column; empty: there is none."""
        *qualifier, name = node.parts
        if qualifier:
            is_known = len(qualifier) == 1 and qualifier[0].lower() in self.qualifiers
            if not is_known or qualifier[0].lower() in self._by_name:
                raise NotCompiled("qualified name")
        found = self._by_name.get(name.lower(), "")
        if found != name and not (found.isascii() and name.isascii()):
            raise NotCompiled("case of a name")
        return found

    def _name(self, node: tree.Name) -> Fragment:
        found = self.find(node)
        if not found:
            raise NotCompiled("name")
        self.used.add(found)
        piece = of_column(self.relation.stored[found], self._types[found])
        is_time = self.relation.stored[found] == self.relation.time
        return replace(piece, name=node.parts[-1], is_time=is_time)

    def _replaced(self, node: tree.Expression) -> Fragment | None:
        if is_aggregate(node):
            raise NotCompiled("aggregate of an aggregate")
        return None


# By name in lower case: a definition of WITH, and those that it knows.
_Definitions = Mapping[str, tuple[tree.Definition, "_Definitions"]]


class _Scope:
    """Compiles the queries of a statement, one around the other; `used` are the columns it reads.

    Args:
        datasource: As in `compile_query`.
        columns: As there.
        parameters: As there.
        now_us: As there.
    """

    def __init__(
        self,
        datasource: str,
        columns: Columns,
        parameters: Sequence[object],
        now_us: int | None,
    ) -> None:
        self._datasource = datasource
        self._columns = columns
        self._parameters = parameters
        self._now_us = now_us
        self.used: set[str] = set()

    def compile_query(self, query: tree.Query, known: _Definitions = MappingProxyType({})) -> _Text:
        """Return the SQL of a query; `known` are the definitions of the queries around it."""
        if query.windows:
            raise NotCompiled("window")
        known = _with_definitions(query, known)
        body = query.body
        if not isinstance(body, tree.Select):
            raise NotCompiled(type(body).__name__.lower())
        if body.hints or body.windows or body.qualify is not None:
            raise NotCompiled("hint" if body.hints else "window")
        if any(sort.kind != "ORDER BY" for sort in query.sorts) or len(query.sorts) > 1:
            raise NotCompiled("sort by")
        relation = self._relation(body.source, known)
        rows = _Rows(relation, self._parameters, self._now_us)
        items = _items(body.items, rows)
        order = query.sorts[0].items if query.sorts else ()
        where = None if body.where is None else rows.condition(body.where)
        if where is not None and where.raises:
            raise NotCompiled("error in a condition")
        if isinstance(body.where, tree.Row) and isinstance(body.where.items[0], tree.Name):
            # Spark takes `wiki WHERE (flag)` for a table with the alias WHERE and a column flag.
            raise NotCompiled("condition")
        limit = _limit(query)
        is_grouped = (
            body.groups is not None
            or body.having is not None
            or body.is_distinct
            or any(_has_aggregate(item.node) for item in items)
            or any(_has_aggregate(item.value) for item in order)
        )
        if is_grouped:
            found = _Grouped(rows, items, body).compile_query(order, where, limit)
        else:
            found = _selected(rows, items, order, where, limit)
        found.bounds = relation.text.bounds
        if where is not None and where.bounds is not None:
            found.bounds = where.bounds.within(found.bounds or TimeBounds())
        if relation.columns is self._columns:
            self.used |= rows.used
        return found

    def _relation(self, source: tree.Relation | None, known: _Definitions) -> _Relation:
        """Return what a query reads.

        Raises:
            NotCompiled: It is not the datasource, or a query over it without a limit.
        """
        if isinstance(source, tree.Table | tree.Derived) and source.sample is not None:
            raise NotCompiled("sample")
        if isinstance(source, tree.Derived):
            if source.is_lateral or source.columns:
                raise NotCompiled("derived")
            return self._derived(source.query, source.alias, known)
        if not isinstance(source, tree.Table) or source.columns:
            raise NotCompiled("no table" if source is None else type(source).__name__.lower())
        *schema, name = source.parts
        if not schema and name.lower() in known:
            definition, before = known[name.lower()]
            return self._derived(definition.query, source.alias or name, before)
        if schema and [one.lower() for one in schema] != [DRUID_SCHEMA]:
            raise NotCompiled("schema")
        datasource = self._datasource
        if name.lower() != datasource.lower() or not (name.isascii() or name == datasource):
            raise NotCompiled("datasource")
        stored = {one: one for one, _ in self._columns}
        return _Relation(source.alias or name, self._columns, _Text("rows"), stored, TIME_COLUMN)

    def _derived(self, query: tree.Query, alias: str, known: _Definitions) -> _Relation:
        if any(map(_is_approximate, tree.walk(query))):
            raise NotCompiled("derived")  # its consumers could differ by anything
        if query.limit is not None or query.offset is not None:
            # Of a limit without a total order, each engine may return other rows.
            raise NotCompiled("derived")
        inner = self.compile_query(query, known)
        if inner.raises:
            # Spark does not evaluate values that the outer query leaves out.
            raise NotCompiled("error in a derived relation")
        text = _Text(f"({inner.sql}) AS rows", inner.parameters, bounds=inner.bounds)
        stored: dict[str, str] = {}
        for number, (name, _) in enumerate(inner.columns):
            stored[name] = f"c{number}"
        return _Relation(alias, inner.columns, text, stored, inner.time)


def _with_definitions(query: tree.Query, known: _Definitions) -> _Definitions:
    """Return the definitions that a query knows, with its own ones.

    Raises:
        NotCompiled: One of its own is recursive, or is not used.
    """
    names = {
        node.parts[0].lower()
        for node in tree.walk(query)
        if isinstance(node, tree.Table) and len(node.parts) == 1
    }
    found = dict(known)
    for one in query.definitions:
        name = one.name.lower()
        if one.columns or one.is_recursive or name not in names or not name.isascii():
            raise NotCompiled("with")
        found[name] = one, dict(found)
    if len(found) > DEFINITIONS_MAX:
        raise NotCompiled("size")
    return found


def _is_approximate(node: tree.Node) -> bool:
    return isinstance(node, tree.Call) and node.name[-1].lower().startswith("approx_")


def _items(nodes: Sequence[tree.Expression], rows: _Rows) -> list[_Item]:
    found: list[_Item] = []
    for node in nodes:
        if isinstance(node, tree.Star):
            if node.without or len(node.qualifier) > 1:
                raise NotCompiled("star")
            if node.qualifier and node.qualifier[0].lower() not in rows.qualifiers:
                raise NotCompiled("star")
            found += (_Item(tree.Name(parts=(name,)), name) for name, _ in rows.columns)
        elif isinstance(node, tree.Aliased):
            if node.is_list or len(node.names) != 1:
                raise NotCompiled("alias")
            found.append(_Item(node.value, node.names[0]))
        else:
            found.append(_Item(node, ""))
    return found


def _has_aggregate(node: tree.Node) -> bool:
    return any(isinstance(one, tree.Expression) and is_aggregate(one) for one in tree.walk(node))


def _column_name(item: _Item, piece: Fragment) -> str:
    """Return the name of a result.

    Raises:
        NotCompiled: It is not known.
    """
    if item.alias:
        return item.alias
    node = item.node
    while isinstance(node, tree.Row) and len(node.items) == 1:
        node = node.items[0]
    if isinstance(node, tree.Cast):
        # Spark leaves the conversion of a column out.
        value = node.value
        while isinstance(value, tree.Row) and len(value.items) == 1:
            value = value.items[0]
        if isinstance(value, tree.Name):
            return value.parts[-1]
        if isinstance(value, tree.Cast):
            raise NotCompiled("name of a result")
    if not piece.name:
        raise NotCompiled("name of a result")
    return piece.name


def _limit(query: tree.Query) -> str:
    found = ""
    for word, node in (("LIMIT", query.limit), ("OFFSET", query.offset)):
        if node is None or (isinstance(node, tree.Constant) and node.word == "ALL"):
            continue
        if not isinstance(node, tree.Number) or not _COUNT.fullmatch(node.text):
            raise NotCompiled("limit")
        found += f" {word} {int(node.text)}"
    return found


def _newest(query: tree.Query, sql: str) -> NewestRows | None:
    """Return the limit of a query for the newest rows; None: it has none, or a large one."""
    if not isinstance(query.limit, tree.Number):
        return None
    offset = int(query.offset.text) if isinstance(query.offset, tree.Number) else 0
    found = NewestRows(int(query.limit.text), offset)
    is_small = 0 < found.limit <= NEWEST_ROWS_MAX - offset
    return found if is_small and sql.endswith(found.tail) else None


def _ordinal(node: tree.Node, items: Sequence[_Item]) -> _Item | None:
    """Return the item that a number names; None: it is not a number."""
    if isinstance(node, tree.Number):
        if not _ORDINAL.fullmatch(node.text) or not 1 <= int(node.text) <= len(items):
            raise NotCompiled("position of a column")
        return items[int(node.text) - 1]
    return None


def _result_columns(items: Sequence[_Item], pieces: Sequence[Fragment]) -> Columns:
    for piece in pieces:
        if not has_values(piece.type):
            raise NotCompiled("type of a result")
    return tuple(
        (_column_name(item, piece), piece.type) for item, piece in zip(items, pieces, strict=True)
    )


def _add_items(text: _Text, pieces: Sequence[Fragment]) -> None:
    for number, piece in enumerate(pieces):
        before = ", " if number else "SELECT "
        text.add(f"{before}{piece.output} AS c{number}", piece.parameters)


def _add_order(text: _Text, order: Sequence[tree.SortItem], keys: Sequence[Fragment]) -> None:
    for number, (item, key) in enumerate(zip(order, keys, strict=True)):
        direction = _SORTED[item.direction, item.nulls]
        before = ", " if number else " ORDER BY "
        text.add(f"{before}{key.sort_key} {direction}", key.parameters)


def _named_outputs(columns: Columns) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, (name, _) in enumerate(columns):
        found.setdefault(name.lower(), []).append(number)
    return found


def _output(node: tree.Name, outputs: dict[str, list[int]]) -> int | None:
    """Return the number of the result with a name; None: there is none.

    Raises:
        NotCompiled: Several have it.
    """
    if len(node.parts) > 1:
        return None
    found = outputs.get(node.parts[0].lower(), [])
    if len(found) > 1:
        raise NotCompiled("ambiguous name")
    return found[0] if found else None


def _check_shadows(
    node: tree.Node, outputs: dict[str, list[int]], items: Sequence[_Item], rows: _Rows
) -> None:
    """Refuse a name within an expression that is both a column and another result."""
    for one in tree.walk(node):
        if not isinstance(one, tree.Name) or len(one.parts) > 1:
            continue
        column = rows.find(one)
        for number in outputs.get(one.parts[0].lower(), []):
            item = items[number].node
            is_same = isinstance(item, tree.Name) and rows.find(item) == column
            if column and not is_same:
                raise NotCompiled("ambiguous name")


def _selected(
    rows: _Rows,
    items: Sequence[_Item],
    order: Sequence[tree.SortItem],
    where: Fragment | None,
    limit: str,
) -> _Text:
    """Return the SQL of a query without groups."""
    pieces = [rows.compile(item.node) for item in items]
    columns = _result_columns(items, pieces)
    outputs = _named_outputs(columns)
    keys: list[Fragment] = []
    for sort in order:
        item = _ordinal(sort.value, items)
        if item is not None:
            keys.append(pieces[items.index(item)])
            continue
        number = _output(sort.value, outputs) if isinstance(sort.value, tree.Name) else None
        if number is not None:
            keys.append(pieces[number])
            continue
        _check_shadows(sort.value, outputs, items, rows)
        keys.append(rows.compile(sort.value))
    _check_keys(keys, pieces)
    if limit and any(piece.raises for piece in pieces):
        # Neither engine evaluates all rows.
        raise NotCompiled("error beside a limit")
    times = [f"c{number}" for number, piece in enumerate(pieces) if piece.is_time]
    text = _Text(columns=columns, raises=any(piece.raises for piece in pieces))
    text.time = times[0] if times else ""
    _add_items(text, pieces)
    text.add(f" FROM {rows.relation.text.sql}", rows.relation.text.parameters)
    if where is not None:
        text.add(f" WHERE {where.sql}", where.parameters)
    _add_order(text, order, keys)
    text.add(limit)
    text.is_newest = bool(order) and _is_newest_first(order[0], keys[0])
    return text


def _is_newest_first(sort: tree.SortItem, key: Fragment) -> bool:
    is_time = key.column == TIME_COLUMN and key.type == "timestamp"
    return is_time and _SORTED[sort.direction, sort.nulls] == "DESC NULLS LAST"


def _check_keys(keys: Sequence[Fragment], pieces: Sequence[Fragment]) -> None:
    """Refuse sort keys of constants, and those that may raise unless they are results, too."""
    results = {piece.key for piece in pieces}
    for key in keys:
        if key.raises and key.key not in results:
            raise NotCompiled("error in an order")
        if not has_values(key.type) or key.constant is not None:
            raise NotCompiled("order")


@dataclass(slots=True)
class _Inner:
    """The inner query of one with groups: keys, and partial aggregates by their SQL."""

    keys: list[Fragment] = field(default_factory=list)
    partials: dict[tuple[str, str], str] = field(default_factory=dict)
    text: list[tuple[str, tuple[FastValue, ...]]] = field(default_factory=list)

    def partial(self, sql: str, parameters: tuple[FastValue, ...]) -> str:
        """Add a partial aggregate, or return the name that it has already."""
        key = sql, repr(parameters)
        found = self.partials.get(key)
        if found is None:
            found = self.partials[key] = f"a{len(self.partials)}"
            self.text.append((f"{sql} AS {found}", parameters))
        return found


class _Grouped(Expressions):
    """Compiles a query with groups; as `Expressions`, those of a group."""

    def __init__(self, rows: _Rows, items: Sequence[_Item], body: tree.Select) -> None:
        super().__init__(rows.parameters, rows.now_us)
        self._rows = rows
        self._items = items
        self._body = body
        self._inner = _Inner()
        self._groups: dict[tuple[str, str], int] = {}
        self._checks: dict[str, None] = {}
        self._forced: dict[tuple[str, str], Fragment] = {}
        self._outputs: dict[str, list[int]] = {}
        self._pieces: list[Fragment] = []
        self._has_outputs = False

    def settled(self, piece: Fragment, reason: str) -> Fragment:  # noqa: ARG002 - nothing is refused
        """Return a piece that is evaluated for all groups, because a check has it, too."""
        if not piece.raises:
            return piece
        self._forced[piece.key] = piece
        return replace(piece, raises=False)

    def compile_groups(self) -> None:
        """Compile the keys of the groups."""
        groups, body = self._body.groups, self._body
        if body.is_distinct:
            if groups is not None or any(_has_aggregate(item.node) for item in self._items):
                raise NotCompiled("distinct groups")
            nodes: Sequence[tree.Node] = [item.node for item in self._items]
        elif groups is None:
            nodes = ()
        elif groups.sets is not None:
            raise NotCompiled("grouping sets")
        elif groups.is_all:
            nodes = [item.node for item in self._items if not _has_aggregate(item.node)]
        else:
            nodes = groups.items
        for node in nodes:
            key = self._rows.compile(self._group(node))
            if key.constant is not None or not has_values(key.type):
                raise NotCompiled("group of a constant")
            if key.key not in self._groups:
                self._groups[key.key] = len(self._inner.keys)
                self._inner.keys.append(key)

    def _group(self, node: tree.Node) -> tree.Expression:
        """Return the expression by which a group is made: a column, a position or an alias."""
        item = _ordinal(node, self._items)
        if item is None and isinstance(node, tree.Name) and not self._rows.find(node):
            named = [one for one in self._items if one.alias.lower() == node.parts[-1].lower()]
            if len(named) != 1 or len(node.parts) > 1:
                raise NotCompiled("name")
            item = named[0]
        if item is not None:
            node = item.node
        if not isinstance(node, tree.Expression) or isinstance(node, tree.Aliased):
            raise NotCompiled("grouping sets")
        return node

    def compile_query(
        self, order: Sequence[tree.SortItem], where: Fragment | None, limit: str
    ) -> _Text:
        """Return the SQL."""
        self.compile_groups()
        self._pieces = [self.compile(item.node) for item in self._items]
        columns = _result_columns(self._items, self._pieces)
        self._outputs = _named_outputs(columns)
        self._has_outputs = True
        having = self._having()
        keys = [self._order_key(sort.value) for sort in order]
        _check_keys(keys, self._pieces)
        text = _Text(columns=columns, raises=any(piece.raises for piece in self._pieces))
        _add_items(text, self._pieces)
        self._add_inner(text, where)
        checked = dict(self._forced)
        if limit or having is not None:
            checked |= {one.key: one for one in self._pieces if one.raises}
        self._add_conditions(text, having, list(checked.values()))
        _add_order(text, order, keys)
        if limit and not order:
            # All groups are checked, whichever of them the limit leaves.
            names = [f"g{number}" for number in range(len(self._inner.keys))]
            text.add(f" ORDER BY {', '.join(names)}" if names else "")
        text.add(limit)
        return text

    def _having(self) -> Fragment | None:
        node = self._body.having
        if node is None:
            return None
        if self._body.groups is None and not any(
            _has_aggregate(one) for one in (node, *(item.node for item in self._items))
        ):
            raise NotCompiled("having without groups")
        _check_shadows(node, self._outputs, self._items, self._rows)
        return self.condition(node)

    def _order_key(self, node: tree.Expression) -> Fragment:
        item = _ordinal(node, self._items)
        if item is not None:
            return self._pieces[self._items.index(item)]
        if isinstance(node, tree.Name):
            number = _output(node, self._outputs)
            if number is not None:
                return self._pieces[number]
        elif not self._body.is_distinct:
            _check_shadows(node, self._outputs, self._items, self._rows)
        if self._body.is_distinct:
            raise NotCompiled("order of distinct rows")
        if self._body.having is not None and not self._is_of_results(self._body.having):
            # Spark then resolves the order against the results alone.
            raise NotCompiled("order beside having")
        return self.compile(node)

    def _is_of_results(self, node: tree.Node) -> bool:
        """Return whether all aggregates and names of HAVING are results."""
        if isinstance(node, tree.Expression) and (
            is_aggregate(node) or isinstance(node, tree.Name)
        ):
            is_alias = isinstance(node, tree.Name) and node.parts[-1] in {
                item.alias for item in self._items
            }
            return is_alias or any(item.node == node for item in self._items)
        return all(map(self._is_of_results, tree.children(node)))

    def _add_inner(self, text: _Text, where: Fragment | None) -> None:
        text.add(" FROM (")
        parts: list[tuple[str, tuple[FastValue, ...]]] = [
            (f"{_normal(key)} AS g{number}", key.parameters * _uses(key))
            for number, key in enumerate(self._inner.keys)
        ]
        parts += self._inner.text
        for number, (sql, parameters) in enumerate(parts):
            text.add(f"{', ' if number else 'SELECT '}{sql}", parameters)
        source = self._rows.relation.text
        text.add(f" FROM {source.sql}", source.parameters)
        if where is not None:
            text.add(f" WHERE {where.sql}", where.parameters)
        if self._inner.keys:
            positions = ", ".join(str(one + 1) for one in range(len(self._inner.keys)))
            text.add(f" GROUP BY {positions}")
        text.add(") AS groups")

    def _add_conditions(
        self, text: _Text, having: Fragment | None, raising: Sequence[Fragment]
    ) -> None:
        """Add HAVING and the checks, which raise for a group even if HAVING leaves it out."""
        checks: list[tuple[str, tuple[FastValue, ...]]] = [(one, ()) for one in self._checks]
        checks += ((f"hash({one.sql}) <> {_UNLIKELY_HASH}", one.parameters) for one in raising)
        if not checks:
            if having is not None:
                text.add(f" WHERE {having.sql}", having.parameters)
            return
        for number, (sql, parameters) in enumerate(checks):
            text.add(" AND " if number else " WHERE CASE WHEN ", ())
            text.add(sql, parameters)
        text.add(" THEN ")
        if having is None:
            text.add("true")
        else:
            text.add(having.sql, having.parameters)
        text.add(f" ELSE {left_to_spark('values of a group')} END")

    def _name(self, node: tree.Name) -> Fragment:
        number = _output(node, self._outputs) if self._has_outputs else None
        if number is None:
            raise NotCompiled("name")
        return self._pieces[number]

    def _replaced(self, node: tree.Expression) -> Fragment | None:
        if is_aggregate(node):
            assert isinstance(node, tree.Call)
            found = aggregate(
                node, self._rows, self._inner.partial, is_grouped=bool(self._inner.keys)
            )
            if found.check:
                self._checks[found.check] = None
            if self._inner.keys and found.counts_rows:
                return replace(found.result, is_never_zero=True)  # a group has rows
            return found.result
        if not self._groups or isinstance(node, tree.Number | tree.Text | tree.Constant):
            return None
        try:
            key = self._rows.compile(node)
        except NotCompiled:
            return None
        number = self._groups.get(key.key)
        if number is None:
            return None
        return Fragment(f"g{number}", key.type, name=key.name, column="")


def _normal(key: Fragment) -> str:
    """Return the key of a group, where zero has no sign, as in Spark."""
    if key.type not in {"double", "float"}:
        return key.sql
    return f"CASE WHEN {key.sql} = 0 THEN CAST(0 AS {DUCKDB_TYPES[key.type]}) ELSE {key.sql} END"


def _uses(key: Fragment) -> int:
    return 2 if key.type in {"double", "float"} else 1
