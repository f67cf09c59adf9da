"""The FlowFile repository: which FlowFile is in which queue, and where it is durable.

Owns the order of commits, their durability, and the references to content. Does not own the queues,
the content (`storage.content`), nor the bytes of swap files (`flow.swap`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from penstock.flow.repository.changes import Changes, Recovered
from penstock.flow.repository.options import RepositoryOptions, RepositoryStatistics

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.queue.home import SwapHome
    from penstock.storage.content.repository import ContentRepository
    from penstock.storage.filesystem import FileSystem


class FlowFileRepository:
    """Where FlowFiles are durable. Used from many threads.

    Attributes:
        swap_home: What queues swap to.
        recovered: What the start found; whoever has read it may clear it.
    """

    swap_home: SwapHome
    recovered: Recovered

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        fs: FileSystem,
        clock: Clock,
        content: ContentRepository,
        options: RepositoryOptions | None = None,
    ) -> Self:
        """Open the repository of a folder, or begin one.

        Raises:
            Conflict: Somebody else has it open.
            CorruptData: What was durable is damaged; the message says the mend.
            Unavailable: I/O error.
        """
        raise NotImplementedError

    def next_ids(self, count: int) -> int:
        """Return the first of so many ids that no FlowFile has or had."""
        raise NotImplementedError

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of so many indexes that order FlowFiles put in the same millisecond."""
        raise NotImplementedError

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Make changes, whole or not at all.

        They survive the process when this returns, and a power loss if `durable`.

        Raises:
            Conflict: A FlowFile that is replaced or removed is not known, or a new one is.
            Unavailable: Full disk or I/O error; nothing was changed. Try again later.
            Closed: The repository is closed.
        """
        raise NotImplementedError

    def state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key (see `Changes.states`)."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make durable what was committed.

        Raises:
            Unavailable: It failed; commits that waited for it were undone.
        """
        raise NotImplementedError

    def compact(self) -> None:
        """Write a snapshot, so that a start need not read the journal.

        Raises:
            Unavailable: It failed; the journal goes on.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Make all durable with a snapshot, and let go of the files. Twice is fine."""
        raise NotImplementedError

    def statistics(self) -> RepositoryStatistics:
        """Return counts as of now."""
        raise NotImplementedError
