"""The job of a batch task: its spec, converted to requests to the engine. Pure.

Owns the combination of ingestion modes, partitions and contexts of the specs in one `IngestJob`.
Data that must be read first (the visible segments of an input) is passed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.indexing.batch.batch_engine import (
    BatchInput,
    CombinedInput,
    ExternalInput,
    Partitioning,
    SegmentInput,
    SparkFilesInput,
    SqlInput,
)
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.specs.inputs import DruidInput, input_sources
from penstock.indexing.specs.partitions import DynamicPartitions, HashedPartitions
from penstock.indexing.specs.task_context import IngestionMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.intervals import Granularity, Interval
    from penstock.indexing.specs import DataSchema
    from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
    from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
    from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
    from penstock.indexing.specs.partitions import PartitionsSpec
    from penstock.storage.metadata.rows.publish import PublishKind


# Samples in the report of a statement, which has no setting for them.
_PARSE_ERRORS_SAVED: Final = 10


@dataclass(frozen=True, slots=True)
class IngestJob:
    """One call of the engine, and how its files affect existing segments.

    Attributes:
        schema: The schema of the rows.
        input: The source of the rows.
        intervals: Rows outside them are dropped; if empty, every row counts.
        partitioning: How rows are distributed over segments.
        mode: How existing segments are treated.
        compaction_state: State stored in segments for automatic compaction; None for nothing.
        parse_errors_max: Maximum number of unparseable rows; one more fails the task. None means
            unlimited, but an input with no other rows fails.
        parse_errors_saved: Maximum number of samples in the report.
        logs_parse_errors: Whether unparseable rows are logged, too.
        combines: The names of the metrics that the input's rows already have.
        rollup: The roll-up that is stored in segments; None for that of the schema.
    """

    schema: DataSchema
    input: BatchInput
    intervals: tuple[Interval, ...]
    partitioning: Partitioning
    mode: IngestionMode
    compaction_state: Mapping[str, object] | None = None
    parse_errors_max: int | None = None
    parse_errors_saved: int = 0
    logs_parse_errors: bool = False
    combines: frozenset[str] = frozenset()
    rollup: Mapping[str, object] | None = None

    @property
    def granularity(self) -> Granularity:
        """The time chunks."""
        return self.schema.segment_granularity


def partitioning_of(spec: PartitionsSpec) -> Partitioning:
    """Return a spec's partitions in the form that the engine takes."""
    if isinstance(spec, DynamicPartitions):
        return Partitioning("dynamic", rows_max=spec.rows_max)
    if isinstance(spec, HashedPartitions):
        return Partitioning(
            "hashed",
            rows_target=spec.rows_target,
            shards=spec.num_shards,
            dimensions=spec.partition_dimensions,
        )
    return Partitioning("range", rows_target=spec.rows_target, dimensions=spec.partition_dimensions)


def index_job(
    spec: IndexParallelSpec, segments_of: Callable[[DruidInput], SegmentInput]
) -> IngestJob:
    """Return the job of an `index_parallel` task.

    Args:
        spec: The task.
        segments_of: Looks up the files of a datasource that the task reads.
    """
    parts: list[ExternalInput | SegmentInput] = []
    for source in input_sources(spec.io.input_source):
        if isinstance(source, DruidInput):
            parts.append(segments_of(source))
        else:
            parts.append(ExternalInput(source, spec.io.input_format))
    state = compaction_state(spec.data_schema, spec.tuning.partitions)
    return IngestJob(
        schema=spec.data_schema,
        input=parts[0] if len(parts) == 1 else CombinedInput(tuple(parts)),
        intervals=spec.intervals,
        partitioning=partitioning_of(spec.tuning.partitions),
        mode=spec.mode,
        compaction_state=state if spec.settings.store_compaction_state else None,
        parse_errors_max=spec.tuning.parse_errors_max,
        parse_errors_saved=spec.tuning.max_saved_parse_exceptions,
        logs_parse_errors=spec.tuning.log_parse_exceptions,
    )


def sql_job(spec: SqlIngestSpec, given: tuple[tuple[str, SegmentInput], ...] = ()) -> IngestJob:
    """Return the job of an INSERT or a REPLACE: the query's columns are the dimensions.

    CLUSTERED BY distributes the rows of both by ranges. Appended segments are added to others, so
    only the segments of a REPLACE record their ranges.

    Args:
        spec: The task's spec.
        given: The rows of datasources; see `SqlInput`.
    """
    schema = parse_data_schema(
        {
            "dataSource": spec.datasource,
            "timestampSpec": {"column": "__time", "format": "auto"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
            "granularitySpec": {"segmentGranularity": spec.partitioned_by, "rollup": False},
        }
    )
    return IngestJob(
        schema=schema,
        input=SqlInput(spec.query, given, spec.externs),
        intervals=spec.intervals,
        partitioning=(
            Partitioning("range", rows_target=spec.rows_per_segment, dimensions=spec.clustered_by)
            if spec.clustered_by
            else Partitioning("dynamic", rows_max=spec.rows_per_segment)
        ),
        mode=spec.mode,
        parse_errors_max=spec.parse_errors_max,
        parse_errors_saved=_PARSE_ERRORS_SAVED,
    )


def spark_job(spec: SparkWriteSpec) -> IngestJob:
    """Return the job of a write from Spark, whose files exist already."""
    return IngestJob(
        schema=spec.data_schema,
        input=SparkFilesInput(spec.files, spec.rows, spec.unparseable, spec.converts),
        intervals=spec.intervals,
        partitioning=Partitioning("dynamic"),
        mode=spec.mode,
        parse_errors_max=spec.parse_errors_max,
    )


def compaction_state(schema: DataSchema, partitions: PartitionsSpec) -> dict[str, object]:
    """Return how segments were created, in Druid's form, which automatic compaction compares."""
    granularity = schema.granularity_spec.model_dump(mode="json", by_alias=True)
    kept = schema.transform_spec.filter
    return {
        "partitionsSpec": partitions.model_dump(mode="json", by_alias=True, exclude_none=True),
        "dimensionsSpec": schema.dimensions_spec.model_dump(mode="json", by_alias=True),
        "metricsSpec": [m.model_dump(mode="json", by_alias=True) for m in schema.metrics_spec],
        "transformSpec": None
        if kept is None
        else {"filter": kept.model_dump(mode="json", by_alias=True)},
        "indexSpec": {},
        "granularitySpec": {
            name: granularity[name] for name in ("segmentGranularity", "queryGranularity", "rollup")
        },
    }


def publish_kind(lock_types: Sequence[str]) -> PublishKind:
    """Return the kind of publish under locks of these types."""
    if "REPLACE" in lock_types:
        return "replace"
    return "append" if "APPEND" in lock_types else "insert"


def ids_digest(ids: Sequence[str]) -> str:
    """Return the digest that `sha256OfSortedSegmentIds` of a compaction is compared with."""
    return hashlib.sha256(",".join(sorted(ids)).encode()).hexdigest()
