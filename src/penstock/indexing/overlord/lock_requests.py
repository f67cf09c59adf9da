"""Lock requests of a task, derived from its spec and its context. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.lockbox.task_locks import LockGranularity, LockRequest, LockTask, LockType
from penstock.indexing.specs.task_context import IngestionMode, read_context
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.task_spec import TaskSpec


def lock_task(task: TaskSpec) -> LockTask:
    """Return a task in the form that the lockbox uses."""
    # Replicas request the same segment ids, which are deleted when the last replica ends.
    allocator = task.availability_group if isinstance(task, StreamTaskSpec) else task.group_name
    return LockTask(task.id, task.group_name, task.datasource, task.priority, allocator)


def lock_type(task: TaskSpec, *, appends: bool) -> LockType:
    """Return the type of lock that a task's context selects."""
    settings = read_context(task.context, priority=task.priority)
    if isinstance(task, StreamTaskSpec):
        return LockType(settings.streaming_lock_type)
    mode = IngestionMode.APPEND if appends else IngestionMode.REPLACE_LEGACY
    return LockType(settings.lock_type(mode))


def lock_requests(task: TaskSpec) -> list[LockRequest]:
    """Return the locks that a task needs before it can start."""
    mine = lock_task(task)
    return [
        mine.request(intent.interval, lock_type(task, appends=intent.appends))
        for intent in task.lock_intents()
    ]


def check_lock_requests(task: TaskSpec) -> None:
    """Check that a spec yields its lock requests, before its task is stored or taken over.

    Raises:
        InvalidRequest: The code of the spec raises. Without this check the exception would end each
            overlord that takes the task over.
    """
    try:
        lock_requests(task)
    except MemoryError:
        raise  # Not the fault of the spec: the overlord is restarted.
    except Exception as error:  # narrow: translates
        raise InvalidRequest(
            f"the locks of task {task.id!r} cannot be derived from its spec, because"
            f" {type(error).__name__} was raised: {error}. Change its intervals or granularity, and"
            " report a bug of Penstock"
        ) from error


def requests_for(
    task: TaskSpec, intervals: Sequence[Interval], *, appends: bool, exclusive: bool = False
) -> list[LockRequest]:
    """Return the lock requests of a running task."""
    mine = lock_task(task)
    kind = LockType.EXCLUSIVE if exclusive else lock_type(task, appends=appends)
    return [mine.request(interval, kind) for interval in intervals]


def segment_requests(
    task: TaskSpec, segments: Sequence[tuple[Interval, str, int]]
) -> list[LockRequest]:
    """Return requests for locks on segments: interval, version and partition number of each."""
    mine = lock_task(task)
    return [
        mine.request(
            interval,
            granularity=LockGranularity.SEGMENT,
            version=version,
            partition_number=number,
        )
        for interval, version, number in segments
    ]


def new_segment_requests(task: TaskSpec, chunks: Sequence[Interval]) -> list[LockRequest]:
    """Return lock requests for segments that have no partition numbers yet."""
    mine = lock_task(task)
    return [mine.request(chunk, granularity=LockGranularity.SEGMENT) for chunk in chunks]
