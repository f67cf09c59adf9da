"""Rewriter of one query part, an item or a clause, for the groups of a projection.

`QueryRewriter` owns which expressions a part may contain. It keeps the shape of the part:
aggregates become aggregates of measures, and expressions become the keys that they equal, so
Spark treats the rest of the query as before. Unknown constructs are refused. `nests` and
`starts_bucket` decide which conditions on a time the start of its bucket satisfies too.
Everything is pure.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import Final

from penstock.core.durations import DAY_MS
from penstock.core.intervals import Granularity
from penstock.core.sql_text import Token
from penstock.spark.ddl import quoted
from penstock.spark.projections.parsed_query import (
    AGGREGATES,
    BEFORE_PARENTHESIS,
    ENDING,
    FUNCTIONS,
    KEYWORDS,
    LITERALS,
    OPERATORS,
    PARTS,
    TRUNCATED,
    TYPES,
    NoMatch,
    ParsedQuery,
    is_name,
    is_number,
)
from penstock.spark.projections.plan import GroupingKey
from penstock.spark.projections.projection_columns import ComputedKey, Normal, ProjectionColumns

_TIME: Final = re.compile(
    r"'([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?'",
    re.ASCII,
)
_DAY_LENGTH: Final = len("'2024-01-01'")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def nests(cut: Granularity, unit: str) -> bool:
    """Return whether each bucket of a granularity lies in one of a unit such as DAY."""
    if cut.zoned is not None or cut.given:
        return False
    coarser = Granularity.parse(unit)
    if cut.months:
        return coarser.months > 0 and coarser.months % cut.months == 0
    # Months begin at a midnight in every time zone.
    length_ms = DAY_MS if coarser.months else coarser.fixed_ms
    if not cut.fixed_ms or length_ms % cut.fixed_ms:
        return False
    return (coarser.origin_ms - cut.origin_ms) % cut.fixed_ms == 0


def starts_bucket(cut: Granularity, literal: str, *, is_date: bool) -> bool:
    """Return whether a literal is the start of a bucket.

    Args:
        cut: The granularity.
        literal: In its quotes, as it was written; without a zone it is UTC.
        is_date: Whether it may have no time of the day.
    """
    found = _TIME.fullmatch(literal)
    if found is None or (is_date and len(literal) > _DAY_LENGTH):
        return False
    day, clock, fraction, zone = found.groups()
    text = f"{day}T{clock or '00:00:00'}{(fraction or '.0').ljust(7, '0')}{zone or 'Z'}"
    try:
        since = dt.datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError):
        return False
    ms, rest = divmod(since, _MILLISECOND)
    return not rest and cut.truncate(ms) == ms


_TIME_COLUMN: Final = "__time"
_NOTHING: Final = Token("", "", -1)
_VALUE: Final = "a value"
# Tokens around a comparison that bind less tightly than it.
_BEFORE_COMPARISON: Final = frozenset({"", "(", "AND", "OR", "NOT", "WHEN"})
_BEHIND_COMPARISON: Final = frozenset({"", ")", "AND", "OR", "THEN"})
_BEFORE_EXPRESSION: Final = frozenset({"", "(", ","})
_BEHIND_ALONE: Final = frozenset({"", ",", "ASC", "DESC", "NULLS"})
_BEHIND_EXPRESSION: Final = _BEHIND_ALONE | {")"}


@dataclass(slots=True)
class QueryRewriter:
    """A query that is being rewritten.

    Attributes:
        block: The query.
        forms: Its tokens in normal form, for comparisons.
        has: The columns of the projection.
        time: The key that replaces the time; None: the time is unchanged, or not a key.
        aliases: The names of items, in lower case.
        edits: (start, end, text): replacements in the text.
    """

    block: ParsedQuery
    forms: tuple[Normal, ...]
    has: ProjectionColumns
    time: GroupingKey | None
    aliases: frozenset[str]
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def replace(self, first: int, last: int, text: str) -> None:
        """Replace tokens, from the first to the last, by text."""
        found = self.block.found
        end = found[last].position + len(found[last].raw)
        self.edits.append((found[first].position, end, text))

    def text(self) -> str:
        """Return the query with all replacements."""
        sql = self.block.sql
        parts: list[str] = []
        at = 0
        for start, end, text in sorted(self.edits):
            # Tokens that were separated only by their kinds, as a word and a quote, stay separate.
            before = "" if _is_apart(sql[start - 1 : start]) else " "
            behind = "" if _is_apart(sql[end : end + 1]) else " "
            parts += (sql[at:start], before, text, behind)
            at = end
        return "".join([*parts, sql[at:]])


class TokenSpan:
    """Tokens that form one expression, or several separated by commas.

    Args:
        query: The query that contains them.
        span: Indexes of the tokens.
        sees_aliases: Whether names of select items are visible in them.
    """

    def __init__(self, query: QueryRewriter, span: range, *, sees_aliases: bool) -> None:
        self._query = query
        self._found = query.block.found
        self._span = span
        self._sees_aliases = sees_aliases
        self._opened: list[str] = []
        self._aggregates = 0

    def rewrite(self) -> bool:
        """Rewrite the part; return whether it contains an aggregate.

        Raises:
            NoMatch: The projection lacks a column, or the syntax is not supported.
        """
        self._check_neighbours()
        at = self._span.start
        while at < self._span.stop:
            at = self._step(at)
        return self._aggregates > 0

    def _token(self, at: int) -> Token:
        return self._found[at] if at in self._span else _NOTHING

    def _text(self, at: int) -> str:
        """Return a word or mark in normal form; "" outside of the part and for other values."""
        return (self._found[at].text or _VALUE) if at in self._span else ""

    def _check_neighbours(self) -> None:
        """Refuse two adjacent values, whose meaning only Spark knows."""
        for at in self._span[1:]:
            before, token = self._found[at - 1], self._found[at]
            starts = token.is_text or token.text == "?" or is_name(token) or is_number(token)
            starts = starts or token.text in {"NULL", "TRUE", "FALSE"}
            if starts and _ends(before) and not (token.is_text and before.text in LITERALS):
                raise NoMatch(f"{before.raw} {token.raw} is not supported")
            is_value = before.is_text or is_number(before) or before.text in {")", "?"}
            if token.text == "(" and is_value:
                raise NoMatch(f"{before.raw} {token.raw} is not supported")

    def _step(self, at: int) -> int:
        computed = self._computed(at)
        if computed is not None:
            last = at + len(computed.form) - 1
            if computed.is_fragile:
                self._check_alone(at, last)
            self._query.replace(at, last, quoted(computed.key.stored))
            return last + 1
        token = self._found[at]
        if token.is_text or is_number(token):
            return at + 1
        return self._word(at) if token.name else self._mark(at)

    def _computed(self, at: int) -> ComputedKey | None:
        for one in self._query.has.computed.get(self._query.forms[at], ()):
            end = at + len(one.form)
            if end > self._span.stop or self._query.forms[at:end] != one.form:
                continue
            is_alone = self._text(at - 1) in _BEFORE_EXPRESSION
            if one.is_call or (is_alone and self._text(end) in _BEHIND_EXPRESSION):
                return one
        return None

    # words

    def _word(self, at: int) -> int:
        token, following = self._found[at], self._token(at + 1)
        if following.text == "(":
            return self._call(at)
        if token.text in LITERALS and following.is_text:
            return at + 2
        if token.text == "AS":
            if self._opened[-1:] not in (["CAST"], ["TRY_CAST"]) or following.text not in TYPES:
                raise NoMatch("AS is not supported here")
            if self._text(at + 2) != ")":
                raise NoMatch(f"the type {following.raw} is not supported")
            return at + 2
        if token.text in OPERATORS:
            return at + 1
        if token.text in KEYWORDS:
            raise NoMatch(f"{token.text} is not supported here")
        return self._name(at)

    def _call(self, at: int) -> int:
        word = self._found[at].text
        if word in AGGREGATES:
            return self._aggregate(at)
        if word not in FUNCTIONS and word not in BEFORE_PARENTHESIS:
            raise NoMatch(f"{self._found[at].raw}() is not supported")
        return at + 1

    def _aggregate(self, at: int) -> int:
        word, argument = self._found[at].text, self._token(at + 2)
        if self._text(at + 3) != ")":
            raise NoMatch(f"the argument of {word} is not a column")
        if word == "COUNT" and (argument.text == "*" or _is_whole(argument)):
            made = self._query.has.rows()
        elif is_name(argument):
            function = "AVG" if word == "MEAN" else word
            made = self._query.has.aggregate(function, argument.name)
        else:
            raise NoMatch(f"the argument of {word} is not a column")
        self._query.replace(at, at + 3, made)
        self._aggregates += 1
        return at + 4

    def _name(self, at: int) -> int:
        token = self._found[at]
        name = token.name.lower()
        if token.text[:1].isdigit() or "(" in name:
            raise NoMatch(f"{token.raw} is not supported")
        if name == _TIME_COLUMN and self._query.time is not None:
            return self._time(at, self._query.time)
        if name in self._query.has.plain:
            if name in self._query.has.fragile:
                self._check_alone(at, at)
            return at + 1
        if self._sees_aliases and name in self._query.aliases:
            if self._query.has.has_fragile():
                self._check_alone(at, at)
            return at + 1
        raise NoMatch(f"{token.raw} is not one of its keys")

    def _check_alone(self, first: int, last: int) -> None:
        """Refuse an expression of a value that could distinguish the two zeros."""
        is_alone = self._text(first - 1) in {"", ","} and not self._opened
        if not is_alone or self._text(last + 1) not in _BEHIND_ALONE:
            raise NoMatch(f"{self._found[first].raw}, which has two zeros, is in an expression")

    # the time

    def _time(self, at: int, key: GroupingKey) -> int:
        cut = key.time
        assert cut is not None
        if not (self._is_part(at, cut) or self._is_compared(at, cut)):
            raise NoMatch(f"{self._found[at].raw} is truncated to {cut}, but the query is finer")
        self._query.replace(at, at, quoted(key.stored))
        return at + 1

    def _is_part(self, at: int, cut: Granularity) -> bool:
        """Return whether the time is in a call that is constant within a bucket."""
        before = [self._token(at - distance) for distance in (4, 3, 2, 1)]
        words = [token.text for token in before]
        if self._text(at + 1) == ")" and words[3] == "(":
            return words[2] in PARTS and nests(cut, PARTS[words[2]])
        if [self._text(at + ahead) for ahead in (1, 2, 3)] == ["AS", "DATE", ")"]:
            return words[2:] == ["CAST", "("] and nests(cut, "DAY")
        if self._text(at + 1) != ")" or words[1] != "(" or words[3] != ",":
            return False
        unit = before[2].raw[1:-1].upper() if before[2].is_text else ""
        return words[0] == "DATE_TRUNC" and unit in TRUNCATED and nests(cut, unit)

    def _is_compared(self, at: int, cut: Granularity) -> bool:
        """Return whether the time is compared with the start of a bucket: `>=` or `<` a literal."""
        sign, literal = self._text(at + 1), at + 2
        if sign == ">" and self._text(literal) == "=":
            literal += 1
        elif sign != "<":
            return False
        word = self._text(literal)
        literal += word in LITERALS
        before, behind = self._text(at - 1), self._text(literal + 1)
        if before not in _BEFORE_COMPARISON or behind not in _BEHIND_COMPARISON:
            return False
        token = self._token(literal)
        return token.is_text and starts_bucket(cut, token.raw, is_date=word == "DATE")

    # marks

    def _mark(self, at: int) -> int:
        mark, before, behind = self._text(at), self._token(at - 1), self._token(at + 1)
        touches = behind.position == self._found[at].position + 1
        match mark:
            case "(" if behind.text != ")":
                is_call = before.text in FUNCTIONS or before.text == "IN"
                self._opened.append(before.text if is_call else "")
                return at + 1
            case ")" if self._opened:
                self._opened.pop()
                return at + 1
            case "," if not self._opened or self._opened[-1]:
                return at + 1
            case "*" if _ends(before):
                return at + 1
            case "+" | "/" | "%" | "<" | "!" | "?":
                return at + 1
            case "-" | "=":
                is_arrow = behind.text == ">" and touches
                if not is_arrow or (mark == "=" and before.text == "<"):
                    return at + 1
            case ">":
                return at + 1
            case "|":
                if behind.text == "|" and touches and self._text(at + 2) not in {"|", ">"}:
                    return at + 2
            case ".":
                is_digits = behind.raw[:1].isdigit() and is_number(behind) and touches
                if is_digits and (_is_whole(before) or not _ends(before)):
                    return at + 1
            case _:
                pass
        raise NoMatch(f"{mark} is not supported here")


def _is_apart(char: str) -> bool:
    return not char or char.isspace() or char in "(),;"


def _is_whole(token: Token) -> bool:
    return token.raw.isascii() and token.raw.isdecimal()


def _ends(token: Token) -> bool:
    """Return whether a value may end with a token."""
    is_value = token.is_text or is_name(token) or is_number(token)
    return is_value or token.text in ENDING or token.text in {")", "?"}
