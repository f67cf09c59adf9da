"""The task queue against workers that say anything: each row of its table, and what it forgets."""

from __future__ import annotations

import itertools

import pytest
from indexing_kit import make_task

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.indexing.overlord.taskqueue import TaskQueue, TaskQueueOptions
from penstock.indexing.ports import TaskLocation, TaskState, WorkerReport, WorkerTask
from penstock.mailbox import MailboxProcessor
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from penstock.testing.lanes import StepLanes


class SaidWorker:
    """Reports what a test has it say."""

    def __init__(self, name: str, capacity: int = 4) -> None:
        self.name = name
        self.capacity = capacity
        self.says: dict[str, WorkerTask] = {}
        self.taken: list[str] = []
        self.forgotten: list[str] = []
        self.error: Exception | None = None
        self.takes = True

    def say(self, task_id: str, state=TaskState.RUNNING, location=None, error="") -> None:
        self.says[task_id] = WorkerTask(task_id, state, location, error)

    def report(self) -> WorkerReport:
        if self.error:
            raise self.error
        return WorkerReport(self.capacity, tuple(self.says.values()))

    def assign(self, task) -> None:
        if self.error:
            raise self.error
        self.taken.append(task.id)
        if self.takes:
            self.say(task.id)

    def shutdown(self, task_id: str) -> None:
        self.forgotten.append(task_id)
        self.says.pop(task_id, None)


class World:
    def __init__(self, folder) -> None:
        self.clock = VirtualClock()
        self.metadata = MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=self.clock)
        self.announced: list[SaidWorker] = []
        self.ended: list[tuple[str, TaskState, str]] = []
        self.start()

    def start(self) -> None:
        """Begin as the next overlord does."""
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        self.queue = TaskQueue(
            self.metadata,
            self,
            self.lanes,
            self.processor,
            self.clock,
            completed=lambda task, state, error: self.ended.append((task.id, state, error)),
            options=TaskQueueOptions(),
        )
        self.queue.start()
        self.settle()

    def workers(self):
        return tuple(self.announced)

    def worker(self, name: str, **more) -> SaidWorker:
        made = SaidWorker(name, **more)
        self.announced.append(made)
        self.settle(1)
        return made

    def settle(self, seconds: float = 0) -> None:
        end_s = self.clock.monotonic_s() + seconds
        while True:
            while self.processor.run_mailbox_step() or self._run_lane():
                pass
            due_s = self.processor.mailbox.alarm_s
            if due_s > end_s:
                self.clock.advance_to(end_s)
                return
            self.clock.advance_to(due_s)

    def _run_lane(self) -> bool:
        waiting = self.lanes.waiting()
        if waiting:
            self.lanes.run_one(waiting[0])
        return bool(waiting)

    def add(self, task_id: str) -> None:
        self.queue.add(make_task().model_copy(update={"id": task_id}))
        self.settle()

    def status(self, task_id: str) -> tuple[str, object]:
        row = self.metadata.tasks.get(task_id)
        return row.state, row.status.get("errorMsg")


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.metadata.close()


def test_a_task_waits_for_a_worker_and_goes_to_the_one_with_most_room(world):
    world.add("a")
    assert world.queue.active()["a"].worker is None
    small, large = world.worker("small", capacity=1), world.worker("large", capacity=3)
    assert small.taken == ["a"]  # it was there first
    world.add("b")
    world.add("c")
    assert large.taken == ["b", "c"]
    assert world.queue.slots() == {"small": 1, "large": 3}


def test_no_task_goes_where_no_slot_is_free(world):
    worker = world.worker("w", capacity=1)
    world.add("a")
    world.add("b")
    world.settle(5)
    assert worker.taken == ["a"]
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    assert worker.taken == ["a", "b"]


def test_where_a_peon_answers_is_learnt_from_the_worker(world):
    worker = world.worker("w")
    world.add("a")
    worker.say("a", location=TaskLocation("h", 7))
    world.settle(1)
    assert world.queue.active()["a"].location == TaskLocation("h", 7)


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_an_end_is_stored_told_and_forgotten_by_the_worker(world, state):
    worker = world.worker("w")
    world.add("a")
    worker.say("a", state, error="because")
    world.settle(1)
    assert world.ended == [("a", state, "because")]
    assert world.status("a") == (state, "because")
    assert worker.forgotten == ["a"]
    assert world.queue.active() == {}


def test_an_unknown_task_is_stopped(world):
    worker = world.worker("w")
    worker.say("stray")
    world.settle(1)
    assert worker.forgotten == ["stray"]
    assert world.ended == []


def test_a_task_of_another_worker_is_stopped_here_only(world):
    first = world.worker("first")
    world.add("a")
    second = world.worker("second")
    second.say("a", TaskState.FAILED)
    world.settle(1)
    assert second.forgotten == ["a"]
    assert first.forgotten == []
    assert world.queue.active()["a"].worker == "first"


def test_a_task_that_disappears_from_its_worker_has_failed(world):
    worker = world.worker("w")
    world.add("a")
    world.settle(1)
    del worker.says["a"]
    world.settle(1)
    assert world.ended == [("a", TaskState.FAILED, "it disappeared from the worker w")]


def test_a_task_that_a_former_overlord_handed_over_is_never_handed_over_again(world):
    worker = world.worker("w")
    world.add("a")
    del worker.says["a"]
    world.start()
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == [("a", TaskState.FAILED, "it disappeared from the worker w")]


def test_a_task_whose_answer_was_lost_is_handed_over_again_if_it_did_not_arrive(world):
    worker = world.worker("w")
    worker.error = Unavailable("the answer was lost")
    world.add("a")
    assert worker.taken == []
    worker.error = None
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == []


def test_a_task_that_was_given_back_waits_for_the_next_overlord_too(world):
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    world.add("a")
    assert world.metadata.tasks.get("a").status == {}
    worker.error = None
    world.start()
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == []


def test_a_full_worker_gives_the_task_back_and_one_that_refuses_it_ends_it(world):
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    world.add("a")
    assert world.queue.active()["a"].worker is None
    worker.error = InvalidRequest("no id of a task")
    world.processor.main_executor.execute(world.queue._assign_waiting, "try again")
    world.settle()
    assert world.ended == [("a", TaskState.FAILED, "the worker w refuses it: no id of a task")]


def test_tasks_of_a_worker_that_is_silent_for_long_have_failed(world):
    worker = world.worker("w")
    world.add("a")
    worker.error = Unavailable("nobody there")
    world.settle(119)
    assert world.ended == []
    world.settle(3)
    ((task_id, state, error),) = world.ended
    assert (task_id, state) == ("a", TaskState.FAILED)
    assert "its worker w has not answered for 12" in error


def test_tasks_of_a_worker_that_this_overlord_never_saw_have_failed_after_as_long(world):
    world.worker("w")
    world.add("a")
    world.announced.clear()
    world.start()
    world.settle(119)
    assert world.ended == []
    world.settle(3)
    assert [task_id for task_id, _state, _error in world.ended] == ["a"]


def test_workers_that_are_gone_are_forgotten(world):
    for number in range(20):
        world.announced.clear()
        world.worker(f"pod-{number}")
    assert list(world.queue.slots()) == ["pod-19"]
    assert list(world.queue._workers) == ["pod-19"]


def test_a_worker_that_is_not_announced_any_more_keeps_its_task_until_it_is_lost(world):
    worker = world.worker("w")
    world.add("a")
    world.announced.clear()
    world.settle(60)
    assert world.queue.active()["a"].worker == "w"
    world.announced.append(worker)
    world.settle(200)
    assert world.ended == []


def test_the_queue_is_bounded(world):
    world.queue._options = TaskQueueOptions(max_tasks=2)
    world.add("a")
    world.add("b")
    with pytest.raises(Unavailable, match="full: it holds 2 tasks"):
        world.add("c")


def test_an_id_is_taken_once(world):
    world.add("a")
    with pytest.raises(Conflict):
        world.add("a")
    assert list(world.queue.active()) == ["a"]


def test_shutting_down_ends_a_task_once(world):
    worker = world.worker("w")
    world.add("a")
    assert world.queue.shutdown("a", "enough")
    assert not world.queue.shutdown("a", "enough")
    world.settle()
    assert world.status("a") == (TaskState.FAILED, "enough")
    assert worker.forgotten == ["a"]


def test_an_end_that_cannot_be_stored_is_told_again_until_it_is(world, monkeypatch):
    worker = world.worker("w")
    world.add("a")
    set_status, tries = world.metadata.tasks.set_status, itertools.count()

    def sometimes(*args):
        if next(tries) < 2:
            raise Unavailable("the database is away")
        return set_status(*args)

    monkeypatch.setattr(world.metadata.tasks, "set_status", sometimes)
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    assert world.ended == []
    assert worker.forgotten == []
    world.settle(3)
    assert [task_id for task_id, _state, _error in world.ended] == ["a"]
    assert world.status("a")[0] == TaskState.SUCCESS
