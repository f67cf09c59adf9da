"""A soak: a stream with a hand-off each minute, and what its processes keep of it.

Every resource that a hand-off takes is given back: descriptors, threads, memory, files and rows of
the metadata, but for the segments, and the history of tasks (see `soak_samples_kit`). Runs with
`PENSTOCK_SOAK_MINUTES=30`; a sample of every minute is printed and written beside the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.services.sql_client import ask
from tests.kits.soak_samples_kit import Sample, files_below, require_bounded, rows_of, uses_of
from tests.system.load_kit import PARTITIONS, SUPERVISOR, TOPIC, Load, Rig, running_rig

MINUTES = float(os.environ.get("PENSTOCK_SOAK_MINUTES", "0"))
HAND_OFF_S = float(os.environ.get("PENSTOCK_SOAK_HAND_OFF_S", "60"))
RATE_PER_S = 500
# Spark keeps the shuffle files of the last plans of a session (`spark.connect.session.planCache.
# maxSize`): as many queries come first, so that these files do not look like growth.
PLANS_KEPT = 16
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not MINUTES, reason="set PENSTOCK_SOAK_MINUTES=30 to run the soak"),
    pytest.mark.timeout(900 + 3 * 60 * MINUTES),
]


def sample(rig: Rig, minute: float, handoffs: int, events: int) -> Sample:
    processes = rig.processes()
    return Sample(
        *(round(minute, 1), handoffs, events),
        uses_of((one.name, one.pid) for one in processes),
        len(processes),
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


def test_hand_offs_leave_nothing_behind(rig: Rig, tmp_path: Path) -> None:
    load = Load(rig, RATE_PER_S)
    load.start()
    samples, handoffs = [], 0
    try:
        rig.until("the first rows", lambda: bool(rig.sums()[0]))
        for _ in range(PLANS_KEPT):
            ask(rig.api, f'SELECT count(*) FROM "{TOPIC}"')
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
