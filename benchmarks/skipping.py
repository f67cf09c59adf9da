"""The part of many segments that a search for one value reads, and the cost of writing them so.

    .venv/bin/python -m benchmarks.skipping [SEGMENTS]

Each segment has 262,144 rows of five columns with 20,000 different users, sorted by time; the
wanted user has rows in one of the segments. All others are one file under many names,
because only its bytes matter. Bytes read are those that the kernel counts for the process
(`rchar`); the footers count too. Writing is processor time with the index against that without
it, alternately, and the ratio is the median of pairs.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.table import Row, against, print_rows
from penstock.spark.chunk_files import FileForm, write_table

SEGMENTS = 1_000
ROWS = 256 * 1024
USERS = 20_000
ROUNDS = 9
KEYS = ("__time",)
WANTED = "user-010000x"  # within the minimum and maximum of all segments


def segment(*, has_wanted: bool) -> pa.Table:
    """Return the rows of a segment."""
    random = np.random.default_rng(7)
    users = [f"user-{number:06d}" for number in random.integers(0, USERS, ROWS)]
    if has_wanted:
        users[ROWS // 2] = WANTED
    times = np.sort(random.integers(0, 3_600_000_000, ROWS))
    return pa.table(
        {
            "__time": pa.array(times, pa.timestamp("us", "UTC")),
            "user": users,
            "page": [f"/articles/{number}" for number in random.zipf(1.3, ROWS) % 5_000],
            "added": pa.array(random.integers(0, 1_000_000, ROWS)),
            "delta": pa.array(random.normal(size=ROWS)),
        }
    )


def writing(folder: Path) -> list[Row]:
    """Return the cost of the filters for writing a segment."""
    rows = segment(has_wanted=False)
    forms = {
        True: FileForm(1, KEYS, ("user", "page")),
        False: FileForm(1, KEYS),
    }
    spent: dict[bool, list[float]] = {True: [], False: []}
    sizes: dict[bool, int] = {}
    for number in range(ROUNDS):
        for is_on in (number % 2 == 0, number % 2 == 1):
            path = folder / f"{is_on}.parquet"
            started = time.process_time()
            write_table(rows, path, forms[is_on])
            spent[is_on].append((time.process_time() - started) * 1_000)
            sizes[is_on] = path.stat().st_size
    ratio = statistics.median(on / off for on, off in zip(spent[True], spent[False], strict=True))
    ours, peer = (statistics.median(spent[is_on]) for is_on in (True, False))
    return [
        Row("write a segment with Bloom filters", ours, "ms", "without", peer, ratio),
        against("size of a segment", sizes[True] / 1_000, "kB", "without", sizes[False] / 1_000),
    ]


def searching(folder: Path, segments: int) -> list[Row]:
    """Return how much a search for one user reads."""
    form = FileForm(1, KEYS, ("user", "page"))
    write_table(segment(has_wanted=True), folder / "wanted.parquet", form)
    write_table(segment(has_wanted=False), folder / "s0.parquet", form)
    for number in range(1, segments - 1):
        os.link(folder / "s0.parquet", folder / f"s{number}.parquet")
    paths = [str(folder / "wanted.parquet")]
    paths += [str(folder / f"s{number}.parquet") for number in range(segments - 1)]
    size = sum(Path(path).stat().st_size for path in paths)
    rows = []
    with duckdb.connect() as engine:
        engine.execute("SET threads = 1; SET parquet_metadata_cache = true")
        for how in ("at first", "with footers in memory"):
            before, started = _bytes_read(), time.process_time()
            found = engine.execute(
                "SELECT added FROM read_parquet($1) WHERE user = $2", [paths, WANTED]
            ).fetchall()
            took_ms, read = (time.process_time() - started) * 1_000, _bytes_read() - before
            assert len(found) == 1
            title = f"find a user in {segments:,} segments, {how}"
            share = read / size
            rows += [
                Row(f"{title}: read", read / 1e6, "MB", "all", size / 1e6, share, "<= 0.01"),
                Row(f"{title}: processor time", took_ms, "ms"),
            ]
    return rows


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def run(segments: int = SEGMENTS) -> list[Row]:
    """Write, then search."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        return [*writing(Path(folder)), *searching(Path(folder), segments)]


if __name__ == "__main__":
    print_rows(run(*map(int, sys.argv[1:])))
