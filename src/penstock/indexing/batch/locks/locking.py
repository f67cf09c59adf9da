"""Acquisition of the locks of a batch task: repeated until granted, or until its timeout.

Also decides whether a task can lock the segments that it replaces one by one: its output then
covers their root numbers, which must have no gap, and keeps their version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, LockRevoked
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.actions import LockedSegment, LockTryAcquire, TaskLockView
from penstock.storage.metadata.rows import OVERWRITE_END, OVERWRITE_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.indexing.batch.input_segments import VisibleSegment
    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.segments.model import Segment

_ASK_AGAIN_MS: Final = 1_000
# Segments of other kinds cannot share a time chunk with segments that rewrite.
_REWRITABLE: Final = frozenset(
    {"numbered", "hashed", "single", "range", "dim_value_set", "numbered_overwrite"}
)
# Minimum of unused partition numbers for the new segments.
_NUMBERS_LEFT: Final = 4_096


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """Locks that cover the requested intervals, in order."""

    locks: tuple[TaskLockView, ...]

    def version_of(self, interval: Interval) -> str:
        """Return the version of the lock that covers an interval."""
        after = bisect_right(self.locks, interval.start_ms, key=lambda one: one.interval.start_ms)
        # Mostly the first one: a task's locks rarely overlap.
        return next(
            self.locks[at].version
            for at in reversed(range(after))
            if self.locks[at].interval.covers(interval)
        )

    @property
    def types(self) -> list[str]:
        """The types of the locks."""
        return [lock.type for lock in self.locks]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The segments of one time chunk that a task rewrites together, under their version.

    Attributes:
        interval: The time chunk.
        version: The version of all of them.
        start: Their first root number.
        end: The number after their last root number.
        ids: Their ids.
        segments: The segments to lock.
    """

    interval: Interval
    version: str
    start: int
    end: int
    ids: frozenset[str]
    segments: tuple[LockedSegment, ...]


def rewrites_of(
    found: Iterable[VisibleSegment], granularity: Granularity | None
) -> list[Rewrite] | str:
    """Return the rewrite of each time chunk; or the reason to lock time chunks instead.

    Args:
        found: All segments to replace.
        granularity: The new time chunks; None keeps the existing ones.
    """
    pieces = sorted(found, key=lambda one: one.segment.id)
    if cut := next((one for one in pieces if one.interval != one.segment.interval), None):
        return f"only a part of segment {cut.segment.id} is visible, or requested"
    chunks = {one.segment.interval for one in pieces}
    if granularity is None:
        if len({Granularity.of_bucket(chunk) for chunk in chunks}) > 1:
            return "the segments have different granularities"
    elif any(granularity.bucket(chunk.start_ms) != chunk for chunk in chunks):
        return f"the segments do not have the granularity {granularity}"
    made = []
    for interval, group in groupby((one.segment for one in pieces), lambda one: one.interval):
        rewrite = _rewrite(interval, list(group))
        if isinstance(rewrite, str):
            return rewrite
        made.append(rewrite)
    return made


def _rewrite(interval: Interval, segments: Sequence[Segment]) -> Rewrite | str:
    """Return the rewrite of a time chunk, or the reason why it is not possible."""
    first = segments[0]
    odd = next(
        (
            one
            for one in segments
            if one.shard_spec.kind not in _REWRITABLE
            or one.shard_spec.is_chained
            or one.version != first.version
        ),
        None,
    )
    if odd is not None:
        return f"segment {odd.id} ({odd.shard_spec.kind}) cannot share a time chunk with a rewrite"
    members = Counter(one.shard_spec.roots for one in segments)
    ordered = sorted(members, key=lambda roots: (roots.start, roots.end))
    start = at = ordered[0].start
    for roots in ordered:
        if roots.start != at:
            return f"{interval} has other root numbers between those of its segments, from {at} on"
        if members[roots] != roots.group_size:
            return f"a part of an atomic update group of {interval} is left out"
        at = roots.end
    highest = max(one.shard_spec.partition_number for one in segments)
    if highest >= OVERWRITE_END - _NUMBERS_LEFT or at > OVERWRITE_START:
        return f"the partition numbers of {interval} are nearly exhausted"
    return Rewrite(
        interval,
        first.version,
        start,
        at,
        frozenset(str(one.id) for one in segments),
        tuple(
            LockedSegment(interval, first.version, one.shard_spec.partition_number)
            for one in segments
        ),
    )


def acquire(
    ports: BatchPorts, insistence: Insistence, action: LockTryAcquire, *, timeout_ms: int
) -> HeldLocks:
    """Acquire locks, and wait while other tasks hold conflicting ones.

    Raises:
        Conflict: The timeout passed; the message names the conflicting tasks.
        LockRevoked: A task of higher priority revoked a lock of the task.
        Stopped: The task was stopped.
    """
    until_s = ports.clock.monotonic_s() + timeout_ms / 1000
    while True:
        answer = insistence.ask("asking for locks", action)
        if answer.granted:
            break
        if ports.clock.monotonic_s() >= until_s:
            raise Conflict(
                f"could not acquire its locks within taskLockTimeout ({timeout_ms} ms):"
                f" {'; '.join(answer.refused)}"
            )
        insistence.pause(_ASK_AGAIN_MS)
    for lock in answer.locks:
        if lock.revoked:
            raise LockRevoked(
                f"a task of higher priority revoked its lock on {lock.interval}: submit it again"
            )
    return HeldLocks(tuple(sorted(answer.locks, key=lambda one: one.interval)))


def outside(wanted: Sequence[Interval], held: Sequence[Interval]) -> list[Interval]:
    """Return the parts of intervals that no other interval covers.

    Args:
        wanted: The intervals.
        held: The other ones: disjoint, in order.
    """
    left = []
    for one in wanted:
        start_ms = one.start_ms
        for other in held[bisect_right(held, start_ms, key=lambda i: i.end_ms) :]:
            if other.start_ms >= one.end_ms:
                break
            left.append(Interval(start_ms, max(start_ms, other.start_ms)))
            start_ms = other.end_ms
        left.append(Interval(start_ms, max(start_ms, one.end_ms)))
    return [part for part in left if not part.is_empty]
