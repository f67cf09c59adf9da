"""Writers of content claims, and the content files that they append to.

`ContentWriter` writes the content of one claim as a stream; it owns the write buffer and the
checksum. `WrittenFiles` creates the content files, lends each to one writer at a time, fsyncs
them, and closes them when they are full. Does not own the references to claims (`references`,
which is informed when a file begins and ends) or the deletion of files (`content_repository`).

Invariants:

- A claim is finished once, or nothing of it exists. Leaving a writer's context aborts it.
- A file has one writer at a time, and no writer after a restart: new files have new names.
- An ended file is closed, but not while it has something to sync.
- A file or a name counts as not synced until its sync has succeeded, even after an exception.

Threading: one thread at a time for each writer. `WrittenFiles` may be used from any thread; its
mutex guards the tables and is not held during disk access.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol, Self

import google_crc32c

from penstock.core.errors import Closed, Conflict
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.content.resources import CHUNK_BYTES, CONTAINER, ResourceFile, resource_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

    from penstock.core.disk_space import DiskSpace
    from penstock.storage.content.options import ContentOptions
    from penstock.storage.content.references import References
    from penstock.storage.filesystem import FileSystem


class OpenResources(Protocol):
    """Supplies the files of writers."""

    def take(self) -> ResourceFile:
        """Return a file that has no other writer."""
        ...

    def finish(self, resource: ResourceFile, checksum: int) -> ContentClaim:
        """Finish the claim, with one reference, and give the file back."""
        ...

    def abort(self, resource: ResourceFile) -> None:
        """Cut the claim off and give the file back."""
        ...


class ContentWriter:
    """Writes the content of one claim; on one thread at a time. Leaving its context aborts it.

    Args:
        resources: Supplies its file.
        buffer_bytes: Small writes are buffered up to this.
        disk_space: Checked before each write to the file.
    """

    __slots__ = (
        "_buffer_bytes",
        "_crc",
        "_disk_space",
        "_ended",
        "_gathered",
        "_parts",
        "_resource",
        "_resources",
    )

    def __init__(self, resources: OpenResources, buffer_bytes: int, disk_space: DiskSpace) -> None:
        self._resources = resources
        self._disk_space = disk_space
        self._buffer_bytes = buffer_bytes
        self._parts: list[bytes] = []
        self._gathered = 0
        self._crc = 0
        self._resource: ResourceFile | None = None
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
        self._disk_space.require(len(data))
        if self._resource is None:
            self._resource = self._resources.take()
        self._resource.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._parts.clear()
        self._gathered = 0

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the content was finished or aborted: start a new claim")


class WrittenFiles:
    """Files for any number of writers; a mutex guards the tables, without disk access under it.

    Args:
        fs: The file system.
        folder: The folder of the repository.
        options: The maximum size of a file, and the number of files that wait open.
        stamp_ms: Part of the names of the files; no earlier name has it.
        references: Called for files and claims.

    Attributes:
        files_created: Number of created files.
        claims_written: Number of finished claims.
        bytes_written: Their bytes.
        bytes_wasted: Bytes of aborted claims that could not be cut off.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        options: ContentOptions,
        stamp_ms: int,
        references: References,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._options = options
        self._stamp_ms = stamp_ms
        self._references = references
        self._mutex = threading.Lock()
        self._closed = False
        self._sealing = False
        self._sections: set[str] = set()
        self._free: list[ResourceFile] = []
        self._dirty: dict[ResourceClaim, ResourceFile] = {}
        # Sections whose names are not durable, with the number of the last file made there.
        self._new_names: dict[str, int] = {}
        self.files_created = 0
        self.claims_written = 0
        self.bytes_written = 0
        self.bytes_wasted = 0

    # -- for writers

    def take(self) -> ResourceFile:
        """Return a file that has no other writer; `finish` or `abort` gives it back.

        Raises:
            Unavailable: No file can be created.
            Closed: The repository is closed.
        """
        with self._mutex:
            if self._closed:
                raise Closed(f"{self._folder}: is closed: open the content repository again")
            if self._free:
                return self._free.pop()
        while True:
            with suppress(Conflict):  # another program has created the file
                return self._create()

    def finish(self, resource: ResourceFile, checksum: int) -> ContentClaim:
        """Finish the current claim, with one reference, and give the file back."""
        try:
            claim = resource.finish(checksum)
        except BaseException:
            self.abort(resource)
            raise
        with self._mutex:
            is_counted = False
            try:
                self._dirty[resource.claim] = resource
                self._references.wrote(resource.claim)
                is_counted = True
                self._give_back(resource)
            except BaseException:
                if is_counted:  # the caller gets no claim to release
                    self._references.adjust({resource.claim: -1})
                else:
                    self._give_back(resource)
                raise
            self.claims_written += 1
            self.bytes_written += claim.length
        return claim

    def abort(self, resource: ResourceFile) -> None:
        """Cut off the current claim, and give the file back."""
        wasted = 0
        try:
            wasted = resource.cut()
        except BaseException:
            resource.sealed = True  # the next claim would begin before the remaining bytes
            raise
        finally:
            with self._mutex:
                self.bytes_wasted += wasted
                self._give_back(resource)

    # -- for the repository

    def sync(self) -> None:
        """Make the finished claims durable; one call at a time.

        Raises:
            Unavailable: It failed; call again later.
        """
        with self._mutex:
            dirty, names = list(self._dirty.items()), dict(self._new_names)
        for _, resource in dirty:
            resource.sync()
        for section in names:
            self._fs.fsync_folder(f"{self._folder}/{section}")
        with self._mutex:
            for section, number in names.items():
                if self._new_names[section] == number:
                    del self._new_names[section]
            done = [(claim, resource) for claim, resource in dirty if not resource.is_unsynced]
            for claim, _ in done:
                del self._dirty[claim]
            sealed = [resource for _, resource in done if resource.sealed]
        _close_all(sealed)

    def forget(self, claims: Iterable[ResourceClaim]) -> None:
        """Drop files that are deleted, synced or not; not concurrently with `sync`."""
        with self._mutex:
            dirty = [self._dirty.pop(one, None) for one in claims]
        _close_all(resource for resource in dirty if resource is not None)

    def seal(self) -> None:
        """End the files that wait for further claims, and each that is given back from now on."""
        with self._mutex:
            self._sealing = True
            while self._free:
                self._give_back(self._free[-1])
                self._free.pop()

    def refuse(self) -> bool:
        """Lend no further files; return whether that was already the case."""
        with self._mutex:
            before, self._closed = self._closed, True
            return before

    def close(self) -> None:
        """Close the files without writers."""
        with self._mutex:
            free, self._free = self._free, []
            dirty, self._dirty = self._dirty, {}
        _close_all([*free, *dirty.values()])

    # -- inside

    def _create(self) -> ResourceFile:
        with self._mutex:
            number, self.files_created = self.files_created, self.files_created + 1
        section = str(number % self._options.sections)
        if section not in self._sections:
            self._fs.mkdir(f"{self._folder}/{section}")
            self._sections.add(section)
        claim = ResourceClaim(resource_name(self._stamp_ms, number), CONTAINER, section)
        resource = ResourceFile(self._fs, self._folder, claim)
        try:
            with self._mutex:
                self._new_names[section] = max(number, self._new_names.get(section, 0))
                self._references.begin(claim)
        except BaseException:
            resource.close()  # the file is an orphan at the next start
            raise
        return resource

    def _give_back(self, resource: ResourceFile) -> None:
        """Take a file back from its writer; the caller holds the mutex."""
        full = resource.end >= self._options.resource_bytes
        is_last = resource.sealed or self._sealing or self._closed
        if not (full or is_last or len(self._free) >= self._options.open_files):
            try:
                self._free.append(resource)
            except BaseException:
                resource.sealed = True
                self._references.end(resource.claim)
                raise
            return
        resource.sealed = True
        claim = resource.claim
        self._references.end(claim)
        if claim not in self._dirty:
            resource.close()


def _close_all(resources: Iterable[ResourceFile]) -> None:
    """Close all, even if closing one of them raises."""
    with ExitStack() as closing:
        for resource in resources:
            closing.callback(resource.close)
