"""Values of the FlowFile repository: the changes of a commit, and the result of recovery.

Owns these values. Does not own their processing (`repository`).

Invariant: `Changes` contains the previous and the new version of each FlowFile, so that the
repository can count the references to content by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.swap_store import RestoredSwapFile
    from penstock.storage.content.claims import ContentClaim


@dataclass(frozen=True, slots=True)
class Changes:
    """One commit. It is applied completely or not at all.

    Attributes:
        puts: New and known FlowFiles, by the id of the queue in which they are from now on.
        replaced: Known FlowFiles of `puts`, as last committed.
        removes: Removed FlowFiles, as last committed.
        missing: FlowFiles removed because their content is missing.
        written: Claims that a `ContentWriter` finished for this commit, the first that puts a
            FlowFile with them. Until the commit, the writer holds a reference to each claim. The
            commit releases it, so that a claim to which no FlowFile of `puts` refers is deleted.
        states: New state of processors by key; None deletes it.
    """

    puts: Mapping[str, Sequence[FlowFile]] = field(default_factory=dict)
    replaced: Sequence[FlowFile] = ()
    removes: Sequence[FlowFile] = ()
    missing: Sequence[FlowFile] = ()
    written: Sequence[ContentClaim] = ()
    states: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def creates(self) -> bool:
        """Return whether some of `puts` are new."""
        return sum(map(len, self.puts.values())) > len(self.replaced)


@dataclass(slots=True)
class RecoveredQueue:
    """Content of a queue at start.

    Attributes:
        flowfiles: FlowFiles whose home is the journal, in no order.
        swap_files: Swap files, in the order in which they were written.
    """

    flowfiles: list[FlowFile] = field(default_factory=list)
    swap_files: list[RestoredSwapFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """Event of recovery that an operator needs to know.

    Attributes:
        kind: `commits-cut`, `journal-torn`, `journal-damaged`, `swap-file-missing`,
            `swap-file-unknown` or `content-orphaned`.
        message: Problem, its place, and how it was handled.
        count: Number of commits, bytes, FlowFiles or files.
    """

    kind: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of recovery.

    Attributes:
        queues: Content of each queue, by its id. Queues that the flow does not have (any more) are
            included: their FlowFiles and content stay until the queue exists again or they are
            removed.
        events: Problems that recovery found.
    """

    queues: Mapping[str, RecoveredQueue]
    events: Sequence[RecoveryEvent]
