"""The locks of a batch task: asked for until they are had, or for as long as the context allows.

And whether a task can lock the segments that it replaces one by one: what it writes stands for
their root numbers then, of which there must be no gap, and keeps their version.
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

    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.indexing.batch.visible import VisibleSegment
    from penstock.segments.model import Segment

_ASK_AGAIN_MS: Final = 1_000
# Others do not share a time chunk with segments that rewrite.
_REWRITABLE: Final = frozenset(
    {"numbered", "hashed", "single", "range", "dim_value_set", "numbered_overwrite"}
)
# So many numbers must be left for what is written.
_NUMBERS_LEFT: Final = 4_096


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """Locks that cover what was asked for, in order."""

    locks: tuple[TaskLockView, ...]

    def version_of(self, interval: Interval) -> str:
        """Return the version of the lock that covers an interval."""
        after = bisect_right(self.locks, interval.start_ms, key=lambda one: one.interval.start_ms)
        # Mostly the first that is looked at: a task's locks seldom overlap.
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
        version: Of all of them.
        start: Their first root number.
        end: The one behind their last.
        ids: Their names.
        segments: What is locked.
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
    """Return what is rewritten in each time chunk; or why time chunks must be locked instead.

    Args:
        found: All that is replaced.
        granularity: The new time chunks; None: those that are there.
    """
    pieces = sorted(found, key=lambda one: one.segment.id)
    if cut := next((one for one in pieces if one.interval != one.segment.interval), None):
        return f"only a part of segment {cut.segment.id} is visible, or asked for"
    chunks = {one.segment.interval for one in pieces}
    if granularity is None:
        if len({Granularity.of_bucket(chunk) for chunk in chunks}) > 1:
            return "the segments are not of one granularity"
    elif any(granularity.bucket(chunk.start_ms) != chunk for chunk in chunks):
        return f"the segments are not of the granularity {granularity}"
    made = []
    for interval, group in groupby((one.segment for one in pieces), lambda one: one.interval):
        rewrite = _rewrite(interval, list(group))
        if isinstance(rewrite, str):
            return rewrite
        made.append(rewrite)
    return made


def _rewrite(interval: Interval, segments: Sequence[Segment]) -> Rewrite | str:
    """Return what is rewritten in a time chunk, or why that cannot be."""
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
        return f"segment {odd.id} ({odd.shard_spec.kind}) shares its time chunk with no rewrite"
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
        return f"the partition numbers of {interval} are nearly used up"
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
    """Have locks, waiting for those who are in the way.

    Raises:
        Conflict: Somebody was in the way all the time; the message says who.
        LockRevoked: A lock that the task had was taken by a task of higher priority.
        Stopped: The task was stopped.
    """
    until_s = ports.clock.monotonic_s() + timeout_ms / 1000
    while True:
        answer = insistence.ask("asking for locks", action)
        if answer.granted:
            break
        if ports.clock.monotonic_s() >= until_s:
            raise Conflict(
                f"its locks could not be had within taskLockTimeout ({timeout_ms} ms):"
                f" {'; '.join(answer.refused)}"
            )
        insistence.pause(_ASK_AGAIN_MS)
    for lock in answer.locks:
        if lock.revoked:
            raise LockRevoked(
                f"its lock on {lock.interval} was taken by a task of higher priority: submit it"
                " again"
            )
    return HeldLocks(tuple(sorted(answer.locks, key=lambda one: one.interval)))


def outside(wanted: Sequence[Interval], held: Sequence[Interval]) -> list[Interval]:
    """Return the parts of intervals that lie in no other one.

    Args:
        wanted: What is looked at.
        held: The others: disjoint, in order.
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
