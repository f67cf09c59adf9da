"""Parser of queries in Spark SQL, from text to `tree`. Pure.

It accepts a subset of Spark's grammar, and no text that Spark would understand in another way.
Spark allows nearly every keyword as a name; here those of clauses must be quoted, so that a clause
that is not complete (`FROM t where`) is an error and not an alias. Other texts are refused,
with the place and what was expected. The parser does not know tables or functions.

Source of the grammar: SqlBaseParser.g4 of Spark 4.3, with ANSI mode, double quotes around names,
and without reserved keywords, as Penstock's sessions have it.
"""

from __future__ import annotations

from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.relation_parser import JOINS, RelationParser
from penstock.core.sql.token_reader import SET_WORDS, SORTS

_BEGINS_QUERY: Final = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "(", "FROM"})


class Parser(RelationParser):
    """Parses one text. Each method reads one part of the grammar from the current token on."""

    def query(self) -> tree.Query:
        """Read a query: its WITH, its body, and the clauses that order and limit its rows."""
        start = self._at
        self._deeper()
        definitions: tuple[tree.Definition, ...] = ()
        if self._take("WITH"):
            is_recursive = self._take("RECURSIVE")
            definitions = self._list(lambda: self._definition(is_recursive))
        body = self._body()
        while self._take("|>"):
            body = self._pipe(body)
        sorts: list[tree.Sort] = []
        limit = offset = None
        while self._word() in SORTS:
            sorts.append(self._sort())
        windows = self._windows()
        if self._take("LIMIT"):
            limit = self._all_or_expression()
        if self._take("OFFSET"):
            offset = self.expression()
        self._depth -= 1
        return tree.Query(
            definitions=definitions,
            body=body,
            sorts=tuple(sorts),
            windows=windows,
            limit=limit,
            offset=offset,
            start=start,
            end=self._at,
        )

    def _definition(self, is_recursive: bool) -> tree.Definition:
        start = self._at
        name = self._name("the name of a query")
        has_columns = self._is("(") and self._word(1) not in _BEGINS_QUERY
        columns = self._in_parentheses(self._name) if has_columns else ()
        level = self._number().text if self._take("MAX", "RECURSION", "LEVEL") else ""
        self._take("AS")
        query = self._nested_query()
        return tree.Definition(
            name=name,
            columns=columns,
            query=query,
            is_recursive=is_recursive,
            level=level,
            start=start,
            end=self._at,
        )

    def _body(self) -> tree.Body:
        """Read bodies with set operators between them; INTERSECT comes first."""
        start = at = self._at
        operators: list[str] = []
        operands: list[tree.Body] = []
        within: list[str] = []  # operators INTERSECT after the last operand, and their operands
        intersected: list[tree.Body] = []
        while True:
            intersected.append(self._select() if self._is("SELECT") else self._other_body())
            if self._is("INTERSECT"):
                within.append(self._set_operator())
                continue
            operands.append(_joined_bodies(within, intersected, at, self._at))
            if self._word() not in SET_WORDS:
                return _joined_bodies(operators, operands, start, self._at)
            operators.append(self._set_operator())
            within, intersected, at = [], [], self._at

    def _pipe(self, source: tree.Body) -> tree.Pipe:
        word, start = self._word(), self._at
        parts: tuple[tree.Node, ...] = ()
        names: tuple[str, ...] = ()
        groups = None
        before = tree.Input(start=start, end=start)
        if word == "SELECT":
            parts = (self._select(),)
        elif word in {"PIVOT", "UNPIVOT", "TABLESAMPLE"} or word in JOINS | {"NATURAL"}:
            before.sample = self._sample()
            parts = (before if word == "TABLESAMPLE" else self._extended(before, start),)
        elif word in SET_WORDS or word == "INTERSECT":
            word = self._set_operator()
            parts = (self._select() if self._is("SELECT") else self._other_body(),)
        elif word in SORTS:
            parts = (self._sort(),)
        elif word in {"LIMIT", "OFFSET"}:
            self._at += 1
            value = self._all_or_expression() if word == "LIMIT" else self.expression()
            parts = (tree.Clause(word=word, value=value, start=start, end=self._at),)
        elif word in {"EXTEND", "WHERE", "SET", "DROP", "AS", "AGGREGATE"}:
            self._at += 1
            if word in {"DROP", "AS"}:
                names = self._list(self._name) if word == "DROP" else (self._name(),)
            elif word == "SET":
                parts = self._list(self._assignment)
            elif word == "WHERE":
                parts = (self.expression(),)
            else:
                is_empty = word == "AGGREGATE" and self._is("GROUP")
                parts = () if is_empty else self._list(self._aliased)
                if word == "AGGREGATE" and self._take("GROUP", "BY"):
                    groups = self._group_by()
        else:
            raise self._unexpected("an operator such as WHERE, SELECT or AGGREGATE")
        return tree.Pipe(
            source=source,
            operator=word,
            parts=parts,
            names=names,
            groups=groups,
            start=source.start,
            end=self._at,
        )

    def _assignment(self) -> tree.Expression:
        start = self._at
        name = self._name()
        self._expect("=")
        return tree.Named(name=name, value=self.expression(), start=start, end=self._at)

    def _set_operator(self) -> str:
        word = self._word()
        self._at += 1
        if self._take("ALL"):
            return f"{word} ALL"
        self._take("DISTINCT")
        return word

    def _other_body(self) -> tree.Body:
        start = self._at
        word = self._word()
        if word == "VALUES":
            table = self._inline_table()
            return tree.Values(table=table, start=start, end=self._at)
        if word == "TABLE":
            self._at += 1
            at = self._at
            named = tree.Table(parts=self._parts(), start=at, end=self._at)
            return tree.WholeTable(table=named, start=start, end=self._at)
        if word == "(":
            self._open()
            query = self.query()
            self._close()
            return tree.Nested(query=query, start=start, end=self._at)
        raise self._unexpected("SELECT, VALUES, TABLE or a query in parentheses")

    def _select(self) -> tree.Select:
        start = self._at
        self._expect("SELECT")
        hints: list[tree.Hint] = []
        while self._take("/*+"):
            while not self._take("*/"):
                hints.append(self._hint())
                self._take(",")
        is_distinct = self._take("DISTINCT")
        if not is_distinct and self._is("ALL"):
            self._at += 1
        items = self._list(self._aliased)
        source = self._from() if self._take("FROM") else None
        while source is not None and self._is("LATERAL", "VIEW"):
            source = self._lateral_view(source)
        where = self.expression() if self._take("WHERE") else None
        groups = self._group_by() if self._take("GROUP", "BY") else None
        having = self.expression() if self._take("HAVING") else None
        qualify = self.expression() if self._take("QUALIFY") else None
        windows = self._windows()
        return tree.Select(
            hints=tuple(hints),
            is_distinct=is_distinct,
            items=items,
            source=source,
            where=where,
            groups=groups,
            having=having,
            qualify=qualify,
            windows=windows,
            start=start,
            end=self._at,
        )

    def _hint(self) -> tree.Hint:
        start = self._at
        name = self._name("the name of a hint")
        arguments = self._in_parentheses(self._primary) if self._is("(") else ()
        return tree.Hint(name=name.upper(), arguments=arguments, start=start, end=self._at)

    def _group_by(self) -> tree.GroupBy:
        start = self._at
        if self._is("ALL") and self._word(1) != "(":
            self._at += 1
            return tree.GroupBy(is_all=True, start=start, end=self._at)
        items = list(self._list(self._group))
        if self._is("WITH", "ROLLUP") or self._is("WITH", "CUBE"):
            kind = self._word(1)
            self._at += 2
            items = [tree.GroupingSets(kind=kind, sets=tuple(items), start=start, end=self._at)]
        sets = self._grouping_sets() if self._is("GROUPING", "SETS") else None
        return tree.GroupBy(items=tuple(items), sets=sets, start=start, end=self._at)

    def _group(self) -> tree.Node:
        """Read an item of GROUP BY, which has a name only after a pipe."""
        if (self._word() in {"ROLLUP", "CUBE"} and self._word(1) == "(") or self._is(
            "GROUPING", "SETS", "("
        ):
            return self._grouping_sets()
        return self._aliased()

    def _grouping_sets(self) -> tree.GroupingSets:
        start = self._at
        kind = self._word()
        self._at += 1
        if self._take("SETS"):
            kind = "GROUPING SETS"
        sets = self._in_parentheses(self._grouping_set)
        return tree.GroupingSets(kind=kind, sets=sets, start=start, end=self._at)

    def _grouping_set(self) -> tree.Node:
        start = self._at
        if self._take("(", ")"):
            return tree.Row(items=(), start=start, end=self._at)
        return self._group()

    def _sort(self) -> tree.Sort:
        start = self._at
        kind = self._word()
        self._at += 1
        self._expect("BY")
        items = self._list(self._sort_item)
        return tree.Sort(kind=f"{kind} BY", items=items, start=start, end=self._at)

    def _windows(self) -> tuple[tree.NamedWindow, ...]:
        """Read WINDOW, which stands after a SELECT or after the order of a query."""
        return self._list(self._named_window) if self._take("WINDOW") else ()

    def _named_window(self) -> tree.NamedWindow:
        start = self._at
        name = self._name("the name of a window")
        self._expect("AS")
        window = self._window()
        return tree.NamedWindow(name=name, window=window, start=start, end=self._at)


def _joined_bodies(
    operators: list[str], operands: list[tree.Body], start: int, end: int
) -> tree.Body:
    if not operators:
        return operands[0]
    return tree.SetOperation(
        operators=tuple(operators), operands=tuple(operands), start=start, end=end
    )
