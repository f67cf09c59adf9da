"""Long lists, split into pieces that fit into one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

ITEMS_PER_STATEMENT = 500


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return the pieces in order."""
    for start in range(0, len(items), ITEMS_PER_STATEMENT):
        yield items[start : start + ITEMS_PER_STATEMENT]
