"""Parser of calls in Spark SQL: arguments, windows, and functions with words of their own. Pure.

Source of the grammar: SqlBaseParser.g4 of Spark 4.3, its rules for windows and for primary
expressions with names of functions. Of Druid's grammar it has `JSON_OBJECT(KEY a VALUE b)`,
`JSON_VALUE(a, b RETURNING type)` and `ARRAY[a, b]`, which `druid_functions` translates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from penstock.core.sql import tree
from penstock.core.sql.token_reader import NO_ALIAS, TokenReader

SIMPLE_CALLS: Final = frozenset(
    {"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_USER", "USER", "SESSION_USER", "CURRENT_TIME"}
)
"""Functions that may be called without parentheses."""

SPECIAL_CALLS: Final = ("EXTRACT", "TRIM", "OVERLAY", "POSITION", "SUBSTRING", "SUBSTR")
"""Functions that may have words between their arguments."""


class CallParser(TokenReader, ABC):
    """Parses calls; expressions and queries within them are parsed by classes that extend it."""

    @abstractmethod
    def expression(self) -> tree.Expression:
        """Read an expression."""

    @abstractmethod
    def query(self) -> tree.Query:
        """Read a query."""

    @abstractmethod
    def _value(self) -> tree.Expression:
        """Read values with binary operators between them."""

    @abstractmethod
    def _number(self) -> tree.Number:
        """Read a number."""

    @abstractmethod
    def _type(self) -> tree.DataType:
        """Read a type."""

    def simple_call(self, start: int) -> tree.Expression | None:
        """Read CURRENT_DATE and the like, which may lack parentheses."""
        if self._word(1) in {"(", ".", "->"}:
            return None
        name = self.tokens[start].name
        self._at += 1
        return tree.Call(name=(name,), form=("",), start=start, end=self._at)

    def special_call(self, start: int) -> tree.Expression | None:
        """Read a call with words between its arguments: EXTRACT, TRIM and others."""
        if self._word(1) != "(":
            return None
        name = self.tokens[start].name
        kind = self._word()
        self._at += 1
        self._open()
        form: list[str] = []
        arguments: list[tree.Expression] = []
        if (
            kind == "TRIM"
            and self._word() in {"BOTH", "LEADING", "TRAILING"}
            and (self._word(1) not in {")", ",", "."})
        ):
            form.append(self._word())
            self._at += 1
        if not (kind == "TRIM" and self._is("FROM")) and not self._is(")"):
            arguments.append(self._value() if kind == "POSITION" else self._argument())
        while self._word() in {",", "FROM", "FOR", "PLACING", "IN"}:
            form.append(self._word())
            self._at += 1
            arguments.append(self._argument())
        self._close()
        if all(one == "," for one in form):
            form = []
        found = tree.Call(
            name=(name,), arguments=tuple(arguments), form=tuple(form), start=start, end=self._at
        )
        return found if form else self._after_call(found)

    def _argument(self) -> tree.Expression:
        start = self._at
        if self._word(1) == "=>" and self._can_be_name():
            name = self._name()
            self._at += 1
            return tree.Named(name=name, value=self._argument(), start=start, end=self._at)
        if self._is("TABLE") and (self._word(1) == "(" or self._can_be_name(1)):
            return self._table_argument(start)
        # STRUCT and a few others accept names.
        return self._aliased()

    def _table_argument(self, start: int) -> tree.Expression:
        """Read TABLE(query) or TABLE name, the argument of a function that returns rows."""
        self._at += 1
        if self._is("("):
            self._open()
            query = self.query() if self._begins_query() else self._query_of_table()
            self._close()
        else:
            query = self._query_of_table()
        return tree.Subquery(query=query, start=start, end=self._at)

    def _query_of_table(self) -> tree.Query:
        start = self._at
        table = tree.Table(parts=self._parts(), start=start, end=self._at)
        body = tree.WholeTable(table=table, start=start, end=self._at)
        return tree.Query(body=body, start=start, end=self._at)

    def _call(self, start: int, name: tuple[str, ...]) -> tree.Call:
        self._open()
        is_distinct = False
        found: list[tree.Expression] = []
        form: tuple[str, ...] = ()
        returned = None
        if self._words[self._at - 2] == "JSON_OBJECT" and not self._is(")"):
            form = ("KEY", "VALUE")
            found = self._pairs()
        elif not self._is(")"):
            if self._word(1) not in {",", ")", "."} and self._take("DISTINCT"):
                is_distinct = True
            elif self._is("ALL") and self._word(1) not in {",", ")", "."}:
                self._at += 1
            # Not in a method of its own: nested calls take few frames of Python's stack.
            while True:
                is_plain = self._word(1) != "=>" and not self._is("TABLE")
                argument = self.expression() if is_plain else self._argument()
                if self._is("RETURNING") and name[-1].upper() == "JSON_VALUE":
                    form, returned = ("RETURNING",), self._returned()
                    found.append(argument)
                    break
                found.append(self._named_value(argument))
                if not self._take(","):
                    break
        if self._is("TO") and name[-1].upper() in {"FLOOR", "CEIL", "CEILING"}:
            self._at += 1
            form = ("TO",)
            found.append(self._column())
        nulls = self._nulls()
        self._close()
        call = tree.Call(
            name=name,
            arguments=tuple(found),
            is_distinct=is_distinct,
            form=form,
            nulls=nulls,
            returned=returned,
            start=start,
            end=self._at,
        )
        return self._after_call(call)

    def _pairs(self) -> list[tree.Expression]:
        """Read the keys and values of Druid's JSON_OBJECT: `KEY a VALUE b` or `a: b`."""
        found: list[tree.Expression] = []
        while True:
            if self._is("KEY") and self._word(1) not in {"VALUE", ":"}:
                self._at += 1
            found.append(self.expression())
            if not self._take(":"):
                self._expect("VALUE")
            found.append(self.expression())
            if not self._take(","):
                return found

    def _returned(self) -> tree.DataType:
        """Read the type after RETURNING, which may be followed by ARRAY."""
        self._at += 1
        kind = self._type()
        if self._take("ARRAY"):
            kind.name += " ARRAY"
            kind.end = self._at
        return kind

    def _array(self, start: int) -> tree.Call | tree.Subscript:
        """Read Druid's `ARRAY[a, b]`, or an element of a column with that name, as in `array[1]`.

        Nothing is read again: brackets within each other would double the time with each level.
        """
        self._at += 2
        self._deeper()
        values = () if self._is("]") else self._list(self.expression)
        self._depth -= 1
        if len(values) == 1 and not isinstance(values[0], tree.Text):
            if _is_condition(values[0]):
                raise self._unexpected("]")
            self._expect("]")
            column = tree.Name(parts=(self.tokens[start].name,), start=start, end=start + 1)
            return tree.Subscript(value=column, index=values[0], start=start, end=self._at)
        self._expect("]")
        return tree.Call(name=("array",), arguments=values, form=("[",), start=start, end=self._at)

    def _nulls(self) -> str:
        if self._word() in {"IGNORE", "RESPECT"} and self._word(1) == "NULLS":
            self._at += 2
            return self._words[self._at - 2]
        return ""

    def _after_call(self, call: tree.Call) -> tree.Call:
        if self._take("WITHIN", "GROUP"):
            self._open()
            self._expect("ORDER", "BY")
            call.within = self._list(self._sort_item)
            self._close()
        if self._is("FILTER", "(", "WHERE"):
            self._at += 1
            self._open()
            self._expect("WHERE")
            call.condition = self.expression()
            self._close()
        call.nulls = self._nulls() or call.nulls
        if self._is("OVER") and (self._word(1) == "(" or self._can_be_name(1)):
            self._at += 1
            call.over = self._window()
        call.end = self._at
        return call

    def _named_value(self, value: tree.Expression) -> tree.Expression:
        """Read the name of an expression, if it gets one."""
        names: tuple[str, ...]
        is_list = False
        if self._take("AS"):
            is_list = self._is("(")
            names = self._in_parentheses(self._name) if is_list else (self._name(),)
        elif self._can_be_name(0, NO_ALIAS):
            names = (self._name(),)
        else:
            return value
        return tree.Aliased(
            value=value, names=names, is_list=is_list, start=value.start, end=self._at
        )

    def _aliased(self) -> tree.Expression:
        return self._named_value(self.expression())

    def _window(self) -> tree.Window | tree.Name:
        start = self._at
        if not self._is("("):
            return self._column()
        self._open()
        name, frame = "", None
        order: tuple[tree.SortItem, ...] = ()
        partition: tuple[tree.Expression, ...] = ()
        if self._word() in {"PARTITION", "DISTRIBUTE", "CLUSTER"} and self._word(1) == "BY":
            self._at += 2
            partition = self._list(self.expression)
        elif self._can_be_name() and self._word(1) == ")":
            name = self._name()
        if self._word() in {"ORDER", "SORT"} and self._word(1) == "BY":
            self._at += 2
            order = self._list(self._sort_item)
        if self._word() in {"ROWS", "RANGE"}:
            frame = self._frame()
        self._close()
        return tree.Window(
            name=name, partition=partition, order=order, frame=frame, start=start, end=self._at
        )

    def _frame(self) -> tree.Frame:
        start = self._at
        unit = self._word()
        self._at += 1
        bounds: list[str] = []
        offsets: list[tree.Expression] = []
        is_range = self._take("BETWEEN")
        self._bound(bounds, offsets)
        if is_range:
            self._expect("AND")
            self._bound(bounds, offsets)
        return tree.Frame(
            unit=unit, bounds=tuple(bounds), offsets=tuple(offsets), start=start, end=self._at
        )

    def _bound(self, bounds: list[str], offsets: list[tree.Expression]) -> None:
        if self._take("CURRENT", "ROW"):
            bounds.append("CURRENT ROW")
            return
        if self._is("UNBOUNDED"):
            self._at += 1
            amount = "UNBOUNDED"
        else:
            offsets.append(self._value())
            amount = "OFFSET"
        direction = self._word()
        if direction not in {"PRECEDING", "FOLLOWING"}:
            raise self._unexpected("PRECEDING or FOLLOWING")
        self._at += 1
        bounds.append(f"{amount} {direction}")

    def _sort_item(self) -> tree.SortItem:
        start = self._at
        value = self._all_or_expression()
        direction = nulls = ""
        if self._word() in {"ASC", "DESC"}:
            direction = self._word()
            self._at += 1
        if self._is("NULLS") and self._word(1) in {"FIRST", "LAST"}:
            nulls = self._word(1)
            self._at += 2
        return tree.SortItem(
            value=value, direction=direction, nulls=nulls, start=start, end=self._at
        )

    def _all_or_expression(self) -> tree.Expression:
        start = self._at
        if self._take("ALL"):
            return tree.Constant(word="ALL", start=start, end=self._at)
        return self.expression()

    def _column(self) -> tree.Name:
        start = self._at
        return tree.Name(parts=self._parts(), start=start, end=self._at)

    def _nested_query(self) -> tree.Query:
        self._open()
        query = self.query()
        self._close()
        return query


def _is_condition(node: tree.Expression) -> bool:
    """Return whether an expression is a condition, which an index cannot be without parentheses."""
    match node:
        case tree.Predicate() | tree.Unary(operator="NOT"):
            return True
        case tree.Operation():
            return node.operators[0] in {"AND", "OR"}
        case _:
            return False
