"""Metadata of tasks, supervisors, segments and services, stored in SQLite or PostgreSQL.

`MetadataStore.open(url)` opens it; `rows` has the records that it takes and returns.
"""

from typing import TYPE_CHECKING

from penstock.storage.metadata.payloads import JsonObject, Offsets
from penstock.storage.metadata.rows.cluster import AuditRow, LeaseRow, RuleRow, SupervisorRow, Term
from penstock.storage.metadata.rows.pending_segments import (
    AllocateRequest,
    OccupiedChunks,
    PartitionSpace,
    PendingRow,
)
from penstock.storage.metadata.rows.publish import (
    CommittedRow,
    CountsRow,
    PublishBasis,
    PublishKind,
    PublishOutcome,
    PublishRecord,
    PublishRequest,
    QueryBatch,
    ReplaceLock,
    WrittenSegment,
)
from penstock.storage.metadata.rows.segments import (
    AnnouncedFile,
    AnnouncedOffsets,
    AnnouncedRow,
    AnnouncedSequence,
    IntervalCount,
    KilledSegments,
    ListedSegment,
    SegmentChanges,
    SegmentGroup,
    SegmentRow,
    SegmentText,
    SegmentTotals,
    Snapshot,
    segment_id,
)
from penstock.storage.metadata.rows.tasks import LockRow, TaskFilter, TaskRow, TaskSummary

if TYPE_CHECKING:
    from penstock.storage.metadata.metadata_store import MetadataStore

__all__ = [
    "AllocateRequest",
    "AnnouncedFile",
    "AnnouncedOffsets",
    "AnnouncedRow",
    "AnnouncedSequence",
    "AuditRow",
    "CommittedRow",
    "CountsRow",
    "IntervalCount",
    "JsonObject",
    "KilledSegments",
    "LeaseRow",
    "ListedSegment",
    "LockRow",
    "MetadataStore",
    "OccupiedChunks",
    "Offsets",
    "PartitionSpace",
    "PendingRow",
    "PublishBasis",
    "PublishKind",
    "PublishOutcome",
    "PublishRecord",
    "PublishRequest",
    "QueryBatch",
    "ReplaceLock",
    "RuleRow",
    "SegmentChanges",
    "SegmentGroup",
    "SegmentRow",
    "SegmentText",
    "SegmentTotals",
    "Snapshot",
    "SupervisorRow",
    "TaskFilter",
    "TaskRow",
    "TaskSummary",
    "Term",
    "WrittenSegment",
    "segment_id",
]


def __getattr__(name: str) -> object:
    """Import the store on first use.

    Peons use only the records; the drivers would take 29 MB in each of them.
    """
    if name == "MetadataStore":
        from penstock.storage.metadata.metadata_store import MetadataStore  # noqa: PLC0415

        return MetadataStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
