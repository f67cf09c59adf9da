"""Several workers on one data folder: each has task folders, options and a name of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.indexing.ports import TaskState
from penstock.indexing.task_spec import parse_task
from penstock.services.api.process_clients import LeasedWorkers
from penstock.services.membership.leases import LeaseDirectory
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url
from tests.system.worker_kit import RealWorker, wait_for

pytestmark = pytest.mark.system


def test_two_workers_share_a_data_folder(tmp_path: Path) -> None:
    made = [
        RealWorker(
            tmp_path, "--http", "127.0.0.1:0", "--task-folders", str(tmp_path / f"tasks{n}"),
            "--worker-category", f"c{n}", "--worker-spares", "0",
        )
        for n in (1, 2)
    ]  # fmt: skip
    processes = [one.spawn() for one in made]
    try:
        wait_for("metadata", (tmp_path / "data" / "metadata.db").exists)
        url = sqlite_url(tmp_path / "data" / "metadata.db")
        with MetadataStore.open(url, clock=SystemClock()) as store:
            workers = LeasedWorkers(LeaseDirectory(store.leases))
            wait_for("both workers", lambda: len(workers.workers()) == 2)
            found = {one.report().category: one for one in workers.workers()}
            assert set(found) == {"c1", "c2"}
            assert len({one.name for one in workers.workers()}) == 2
            for n, one in enumerate(found.values()):
                one.assign(parse_task({"type": "noop", "id": f"t{n}", "runTime": 1}))
            for n, one in enumerate(found.values()):
                ended = wait_for(
                    f"end of t{n}",
                    lambda one=one: [t for t in one.report().tasks if t.state.complete],
                )
                assert [(task.id, task.state) for task in ended] == [(f"t{n}", TaskState.SUCCESS)]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(180)
