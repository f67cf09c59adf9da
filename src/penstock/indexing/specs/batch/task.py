"""Fields and rules that the specs of batch tasks of all kinds share.

All kinds have the fields of a task that the queue and the workers use: `id`, `type`, `datasource`,
`group_name`, `priority`, `context`, `lock_intents`. `id` is empty until `with_id` sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, model_validator

from penstock.core.intervals import Granularity, Interval, condensed
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.batch_tuning import BatchTuning
from penstock.indexing.specs.scalars import (
    TaskId,
    check_task_id,
)
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.task_context import (
    OTHER_PRIORITY,
    Context,
    IngestionMode,
    TaskContext,
    read_context,
)

RESOURCE_REFUSAL: Final = {"resource": "the availability group follows from the id of the task"}


def _check_id(name: str, info: ValidationInfo) -> str:
    return check_task_id(name, info) if name else name


class BatchTask(SpecModel):
    """Fields that tasks of all kinds have in common."""

    id: Annotated[str, AfterValidator(_check_id)] = ""
    group_id: TaskId | None = None
    context: Context = Field(default_factory=dict)

    unsupported: ClassVar[Mapping[str, str]] = RESOURCE_REFUSAL
    default_priority: ClassVar[int] = OTHER_PRIORITY
    stores_compaction_state: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _drop_own_resource(cls, data: object) -> object:
        """Drop Druid's `resource`: one slot, in an availability group named after the task."""
        resource = data.get("resource") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(resource, dict):
            return data
        known = resource.keys() <= {"availabilityGroup", "requiredCapacity"}
        group, capacity = resource.get("availabilityGroup"), resource.get("requiredCapacity")
        own = not data.get("id") or group in (None, data["id"], data.get("groupId"))
        if known and own and capacity in (None, 1):
            return {name: value for name, value in data.items() if name != "resource"}
        return data

    @property
    def group_name(self) -> str:
        """The group of tasks that share locks; the task's own id unless it names a group."""
        return self.group_id or self.id

    @property
    def availability_group(self) -> str:
        """The availability group: the task's own id, so no other task is in it."""
        return self.id

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        return read_context(
            self.context,
            priority=self.default_priority,
            store_compaction_state=self.stores_compaction_state,
        )

    @property
    def priority(self) -> int:
        """Priority of the task in the queue, and of its locks."""
        return self.settings.priority

    @property
    def mode(self) -> IngestionMode:
        """How the task treats existing segments."""
        return IngestionMode.NONE

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        return None

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        return False

    def with_id(self, name: str) -> Self:
        """Return a copy of the task with a name."""
        return self.model_copy(update={"id": name})

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form, including defaults; parsing it gives an equal task."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value

    def _stands_apart(self, tuning: BatchTuning) -> bool:
        """Return whether the segments that the task writes are independent and can be locked.

        Segments that replace whole intervals hide all existing ones, and the segments of a perfect
        partitioning, to which no task appends, only count together.
        """
        return not (
            self.settings.force_time_chunk_lock
            or self.mode is IngestionMode.REPLACE
            or tuning.partitions.is_perfect
        )

    def _lock_intents(self, intervals: Iterable[Interval]) -> tuple[LockIntent, ...]:
        if self.locks_segments:
            return ()  # It looks up the existing segments when it runs.
        appends = self.mode is IngestionMode.APPEND
        return tuple(LockIntent(interval, appends=appends) for interval in condensed(intervals))


def aligned(interval: Interval, granularity: Granularity) -> Interval:
    """Return the interval, widened until each end is at the edge of a time chunk, or in a gap."""
    start_ms, last_ms = interval.start_ms, interval.end_ms - 1
    return Interval(
        start_ms if granularity.is_gap(start_ms) else granularity.truncate(start_ms),
        interval.end_ms if granularity.is_gap(last_ms) else granularity.bucket(last_ms).end_ms,
    )
