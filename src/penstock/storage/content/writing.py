"""Writing the content of one claim as a stream.

Owns: the buffer of unwritten bytes, and the checksum. Does not own: the file (`resources`), and the
choice of it (`repository`).

Invariant: a claim is finished once, or nothing of it is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import google_crc32c

from penstock.core.errors import Closed
from penstock.storage.content.resources import CHUNK_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.core.disk_space import Headroom
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.content.resources import Resource


class Resources(Protocol):
    """Supplies the files of writers."""

    def take(self) -> Resource:
        """Return a file that has no other writer."""
        ...

    def finish(self, resource: Resource, checksum: int) -> ContentClaim:
        """Finish the claim, with one reference, and give the file back."""
        ...

    def abort(self, resource: Resource) -> None:
        """Cut the claim off and give the file back."""
        ...


class ContentWriter:
    """Writes the content of one claim; on one thread at a time. Leaving its context aborts it.

    Args:
        resources: Supplies its file.
        buffer_bytes: Small writes are buffered up to this.
        headroom: Checked before each write to the file.
    """

    __slots__ = (
        "_buffer_bytes",
        "_crc",
        "_ended",
        "_gathered",
        "_headroom",
        "_parts",
        "_resource",
        "_resources",
    )

    def __init__(self, resources: Resources, buffer_bytes: int, headroom: Headroom) -> None:
        self._resources = resources
        self._headroom = headroom
        self._buffer_bytes = buffer_bytes
        self._parts: list[bytes] = []
        self._gathered = 0
        self._crc = 0
        self._resource: Resource | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def write(self, data: Buffer) -> int:
        """Append bytes; return their number.

        Raises:
            Unavailable: Disk full or I/O error; it is aborted, as after any other exception.
            Closed: It was finished or aborted.
        """
        self._check_open()
        if isinstance(data, bytes) and len(data) < self._buffer_bytes:
            self._gather(data)
            return len(data)
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK_BYTES):
                # Copy one piece at a time: the caller may change the data afterwards.
                self._gather(bytes(view[start : start + CHUNK_BYTES]))
        except BaseException:
            self.abort()
            raise
        return len(view)

    def finish(self) -> ContentClaim | None:
        """Return the claim of the written bytes, None for 0 bytes.

        The writer holds one reference to it: pass it to the commit as `written`, or `release` it if
        it is not committed.

        Raises:
            Unavailable: Disk full or I/O error; it is aborted.
            Closed: It was finished or aborted.
        """
        self._check_open()
        try:
            self._flush()
        except BaseException:
            self.abort()
            raise
        self._ended = True
        if self._resource is None:
            return None
        return self._resources.finish(self._resource, self._crc)

    def abort(self) -> None:
        """Discard the written bytes. Calling it twice, or after `finish`, is allowed."""
        if self._ended:
            return
        self._ended = True
        self._parts.clear()
        if self._resource is not None:
            self._resources.abort(self._resource)

    def _gather(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._parts.append(data)
            self._gathered += len(data)
            if self._gathered >= self._buffer_bytes:
                self._flush()
        except BaseException:
            self.abort()
            raise

    def _flush(self) -> None:
        if not self._parts:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._headroom.require(len(data))
        if self._resource is None:
            self._resource = self._resources.take()
        self._resource.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._parts.clear()
        self._gathered = 0

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the content was finished or aborted: start a new claim")
