"""What a processor is told of where it runs, what it remembers, and the fifteen lines of one."""

from __future__ import annotations

import logging

import pytest

from penstock.core.errors import CorruptData, Dependency, InvalidRequest, Unavailable
from penstock.flow.processor import (
    ProcessContext,
    Processor,
    ProcessorIdentity,
    ProcessSession,
    Property,
    Relationship,
    StateManager,
)
from tests.flow.session_kit import SessionWorld, full_disk


class Greet(Processor):
    """Adds a greeting to each FlowFile."""

    greeting = Property(str, default="hello", about="What to say.")
    success = Relationship("Greeted.")
    ends = Relationship("No name.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for flowfile in session.get_many(100):
            if "name" not in flowfile.attributes:
                session.transfer(flowfile, self.ends)
                continue
            said = f"{self.greeting} {flowfile.attributes['name']}"
            session.transfer(session.put_attributes(flowfile, {"greeting": said}), self.success)


class Host:
    def __init__(self) -> None:
        self.yielded: list[int] = []
        self.reported: list[tuple[Unavailable, int | None]] = []
        self.running = True

    def yield_for(self, wait_ms: int) -> None:
        self.yielded.append(wait_ms)

    def report_unavailable(self, error: Unavailable, tries: int | None) -> None:
        self.reported.append((error, tries))

    def is_scheduled(self) -> bool:
        return self.running

    def is_connected(self, relationship: str) -> bool:
        return relationship == "success"

    def is_available(self, relationship: str) -> bool:
        return relationship == "ends"

    def has_input(self) -> bool:
        return True


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def context(world: SessionWorld, host: Host) -> ProcessContext:
    return ProcessContext(ProcessorIdentity("p", "Greeter"), host, world.state, world.clock)


def test_a_processor_of_fifteen_lines_works(world: SessionWorld, context: ProcessContext) -> None:
    world.feed("a", b"1", name="Ada")
    world.feed("a", b"2")
    session = world.session()
    Greet().on_trigger(context, session)
    session.commit()
    [greeted] = world.queues["out"].flowfiles
    assert greeted.attributes["greeting"] == "hello Ada"
    world.check()


def test_a_context_asks_its_host(context: ProcessContext, host: Host) -> None:
    assert (context.id, context.name) == ("p", "Greeter")
    assert context.is_connected(Relationship(name="success"))
    assert not context.is_available("success")
    assert context.is_available("ends")
    assert context.has_input
    assert context.is_scheduled
    context.yield_()
    context.yield_(5)
    assert host.yielded == [1_000, 5]
    error = Unavailable("no answer", dependency=Dependency.BROKER)
    context.report_unavailable(error, tries=3)
    assert host.reported == [(error, 3)]


def test_the_log_says_who_wrote(context: ProcessContext, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        context.log.info("took %d files", 3)
    assert caplog.messages == ["Greeter: took 3 files"]


def test_state_is_changed_at_once_or_not_at_all(world: SessionWorld) -> None:
    state = world.state
    assert state.get() == {}
    before = state.get()
    state.set({"a": "1"})
    assert before == {}
    assert state.replace({"a": "2"}, {}) is False
    assert state.replace({"a": "1"}, {"a": "2"}, durable=True) is True
    assert world.repository.commits[-1][1] is True
    world.repository.fails = full_disk()
    with pytest.raises(Unavailable):
        state.set({"a": "3"})
    with pytest.raises(Unavailable):
        state.clear()
    world.repository.fails = None
    assert state.get() == {"a": "2"}
    assert StateManager("p", world.repository).get() == {"a": "2"}  # as after a restart
    assert StateManager("q", world.repository).get() == {}
    state.clear()
    assert StateManager("p", world.repository).get() == {}


@pytest.mark.parametrize("wrong", [{"a": 1}, {1: "a"}, {"a": "x" * 2_000_000}])
def test_state_that_is_no_map_of_text_or_too_large_is_refused(
    world: SessionWorld, wrong: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest, match="state"):
        world.state.set(wrong)
    assert not world.repository.commits


def test_damaged_state_is_named(world: SessionWorld) -> None:
    world.repository.states["p"] = b"\xff"
    with pytest.raises(CorruptData, match="the state of p"):
        world.state.get()


@pytest.mark.parametrize("wait_ms", ["5 sec", float("inf"), float("nan"), -1, 10**400, 10**16])
def test_a_rest_that_no_scheduler_could_keep_is_refused(
    context: ProcessContext, host: Host, wait_ms: int
) -> None:
    with pytest.raises(InvalidRequest, match="give milliseconds"):
        context.yield_(wait_ms)
    assert not host.yielded
