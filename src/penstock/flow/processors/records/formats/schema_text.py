"""Schema in the notation of users: ``id long not null, name string, tags array<string>``.

Owns the notation, which is that of Spark's DDL, so that one text works for both. Does not own the
types, which are Arrow's.

    schema   field ("," field)*
    field    name type ("not null")?                unusual names in backticks
    type     string, boolean, byte, short, int, long, float, double, date, timestamp, binary,
             decimal(p, s), array<type>, map<type, type>, struct<name: type, …>
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from penstock.core.errors import InvalidRequest

_TYPES: Final = {
    "string": pa.string(), "boolean": pa.bool_(), "bool": pa.bool_(),
    "byte": pa.int8(), "tinyint": pa.int8(), "short": pa.int16(), "smallint": pa.int16(),
    "int": pa.int32(), "integer": pa.int32(), "long": pa.int64(), "bigint": pa.int64(),
    "float": pa.float32(), "real": pa.float32(), "double": pa.float64(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "binary": pa.binary(),
}  # fmt: skip
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_][\w.\-]*))")
_WORD: Final = re.compile(r"\s*([A-Za-z]+)")
_NUMBER: Final = re.compile(r"\s*(\d{1,3})")
_NOT_NULL: Final = re.compile(r"\s+not\s+null\b", re.IGNORECASE)
_MAX_DEPTH: Final = 50
_MAX_DIGITS: Final = 38


def parse_schema(text: str) -> pa.Schema:
    """Parse a schema.

    Raises:
        InvalidRequest: The text is invalid; the message names the position.
    """
    reader = _Reader(text)
    fields = reader.fields("", "")
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"schema: duplicate field {name!r}: remove one")
    return pa.schema(fields)


class _Reader:
    """Parser of one text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def fields(self, colon: str, end: str) -> list[pa.Field]:
        found = []
        while True:
            name = self._name()
            if colon:
                self._skip(colon)
            type_ = self._type()
            required = self._take(_NOT_NULL) is not None
            if required and colon:
                raise self._wrong("only a top-level field can be not null")
            found.append(pa.field(name, type_, nullable=not required))
            if self._skip(","):
                continue
            if self._skip(end) if end else not self._text[self._at :].strip():
                return found
            raise self._wrong(f"a comma or {end or 'the end'} is expected")

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(f"types nest deeper than {_MAX_DEPTH} levels; simplify")
        start = self._at
        match = self._take(_WORD)
        word = "" if match is None else match[1].lower()
        type_ = _TYPES.get(word) or self._composed(word)
        self._depth -= 1
        if type_ is None:
            self._at = start
            raise self._wrong(
                f"a type is expected: {', '.join(_TYPES)}, decimal(p, s), array<…>, map<…> or "
                "struct<…>"
            )
        return type_

    def _composed(self, word: str) -> pa.DataType | None:
        if word == "decimal":
            return self._decimal()
        if word == "array":
            self._expect("<")
            items = self._type()
            self._expect(">")
            return pa.list_(items)
        if word == "map":
            self._expect("<")
            keys = self._type()
            self._expect(",")
            values = self._type()
            self._expect(">")
            return pa.map_(keys, values)
        if word == "struct":
            self._expect("<")
            return pa.struct(self.fields(":", ">"))
        return None

    def _decimal(self) -> pa.DataType:
        digits, scale = 10, 0
        if self._skip("("):
            digits = self._number()
            if self._skip(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= digits <= _MAX_DIGITS and scale <= digits):
            raise self._wrong(
                f"a decimal has 1 to {_MAX_DIGITS} digits, and its scale must not be larger"
            )
        return pa.decimal128(digits, scale)

    def _name(self) -> str:
        match = self._take(_NAME)
        if match is None:
            raise self._wrong(
                "the name of a field is expected, in backticks if it has special characters"
            )
        return match[2] or match[1].replace("``", "`")

    def _number(self) -> int:
        match = self._take(_NUMBER)
        if match is None:
            raise self._wrong("a number of digits is expected")
        return int(match[1])

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match

    def _skip(self, mark: str) -> bool:
        rest = self._text[self._at :]
        blanks = len(rest) - len(rest.lstrip())
        if rest.startswith(mark, blanks):
            self._at += blanks + len(mark)
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._wrong(f"{mark} is expected")

    def _wrong(self, message: str) -> InvalidRequest:
        return InvalidRequest(f"schema {self._text[:200]!r}, character {self._at + 1}: {message}")
