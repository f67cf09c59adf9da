"""State of the journal: which FlowFiles are in which queue, and which rows of swap files are live.

Owns the state with its sequences, and the applying and undoing of commits. Pure: no files, clock,
threads. Does not own the order of commits (`commits`), nor the bytes of records (`commit_records`).

Invariants:

- A FlowFile has one home: `flowfiles`, or one live row of one swap file.
- `apply` has the same effect when a commit is made and when it is replayed.
- A swapped FlowFile takes one bit for its row; one that is in memory (`loaded`) also takes an
  entry.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.core.errors import Conflict
from penstock.flow.repository.commit_records import (
    FORMAT_NUMBER,
    CommitRecord,
    FileState,
    RowsDone,
    SnapshotHead,
    SnapshotPart,
    SwappedOut,
    pack_ids,
    pack_rows,
    unpack_ids,
    unpack_rows,
)
from penstock.flow.repository.repository_changes import Changes, RowsRemoved, SwapOut
from penstock.flow.swap.swap_file import swap_file_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.repository_changes import RepositoryChange
    from penstock.flow.swap.swap_file import SwapSummary
    from penstock.storage.content.claims import ResourceClaim


class KnownFile:
    """Swap file that is the home of FlowFiles.

    Attributes:
        name: Name of the file.
        summary: Summary from its head.
        done: Rows that no longer hold a FlowFile.
        left: Number of the other rows.
        gone: Number of the rows in `done` that refer to each resource claim.
        damaged: Whether the file must be kept aside once all its rows are done.
    """

    __slots__ = ("damaged", "done", "gone", "left", "name", "summary")

    def __init__(self, name: str, summary: SwapSummary) -> None:
        self.name = name
        self.summary = summary
        self.done: npt.NDArray[np.bool_] = np.zeros(summary.count, np.bool_)
        self.left = summary.count
        self.gone: Counter[ResourceClaim] = Counter()
        self.damaged = False

    def claims(self) -> Counter[ResourceClaim]:
        """Return the number of live rows that refer to each resource claim."""
        return Counter(dict(self.summary.resource_claims)) - self.gone

    def rows_done(self) -> list[int]:
        """Return the numbers of the rows that no longer hold a FlowFile."""
        rows: list[int] = np.flatnonzero(self.done).tolist()
        return rows

    def copy(self) -> KnownFile:
        """Return a copy of the file's state."""
        copied = KnownFile(self.name, self.summary)
        if self.left < self.summary.count:
            copied.done, copied.left = self.done.copy(), self.left
            copied.gone, copied.damaged = Counter(self.gone), self.damaged
        return copied

    def frozen(self) -> FileState:
        """Return the entry of the file in a snapshot."""
        packed = pack_rows(self.done) if self.left < self.summary.count else b""
        return FileState(self.name, self.summary, packed, list(self.gone.items()), self.damaged)


class ObsoleteSwapFile(NamedTuple):
    """Swap file without live rows: deleted or kept aside once the commit is durable."""

    number: int
    kept_aside: bool


@dataclass(slots=True)
class Undo:
    """Values that a commit replaced, for undoing it if it cannot be made durable."""

    flowfiles: dict[int, tuple[str, FlowFile]]
    loaded: dict[int, tuple[str, int]]
    files: dict[str, KnownFile]
    states: dict[str, bytes | None]


@dataclass(slots=True)
class RepositorySequences:
    """Sequences of a repository: ids of FlowFiles, their order in queues, numbers of swap files.

    The next value of each is above all values that were returned or that commits used. A value that
    is returned and never committed is lost, and no value is returned twice. Not thread-safe; see
    `commits.SharedSequences`.

    Attributes:
        next_id: Next id, above all ids that commits used.
        next_queue_index: Next queue index, above all that commits used.
        next_file: Next file number, above those of all swap files.
    """

    next_id: int = 0
    next_queue_index: int = 0
    next_file: int = 0

    def next_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids."""
        first = self.next_id
        self.next_id += count
        return first

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of `count` consecutive indexes."""
        first = self.next_queue_index
        self.next_queue_index += count
        return first

    def next_file_number(self) -> int:
        """Return the number of a new swap file."""
        number = self.next_file
        self.next_file += 1
        return number

    def observe(self, batch: CommitRecord) -> None:
        """Raise the sequences above the values that a replayed commit used."""
        for put in batch.puts.values():
            self._observe(put)
        if batch.swapped is not None:
            self.next_id = max(self.next_id, batch.swapped.summary.max_id + 1)
            self.observe_file(batch.swapped.name)

    def observe_file(self, name: str) -> None:
        """Raise the sequence above the number of a swap file, if its name begins with one."""
        number = swap_file_number(name)
        if number is not None:
            self.next_file = max(self.next_file, number + 1)

    def copy(self) -> RepositorySequences:
        """Return a copy of the sequences."""
        return RepositorySequences(self.next_id, self.next_queue_index, self.next_file)

    def _observe(self, flowfiles: Sequence[FlowFile]) -> None:
        if flowfiles:
            self.next_id = max(self.next_id, 1 + max([one.id for one in flowfiles]))
            indexes = [one.queue_index for one in flowfiles]
            self.next_queue_index = max(self.next_queue_index, 1 + max(indexes))


@dataclass(slots=True)
class RepositoryState:
    """The state of a FlowFile repository.

    Attributes:
        number: Number of the last commit.
        flowfiles: FlowFiles whose home is the journal, by id.
        queues: The queue of each of those.
        loaded: File and row of swapped FlowFiles that are in memory, by id.
        files: Swap files by name, in the order in which they were written.
        obsolete: Swap files without live rows that may still exist.
        states: State of processors.
        sequences: The sequences; usable from all threads, unlike the rest.
    """

    number: int = 0
    flowfiles: dict[int, FlowFile] = field(default_factory=dict)
    queues: dict[int, str] = field(default_factory=dict)
    loaded: dict[int, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, KnownFile] = field(default_factory=dict)
    obsolete: dict[str, ObsoleteSwapFile] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    sequences: RepositorySequences = field(default_factory=RepositorySequences)

    # -- planning commits

    def plan(self, change: RepositoryChange, durable: int) -> CommitRecord | None:
        """Return the record of a commit; None if there is nothing to do.

        Args:
            change: The change of the commit.
            durable: Number of the last durable commit.

        Raises:
            Conflict: A replaced, removed or swapped FlowFile is unknown, or a new one is already
                known.
        """
        match change:
            case Changes():
                return self._plan_changes(change, durable)
            case SwapOut():
                return self._plan_swap_out(change, durable)
            case RowsRemoved():
                return self._plan_rows(change, durable)

    def _plan_changes(self, changes: Changes, durable: int) -> CommitRecord:
        before = [*changes.replaced, *changes.removes, *changes.missing]
        swapped = [flowfile for flowfile in before if flowfile.id not in self.flowfiles]
        self._check_puts(changes)
        return CommitRecord(
            self.number + 1,
            durable,
            {queue: list(put) for queue, put in changes.puts.items()},
            [flowfile.id for flowfile in (*changes.removes, *changes.missing)],
            self._rows_of(swapped) if swapped else [],
            list(changes.written),
            None,
            dict(changes.states),
            list(changes.notes),
        )

    def _plan_swap_out(self, out: SwapOut, durable: int) -> CommitRecord:
        packed = pack_ids([flowfile.id for flowfile in out.flowfiles])
        moved = [flowfile for flowfile in out.flowfiles if flowfile.id not in self.flowfiles]
        rows = self._rows_of(moved) if moved else []
        swapped = SwappedOut(out.name, out.summary, packed)
        return CommitRecord(self.number + 1, durable, rows=rows, swapped=swapped)

    def _plan_rows(self, removed: RowsRemoved, durable: int) -> CommitRecord | None:
        file = self.files.get(removed.name)
        if file is None:
            return None
        rows = self._unloaded_rows(file) if removed.rows is None else removed.rows
        wanted = np.unique(np.fromiter(rows, np.int64))
        gone: list[int] = wanted[~file.done[wanted]].tolist()
        if not gone:
            return None
        done = RowsDone(removed.name, gone, list(removed.claims.items()), removed.damaged)
        return CommitRecord(self.number + 1, durable, rows=[done], notes=list(removed.notes))

    def _unloaded_rows(self, file: KnownFile) -> list[int]:
        """Return the rows of a file whose FlowFile is not in memory."""
        live = ~file.done
        live[[row for where, row in self.loaded.values() if where == file.name]] = False
        rows: list[int] = np.flatnonzero(live).tolist()
        return rows

    def _check_puts(self, changes: Changes) -> None:
        ids = [flowfile.id for put in changes.puts.values() for flowfile in put]
        fresh = set(ids).difference([flowfile.id for flowfile in changes.replaced])
        if len(ids) - len(fresh) != len(changes.replaced):
            raise Conflict(
                "a commit replaces FlowFiles without putting them into a queue, or puts one "
                "twice: remove them, or put each once"
            )
        known = fresh & self.flowfiles.keys() or fresh & self.loaded.keys()
        if known:
            raise Conflict(
                f"FlowFile {min(known)}: is already in the repository: list it in `replaced`, or "
                "take a new id"
            )

    def _rows_of(self, flowfiles: Sequence[FlowFile]) -> list[RowsDone]:
        """Return the rows that are the home of these FlowFiles."""
        rows: dict[str, list[int]] = {}
        claims: dict[str, Counter[ResourceClaim]] = {}
        for flowfile in flowfiles:
            home = self.loaded.get(flowfile.id)
            if home is None:
                raise Conflict(
                    f"FlowFile {flowfile.id}: is not in the repository (any more): only a "
                    "FlowFile that was taken from a queue can be changed or removed, and only "
                    "once"
                )
            name, row = home
            rows.setdefault(name, []).append(row)
            if flowfile.claim is not None:
                claims.setdefault(name, Counter())[flowfile.claim.resource] += 1
        return [
            RowsDone(name, found, list(claims.get(name, {}).items()))
            for name, found in rows.items()
        ]

    # -- applying and undoing commits

    def undo_of(self, batch: CommitRecord) -> Undo:
        """Return the values that a commit will replace."""
        ids = [flowfile.id for put in batch.puts.values() for flowfile in put] + batch.removes
        if batch.swapped is not None:
            ids += unpack_ids(batch.swapped.packed_ids, batch.swapped.summary.count)
        return Undo(
            {one: (self.queues[one], self.flowfiles[one]) for one in ids if one in self.flowfiles},
            {one: self.loaded[one] for one in ids if one in self.loaded},
            {done.name: self.files[done.name] for done in batch.rows},
            {key: self.states.get(key) for key in batch.states},
        )

    def apply(self, batch: CommitRecord) -> Counter[ResourceClaim]:
        """Apply a commit.

        Returns:
            References of rows whose claims were unknown when they were removed (damaged rows), for
                files that have no live rows left.
        """
        self.number = batch.number
        rest: Counter[ResourceClaim] = Counter()
        for done in batch.rows:
            self._finish_rows(done, batch.number, rest)
        for one in batch.removes:
            self._forget(one)
        for queue, put in batch.puts.items():
            ids = [flowfile.id for flowfile in put]
            self.flowfiles.update(zip(ids, put, strict=True))
            self.queues.update(dict.fromkeys(ids, queue))
            if self.loaded:
                self._unload(ids)
        if batch.swapped is not None:
            self._swap_out(batch.swapped)
        for key, value in batch.states.items():
            if value is None:
                self.states.pop(key, None)
            else:
                self.states[key] = value
        return rest

    def undo(self, batch: CommitRecord, undo: Undo) -> None:
        """Undo a commit.

        Later commits may have been applied, because they concern other FlowFiles.
        """
        for put in batch.puts.values():
            for flowfile in put:
                self._forget(flowfile.id)
        if batch.swapped is not None:
            del self.files[batch.swapped.name]
            # A crash may bring the commit back, so the file is kept until the undo is durable.
            self.obsolete[batch.swapped.name] = ObsoleteSwapFile(self.number, kept_aside=False)
        for one, (queue, flowfile) in undo.flowfiles.items():
            self.flowfiles[one] = flowfile
            self.queues[one] = queue
        self.loaded.update(undo.loaded)
        for done in batch.rows:
            file = undo.files[done.name]
            file.done[done.rows] = False
            file.left += len(done.rows)
            file.gone.subtract(dict(done.claims))
            self.files[done.name] = file
            self.obsolete.pop(done.name, None)
        for key, value in undo.states.items():
            self.states.pop(key, None)
            if value is not None:
                self.states[key] = value

    def claims(self) -> Counter[ResourceClaim]:
        """Return the number of FlowFiles that refer to each resource claim."""
        counts = Counter(
            [one.claim.resource for one in self.flowfiles.values() if one.claim is not None]
        )
        for file in self.files.values():
            counts.update(file.claims())
        return counts

    def _forget(self, one: int) -> None:
        self.flowfiles.pop(one, None)
        self.queues.pop(one, None)
        self.loaded.pop(one, None)

    def _unload(self, ids: Iterable[int]) -> None:
        for one in ids:
            self.loaded.pop(one, None)

    def _finish_rows(self, done: RowsDone, number: int, rest: Counter[ResourceClaim]) -> None:
        file = self.files.get(done.name)
        if file is None:
            return  # only after a damaged journal was read up to the damage
        file.done[done.rows] = True
        file.left -= len(done.rows)
        file.damaged |= done.damaged
        file.gone.update(dict(done.claims))
        if not file.left:
            del self.files[done.name]
            self.obsolete[done.name] = ObsoleteSwapFile(number, file.damaged)
            rest += file.claims()

    def _swap_out(self, swapped: SwappedOut) -> None:
        for one in unpack_ids(swapped.packed_ids, swapped.summary.count):
            self._forget(one)
        self.files[swapped.name] = KnownFile(swapped.name, swapped.summary)

    # -- snapshots

    def copy(self) -> RepositoryState:
        """Return a copy of the state. Commits wait meanwhile, so it copies only tables."""
        return RepositoryState(
            self.number,
            self.flowfiles.copy(),
            self.queues.copy(),
            {},
            {name: file.copy() for name, file in self.files.items()},
            self.obsolete.copy(),
            self.states.copy(),
            self.sequences.copy(),
        )

    def head(self) -> SnapshotHead:
        """Return the first record of its snapshot."""
        return SnapshotHead(
            FORMAT_NUMBER,
            self.number,
            self.sequences.next_id,
            self.sequences.next_queue_index,
            self.sequences.next_file,
            {name: obsolete.kept_aside for name, obsolete in self.obsolete.items()},
            self.states,
        )

    def parts(self, flowfiles_per_part: int) -> Iterator[SnapshotPart]:
        """Yield the parts of its snapshot after the head, except the last one."""
        ids = list(self.flowfiles)
        for start in range(0, len(ids), flowfiles_per_part):
            puts: dict[str, list[FlowFile]] = {}
            for one in ids[start : start + flowfiles_per_part]:
                puts.setdefault(self.queues[one], []).append(self.flowfiles[one])
            yield SnapshotPart(puts)
        for file in self.files.values():
            yield SnapshotPart(files=[file.frozen()])

    @classmethod
    def begin(cls, head: SnapshotHead) -> RepositoryState:
        """Return the state of a snapshot's head."""
        state = cls(number=head.number, states=dict(head.states))
        state.sequences = RepositorySequences(head.next_id, head.next_queue_index, head.next_file)
        state.obsolete = {
            name: ObsoleteSwapFile(head.number, kept_aside)
            for name, kept_aside in head.obsolete.items()
        }
        return state

    def load(self, part: SnapshotPart) -> None:
        """Add a part of a snapshot."""
        for queue, put in part.puts.items():
            ids = [flowfile.id for flowfile in put]
            self.flowfiles.update(zip(ids, put, strict=True))
            self.queues.update(dict.fromkeys(ids, queue))
        for saved in part.files:
            file = KnownFile(saved.name, saved.summary)
            if saved.packed_done:
                file.done = unpack_rows(saved.packed_done, saved.summary.count)
                file.left -= int(np.count_nonzero(file.done))
            file.gone = Counter(dict(saved.gone))
            file.damaged = saved.damaged
            self.files[saved.name] = file
