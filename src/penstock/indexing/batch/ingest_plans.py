"""Plans of `index_parallel`, SQL INSERT and REPLACE, and writes from Spark: their jobs.

`IngestTask` runs them. Owns which rows of datasources a task reads, and whether it replaces them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY
from penstock.core.sql.checked_query import checked_query
from penstock.indexing.batch.job import index_job, spark_job, sql_job
from penstock.indexing.batch.metric_merge import kept_rows
from penstock.indexing.specs.batch.task import aligned
from penstock.indexing.specs.inputs import CombiningInput
from penstock.indexing.specs.task_context import IngestionMode
from penstock.segments.segment import Segment, SegmentId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.batch.batch_engine import SegmentInput
    from penstock.indexing.batch.job import IngestJob
    from penstock.indexing.batch.task_input import TaskInput
    from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
    from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
    from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
    from penstock.indexing.specs.inputs import DruidInput


class IndexPlan:
    """The plan of an `index_parallel`."""

    def __init__(self, spec: IndexParallelSpec) -> None:
        self._spec = spec
        self.wanted: Final = spec.chunks

    def jobs(self, task_input: TaskInput) -> Sequence[IngestJob]:
        """Return the job of the input."""
        spec = self._spec
        return [index_job(spec, lambda source: _rows_of(source, spec, task_input))]


class SqlPlan:
    """The plan of an INSERT or a REPLACE."""

    def __init__(self, spec: SqlIngestSpec) -> None:
        self._spec = spec
        self.wanted: Final = [intent.interval for intent in spec.lock_intents()]

    def jobs(self, task_input: TaskInput) -> Sequence[IngestJob]:
        """Return the job of the statement."""
        spec = self._spec
        if spec.mode is IngestionMode.APPEND:
            return [sql_job(spec)]
        # The query may read the rows that it replaces. It must not read segments that are appended
        # meanwhile, because the publish copies these.
        reads = spec.datasource.lower() in checked_query(spec.query).tables
        kept = task_input.to_replace([ETERNITY], basis=spec.intervals if reads else ())
        if spec.reads is not None and spec.datasource not in spec.reads:
            # Its submitter may write the datasource, but not read it.
            return [sql_job(spec)]
        return [sql_job(spec, ((spec.datasource, task_input.as_input(kept)),))]


class SparkWritePlan:
    """The plan of a write from Spark."""

    def __init__(self, spec: SparkWriteSpec) -> None:
        self._spec = spec
        self.wanted: Final = [intent.interval for intent in spec.lock_intents()]

    def jobs(self, _task_input: TaskInput) -> Sequence[IngestJob]:
        """Return the job of the files, which have been written already."""
        return [spark_job(self._spec)]


def _rows_of(source: DruidInput, spec: IndexParallelSpec, task_input: TaskInput) -> SegmentInput:
    """Return the visible rows of a datasource that the task reads.

    Raises:
        InvalidRequest: The datasource does not exist, or a named segment is not visible.
    """
    replaced = source.datasource == spec.datasource and spec.mode is not IngestionMode.APPEND
    ids = [SegmentId.parse(text, source.datasource) for text in source.segments]
    intervals = [one.interval for one in ids] if source.time is None else [source.time]
    if replaced:
        # Rows appended between the read and the publish would be hidden but not written.
        granularity = spec.data_schema.segment_granularity
        found = task_input.claim([aligned(one, granularity) for one in intervals], read=intervals)
    else:
        found = task_input.visible(source.datasource, intervals)
    if not found:
        _check_name(source, spec, task_input)
    if ids:
        names = {str(one) for one in ids}
        found = [one for one in found if str(one.segment.id) in names]
        if missing := names - {str(one.segment.id) for one in found}:
            raise InvalidRequest(
                f"segments to read are not visible: {', '.join(sorted(missing))}",
                place="spec.ioConfig.inputSource.segments",
            )
    hidden = _hidden(source, [one.segment for one in found])
    return replace(task_input.as_input(found), filter=source.filter, hidden=hidden)


def _check_name(source: DruidInput, spec: IndexParallelSpec, task_input: TaskInput) -> None:
    """Refuse a datasource without data: with a misspelt name the target would be emptied.

    Raises:
        InvalidRequest: It has no data.
    """
    name = source.datasource
    if name in task_input.datasources():
        return
    whole = spec.io.input_source
    parts = whole.delegates if isinstance(whole, CombiningInput) else ()
    part = next((f".delegates[{n}]" for n, one in enumerate(parts) if one is source), "")
    # No similar names, because the submitter may not read those datasources.
    raise InvalidRequest(
        f'no datasource "{name}" with data: correct its name',
        place=f"spec.ioConfig.inputSource{part}.dataSource",
    )


def _hidden(source: DruidInput, segments: Sequence[Segment]) -> frozenset[str]:
    """Return the columns that are not selected; a missing list selects all."""
    shown = frozenset([*(source.dimensions or ()), *(source.metrics or ())])
    found: set[str] = set()
    for rows in kept_rows(segments):
        metrics = {metric.name for metric in rows.metrics or ()}
        for name in rows.columns:
            listed = source.metrics if name in metrics else source.dimensions
            if listed is not None and name not in shown:
                found.add(name)
    return frozenset(found)
