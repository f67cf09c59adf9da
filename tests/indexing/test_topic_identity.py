"""A topic that is deleted and created again under its name: what tasks and supervisors do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineFailure
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import TaskSequences
from penstock.indexing.task_spec import MessageTimes
from penstock.indexing.task_spec import make_task as task_of
from penstock.storage.metadata import CommittedRow
from tests.indexing.indexing_kit import OneTask, event, make_spec, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, running, status, until

# one task


def _has_announced(world: OneTask, count: int) -> bool:
    return len(world.announced()) == count


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OneTask]:
    made = OneTask(tmp_path)
    made.kill()
    made.spec = made.spec.model_copy(update={"topic_id": made.broker.ids["flights"]})
    made.start()
    yield made
    made.metadata.close()


def fill(world: OneTask, count: int, *, start: int = 0) -> None:
    for n in range(start, start + count):
        world.broker.add("flights", n % 2, [event(n)])


def make_again(world: OneTask, count: int, *, partitions: int = 2) -> None:
    world.broker.create("flights", partitions)
    for n in range(900, 900 + count):
        world.broker.add("flights", n % partitions, [event(n)])


def persisted_files(world: OneTask) -> set[Path]:
    folder = world.folder / "tasks" / world.spec.id / "persist"
    return {path for path in folder.rglob("*") if path.is_file()}


def ended(world: OneTask) -> bool:
    return world.task.result.state is not TaskState.RUNNING


@pytest.mark.parametrize(("count", "partitions"), [(0, 2), (4, 2), (50, 2), (50, 1), (50, 4)])
def test_a_task_publishes_what_it_read_of_the_old_topic_and_ends(
    world: OneTask, count: int, partitions: int
) -> None:
    """Whether the new one is shorter, longer, or of another shape."""
    old = world.spec.topic_id
    fill(world, 10)
    world.run(lambda: len(world.announced()) == 10)
    make_again(world, count, partitions=partitions)
    world.run(lambda: ended(world))
    assert world.task.result.state is TaskState.SUCCESS
    assert world.published() == list(range(10))
    assert world.metadata.committed("flights") == CommittedRow(old, {0: 5, 1: 5})
    assert f"deleted and created again (id {old}, now" in world.report().error


def test_a_topic_that_is_deleted_takes_nothing_with_it_that_was_read(world: OneTask) -> None:
    fill(world, 10)
    world.run(lambda: len(world.announced()) == 10)
    del world.broker.topics["flights"]
    world.run(lambda: ended(world))
    assert world.task.result.state is TaskState.SUCCESS
    assert world.published() == list(range(10))


@pytest.mark.parametrize("count", [0, 50])
def test_what_was_read_while_the_topic_was_made_again_is_nobodys(
    world: OneTask, count: int
) -> None:
    """The log files of the new topic have the names of the old ones."""
    fill(world, 4)
    world.run(lambda: len(world.announced()) == 4)
    before = persisted_files(world)
    fill(world, 4, start=4)
    world.run(lambda: "persist" in world.lanes.waiting())
    make_again(world, count)
    world.run(lambda: ended(world))
    assert world.task.result.state is TaskState.SUCCESS
    assert world.published() == [0, 1, 2, 3]
    assert persisted_files(world) <= before


def test_an_engine_that_fails_on_a_deleted_topic_is_no_failure(world: OneTask) -> None:
    fill(world, 4)
    world.run(lambda: len(world.announced()) == 4)
    fill(world, 4, start=4)
    world.run(lambda: "persist" in world.lanes.waiting())
    del world.broker.topics["flights"]

    def at(moment: str) -> None:
        if "persist" in moment:
            raise EngineFailure("no such folder")

    world.engine.at = at
    world.run(lambda: ended(world))
    assert world.task.result.state is TaskState.SUCCESS
    assert world.published() == [0, 1, 2, 3]


def test_an_end_that_was_agreed_and_cannot_be_reached_is_taken_back(world: OneTask) -> None:
    fill(world, 4)
    world.run(lambda: len(world.announced()) == 4)
    fill(world, 4, start=4)
    world.run(lambda: "persist" in world.lanes.waiting())
    end = world.ask(world.task.pause())
    assert end == {0: 4, 1: 4}
    world.ask(world.task.set_end_offsets(end, finish=True))
    make_again(world, 50)
    world.run(lambda: ended(world))
    assert world.published() == [0, 1, 2, 3]
    assert world.report().end == {0: 2, 1: 2}


def test_a_batch_waits_for_a_broker_that_is_down_and_counts_when_it_is_back(world: OneTask) -> None:
    fill(world, 4)
    world.run(lambda: "persist" in world.lanes.waiting())
    world.broker.down = True
    world.run(lambda: "asking the broker" in world.report().error)
    assert world.announced() == []
    world.broker.down = False
    world.run(lambda: len(world.announced()) == 4)
    assert len(world.engine.persists) == 1


def test_a_task_of_before_there_were_ids_takes_the_first_it_sees(tmp_path: Path) -> None:
    world = OneTask(tmp_path)
    assert world.spec.topic_id == ""
    first = world.broker.ids["flights"]
    fill(world, 4)
    world.run(lambda: len(world.announced()) == 4)
    # It keeps what it has seen.
    world.kill()
    make_again(world, 50)
    world.start()
    world.run(lambda: ended(world))
    assert world.published() == [0, 1, 2, 3]
    assert world.metadata.committed("flights") == CommittedRow(first, {0: 2, 1: 2})
    world.metadata.close()


def test_a_broker_that_gives_no_ids_is_read_as_before(world: OneTask) -> None:
    world.broker.ids.clear()
    fill(world, 4)
    world.run(lambda: len(world.announced()) == 4)
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: ended(world))
    assert world.published() == [0, 1, 2, 3]


def test_killed_at_any_time_a_task_of_a_deleted_topic_ends_the_same(tmp_path: Path) -> None:
    for steps in range(0, 60, 3):
        folder = tmp_path / str(steps)
        folder.mkdir()
        world = OneTask(folder)
        fill(world, 4)
        world.run(partial(_has_announced, world, 4))
        make_again(world, 50)
        for _ in range(steps):
            world.step()
        world.kill()
        world.start()
        world.run(partial(ended, world))
        assert world.published() == [0, 1, 2, 3]
        world.metadata.close()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 20),
)
def test_cut_sequences_end_where_the_task_stands(
    lengths: Sequence[int], is_final: bool, persisted: int
) -> None:
    state = TaskSequences.begin("b", {0: 0})
    end = 0
    for number, length in enumerate(lengths):
        end += length
        last = is_final and number == len(lengths) - 1
        step = state.set_end_offsets({0: end}, finish=last, current={0: 0}, paused=True)
        state = step.sequences
    persisted = min(persisted, end) if is_final else persisted
    cut = state.cut({0: persisted}).sequences
    assert cut.final == {0: persisted}
    assert all(item.is_read({0: persisted}) for item in cut.items)
    assert sum((item.end or {})[0] - item.start[0] for item in cut.items) == persisted
    assert [item.name for item in cut.items] == [item.name for item in state.items][
        : len(cut.items)
    ]
    assert cut.cut({0: persisted}).sequences == cut


# a supervisor


def make_anew(sim: Simulation, *counts: int) -> list[int]:
    """Delete the topic and make it again with so many messages in each stream partition."""
    sim.broker.create("flights", len(counts))
    numbers = []
    for p, count in enumerate(counts):
        numbers += [1000 * (p + 1) + n for n in range(count)]
        sim.broker.add("flights", p, [event(1000 * (p + 1) + n) for n in range(count)])
    return numbers


def errors(sim: Simulation) -> str:
    return " ".join(error["exceptionMessage"] for error in status(sim)["recentErrors"])


@pytest.mark.parametrize("counts", [(2, 2), (20, 20), (5, 5), (30,), (9, 9, 9)])
@pytest.mark.parametrize("how", ["reading", "published", "suspended"])
def test_the_new_topic_is_read_from_its_start(
    make: Callable[..., Simulation], how: str, counts: tuple[int, ...]
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    old = status(sim)["streamId"]
    assert old == sim.broker.ids["flights"]
    if how == "published":
        ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    if how == "suspended":
        ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    if how != "reading":
        until(sim, lambda: sim.published() == sim.good)
    new = make_anew(sim, *counts)
    if how == "suspended":
        ask(sim, sim.overlord.supervisor_service.resume("flights"))
    until(sim, lambda: sim.visible() == sorted(sim.good + new))
    assert set(sim.good) <= set(sim.published())
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sorted(sim.good + new))
    now = sim.broker.ids["flights"]
    assert sim.metadata.committed("flights") == CommittedRow(now, dict(enumerate(counts)))
    assert f"deleted and created again (id {old}, now {now})" in errors(sim)
    assert (status(sim)["streamId"], status(sim)["healthy"]) == (now, True)


def test_first_offsets_at_the_end_are_not_for_a_successor(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H", useEarliestOffset=False)
    sim.run(5)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    new = make_anew(sim, 7, 7)
    until(sim, lambda: sim.visible() == sorted(sim.good + new))


def test_the_new_one_waits_until_the_old_one_is_published(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    new = make_anew(sim, 20, 20)
    sim.run(30)
    assert len(sim.overlord.active_tasks()) == 1
    assert sim.visible() == sim.good
    assert sum(status(sim)["minimumLag"].values()) == 40
    assert sim.broker.cursors["flights", "supervisor.flights"] == {0: 0, 1: 0}
    sim.deep_store.push = push  # type: ignore[method-assign]
    until(sim, lambda: sim.visible() == sorted(sim.good + new))


def test_what_went_unread_is_counted(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.suspend("flights"))
    until(sim, lambda: sim.published() == sim.good)
    read = list(sim.good)
    feed(sim, 6)
    sim.run(5)
    new = make_anew(sim, 20, 20)
    ask(sim, sim.overlord.supervisor_service.resume("flights"))
    until(sim, lambda: sim.visible() == sorted(read + new))
    assert "{0: 5, 1: 5} is published; lost with it unread: 6 messages" in errors(sim)


def test_a_topic_made_again_twice_is_read_as_it_is_now(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    make_anew(sim, 50, 50)
    new = make_anew(sim, 8, 8)
    until(sim, lambda: sim.visible() == sorted(sim.good + new))


@pytest.mark.parametrize("delay_s", [0, 0.3, 1, 3])
def test_an_overlord_that_was_away_finds_it_out(
    make: Callable[..., Simulation], delay_s: float
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    new = make_anew(sim, 20, 20)
    sim.run(delay_s)
    sim.kill_overlord()
    until(sim, lambda: sim.visible() == sorted(sim.good + new))
    committed = sim.metadata.committed("flights")
    assert committed is not None
    assert committed.topic_id == sim.broker.ids["flights"]


def test_a_deleted_topic_that_comes_back_later_is_read_from_its_start(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    del sim.broker.topics["flights"]
    until(sim, lambda: sim.published() == sim.good)
    sim.run(30)
    new = make_anew(sim, 20, 20)
    until(sim, lambda: sim.visible() == sorted(sim.good + new))


def test_a_terminated_supervisor_that_is_submitted_again_finds_it_out(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    ask(sim, sim.overlord.supervisor_service.terminate("flights"))
    until(sim, lambda: sim.published() == sim.good and not sim.overlord.active_tasks())
    sim.run(5)
    new = make_anew(sim, 20, 20)
    ask(sim, sim.overlord.supervisor_service.submit(spec_json(taskDuration="PT1H")))
    until(sim, lambda: sim.visible() == sorted(sim.good + new))


def test_offsets_of_before_there_were_ids_go_on(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    sim.metadata.begin_offsets("flights", {0: 3, 1: 3})
    until(sim, lambda: len(sim.visible()) == 4)
    committed = sim.metadata.committed("flights")
    assert committed is not None
    assert committed.topic_id == sim.broker.ids["flights"]
    assert status(sim)["recentErrors"] == []


def test_a_lost_task_of_the_old_topic_holds_nothing_up(make: Callable[..., Simulation]) -> None:
    """Nobody can read its messages again; what was read behind them is published all the same."""
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    (lost,) = running(sim)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    new = make_anew(sim, 20, 20)
    sim.run(3)
    ask(sim, sim.overlord.shutdown_task(lost))
    sim.deep_store.push = push  # type: ignore[method-assign]
    until(sim, lambda: sim.visible() == sorted(sim.good[10:] + new), 60)
    assert "{0: 0, 1: 0} to {0: 5, 1: 5} are lost with it" in errors(sim)


def test_the_new_topic_is_held_at_its_start(make: Callable[..., Simulation]) -> None:
    """The cursor of the old one went with it, though the new one would have the same."""
    sim = make(taskDuration="PT1H")
    sim.run(5)
    assert sim.broker.cursors["flights", "supervisor.flights"] == {0: 0, 1: 0}
    make_anew(sim, 20, 20)
    assert not sim.broker.cursors
    until(sim, lambda: len(sim.visible()) == 40)
    sim.run(3)
    assert sim.broker.cursors["flights", "supervisor.flights"] == {0: 0, 1: 0}


def test_a_reset_while_the_old_topic_is_left_is_of_the_new_one(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    sim.deep_store.push = lambda *_: fail("the store is full")  # type: ignore[method-assign]
    make_anew(sim, 20, 20)
    sim.run(5)
    with pytest.raises(InvalidRequest, match="0 to 20"):
        ask(sim, sim.overlord.supervisor_service.reset("flights", {0: 21}))
    ask(sim, sim.overlord.supervisor_service.reset("flights", {0: 18}))
    now = sim.broker.ids["flights"]
    assert sim.metadata.committed("flights") == CommittedRow(now, {0: 18, 1: 0})
    until(sim, lambda: len(sim.visible()) == 22)


def test_a_task_says_which_topic_it_is_for() -> None:
    made = task_of(make_spec(), 0, {0: 5}, None, topic_id="a1", times=MessageTimes(), token="t")
    assert made.to_json()["topicId"] == "a1"


@pytest.mark.parametrize("seed", range(1, 3))
def test_accidents_while_topics_come_and_go_lose_nothing_of_the_last_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    sim = Simulation(tmp_path, seed, taskCount=1 + seed % 2)
    sim.run(3)
    sim.chaos, sim.peon_death, sim.engine_loss = True, 0.01, 0.05
    sent = []
    for _ in range(20):
        if sim.random.random() < 0.3:
            sim.note("the topic is deleted and created again")
            sim.broker.create("flights", 2)
            sim.good.clear()
        before = len(sim.good)
        sim.publish(sim.random.randrange(60))
        sent += sim.good[before:]
        sim.run(sim.random.random() * 4)
        seen = sim.visible()
        assert len(seen) == len(set(seen)), f"doubled for a query: {sim.tell()}"
    sim.chaos = sim.broker.down = False
    sim.overlord.supervisor_service.resume("flights")
    until(sim, lambda: set(sim.good) <= set(sim.visible()), 300)
    sim.overlord.supervisor_service.hand_off("flights")
    until(sim, lambda: set(sim.good) <= set(sim.published()), 300)
    found = sim.published()
    assert len(found) == len(set(found)), sim.tell()
    assert set(found) <= set(sent), sim.tell()
    assert sim.metadata.counts("flights").processed == len(found), sim.tell()
    sim.metadata.close()
