"""The task queue against workers that say anything: each row of its table, and what it forgets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures._base import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked, Unavailable
from penstock.indexing.lockbox.task_locks import LockTask, Revoked, TaskRemoval
from penstock.indexing.overlord.errors import QueueFull
from penstock.indexing.overlord.lock_requests import lock_task, requests_for
from penstock.indexing.overlord.runner.worker_config import WorkerConfig
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.overlord.task_service import TaskSubmissions
from penstock.indexing.ports import (
    HistoryPlace,
    TaskLocation,
    TaskState,
    WorkerChanges,
)
from penstock.indexing.specs.batch.batch_task_specs import NoopSpec, parse_batch_task
from penstock.storage.metadata import (
    AllocateRequest,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    TaskRow,
)
from tests.indexing.queue_kit import SaidWorker, TaskQueueWorld, held, kill, noop, states, submit


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TaskQueueWorld]:
    made = TaskQueueWorld(tmp_path)
    yield made
    made.metadata.close()


def test_a_task_waits_for_a_worker_and_goes_to_the_one_with_most_room(
    world: TaskQueueWorld,
) -> None:
    world.add("a")
    assert world.queue.index.all()["a"].worker is None
    small, large = world.worker("small", capacity=1), world.worker("large", capacity=3)
    assert small.taken == ["a"]  # it was there first
    world.add("b")
    world.add("c")
    assert large.taken == ["b", "c"]
    assert {w.name: w.capacity for w in world.queue.runner.workers()} == {"small": 1, "large": 3}


def test_a_turn_does_not_begin_within_another_one(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It handled the events of the outer turn, and dropped those that it could not handle."""
    turns = world.queue._transitions
    with monkeypatch.context() as patch:
        patch.setattr(turns, "_handle", lambda _report: turns.run(()))
        with pytest.raises(AssertionError, match="a turn began within another one"):
            world.add("a")
    world.add("b")
    assert "b" in world.queue.index.all()


def test_no_task_goes_where_no_slot_is_free(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=1)
    world.add("a")
    world.add("b")
    world.settle(5)
    assert worker.taken == ["a"]
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    assert worker.taken == ["a", "b"]


def test_where_a_peon_answers_is_learnt_from_the_worker(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    worker.say("a", location=TaskLocation("h", 7))
    world.settle(1)
    assert world.queue.index.all()["a"].location == TaskLocation("h", 7)


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_an_end_is_stored_told_and_forgotten_by_the_worker(
    world: TaskQueueWorld, state: TaskState
) -> None:
    worker = world.worker("w")
    world.add("a")
    worker.say("a", state, error="because")
    world.settle(1)
    assert world.ended == [("a", state, "because")]
    assert world.status("a") == (state, "because")
    assert worker.forgotten == ["a"]
    assert world.queue.index.all() == {}


def test_an_unknown_task_is_stopped(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    worker.say("stray")
    world.settle(1)
    assert worker.forgotten == ["stray"]
    assert world.ended == []


def test_a_worker_that_is_to_tell_everything_is_asked_until_it_does(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    here, asked = HistoryPlace(5, 7), []

    def changes(after: HistoryPlace, _wait_ms: int) -> WorkerChanges:
        asked.append(after)
        if worker.error:
            raise worker.error
        return WorkerChanges(here, report=worker.report())

    def shutdown(_task_id: str) -> None:
        worker.error = Unavailable("nobody there")
        raise worker.error

    monkeypatch.setattr(worker, "changes", changes)
    monkeypatch.setattr(worker, "shutdown", shutdown)
    world.settle(2)
    assert asked[-1] == here
    worker.say("stray")
    world.settle(3)
    assert asked[-2:] == [HistoryPlace()] * 2
    worker.error = None
    monkeypatch.undo()
    world.settle(2)
    assert worker.forgotten == ["stray"]


def test_a_task_of_another_worker_is_stopped_here_only(world: TaskQueueWorld) -> None:
    first = world.worker("first")
    world.add("a")
    second = world.worker("second")
    second.say("a", TaskState.FAILED)
    world.settle(1)
    assert second.forgotten == ["a"]
    assert first.forgotten == []
    assert world.queue.index.all()["a"].worker == "first"


def test_a_task_that_disappears_from_its_worker_has_failed(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    world.settle(1)
    del worker.says["a"]
    world.settle(1)
    assert world.ended == [("a", TaskState.FAILED, "it disappeared from the worker w")]


def test_a_task_that_a_former_overlord_handed_over_is_never_handed_over_again(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w")
    world.add("a")
    del worker.says["a"]
    world.start()
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == [("a", TaskState.FAILED, "it disappeared from the worker w")]


def stored_worker(world: TaskQueueWorld, task_id: str) -> object:
    row = world.metadata.tasks.get(task_id)
    return None if row is None else row.status.get("worker")


@pytest.mark.parametrize("end", [None, TaskState.SUCCESS])
def test_a_worker_with_a_new_name_keeps_the_tasks_of_its_folder(
    world: TaskQueueWorld, end: TaskState | None
) -> None:
    """As after an upgrade, or a restore at another place; nobody waits for the old name."""
    old = world.worker("host:/was/here")
    submit(world, noop("a"))
    world.settle(1)
    assert stored_worker(world, "a") == old.name
    world.announced.clear()
    world.start()
    new = world.worker("worker-1")
    new.say("a")
    world.settle(5)
    assert stored_worker(world, "a") == "worker-1"
    assert world.ended == []
    assert new.forgotten == []
    # Should the old one come back, it is not its task any more.
    old.say("a")
    world.announced.append(old)
    world.settle(5)
    assert old.forgotten == ["a"]
    if end is not None:
        new.say("a", end)
        world.settle(5)
        assert world.ended == [("a", end, "")]


def test_an_announced_worker_does_not_lose_its_task_to_another(world: TaskQueueWorld) -> None:
    mine = world.worker("mine")
    submit(world, noop("a"))
    world.settle(1)
    world.announced.clear()
    world.start()
    # Its lease exists, though it does not answer.
    mine.error = Unavailable("busy")
    world.announced.append(mine)
    other = SaidWorker("other")
    other.say("a")
    world.announced.append(other)
    world.settle(5)
    assert stored_worker(world, "a") == "mine"
    assert other.forgotten == ["a"]


def test_a_task_whose_answer_was_lost_is_handed_over_again_if_it_did_not_arrive(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w")
    worker.error = Unavailable("the answer was lost")
    world.add("a")
    assert worker.taken == []
    worker.error = None
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == []


def test_a_worker_that_takes_nothing_and_yet_reports_is_asked_once_in_a_while(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, asked = world.worker("w"), []

    def assign(task: NoopSpec) -> None:
        asked.append(task.id)
        raise Unavailable("the disk of the tasks is full")

    monkeypatch.setattr(worker, "assign", assign)
    world.queue.add(noop("a"))
    world.settle(10)
    assert 5 <= len(asked) <= 11
    (reason,) = world.queue.runner.why("a")
    assert "did not answer a request to take a task" in str(reason)
    # Another takes it meanwhile.
    assert world.worker("other").taken == ["a"]


def test_a_task_that_was_given_back_waits_for_the_next_overlord_too(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    world.add("a")
    assert stored_worker(world, "a") is None
    worker.error = None
    world.start()
    world.settle(3)
    assert worker.taken == ["a"]
    assert world.ended == []


def test_a_full_worker_gives_the_task_back_and_one_that_refuses_it_ends_it(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w")
    worker.error = Conflict("all slots are taken")
    world.add("a")
    assert world.queue.index.all()["a"].worker is None
    worker.error = InvalidRequest("no id of a task")
    world.processor.main_executor.execute(lambda: world.queue.configure(WorkerConfig()), "")
    world.settle()
    assert world.ended == [("a", TaskState.FAILED, "the worker w refuses it: no id of a task")]


def test_tasks_of_a_worker_that_is_silent_for_long_have_failed(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    worker.error = Unavailable("nobody there")
    world.settle(119)
    assert world.ended == []
    world.settle(3)
    ((task_id, state, error),) = world.ended
    assert (task_id, state) == ("a", TaskState.FAILED)
    assert "its worker w has not answered for 12" in error


def test_tasks_of_a_worker_that_this_overlord_never_saw_have_failed_after_as_long(
    world: TaskQueueWorld,
) -> None:
    world.worker("w")
    world.add("a")
    world.announced.clear()
    world.start()
    world.settle(119)
    assert world.ended == []
    world.settle(3)
    assert [task_id for task_id, _state, _error in world.ended] == ["a"]


def test_workers_that_are_gone_are_forgotten(world: TaskQueueWorld) -> None:
    for number in range(20):
        world.announced.clear()
        world.worker(f"pod-{number}")
    assert [worker.name for worker in world.queue.runner.workers()] == ["pod-19"]


def test_a_worker_that_is_not_announced_any_more_keeps_its_task_until_it_is_lost(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w")
    world.add("a")
    world.announced.clear()
    world.settle(60)
    assert world.queue.index.all()["a"].worker == "w"
    world.announced.append(worker)
    world.settle(200)
    assert world.ended == []


def test_the_queue_is_bounded(world: TaskQueueWorld) -> None:
    world.options = TaskQueueOptions(max_tasks=2)
    world.start()
    world.add("a")
    world.add("b")
    with pytest.raises(
        QueueFull, match="full: it holds 2 active tasks, the maximum is 2"
    ) as caught:
        world.add("c")
    assert (caught.value.tasks, caught.value.tasks_max) == (2, 2)


@pytest.mark.parametrize("task_id", ["", ".hidden", "a/b", "a\\b", "a\nb", "x" * 300])
def test_an_id_must_be_able_to_name_a_folder(world: TaskQueueWorld, task_id: str) -> None:
    with pytest.raises(InvalidRequest, match=r"must not be empty|is not a valid task id"):
        world.add(task_id)
    assert world.metadata.tasks.list() == []


def test_a_task_that_is_too_large_is_refused_with_the_numbers(world: TaskQueueWorld) -> None:
    task = parse_batch_task({"type": "noop", "id": "n", "context": {"x": "y" * 30_000}})
    with pytest.raises(InvalidRequest, match=r"30[0-9]{3} bytes, the maximum is 20000"):
        world.queue.add(task)


def test_tasks_that_are_submitted_together_share_a_transaction(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add("a")
    calls, insert_new = [], world.metadata.tasks.insert_new
    monkeypatch.setattr(
        world.metadata.tasks,
        "insert_new",
        lambda rows: (calls.append(len(rows)), insert_new(rows))[1],
    )
    intake = TaskSubmissions(lambda: world.queue, world.processor)
    answers = {
        name: intake.submit(noop(name)) for name in ("b", "a", "c", ".hidden", *map(str, range(9)))
    }
    twice = intake.submit(noop("b"))
    world.settle()
    assert calls == [11]
    assert isinstance(answers[".hidden"].exception(), InvalidRequest)
    assert isinstance(answers["a"].exception(), Conflict)
    assert isinstance(twice.exception(), Conflict)
    assert answers["c"].result() == "c"
    assert len(world.queue.index) == 12
    # One that another overlord stored and this one has not seen yet.
    row = TaskRow(id="seen", datasource="d", type="noop", group_id="g", payload={})
    world.metadata.tasks.insert_new([row])
    unseen, fine = intake.submit(noop("seen")), intake.submit(noop("fine"))
    world.settle()
    assert isinstance(unseen.exception(), Conflict)
    assert fine.result() == "fine"


def test_who_submits_when_the_store_is_away_is_told_so(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_rows: Sequence[TaskRow]) -> None:
        raise Unavailable("the database is away")

    intake = TaskSubmissions(lambda: world.queue, world.processor)
    monkeypatch.setattr(world.metadata.tasks, "insert_new", away)
    answers = [intake.submit(noop("a")), intake.submit(noop("b"))]
    world.settle()
    assert [type(answer.exception()) for answer in answers] == [Unavailable, Unavailable]
    monkeypatch.undo()
    again = intake.submit(noop("a"))
    world.settle()
    assert again.result() == "a"


def test_a_task_that_the_store_refuses_costs_others_nothing(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_new = world.metadata.tasks.insert_new

    def refuse(rows: Sequence[TaskRow]) -> set[str]:
        if any(row.id == "bad" for row in rows):
            raise InvalidRequest("the database cannot store such a value")
        return insert_new(rows)

    monkeypatch.setattr(world.metadata.tasks, "insert_new", refuse)
    intake = TaskSubmissions(lambda: world.queue, world.processor)
    huge = noop("huge").model_copy(update={"context": {"a": 1 << 70}})
    answers = [intake.submit(task) for task in (noop("a"), noop("bad"), huge, noop("b"))]
    world.settle()
    refused = [type(answer.exception()) for answer in answers]
    assert refused == [type(None), InvalidRequest, InvalidRequest, type(None)]
    assert "cannot be written as JSON" in str(answers[2].exception())
    assert sorted(world.queue.index.all()) == ["a", "b"]


def test_an_id_is_taken_once(world: TaskQueueWorld) -> None:
    world.add("a")
    with pytest.raises(Conflict):
        world.add("a")
    assert list(world.queue.index.all()) == ["a"]


def test_shutting_down_many_is_one_transaction_and_frees_no_slot_for_another_of_them(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w", capacity=1)
    for name in "abc":
        world.add(name)
    world.settle()
    stored, set_statuses = [], world.metadata.tasks.set_statuses

    def counted(changes: list[Any]) -> set[str]:
        stored.append([change[0] for change in changes])
        return set_statuses(changes)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", counted)
    assert world.queue.shutdown_all(["c", "a", "nobody", "b"], "enough") == 3
    assert world.queue.shutdown_all(["a"], "enough") == 0
    world.settle()
    assert [one for one in stored if one] == [["c", "a", "b"]]
    assert {world.status(name) for name in "abc"} == {(TaskState.FAILED, "enough")}
    assert worker.taken == worker.forgotten == ["a"]
    assert not world.queue.index.all()


def test_shutting_down_ends_a_task_once(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    assert world.queue.shutdown("a", "enough")
    assert not world.queue.shutdown("a", "enough")
    world.settle()
    assert world.status("a") == (TaskState.FAILED, "enough")
    assert worker.forgotten == ["a"]


def test_an_end_that_cannot_be_stored_is_told_again_until_it_is(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    world.add("a")
    set_statuses, tries = world.metadata.tasks.set_statuses, itertools.count()

    def sometimes(*args: list[Any]) -> set[str]:
        if next(tries) < 2:
            raise Unavailable("the database is away")
        return set_statuses(*args)

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", sometimes)
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    assert world.ended == []
    assert worker.forgotten == []
    world.settle(3)
    assert [task_id for task_id, _state, _error in world.ended] == ["a"]
    assert world.status("a")[0] == TaskState.SUCCESS


def test_the_first_end_stands_though_the_answer_of_the_store_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The comparison with the store comes before the end is stored again.
    world = TaskQueueWorld(tmp_path, TaskQueueOptions(retry_ms=120_000))
    worker = world.worker("w")
    world.add("a")
    set_statuses = world.metadata.tasks.set_statuses

    def stored_without_an_answer(changes: list[Any]) -> None:
        set_statuses(changes)
        raise Unavailable("the connection broke")

    monkeypatch.setattr(world.metadata.tasks, "set_statuses", stored_without_an_answer)
    worker.say("a", TaskState.SUCCESS)
    world.settle(61)
    assert [(task_id, state) for task_id, state, _error in world.ended] == [
        ("a", TaskState.SUCCESS)
    ]
    assert world.status("a")[0] == TaskState.SUCCESS
    world.metadata.close()


def test_an_error_that_no_text_can_hold_is_stored_as_far_as_it_goes(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    world.add("b")
    worker.say("a", TaskState.FAILED, error="no file caf\udce9.json")
    worker.say("b", TaskState.SUCCESS)
    world.settle(1)
    assert world.status("a") == (TaskState.FAILED, "no file caf?.json")
    assert world.status("b")[0] == TaskState.SUCCESS


# Locks


def test_a_task_waits_for_its_locks_and_says_who_has_them(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    submit(world, kill("a"), kill("b"), kill("c", (5, 6)), kill("d", datasource="e"))
    assert worker.taken == ["a", "c", "d"]
    assert states(world)["b"] is RunnerState.WAITING
    assert list(world.queue.index.in_state(RunnerState.WAITING)) == ["b"]
    (wait,) = world.why("b")
    assert wait.kind == "locks"
    assert "held by a (group a, priority 50) since" in wait.text
    worker.say("a", TaskState.SUCCESS)
    world.settle(1)
    assert worker.taken == ["a", "c", "d", "b"]
    assert held(world) == {"b", "c"}
    (wait,) = world.why("b")
    assert wait.text == "the worker w to report that it runs"
    world.settle(1)
    assert world.why("b") == []


def test_those_who_want_the_same_stand_in_line_the_urgent_first(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    submit(world, kill("a"), *(kill(f"t{n}") for n in range(5)))
    (lock, line) = world.why("t3")
    assert (lock.kind, line.kind) == ("locks", "line")
    assert "3 earlier tasks that request the same locks; t0 is next" in line.text
    submit(world, kill("urgent", priority=90))  # revokes nothing: asked for together with nothing
    for _ in range(7):
        for task_id in list(worker.says):
            worker.say(task_id, TaskState.SUCCESS)
        world.settle(1)
    assert sorted(task_id for task_id, _s, _e in world.ended) == [
        "a",
        "t0",
        "t1",
        "t2",
        "t3",
        "t4",
        "urgent",
    ]
    order = [task_id for task_id in worker.taken if task_id.startswith("t")]
    assert order == [f"t{n}" for n in range(5)]
    assert held(world) == set()


def test_a_release_tries_one_task_of_each_line(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(world, kill("a"), *(kill(f"t{n:03}") for n in range(200)))
    asked = []
    acquire = world.lockboxes.acquire
    monkeypatch.setattr(
        world.lockboxes,
        "acquire",
        lambda requests, **more: (asked.append(requests[0].task_id), acquire(requests, **more))[1],
    )
    world.queue.shutdown("a", "enough")
    world.settle()
    assert asked == ["t000", "t001"]  # the first gets it, the next finds out that it has to wait


def test_a_lock_that_a_running_task_lets_go_of_helps_who_waits(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    holder = kill("a", (1, 3))
    submit(world, holder, kill("b"))
    assert worker.taken == ["a"]
    world.lockboxes.release(lock_task(holder), holder.time)
    world.settle()
    assert worker.taken == ["a", "b"]


def test_who_waits_for_a_lock_is_tried_when_another_task_takes_that_away(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w", capacity=9)
    low, high = kill("low", (1, 5)), kill("high", priority=90)
    submit(world, low, kill("b", (3, 4)), kill("c", (4, 6)))
    world.queue.shutdown("c", "enough")  # it ends without a lock to give back
    world.lockboxes.add(lock_task(high))
    world.lockboxes.acquire(requests_for(high, [high.time], appends=False))
    world.settle(1)
    assert worker.taken == ["low", "b"]


def test_a_task_that_ends_while_it_waits_leaves_nothing(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    submit(world, kill("a"), kill("b"), kill("c"))
    world.queue.shutdown("b", "enough")
    world.settle()
    world.queue.shutdown("a", "enough")
    world.settle(1)
    assert worker.taken == ["a", "c"]
    assert held(world) == {"c"}
    assert states(world) == {"c": RunnerState.RUNNING}
    assert world.lockboxes.why("b") == ()


def test_locks_and_waiting_tasks_survive_the_overlord(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=1)
    submit(world, kill("a"), kill("b"), kill("c", (5, 6)))
    world.start()
    world.settle(1)
    assert held(world) == {"a", "c"}
    assert states(world)["b"] is RunnerState.WAITING
    (wait,) = world.why("c")
    assert wait.kind == "slots"
    assert "its only slot is taken" in wait.text
    worker.say("a", TaskState.SUCCESS)
    world.settle(2)
    assert held(world) == {"b", "c"}


def test_a_group_that_lost_a_lock_while_nobody_led_has_failed(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    submit(world, kill("a"), kill("b", (5, 6)))
    (row,) = (row for row in world.metadata.locks.every()["d"] if row.task_id == "a")
    # Somebody wrote into the store that another group holds it.
    world.metadata.locks.apply(removed=[row], added=[structs.replace(row, group_id="other")])
    world.start()
    world.settle(1)
    assert world.ended == [
        ("a", TaskState.FAILED, "its group lost a lock while no overlord led"),
    ]
    assert world.status("a")[0] == TaskState.FAILED
    assert worker.forgotten == ["a"]
    assert states(world) == {"b": RunnerState.RUNNING}
    assert held(world) == {"b"}


def test_a_revoked_lock_is_found_by_its_running_owner(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=9)
    low, high = kill("low"), kill("high", priority=90)
    submit(world, low)
    world.lockboxes.add(lock_task(high))
    world.lockboxes.acquire(requests_for(high, [low.time], appends=False))
    world.settle(1)
    assert worker.taken == ["low"]
    assert states(world) == {"low": RunnerState.RUNNING}  # it finds out at its next action
    (outcome,) = world.lockboxes.acquire(requests_for(low, [low.time], appends=False)).result()
    assert isinstance(outcome, Revoked)
    with pytest.raises(LockRevoked):
        world.lockboxes.critical(lock_task(low), lambda _locks: None, intervals=[low.time]).result()


def test_what_replacing_and_allocating_tasks_leave_is_gone_after_their_end(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w", capacity=9)
    task = parse_batch_task(
        {"type": "noop", "id": "r", "dataSource": "d", "context": {"useConcurrentLocks": True}}
    )
    submit(world, task)
    day = kill("x").time
    world.lockboxes.acquire(requests_for(task, [day], appends=False)).result()
    world.metadata.allocate_segments([AllocateRequest("d", day, "r", "v1", allocator_id="r")])
    remove, segments = world.lockboxes.remove, world.metadata.segments

    def left_for(task_id: str) -> set[str]:
        read = segments.used("d", replaced_by=task_id)
        return {row.id for row in segments.used("d")} - {row.id for row in read}

    def append_first(mine: LockTask) -> Future[TaskRemoval]:
        # An append that was on its way leaves something for the replacing task.
        row = SegmentRow("segment", "d", day, "v0", 0, 0, {})
        covering = {"segment": ReplaceLock("r", "v1")}
        world.metadata.publish(
            PublishRequest("appends", "d", (row,), kind="append", covering=covering)
        )
        assert left_for("r") == {"segment"}
        return remove(mine)

    world.lockboxes.remove = append_first  # type: ignore[assignment,method-assign]
    worker.say("r", TaskState.SUCCESS)
    world.settle(1)
    assert left_for("r") == set()
    assert world.metadata.segments.pending("d") == []
    assert held(world) == set()


# The table of events

STAGES = ("absent", "waiting", "pending", "running", "ended")
ALIVE = {"waiting": "WAITING", "pending": "PENDING", "running": "RUNNING"}
# For each event: what becomes of the task by its stage. "kept": as it was.
TABLE = {
    "add": ("added", "refused", "refused", "refused", "refused"),
    "a lock is let go": ("kept", "handed", "kept", "kept", "kept"),
    "a lock of others is let go": ("kept", "kept", "kept", "kept", "kept"),
    "a worker says it ended": ("kept", "SUCCESS", "SUCCESS", "SUCCESS", "kept"),
    "shut down": ("false", "FAILED", "FAILED", "FAILED", "false"),
    "stored and active": ("kept", "kept", "kept", "kept", "kept"),
    "stored no more": ("kept", "dropped", "dropped", "dropped", "kept"),
    "leadership lost": ("kept", "kept", "kept", "kept", "kept"),
}


def at_stage(world: TaskQueueWorld, stage: str) -> SaidWorker:
    """Bring the task t there; its lock is held by `holder` while it waits."""
    worker = world.worker("w", capacity=9) if stage in {"running", "ended"} else None
    if stage == "waiting":
        submit(world, kill("holder", (1, 3)))
    submit(world, kill("apart", (8, 9)))
    if stage != "absent":
        submit(world, kill("t"))
        world.settle(1)
    if stage == "ended":
        world.queue.shutdown("t", "enough")
        world.settle()
    if stage in ALIVE:
        assert states(world)["t"] == ALIVE[stage]
    return worker or world.worker("w", capacity=0)


def happens(world: TaskQueueWorld, worker: SaidWorker, event: str) -> bool | None:
    match event:
        case "add":
            world.queue.add(kill("t"))
        case "a lock is let go":
            world.queue.shutdown("holder", "enough")
        case "a lock of others is let go":
            world.queue.shutdown("apart", "enough")
        case "a worker says it ended":
            worker.say("t", TaskState.SUCCESS)
        case "shut down":
            return world.queue.shutdown("t", "enough")
        case "stored and active":
            world.settle(61)
        case "stored no more":
            if world.metadata.tasks.get("t") is not None:
                world.metadata.tasks.set_status("t", TaskState.FAILED, {})
            world.settle(61)
        case "leadership lost":
            world.queue.stop()
    return None


@pytest.mark.parametrize(
    ("event", "stage", "outcome"),
    [(e, s, o) for e, outcomes in TABLE.items() for s, o in zip(STAGES, outcomes, strict=True)],
)
def test_the_table_of_events(world: TaskQueueWorld, event: str, stage: str, outcome: str) -> None:
    worker = at_stage(world, stage)
    before = world.metadata.tasks.get("t")
    world.ended.clear()
    if outcome == "refused":
        with pytest.raises(Conflict, match="already exists"):
            happens(world, worker, event)
    else:
        answer = happens(world, worker, event)
        assert answer is {"false": False, "FAILED": True}.get(outcome)
    world.settle(1)
    row, ends = world.metadata.tasks.get("t"), [e[:2] for e in world.ended if e[0] == "t"]
    if outcome in {"kept", "refused", "false"}:
        assert row == before
        assert ends == []
        assert ("t" in world.queue.index.all()) is (stage in ALIVE)
        assert ("t" in held(world)) is (stage in {"pending", "running"})
    elif outcome in {"added", "handed"}:
        assert row is not None
        assert row.state == TaskState.RUNNING
        assert states(world)["t"] is RunnerState.PENDING
        assert "t" in held(world)
    else:
        state = TaskState.SUCCESS if outcome == "SUCCESS" else TaskState.FAILED
        assert row is not None
        assert (row.state, ends) == (state, [("t", state)])
        assert "t" not in world.queue.index.all()
        assert "t" not in held(world)
        assert ("t" in worker.forgotten) is (stage == "running" or outcome == "SUCCESS")
    assert "t" not in worker.says or (stage == "running" and outcome in {"kept", "refused"})


@pytest.mark.parametrize("stage", ["waiting", "pending", "running"])
def test_what_is_stored_no_more_is_dropped(world: TaskQueueWorld, stage: str) -> None:
    if stage == "running":
        world.worker("w", capacity=9)
    submit(world, kill("a"), *([kill("b")] if stage == "waiting" else []))
    name = "b" if stage == "waiting" else "a"
    world.metadata.tasks.set_status(name, TaskState.FAILED, {})
    world.settle(61)
    assert (name, TaskState.FAILED, "it is no longer active in the metadata store") in (world.ended)
    assert name not in world.queue.index.all()
    assert name not in held(world)


def test_what_is_stored_by_others_is_taken_up(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    row = kill("a").to_json()
    world.metadata.tasks.insert_new(
        [TaskRow(id="a", datasource="d", type="kill", group_id="a", payload=row)]
    )
    world.settle(61)
    assert worker.taken == ["a"]


def test_what_others_end_while_it_is_read_is_not_taken_up(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    tasks = world.metadata.tasks
    row = kill("a").to_json()
    tasks.insert_new([TaskRow(id="a", datasource="d", type="kill", group_id="a", payload=row)])
    active_ids = tasks.active_ids

    def and_then_it_ends() -> Sequence[str]:
        found = active_ids()
        tasks.set_status("a", TaskState.SUCCESS)
        return found

    monkeypatch.setattr(tasks, "active_ids", and_then_it_ends)
    world.settle(61)
    assert worker.taken == []
    assert "a" not in world.queue.index.all()


def test_an_end_is_not_undone_by_a_look_that_began_before_it(
    world: TaskQueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.worker("w")
    world.add("a")
    active_ids = world.metadata.tasks.active_ids

    def and_then_it_ends() -> Sequence[str]:
        found = active_ids()
        world.queue.shutdown("a", "enough")
        return found

    monkeypatch.setattr(world.metadata.tasks, "active_ids", and_then_it_ends)
    world.settle(61)
    assert [end[0] for end in world.ended] == ["a"]
    assert world.queue.index.get("a") is None
    assert worker.taken == ["a"]


def test_a_stopped_queue_stores_nothing_and_leaves_tasks_where_they_are(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w")
    world.add("a")
    world.queue.stop()
    worker.say("a", TaskState.SUCCESS)
    world.settle(5)
    assert world.status("a")[0] == TaskState.RUNNING
    assert worker.forgotten == []
    world.start()
    world.settle(1)
    assert world.status("a")[0] == TaskState.SUCCESS


def test_the_first_end_stands(world: TaskQueueWorld) -> None:
    worker = world.worker("w")
    world.add("a")
    world.queue.shutdown("a", "enough", TaskState.SUCCESS)
    worker.say("a", TaskState.FAILED, error="late")
    world.settle(2)
    assert world.ended == [("a", TaskState.SUCCESS, "enough")]
    assert worker.says == {}


def test_a_thousand_tasks_go_through_in_order_of_priority(world: TaskQueueWorld) -> None:
    for n in range(1_000):
        world.queue.add(
            parse_batch_task({"type": "noop", "id": f"n{n}", "context": {"priority": n % 3}})
        )
    worker = world.worker("w", capacity=400)
    world.settle(1)
    assert len(worker.taken) == 400
    assert {int(name[1:]) % 3 for name in worker.taken[:333]} == {2}
    assert len(world.queue.index.in_state(RunnerState.PENDING)) == 600
    assert world.queue.index.counts()[RunnerState.RUNNING] == 400
    for name in worker.taken[:400]:
        worker.say(name, TaskState.SUCCESS)
    world.settle(2)
    assert len(world.ended) == 400
    assert len(worker.taken) == 800
