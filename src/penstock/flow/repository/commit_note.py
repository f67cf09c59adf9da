"""Note of a commit: facts that its FlowFiles and queues do not show, for provenance.

Owns the layout of notes (msgpack, fields by position; new ones come last). A note is a part of the
record of its commit in the journal, so it is durable exactly if the commit is. Does not own how
events are derived from it (`flow.provenance`).

Invariant: a note costs a commit a few operations on whole lists, regardless of the number of its
FlowFiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.flowfile import FlowFile


T = TypeVar("T")


class EndReason(StrEnum):
    """Why FlowFiles left the flow."""

    TERMINATED = "terminated"
    """Their relationship is auto-terminated; the note has its name after a colon."""
    REMOVED = "removed"
    """Their processor removed them."""
    EXPIRED = "expired"
    """They were older than their connection allows."""
    DROPPED = "dropped"
    """An operator dropped them from a queue."""
    SWEPT = "dropped or expired"
    """The same, or they expired, while they were in a swap file."""
    MISSING = "content missing"
    """Their content could not be found."""
    DAMAGED = "swap file damaged"
    """Their rows of a swap file could not be read."""


class TopicTransfer(msgspec.Struct, frozen=True, array_like=True):
    """FlowFiles that were received from a topic or sent to one.

    Attributes:
        is_send: Whether they were sent.
        topic: The topic.
        partition: Its stream partition; -1: unknown.
        offset: Offset of the first message; -1: unknown. The others follow it without a gap.
        ids: The FlowFiles, in the order of their messages.
        counts: Number of messages of each FlowFile; empty: one each.
    """

    is_send: bool
    topic: str
    partition: int
    offset: int
    ids: list[int]
    counts: list[int] = []


class RemovedRows(msgspec.Struct, frozen=True, array_like=True):
    """FlowFiles that left the flow without being loaded from their swap file.

    Attributes:
        queue: Id of their connection.
        reason: Why.
    """

    queue: str
    reason: str


class CommitNote(msgspec.Struct, array_like=True):
    """Note of one commit. It is filled while the commit is prepared, and not changed later.

    Attributes:
        component: Id of the processor; empty: no processor.
        time_ms: Time of the commit, epoch milliseconds.
        routes: Relationships with the ids of FlowFiles that were transferred to them. An empty
            list: all FlowFiles that the commit puts into queues.
        created: Ids of new FlowFiles.
        links: Pairs of a FlowFile and one that was created from it.
        copies: First id of copies for several connections, and the ids of their originals.
        ended: Reasons, see `EndReason`, with the ids of FlowFiles that left the flow. An empty
            list: all that the commit removes.
        transfers: Messages of topics.
        rows: Removed rows of a swap file.
        replay: Key of a replay; empty: none.
        creates_all: Whether all FlowFiles that the commit puts into queues are new.
        downloads: Ids of FlowFiles whose content a principal got.
        principal: Id of the principal of a replay or a download.
        revision: Revision of the flow whose processor made the commit; 0: no processor did.
    """

    component: str = ""
    time_ms: int = 0
    routes: Sequence[tuple[str, list[int]]] = ()
    created: Sequence[int] = ()
    links: Sequence[tuple[int, int]] = ()
    copies: Sequence[tuple[int, list[int]]] = ()
    ended: Sequence[tuple[str, list[int]]] = ()
    transfers: Sequence[TopicTransfer] = ()
    rows: Sequence[RemovedRows] = ()
    replay: str = ""
    creates_all: bool = False
    downloads: Sequence[int] = ()
    principal: str = ""
    revision: int = 0

    def add_route(self, relationship: str, ids: list[int]) -> None:
        """Add transferred FlowFiles. The list must not change later."""
        self.routes = extended(self.routes, ((relationship, ids),))

    def add_ended(self, reason: str, ids: list[int]) -> None:
        """Add FlowFiles that left the flow. The list must not change later."""
        if ids:
            self.ended = extended(self.ended, ((reason, ids),))

    def compact(self, puts: int, removes: int) -> None:
        """Leave out ids that the commit itself has; the note is complete then.

        Args:
            puts: Number of FlowFiles that the commit puts into queues.
            removes: Number of FlowFiles that it removes.
        """
        if len(self.created) == puts:
            self.created, self.creates_all = (), puts > 0
        if not self.copies:
            self.routes = _compacted(self.routes, puts)
        self.ended = _compacted(self.ended, removes)


def extended(known: Sequence[T], more: Iterable[T]) -> Sequence[T]:
    """Return a list with more entries: the known one if it is a list, to which they are added."""
    if isinstance(known, list):
        known.extend(more)
        return known
    return [*known, *more]


def _compacted(
    lists: Sequence[tuple[str, list[int]]], count: int
) -> Sequence[tuple[str, list[int]]]:
    if len(lists) == 1 and len(lists[0][1]) == count:
        return ((lists[0][0], []),)
    return lists


def expired_note(flowfiles: Sequence[FlowFile], clock: Clock) -> CommitNote:
    """Return the note of a commit that removes expired FlowFiles."""
    note = CommitNote(time_ms=clock.now_ms())
    note.add_ended(EndReason.EXPIRED, [one.id for one in flowfiles])
    return note
