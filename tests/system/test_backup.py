"""Backup of a running Penstock under load, its restore at another path, and the guide to both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.services.sql_client import ask
from tests.system.load_kit import (
    HALF,
    PARTITIONS,
    SUPERVISOR,
    TOPIC,
    Load,
    cents_of,
    compaction,
    running_rig,
)
from tests.system.walking_kit import Walk, commands_of, write_files

pytestmark = pytest.mark.system

GUIDE = "howto/back-up-and-restore.md"
SHOWN = {
    "penstock sql": r"\b2\b",
    "penstock backup": r"topics: messages[\s\S]*segments",
    "penstock restore": r"restored holds the Penstock of 20",
}
RATE_PER_S = 200


def penstock(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    return done


def test_a_backup_under_load_is_exact_after_its_restore(tmp_path: Path, shared_spark: str) -> None:
    data, guide = tmp_path / "data", tmp_path / "guide"
    guide.mkdir()
    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark}
    with running_rig(data, variables) as rig:
        with BrokerClient(rig.server.broker_http) as broker:
            broker.create_topic(TOPIC, PARTITIONS)
        rig.api.post("/druid/indexer/v1/supervisor", SUPERVISOR)
        load = Load(rig, RATE_PER_S)
        load.start()
        try:
            # Not the tasks' end is tested here: it would be waited for.
            rig.until("some rows", lambda: bool(rig.sums()[0]))
            rig.hand_over()
            rig.until("some segments", rig.has_segments)
            # Its input is marked unused while the backup runs, or before.
            rig.api.post("/druid/indexer/v1/task", compaction(HALF))
            acknowledged = load.acknowledged
            done = penstock("backup", "--data-dir", str(data), str(tmp_path / "backup"))
            assert done.returncode == 0, done.stderr
            most = load.acknowledged + RATE_PER_S
        finally:
            load.stop()
        write_files(GUIDE, guide)
        typed = Walk(guide, {"PENSTOCK_DATA_DIR": str(data)}, SHOWN)
        commands = commands_of(GUIDE)
        assert len(commands) == 7
        for command in commands:
            typed.type(command)
        assert (guide / "restored" / "metadata.db").exists()
    # What the restored one must not look at.
    data.rename(tmp_path / "gone")
    restored = tmp_path / "elsewhere" / "restored"
    done = penstock("restore", str(tmp_path / "backup"), "--data-dir", str(restored))
    assert done.returncode == 0, done.stderr
    with running_rig(restored, variables) as rig:
        sql = f'SELECT count(*), count(DISTINCT seq), min(seq), max(seq), sum(cents) FROM "{TOPIC}"'

        def found() -> list[int]:
            return [int(str(value)) for value in ask(rig.api, sql).rows[0]]

        with BrokerClient(rig.server.broker_http) as broker:
            copied = sum(one.latest for one in broker.offsets(TOPIC).partitions)
        rig.until("what was copied", lambda: found()[0] >= copied)
        count, distinct, first, last, _ = seen = found()
        assert acknowledged <= count == distinct == copied <= most
        # Batches after the begin may be missing: a partition is copied after the other.
        known = f'SELECT count(*), sum(cents) FROM "{TOPIC}" WHERE seq < {acknowledged}'
        numbers = np.arange(acknowledged, dtype=np.int64)
        assert tuple(ask(rig.api, known).rows[0]) == (acknowledged, int(cents_of(numbers).sum()))
        assert first == 0
        assert last < most
        rig.run_task(compaction(HALF), 300)
        assert found() == seen
    assert not (tmp_path / "data").exists()
