"""Metadata of tasks, supervisors, segments and services, kept in SQLite or PostgreSQL.

`MetadataStore.open(url)` is the door; `rows` has the records that go in and out.
"""

from penstock.storage.metadata.rows import (
    AllocateRequest,
    AnnouncedFile,
    AnnouncedRow,
    AuditRow,
    CountsRow,
    JsonObject,
    LeaseRow,
    Offsets,
    PendingRow,
    PublishOutcome,
    PublishRequest,
    SegmentRow,
    Snapshot,
    SupervisorRow,
    TaskRow,
)
from penstock.storage.metadata.store import MetadataStore

__all__ = [
    "AllocateRequest",
    "AnnouncedFile",
    "AnnouncedRow",
    "AuditRow",
    "CountsRow",
    "JsonObject",
    "LeaseRow",
    "MetadataStore",
    "Offsets",
    "PendingRow",
    "PublishOutcome",
    "PublishRequest",
    "SegmentRow",
    "Snapshot",
    "SupervisorRow",
    "TaskRow",
]
