"""The locks of all datasources: one lockbox each, on a lane of its own.

Owns the lanes' inboxes, the transactions, and who is answered when. What is granted is decided by
`lockbox`. Invariants: a box is touched by its lane alone; what waits in a lane is taken together,
in order, with one transaction; nobody is answered before it is stored; when it cannot be stored,
memory is as it was before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import CoveringLocks
    from penstock.indexing.lockbox.model import (
        HeldLock,
        LockPolicy,
        LockRequest,
        LockTask,
        Outcome,
        Refused,
        Removal,
        SegmentLike,
    )
    from penstock.indexing.lockbox.store import LockStore

T = TypeVar("T")


class LockLanes(Protocol):
    """Threads for named lanes; work of a lane runs in order. `ThreadLanes` is one."""

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the lane, after what was submitted there before."""
        ...


def lane_of(datasource: str) -> str:
    """Return the lane of a datasource: what runs there runs between its lock operations."""
    return f"datasource {datasource}"


class Lockboxes:
    """All task locks of one term of leadership. Any thread may call; futures answer on the lanes.

    Every call is refused with `Unavailable` before `sync`.

    Args:
        store: Where locks are kept.
        lanes: Threads; not closed here.
        clock: Whose time becomes versions.
        on_released: Told of a datasource where something may be granted that was refused before, on
            its lane, after it is stored.
    """

    def __init__(
        self,
        store: LockStore,
        lanes: LockLanes,
        *,
        clock: Clock,
        on_released: Callable[[str], None] = lambda _datasource: None,
    ) -> None:
        raise NotImplementedError

    def sync(
        self, active: Iterable[LockTask], stored: Iterable[HeldLock] | None = None
    ) -> list[str]:
        """Begin with the locks of the earlier term; blocks for reads and one transaction.

        Args:
            active: Every task that is active.
            stored: The stored locks; None has them read.

        Returns:
            The tasks that must be failed: their group lost a lock. They are not active any more.

        Raises:
            Unavailable: The store does not answer: try again.
            Conflict: It was done before.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Refuse further calls with `Closed`; what waits is refused too."""
        raise NotImplementedError

    def add(self, task: LockTask) -> Future[None]:
        """Let a task ask for locks from now on."""
        raise NotImplementedError

    def remove(self, task: LockTask) -> Future[Removal]:
        """Release all of a task that ended; it gets no locks any more, even if this fails.

        A removal that could not be stored is done again with the next work of its datasource.
        """
        raise NotImplementedError

    def acquire(
        self, requests: Sequence[LockRequest], *, together: bool = False
    ) -> Future[list[Outcome]]:
        """Ask for locks of one task, in order; each is granted by itself.

        Args:
            requests: What the task asks for.
            together: All or nothing: if one is not granted, none is, nobody's lock is revoked,
                and each answer is that one's.

        Raises (in the future):
            LockRevoked: The task is not active any more.
            InvalidRequest: The requests contradict themselves or the task.
            Unavailable: It could not be stored; nothing was changed.
        """
        raise NotImplementedError

    def release(self, task: LockTask, interval: Interval) -> Future[None]:
        """Release what a task holds of exactly this interval; nothing there is fine."""
        raise NotImplementedError

    def critical(
        self,
        task: LockTask,
        action: Callable[[CoveringLocks], T],
        *,
        segments: Sequence[SegmentLike] = (),
        intervals: Sequence[Interval] = (),
    ) -> Future[T]:
        """Run an action while no lock of the datasource can change, if the task's locks cover it.

        Args:
            task: The task.
            action: What to do, on the lane; it may block for a transaction.
            segments: What it is about to publish.
            intervals: Times that it is about to change.

        Raises (in the future):
            LockRevoked: A lock that covers it was revoked, or the task is not active.
            Conflict: No lock covers it.
        """
        raise NotImplementedError

    def why(self, task_id: str) -> tuple[Refused, ...]:
        """Return what a task was refused at its last try, empty if it waits for nothing."""
        raise NotImplementedError

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return who holds what of a datasource."""
        raise NotImplementedError

    def locks_of(self, task: LockTask) -> Future[list[HeldLock]]:
        """Return what a task holds."""
        raise NotImplementedError

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the times of each datasource that are locked for who asks, disjoint, in order."""
        raise NotImplementedError

    @property
    def active_locks(self) -> int:
        """How many locks are held and not revoked; one that several tasks share counts once."""
        raise NotImplementedError
