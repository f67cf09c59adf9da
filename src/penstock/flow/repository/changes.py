"""What a commit changes, and what a start finds: the values between the repository and others.

Owns these values. Does not own what is done with them (`repository`).

Invariant: a `Changes` says of each FlowFile what it was before and what it is now, so that the
repository counts the references to content without being asked to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.home import RestoredSwapFile
    from penstock.storage.content.claims import ContentClaim


@dataclass(frozen=True, slots=True)
class Changes:
    """One commit. It happens whole or not at all.

    Attributes:
        puts: FlowFiles by the id of the queue in which they are from now on, new and known ones.
        replaced: Those of `puts` that the repository knows, as they were last committed.
        removes: FlowFiles that are gone, as they were last committed.
        missing: FlowFiles that are gone because their content could not be found.
        written: What a `ContentWriter` finished for this commit, which is the first that puts a
            FlowFile with it. Its writer holds each claim; the commit ends that, so that a claim
            which no FlowFile of `puts` refers to goes.
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
        """Say whether some of `puts` are new."""
        return sum(map(len, self.puts.values())) > len(self.replaced)


@dataclass(slots=True)
class RecoveredQueue:
    """What is in a queue at start.

    Attributes:
        flowfiles: Those whose home is the journal, in no order.
        swap_files: In the order in which they were written.
    """

    flowfiles: list[FlowFile] = field(default_factory=list)
    swap_files: list[RestoredSwapFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """Something that whoever looks after the flow has to know.

    Attributes:
        kind: `commits-cut`, `journal-torn`, `journal-damaged`, `swap-file-missing`,
            `swap-file-unknown` or `content-orphaned`.
        message: What was found, where, and what was done about it.
        count: How many commits, bytes, FlowFiles or files.
    """

    kind: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found.

    Attributes:
        queues: What is in each queue, by its id; also of queues that the flow does not have (any
            more): their FlowFiles and content stay until the queue is there again or they are
            removed.
        events: What went wrong, if anything did.
    """

    queues: Mapping[str, RecoveredQueue]
    events: Sequence[RecoveryEvent]
