"""Metadata of tasks, supervisors, segments and services, kept in SQLite or PostgreSQL.

`MetadataStore.open(url)` is the door; `rows` has the records that go in and out.
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
    """Import the store when it is first asked for.

    Peons use the records alone; the drivers would cost each of them 29 MB.
    """
    if name == "MetadataStore":
        from penstock.storage.metadata.store import MetadataStore  # noqa: PLC0415

        return MetadataStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
