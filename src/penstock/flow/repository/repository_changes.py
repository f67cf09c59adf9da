"""Values of the FlowFile repository: the changes of a commit, and the result of recovery.

Owns these values, and how each changes the number of references to content. Does not own their
effect on the state (`repository_state`).

Invariant: `Changes` contains the previous and the new version of each FlowFile, so that the
repository can count the references to content by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.swap_store import RestoredSwapFile
    from penstock.flow.repository.commit_note import CommitNote
    from penstock.flow.swap.swap_file import SwapSummary
    from penstock.storage.content.claims import ContentClaim, ResourceClaim


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
        notes: Notes for the record of provenance; empty if it is not recorded.
    """

    puts: Mapping[str, Sequence[FlowFile]] = field(default_factory=dict)
    replaced: Sequence[FlowFile] = ()
    removes: Sequence[FlowFile] = ()
    missing: Sequence[FlowFile] = ()
    written: Sequence[ContentClaim] = ()
    states: Mapping[str, bytes | None] = field(default_factory=dict)
    notes: Sequence[CommitNote] = ()

    @property
    def creates(self) -> bool:
        """Return whether some of `puts` are new."""
        return sum(map(len, self.puts.values())) > len(self.replaced)

    def claim_references(self) -> Mapping[ResourceClaim, int]:
        """Return the change of the reference counts by resource claim."""
        counts = Counter([one for put in self.puts.values() for one in _resources_of(put)])
        before = [*self.replaced, *self.removes, *self.missing]
        # The writer of a written claim counted as one reference until now.
        gone = [*_resources_of(before), *[claim.resource for claim in self.written]]
        if gone:
            # Counted first, because `subtract` takes an interpreter step for each item.
            counts.subtract(Counter(gone))
        return counts


def _resources_of(flowfiles: Iterable[FlowFile]) -> list[ResourceClaim]:
    return [claim.resource for one in flowfiles if (claim := one.claim) is not None]


@dataclass(frozen=True, slots=True)
class SwapOut:
    """One commit: FlowFiles move to a swap file, which is their home from then on.

    Attributes:
        name: Name of the file.
        summary: Its summary.
        flowfiles: FlowFiles of its rows, in order.
    """

    name: str
    summary: SwapSummary
    flowfiles: Sequence[FlowFile]

    def claim_references(self) -> Mapping[ResourceClaim, int]:
        """Return the change of the reference counts by resource claim: none."""
        return {}


@dataclass(frozen=True, slots=True)
class RowsRemoved:
    """One commit: rows of a swap file that were never loaded are removed.

    Without their claims, the content stays until no row of the file is live.

    Attributes:
        name: Name of the file.
        rows: Row numbers; None: all rows whose FlowFile is not in memory.
        claims: Number of these rows that refer to each resource claim, as far as known.
        damaged: The rows could not be read.
        notes: Notes for the record of provenance; empty if it is not recorded.
    """

    name: str
    rows: Sequence[int] | None
    claims: Mapping[ResourceClaim, int] = field(default_factory=dict)
    damaged: bool = False
    notes: Sequence[CommitNote] = ()

    def claim_references(self) -> Mapping[ResourceClaim, int]:
        """Return the change of the reference counts by resource claim."""
        return {resource: -count for resource, count in self.claims.items()}


RepositoryChange = Changes | SwapOut | RowsRemoved
"""The change of one commit."""


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
class RecoveryResult:
    """Result of recovery.

    Attributes:
        queues: Content of each queue, by its id. Queues that the flow does not have (any more) are
            included: their FlowFiles and content stay until the queue exists again or they are
            removed.
        events: Problems that recovery found.
    """

    queues: Mapping[str, RecoveredQueue]
    events: Sequence[RecoveryEvent]
