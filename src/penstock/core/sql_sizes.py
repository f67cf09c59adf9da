"""Limits of the text of statements, checked before it is parsed. Pure.

`core.sql.sizes` has the limits of the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql_text import Token, each_token, place

TEXT_MAX: Final = 1_000_000
TOKENS_MAX: Final = 100_000
NESTING_MAX: Final = 160

_BRACKETS: Final[Mapping[str, int]] = {
    **dict.fromkeys("([{", 1),
    **dict.fromkeys(")]}", -1),
}
AS_TABLE_IN: Final = "join a lookup datasource instead, or split it into several queries"
"""Remedy for a statement with too many values."""


def check_text(sql: str) -> None:
    """Refuse a statement whose text is too long to be split into tokens.

    Raises:
        InvalidRequest: It is too long.
    """
    if len(sql) > TEXT_MAX:
        raise InvalidRequest(
            f"the statement has {len(sql)} characters, over the limit of {TEXT_MAX}, because"
            f" parsing takes time and memory with its length: {AS_TABLE_IN}"
        )


def statement_tokens(sql: str) -> list[Token]:
    """Split a statement into tokens, up to the first token over a limit.

    Other threads wait for most of the time that this takes, so refusing a statement must be cheap.

    Raises:
        InvalidRequest: It has too many tokens, or parentheses are nested too deeply; or a text, a
            name or a comment is not closed.
    """
    found: list[Token] = []
    depth = 0
    for token in each_token(sql):
        found.append(token)
        if token.text in _BRACKETS:
            depth = max(0, depth + _BRACKETS[token.text])
            if depth > NESTING_MAX:
                raise InvalidRequest(
                    f"{token.text} is nested deeper than {NESTING_MAX} levels,"
                    f" {place(sql, token.position)}, and Spark's parser is recursive: divide the"
                    " query with WITH, or remove parentheses"
                )
        if len(found) > TOKENS_MAX:
            raise InvalidRequest(
                f"the statement has more than {TOKENS_MAX} words and signs, which is the"
                f" limit, because planning takes time and memory with each: {AS_TABLE_IN}"
            )
    return found
