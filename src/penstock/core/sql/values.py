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
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.call_check import name_position
from penstock.core.sql_text import Token, place

VALUE_BYTES_MAX: Final = 32 << 20
"""Maximum size of one value, which Spark and the router hold several times."""

_ELEMENT_BYTES: Final = 8
_PARTITION_BYTES: Final = 1_000  # a task of Spark takes about as much in its driver
_WINDOW_BYTES: Final = 1_000  # some thirty expressions
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
# The width and the precision of a value, after its number and its flags:
# https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/util/Formatter.html
_WIDTHS: Final = re.compile(r"%%|%(?:[0-9]+\$)?[-#+ 0,(<]*([0-9]+)?(?:\.([0-9]+))?")
_TIMES: Final = ("DATE", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class _Value:
    """Known properties of an expression.

    Attributes:
        number: Its value, for times and intervals in seconds; None if it is unknown.
        size: Lower bound of its size in bytes; 0 if it is unknown.
        is_time: Whether the number represents a date or a time.
        width: Sum of the widths and precisions that it has as a format, such as `%5.2f`.
    """

    number: float | None = None
    size: float = 0
    is_time: bool = False
    width: float = 0


_UNKNOWN: Final = _Value()


def check_values(
    sql: str,
    tokens: Sequence[Token],
    nodes: Sequence[tree.Node],
    parameters: Sequence[object] = (),
) -> None:
    """Refuse a statement with a value that is larger than `VALUE_BYTES_MAX`.

    Args:
        sql: The statement or expression.
        tokens: Its tokens.
        nodes: The nodes of its tree, as `tree.walk` returns them.
        parameters: The known values of each `?`.

    Raises:
        InvalidRequest: It has one; the message has its size, its place and the limit.
    """
    if any(isinstance(one, tree.Call) and one.name[-1].lower() in _SIZED for one in nodes):
        _Estimate(sql, tokens, parameters).check(nodes)


class _Estimate:
    """Estimates the expressions of a text, each once."""

    def __init__(self, sql: str, tokens: Sequence[Token], parameters: Sequence[object]) -> None:
        self._sql = sql
        self._tokens = tokens
        self._parameters = parameters
        self._known: dict[int, _Value] = {}  # by the identity of a node

    def check(self, nodes: Sequence[tree.Node]) -> None:
        """Estimate nodes, of which each comes before its parts; raises as `check_values`."""
        for node in reversed(nodes):
            if isinstance(node, tree.Expression):
                self._known[id(node)] = self._value(node)

    def _of(self, node: tree.Expression) -> _Value:
        return self._known[id(node)]

    def _value(self, node: tree.Expression) -> _Value:
        """Return the value of an expression whose parts are known."""
        match node:
            case tree.Number():
                return _Value(_float(node.text.upper().rstrip("LSYDFB")))
            case tree.Text():  # which Spark casts to a number where it needs one
                raws = (token.raw for token in self._tokens[node.start : node.end])
                text = "".join(raw[1:-1] for raw in raws)
                number = None if node.value is None else _number(node.value)
                return _Value(number, len(text), width=_width(text))
            case tree.Parameter() if node.number < len(self._parameters):
                return _constant(self._parameters[node.number])
            case tree.TypedText():
                is_time = node.type.startswith(_TIMES)
                return _time(node.text) if is_time else _UNKNOWN
            case tree.Interval():
                return self._interval(node)
            case tree.Unary(operator="+"):
                return self._of(node.operand)
            case tree.Unary(operator="-"):
                number = self._of(node.operand).number
                return _Value(None if number is None else -number)
            case tree.Row(items=(only,)) | tree.Named(value=only) | tree.Aliased(value=only):
                return self._of(only)
            case tree.Operation():
                return self._computed(node)
            case tree.Cast(value=tree.Text() as text) if node.type.name.startswith(_TIMES):
                return _time(text)
            case tree.Cast():
                return self._of(node.value)
            case tree.Call():
                return self._call(node)
            case _:
                return _UNKNOWN

    def _interval(self, node: tree.Interval) -> _Value:
        """Return the seconds of an interval of one unit."""
        if len(node.values) != 1 or node.to:
            return _UNKNOWN
        number = self._of(node.values[0]).number
        if not node.units:  # they are in the text
            return _Value(number)
        length = _UNIT_S.get(node.units[0].strip().upper().removesuffix("S"))
        return _UNKNOWN if length is None or number is None else _Value(number * length)

    def _computed(self, node: tree.Operation) -> _Value:
        """Return the value of arithmetic; a text that is joined of others has the size of all."""
        value = self._of(node.operands[0])
        for operator, operand in zip(node.operators, node.operands[1:], strict=True):
            other = self._of(operand)
            match operator:
                case "+" | "-" | "||":
                    number = None
                    if value.number is not None and other.number is not None and operator != "||":
                        number = value.number + (other.number if operator == "+" else -other.number)
                    is_time = value.is_time or other.is_time
                    value = _Value(number, value.size + other.size, is_time)
                case "*":
                    value = _Value(_product(value, other.number))
                case "/" | "DIV":
                    value = _Value(_ratio(value, other))
                case _:
                    value = _UNKNOWN
        return value

    def _call(self, call: tree.Call) -> _Value:
        name, given = call.name[-1].lower(), [self._of(one) for one in call.arguments]
        if name in _SIZED and (size := _SIZED[name](given)) is not None:
            if size > VALUE_BYTES_MAX:  # false for NaN
                raise InvalidRequest(
                    f"{name}() takes about {size:.0f} bytes of memory,"
                    f" {place(self._sql, name_position(self._tokens, call))}; the limit is"
                    f" {VALUE_BYTES_MAX}, because Spark holds a value in memory several times:"
                    f" {_REMEDY}"
                )
            return _Value(None, size)
        number = None
        if name in _NUMBERS and given:
            number = given[0].number
        elif name in {"pow", "power"} and len(given) == 2:
            number = _power(*given)
        elif name == "shiftleft" and len(given) == 2:
            number = _product(given[0], _power(_Value(2), given[1]))
        return _Value(number, sum(one.size for one in given) if name in _KEEPING else 0)


def _time(text: tree.Text) -> _Value:
    return _Value(_instant_s((text.value or "").strip()), is_time=True)


def _number(text: str) -> float | None:
    """Return the number in a text, or the seconds of an interval of one unit, such as `5 days`."""
    amount, _, unit = text.strip().partition(" ")
    if not unit:
        return _float(amount)
    number, length = _float(amount), _UNIT_S.get(unit.strip().upper().removesuffix("S"))
    return None if number is None or length is None else number * length


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _constant(value: object) -> _Value:
    """Return the known properties of a parameter."""
    if isinstance(value, str):
        return _Value(_float(value), len(value), width=_width(value))
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


def _width(text: str) -> float:
    return sum(float(found or 0) for match in _WIDTHS.finditer(text) for found in match.groups())


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


def _formatted(arguments: Sequence[_Value]) -> float | None:
    return arguments[0].width if arguments else None


def _partitions(arguments: Sequence[_Value]) -> float | None:
    """Return the size of the partitions of a range, which are its fourth argument."""
    return max(0.0, arguments[3].number or 0) * _PARTITION_BYTES if len(arguments) == 4 else None


def _windows(arguments: Sequence[_Value]) -> float | None:
    """Return the size of the plan of windows, of which each row is in several."""
    if len(arguments) not in {3, 4}:
        return None
    count = _ratio(arguments[1], arguments[2])
    return None if count is None else abs(count) * _WINDOW_BYTES


def _counters(arguments: Sequence[_Value]) -> float | None:
    """Return the size of the counters of count_min_sketch, by its error and its confidence."""
    if len(arguments) != 4:
        return None
    error, confidence = arguments[1].number, arguments[2].number
    if not error or confidence is None or not 0 < confidence < 1:
        return None
    return 2 / abs(error) * max(1.0, -math.log2(1 - confidence)) * _ELEMENT_BYTES


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
    "format_string": _formatted,
    "printf": _formatted,
    "range": _partitions,
    "window": _windows,
    "count_min_sketch": _counters,
}
"""Size of the result of a call by its arguments; None if their number is wrong."""
