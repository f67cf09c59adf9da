"""Chunks: the numbered parts of one interval and version, and when they are a whole.

Owns what a timeline knows of a part, and the rule of completeness. It knows no time. Invariants:
everything here is immutable; whether a set is whole follows from its chunks, never from the order
they came in.

    numbered   whole when all core numbers 0 .. core - 1 are there; numbers behind were appended
    chained    old ranges, whose core count is unknown: whole when they leave no gap
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from penstock.core.errors import Conflict
from penstock.segments.shardspec import UNKNOWN_CORE, KeyRange
from penstock.storage.metadata.rows import RootRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.segments.shardspec import Key

T = TypeVar("T")


class Chunk(NamedTuple, Generic[T]):
    """One numbered part of a set; a tuple, so that a million of them are made in bulk.

    Attributes:
        number: Its partition number.
        core: How many belong together; `UNKNOWN_CORE` if `place` is a link of a chain.
        item: Whatever it stands for.
        no_data: It hides what is older and has no rows.
        place: The root numbers that it overwrites, or its link; None for nearly all.
    """

    number: int
    core: int
    item: T
    no_data: bool = False
    place: RootRange | KeyRange | None = None

    @property
    def roots(self) -> RootRange:
        """The root numbers that it stands for: its own, unless it overwrites."""
        if isinstance(self.place, RootRange):
            return self.place
        return RootRange(self.number, self.number + 1, 0, 1)


_core_of = itemgetter(1)


def is_whole(chunks: Sequence[Chunk[T]]) -> bool:
    """Tell whether a set without overwriting chunks is complete.

    Args:
        chunks: One or more, in the order of their numbers, which differ.

    Raises:
        Conflict: Chained chunks and others are mixed.
    """
    cores: list[int] = list(map(_core_of, chunks))
    core = max(cores)
    if min(cores) == UNKNOWN_CORE:
        return _is_chain([_link(chunk) for chunk in chunks])
    # The numbers differ and are in order: the last core number is in its place only if all are.
    return core == 0 or (len(chunks) >= core and chunks[core - 1].number == core - 1)


def _link(chunk: Chunk[T]) -> KeyRange:
    if chunk.core != UNKNOWN_CORE or not isinstance(chunk.place, KeyRange):
        raise Conflict(
            f"chunk {chunk.number} is numbered, but its interval and version have ranges without "
            "a core count: nothing can be appended to those; replace the interval"
        )
    return chunk.place


def _is_chain(links: list[KeyRange]) -> bool:
    links.sort(key=lambda link: _sortable(link.start))
    at: Key | None = None
    for index, link in enumerate(links):
        if link.start != at or (index and at is None):
            return False
        at = link.end
    return at is None


def _sortable(key: Key | None) -> tuple[tuple[bool, str], ...]:
    """Return what sorts as the key does: open ends and nulls first."""
    return tuple((value is not None, value or "") for value in key or ())
