"""Validation of new tasks, and the rows that are stored for them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.names import TASK, check_not_taken, check_stored_name
from penstock.indexing.specs.batch import CompactSpec
from penstock.indexing.specs.model import SpecModel
from penstock.indexing.specs.task_context import with_defaults
from penstock.storage.metadata import TaskRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from penstock.indexing.task_spec import TaskSpec


def new_row(task: TaskSpec, now_ms: int, *, payload_bytes_max: int) -> TaskRow:
    """Return the row to store for a new task.

    Raises:
        InvalidRequest: Its id is not valid as a folder name, it is too large, or its context does
            not give it the locks that it needs.
    """
    check_stored_name(task.id, TASK, place="id")
    check_not_taken(task.id, TASK, place="id")
    if isinstance(task, CompactSpec):
        task.require_locks()
    payload = task.to_json()
    try:
        size = len(orjson.dumps(payload))
    except TypeError as error:  # A number in YAML may exceed the range of JSON numbers.
        raise InvalidRequest(f"task {task.id} cannot be written as JSON: {error}") from None
    if size > payload_bytes_max:
        raise InvalidRequest(
            f"task {task.id} has {size} bytes, the maximum is {payload_bytes_max} bytes:"
            " name fewer files in it, or set a larger --task-payload-size"
        )
    return TaskRow(
        id=task.id,
        datasource=task.datasource,
        type=task.type,
        group_id=task.group_name,
        payload=payload,
        created_ms=now_ms,
    )


def with_context(task: TaskSpec, context: Mapping[str, JsonValue]) -> TaskSpec:
    """Return a task whose context is extended by defaults."""
    said = with_defaults(task.context, context)
    if said == task.context or not isinstance(task, SpecModel):
        return task
    return task.model_copy(update={"context": said})


def taken(task_id: str) -> Conflict:
    """Return the error for a task whose id is already in use."""
    return Conflict(f"task {task_id!r} already exists: give the new one another id")
