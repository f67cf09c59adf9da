"""Processors and a world for tests of the controller: what goes in is counted where it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.clock import Clock, SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.flowfile import FlowFile
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.storage.filesystem import FileSystem

CHANGED = threading.Condition()


def tell() -> None:
    with CHANGED:
        CHANGED.notify_all()


class Numbers(Processor):
    """Makes so many FlowFiles with numbers, as many in one commit as the batch has."""

    input = InputRequirement.FORBIDDEN
    total = Property(int, default=10)
    batch = Property(int, default=10)
    with_content = Property(bool, default=False)
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        first = int(session.state.get().get("made", "0"))
        end = min(self.total, first + self.batch)
        for number in range(first, end):
            flowfile = session.create(attributes={"n": str(number), "odd": str(number % 2)})
            if self.with_content:
                with session.write(flowfile) as out:
                    out.write(content_of(number))
            session.transfer(flowfile, self.success)
        if end > first:
            session.state.set({"made": str(end)})
            session.on_committed(tell)


def content_of(number: int) -> bytes:
    return f"{number} ".encode() * (1 + number % 50)


class Pass(Processor):
    """Passes on with a mark."""

    input = InputRequirement.REQUIRED
    word = Property(str, default="seen")
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for flowfile in session.get_many(7):
            session.transfer(session.put_attributes(flowfile, {"word": self.word}), self.success)


class Tally(Processor):
    """Counts and sums up what ends in it: in its state, so that both are of one commit."""

    input = InputRequirement.REQUIRED
    with_content = Property(bool, default=False)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        taken = session.get_many(13)
        state = session.state.get()
        numbers = [int(one.attributes["n"]) for one in taken]
        if self.with_content:
            for flowfile, number in zip(taken, numbers, strict=True):
                assert session.read_all(flowfile) == content_of(number)
        session.state.set(
            {
                "count": str(int(state.get("count", "0")) + len(numbers)),
                "sum": str(int(state.get("sum", "0")) + sum(numbers)),
            }
        )
        session.remove(taken)
        session.on_committed(tell)


KINDS = {kind.__name__: kind for kind in (Numbers, Pass, Tally)}

LINE = """
name: line
processors:
  Make: {type: Numbers}
  Pass: {type: Pass}
  End: {type: Tally}
connections:
  - {from: Make.success, to: Pass}
  - {from: Pass.success, to: End}
"""


@dataclass
class ControllerWorld:
    """A data folder on a file system, and the controllers that were opened of it."""

    fs: FileSystem
    folder: str
    clock: Clock = field(default_factory=SystemClock)
    options: ControllerOptions = field(default_factory=lambda: ControllerOptions(stop_limit_s=10.0))
    kinds: Mapping[str, type[Processor]] = field(default_factory=lambda: KINDS)
    opened: list[FlowController] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def open(self, **environment: str) -> FlowController:
        controller = FlowController.open(
            self.folder,
            fs=self.fs,
            clock=self.clock,
            registry=ProcessorRegistry(self.kinds),
            new_uuid=lambda: f"u{next(self.numbers)}",
            environment=environment,
            options=self.options,
        )
        self.opened.append(controller)
        return controller

    def close(self) -> None:
        for controller in self.opened:
            controller.close()


def apply(controller: FlowController, text: str, revision: int | None = None) -> list[str]:
    read = read_flow(text, "flow.yaml")
    changes = controller.apply(read.flow, revision=revision, places=read.places)
    return [line for change in changes for line in change.lines()]


def states(controller: FlowController) -> dict[str, str]:
    return {one.name: one.scheduling.state.value for one in controller.status().components}


def id_of(controller: FlowController, name: str) -> str:
    return next(one.id for one in controller.status().components if one.name == name)


def state_of(controller: FlowController, name: str) -> Mapping[str, str]:
    """What a processor remembers."""
    return controller._parts._states[id_of(controller, name)].get()


def number_in(state: Mapping[str, str], name: str) -> int:
    return int(state.get(name, "0"))


def queued(controller: FlowController) -> list[FlowFile]:
    """All FlowFiles in connections, while nothing runs."""
    status = controller.status()
    return [
        one
        for each in status.connections
        for one in controller.queue(each.id).listing.first(10_000)
    ]


def check_conserved(controller: FlowController, total: int) -> int:
    """While nothing runs: each number that was made is queued once, or was counted. How many."""
    made = number_in(state_of(controller, "Make"), "made")
    end = state_of(controller, "End")
    waiting = [int(one.attributes["n"]) for one in queued(controller)]
    assert len(set(waiting)) == len(waiting)
    assert made <= total
    assert number_in(end, "count") + len(waiting) == made
    assert number_in(end, "sum") + sum(waiting) == made * (made - 1) // 2
    return number_in(end, "count")


def settled(controller: FlowController, *names: str) -> dict[str, str]:
    """Return the states once none of the components, by default of all, is starting.

    The test's time limit bounds the wait.
    """
    while True:
        found = states(controller)
        if "starting" not in [found[name] for name in names or found]:
            return found
        threading.Event().wait(0.01)


def wait_counted(controller: FlowController, total: int) -> None:
    with CHANGED:
        assert CHANGED.wait_for(
            lambda: number_in(state_of(controller, "End"), "count") >= total, 120
        )
