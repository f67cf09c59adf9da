"""Chunks: the numbered parts of one interval and version, and the rule of completeness.

It does not know intervals. Invariants: everything here is immutable; the completeness of a set
depends on its chunks, never on the order of changes.

    numbered   complete if all core numbers 0 .. core - 1 exist; larger numbers were appended
    chained    old ranges with an unknown core count: complete if they have no gap
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from penstock.core.errors import Conflict
from penstock.segments.shard_spec import UNKNOWN_CORE, KeyRange
from penstock.storage.metadata.rows import RootRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.segments.shard_spec import Key

T = TypeVar("T")


class PartitionChunk(NamedTuple, Generic[T]):
    """One numbered part of a set; a tuple, so that a million of them can be created in bulk.

    Attributes:
        number: Its partition number.
        core: Number of core partitions; `UNKNOWN_CORE` if `place` is a link of a chain.
        item: The item that it holds.
        no_data: Whether it has no rows and only hides older chunks.
        place: The root numbers that it overwrites, or its link; None for nearly all.
    """

    number: int
    core: int
    item: T
    no_data: bool = False
    place: RootRange | KeyRange | None = None

    @property
    def roots(self) -> RootRange:
        """Its root numbers: its own number, unless it overwrites others."""
        if isinstance(self.place, RootRange):
            return self.place
        return RootRange(self.number, self.number + 1, 0, 1)


_core_of = itemgetter(1)


def is_whole(chunks: Sequence[PartitionChunk[T]]) -> bool:
    """Return whether a set without overwriting chunks is complete.

    Args:
        chunks: One or more, in the order of their numbers, which differ.

    Raises:
        Conflict: Chained chunks and others are mixed.
    """
    cores: list[int] = list(map(_core_of, chunks))
    core = max(cores)
    if min(cores) == UNKNOWN_CORE:
        return _is_chain([_link(chunk) for chunk in chunks])
    # The numbers are unique and ordered: the last core number is at its index only if all exist.
    return core == 0 or (len(chunks) >= core and chunks[core - 1].number == core - 1)


def _link(chunk: PartitionChunk[T]) -> KeyRange:
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
    """Return a sort key: open ends and nulls first."""
    return tuple((value is not None, value or "") for value in key or ())
