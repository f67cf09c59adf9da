"""Replicas: two tasks do the same, step by step and whatever dies between the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import TaskPhase, TaskReport, TaskState
from penstock.indexing.read_plan import SeenTopic
from penstock.indexing.specs import TuningConfig
from penstock.indexing.supervisor.supervisor_state import SupervisorState
from penstock.indexing.supervisor.task_groups import GroupState, TaskGroup
from penstock.indexing.supervisor.task_protocol import TaskProtocol
from penstock.indexing.task.streaming_state import TaskResult
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.background_calls import CallDispatcher
from tests.harness.mailbox_kit import StepLanes
from tests.indexing.indexing_kit import FakeBroker, OneTask, event, make_spec
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, feed, offsets, running, status, until

TUNING = TuningConfig(max_rows_per_segment=3, max_total_rows=1000)


@dataclass
class View:
    """A broker of which one task sees a part only."""

    broker: FakeBroker
    limits: dict[int, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.broker, name)

    def available(self, topic: str, **more: Any) -> SeenTopic:
        seen = self.broker.available(topic, **more)
        return replace(
            seen,
            partitions={
                p: replace(a, latest=min(a.latest, self.limits.get(p, a.latest)))
                for p, a in seen.partitions.items()
            },
        )


class Twin(OneTask):
    """One of two replicas, in one world."""

    def __init__(self, folder: Path, name: str, first: Twin | None = None, **more: Any) -> None:
        super().__init__(
            folder,
            beside=first,
            id=name,
            base_sequence_name="B",
            tuning_config=TUNING,
            **more,
        )
        self.kill()
        self.view: View = View(first.view.broker if first else self.broker)
        self.broker = cast("FakeBroker", self.view)
        self.engine.read = self.broker.read
        self.start()

    def sequences(self) -> list[tuple[str, dict[int, int], dict[int, int] | None]]:
        return [
            (s.name, dict(s.start), None if s.end is None else dict(s.end))
            for s in self.task._context.state.sequences.items
        ]

    def read_up_to(self, limits: Mapping[int, int]) -> None:
        self.view.limits = dict(limits)
        self.run(lambda: dict(self.report().current) == limits)
        self.run(lambda: dict(self.report().persisted) == limits)

    def finish(self) -> TaskResult:
        self.run(lambda: self.task.result.state is not TaskState.RUNNING)
        return self.task.result


class Overlord:
    """A supervisor's side of the talk, and nothing more of it."""

    def __init__(self, *twins: Twin) -> None:
        self.twins = {twin.spec.id: twin for twin in twins}
        self.processor = MailboxProcessor(name="overlord", clock=twins[0].clock)
        self.lanes = StepLanes()
        self.ended: list[tuple[str, str]] = []
        self.notes: list[Exception] = []
        # As much of a `SupervisorState` as the protocol needs.
        self.spec = make_spec(completionTimeout="PT1S")
        self.ports = self.queue = self.peons = self
        self.clock = twins[0].clock
        self.note = self.notes.append
        self.protocol = TaskProtocol(
            cast("SupervisorState", self), CallDispatcher(self.lanes, self.processor)
        )
        self.group = TaskGroup(twins[0].spec, GroupState.UNKNOWN, 0)
        for twin in twins:
            self.group.add(twin.spec, 0.0, 0).has_worker = True

    @property
    def state(self) -> GroupState:
        return self.group.state

    def settle(self) -> None:
        while self.processor.run_mailbox_step() or self.lanes.waiting():
            for lane in self.lanes.waiting():
                self.lanes.run_one(lane)

    def look(self) -> None:
        self.protocol.request_reports(self.group)
        self.settle()
        self.protocol.align_replicas(self.group)
        self.settle()

    # SupervisorState

    def shutdown(self, task_id: str, reason: str) -> None:
        self.ended.append((task_id, reason))

    def request_round(self) -> None:
        pass

    # TaskClient

    def within(self, _timeout_ms: int) -> Overlord:
        return self

    def report(self, task_id: str) -> TaskReport:
        return self.twins[task_id].ask(self.twins[task_id].task.report())

    def pause(self, task_id: str) -> dict[int, int]:
        return self.twins[task_id].ask(self.twins[task_id].task.pause())

    def resume(self, task_id: str) -> None:
        return self.twins[task_id].ask(self.twins[task_id].task.resume())

    def set_end_offsets(self, task_id: str, end: Mapping[int, int], *, finish: bool) -> None:
        twin = self.twins[task_id]
        return twin.ask(twin.task.set_end_offsets(end, finish=finish))


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[tuple[Twin, Twin]]:
    one = Twin(tmp_path, "T1")
    two = Twin(tmp_path, "T2", one)
    for p in (0, 1):
        one.broker.add("flights", p, [event(10 * p + n, day=0) for n in range(9)])
    yield one, two
    one.metadata.close()


def published(twin: Twin) -> dict[int, int]:
    return dict(twin.metadata.offsets("flights") or {})


def test_the_worked_example(twins: tuple[Twin, Twin]) -> None:
    """Two partitions, one group, two replicas T1 and T2, base name B."""
    one, two = twins
    start = {0: 0, 1: 0}
    overlord = Overlord(one, two)
    overlord.look()
    assert overlord.state is GroupState.READING
    assert one.sequences() == two.sequences() == [("B_0", start, None)]
    # The third row fills the segment: T1 tells that its sequence is full.
    two.read_up_to({0: 2, 1: 4})
    one.read_up_to({0: 3, 1: 0})
    one.run(lambda: bool(one.notices.checkpoints))
    assert one.notices.checkpoints == [("T1", start)]
    # Both are paused; the end is the furthest of both.
    overlord.protocol.checkpoint(overlord.group, start)
    overlord.settle()
    middle = {0: 3, 1: 4}
    assert overlord.group.checkpoints == {0: start, 1: middle}
    assert one.sequences() == two.sequences() == [("B_0", start, middle), ("B_1", middle, None)]
    # The notice comes again, late, and changes nothing.
    overlord.protocol.checkpoint(overlord.group, start)
    overlord.settle()
    assert overlord.group.checkpoints == {0: start, 1: middle}
    # Read on: both publish B_0, the second finds it published and goes on.
    one.view.limits = {0: 5, 1: 6}
    one.run(lambda: published(one) == middle)
    rows = one.published()
    assert len(rows) == 7
    two.view.limits = {0: 9, 1: 9}
    two.run(lambda: two.sequences()[0][0] == "B_1")
    assert published(two) == middle
    assert one.published() == rows
    # The duration is over: pause, the end is where the furthest stands.
    two.run(lambda: dict(two.report().current) == {0: 9, 1: 9})
    overlord.look()
    overlord.protocol.roll(overlord.group)
    overlord.settle()
    end = {0: 9, 1: 9}
    assert (overlord.group.state, overlord.group.end) == (GroupState.PUBLISHING, end)
    assert one.sequences() == [("B_1", middle, end)]
    one.view.limits = {}
    assert one.finish().state is TaskState.SUCCESS
    assert published(one) == end
    assert two.finish().state is TaskState.SUCCESS
    assert len(one.published()) == 18 == len(set(one.published()))
    assert (overlord.ended, overlord.notes) == ([], [])


@pytest.mark.parametrize("known", [0, 1])
def test_an_agreement_that_was_cut_is_brought_to_an_end(
    twins: tuple[Twin, Twin], known: int
) -> None:
    """The overlord dies when one task has the checkpoint; the next brings the other in line."""
    one, two = twins
    one.read_up_to({0: 3, 1: 1})
    two.read_up_to({0: 2, 1: 1})
    told = (one, two)[known]
    told.ask(told.task.pause())
    told.ask(told.task.set_end_offsets({0: 3, 1: 1}, finish=False))
    overlord = Overlord(one, two)
    overlord.look()
    overlord.look()
    assert overlord.group.checkpoints == {0: {0: 0, 1: 0}, 1: {0: 3, 1: 1}}
    assert one.sequences() == two.sequences()
    assert overlord.ended == []


def test_an_end_that_one_task_has_holds_for_all(twins: tuple[Twin, Twin]) -> None:
    one, two = twins
    one.read_up_to({0: 3, 1: 1})
    two.read_up_to({0: 2, 1: 1})
    two.ask(two.task.pause())
    two.ask(two.task.set_end_offsets({0: 5, 1: 5}, finish=True))
    overlord = Overlord(one, two)
    overlord.group.state = GroupState.READING
    overlord.protocol.roll(overlord.group)
    overlord.settle()
    assert overlord.group.end == {0: 5, 1: 5}
    assert one.sequences() == two.sequences() == [("B_0", {0: 0, 1: 0}, {0: 5, 1: 5})]


def test_a_task_that_has_read_past_the_end_of_its_replicas_is_ended(
    twins: tuple[Twin, Twin],
) -> None:
    one, two = twins
    one.read_up_to({0: 3, 1: 1})
    two.read_up_to({0: 7, 1: 1})
    one.ask(one.task.pause())
    one.ask(one.task.set_end_offsets({0: 3, 1: 1}, finish=True))
    overlord = Overlord(one, two)
    overlord.look()
    ((task_id, reason),) = overlord.ended
    assert task_id == "T2"
    assert "is before the offsets already read" in reason
    assert overlord.group.end == {0: 3, 1: 1}


def test_a_task_that_does_not_answer_hears_of_the_end_later(twins: tuple[Twin, Twin]) -> None:
    one, two = twins
    one.read_up_to({0: 3, 1: 1})
    two.read_up_to({0: 2, 1: 0})
    overlord = Overlord(one, two)
    overlord.look()
    ask_one, answer = overlord.pause, {"T2": False}

    def pause(task_id: str) -> dict[int, int]:
        if not answer.get(task_id, True):
            from penstock.core.errors import Unavailable

            raise Unavailable("the peon is being started again")
        return ask_one(task_id)

    overlord.pause = pause  # type: ignore[method-assign]
    overlord.protocol.roll(overlord.group)
    overlord.settle()
    assert overlord.group.end == {0: 3, 1: 1}
    assert two.sequences() == [("B_0", {0: 0, 1: 0}, None)]
    answer.clear()
    overlord.look()
    overlord.look()
    assert two.sequences() == one.sequences()
    assert overlord.ended == []


def test_a_paused_task_stays_paused_while_an_agreement_runs_whose_group_has_an_end(
    tmp_path: Path, twins: tuple[Twin, Twin]
) -> None:
    """One replica is slow, and another one reports an end, which ends the state CHECKPOINTING."""
    one, two = twins
    three = Twin(tmp_path, "T3", one)
    for twin, last in ((one, 2), (two, 3), (three, 2)):
        twin.read_up_to({0: last, 1: 1})
    start, middle = {0: 0, 1: 0}, {0: 3, 1: 1}
    overlord = Overlord(one, two, three)
    overlord.protocol.checkpoint(overlord.group, start)
    overlord.protocol.request_reports(overlord.group)
    for task_id in ("T1", "T2"):
        overlord.lanes.run_one(f"peon-{task_id}")  # It is paused.
    two.ask(two.task.set_end_offsets(middle, finish=True))  # By a late request of a former leader.
    for task_id in ("T2", "T1"):
        overlord.lanes.run_one(f"peon-{task_id}")  # It reports, T1 that it is paused.
    while overlord.processor.run_mailbox_step():
        pass
    states = [overlord.state]
    overlord.protocol.align_replicas(overlord.group)  # T1 gets its end from the agreement.
    overlord.settle()
    assert [*states, overlord.state] == [GroupState.AGREEING_LATE, GroupState.PUBLISHING]
    assert "T1" not in dict(overlord.ended)
    assert one.sequences()[0] == ("B_0", start, middle)


def test_a_task_that_a_former_overlord_left_paused_goes_on_after_an_agreement(
    twins: tuple[Twin, Twin],
) -> None:
    one, two = twins
    one.read_up_to({0: 2, 1: 1})
    overlord = Overlord(one, two)
    overlord.protocol.checkpoint(overlord.group, {0: 0, 1: 0})
    overlord.settle()
    one.ask(one.task.pause())
    overlord.look()
    assert one.report().phase is not TaskPhase.PAUSED


def test_a_checkpoint_is_agreed_before_any_task_has_reported(twins: tuple[Twin, Twin]) -> None:
    """A notification may reach a new overlord before the first report does."""
    one, two = twins
    two.read_up_to({0: 2, 1: 4})
    one.read_up_to({0: 3, 1: 0})
    overlord = Overlord(one, two)
    states = [overlord.state]
    overlord.protocol.checkpoint(overlord.group, {0: 0, 1: 0})
    states.append(overlord.state)
    overlord.settle()
    states.append(overlord.state)
    assert states == [GroupState.UNKNOWN, GroupState.CHECKPOINTING, GroupState.READING]
    assert overlord.group.checkpoints == {0: {0: 0, 1: 0}, 1: {0: 3, 1: 4}}
    assert one.sequences() == two.sequences()


def test_a_task_that_joins_later_cuts_its_sequences_as_the_others(
    tmp_path: Path, twins: tuple[Twin, Twin]
) -> None:
    one, _two = twins
    one.read_up_to({0: 3, 1: 1})
    one.ask(one.task.pause())
    one.ask(one.task.set_end_offsets({0: 3, 1: 1}, finish=False))
    overlord = Overlord(one)
    overlord.look()
    checkpoints = overlord.group.to_join({0: 0, 1: 0})
    assert checkpoints == {0: {0: 0, 1: 0}, 1: {0: 3, 1: 1}}
    late = Twin(tmp_path, "T3", one, checkpoints=checkpoints)
    assert late.sequences() == one.sequences()
    one.run(lambda: published(one) == {0: 3, 1: 1})
    assert overlord.group.to_join(published(one)) == {1: {0: 3, 1: 1}}
    later = Twin(tmp_path, "T4", one, checkpoints=overlord.group.to_join(published(one)))
    assert later.sequences() == [("B_1", {0: 3, 1: 1}, None)]
    later.run(lambda: dict(later.report().persisted) == {0: 9, 1: 9})


# with a whole overlord


def tasks_of_groups(sim: Simulation) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for task_id, active in sim.overlord.active_tasks().items():
        assert isinstance(active.task, StreamTaskSpec)
        found.setdefault(active.task.base_sequence_name, []).append(task_id)
    return found


def test_each_group_has_its_replicas_and_every_event_is_published_once(
    make: Callable[..., Simulation],
) -> None:
    sim = make(replicas=2, workers=2)
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    assert len(running(sim, 2)) == 2
    assert [len(tasks) for tasks in tasks_of_groups(sim).values()] == [2]
    until(sim, lambda: sim.published() == sim.good)
    feed(sim, 10)
    until(sim, lambda: sim.published() == sim.good)
    assert offsets(sim) == {0: 10, 1: 10}
    assert sim.metadata.counts("flights").processed == 20


def test_a_lost_replica_is_replaced_in_its_group_and_costs_the_other_nothing(
    make: Callable[..., Simulation],
) -> None:
    sim = make(replicas=2, workers=2, taskDuration="PT1H")
    feed(sim, 10)
    until(sim, lambda: sim.visible() == sim.good)
    one, two = running(sim, 2)
    ask(sim, sim.overlord.shutdown_task(one))
    until(sim, lambda: len(running(sim, 2)) == 2)
    assert two in running(sim, 2)
    assert len(tasks_of_groups(sim)) == 1
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.published() == sim.good)


def test_a_new_overlord_puts_replicas_together_again(make: Callable[..., Simulation]) -> None:
    sim = make(
        {"maxRowsPerSegment": 5_000, "maxTotalRows": 10}, replicas=2, workers=2, taskDuration="PT1H"
    )
    feed(sim, 12)
    until(sim, lambda: sim.published() == sim.good)
    before = running(sim, 2)
    sim.kill_overlord()
    until(sim, lambda: sorted(running(sim, 2)) == sorted(before))
    assert len(tasks_of_groups(sim)) == 1
    feed(sim, 12)
    until(sim, lambda: sim.published() == sim.good)
    assert sorted(running(sim, 2)) == sorted(before)


def test_fewer_replicas_are_enough_after_another_spec(make: Callable[..., Simulation]) -> None:
    sim = make(replicas=3, workers=3, taskDuration="PT1H")
    feed(sim, 4)
    until(sim, lambda: len(running(sim, 3)) == 3)
    kept = set(running(sim, 3))
    changed: dict[str, Any] = sim.spec.to_json()
    changed["spec"]["ioConfig"]["replicas"] = 1
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: len(sim.overlord.active_tasks()) == 1)
    assert set(sim.overlord.active_tasks()) < kept
    assert status(sim)["replicas"] == 1


def test_a_replica_that_refuses_while_the_store_is_silent_is_ended_later(
    make: Callable[..., Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = make(taskDuration="PT1H", replicas=2, workers=2)
    feed(sim, 6)
    until(sim, lambda: sim.visible() == sim.good)
    one, two = running(sim, 2)
    tell, store = sim.set_end_offsets, sim.metadata.tasks.set_statuses
    silent: list[object] = []

    def set_end_offsets(task_id: str, end: Mapping[int, int], *, finish: bool) -> None:
        if task_id == two:
            raise InvalidRequest("it is before the offsets already read")
        tell(task_id, end, finish=finish)

    def set_statuses(changes: list[Any]) -> set[str]:
        if len(silent) < 3 and any(task_id == two for task_id, _, _ in changes):
            silent.append(changes)
            fail("the store is silent")
        return store(changes)

    monkeypatch.setattr(sim, "set_end_offsets", set_end_offsets)
    monkeypatch.setattr(type(sim.metadata.tasks), "set_statuses", lambda _, c: set_statuses(c))
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))
    until(sim, lambda: sim.overlord.task(one).row.state == "SUCCESS")
    assert silent
    until(sim, lambda: sim.overlord.task(two).row.state != "RUNNING")
