"""Groups of a datasource's segments as columns: one row for each interval, version and use.

Owns the step from the metadata to these columns, and their update to a later revision, which reads
only the times that changed. A million groups take about 55 MB. Visibility is computed from them by
`segment_cells`.

Nearly always the sums of the database are enough. Segments that rewrite others of their version,
and old ranges that do not record their number of core partitions, need their payloads: they become
a group for each state that they have within their version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.core.intervals import Interval
from penstock.core.timeline.entries import TimelineEntry
from penstock.segments.segment_summary import summarized

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from penstock.core.timeline.chunks import PartitionChunk
    from penstock.segments.segment_summary import SegmentSummary
    from penstock.storage.metadata import SegmentGroup
    from penstock.storage.metadata.segment_overview import SegmentOverview

# More changed times than this are read together with all others.
_CHANGED_MAX: Final = 10_000
_PAYLOADS_AT_ONCE: Final = 5_000


class GroupKind(IntEnum):
    """State of a group, without regard to other versions.

    Attributes:
        COMPLETE: All core partitions exist: queries see it, unless a newer version hides it.
        INCOMPLETE: Core partitions are missing: queries do not see it, and it hides nothing.
        REPLACED: Segments of the same version have rewritten it.
        UNUSED: Marked as unused.
    """

    COMPLETE = 0
    INCOMPLETE = 1
    REPLACED = 2
    UNUSED = 3


class _Part(NamedTuple):
    start_ms: int
    end_ms: int
    version: str
    kind: GroupKind
    segments: int
    bytes: int
    rows: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class SegmentGroups:
    """All groups of a datasource at one revision, in no order. Never changed.

    Attributes:
        revision: The revision at which segments last changed.
        names: The versions, the oldest first.
        starts: Start of each group's interval, in ms.
        ends: End of each group's interval, in ms.
        versions: Index of each group's version in `names`.
        kinds: The `GroupKind` of each.
        segments: Number of segments of each.
        bytes: Sum of their sizes.
        rows: Sum of their rows.
        newest: When the last segment of each was created, in epoch ms.
        read_starts: The starts at which groups were read again since an earlier revision; None: all
            were read.
    """

    revision: int
    names: tuple[str, ...]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    versions: NDArray[np.int64]
    kinds: NDArray[np.int8]
    segments: NDArray[np.int64]
    bytes: NDArray[np.int64]
    rows: NDArray[np.int64]
    newest: NDArray[np.int64]
    read_starts: frozenset[int] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def count(self, *, used: bool) -> int:
        """Return the number of used or of unused segments."""
        return int(self.segments[(self.kinds != GroupKind.UNUSED) == used].sum())

    @classmethod
    def read(
        cls,
        overview: SegmentOverview,
        datasource: str,
        known: SegmentGroups | None = None,
        *,
        needs_unused: bool = True,
    ) -> SegmentGroups:
        """Return the groups of a datasource.

        Args:
            overview: The segments.
            datasource: The datasource.
            known: Its groups at an earlier revision; unchanged ones are not read again.
            needs_unused: Whether unused segments that were deleted must be gone. Then each deletion
                has all groups read again.

        Raises:
            InvalidRequest: A payload cannot be read; the message names its segment.
            Conflict: Segments of a group exclude each other.
        """
        revision = overview.revision
        if known is not None and known.revision != revision:
            known = _moved(overview, datasource, known, revision)
        # A deletion of unused segments leaves no trace, and does not raise the revision.
        if known is not None and (
            not needs_unused or known.count(used=False) == overview.count(datasource, used=False)
        ):
            return known
        return _table(overview, datasource, overview.groups(datasource))

    def begin_at(self, starts: Collection[int]) -> NDArray[np.bool_]:
        """Return which groups begin at one of these times."""
        return np.isin(self.starts, np.fromiter(starts, np.int64, len(starts)))

    def where(self, which: NDArray[np.bool_]) -> SegmentGroups:
        """Return some of the groups."""
        return SegmentGroups(
            *(self.revision, self.names, self.starts[which], self.ends[which]),
            *(self.versions[which], self.kinds[which], self.segments[which]),
            *(self.bytes[which], self.rows[which], self.newest[which]),
        )


def _moved(
    overview: SegmentOverview, datasource: str, known: SegmentGroups, revision: int
) -> SegmentGroups | None:
    """Return the groups at a later revision; None if all must be read again."""
    if revision < known.revision:
        return None  # an older copy was restored
    starts = overview.changed_starts(known.revision).get(datasource, set())
    if len(starts) > _CHANGED_MAX:
        return None
    if starts:
        fresh = _table(overview, datasource, overview.groups(datasource, starts))
        known = _joined(revision, [known.where(~known.begin_at(starts)), fresh])
    # A segment that became unused and was deleted since then left no trace either.
    if known.count(used=True) != overview.count(datasource, used=True):
        return None
    return replace(known, revision=revision, read_starts=frozenset(starts))


def _table(
    overview: SegmentOverview, datasource: str, groups: Iterable[Sequence[SegmentGroup]]
) -> SegmentGroups:
    """Return the columns of groups; payloads are read once all sums are."""
    revision = overview.revision
    tables: list[SegmentGroups] = []
    special: list[SegmentGroup] = []
    for some in groups:
        starts, ends, versions, used, *numbers, whole, unusual = zip(*some, strict=True)
        sums = [np.array(one, np.int64) for one in numbers]
        in_use = np.array(used, bool)
        complete = np.where(np.array(whole, bool), GroupKind.COMPLETE, GroupKind.INCOMPLETE)
        kinds = np.where(in_use, complete, GroupKind.UNUSED)
        is_special = in_use & np.array(unusual, bool)
        special += [some[at] for at in np.flatnonzero(is_special).tolist()]
        made = _columns(revision, starts, ends, versions, kinds, sums)
        tables.append(made.where(~is_special) if is_special.any() else made)
    special.sort()
    for batch in _batches(special):
        parts = list(_special_parts(overview, datasource, batch))
        starts, ends, versions, states, *numbers = zip(*parts, strict=True)
        sums = [np.array(one, np.int64) for one in numbers]
        tables.append(_columns(revision, starts, ends, versions, np.array(states), sums))
    return _joined(revision, tables)


def _columns(
    revision: int,
    starts: Sequence[int],
    ends: Sequence[int],
    versions: Sequence[str],
    kinds: NDArray[np.int64],
    sums: Sequence[NDArray[np.int64]],
) -> SegmentGroups:
    names = sorted(set(versions))
    ranks = {name: rank for rank, name in enumerate(names)}
    segments, sizes, rows, newest = sums
    return SegmentGroups(
        *(revision, tuple(names), np.array(starts, np.int64), np.array(ends, np.int64)),
        np.array([ranks[version] for version in versions], np.int64),
        kinds.astype(np.int8),
        segments,
        sizes,
        rows,
        newest,
    )


def _batches(groups: Sequence[SegmentGroup]) -> Iterator[Sequence[SegmentGroup]]:
    """Divide groups in the order of time, so that a batch has few payloads and no gap."""
    low = found = until_ms = 0
    for at, group in enumerate(groups):
        if at > low and (found + group.segments > _PAYLOADS_AT_ONCE or group.start_ms > until_ms):
            yield groups[low:at]
            low, found, until_ms = at, 0, group.end_ms
        found += group.segments
        until_ms = max(until_ms, group.end_ms)
    if groups:
        yield groups[low:]


def _special_parts(
    overview: SegmentOverview, datasource: str, groups: Sequence[SegmentGroup]
) -> Iterator[_Part]:
    around = Interval(groups[0].start_ms, max(group.end_ms for group in groups))
    newest = {
        (Interval(group.start_ms, group.end_ms), group.version): group.newest_ms for group in groups
    }
    members: dict[tuple[Interval, str], list[PartitionChunk[SegmentSummary]]] = {
        key: [] for key in newest
    }
    texts = (
        text
        for text in overview.texts(datasource, around)
        if (Interval(text.start_ms, text.end_ms), text.version) in members
    )
    for interval, version, chunk in summarized(texts):
        members[interval, version].append(chunk)
    for (interval, version), chunks in members.items():
        entry = TimelineEntry(interval, version, tuple(sorted(chunks, key=lambda one: one.number)))
        kind = GroupKind.COMPLETE if entry.complete else GroupKind.INCOMPLETE
        states = [(kind, entry.visible)]
        if entry.arrangement is not None:
            states.append((GroupKind.INCOMPLETE, entry.arrangement.standby))
            states.append((GroupKind.REPLACED, entry.arrangement.overshadowed))
        for state, found in states:
            if found:
                yield _Part(
                    *(interval.start_ms, interval.end_ms, version, state, len(found)),
                    sum(chunk.item.size for chunk in found),
                    sum(chunk.item.rows for chunk in found),
                    newest[interval, version],
                )


def _joined(revision: int, tables: Sequence[SegmentGroups]) -> SegmentGroups:
    """Return the groups of several tables, with the names of all of them."""
    names = sorted({name for table in tables for name in table.names})
    ranks = {name: rank for rank, name in enumerate(names)}
    none = np.empty(0, np.int64)
    versions = [
        np.array([ranks[name] for name in table.names], np.int64)[table.versions]
        for table in tables
    ]
    return SegmentGroups(
        *(revision, tuple(names)),
        np.concatenate([none, *(table.starts for table in tables)]),
        np.concatenate([none, *(table.ends for table in tables)]),
        np.concatenate([none, *versions]),
        np.concatenate([np.empty(0, np.int8), *(table.kinds for table in tables)]),
        np.concatenate([none, *(table.segments for table in tables)]),
        np.concatenate([none, *(table.bytes for table in tables)]),
        np.concatenate([none, *(table.rows for table in tables)]),
        np.concatenate([none, *(table.newest for table in tables)]),
    )
