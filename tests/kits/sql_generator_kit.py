"""A statement written from its tree alone, with a parenthesis around each operation.

The writer of `core.sql` repeats a statement as it stands. Spark's answer to the text of this module
shows whether the tree has the meaning of the statement. Only names, literals and types are repeated
as they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, cast

from penstock.core.sql import tree
from penstock.core.sql_text import Token

N = TypeVar("N", bound=tree.Node)
_Entry = tuple[type[tree.Node], "Callable[[Generator, tree.Node], str]"]


def quoted(name: str) -> str:
    """Return a name in backquotes."""
    return f"`{name.replace('`', '``')}`"


class Generator:
    """Writes the nodes of one statement, whose tokens it needs for names and literals."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens

    def text(self, node: tree.Node) -> str:
        """Return the text of a node."""
        return _WRITERS[type(node)](self, node)

    def _raw(self, node: tree.Node) -> str:
        return " ".join(token.raw for token in self._tokens[node.start : node.end])

    def _list(self, nodes: Iterable[tree.Node]) -> str:
        return ", ".join(self.text(node) for node in nodes)

    # Queries

    def _query(self, query: tree.Query) -> str:
        parts = []
        if query.definitions:
            recursive = "RECURSIVE " if query.definitions[0].is_recursive else ""
            parts.append(f"WITH {recursive}{self._list(query.definitions)}")
        parts.append(self.text(query.body))
        parts.extend(self.text(one) for one in query.sorts)
        if query.windows:
            parts.append(f"WINDOW {self._list(query.windows)}")
        if query.limit is not None:
            parts.append(f"LIMIT {self.text(query.limit)}")
        if query.offset is not None:
            parts.append(f"OFFSET {self.text(query.offset)}")
        return " ".join(parts)

    def _definition(self, one: tree.Definition) -> str:
        level = f" MAX RECURSION LEVEL {one.level}" if one.level else ""
        return f"{quoted(one.name)}{_names(one.columns)}{level} AS ({self.text(one.query)})"

    def _set_operation(self, body: tree.SetOperation) -> str:
        found = self._nested(body.operands[0])
        for operator, operand in zip(body.operators, body.operands[1:], strict=True):
            found = f"({found} {operator} {self._nested(operand)})"
        return found[1:-1]

    def _nested(self, body: tree.Node) -> str:
        text = self.text(body)
        return text if isinstance(body, tree.Nested) else f"({text})"

    def _pipe(self, pipe: tree.Pipe) -> str:
        parts = [self.text(pipe.source), "|>"]
        if pipe.operator in {"EXTEND", "WHERE", "SET", "DROP", "AS", "AGGREGATE"}:
            parts.append(pipe.operator)
        is_set = pipe.operator.partition(" ")[0] in {"UNION", "EXCEPT", "MINUS", "INTERSECT"}
        if is_set:
            parts.append(f"{pipe.operator} {self._nested(pipe.parts[0])}")
        elif pipe.operator == "SET":
            named = (one for one in pipe.parts if isinstance(one, tree.Named))
            parts.append(", ".join(f"{quoted(one.name)} = {self.text(one.value)}" for one in named))
        else:
            parts.append(self._list(pipe.parts))
        parts.append(", ".join(map(quoted, pipe.names)))
        if pipe.groups is not None:
            parts.append(f"GROUP BY {self.text(pipe.groups)}")
        return " ".join(part for part in parts if part)

    def _input(self, one: tree.Input) -> str:
        return self._sampled(one.sample)

    def _clause(self, clause: tree.Clause) -> str:
        return f"{clause.word} {self.text(clause.value)}"

    def _select(self, body: tree.Select) -> str:
        parts = ["SELECT"]
        if body.hints:
            parts.append(f"/*+ {self._list(body.hints)} */")
        if body.is_distinct:
            parts.append("DISTINCT")
        parts.append(self._list(body.items))
        clauses = [
            ("FROM", body.source),
            ("WHERE", body.where),
            ("GROUP BY", body.groups),
            ("HAVING", body.having),
            ("QUALIFY", body.qualify),
        ]
        parts.extend(f"{word} {self.text(one)}" for word, one in clauses if one is not None)
        if body.windows:
            parts.append(f"WINDOW {self._list(body.windows)}")
        return " ".join(parts)

    def _group_by(self, groups: tree.GroupBy) -> str:
        sets = "" if groups.sets is None else f" {self.text(groups.sets)}"
        return "ALL" if groups.is_all else self._list(groups.items) + sets

    def _grouping_sets(self, sets: tree.GroupingSets) -> str:
        return f"{sets.kind} ({self._list(sets.sets)})"

    def _hint(self, hint: tree.Hint) -> str:
        return f"{hint.name}({self._list(hint.arguments)})" if hint.arguments else hint.name

    def _sort(self, sort: tree.Sort) -> str:
        return f"{sort.kind} {self._list(sort.items)}"

    def _sort_item(self, item: tree.SortItem) -> str:
        nulls = f" NULLS {item.nulls}" if item.nulls else ""
        return f"{self.text(item.value)} {item.direction}{nulls}".rstrip()

    def _named_window(self, window: tree.NamedWindow) -> str:
        return f"{quoted(window.name)} AS {self.text(window.window)}"

    def _window(self, window: tree.Window) -> str:
        parts = [quoted(window.name)] if window.name else []
        if window.partition:
            parts.append(f"PARTITION BY {self._list(window.partition)}")
        if window.order:
            parts.append(f"ORDER BY {self._list(window.order)}")
        if window.frame is not None:
            parts.append(self.text(window.frame))
        return f"({' '.join(parts)})"

    def _frame(self, frame: tree.Frame) -> str:
        offsets = iter(frame.offsets)
        bounds = [
            f"{self.text(next(offsets))} {bound.removeprefix('OFFSET ')}"
            if bound.startswith("OFFSET ")
            else bound
            for bound in frame.bounds
        ]
        if len(bounds) == 1:
            return f"{frame.unit} {bounds[0]}"
        return f"{frame.unit} BETWEEN {bounds[0]} AND {bounds[1]}"

    # Relations

    def _table(self, table: tree.Table) -> str:
        name = ".".join(quoted(part) for part in table.parts)
        return f"{name}{self._sampled(table.sample)}{_alias(table)}"

    def _sampled(self, sample: tree.Sample | None) -> str:
        return "" if sample is None else f" {self._raw(sample)}"

    def _derived(self, one: tree.Derived) -> str:
        lateral = "LATERAL " if one.is_lateral else ""
        return f"{lateral}({self.text(one.query)}){self._sampled(one.sample)}{_alias(one)}"

    def _grouped(self, one: tree.Grouped) -> str:
        return f"({self.text(one.relation)}){self._sampled(one.sample)}{_alias(one)}"

    def _inline_table(self, table: tree.InlineTable) -> str:
        return f"VALUES {self._list(table.rows)}{_alias(table)}"

    def _table_function(self, one: tree.TableFunction) -> str:
        return f"{'LATERAL ' if one.is_lateral else ''}{self.text(one.call)}{_alias(one)}"

    def _join(self, join: tree.Join) -> str:
        left, right = self.text(join.left), self.text(join.right)
        if join.kind == ",":
            return f"{left}, {right}"
        found = f"{left} {join.kind} JOIN {right}"
        if join.condition is not None:
            found += f" ON {self.text(join.condition)}"
        return found + (f" USING{_names(join.using)}" if join.using else "")

    def _lateral_view(self, view: tree.LateralView) -> str:
        outer = "OUTER " if view.is_outer else ""
        columns = f" AS {', '.join(map(quoted, view.columns))}" if view.columns else ""
        alias = f" {quoted(view.alias)}" if view.alias else ""
        relation, call = self.text(view.relation), self.text(view.call)
        return f"{relation} LATERAL VIEW {outer}{call}{alias}{columns}"

    def _pivot(self, pivot: tree.Pivot) -> str:
        by = f"({self._list(pivot.by)})" if len(pivot.by) > 1 else self._list(pivot.by)
        relation, aggregates = self.text(pivot.relation), self._list(pivot.aggregates)
        return f"{relation} PIVOT ({aggregates} FOR {by} IN ({self._list(pivot.values)}))"

    def _unpivot(self, one: tree.Unpivot) -> str:
        *values, name = one.names
        shown = f"({self._list(values)})" if len(values) > 1 else self._list(values)
        nulls = f" {one.nulls} NULLS" if one.nulls else ""
        return (
            f"{self.text(one.relation)} UNPIVOT{nulls} ({shown} FOR {self.text(name)} IN"
            f" ({self._list(one.values)})){_alias(one)}"
        )

    # Expressions

    def _call(self, call: tree.Call) -> str:
        name = ".".join(one if _is_word(one) else quoted(one) for one in call.name)
        if call.form == ("",):
            return name
        found = f"{name}({self._arguments(call)})"
        if call.within:
            found += f" WITHIN GROUP (ORDER BY {self._list(call.within)})"
        if call.condition is not None:
            found += f" FILTER (WHERE {self.text(call.condition)})"
        if call.nulls:
            found += f" {call.nulls} NULLS"
        return found + (f" OVER {self.text(call.over)}" if call.over is not None else "")

    def _arguments(self, call: tree.Call) -> str:
        if not call.form:
            return ("DISTINCT " if call.is_distinct else "") + self._list(call.arguments)
        words, found = list(call.form), []
        if words[0] in {"BOTH", "LEADING", "TRAILING"}:
            found.append(words.pop(0))
        arguments = list(call.arguments)
        if len(arguments) > len(words):
            found.append(self.text(arguments.pop(0)))
        for word, argument in zip(words, arguments, strict=True):
            found += [word, self.text(argument)]
        return " ".join(found)

    def _named(self, one: tree.Named) -> str:
        return f"{one.name} => {self.text(one.value)}"

    def _cast(self, cast: tree.Cast) -> str:
        word = "TRY_CAST" if cast.is_try else "CAST"
        return f"{word}({self.text(cast.value)} AS {self.text(cast.type)})"

    def _case(self, case: tree.Case) -> str:
        parts = ["CASE"]
        if case.operand is not None:
            parts.append(self.text(case.operand))
        words = ("WHEN", "THEN") * (len(case.branches) // 2)
        parts += [
            f"{word} {self.text(one)}" for word, one in zip(words, case.branches, strict=True)
        ]
        if case.otherwise is not None:
            parts.append(f"ELSE {self.text(case.otherwise)}")
        return " ".join([*parts, "END"])

    def _unary(self, unary: tree.Unary) -> str:
        return f"({unary.operator} {self.text(unary.operand)})"

    def _operation(self, operation: tree.Operation) -> str:
        found = self.text(operation.operands[0])
        for operator, operand in zip(operation.operators, operation.operands[1:], strict=True):
            found = f"({found} {operator} {self.text(operand)})"
        return found

    def _predicate(self, one: tree.Predicate) -> str:
        left, others = self.text(one.operand), [self.text(other) for other in one.others]
        negation = "NOT " if one.is_negated else ""
        operator = one.operator
        if operator.startswith("IS "):
            rest = "".join(f" {other}" for other in others)
            return f"({left} IS {negation}{operator.removeprefix('IS ')}{rest})"
        if operator == "BETWEEN":
            rest = " AND ".join(others)
        elif operator == "IN" and isinstance(one.others[0], tree.Subquery):
            rest = others[0]
        elif operator == "IN" or " " in operator:
            rest = f"({', '.join(others)})"
        else:
            rest = others[0]
        escape = f" ESCAPE {self.text(one.escape)}" if one.escape is not None else ""
        return f"({left} {negation}{operator} {rest}{escape})"

    def _exists(self, one: tree.Exists) -> str:
        return f"EXISTS ({self.text(one.query)})"

    def _subquery(self, one: tree.Subquery) -> str:
        word = "TABLE " if self._tokens[one.start].text == "TABLE" else ""
        return f"{word}({self.text(one.query)})"

    def _row(self, row: tree.Row) -> str:
        own = (tree.Operation, tree.Unary, tree.Predicate, tree.Row, tree.Subquery)
        if len(row.items) == 1 and isinstance(row.items[0], own):
            return self.text(row.items[0])  # it has a parenthesis already
        return f"({self._list(row.items)})"

    def _aliased(self, one: tree.Aliased) -> str:
        names = quoted(one.names[0]) if not one.is_list else _names(one.names)
        return f"{self.text(one.value)} AS {names}"

    def _lambda(self, one: tree.Lambda) -> str:
        names = ", ".join(quoted(name) for name in one.parameters)
        return f"{f'({names})' if len(one.parameters) > 1 else names} -> {self.text(one.body)}"

    def _subscript(self, one: tree.Subscript) -> str:
        return f"{self.text(one.value)}[{self.text(one.index)}]"

    def _field(self, one: tree.Field) -> str:
        return f"{self.text(one.value)}.{quoted(one.name)}"

    def _collated(self, one: tree.Collated) -> str:
        return f"{self.text(one.value)} COLLATE {'.'.join(one.collation)}"

    def _at_zone(self, one: tree.AtZone) -> str:
        return f"{self.text(one.value)} AT TIME ZONE {self.text(one.zone)}"


def _is_word(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _names(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(quoted, names))})" if names else ""


def _alias(relation: tree.Relation) -> str:
    return f" AS {quoted(relation.alias)}{_names(relation.columns)}" if relation.alias else ""


def _writer(kind: type[N], write: Callable[[Generator, N], str]) -> _Entry:
    return kind, cast("Callable[[Generator, tree.Node], str]", write)


_WRITERS: Final[Mapping[type[tree.Node], Callable[[Generator, tree.Node], str]]] = dict(
    [
        *(
            _writer(kind, Generator._raw)
            for kind in (tree.Number, tree.Text, tree.Constant, tree.TypedText, tree.Interval)
        ),
        *(
            _writer(kind, Generator._raw)
            for kind in (tree.Parameter, tree.Name, tree.Star, tree.DataType, tree.Sample)
        ),
        _writer(tree.Query, Generator._query),
        _writer(tree.Definition, Generator._definition),
        _writer(tree.SetOperation, Generator._set_operation),
        _writer(tree.Select, Generator._select),
        _writer(tree.Pipe, Generator._pipe),
        _writer(tree.Input, Generator._input),
        _writer(tree.Clause, Generator._clause),
        _writer(tree.Values, lambda own, one: own.text(one.table)),
        _writer(tree.WholeTable, lambda own, one: f"TABLE {own.text(one.table)}"),
        _writer(tree.Nested, lambda own, one: f"({own.text(one.query)})"),
        _writer(tree.GroupBy, Generator._group_by),
        _writer(tree.GroupingSets, Generator._grouping_sets),
        _writer(tree.Hint, Generator._hint),
        _writer(tree.Sort, Generator._sort),
        _writer(tree.SortItem, Generator._sort_item),
        _writer(tree.NamedWindow, Generator._named_window),
        _writer(tree.Window, Generator._window),
        _writer(tree.Frame, Generator._frame),
        _writer(tree.Table, Generator._table),
        _writer(tree.Derived, Generator._derived),
        _writer(tree.Grouped, Generator._grouped),
        _writer(tree.InlineTable, Generator._inline_table),
        _writer(tree.TableFunction, Generator._table_function),
        _writer(tree.Join, Generator._join),
        _writer(tree.LateralView, Generator._lateral_view),
        _writer(tree.Pivot, Generator._pivot),
        _writer(tree.Unpivot, Generator._unpivot),
        _writer(tree.Call, Generator._call),
        _writer(tree.Named, Generator._named),
        _writer(tree.Cast, Generator._cast),
        _writer(tree.Case, Generator._case),
        _writer(tree.Unary, Generator._unary),
        _writer(tree.Operation, Generator._operation),
        _writer(tree.Predicate, Generator._predicate),
        _writer(tree.Exists, Generator._exists),
        _writer(tree.Subquery, Generator._subquery),
        _writer(tree.Row, Generator._row),
        _writer(tree.Aliased, Generator._aliased),
        _writer(tree.Lambda, Generator._lambda),
        _writer(tree.Subscript, Generator._subscript),
        _writer(tree.Field, Generator._field),
        _writer(tree.Collated, Generator._collated),
        _writer(tree.AtZone, Generator._at_zone),
    ]
)
