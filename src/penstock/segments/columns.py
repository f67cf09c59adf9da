"""Many changes to a long sorted column at once.

A million entries are one array and one list, not a tree: they take little memory and are searched
by bisection. The cost is in changes: one change moves the elements after it, many changes copy the
elements between the first and the last of them, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

E = TypeVar("E")

Edit: TypeAlias = "tuple[int, int, Sequence[E]]"
"""Replace the elements from one index up to, but not including, another by these."""

_MOVES_MAX = 4


def splice(column: MutableSequence[E], edits: Sequence[Edit[E]]) -> None:
    """Apply edits in order of their indexes, which refer to the original column; none overlap."""
    if len(edits) <= _MOVES_MAX:
        for low, high, elements in reversed(edits):
            column[low:high] = elements
        return
    made = column[:0]
    at = first = edits[0][0]
    for low, high, elements in edits:
        made.extend(column[at:low])
        made.extend(elements)
        at = high
    column[first:at] = made
