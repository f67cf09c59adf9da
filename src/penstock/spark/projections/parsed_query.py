"""Parser of a query into its parts: one SELECT of one datasource with aggregates. Pure.

Owns the division of such a query into parts, and the reasons why other queries are refused. The
content of the parts is not checked. A query with any unrecognised part is refused, so Spark parses
an accepted query in the same way.

The tables have the words of Spark SQL that are allowed in a query over a projection. Words that are
not listed may mean something else over groups than over rows. A function is listed if its result
depends only on its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.core.sql_text import Token, tokens


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CLAUSES: Final = ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET")
"""First words of the clauses after SELECT, in their order."""

OPERATORS: Final = _words(
    "AND OR NOT IN IS NULL LIKE ILIKE RLIKE BETWEEN ESCAPE DIV CASE WHEN THEN ELSE END TRUE FALSE"
    " ASC DESC NULLS FIRST LAST"
)
KEYWORDS: Final = OPERATORS | {"SELECT", "BY", "AS", "ALL", *CLAUSES}
BEFORE_PARENTHESIS: Final = _words("AND OR NOT IN LIKE ILIKE RLIKE BETWEEN DIV CASE WHEN THEN ELSE")
"""Operators that may precede a parenthesis, which is not a call then."""

RESERVED: Final = _words("""
    AGGREGATE ANTI ANY ARRAY AT CLUSTER COLLATE CROSS CUBE DISTINCT DISTRIBUTE EXCEPT EXCLUDE EXISTS
    EXTEND FETCH FILTER FOR FULL GROUPING IGNORE INNER INTERSECT INTERVAL INTO JOIN LATERAL LEFT MAP
    MATCH MINUS NATURAL ON OVER PIVOT QUALIFY RESPECT RIGHT ROLLUP SEMI SET SETS SOME SORT STRUCT
    TABLE TABLESAMPLE UNION UNPIVOT USING VALUES WATERMARK WINDOW WITH WITHIN
    """)
"""Words that may be more than a name without quotes; columns of such names must be quoted."""

ENDING: Final = frozenset({"NULL", "TRUE", "FALSE", "END"})
"""The keywords that end an expression."""

AGGREGATES: Final = frozenset({"COUNT", "SUM", "MIN", "MAX", "AVG", "MEAN"})
TYPES: Final = _words(
    "STRING BIGINT LONG INT INTEGER SMALLINT TINYINT DOUBLE FLOAT DATE TIMESTAMP BOOLEAN"
)
LITERALS: Final = frozenset({"DATE", "TIMESTAMP"})
"""Words that form a literal with the text after them."""

FUNCTIONS: Final = _words("""
    ABS CEIL CEILING EXP FLOOR GREATEST LEAST LN LOG10 MOD POW POWER ROUND SIGN SQRT
    COALESCE IF IFNULL ISNOTNULL ISNULL NULLIF NVL CAST TRY_CAST TRY_DIVIDE
    BTRIM CHAR_LENGTH CONCAT CONCAT_WS CONTAINS ENDSWITH GET_JSON_OBJECT INSTR LEFT LENGTH LOWER
    LPAD LTRIM REGEXP_EXTRACT REGEXP_LIKE REGEXP_REPLACE REPLACE REVERSE RIGHT RPAD RTRIM
    STARTSWITH SUBSTR SUBSTRING TRANSLATE TRIM UPPER
    DATE DATE_ADD DATE_FORMAT DATE_SUB DATE_TRUNC DATEDIFF DAY DAYOFMONTH DAYOFWEEK DAYOFYEAR HOUR
    MINUTE MONTH QUARTER SECOND TIMESTAMP_MILLIS TO_DATE TO_TIMESTAMP UNIX_MILLIS WEEKDAY WEEKOFYEAR
    YEAR
    """)

WITHOUT_ZERO: Final = _words("""
    CHAR_LENGTH CONCAT_WS DATE DATE_FORMAT DATE_TRUNC DAY GET_JSON_OBJECT HOUR LENGTH LOWER MINUTE
    MONTH QUARTER SECOND SUBSTR SUBSTRING TO_DATE TRIM UNIX_MILLIS UPPER YEAR
    """)
"""Functions that return text, times or whole numbers, which have a single zero. CONCAT also
returns arrays."""

TRUNCATED: Final = _words("SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR")
"""Units to which `date_trunc` truncates."""

PARTS: Final = {
    **{part: part for part in _words("SECOND MINUTE HOUR DAY MONTH QUARTER YEAR")},
    **dict.fromkeys(("DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "WEEKDAY", "DATE", "TO_DATE"), "DAY"),
    "WEEKOFYEAR": "WEEK",
}
"""Functions that return a part of a time, with the unit by which they change."""


_END: Final = Token("", "", -1)
_NUMBER: Final = re.compile(r"[0-9]+(?:[lLsSyY]|(?:[eE][0-9]+)?(?:[fFdD]|[bB][dD])?)", re.ASCII)
_RAW_NAME: Final = re.compile(r"[rR]\"")


class NoMatch(Exception):
    """The projection does not answer the query; the message summarizes why."""


@dataclass(frozen=True, slots=True)
class SelectItem:
    """One select item: tokens from `start` up to `end`.

    `alias` is its name, if it has one, without quotes.
    """

    start: int
    end: int
    alias: str = ""


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query of one datasource.

    Attributes:
        sql: Its text.
        found: Its tokens, followed by an end mark.
        table: The token of the datasource.
        own_name: The qualifier of its columns, if FROM gives the datasource no other name, and it
            is used at least once; else empty.
        items: Its select items.
        clauses: The tokens of each clause, from the first after its keywords up to the next: of
            WHERE, GROUP, HAVING, ORDER, LIMIT and OFFSET, if it has them.
    """

    sql: str
    found: tuple[Token, ...]
    table: int
    own_name: str
    items: tuple[SelectItem, ...]
    clauses: dict[str, range]


def read(sql: str, datasource: str) -> ParsedQuery:
    """Parse a query.

    Raises:
        NoMatch: It has another form, or reads another datasource.
        InvalidRequest: A text, a name or a comment is not closed.
    """
    found = tokens(sql)
    while found and found[-1].text == ";":
        found.pop()
    if not found or found[0].text != "SELECT":
        raise NoMatch("it is not a plain SELECT")
    _check_tokens(sql, found)
    starts = _clauses(found)
    name, is_own = _table_name(found, starts, datasource)
    as_it_was, found = len(found), _unqualified(sql, found, name)
    is_qualified = len(found) < as_it_was
    starts = _clauses(found)
    table = starts["FROM"] + 1
    clauses = {name: _behind(name, at, found) for name, at in starts.items() if name != "FROM"}
    ends = [*(at for name, at in starts.items() if name != "FROM"), len(found)]
    borders = dict(zip(clauses, ends[1:], strict=True))
    ranges = {name: range(at, borders[name]) for name, at in clauses.items()}
    if any(not tokens_of for tokens_of in ranges.values()):
        raise NoMatch("a clause is empty")
    found.append(_END)
    items = tuple(_items(found, starts["FROM"]))
    own_name = name if is_own and is_qualified else ""
    return ParsedQuery(sql, tuple(found), table, own_name, items, ranges)


def is_number(token: Token) -> bool:
    """Return whether a token is a number, or a part of one."""
    return _NUMBER.fullmatch(token.raw) is not None


def is_name(token: Token) -> bool:
    """Return whether a token is a name that is not followed by a call."""
    return bool(token.name) and token.text not in KEYWORDS and not is_number(token)


def commas(found: list[Token] | tuple[Token, ...], start: int, end: int) -> Iterator[range]:
    """Yield the parts between commas outside of parentheses."""
    depth, begin = 0, start
    for at in range(start, end):
        depth += {"(": 1, ")": -1}.get(found[at].text, 0)
        if found[at].text == "," and not depth:
            yield range(begin, at)
            begin = at + 1
    yield range(begin, end)


def _table_name(found: list[Token], starts: dict[str, int], datasource: str) -> tuple[str, bool]:
    """Return the datasource's name in a query, and whether that is its own name."""
    table = starts["FROM"] + 1
    behind = [at for clause, at in starts.items() if clause != "FROM"]
    given = found[table + 1 : behind[0] if behind else len(found)]
    if len(given) == 2 and given[0].text == "AS":
        del given[0]
    is_known = is_name(found[table]) and found[table].name.lower() == datasource.lower()
    if not is_known or len(given) > 1 or not all(map(is_name, given)):
        raise NoMatch("FROM does not read only this datasource")
    return (given[0].name, False) if given else (found[table].name, True)


def _unqualified(sql: str, found: list[Token], table: str) -> list[Token]:
    """Return the tokens, with each `table.column` as one: the name of the column."""
    made: list[Token] = []
    at = 0
    while at < len(found):
        dot, column, behind = (*found[at + 1 : at + 4], _END, _END, _END)[:3]
        is_path = dot.text == "." and bool(found[at].name) and bool(column.name)
        is_alone = behind.text not in {".", "("} and not (made and made[-1].text == ".")
        if is_path and is_alone and found[at].name.lower() == table.lower():
            start, end = found[at].position, column.position + len(column.raw)
            made.append(Token(sql[start:end], "", start, name=column.name))
            at += 3
        else:
            made.append(found[at])
            at += 1
    return made


def _check_tokens(sql: str, found: list[Token]) -> None:
    for token, following in zip(found, [*found[1:], _END], strict=True):
        if token.text.isascii() and not token.raw.isascii() and token.text:
            raise NoMatch(f"{token.raw} looks like another word: quote it if it is a name")
        if token.text in RESERVED and following.text != "(":
            raise NoMatch(f"{token.text} is not supported here (quote a column of this name)")
        is_hint = token.text == "+" and sql[token.position - 2 : token.position] == "/*"
        if is_hint or _RAW_NAME.match(token.raw):
            raise NoMatch("it has a hint" if is_hint else f"{token.raw} may be a text or a name")


def _clauses(found: list[Token]) -> dict[str, int]:
    """Return where each clause begins; each occurs at most once, in this order."""
    starts: dict[str, int] = {}
    depth = 0
    for at, token in enumerate(found):
        if token.text in {"(", ")"}:
            depth += 1 if token.text == "(" else -1
            if depth < 0:
                raise NoMatch("a parenthesis is closed that was not opened")
        elif token.text == "SELECT" and at:
            raise NoMatch("it has several SELECT")
        elif not depth and token.text in CLAUSES:
            if starts and CLAUSES.index(token.text) <= CLAUSES.index(next(reversed(starts))):
                raise NoMatch(f"{token.text} is not supported here")
            starts[token.text] = at
    if depth or next(iter(starts), "") != "FROM" or starts["FROM"] + 1 >= len(found):
        raise NoMatch("it has no FROM")
    return starts


def _behind(clause: str, at: int, found: list[Token]) -> int:
    """Return the first token after the keywords of a clause."""
    if clause not in {"GROUP", "ORDER"}:
        return at + 1
    if at + 1 >= len(found) or found[at + 1].text != "BY":
        raise NoMatch(f"{clause} has no BY")
    return at + 2


def _items(found: list[Token], end: int) -> Iterator[SelectItem]:
    for span in commas(found, 1, end):
        if not span:
            raise NoMatch("an item is empty")
        last = found[span.stop - 1]
        _check_last(found, span)
        if len(span) == 1 or not is_name(last):
            yield SelectItem(span.start, span.stop)
            continue
        before = found[span.stop - 2]
        if before.text == "AS":
            if len(span) == 2:
                raise NoMatch("an item is empty")
            yield SelectItem(span.start, span.stop - 2, last.name)
        elif _ends_expression(before):
            yield SelectItem(span.start, span.stop - 1, last.name)
        else:
            yield SelectItem(span.start, span.stop)


def _check_last(found: list[Token], span: range) -> None:
    """Refuse a keyword at the end of an item if it may be the item's name."""
    last = found[span.stop - 1]
    words = [found[at].text for at in span]
    is_value = last.text in ENDING and words.count("CASE") == words.count("END")
    if last.text in KEYWORDS and not is_value:
        raise NoMatch(f"{last.raw} may be the name of an item: quote it")


def _ends_expression(token: Token) -> bool:
    if token.text in {")", "?"} or token.text in ENDING or token.is_text:
        return True
    return is_name(token) or is_number(token)
