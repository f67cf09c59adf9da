"""Content: bytes in shared append-only files, each deleted with its last reference.

Owns: the folder, and the deletion of files. Does not own: the files being written (`writer`), the
number of references to each (`references`), the referrers (`flow.repository` counts them), nor the
meaning of the bytes.

Invariants:

- A file is written by one writer at a time, and never again after a restart.
- A file is deleted when its writer has finished it, it has no references, and the journal of the
  references has made that durable (`released`, `delete_released`).
- A finished claim survives a crash of the process; it survives a power loss after `sync` returned.
- With a retention, a file without references is kept for a time, and `revive` can refer to it
  again; it gives way when the disk is nearly full.
- A full disk leaves no partial claims: the bytes of an unfinished claim are cut off. Writes stop
  when the disk is nearly full, so that commits that release content still have space.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

import google_crc32c

from penstock.core.disk_space import DiskSpace
from penstock.core.errors import NotFound, PenstockError
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.content.content_reader import (
    ContentReader,
    ReadFiles,
    check_claim,
    check_part,
    read_claim,
)
from penstock.storage.content.options import ContentOptions, ContentStatistics
from penstock.storage.content.references import References, RetainedFiles
from penstock.storage.content.resources import CONTAINER, resource_path, stamp_of
from penstock.storage.content.writer import ContentWriter, WrittenFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem, FolderLock

__all__ = ["ContentOptions", "ContentRepository", "ContentStatistics", "ContentWriter"]

_logger = logging.getLogger(__name__)


class ContentRepository:
    """The content of one folder. Used from many threads. Created by `open`.

    Its mutex lets one pass of fsyncs or deletions run at a time; the calling thread waits for the
    disk.

    Attributes:
        references: The number of references to each file, and the released files.
        on_release: Called after `release`, so that the owner of the deletions checks the released
            files even if there is no commit.
        disk_space: Keeps some space free; checked before each write.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem,
        options: ContentOptions,
        stamp_ms: int,
        lock: FolderLock,
        disk_space: DiskSpace,
        clock: Clock,
    ) -> None:
        self.on_release: Callable[[], None] | None = None
        self.disk_space = disk_space
        self._folder = folder
        self._fs = fs
        self._options = options
        self._clock = clock
        self._retained = RetainedFiles(options.retention_ms, options.retention_bytes)
        self._lock = lock
        self._files = ReadFiles(fs, folder, options.open_files)
        self.references = References()
        self._written = WrittenFiles(fs, folder, options, stamp_ms, self.references)
        self._disk_mutex = threading.Lock()
        self._files_deleted = self._orphans_deleted = 0

    @classmethod
    def open(
        cls, folder: str, *, fs: FileSystem, clock: Clock, options: ContentOptions | None = None
    ) -> Self:
        """Open a folder of content, or create one. The FlowFile repository calls `recover` next.

        Raises:
            Conflict: Another owner has it open.
            Unavailable: I/O error.
        """
        fs.mkdir(folder)
        options = options or ContentOptions()
        lock = fs.lock_folder(folder)
        try:
            # Names are never reused, even if the machine's clock was set back.
            stamps = [stamp_of(name) for _, name in _files_in(fs, folder)]
            stamp_ms = max([clock.now_ms(), *(stamp + 1 for stamp in stamps)])
        except BaseException:
            lock.release()
            raise
        disk_space = DiskSpace(
            folder,
            lambda: fs.free_bytes(folder),
            options.min_free_bytes,
            clock,
            "let the flow process its FlowFiles, or free space there",
        )
        return cls(folder, fs, options, stamp_ms, lock, disk_space, clock)

    # -- writing and reading

    def write(self) -> ContentWriter:
        """Start a claim."""
        return ContentWriter(self._written, self._options.buffer_bytes, self.disk_space)

    def put(self, data: Buffer) -> ContentClaim | None:
        """Write a small claim in one call; see `ContentWriter.finish`.

        Raises:
            Unavailable: Disk full or I/O error; nothing was written.
        """
        content = bytes(data)
        if not content:
            return None
        self.disk_space.require(len(content))
        resource = self._written.take()
        try:
            resource.write(content)
            checksum = google_crc32c.value(content)
        except BaseException:
            self._written.abort(resource)
            raise
        return self._written.finish(resource, checksum)

    def open_read(
        self, claim: ContentClaim, offset: int = 0, length: int | None = None
    ) -> ContentReader:
        """Return a seekable reader of part of a claim, which never reads past its end.

        Raises:
            NotFound: The file was deleted.
            InvalidRequest: The part is not in the claim.
        """
        wanted = check_part(claim, offset, length)
        return ContentReader(self._files, self._folder, claim, offset, wanted)

    def read(self, claim: ContentClaim, offset: int = 0, length: int | None = None) -> bytes:
        """Return part of a claim.

        Raises:
            NotFound: The file was deleted.
            CorruptData: It is shorter than the claim, or the checksum of the whole does not match.
            InvalidRequest: The part is not in the claim.
        """
        wanted = check_part(claim, offset, length)
        return read_claim(self._files, self._folder, claim, offset, wanted)

    def check(self, claim: ContentClaim) -> bool:
        """Return whether the bytes of a claim exist and match its checksum.

        Raises:
            Unavailable: The bytes cannot be read now.
        """
        return check_claim(self._files, claim)

    # -- references

    def hold(self, resource: ResourceClaim, count: int = 1) -> None:
        """Add references to a resource."""
        self.references.adjust({resource: count})

    def release(self, resource: ResourceClaim, count: int = 1) -> None:
        """Remove references to a resource without a commit, and call the listener."""
        self.references.adjust({resource: -count})
        if self.on_release is not None:
            self.on_release()

    def delete_released(self, resources: Iterable[ResourceClaim]) -> None:
        """Delete the files that `references.released` returned, unless they have references now.

        A file that cannot be deleted is an orphan at the next start.
        """
        with self._disk_mutex:
            going = self.references.take_released(resources)
            deleted = 0
            try:
                self._written.forget(going)
                if self._options.retention_ms:
                    going = self._retain(going)
                for claim in going:
                    self._files.forget(claim)
                    _delete(self._fs, self._folder, claim)
                    deleted += 1
            except BaseException:
                self.references.put_back(going[deleted:])
                raise
            finally:
                self._files_deleted += deleted

    def _retain(self, released: list[ResourceClaim]) -> list[ResourceClaim]:
        """Keep released files, and return those that are to be deleted instead."""
        now_ms = self._clock.now_ms()
        for resource in released:
            with suppress(NotFound):
                size = self._fs.stat(resource_path(self._folder, resource)).size
                self._retained.keep(resource, size, now_ms)
        return self._excess()

    def _excess(self) -> list[ResourceClaim]:
        is_full = self._fs.free_bytes(self._folder) < 2 * self._options.min_free_bytes
        return self._retained.take_excess(self._clock.now_ms(), is_disk_full=is_full)

    def trim_retained(self) -> None:
        """Delete the kept files that are over their limits now; call it regularly."""
        if not self._options.retention_ms or not len(self._retained):
            return
        with self._disk_mutex:
            for resource in self._excess():
                self._files.forget(resource)
                _delete(self._fs, self._folder, resource)
                self._files_deleted += 1

    def is_kept(self, claim: ContentClaim) -> bool:
        """Return whether the file of a claim exists; its bytes are not checked."""
        return self._fs.exists(resource_path(self._folder, claim.resource))

    def revive(self, claim: ContentClaim) -> None:
        """Add a reference to content, whether or not it has others; `release` removes it.

        Raises:
            NotFound: The content was deleted, or its bytes are damaged.
            Unavailable: It cannot be read now.
        """
        resource = claim.resource
        with self._disk_mutex:  # no deletion in between
            if not self._fs.exists(resource_path(self._folder, resource)):
                raise _not_kept(claim)
            self._retained.forget(resource)
            self.references.adjust({resource: 1})
        # The reference keeps the file. Reading it may take seconds, and commits use the mutex.
        is_whole = False
        try:
            is_whole = check_claim(self._files, claim)
        finally:
            if not is_whole:
                self.release(resource)
        if not is_whole:
            raise _not_kept(claim)

    def seal(self) -> None:
        """Close the files that wait for further claims, before they are full.

        Those without references are then among `released`.
        """
        self._written.seal()

    # -- durability

    def sync(self) -> None:
        """Make the finished claims durable.

        Raises:
            Unavailable: It failed; call again later.
        """
        with self._disk_mutex:
            self._written.sync()

    def make_durable(self, resources: Iterable[ResourceClaim]) -> None:
        """Make files durable that existed before the start.

        Raises:
            NotFound: One was deleted.
            Unavailable: It failed.
        """
        sections = set()
        for resource in resources:
            self._fs.fsync_file(resource_path(self._folder, resource))
            sections.add(resource.section)
        for section in sections:
            self._fs.fsync_folder(f"{self._folder}/{section}")

    def recover(
        self, claimants: Mapping[ResourceClaim, int], *, keep_orphans: bool = False
    ) -> list[str]:
        """Restore the references at start, and delete the files without references.

        Call it before the first write, once the source of the references is durable.

        Args:
            claimants: The number of references to each resource.
            keep_orphans: Delete nothing.

        Returns:
            The paths of the files without references.

        Raises:
            Unavailable: The folder cannot be read.
        """
        orphans = []
        for section, name in _files_in(self._fs, self._folder):
            claim = ResourceClaim(name, CONTAINER, section)
            if not claimants.get(claim):
                if self._options.retention_ms and not keep_orphans:
                    stat = self._fs.stat(resource_path(self._folder, claim))
                    since_ms = max(stat.modified_ms, stamp_of(name))
                    self._retained.keep(claim, stat.size, since_ms)
                    continue
                orphans.append(f"{self._folder}/{section}/{name}")
                if not keep_orphans:
                    _delete(self._fs, self._folder, claim)
        self.references.recover(claimants)
        self._orphans_deleted += 0 if keep_orphans else len(orphans)
        return orphans

    def close(self) -> None:
        """Make everything durable and close the files. Calling it twice is allowed.

        Raises:
            Unavailable: The last claims could not be made durable; the files are closed.
        """
        if self._written.refuse():
            return
        with ExitStack() as steps:  # each step runs even if another one raises; the last one first
            steps.callback(self._lock.release)
            steps.callback(self._files.close)
            steps.callback(self._written.close)
            self.sync()

    def statistics(self) -> ContentStatistics:
        """Return the current counts."""
        resources, references = self.references.totals()
        return ContentStatistics(
            resources=resources,
            references=references,
            claims_written=self._written.claims_written,
            bytes_written=self._written.bytes_written,
            bytes_wasted=self._written.bytes_wasted,
            files_created=self._written.files_created,
            files_deleted=self._files_deleted,
            orphans_deleted=self._orphans_deleted,
            retained=len(self._retained),
            retained_bytes=self._retained.size_bytes,
        )


def _not_kept(claim: ContentClaim) -> NotFound:
    return NotFound(f"content {claim.resource.id} is no longer kept: its file was deleted")


def _delete(fs: FileSystem, folder: str, claim: ResourceClaim) -> None:
    try:
        fs.unlink(resource_path(folder, claim))
    except NotFound:
        return
    except PenstockError as error:
        _logger.warning("content %s is kept until the next start: %s", claim.id, error)


def _files_in(fs: FileSystem, folder: str) -> list[tuple[str, str]]:
    """Return (section, name) of all files of content."""
    return [
        (section, name)
        for section in fs.listdir(folder)
        if fs.stat(f"{folder}/{section}").is_folder
        for name in fs.listdir(f"{folder}/{section}")
    ]
