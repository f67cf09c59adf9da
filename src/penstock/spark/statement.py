"""The check that a statement only reads. Pure.

Owns a lexer that agrees with Spark's about where text, names and comments begin and end, and the
rule of what may stand where. Parsing and names are Spark's own affair; the point here is that
nothing that could write, configure or run foreign code reaches it.

In Spark's grammar a statement that begins with SELECT, VALUES, TABLE or a parenthesis is a query,
whatever follows. WITH may lead to an INSERT, so what follows its definitions is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.core.errors import InvalidRequest

_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--(?:\\\r?\n|[^\r\n])*)"
    r"|(?P<comment>/\*)"
    r"|(?P<text>[rR]'[^']*'|'(?:[^'\\]|\\.|'')*')"
    r'|(?P<quoted>[rR]"[^"]*"|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)'
    r"|(?P<word>\w+)"
    r"|(?P<mark>.)",
    re.DOTALL,
)
_QUERY_STARTS: Final = frozenset({"SELECT", "VALUES", "TABLE", "("})
_COMMAND_STARTS: Final = frozenset({"SHOW", "DESCRIBE", "DESC"})
_EXPLAIN_MODES: Final = frozenset({"EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL"})
# Functions that run any method of the JVM, and the clause that can name them by a computed text.
_FORBIDDEN_CALLS: Final = frozenset({"JAVA_METHOD", "REFLECT", "TRY_REFLECT", "IDENTIFIER"})
_MEND: Final = "only queries are answered here: SELECT, WITH, VALUES, EXPLAIN, SHOW and DESCRIBE"


@dataclass(frozen=True, slots=True)
class _Token:
    text: str  # of a word, in upper case, or a mark; quoted names have none
    position: int
    name: str = ""  # of words and quoted names, in upper case
    is_text: bool = False


def check_reads_only(sql: str) -> bool:
    """Return whether the statement is a query, as opposed to one about tables, if it only reads.

    Raises:
        InvalidRequest: It writes, sets something, calls foreign code, or is no statement.
    """
    tokens = _tokens(sql)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise InvalidRequest("the statement is empty: write a query such as SELECT 1")
    _check_calls(sql, tokens)
    return _check_start(sql, tokens, 0)


def _check_start(sql: str, tokens: list[_Token], at: int) -> bool:
    first = tokens[at].text if at < len(tokens) else ""
    if first in _QUERY_STARTS:
        return True
    if first == "WITH":
        body = _after_definitions(tokens, at + 1)
        if body < len(tokens) and tokens[body].text in _QUERY_STARTS:
            return True
        if body < len(tokens):
            raise _refused(sql, tokens[body])
        raise InvalidRequest(f"WITH defines tables, but no query follows: {_MEND}")
    if first == "EXPLAIN":
        at += 1
        if at < len(tokens) and tokens[at].text in _EXPLAIN_MODES:
            at += 1
        _check_start(sql, tokens, at)
        return False
    if first in _COMMAND_STARTS:
        return False
    raise _refused(sql, tokens[min(at, len(tokens) - 1)])


def _after_definitions(tokens: list[_Token], at: int) -> int:
    """Return the index of what follows `name [(columns)] [AS] ( query )`, comma by comma."""

    def word(index: int) -> str:
        return tokens[index].text if index < len(tokens) else ""

    if word(at) == "RECURSIVE":
        at += 1
    while True:
        at += 1  # the name
        if word(at) == "(":
            at = _past_parenthesis(tokens, at)
        if word(at) == "MAX":
            at += len(("MAX", "RECURSION", "LEVEL", "10"))
        if word(at) == "AS":
            at += 1
        if word(at) == "(":
            at = _past_parenthesis(tokens, at)
        if word(at) != ",":
            return at
        at += 1


def _past_parenthesis(tokens: list[_Token], at: int) -> int:
    depth = 0
    while at < len(tokens):
        depth += {"(": 1, ")": -1}.get(tokens[at].text, 0)
        at += 1
        if not depth:
            return at
    return at


def _check_calls(sql: str, tokens: list[_Token]) -> None:
    for token, following in pairwise(tokens):
        if following.text == "(" and token.name in _FORBIDDEN_CALLS:
            raise InvalidRequest(
                f"{token.name.lower()}() is not allowed, {_place(sql, token.position)}: it can run"
                " any code; use the other functions"
            )
        if token.text == "USING" and following.is_text:
            raise InvalidRequest(
                f"running a script is not allowed, {_place(sql, token.position)}: {_MEND}"
            )


def _tokens(sql: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # every character matches something
        text = match.group()
        end = match.end()
        if match["comment"] and sql[at + 2 : at + 3] != "+":
            end = _past_comment(sql, at)
        elif match["text"]:
            found.append(_Token("", at, is_text=True))
        elif match["quoted"]:
            found.append(_Token("", at, name=_unquoted(text).upper()))
        elif match["word"]:
            found.append(_Token(text.upper(), at, name=text.upper()))
        elif match["mark"]:
            if text in "'\"`$":
                raise InvalidRequest(
                    f"{text} opens a text or name that is not closed or not supported,"
                    f" {_place(sql, at)}: close it, and quote text with '…', names with \"…\""
                )
            found.append(_Token(text, at))
        at = end
    return found


def _past_comment(sql: str, at: int) -> int:
    """Return the end of a bracketed comment; they nest."""
    start = at
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(sql, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    raise InvalidRequest(f"a comment is not closed, {_place(sql, start)}: end it with */")


def _unquoted(text: str) -> str:
    body = text[2:-1] if text[0] in "rR" else text[1:-1]
    return body.replace("``", "`") if text[0] == "`" else body.replace('""', '"')


def _refused(sql: str, token: _Token) -> InvalidRequest:
    what = f"{token.text} is not allowed" if token.text else "this is no statement"
    return InvalidRequest(f"{what}, {_place(sql, token.position)}: {_MEND}")


def _place(sql: str, position: int) -> str:
    line = sql.count("\n", 0, position) + 1
    column = position - (sql.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"
