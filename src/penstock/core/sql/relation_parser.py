"""Parser of relations in Spark SQL: tables, joins and others after FROM. Pure.

Source of the grammar: SqlBaseParser.g4 of Spark 4.3, its rules for relations.
"""

from __future__ import annotations

from abc import ABC
from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.expression_parser import ExpressionParser
from penstock.core.sql.token_reader import NO_ALIAS

JOINS: Final = frozenset({"JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"})
"""The words with which a join begins, besides NATURAL."""


class RelationParser(ExpressionParser, ABC):
    """Parses relations."""

    def _from(self) -> tree.Relation:
        start = self._at
        left = self._relation()
        while self._take(","):
            right = self._relation()
            left = tree.Join(left=left, right=right, kind=",", start=start, end=self._at)
        return left

    def _relation(self) -> tree.Relation:
        start = self._at
        return self._extended(self._primary_relation(), start)

    def _extended(self, left: tree.Relation, start: int) -> tree.Relation:
        """Read what follows a relation: joins, PIVOT and UNPIVOT."""
        while True:
            word = self._word()
            if word == "PIVOT" and self._word(1) == "(":
                left = self._pivot(left, start)
            elif word == "UNPIVOT":
                left = self._unpivot(left, start)
            elif word in JOINS or word == "NATURAL":
                left = self._join(left, start)
            else:
                return left

    def _join(self, left: tree.Relation, start: int) -> tree.Relation:
        words = []
        while (word := self._word()) != "JOIN":
            if word not in JOINS | {"NATURAL", "OUTER"}:
                raise self._unexpected("JOIN")
            words.append(word)
            self._at += 1
        self._at += 1
        right = self._primary_relation()
        condition = None
        using: tuple[str, ...] = ()
        if self._take("ON"):
            condition = self.expression()
        elif self._take("USING"):
            using = self._in_parentheses(self._name)
        return tree.Join(
            left=left,
            right=right,
            kind=" ".join(words) or "INNER",
            condition=condition,
            using=using,
            start=start,
            end=self._at,
        )

    def _primary_relation(self) -> tree.Relation:
        start = self._at
        is_lateral = self._take("LATERAL")
        if self._is("VALUES"):
            return self._inline_table()
        if self._is("("):
            return self._relation_in_parentheses(start, is_lateral)
        if self._can_be_name() and self._ends_name_with_parenthesis():
            call = self._call(self._at, self._parts())
            alias, columns = self._table_alias()
            return tree.TableFunction(
                call=call,
                is_lateral=is_lateral,
                alias=alias,
                columns=columns,
                start=start,
                end=self._at,
            )
        parts = self._parts()
        sample = self._sample()
        alias, columns = self._table_alias()
        return tree.Table(
            parts=parts, sample=sample, alias=alias, columns=columns, start=start, end=self._at
        )

    def _ends_name_with_parenthesis(self) -> bool:
        ahead = 1
        while self._word(ahead) == "." and self._can_be_name(ahead + 1, frozenset()):
            ahead += 2
        return self._word(ahead) == "("

    def _relation_in_parentheses(self, start: int, is_lateral: bool) -> tree.Relation:
        before = self._at
        self._open()
        ahead = 0
        while self._word(ahead) == "(":
            ahead += 1
        is_query = self._word(ahead) in {"SELECT", "WITH", "TABLE", "VALUES"}
        if is_query and (not ahead or self._is_query_within()):
            query = self.query()
            self._close()
            sample = self._sample()
            alias, columns = self._table_alias()
            return tree.Derived(
                query=query,
                is_lateral=is_lateral,
                sample=sample,
                alias=alias,
                columns=columns,
                start=start,
                end=self._at,
            )
        if is_lateral:
            self._at = before
            raise self._unexpected("a query in parentheses")
        relation = self._relation()
        self._close()
        sample = self._sample()
        alias, columns = self._table_alias()
        return tree.Grouped(
            relation=relation,
            sample=sample,
            alias=alias,
            columns=columns,
            start=start,
            end=self._at,
        )

    def _table_alias(self) -> tuple[str, tuple[str, ...]]:
        has_as = self._take("AS")
        if not has_as and not self._can_be_name(0, NO_ALIAS):
            return "", ()
        alias = self._name("the name of the table")
        columns = self._in_parentheses(self._name) if self._is("(") else ()
        return alias, columns

    def _sample(self) -> tree.Sample | None:
        start = self._at
        if not self._take("TABLESAMPLE"):
            return None
        self._open()
        size: tuple[tree.Expression, ...]
        if self._take("BUCKET"):
            first = self._number()
            self._expect("OUT", "OF")
            size, unit = (first, self._number()), "BUCKET"
            if self._take("ON"):
                size, unit = (*size, self.expression()), "BUCKET ON"
        else:
            size, unit = (self.expression(),), ""
            if self._word() in {"PERCENT", "ROWS"}:
                unit = self._word()
                self._at += 1
        self._close()
        if self._take("REPEATABLE"):
            self._open()
            size = (*size, self._number())
            self._close()
        return tree.Sample(size=size, unit=unit, start=start, end=self._at)

    def _inline_table(self) -> tree.InlineTable:
        start = self._at
        self._expect("VALUES")
        rows = self._list(self.expression)
        alias, columns = self._table_alias()
        return tree.InlineTable(rows=rows, alias=alias, columns=columns, start=start, end=self._at)

    def _lateral_view(self, relation: tree.Relation) -> tree.LateralView:
        start = relation.start
        self._expect("LATERAL", "VIEW")
        is_outer = self._take("OUTER")
        at = self._at
        call = self._call(at, self._parts())
        # Spark's documentation leaves the name of the table out in `LATERAL VIEW explode(a) AS b`.
        alias = "" if self._is("AS") else self._name("the name of the table")
        columns: tuple[str, ...] = ()
        if self._take("AS") or self._can_be_name(0, NO_ALIAS):
            columns = self._list(self._name)
        return tree.LateralView(
            relation=relation,
            call=call,
            is_outer=is_outer,
            alias=alias,
            columns=columns,
            start=start,
            end=self._at,
        )

    def _pivot(self, relation: tree.Relation, start: int) -> tree.Pivot:
        self._expect("PIVOT")
        self._open()
        aggregates = self._list(self._aliased)
        self._expect("FOR")
        by = self._in_parentheses(self._column) if self._is("(") else (self._column(),)
        self._expect("IN")
        values = self._in_parentheses(self._aliased)
        self._close()
        return tree.Pivot(
            relation=relation,
            aggregates=aggregates,
            by=by,
            values=values,
            start=start,
            end=self._at,
        )

    def _unpivot(self, relation: tree.Relation, start: int) -> tree.Unpivot:
        self._expect("UNPIVOT")
        nulls = ""
        if self._word() in {"INCLUDE", "EXCLUDE"}:
            nulls = self._word()
            self._at += 1
            self._expect("NULLS")
        self._open()
        names = self._in_parentheses(self._column) if self._is("(") else (self._column(),)
        self._expect("FOR")
        names = (*names, self._column())
        self._expect("IN")
        values = self._in_parentheses(self._aliased)
        self._close()
        alias, columns = self._table_alias()
        return tree.Unpivot(
            relation=relation,
            names=names,
            values=values,
            nulls=nulls,
            alias=alias,
            columns=columns,
            start=start,
            end=self._at,
        )
