"""Sizes of values that a statement computes from constants: `repeat('x', 2000000000)`. Pure.

Spark computes such a value as one array in the heap of its JVM, often during planning, and a value
that does not fit ends the JVM. This module owns the list of functions that make values of any size,
the limit, and the estimate: of arithmetic with constants and parameters, and of nested calls. The
size is known only if it is written in the statement. A count that comes from a column, a subquery
or a function that is not estimated counts as 0, and so do the rows that aggregates such as
`collect_list` gather: queries have a JVM of their own, which limits the effect of such values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import Token, closing_parentheses, place

VALUE_BYTES_MAX: Final = 32 << 20
"""Maximum size of one value, which Spark and the router hold several times."""

_ELEMENT_BYTES: Final = 8
_PARTITION_BYTES: Final = 1_000  # a task of Spark takes about as much in its driver
_PARENTHESES_MAX: Final = 50  # within each other, of those that are estimated
_REMEDY: Final = "request a smaller value, or rows: range(1, 1000000) returns a row for each number"
# Functions and types whose result is about as large as their arguments together.
_KEEPING: Final = frozenset(
    {"concat", "concat_ws", "upper", "ucase", "lower", "lcase", "initcap", "trim", "ltrim", "rtrim"}
    | {"btrim", "reverse", "coalesce", "nvl", "ifnull", "string", "binary", "encode", "decode"}
    | {"to_binary", "hex", "base64", "array", "flatten", "array_join", "split", "struct", "map"}
    | {"transform", "shuffle", "sort_array", "array_sort", "array_append", "to_json", "cast"}
    | {"try_cast", "element_at", "explode", "posexplode", "translate"}
)
# Functions and types whose result is close to their first argument, a number.
_NUMBERS: Final = frozenset(
    {"int", "integer", "bigint", "smallint", "tinyint", "double", "float", "decimal", "abs"}
    | {"floor", "ceil", "ceiling", "round", "cast", "try_cast", "positive"}
)
_UNIT_S: Final[Mapping[str, float]] = {
    "MICROSECOND": 1e-6,
    "MILLISECOND": 1e-3,
    "SECOND": 1,
    "MINUTE": 60,
    "HOUR": 3_600,
    "DAY": 86_400,
    "WEEK": 604_800,
    "MONTH": 28 * 86_400,
    "YEAR": 365 * 86_400,
}
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class _Value:
    """Known properties of an expression.

    Attributes:
        number: Its value, for times and intervals in seconds; None if it is unknown.
        size: Lower bound of its size in bytes; 0 if it is unknown.
        is_time: Whether the number represents a date or a time.
    """

    number: float | None = None
    size: float = 0
    is_time: bool = False


_UNKNOWN: Final = _Value()


def check_values(sql: str, found: Sequence[Token], parameters: Sequence[object] = ()) -> None:
    """Refuse a statement with a value that is larger than `VALUE_BYTES_MAX`.

    Args:
        sql: The statement.
        found: Its tokens.
        parameters: The known values of each `?`.

    Raises:
        InvalidRequest: It has one; the message has its size, its place and the limit.
    """
    names = {token.name.lower() for token in found}
    if names.isdisjoint(_SIZED):
        return
    _Estimate(sql, found, parameters).check()


class _Estimate:
    """Estimates the calls of a statement, each once."""

    def __init__(self, sql: str, found: Sequence[Token], parameters: Sequence[object]) -> None:
        self._sql = sql
        self._found = found
        self._closing = closing_parentheses(found)
        self._depth = 0
        self._calls: dict[int, tuple[_Value, int]] = {}  # by the token index of the name
        places = [at for at, token in enumerate(found) if token.text == "?"]
        self._parameters = dict(zip(places, parameters, strict=False))

    def check(self) -> None:
        # Backwards, so that nested calls are known when the outer one is estimated.
        for at in range(len(self._found) - 2, -1, -1):
            token = self._found[at]
            if token.name and self._found[at + 1].text == "(":
                self._calls[at] = self._call(at)

    def _call(self, at: int) -> tuple[_Value, int]:
        """Return the value of a call, and the index after it."""
        name = self._found[at].name.lower()
        arguments: list[_Value] = []
        here = at + 2
        while here < len(self._found) and self._found[here].text != ")":
            value, here = self._sum(here)
            arguments.append(value)
            here = self._past_rest(here)
            here += here < len(self._found) and self._found[here].text == ","
        if name in _SIZED and (size := _SIZED[name](arguments)) is not None:
            self._refuse_large(at, size)
            return _Value(None, size), here + 1
        number = None
        if name in _NUMBERS and arguments:
            number = arguments[0].number
        elif name in {"pow", "power"} and len(arguments) == 2:
            number = _power(*arguments)
        elif name == "shiftleft" and len(arguments) == 2:
            number = _product(arguments[0], _power(_Value(2), arguments[1]))
        size = sum(one.size for one in arguments) if name in _KEEPING else 0
        return _Value(number, size), here + 1

    def _refuse_large(self, at: int, size: float) -> None:
        if not size > VALUE_BYTES_MAX:  # also true for NaN
            return
        name = self._found[at].name.lower()
        raise InvalidRequest(
            f"{name}() takes about {size:.0f} bytes of memory,"
            f" {place(self._sql, self._found[at].position)}; the limit is {VALUE_BYTES_MAX},"
            f" because Spark holds a value in memory several times: {_REMEDY}"
        )

    def _past_rest(self, at: int) -> int:
        """Return the index of the comma or parenthesis that ends an argument."""
        while at < len(self._found) and self._found[at].text not in {",", ")"}:
            at = self._closing.get(at, at) + 1
        return at

    def _sum(self, at: int) -> tuple[_Value, int]:
        """Estimate an expression up to the first unknown operator; return the index after it."""
        value, at = self._term(at)
        while (sign := self._text(at)) in {"+", "-"} or (sign == "|" and self._text(at + 1) == "|"):
            other, at = self._term(at + 1 + (sign == "|"))
            number = None
            if value.number is not None and other.number is not None and sign != "|":
                number = value.number + (other.number if sign == "+" else -other.number)
            value = _Value(number, value.size + other.size, value.is_time or other.is_time)
        if self._text(at) in {"", ",", ")", "AS"}:
            return value, at
        return _Value(None, value.size), at

    def _term(self, at: int) -> tuple[_Value, int]:
        value, at = self._factor(at)
        while (sign := self._text(at)) in {"*", "/", "DIV"}:
            other, at = self._factor(at + 1)
            value = _Value(_product(value, other.number) if sign == "*" else _ratio(value, other))
        return value, at

    def _factor(self, at: int) -> tuple[_Value, int]:
        sign = 1
        while self._text(at) in {"+", "-"}:
            sign *= -1 if self._text(at) == "-" else 1
            at += 1
        value, at = self._primary(at)
        return (value if sign > 0 or value.number is None else _Value(-value.number)), at

    def _primary(self, at: int) -> tuple[_Value, int]:
        if at >= len(self._found):
            return _UNKNOWN, at
        token = self._found[at]
        if token.text == "(":
            return self._in_parentheses(at)
        if token.text == "?":
            return _constant(self._parameters.get(at)), at + 1
        if token.is_text:  # which Spark casts to a number where it needs one
            return _Value(_float(token.raw[1:-1]), len(token.raw) - 2), at + 1
        if at in self._calls:
            return self._calls[at]
        if token.text in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL"}:
            return self._literal(at)
        if token.raw[0].isdecimal() or token.text == ".":
            return self._number(at)
        if not token.name:  # punctuation ends an unknown expression
            return _UNKNOWN, at
        return _UNKNOWN, at + 1

    def _in_parentheses(self, at: int) -> tuple[_Value, int]:
        behind = self._closing.get(at, len(self._found)) + 1
        if self._depth >= _PARENTHESES_MAX:
            return _UNKNOWN, behind
        self._depth += 1
        value, at = self._sum(at + 1)
        self._depth -= 1
        return (value if at + 1 == behind else _Value(None, value.size)), behind

    def _literal(self, at: int) -> tuple[_Value, int]:
        """Return the seconds of a date, a time or an interval."""
        kind = self._text(at)
        token = self._found[at + 1] if at + 1 < len(self._found) else self._found[at]
        text = token.raw.strip("'").strip()
        if kind != "INTERVAL":
            return (
                (_Value(_instant_s(text), is_time=True), at + 2)
                if token.is_text
                else (_UNKNOWN, at + 1)
            )
        amount, _, unit = text.partition(" ")
        behind = at + 2
        if not unit:
            unit, behind = self._text(behind), behind + 1
        length = _UNIT_S.get(unit.strip().upper().removesuffix("S"))
        number = _float(amount)
        if length is None or number is None:
            return _UNKNOWN, at + 2
        return _Value(number * length), behind

    def _number(self, at: int) -> tuple[_Value, int]:
        """Return a number: `1.5` is three tokens; `1e9` and `1L` are words."""
        begin = at
        text = ""
        while at < len(self._found):
            token = self._found[at]
            is_next = at == begin or token.position == (
                self._found[at - 1].position + len(self._found[at - 1].raw)
            )
            is_digits = token.raw[0].isdecimal() or token.text == "."
            if not is_next or not is_digits:
                break
            text += token.raw
            at += 1
        return _Value(_float(text.upper().rstrip("LSYDFB")) if text else None), at

    def _text(self, at: int) -> str:
        return self._found[at].text if at < len(self._found) else ""


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _constant(value: object) -> _Value:
    """Return the known properties of a parameter."""
    if isinstance(value, str):
        return _Value(_float(value), len(value))
    if isinstance(value, int | float):
        return _Value(float(value))
    if isinstance(value, date):
        return _Value(_instant_s(value.isoformat()), is_time=True)
    return _UNKNOWN


def _instant_s(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _product(one: _Value, other: float | None) -> float | None:
    return None if one.number is None or other is None else one.number * other


def _ratio(one: _Value, other: _Value) -> float | None:
    if one.number is None or not other.number:
        return None
    return one.number / other.number


def _power(base: _Value, exponent: _Value) -> float | None:
    if base.number is None or exponent.number is None:
        return None
    try:
        return math.pow(base.number, exponent.number)
    except (OverflowError, ValueError):
        return None


def _times(arguments: Sequence[_Value], least: int) -> float | None:
    if len(arguments) != 2:
        return None
    count = arguments[1].number or 0
    return max(0.0, count) * max(least, arguments[0].size)


def _padded(arguments: Sequence[_Value]) -> float | None:
    if len(arguments) not in {2, 3}:
        return None
    return max(0.0, arguments[1].number or 0)


def _spaces(arguments: Sequence[_Value]) -> float | None:
    return max(0.0, arguments[0].number or 0) if len(arguments) == 1 else None


def _sequence(arguments: Sequence[_Value]) -> float | None:
    """Return the size of a sequence; for dates and times the default step is a day."""
    numbers = [one.number for one in arguments]
    if len(numbers) == 2:
        numbers.append(_DAY_S if arguments[0].is_time else 1)
    if len(numbers) != 3:
        return None
    start, stop, step = numbers
    if start is None or stop is None or not step:
        return 0
    return (abs(stop - start) / abs(step) + 1) * _ELEMENT_BYTES


def _first(arguments: Sequence[_Value], each: int) -> float | None:
    return max(0.0, arguments[0].number or 0) * each if arguments else None


def _second(arguments: Sequence[_Value], each: int) -> float | None:
    return abs(arguments[1].number or 0) * each if len(arguments) in {2, 3} else None


def _partitions(arguments: Sequence[_Value]) -> float | None:
    """Return the size of the partitions of a range, which are its fourth argument."""
    return max(0.0, arguments[3].number or 0) * _PARTITION_BYTES if len(arguments) == 4 else None


_SIZED: Final[Mapping[str, Callable[[Sequence[_Value]], float | None]]] = {
    "repeat": lambda arguments: _times(arguments, 1),
    "array_repeat": lambda arguments: _times(arguments, _ELEMENT_BYTES),
    "lpad": _padded,
    "rpad": _padded,
    "space": _spaces,
    "sequence": _sequence,
    "randstr": lambda arguments: _first(arguments, 1),
    "stack": lambda arguments: _first(arguments, _ELEMENT_BYTES),
    "array_insert": lambda arguments: _second(arguments, _ELEMENT_BYTES),
    "format_number": lambda arguments: _second(arguments, 1),
    "range": _partitions,
}
"""Size of the result of a call by its arguments; None if their number is wrong."""
