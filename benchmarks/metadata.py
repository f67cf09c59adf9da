"""The metadata store beside the database itself: the same rows by bare ``executemany``.

On SQLite, in a file, with an fsync at each commit on both sides. The limit writes bare rows of the
same columns and looks at nothing: what a store that keeps promises costs is the difference. Both
are taken in turns in the same run, and the best of the rounds counts.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.table import Row, against, print_rows
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    LockRow,
    MetadataStore,
    PublishRequest,
    SegmentRow,
    TaskFilter,
    TaskRow,
    segment_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 5
SEGMENTS = 1000
LOCKS = 5000
HISTORY = 100_000
HOUR_MS = 3_600_000
PAYLOAD_BYTES = 800


def run() -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        with MetadataStore.open(f"sqlite:///{folder}/metadata.db") as store:
            bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
            bare.execute("PRAGMA journal_mode=WAL")
            bare.execute("PRAGMA synchronous=FULL")
            rows = [
                publish_row(store, bare),
                *allocation_rows(store, bare),
                locks_row(store, bare),
                *snapshot_rows(store),
                tasks_row(store),
            ]
            bare.close()
            return rows
    finally:
        shutil.rmtree(folder)


def best(*calls: Callable[[], None]) -> list[float]:
    """Return the least time that each call took, all in turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [min(times) for times in taken]


def write_bare(
    bare: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]
) -> None:
    """Write rows in one transaction."""
    bare.execute("BEGIN IMMEDIATE")
    bare.executemany(statement, rows)
    bare.execute("COMMIT")


def segment_rows(hour: int, number: int, count_: int) -> tuple[SegmentRow, ...]:
    """Return segments of one hour."""
    interval = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
    payload = {"columns": "x" * PAYLOAD_BYTES}
    return tuple(
        SegmentRow(segment_id("d", interval, "v1", n), "d", interval, "v1", n, 0, payload)
        for n in range(number, number + count_)
    )


def publish_row(store: MetadataStore, bare: sqlite3.Connection) -> Row:
    """Publish a thousand segments and move the offsets, in one transaction."""
    bare.execute(
        "CREATE TABLE segments (id TEXT PRIMARY KEY, datasource TEXT, start INT, end_ INT,"
        " version TEXT, number INT, core INT, used INT, created INT, changed INT, payload TEXT,"
        " UNIQUE (datasource, start, end_, version, number))"
    )
    round_ = count()
    bare_round = count()
    payload = "x" * (PAYLOAD_BYTES + 14)

    def ours() -> None:
        at = next(round_)
        rows = segment_rows(at, 0, SEGMENTS)
        done = store.publish(
            PublishRequest("t", "d", rows, "sup", {0: at}, {0: at + 1}, f"s{at}", kind="append")
        )
        assert done.ok

    def limit() -> None:
        at = next(bare_round)
        rows = [
            (f"{at}_{n}", "d", at, at + 1, "v1", n, 0, 1, 0, 0, payload) for n in range(SEGMENTS)
        ]
        statement = "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        write_bare(bare, statement, rows)

    mine, bound = best(ours, limit)
    return against(
        "metadata: publish 1,000 segments with offsets",
        SEGMENTS / mine,
        "segments/s",
        "executemany",
        SEGMENTS / bound,
    )


def allocation_rows(store: MetadataStore, bare: sqlite3.Connection) -> list[Row]:
    """Allocate places one by one and 500 at a time, in a chunk of a thousand segments."""
    bare.execute(
        "CREATE TABLE pending (datasource TEXT, start INT, end_ INT, version TEXT, number INT,"
        " core INT, sequence TEXT, created INT, PRIMARY KEY (datasource, start, end_, version,"
        " number), UNIQUE (datasource, sequence, start, end_, version))"
    )
    names, bare_names = count(), count()
    hour = Interval(0, HOUR_MS)
    statement = "INSERT INTO pending VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

    def ours(calls: int, size: int) -> None:
        for _ in range(calls):
            requests = [
                AllocateRequest("d", hour, f"a{next(names)}", "v1", allocator_id="a")
                for _ in range(size)
            ]
            assert None not in store.allocate_segments(requests)

    def limit(calls: int, size: int) -> None:
        for _ in range(calls):
            numbers = [next(bare_names) for _ in range(size)]
            rows: list[tuple[object, ...]] = [
                ("d", 0, HOUR_MS, "v1", n, 0, f"a{n}", 0) for n in numbers
            ]
            write_bare(bare, statement, rows)

    single = best(lambda: ours(20, 1), lambda: limit(20, 1))
    store.segments.delete_pending("d")
    many = best(lambda: ours(1, 500), lambda: limit(1, 500))
    store.segments.delete_pending("d")
    return [
        against(f"metadata: allocate, {name}", each / mine, "places/s", "executemany", each / bound)
        for name, each, (mine, bound) in (("one by one", 20, single), ("500 a call", 500, many))
    ]


def locks_row(store: MetadataStore, bare: sqlite3.Connection) -> Row:
    """Keep five thousand locks in one call, as new ones and as changed ones in turn."""
    bare.execute(
        "CREATE TABLE locks (task TEXT, datasource TEXT, granularity TEXT, type TEXT, start INT,"
        " end_ INT, version TEXT, number INT, group_ TEXT, priority INT, revoked INT, created INT,"
        " PRIMARY KEY (task, datasource, granularity, type, start, end_, version, number))"
    )
    round_, bare_round = count(), count()
    day = Interval(0, 24 * HOUR_MS)

    def ours() -> None:
        at = next(round_)
        store.locks.apply(
            added=[
                LockRow(f"t{at}_{n}", "d", "timeChunk", "APPEND", "g", day, "v1", 50)
                for n in range(LOCKS)
            ]
        )

    def limit() -> None:
        at = next(bare_round)
        rows: list[tuple[object, ...]] = [
            (f"t{at}_{n}", "d", "timeChunk", "APPEND", 0, 1, "v1", -1, "g", 50, 0, 0)
            for n in range(LOCKS)
        ]
        write_bare(bare, "INSERT INTO locks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    mine, bound = best(ours, limit)
    return against(
        "metadata: locks kept, 5,000 a call", LOCKS / mine, "1/s", "executemany", LOCKS / bound
    )


def snapshot_rows(store: MetadataStore) -> list[Row]:
    """What a query reads first: nothing changed, and one segment more among a hundred thousand."""
    for hour in range(ROUNDS, ROUNDS + HISTORY // SEGMENTS):
        store.publish(PublishRequest("t", "d", segment_rows(hour, 0, SEGMENTS)))
    known = store.snapshot()
    number = count(SEGMENTS)

    def unchanged() -> None:
        assert store.snapshot(known=known) is known

    def changed() -> None:
        nonlocal known
        store.publish(PublishRequest("t", "d", segment_rows(0, next(number), 1)))
        known = store.snapshot(known=known)

    def whole() -> None:
        store.snapshot()

    none, one, everything = best(unchanged, changed, whole)
    return [
        against("metadata: snapshot, unchanged", none * 1e3, "ms", "read anew", everything * 1e3),
        against(
            "metadata: publish 1 beside 100,000 and read",
            one * 1e3,
            "ms",
            "read anew",
            everything * 1e3,
        ),
    ]


def tasks_row(store: MetadataStore) -> Row:
    """List the newest hundred of two thousand complete tasks, beside a read of one."""
    payload = {"spec": "x" * 2000}
    for number in range(2000):
        store.tasks.insert_new([TaskRow(f"t{number}", "d", "index", "g", payload, state="SUCCESS")])

    def listed() -> None:
        found = store.tasks.summaries(TaskFilter(active=False, datasource="d"), limit=100)
        assert len(found) == 100

    def single() -> None:
        assert store.tasks.get("t1") is not None

    mine, one = best(listed, single)
    return against("metadata: list 100 tasks", mine * 1e3, "ms", "read one task", one * 1e3)


if __name__ == "__main__":
    print_rows(run())
