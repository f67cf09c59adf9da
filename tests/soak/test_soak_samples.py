"""The judgement of the soak of hand-offs: each kind of leak is found, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.kits.soak_samples_kit import (
    FILES_PER_HAND_OFF,
    LASTING,
    ROWS_PER_HAND_OFF,
    Sample,
    Use,
    counts_of,
    files_below,
    require_bounded,
    rows_of,
    uses_of,
)

MINUTES = 30
Change = Callable[[Sample], Sample]


def steady(minute: int) -> Sample:
    """Return a sample of a run that leaks nothing: some things come and go."""
    noise = minute % 3
    uses = {
        name: Use(at, 30 + noise, 12 + noise, 500 + 9 * noise) for at, name in enumerate(LASTING)
    }
    files = {"tasks": 10 + noise, "run": 9, "segments": FILES_PER_HAND_OFF["segments"] * minute}
    rows = {
        "penstock_task_locks": noise,
        "penstock_tasks": ROWS_PER_HAND_OFF["penstock_tasks"] * minute,
    }
    return Sample(minute, minute, 30_000 * minute, uses, 20, files, rows)


def process(kind: str, per_minute: int) -> Change:
    def change(one: Sample) -> Sample:
        use = one.processes["worker"]
        more = {**asdict(use), kind: getattr(use, kind) + per_minute * one.handoffs}
        return replace(one, processes={**one.processes, "worker": Use(**more)})

    return change


def held(kind: str, name: str, per_minute: int) -> Change:
    def change(one: Sample) -> Sample:
        found: dict[str, int] = getattr(one, kind)
        found = {**found, name: found.get(name, 0) + per_minute * one.handoffs}
        return replace(one, files=found) if kind == "files" else replace(one, rows=found)

    return change


def test_a_run_that_leaks_nothing_passes() -> None:
    require_bounded([steady(minute) for minute in range(1, MINUTES + 1)])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (process("descriptors", 1), "'worker', 'descriptors'"),
        (process("threads", 1), "'worker', 'threads'"),
        (process("rss_mb", 50), "rss_mb"),
        (process("pid", 1), "worker was restarted"),
        (held("files", "tasks", 1), "'files', 'tasks'"),
        (held("files", "new folder", 1), "'files', 'new folder'"),
        (held("files", "segments", 1), "'files', 'segments'"),
        (held("rows", "penstock_task_locks", 1), "'rows', 'penstock_task_locks'"),
        (held("rows", "penstock_tasks", 1), "'rows', 'penstock_tasks'"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_one_more_for_each_hand_off_is_found(change: Change, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        require_bounded([change(steady(minute)) for minute in range(1, MINUTES + 1)])


def test_samples_are_of_processes_files_and_rows(tmp_path: Path) -> None:
    uses = uses_of([("worker", os.getpid()), ("peon", os.getpid()), ("router", 2**22 + 1)])
    assert uses.keys() == {"worker"}
    assert uses["worker"].descriptors > 2
    assert uses["worker"].rss_mb > 10
    folder = tmp_path / "a b#ü%20%"
    (folder / "tasks" / "t").mkdir(parents=True)
    (folder / "tasks" / "t" / "task.json").touch()
    with closing(sqlite3.connect(folder / "metadata.db")) as database:
        database.executescript(
            "CREATE TABLE penstock_tasks (a); INSERT INTO penstock_tasks VALUES (1), (2)"
        )
    files, rows = files_below(folder), rows_of(folder / "metadata.db")
    assert (files, rows) == ({"tasks": 1}, {"penstock_tasks": 2})
    assert counts_of({"files": files, "rows": rows}) == {"files_tasks": 1, "rows_tasks": 2}
