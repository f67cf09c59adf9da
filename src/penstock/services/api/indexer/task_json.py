"""JSON forms of tasks, workers and locks in the overlord's API, with Druid's fields.

Pure. A list of ten thousand tasks is made in one pass, so common parts are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock.core.http_errors import status_and_code
from penstock.core.intervals import format_time
from penstock.core.tls_trust import TRUST

if TYPE_CHECKING:
    from penstock.core.errors import PenstockError
    from penstock.indexing.lockbox.task_locks import TaskLock
    from penstock.indexing.overlord import TaskView
    from penstock.indexing.overlord.runner.worker_table import WorkerView
    from penstock.indexing.overlord.task_index import ActiveTask
    from penstock.indexing.ports import TaskLocation
    from penstock.storage.metadata import AuditRow, TaskSummary

ADDRESS_OF_NOBODY: Final[Mapping[str, object]] = {"host": None, "port": -1, "tlsPort": -1}

# Druid's answer has no insertion time, and always contains the year 1970.
_NEVER: Final = format_time(0)

_CATEGORIES: Final[Mapping[int, str]] = {
    400: "INVALID_INPUT",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    413: "INVALID_INPUT",
    429: "CAPACITY_EXCEEDED",
    503: "CAPACITY_EXCEEDED",
}


def place_to_json(place: TaskLocation | None) -> Mapping[str, object]:
    """Return the JSON of the address of a task's peon."""
    if place is None:
        return ADDRESS_OF_NOBODY
    is_tls = TRUST.scheme(place.host) == "https"
    return {"host": place.host, "port": place.port, "tlsPort": place.port if is_tls else -1}


def times(instants_ms: Sequence[int]) -> list[str]:
    """Format many times like `format_time`, in a tenth of its time."""
    written = np.datetime_as_string(np.array(instants_ms, "datetime64[ms]"), unit="ms")
    return [f"{one}Z" for one in written.tolist()]


class TaskStatus(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """The status of a task in a list, with Druid's names in its order.

    A list has ten thousand of them, which the garbage collector does not track; dictionaries would
    cost four times as much.
    """

    id: str
    group_id: str
    type: str
    created_time: str
    queue_insertion_time: str
    status_code: str
    status: str
    runner_status_code: str
    duration: int
    location: Mapping[str, object]
    data_source: str
    error_msg: object
    waits: list[dict[str, object]] | None = None


def active_statuses(active: Sequence[ActiveTask]) -> list[TaskStatus]:
    """Return the status of many active tasks, using only data in memory."""
    created = times([one.created_ms for one in active])
    return [
        TaskStatus(
            *(task.id, task.group_name, task.type, at, _NEVER, "RUNNING", "RUNNING", one.state),
            *(-1, place_to_json(one.location), task.datasource, None),
            waits=[wait.to_json() for wait in one.waits] or None,
        )
        for one, at in zip(active, created, strict=True)
        for task in (one.task,)
    ]


def complete_statuses(rows: Sequence[TaskSummary]) -> list[TaskStatus]:
    """Return the status of many ended tasks."""
    created = times([row.created_ms for row in rows])
    return [
        TaskStatus(
            *(row.id, row.group_id, row.type, at, _NEVER, row.state, row.state, "NONE"),
            *(row.updated_ms - row.created_ms, ADDRESS_OF_NOBODY, row.datasource),
            row.status.get("errorMsg") or None,
        )
        for row, at in zip(rows, created, strict=True)
    ]


def task_to_json(view: TaskView, shown_error: Callable[[str], str]) -> dict[str, object]:
    """Return a task's status.

    Args:
        view: The task.
        shown_error: Returns the text of its error, as the principal of the request may see it.
    """
    row = view.row
    error = row.status.get("errorMsg")
    return {
        "id": row.id,
        "groupId": row.group_id,
        "type": row.type,
        "createdTime": format_time(row.created_ms),
        "queueInsertionTime": _NEVER,
        "statusCode": row.state,
        "status": row.state,
        "runnerStatusCode": view.runner_state,
        "duration": -1 if row.active else row.updated_ms - row.created_ms,
        "location": place_to_json(view.location),
        "dataSource": row.datasource,
        "errorMsg": shown_error(str(error)) if error else None,
        **({"waits": [wait.to_json() for wait in view.waits]} if view.waits else {}),
    }


def worker_to_json(worker: WorkerView) -> dict[str, object]:
    """Return a worker with its tasks."""
    blacklisted_ms = worker.blacklisted_until_ms
    return {
        "worker": {
            "scheme": "http",
            "host": worker.host,
            "ip": worker.host.rpartition(":")[0] or worker.host,
            "name": worker.name,
            "capacity": worker.capacity,
            "version": worker.version,
            "category": worker.category,
            "disabled": not worker.enabled,
        },
        "currCapacityUsed": len(worker.running),
        "currParallelIndexCapacityUsed": worker.used_by_type.get("index_parallel", 0),
        "currCapacityUsedByTaskType": dict(worker.used_by_type),
        "availabilityGroups": list(worker.availability_groups),
        "runningTasks": list(worker.running),
        "lastCompletedTaskTime": format_time(worker.last_end_ms) if worker.last_end_ms else None,
        "blacklistedUntil": None if blacklisted_ms is None else format_time(blacklisted_ms),
    }


def lock_to_json(lock: TaskLock, task_ids: list[str]) -> dict[str, object]:
    """Return a lock; `taskIds`, an extension of Penstock, has its owners."""
    shown: dict[str, object] = {
        "type": lock.type.value,
        "groupId": lock.group,
        "dataSource": lock.datasource,
        "interval": str(lock.interval),
        "version": lock.version,
        "priority": lock.priority,
        "revoked": lock.revoked,
        "granularity": lock.granularity.value,
        "taskIds": task_ids,
    }
    if lock.partition_number is not None:
        shown["partitionId"] = lock.partition_number
    return shown


def audit_to_json(row: AuditRow) -> dict[str, object]:
    """Return the author, time and reason of a change."""
    return {
        "auditInfo": {"author": row.author, "comment": row.comment, "ip": ""},
        "auditTime": format_time(row.created_ms),
    }


def typed_error(error: PenstockError) -> tuple[int, dict[str, object]]:
    """Return status and body of an error in Druid's typed format."""
    status, code = status_and_code(error)
    place = getattr(error, "place", "")
    return status, {
        "error": "druidException",
        "errorCode": code,
        "persona": "USER" if status < 500 else "OPERATOR",
        "category": _CATEGORIES.get(status, "RUNTIME_FAILURE"),
        "errorMessage": str(error),
        "context": {"place": place} if place else {},
    }
