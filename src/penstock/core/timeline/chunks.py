"""Chunks: the numbered parts of one interval and version, and which of them are visible.

Owns two rules, for any kind of item; it does not know intervals. The first rule decides when a set
is complete:

    numbered   if all core numbers 0 .. core - 1 exist; larger numbers were appended
    chained    old ranges with an unknown core count: if they have no gap

The second rule decides which chunks hide others of their set. Some chunks overwrite a range of root
numbers. Those of one range and minor version form an **atomic update group**; each records the size
of the group. Once all of them exist, the group is full, and replaces the chunks that it covers, all
at once. A chunk that overwrites nothing is a full group of its own number and minor version 0.

    visible       full, and no full group of a larger minor version covers its range; or not full,
                  and it overlaps neither a full group nor a newer one, so that some data is visible
    overshadowed  permanently hidden: a newer group covers it
    standby       not full, and it overlaps a full group, or a newer one that is not full either

Invariants: everything here is immutable; completeness and states depend on the existing chunks,
never on the order of changes. So if a member is removed, its group returns to standby, and the
chunks that it hid become visible again.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")

Key: TypeAlias = tuple[str | None, ...]
"""The values of the dimensions of a range, null first."""

OVERWRITE_START: Final = 32_768
"""Chunks that overwrite others have numbers from here to `OVERWRITE_END` - 1."""

OVERWRITE_END: Final = 65_536

UNKNOWN_CORE: Final = -1
"""Core count of old ranges, which do not record it."""


@dataclass(frozen=True, slots=True, order=True)
class RootRange:
    """Root numbers [`start`, `end`) of a chunk: the numbers that it replaces, or its own number.

    An ordinary chunk has its own number only. For a chunk that overwrites others, the `group_size`
    chunks with the same range and `minor_version` become visible together.
    """

    start: int
    end: int
    minor_version: int = 0
    group_size: int = 1

    @classmethod
    def of(cls, number: int) -> RootRange:
        """Return the range of an ordinary chunk."""
        return cls(number, number + 1)

    def is_full(self, members: int) -> bool:
        """Return whether a group with this many chunks is complete."""
        return members == self.group_size

    def overlaps(self, other: RootRange) -> bool:
        """Return whether the two ranges have a number in common."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: RootRange) -> bool:
        """Return whether this range includes every number of the other."""
        return self.start <= other.start and other.end <= self.end

    def overshadows(self, other: RootRange) -> bool:
        """Return whether a full group of this range hides the other."""
        return self.minor_version > other.minor_version and self.covers(other)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose `dimensions` are from `start` up to, but not including, `end`; None is open."""

    dimensions: tuple[str, ...]
    start: Key | None
    end: Key | None


class PartitionChunk(NamedTuple, Generic[T]):
    """One numbered part of a set; a tuple, so that a million of them can be created in bulk.

    Attributes:
        number: Its partition number.
        core: Number of core partitions; `UNKNOWN_CORE` if `place` is a link of a chain.
        item: The item that it holds.
        no_data: Whether it has no rows and only hides older chunks.
        place: The root numbers that it overwrites, or its link; None for most chunks.
    """

    number: int
    core: int
    item: T
    no_data: bool = False
    place: RootRange | KeyRange | None = None

    @property
    def roots(self) -> RootRange:
        """Its root numbers: its own number, unless it overwrites others."""
        return self.place if isinstance(self.place, RootRange) else RootRange.of(self.number)


_number_of = itemgetter(0)
_core_of = itemgetter(1)


def is_complete(chunks: Sequence[PartitionChunk[T]]) -> bool:
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


@dataclass(frozen=True, slots=True)
class UpdateGroups:
    """The atomic update groups of a set, by their states.

    Attributes:
        full: Visible groups that are full.
        partial: Visible groups that are not full, because no full or newer group overlaps them.
        standby: Groups that are not full, and overlap a full or a newer group.
        overshadowed: Groups that a newer group covers.
    """

    full: tuple[RootRange, ...]
    partial: tuple[RootRange, ...]
    standby: tuple[RootRange, ...]
    overshadowed: tuple[RootRange, ...]

    @classmethod
    def of(cls, counts: Mapping[RootRange, int]) -> UpdateGroups:
        """Return the states of groups, each with its number of members."""
        whole = [group for group, count in counts.items() if group.is_full(count)]
        waiting = [group for group, count in counts.items() if not group.is_full(count)]
        overwriting = [group for group in whole if group.minor_version]
        full, overshadowed = _divided(whole, overwriting)
        waiting, hidden = _divided(waiting, overwriting)
        overshadowed += hidden
        partial: list[RootRange] = []
        standby: list[RootRange] = []
        for group in waiting:
            if any(group.overlaps(other) for other in full):
                standby.append(group)
            elif _is_covered(group, waiting):
                overshadowed.append(group)
            elif any(_is_newer_beside(other, group) for other in waiting):
                standby.append(group)
            else:
                partial.append(group)
        return cls(tuple(full), tuple(partial), tuple(standby), tuple(overshadowed))

    def existing_core(self, core: int) -> int:
        """Return how many of `core` core numbers exist, or were overwritten by a full group."""
        existing: set[int] = set()
        for group in self.full:
            existing.update(range(group.start, min(group.end, core)))
        return len(existing)

    @staticmethod
    def clashing(
        existing: Mapping[RootRange, int], added: Mapping[RootRange, int]
    ) -> frozenset[RootRange]:
        """Return the groups that cannot be added, because rows would be visible twice.

        A group clashes with a full one if they have numbers in common and it does not overshadow
        the other. Groups are added in order, starting with the highest minor version.

        Args:
            existing: The groups of a set, each with its number of members.
            added: The groups to add, each with the number of members to add.
        """
        full = [group for group, count in existing.items() if group.is_full(count)]
        clashing: set[RootRange] = set()
        for group, count in sorted(added.items(), key=lambda one: -one[0].minor_version):
            if any(group.overlaps(other) and not group.overshadows(other) for other in full):
                clashing.add(group)
            elif group.is_full(existing.get(group, 0) + count):
                full.append(group)
        return frozenset(clashing)


def _divided(
    groups: Iterable[RootRange], overwriting: Sequence[RootRange]
) -> tuple[list[RootRange], list[RootRange]]:
    """Return the groups that no overwriting group covers, and those that one covers."""
    stay: list[RootRange] = []
    hidden: list[RootRange] = []
    for group in groups:
        (hidden if _is_covered(group, overwriting) else stay).append(group)
    return stay, hidden


def _is_covered(group: RootRange, others: Iterable[RootRange]) -> bool:
    return any(other.overshadows(group) for other in others)


def _is_newer_beside(newer: RootRange, older: RootRange) -> bool:
    return newer.minor_version > older.minor_version and newer.overlaps(older)


@dataclass(frozen=True, slots=True)
class ArrangedChunks(Generic[T]):
    """The chunks of a set by their states, each in the order of numbers.

    `complete`: all visible groups are full, and no core number is missing.
    """

    visible: tuple[PartitionChunk[T], ...]
    standby: tuple[PartitionChunk[T], ...]
    overshadowed: tuple[PartitionChunk[T], ...]
    complete: bool


def arrange(chunks: Sequence[PartitionChunk[T]]) -> ArrangedChunks[T]:
    """Return the chunks of a set with overwriting chunks by their states.

    Raises:
        Conflict: The members of a group record different sizes, or there are more of them than
            that size.
    """
    members = _members(chunks)
    groups = UpdateGroups.of({roots: len(found) for roots, found in members.items()})

    def chunks_of(*states: Iterable[RootRange]) -> tuple[PartitionChunk[T], ...]:
        found = (chunk for state in states for roots in state for chunk in members[roots])
        return tuple(sorted(found, key=_number_of))

    core = max(map(_core_of, chunks))
    return ArrangedChunks(
        visible=chunks_of(groups.full, groups.partial),
        standby=chunks_of(groups.standby),
        overshadowed=chunks_of(groups.overshadowed),
        complete=not groups.partial and groups.existing_core(core) >= core,
    )


def _members(chunks: Iterable[PartitionChunk[T]]) -> dict[RootRange, list[PartitionChunk[T]]]:
    """Return the chunks of each atomic update group."""
    groups: dict[tuple[int, int, int], list[PartitionChunk[T]]] = {}
    for chunk in chunks:
        roots = chunk.roots
        groups.setdefault((roots.start, roots.end, roots.minor_version), []).append(chunk)
    members: dict[RootRange, list[PartitionChunk[T]]] = {}
    for found in groups.values():
        roots = found[0].roots
        if any(chunk.roots != roots for chunk in found) or len(found) > roots.group_size:
            numbers = [chunk.number for chunk in found]
            raise Conflict(
                f"chunks {numbers} are one atomic update group of root numbers {roots.start} to "
                f"{roots.end - 1}, minor version {roots.minor_version}, but they record different "
                f"group sizes, or there are more than {roots.group_size} of them: overwrite with "
                "a larger minor version"
            )
        members[roots] = found
    return members
