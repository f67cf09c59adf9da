"""Conditions that must hold after every commit and at the end of a run.

The checker reads the database directly, past all faults, right after each commit, and knows whose
commit it was. From the state before and the author of the commit it derives what must be visible
now, so it does not have to predict the order of tasks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from penstock.core.errors import PenstockError
from penstock.indexing.overlord.compaction.compaction_duty import TASK_PREFIX
from penstock.indexing.ports import TaskState
from penstock.indexing.task_spec import TASK_TYPE
from penstock.segments.catalog import Catalog
from tests.harness.cluster_simulation.admin_actions import days_interval
from tests.harness.cluster_simulation.cluster import PUBLISHES
from tests.harness.cluster_simulation.duties import RETENTION
from tests.harness.cluster_simulation.ledger import Change, Ledger, few
from tests.harness.cluster_simulation.users import DATASOURCE, Batch, Fate, day_of
from tests.harness.engine_kit import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.storage.metadata import LockRow, SegmentRow, Snapshot
    from tests.harness.cluster_simulation.cluster import Cluster
    from tests.harness.cluster_simulation.users import Users
    from tests.harness.cluster_simulation.world import Process

_TIME: Final = "__time"
# Announced files of published sequences, or of tasks that have ended.
_STALE: Final = (
    "SELECT task_id, sequence_name, path FROM penstock_announced AS shown"
    " WHERE (datasource, sequence_name) IN (SELECT datasource, sequence_name"
    " FROM penstock_published) OR task_id IN (SELECT id FROM penstock_tasks WHERE NOT active)"
)


class Violation(PenstockError):
    """A condition that must always hold was violated."""


@dataclass(slots=True)
class Checker:
    """Checker of one run.

    Attributes:
        cluster: The cluster to check.
        users: The users and their requests.
        ledger: Published rows, and why they are visible.
        commits: Number of commits so far.
    """

    cluster: Cluster
    users: Users
    ledger: Ledger = field(default_factory=Ledger)
    commits: int = 0
    _view: Counter[int] = field(default_factory=Counter)
    _snapshot: Snapshot | None = None
    _catalogue: Catalog = field(default_factory=Catalog)
    _rows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    _locked_since: dict[tuple[str, str, str, int | None], int] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _passed_over: set[int | None] = field(default_factory=set)
    _read: Counter[Fate] = field(default_factory=Counter)

    def committed(self, process: Process) -> None:
        """Check the state after a commit. Raises Violation."""
        self.commits += 1
        acting = self.cluster.world.acting
        if acting == "mailbox" or acting.startswith(("action lock", "action segmentAllocate")):
            self._check_locks()
        if stale := self.cluster.database.rows(_STALE):
            self._fail(f"{process.name}: {acting} leaves stale announced files: {stale[:3]}")
        snapshot = self.cluster.truth.snapshot(DATASOURCE, known=self._snapshot)
        if snapshot is self._snapshot:
            return
        was, self._snapshot = self._snapshot, snapshot
        who = f"{process.name}: {acting}"
        offsets, self._offsets = self._offsets, self.cluster.truth.offsets(DATASOURCE) or {}
        before, self._view = self._view, self._read_view(snapshot, who)
        change = Change.between(before, self._view)
        wrong = self._uncovered(acting, was, snapshot) or self._judge(acting, offsets, change)
        self._require(not wrong, f"{who} {wrong}")

    def deleting(self, path: str) -> None:
        """Check that no segment uses a file that will be deleted. Raises Violation."""
        query = "SELECT id FROM penstock_segments WHERE instr(payload, ?) > 0"
        names = [name for (name,) in self.cluster.database.rows(query, path)]
        acting = self.cluster.world.acting
        self._require(not names, f"{acting} deletes the file of {names}, which still name it")

    def _judge(self, acting: str, offsets: Mapping[int, int], change: Change) -> str:
        """Return what is wrong with a commit, or an empty text.

        Args:
            acting: The author of the commit.
            offsets: Offsets committed before.
            change: Rows that became visible, and rows that disappeared.
        """
        ledger, words = self.ledger, acting.split()
        task_id = _publisher(acting)
        batch = self._batch_of(task_id)
        if task_id and batch is None:
            read = self.users.between(offsets, self._offsets)
            fates = [self.users.fate(n) for n in read]
            self._read.update(fates)
            taken = (n for n, fate in zip(read, fates, strict=True) if fate == "processed")
            return ledger.stream(self.commits, (n for n in taken if n is not None), change)
        if moved := self._moved(offsets):
            return moved
        if batch is not None:
            return ledger.batch(self.commits, batch, partial(self._since, task_id), change)
        if (mark := self.users.admin_actions.mark) is not None:
            if not mark.used:
                return ledger.taken_out({mark.day}, change, wholly=True)
            wrong = (
                "" if self._view == self._unhidden(mark.day) else f"brought back wrongly: {change}"
            )
            return wrong or ledger.brought_back(change)
        if acting.startswith(RETENTION):
            days = set[int]().union(*self.users.admin_actions.dropped[int(words[-1]) :])
            return ledger.taken_out(days, change, wholly=False)
        return "" if change.is_none else f"changed what is published: {change}"

    def _batch_of(self, task_id: str) -> Batch | None:
        if task_id.startswith(TASK_PREFIX):
            return Batch("compact")
        return self.users.batches.get(task_id)

    def finally_(self) -> None:
        """Check what is left at the end of the run. Raises Violation."""
        taken = {n for n in self.users.good if self.users.fate(n) == "processed"}
        missing = taken - self.ledger.published.keys() - self._passed_over
        self._require(not missing, f"events were never published: {sorted(missing)[:10]}")
        for row in self.cluster.truth.tasks.list(active=False):
            batch = self.users.batches.get(row.id)
            lost = batch.numbers - self.ledger.published.keys() if batch is not None else ()
            self._require(
                row.state != TaskState.SUCCESS or not lost,
                f"{row.id} says that it went well, and never published {few(lost)}",
            )
        counts = self.cluster.truth.counts(DATASOURCE)
        found = Counter[Fate](
            processed=counts.processed,
            unparseable=counts.unparseable,
            late=counts.thrown_away_late,
            early=counts.thrown_away_early,
        )
        self._require(found == self._read, f"{found} were counted, and {self._read} were read")
        self._check_nothing_left()

    def replicas_are_as_asked(self) -> bool:
        """Return whether there are streaming task groups, each with the requested replicas."""
        found: dict[object, list[object]] = {}
        for row in self.cluster.truth.tasks.list(active=True):
            if row.type == TASK_TYPE:
                priority = row.payload.get("serverPriority", 0)
                found.setdefault(row.payload["baseSequenceName"], []).append(priority)
        wanted = Counter[object](self.users.priorities)
        return bool(found) and all(Counter(group) == wanted for group in found.values())

    def left(self) -> Iterator[str]:
        """Yield leftovers that must not exist; those that are cheap to find come first."""
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
        if self.cluster.world.chance.deletes_unused:
            unused = self.cluster.database.rows("SELECT id FROM penstock_segments WHERE NOT used")
            yield from (f"unused segment {name}" for (name,) in unused)
        dropped = self.users.admin_actions.dropped[-1]
        kept = {self.ledger.days[n] for n in self._view} & dropped
        yield from (f"day {day}, which is to be dropped" for day in sorted(kept))
        yield from self._left_files()

    # Visible rows

    def _read_view(self, snapshot: Snapshot, who: str) -> Counter[int]:
        """Return how often each row is published; check that no row occurs twice without reason."""
        found = self._visible(self._catalogue, snapshot)
        if not self.users.admin_actions.are_resets and (
            twice := [n for n in found if found[n] > 1]
        ):
            self._fail(f"{who} made rows visible twice: {few(twice)}")
        self._check_announced(snapshot, who)
        return found

    def _visible(self, catalogue: Catalog, snapshot: Snapshot) -> Counter[int]:
        found, files = Counter[int](), self.cluster.files.inner
        for piece in catalogue.view(snapshot).visible(DATASOURCE):
            if piece.segment.is_tombstone:
                continue
            for n, time_ms in self._rows_of(files.location(piece.segment.load_spec)):
                if piece.interval.contains(time_ms):
                    found[n] += 1
                    self.ledger.days[n] = day_of(time_ms)
        return found

    def _unhidden(self, day: int) -> Counter[int]:
        """Return the rows that are visible if all segments of a day are used."""
        assert self._snapshot is not None, "somebody has committed just now"
        time = days_interval(range(day, day + 1))
        rows = [
            structs.replace(row, used=True)
            for row in self.cluster.truth.segments.every()
            if row.used or time.covers(row.interval)
        ]
        rows.sort(key=lambda row: (row.interval, row.version, row.partition_number))
        return self._visible(Catalog(), replace(self._snapshot, segments=tuple(rows)))

    def _check_announced(self, snapshot: Snapshot, who: str) -> None:
        """Check that announced rows are not published yet, and that no row is announced twice."""
        places = self.users.places
        announced: dict[int, str] = {}
        for row in snapshot.announced:
            whose = f"{row.task_id} {row.sequence_name}"
            for n, _ in self._rows_of(row.file.path):
                partition, offset = places[n]
                where = announced.get(n)
                if offset < self._offsets.get(partition, 0):
                    where = f"a segment: {self._offsets} are committed"
                if where is not None:
                    self._fail(f"{who}: {n} is announced by {whose} and in {where}")
                announced[n] = whose

    def _rows_of(self, path: str) -> list[tuple[int, int]]:
        rows = self._rows.get(path)
        if rows is None:
            if not Path(path).exists():
                return []  # a restarted peon deleted it and announces its current files
            found = read_rows(path)
            rows = [(int(str(row["n"])), int(str(row[_TIME]))) for row in found]
            self._rows[path] = rows
        return rows

    def _since(self, task_id: str, day: int) -> int:
        """Return the commit since which rows of a day are appended beside a replacing task."""
        since = self._segments_locked_since(task_id, day)
        if since is not None:
            return since
        for row in self._locks():
            if row.task_id == task_id and row.type == "REPLACE" and not row.revoked:
                first, last = day_of(row.interval.start_ms), day_of(row.interval.end_ms - 1)
                if first <= day <= last:
                    return self._locked_since.get(_key(row), self.commits)
        return self.commits

    def _segments_locked_since(self, task_id: str, day: int) -> int | None:
        """Return since when a task has locked segments of a day that others made."""
        made = {
            (row.interval, row.version, row.partition_number)
            for row in self.cluster.truth.segments.every()
            if f"/{task_id}/" in str(row.payload.get("loadSpec"))
        }
        found = [
            self._locked_since.get(_key(row), self.commits)
            for row in self._locks()
            if row.task_id == task_id
            and not row.revoked  # it has restarted since, under other locks
            and row.partition_number is not None
            and day_of(row.interval.start_ms) == day
            and (row.interval, row.version, row.partition_number) not in made
        ]
        return max(found, default=None)

    # Locks, offsets, leftovers

    def _uncovered(self, acting: str, was: Snapshot | None, now: Snapshot) -> str:
        """Return a description of a segment published without a covering lock, if any."""
        task_id = _publisher(acting)
        if not task_id:
            return ""
        if not any(row.id == task_id for row in self.cluster.truth.tasks.list(active=True)):
            return "published although its task has ended"
        known = {row.id for row in was.segments} if was is not None else set()
        locks = [row for row in self._locks() if row.task_id == task_id and not row.revoked]
        for row in now.segments:
            if row.id not in known and not any(_covers(lock, row) for lock in locks):
                return f"published {row.id} and has no lock on it, but {locks}"
        return ""

    def _locks(self) -> Sequence[LockRow]:
        return [row for rows in self.cluster.truth.locks.every().values() for row in rows]

    def _check_locks(self) -> None:
        rows = [row for row in self._locks() if not row.revoked]
        for row in rows:
            self._locked_since.setdefault(_key(row), self.commits)
        for number, one in enumerate(rows):
            for other in rows[:number]:
                if one.interval.overlaps(other.interval) and not _may_be(one, other):
                    self._fail(f"two locks contradict each other: {one} and {other}")

    def _moved(self, before: Mapping[int, int]) -> str:
        """Return what is wrong with offsets that no publish has changed.

        They must be the first offsets, or those of a user's reset.
        """
        now, asked = self._offsets, self.users.admin_actions.asked
        for p in before.keys() | now.keys():
            was, is_now = before.get(p, 0), now.get(p, 0)
            if was != is_now:
                if is_now not in asked.get(p, ()):
                    return f"moved offsets from {dict(before)} to {now}"
                self._passed_over.update(self.users.between({p: was}, {p: is_now}))
        return ""

    def _check_nothing_left(self) -> None:
        left = "; ".join(itertools.islice(self.left(), 10))
        self._require(not left, f"left behind: {left}")

    def _left_files(self) -> list[str]:
        rows = self.cluster.truth.segments.every()
        specs = [row.payload.get("loadSpec") for row in rows]
        files = self.cluster.files.inner
        known = {
            files.location(spec) for spec in specs if isinstance(spec, dict) and "path" in spec
        }
        there = self.cluster.files.every()
        lost = [f"the file {path} of a segment is gone" for path in sorted(known - there)]
        return lost + [f"orphan {path}" for path in sorted(there - known)]

    def _require(self, holds: bool, text: str) -> None:
        if not holds:
            self._fail(text)

    def _fail(self, text: str) -> None:
        self.cluster.world.violation = self.cluster.world.violation or text
        raise Violation(text)


def _publisher(acting: str) -> str:
    """Return the task whose publish is running, "" if there is none."""
    words = acting.split()
    return words[2] if words[0] == "action" and words[1].startswith(PUBLISHES) else ""


def _key(lock: LockRow) -> tuple[str, str, str, int | None]:
    return lock.task_id, str(lock.interval), lock.version, lock.partition_number


def _covers(lock: LockRow, segment: SegmentRow) -> bool:
    """Return whether a lock allows its task to publish a segment: appends fit any version."""
    if lock.partition_number is not None:
        place = (segment.interval, segment.version, segment.partition_number)
        return place == (lock.interval, lock.version, lock.partition_number)
    is_of_time = lock.interval.covers(segment.interval)
    return is_of_time and (lock.type == "APPEND" or lock.version >= segment.version)


def _may_be(one: LockRow, other: LockRow) -> bool:
    """Return whether two overlapping locks may both be held."""
    numbers = {one.partition_number, other.partition_number}
    if None not in numbers and one.interval == other.interval:
        return len(numbers) == 2 or one.group_id == other.group_id
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


__all__ = ["Checker", "Violation"]
