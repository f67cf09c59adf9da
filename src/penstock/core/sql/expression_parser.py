"""Parser of expressions in Spark SQL: values, conditions and types. Pure.

Source of the grammar: SqlBaseParser.g4 of Spark 4.3, its rules for expressions and types.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.call_parser import SIMPLE_CALLS, SPECIAL_CALLS, CallParser
from penstock.core.sql_text import place

# Signs and NOT before one value.
_SIGNS_MAX: Final = 500
_TYPED: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TIME", "X"})
_UNIT: Final = re.compile(
    r"(?:NANOSECOND|MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|YEAR)S?"
)
_COMPARISONS: Final = frozenset({"=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=", "!>", "!<"})
# Levels of binary operators, from those that are applied last; a comparison is level 0.
_LEVELS: Final[Mapping[str, int]] = {
    **dict.fromkeys(_COMPARISONS, 0),
    "|": 1,
    "^": 2,
    "&": 3,
    **dict.fromkeys(("<<", ">>", ">>>"), 4),
    **dict.fromkeys(("+", "-", "||"), 5),
    **dict.fromkeys(("*", "/", "%", "DIV"), 6),
}
_NESTED_TYPES: Final = frozenset({"ARRAY", "MAP", "STRUCT"})


class ExpressionParser(CallParser, ABC):
    """Parses expressions; queries within them are parsed by a class that extends it."""

    def expression(self) -> tree.Expression:
        """Read an expression: conditions with AND and OR between them, or one value."""
        alternatives: list[tree.Expression] = []
        conditions: list[tree.Expression] = []
        while True:
            negations = self._at
            while self._word() in {"NOT", "!"}:
                self._at += 1
            first = self._at
            if first - negations > _SIGNS_MAX:
                raise self._nested_too_deeply()
            found = self._predicate(self._value())
            for begin in range(first - 1, negations - 1, -1):
                found = tree.Unary(operator="NOT", operand=found, start=begin, end=self._at)
            conditions.append(found)
            if self._take("AND"):
                continue
            words = ["AND"] * (len(conditions) - 1)
            alternatives.append(_chain(words, conditions))
            if not self._take("OR"):
                return _chain(["OR"] * (len(alternatives) - 1), alternatives)
            conditions = []

    def _predicate(self, left: tree.Expression) -> tree.Expression:
        start = left.start
        before = self._at
        is_negated = self._word() in {"NOT", "!"} and self._word() != ""
        if is_negated:
            self._at += 1
        word = self._word()
        others: tuple[tree.Expression, ...] = ()
        escape = None
        if word == "IS" and not is_negated:
            self._at += 1
            is_negated = self._take("NOT") or self._take("!")
            operator = f"IS {self._word()}"
            if self._take("DISTINCT"):
                self._expect("FROM")
                operator, others = "IS DISTINCT FROM", (self._value(),)
            elif operator in {"IS NULL", "IS TRUE", "IS FALSE", "IS UNKNOWN"}:
                self._at += 1
            else:
                raise self._unexpected("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        elif word == "BETWEEN":
            self._at += 1
            low = self._value()
            self._expect("AND")
            operator, others = word, (low, self._value())
        elif word == "IN":
            self._at += 1
            operator, others = word, self._in_list()
        elif word in {"LIKE", "ILIKE"} and self._word(1) in {"ANY", "SOME", "ALL"}:
            operator = f"{word} {self._word(1)}"
            self._at += 2
            others = () if self._take("(", ")") else self._in_parentheses(self.expression)
        elif word in {"LIKE", "ILIKE", "RLIKE", "REGEXP"}:
            self._at += 1
            operator = "RLIKE" if word == "REGEXP" else word
            others = (self._value(),)
            if operator != "RLIKE" and self._take("ESCAPE"):
                escape = self._text()
        else:
            self._at = before
            return left
        return tree.Predicate(
            operator=operator,
            operand=left,
            others=others,
            is_negated=is_negated,
            escape=escape,
            start=start,
            end=self._at,
        )

    def _in_list(self) -> tuple[tree.Expression, ...]:
        start = self._at
        self._open()
        if self._begins_query():
            query = self.query()
            self._close()
            return (tree.Subquery(query=query, start=start, end=self._at),)
        found = self._list(self.expression)
        self._close()
        return found

    def _operator(self) -> str:
        """Return the binary operator that comes next; empty if none does."""
        word = self._word()
        if word != ">":
            return word if word in _LEVELS else ""
        # `>>` and `>>>` are left apart by `lexed`.
        length = 1
        while length < 3 and self._word(length) == ">" and self._adjacent(length):
            length += 1
        return ">" * length

    def _adjacent(self, ahead: int) -> bool:
        at = self._at + ahead
        return self.tokens[at].position == self.tokens[at - 1].position + 1

    def _value(self) -> tree.Expression:
        """Read values with binary operators between them."""
        operators: list[str] = []
        operands: list[tree.Expression] = []
        while True:
            start = self._at
            while self._word() in {"-", "+", "~"}:
                self._at += 1
            first = self._at
            if first - start > _SIGNS_MAX:
                raise self._nested_too_deeply()
            found = self._primary()
            for begin in range(first - 1, start - 1, -1):
                sign = self._words[begin]
                found = tree.Unary(operator=sign, operand=found, start=begin, end=self._at)
            operands.append(found)
            operator = self._operator()
            if not operator:
                return _by_levels(operators, operands)
            self._at += len(operator) if operator.startswith(">>") else 1
            operators.append(operator)

    def _primary(self) -> tree.Expression:
        """Read a primary expression, and the subscripts, fields and casts after it."""
        start = self._at
        found = self._first()
        while True:
            word = self._word()
            if word == "[":
                self._at += 1
                self._deeper()
                index = self._value()
                self._expect("]")
                self._depth -= 1
                found = tree.Subscript(value=found, index=index, start=start, end=self._at)
            elif word == "." and self._can_be_name(1, frozenset()):
                self._at += 1
                found = tree.Field(value=found, name=self._any_name(), start=start, end=self._at)
            elif word == "::":
                self._at += 1
                kind = self._type()
                found = tree.Cast(value=found, type=kind, start=start, end=self._at)
            elif word == "COLLATE":
                self._at += 1
                collation = self._parts()
                found = tree.Collated(value=found, collation=collation, start=start, end=self._at)
            elif self._is("AT", "TIME", "ZONE"):
                self._at += 3
                zone = self._primary()
                found = tree.AtZone(value=found, zone=zone, start=start, end=self._at)
            else:
                return found

    def _first(self) -> tree.Expression:
        start = self._at
        if start >= self._last:
            raise self._unexpected("an expression")
        token = self.tokens[start]
        word = token.text
        if token.is_text:
            return self._text()
        if word and (word[0].isdigit() or (word[0] == "." and len(word) > 1)):
            return self._number()
        if not token.name:
            return self._marked(word, start)
        if self._is_lambda():
            return self._lambda()
        reader = self._READERS.get(word)
        if reader is not None and (found := reader(self, start)) is not None:
            return found
        if word in _TYPED and self._is_text(1):
            self._at += 1
            text = self._text()
            return tree.TypedText(type=word, text=text, start=start, end=self._at)
        if word == "ARRAY" and self._word(1) == "[":
            return self._array(start)
        parts = self._parts()
        if self._is("("):
            return self._call(start, parts)
        if self._is(".", "*"):
            self._at += 2
            return self._star(start, parts)
        return tree.Name(parts=parts, start=start, end=self._at)

    def _marked(self, word: str, start: int) -> tree.Expression:
        if word == "?":
            self._at += 1
            self._parameters += 1
            return tree.Parameter(number=self._parameters - 1, start=start, end=self._at)
        if word == "*":
            self._at += 1
            return self._star(start, ())
        if word != "(":
            raise self._unexpected("an expression")
        if self._is_lambda():
            return self._lambda()
        self._open()
        if self._begins_query():
            query = self.query()
            self._close()
            return tree.Subquery(query=query, start=start, end=self._at)
        items = [self._named_value(self.expression())]
        while self._take(","):
            items.append(self._named_value(self.expression()))
        self._close()
        return tree.Row(items=tuple(items), start=start, end=self._at)

    def _star(self, start: int, qualifier: tuple[str, ...]) -> tree.Star:
        without: tuple[tree.Name, ...] = ()
        if self._is("EXCEPT", "("):
            self._at += 1
            without = self._in_parentheses(self._column)
        return tree.Star(qualifier=qualifier, without=without, start=start, end=self._at)

    def _is_lambda(self) -> bool:
        if self._word(1) == "->":
            return True
        if not self._is("("):
            return False
        ahead = 1
        while self._can_be_name(ahead) and self._word(ahead + 1) == ",":
            ahead += 2
        return (
            self._can_be_name(ahead)
            and self._word(ahead + 1) == ")"
            and (self._word(ahead + 2) == "->")
        )

    def _lambda(self) -> tree.Lambda:
        start = self._at
        names = self._in_parentheses(self._name) if self._is("(") else (self._name(),)
        self._expect("->")
        self._deeper()
        body = self.expression()
        self._depth -= 1
        return tree.Lambda(parameters=names, body=body, start=start, end=self._at)

    def _number(self) -> tree.Number:
        start = self._at
        word = self._word()
        if not word or not (word[0].isdigit() or (word[0] == "." and len(word) > 1)):
            raise self._unexpected("a number")
        token = self.tokens[start]
        if token.name:  # such as 1a
            raise InvalidRequest(
                f"{token.raw:.40} is not a number, {place(self.sql, token.position)}: a name that"
                f' begins with a digit is written "{token.raw:.40}"'
            )
        self._at += 1
        return tree.Number(text=token.raw, start=start, end=self._at)

    def _constant(self, start: int) -> tree.Expression:
        word = self._word()
        self._at += 1
        return tree.Constant(word=word, start=start, end=self._at)

    def _case(self, start: int) -> tree.Expression:
        self._at += 1
        self._deeper()
        operand = None if self._is("WHEN") else self.expression()
        branches: list[tree.Expression] = []
        while self._take("WHEN"):
            branches.append(self.expression())
            self._expect("THEN")
            branches.append(self.expression())
        if not branches:
            raise self._unexpected("WHEN")
        otherwise = self.expression() if self._take("ELSE") else None
        self._expect("END")
        self._depth -= 1
        return tree.Case(
            operand=operand,
            branches=tuple(branches),
            otherwise=otherwise,
            start=start,
            end=self._at,
        )

    def _cast(self, start: int) -> tree.Expression | None:
        if self._word(1) != "(":
            return None
        is_try = self._word() == "TRY_CAST"
        self._at += 1
        self._open()
        value = self.expression()
        self._expect("AS")
        kind = self._type()
        self._close()
        return tree.Cast(value=value, type=kind, is_try=is_try, start=start, end=self._at)

    def _exists(self, start: int) -> tree.Expression | None:
        """Read EXISTS with a query; with an array and a lambda it is a function."""
        self._at += 1
        if self._is("("):
            self._at += 1
            is_query = self._begins_query()
            self._at -= 1
            if is_query:
                query = self._nested_query()
                return tree.Exists(query=query, start=start, end=self._at)
        self._at = start
        return None

    def _interval(self, start: int) -> tree.Expression | None:
        def is_value(ahead: int) -> bool:
            word = self._word(ahead)
            if word in {"+", "-"}:
                return is_value(ahead + 1)
            return self._is_text(ahead) or (word != "" and (word[0].isdigit() or word[0] == "."))

        if not is_value(1):
            return None
        self._at += 1
        values: list[tree.Expression] = []
        units: list[str] = []
        to = ""
        while is_value(0):
            values.append(self._interval_value())
            if not _UNIT.fullmatch(self._word()):
                break
            units.append(self._word())
            self._at += 1
            if self._take("TO"):
                to = self._word()
                if not _UNIT.fullmatch(to):
                    raise self._unexpected("a unit such as SECOND")
                self._at += 1
                break
        return tree.Interval(
            values=tuple(values), units=tuple(units), to=to, start=start, end=self._at
        )

    def _interval_value(self) -> tree.Expression:
        start = self._at
        sign = self._word() if self._word() in {"+", "-"} else ""
        self._at += bool(sign)
        value = self._text() if self._is_text() else self._number()
        if not sign:
            return value
        return tree.Unary(operator=sign, operand=value, start=start, end=self._at)

    def _type(self) -> tree.DataType:
        start = self._at
        name = self._word()
        if not name or not name[0].isalpha():
            raise self._unexpected("a type such as STRING")
        self._at += 1
        inner: list[tree.DataType] = []
        fields: list[str] = []
        sizes: tuple[str, ...] = ()
        if name in _NESTED_TYPES and self._take("<"):
            self._deeper()
            while not self._is(">"):
                if name == "STRUCT":
                    fields.append(self._any_name())
                    self._take(":")
                inner.append(self._type())
                if self._take("NOT"):
                    self._expect("NULL")
                if not self._take(","):
                    break
            self._expect(">")
            self._depth -= 1
        elif name == "STRUCT" and self._take("<>"):
            pass
        elif name == "INTERVAL":
            if _UNIT.fullmatch(self._word()):
                self._at += 1
                if self._take("TO"):
                    if not _UNIT.fullmatch(self._word()):
                        raise self._unexpected("a unit such as SECOND")
                    self._at += 1
        elif name == "TIMESTAMP" and self._take("WITHOUT", "TIME", "ZONE"):
            name = "TIMESTAMP_NTZ"
        elif self._is("("):
            sizes = tuple(one.text for one in self._in_parentheses(self._number))
        if name == "STRING" and self._take("COLLATE"):
            self._parts()
        return tree.DataType(
            name=name,
            inner=tuple(inner),
            fields=tuple(fields),
            sizes=sizes,
            start=start,
            end=self._at,
        )

    # Expressions that begin with a word of their own; None: it is a name here.
    _READERS: ClassVar[Mapping[str, Callable[[ExpressionParser, int], tree.Expression | None]]] = {
        **dict.fromkeys(("NULL", "TRUE", "FALSE"), _constant),
        "CASE": _case,
        **dict.fromkeys(("CAST", "TRY_CAST"), _cast),
        "EXISTS": _exists,
        "INTERVAL": _interval,
        **dict.fromkeys(SIMPLE_CALLS, CallParser.simple_call),
        **dict.fromkeys(SPECIAL_CALLS, CallParser.special_call),
    }


def _chain(operators: list[str], operands: list[tree.Expression]) -> tree.Expression:
    """Return operands of operators of one level; a single operand is the expression itself."""
    if not operators:
        return operands[0]
    return tree.Operation(
        operators=tuple(operators),
        operands=tuple(operands),
        start=operands[0].start,
        end=operands[-1].end,
    )


def _by_levels(operators: list[str], operands: list[tree.Expression]) -> tree.Expression:
    """Return the expression of operators of any level; the highest level is applied first."""
    for level in sorted({_LEVELS[one] for one in operators}, reverse=True):
        if all(_LEVELS[one] == level for one in operators):
            break
        left: list[str] = []
        chains: list[tree.Expression] = []
        within: list[str] = []
        run = [operands[0]]
        for operator, operand in zip(operators, operands[1:], strict=True):
            if _LEVELS[operator] == level:
                within.append(operator)
                run.append(operand)
                continue
            chains.append(_chain(within, run))
            left.append(operator)
            within, run = [], [operand]
        chains.append(_chain(within, run))
        operators, operands = left, chains
    return _chain(operators, operands)
