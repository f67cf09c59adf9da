"""The locks of a batch task: asked for until they are had, or for as long as the context allows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, LockRevoked
from penstock.core.intervals import Interval
from penstock.indexing.actions import LockTryAcquire, TaskLockView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.ports import BatchPorts

_ASK_AGAIN_MS: Final = 1_000


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


def acquire(
    ports: BatchPorts,
    insistence: Insistence,
    intervals: Sequence[Interval],
    *,
    appends: bool,
    timeout_ms: int,
) -> HeldLocks:
    """Lock intervals, waiting for those who are in the way.

    Raises:
        Conflict: Somebody was in the way all the time; the message says who.
        LockRevoked: A lock that the task had was taken by a task of higher priority.
        Stopped: The task was stopped.
    """
    action = LockTryAcquire(tuple(intervals), appends=appends)
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
