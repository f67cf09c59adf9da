"""Content: bytes in append-only files that many share, and that go with their last reference.

Owns: which files there are, who writes which, how many refer to each, and when one is deleted. Does
not own: who refers (`flow.repository` tells), nor the bytes' meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.content.claims import ContentClaim, ResourceClaim
    from penstock.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """How content is laid out.

    Args:
        resource_bytes: A file takes further content until it is this large.
        sections: Folders that the files are spread over.
        open_files: Files kept open for reading, and as many for writing, while nobody uses them.
        buffer_bytes: Small writes are gathered up to this.
    """

    resource_bytes: int = 1024 * 1024
    sections: int = 64
    open_files: int = 64
    buffer_bytes: int = 256 * 1024

    def __post_init__(self) -> None:
        for name in ("resource_bytes", "sections", "open_files", "buffer_bytes"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"is {getattr(self, name)}: must be at least 1", place=name)


class ContentWriter:
    """Writes the content of one claim, on one thread at a time. Leaving its context aborts it."""

    def write(self, data: Buffer) -> int:
        """Append bytes; return how many.

        Raises:
            Unavailable: Disk full or I/O error; abort it.
            Closed: It was finished or aborted.
        """
        raise NotImplementedError

    def finish(self) -> ContentClaim | None:
        """Return the claim on what was written, None for 0 bytes.

        The writer counts as one who refers to it: tell the commit that it was `written`, or
        `release` it when it is not committed.

        Raises:
            Unavailable: Disk full or I/O error; it is aborted then.
            Closed: It was finished or aborted.
        """
        raise NotImplementedError

    def abort(self) -> None:
        """Give up what was written. Twice, or after `finish`, is fine."""
        raise NotImplementedError


class ContentRepository:
    """The content of one folder. Used from many threads."""

    @classmethod
    def open(
        cls, folder: str, *, fs: FileSystem, clock: Clock, options: ContentOptions | None = None
    ) -> Self:
        """Open a folder of content, or begin one. The FlowFile repository calls `recover`.

        Raises:
            Conflict: Somebody else has it open.
            Unavailable: I/O error.
        """
        raise NotImplementedError

    def write(self) -> ContentWriter:
        """Begin a claim."""
        raise NotImplementedError

    def put(self, data: Buffer) -> ContentClaim | None:
        """Write a small claim in one go; see `ContentWriter.finish`."""
        raise NotImplementedError

    def open_read(
        self, claim: ContentClaim, offset: int = 0, length: int | None = None
    ) -> io.RawIOBase:
        """Return a seekable reader of part of a claim, which never reads past its end.

        Raises:
            NotFound: The file is gone.
            InvalidRequest: The part is not in the claim.
        """
        raise NotImplementedError

    def read(self, claim: ContentClaim, offset: int = 0, length: int | None = None) -> bytes:
        """Return part of a claim.

        Raises:
            NotFound: The file is gone.
            CorruptData: It is shorter than the claim, or the checksum of the whole does not match.
            InvalidRequest: The part is not in the claim.
        """
        raise NotImplementedError

    def hold(self, resource: ResourceClaim, count: int = 1) -> None:
        """Count that so many more refer to a resource."""
        raise NotImplementedError

    def release(self, resource: ResourceClaim, count: int = 1) -> None:
        """Count that so many fewer do. It is deleted after the next sync of the journal."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make durable what was finished.

        Raises:
            Unavailable: It failed; call again later.
        """
        raise NotImplementedError

    def released(self) -> Sequence[ResourceClaim]:
        """Return what has no reference now; ask before the journal's fsync begins."""
        raise NotImplementedError

    def delete_released(self, resources: Sequence[ResourceClaim]) -> None:
        """Delete what `released` gave, as far as nobody refers to it by now."""
        raise NotImplementedError

    def check(self, claim: ContentClaim) -> bool:
        """Say whether the bytes are there and match the checksum."""
        raise NotImplementedError

    def recover(self, claimants: Mapping[ResourceClaim, int]) -> list[str]:
        """Take over the references at start; delete what nobody refers to and return its paths."""
        raise NotImplementedError

    def close(self) -> None:
        """Make all durable and let go of the files. Twice is fine."""
        raise NotImplementedError
