"""What a content repository is told, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """How content is laid out.

    Args:
        resource_bytes: A file takes further content until it is this large.
        sections: Folders that the files are spread over.
        open_files: Files kept open for reading, and as many for writing, while nobody uses them.
        buffer_bytes: Small writes to one claim are gathered up to this.
        min_free_bytes: Free disk space below which content is refused, and commits that make
            FlowFiles.
    """

    resource_bytes: int = 1024 * 1024
    sections: int = 64
    open_files: int = 64
    buffer_bytes: int = 256 * 1024
    min_free_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("resource_bytes", "sections", "open_files", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)
        if self.min_free_bytes < 0:
            raise InvalidRequest(
                f"is {self.min_free_bytes}: must be at least 0", place="min_free_bytes"
            )


@dataclass(frozen=True, slots=True)
class ContentStatistics:
    """An immutable snapshot of a content repository, since it was opened.

    Attributes:
        resources: Files that somebody refers to.
        references: How many references there are to them.
        claims_written: Claims that were finished.
        bytes_written: Bytes of them.
        bytes_wasted: Bytes of aborted claims that could not be cut off again.
        files_created: Files begun.
        files_deleted: Files deleted with their last reference.
        orphans_deleted: Files that nobody referred to at start.
    """

    resources: int
    references: int
    claims_written: int
    bytes_written: int
    bytes_wasted: int
    files_created: int
    files_deleted: int
    orphans_deleted: int
