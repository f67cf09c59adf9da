"""Content readers: shared open files, a bounded seekable reader, and reads of a whole claim.

Owns: the files open for reading, and the limits of a read. Does not own: the set of files.

Invariants:

- A reader sees only the bytes of its part of the claim, even if the file grows.
- The number of open files without a reader is limited.
- The checksum of a claim that is read from start to end is verified.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from contextlib import ExitStack
from typing import TYPE_CHECKING

import google_crc32c

from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.storage.content.claims import UNKNOWN_CHECKSUM
from penstock.storage.content.resources import chunks_of, resource_path

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from penstock.storage.content.claims import ContentClaim, ResourceClaim
    from penstock.storage.filesystem import FileSystem, ReadFile


class _Shared:
    __slots__ = ("file", "readers")

    def __init__(self, file: ReadFile) -> None:
        self.file = file
        self.readers = 0


class ReadFiles:
    """The files open for reading, each once.

    Its mutex guards the table for a few statements. Readers run on many threads, and a mail per
    read would cost more than the read.
    """

    def __init__(self, fs: FileSystem, folder: str, idle_max: int) -> None:
        self._fs = fs
        self._folder = folder
        self._idle_max = idle_max
        self._mutex = threading.Lock()
        # Ordered by last use, the most recent at the end.
        self._files: OrderedDict[ResourceClaim, _Shared] = OrderedDict()

    def borrow(self, resource: ResourceClaim) -> ReadFile:
        """Return an open file; the caller must release it.

        Raises:
            NotFound: It does not exist.
            Unavailable: It cannot be opened.
        """
        with self._mutex:
            shared = self._files.get(resource)
            if shared is None:
                self._close_idle(room_for=1)
                shared = self._files[resource] = _Shared(self._open(resource))
            self._files.move_to_end(resource)
            shared.readers += 1
            return shared.file

    def release(self, resource: ResourceClaim, file: ReadFile) -> None:
        """Release a file that `borrow` returned, so that it may be closed."""
        with self._mutex:
            shared = self._files.get(resource)
            if shared is None or shared.file is not file:
                file.close()  # the resource was deleted meanwhile
                return
            shared.readers -= 1
            self._close_idle()

    def forget(self, resource: ResourceClaim) -> None:
        """Drop a file that is deleted; its current readers can continue."""
        with self._mutex:
            shared = self._files.pop(resource, None)
            if shared is not None and not shared.readers:
                shared.file.close()

    def close(self) -> None:
        """Close the files without readers."""
        with self._mutex:
            idle = [one for one, shared in self._files.items() if not shared.readers]
            with ExitStack() as closing:  # an error while closing one file leaves no other open
                for resource in idle:
                    closing.callback(self._files.pop(resource).file.close)

    def _open(self, resource: ResourceClaim) -> ReadFile:
        path = resource_path(self._folder, resource)
        try:
            return self._fs.open_read(path)
        except NotFound as error:
            raise NotFound(
                f"{path}: the content is missing: restore the file, or handle the missing content"
            ) from error

    def _close_idle(self, room_for: int = 0) -> None:
        surplus = len(self._files) + room_for - self._idle_max
        if surplus <= 0:
            return
        idle = [one for one, shared in self._files.items() if not shared.readers]
        for resource in idle[:surplus]:
            self._files.pop(resource).file.close()


def check_part(claim: ContentClaim, offset: int, length: int | None) -> int:
    """Return the length of a part; None means up to the end of the claim.

    Raises:
        InvalidRequest: The part exceeds the claim.
    """
    wanted = claim.length - offset if length is None else length
    if offset < 0 or wanted < 0 or offset + wanted > claim.length:
        raise InvalidRequest(
            f"content {claim.resource.id}: {wanted} bytes from {offset} are not in a claim of "
            f"{claim.length} bytes: request a range within it"
        )
    return wanted


def checksum_of(file: ReadFile, claim: ContentClaim) -> tuple[int, int]:
    """Return the checksum of the existing bytes of a claim, and their number."""
    crc = found = 0
    for _, data in chunks_of(file, claim.offset, claim.length):
        crc = google_crc32c.extend(crc, data)
        found += len(data)
    return crc, found


def is_whole(file: ReadFile, claim: ContentClaim) -> bool:
    """Return whether the bytes of a claim are complete and match its checksum."""
    if claim.checksum == UNKNOWN_CHECKSUM:
        return file.size() >= claim.offset + claim.length
    return checksum_of(file, claim) == (claim.checksum, claim.length)


class ContentReader(io.RawIOBase):
    """Reads part of a claim; seekable. For one thread at a time.

    Args:
        files: The open files.
        folder: The folder of the repository, for messages.
        claim: The claim to read.
        offset: Start of the part in the claim, in bytes.
        length: Length of the part, in bytes.

    Raises:
        NotFound: The file does not exist.
    """

    def __init__(
        self, files: ReadFiles, folder: str, claim: ContentClaim, offset: int, length: int
    ) -> None:
        super().__init__()
        self._files = files
        self._folder = folder
        self._claim = claim
        self._start = claim.offset + offset
        self._length = length
        self._position = 0
        # For a whole claim: the bytes read so far from its start without a seek.
        whole = claim.checksum != UNKNOWN_CHECKSUM and length == claim.length
        self._checked = 0 if whole else -1
        self._crc = 0
        self._file = files.borrow(claim.resource)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read, in bytes from the start of the part."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position; return it. Reads after the end return nothing.

        Raises:
            InvalidRequest: It is before the start.
        """
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise InvalidRequest(
                f"{self._name()}: cannot seek to {start + offset}: positions start at 0"
            )
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read up to the size of a buffer; return 0 at the end.

        Raises:
            CorruptData: The file ends before the claim, or the claim does not match its checksum.
            Unavailable: It cannot be read now.
        """
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes, or the rest if it is negative. Raises as `readinto`."""
        left = max(0, self._length - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._take(wanted)
        if len(data) == wanted:
            return data
        parts = [data]
        got = len(data)
        while got < wanted:
            parts.append(self._take(wanted - got))
            got += len(parts[-1])
        return b"".join(parts)

    def readall(self) -> bytes:
        """Return the rest. Raises as `readinto`."""
        return self.read(-1)

    def close(self) -> None:
        """Close the reader. Closing twice is allowed."""
        try:
            if not self.closed:
                self._files.release(self._claim.resource, self._file)
        finally:
            super().close()

    def _take(self, wanted: int) -> bytes:
        if self.closed:
            raise ValueError(f"{self._name()}: the reader is closed")  # like Python's own streams
        wanted = min(wanted, self._length - self._position)
        if wanted <= 0:
            return b""
        data = self._file.pread(wanted, self._start + self._position)
        if not data:
            raise CorruptData(
                resource_path(self._folder, self._claim.resource),
                self._start + self._position,
                f"the file ends before the end of the content ({self._claim.length} bytes)",
            )
        self._check(data)
        self._position += len(data)
        return data

    def _check(self, data: bytes) -> None:
        if self._checked != self._position:
            return
        self._crc = google_crc32c.extend(self._crc, data)
        self._checked += len(data)
        if self._checked == self._length and self._crc != self._claim.checksum:
            raise CorruptData(
                resource_path(self._folder, self._claim.resource),
                self._claim.offset,
                f"the content of {self._length} bytes does not match its checksum",
            )

    def _name(self) -> str:
        return f"content {self._claim.resource.id}"


def read_claim(
    files: ReadFiles, folder: str, claim: ContentClaim, offset: int, length: int
) -> bytes:
    """Return part of a claim. Raises as `ContentReader`."""
    file = files.borrow(claim.resource)
    try:
        data = file.pread(length, claim.offset + offset)
    finally:
        files.release(claim.resource, file)
    if len(data) < length:
        # A read may return fewer bytes (over 2 GiB, a signal), so this is not damage yet.
        with ContentReader(files, folder, claim, offset, length) as reader:
            return reader.read()
    whole = length == claim.length and claim.checksum != UNKNOWN_CHECKSUM
    if whole and google_crc32c.value(data) != claim.checksum:
        path = resource_path(folder, claim.resource)
        raise CorruptData(path, claim.offset, "the content does not match its checksum")
    return data


def check_claim(files: ReadFiles, claim: ContentClaim) -> bool:
    """Return whether a claim can be read completely.

    Raises:
        Unavailable: It cannot be read now.
    """
    try:
        file = files.borrow(claim.resource)
    except NotFound:
        return False
    try:
        return is_whole(file, claim)
    finally:
        files.release(claim.resource, file)
