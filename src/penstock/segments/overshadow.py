"""Minor versions: which chunks of one interval and version hide others.

Some chunks overwrite a range of root numbers. Those of one range and minor version are an **atomic
update group**, whose size each of them has: once it is full, it replaces the chunks that it covers,
all at once. This module is used only for sets with such a chunk.

    visible       full, and no full group of a larger minor version covers its range. If no group is
                  full, the newest incomplete one, so that some data is visible
    overshadowed  permanently hidden: a newer group covers it
    standby       it is not full, and a full group stays in its place

Invariant: the states depend on the existing chunks, never on the order of changes. So if a member
is removed, its group returns to standby, and the chunks that it hid become visible again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from penstock.core.errors import Conflict
from penstock.segments.chunks import T
from penstock.storage.metadata.rows import RootRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.segments.chunks import PartitionChunk


@dataclass(frozen=True, slots=True)
class Arrangement(Generic[T]):
    """The chunks of a set by their states, each in the order of numbers.

    `complete`: all visible groups are full, and no core number is missing.
    """

    visible: tuple[PartitionChunk[T], ...]
    standby: tuple[PartitionChunk[T], ...]
    overshadowed: tuple[PartitionChunk[T], ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class _Group(Generic[T]):
    """The chunks of one range and minor version."""

    roots: RootRange
    chunks: tuple[PartitionChunk[T], ...]

    @property
    def full(self) -> bool:
        return len(self.chunks) == self.roots.group_size

    def newer_in(self, groups: Iterable[_Group[T]]) -> bool:
        """Return whether one of the groups covers this one with a larger minor version."""
        return any(group.roots.overshadows(self.roots) for group in groups)


def arrange(chunks: Sequence[PartitionChunk[T]]) -> Arrangement[T]:
    """Return the chunks of a set by their states.

    Raises:
        Conflict: The members of a group have different sizes, or are more than that.
    """
    groups = _groups(chunks)
    overwriting = [group for group in groups if group.full and group.roots.minor_version]
    partial = [group for group in groups if not group.full]
    visible: list[_Group[T]] = []
    standby: list[_Group[T]] = []
    overshadowed: list[_Group[T]] = []
    for group in groups:
        if group.newer_in(overwriting):
            overshadowed.append(group)
        elif group.full:
            visible.append(group)
    full = tuple(visible)
    waiting = [group for group in partial if not group.newer_in(overwriting)]
    for group in waiting:
        if any(group.roots.overlaps(other.roots) for other in full):
            standby.append(group)
        elif group.newer_in(waiting):
            overshadowed.append(group)
        elif any(_newer_beside(other.roots, group.roots) for other in waiting):
            standby.append(group)
        else:
            visible.append(group)
    complete = len(visible) == len(full) and _has_core(chunks, full)
    return Arrangement(_flat(visible), _flat(standby), _flat(overshadowed), complete)


def _groups(chunks: Sequence[PartitionChunk[T]]) -> list[_Group[T]]:
    members: dict[tuple[int, int, int], list[PartitionChunk[T]]] = {}
    for chunk in chunks:
        roots = chunk.roots
        members.setdefault((roots.start, roots.end, roots.minor_version), []).append(chunk)
    groups = []
    for found in members.values():
        roots = found[0].roots
        if any(chunk.roots != roots for chunk in found) or len(found) > roots.group_size:
            numbers = [chunk.number for chunk in found]
            raise Conflict(
                f"chunks {numbers} are one atomic update group of root numbers {roots.start} to "
                f"{roots.end - 1}, minor version {roots.minor_version}, but not of one size, or "
                f"more than its {roots.group_size}: overwrite with a larger minor version"
            )
        groups.append(_Group(roots, tuple(found)))
    return groups


def _newer_beside(newer: RootRange, older: RootRange) -> bool:
    return newer.minor_version > older.minor_version and newer.overlaps(older)


def _has_core(chunks: Sequence[PartitionChunk[T]], full: Iterable[_Group[T]]) -> bool:
    core = max(chunk.core for chunk in chunks)
    there: set[int] = set()
    for group in full:
        there.update(range(group.roots.start, min(group.roots.end, core)))
    return len(there) >= core


def _flat(groups: Iterable[_Group[T]]) -> tuple[PartitionChunk[T], ...]:
    return tuple(
        sorted((chunk for group in groups for chunk in group.chunks), key=lambda chunk: chunk[0])
    )
