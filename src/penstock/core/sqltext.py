"""The text of Spark's SQL: its tokens, and what in it would run code that is not SQL. Pure.

Owns a lexer that agrees with Spark's about where text, names and comments begin and end, and the
list of what may stand in no statement and no expression from outside. It knows no grammar: what a
statement is about is for others to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest

# Nothing is tried twice (`++`, `*+`): else a text keeps a state of 150 bytes for each character,
# and all threads of the process waiting: 17 s for 10 MB.
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--(?:\\\n|[^\r\n])*+)"
    r"|(?P<comment>/\*)"
    r"|(?P<text>[rR]'[^']*'|'(?:[^'\\]++|\\.|'')*+')"
    r'|(?P<quoted>[rR]"[^"]*"|"(?:[^"\\]++|\\.|"")*+"|`(?:[^`]++|``)*+`)'
    r"|(?P<word>\w+)"
    r"|(?P<mark>.)",
    re.DOTALL,
)
# What opens a hint is text within a comment.
_COMMENT_MARK: Final = re.compile(r"/\*(?!\+)|\*/")
# Functions that run any method of the JVM, and the clause that can name them by a computed text.
_FORBIDDEN_CALLS: Final = frozenset({"JAVA_METHOD", "REFLECT", "TRY_REFLECT", "IDENTIFIER"})
# Functions that make several rows or columns of one, or none.
_GENERATORS: Final = frozenset(
    {"EXPLODE", "EXPLODE_OUTER", "POSEXPLODE", "POSEXPLODE_OUTER", "INLINE", "INLINE_OUTER"}
    | {"STACK", "JSON_TUPLE", "VARIANT_EXPLODE", "VARIANT_EXPLODE_OUTER"}
)
_MAX_EXPRESSION_LENGTH: Final = 100_000
_DEPTH_MAX: Final = 1_000
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL that is neither space nor comment.

    Attributes:
        raw: It, as it was written.
        text: Of a word, in upper case, or a mark; quoted names and text have none.
        position: Where it begins.
        name: Of words and quoted names, without quotes.
        is_text: Whether it is text, `'…'`.
    """

    raw: str
    text: str
    position: int
    name: str = ""
    is_text: bool = False


def tokens(sql: str) -> list[Token]:
    """Take SQL apart.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    found: list[Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # every character matches something
        raw = match.group()
        end = match.end()
        if match["comment"] and sql[at + 2 : at + 3] != "+":
            end = _past_comment(sql, at)
        elif match["text"]:
            found.append(Token(raw, "", at, is_text=True))
        elif match["quoted"]:
            found.append(Token(raw, "", at, name=_unquoted(raw)))
        elif match["word"]:
            found.append(Token(raw, raw.upper(), at, name=raw))
        elif match["mark"]:
            if raw in "'\"`$":
                raise InvalidRequest(
                    f"{raw} opens a text or name that is not closed or not supported,"
                    f" {place(sql, at)}: close it, and quote text with '…', names with \"…\""
                )
            found.append(Token(raw, raw, at))
        at = end
    return found


def check_calls(sql: str, found: Sequence[Token]) -> None:
    """Refuse what runs other code than SQL.

    Raises:
        InvalidRequest: A function or a clause does, or parentheses are nested so deep that Spark's
            parser, which is recursive, could not come back; the place is told.
    """
    _check_depth(sql, found)
    for token, following in pairwise(found):
        if following.text == "(" and token.name.upper() in _FORBIDDEN_CALLS:
            raise InvalidRequest(
                f"{token.name.lower()}() is not allowed, {place(sql, token.position)}: it can run"
                " any code; use the other functions"
            )
        if token.text == "USING" and following.is_text:
            raise InvalidRequest(
                f"running a script is not allowed, {place(sql, token.position)}: use functions"
            )


def is_table_call(found: Sequence[Token], at: int) -> bool:
    """Tell whether a token is what is called as a table: the name in `TABLE(name(…))`."""
    around = [one.text for one in (*found[max(at - 2, 0) : at], *found[at + 1 : at + 2])]
    return around == ["TABLE", "(", "("]


def check_expression(expression: str) -> None:
    """Refuse an expression that runs other code than SQL, or is not one value of its own row.

    Raises:
        InvalidRequest: It does, it is not closed somewhere, or it is too long.
    """
    if len(expression) > _MAX_EXPRESSION_LENGTH:
        raise InvalidRequest(
            f"the expression has {len(expression)} characters, more than {_MAX_EXPRESSION_LENGTH}:"
            " compute it in several columns"
        )
    found = tokens(expression)
    check_calls(expression, found)
    for token, following in pairwise(found):
        if following.text == "(" and token.name.upper() in _GENERATORS:
            raise InvalidRequest(
                f"{token.name.lower()}() is not allowed, {place(expression, token.position)}: it"
                " makes other than one row of one; publish events that are rows already"
            )
        if token.text == "OVER" and following.text == "(":
            raise InvalidRequest(
                f"a window is not allowed, {place(expression, token.position)}: an expression sees"
                ' its own row; use windows in queries; a field of that name is written "over"'
            )
        # `table` alone may be a field of the message; with a name behind it, it is a query.
        if token.text == "SELECT" or (token.text == "TABLE" and following.name):
            raise InvalidRequest(
                f"a query is not allowed, {place(expression, token.position)}: an expression sees"
                f' its own row; a field of that name stands in quotes, "{token.raw}"'
            )


def place(sql: str, position: int) -> str:
    """Return where a position is, as an editor shows it."""
    line = sql.count("\n", 0, position) + 1
    column = position - (sql.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def _check_depth(sql: str, found: Sequence[Token]) -> None:
    depth = 0
    for token in found:
        if token.text in _OPENING:
            depth += 1
            if depth > _DEPTH_MAX:
                raise InvalidRequest(
                    f"nested deeper than {_DEPTH_MAX} parentheses, {place(sql, token.position)}:"
                    " make it flatter"
                )
        elif token.text in _CLOSING:
            depth -= 1


def _past_comment(sql: str, at: int) -> int:
    """Return the end of a bracketed comment; they nest."""
    start = at
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    raise InvalidRequest(f"a comment is not closed, {place(sql, start)}: end it with */")


def _unquoted(text: str) -> str:
    body = text[2:-1] if text[0] in "rR" else text[1:-1]
    return body.replace("``", "`") if text[0] == "`" else body.replace('""', '"')
