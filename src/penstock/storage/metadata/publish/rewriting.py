"""Check of a publish that rewrites segments of its own version.

Segments with numbers from 32768 on rewrite others under segment locks: the group of one publish
hides the root numbers from its first up to its last, and all visible segments with these numbers.
So it must have been made of exactly those segments. Segments with other root numbers stay visible:
other tasks may append to them, or rewrite them.

The check raises if the task's request contradicts itself. It returns an outcome if the request was
right, but segments have been marked since.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, counted
from penstock.storage.metadata.chunks.chunk import by_chunk, roots_of
from penstock.storage.metadata.chunks.reading import rows_of_chunk
from penstock.storage.metadata.rows import PublishOutcome, RootRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy import Connection

    from penstock.storage.metadata.rows import PublishRequest, SegmentRow

_NEXT: Final = (
    "nothing was published, so the task fails: submit it again for the current segments; automatic"
    " compaction plans the interval again by itself"
)


def refusal_of_rewrites(connection: Connection, request: PublishRequest) -> PublishOutcome | None:
    """Return why the publish is refused, None if each group covers what it rewrites.

    Raises:
        InvalidRequest: A group is incomplete, or does not cover the root numbers of the segments
            that it rewrites.
    """
    rewriting = [row for row in request.segments if rewrites(row)]
    left = set(request.overwritten)
    for (interval, version), group in by_chunk(rewriting).items():
        there = {r.id: r for r in rows_of_chunk(connection, request.datasource, interval, version)}
        old = [there[name] for name in sorted(left & there.keys())]
        left -= there.keys()
        roots = _roots_of_group(request, group)
        if gone := [row.id for row in old if not row.used]:
            what = "which it has rewritten, was marked unused since: its rows would come back"
            return _refused(request, gone[0], what)
        _check_range(request, roots, old, there.values())
        if (refusal := _refusal_beside(request, roots, old, there.values())) is not None:
            return refusal
    if left:
        what = "which it has rewritten, was deleted since: its rows would come back"
        return _refused(request, min(left), what)
    return None


def rewrites(row: SegmentRow) -> bool:
    """Return whether a segment rewrites others of its version."""
    return roots_of(row.partition_number, row.payload).minor_version > 0


def _roots_of_group(request: PublishRequest, group: Sequence[SegmentRow]) -> RootRange:
    """Return the root numbers of a group, after a check of its size."""
    found = {roots_of(row.partition_number, row.payload) for row in group}
    roots = next(iter(found))
    if len(found) > 1 or roots.group_size != len(group):
        raise InvalidRequest(
            f"publish of task {request.task_id!r}: the atomic update group of segment"
            f" {group[0].id!r} does not consist of {counted(len(group), 'segment')}: publish all of"
            " it at once"
        )
    return roots


def _check_range(
    request: PublishRequest,
    roots: RootRange,
    old: Sequence[SegmentRow],
    there: Iterable[SegmentRow],
) -> None:
    """Check that a group has exactly the root numbers of what it rewrites, without a gap."""
    members = Counter(roots_of(r.partition_number, r.payload) for r in there if r.used)
    mine = Counter(roots_of(row.partition_number, row.payload) for row in old)
    at = roots.start
    for one in sorted(mine):
        if one.start != at or mine[one] != members[one] or mine[one] != one.group_size:
            break
        at = one.end
    else:
        if at == roots.end and mine:
            return
    raise InvalidRequest(
        f"publish of task {request.task_id!r}: the root numbers {roots.start} to {roots.end - 1}"
        f" are not those of the {counted(len(old), 'segment')} that it rewrites: name all of"
        " them in segmentsToBeOverwritten"
    )


def _refusal_beside(
    request: PublishRequest,
    roots: RootRange,
    old: Sequence[SegmentRow],
    there: Collection[SegmentRow],
) -> PublishOutcome | None:
    """Return why other segments with the root numbers refuse the publish, None if none do."""
    names = {row.id for row in old}
    mine = {roots_of(row.partition_number, row.payload) for row in old}
    members = Counter(roots_of(r.partition_number, r.payload) for r in there if r.used)
    for row in there:
        other = roots_of(row.partition_number, row.payload)
        if not roots.overlaps(other):
            continue
        if other.minor_version >= roots.minor_version:
            what = "has rewritten the same root numbers at the same time or later"
            return _refused(request, row.id, what)
        if not row.used or row.id in names:
            continue
        # The rest of a group that lacks members is hidden, and stays hidden.
        is_whole = members[other] == other.group_size
        if is_whole and not any(one.overshadows(other) for one in mine):
            what = "which it has not read, was marked used since: its rows would be hidden"
            return _refused(request, row.id, what)
    return None


def _refused(request: PublishRequest, name: str, what: str) -> PublishOutcome:
    return PublishOutcome(
        ok=False,
        reason=f"task {request.task_id!r}: segment {name!r}, {what}; {_NEXT}",
        outdated_by=(name,),
    )
