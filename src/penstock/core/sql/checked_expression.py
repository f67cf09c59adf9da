"""The check of expressions from outside: transforms and filters of specs, row filters, masks. Pure.

An expression sees one row, and returns one value for it. As in queries, it consists of known syntax
and of functions on the allow-list. Fields of messages may be called `from` or `select`: where no
query may stand, words that only begin clauses are names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.sql import tree
from penstock.core.sql.checked_query import check_function
from penstock.core.sql.parser import Parser
from penstock.core.sql.token_reader import RESERVED
from penstock.core.sql.values import check_values
from penstock.core.sql.writer import written
from penstock.core.sql_text import Token, check_variables, place

_LENGTH_MAX: Final = 100_000
# The tree of an expression takes about 200 times its characters: short ones are kept.
_CACHED: Final = 256
_CACHED_LENGTH_MAX: Final = 1_000
# Words that begin clauses of queries, and mean nothing within an expression.
_CLAUSES: Final = frozenset(
    {"FROM", "HAVING", "INTERSECT", "JOIN", "ON", "SELECT", "UNION", "USING", "WHERE", "WITH"}
)
_RESERVED: Final = RESERVED - _CLAUSES
# Functions that return several rows or columns, or none, for one row.
_GENERATORS: Final = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"}
    | {"stack", "json_tuple", "variant_explode", "variant_explode_outer"}
)


@dataclass(frozen=True, slots=True)
class ParsedExpression:
    """An expression with its tree.

    Attributes:
        sql: Its text.
        root: Its tree.
        tokens: The tokens of the tree.
    """

    sql: str
    root: tree.Expression
    tokens: Sequence[Token]

    def columns(self) -> Iterator[str]:
        """Yield the names of the columns that it may read, and of variables of its lambdas."""
        for node in tree.walk(self.root):
            if isinstance(node, tree.Name):
                yield node.parts[0]

    def in_spark(self) -> str:
        """Return its text for Spark, with the places of the original: names are in backquotes.

        Spark knows names in double quotes only in ANSI mode, and words that begin clauses as names
        only in quotes. Comments are left out.
        """
        replaced = {}
        for at in range(self.root.start, self.root.end):
            token = self.tokens[at]
            if token.name and token.raw.startswith('"'):
                replaced[at] = (at + 1, _in_backquotes(token.name))
        for node in tree.walk(self.root):
            if isinstance(node, tree.Name) and self.tokens[node.start].text in _CLAUSES:
                replaced[node.start] = (node.start + 1, _in_backquotes(node.parts[0]))
        return written(self.sql, self.tokens, self.root, replaced)


class _ExpressionReader(Parser):
    """Reads an expression, in which words that begin clauses are names."""

    def _can_be_name(self, ahead: int = 0, refused: frozenset[str] = RESERVED) -> bool:
        # Words that name something only after AS are checked against another list.
        return super()._can_be_name(ahead, _RESERVED if refused is RESERVED else refused)


def parsed_expression(sql: str) -> ParsedExpression:
    """Return an expression with its tree.

    Raises:
        InvalidRequest: It is not an expression.
    """
    return _cached(sql) if len(sql) <= _CACHED_LENGTH_MAX else _parsed(sql)


def _parsed(sql: str) -> ParsedExpression:
    reader = _ExpressionReader(sql)
    return ParsedExpression(sql, reader.whole(reader.expression), reader.tokens)


_cached: Final = functools.lru_cache(maxsize=_CACHED)(_parsed)


def check_expression(sql: str) -> ParsedExpression:
    """Return an expression that computes one value from one row.

    Raises:
        InvalidRequest: It is not one, is too long, runs other code than SQL, opens files, or has a
            value that is too large; the message has the place.
    """
    if len(sql) > _LENGTH_MAX:
        raise InvalidRequest(
            f"the expression has {len(sql)} characters, more than {_LENGTH_MAX}: compute it in"
            " several columns"
        )
    check_variables(sql)
    parsed = parsed_expression(sql)
    nodes = [*tree.walk(parsed.root)]
    for node in nodes:
        if isinstance(node, tree.Call):
            check_function(sql, parsed.tokens, node)
            _check_call(parsed, node)
        elif isinstance(node, tree.Query):
            raise InvalidRequest(
                f"a query is not allowed, {_place(parsed, node.start)}: an expression sees only its"
                " own row"
            )
        elif isinstance(node, tree.Parameter):
            raise InvalidRequest(
                f"? is not allowed, {_place(parsed, node.start)}: an expression has no parameters;"
                " write the value"
            )
    check_values(sql, parsed.tokens, nodes)
    return parsed


def _check_call(parsed: ParsedExpression, call: tree.Call) -> None:
    name = call.name[-1].lower()
    if name in _GENERATORS:
        raise InvalidRequest(
            f"{name}() is not allowed, {_place(parsed, call.start)}: it does not return exactly one"
            " row for each; publish events that are rows already"
        )
    if call.over is not None:
        raise InvalidRequest(
            f"a window is not allowed, {_place(parsed, call.over.start - 1)}: an expression sees"
            ' only its own row; use windows in queries; a field of that name is written "over"'
        )


def _place(parsed: ParsedExpression, at: int) -> str:
    return place(parsed.sql, parsed.tokens[at].position)


def _in_backquotes(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
