"""Lock requests: the lockbox alone, and through lanes into the metadata in SQLite.

The limit is SQLite itself: the same rows into a table of the same shape, with as many rows in a
transaction, by `sqlite3` without anything of ours; each commit waits for the disk, as in the store.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.table import Row, against, print_rows, start_timer
from penstock.core.clock import SystemClock
from penstock.core.intervals import Interval, format_time
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockbox import AcquireLocks, AddTask, Lockbox, ReleaseLocks
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.lockbox.task_locks import LockTask, LockType
from penstock.mailbox.lanes import ThreadLanes
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HOUR_MS = 3_600_000
START_MS = 1_704_067_200_000
HELD = 10_000
CROWD = 5_000
AIM_REQUEST_US = 200
AIM_REQUESTS_PER_S = 5_000
TASKS_AT_ONCE = 100
ROUNDS = 5

TABLE = """
CREATE TABLE locks (
  task_id TEXT, datasource TEXT, granularity TEXT, type TEXT, start_ms INTEGER, end_ms INTEGER,
  version TEXT, partition_number INTEGER, group_id TEXT NOT NULL, priority INTEGER NOT NULL,
  revoked INTEGER NOT NULL, created_ms INTEGER NOT NULL,
  PRIMARY KEY (task_id, datasource, granularity, type, start_ms, end_ms, version, partition_number)
)
"""
INSERT = "INSERT INTO locks VALUES (?, 'wiki', 'timeChunk', 'EXCLUSIVE', ?, ?, ?, -1, ?, 50, 0, 0)"


def run() -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        return [*box_rows(), crowd_row(), *stored_rows(folder)]
    finally:
        shutil.rmtree(folder)


def box_rows() -> list[Row]:
    """Time requests of a box that holds 10,000 locks of an hour each."""
    owner, other = task("owner"), task("other")
    box = Lockbox("wiki")
    held = tuple(owner.request(hour(n)) for n in range(HELD))
    box.handle([AddTask(owner), AddTask(other), AcquireLocks(held)], START_MS)
    box.accept()
    new = [
        command
        for n in range(HELD, HELD + 1_000)
        for command in (AcquireLocks((other.request(hour(n)),)), ReleaseLocks("other", hour(n)))
    ]
    # A task that appends to ever more hours, as a backfill does.
    appends = [
        AcquireLocks((owner.request(hour(n), LockType.APPEND),))
        for n in range(2 * HELD, 2 * HELD + 1_000)
    ]
    return [
        against(f"locks: {what} among {HELD:,}", seconds * 1e6, "µs", "aim", AIM_REQUEST_US, "< 1")
        for what, seconds in (
            ("a new lock and its release", per_command(box, new) * 2),
            ("a further lock of the same task", per_command(box, appends)),
            ("a lock that is held", per_command(box, [AcquireLocks((r,)) for r in held[:2_000]])),
            (
                "a refusal",
                per_command(box, [AcquireLocks((other.request(hour(n)),)) for n in range(2_000)]),
            ),
        )
    ]


def crowd_row() -> Row:
    """Time appends to one day of tasks that have each a group of their own."""
    owners = [task(f"t{number}") for number in range(CROWD)]
    day = Interval(START_MS, START_MS + 24 * HOUR_MS)
    box = Lockbox("wiki")
    box.handle([AddTask(owner) for owner in owners], START_MS)
    box.accept()
    seconds = per_command(
        box, [AcquireLocks((one.request(day, LockType.APPEND),)) for one in owners]
    )
    what = f"locks: an append to a day that {CROWD:,} groups append to"
    return against(what, seconds * 1e6, "µs", "aim", AIM_REQUEST_US, "< 1")


def per_command(box: Lockbox, commands: Sequence[AcquireLocks | ReleaseLocks]) -> float:
    """Return the seconds of one command that comes alone."""
    began = start_timer()
    for command in commands:
        box.handle([command], START_MS)
        box.accept()
    return (time.perf_counter() - began) / len(commands)


def stored_rows(folder: Path) -> list[Row]:
    """Time requests through lanes into SQLite, in turns with SQLite alone."""
    numbers = iter(range(10**9))
    lanes = ThreadLanes("bench")
    with MetadataStore.open(f"sqlite:///{folder}/metadata.db") as store:
        boxes = Lockboxes(MetadataLockStore(store.locks), lanes, clock=SystemClock())
        boxes.sync([])
        raw = raw_sqlite(folder)
        rounds = [
            (
                one_by_one(boxes, numbers, 100),
                raw_rate(raw, numbers, 1, 100),
                at_once(boxes, numbers, 20),
                raw_rate(raw, numbers, TASKS_AT_ONCE, 20),
                held_again(boxes, numbers, 2_000),
            )
            for _ in range(ROUNDS)
        ]
        raw.close()
    lanes.close()
    single, raw_single, many, raw_many, again = (median(each) for each in zip(*rounds, strict=True))
    unit, tasks = "requests/s", f"{TASKS_AT_ONCE} tasks at once"
    return [
        against("locks: one request at a time", single, unit, "SQLite", raw_single),
        against(f"locks: {tasks}", many, unit, "SQLite", raw_many),
        against(f"locks: {tasks}", many, unit, "aim", AIM_REQUESTS_PER_S, ">= 1"),
        against("locks: one that is held", again, unit, "aim", AIM_REQUESTS_PER_S, ">= 1"),
    ]


def one_by_one(boxes: Lockboxes, numbers: Iterator[int], count: int) -> float:
    """Return the requests of one task a second; each waits for the one before."""
    owner = task(f"t{next(numbers)}")
    boxes.add(owner).result()
    began = start_timer()
    for _ in range(count):
        boxes.acquire([owner.request(hour(next(numbers)))]).result()
    took = time.perf_counter() - began
    boxes.remove(owner).result()
    return count / took


def at_once(boxes: Lockboxes, numbers: Iterator[int], rounds: int) -> float:
    """Return the requests a second of tasks that all ask at once, each for a lock of its own."""
    owners = [task(f"t{next(numbers)}") for _ in range(TASKS_AT_ONCE)]
    for owner in owners:
        boxes.add(owner)
    began = start_timer()
    for _ in range(rounds):
        asked = [boxes.acquire([owner.request(hour(next(numbers)))]) for owner in owners]
        for future in asked:
            future.result()
    took = time.perf_counter() - began
    for removed in [boxes.remove(owner) for owner in owners]:
        removed.result()
    return rounds * TASKS_AT_ONCE / took


def held_again(boxes: Lockboxes, numbers: Iterator[int], count: int) -> float:
    """Return the requests a second for a lock that the task has."""
    owner, chunk = task(f"t{next(numbers)}"), hour(next(numbers))
    boxes.add(owner)
    boxes.acquire([owner.request(chunk)]).result()
    began = start_timer()
    for _ in range(count):
        boxes.acquire([owner.request(chunk)]).result()
    took = time.perf_counter() - began
    boxes.remove(owner).result()
    return count / took


def raw_sqlite(folder: Path) -> sqlite3.Connection:
    """Return SQLite as the store uses it, with a table of the same shape."""
    raw = sqlite3.connect(folder / "raw.db", isolation_level=None)
    raw.execute("PRAGMA journal_mode=WAL")
    raw.execute("PRAGMA synchronous=FULL")
    raw.execute(TABLE)
    return raw


def raw_rate(
    raw: sqlite3.Connection, numbers: Iterator[int], batch: int, transactions: int
) -> float:
    """Return the rows a second that SQLite takes."""
    version = format_time(START_MS)
    began = time.perf_counter()
    for _ in range(transactions):
        rows = []
        for _ in range(batch):
            number = next(numbers)
            start_ms = START_MS + number * HOUR_MS
            rows.append((f"t{number}", start_ms, start_ms + HOUR_MS, version, f"t{number}"))
        raw.execute("BEGIN IMMEDIATE")
        raw.executemany(INSERT, rows)
        raw.execute("COMMIT")
    return batch * transactions / (time.perf_counter() - began)


def task(name: str) -> LockTask:
    """Return a task of a group of its own."""
    return LockTask(name, name, "wiki", 50)


def hour(number: int) -> Interval:
    """Return an hour counted from the start."""
    return Interval(START_MS + number * HOUR_MS, START_MS + (number + 1) * HOUR_MS)


if __name__ == "__main__":
    print_rows(run())
