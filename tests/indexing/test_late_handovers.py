"""A task at two workers, as one took it when the overlord had given up on it: one is heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.core.errors import LockRevoked, Unavailable
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.runner.runner_options import RunnerOptions
from penstock.indexing.overlord.task_index import TaskIndex
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.ports import (
    HistoryPlace,
    TaskState,
    WorkerChanges,
    WorkerClient,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.task_spec import TaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.event_mail import EventMail
from penstock.storage.metadata import MetadataStore, TaskRow
from penstock.testing.clock import VirtualClock
from tests.harness.cluster_simulation.memory import MemoryDatabase
from tests.harness.mailbox_kit import InlineLanes, StepLanes, settle
from tests.indexing.indexing_kit import make_task


class LateWorker:
    """A worker that answers what a test has it answer."""

    def __init__(self, name: str) -> None:
        self.name = self.host = name
        self.capacity = 4
        self.has: dict[str, WorkerTask] = {}
        self.asked: list[str] = []
        self.dismissed: list[str] = []
        self.silent = False

    def report(self) -> WorkerReport:
        if self.silent:
            raise Unavailable("nobody answers")
        return WorkerReport(self.capacity, tuple(self.has.values()))

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        return WorkerChanges(HistoryPlace(), report=self.report())

    def assign(self, task: TaskSpec) -> None:
        self.asked.append(task.id)
        if self.silent:
            raise Unavailable("nobody answers")
        self.takes(task.id)

    def takes(self, task_id: str, state: TaskState = TaskState.RUNNING) -> None:
        self.has[task_id] = WorkerTask(task_id, state)

    def shutdown(self, task_id: str) -> None:
        self.dismissed.append(task_id)
        self.has.pop(task_id, None)


class HandoverWorld:
    """A task queue, and what becomes of the tasks that it hands out."""

    def __init__(self, *names: str) -> None:
        self.clock = VirtualClock()
        self.database = MemoryDatabase(self.clock)
        self.metadata = MetadataStore(self.database)
        self.announced = [LateWorker(name) for name in names]
        self.start()
        self.settle(1)

    def start(self) -> None:
        """Begin as the next overlord does."""
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        self.ends: list[object] = []
        locks = MetadataLockStore(self.metadata.locks)
        self.queue = TaskQueue(
            QueuePorts(
                metadata=self.metadata,
                lockboxes=Lockboxes(locks, InlineLanes(), clock=self.clock),
                directory=self,
                lanes=self.lanes,
                processor=self.processor,
                clock=self.clock,
                ended=EventMail(
                    self.processor, lambda one: self.ends.append(one.task.id), "a task ended"
                ),
            ),
            options=TaskQueueOptions(runner=RunnerOptions(sync_interval_ms=1_000)),
        )
        self.queue.start()

    def add(self, task_id: str) -> None:
        names = {"id": task_id, "base_sequence_name": f"base-{task_id}"}
        self.queue.add(make_task().model_copy(update=names))
        self.settle()

    def restore(self, task_id: str, worker: str) -> None:
        """Begin as an overlord whose predecessor has handed a task to a worker."""
        task = make_task().model_copy(update={"id": task_id})
        row = TaskRow(task.id, task.datasource, task.type, task.group_name, task.to_json())
        self.metadata.tasks.insert_new([replace(row, status={"worker": worker})])
        self.start()

    def stored_worker(self, task_id: str) -> object:
        row = self.metadata.tasks.get(task_id)
        assert row is not None
        return row.status.get("worker")

    def heard(self, task_id: str) -> dict[str, str]:
        """Return what becomes of an action of the task, by the worker that runs it."""
        found = {}
        for worker in self.announced:
            try:
                self.queue.index.require_worker(task_id, worker.name)
                found[worker.name] = "done"
            except Unavailable:
                found[worker.name] = "ask again"
            except LockRevoked:
                found[worker.name] = "abandon"
        return found

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds, self.lanes)

    def workers(self) -> Sequence[WorkerClient]:
        return tuple(self.announced)


def give_up(world: HandoverWorld, task_id: str) -> LateWorker:
    """Have a task handed to the first worker, which does not answer in time."""
    first = world.announced[0]
    first.silent = True
    world.add(task_id)
    assert first.asked == [task_id]
    return first


def test_while_nobody_knows_whether_a_worker_took_a_task_its_actions_wait() -> None:
    world = HandoverWorld("w")
    worker = give_up(world, "a")
    assert world.heard("a") == {"w": "ask again"}
    worker.silent = False
    worker.takes("a")
    world.settle(2)
    assert world.heard("a") == {"w": "done"}
    assert worker.asked == ["a"]


@pytest.mark.parametrize("state", TaskState)
def test_a_worker_that_took_a_task_too_late_is_never_heard_and_told_to_stop_it(
    state: TaskState,
) -> None:
    world = HandoverWorld("late", "second")
    second = world.announced[1]
    second.capacity = 0
    world.settle(1)
    late = give_up(world, "a")
    late.silent, late.capacity = False, 0
    world.settle(1)
    assert world.heard("a") == {"late": "ask again", "second": "ask again"}
    second.capacity = 4
    world.settle(2)
    assert second.asked == ["a"]
    late.takes("a", state)
    assert world.heard("a") == {"late": "abandon", "second": "done"}
    world.settle(2)
    assert world.heard("a") == {"late": "abandon", "second": "done"}
    assert (late.dismissed, second.dismissed, world.ends) == (["a"], [], [])
    assert world.stored_worker("a") == "second"


def test_a_task_that_arrives_late_while_it_waits_for_any_worker_stays_there() -> None:
    world = HandoverWorld("late")
    late = give_up(world, "a")
    late.silent, late.capacity = False, 0
    world.settle(1)
    assert world.heard("a") == {"late": "ask again"}
    late.takes("a")
    world.settle(1)
    assert world.heard("a") == {"late": "done"}
    assert late.dismissed == []


def test_what_a_former_overlord_handed_over_is_heard_at_once() -> None:
    world = HandoverWorld("w", "other")
    (worker, _other) = world.announced
    worker.takes("a")
    world.restore("a", "w")
    assert world.heard("a") == {"w": "done", "other": "ask again"}
    world.settle(2)
    assert world.heard("a") == {"w": "done", "other": "abandon"}


def test_a_restored_task_whose_worker_has_a_new_name_asks_until_that_name_was_heard() -> None:
    """A migrated data folder gives its worker a new name while its tasks run on."""
    world = HandoverWorld("new")
    (worker,) = world.announced
    worker.silent = True
    world.restore("a", "old")
    world.settle(2)
    assert world.heard("a") == {"new": "ask again"}
    worker.silent = False
    worker.takes("a")
    world.settle(2)
    assert world.heard("a") == {"new": "done"}
    assert (worker.dismissed, world.ends) == ([], [])


def test_of_a_task_that_is_not_active_others_tell() -> None:
    TaskIndex().require_worker("a", "w")
