"""Content: bytes in append-only files that many share, and that go with their last reference.

Owns: which files there are, who writes which, how many refer to each, and when one is deleted. Does
not own: who refers (`flow.repository` counts), nor what the bytes mean.

Invariants:

- A file is written by one writer at a time and never again after a restart.
- A file is deleted when it is not written any more, nobody refers to it, and whoever journals the
  references says that this is durable (`released`, `delete_released`).
- What is finished survives the process; a power loss when `sync` has returned.
- A full disk leaves nothing half: what was written of a claim is cut off again. Nothing is written
  once the disk is nearly full, so that there is room for the commits that let content go.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import google_crc32c

from penstock.core.errors import Closed, Conflict, NotFound, PenstockError
from penstock.core.headroom import Headroom
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.content.options import ContentOptions, ContentStatistics
from penstock.storage.content.reading import (
    ContentReader,
    ReadFiles,
    check_claim,
    check_part,
    read_claim,
)
from penstock.storage.content.resources import (
    CONTAINER,
    Resource,
    resource_name,
    resource_path,
    stamp_of,
)
from penstock.storage.content.writing import ContentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem, FolderLock

__all__ = ["ContentOptions", "ContentRepository", "ContentStatistics", "ContentWriter"]

_logger = logging.getLogger(__name__)


class ContentRepository:
    """The content of one folder. Used from many threads. Made by `open`.

    Its mutex guards the tables of files and counts for a few lines at a time: every session of
    every processor counts, and a mail each would cost more than the count. No disk is touched under
    it. A second one lets one pass of fsyncs or deletions run at a time.

    Attributes:
        on_release: Called after `release`, so that whoever deletes looks at what is released, also
            if nothing is committed.
        headroom: Guards the space that is kept free; asked before each write.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem,
        options: ContentOptions,
        stamp_ms: int,
        lock: FolderLock,
        headroom: Headroom,
    ) -> None:
        self.on_release: Callable[[], None] | None = None
        self.headroom = headroom
        self._folder = folder
        self._fs = fs
        self._options = options
        self._stamp_ms = stamp_ms
        self._lock = lock
        self._files = ReadFiles(fs, folder, options.open_files)
        self._mutex = threading.Lock()
        self._disk_mutex = threading.Lock()
        self._closed = False
        self._next_number = 0
        self._sections: set[str] = set()
        self._free: list[Resource] = []
        self._written: set[ResourceClaim] = set()  # those that take claims still
        self._dirty: dict[ResourceClaim, Resource] = {}
        self._syncing: dict[ResourceClaim, Resource] = {}  # `sync` closes these, if they are sealed
        self._new_names: set[str] = set()  # sections whose names are not durable
        self._counts: dict[ResourceClaim, int] = {}
        self._released: set[ResourceClaim] = set()
        self._sealing = False
        self._claims_written = self._bytes_written = self._bytes_wasted = 0
        self._files_deleted = self._orphans_deleted = 0

    @classmethod
    def open(
        cls, folder: str, *, fs: FileSystem, clock: Clock, options: ContentOptions | None = None
    ) -> Self:
        """Open a folder of content, or begin one. The FlowFile repository calls `recover` then.

        Raises:
            Conflict: Somebody else has it open.
            Unavailable: I/O error.
        """
        fs.mkdir(folder)
        lock = fs.lock_folder(folder)
        try:
            # Names are never used again, also when the machine's clock went back.
            stamps = [stamp_of(name) for _, name in _files_in(fs, folder)]
        except PenstockError:
            lock.release()
            raise
        stamp_ms = max([clock.now_ms(), *(stamp + 1 for stamp in stamps)])
        options = options or ContentOptions()
        headroom = Headroom(
            folder,
            lambda: fs.free_bytes(folder),
            options.min_free_bytes,
            clock,
            "let the flow work off what it has, or free space there",
        )
        return cls(folder, fs, options, stamp_ms, lock, headroom)

    # -- writing and reading

    def write(self) -> ContentWriter:
        """Begin a claim."""
        return ContentWriter(self, self._options.buffer_bytes, self.headroom)

    def put(self, data: Buffer) -> ContentClaim | None:
        """Write a small claim in one go; see `ContentWriter.finish`.

        Raises:
            Unavailable: Disk full or I/O error; nothing was written.
        """
        content = bytes(data)
        if not content:
            return None
        self.headroom.require(len(content))
        resource = self.take()
        try:
            resource.write(content)
        except PenstockError:
            self.abort(resource)
            raise
        return self.finish(resource, google_crc32c.value(content))

    def open_read(
        self, claim: ContentClaim, offset: int = 0, length: int | None = None
    ) -> ContentReader:
        """Return a seekable reader of part of a claim, which never reads past its end.

        Raises:
            NotFound: The file is gone.
            InvalidRequest: The part is not in the claim.
        """
        wanted = check_part(claim, offset, length)
        return ContentReader(self._files, self._folder, claim, offset, wanted)

    def read(self, claim: ContentClaim, offset: int = 0, length: int | None = None) -> bytes:
        """Return part of a claim.

        Raises:
            NotFound: The file is gone.
            CorruptData: It is shorter than the claim, or the checksum of the whole does not match.
            InvalidRequest: The part is not in the claim.
        """
        wanted = check_part(claim, offset, length)
        return read_claim(self._files, self._folder, claim, offset, wanted)

    def check(self, claim: ContentClaim) -> bool:
        """Say whether the bytes of a claim are there and match its checksum.

        Raises:
            Unavailable: That cannot be found out now.
        """
        return check_claim(self._files, claim)

    # -- references

    def hold(self, resource: ResourceClaim, count: int = 1) -> None:
        """Count that so many more refer to a resource."""
        self.adjust({resource: count})

    def release(self, resource: ResourceClaim, count: int = 1) -> None:
        """Count that so many fewer refer to it, without a commit; the listener is told."""
        self.adjust({resource: -count})
        if self.on_release is not None:
            self.on_release()

    def adjust(self, changes: Mapping[ResourceClaim, int]) -> None:
        """Count many at once: how many more (or fewer) refer to each resource."""
        with self._mutex:
            for resource, change in changes.items():
                if change:
                    self._count(resource, change)

    def released(self) -> Sequence[ResourceClaim]:
        """Return what nobody refers to now; ask before the journal's fsync begins."""
        with self._mutex:
            return tuple(self._released)

    def delete_released(self, resources: Iterable[ResourceClaim]) -> None:
        """Delete what `released` gave, as far as nobody refers to it by now.

        A file that cannot be deleted is an orphan of the next start.
        """
        with self._disk_mutex:
            with self._mutex:
                going = [one for one in resources if one in self._released]
                self._released.difference_update(going)
                dirty = [self._dirty.pop(one, None) for one in going]
            for resource in dirty:
                if resource is not None:
                    resource.close()
            for claim in going:
                self._files.forget(claim)
                self._delete(claim)
            self._files_deleted += len(going)

    def seal(self) -> None:
        """Let go of the files that wait for further claims, before the end.

        Those that nobody refers to are among `released` then.
        """
        with self._mutex:
            self._sealing = True
            free, self._free = self._free, []
            for resource in free:
                self._give_back(resource)

    # -- durability

    def sync(self) -> None:
        """Make durable what was finished.

        Raises:
            Unavailable: It failed; call again later.
        """
        with self._disk_mutex:
            with self._mutex:
                dirty, self._dirty = self._dirty, {}
                names, self._new_names = self._new_names, set()
                self._syncing = dirty
            try:
                for resource in dirty.values():
                    resource.sync()
                for section in names:
                    self._fs.fsync_folder(f"{self._folder}/{section}")
            except PenstockError:
                with self._mutex:
                    self._dirty = dirty | self._dirty
                    self._syncing = {}
                    self._new_names |= names
                raise
            with self._mutex:
                self._syncing = {}
                done = [
                    resource
                    for claim, resource in dirty.items()
                    if resource.sealed and claim not in self._dirty
                ]
            for resource in done:
                resource.close()

    def make_durable(self, resources: Iterable[ResourceClaim]) -> None:
        """Make files durable that are there since before the start.

        Raises:
            NotFound: One is gone.
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
        """Take over the references at start, and delete what nobody refers to.

        Before anything is written, and when what the references come from is durable.

        Args:
            claimants: How many refer to each resource.
            keep_orphans: Delete nothing.

        Returns:
            The paths of what nobody refers to.

        Raises:
            Unavailable: The folder cannot be read.
        """
        orphans = []
        for section, name in _files_in(self._fs, self._folder):
            claim = ResourceClaim(name, CONTAINER, section)
            if not claimants.get(claim):
                orphans.append(f"{self._folder}/{section}/{name}")
                if not keep_orphans:
                    self._delete(claim)
        with self._mutex:
            self._counts = {one: count for one, count in claimants.items() if count > 0}
            self._orphans_deleted += 0 if keep_orphans else len(orphans)
        return orphans

    def close(self) -> None:
        """Make all durable and let go of the files. Twice is fine.

        Raises:
            Unavailable: What was finished last could not be made durable; the files are let go of.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        try:
            self.sync()
        finally:
            with self._mutex:
                free, self._free = self._free, []
                dirty, self._dirty = self._dirty, {}
            for resource in [*free, *dirty.values()]:
                resource.close()
            self._files.close()
            self._lock.release()

    def statistics(self) -> ContentStatistics:
        """Return counts as of now."""
        with self._mutex:
            return ContentStatistics(
                resources=len(self._counts),
                references=sum(self._counts.values()),
                claims_written=self._claims_written,
                bytes_written=self._bytes_written,
                bytes_wasted=self._bytes_wasted,
                files_created=self._next_number,
                files_deleted=self._files_deleted,
                orphans_deleted=self._orphans_deleted,
            )

    # -- files that are written: for `ContentWriter`

    def take(self) -> Resource:
        """Return a file that nobody else writes; `finish` or `abort` gives it back.

        Raises:
            Unavailable: None can be made.
            Closed: The repository is closed.
        """
        with self._mutex:
            if self._closed:
                raise Closed(f"{self._folder}: is closed: open the content repository again")
            if self._free:
                return self._free.pop()
        while True:
            with suppress(Conflict):  # somebody put a file there
                return self._create()

    def finish(self, resource: Resource, checksum: int) -> ContentClaim:
        """End the claim that is written, counted once, and give the file back."""
        claim = resource.finish(checksum)
        with self._mutex:
            self._claims_written += 1
            self._bytes_written += claim.length
            self._dirty[resource.claim] = resource
            self._count(resource.claim, 1)
            self._give_back(resource)
        return claim

    def abort(self, resource: Resource) -> None:
        """Cut off the claim that is written, and give the file back."""
        wasted = resource.cut()
        with self._mutex:
            self._bytes_wasted += wasted
            self._give_back(resource)

    def _create(self) -> Resource:
        with self._mutex:
            number, self._next_number = self._next_number, self._next_number + 1
        section = str(number % self._options.sections)
        if section not in self._sections:
            self._fs.mkdir(f"{self._folder}/{section}")
            self._sections.add(section)
        claim = ResourceClaim(resource_name(self._stamp_ms, number), CONTAINER, section)
        resource = Resource(self._fs, self._folder, claim)
        with self._mutex:
            self._written.add(claim)
            self._new_names.add(section)
        return resource

    def _give_back(self, resource: Resource) -> None:
        """Take a file from its writer; the mutex is held."""
        full = resource.end >= self._options.resource_bytes
        is_last = resource.sealed or self._sealing or self._closed
        if not (full or is_last or len(self._free) >= self._options.open_files):
            self._free.append(resource)
            return
        resource.sealed = True
        claim = resource.claim
        self._written.discard(claim)
        if claim not in self._counts:
            self._released.add(claim)
        if claim not in self._dirty and claim not in self._syncing:
            resource.close()

    def _count(self, resource: ResourceClaim, change: int) -> None:
        """Count; the mutex is held."""
        count = self._counts.get(resource, 0) + change
        if count > 0:
            self._counts[resource] = count
            self._released.discard(resource)
            return
        self._counts.pop(resource, None)
        if resource not in self._written:
            self._released.add(resource)

    def _delete(self, claim: ResourceClaim) -> None:
        try:
            self._fs.unlink(resource_path(self._folder, claim))
        except NotFound:
            return
        except PenstockError as error:
            _logger.warning("content %s stays until the next start: %s", claim.id, error)


def _files_in(fs: FileSystem, folder: str) -> list[tuple[str, str]]:
    """Return (section, name) of all files of content."""
    return [
        (section, name)
        for section in fs.listdir(folder)
        if fs.stat(f"{folder}/{section}").is_folder
        for name in fs.listdir(f"{folder}/{section}")
    ]
