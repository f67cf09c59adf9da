"""Reads the spool of commits: events in order for their topic, and the lineage of a FlowFile.

Owns which files are indexed, the bounds of a lineage, and earlier versions of FlowFiles for kinds
of events. Does not own the events (`provenance_events`), the index of a file (`provenance_index`),
nor the files. It only reads the spool, so it works in another process while the flow appends.

Invariant: an event has the same number whenever it is read, see `provenance_events`.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock.broker.message_bodies import encode_binary
from penstock.core.errors import NotFound
from penstock.flow.flowfile import FlowFile
from penstock.flow.provenance.provenance_events import EVENT_BITS, ProvenanceEvent, events_of
from penstock.flow.provenance.provenance_index import (
    INDEX_SUFFIX,
    CommitPlace,
    SpoolFileIndex,
)
from penstock.flow.provenance.provenance_selection import (
    HISTORY_MAX,
    STEP_BYTES_MAX,
    STEP_COMMIT_BYTES_MAX,
    STEP_COMMITS_MAX,
    STEP_EVENTS_MAX,
    STEP_MAX,
    EventFilter,
    FlowFileHistories,
    FlowFileVersion,
    SelectionStep,
)
from penstock.flow.repository.commit_records import CommitRecord, decode_batch
from penstock.flow.repository.commit_spool import (
    read_durable,
    read_withdrawn,
    spool_files,
    spool_path,
)
from penstock.storage.journal import read_block

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.storage.filesystem import FileSystem, ReadFile

BATCH_EVENTS_MAX: Final = 5_000
BATCH_BYTES_MAX: Final = 1 << 20
KNOWN_MAX: Final = 50_000
"""Most FlowFiles whose last version is kept, to find changed attributes."""
LEARNED_MAX: Final = 2_000
"""Commits that are read for that at a start."""
DEPTH_MAX: Final = 20
FLOWFILES_MAX: Final = 200
_CLOCK_SLACK_MS: Final = 60_000
"""How far a clock may have gone back between a session and the end of its file."""
EVENTS_MAX: Final = 1_000


class DerivedEvents(msgspec.Struct, frozen=True, array_like=True):
    """Events in the order of their numbers.

    Attributes:
        first: Number of the first one.
        last: Number of the last one.
        count: How many; 0: there is none.
        body: They as one JSON message each, in the broker's binary format.
    """

    first: int
    last: int
    count: int
    body: bytes


class Lineage(msgspec.Struct, frozen=True):
    """Events of a FlowFile, its ancestors and its descendants.

    Attributes:
        flowfiles: Their ids: the requested ones first.
        events: The events, in order.
        is_complete: Whether no bound left something out.
    """

    flowfiles: list[int]
    events: list[ProvenanceEvent]
    is_complete: bool


class _StepCommits:
    """Commits that a step of a selection reads: those of its FlowFiles.

    Attributes:
        places: Their places.
        cut: FlowFiles of which only the newest commits are among them.
    """

    def __init__(self) -> None:
        self.places: set[CommitPlace] = set()
        self.cut: list[int] = []
        self._bytes = 0

    def add(self, flowfile: int, newest: Sequence[CommitPlace]) -> bool:
        """Add the commits of a FlowFile, the newest first; return whether there is space."""
        new = set(newest[:HISTORY_MAX]) - self.places
        count, size = len(self.places) + len(new), self._bytes + sum(one.length for one in new)
        if self.places and (count > STEP_COMMITS_MAX or size > STEP_COMMIT_BYTES_MAX):
            return False
        self.places |= new
        self._bytes = size
        if len(newest) > HISTORY_MAX:
            self.cut.append(flowfile)
        return True


class ProvenanceReader:
    """Reader of one spool. One thread at a time.

    Args:
        fs: The file system.
        folder: Folder of the spool.
    """

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._indexes: dict[int, SpoolFileIndex] = {}
        self._known: OrderedDict[int, FlowFile] = OrderedDict()
        self._last_derived: tuple[int, list[ProvenanceEvent]] = (-1, [])
        self._known_until = 0  # commits up to this number are in `_known`
        self._durable = 0

    # -- events in order

    def events(self, following: int, last: int = 0) -> DerivedEvents:
        """Return events in order.

        Args:
            following: Least number of an event.
            last: Number of the last one, for a batch that is read again; 0: any number of events,
                up to the limits of a batch.

        Raises:
            Unavailable: A file cannot be read.
        """
        found: list[bytes] = []
        first = end = following
        size = 0
        if not self._known_until:
            self._learn_before(following >> EVENT_BITS)
        for record in self._records_from(following >> EVENT_BITS):
            base = record.number << EVENT_BITS
            if last and base > last:
                break
            for place, event in enumerate(self._derived(record)):
                number = base + place
                if number < following or (last and number > last):
                    continue
                if not last and (len(found) >= BATCH_EVENTS_MAX or size >= BATCH_BYTES_MAX):
                    return DerivedEvents(first, end, len(found), encode_binary(found))
                encoded = msgspec.json.encode(event)
                if not found:
                    first = number
                found.append(encoded)
                size += len(encoded)
                end = number
            self._learn(record)
        return DerivedEvents(first, end, len(found), encode_binary(found) if found else b"")

    def _derived(self, record: CommitRecord) -> list[ProvenanceEvent]:
        """Return the events of a commit; those of the last one are kept for the next batch."""
        if self._last_derived[0] != record.number:
            self._last_derived = record.number, events_of(record, self._known)
        return self._last_derived[1]

    def _learn_before(self, number: int) -> None:
        """Learn the versions of FlowFiles from the commits before a number, after a start."""
        for record in self._records_from(number - LEARNED_MAX):
            if record.number >= number:
                return
            self._learn(record)

    def _learn(self, record: CommitRecord) -> None:
        """Keep the versions of FlowFiles after a commit, the newest ones."""
        if record.number <= self._known_until:
            return
        self._known_until = record.number
        known = self._known
        for number in record.removes:
            known.pop(number, None)
        for put in record.puts.values():
            for one in put:
                known[one.id] = one
                known.move_to_end(one.id)
        while len(known) > KNOWN_MAX:
            known.popitem(last=False)

    def _records_from(self, number: int, from_ms: int = 0) -> Iterator[CommitRecord]:
        """Yield commits from a number on, without files that end before a time."""
        self._advance()
        firsts = list(self._indexes)
        at = max(0, bisect.bisect_right(firsts, number) - 1)
        for first in firsts[at:]:
            index = self._indexes[first]
            numbers = index.numbers()
            if from_ms and self._is_before(first, from_ms):
                continue
            start = int(np.searchsorted(numbers, number))
            if start == len(numbers):
                continue
            try:
                file = self._fs.open_read(index.path)
            except NotFound:
                continue
            try:
                for record in range(start, len(numbers)):
                    yield _commit_at(file, index.place(record), index.path)
            finally:
                file.close()

    # -- look-ups

    def lineage(self, flowfiles: Iterable[int], depth: int) -> Lineage:
        """Return the events of FlowFiles, and of their ancestors and descendants.

        Args:
            flowfiles: Ids.
            depth: Most steps to a parent or a child.
        """
        self._advance()
        start = list(dict.fromkeys(flowfiles))
        seen = dict.fromkeys(start, 0)
        waiting = deque((one, 0, 0) for one in start)
        events: dict[str, ProvenanceEvent] = {}
        is_complete = True
        while waiting:
            number, steps, direction = waiting.popleft()
            found, replays, is_whole = self._events_of(number)
            is_complete &= is_whole
            for event in found:
                events[event.id] = event
                is_complete &= len(event.parents) == event.parent_count
                is_complete &= len(event.children) == event.child_count
                # Of an ancestor only ancestors, of a descendant only descendants.
                related = [(one, -1) for one in event.parents if direction <= 0]
                related += [(one, 1) for one in event.children if direction >= 0]
                replays += related
            for one, way in replays:
                if one in seen or way * direction < 0:
                    continue
                if steps >= depth or len(seen) >= FLOWFILES_MAX:
                    is_complete = False
                    continue
                seen[one] = steps + 1
                waiting.append((one, steps + 1, way))
            if len(events) >= EVENTS_MAX:
                is_complete = is_complete and not waiting
                break
        ordered = sorted(events.values(), key=_order)
        return Lineage(list(seen), ordered[:EVENTS_MAX], is_complete)

    def flowfiles_of(self, topic: str, partition: int, offset: int) -> list[int]:
        """Return the ids of the FlowFiles that were received as a message, or sent as it."""
        self._advance()
        found: dict[int, None] = {}
        for index in list(self._indexes.values()):
            for record in index.of_message(topic, partition, offset):
                with suppress(NotFound):
                    commit = self._read(index.place(record))
                    for note in commit.notes:
                        for transfer in note.transfers:
                            if (transfer.topic, transfer.partition) == (topic, partition):
                                at = offset - transfer.offset
                                found.update(dict.fromkeys(_at(transfer.ids, transfer.counts, at)))
        return list(found)

    def version(self, flowfile: int, event: str = "") -> FlowFileVersion | None:
        """Return a FlowFile as it was in a queue.

        Args:
            flowfile: Its id.
            event: Id of the event that put it there; empty: the last one.

        Returns:
            None if no commit that is still kept put it into a queue.
        """
        self._advance()
        for index, record in reversed(self._places_of(flowfile)):
            if event and not event.startswith(f"{int(index.numbers()[record])}-"):
                continue
            with suppress(NotFound):
                found = _version_in(self._read(index.place(record)), flowfile, event)
                if found is not None:
                    return found
        return None

    def select(self, wanted: EventFilter, following: int, until: int = 0) -> SelectionStep:
        """Return the FlowFiles that one step of a selection chooses.

        Args:
            wanted: The filter.
            following: Number of the event at which the step begins.
            until: Number of the last commit of the selection; 0: the newest one.
        """
        self._advance()
        until = until or self._newest()
        found: dict[int, int] = {}
        commits = _StepCommits()
        end: int | None = None
        count = time_ms = 0
        for record in self._records_from(following >> EVENT_BITS, wanted.from_ms):
            base = record.number << EVENT_BITS
            if record.number > until:
                break
            if count >= STEP_EVENTS_MAX or len(found) >= STEP_MAX:
                end = max(base, following)
                break
            for place, event in enumerate(events_of(record, {})):
                if base + place < following:
                    continue
                if len(found) >= STEP_MAX:
                    end = base + place
                    break
                flowfile = event.flowfile if wanted.may_choose(event) else None
                if flowfile is not None and flowfile not in found:
                    own = self._newest_places(flowfile, HISTORY_MAX + 1)
                    if not commits.add(flowfile, own):
                        end = base + place
                        break
                count += 1
                time_ms = event.time
                if flowfile is not None:
                    found[flowfile] = base + place
            if end is not None:
                break
        return self._chosen(wanted, (found, commits), (following, end, until), time_ms)

    def _chosen(
        self,
        wanted: EventFilter,
        candidates: tuple[Mapping[int, int], _StepCommits],
        part: tuple[int, int | None, int],
        time_ms: int,
    ) -> SelectionStep:
        """Return those of the FlowFiles that count in this part of the events.

        Args:
            wanted: The filter.
            candidates: Numbers of events that may be chosen, by FlowFile; and their commits.
            part: First event, event after the last one, and last commit.
            time_ms: Time of the last event.
        """
        found, commits = candidates
        following, end, until = part
        histories = FlowFileHistories(wanted, found, until)
        for flowfile in commits.cut:
            histories.cut(flowfile, found[flowfile])
        for commit in self._commits_at(commits.places):
            histories.add(commit)
        size = 0
        chosen = histories.chosen(following, (until + 1) << EVENT_BITS if end is None else end)
        for place, (number, one) in enumerate(chosen):
            if place and size >= STEP_BYTES_MAX:
                end = number
                break
            size += 0 if one.version is None else one.version.flowfile.size
        kept = [one for number, one in chosen if end is None or number < end]
        return SelectionStep(kept, end, until, time_ms)

    def _newest(self) -> int:
        """Return the number of the newest commit; 0: there is none."""
        found = [numbers[-1] for one in self._indexes.values() if len(numbers := one.numbers())]
        return int(found[-1]) if found else 0

    def _events_of(
        self, flowfile: int
    ) -> tuple[list[ProvenanceEvent], list[tuple[int, int]], bool]:
        """Return the last events of a FlowFile, its replays, and whether these are all events."""
        before: dict[int, FlowFile] = {}
        found: list[ProvenanceEvent] = []
        replays: list[tuple[int, int]] = []
        places = self._places_of(flowfile)
        for index, record in places[-EVENTS_MAX:]:
            try:
                commit = self._read(index.place(record))
            except NotFound:  # narrow: its file was deleted
                continue
            found += events_of(commit, before, {flowfile})
            for note in commit.notes:
                if note.replay:
                    replays += [(child, 1) for parent, child in note.links if parent == flowfile]
            for put in commit.puts.values():
                for one in put:
                    if one.id == flowfile:
                        before[flowfile] = one
        return found, replays, len(places) <= EVENTS_MAX

    def _places_of(self, flowfile: int) -> list[tuple[SpoolFileIndex, int]]:
        """Return the commits that concern a FlowFile, in order: a file, and their index in it."""
        return [
            (index, record)
            for index in self._indexes.values()
            for record in index.of_flowfile(flowfile)
        ]

    def _newest_places(self, flowfile: int, most: int) -> list[CommitPlace]:
        """Return the places of the newest commits that concern a FlowFile, the newest first."""
        found: list[CommitPlace] = []
        for index in reversed(self._indexes.values()):
            own = index.of_flowfile(flowfile)[-(most - len(found)) :]
            found += [index.place(record) for record in reversed(own)]
            if len(found) == most:
                break
        return found

    def _commits_at(self, places: Iterable[CommitPlace]) -> Iterator[CommitRecord]:
        """Yield commits in order; those of files that were deleted are left out."""
        for first, group in groupby(sorted(places), attrgetter("first")):
            path = spool_path(self._folder, first)
            try:
                file = self._fs.open_read(path)
            except NotFound:  # narrow: it was deleted
                continue
            try:
                for place in group:
                    yield _commit_at(file, place, path)
            finally:
                file.close()

    # -- files

    def _is_before(self, first: int, time_ms: int) -> bool:
        """Return whether all commits of a file are older: a session ends before its commit."""
        try:
            modified_ms = self._fs.stat(spool_path(self._folder, first)).modified_ms
        except NotFound:  # narrow: it was deleted
            return True
        return 0 < modified_ms < time_ms - _CLOCK_SLACK_MS

    def _read(self, place: CommitPlace) -> CommitRecord:
        path = spool_path(self._folder, place.first)
        file = self._fs.open_read(path)
        try:
            return _commit_at(file, place, path)
        finally:
            file.close()

    def _advance(self) -> None:
        """Follow the files: index what was added, and forget what was deleted."""
        # The files after the number: those whose commits it counts exist then.
        self._durable = max(self._durable, read_durable(self._fs, self._folder))
        withdrawn = read_withdrawn(self._fs, self._folder)
        firsts = spool_files(self._fs, self._folder)
        for first in self._indexes.keys() - set(firsts):
            del self._indexes[first]
        self._delete_stale(set(firsts))
        ends = [*(following - 1 for following in firsts[1:]), self._durable]
        for first, end in zip(firsts, ends, strict=False):
            is_complete = first != firsts[-1] and end <= self._durable
            try:
                self._follow(first, min(end, self._durable), withdrawn, is_complete=is_complete)
            except NotFound:  # narrow: it was deleted
                self._indexes.pop(first, None)
        self._indexes = dict(sorted(self._indexes.items()))

    def _follow(
        self, first: int, last: int, withdrawn: Collection[int], *, is_complete: bool
    ) -> None:
        """Index a file up to a commit. Another file may have its name since the last time.

        Raises:
            NotFound: The file was deleted.
        """
        index = self._indexes.get(first)
        if index is not None and (index.last not in (0, last) or index.is_of_other_file()):
            index = None
        if index is None:
            index = self._indexes[first] = SpoolFileIndex(self._fs, self._folder, first)
            if is_complete:
                index.load(last)
        if is_complete and index.last == last:
            return
        index.advance(last, withdrawn)
        if is_complete:
            index.save(last)

    def _delete_stale(self, firsts: set[int]) -> None:
        for name in self._fs.listdir(self._folder):
            stem = name.removesuffix(INDEX_SUFFIX)
            if stem != name and stem.isdecimal() and int(stem) not in firsts:
                with suppress(NotFound):
                    self._fs.unlink(f"{self._folder}/{name}")


def _version_in(commit: CommitRecord, flowfile: int, event: str) -> FlowFileVersion | None:
    """Return a FlowFile as a commit put it into a queue, if the commit has the event."""
    for queue, put in commit.puts.items():
        for one in put:
            if one.id == flowfile:
                ids = [found.id for found in events_of(commit, {}, {flowfile})]
                if event in ids or (ids and not event):
                    return FlowFileVersion(one, queue, event or ids[-1])
    return None


def _commit_at(file: ReadFile, place: CommitPlace, path: str) -> CommitRecord:
    [record] = read_block(file.pread(place.length, place.position), path)
    return decode_batch(record, path)


def _order(event: ProvenanceEvent) -> tuple[int, int]:
    commit, _, place = event.id.partition("-")
    return int(commit), int(place)


def _at(ids: list[int], counts: list[int], place: int) -> list[int]:
    """Return the FlowFile of a message by its place in a transfer; none if it is outside."""
    if place < 0:
        return []
    if not counts:
        return ids[place : place + 1]
    end = 0
    for one, count in zip(ids, counts, strict=True):
        end += count
        if place < end:
            return [one]
    return []
