"""Records of tasks and their locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.storage.metadata.payloads import JsonObject


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An indexing task: its definition (`payload`), its state, and its `status`.

    `status` holds location, error message and similar fields; it may change while `active`.
    """

    id: str
    datasource: str
    type: str
    group_id: str
    payload: JsonObject
    state: str = "RUNNING"
    status: JsonObject = field(default_factory=dict)
    active: bool = True
    created_ms: int = 0
    updated_ms: int = 0


class TaskSummary(msgspec.Struct, frozen=True, gc=False):
    """A `TaskRow` without its payload, for lists of tasks.

    A struct, because lists may hold ten thousand and a dataclass takes ten times as long to create.
    """

    id: str
    datasource: str
    type: str
    group_id: str
    state: str
    status: JsonObject
    active: bool
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions for a list of tasks; None means any.

    Attributes:
        active: Only active tasks, or only complete ones.
        state: Only tasks in this state.
        datasource: Only tasks of this datasource.
        type: Only tasks of this type.
        created_from_ms: Only tasks created at this time or later.
        created_before_ms: Only tasks created before this time.
        ended_from_ms: Only tasks that ended at this time or later.
        contains: Only tasks whose id or datasource contains this text; letter case does not matter.
    """

    active: bool | None = None
    state: str | None = None
    datasource: str | None = None
    type: str | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None
    ended_from_ms: int | None = None
    contains: str = ""


class LockRow(msgspec.Struct, frozen=True, gc=False):
    """A lock as one task holds it: a struct, because many are made at once.

    Task, datasource, granularity, type, interval, version and segment partition identify it; the
    other fields may change. `granularity` and `type` are values of the lockbox.
    """

    task_id: str
    datasource: str
    granularity: str
    type: str
    group_id: str
    interval: Interval
    version: str
    priority: int
    revoked: bool = False
    partition_number: int | None = None
    created_ms: int = 0
