"""Preparation of a session's commit: checks, clones, removals and retries.

`prepare` converts the session's FlowFiles into one `PreparedCommit`. It checks that every
FlowFile was transferred or removed, clones FlowFiles for several connections, and removes those
that end at an auto-terminated relationship. `find_retried` applies the retry rule of a
relationship: which FlowFiles go back unchanged, and how long they are penalized or the
processor yields. Does not own the commit itself (`session_transaction`) or the session's records
(`session_state`).

Invariants: every FlowFile of the session is in exactly one place of the prepared commit: in a
queue, removed, or left out because the session created and dropped it. A prepared commit
contains enough to undo it. FlowFiles that were derived from each other are retried together.
FlowFiles that the session created from no input are never retried. After the last attempt no
retry count is left in the attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.flow.errors import SessionMisuse
from penstock.flow.flowfile import FlowFile
from penstock.flow.relationships import RETRY_COUNT_PREFIX, RetryBackoff
from penstock.flow.repository.commit_note import CommitNote, EndReason, extended
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.session_state import (
    TO_SOURCE,
    TakenFlowFiles,
    copies,
    named,
    queued,
    with_attributes,
    with_penalty,
)
from penstock.flow.session.statistics import IDLE, SessionStatistics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.flow.relationships import RelationshipRetry
    from penstock.flow.session.services import SessionContext, SessionQueue, SessionServices
    from penstock.flow.session.session_state import SessionFlowFiles


# Below it, the ids in a note take less time than their comparison with the commit.
_COMPACTED_MIN: Final = 16


@dataclass(slots=True)
class RetriedFlowFiles:
    """FlowFiles to retry.

    Attributes:
        again: FlowFiles to put back, by id.
        undone: All ids whose changes are discarded, including those in `again`.
        yield_ms: How long the processor yields.
    """

    again: dict[int, FlowFile] = field(default_factory=dict)
    undone: set[int] = field(default_factory=set)
    yield_ms: int = 0


def find_retried(
    session_state: SessionFlowFiles, context: SessionContext, now_ms: int
) -> RetriedFlowFiles:
    """Return the FlowFiles to retry, and remove the retry count from the others."""
    retried = RetriedFlowFiles()
    name = RETRY_COUNT_PREFIX + context.processor
    routed = {
        number: context.retries[route]
        for number, route in session_state.routes.items()
        if route in context.retries
    }
    if routed:
        groups = _groups(session_state)
        for number, retry in routed.items():
            if number not in retried.undone:
                group = groups.get(number, (number,))
                _try_again(session_state, context, retry, (group, name, now_ms), retried)
    for number in session_state.routes.keys() - retried.undone:
        flowfile = session_state.newest[number]
        if name in flowfile.attributes and session_state.routes[number]:
            session_state.change(with_attributes(flowfile, _without(flowfile.attributes, name)))
    return retried


def _groups(session_state: SessionFlowFiles) -> Mapping[int, Collection[int]]:
    groups: dict[int, list[int]] = {}
    relatives = session_state.relatives()
    for number, head in relatives.items():
        groups.setdefault(head, []).append(number)
    return {number: groups[head] for number, head in relatives.items()}


def _try_again(
    session_state: SessionFlowFiles,
    context: SessionContext,
    retry: RelationshipRetry,
    attempt: tuple[Collection[int], str, int],
    retried: RetriedFlowFiles,
) -> None:
    group, name, now_ms = attempt
    originals = [
        session_state.originals[number] for number in group if number in session_state.originals
    ]
    if not originals:
        return
    tried = max(_count(original.attributes.get(name, "")) for original in originals)
    if tried >= retry.count:
        return
    penalize = retry.backoff is RetryBackoff.PENALIZE
    delay_ms = retry.delay_ms(tried, context.penalty_ms if penalize else context.yield_ms)
    again = [
        with_attributes(original, {**original.attributes, name: str(tried + 1)})
        for original in originals
    ]
    if penalize:
        again = with_penalty(again, now_ms + delay_ms)
    else:
        retried.yield_ms = max(retried.yield_ms, delay_ms)
    retried.again.update({flowfile.id: flowfile for flowfile in again})
    retried.undone.update(group)


def _count(text: str) -> int:
    # Any other text in the attribute restarts the count.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _without(attributes: Mapping[str, str], name: str) -> dict[str, str]:
    return {known: value for known, value in attributes.items() if known != name}


@dataclass(slots=True)
class PreparedCommit:
    """Prepared commit of one or several checkpoints.

    Attributes:
        session_states: Session states, for undoing the commit.
        puts: FlowFiles by the id of their queue.
        queues: Those queues.
        replaced: Taken FlowFiles that are queued again, as they were when taken.
        removes: Taken FlowFiles that are removed, as they were when taken.
        retried: FlowFiles that are retried, by id.
        yield_ms: How long the processor yields.
        statistics: Counts that become valid with the commit.
        callbacks: Functions to call after the commit.
        note: Note for the record of provenance; None: it is not recorded.
    """

    session_states: list[SessionFlowFiles] = field(default_factory=list)
    puts: dict[str, list[FlowFile]] = field(default_factory=dict)
    queues: dict[str, SessionQueue] = field(default_factory=dict)
    replaced: list[FlowFile] = field(default_factory=list)
    removes: list[FlowFile] = field(default_factory=list)
    yield_ms: int = 0
    statistics: SessionStatistics = IDLE
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    note: CommitNote | None = None

    def changes(self, states: Mapping[str, bytes | None]) -> Changes:
        """Return the changes to write to the journal; nothing is added later."""
        note = self.note
        if note is not None and len(note.created) + len(self.replaced) >= _COMPACTED_MIN:
            note.compact(sum(map(len, self.puts.values())), len(self.removes))
        return Changes(
            puts=self.puts,
            replaced=self.replaced,
            removes=self.removes,
            written=[
                claim for session_state in self.session_states for _, claim in session_state.written
            ],
            states=states,
            notes=() if self.note is None else (self.note,),
        )

    def taken(self) -> list[TakenFlowFiles]:
        """Return the FlowFiles to acknowledge, by queue."""
        return [
            taken for session_state in self.session_states for taken in session_state.taken.values()
        ]

    def put(self, queue: SessionQueue, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles for a queue."""
        self.queues[queue.id] = queue
        known = self.puts.get(queue.id)
        if known is None:
            self.puts[queue.id] = list(flowfiles)
        else:
            known += flowfiles


def prepare(
    session_state: SessionFlowFiles,
    context: SessionContext,
    services: SessionServices,
    into: PreparedCommit,
) -> SessionStatistics:
    """Check the state of a session, add its results to a prepared commit, and return the counts.

    Raises:
        SessionMisuse: A FlowFile was not transferred or removed, or its relationship is not
            connected; nothing was added.
    """
    _check(session_state, context)
    now_ms = services.clock.now_ms()
    retried = (
        find_retried(session_state, context, now_ms) if context.retries else RetriedFlowFiles()
    )
    by_route = _by_route(session_state.routes, retried.undone)

    outgoing = _Outgoing(session_state, services, now_ms)
    for route, ids in by_route.items():
        if route == TO_SOURCE:
            outgoing.give_back([session_state.newest[number] for number in ids])
        elif queues := context.outputs.get(route):
            outgoing.send(route, ids, queues)
        else:
            outgoing.ended += ids
    if retried.again:
        outgoing.give_back(list(retried.again.values()))
    outgoing.ended += session_state.removed - retried.undone

    originals = session_state.originals
    removes = [originals[number] for number in outgoing.ended if number in originals]
    ended = len(removes)
    if not ended:
        replaced = list(originals.values())
    else:
        gone = {flowfile.id for flowfile in removes}
        replaced = [original for number, original in originals.items() if number not in gone]
    for queue, flowfiles in outgoing.puts:
        into.put(queue, flowfiles)
    into.replaced += replaced
    into.removes += removes
    into.yield_ms = max(into.yield_ms, retried.yield_ms)
    into.session_states.append(session_state)
    if services.records:
        note = into.note
        if note is None:
            note = CommitNote(context.processor, now_ms, revision=services.revision())
            into.note = note
        _add_to_note(note, session_state, by_route, outgoing, retried.undone)
    again = len(retried.again)
    again_bytes = _bytes([originals[number] for number in retried.again]) if again else 0
    return SessionStatistics(
        in_count=len(originals) - again,
        in_bytes=sum([taken.size_bytes for taken in session_state.taken.values()]) - again_bytes,
        out_count=outgoing.count - again,
        out_bytes=outgoing.size_bytes - again_bytes,
        created_count=outgoing.count - len(replaced),
        removed_count=ended,
        removed_bytes=_bytes(removes) if removes else 0,
        retried_count=again,
    )


def _add_to_note(
    note: CommitNote,
    session_state: SessionFlowFiles,
    by_route: Mapping[str, list[int]],
    outgoing: _Outgoing,
    undone: AbstractSet[int],
) -> None:
    """Add the work of a session; a few operations on whole lists."""
    originals, newest = session_state.originals, session_state.newest
    for route, ids in by_route.items():
        if route in outgoing.connected:
            note.add_route(route, ids)
        elif route != TO_SOURCE:
            is_all = len(originals) == len(newest)
            known = ids if is_all else [number for number in ids if number in originals]
            note.add_ended(f"{EndReason.TERMINATED}:{route}", known)
    if session_state.removed:
        ended = session_state.removed - undone
        note.add_ended(EndReason.REMOVED, [number for number in ended if number in originals])
    if len(originals) != len(newest):
        gone = {*originals, *outgoing.ended, *undone}
        created = [one for one in newest if one not in gone] if gone else newest
        note.created = extended(note.created, created)
    if session_state.links:
        links = session_state.links
        kept = [one for one in links if one[1] not in undone] if undone else links
        note.links = extended(note.links, kept)
    if outgoing.copies:
        note.copies = extended(note.copies, outgoing.copies)
    if session_state.transfers:
        note.transfers = extended(note.transfers, session_state.transfers)


def _by_route(routes: Mapping[int, str], undone: AbstractSet[int]) -> Mapping[str, list[int]]:
    distinct = set(routes.values())
    if len(distinct) == 1 and not undone:
        return {distinct.pop(): list(routes)}
    by_route: dict[str, list[int]] = {}
    for number, route in routes.items():
        if number not in undone:
            by_route.setdefault(route, []).append(number)
    return by_route


def _check(session_state: SessionFlowFiles, context: SessionContext) -> None:
    forgotten = session_state.forgotten()
    if forgotten:
        more = f" and {len(forgotten) - 1} more" if len(forgotten) > 1 else ""
        raise SessionMisuse(
            f"{named(forgotten[0])}{more} was neither transferred nor removed: transfer or "
            "remove every FlowFile before the session is committed"
        )
    # A relationship with retries also needs a connection.
    for route in dict.fromkeys(session_state.routes.values()):
        if route == TO_SOURCE or context.outputs.get(route) or route in context.auto_terminated:
            continue
        lost = next(number for number, to in session_state.routes.items() if to == route)
        raise SessionMisuse(
            f"{named(session_state.newest[lost])} was transferred to relationship {route!r}, which"
            " is neither connected nor auto-terminated: connect it or terminate it"
        )


class _Outgoing:
    """FlowFiles to be queued, and FlowFiles that end."""

    def __init__(
        self, session_state: SessionFlowFiles, services: SessionServices, now_ms: int
    ) -> None:
        self._session_state = session_state
        self._services = services
        self._now_ms = now_ms
        self.puts: list[tuple[SessionQueue, list[FlowFile]]] = []
        self.ended: list[int] = []
        self.copies: list[tuple[int, list[int]]] = []
        self.connected: list[str] = []  # relationships whose FlowFiles were put into queues
        self.count = 0
        self.size_bytes = 0

    def give_back(self, flowfiles: list[FlowFile]) -> None:
        """Return FlowFiles to the queues that they were taken from."""
        by_queue: dict[str, tuple[SessionQueue, list[FlowFile]]] = {}
        for flowfile in flowfiles:
            queue = self._session_state.sources[flowfile.id]
            by_queue.setdefault(queue.id, (queue, []))[1].append(flowfile)
        for queue, given in by_queue.values():
            self._put(queue, given)

    def send(self, route: str, ids: list[int], queues: Sequence[SessionQueue]) -> None:
        """Put FlowFiles into each of several queues: copies into all but the last."""
        self.connected.append(route)
        newest = self._session_state.newest
        flowfiles = [newest[number] for number in ids]
        for queue in queues[:-1]:
            first = self._services.repository.next_ids(len(flowfiles))
            self.copies.append((first, ids))
            self._put(queue, copies(flowfiles, first, self._services.new_uuid))
        self._put(queues[-1], flowfiles)

    def _put(self, queue: SessionQueue, flowfiles: list[FlowFile]) -> None:
        indexed = queued(flowfiles, self._now_ms, self._services.repository.next_queue_indexes)
        self.puts.append((queue, indexed))
        self.count += len(indexed)
        self.size_bytes += _bytes(indexed)


def _bytes(flowfiles: list[FlowFile]) -> int:
    return sum([flowfile.size for flowfile in flowfiles])
