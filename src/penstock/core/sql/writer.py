"""The text of a syntax tree, which is the only text that Spark gets of a statement. Pure.

A node is written with its own tokens at their own lines and columns, so that places in Spark's
errors are those of the user's text. Everything between the tokens becomes space: comments do not
reach Spark. Nodes that have replacements are written as their replacements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.core.sql.tree import Node
from penstock.core.sql_text import Token

_NOT_LINE_END: Final = re.compile(r"[^\r\n]")


def blank(text: str) -> str:
    """Return a text whose characters are spaces, except line ends."""
    return _NOT_LINE_END.sub(" ", text)


def written(
    sql: str, tokens: Sequence[Token], node: Node, replaced: Mapping[int, tuple[int, str]] = {}
) -> str:
    """Return the text of a node, padded to the line and column at which it stands in its statement.

    Args:
        sql: The statement.
        tokens: Its tokens, as the parser has them.
        node: The node.
        replaced: By the first token of a node within it: the token after its last one, and its
            text, without line ends.
    """
    parts: list[str] = []
    at, past = node.start, 0
    while at < node.end:
        token = tokens[at]
        parts.append(blank(sql[past : token.position]))
        if at in replaced:
            begun = token.position
            at, text = replaced[at]
            last = tokens[at - 1]
            if text and not _is_apart(sql[begun - 1 : begun]):
                text = f" {text}"
            past = last.position + len(last.raw)
            if text and not _is_apart(sql[past : past + 1]):
                text = f"{text} "
            lines = sql.count("\n", begun, last.position)
            parts.append(text + "\n" * lines)  # later lines keep their numbers
        else:
            parts.append(token.raw)
            at += 1
        last = tokens[at - 1]
        past = last.position + len(last.raw)
    return "".join(parts)


def _is_apart(mark: str) -> bool:
    """Return whether a character beside a replacement cannot become a part of it."""
    return not (mark.isalnum() or mark in {"_", '"', "`", "'"})


def one_line(tokens: Sequence[Token], node: Node, replaced: Mapping[int, tuple[int, str]]) -> str:
    """Return the text of a node on one line, with the replacements of nodes within it."""
    parts: list[str] = []
    at = node.start
    while at < node.end:
        if at in replaced:
            at, text = replaced[at]
            parts.append(text)
        else:
            parts.append(tokens[at].raw)
            at += 1
    return " ".join(parts)
