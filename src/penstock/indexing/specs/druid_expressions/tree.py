"""The tree of an expression, and its text. Pure and immutable."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from typing import Literal as OneOf

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_NAME_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


Type = OneOf["LONG", "DOUBLE", "STRING", "BOOLEAN"]
"""Type of a value; a condition is BOOLEAN."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A whole number, a number, a text, or null."""

    value: int | float | str | None

    @property
    def kind(self) -> type:
        """Its Python type: equal numbers of two types are two literals."""
        return type(self.value)


@dataclass(frozen=True, slots=True)
class Name:
    """A column."""

    name: str


@dataclass(frozen=True, slots=True)
class Written:
    """A value whose Spark SQL and type are known, in the place of the name that it has.

    Attributes:
        name: The name, for errors.
        sql: Its text, which can stand on either side of an operator.
        type: Its type; None if it depends on the data.
    """

    name: str
    sql: str
    type: Type | None


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` or `!` with its operand."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator with two operands."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function of arguments; its name in lower case."""

    function: str
    arguments: tuple[Expression, ...]


Expression = Literal | Name | Written | Unary | Binary | FunctionCall


def with_names(node: Expression, written: Callable[[str], Written]) -> Expression:
    """Return an expression in which a value stands in the place of each name.

    Args:
        node: The expression.
        written: Returns the value of a name.
    """
    match node:
        case Name(name):
            return written(name)
        case Unary(operator, operand):
            return Unary(operator, with_names(operand, written))
        case Binary(operator, left, right):
            return Binary(operator, with_names(left, written), with_names(right, written))
        case FunctionCall(function, arguments):
            return FunctionCall(function, tuple(with_names(one, written) for one in arguments))
        case Literal() | Written():
            return node


def as_text(node: Expression) -> str:
    """Return the expression in Druid's language; parsing it gives an equal one."""
    match node:
        case Literal(value):
            return _literal_text(value)
        case Name(name) | Written(name):
            is_plain = _PLAIN_NAME.fullmatch(name) and name.lower() != "null"
            return name if is_plain else f'"{name.translate(_NAME_ESCAPES)}"'
        case Unary(operator, operand):
            return f"{operator}({as_text(operand)})"
        case Binary(operator, left, right):
            return f"({as_text(left)}) {operator} ({as_text(right)})"
        case FunctionCall(function, arguments):
            return f"{function}({', '.join(map(as_text, arguments))})"


def _literal_text(value: float | str | None) -> str:
    if value is None:
        return "null"
    return f"'{value.translate(_ESCAPES)}'" if isinstance(value, str) else repr(value)
