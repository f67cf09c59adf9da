"""A flow of built-in processors at work: split, route, signal, wait and merge."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import orjson

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.storage.disk import OsFileSystem

ROWS = [{"n": number, "word": "x" * (number % 7)} for number in range(1_000)]
CHANGED = threading.Condition()


class Feed(Processor):
    """Makes one FlowFile, once."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("The only one.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        if not session.state.get():
            session.state.set({"made": "1"})
            session.transfer(session.write(session.create(), orjson.dumps(ROWS)), self.success)


class Collect(Processor):
    """Keeps what ends here in its state."""

    input = InputRequirement.REQUIRED

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for flowfile in session.get_many(100):
            count = str(int(session.state.get().get("count", "0")) + 1)
            content = session.read_all(flowfile).decode()
            session.state.set({"count": count, "content": content})
            session.remove(flowfile)
        session.on_committed(_tell)


def _tell() -> None:
    with CHANGED:
        CHANGED.notify_all()


FLOW = """
name: records
processors:
  Feed: {type: Feed}
  Split:
    type: SplitRecord
    properties: {input_format: json, output_format: json-lines, records_per_split: 30}
    auto_terminated: [failure]
  Route:
    type: RouteOnAttribute
    properties: {first: "${fragment.index:equals('0')}"}
    auto_terminated: [failure]
  Mark:
    type: UpdateAttribute
    properties: {first: "true"}
    auto_terminated: [failure]
  Notify:
    type: Notify
    properties: {signal: "${fragment.identifier}"}
    auto_terminated: [failure]
  Merge:
    type: MergeRecord
    properties: {input_format: json-lines, output_format: json, strategy: parts}
    yield_duration: 10 ms
    auto_terminated: [original, failure]
  Wait:
    type: Wait
    properties: {signal: "${uuid}", target: "${fragment.count}"}
    penalty_duration: 10 ms
    auto_terminated: [expired, failure]
  Merged: {type: Collect}
  Waited: {type: Collect}
connections:
  - {from: Feed.success, to: Split}
  - {from: Split.splits, to: Route}
  - {from: Route.first, to: Mark}
  - {from: Mark.success, to: Notify}
  - {from: Route.unmatched, to: Notify}
  - {from: Notify.success, to: Merge}
  - {from: Split.original, to: Wait}
  - {from: Wait.wait, to: Wait}
  - {from: Wait.success, to: Waited}
  - {from: Merge.merged, to: Merged}
"""


def test_parts_are_worked_on_and_put_together_and_the_original_waits_for_them(
    tmp_path: Path,
) -> None:
    numbers = itertools.count()
    controller = FlowController.open(
        str(tmp_path),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry({**BUILTIN, "Feed": Feed, "Collect": Collect}),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    try:
        read = read_flow(FLOW, "flow.yaml")
        controller.apply(read.flow, places=read.places)
        controller.start()

        def found(name: str) -> str:
            components = controller.status().components
            [number] = [one.id for one in components if one.name == name]
            return controller._parts._states[number].get().get("content", "")

        def is_done() -> bool:
            sizes = [one.size.count for one in controller.status().connections]
            return bool(found("Merged") and found("Waited")) and not any(sizes)

        with CHANGED:  # the last queue may be told of nobody
            assert any(CHANGED.wait_for(is_done, 0.1) for _ in range(600))
        assert orjson.loads(found("Merged")) == ROWS
        assert orjson.loads(found("Waited")) == ROWS
    finally:
        controller.close()
