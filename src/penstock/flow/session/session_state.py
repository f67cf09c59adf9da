"""State of one session: its FlowFiles, the operations on each, and which ones are allowed.

Owns this state as plain tables by id, so that a batch of FlowFiles is added and routed by a few
operations on whole tables. Does not own queues, content or the journal.

Invariants: no I/O. A FlowFile of the session is open, routed or removed. The tables hold the newest
version of each FlowFile, so that any older version identifies it. A refused call changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from penstock.flow.errors import SessionMisuse
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.repository.commit_note import TopicTransfer
from penstock.flow.session.services import SessionQueue
from penstock.storage.content.claims import ContentClaim

T = TypeVar("T")

TO_SOURCE: Final = ""
"""Route back to the queue that a FlowFile was taken from; no relationship has this name."""


@dataclass(slots=True)
class TakenFlowFiles:
    """FlowFiles that were taken from one queue and are not acknowledged."""

    queue: SessionQueue
    count: int = 0
    size_bytes: int = 0

    def add(self, count: int, size_bytes: int) -> None:
        """Count more FlowFiles, or fewer."""
        self.count += count
        self.size_bytes += size_bytes


@dataclass(slots=True)
class SessionFlowFiles:
    """State of one session.

    Attributes:
        newest: Newest version of every FlowFile of the session.
        originals: Taken FlowFiles, as they were when taken.
        sources: Queues that those were taken from.
        routes: Relationships of transferred FlowFiles, in the order of the calls.
        removed: Removed FlowFiles.
        taken: FlowFiles to acknowledge, by queue.
        links: Pairs of a FlowFile and one that was created from it.
        written: Written claims, with the FlowFile that each was written for.
        missing: Taken FlowFiles whose content is missing.
        transfers: Messages of topics that were received or sent.
    """

    newest: dict[int, FlowFile] = field(default_factory=dict)
    originals: dict[int, FlowFile] = field(default_factory=dict)
    sources: dict[int, SessionQueue] = field(default_factory=dict)
    routes: dict[int, str] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    taken: dict[str, TakenFlowFiles] = field(default_factory=dict)
    links: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, ContentClaim]] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)
    transfers: list[TopicTransfer] = field(default_factory=list)

    def take(self, queue: SessionQueue, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles that were taken from a queue.

        Raises:
            SessionMisuse: The session already has one of them; the others are added, so that all
                are given back. After any other exception none is added.
        """
        entered = {flowfile.id: flowfile for flowfile in flowfiles}
        known = entered.keys() & self.newest.keys()
        size_bytes = sum([flowfile.size for flowfile in flowfiles])
        taken = self.taken.get(queue.id)
        if taken is None:
            taken = self.taken[queue.id] = TakenFlowFiles(queue)
        for number in known:
            del entered[number]
        try:
            self.newest.update(entered)
            self.originals.update(entered)
            self.sources.update(dict.fromkeys(entered, queue))
        except BaseException:
            for table in (self.newest, self.originals, self.sources):
                for number in entered:
                    table.pop(number, None)
            raise
        taken.count += len(flowfiles)
        taken.size_bytes += size_bytes
        if known:
            flowfile = self.newest[min(known)]
            raise SessionMisuse(
                f"{named(flowfile)} was taken from {queue.id} but is already in this session, so "
                "it was in two queues; the FlowFiles of the session are given back"
            )

    def add_many(self, flowfiles: Sequence[FlowFile], parents: Sequence[int] = ()) -> None:
        """Add FlowFiles that were created, each from all of the given parents."""
        self.newest.update([(flowfile.id, flowfile) for flowfile in flowfiles])
        for parent in parents:
            self.links += [(parent, flowfile.id) for flowfile in flowfiles]

    def open_ids(self, flowfiles: Iterable[FlowFile], doing: str) -> list[int]:
        """Return the ids of FlowFiles that are open.

        Raises:
            SessionMisuse: One is not of this session, or was already transferred or removed.
        """
        ids = [flowfile.id for flowfile in flowfiles]
        if not (
            self.newest.keys() >= set(ids)
            and self.routes.keys().isdisjoint(ids)
            and self.removed.isdisjoint(ids)
        ):
            raise self._refusal(flowfiles, doing)
        return ids

    def open(self, flowfile: FlowFile, doing: str) -> FlowFile:
        """Return the newest version of an open FlowFile.

        Raises:
            SessionMisuse: It is not of this session, or was already transferred or removed.
        """
        number = flowfile.id
        newest = self.newest.get(number)
        if newest is None or number in self.routes or number in self.removed:
            raise self._refusal([flowfile], doing)
        return newest

    def change(self, flowfile: FlowFile) -> None:
        """Store a newer version."""
        self.newest[flowfile.id] = flowfile

    def route(self, ids: Sequence[int], route: str) -> None:
        """Record the route of open FlowFiles.

        Raises:
            SessionMisuse: The route is the source queue, but the FlowFile was not taken from one.
        """
        if route == TO_SOURCE and not self.sources.keys() >= set(ids):
            made = next(self.newest[number] for number in ids if number not in self.sources)
            raise SessionMisuse(
                f"{named(made)} was created in this session, so it has no queue to return to: "
                "transfer it to a relationship"
            )
        self.routes.update(dict.fromkeys(ids, route))

    def remove(self, ids: Sequence[int]) -> None:
        """Remove open FlowFiles."""
        self.removed.update(ids)

    def taken_count(self) -> int:
        """Return how many FlowFiles were polled."""
        return sum([taken.count for taken in self.taken.values()])

    def forgotten(self) -> list[FlowFile]:
        """Return FlowFiles that were neither transferred nor removed."""
        if len(self.routes) + len(self.removed) == len(self.newest):
            return []
        left = self.newest.keys() - self.routes.keys() - self.removed
        return [self.newest[number] for number in self.newest if number in left]

    def relatives(self) -> dict[int, int]:
        """Return for each FlowFile that was linked to others the lowest id among its relatives.

        FlowFiles that were created from each other, over any number of steps, are relatives.
        """
        heads: dict[int, int] = {}

        def head(number: int) -> int:
            while (above := heads.setdefault(number, number)) != number:
                heads[number] = heads[above]
                number = heads[number]
            return number

        for parent, child in self.links:
            one, other = head(parent), head(child)
            heads[max(one, other)] = min(one, other)
        return {number: head(number) for number in list(heads)}

    def check_relatives(self, ids: Sequence[int]) -> None:
        """Check that FlowFiles may move to another session.

        Raises:
            SessionMisuse: A FlowFile would be separated from its parent or from one that was
                created from it.
        """
        moving = set(ids)
        for parent, child in self.links:
            if (parent in moving) != (child in moving):
                lost = self.newest[child if parent in moving else parent]
                raise SessionMisuse(
                    f"{named(lost)} is a parent or child of a FlowFile that moves to another "
                    "session: move them together"
                )

    def move(self, ids: Sequence[int], target: SessionFlowFiles) -> None:
        """Move open FlowFiles, with all their relatives, to the state of another session.

        An exception leaves both as they were, so that each can be rolled back.
        """
        moving = set(ids)
        own_taken, their_taken = _copied(self.taken), _copied(target.taken)
        for number in ids:
            original = self.originals.get(number)
            if original is None:
                continue
            queue = self.sources[number]
            own_taken[queue.id].add(-1, -original.size)
            their_taken.setdefault(queue.id, TakenFlowFiles(queue)).add(1, original.size)
        own_newest, their_newest = _divided(self.newest, target.newest, moving)
        own_originals, their_originals = _divided(self.originals, target.originals, moving)
        own_sources, their_sources = _divided(self.sources, target.sources, moving)
        own_missing, their_missing = self.missing - moving, target.missing | self.missing & moving
        own_links = [link for link in self.links if link[0] not in moving]
        their_links = target.links + [link for link in self.links if link[0] in moving]
        own_written = [entry for entry in self.written if entry[0] not in moving]
        their_written = target.written + [one for one in self.written if one[0] in moving]
        # From here on nothing raises.
        self.newest, target.newest = own_newest, their_newest
        self.originals, target.originals = own_originals, their_originals
        self.sources, target.sources = own_sources, their_sources
        self.taken, target.taken = own_taken, their_taken
        self.missing, target.missing = own_missing, their_missing
        self.links, target.links = own_links, their_links
        self.written, target.written = own_written, their_written

    def _refusal(self, flowfiles: Iterable[FlowFile], doing: str) -> SessionMisuse:
        for flowfile in flowfiles:
            number = flowfile.id
            if number not in self.newest:
                return SessionMisuse(
                    f"cannot {doing} {named(flowfile)}: it does not belong to this session; use "
                    "FlowFiles that this session returned, and only until it is committed or "
                    "rolled back"
                )
            if number in self.removed:
                return SessionMisuse(
                    f"cannot {doing} {named(flowfile)}: it was removed before; remove it last"
                )
            if number in self.routes:
                where = self.routes[number] or "the queue that it was taken from"
                return SessionMisuse(
                    f"cannot {doing} {named(flowfile)}: it was already transferred to {where}; "
                    "transfer it last"
                )
        return SessionMisuse(
            f"cannot {doing}: the given FlowFiles changed during the call; pass a list"
        )


def _copied(taken: Mapping[str, TakenFlowFiles]) -> dict[str, TakenFlowFiles]:
    return {
        name: TakenFlowFiles(one.queue, one.count, one.size_bytes) for name, one in taken.items()
    }


def _divided(
    own: Mapping[int, T], theirs: Mapping[int, T], moving: set[int]
) -> tuple[dict[int, T], dict[int, T]]:
    """Return copies of both tables, with the entries of some FlowFiles moved to the second."""
    left = {number: one for number, one in own.items() if number not in moving}
    return left, {**theirs, **{number: own[number] for number in own if number in moving}}


def named(flowfile: FlowFile) -> str:
    """Return the description of a FlowFile for messages."""
    return f"FlowFile {flowfile.id} ({flowfile.attributes.get(UUID, 'no uuid')})"


def with_attributes(flowfile: FlowFile, attributes: Mapping[str, str]) -> FlowFile:
    """Return a version with these attributes."""
    f = flowfile
    # Positional arguments are four times as fast as `msgspec.structs.replace`, and every change
    # calls this function.
    return FlowFile(
        f.id,
        attributes,
        f.size,
        f.claim,
        f.content_offset,
        f.entry_ms,
        f.lineage_start_ms,
        f.lineage_index,
        f.queued_ms,
        f.queue_index,
        f.penalty_until_ms,
    )


def with_content(
    flowfile: FlowFile, claim: ContentClaim | None, size: int, offset: int = 0
) -> FlowFile:
    """Return a version with this content: `size` bytes of a claim, starting at `offset`."""
    f = flowfile
    return FlowFile(
        f.id,
        f.attributes,
        size,
        claim,
        offset,
        f.entry_ms,
        f.lineage_start_ms,
        f.lineage_index,
        f.queued_ms,
        f.queue_index,
        f.penalty_until_ms,
    )


def with_penalty(flowfiles: Iterable[FlowFile], until_ms: int) -> list[FlowFile]:
    """Return versions that cannot be taken before a time."""
    return [
        FlowFile(
            f.id,
            f.attributes,
            f.size,
            f.claim,
            f.content_offset,
            f.entry_ms,
            f.lineage_start_ms,
            f.lineage_index,
            f.queued_ms,
            f.queue_index,
            until_ms,
        )
        for f in flowfiles
    ]


def copies(
    flowfiles: Iterable[FlowFile], first_id: int, new_uuid: Callable[[], str]
) -> list[FlowFile]:
    """Return copies of FlowFiles with consecutive ids and new uuids."""
    return [
        FlowFile(
            number,
            {**f.attributes, UUID: new_uuid()},
            f.size,
            f.claim,
            f.content_offset,
            f.entry_ms,
            f.lineage_start_ms,
            f.lineage_index,
            f.queued_ms,
            f.queue_index,
            f.penalty_until_ms,
        )
        for number, f in enumerate(flowfiles, first_id)
    ]


def queued(
    flowfiles: Iterable[FlowFile], now_ms: int, next_index: Callable[[int], int]
) -> list[FlowFile]:
    """Return versions that enter a queue now, in this order."""
    known = flowfiles if isinstance(flowfiles, list) else list(flowfiles)
    first = next_index(len(known))
    return [
        FlowFile(
            f.id,
            f.attributes,
            f.size,
            f.claim,
            f.content_offset,
            f.entry_ms,
            f.lineage_start_ms,
            f.lineage_index,
            now_ms,
            index,
            f.penalty_until_ms,
        )
        for index, f in enumerate(known, first)
    ]
