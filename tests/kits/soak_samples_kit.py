"""Samples of the resources of the processes of a Penstock, and whether they stay bounded."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

# The first hand-offs import, compile and fill pools; growth is judged after them.
WARM_UP_SHARE = 1 / 3

# Processes that live as long as Penstock; peons and Spark's Python workers come and go.
LASTING = ("launcher", "broker", "overlord", "flow", "worker", "router", "spark", "queries")

# A task ends every 20 s and with each hand-off: up to five in a minute, each with a segment of each
# of four hours. The number for each hand-off is twice that.
# Files that stay, by their folder in the data folder.
FILES_PER_HAND_OFF: Mapping[str, int] = {
    "segments": 80,  # a file and its checksum for each segment
    "log": 30,  # of each task its log, its report and its status
}
# Rows that stay, at least for longer than a soak lasts, by their table.
ROWS_PER_HAND_OFF: Mapping[str, int] = {
    "penstock_segments": 40,
    "penstock_pending": 40,  # kept for six hours, in case that their task still publishes
    "penstock_tasks": 10,  # kept for 90 days
    "penstock_published": 10,
}


@dataclass(frozen=True)
class Use:
    """Resources that one process uses."""

    pid: int
    descriptors: int
    threads: int
    rss_mb: int


@dataclass(frozen=True)
class Sample:
    """Resources that all processes use at one time, files by folder and rows by table."""

    minute: float
    handoffs: int
    events: int
    processes: dict[str, Use]
    all_processes: int
    files: dict[str, int]
    rows: dict[str, int]


def use_of(pid: int) -> Use:
    """Return what a process uses now."""
    process = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return Use(
        pid,
        len(list((process / "fd").iterdir())),
        int(status["Threads"]),
        int(status["VmRSS"].split()[0]) // 1024,
    )


def uses_of(processes: Iterable[tuple[str, int]]) -> dict[str, Use]:
    """Return what the lasting ones of processes use, given as (name, process id)."""
    uses = {}
    for name, pid in processes:
        if name in LASTING:
            with suppress(OSError):
                uses[name] = use_of(pid)
    return uses


def files_below(folder: Path) -> dict[str, int]:
    """Return how many files each folder of the data folder holds."""
    return {
        top.name: sum(len(files) for _, _, files in os.walk(top))
        for top in sorted(folder.iterdir())
        if top.is_dir()
    }


def rows_of(database: Path) -> dict[str, int]:
    """Return how many rows each table of an SQLite database has."""
    with closing(sqlite3.connect(database.as_uri() + "?mode=ro", uri=True)) as connection:
        names = [
            str(name)
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
            for name in names
        }


def require_bounded(samples: Sequence[Sample]) -> None:
    """Require that what is held late in the run is what was held after the warm-up.

    Connections, running tasks and threads of pools come and go, so the least of the last quarter
    stands against the most of the minutes after the warm-up: one more for each hand-off shows.
    Files and rows may grow by what a hand-off adds for good.
    """
    count = len(samples)
    warm = samples[int(count * WARM_UP_SHARE) : max(int(count / 2), 1)]
    late = samples[-max(count // 4, 1) :]
    spare = max(4, (late[-1].handoffs - warm[0].handoffs) // 4)
    for name in LASTING:
        before = [one.processes[name] for one in warm]
        after = [one.processes[name] for one in late]
        assert {one.pid for one in after} == {before[0].pid}, f"{name} was restarted"
        for kind in ("descriptors", "threads"):
            most = max(getattr(one, kind) for one in before) + spare
            assert min(getattr(one, kind) for one in after) <= most, (name, kind, before, after)
        most_mb = max(one.rss_mb for one in before) * 1.3 + 50
        assert min(one.rss_mb for one in after) <= most_mb, (name, before, after)
    handoffs = late[0].handoffs - warm[-1].handoffs
    for kind, per_hand_off in (("files", FILES_PER_HAND_OFF), ("rows", ROWS_PER_HAND_OFF)):
        for name in sorted({name for one in late for name in getattr(one, kind)}):
            then = [getattr(one, kind).get(name, 0) for one in warm]
            now = [getattr(one, kind).get(name, 0) for one in late]
            most = max(then) + spare + per_hand_off.get(name, 0) * handoffs
            assert min(now) <= most, (kind, name, then, now)


def counts_of(sample: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the files and rows of a sample in JSON as counts of the record."""
    return {
        f"{kind}_{name.removeprefix('penstock_')}": value
        for kind in ("files", "rows")
        for name, value in sample[kind].items()
    }
