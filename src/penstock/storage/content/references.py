"""The number of references to each file of content, the released files, and the retained ones.

Owns: the counts, and which files without references are retained for a time, so that FlowFiles can
be replayed. Does not own: the files, nor their deletion (`content_repository`).

Invariants: a file is released while it has no references and takes no further claims. A file is
retained at most once, in the order of release.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.storage.content.claims import ResourceClaim


class References:
    """Counts of references, for any number of threads.

    Its mutex guards the tables for a few lines at a time: every session of every processor counts,
    and a mail for each count would cost more than the count.
    """

    __slots__ = ("_counts", "_mutex", "_released", "_written")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: dict[ResourceClaim, int] = {}
        self._written: set[ResourceClaim] = set()  # those that still take claims
        self._released: set[ResourceClaim] = set()

    def recover(self, claimants: Mapping[ResourceClaim, int]) -> None:
        """Start with these counts."""
        with self._mutex:
            self._counts = {one: count for one, count in claimants.items() if count > 0}

    def adjust(self, changes: Mapping[ResourceClaim, int]) -> None:
        """Change the number of references to each."""
        with self._mutex:
            for resource, change in changes.items():
                if change:
                    self._count(resource, change)

    def begin(self, resource: ResourceClaim) -> None:
        """Record that a file takes claims: it is not released before `end`."""
        with self._mutex:
            self._written.add(resource)

    def wrote(self, resource: ResourceClaim) -> None:
        """Add a reference to a file that takes claims."""
        with self._mutex:  # such a file is not released, so there is less to do than in `adjust`
            self._counts[resource] = self._counts.get(resource, 0) + 1

    def end(self, resource: ResourceClaim) -> None:
        """Record that a file takes no further claims."""
        with self._mutex:
            self._written.discard(resource)
            if resource not in self._counts:
                self._released.add(resource)

    def released(self) -> tuple[ResourceClaim, ...]:
        """Return the released files."""
        with self._mutex:
            return tuple(self._released)

    def take_released(self, resources: Iterable[ResourceClaim]) -> list[ResourceClaim]:
        """Return those of these files that are released, and remove them from the released ones."""
        with self._mutex:
            going = [one for one in resources if one in self._released]
            self._released.difference_update(going)
            return going

    def put_back(self, resources: Iterable[ResourceClaim]) -> None:
        """Mark files as released again that could not be deleted."""
        with self._mutex:
            self._released.update(resources)

    def totals(self) -> tuple[int, int]:
        """Return the number of files with references, and of references."""
        with self._mutex:
            return len(self._counts), sum(self._counts.values())

    def counts(self) -> dict[ResourceClaim, int]:
        """Return the number of references to each file."""
        with self._mutex:
            return dict(self._counts)

    def _count(self, resource: ResourceClaim, change: int) -> None:
        count = self._counts.get(resource, 0) + change
        if count > 0:
            self._counts[resource] = count
            self._released.discard(resource)
            return
        self._counts.pop(resource, None)
        if resource not in self._written:
            self._released.add(resource)


class _RetainedFile(NamedTuple):
    released_ms: int
    size: int


class RetainedFiles:
    """The kept files. One thread at a time.

    Args:
        retention_ms: How long a file is kept; 0: not at all.
        retention_bytes: Maximum size of all of them.

    Attributes:
        size_bytes: Size of all of them.
    """

    def __init__(self, retention_ms: int, retention_bytes: int) -> None:
        self._retention_ms = retention_ms
        self._retention_bytes = retention_bytes
        self._files: OrderedDict[ResourceClaim, _RetainedFile] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, resource: ResourceClaim) -> bool:
        return resource in self._files

    def keep(self, resource: ResourceClaim, size: int, now_ms: int) -> None:
        """Keep a file that was released now."""
        self.forget(resource)
        self._files[resource] = _RetainedFile(now_ms, size)
        self.size_bytes += size

    def forget(self, resource: ResourceClaim) -> None:
        """Forget a file: it has references again, or is deleted."""
        kept = self._files.pop(resource, None)
        if kept is not None:
            self.size_bytes -= kept.size

    def take_excess(self, now_ms: int, *, is_disk_full: bool = False) -> list[ResourceClaim]:
        """Remove and return the files to delete now."""
        going = []
        while self._files:
            resource, kept = next(iter(self._files.items()))
            is_old = kept.released_ms + self._retention_ms <= now_ms
            if not is_old and self.size_bytes <= self._retention_bytes and not is_disk_full:
                break
            self.forget(resource)
            going.append(resource)
        return going
