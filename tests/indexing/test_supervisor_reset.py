"""What a reset ends, whatever the supervisor knows of it; and what holds messages back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.source import TopicSupplier
from penstock.indexing.supervisor.stream_watch import StreamWatch
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.background_calls import CallDispatcher
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import StepLanes, settle
from tests.indexing.indexing_kit import FakeBroker
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, feed, offsets, running, status, until


def test_a_reset_right_after_the_overlords_start_ends_the_tasks_that_it_finds(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    (before,) = running(sim)
    sim.kill_overlord()
    ask(
        sim, sim.overlord.supervisor_service.reset("flights", {0: 2})
    )  # before the supervisor has looked at anything
    row = sim.metadata.tasks.get(before)
    assert row is not None
    assert (row.state, row.status["errorMsg"]) == ("FAILED", "the supervisor's offsets were reset")
    assert offsets(sim) == {0: 2, 1: 0}
    until(sim, lambda: len(sim.visible()) == 8)


def test_after_a_reset_failures_of_before_count_no_more(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT1H")
    for _ in range(3):
        (task,) = running(sim)
        ask(sim, sim.overlord.shutdown_task(task))
    assert status(sim)["detailedState"] == "UNHEALTHY_TASKS"
    ask(sim, sim.overlord.supervisor_service.reset("flights"))
    assert status(sim)["healthy"] is True


class Watch:
    """A topic watched on a lane that runs when the test says so."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = FakeBroker()
        self.broker.create("t", 2)
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        calls = CallDispatcher(self.lanes, self.processor)
        source = TopicSupplier(self.broker, self.clock, "t")
        self.topic = StreamWatch(source, "c", calls, "broker")
        self.errors: list[PenstockError] = []

    def settle(self) -> None:
        settle(self.processor, self.clock, lanes=self.lanes)

    def poll(self) -> None:
        self.topic.poll(lambda: None, self.errors.append)
        self.settle()

    def hold(self, committed: Mapping[int, int]) -> None:
        self.topic.hold(committed, self.errors.append)
        self.settle()

    @property
    def held(self) -> dict[int, int] | None:
        return self.broker.cursors.get(("t", "c"))


@pytest.fixture
def watch() -> Watch:
    made = Watch()
    made.broker.add("t", 0, [b"x"] * 5)
    made.poll()
    return made


def test_what_could_not_be_held_back_is_held_back_the_next_time(watch: Watch) -> None:
    watch.broker.down = True
    watch.hold({0: 3, 1: 0})
    assert isinstance(watch.errors[-1], Unavailable)
    assert watch.held is None
    watch.broker.down = False
    watch.hold({0: 3, 1: 0})
    assert watch.held == {0: 3, 1: 0}


def test_offsets_that_the_topic_does_not_have_are_not_held_and_the_others_are(watch: Watch) -> None:
    watch.hold({0: 6, 1: 0, 7: 0})  # beyond the end, there, and no such stream partition
    assert watch.held == {1: 0}


def test_a_lack_is_sure_only_when_it_lasts_for_two_looks(watch: Watch) -> None:
    assert watch.topic.confirmed_missing(["a"]) == set()
    watch.poll()
    assert watch.topic.confirmed_missing(["a", "b"]) == set()
    watch.poll()
    assert watch.topic.confirmed_missing(["a", "b"]) == {"a"}
    assert watch.topic.confirmed_missing(["b"]) == set()
    watch.poll()
    assert watch.topic.confirmed_missing(["a", "b"]) == {"b"}  # `a` existed in between
