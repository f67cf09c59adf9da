"""Transactions on segments that the locks of a task must cover.

`Lockboxes.critical` runs them on the lane of the datasource, where no lock can change meanwhile,
with the locks of the task. They block for the metadata store, and wait for nothing else.

Invariant: no segment becomes visible that the task's locks do not cover at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict
from penstock.indexing.lockbox.task_locks import LockType
from penstock.indexing.overlord.lock_requests import lock_type
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.task_context import SUBMITTER
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.segments.delta.table_registry import KillBounds
from penstock.storage.metadata import CountsRow, PublishRequest, QueryBatch, ReplaceLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.actions import PublishSegments
    from penstock.indexing.engine import RowCounts
    from penstock.indexing.lockbox.coverage import SectionLocks
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import KilledSegments, MetadataStore, PublishOutcome, SegmentRow
    from penstock.storage.metadata.rows.publish import PublishKind


def publish_segments(
    metadata: MetadataStore, task: TaskSpec, action: PublishSegments, locks: SectionLocks
) -> PublishOutcome:
    """Publish segments and offsets.

    Raises:
        Conflict: A lock of an appending publish has another type.
        Unavailable: The store does not answer.
    """
    kind = _kind(task, action)
    covering: dict[str, ReplaceLock] = {}
    if kind == "append":
        locks.require(LockType.APPEND)
        holders = locks.replace_lock_holders(action.segments)
        covering = {
            segment.id: ReplaceLock(held.task_id, held.lock.version)
            for segment, held in zip(action.segments, holders, strict=True)
            if held is not None
        }
    return metadata.publish(_request(task, action, kind, covering))


def keep_segments(
    metadata: MetadataStore, task: TaskSpec, rows: Sequence[SegmentRow], locks: SectionLocks
) -> int:
    """Add segments unchanged to the task's next publish; return how many.

    Raises:
        Conflict: No REPLACE lock of the task contains a segment.
        Unavailable: The store does not answer.
    """
    versions = {}
    for row, held in zip(rows, locks.replace_lock_holders(rows), strict=True):
        if held is None or held.task_id != task.id:
            raise Conflict(
                f"task {task.id} has no REPLACE lock that contains segment {row.id}: set"
                " useConcurrentLocks in its context"
            )
        versions[row.id] = held.lock.version
    metadata.upgrades.add(task.id, versions)
    return len(versions)


def mark_unused(
    metadata: MetadataStore, datasource: str, interval: Interval, _locks: SectionLocks
) -> int:
    """Mark the segments within an interval unused; return how many were used."""
    return metadata.segments.mark_unused_within(datasource, interval)


def kill_segments(
    metadata: MetadataStore, ids: Sequence[str], _locks: SectionLocks
) -> KilledSegments:
    """Delete the rows of unused segments, and return the files to delete.

    Segments that versions of Delta tables need are kept.
    """
    return metadata.segments.kill(ids, changed_until=KillBounds.read(metadata).of)


def _kind(task: TaskSpec, action: PublishSegments) -> PublishKind:
    # Streaming tasks always append; their lock type selects the transaction.
    is_stream = isinstance(task, StreamTaskSpec)
    if is_stream and lock_type(task, appends=True) is LockType.APPEND:
        return "append"
    return action.kind


def _request(
    task: TaskSpec, action: PublishSegments, kind: PublishKind, covering: dict[str, ReplaceLock]
) -> PublishRequest:
    is_stream = isinstance(task, StreamTaskSpec)
    return PublishRequest(
        task_id=task.id,
        datasource=task.datasource,
        segments=action.segments,
        supervisor_id=task.supervisor_id if isinstance(task, StreamTaskSpec) else None,
        start_offsets=action.start if is_stream else None,
        end_offsets=action.end if is_stream else None,
        sequence_name=action.sequence_name,
        topic_id=action.topic_id,
        counts=_counts(action.counts),
        kind=kind,
        covering=covering,
        basis=action.basis,
        overwritten=action.overwritten,
        batch=_batch(task),
    )


def _batch(task: TaskSpec) -> QueryBatch | None:
    """Return the batch of a streaming query that a task publishes, from its stored spec.

    The query belongs to the principal that submitted the task.
    """
    batch = task.batch if isinstance(task, SparkWriteSpec) else None
    if batch is None:
        return None
    return QueryBatch(batch.query_id, batch.batch_id, str(task.context.get(SUBMITTER, "")))


def _counts(counts: RowCounts) -> CountsRow:
    return CountsRow(
        processed=counts.processed,
        unparseable=counts.unparseable,
        thrown_away_late=counts.thrown_away_late,
        thrown_away_early=counts.thrown_away_early,
        thrown_away_filtered=counts.thrown_away_filtered,
        # A sequence is published only after all of its bad messages are stored.
        dead_letters=counts.unparseable,
    )
