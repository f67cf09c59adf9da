"""The parts of the runner, each alone: its tables, what reports mean, how its workers stand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.state_machine import Transition
from penstock.indexing.operator_events import NoEvents
from penstock.indexing.overlord.runner.runner_options import BlacklistOptions, RunnerOptions
from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
from penstock.indexing.overlord.runner.worker_sync import WorkerSync
from penstock.indexing.overlord.runner.worker_table import KnownWorker, RunnerTasks, WorkerView
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    ActiveTaskState,
    QueuedTask,
    ReportedEvent,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.ports import TaskState, WorkerReport, WorkerTask
from penstock.testing.clock import VirtualClock
from tests.indexing.indexing_kit import make_task

S, E = ActiveTaskState, TaskEvent


def _view(standing: WorkerEligibility, worker: KnownWorker) -> WorkerView:
    found = standing.view(worker)
    assert found is not None
    return found


@pytest.fixture
def entries() -> dict[str, QueuedTask]:
    return {}


@pytest.fixture
def tasks(entries: dict[str, Any]) -> RunnerTasks:
    return RunnerTasks(entries, VirtualClock())


def entry(name: str = "a") -> QueuedTask:
    return QueuedTask(make_task().model_copy(update={"id": name}), 0, 0)


def test_a_task_is_pending_or_with_one_worker(tasks: RunnerTasks) -> None:
    one = entry()
    tasks.enter(one, S.WAITING)
    tasks.enter(one, S.PENDING)
    assert "a" in tasks.pending
    worker = tasks.worker("w")
    tasks.enter(one, S.SENDING)
    tasks.assign(one, "w")
    assert ("a" in tasks.pending, list(worker.items), one.taken) == (False, ["a"], False)
    assert worker.unacknowledged == 1
    tasks.enter(one, S.ACCEPTED)
    assert (one.taken, worker.unacknowledged) == (True, 0)
    assert tasks.clear(one) is worker
    tasks.enter(one, S.PENDING)
    assert ("a" in tasks.pending, list(worker.items), one.worker) == (True, [], None)
    tasks.enter(one, S.ENDED)
    assert tasks.clear(one) is None
    assert len(tasks.pending) == 0


def test_a_task_that_comes_back_keeps_its_age_and_one_that_yielded_its_locks_does_not(
    tasks: RunnerTasks,
) -> None:
    one, two = entry("one"), entry("two")
    for each in (one, two):
        tasks.enter(each, S.WAITING)
        tasks.enter(each, S.PENDING)
    tasks.enter(one, S.SENDING)
    tasks.enter(one, S.PENDING)
    assert one.order < two.order
    tasks.enter(one, S.WAITING)
    tasks.enter(one, S.PENDING)
    assert two.order < one.order


def test_a_restored_task_is_with_its_worker(tasks: RunnerTasks) -> None:
    one = entry()
    tasks.assign(one, "w")
    tasks.enter(one, S.RESTORED)
    assert (one.taken, one.confirmed) == (True, False)
    tasks.assign(one, "renamed")
    assert (tasks.worker("w").items, list(tasks.worker("renamed").items)) == ({}, ["a"])


class SyncWorld:
    """A `WorkerSync` whose calls a test runs."""

    def __init__(self, tasks: RunnerTasks) -> None:
        clock, options = VirtualClock(), RunnerOptions()
        self.tasks = tasks
        self.eligibility = WorkerEligibility(clock, options)
        self.sync = WorkerSync(tasks, self.eligibility, clock, NoEvents(), options)
        self.lists: tuple[WorkerTask, ...] = ()

    def worker(self, name: str) -> KnownWorker:
        made = self.tasks.worker(name)
        made.client = SimpleNamespace(
            name=name, host=name, report=lambda: WorkerReport(4, self.lists)
        )
        return made

    def events(self, worker: KnownWorker, *lists: WorkerTask) -> list[ReportedEvent]:
        """Return the events of a full report."""
        self.lists = lists
        self.sync.request_report(worker)
        return self.run()

    def run(self) -> list[ReportedEvent]:
        """Run the call that was asked for, and return the events."""
        (call,) = self.tasks.take_calls()
        call.done(call.work())
        return self.tasks.take_reports()


@pytest.fixture
def world(tasks: RunnerTasks) -> SyncWorld:
    return SyncWorld(tasks)


def test_what_a_forgotten_worker_answers_is_not_of_the_one_that_is_back(
    world: SyncWorld, tasks: RunnerTasks, entries: dict[str, Any]
) -> None:
    one = entries["a"] = entry()
    world.lists = (WorkerTask("a", TaskState.RUNNING),)
    gone = world.worker("w")
    world.sync.request_report(gone)
    del tasks.workers["w"]
    back = world.worker("w")
    assert (world.run(), back.capacity) == ([], 0)
    world.sync.request_report(back)
    assert world.run() == [ReportedEvent(one, E.RUNS, "w")]
    assert back.capacity == 4


# The state of a task, its worker, the announcing worker, and the events of a task that runs.
ANNOUNCED = [
    (S.WAITING, None, "here", [E.RUNS]),
    (S.PENDING, None, "here", [E.RUNS]),
    (S.RESTORED, "here", "here", [E.RUNS]),
    (S.RESTORED, "absent", "here", [E.WORKER_RENAMED, E.RUNS]),
    (S.RESTORED, "other", "here", [E.RUNS_ELSEWHERE]),
    (S.SENDING, "here", "here", [E.RUNS]),
    (S.SENDING, "other", "here", [E.RUNS_ELSEWHERE]),
    (S.UNSURE, "here", "here", [E.RUNS]),
    (S.ACCEPTED, "here", "here", [E.RUNS]),
    (S.RUNNING, "here", "here", []),
    (S.RUNNING, "other", "here", [E.RUNS_ELSEWHERE]),
    (S.ENDING, None, "here", [E.RUNS_ELSEWHERE]),
    (S.ENDING, "here", "here", []),
    (S.ENDING, "other", "here", [E.RUNS_ELSEWHERE]),
    (S.ENDING, "absent", "here", [E.WORKER_RENAMED]),
]


@pytest.mark.parametrize("told", TaskState)
@pytest.mark.parametrize(("state", "owner", "announcer", "events"), ANNOUNCED)
def test_what_a_worker_announces(
    world: SyncWorld,
    tasks: RunnerTasks,
    entries: dict[str, Any],
    state: ActiveTaskState,
    owner: str | None,
    announcer: str,
    events: Sequence[TaskEvent],
    told: TaskState,
) -> None:
    one = entries["a"] = entry()
    world.worker("other")
    worker = world.worker(announcer)
    tasks.enter(one, state)
    if owner is not None:
        tasks.assign(one, owner)
    found = world.events(worker, WorkerTask("a", told, None, "error"))
    ends = told.complete and events[-1:] != [E.RUNS_ELSEWHERE] and state is not S.ENDING
    assert [report.event for report in found] == [*events] + [E.ENDED_AT_WORKER] * ends
    if ends:
        assert found[-1].end == TaskEnd("a", told, "error", announcer)
    for report in found:  # The table has all of them.
        outcome = TASK_MACHINE.transition(one.state, report.event)
        assert isinstance(outcome, Transition)
        assert isinstance(outcome, Transition)
        tasks.enter(one, outcome.state)
    assert one.is_ending == (ends or state is S.ENDING)


def test_a_task_that_is_not_active_is_dismissed(world: SyncWorld, tasks: RunnerTasks) -> None:
    dismissed: list[object] = []
    worker = world.worker("w")
    assert worker.client is not None
    worker.client.shutdown = dismissed.append  # type: ignore[assignment,method-assign]
    assert world.events(worker, WorkerTask("stray", TaskState.RUNNING)) == []
    (call,) = tasks.take_calls()
    call.done(call.work())
    assert dismissed == ["stray"]


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (S.SENDING, S.SENDING),
        (S.UNSURE, S.PENDING),
        (S.RESTORED, S.ENDING),
        (S.ACCEPTED, S.ENDING),
        (S.RUNNING, S.ENDING),
        (S.ENDING, S.ENDING),
    ],
)
def test_what_a_worker_does_not_list(
    world: SyncWorld,
    tasks: RunnerTasks,
    entries: dict[str, Any],
    state: ActiveTaskState,
    after: ActiveTaskState,
) -> None:
    one = entries["a"] = entry()
    worker = world.worker("w")
    tasks.enter(one, state)
    tasks.assign(one, "w")
    for report in world.events(worker):
        outcome = TASK_MACHINE.transition(one.state, report.event)
        assert report.end == TaskEnd("a", TaskState.FAILED, "it disappeared from the worker w", "w")
        assert isinstance(outcome, Transition)
        tasks.enter(one, outcome.state)
    assert one.state is after


def test_what_came_about_after_the_request_cannot_be_in_the_report(
    world: SyncWorld, tasks: RunnerTasks, entries: dict[str, Any]
) -> None:
    one = entries["a"] = entry()
    worker = world.worker("w")
    tasks.assign(one, "w")
    world.sync.request_report(worker)
    tasks.enter(one, S.RUNNING)
    assert world.run() == []


def test_what_speaks_against_a_worker() -> None:
    clock = VirtualClock()
    blacklist = BlacklistOptions(failures_max=1, workers_max_percent=100)
    standing = WorkerEligibility(clock, RunnerOptions(worker_version_min="2", blacklist=blacklist))
    worker = KnownWorker("w", clock.monotonic_s(), version="1")
    assert "announced" in standing.exclusion_reason(worker)
    worker.client, standing.announced = SimpleNamespace(host="h:1"), {"w"}
    assert "too old" in standing.exclusion_reason(worker)
    worker.version, worker.enabled = "2", False
    assert "disabled" in standing.exclusion_reason(worker)
    worker.enabled = True
    assert standing.exclusion_reason(worker) == ""
    standing.ended(worker, [TaskState.FAILED, TaskState.FAILED])
    assert "tasks failed there" in standing.exclusion_reason(worker)
    assert _view(standing, worker).blacklisted_until_ms is not None
    standing.ended(worker, [TaskState.SUCCESS])
    assert standing.exclusion_reason(worker) == ""
    clock.advance_to(clock.monotonic_s() + 31)
    assert "not answered" in standing.exclusion_reason(worker)
    assert (standing.lost(worker), _view(standing, worker).silent_s) == ("", 31)
    clock.advance_to(clock.monotonic_s() + 100)
    assert "not answered" in standing.lost(worker)
    assert standing.view(worker) is None
