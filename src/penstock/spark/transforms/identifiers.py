"""Names in expressions of Spark SQL, found in their text. Pure: no Spark and no spec.

Uses the tokens with which the expression was checked, so that Spark receives what was checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from penstock.core.sql_text import Token, tokens

_END: Final = Token("", "", -1)
_NOT_LINE_END: Final = re.compile(r"[^\r\n]")


def names_in(expression: str) -> Iterator[str]:
    """Yield the possible names of columns in an expression of Spark SQL.

    Keywords are included: reading them as missing fields is cheap, and distinguishing them from
    columns would need Spark's grammar.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    for token, following in pairwise([*tokens(expression), _END]):
        is_call = bool(token.text) and following.text == "("
        is_number = token.raw[:1].isdigit()  # in quotes it is a name
        if token.name and not is_number and not is_call:
            yield token.name


def in_backticks(expression: str) -> str:
    """Return the expression with backticks around the names that have double quotes.

    Spark accepts double-quoted names only in ANSI mode, which the engine does not use. Comments are
    left out.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    parts: list[str] = []
    at = 0
    for token in [*tokens(expression), Token("", "", len(expression))]:
        # Replace comments between tokens by blanks, so that positions in errors stay the same.
        parts += (_NOT_LINE_END.sub(" ", expression[at : token.position]), _requoted(token))
        at = token.position + len(token.raw)
    return "".join(parts)


def _requoted(token: Token) -> str:
    if not token.name or not token.raw.startswith('"'):
        return token.raw
    return "`" + token.name.replace("`", "``") + "`"
