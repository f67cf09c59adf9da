"""Comparison of expressions: two of the same shape have the same value for each row. Pure.

A shape has no cases of names, no parentheses around a single value, and one spelling of each
operator. Functions are not interpreted: `a + b` and `b + a` have two shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final, TypeAlias

from penstock.core.sql import tree
from penstock.core.sql_text import Token

Shape: TypeAlias = tuple[object, ...]
"""A nested tuple, which can be compared and hashed."""

_SPELLINGS: Final[Mapping[str, str]] = {"==": "=", "<>": "!="}
_PLACE: Final = frozenset({"start", "end"})


def shape(node: tree.Node, tokens: Sequence[Token], table: str = "") -> Shape:
    """Return the shape of an expression.

    Args:
        node: The expression.
        tokens: The tokens of its text.
        table: The name, in lower case, by which columns may be qualified: it is left out.
    """
    if isinstance(node, tree.Row):
        node = unwrapped(node)
    kind = type(node).__name__
    if isinstance(node, tree.Name):
        parts = [part.lower() for part in node.parts]
        return (kind, *(parts[1:] if len(parts) == 2 and parts[0] == table else parts))
    if isinstance(node, tree.Text) and node.value is not None:
        return (kind, node.value)
    if isinstance(node, tree.Text | tree.DataType):  # the tree lacks escapes, and sizes of types
        raws = [token.raw for token in tokens[node.start : node.end]]
        return (kind, "raw", *(raws if isinstance(node, tree.Text) else map(str.upper, raws)))
    parts_of: list[object] = [kind]
    is_call = isinstance(node, tree.Call)
    for field in fields(node):
        if field.name in _PLACE:
            continue
        value = getattr(node, field.name)
        if isinstance(value, tree.Node):
            parts_of.append(shape(value, tokens, table))
        elif isinstance(value, tuple):
            inside: list[object] = []
            for one in value:
                if isinstance(one, tree.Node):
                    inside.append(shape(one, tokens, table))
                else:
                    inside.append(one.lower() if is_call else _SPELLINGS.get(one, one))
            parts_of.append(tuple(inside))
        else:
            parts_of.append(value.lower() if isinstance(node, tree.Number) else value)
    return tuple(parts_of)


def conjuncts(condition: tree.Expression) -> Iterator[tree.Expression]:
    """Yield the conditions that AND joins, also within parentheses; else the condition itself."""
    waiting = [condition]
    while waiting:
        one = waiting.pop()
        inner = unwrapped(one)
        if isinstance(inner, tree.Operation) and inner.operators[0] == "AND":
            waiting.extend(reversed(inner.operands))
        else:
            yield one


def unwrapped(node: tree.Expression) -> tree.Expression:
    """Return an expression without the parentheses around it."""
    while isinstance(node, tree.Row) and len(node.items) == 1:
        if isinstance(node.items[0], tree.Aliased):
            break
        node = node.items[0]
    return node
