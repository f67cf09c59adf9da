"""Task actions on the overlord: performs them with the locks and the metadata store.

Runs on the threads that receive the actions. They wait for the lane of the task's datasource, never
for the overlord's mailbox, so a slow transaction delays only its datasource. The overlord performs
actions of active tasks only. An action may still be performed for a task that ends at the same
moment. That is safe: a datasource's lock requests are ordered with the task's removal, and a
publish compares offsets.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Protocol, assert_never

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import Closed, Fenced, InvalidRequest, LockRevoked, Unavailable
from penstock.core.intervals import condensed
from penstock.indexing.actions import (
    AnnounceFiles,
    AnyAction,
    CheckPointDataSourceMetadata,
    DatasourceList,
    LockAnswer,
    LockList,
    LockRelease,
    LockTryAcquire,
    MarkSegmentsAsUnused,
    MarkSegmentsToUpgrade,
    PublishSegments,
    RetrieveSegmentsById,
    SegmentAllocate,
    SegmentDivision,
    SegmentListUnused,
    SegmentListUsed,
    SegmentNuke,
    TaskLockView,
    action_from_json,
    allocated_to_json,
    outcome_to_json,
    segment_to_json,
)
from penstock.indexing.engine_json import data_file_to_json
from penstock.indexing.lockbox.task_locks import LockGranted, LockRefused, Revoked
from penstock.indexing.overlord.claimed_files import require_own_files, require_own_segments
from penstock.indexing.overlord.lock_requests import lock_task, requests_for, segment_requests
from penstock.indexing.overlord.segment_allocator import SegmentAllocator
from penstock.indexing.overlord.segment_publisher import OverlordPublisher, SupervisedTasks
from penstock.indexing.overlord.segment_transactions import kill_segments, mark_unused
from penstock.indexing.required_access import required_access
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.segments.delta.table_registry import KillBounds
from penstock.storage.metadata import AnnouncedFile, AnnouncedOffsets, PublishOutcome

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.engine import DataFile
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.task_locks import LockOutcome, TaskLock
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.metadata import MetadataStore, SegmentRow


class ActiveTasks(SupervisedTasks, Protocol):
    """Lookup of the active tasks. Any thread."""

    def active_task(self, task_id: str) -> TaskSpec | None:
        """Return the task if it is active.

        Raises:
            Unavailable: The overlord has not read its tasks yet.
        """
        ...


class TaskNotices(Protocol):
    """Listener for the reports of actions to the overlord. Called from any thread."""

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence, which started at `start`, is full."""
        ...

    def waits(self, task_id: str, reason: str) -> None:
        """A running task waits for the given reason; an empty reason means that it continues."""
        ...


class ActionHandler:
    """Performs task actions. Any thread.

    Args:
        metadata: The metadata store.
        lockboxes: The locks.
        lanes: The lanes of the lockboxes.
        tasks: The active tasks.
        notices: The listener to notify.
        clock: Time at which segments become unused.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        lockboxes: Lockboxes,
        lanes: Lanes,
        tasks: ActiveTasks,
        notices: TaskNotices,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._tasks = tasks
        self._notices = notices
        self._clock = clock
        self._allocating = SegmentAllocator(metadata, lockboxes, lanes, clock)
        self._publishing = OverlordPublisher(metadata, lockboxes, tasks)

    def perform(self, task_id: str, action: object) -> object:
        """Perform an action given in JSON; return its answer in JSON. Blocks.

        Raises:
            InvalidRequest: The JSON is not a valid action.
            LockRevoked: The task is not active, or a lock that it needs was revoked.
            Conflict: None of the task's locks covers the action.
            Unavailable: The store does not answer, or another task holds a conflicting lock; retry.
        """
        parsed = action_from_json(action)
        try:
            task = self._tasks.active_task(task_id)
            if task is None:
                raise LockRevoked(
                    f"task {task_id} is not active: it has ended on the overlord, abandon its work"
                )
            return self._perform(task, parsed)
        except (Closed, CancelledError, Fenced) as error:
            # For the task, this is the same as an unreachable overlord.
            raise Unavailable(
                f"the overlord is stopping: repeat the request at the next leader: {error}"
            ) from error

    def _perform(self, task: TaskSpec, action: AnyAction) -> object:
        match action:
            case LockTryAcquire() | LockList() | LockRelease():
                return self._perform_on_locks(task, action)
            case SegmentAllocate():
                return self._allocate(task, action)
            case SegmentDivision():
                divided = self._allocating.divide(task, action.intervals)
                return [{"times": [str(one) for one in times]} for times in divided]
            case PublishSegments():
                return outcome_to_json(self._publish(task, action))
            case MarkSegmentsToUpgrade():
                return self._publishing.carry_over(task, action.ids)
            case AnnounceFiles():
                return self._announce(task, action)
            case CheckPointDataSourceMetadata():
                self._notices.checkpoint_wanted(task.id, action.start)
                return True
            case _:
                return self._perform_on_segments(task, action)

    def _announce(self, task: TaskSpec, action: AnnounceFiles) -> bool:
        _require_own(task, action.sequence_name)
        if action.files:
            require_own_files(task, action.files, self._metadata.roots.paths().values())
        files = [_announced(file) for file in action.files]
        reading = None
        if isinstance(task, StreamTaskSpec):
            reading = AnnouncedOffsets(
                task.supervisor_id,
                action.start,
                action.end,
                action.topic_id,
                priority=task.server_priority,
            )
        return self._metadata.announce(
            task.id, task.datasource, action.sequence_name, files, reading
        )

    # Locks

    def _perform_on_locks(
        self, task: TaskSpec, action: LockTryAcquire | LockList | LockRelease
    ) -> object:
        mine = lock_task(task)
        match action:
            case LockTryAcquire():
                return self._acquire(task, action).to_json()
            case LockList():
                held = self._lockboxes.locks_of(mine).result()
                return [_view(one.lock).to_json() for one in held]
            case LockRelease():
                self._lockboxes.release(mine, action.interval).result()
                return None

    def _acquire(self, task: TaskSpec, action: LockTryAcquire) -> LockAnswer:
        requests = requests_for(
            task, action.intervals, appends=action.appends, exclusive=action.exclusive
        )
        requests += segment_requests(
            task, [(one.interval, one.version, one.partition_number) for one in action.segments]
        )
        outcomes: list[LockOutcome] = self._lockboxes.acquire(requests, together=True).result()
        refused = tuple(dict.fromkeys(o.text() for o in outcomes if isinstance(o, LockRefused)))
        self._notices.waits(task.id, "; ".join(refused))
        locks = (o.lock for o in outcomes if isinstance(o, LockGranted | Revoked))
        return LockAnswer(tuple(_view(lock) for lock in dict.fromkeys(locks)), refused)

    # Segments

    def _allocate(self, task: TaskSpec, action: SegmentAllocate) -> list[object]:
        _require_own(task, action.sequence_name)
        try:
            places = self._allocating.allocate(task, action)
        except Unavailable as error:  # narrow: reports
            self._notices.waits(task.id, str(error))
            raise
        self._notices.waits(task.id, "")
        return [allocated_to_json(place) for place in places]

    def _publish(self, task: TaskSpec, action: PublishSegments) -> PublishOutcome:
        _require_own(task, action.sequence_name)
        require_own_segments(task, action.segments)
        outcome = self._publishing.publish(task, action)
        self._notices.waits(task.id, outcome.reason if outcome.retryable else "")
        return outcome

    def _perform_on_segments(
        self,
        task: TaskSpec,
        action: DatasourceList
        | RetrieveSegmentsById
        | SegmentListUsed
        | SegmentListUnused
        | MarkSegmentsAsUnused
        | SegmentNuke,
    ) -> object:
        segments, mine = self._metadata.segments, lock_task(task)
        match action:
            case DatasourceList():
                names = self._metadata.segment_overviews.read(lambda overview: overview.names())
                return [name for name in names if _may_list(task, name)]
            case RetrieveSegmentsById():
                rows = segments.by_ids(action.ids)
                return [segment_to_json(row) for row in rows if row.datasource == task.datasource]
            case SegmentListUsed():
                return [segment_to_json(row) for row in self._used(task, action)]
            case SegmentListUnused():
                before_ms = action.changed_before_ms
                unused = segments.unused(
                    # By default, all segments that are unused now.
                    changed_before_ms=self._clock.now_ms() + 1 if before_ms is None else before_ms,
                    datasource=task.datasource,
                    interval=action.interval,
                    versions=action.versions,
                    changed_until=KillBounds.read(self._metadata).of(task.datasource),
                    limit=action.limit,
                )
                return [segment_to_json(row) for row in unused]
            case MarkSegmentsAsUnused():
                return self._lockboxes.critical(
                    mine,
                    partial(mark_unused, self._metadata, task.datasource, action.interval),
                    intervals=[action.interval],
                ).result()
            case SegmentNuke():
                doomed = [r for r in segments.by_ids(action.ids) if r.datasource == task.datasource]
                killed = self._lockboxes.critical(
                    mine,
                    partial(kill_segments, self._metadata, [row.id for row in doomed]),
                    intervals=sorted({row.interval for row in doomed}),
                ).result()
                return [segment_to_json(row) for row in killed.files_free]
            case _:
                assert_never(action)

    def _used(self, task: TaskSpec, action: SegmentListUsed) -> list[SegmentRow]:
        if not _may_list(task, action.datasource):
            raise InvalidRequest(f"task {task.id} does not read the datasource {action.datasource}")
        # The commit itself adds segments that were appended after a replacing task got its lock.
        replaced_by = task.id if action.replacing else None
        found = {
            row.id: row
            for interval in condensed(action.intervals)
            for row in self._metadata.segments.used(
                action.datasource, interval, replaced_by=replaced_by
            )
        }
        return list(found.values())


def _require_own(task: TaskSpec, sequence_name: str) -> None:
    if isinstance(task, StreamTaskSpec):
        if not sequence_name.startswith(f"{task.base_sequence_name}_"):
            raise InvalidRequest(
                f"task {task.id}: sequence {sequence_name!r} does not belong to the task: use names"
                f" that begin with {task.base_sequence_name}_"
            )
    elif sequence_name != task.id and not sequence_name.startswith(f"{task.id}_"):
        raise InvalidRequest(
            f"task {task.id}: sequence {sequence_name!r} does not belong to the task: use the"
            " task's id, or the id followed by an underscore and a suffix"
        )


def _may_list(task: TaskSpec, datasource: str) -> bool:
    """Return whether a task may list the segments of a datasource: its own, or one of its input."""
    wanted = Resource(ResourceKind.DATASOURCE, datasource)
    return datasource == task.datasource or (Action.READ, wanted) in required_access(task)


def _view(lock: TaskLock) -> TaskLockView:
    return TaskLockView(
        lock.interval,
        lock.type,
        lock.version,
        lock.priority,
        lock.revoked,
        lock.partition_number,
    )


def _announced(file: DataFile) -> AnnouncedFile:
    payload = data_file_to_json(file)
    return AnnouncedFile(file.path, file.interval, file.rows, payload)
