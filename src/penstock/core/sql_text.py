"""Text of Spark's SQL: its tokens, and the variables that Spark would replace in it. Pure.

Owns a lexer that agrees with Spark's about where text, names and comments begin and end. It does
not know the grammar: `core.sql` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest

# Possessive quantifiers (`++`, `*+`) prevent backtracking. Without them, matching keeps 150 bytes
# of state for each character, and blocks all threads of the process: 17 s for 10 MB.
_TOKEN: Final = re.compile(
    r"(?P<space>\s+|--(?:\\\n|[^\r\n])*+)"
    r"|(?P<comment>/\*)"
    # Spark reads r"…" as a text, although "…" is a name.
    r"|(?P<text>[rR]'[^']*'|[rR]\"[^\"]*\"|'(?:[^'\\]++|\\.|'')*+')"
    r'|(?P<quoted>"(?:[^"\\]++|\\.|"")*+"|`(?:[^`]++|``)*+`)'
    r"|(?P<word>\w+)"
    r"|(?P<mark>.)",
    re.DOTALL,
)
# The beginning of a hint is plain text within a comment.
_COMMENT_MARK: Final = re.compile(r"/\*(?!\+)|\*/")
# Spark replaces variables before it parses a statement, even in texts and comments. A run of
# characters without a closing brace is skipped as a whole: searching again from each `${` in it
# would take minutes for a long statement.
_SUBSTITUTION: Final = re.compile(r"\$\{(?:(?P<name>\S+?)\}|\S*+)")


# Not frozen: a long statement has 100,000, and each would take twice as long to create.
@dataclass(slots=True)
class Token:
    """A piece of SQL that is neither space nor comment.

    Attributes:
        raw: The text as written.
        text: A word in upper case, or a mark; empty for quoted names and text.
        position: Its position.
        name: A word or quoted name, without quotes.
        is_text: Whether it is text, `'…'`.
    """

    raw: str
    text: str
    position: int
    name: str = ""
    is_text: bool = False


def tokens(sql: str) -> list[Token]:
    """Split SQL into tokens.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    return list(each_token(sql))


def each_token(sql: str) -> Iterator[Token]:
    """Split SQL into tokens one by one, so that a caller may stop before the end.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # every character matches something
        kind, raw, end = match.lastgroup, match.group(), match.end()
        if kind == "word":
            yield Token(raw, raw.upper(), at, raw)
        elif kind == "mark":
            if raw in "'\"`$":
                raise InvalidRequest(
                    f"{raw} opens a text or name that is not closed or not supported,"
                    f" {place(sql, at)}: close it, and quote text with '…', names with \"…\""
                )
            yield Token(raw, raw, at)
        elif kind == "text":
            yield Token(raw, "", at, is_text=True)
        elif kind == "quoted":
            yield Token(raw, "", at, name=_unquoted(raw))
        elif kind == "comment" and sql[end : end + 1] != "+":
            end = _past_comment(sql, at)
        at = end


def check_variables(sql: str) -> None:
    """Refuse a text with a variable that Spark would replace before it parses the text.

    Raises:
        InvalidRequest: It has one; the message has its place.
    """
    for variable in _SUBSTITUTION.finditer(sql):
        if variable["name"]:
            raise InvalidRequest(
                f"{variable.group():.40} is not allowed, {place(sql, variable.start())}: Spark"
                " could replace it by a variable of the host; write text with a backslash,"
                " '$\\{…}', or pass it as a parameter"
            )


def place(sql: str, position: int) -> str:
    """Return the line and column of a position, as an editor shows them."""
    line = sql.count("\n", 0, position) + 1
    column = position - (sql.rfind("\n", 0, position) + 1) + 1
    return f"line {line}, column {column}"


def _past_comment(sql: str, at: int) -> int:
    """Return the end of a bracketed comment, which may be nested."""
    start = at
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    raise InvalidRequest(f"a comment is not closed, {place(sql, start)}: end it with */")


def _unquoted(text: str) -> str:
    body = text[1:-1]
    return body.replace("``", "`") if text[0] == "`" else body.replace('""', '"')
