"""Names in expressions of Spark SQL, found in their text. Pure: no Spark and no spec.

Owns the small part of SQL's grammar that tells names from text, numbers and calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_IDENTIFIER: Final = re.compile(
    r"'(?:[^'\\]|\\.|'')*'"  # text, which names nothing
    r'|"(?P<double>(?:[^"]|"")+)"'
    r"|`(?P<back>(?:[^`]|``)+)`"
    r"|\d[\w.]*"  # a number, such as 1e5
    r"|(?P<bare>[^\W\d]\w*)(?P<call>\s*\()?"
)


def names_in(expression: str) -> Iterator[str]:
    """Yield what may be names of columns in an expression of Spark SQL.

    Key words come along: they are read as fields that no message has, which costs next to nothing,
    while telling them from columns of the same name would take the whole grammar.
    """
    for match in _IDENTIFIER.finditer(expression):
        if match["double"]:
            yield match["double"].replace('""', '"')
        elif match["back"]:
            yield match["back"].replace("``", "`")
        elif match["bare"] and not match["call"]:
            yield match["bare"]


def in_backticks(expression: str) -> str:
    """Return the expression with backticks around the names that have double quotes.

    Spark takes double quotes for names only where it is also strict about values (ANSI), which the
    engine is not.
    """

    def requoted(match: re.Match[str]) -> str:
        if not match["double"]:
            return match.group()
        name = match["double"].replace('""', '"')
        return "`" + name.replace("`", "``") + "`"

    return _IDENTIFIER.sub(requoted, expression)
