"""What the controller's parts let go of: starts that were given up, and what a start found."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.core.errors import Unavailable
from penstock.core.waits import WaitTable
from penstock.flow.controller.component_connections import ComponentConnections
from penstock.flow.controller.connection_queues import ConnectionQueues
from penstock.flow.controller.processor_node import ProcessorNode, ProcessorPlan
from penstock.flow.errors import SessionMisuse
from penstock.flow.processor import ProcessContext, Processor, ProcessSession, Relationship
from penstock.flow.processor.process_context import ProcessorIdentity
from penstock.flow.processor_state import StateManager
from penstock.flow.queue.heap_budget import HeapBudget
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.scheduling.component import prepare
from penstock.flow.scheduling.component_protocol import TimedRun
from penstock.flow.session.services import SessionServices
from tests.flow.repository_kit import Opened


class Deaf:
    """A scheduler that ignores all signals."""

    def wake(self, component_id: str) -> None: ...

    def yield_for(self, component_id: str, wait_ms: float) -> None: ...


class Slow(Processor):
    """The first instance hangs in its start until it is told, and fails then if it is told to."""

    success = Relationship("Nothing.")
    entered = threading.Event()
    go_on = threading.Event()
    made: list[Slow]
    fails = False

    def on_scheduled(self, context: ProcessContext) -> None:
        del context
        self.ended = False
        Slow.made.append(self)
        if self is Slow.made[0]:
            Slow.entered.set()
            assert Slow.go_on.wait(60)
            if Slow.fails:
                raise Unavailable("no answer")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session

    def on_stopped(self, context: ProcessContext) -> None:
        del context
        self.ended = True


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened.open()
    yield opened
    opened.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_start_that_was_given_up_does_not_meet_the_next_one(opened: Opened, fails: bool) -> None:
    Slow.made, Slow.fails = [], fails
    Slow.entered.clear()
    Slow.go_on.clear()
    services = SessionServices(
        opened.repository, opened.content, opened.clock, lambda: "u", opened.fs
    )
    plan = ProcessorPlan(ProcessorIdentity("p", "P"), lambda: Slow, dict, frozenset(), {})
    state = StateManager("p", opened.repository)
    node = ProcessorNode(
        *(plan, ComponentConnections(), state, services, Deaf(), WaitTable(services.clock))
    )

    hanging = threading.Thread(target=prepare, args=(node,))
    hanging.start()
    assert Slow.entered.wait(60)
    node.on_terminated()  # as the scheduler does when a start takes too long
    assert not prepare(node).problems
    Slow.go_on.set()
    hanging.join()

    first, second = Slow.made
    assert node.has_work(0), "the second start stands"
    assert not second.ended
    assert first.ended is not fails, "what failed lets go itself; nobody else would have the other"
    node.on_unscheduled()
    node.on_stopped()
    assert second.ended
    assert not node.has_work(0)


def test_what_a_start_found_is_not_kept_beside_the_queues(opened: Opened) -> None:
    opened.put("q", opened.make("one"), opened.make("two"))
    opened.close()
    again = Opened.open(opened.fs)
    assert again.repository.recovered.queues.keys() == {"q"}
    board = ConnectionQueues(again.repository, again.clock, HeapBudget(1 << 20), lambda job: job())
    assert not again.repository.recovered.queues
    assert board.orphaned == ["q"]
    queue = board.add("q", QueueOptions(), [])
    assert queue.size.count == 2
    assert not board.orphaned
    again.close()


def test_expired_flowfiles_whose_removal_is_refused_stay_in_their_queue(opened: Opened) -> None:
    opened.put("q", opened.make("one"), opened.make("two"))
    opened.close()
    again = Opened.open(opened.fs)
    board = ConnectionQueues(again.repository, again.clock, HeapBudget(1 << 20), lambda job: job())
    queue = board.add("q", QueueOptions(expiration_ms=1_000), [])
    again.fs.fail_next("append")
    board.expire()
    assert queue.size.count == 2
    assert not board.expired
    board.expire()
    assert queue.size.count == 0
    assert board.expired == {"q": 2}
    assert again.repository.statistics().flowfiles == 0
    again.close()


class Raising(Processor):
    """Takes all that there is at once, and raises at one."""

    success = Relationship("All others.")
    raises: Exception = KeyError("a mistake")
    batches: list[int]

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        taken = session.get_many(100)
        self.batches.append(len(taken))
        for flowfile in taken:
            if flowfile.attributes["text"] == "bad":
                raise self.raises
            session.transfer(flowfile, self.success)


class Forgetting(Raising):
    """Forgets one, which the session notices."""

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        taken = session.get_many(100)
        self.batches.append(len(taken))
        good = [one for one in taken if one.attributes["text"] != "bad"]
        session.transfer(good, self.success)


@pytest.mark.parametrize("kind", [Raising, Forgetting])
@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("idle_inputs", [0, 2])
def test_one_flowfile_that_raises_holds_up_no_others(
    opened: Opened, kind: type[Raising], place: int, idle_inputs: int
) -> None:
    Raising.batches = []
    names = [f"good {number}" for number in range(6)]
    names.insert(place, "bad")
    opened.put("q", *map(opened.make, names))
    opened.close()
    again = Opened.open(opened.fs)
    board = ConnectionQueues(again.repository, again.clock, HeapBudget(1 << 20), lambda job: job())
    queue = board.add("q", QueueOptions(), [])
    others = [board.add(f"q{number}", QueueOptions(), []) for number in range(idle_inputs)]
    services = SessionServices(again.repository, again.content, again.clock, lambda: "u", again.fs)
    plan = ProcessorPlan(
        ProcessorIdentity("p", "P"), lambda: kind, dict, frozenset({Raising.success.name}), {}
    )
    state = StateManager("p", again.repository)
    connections = ComponentConnections([queue, *others])
    node = ProcessorNode(plan, connections, state, services, Deaf(), WaitTable(services.clock))
    node.on_scheduled()
    failures = 0
    while node.has_work(again.clock.now_ms()):
        try:
            node.trigger(TimedRun(again.clock, 0))
        except (KeyError, SessionMisuse):
            failures += 1
    assert 1 <= failures <= 3, "7, 3, 1"
    assert Raising.batches[0] == 7
    assert node.statistics.removed_count == 6
    assert [one.attributes["text"] for one in queue.listing.first(10)] == ["bad"]
    assert queue.next_due_ms() is not None, "it is penalized"
    again.close()


class One(Processor):
    """Takes one FlowFile at a time."""

    success = Relationship("All.")
    supports_batching = True
    triggers = 0

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        One.triggers += 1
        flowfile = session.get()
        if flowfile is not None:
            session.transfer(flowfile, self.success)


@pytest.mark.parametrize(
    ("duration_ms", "repeat_ms", "room", "moved"), [(100, 0, 10, 4), (0, 5, 10, 4), (0, 5, 2, 2)]
)
def test_a_run_ends_when_no_work_or_no_room_is_left(
    opened: Opened, duration_ms: int, repeat_ms: int, room: int, moved: int
) -> None:
    """The virtual clock stands still, so the run has time for all."""
    opened.put("in", *[opened.make(str(number)) for number in range(4)])
    opened.close()
    again = Opened.open(opened.fs)
    queues = ConnectionQueues(again.repository, again.clock, HeapBudget(1 << 20), lambda job: job())
    source = queues.add("in", QueueOptions(), [])
    destination = queues.add("out", QueueOptions(backpressure_count=room), [])
    services = SessionServices(again.repository, again.content, again.clock, lambda: "u", again.fs)
    plan = ProcessorPlan(ProcessorIdentity("p", "P"), lambda: One, dict, frozenset(), {})
    connections = ComponentConnections([source], {One.success.name: [destination]})
    state = StateManager("p", again.repository)
    node = ProcessorNode(plan, connections, state, services, Deaf(), WaitTable(services.clock))
    node.on_scheduled()
    One.triggers = 0
    assert node.trigger(TimedRun(again.clock, duration_ms, repeat_ms)).worked
    assert One.triggers == moved, "no trigger without work or room"
    assert (source.size.count, destination.size.count) == (4 - moved, moved)
    again.close()
