"""A soak: a stream with a hand-off each minute, and what its processes keep of it.

Every resource that a hand-off takes is given back: descriptors, threads, memory, files. Runs with
`PENSTOCK_SOAK_MINUTES=30`; a sample of every minute is printed and written beside the data.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from load_kit import PARTITIONS, SUPERVISOR, TOPIC, Load, Rig, running_rig

from penstock.broker.http_client import BrokerClient
from penstock.services.sql_client import ask

MINUTES = float(os.environ.get("PENSTOCK_SOAK_MINUTES", "0"))
HAND_OFF_S = float(os.environ.get("PENSTOCK_SOAK_HAND_OFF_S", "60"))
RATE_PER_S = 500
# The first hand-offs import, compile and fill pools; growth is judged after them.
WARM_UP_SHARE = 1 / 3

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not MINUTES, reason="set PENSTOCK_SOAK_MINUTES=30 to run the soak"),
    pytest.mark.timeout(600 + 3 * 60 * MINUTES),
]

# Processes that live as long as Penstock; peons and Spark's Python workers come and go.
LASTING = ("launcher", "broker", "overlord", "flow", "worker", "router", "spark", "queries")


@dataclass(frozen=True)
class Use:
    """Resources that one process uses."""

    pid: int
    descriptors: int
    threads: int
    rss_mb: int


@dataclass(frozen=True)
class Sample:
    """Resources that all processes use at one time."""

    minute: float
    handoffs: int
    events: int
    processes: dict[str, Use]
    all_processes: int
    files: dict[str, int]
    rows: dict[str, int]


def use_of(pid: int) -> Use:
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


def files_below(folder: Path) -> dict[str, int]:
    """Return how many files each folder of the data folder holds."""
    found: dict[str, int] = {}
    for top in sorted(folder.iterdir()):
        if top.is_dir():
            found[top.name] = sum(len(files) for _, _, files in os.walk(top))
    return found


def rows_of(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        names = [
            str(name)
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0])
            for name in names
        }


def sample(rig: Rig, minute: float, handoffs: int, events: int) -> Sample:
    processes = rig.processes()
    uses = {}
    for one in processes:
        if one.name in LASTING:
            with suppress(OSError):
                uses[one.name] = use_of(one.pid)
    return Sample(
        *(round(minute, 1), handoffs, events, uses, len(processes)),
        files_below(rig.folder),
        rows_of(rig.folder / "metadata.db"),
    )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    # Both JVMs run, as they do by default; see tests/conftest.py.
    with running_rig(tmp_path / "data", {"PENSTOCK_QUERY_MEMORY": "1g"}) as made:
        with BrokerClient(made.server.broker_http) as broker:
            broker.create_topic(TOPIC, PARTITIONS)
        made.api.post("/druid/indexer/v1/supervisor", SUPERVISOR)
        yield made


def require_bounded(samples: Sequence[Sample]) -> None:
    """Require that what a process holds late in the run is what it held after the warm-up.

    Connections, running tasks and threads of pools come and go, so the least of the last quarter
    stands against the most of the minutes after the warm-up: one more for each hand-off shows.
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


def test_hand_offs_leave_nothing_behind(rig: Rig, tmp_path: Path) -> None:
    load = Load(rig, RATE_PER_S)
    load.start()
    samples, handoffs = [], 0
    try:
        rig.until("the first rows", lambda: bool(rig.sums()[0]))
        begun_s = rig.clock.monotonic_s()
        while (now_s := rig.clock.monotonic_s() - begun_s) < 60 * MINUTES:
            due_s = (handoffs + 1) * HAND_OFF_S
            rig.wait(max(0.0, due_s - now_s))
            rig.hand_over()
            handoffs += 1
            ask(rig.api, f'SELECT count(*) FROM "{TOPIC}"')
            one = sample(rig, (rig.clock.monotonic_s() - begun_s) / 60, handoffs, load.acknowledged)
            samples.append(one)
            line = json.dumps(asdict(one))
            print(line, flush=True)
            with (tmp_path / "samples.jsonl").open("a") as stream:
                stream.write(line + "\n")
    finally:
        load.stop()
    rig.until("every event", lambda: rig.sums()[0] >= load.acknowledged, 300)
    assert rig.sums() == load.sums()
    require_bounded(samples)
