"""The locks of all datasources: one lockbox each, on a lane of its own.

`Lockboxes` passes each call to the lane of the datasource (`lock_lane`), which executes it and
answers. Owns the start of a term.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from penstock.core.errors import Conflict, InvalidRequest
from penstock.indexing.lockbox.lock_lane import (
    LanePorts,
    LockLanes,
    find_room,
    locked_intervals,
    run_covered,
)
from penstock.indexing.lockbox.lock_rules import floor_of
from penstock.indexing.lockbox.lockbox import (
    AcquireLocks,
    AddTask,
    Lockbox,
    PlaceTask,
    ReleaseLocks,
    RemoveTask,
)
from penstock.indexing.lockbox.restored_locks import restore_locks
from penstock.indexing.lockbox.task_locks import LockRefused
from penstock.mailbox.event_mail import IgnoredEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.coverage import SectionLocks
    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.lockbox.lock_store import LockStore
    from penstock.indexing.lockbox.task_locks import (
        HeldLock,
        LockOutcome,
        LockPolicy,
        LockRequest,
        LockTask,
        SegmentLike,
        TaskRemoval,
    )
    from penstock.mailbox.event_mail import EventReceiver
    from penstock.mailbox.lanes import Lanes

T = TypeVar("T")


class Lockboxes:
    """All task locks of one term of leadership. Any thread may call; futures complete on lanes.

    Before `sync`, every call raises `Unavailable`.

    Args:
        store: The store of the locks.
        lanes: Threads; not closed here.
        clock: Time for versions.
        changes: Receives changes of locks, and failures after which the term must end.
    """

    def __init__(
        self,
        store: LockStore,
        lanes: Lanes,
        *,
        clock: Clock,
        changes: EventReceiver[LocksChanged] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lanes = LockLanes(LanePorts(store, lanes, clock, changes or IgnoredEvents()))

    def sync(
        self, active: Iterable[LockTask], stored: Iterable[HeldLock] | None = None
    ) -> list[str]:
        """Start with the locks of the earlier term; blocks for reads and one transaction.

        Args:
            active: All active tasks.
            stored: The stored locks; None: read them.

        Returns:
            The tasks that must fail because their group lost a lock. They are no longer active; the
            answer of `remove` lists the other data to delete for each.

        Raises:
            Unavailable: The store does not answer: retry.
            Conflict: It was called before.
        """
        if self._lanes.is_open:
            raise Conflict("the locks were already read: create new lockboxes for a new term")
        # The clock of an earlier leader may have been ahead of this one.
        newest = self._store.newest_versions()
        floors = {datasource: floor_of(version) for datasource, version in newest.items()}
        restored = restore_locks(active, self._store.every() if stored is None else stored, floors)
        if restored.changes:
            self._store.apply(restored.changes)
        self._lanes.open(restored.boxes, floors)
        return restored.failed

    def close(self) -> None:
        """Refuse further calls and all waiting work with `Closed`."""
        self._lanes.close()

    def add(self, task: LockTask) -> Future[None]:
        """Allow a task to request locks from now on.

        Raises (in the future):
            Conflict: Another task has this id.
            Unavailable: Another change could not be stored; the task may request locks anyway.
        """
        return cast("Future[None]", self._lanes.execute(task.datasource, AddTask(task)))

    def remove(self, task: LockTask) -> Future[TaskRemoval]:
        """Release all locks of an ended task, which gets none from now on, even if this fails.

        A removal that could not be stored is repeated with the next work of the datasource. Its
        answer is kept; call again to get it.

        Raises (in the future):
            Unavailable: The removal could not be stored.
        """
        return cast(
            "Future[TaskRemoval]", self._lanes.execute(task.datasource, RemoveTask(task.id))
        )

    def acquire(
        self, requests: Sequence[LockRequest], *, together: bool = False, waits: bool = False
    ) -> Future[list[LockOutcome]]:
        """Request locks of one task, in order; each is granted independently.

        Args:
            requests: The requests.
            together: All or nothing: if one is not granted, none is, no lock is revoked, and each
                outcome is that request's.
            waits: No worker has the task yet. Its locks yield to running tasks, and to waiting ones
                of a higher priority, until `place` reports that a worker has it.

        Raises:
            InvalidRequest: The requests are for several datasources.

        Raises (in the future):
            LockRevoked: The task is no longer active.
            InvalidRequest: The requests contradict each other or the task.
            Unavailable: The change could not be stored; nothing was changed.
        """
        datasources = {request.datasource for request in requests}
        if len(datasources) > 1:
            raise InvalidRequest(
                f"one call requests locks of {', '.join(sorted(datasources))}: a task has one"
                " datasource"
            )
        if not requests:
            nothing: Future[list[LockOutcome]] = Future()
            nothing.set_result([])
            return nothing
        command = AcquireLocks(tuple(requests), together, waits)
        return cast("Future[list[LockOutcome]]", self._lanes.execute(datasources.pop(), command))

    def room_for(self, requests: Sequence[LockRequest]) -> Future[list[LockRefused | str]]:
        """Check with which locks new segments would conflict, before they have partition numbers.

        Args:
            requests: Requests for locks on segments of one datasource, without numbers.

        Returns:
            For each request the version of the segment where none exists, or the refusal.

        Raises (in the future):
            LockRevoked: The task is not active.
        """
        now_ms = self._clock.now_ms()
        return self._lanes.call(requests[0].datasource, partial(find_room, requests, now_ms))

    def place(self, task: LockTask, *, waits: bool) -> Future[None]:
        """Report that a task goes to a worker, or, with `waits`, that no worker has it."""
        return cast("Future[None]", self._lanes.execute(task.datasource, PlaceTask(task.id, waits)))

    def release(self, task: LockTask, interval: Interval) -> Future[None]:
        """Release a task's locks on exactly this interval; does nothing if there are none.

        Raises (in the future):
            Unavailable: The release could not be stored; the task still holds the locks.
        """
        return cast(
            "Future[None]", self._lanes.execute(task.datasource, ReleaseLocks(task.id, interval))
        )

    def critical(
        self,
        task: LockTask,
        action: Callable[[SectionLocks], T],
        *,
        segments: Sequence[SegmentLike] = (),
        intervals: Sequence[Interval] = (),
    ) -> Future[T]:
        """Run an action while no lock of the datasource can change, if the task's locks cover it.

        Args:
            task: The task.
            action: The action, on the lane. It may block for a transaction, but must not wait for
                a future of these lockboxes.
            segments: Segments that the action publishes.
            intervals: Intervals that the action changes.

        Raises (in the future):
            LockRevoked: A covering lock was revoked, or the task is not active.
            Conflict: No lock covers a segment or an interval.
        """
        return self._lanes.call(
            task.datasource, partial(run_covered, action, task.id, segments, intervals)
        )

    def why(self, task_id: str) -> tuple[LockRefused, ...]:
        """Return the refusals of a task's last requests, empty if it waits for no lock."""
        return self._lanes.refusals.of(task_id)

    def all_refused(self) -> dict[str, tuple[LockRefused, ...]]:
        """Return the refusals of the last requests of all tasks that wait for locks, by task."""
        return self._lanes.refusals.all()

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return the locks of a datasource with their holders."""
        return self._lanes.call(datasource, Lockbox.locks)

    def locks_of(self, task: LockTask) -> Future[list[HeldLock]]:
        """Return the locks of a task."""
        return self._lanes.call(task.datasource, partial(Lockbox.locks, task_id=task.id))

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the intervals of each datasource that a policy cannot lock, disjoint, in order.

        Ignores KILL locks, locks that the policy's priority would revoke, and locks that do not
        conflict with its own. One policy for each datasource.
        """
        return _all_of(
            {
                policy.datasource: self._lanes.call(
                    policy.datasource, partial(locked_intervals, policy)
                )
                for policy in policies
            }
        )

    @property
    def active_locks(self) -> int:
        """Number of locks that are held and not revoked; one that tasks share counts once."""
        return self._lanes.active_locks


def _all_of(parts: Mapping[str, Future[T]]) -> Future[Mapping[str, T]]:
    """Return a future with the results of all parts, or the first error."""
    whole: Future[Mapping[str, T]] = Future()
    whole.set_running_or_notify_cancel()
    left = len(parts)
    mutex = threading.Lock()  # Parts complete on several lanes; held for the count only.

    def done(_part: Future[T]) -> None:
        nonlocal left
        with mutex:
            left -= 1
            if left:
                return
        failed = [error for part in parts.values() if (error := part.exception())]
        if failed:
            whole.set_exception(failed[0])
        else:
            whole.set_result({name: part.result() for name, part in parts.items()})

    if not parts:
        whole.set_result({})
    for part in parts.values():
        part.add_done_callback(done)
    return whole
