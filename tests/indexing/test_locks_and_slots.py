"""Locks of tasks that no worker has: whom they yield to, and that no mix of tasks stands still."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.indexing.lockbox.lockbox import AcquireLocks, PlaceTask
from penstock.indexing.lockbox.task_locks import LockGranted, LockOutcome, LockRefused, LockType
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.batch_task_specs import BatchTaskSpec, parse_batch_task
from penstock.indexing.task_spec import TaskSpec
from tests.indexing.lockbox_kit import DAY, Story, hours, task, word
from tests.indexing.queue_kit import TaskQueueWorld, held, kill, noop, states, submit


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TaskQueueWorld]:
    made = TaskQueueWorld(tmp_path)
    yield made
    made.metadata.close()


def ask(
    story: Story, name: str, *intervals: Interval, waits: bool, kind: LockType = LockType.EXCLUSIVE
) -> list[LockOutcome]:
    requests = tuple(story.request(name, kind, interval) for interval in intervals)
    answer = story.do(AcquireLocks(requests, together=True, waits=waits))
    assert isinstance(answer, list)
    return answer


# Who holds, who asks (their priorities; whether they wait for a worker), and what comes of it.
YIELDS = [
    ("waits", 50, "runs", 50, "new", "yielded"),
    ("waits", 90, "runs", 10, "new", "yielded"),
    ("waits", 10, "runs", 90, "new", "yielded"),
    ("waits", 50, "waits", 50, "refused", "held"),
    ("waits", 90, "waits", 50, "refused", "held"),
    ("waits", 50, "waits", 90, "new", "yielded"),
    ("runs", 50, "runs", 50, "refused", "held"),
    ("runs", 50, "waits", 50, "refused", "held"),
    ("runs", 50, "runs", 90, "new", "revoked"),
    ("runs", 50, "waits", 90, "new", "revoked"),
]


@pytest.mark.parametrize(("holder", "p1", "asker", "p2", "answer", "lock"), YIELDS)
def test_the_table_of_yielding(
    story: Story, holder: str, p1: int, asker: str, p2: int, answer: str, lock: str
) -> None:
    story.add(task("holder", priority=p1), task("asker", priority=p2))
    ask(story, "holder", hours(0, 12), hours(20, 22), waits=holder == "waits")
    (outcome,) = ask(story, "asker", hours(0, 1), waits=asker == "waits")
    assert word(outcome) == answer
    found = story.held("holder")
    assert story.yielded == (("holder",) if lock == "yielded" else ())
    if lock == "yielded":
        assert found == []  # all of them: it asks for all together again
        assert story.released
    else:
        assert [revoked for _kind, _interval, revoked in found] == [lock == "revoked", False]
    story.check_stored()


def test_what_is_refused_takes_nothing_from_who_waits(story: Story) -> None:
    story.add(task("waiting"), task("running"), task("asker"))
    ask(story, "waiting", hours(0, 12), waits=True)
    ask(story, "running", hours(12, 24), waits=False)
    (refused,) = ask(story, "asker", DAY, waits=False)
    assert isinstance(refused, LockRefused)
    # Only who has to let go is named; the other would yield.
    assert [one.task_ids for one in refused.refusals] == [("running",)]
    assert story.yielded == ()
    assert len(story.held("waiting")) == 1
    # Together with one that is refused, nothing is taken either.
    ask(story, "asker", hours(0, 1), hours(13, 14), waits=False)
    assert story.yielded == ()
    assert len(story.held("waiting")) == 1


def test_a_task_that_goes_to_a_worker_yields_no_more_and_again_if_it_comes_back(
    story: Story,
) -> None:
    story.add(task("a"), task("b"), task("c"))
    ask(story, "a", DAY, waits=True)
    story.do(PlaceTask("a", waits=False))
    assert isinstance(ask(story, "b", DAY, waits=False)[0], LockRefused)
    story.do(PlaceTask("a", waits=True))
    assert isinstance(ask(story, "b", DAY, waits=False)[0], LockGranted)


def test_a_task_that_asks_for_itself_runs(story: Story) -> None:
    story.add(task("a"), task("b"))
    ask(story, "a", DAY, waits=True)
    assert word(ask(story, "a", DAY, waits=False)[0]) == "same"
    assert isinstance(ask(story, "b", DAY, waits=False)[0], LockRefused)


def test_a_lock_that_a_running_task_of_the_group_shares_is_firm(story: Story) -> None:
    story.add(task("a", "g"), task("b", "g"), task("c"))
    ask(story, "a", DAY, waits=True)
    ask(story, "b", DAY, waits=False)
    assert isinstance(ask(story, "c", DAY, waits=False)[0], LockRefused)


def test_a_replace_lock_of_the_group_yields_too(story: Story) -> None:
    story.add(task("a", "g"), task("b", "g"))
    ask(story, "a", DAY, waits=True, kind=LockType.REPLACE)
    assert word(ask(story, "b", hours(0, 2), waits=True, kind=LockType.REPLACE)[0]) == "refused"
    assert word(ask(story, "b", hours(0, 2), waits=False, kind=LockType.REPLACE)[0]) == "new"
    assert story.held("a") == []


def test_who_gave_way_does_not_take_it_back_by_its_priority_before_it_has_a_worker(
    story: Story,
) -> None:
    story.add(task("high", priority=90), task("low", priority=10))
    ask(story, "high", DAY, waits=True)
    assert word(ask(story, "low", DAY, waits=False)[0]) == "new"
    assert word(ask(story, "high", DAY, waits=True)[0]) == "refused"
    assert word(ask(story, "high", DAY, waits=False)[0]) == "new"
    assert [revoked for _kind, _interval, revoked in story.held("low")] == [True]


def test_what_cannot_be_stored_is_not_yielded(story: Story) -> None:
    story.add(task("a"), task("b"))
    ask(story, "a", DAY, waits=True)
    result = story.box.handle([AcquireLocks((story.request("b", LockType.EXCLUSIVE, DAY),))], 0)
    assert result.yielded == ("a",)
    story.box.undo()
    assert len(story.held("a")) == 1
    assert story.held("b") == []
    assert isinstance(ask(story, "b", DAY, waits=False)[0], LockGranted)  # it yields still


# The queue


def runs_and_asks(world: TaskQueueWorld, owner: TaskSpec, *intervals: Interval) -> str:
    """A running task asks for locks, as its actions do; return the answer to the first."""
    mine = lock_task(owner)
    requests = [mine.request(interval) for interval in intervals]
    outcome = world.lockboxes.acquire(requests, together=True).result()[0]
    world.settle()
    return word(outcome)


def sleeps(task_id: str, priority: int) -> BatchTaskSpec:
    """A task that locks nothing before it starts."""
    context = {"priority": priority}
    return parse_batch_task(
        {"type": "noop", "id": task_id, "dataSource": "d", "context": {**context}}
    )


def test_a_running_task_takes_the_locks_of_one_that_waits_for_its_slot(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w", capacity=1)
    running, waiting = noop("running"), kill("waiting")
    submit(world, running, waiting)
    assert (worker.taken, held(world)) == (["running"], {"waiting"})
    assert runs_and_asks(world, running, waiting.time) == "new"
    assert held(world) == {"running"}
    assert states(world)["waiting"] is RunnerState.WAITING
    (wait,) = world.why("waiting")
    assert "held by running" in wait.text
    worker.say("running", TaskState.SUCCESS)
    world.settle(2)
    assert worker.taken == ["running", "waiting"]
    assert held(world) == {"waiting"}
    worker.say("waiting", TaskState.SUCCESS)
    world.settle(2)
    assert held(world) == set()
    assert [end[1] for end in world.ended] == [TaskState.SUCCESS] * 2


def test_those_in_line_behind_one_that_yielded_are_not_forgotten(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=1)
    running = noop("running")
    submit(world, running, kill("first"), kill("second"), kill("wide", (1, 4)))
    assert runs_and_asks(world, running, kill("x").time) == "new"
    for name in ("running", *["first", "second", "wide"] * 2):
        if name in worker.says:
            worker.say(name, TaskState.SUCCESS)
            world.settle(2)
    for name in list(worker.says):
        worker.say(name, TaskState.SUCCESS)
        world.settle(2)
    assert sorted(worker.taken) == ["first", "running", "second", "wide"]


def test_a_task_at_a_worker_keeps_its_locks_whoever_asks(world: TaskQueueWorld) -> None:
    world.worker("w", capacity=2)
    asking, other = noop("asking"), kill("other")
    submit(world, asking, other)
    assert runs_and_asks(world, asking, other.time) == "refused"
    assert held(world) == {"other"}


def test_a_task_that_a_worker_took_unasked_keeps_its_locks(world: TaskQueueWorld) -> None:
    worker = world.worker("w", capacity=1)
    asking, pending = noop("asking"), kill("pending")
    submit(world, asking, pending)
    assert states(world)["pending"] is RunnerState.PENDING
    # It was handed over, the answer was lost, and it arrived after the worker had said it has not.
    worker.say("pending")
    world.settle(1)
    assert states(world)["pending"] is RunnerState.RUNNING
    assert runs_and_asks(world, asking, pending.time) == "refused"
    assert held(world) == {"pending"}


def test_after_a_change_of_leaders_locks_of_tasks_without_a_worker_yield_too(
    world: TaskQueueWorld,
) -> None:
    worker = world.worker("w", capacity=1)
    running = noop("running")
    submit(world, running, kill("a"), kill("b"), kill("c", (5, 6)))
    world.start()
    world.settle(1)
    assert runs_and_asks(world, running, kill("x").time, kill("x", (5, 6)).time) == "new"
    assert held(world) == {"running"}
    for _ in range(5):
        for name in list(worker.says):
            worker.say(name, TaskState.SUCCESS)
            world.settle(2)
    assert sorted(worker.taken) == ["a", "b", "c", "running"]


@dataclass
class Plan:
    """One task: which days it locks before it starts or, `inside`, when it has worked."""

    days: tuple[int, int]
    inside: bool
    priority: int
    work_s: int
    at_s: int


@dataclass
class Players:
    """Workers that run tasks by their plans: they wait inside for as long as it takes."""

    world: TaskQueueWorld
    plans: dict[str, Plan]
    worked: dict[str, int] = field(default_factory=dict)

    def second(self) -> None:
        """Let every running task go on for a second."""
        for worker in self.world.announced:
            for name, said in list(worker.says.items()):
                if said.state is TaskState.RUNNING:
                    worker.say(name, self._goes_on(name))
        self.world.settle(1)

    def _goes_on(self, name: str) -> TaskState:
        plan = self.plans[name]
        self.worked[name] = self.worked.get(name, 0) + 1
        if plan.inside and self.worked[name] < plan.work_s:
            return TaskState.RUNNING  # It learns from its rows which days they are.
        made = kill(name, plan.days, priority=plan.priority)
        answer = runs_and_asks(self.world, made, made.time)
        if answer == "revoked":
            return TaskState.FAILED
        done = answer != "refused" and self.worked[name] >= plan.work_s
        return TaskState.SUCCESS if done else TaskState.RUNNING


PLANS = st.builds(
    Plan,
    days=st.tuples(st.integers(1, 6), st.integers(1, 3)).map(lambda d: (d[0], d[0] + d[1])),
    inside=st.booleans(),
    priority=st.sampled_from([50, 50, 50, 75]),
    work_s=st.integers(1, 3),
    at_s=st.integers(0, 4),
)


@given(
    plans=st.lists(PLANS, min_size=1, max_size=9),
    slots=st.lists(st.integers(1, 2), min_size=1, max_size=2),
    restart_s=st.integers(0, 20),
)
def test_every_mix_of_tasks_comes_to_its_end(
    plans: Sequence[Plan], slots: Sequence[int], restart_s: int
) -> None:
    """Nobody has a time limit here: a deadlock would last for ever."""
    with TemporaryDirectory() as folder:
        world = TaskQueueWorld(folder)
        for number, capacity in enumerate(slots):
            world.worker(f"w{number}", capacity=capacity)
        names = {f"t{number}": plan for number, plan in enumerate(plans)}
        players = Players(world, names)
        # Each task works for 3 s at most, and no two at once in the worst case.
        for second in range(10 * len(plans) + 30):
            for name, plan in names.items():
                if plan.at_s == second:
                    priority = plan.priority
                    waits = kill(name, plan.days, priority=priority)
                    submit(world, sleeps(name, priority) if plan.inside else waits)
            if second == restart_s:
                world.start()
            players.second()
        world.metadata.close()
        assert sorted(name for name, _state, _error in world.ended) == sorted(names)
        if len({plan.priority for plan in plans}) == 1:  # Else some are revoked.
            assert {state for _name, state, _error in world.ended} == {TaskState.SUCCESS}
