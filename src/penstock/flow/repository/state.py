"""What the journal says: which FlowFiles are in which queue, and which rows of swap files live.

Owns the state and what a commit does to it, forwards and backwards. Pure: no files, clock, threads.
Does not own the order of commits (`commits`), the records' bytes (`records`), what counts up
(`sequences`).

Invariants:

- A FlowFile has one home: `flowfiles`, or one row of one swap file that is not done.
- `apply` does the same when a commit is made and when it is replayed.
- Swapped FlowFiles cost a row's bit each; those of them that are in memory (`loaded`) an entry.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.core.errors import Conflict
from penstock.flow.repository.records import (
    FORMAT_NUMBER,
    Batch,
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
from penstock.flow.repository.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.changes import Changes
    from penstock.flow.swap.swapfile import SwapSummary
    from penstock.storage.content.claims import ResourceClaim


class KnownFile:
    """A swap file that is the home of FlowFiles.

    Attributes:
        name: Of the file.
        summary: What its head says.
        done: Which rows are done with.
        left: How many are not.
        gone: How many of those that are done with refer to each resource claim.
        damaged: It is to be kept aside when it is done with.
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
        """Return how many rows that are not done refer to each resource claim."""
        return Counter(dict(self.summary.resource_claims)) - self.gone

    def rows_done(self) -> list[int]:
        """Return the numbers of the rows that are done with."""
        rows: list[int] = np.flatnonzero(self.done).tolist()
        return rows

    def copy(self) -> KnownFile:
        """Return the file as it is now."""
        copied = KnownFile(self.name, self.summary)
        if self.left < self.summary.count:
            copied.done, copied.left = self.done.copy(), self.left
            copied.gone, copied.damaged = Counter(self.gone), self.damaged
        return copied

    def frozen(self) -> FileState:
        """Return what a snapshot says of it."""
        packed = pack_rows(self.done) if self.left < self.summary.count else b""
        return FileState(self.name, self.summary, packed, list(self.gone.items()), self.damaged)


class Leaving(NamedTuple):
    """A swap file that is done with: when the commit is durable it goes, or is kept aside."""

    number: int
    kept_aside: bool


@dataclass(slots=True)
class Undo:
    """What a commit replaced, for the case that it cannot be made durable."""

    flowfiles: dict[int, tuple[str, FlowFile]]
    loaded: dict[int, tuple[str, int]]
    files: dict[str, KnownFile]
    states: dict[str, bytes | None]


@dataclass(slots=True)
class State:
    """The state of a FlowFile repository.

    Attributes:
        number: Of the last commit.
        flowfiles: By id, those whose home is the journal.
        queues: The queue of each of them.
        loaded: By id, the file and the row of swapped ones that are in memory.
        files: Swap files by name, in the order in which they were written.
        leaving: Swap files that are done with, and not known to be gone.
        states: State of processors.
        sequences: What counts up; for all threads, unlike the rest.
    """

    number: int = 0
    flowfiles: dict[int, FlowFile] = field(default_factory=dict)
    queues: dict[int, str] = field(default_factory=dict)
    loaded: dict[int, tuple[str, int]] = field(default_factory=dict)
    files: dict[str, KnownFile] = field(default_factory=dict)
    leaving: dict[str, Leaving] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    sequences: Sequences = field(default_factory=Sequences)

    # -- planning commits

    def plan(self, changes: Changes, durable: int) -> Batch:
        """Return the record of some changes.

        Args:
            changes: What is to happen.
            durable: The number up to which commits are durable.

        Raises:
            Conflict: A FlowFile that is replaced or removed is not known, or a new one is.
        """
        before = [*changes.replaced, *changes.removes, *changes.missing]
        swapped = [flowfile for flowfile in before if flowfile.id not in self.flowfiles]
        self._check_puts(changes)
        return Batch(
            self.number + 1,
            durable,
            {queue: list(put) for queue, put in changes.puts.items()},
            [flowfile.id for flowfile in (*changes.removes, *changes.missing)],
            self._rows_of(swapped) if swapped else [],
            list(changes.written),
            None,
            dict(changes.states),
        )

    def plan_swap_out(
        self, name: str, summary: SwapSummary, flowfiles: Sequence[FlowFile], durable: int
    ) -> Batch:
        """Return the record of a new swap file; `Conflict` if a FlowFile is not known."""
        packed = pack_ids([flowfile.id for flowfile in flowfiles])
        moved = [flowfile for flowfile in flowfiles if flowfile.id not in self.flowfiles]
        rows = self._rows_of(moved) if moved else []
        swapped = SwappedOut(name, summary, packed)
        return Batch(self.number + 1, durable, rows=rows, swapped=swapped)

    def unloaded_rows(self, name: str) -> list[int]:
        """Return the rows of a file that are the home of a FlowFile which is not in memory."""
        file = self.files.get(name)
        if file is None:
            return []
        live = ~file.done
        live[[row for where, row in self.loaded.values() if where == name]] = False
        rows: list[int] = np.flatnonzero(live).tolist()
        return rows

    def plan_rows(
        self,
        name: str,
        rows: Iterable[int],
        claims: Mapping[ResourceClaim, int],
        durable: int,
        *,
        damaged: bool = False,
    ) -> Batch | None:
        """Return the record of rows that were never loaded and are gone; None if all were done.

        Without their claims, the content stays until all rows of the file are done with.
        """
        file = self.files.get(name)
        if file is None:
            return None
        wanted = np.unique(np.fromiter(rows, np.int64))
        gone: list[int] = wanted[~file.done[wanted]].tolist()
        if not gone:
            return None
        done = RowsDone(name, gone, list(claims.items()), damaged)
        return Batch(self.number + 1, durable, rows=[done])

    def _check_puts(self, changes: Changes) -> None:
        ids = [flowfile.id for put in changes.puts.values() for flowfile in put]
        fresh = set(ids).difference([flowfile.id for flowfile in changes.replaced])
        if len(ids) - len(fresh) != len(changes.replaced):
            raise Conflict(
                "a commit replaces FlowFiles that it does not put anywhere, or puts one twice: "
                "remove them, or put each once"
            )
        known = fresh & self.flowfiles.keys() or fresh & self.loaded.keys()
        if known:
            raise Conflict(
                f"FlowFile {min(known)}: is in the repository already: name it in `replaced`, or "
                "take a new id"
            )

    def _rows_of(self, flowfiles: Sequence[FlowFile]) -> list[RowsDone]:
        """Return the rows that are the home of these."""
        rows: dict[str, list[int]] = {}
        claims: dict[str, Counter[ResourceClaim]] = {}
        for flowfile in flowfiles:
            home = self.loaded.get(flowfile.id)
            if home is None:
                raise Conflict(
                    f"FlowFile {flowfile.id}: is not in the repository (any more): only a FlowFile "
                    "that a queue handed out can be changed or removed, and once"
                )
            name, row = home
            rows.setdefault(name, []).append(row)
            if flowfile.claim is not None:
                claims.setdefault(name, Counter())[flowfile.claim.resource] += 1
        return [
            RowsDone(name, found, list(claims.get(name, {}).items()))
            for name, found in rows.items()
        ]

    # -- commits, forwards and backwards

    def undo_of(self, batch: Batch) -> Undo:
        """Return what a commit is about to replace."""
        ids = [flowfile.id for put in batch.puts.values() for flowfile in put] + batch.removes
        if batch.swapped is not None:
            ids += unpack_ids(batch.swapped.packed_ids, batch.swapped.summary.count)
        return Undo(
            {one: (self.queues[one], self.flowfiles[one]) for one in ids if one in self.flowfiles},
            {one: self.loaded[one] for one in ids if one in self.loaded},
            {done.name: self.files[done.name] for done in batch.rows},
            {key: self.states.get(key) for key in batch.states},
        )

    def apply(self, batch: Batch) -> Counter[ResourceClaim]:
        """Do what a commit says.

        Returns:
            References of rows that nobody could tell when they were done with (damaged ones), of
            files that are done with now.
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

    def undo(self, batch: Batch, undo: Undo) -> None:
        """Take a commit back; others may have come since, for they are about other FlowFiles."""
        for put in batch.puts.values():
            for flowfile in put:
                self._forget(flowfile.id)
        if batch.swapped is not None:
            del self.files[batch.swapped.name]
            # A crash may bring the commit back, so the file stays until this is durable.
            self.leaving[batch.swapped.name] = Leaving(self.number, kept_aside=False)
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
            self.leaving.pop(done.name, None)
        for key, value in undo.states.items():
            self.states.pop(key, None)
            if value is not None:
                self.states[key] = value

    def claims(self) -> Counter[ResourceClaim]:
        """Return how many FlowFiles refer to each resource claim."""
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
            return  # only where a damaged journal was read up to the damage
        file.done[done.rows] = True
        file.left -= len(done.rows)
        file.damaged |= done.damaged
        file.gone.update(dict(done.claims))
        if not file.left:
            del self.files[done.name]
            self.leaving[done.name] = Leaving(number, file.damaged)
            rest += file.claims()

    def _swap_out(self, swapped: SwappedOut) -> None:
        for one in unpack_ids(swapped.packed_ids, swapped.summary.count):
            self._forget(one)
        self.files[swapped.name] = KnownFile(swapped.name, swapped.summary)

    # -- snapshots

    def copy(self) -> State:
        """Return the state as it is now. Commits wait meanwhile, so it copies tables only."""
        return State(
            self.number,
            self.flowfiles.copy(),
            self.queues.copy(),
            {},
            {name: file.copy() for name, file in self.files.items()},
            self.leaving.copy(),
            self.states.copy(),
            self.sequences.copy(),
        )

    def head(self) -> SnapshotHead:
        """Return what a snapshot of it begins with."""
        return SnapshotHead(
            FORMAT_NUMBER,
            self.number,
            self.sequences.next_id,
            self.sequences.next_queue_index,
            self.sequences.next_file,
            {name: leaving.kept_aside for name, leaving in self.leaving.items()},
            self.states,
        )

    def parts(self, flowfiles_per_part: int) -> Iterator[SnapshotPart]:
        """Yield the pieces of a snapshot that follow its head, but for the last one."""
        ids = list(self.flowfiles)
        for start in range(0, len(ids), flowfiles_per_part):
            puts: dict[str, list[FlowFile]] = {}
            for one in ids[start : start + flowfiles_per_part]:
                puts.setdefault(self.queues[one], []).append(self.flowfiles[one])
            yield SnapshotPart(puts)
        for file in self.files.values():
            yield SnapshotPart(files=[file.frozen()])

    @classmethod
    def begin(cls, head: SnapshotHead) -> State:
        """Return the state that a snapshot's head tells of."""
        state = cls(number=head.number, states=dict(head.states))
        state.sequences = Sequences(head.next_id, head.next_queue_index, head.next_file)
        state.leaving = {
            name: Leaving(head.number, kept_aside) for name, kept_aside in head.leaving.items()
        }
        return state

    def load(self, part: SnapshotPart) -> None:
        """Take over a piece of a snapshot."""
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
