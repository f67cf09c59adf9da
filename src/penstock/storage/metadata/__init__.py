"""Metadata of tasks, supervisors, segments and services, stored in SQLite or PostgreSQL.

`MetadataStore.open(url)` opens it; `rows` has the records that it takes and returns.
"""

from typing import TYPE_CHECKING

from penstock.storage.metadata.rows import (
    AllocateRequest,
    AnnouncedFile,
    AnnouncedRow,
    AuditRow,
    Basis,
    CommittedRow,
    CountsRow,
    Covering,
    JsonObject,
    Killed,
    LeaseRow,
    LockRow,
    Occupied,
    Offsets,
    PartitionSpace,
    PendingRow,
    PublishKind,
    PublishOutcome,
    PublishRequest,
    Reading,
    RuleRow,
    SegmentChanges,
    SegmentRow,
    SegmentText,
    SegmentTotals,
    Snapshot,
    Stretch,
    SupervisorRow,
    TaskFilter,
    TaskRow,
    TaskSummary,
    Term,
    segment_id,
)

if TYPE_CHECKING:
    from penstock.storage.metadata.store import MetadataStore

__all__ = [
    "AllocateRequest",
    "AnnouncedFile",
    "AnnouncedRow",
    "AuditRow",
    "Basis",
    "CommittedRow",
    "CountsRow",
    "Covering",
    "JsonObject",
    "Killed",
    "LeaseRow",
    "LockRow",
    "MetadataStore",
    "Occupied",
    "Offsets",
    "PartitionSpace",
    "PendingRow",
    "PublishKind",
    "PublishOutcome",
    "PublishRequest",
    "Reading",
    "RuleRow",
    "SegmentChanges",
    "SegmentRow",
    "SegmentText",
    "SegmentTotals",
    "Snapshot",
    "Stretch",
    "SupervisorRow",
    "TaskFilter",
    "TaskRow",
    "TaskSummary",
    "Term",
    "segment_id",
]


def __getattr__(name: str) -> object:
    """Import the store on first use.

    Peons use only the records; the drivers would take 29 MB in each of them.
    """
    if name == "MetadataStore":
        from penstock.storage.metadata.store import MetadataStore  # noqa: PLC0415

        return MetadataStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
