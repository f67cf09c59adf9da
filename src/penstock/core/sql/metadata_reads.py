"""Which metadata tables and lookups a query reads, and how Spark gets their names. Pure.

Spark knows no schemas of Penstock's. So a table such as `sys.segments` becomes a name that no
datasource can have, and gets its own name as an alias, by which the query names its columns.

Owns two choices of rows and columns. A column that the query does not mention is not filled. If
every place that reads a table has `key = 'text'` among its conditions, only rows with these values
are read. Neither changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.similar_names import most_similar
from penstock.core.sql import tree
from penstock.core.sql.lookup_calls import LOOKUP_SCHEMA, LookupRead, is_lookup, table_read
from penstock.core.sql.metadata_tables import (
    DRUID_SCHEMA,
    METADATA_SCHEMAS,
    METADATA_TABLES,
    MetadataTable,
)
from penstock.core.sql.writer import one_line
from penstock.core.sql_text import Token, place

_SIMILAR_MIN: Final = 0.6
# Parts whose columns follow from those of their table, without a name.
_IMPLICIT: Final = (tree.WholeTable, tree.Pivot, tree.Unpivot, tree.Pipe)


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """A metadata table that a query reads.

    Attributes:
        table: The table.
        columns: The names of the columns that the answer can depend on.
        keys: Values of the table's key outside of which rows cannot change the answer; None: all
            rows may.
    """

    table: MetadataTable
    columns: frozenset[str]
    keys: frozenset[str] | None = None


def metadata_reads(
    root: tree.Query, tables: Iterable[tree.Table], sql: str, tokens: Sequence[Token]
) -> tuple[MetadataRead, ...]:
    """Return the metadata tables that a query reads, each once.

    Args:
        root: The query.
        tables: The tables that it reads, each time it names one.
        sql: The text of the query.
        tokens: Its tokens.

    Raises:
        InvalidRequest: Such a schema has no table of this name.
    """
    found: dict[MetadataTable, list[tree.Table]] = {}
    for one in tables:
        table = metadata_table(one, sql, tokens)
        if table is not None:
            found.setdefault(table, []).append(one)
    if not found:
        return ()
    mentioned = _mentioned(root)
    chosen = _chosen_by_place(root)
    return tuple(
        MetadataRead(table, _columns(table, mentioned), _keys(table, places, chosen))
        for table, places in found.items()
    )


def metadata_table(table: tree.Table, sql: str, tokens: Sequence[Token]) -> MetadataTable | None:
    """Return the metadata table that a name stands for; None: it is the name of something else.

    Raises:
        InvalidRequest: Such a schema has no table of this name.
    """
    if len(table.parts) != 2 or table.parts[0].lower() not in METADATA_SCHEMAS:
        return None
    schema, name = (part.lower() for part in table.parts)
    found = METADATA_TABLES.get((schema, name))
    if found is None:
        own = [one.name for one in METADATA_TABLES.values() if one.schema.lower() == schema]
        near = most_similar(name, [one.lower() for one in own], resemblance=_SIMILAR_MIN)
        guess = "" if near is None else f"did you mean {table.parts[0]:.60}.{near}? "
        where = place(sql, tokens[table.start].position)
        raise InvalidRequest(
            f"there is no table {'.'.join(table.parts):.120}, {where}: {guess}The tables of"
            f" {table.parts[0]:.60} are {', '.join(own)}"
        )
    return found


def lookup_reads(
    tables: Iterable[tree.Table], sql: str, tokens: Sequence[Token]
) -> dict[LookupRead, None]:
    """Return the lookups that a query reads as tables, each once."""
    found: dict[LookupRead, None] = {}
    for one in tables:
        if is_lookup(one):
            found.setdefault(table_read(one, place(sql, tokens[one.start].position)))
    return found


def refuse_lookup(read: LookupRead) -> InvalidRequest:
    """Return the error for a lookup where only datasources and given rows can be read."""
    return InvalidRequest(
        f"the lookup {read.name:.80} can only be read by queries, {read.place}: in flows, use the"
        " processor LookupRecord; in tasks, join its file as an input"
    )


def refuse_metadata(tables: Iterable[tree.Table], sql: str, tokens: Sequence[Token]) -> None:
    """Refuse metadata tables and lookups where only datasources and given rows can be read.

    Raises:
        InvalidRequest: One is named.
    """
    for one in tables:
        if is_lookup(one):
            raise refuse_lookup(table_read(one, place(sql, tokens[one.start].position)))
        if (found := metadata_table(one, sql, tokens)) is not None:
            where = place(sql, tokens[one.start].position)
            raise InvalidRequest(
                f"{found.full_name} can only be read by queries, {where}: neither tasks nor flows"
                " read metadata tables; run the query with penstock sql, and pass on its answer"
            )


def replaced_names(
    nodes: Iterable[tree.Node], tables: Sequence[tree.Table], tokens: Sequence[Token]
) -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield the replacements of names with a schema, as `writer.written` takes them.

    Names of columns lose the schema, too, as in sys.segments.size.

    Args:
        nodes: All nodes of a query.
        tables: The tables that it reads.
        tokens: The tokens of its text.
    """
    whole: set[int] = set()
    qualifiers: set[tuple[str, str]] = set()
    known = METADATA_SCHEMAS | {DRUID_SCHEMA, LOOKUP_SCHEMA}
    for one in tables:
        if len(one.parts) == 2 and one.parts[0].lower() in known:
            qualifiers.add((one.parts[0].lower(), one.parts[1].lower()))
    if not qualifiers:
        return
    for node in nodes:
        if isinstance(node, tree.WholeTable):
            whole.add(id(node.table))
        elif isinstance(node, tree.Name | tree.Star):
            is_name = isinstance(node, tree.Name)
            parts = node.parts if isinstance(node, tree.Name) else node.qualifier
            if len(parts) >= 2 + is_name and (parts[0].lower(), parts[1].lower()) in qualifiers:
                yield node.start, (node.start + 2, "")
    for one in tables:
        schema = one.parts[0].lower() if len(one.parts) == 2 else ""
        if schema == DRUID_SCHEMA:
            yield one.start, (one.start + 2, "")
        elif (view := replaced_table(one)) is not None:
            yield from _renamed(one, view, tokens, is_whole=id(one) in whole)


def replaced_table(table: tree.Table) -> str | None:
    """Return the name that Spark gets for a table with a schema; None: its own name."""
    if len(table.parts) != 2:
        return None
    schema, name = (part.lower() for part in table.parts)
    if schema == DRUID_SCHEMA:
        return table.parts[1]
    if is_lookup(table):
        return table_read(table).view
    return METADATA_TABLES[schema, name].view if schema in METADATA_SCHEMAS else None


def _renamed(
    table: tree.Table, view: str, tokens: Sequence[Token], *, is_whole: bool
) -> Iterator[tuple[int, tuple[int, str]]]:
    alias = "" if is_whole or table.alias else f" AS {_quoted(table.parts[1])}"
    after = table.start + 3  # schema, dot, name
    if table.sample is not None and alias:  # it stands before an alias
        sample = one_line(tokens, table.sample, {})
        yield table.start, (after, _quoted(view))
        yield table.sample.start, (table.sample.end, f"{sample}{alias}")
    else:
        yield table.start, (after, f"{_quoted(view)}{alias}")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _mentioned(root: tree.Query) -> frozenset[str] | None:
    """Return all parts of names in a query, in lower case; None: it may mean further columns."""
    found: set[str] = set()
    counted: set[int] = set()
    for node in tree.walk(root):
        if isinstance(node, tree.Name):
            found.update(part.lower() for part in node.parts)
        elif isinstance(node, tree.Call):
            if _counts_rows(node):
                counted.update(map(id, node.arguments))
        elif isinstance(node, tree.Star):
            if id(node) not in counted:
                return None
        elif isinstance(node, tree.Join):
            if "NATURAL" in node.kind:
                return None
            found.update(name.lower() for name in node.using)
        elif isinstance(node, _IMPLICIT):
            return None
        elif isinstance(node, tree.Table | tree.Grouped) and node.columns:
            return None  # they rename columns by their places
    return frozenset(found)


def _counts_rows(call: tree.Call) -> bool:
    """Return whether a call is `count(*)`, which looks into no column."""
    (star,) = call.arguments if len(call.arguments) == 1 else (None,)
    is_plain = isinstance(star, tree.Star) and not star.qualifier and not star.without
    return is_plain and call.name[-1].lower() == "count" and not call.is_distinct


def _columns(table: MetadataTable, mentioned: frozenset[str] | None) -> frozenset[str]:
    names = (column.name for column in table.columns)
    return frozenset(one for one in names if mentioned is None or one.lower() in mentioned)


def _chosen_by_place(root: tree.Query) -> dict[int, tree.Expression]:
    """Return the condition of each table that stands alone in its FROM, by the table's identity."""
    found = {}
    for node in tree.walk(root):
        if isinstance(node, tree.Select) and isinstance(node.source, tree.Table) and node.where:
            found[id(node.source)] = node.where
    return found


def _keys(
    table: MetadataTable, places: Sequence[tree.Table], chosen: dict[int, tree.Expression]
) -> frozenset[str] | None:
    if not table.key:
        return None
    found: set[str] = set()
    for one in places:
        condition = chosen.get(id(one))
        # A column list renames the columns, and a sample is taken before the condition.
        if condition is None or one.columns or one.sample is not None:
            return None
        own = (one.alias or one.parts[-1]).lower()
        values = _equal_to(table.key.lower(), own, condition)
        if values is None:
            return None
        found |= values
    return frozenset(found)


def _equal_to(key: str, table: str, condition: tree.Expression) -> set[str] | None:
    """Return the texts that a condition allows for a column; None: it may allow others.

    Args:
        key: The column, in lower case.
        table: The name of its table in the query, in lower case.
        condition: The condition.
    """
    while isinstance(condition, tree.Row) and len(condition.items) == 1:
        condition = condition.items[0]
    if isinstance(condition, tree.Predicate):
        if condition.operator != "IN" or condition.is_negated:
            return None
        if not _is_column(key, table, condition.operand):
            return None
        values = {_literal(one) for one in condition.others}
        known = {one for one in values if one is not None}
        return known if known and known == values else None
    if not isinstance(condition, tree.Operation):
        return None
    if set(condition.operators) == {"AND"}:
        found = (_equal_to(key, table, one) for one in condition.operands)
        return next((one for one in found if one is not None), None)
    if condition.operators != ("=",):
        return None
    left, right = condition.operands
    for column, other in ((left, right), (right, left)):
        if _is_column(key, table, column) and (value := _literal(other)) is not None:
            return {value}
    return None


def _is_column(key: str, table: str, node: tree.Expression) -> bool:
    """Return whether a name is this column. One with another qualifier may be of an outer query."""
    if not isinstance(node, tree.Name) or node.parts[-1].lower() != key:
        return False
    return len(node.parts) == 1 or node.parts[-2].lower() == table


def _literal(node: tree.Expression) -> str | None:
    return node.value if isinstance(node, tree.Text) else None
