"""Recovery at start: reads the newest snapshot and the later commits, and decides which are valid.

Owns finding the durable state and the valid commits after it, and distinguishing damage from a tail
that a power loss cut off. Does not own the effect of a commit (`repository_state`), swap files
(`swap_files`), nor the writes after recovery (`flowfile_repository`).

Invariants:

- The result is the state after some commit, without gaps.
- Durable commits are read, or damage is reported. Damage stops the start unless repair was
  requested. With repair, the result ends before the damage, and the damaged file is kept aside.
- A commit that may not have been durable is valid if the content that was written for it, and to
  which the final state refers, exists and is intact. Otherwise it is cut off with all later
  commits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.errors import CorruptData, InvalidRequest, counted
from penstock.flow.repository.commit_records import (
    FORMAT_NUMBER,
    CommitRecord,
    decode_batch,
    decode_head,
    decode_part,
    unpack_ids,
)
from penstock.flow.repository.journals import (
    FIRST_GENERATION,
    FlowJournals,
    generations_in,
    journal_folder,
    snapshot_folder,
)
from penstock.flow.repository.repository_changes import RecoveryEvent
from penstock.flow.repository.repository_state import RepositoryState
from penstock.storage.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.filesystem import FileSystem

_REMEDY = "restore a copy, or open with `repair` to read up to the damage"


@dataclass(slots=True)
class ReadBack:
    """Content of the journals.

    Attributes:
        state: State after the last commit that is known to be durable.
        tail: Later commits, in order.
        journals: Journals, ready for writes after the last commit read.
        needs_snapshot: Whether the journals contain invalid records, so that a snapshot must be
            written first.
        events: Problems found.
        paths: Files of the journals, by the number of the first commit that each has.
        base: The first generation that recovery needs.
    """

    state: RepositoryState
    tail: list[CommitRecord]
    journals: FlowJournals
    needs_snapshot: bool = False
    events: list[RecoveryEvent] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    base: int = FIRST_GENERATION


class JournalReader:
    """Reader of the journals of a repository's folder; used once.

    Args:
        folder: Folder of the repository.
        fs: The file system.
        clock: For the files that are written later.
        repair: Whether to read up to damage instead of refusing to start.
    """

    def __init__(
        self,
        folder: str,
        *,
        fs: FileSystem,
        clock: Clock,
        repair: bool,
    ) -> None:
        self._folder = folder
        self._fs = fs
        self._clock = clock
        self._repair = repair
        self._needs_snapshot = False
        self._events: list[RecoveryEvent] = []
        self._snapshot_bytes = 0
        self._paths: dict[int, str] = {}

    def read(self) -> ReadBack:
        """Read the journals.

        Raises:
            CorruptData: Durable data is damaged, and no repair was requested.
            InvalidRequest: A newer Penstock wrote the files.
            Unavailable: I/O error.
        """
        base, state = self._read_snapshot()
        snapshot_number = state.number
        found = generations_in(self._fs, f"{self._folder}/journals")
        generations = [one for one in found if one >= base]
        fresh = not found and base == FIRST_GENERATION
        if generations[:1] != [base] and not fresh:
            self._damage(journal_folder(self._folder, base), 0, "the journal is missing", 0)
        journals = {one: self._open(journal_folder(self._folder, one)) for one in generations}
        batches = self._batches_of(journals, state.number)
        if not journals:
            journal = self._open(journal_folder(self._folder, base))
            journal.compact(b"")
            journals[base] = journal
            self._paths[state.number + 1] = journal.path
        durable = max((batch.durable for batch in batches), default=state.number)
        batches = self._consecutive(batches, state.number, durable)
        known = max(0, durable - state.number)
        for batch in batches:
            state.sequences.observe(batch)
        for batch in batches[:known]:
            state.apply(batch)
        written = FlowJournals(
            self._folder, self._fs, self._clock, journals, snapshot_number, self._snapshot_bytes
        )
        return ReadBack(
            *(state, batches[known:], written, self._needs_snapshot),
            *(self._events, self._paths, base),
        )

    def _read_snapshot(self) -> tuple[int, RepositoryState]:
        """Return the newest complete snapshot, and its generation."""
        for generation in reversed(generations_in(self._fs, f"{self._folder}/snapshots")):
            folder = snapshot_folder(self._folder, generation)
            snapshot = self._open(folder)
            parts = [decode_part(record, folder) for record in snapshot.records]
            whole = bool(parts) and parts[-1].last
            # An incomplete snapshot was never finished, unless the journals that it replaces are
            # deleted.
            if not whole and not self._stands_alone(generation):
                continue
            if not whole:
                self._damage(folder, snapshot.size_bytes, "the snapshot is incomplete", 0)
            head = decode_head(snapshot.snapshot, folder)
            if head.format_number > FORMAT_NUMBER:
                raise InvalidRequest(
                    f"{folder}: has format number {head.format_number}, but this release reads "
                    f"up to {FORMAT_NUMBER}: use the newer Penstock that wrote it"
                )
            state = RepositoryState.begin(head)
            for part in parts:
                state.load(part)
            self._snapshot_bytes = snapshot.size_bytes
            return generation, state
        return FIRST_GENERATION, RepositoryState()

    def _stands_alone(self, generation: int) -> bool:
        """Return whether earlier journals are deleted, so that a snapshot was once complete."""
        journals = generations_in(self._fs, f"{self._folder}/journals")
        before = [one for one in journals if one < generation]
        snapshots = generations_in(self._fs, f"{self._folder}/snapshots")
        bases = [FIRST_GENERATION, *(one for one in snapshots if one < generation)]
        return not any(base in before for base in bases)

    def _open(self, folder: str) -> Journal:
        try:
            journal = Journal.open(folder, fs=self._fs, clock=self._clock, strict=not self._repair)
        except CorruptData as error:
            raise CorruptData(error.file, error.position, f"{error.reason}; {_REMEDY}") from error
        if journal.damage.lost_bytes:
            self._damage(folder, journal.size_bytes, "cannot be read", journal.damage.lost_bytes)
        elif journal.damage.torn_bytes:
            self._events.append(
                RecoveryEvent(
                    "journal-torn",
                    f"{folder}: ignored {counted(journal.damage.torn_bytes, 'byte')} at the end, "
                    "left by an unfinished write",
                    journal.damage.torn_bytes,
                )
            )
        return journal

    def _batches_of(self, journals: dict[int, Journal], number: int) -> list[CommitRecord]:
        """Return the commits after a number, decoded; releases the bytes of the records."""
        batches: list[CommitRecord] = []
        for generation, journal in journals.items():
            folder = journal_folder(self._folder, generation)
            found = (decode_batch(record, folder) for record in journal.records)
            own = [batch for batch in found if batch.number > number]
            first = own[0].number if own else (batches[-1].number if batches else number) + 1
            self._paths[first] = journal.path
            batches += own
            journal.records.clear()
        return batches

    def _consecutive(
        self, batches: list[CommitRecord], number: int, durable: int
    ) -> list[CommitRecord]:
        """Return the commits up to the first missing one."""
        expected = range(number + 1, number + 1 + len(batches))
        count = next(
            (
                index
                for index, (batch, wanted) in enumerate(zip(batches, expected, strict=True))
                if batch.number != wanted
            ),
            len(batches),
        )
        last = number + count
        if durable > last:
            reason = f"the commits from {last + 1} on are missing"
            self._damage(f"{self._folder}/journals", 0, reason, durable - last)
        elif count < len(batches):
            self._needs_snapshot = True
            self._events.append(
                _cut_event(self._folder, len(batches) - count, "were never durable")
            )
        return batches[:count]

    def _damage(self, path: str, position: int, reason: str, count: int) -> None:
        if not self._repair:
            raise CorruptData(path, position, f"{reason}; {_REMEDY}")
        self._needs_snapshot = True
        self._events.append(
            RecoveryEvent(
                "journal-damaged", f"{path}: {reason}; the records before it were read", count
            )
        )
        self._keep_aside(path)

    def _keep_aside(self, folder: str) -> None:
        """Keep a copy of the damaged files, which the next snapshot would delete."""
        for name in self._fs.listdir(folder) if self._fs.exists(folder) else []:
            path = f"{folder}/{name}"
            if name.endswith(".log"):
                self._fs.write_atomically(f"{path}.bad", self._fs.read_bytes(path))


def _cut_event(folder: str, count: int, why: str) -> RecoveryEvent:
    return RecoveryEvent("commits-cut", f"{folder}: {count} commits {why} and are ignored", count)


def apply_tail(back: ReadBack, folder: str, check: Callable[[ContentClaim], bool]) -> None:
    """Apply the tail up to the first commit whose content is missing; cut off later commits.

    Args:
        back: Content of the journals; the state and the tail are changed.
        folder: Folder of the repository, for messages.
        check: Returns whether content exists and is intact.

    Raises:
        PenstockError: The content cannot be checked now.
    """
    tail = back.tail
    verdicts: dict[ContentClaim, bool] = {}
    keep = len(tail)
    while keep:
        references = references_of(tail[:keep])
        for claim in references.keys() - verdicts.keys():
            verdicts[claim] = check(claim)
        keep, before = (
            min(
                (index for claim, index in references.items() if not verdicts[claim]), default=keep
            ),
            keep,
        )
        if keep == before:
            break
    if keep < len(tail):
        back.needs_snapshot = True
        back.events.append(_cut_event(folder, len(tail) - keep, "lost their content"))
        del tail[keep:]
    for batch in tail:
        back.state.apply(batch)


def references_of(batches: Sequence[CommitRecord]) -> dict[ContentClaim, int]:
    """Return the content that commits wrote and that has references after the last of them.

    Content that an earlier commit wrote and a later one released may be deleted already, if the
    later one was durable.

    Returns:
        Index of the first commit that refers to it, by claim.
    """
    written = {claim for batch in batches for claim in batch.written}
    references: dict[int, tuple[ContentClaim, int]] = {}
    rows: dict[str, list[int]] = {}  # ids by row, of the swap files written here
    for index, batch in enumerate(batches):
        moved: list[int] = []
        if (swapped := batch.swapped) is not None:
            moved = rows[swapped.name] = unpack_ids(swapped.packed_ids, swapped.summary.count)
        gone = [
            rows[done.name][row] for done in batch.rows if done.name in rows for row in done.rows
        ]
        kept = {one: references[one] for one in moved if one in references}
        for one in [*gone, *batch.removes]:
            references.pop(one, None)
        references |= kept
        for put in batch.puts.values():
            for flowfile in put:
                known = references.pop(flowfile.id, None)
                if flowfile.claim in written and flowfile.claim is not None:
                    first = known[1] if known and known[0] == flowfile.claim else index
                    references[flowfile.id] = (flowfile.claim, first)
    first_by_claim: dict[ContentClaim, int] = {}
    for claim, index in references.values():
        first_by_claim[claim] = min(index, first_by_claim.get(claim, index))
    return first_by_claim
