"""Automatic compaction: the configured form of segments, and the maximum number of tasks.

Owns the JSON, including that of a compaction supervisor, and the task for an interval; the overlord
chooses the intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, JsonValue

from penstock.core.intervals import Interval
from penstock.indexing.specs.aggregators import Aggregator
from penstock.indexing.specs.batch.compact import (
    CompactGranularity,
    CompactIo,
    CompactSpec,
    CompactTransform,
    IntervalInput,
)
from penstock.indexing.specs.batch_tuning import BatchTuning
from penstock.indexing.specs.rows.dimensions import DimensionsSpec
from penstock.indexing.specs.rows.projections import Projections
from penstock.indexing.specs.scalars import Count, DatasourceName, Flag, OffsetText
from penstock.indexing.specs.spec_base import IgnoredValue, SpecModel
from penstock.indexing.specs.spec_text import read_model
from penstock.indexing.specs.task_context import (
    COMPACTION_PRIORITY,
    ContextOfCreated,
    with_defaults,
)

AUTOCOMPACT: Final = "autocompact"
"""The type of compaction supervisors."""
SUPERVISOR_PREFIX: Final = "autocompact__"
"""The prefix of the id of such a supervisor, before its datasource."""

_BYTES_DEFAULT = 100_000_000_000_000
_SLOTS_DEFAULT = 2_147_483_647


class CompactionIo(SpecModel):
    """Whether the whole interval is replaced, or only the time chunks that have rows."""

    drop_existing: Flag = False


class CompactionConfig(SpecModel):
    """The configured form of a datasource's segments; others are compacted.

    The newest `skip_offset_from_latest` of the data is skipped, because rows still arrive there; so
    are intervals with more than `input_segment_size_bytes`.
    """

    datasource: DatasourceName
    task_priority: Count = Field(default=COMPACTION_PRIORITY, ge=-1_000_000, le=1_000_000)
    input_segment_size_bytes: Count = Field(default=_BYTES_DEFAULT, ge=1)
    skip_offset_from_latest: OffsetText = "P1D"
    max_rows_per_segment: Count | None = Field(default=None, ge=1)
    tuning_config: BatchTuning | None = None
    granularity_spec: CompactGranularity = CompactGranularity()
    dimensions_spec: DimensionsSpec | None = None
    metrics_spec: tuple[Aggregator, ...] | None = None
    transform_spec: CompactTransform = CompactTransform()
    io_config: CompactionIo = CompactionIo()
    task_context: ContextOfCreated = Field(default_factory=dict)
    projections: Projections = ()

    unsupported: ClassVar[Mapping[str, str]] = {
        "baseTable": "leave it out",
        "skipIntervals": "submit compact tasks for the intervals to compact",
        "type": "Penstock has no catalog: set the form of segments here, and leave it out",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"type": "inline"}
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"engine": IgnoredValue.ANY}

    @property
    def tuning(self) -> BatchTuning:
        """The size of segments, and other tuning."""
        tuning = self.tuning_config or BatchTuning(type="compaction")
        if self.max_rows_per_segment is None or tuning.partitions_spec is not None:
            return tuning
        return tuning.model_copy(update={"max_rows_per_segment": self.max_rows_per_segment})

    def task(self, interval: Interval) -> CompactSpec:
        """Return the task, without an id, that compacts an interval."""
        return CompactSpec(
            datasource=self.datasource,
            io_config=CompactIo(
                input_spec=IntervalInput(interval=str(interval)),
                drop_existing=self.io_config.drop_existing,
                # Existing chunks may have other granularities than the configured one.
                allow_non_aligned_interval=True,
            ),
            dimensions_spec=self.dimensions_spec,
            metrics_spec=self.metrics_spec,
            granularity_spec=self.granularity_spec,
            transform_spec=self.transform_spec,
            tuning_config=self.tuning,
            context=with_defaults(self.task_context, {"priority": self.task_priority}),
            projections=self.projections,
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_compaction` parses it."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


class CompactionSupervisorSpec(SpecModel):
    """A supervisor that keeps a datasource compacted, with versions of its spec and suspension.

    Its id is `autocompact__` and the datasource.
    """

    type: Literal["autocompact"] = "autocompact"
    spec: CompactionConfig
    suspended: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {
        "id": f"it is {SUPERVISOR_PREFIX} and the datasource: leave it out",
        "context": "set spec.taskContext, which the tasks get",
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"context": {}}

    @property
    def supervisor_id(self) -> str:
        """The id of the supervisor."""
        return SUPERVISOR_PREFIX + self.spec.datasource

    @property
    def stream(self) -> str:
        """The name of the stream: empty, because there is none."""
        return ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form, including defaults; parsing it gives an equal spec."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value

    def with_suspended(self, suspended: bool) -> CompactionSupervisorSpec:
        """Return a copy that is suspended or not."""
        return self.model_copy(update={"suspended": suspended})


class ClusterCompaction(SpecModel):
    """The maximum number of concurrent compaction tasks."""

    compaction_task_slot_ratio: float = Field(default=0.1, ge=0, le=1)
    max_compaction_task_slots: Count = Field(default=_SLOTS_DEFAULT, ge=0)

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        (
            "compactionPolicy",
            "engine",
            "storeCompactionStatePerSegment",
            "useAutoScaleSlots",
            "useSupervisors",
        ),
        IgnoredValue.ANY,
    )

    def slots(self, capacity: int) -> int:
        """Return the maximum number of tasks if workers have `capacity` slots; at least one.

        It is 0 if the ratio or the limit is 0.
        """
        if not self.compaction_task_slot_ratio or not self.max_compaction_task_slots:
            return 0
        share = max(1, int(capacity * self.compaction_task_slot_ratio))
        return min(share, self.max_compaction_task_slots)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form; `parse_cluster_compaction` parses it."""
        value: dict[str, JsonValue] = self.model_dump(mode="json", by_alias=True)
        return value


def parse_compaction(
    raw: bytes | str | Mapping[str, JsonValue], names: Callable[[str], str] | None = None
) -> CompactionConfig:
    """Parse a datasource's configuration; for `names` see `read_model`.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    return read_model(CompactionConfig, raw, names)


def parse_cluster_compaction(raw: bytes | str | Mapping[str, JsonValue]) -> ClusterCompaction:
    """Parse the cluster's configuration. Raises as `parse_compaction`."""
    return read_model(ClusterCompaction, raw)
