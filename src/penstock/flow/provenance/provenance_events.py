"""Provenance events: the changes of a commit to each FlowFile.

Owns the kinds of events, their fields, and how they are derived from the record of a commit. The
kinds are NiFi's. Pure: no files.

Invariants:

- A commit has one event for each FlowFile that it puts into a queue or removes, and one more for
  each that was received from a topic or sent to one, or whose content was downloaded. A FlowFile
  that goes back unchanged has none.
- The number and the order of the events of a commit depend on its record alone, so that an event
  has the same id whenever it is derived.
- Without the earlier version of a FlowFile, a change of attributes is reported as ROUTE.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penstock.flow.flowfile import FILENAME, UUID, FlowFile
from penstock.flow.repository.commit_note import CommitNote, EndReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.flow.repository.commit_note import TopicTransfer
    from penstock.flow.repository.commit_records import CommitRecord
    from penstock.storage.content.claims import ContentClaim

RELATIVES_MAX: Final = 100
"""Most parents or children that one event lists; it has the number of all of them."""
EVENT_BITS: Final = 24
"""An event's number is that of its commit, then this many bits for its place in the commit."""


class EventKind(StrEnum):
    """Kinds of events; those of NiFi with the same name have the same meaning."""

    CREATE = "CREATE"
    RECEIVE = "RECEIVE"
    FORK = "FORK"
    JOIN = "JOIN"
    CLONE = "CLONE"
    ROUTE = "ROUTE"
    ATTRIBUTES_MODIFIED = "ATTRIBUTES_MODIFIED"
    CONTENT_MODIFIED = "CONTENT_MODIFIED"
    SEND = "SEND"
    DROP = "DROP"
    EXPIRE = "EXPIRE"
    DOWNLOAD = "DOWNLOAD"
    REPLAY = "REPLAY"


class ProvenanceEvent(msgspec.Struct, omit_defaults=True):
    """One event; empty fields are left out of its JSON.

    Attributes:
        id: Number of the commit and place of the event in it, such as `12-0`.
        time: Epoch milliseconds.
        event: The kind.
        component: Id of the processor.
        relationship: Relationship to which the FlowFile was transferred.
        queue: Id of the connection into which the FlowFile was put.
        flowfile: Its id; None: of a summary, see `count`.
        uuid: Its attribute `uuid`.
        filename: Its attribute `filename`.
        parents: Ids of the FlowFiles from which it was created, up to `RELATIVES_MAX`.
        children: Ids of the FlowFiles that were created from it, up to `RELATIVES_MAX`.
        parent_count: Number of all parents.
        child_count: Number of all children.
        lineage_start: Entry of its oldest ancestor, epoch milliseconds.
        size: Length of its content, in bytes.
        container: Store of its content.
        section: Folder of its content.
        resource: File of its content.
        claim_offset: Start of the claim in the file, in bytes.
        claim_length: Length of the claim, in bytes.
        content_offset: Start of its content in the claim, in bytes.
        topic: Topic of a RECEIVE or a SEND.
        partition: Stream partition; None: unknown.
        offset: Offset of the first message; None: unknown.
        count: Number of messages; of a DROP without `flowfile`: of FlowFiles.
        reason: Why it left the flow.
        replay: Key of the replay.
        principal: Id of the principal of a replay or a download.
        revision: Revision of the flow whose processor made the event; None: no processor did.
    """

    id: str
    time: int
    event: str
    component: str = ""
    relationship: str = ""
    queue: str = ""
    flowfile: int | None = None
    uuid: str = ""
    filename: str = ""
    parents: list[int] = []
    children: list[int] = []
    parent_count: int = 0
    child_count: int = 0
    lineage_start: int | None = None
    size: int | None = None
    container: str = ""
    section: str = ""
    resource: str = ""
    claim_offset: int | None = None
    claim_length: int | None = None
    content_offset: int | None = None
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    count: int | None = None
    reason: str = ""
    replay: str = ""
    principal: str = ""
    revision: int | None = None


def events_of(
    record: CommitRecord,
    before: Mapping[int, FlowFile],
    only: Collection[int] | None = None,
) -> list[ProvenanceEvent]:
    """Return the events of a commit.

    Args:
        record: Its record.
        before: Earlier versions of its FlowFiles, as far as known.
        only: Ids of FlowFiles; None: the events of all.
    """
    return list(_Derivation(record, before, only).events()) if record.notes else []


class _Derivation:
    """The events of one commit."""

    def __init__(
        self,
        record: CommitRecord,
        before: Mapping[int, FlowFile],
        only: Collection[int] | None,
    ) -> None:
        self._record = record
        self._before = before
        self._only = only
        self._index = -1
        self._puts = {one.id: one for put in record.puts.values() for one in put}
        self._written = set(record.written)
        self._notes: dict[int, CommitNote] = {}  # of each FlowFile
        self._routes: dict[int, str] = {}
        self._created: set[int] = set()
        self._parents: dict[int, list[int]] = {}
        self._children: dict[int, list[int]] = {}
        self._copies: set[int] = set()
        self._transfers: list[tuple[TopicTransfer, CommitNote]] = []
        for note in record.notes:
            self._take(note)
        self._received = {
            one for transfer, _ in self._transfers if not transfer.is_send for one in transfer.ids
        }

    def _take(self, note: CommitNote) -> None:
        for name, ids in note.routes:
            routed = ids or self._puts
            self._routes.update(dict.fromkeys(routed, name))
            self._notes.update(dict.fromkeys(routed, note))
        for _, ids in note.ended:
            self._notes.update(dict.fromkeys(ids or self._record.removes, note))
        self._created.update(self._puts if note.creates_all else note.created)
        for parent, child in note.links:
            self._parents.setdefault(child, []).append(parent)
            self._children.setdefault(parent, []).append(child)
        for first, originals in note.copies:
            for child, parent in enumerate(originals, first):
                self._parents[child] = [parent]
                self._children.setdefault(parent, []).append(child)
                self._routes[child] = self._routes.get(parent, "")
                self._copies.add(child)
                self._notes[child] = note
        self._transfers += [(transfer, note) for transfer in note.transfers]

    def events(self) -> Iterator[ProvenanceEvent]:
        """Yield the events in order."""
        record, notes = self._record, self._record.notes
        # A FlowFile is received before it is in a queue, and sent before it leaves.
        for transfer, note in self._transfers:
            yield from self._transferred(transfer, note)
        for queue, put in record.puts.items():
            for flowfile in put:
                number = flowfile.id
                is_new = number in self._created or number in self._copies
                if number in self._received and is_new:
                    continue  # its RECEIVE has the queue
                route = self._routes.get(number, "")
                if not route and not is_new and not self._is_changed(flowfile):
                    continue
                event = self._begin(self._kind_of(flowfile, is_new=is_new), number)
                if event is not None:
                    self._place(event, flowfile, queue, route)
                    yield event
        removed = set(record.removes)
        for note in notes:
            for reason, ids in note.ended:
                for number in ids or record.removes:
                    if number in removed and (event := self._removed(number, reason)) is not None:
                        yield event
            for number in note.downloads:
                event = self._begin(EventKind.DOWNLOAD, number, note)
                if event is not None:
                    known = self._before.get(number)
                    if known is not None:
                        _describe(event, known)
                    yield event
            for rows in note.rows:
                event = self._begin(EventKind.DROP, None, note)
                if event is not None:
                    event.queue, event.reason = rows.queue, rows.reason
                    event.count = sum(len(one.rows) for one in record.rows)
                    yield event

    def _is_changed(self, flowfile: FlowFile) -> bool:
        """Return whether the record itself shows that a FlowFile has new content."""
        return flowfile.claim is not None and flowfile.claim in self._written

    def _kind_of(self, flowfile: FlowFile, *, is_new: bool) -> EventKind:
        if is_new:
            parents = self._parents.get(flowfile.id, ())
            note = self._notes.get(flowfile.id)
            if note is not None and note.replay:
                return EventKind.REPLAY
            if not parents:
                return EventKind.CREATE
            if len(parents) > 1:
                return EventKind.JOIN
            is_clone = flowfile.id in self._copies or not self._is_changed(flowfile)
            return EventKind.CLONE if is_clone and flowfile.claim is not None else EventKind.FORK
        if self._is_changed(flowfile):
            return EventKind.CONTENT_MODIFIED
        known = self._before.get(flowfile.id)
        if known is not None and known.attributes != flowfile.attributes:
            return EventKind.ATTRIBUTES_MODIFIED
        return EventKind.ROUTE

    def _begin(
        self, kind: EventKind, number: int | None, note: CommitNote | None = None
    ) -> ProvenanceEvent | None:
        """Return a new event; None: it is counted, but not wanted."""
        self._index += 1
        if self._only is not None and number not in self._only:
            return None
        if note is None and number is not None:
            note = self._notes.get(number)
        note = note or self._record.notes[0]
        event = ProvenanceEvent(
            f"{self._record.number}-{self._index}",
            note.time_ms,
            kind.value,
            note.component,
            flowfile=number,
            replay=note.replay,
            principal=note.principal,
            revision=note.revision or None,
        )
        if number is not None:
            parents, children = self._parents.get(number), self._children.get(number)
            if parents:
                event.parents, event.parent_count = parents[:RELATIVES_MAX], len(parents)
            if children:
                event.children, event.child_count = children[:RELATIVES_MAX], len(children)
        return event

    def _place(self, event: ProvenanceEvent, flowfile: FlowFile, queue: str, route: str) -> None:
        event.queue, event.relationship = queue, route
        _describe(event, flowfile)

    def _removed(self, number: int, reason: str) -> ProvenanceEvent | None:
        kind = EventKind.EXPIRE if reason == EndReason.EXPIRED else EventKind.DROP
        event = self._begin(kind, number)
        if event is None:
            return None
        text, _, relationship = reason.partition(":")
        event.reason, event.relationship = text, relationship
        known = self._before.get(number)
        if known is not None:
            _describe(event, known)
        return event

    def _transferred(self, transfer: TopicTransfer, note: CommitNote) -> Iterator[ProvenanceEvent]:
        offset = transfer.offset
        kind = EventKind.SEND if transfer.is_send else EventKind.RECEIVE
        queues = {one.id: queue for queue, put in self._record.puts.items() for one in put}
        for place, number in enumerate(transfer.ids):
            count = transfer.counts[place] if transfer.counts else 1
            event = self._begin(kind, number, note)
            if event is not None:
                event.topic, event.count = transfer.topic, count
                if offset >= 0:
                    event.partition, event.offset = transfer.partition, offset
                flowfile = self._puts.get(number) or self._before.get(number)
                if flowfile is not None:
                    _describe(event, flowfile)
                if number in self._created:
                    event.queue = queues.get(number, "")
                    event.relationship = self._routes.get(number, "")
                yield event
            if offset >= 0:
                offset += count


def _describe(event: ProvenanceEvent, flowfile: FlowFile) -> None:
    attributes = flowfile.attributes
    event.uuid, event.filename = attributes.get(UUID, ""), attributes.get(FILENAME, "")
    event.lineage_start, event.size = flowfile.lineage_start_ms, flowfile.size
    claim: ContentClaim | None = flowfile.claim
    if claim is not None:
        resource = claim.resource
        event.container, event.section = resource.container, resource.section
        event.resource = resource.id
        event.claim_offset, event.claim_length = claim.offset, claim.length
        event.content_offset = flowfile.content_offset


ColumnType = Literal["string", "long", "array"]
EVENT_COLUMNS: Final[Mapping[str, ColumnType]] = {
    **dict.fromkeys(("id", "event", "component", "relationship", "queue"), "string"),
    "flowfile": "long",
    **dict.fromkeys(("uuid", "filename"), "string"),
    **dict.fromkeys(("parents", "children"), "array"),
    **dict.fromkeys(("parent_count", "child_count", "lineage_start", "size"), "long"),
    **dict.fromkeys(("container", "section", "resource"), "string"),
    **dict.fromkeys(("claim_offset", "claim_length", "content_offset"), "long"),
    "topic": "string",
    **dict.fromkeys(("partition", "offset", "count"), "long"),
    **dict.fromkeys(("reason", "replay", "principal"), "string"),
    "revision": "long",
}
"""Columns of the datasource besides its time, with their types."""
