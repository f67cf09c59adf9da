"""The protocol of tasks that a peon runs, and the registry of task kinds.

Owns the protocol, the report of every task, and the lookup by type. It imports no kind of task: the
module that composes the process registers them, each with its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.task import TaskResult
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import TaskSpec

UNPARSEABLE_SAMPLES_MAX = 100
ERROR_CHARACTERS_MAX = 20_000


class IngestionState(StrEnum):
    """Phase of a task, in Druid's terms for its report."""

    NOT_STARTED = "NOT_STARTED"
    DETERMINE_PARTITIONS = "DETERMINE_PARTITIONS"
    BUILD_SEGMENTS = "BUILD_SEGMENTS"
    SEGMENT_AVAILABILITY_WAIT = "SEGMENT_AVAILABILITY_WAIT"
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True)
class IngestionReport:
    """Report of a task, while it runs and afterwards.

    Attributes:
        state: The phase.
        row_stats: Counts by phase (``determinePartitions``, ``buildSegments``), then by name
            (``processed``, ``processedBytes``, ``processedWithError``, ``thrownAway``,
            ``unparseable`` and others).
        unparseable: Samples of rows that could not be read, by phase; their number is limited.
        error: Error message of a failed task; empty otherwise.
        more: Fields of the task's kind, such as the segments that it wrote.
    """

    state: IngestionState
    row_stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unparseable: Mapping[str, Sequence[JsonValue]] = field(default_factory=dict)
    error: str = ""
    more: Mapping[str, JsonValue] = field(default_factory=dict)

    def to_json(
        self, task_id: str, context: Mapping[str, JsonValue] | None = None
    ) -> dict[str, JsonValue]:
        """Return Druid's form, ``ingestionStatsAndErrors`` and ``taskContext``, of bounded size.

        Segments can be queried as soon as they are published, so a complete task always reports
        ``segmentAvailabilityConfirmed``.

        Args:
            task_id: The task.
            context: The context from its spec.
        """
        is_done = self.state is IngestionState.COMPLETED and not self.error
        samples: dict[str, JsonValue] = {
            phase: list(rows[:UNPARSEABLE_SAMPLES_MAX]) for phase, rows in self.unparseable.items()
        }
        counts: dict[str, JsonValue] = {phase: dict(rows) for phase, rows in self.row_stats.items()}
        payload: dict[str, JsonValue] = {
            **self.more,
            "ingestionState": self.state.value,
            "unparseableEvents": samples,
            "rowStats": counts,
            "errorMsg": self.error[:ERROR_CHARACTERS_MAX] or None,
            "segmentAvailabilityConfirmed": is_done,
        }
        return {
            "ingestionStatsAndErrors": {
                "type": "ingestionStatsAndErrors",
                "taskId": task_id,
                "payload": payload,
            },
            "taskContext": {
                "type": "taskContext",
                "taskId": task_id,
                "payload": dict(context or {}),
            },
        }


class PeonTask(Protocol):
    """A task that a peon runs. Created after its folder is locked; `run` is called once."""

    def run(self) -> TaskResult:
        """Run to the end on the calling thread and return the result.

        RUNNING: the task was stopped, and continues when it is restarted in the same folder.

        Raises:
            Unavailable: It cannot start, for a reason outside the task (a full disk): the peon is
                restarted. Other errors of Penstock end the task as failed.
        """
        ...

    def stop(self) -> None:
        """Make `run` return soon; from any thread, even before `run` and after its end.

        A task that cannot continue from its folder then returns FAILED, with a message that it was
        stopped.
        """
        ...

    def report(self) -> IngestionReport:
        """Return the current status; from any thread, at any time."""
        ...


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of task that a peon can run.

    Attributes:
        type: The ``type`` of its JSON form.
        make: Creates the task in its folder, which this process has locked already.
        restorable: Whether a task continues from its folder after its process died. Otherwise it
            has failed if its process dies after the start.
    """

    type: str
    make: Callable[[TaskSpec, TaskFolder], PeonTask]
    restorable: bool = False


class TaskKinds:
    """The registered kinds of task, by type."""

    def __init__(self, kinds: Sequence[TaskKind]) -> None:
        self._kinds = {kind.type: kind for kind in kinds}

    def find(self, task_type: str) -> TaskKind:
        """Return the kind of a type.

        Raises:
            InvalidRequest: The type is unknown.
        """
        kind = self._kinds.get(task_type)
        if kind is None:
            known = ", ".join(sorted(self._kinds))
            raise InvalidRequest(
                f"peons here cannot run tasks of type {task_type!r}: the types are {known}"
            )
        return kind
