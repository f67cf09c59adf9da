"""The runner's table and how its workers stand, each alone: no worker is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from indexing_kit import make_task

from penstock.core.errors import Unavailable
from penstock.indexing.overlord.runner.ports import RunnerOptions, TaskEnd
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.table import Table
from penstock.indexing.overlord.runner.worker_blacklist import BlacklistOptions
from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
from penstock.indexing.overlord.runner.worker_sync import Hearing
from penstock.indexing.overlord.runner.worker_table import KnownWorker
from penstock.indexing.ports import TaskLocation, TaskState, WorkerReport, WorkerTask
from penstock.testing.clock import VirtualClock


@dataclass
class Told:
    """What the table tells."""

    stored: list[dict[str, str | None]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    ends: list[TaskEnd] = field(default_factory=list)
    error: Exception | None = None

    def wanted(self, _task_id):
        return None

    def placed(self, workers) -> None:
        if self.error:
            raise self.error
        self.stored.append(dict(workers))

    def changed(self, task_id) -> None:
        self.changes.append(task_id)

    def ended(self, ends) -> None:
        self.ends += ends


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def table(told) -> Table:
    return Table(VirtualClock(), told)


def task(name="a"):
    return make_task().model_copy(update={"id": name})


def test_a_task_is_pending_or_with_one_worker(table, told):
    item = table.add(task())
    table.wait(item)
    assert "a" in table.pending
    worker = table.worker("w")
    table.put(item, worker, Phase.SENDING)
    assert ("a" in table.pending, list(worker.items), item.taken) == (False, ["a"], False)
    table.enter(item, Phase.ACCEPTED)
    assert item.taken
    table.take_back([item])
    assert ("a" in table.pending, list(worker.items), item.worker) == (True, [], None)
    assert told.stored == [{"a": None}]
    assert told.changes == ["a"] * 4
    assert table.drop("a") is None
    assert (len(table.pending), table.items) == (0, {})


def test_that_a_task_waits_again_counts_though_it_cannot_be_stored(table, told):
    item = table.add(task())
    table.put(item, table.worker("w"), Phase.UNSURE)
    told.error = Unavailable("the store is away")
    table.take_back([item])
    assert "a" in table.pending


def test_a_task_ends_once_and_stays_until_it_is_dropped(table, told):
    table.restore(task(), "w")
    item = table.items["a"]
    assert (item.taken, told.changes) == (True, [])
    for state in (TaskState.SUCCESS, TaskState.FAILED):
        table.end([(item, state, "")])
    assert told.ends == [TaskEnd("a", TaskState.SUCCESS, "", "w")]
    worker = table.drop("a")
    assert worker is table.worker("w")
    assert worker.items == {}
    assert table.drop("a") is None


def test_where_a_peon_answers_is_told_when_it_is_new(table, told):
    item = table.add(task())
    for _ in range(2):
        table.locate(item, TaskLocation("h", 1))
    assert told.changes == ["a"]


def test_what_a_forgotten_worker_answers_is_not_of_the_one_that_is_back(table, told, monkeypatch):
    clock, options, asked = VirtualClock(), RunnerOptions(), []
    monkeypatch.setattr(told, "wanted", task)
    calls = SimpleNamespace(call=lambda _lane, _work, done, _failed: asked.append(done))
    hearing = Hearing(
        *(table, WorkerEligibility(clock, options), told, calls, clock, options), heard=lambda: None
    )
    report = WorkerReport(4, (WorkerTask("a", TaskState.RUNNING, None, ""),))
    gone = table.worker("w")
    gone.client = SimpleNamespace(name="w", host="h:1", report=None)
    hearing.ask_for_all(gone)
    del table.workers["w"]
    back = table.worker("w")
    back.client = gone.client
    asked.pop()(report)
    assert (table.items, back.capacity) == ({}, 0)
    hearing.ask_for_all(back)
    asked.pop()(report)
    assert (list(back.items), back.capacity) == (["a"], 4)


def test_what_speaks_against_a_worker():
    clock = VirtualClock()
    blacklist = BlacklistOptions(failures_max=1, workers_max_percent=100)
    standing = WorkerEligibility(clock, RunnerOptions(worker_version_min="2", blacklist=blacklist))
    worker = KnownWorker("w", clock.monotonic_s(), version="1")
    assert "announced" in standing.barred(worker)
    worker.client, standing.announced = SimpleNamespace(host="h:1"), {"w"}
    assert "too old" in standing.barred(worker)
    worker.version, worker.enabled = "2", False
    assert "disabled" in standing.barred(worker)
    worker.enabled = True
    assert standing.barred(worker) == ""
    standing.ended(worker, [TaskState.FAILED, TaskState.FAILED])
    assert "tasks failed there" in standing.barred(worker)
    assert standing.view(worker).blacklisted_until_ms is not None
    standing.ended(worker, [TaskState.SUCCESS])
    assert standing.barred(worker) == ""
    clock.advance_to(clock.monotonic_s() + 31)
    assert "not answered" in standing.barred(worker)
    assert (standing.lost(worker), standing.view(worker).silent_s) == ("", 31)
    clock.advance_to(clock.monotonic_s() + 100)
    assert "not answered" in standing.lost(worker)
    assert standing.view(worker) is None
