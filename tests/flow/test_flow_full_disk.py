"""A disk that a flow filled: nothing more comes in, and the flow drains it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.controller.controller import ControllerOptions
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Relationship,
)
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.content.options import ContentOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.flow.controller_kit import CHANGED, KINDS, ControllerWorld, apply, queued, states, tell
from tests.flow.repository_kit import SMALL

RESERVE = 100_000
REFUSED = threading.Event()
FLOW = """
name: fills
processors:
  Make: {type: Source}
  Pass: {type: Pass}
  End: {type: Sink}
connections:
  - {from: Make.success, to: Pass}
  - {from: Pass.success, to: End}
"""


class Sink(Processor):
    """Removes what comes."""

    input = InputRequirement.REQUIRED

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        session.remove(session.get_many(10))
        session.on_committed(tell)


class Source(Processor):
    """Makes FlowFiles with content until it is refused, and says so."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        flowfile = session.create()
        try:
            flowfile = session.write(flowfile, bytes(20_000))
        except Unavailable:
            REFUSED.set()
            tell()
            raise
        session.transfer(flowfile, self.success)


@pytest.fixture
def fs() -> CrashableFileSystem:
    return CrashableFileSystem()


@pytest.fixture
def world(fs: CrashableFileSystem) -> Iterator[ControllerWorld]:
    options = ControllerOptions(content=ContentOptions(min_free_bytes=RESERVE))
    world = ControllerWorld(
        fs, "/flow", options=options, kinds={**KINDS, "Sink": Sink, "Source": Source}
    )
    yield world
    world.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def opened(
    fs: CrashableFileSystem, clock: VirtualClock
) -> Iterator[tuple[ContentRepository, FlowFileRepository]]:
    options = ContentOptions(resource_bytes=1_000, min_free_bytes=RESERVE)
    content = ContentRepository.open("/content", fs=fs, clock=clock, options=options)
    repository = FlowFileRepository.open(
        "/flowfiles", fs=fs, clock=clock, content=content, options=SMALL
    )
    yield content, repository
    repository.close()
    content.close()


def wait_for(condition: Callable[[], bool]) -> None:
    with CHANGED:
        assert CHANGED.wait_for(condition, 120.0)


def test_what_comes_in_is_refused_and_what_moves_or_goes_is_not(
    fs: CrashableFileSystem,
    clock: VirtualClock,
    opened: tuple[ContentRepository, FlowFileRepository],
) -> None:
    content, repository = opened
    fs.capacity_bytes = fs.used_bytes() + RESERVE + 5_000
    kept: list[FlowFile] = []

    def fill() -> None:
        for number in range(len(kept) + 1, 100):
            claim = content.put(b"x" * 1_000)
            assert claim is not None
            made = FlowFile(number, {}, claim.length, claim)
            repository.commit(Changes(puts={"a": [made]}, written=[claim]))
            kept.append(made)

    with pytest.raises(Unavailable, match="are kept free: let the flow process"):
        fill()
    assert 2 <= len(kept) <= 5
    with content.write() as writer, pytest.raises(Unavailable, match="are kept free"):
        writer.write(b"x" * 1_000_000)
    fs.capacity_bytes = fs.used_bytes() + RESERVE - 1  # somebody else took the rest of it
    clock.advance(1)
    with pytest.raises(Unavailable, match="are kept free"):
        repository.commit(Changes(puts={"b": [FlowFile(500, {}, 0, None)]}))

    moved = [FlowFile(one.id, {"moved": "yes"}, one.size, one.claim) for one in kept]
    repository.commit(Changes(puts={"b": moved}, replaced=kept), durable=True)
    repository.commit(Changes(removes=moved, states={"a": b"emptied"}), durable=True)
    clock.advance(1)
    kept.clear()
    fs.capacity_bytes += 5_000
    with pytest.raises(Unavailable, match="are kept free"):
        fill()
    assert kept


def test_the_flow_that_filled_the_disk_drains_it(
    fs: CrashableFileSystem, world: ControllerWorld
) -> None:
    REFUSED.clear()
    flow = world.open()
    apply(flow, FLOW)
    fs.capacity_bytes = fs.used_bytes() + RESERVE + 300_000
    flow.start("Make")
    wait_for(REFUSED.is_set)
    filled = len(queued(flow))
    assert filled >= 5
    flow.start("Pass")
    flow.start("End")
    flow.stop("Make")
    wait_for(lambda: not queued(flow) and not flow.status().repository.flowfiles)
    assert fs.free_bytes("/flow") >= RESERVE // 2
    assert states(flow)["End"] == "running"
