"""What must be true after every commit, and when everything is over.

The checker looks at the database itself, past all faults, right after each commit and with the
knowledge of whose commit it was. From what was visible before and who committed what follows what
must be visible now; so no order of tasks has to be predicted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.segments.catalogue import Catalogue
from penstock.testing.engine import read_rows
from penstock.testing.simulation.users import DATASOURCE, day_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.storage.metadata import LockRow, Snapshot
    from penstock.testing.simulation.cluster import Cluster
    from penstock.testing.simulation.users import Batch, Users
    from penstock.testing.simulation.world import Process

# Who may commit segments, by the type of the action.
_PUBLISHES: Final = ("segmentTransactional", "segmentInsert")
_TIME: Final = "__time"


class Violation(PenstockError):
    """Something that must never be, is."""


@dataclass(slots=True)
class Checker:
    """The checker.

    Attributes:
        cluster: What is looked at.
        users: What was wanted.
        published: Every row that was ever in view as published, with the number of its commit.
        commits: How many commits there were.
        rewound: A user had messages read again, so that rows may come twice.
    """

    cluster: Cluster
    users: Users
    published: dict[int, int] = field(default_factory=dict)
    commits: int = 0
    rewound: bool = False
    _view: dict[int, int] = field(default_factory=dict)
    _snapshot: Snapshot | None = None
    _catalogue: Catalogue = field(default_factory=Catalogue)
    _rows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _locked_since: dict[tuple[str, str, str], int] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)

    def committed(self, process: Process) -> None:
        """Look at what a commit has made of things. Raises Violation."""
        self.commits += 1
        acting = self.cluster.world.acting
        if acting == "mailbox" or acting.startswith(("action lock", "action segmentAllocate")):
            self._check_locks()
        snapshot = self.cluster.truth.snapshot(DATASOURCE, known=self._snapshot)
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        who = f"{process.name}: {acting}"
        before, now = self._view, self._read_view(snapshot, who)
        self._view = now
        if acting.startswith("action ") and acting.split()[1].startswith(_PUBLISHES):
            self._check_publish(acting.split()[2], before, now, who)
        elif not self.users.marking and before != now:
            self._fail(f"{who} changed what is published: {_difference(before, now)}")
        self._check_offsets(who)

    def finally_(self) -> None:
        """Look at what is left when all is over. Raises Violation."""
        missing = self.users.good - self.published.keys()
        if missing and not self.rewound:
            self._fail(f"events were never published: {sorted(missing)[:10]}")
        counts = self.cluster.truth.counts(DATASOURCE)
        if not self.rewound and counts.processed != len(self.users.good):
            self._fail(f"{counts.processed} were counted, {len(self.users.good)} were sent")
        if not self.rewound and counts.unparseable != self.users.bad:
            self._fail(f"{counts.unparseable} are unparseable, {self.users.bad} were sent")
        self._check_nothing_left()

    def left(self) -> Iterator[str]:
        """Yield what is left behind that must not stay; what is cheap to see first."""
        truth = self.cluster.truth
        yield from (f"task {row.id}" for row in truth.tasks.list(active=True))
        yield from (f"lock {row.task_id} {row.interval}" for row in self._locks())
        yield from (f"place {row.id}" for row in truth.segments.pending(DATASOURCE))
        yield from (f"file {row.file.path}" for row in truth.snapshot().announced)
        yield from (f"cursor {name}" for name in self.cluster.topics.cursors)
        for worker in self.cluster.workers:
            folders = [path for path in worker.folder.glob("*") if path.is_dir()]
            yield from (f"folder {path.name} of {worker.name}" for path in folders)
        upgrades = self.cluster.database.rows("SELECT DISTINCT task_id FROM penstock_upgrades")
        yield from (f"upgrade of {task_id}" for (task_id,) in upgrades)
        yield from self._left_files()

    # What is visible

    def _read_view(self, snapshot: Snapshot, who: str) -> dict[int, int]:
        """Return the day of each published row; check that none is there twice."""
        found: dict[int, int] = {}
        for piece in self._catalogue.view(snapshot).visible(DATASOURCE):
            if piece.segment.is_tombstone:
                continue
            for n, time_ms in self._rows_of(str(piece.segment.load_spec["path"])):
                if piece.interval.contains(time_ms):
                    if n in found and not self.rewound:
                        self._fail(f"{who} made {n} visible twice; also in {piece.segment.id}")
                    found[n] = day_of(time_ms)
        self._check_announced(snapshot, found, who)
        return found

    def _check_announced(self, snapshot: Snapshot, found: dict[int, int], who: str) -> None:
        announced: dict[int, str] = {}
        for row in snapshot.announced:
            for n, _ in self._rows_of(row.file.path):
                where = "a segment" if n in found else announced.get(n)
                if where is not None and not self.rewound:
                    what = f"{n} is announced by {row.task_id} {row.sequence_name} and in {where}"
                    self._fail(f"{who}: {what}")
                announced[n] = f"{row.task_id} {row.sequence_name}"

    def _rows_of(self, path: str) -> list[tuple[int, int]]:
        rows = self._rows.get(path)
        if rows is None:
            if not Path(path).exists():
                return []  # a peon that begins again has deleted it, and announces what there is
            found = read_rows(path)
            rows = [(int(str(row["n"])), int(str(row[_TIME]))) for row in found]
            self._rows[path] = rows
        return rows

    def _check_publish(
        self, task_id: str, before: dict[int, int], now: dict[int, int], who: str
    ) -> None:
        added = {n: now[n] for n in now.keys() - before.keys()}
        removed = {n: before[n] for n in before.keys() - now.keys()}
        batch = self.users.batches.get(task_id)
        again = [n for n in added if n in self.published]
        if again and not self.rewound:
            self._fail(f"{who} published rows again: {again[:10]}")
        if batch is None:
            foreign = added.keys() - self.users.good
            self._require(not removed, f"{who} removed rows: {_difference(before, now)}")
            self._require(not foreign, f"{who} added rows of nobody: {sorted(foreign)[:5]}")
        elif batch.kind == "compact":
            self._require(not added and not removed, f"{who}: {_difference(before, now)}")
        elif added or removed:
            self._require(added.keys() == batch.numbers, f"{who} added {sorted(added)[:5]}")
            self._check_removed(task_id, batch, before, removed, who)
        for n in added:
            self.published.setdefault(n, self.commits)

    def _check_removed(
        self,
        task_id: str,
        batch: Batch,
        before: dict[int, int],
        removed: dict[int, int],
        who: str,
    ) -> None:
        if batch.kind == "append":
            self._require(not removed, f"{who} removed {sorted(removed)[:5]}")
            return
        expected = {
            n
            for n, day in before.items()
            if day in batch.days and self.published[n] < self._since(task_id, day)
        }
        wrong = expected ^ removed.keys()
        self._require(not wrong, f"{who} removed other rows than it should: {sorted(wrong)[:5]}")

    def _since(self, task_id: str, day: int) -> int:
        """Return from which commit on rows of a day are appended beside a replacing task."""
        for row in self._locks():
            if row.task_id == task_id and row.type == "REPLACE" and not row.revoked:
                first, last = day_of(row.interval.start_ms), day_of(row.interval.end_ms - 1)
                if first <= day <= last:
                    key = (task_id, str(row.interval), row.version)
                    return self._locked_since.get(key, self.commits)
        return self.commits

    # Locks, offsets, what is left

    def _locks(self) -> Sequence[LockRow]:
        return [row for rows in self.cluster.truth.locks.every().values() for row in rows]

    def _check_locks(self) -> None:
        rows = [row for row in self._locks() if not row.revoked]
        for row in rows:
            key = (row.task_id, str(row.interval), row.version)
            self._locked_since.setdefault(key, self.commits)
        for number, one in enumerate(rows):
            for other in rows[:number]:
                if one.interval.overlaps(other.interval) and not _may_be(one, other):
                    self._fail(f"two locks contradict each other: {one} and {other}")

    def _check_offsets(self, who: str) -> None:
        now = self.cluster.truth.offsets(DATASOURCE) or {}
        if not self.rewound:
            back = {p: at for p, at in self._offsets.items() if now.get(p, -1) < at}
            self._require(not back, f"{who} moved offsets back from {back} to {now}")
        self._offsets = dict(now)

    def _check_nothing_left(self) -> None:
        left = "; ".join(itertools.islice(self.left(), 10))
        self._require(not left, f"left behind: {left}")

    def _left_files(self) -> list[str]:
        rows = self.cluster.truth.segments.every()
        specs = [row.payload.get("loadSpec") for row in rows]
        known = {str(spec["path"]) for spec in specs if isinstance(spec, dict) and "path" in spec}
        there = self.cluster.files.every()
        lost = [f"the file {path} of a segment is gone" for path in sorted(known - there)]
        return lost + [f"orphan {path}" for path in sorted(there - known)]

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            self._fail(text)

    def _fail(self, text: str) -> None:
        self.cluster.world.violation = self.cluster.world.violation or text
        raise Violation(text)


def _may_be(one: LockRow, other: LockRow) -> bool:
    """Tell whether two locks that overlap may both be held."""
    kinds = {one.type, other.type}
    if "KILL" in kinds:
        return kinds != {"KILL"}
    if one.type == other.type == "REPLACE":
        return one.task_id == other.task_id
    if one.type == other.type:
        return one.type in {"APPEND", "SHARED"} or one.group_id == other.group_id
    if kinds == {"REPLACE", "APPEND"}:
        replace, append = (one, other) if one.type == "REPLACE" else (other, one)
        return replace.interval.covers(append.interval)
    return one.group_id == other.group_id and one.interval == other.interval


def _difference(before: dict[int, int], now: dict[int, int]) -> str:
    gone, new = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    return f"{_few(gone)} are gone, {_few(new)} are new"


def _few(numbers: Iterable[int]) -> str:
    found = list(numbers)
    return f"{found[:8]}{'…' if len(found) > 8 else ''} ({len(found)})"


__all__ = ["Checker", "Violation"]
