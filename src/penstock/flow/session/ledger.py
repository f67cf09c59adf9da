"""Which FlowFiles a session has, what became of each, and what may be done with it.

Owns the books of one session, as plain tables by id: a batch of FlowFiles is entered and routed by
a few operations on whole tables. Does not own queues, content or the journal; it knows of them only
what it passes on.

Invariants: pure, no I/O. A FlowFile that the session has is open, routed or removed. The newest
version of each is here, so that any older one names it. What is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.flow.errors import SessionMisuse
from penstock.flow.flowfile import UUID, FlowFile
from penstock.flow.session.wiring import SessionQueue
from penstock.storage.content.claims import ContentClaim

TO_SOURCE: Final = ""
"""The route back to the queue that a FlowFile came from; no relationship has this name."""


@dataclass(slots=True)
class Taken:
    """What was polled from one queue and is not acknowledged."""

    queue: SessionQueue
    count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Ledger:
    """The books of one session.

    Attributes:
        newest: Every FlowFile of the session, as it is now.
        originals: Those that were taken, as they were.
        sources: The queues that those came from.
        routes: Where they go, in the order of the calls.
        removed: Those that go nowhere.
        taken: What is to be acknowledged, by queue.
        links: Pairs of a FlowFile and one that was made from it.
        written: Claims that were written, with the FlowFile that each was written for.
        missing: Taken ones whose content could not be found.
    """

    newest: dict[int, FlowFile] = field(default_factory=dict)
    originals: dict[int, FlowFile] = field(default_factory=dict)
    sources: dict[int, SessionQueue] = field(default_factory=dict)
    routes: dict[int, str] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    taken: dict[str, Taken] = field(default_factory=dict)
    links: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, ContentClaim]] = field(default_factory=list)
    missing: set[int] = field(default_factory=set)

    def take(self, queue: SessionQueue, flowfiles: Sequence[FlowFile]) -> None:
        """Enter FlowFiles that were polled from a queue.

        Raises:
            SessionMisuse: One is there already; the others are entered, so that all go back. After
                any other exception none is entered.
        """
        entered = {flowfile.id: flowfile for flowfile in flowfiles}
        known = entered.keys() & self.newest.keys()
        size_bytes = sum([flowfile.size for flowfile in flowfiles])
        taken = self.taken.get(queue.id)
        if taken is None:
            taken = self.taken[queue.id] = Taken(queue)
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
                f"{named(flowfile)} was polled from {queue.id} but is in this session already: "
                "it was in two queues; what is in the session goes back"
            )

    def add_many(self, flowfiles: Sequence[FlowFile], parents: Sequence[int] = ()) -> None:
        """Enter FlowFiles that were made, each from all of some parents."""
        self.newest.update([(flowfile.id, flowfile) for flowfile in flowfiles])
        for parent in parents:
            self.links += [(parent, flowfile.id) for flowfile in flowfiles]

    def open_ids(self, flowfiles: Iterable[FlowFile], doing: str) -> list[int]:
        """Return the ids of FlowFiles that may be worked on.

        Raises:
            SessionMisuse: One is not of this session, or its fate is sealed.
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
        """Return the newest version of a FlowFile that may be worked on.

        Raises:
            SessionMisuse: It is not of this session, or its fate is sealed.
        """
        number = flowfile.id
        newest = self.newest.get(number)
        if newest is None or number in self.routes or number in self.removed:
            raise self._refusal([flowfile], doing)
        return newest

    def change(self, flowfile: FlowFile) -> None:
        """Enter a newer version."""
        self.newest[flowfile.id] = flowfile

    def route(self, ids: Sequence[int], route: str) -> None:
        """Seal the fate of open FlowFiles.

        Raises:
            SessionMisuse: Back to its source, and it has none.
        """
        if route == TO_SOURCE and not self.sources.keys() >= set(ids):
            made = next(self.newest[number] for number in ids if number not in self.sources)
            raise SessionMisuse(
                f"{named(made)} was made in this session, so there is no queue to give it back to: "
                "transfer it to a relationship"
            )
        self.routes.update(dict.fromkeys(ids, route))

    def remove(self, ids: Sequence[int]) -> None:
        """Let open FlowFiles end."""
        self.removed.update(ids)

    def forgotten(self) -> list[FlowFile]:
        """Return FlowFiles that were neither transferred nor removed."""
        if len(self.routes) + len(self.removed) == len(self.newest):
            return []
        left = self.newest.keys() - self.routes.keys() - self.removed
        return [self.newest[number] for number in self.newest if number in left]

    def kin(self) -> dict[int, int]:
        """Return for each FlowFile that was linked to others the least id among its kin.

        What was made from each other, over any number of steps, is kin.
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

    def check_kin(self, ids: Sequence[int]) -> None:
        """Check that FlowFiles may leave these books.

        Raises:
            SessionMisuse: One would be parted from what was made from it, or from its parent.
        """
        moving = set(ids)
        for parent, child in self.links:
            if (parent in moving) != (child in moving):
                lost = self.newest[child if parent in moving else parent]
                raise SessionMisuse(
                    f"{named(lost)} was made from, or is the parent of, a FlowFile that moves to "
                    "another session: move them together"
                )

    def move(self, ids: Sequence[int], target: Ledger) -> None:
        """Hand open FlowFiles, with all their kin, over to the books of another session."""
        moving = set(ids)
        for number in ids:
            target.newest[number] = self.newest.pop(number)
            original = self.originals.pop(number, None)
            if original is None:
                continue
            queue = self.sources.pop(number)
            target.originals[number] = original
            target.sources[number] = queue
            own = self.taken[queue.id]
            own.count -= 1
            own.size_bytes -= original.size
            theirs = target.taken.setdefault(queue.id, Taken(queue))
            theirs.count += 1
            theirs.size_bytes += original.size
        target.missing |= self.missing & moving
        self.missing -= moving
        target.links += [link for link in self.links if link[0] in moving]
        self.links = [link for link in self.links if link[0] not in moving]
        target.written += [entry for entry in self.written if entry[0] in moving]
        self.written = [entry for entry in self.written if entry[0] not in moving]

    def _refusal(self, flowfiles: Iterable[FlowFile], doing: str) -> SessionMisuse:
        for flowfile in flowfiles:
            number = flowfile.id
            if number not in self.newest:
                return SessionMisuse(
                    f"cannot {doing} {named(flowfile)}: it is not of this session; use FlowFiles "
                    "that this session gave or made, before it was committed or rolled back"
                )
            if number in self.removed:
                return SessionMisuse(f"cannot {doing} {named(flowfile)}: it was removed before")
            if number in self.routes:
                where = self.routes[number] or "the queue that it came from"
                return SessionMisuse(
                    f"cannot {doing} {named(flowfile)}: it was transferred to {where} before; "
                    "transfer it last"
                )
        return SessionMisuse(f"cannot {doing}: the FlowFiles given changed meanwhile")


def named(flowfile: FlowFile) -> str:
    """Return how messages name a FlowFile."""
    return f"FlowFile {flowfile.id} ({flowfile.attributes.get(UUID, 'no uuid')})"


def with_attributes(flowfile: FlowFile, attributes: Mapping[str, str]) -> FlowFile:
    """Return a version with other attributes."""
    f = flowfile
    # By position: four times as fast as `msgspec.structs.replace`, and every change comes here.
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
    """Return a version with other content: `size` bytes of a claim, from `offset` on."""
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
    """Return versions that are not handed out before a time."""
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
    """Return FlowFiles of their own, with ids from one on, that are the same but for the uuid."""
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
    """Return versions that enter a queue now, one after the other."""
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
