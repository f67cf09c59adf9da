"""The locks of a batch task: asked for until they are had, or for as long as the context allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, LockRevoked
from penstock.indexing.actions import LockTryAcquire, TaskLockView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.batch.insisting import Insistence
    from penstock.indexing.batch.ports import BatchPorts

_ASK_AGAIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """Locks that cover what was asked for."""

    locks: tuple[TaskLockView, ...]

    def version_of(self, interval: Interval) -> str:
        """Return the version of the lock that covers an interval."""
        return next(lock.version for lock in self.locks if lock.interval.covers(interval))

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
    return HeldLocks(answer.locks)
