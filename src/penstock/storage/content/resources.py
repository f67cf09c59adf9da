"""The files that content is written to: appending claims, cutting off, making durable.

Owns: the writing side of one file with its durable part, and the names of files. Does not own: the
set of files and their writers (`content_repository`), nor reading (`content_reader`).

Invariants:

- One claim at a time is written to a file, at its end; finished claims never change.
- After a failed fsync, the unsynced bytes are read, checked and written again before the next
  fsync, because the kernel has marked their pages as clean.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import google_crc32c

from penstock.core.errors import NotFound, PenstockError, Unavailable
from penstock.storage.content.claims import UNKNOWN_CHECKSUM, ContentClaim, ResourceClaim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.filesystem import FileSystem, ReadFile

CONTAINER: Final = "default"
CHUNK_BYTES: Final = 1 << 20

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OUR_NAME: Final = re.compile(r"(\d{13,})-\d{8,}")


def resource_name(stamp_ms: int, number: int) -> str:
    """Return the name of a file; names sort in the order of creation."""
    return f"{stamp_ms:013d}-{number:08d}"


def stamp_of(name: str) -> int:
    """Return the stamp in a name, -1 if it does not have this form."""
    match = _OUR_NAME.fullmatch(name)
    return -1 if match is None else int(match[1])


def resource_path(folder: str, resource: ResourceClaim) -> str:
    """Return the path of a resource.

    Raises:
        NotFound: It is not of this repository: a claim may come from another program's file, and
            must not lead out of the folder.
    """
    if (
        resource.container != CONTAINER
        or _PLAIN_NAME.fullmatch(resource.section) is None
        or _PLAIN_NAME.fullmatch(resource.id) is None
    ):
        raise NotFound(
            f"content {resource.container!r}/{resource.section!r}/{resource.id!r}: is not of this "
            "repository: import the content together with the FlowFiles"
        )
    return f"{folder}/{resource.section}/{resource.id}"


def chunks_of(file: ReadFile, position: int, length: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of part of a file in pieces; they end early if the file does."""
    end = position + length
    while position < end:
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if not data:
            return
        yield position, data
        position += len(data)


class ResourceFile:
    """A file that is being written. One writer at a time; `sync` may run concurrently.

    Args:
        fs: The file system.
        folder: The folder of the repository; that of the section must exist.
        claim: Its name; no file may have it.

    Raises:
        Conflict: A file of this name exists.
        Unavailable: It cannot be created.

    Attributes:
        claim: Its name.
        end: The end of the last finished claim, in bytes.
        sealed: Whether it takes no further claims.
    """

    __slots__ = ("_file", "_fs", "_path", "_suspect", "_unsynced", "claim", "end", "sealed")

    def __init__(self, fs: FileSystem, folder: str, claim: ResourceClaim) -> None:
        self.claim = claim
        self.end = 0
        self.sealed = False
        self._fs = fs
        self._path = resource_path(folder, claim)
        self._file = fs.create(self._path)
        self._unsynced: list[ContentClaim] = []
        self._suspect = False

    @property
    def is_unsynced(self) -> bool:
        """Whether a finished claim is not known to be durable."""
        return bool(self._unsynced)

    def write(self, data: bytes) -> None:
        """Append to the current claim; all or nothing.

        Raises:
            Unavailable: Disk full or I/O error.
        """
        self._file.writev([data])

    def finish(self, checksum: int) -> ContentClaim:
        """Finish the current claim and return it."""
        end = self._file.size
        claim = ContentClaim(self.claim, self.end, end - self.end, checksum)
        # `sync` takes from the front of the list and reads `end` last.
        self._unsynced.append(claim)
        self.end = end
        return claim

    def cut(self) -> int:
        """Cut off the current claim; return how many bytes could not be cut off."""
        if self._file.size == self.end:
            return 0
        try:
            self._file.truncate(self.end)
        except PenstockError:
            return self._file.size - self.end
        finally:
            # Unused bytes; later claims would be valid, but a file that cannot be truncated takes
            # none.
            self.sealed |= self._file.size != self.end
        return 0

    def sync(self) -> None:
        """Make the finished claims durable.

        Raises:
            Unavailable: The device fails; call again later.
        """
        count = len(self._unsynced)
        failed_before, self._suspect = self._suspect, True  # until it succeeds
        if failed_before:
            self._write_again(self._unsynced[:count])
        self._file.sync()
        self._suspect = False
        del self._unsynced[:count]

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        self._file.close()

    def _write_again(self, claims: list[ContentClaim]) -> None:
        file = self._fs.open_read(self._path)
        try:
            for claim in claims:
                crc = 0
                for position, data in chunks_of(file, claim.offset, claim.length):
                    crc = google_crc32c.extend(crc, data)
                    self._file.rewrite(position, data)
                if claim.checksum not in (crc, UNKNOWN_CHECKSUM):
                    raise Unavailable(
                        f"{self._path}: an fsync failed and the system lost bytes at "
                        f"{claim.offset}: check the disk, then restart"
                    )
        finally:
            file.close()
