"""What a peon runs: a task of any kind behind one protocol, and how its kind is found.

Owns the protocol, the report that every task leaves, and the lookup by type. It knows no kind: who
composes the process says which there are, and closes over what each works with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.task import TaskResult
from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.taskspec import TaskSpec

UNPARSEABLE_SAMPLES_MAX = 100
ERROR_CHARACTERS_MAX = 20_000


class IngestionState(StrEnum):
    """What a task is about, in Druid's words for its report."""

    NOT_STARTED = "NOT_STARTED"
    DETERMINE_PARTITIONS = "DETERMINE_PARTITIONS"
    BUILD_SEGMENTS = "BUILD_SEGMENTS"
    SEGMENT_AVAILABILITY_WAIT = "SEGMENT_AVAILABILITY_WAIT"
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True)
class IngestionReport:
    """What a task tells of itself, while it runs and after it.

    Attributes:
        state: What it is about.
        row_stats: Counts by phase (``determinePartitions``, ``buildSegments``), then by name
            (``processed``, ``processedBytes``, ``processedWithError``, ``thrownAway``,
            ``unparseable`` and others).
        unparseable: Samples of rows that could not be read, by phase; so many are shown at most.
        error: Why it failed; empty if it did not.
        more: What its kind says beyond that, such as the segments that it wrote.
    """

    state: IngestionState
    row_stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unparseable: Mapping[str, Sequence[JsonValue]] = field(default_factory=dict)
    error: str = ""
    more: Mapping[str, JsonValue] = field(default_factory=dict)

    def to_json(
        self, task_id: str, context: Mapping[str, JsonValue] | None = None
    ) -> dict[str, JsonValue]:
        """Return Druid's form, ``ingestionStatsAndErrors`` and ``taskContext``; it is bounded.

        Segments can be queried as soon as they are published, so a task that is complete has
        nothing to wait for (``segmentAvailabilityConfirmed``).

        Args:
            task_id: The task.
            context: What its submitter said about running it.
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
    """A task that its process runs. Made when its folder is locked; `run` is called once."""

    def run(self) -> TaskResult:
        """Run to the end on the calling thread and say how it ended.

        RUNNING: it was stopped, and goes on when it is started again in the same folder.

        Raises:
            Unavailable: It cannot even begin, for no fault of its own (a full disk): the peon is
                started again. Other errors of Penstock end the task as failed.
        """
        ...

    def stop(self) -> None:
        """Have `run` return soon, from any thread, also before `run` was called and after its end.

        A task that cannot go on from its folder returns FAILED then, and says that it was stopped.
        """
        ...

    def report(self) -> IngestionReport:
        """Tell how it stands; from any thread, at any time."""
        ...


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A kind of task that a peon can run.

    Attributes:
        type: The ``type`` of its JSON form.
        make: Makes the task in its folder, which this process has locked by then.
        restorable: It goes on from its folder, however its process ended. One that is not has
            failed when its process dies after it began.
    """

    type: str
    make: Callable[[TaskSpec, TaskFolder], PeonTask]
    restorable: bool = False


class TaskKinds:
    """The kinds of task that there are, by type."""

    def __init__(self, kinds: Sequence[TaskKind]) -> None:
        self._kinds = {kind.type: kind for kind in kinds}

    def find(self, task_type: str) -> TaskKind:
        """Return the kind of a type.

        Raises:
            InvalidRequest: No kind has it.
        """
        kind = self._kinds.get(task_type)
        if kind is None:
            known = ", ".join(sorted(self._kinds))
            raise InvalidRequest(
                f"peons here cannot run tasks of type {task_type!r}: the types are {known}"
            )
        return kind
