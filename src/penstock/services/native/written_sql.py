"""Spark SQL that the translation of native queries writes: values with their types, and literals.

Owns how names and values of a request become text. A name is always in backticks, and a value is
always a literal that is written here, so no text of a request is read as SQL. Pure.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time
from penstock.core.similar_names import most_similar
from penstock.core.whole_numbers import INT64_MIN, is_int64
from penstock.indexing.specs.druid_expressions import Type as ExpressionType
from penstock.indexing.specs.druid_expressions import Written, parse, translate, type_of, with_names
from penstock.spark.ddl import quoted

ValueType = Literal["LONG", "DOUBLE", "FLOAT", "STRING", "BOOLEAN", "TIME", "OTHER"]
"""Type of a value: Druid's name for it, or `TIME` for a timestamp of Spark."""

Scalar = str | int | float | bool

STATEMENT_MAX: Final = 400_000
"""Maximum number of characters of a statement that a native query becomes."""

_OF_SPARK: Final[Mapping[str, ValueType]] = {
    "string": "STRING",
    "bigint": "LONG",
    "int": "LONG",
    "double": "DOUBLE",
    "float": "FLOAT",
    "boolean": "BOOLEAN",
    "timestamp": "TIME",
}
_OF_EXPRESSIONS: Final[Mapping[ExpressionType | None, ValueType]] = {
    "LONG": "LONG",
    "DOUBLE": "DOUBLE",
    "STRING": "STRING",
    "BOOLEAN": "LONG",
    None: "OTHER",
}
_SPARK_TYPES: Final[Mapping[ValueType, str]] = {
    "LONG": "BIGINT",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "STRING": "STRING",
    "BOOLEAN": "BOOLEAN",
}
# Spark replaces variables, `${…}`, also in literals.
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", re.ASCII
)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}(?:\.0*)?", re.ASCII)
_DIGITS: Final = 40


def value_type(spark_type: str) -> ValueType:
    """Return the type of a column of Spark."""
    return _OF_SPARK.get(spark_type, "OTHER")


@dataclass(frozen=True, slots=True)
class Value:
    """Text of Spark SQL that can stand on either side of an operator, and the type of its value."""

    sql: str
    type: ValueType

    @property
    def text(self) -> str:
        """Its SQL as a text; a time is its number of milliseconds, as in Druid."""
        return self.cast("STRING").sql

    @property
    def number(self) -> str:
        """Its SQL as a number: its own type if it is one, otherwise a double."""
        return self.sql if self.type in {"LONG", "DOUBLE", "FLOAT"} else self.cast("DOUBLE").sql

    @property
    def plain(self) -> Value:
        """The value as Druid sees it: a time is a number of milliseconds."""
        return Value(f"unix_millis({self.sql})", "LONG") if self.type == "TIME" else self

    @property
    def grouped(self) -> Value:
        """The value in parentheses."""
        return Value(f"({self.sql})", self.type)

    def cast(self, wanted: ValueType) -> Value:
        """Return it as another type; a text that is not a number becomes null, as in Druid."""
        own = self.plain
        if own.type == wanted:
            return own
        tried = "TRY_CAST" if own.type in {"STRING", "OTHER"} else "CAST"
        return Value(f"{tried}({own.sql} AS {_SPARK_TYPES[wanted]})", wanted)


@dataclass(slots=True)
class NamedValues:
    """The values that the names of a query stand for.

    Attributes:
        values: The values, by name; names differ in case, as in Druid.
        what: The noun for them in errors.
    """

    values: dict[str, Value]
    what: str = "column"
    _characters: int = 0

    def of(self, name: str, place: str) -> Value:
        """Return the value of a name.

        Raises:
            InvalidRequest: There is none, or the values that names stand for are too long together.
        """
        found = self.values.get(name)
        if found is None:
            raise InvalidRequest(_unknown(name, self.values, self.what), place=place)
        self._characters += len(found.sql)
        if self._characters > STATEMENT_MAX:
            raise InvalidRequest(
                f"the SQL of the names takes more than {STATEMENT_MAX} characters of SQL, because"
                " each use of a name repeats it: compute less at once",
                place=place,
            )
        return found

    def expression(self, text: str, place: str, *, condition: bool = False) -> Value:
        """Return an expression of Druid in SQL.

        Args:
            text: The expression.
            place: Its place in the request.
            condition: Whether it must be a condition.

        Raises:
            InvalidRequest: It is not valid, names an unknown column, or has no exact translation.
        """
        try:
            node = with_names(parse(text), self._known)
            sql = translate(node, condition=condition)
            if condition and isinstance(node, Written):
                # Spark takes `t WHERE (flag)` for a table with the alias WHERE and a column flag.
                sql = f"{sql} = TRUE"
            found = type_of(node)
        except InvalidRequest as error:
            if error.place:
                raise
            raise InvalidRequest(str(error), place=place) from None
        return checked_size(Value(f"({sql})", _OF_EXPRESSIONS[found]), place)

    def _known(self, name: str) -> Written:
        own = self.of(name, "").plain
        known: Mapping[ValueType, ExpressionType] = {
            "LONG": "LONG",
            "DOUBLE": "DOUBLE",
            "FLOAT": "DOUBLE",
            "STRING": "STRING",
            "BOOLEAN": "BOOLEAN",
        }
        return Written(name, own.sql, known.get(own.type))


def _unknown(name: str, names: Iterable[str], what: str) -> str:
    near = most_similar(name, names)
    some = ", ".join(sorted(names)[:20])
    hint = f'did you mean "{near}"?' if near is not None else f"there are {some or 'none'}"
    return f'there is no {what} "{name:.60}": {hint}'


def checked_size(value: Value, place: str) -> Value:
    """Return a value whose text is not too long: each use of a name repeats its text.

    Raises:
        InvalidRequest: It is.
    """
    if len(value.sql) > STATEMENT_MAX // 4:
        raise InvalidRequest(
            f"its SQL has {len(value.sql)} characters, more than {STATEMENT_MAX // 4}, because each"
            " use of a name repeats what it stands for: compute less at once",
            place=place,
        )
    return value


def check_characters(count: int, place: str) -> None:
    """Refuse a part that would be longer than a statement may be, before it is written.

    Args:
        count: Number of its characters of SQL, or of some of them.
        place: Its place in the request.

    Raises:
        InvalidRequest: It is too long.
    """
    if count > STATEMENT_MAX:
        raise InvalidRequest(
            f"takes more than {STATEMENT_MAX} characters of SQL, because each use of a name repeats"
            " what it stands for: compute less at once",
            place=place,
        )


def matches_all(text: str, patterns: Sequence[str], place: str) -> str:
    """Return the condition that a text matches all patterns of Java; empty if there are none.

    Raises:
        InvalidRequest: It is too long.
    """
    check_characters(len(text) * len(patterns), place)
    return all_of(f"({text} RLIKE {text_literal(one)})" for one in patterns)


def alphanumeric_key(text: str) -> str:
    """Return the SQL of a text by which Druid's order `alphanumeric` sorts.

    Numbers in a text compare as numbers of up to 40 digits and come before other characters. Texts
    that differ in leading zeros alone are equal.
    """
    marked = f"regexp_replace({text}, '([0-9]+)', '\u0001{'0' * _DIGITS}$1')"
    return f"regexp_replace({marked}, '\u0001[0-9]*([0-9]{{{_DIGITS}}})', '\u0001$1')"


def text_literal(text: str) -> str:
    """Return a text as a literal."""
    return "'" + text.translate(_ESCAPES).replace("${", "$\\{") + "'"


def number_literal(number: float) -> str:
    """Return a number as a literal; a float is a double."""
    if isinstance(number, bool):
        return "TRUE" if number else "FALSE"
    if isinstance(number, int) and is_int64(number):
        if number == INT64_MIN:
            return f"CAST('{number}' AS BIGINT)"
        return str(number) if number >= 0 else f"({number})"
    if not math.isfinite(number):
        # Spark has no literals for them: it would read a name.
        name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return f"CAST('{name}' AS DOUBLE)"
    written = f"{float(number)!r}D"
    return written if number >= 0 else f"({written})"


def time_literal(ms: int) -> str:
    """Return a time as a literal."""
    return f"TIMESTAMP '{format_time(ms)}'"


def text_of(value: Scalar) -> str:
    """Return the text of a value of JSON, as Druid writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole_number(text: str) -> int | None:
    """Return the whole number of 64 bits that a text is; None if it is not one."""
    if not _WHOLE.fullmatch(text):
        return None
    number = int(text.partition(".")[0])
    return number if is_int64(number) else None


def decimal_number(text: str) -> float | None:
    """Return the double that a text is, in Java's notation; None if it is not one."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def all_of(conditions: Iterable[str]) -> str:
    """Return conditions joined with AND, in parentheses; empty if there are none."""
    return _joined(" AND ", conditions)


def any_of(conditions: Iterable[str]) -> str:
    """Return conditions joined with OR, in parentheses; empty if there are none."""
    return _joined(" OR ", conditions)


def _joined(word: str, conditions: Iterable[str]) -> str:
    parts = [one for one in conditions if one]
    return parts[0] if len(parts) == 1 else f"({word.join(parts)})" if parts else ""


def column_values(columns: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """Return the values of columns, given as pairs of name and type of Spark."""
    return {name: Value(quoted(name), value_type(type_)) for name, type_ in columns}


def to_ms(value: object) -> int:
    """Return the milliseconds of a time that a query returned."""
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)
    raise InvalidRequest(f"{value!r:.40} is outside the years 0001 to 9999: select other times")


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
