"""The size of segments and the limit of bad rows in a batch task: its ``tuningConfig``.

Spark manages memory, threads and subtasks, so Druid's fields for them are accepted without effect.
So are fields about waiting for segments to be loaded: they can be read as soon as they are
published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, model_validator

from penstock.indexing.specs.partitions import (
    DynamicPartitions,
    HashedPartitions,
    PartitionsSpec,
    segment_rows_max,
)
from penstock.indexing.specs.scalars import Count, Flag
from penstock.indexing.specs.spec_base import Found, IgnoredValue, SpecModel, mistakes

WITHOUT_EFFECT: Final[Mapping[str, IgnoredValue]] = {
    **dict.fromkeys(
        (
            "chatHandlerNumRetries",
            "maxBytesInMemory",
            "maxColumnsToMerge",
            "maxPendingPersists",
            "maxRowsInMemory",
            "numPersistThreads",
        ),
        IgnoredValue.NUMBER,
    ),
    "skipBytesInMemoryOverheadCheck": IgnoredValue.FLAG,
    "chatHandlerTimeout": IgnoredValue.DURATION,
    **dict.fromkeys(
        ("appendableIndexSpec", "indexSpec", "indexSpecForIntermediatePersists"),
        IgnoredValue.OBJECT,
    ),
    **dict.fromkeys(
        ("basePersistDirectory", "buildV9Directly", "segmentWriteOutMediumFactory"),
        IgnoredValue.ANY,
    ),
}
"""Fields of batches and streams about memory, threads and files that Penstock does not have."""


class BatchTuning(SpecModel):
    """The tuning of `index_parallel`, and of `compact`, whose input has no unparseable rows."""

    type: Literal["index_parallel", "index", "compaction"] = "index_parallel"
    partitions_spec: PartitionsSpec | None = None
    max_rows_per_segment: Count | None = Field(default=None, ge=1)
    force_guaranteed_rollup: Flag = False
    report_parse_exceptions: Flag = False
    max_parse_exceptions: Count | None = Field(default=None, ge=0)
    max_saved_parse_exceptions: Count = Field(default=0, ge=0, le=10_000)
    log_parse_exceptions: Flag = False
    max_allowed_lock_count: Count = Field(default=-1, ge=-1)

    unsupported: ClassVar[Mapping[str, str]] = {
        "numShards": 'set partitionsSpec: {"type": "hashed", "numShards": …}',
        "partitionDimensions": 'set partitionsSpec: {"type": "hashed", "partitionDimensions": …}',
    }
    repeated: ClassVar[Mapping[str, str]] = {"targetPartitionSize": "maxRowsPerSegment"}
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {
        **WITHOUT_EFFECT,
        **dict.fromkeys(
            (
                "awaitSegmentAvailabilityTimeoutMillis",
                "maxNumConcurrentSubTasks",
                "maxNumSegmentsToMerge",
                "maxRetry",
                "maxTotalRows",
                "pushTimeout",
                "taskStatusCheckPeriodMs",
                "totalNumMergeTasks",
            ),
            IgnoredValue.NUMBER,
        ),
        # Later tasks can append to every time chunk.
        "forceExtendableShardSpecs": IgnoredValue.FLAG,
        "splitHintSpec": IgnoredValue.OBJECT,
    }

    @model_validator(mode="after")
    def _check_together(self) -> BatchTuning:
        found: Found = []
        if not self._is_of_partitions(self.max_rows_per_segment):
            text = "conflicts with partitionsSpec: move it into partitionsSpec"
            found.append((("maxRowsPerSegment",), self.max_rows_per_segment, text))
        if self.force_guaranteed_rollup and not self.partitions.is_perfect:
            text = "needs a partitionsSpec of type hashed, single_dim or range"
            found.append((("forceGuaranteedRollup",), True, text))
        if self.report_parse_exceptions and self.max_parse_exceptions:
            text = "reportParseExceptions tolerates none: leave one of the two out"
            found.append((("maxParseExceptions",), self.max_parse_exceptions, text))
        if found:
            raise mistakes("BatchTuning", found)
        return self

    def _is_of_partitions(self, rows: int | None) -> bool:
        """Return whether it agrees with `partitions_spec`: Druid writes it in both places.

        A given number of shards makes it irrelevant; Druid's examples have both.
        """
        spec = self.partitions_spec
        if isinstance(spec, HashedPartitions) and spec.num_shards is not None:
            return True
        return rows is None or spec is None or rows == segment_rows_max(spec)

    @property
    def partitions(self) -> PartitionsSpec:
        """How rows are distributed over segments, with the fields outside `partitionsSpec`."""
        if self.partitions_spec is not None:
            return self.partitions_spec
        given = DynamicPartitions()
        return DynamicPartitions(
            max_rows_per_segment=self.max_rows_per_segment or given.max_rows_per_segment
        )

    @property
    def locks_max(self) -> int | None:
        """Maximum number of locks of a task; None means unlimited."""
        return None if self.max_allowed_lock_count < 0 else self.max_allowed_lock_count

    @property
    def parse_errors_max(self) -> int | None:
        """Maximum number of unparseable rows; one more fails the task.

        None means unlimited, but an input with no other rows fails.
        """
        return 0 if self.report_parse_exceptions else self.max_parse_exceptions
