"""Options and statistics of a content repository."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """Layout of content.

    Args:
        resource_bytes: A file takes further content until it is this large.
        sections: Number of folders that the files are distributed over.
        open_files: Number of unused files kept open for reading, and as many for writing.
        buffer_bytes: Small writes to one claim are buffered up to this.
        min_free_bytes: Free disk space below which content, and commits that create FlowFiles, are
            refused.
        retention_ms: Files without references are kept this long for replays; 0: they are deleted.
        retention_bytes: Maximum size of all of them; the oldest are deleted first.
    """

    resource_bytes: int = 1024 * 1024
    sections: int = 64
    open_files: int = 64
    buffer_bytes: int = 256 * 1024
    min_free_bytes: int = 256 * 1024 * 1024
    retention_ms: int = 0
    retention_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("resource_bytes", "sections", "open_files", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)
        for name in ("min_free_bytes", "retention_ms", "retention_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 0", place=name)


@dataclass(frozen=True, slots=True)
class ContentStatistics:
    """An immutable snapshot of a content repository, since it was opened.

    Attributes:
        resources: Number of files with references.
        references: Number of references to them.
        claims_written: Number of finished claims.
        bytes_written: Their bytes.
        bytes_wasted: Bytes of aborted claims that could not be cut off.
        files_created: Number of created files.
        files_deleted: Number of files deleted with their last reference.
        orphans_deleted: Number of files without references at start.
        retained: Number of files without references that are kept for replays.
        retained_bytes: Their size.
    """

    resources: int
    references: int
    claims_written: int
    bytes_written: int
    bytes_wasted: int
    files_created: int
    files_deleted: int
    orphans_deleted: int
    retained: int = 0
    retained_bytes: int = 0
