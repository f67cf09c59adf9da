"""A worker, its peons and its spares as real processes: killed with -9, frozen, started again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.errors import Conflict
from penstock.indexing.ports import HistoryPlace, TaskState
from penstock.services.json_client import JsonClient
from tests.system.worker_kit import (
    RealWorker,
    fork_servers,
    freeze,
    is_alive,
    peon_processes,
    wait_for,
)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWorker]:
    """A worker whose tasks have names of their own in each test."""
    folder = tmp_path_factory.mktemp("worker")
    made = RealWorker(folder, "--task-shutdown-timeout", "1s", "--http", "127.0.0.1:0")
    made.start()
    yield made
    assert made.stop() == 0
    assert not peon_processes(made.pid)
    assert not fork_servers(made.pid)


def test_a_task_runs_on_a_spare_and_its_end_is_told_at_once(worker: RealWorker) -> None:
    spare = worker.spare()
    place = worker.client.changes(HistoryPlace(), 0).place
    worker.noop("short", 0)
    assert worker.running("short") == spare
    until_s = time.monotonic() + 180
    told = worker.client.changes(place, 10_000)
    while not any(task.state.complete for task in told.tasks) and time.monotonic() < until_s:
        told = worker.client.changes(told.place, 10_000)
    assert [task.state for task in told.tasks] == [TaskState.SUCCESS]
    wait_for("end of the process", lambda: not is_alive(spare))
    assert b"the task ended: SUCCESS" in worker.client.read_log("short").content
    assert b'"ingestionState":"COMPLETED"' in worker.client.read_report("short")
    assert worker.spare() != spare  # one process runs one task
    worker.client.shutdown("short")
    assert worker.task("short") is None


def test_exit_codes_are_read_where_the_caller_ignores_ends_of_children(tmp_path: Path) -> None:
    """As a shell does after `trap '' CHLD`; programs that it starts ignore them, too."""
    worker = RealWorker(tmp_path, "--http", "127.0.0.1:0")
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        worker.start()
    finally:
        signal.signal(signal.SIGCHLD, previous)
    server, spare = worker.fork_server(), worker.spare()
    worker.noop("a", 600_000)
    assert worker.running("a") == spare
    os.kill(spare, signal.SIGKILL)
    assert "exit code -9" in worker.ended("a").error
    assert worker.spare() != spare
    assert worker.fork_server() == server
    assert worker.stop() == 0


def test_whatever_is_killed_every_task_ends_and_nothing_is_left(worker: RealWorker) -> None:
    chance = random.Random(7)
    killed = chance.sample(["worker", "peon", "spare", "server"] * 2, 8)
    task_ids = [f"{number}-{victim}" for number, victim in enumerate(killed)]
    for task_id, victim in zip(task_ids, killed, strict=True):
        worker.noop(task_id, 600_000)
        peon = worker.running(task_id)
        if victim == "peon":
            os.kill(peon, signal.SIGKILL)
            assert "exit code -9" in worker.ended(task_id).error
        elif victim == "worker":
            worker.kill()
            worker.start()
            # The kernel kills the peon, unless the end of its input has stopped it before.
            ends = ("its worker ended while it ran", "the task was stopped with its process")
            assert any(end in worker.ended(task_id).error for end in ends)
        else:
            ask = worker.spare if victim == "spare" else worker.fork_server
            gone = ask()
            os.kill(gone, signal.SIGKILL)
            wait_for(f"new {victim}", lambda ask=ask, gone=gone: ask() != gone)
            task = worker.task(task_id)
            assert task is not None
            assert task.state is TaskState.RUNNING
            worker.client.shutdown(task_id)
            assert worker.ended(task_id).error == "it was shut down"
        assert worker.ended(task_id).state is TaskState.FAILED
        worker.client.shutdown(task_id)
    # The folders of forgotten tasks are there for a while, so the next worker tells of them again.
    for task in worker.client.report().tasks:
        assert task.state is TaskState.FAILED or task.id not in task_ids
        worker.client.shutdown(task.id)
    assert worker.client.report().tasks == ()


def test_a_peon_that_hears_nothing_is_killed_and_reported(worker: RealWorker) -> None:
    worker.noop("frozen", 600_000)
    peon = worker.running("frozen")
    freeze(peon)
    worker.client.shutdown("frozen")
    ended = worker.ended("frozen")
    assert ended.error == "it was shut down; its peon did not end within 1 s and was killed"
    assert not is_alive(peon)


def test_a_worker_that_stops_fails_tasks_that_cannot_go_on_and_keeps_the_word(
    worker: RealWorker,
) -> None:
    worker.noop("stopped", 600_000)
    worker.running("stopped")
    assert worker.stop() == 0
    worker.start()
    assert "the task was stopped with its process" in worker.ended("stopped").error


def test_two_workers_do_not_share_their_folders(worker: RealWorker) -> None:
    second = worker.spawn()
    assert second.wait(180) != 0
    assert "another process" in worker.output.read_text()


def test_that_it_is_disabled_survives_a_kill(worker: RealWorker) -> None:
    JsonClient(worker.client.address.url).post("/druid/worker/v1/disable")
    worker.kill()
    worker.start()
    assert not worker.client.report().enabled
    with pytest.raises(Conflict, match="disabled"):
        worker.noop("refused", 0)
    JsonClient(worker.client.address.url).post("/druid/worker/v1/enable")
    assert worker.client.report().enabled
