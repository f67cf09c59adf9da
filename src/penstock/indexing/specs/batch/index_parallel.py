"""The spec of `index_parallel`: an input, its schema, and how it treats existing segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from penstock.core.intervals import Granularity, Interval, condensed
from penstock.indexing.lock_intent import LockIntent
from penstock.indexing.specs.batch.task import RESOURCE_REFUSAL, BatchTask, aligned
from penstock.indexing.specs.batch_tuning import BatchTuning
from penstock.indexing.specs.data_schema import DataSchema
from penstock.indexing.specs.duplicate_fields import without_duplicates
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.inputs import InputSource, wrong_format
from penstock.indexing.specs.partitions import DynamicPartitions, SingleDimensionPartitions
from penstock.indexing.specs.scalars import (
    TIME_COLUMN,
    Flag,
)
from penstock.indexing.specs.spec_base import Found, SpecModel, mistakes
from penstock.indexing.specs.task_context import (
    BATCH_PRIORITY,
    IngestionMode,
)


class BatchIo(SpecModel):
    """The input of `index_parallel`, and how it treats existing segments."""

    type: Literal["index_parallel", "index"] = "index_parallel"
    input_source: InputSource
    input_format: InputFormat | None = None
    append_to_existing: Flag = False
    drop_existing: Flag = False

    unsupported: ClassVar[Mapping[str, str]] = {"firehose": "use inputSource and inputFormat"}

    @model_validator(mode="after")
    def _check_together(self) -> BatchIo:
        found: Found = []
        if self.append_to_existing and self.drop_existing:
            text = "cannot be used with appendToExisting: a task either appends or replaces"
            found.append((("dropExisting",), True, text))
        if (wrong := wrong_format(self.input_source, self.input_format)) is not None:
            found.append((("inputFormat",), None, wrong))
        if found:
            raise mistakes("BatchIo", found)
        return self


class BatchIngestion(SpecModel):
    """The schema of rows, their source, and the size of segments."""

    data_schema: DataSchema
    io_config: BatchIo
    tuning_config: BatchTuning = BatchTuning()

    @model_validator(mode="after")
    def _check_together(self) -> BatchIngestion:
        found: Found = []
        perfect = self.tuning_config.partitions.is_perfect
        if self.io_config.append_to_existing and perfect:
            text = "appendToExisting adds single segments, so it requires the type dynamic"
            found.append((("tuningConfig", "partitionsSpec", "type"), None, text))
        intervals = self.data_schema.granularity_spec.intervals
        if self.io_config.drop_existing and not intervals:
            text = "dropExisting replaces all segments of these intervals: list the intervals"
            found.append((("dataSchema", "granularitySpec", "intervals"), intervals, text))
        found += self._absent_partition_dimensions()
        if found:
            raise mistakes("BatchIngestion", found)
        return self

    def _absent_partition_dimensions(self) -> Found:
        """Report partition dimensions that are not dimensions: unknown columns and metrics."""
        partitions = self.tuning_config.partitions
        if isinstance(partitions, DynamicPartitions) or self.data_schema.dimensions_spec.discovers:
            return []
        known = {TIME_COLUMN, *(d.name for d in self.data_schema.dimensions)}
        found: Found = []
        for number, name in enumerate(partitions.partition_dimensions):
            if name in known:
                continue
            is_single = isinstance(partitions, SingleDimensionPartitions)
            field = ("partitionDimension",) if is_single else ("partitionDimensions", number)
            place = ("tuningConfig", "partitionsSpec", partitions.type, *field)
            text = f"{name!r} is not a dimension: use one of these, or add it there"
            found.append((place, name, text))
        return found


class IndexParallelSpec(BatchTask):
    """Read an input and write segments of it."""

    type: Literal["index_parallel", "index"] = "index_parallel"
    spec: BatchIngestion

    unsupported: ClassVar[Mapping[str, str]] = RESOURCE_REFUSAL | {
        "dataSchema": "move it into spec",
        "dataSource": "move it into spec.dataSchema",
        "ioConfig": "move it into spec",
        "tuningConfig": "move it into spec",
    }
    default_priority: ClassVar[int] = BATCH_PRIORITY

    @model_validator(mode="before")
    @classmethod
    def _drop_duplicates(cls, data: object) -> object:
        """Drop the copies of the datasource, and in old forms of the parts, that Druid writes."""
        inside = ("dataSchema", "dataSource")
        return without_duplicates("IndexParallelSpec", data, beside="dataSource", inside=inside)

    @model_validator(mode="after")
    def _check_locks(self) -> IndexParallelSpec:
        place = ("spec", "dataSchema", "granularitySpec", "intervals")
        most = self.locks_max
        if most is not None and most < (count := len(self.lock_intents())):
            text = f"need {count} locks, more than maxAllowedLockCount {most}: list fewer"
            raise mistakes("IndexParallelSpec", [(place, None, text)])
        return self

    @property
    def datasource(self) -> str:
        """The datasource of the rows."""
        return self.data_schema.datasource

    @property
    def data_schema(self) -> DataSchema:
        """The schema of the rows."""
        return self.spec.data_schema

    @property
    def io(self) -> BatchIo:
        """The input, and how existing segments are treated."""
        return self.spec.io_config

    @property
    def tuning(self) -> BatchTuning:
        """The size of segments, and other tuning."""
        return self.spec.tuning_config

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks; None means unlimited."""
        return self.tuning.locks_max

    @property
    def mode(self) -> IngestionMode:
        """Append, replace whole intervals, or replace the time chunks that have rows."""
        if self.io.append_to_existing:
            return IngestionMode.APPEND
        if self.io.drop_existing:
            return IngestionMode.REPLACE
        return IngestionMode.REPLACE_LEGACY

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Rows outside these intervals are dropped; empty means that every row counts."""
        given = self.data_schema.granularity_spec.intervals or ()
        return tuple(condensed(map(Interval.parse, given)))

    @property
    def segment_granularity(self) -> Granularity:
        """The time chunks."""
        return self.data_schema.segment_granularity

    @property
    def chunks(self) -> tuple[Interval, ...]:
        """The intervals, widened to time chunks; empty if only the rows determine them."""
        return tuple(aligned(one, self.segment_granularity) for one in self.intervals)

    @property
    def locks_segments(self) -> bool:
        """Whether the task locks single segments, if the existing ones allow it."""
        return self._stands_apart(self.tuning)

    def lock_intents(self) -> tuple[LockIntent, ...]:
        """Return the time chunks, or nothing if the task locks segments."""
        return self._lock_intents(self.chunks)
