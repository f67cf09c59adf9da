"""Pieces of DuckDB's SQL with the Spark type of their value, and the types that two of them share.

Owns how values of a Spark type are written: a timestamp is a BIGINT, microseconds since the epoch,
because DuckDB computes with those four times faster than with its own times with a zone; other
types have the type of the same meaning. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, NamedTuple

from penstock.fastpath.compiled_query import LEFT_TO_SPARK, FastValue, NotCompiled

MARK: Final = "\0"
"""The place of a parameter in a piece; `numbered` writes `$1`, `$2`, … instead."""

DUCKDB_TYPES: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "timestamp": "BIGINT",
    "date": "DATE",
}
"""The types of columns and results, and how a piece has their values; decimals come beside them."""

DECIMAL_DIGITS_MAX: Final = 38
"""Maximum number of digits of a decimal, in both engines."""

VOID: Final = "void"
"""The type of NULL."""

SQL_CHARACTERS_MAX: Final = 200_000
"""Maximum length of a piece: some repeat their parts, so parts within each other could double."""

TEXT_CHARACTERS_MAX: Final = 1_000_000
"""Maximum length of all texts among the parameters of a piece, which repeats those of its parts."""

INTEGERS: Final = frozenset({"int", "bigint"})
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
# The decimals to which Spark converts integers.
_INTEGER_DIGITS: Final = {"int": 10, "bigint": 20}


class DecimalType(NamedTuple):
    """A type of decimals: the number of all digits, and of those after the point."""

    digits: int
    scale: int

    @property
    def text(self) -> str:
        """Return its name in Spark."""
        return f"decimal({self.digits},{self.scale})"

    @property
    def sql(self) -> str:
        """Return its name in DuckDB."""
        return f"DECIMAL({self.digits}, {self.scale})"


def decimal_type(type_: str) -> DecimalType | None:
    """Return the decimal type with a name; None: it is another type."""
    found = _DECIMAL.fullmatch(type_)
    if found is None:
        return None
    digits, scale = int(found[1]), int(found[2])
    return DecimalType(digits, scale) if scale <= digits <= DECIMAL_DIGITS_MAX else None


def is_decimal(type_: str) -> bool:
    """Return whether a type is one of decimals."""
    return decimal_type(type_) is not None


def has_values(type_: str) -> bool:
    """Return whether columns and results may have a type."""
    return type_ in DUCKDB_TYPES or is_decimal(type_)


def is_number(type_: str) -> bool:
    """Return whether a type is one of numbers."""
    return type_ in {*INTEGERS, "float", "double"} or is_decimal(type_)


def duckdb_type(type_: str) -> str:
    """Return DuckDB's type of the values of a type, which `has_values`."""
    decimal = decimal_type(type_)
    return DUCKDB_TYPES[type_] if decimal is None else decimal.sql


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of SQL for one value.

    Attributes:
        sql: Its text, with `MARK` for each parameter, in parentheses where an operator is outside.
        type: Its Spark type, or `VOID`.
        parameters: The values of its parameters, in order.
        name: The name that Spark gives to a result without an alias; empty: not known.
        raises: Whether a value of it can be an error, such as an overflow.
        constant: The value of a constant; for a time its microseconds, for a date its days since
            the epoch; None: it depends on rows, or is computed.
        column: The name of the column that it is; empty: it is another expression.
        is_time: Whether it is the time of rows, by which files are chosen.
        is_never_zero: Whether it is a number other than 0, such as the count of a group, or NULL.
        is_literal: Whether it is a number as written, which Spark gives a smaller decimal type.
        bounds: If it is a condition, the times of rows that can meet it.
    """

    sql: str
    type: str
    parameters: tuple[FastValue, ...] = ()
    name: str = ""
    raises: bool = False
    constant: str | int | float | Decimal | None = None
    column: str = ""
    is_time: bool = False
    is_never_zero: bool = False
    is_literal: bool = False
    bounds: TimeBounds | None = None

    def __post_init__(self) -> None:
        texts = sum(len(one) for one in self.parameters if isinstance(one, str))
        if len(self.sql) > SQL_CHARACTERS_MAX or texts > TEXT_CHARACTERS_MAX:
            raise NotCompiled("size")

    @property
    def key(self) -> tuple[str, str]:
        """Return a value that is equal for pieces of the same meaning only."""
        return self.sql, repr(self.parameters)

    @property
    def sort_key(self) -> str:
        """Return the SQL by which rows are sorted by its value."""
        return column_sql(self.column) if self.column else self.sql

    @property
    def output(self) -> str:
        """Return the SQL of its value as a result, where a timestamp is one with a zone."""
        if self.type != "timestamp":
            return self.sql
        return column_sql(self.column) if self.column else f"make_timestamptz({self.sql})"


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Times between which rows must be, in microseconds: from `start` up to, not with, `end`."""

    start: int | None = None
    end: int | None = None

    def within(self, other: TimeBounds) -> TimeBounds:
        """Return the times that are within both."""
        starts = [one for one in (self.start, other.start) if one is not None]
        ends = [one for one in (self.end, other.end) if one is not None]
        return TimeBounds(max(starts, default=None), min(ends, default=None))


def left_to_spark(reason: str) -> str:
    """Return the SQL that raises where Spark must answer."""
    return f"error('{LEFT_TO_SPARK}{reason}')"


def column_sql(name: str) -> str:
    """Return a column of the relation `rows`."""
    quoted = name.replace('"', '""')
    return f'rows."{quoted}"'


def of_column(name: str, type_: str) -> Fragment:
    """Return the piece for a column.

    Raises:
        NotCompiled: Its type or its name is not covered.
    """
    if not has_values(type_):
        raise NotCompiled("type of a column")
    if any(ord(character) < 32 for character in name):
        raise NotCompiled("name of a column")
    sql = column_sql(name)
    if type_ == "timestamp":
        sql = f"epoch_us({sql})"
    return Fragment(sql, type_, name=name, column=name)


def made(
    template: str,
    type_: str,
    parts: Sequence[Fragment],
    *,
    name: str = "",
    raises: bool = False,
) -> Fragment:
    """Return a piece that is computed from others.

    Args:
        template: Its text, with `{}` for each part in order.
        type_: Its Spark type.
        parts: The others.
        name: As in `Fragment`.
        raises: Whether it can be an error itself.
    """
    return Fragment(
        template.format(*(part.sql for part in parts)),
        type_,
        tuple(value for part in parts for value in part.parameters),
        name=name,
        raises=raises or any(part.raises for part in parts),
    )


def named(piece: Fragment, name: str, parts: Sequence[Fragment]) -> Fragment:
    """Return a piece with a name, if the names of its parts are known."""
    shown = name if all(part.name for part in parts) else ""
    return replace(piece, name=shown, column="", is_time=False, is_literal=False)


# Days since the epoch that no calendar has had: 1582-10-05 up to 1582-10-14. Spark compares columns
# of files with other days than these, because it passes them on in the older calendar.
_NO_DAYS: Final = range(-141_437, -141_427)
_DAY_US: Final = 86_400_000_000


def constant(value: str | float | Decimal, type_: str, name: str = "") -> Fragment:
    """Return the piece for a constant.

    Raises:
        NotCompiled: It is a day that no calendar has had, or an integer of more than 64 bits.
    """
    if isinstance(value, int) and not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise NotCompiled("number")
    if type_ in {"date", "timestamp"} and isinstance(value, int):
        day = value if type_ == "date" else value // _DAY_US
        if day in _NO_DAYS:
            raise NotCompiled("day between two calendars")
    if type_ == "date":
        sql = f"CAST(make_timestamp(CAST({MARK} AS BIGINT) * 86400000000) AS DATE)"
    else:
        sql = f"CAST({MARK} AS {duckdb_type(type_)})"
    parameter = f"{value:f}" if isinstance(value, Decimal) else value
    return Fragment(sql, type_, (parameter,), name=name, constant=value)


def numbered(sql: str, parameters: Sequence[FastValue]) -> tuple[str, tuple[FastValue, ...]]:
    """Return a text with `$1`, `$2`, … for its parameters, and their values.

    Equal values have one number, so that DuckDB finds equal expressions and computes them once.
    """
    numbers: dict[tuple[type, str], int] = {}
    values: list[FastValue] = []
    first, *others = sql.split(MARK)
    parts = [first]
    for value, part in zip(parameters, others, strict=True):
        key = type(value), repr(value)
        if key not in numbers:
            values.append(value)
            numbers[key] = len(values)
        parts.append(f"${numbers[key]}{part}")
    return "".join(parts), tuple(values)


def converted(piece: Fragment, type_: str) -> Fragment:
    """Return a piece as another type, as Spark converts it where an operator needs it.

    Raises:
        NotCompiled: The conversion is not covered.
    """
    if piece.type == type_:
        return piece
    value = piece.constant
    if piece.type == VOID:
        return Fragment(f"CAST(NULL AS {duckdb_type(type_)})", type_, name=piece.name)
    if (decimal := decimal_type(piece.type)) is not None and type_ == "double":
        return _real_of(piece, decimal)
    if (wanted := decimal_type(type_)) is not None:
        return _decimal_of(piece, wanted)
    if piece.type in INTEGERS and type_ in {"bigint", "double"}:
        if isinstance(value, int):
            number = value if type_ == "bigint" else float(value)
            return constant(number, type_, piece.name)
        return made(f"CAST({{}} AS {DUCKDB_TYPES[type_]})", type_, (piece,), name=piece.name)
    if piece.type == "float" and type_ == "double":
        return made("CAST({} AS DOUBLE)", type_, (piece,), name=piece.name)
    if piece.type == "date" and type_ == "timestamp":
        if isinstance(value, int):
            return constant(value * _DAY_US, type_, piece.name)
        return made("epoch_us(CAST({} AS TIMESTAMP))", type_, (piece,), name=piece.name)
    raise NotCompiled("conversion")


# A quotient of integers up to 2^53 and a power of ten up to 10^22 is rounded once.
_EXACT_DIGITS_MAX: Final = 15


def _real_of(piece: Fragment, type_: DecimalType) -> Fragment:
    """Return the floating number that is nearest to a decimal."""
    if isinstance(piece.constant, Decimal):
        return constant(float(piece.constant), "double", piece.name)
    text = "{}" if type_.digits <= _EXACT_DIGITS_MAX else "CAST({} AS VARCHAR)"
    return made(f"CAST({text} AS DOUBLE)", "double", (piece,), name=piece.name)


def _decimal_of(piece: Fragment, wanted: DecimalType) -> Fragment:
    """Return a number as a decimal that has all its digits."""
    own = decimal_type(piece.type) or DecimalType(_INTEGER_DIGITS.get(piece.type, 99), 0)
    if own.scale > wanted.scale or own.digits - own.scale > wanted.digits - wanted.scale:
        raise NotCompiled("conversion")
    if isinstance(piece.constant, int | Decimal):
        return constant(Decimal(piece.constant), wanted.text, piece.name)
    return made(f"CAST({{}} AS {wanted.sql})", wanted.text, (piece,), name=piece.name)


def as_decimal(piece: Fragment) -> Fragment:
    """Return a number as the decimal that Spark makes of it beside another decimal.

    Raises:
        NotCompiled: It is not an integer or a decimal.
    """
    if is_decimal(piece.type):
        return piece
    if piece.type not in INTEGERS:
        raise NotCompiled("types of operands")
    if piece.is_literal and isinstance(piece.constant, int):
        digits = len(str(abs(piece.constant)))
        return constant(Decimal(piece.constant), DecimalType(digits, 0).text, piece.name)
    return converted(piece, DecimalType(_INTEGER_DIGITS[piece.type], 0).text)


def shared_type(types: Iterable[str]) -> str:
    """Return the type to which Spark converts values of several types.

    Raises:
        NotCompiled: The conversion is not covered.
    """
    found = set(types) - {VOID}
    if len(found) == 1 and has_values(next(iter(found))):
        return found.pop()
    if found == INTEGERS:
        return "bigint"
    if found and all(map(is_number, found)):
        return "double" if found & {"float", "double"} else _shared_decimal(found)
    if found == {"date", "timestamp"}:
        return "timestamp"
    raise NotCompiled("types of operands")


def _shared_decimal(types: Iterable[str]) -> str:
    """Return the smallest decimal that has all values of integers and decimals."""
    whole = scale = 0
    for type_ in types:
        one = decimal_type(type_) or DecimalType(_INTEGER_DIGITS[type_], 0)
        whole, scale = max(whole, one.digits - one.scale), max(scale, one.scale)
    if whole + scale > DECIMAL_DIGITS_MAX:
        raise NotCompiled("types of operands")  # Spark leaves digits out
    return DecimalType(whole + scale, scale).text
