"""A data folder that is moved: made by the code before paths became relative, and by today's.

Its Penstock is killed as a whole once: here that costs no start of Spark, as it does in `test_up`.
"""

from __future__ import annotations

import sqlite3
import tarfile
from pathlib import Path

import pytest

from penstock.broker.broker_client import BrokerClient
from tests.system.load_kit import HALF, PARTITIONS, TOPIC, Rig, compaction, events, running_rig

pytestmark = pytest.mark.system

# Holds 2,000 events: 1,000 in segments, half of them compacted, and 1,000 in a task's folder.
OLD_FOLDER = Path(__file__).parent / "folders" / "before-relative-paths.tar.xz"
OLD_EVENTS = 2_000
BATCH = 250


def publish(rig: Rig, first: int, end: int) -> None:
    with BrokerClient(rig.server.broker_http) as broker:
        for number in range(first // BATCH, end // BATCH):
            broker.publish(
                TOPIC,
                list(events(number * BATCH, BATCH)),
                partition=number % PARTITIONS,
                producer=("moved", number + 1),
            )


def until_exact(rig: Rig, count: int) -> None:
    rig.until(f"{count} events", lambda: rig.sums()[:2] == (count, count), 120)


def task_states(folder: Path) -> dict[str, str]:
    with sqlite3.connect(folder / "metadata.db") as connection:
        return dict(connection.execute("SELECT id, state FROM penstock_tasks"))


def failed_tasks(folder: Path) -> set[str]:
    return {name for name, state in task_states(folder).items() if state == "FAILED"}


def test_an_old_folder_works_at_another_place_and_again_after_a_kill_and_a_move(
    tmp_path: Path, shared_spark: str
) -> None:
    with tarfile.open(OLD_FOLDER) as archive:
        archive.extractall(tmp_path, filter="data")
    moved = tmp_path / "moved"
    (tmp_path / "old").rename(moved)
    streaming = [name for name, state in task_states(moved).items() if state == "RUNNING"]
    assert streaming
    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark}

    def published() -> bool:
        publish(rig, OLD_EVENTS + 1_500, OLD_EVENTS + 2_000)
        return True

    with running_rig(moved, variables) as rig:
        until_exact(rig, OLD_EVENTS)
        publish(rig, OLD_EVENTS, OLD_EVENTS + 1_000)
        until_exact(rig, OLD_EVENTS + 1_000)
        assert not failed_tasks(moved)
        publish(rig, OLD_EVENTS + 1_000, OLD_EVENTS + 1_500)
        rig.kill("launcher")
        rig.until("a broker", published)
        until_exact(rig, OLD_EVENTS + 2_000)
        failed = failed_tasks(moved)  # it read when it was killed
    again = tmp_path / "again"
    moved.rename(again)
    before = {name for name, state in task_states(again).items() if state == "RUNNING"}
    assert before
    # Whoever still reads the former place finds nothing of use there.
    moved.mkdir()
    with running_rig(again, variables) as rig:
        until_exact(rig, OLD_EVENTS + 2_000)
        rig.hand_over(TOPIC)
        rig.until("the segments", lambda: rig.is_published(TOPIC), 300)
        rig.run_task(compaction(HALF), 300)
        publish(rig, OLD_EVENTS + 2_000, OLD_EVENTS + 3_000)
        until_exact(rig, OLD_EVENTS + 3_000)
        assert failed_tasks(again) == failed
    assert list(moved.iterdir()) == []
    with sqlite3.connect(again / "metadata.db") as connection:
        for table in ("penstock_segments", "penstock_announced", "penstock_tasks"):
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            assert str(tmp_path) not in str(rows), table
