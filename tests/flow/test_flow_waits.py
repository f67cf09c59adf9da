"""Waits of processors for dependencies: when they begin, what they count, and when they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.errors import Conflict, Dependency, Unavailable
from penstock.core.waits import WaitTable
from penstock.flow.controller.component_connections import ComponentConnections
from penstock.flow.controller.connection_queues import ConnectionQueues
from penstock.flow.controller.processor_node import ProcessorNode, ProcessorPlan
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessorIdentity,
    ProcessSession,
    Relationship,
    StateManager,
)
from penstock.flow.queue.heap_budget import HeapBudget
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.scheduling.component_protocol import TimedRun
from penstock.flow.session.services import SessionServices
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import ControllerWorld, apply
from tests.flow.repository_kit import Opened

AWAY = Unavailable("no broker answers", dependency=Dependency.BROKER)


class Sender(Processor):
    """Removes one FlowFile, unless its dependency fails."""

    success = Relationship("Nothing.")
    error: Unavailable | None = None
    raises = False

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        flowfile = session.get()
        if Sender.error is None:
            if flowfile is not None:
                session.remove(flowfile)
            return
        if Sender.raises:
            raise Sender.error
        session.rollback()
        context.report_unavailable(Sender.error)
        context.yield_()


class Starter(Processor):
    """Source that cannot start."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("Nothing.")

    def on_scheduled(self, context: ProcessContext) -> None:
        del context
        raise AWAY

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session


class Signals:
    """A scheduler that ignores all signals."""

    def wake(self, component_id: str) -> None: ...

    def yield_for(self, component_id: str, wait_ms: float) -> None: ...


class NodeWorld:
    """One processor with two FlowFiles, or a source with an empty loop; its clock is virtual."""

    def __init__(self, *, is_source: bool = False, has_loop: bool = False) -> None:
        before = Opened.open()
        before.put("in", before.make("1"), before.make("2"))
        before.close()
        self.opened = Opened.open(before.fs)
        opened = self.opened
        queues = ConnectionQueues(
            opened.repository, opened.clock, HeapBudget(1 << 20), lambda job: job()
        )
        inputs = [] if is_source else [queues.add("in", QueueOptions(), [])]
        loops = [queues.add("loop", QueueOptions(), [])] if has_loop else []
        connections = ComponentConnections([*inputs, *loops], {"success": loops})
        services = SessionServices(
            opened.repository, opened.content, opened.clock, lambda: "u", opened.fs
        )
        plan = ProcessorPlan(ProcessorIdentity("p", "P"), lambda: Sender, dict, frozenset(), {})
        self.table = WaitTable(opened.clock)
        self.node = ProcessorNode(
            *(plan, connections, StateManager("p", opened.repository), services),
            *(Signals(), self.table),
        )
        self.node.on_scheduled()

    def trigger(self, error: Unavailable | None) -> None:
        """Trigger the processor while its dependency fails, or works."""
        Sender.error = error
        self.opened.clock.advance(ms=1_000)
        self.node.trigger(TimedRun(self.opened.clock, 0))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NodeWorld]]:
    monkeypatch.setattr(Sender, "error", None)
    monkeypatch.setattr(Sender, "raises", False)
    worlds: list[NodeWorld] = []
    yield worlds
    for one in worlds:
        one.opened.close()


def test_a_wait_begins_with_the_first_failure_and_ends_with_a_run_that_works(
    made: list[NodeWorld],
) -> None:
    made.append(world := NodeWorld())
    assert world.node.current_wait() is None
    world.trigger(AWAY)
    first = world.node.current_wait()
    assert first is not None
    assert (first.dependency, first.tries) == (Dependency.BROKER, 1)
    assert first.since_ms == world.opened.clock.now_ms()
    world.trigger(AWAY)
    second = world.node.current_wait()
    assert second is not None
    assert (second.since_ms, second.tries, second.error) == (first.since_ms, 2, str(AWAY))
    world.trigger(None)
    assert world.node.current_wait() is None


def test_an_unavailable_that_a_trigger_raises_is_a_wait(
    made: list[NodeWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.append(world := NodeWorld())
    monkeypatch.setattr(Sender, "raises", True)
    with pytest.raises(Unavailable):
        world.trigger(AWAY)
    wait = world.node.current_wait()
    assert wait is not None
    assert (wait.dependency, wait.tries) == (Dependency.BROKER, 1)


def test_a_failure_without_a_dependency_is_no_wait(made: list[NodeWorld]) -> None:
    made.append(world := NodeWorld())
    world.trigger(Unavailable("the processor is stopping"))
    assert world.node.current_wait() is None


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_processor_whose_flowfiles_are_gone_waits_for_nothing(
    made: list[NodeWorld], is_shown: bool
) -> None:
    made.append(world := NodeWorld())
    world.trigger(AWAY)
    [queue] = world.node.connections.inputs
    taken = queue.poll_many(2).flowfiles
    assert world.node.current_wait() is not None, "a session has them"
    queue.acknowledge(len(taken), 0)
    if is_shown:
        assert world.node.current_wait() is None
    else:  # the scheduler checks for work
        assert not world.node.has_work(world.opened.clock.now_ms())
    later = world.opened.make("later")
    world.opened.put("in", later)
    queue.put_many([later])
    assert world.node.current_wait() is None
    world.trigger(AWAY)
    wait = world.node.current_wait()
    assert wait is not None
    assert (wait.tries, wait.since_ms) == (1, world.opened.clock.now_ms())


def test_a_source_with_an_empty_loop_waits(made: list[NodeWorld]) -> None:
    made.append(world := NodeWorld(is_source=True, has_loop=True))
    world.trigger(AWAY)
    assert world.node.has_work(world.opened.clock.now_ms())
    assert world.node.current_wait() is not None


@pytest.mark.parametrize("reports", [False, True])
def test_a_start_that_succeeds_ends_the_wait_of_starts_that_failed(
    made: list[NodeWorld], monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    made.append(world := NodeWorld())
    world.node.on_stopped()

    def on_scheduled(processor: Processor, context: ProcessContext) -> None:
        del processor
        if not world.table.all():
            raise AWAY
        if reports:
            context.report_unavailable(AWAY)

    monkeypatch.setattr(Sender, "on_scheduled", on_scheduled)
    with pytest.raises(Unavailable):
        world.node.on_scheduled()
    assert world.table.all()
    world.node.on_scheduled()
    assert bool(world.table.all()) is reports


def test_a_source_that_finds_nothing_to_do_ends_its_wait(made: list[NodeWorld]) -> None:
    made.append(world := NodeWorld(is_source=True))
    world.trigger(AWAY)
    assert world.node.current_wait() is not None
    world.trigger(None)
    assert world.node.current_wait() is None


def test_an_abandoned_processor_records_no_wait(made: list[NodeWorld]) -> None:
    made.append(world := NodeWorld())
    instance = world.node._instance
    assert instance is not None
    world.node.on_terminated()
    instance.report_unavailable(AWAY, None)
    assert not world.table.all()


FLOW = """
name: waits
processors:
  Make: {type: Numbers, properties: {total: 5}}
  Send: {type: Sender, auto_terminated: success}
connections:
  - {from: Make.success, to: Send}
"""


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition was not met")


@pytest.fixture
def world(tmp_path: Path, made: list[NodeWorld]) -> Iterator[ControllerWorld]:
    del made  # it resets the processor
    opened = ControllerWorld(OsFileSystem(), str(tmp_path))
    opened.kinds = {**opened.kinds, "Sender": Sender, "Starter": Starter}
    yield opened
    opened.close()


def test_the_controller_names_the_processor_and_forgets_it_when_it_stops(
    world: ControllerWorld,
) -> None:
    Sender.error = AWAY
    controller = world.open()
    apply(controller, FLOW)
    assert controller.waits() == ()
    controller.start()
    until(lambda: bool(controller.waits()))
    [wait] = controller.waits()
    assert (wait.dependency, wait.work) == (Dependency.BROKER, "processor Send")
    of_components = {one.name: one.waits for one in controller.status().components}
    assert {name: bool(waits) for name, waits in of_components.items()} == {
        name: name == "Send" for name in of_components
    }
    [shown] = of_components["Send"]
    assert (shown.work, shown.since_ms, shown.error) == (wait.work, wait.since_ms, wait.error)
    controller.stop("Send")
    assert controller.waits() == ()
    controller.start("Send")
    until(lambda: bool(controller.waits()))
    Sender.error = None
    until(lambda: controller.waits() == ())


STARTS = "name: starts\nprocessors:\n  Begin: {type: Starter, auto_terminated: success}\n"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_processor_that_cannot_start_waits_until_it_is_stopped_or_removed(
    world: ControllerWorld, is_removed: bool
) -> None:
    controller = world.open()
    apply(controller, STARTS)
    controller.start()
    until(lambda: bool(controller.waits()))
    [wait] = controller.waits()
    assert wait.work == "processor Begin"
    if is_removed:
        apply(controller, "name: starts\n")
    else:
        controller.stop("Begin")
    until(lambda: controller.waits() == ())


def test_a_single_run_that_is_refused_does_not_end_the_wait_of_a_start(
    world: ControllerWorld,
) -> None:
    controller = world.open()
    apply(controller, STARTS)
    controller.start()
    until(lambda: bool(controller.waits()))
    [before] = controller.waits()
    with pytest.raises(Conflict, match="stop it before it runs once"):
        controller.run_once("Begin")
    controller.status()  # the scheduler has handled everything before
    [after] = controller.waits()
    assert after.since_ms == before.since_ms


def test_a_single_run_that_cannot_be_prepared_leaves_no_wait(world: ControllerWorld) -> None:
    controller = world.open()
    apply(controller, STARTS)
    with pytest.raises(Conflict, match=r"did not run: .*no broker answers"):
        controller.run_once("Begin")
    controller.status()
    assert controller.waits() == ()
